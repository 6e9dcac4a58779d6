//! Numbers that are changed atomically, by peers and by their own process.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen};
use super::memory::{Ground, ready};
use super::{Fixture, Suite};
use gapless_btl::{Access, Btl, Change, Extent, LinkError, PeerId, RdmaError, RemoteKey, Token};
use std::collections::BTreeSet;

/// Where an end registers memory for atomic operations, if it has any.
fn register<T: Btl>(duo: &mut Duo<T>, suite: &Suite, ground: Ground) -> Option<RemoteKey> {
    if !ready(duo, suite) {
        return None;
    }
    let rdma = duo.ends[B].rdma().expect("both ends are alike");
    if !rdma.has_atomics() {
        suite.skip("the transport has no atomic operations");
        return None;
    }
    // SAFETY: ground is never freed, and no reference covers it.
    Some(unsafe { rdma.register(ground.0, Access::Atomic) }.expect("host memory can be registered"))
}

/// Waits until it is known whether a link can change what a key stands for.
fn changes<T: Btl>(duo: &mut Duo<T>, side: usize, peer: PeerId, key: &RemoteKey) -> bool {
    let watch = Watch::new("knowing whether numbers can be changed");
    loop {
        let rdma = duo.ends[side].rdma().expect("it was there before");
        if let Some(known) = rdma.changes(peer, key) {
            return known;
        }
        duo.step();
        watch.tick();
    }
}

/// A number of an end's own in which it finds what was there.
struct FoundGround(Ground);

impl FoundGround {
    fn new() -> FoundGround {
        FoundGround(Ground::new(8))
    }

    fn get(&self) -> u64 {
        number(self.0, 0)
    }
}

fn number(ground: Ground, offset: u64) -> u64 {
    u64::from_ne_bytes(ground.read(offset, 8).try_into().expect("eight bytes"))
}

/// Begins a change; waits for room.
fn begin<T: Btl>(
    duo: &mut Duo<T>,
    (side, peer): (usize, PeerId),
    (key, offset): (&RemoteKey, u64),
    change: Change,
    (found, done): (&FoundGround, Token),
) -> Result<(), RdmaError> {
    let watch = Watch::new("room for a change");
    loop {
        let rdma = duo.ends[side].rdma().expect("it was there before");
        // SAFETY: ground is never freed, and nothing else touches it until the end of the operation was seen.
        match unsafe { rdma.atomic(peer, key, offset, change, found.0.0, done) } {
            Err(RdmaError::Full) => duo.step(),
            other => return other,
        }
        watch.tick();
    }
}

/// The token of the next operation of an end that has ended well.
fn ended<T: Btl>(duo: &mut Duo<T>, side: usize) -> Token {
    match duo.hear(side) {
        Seen::Completed { token, result } => {
            assert_eq!(result, Ok::<(), LinkError>(()), "the link stands");
            token
        }
        other => panic!("instead of the end of an operation: {other:?}"),
    }
}

/// Sums and exchanges do what they should to one number, and not a byte beside it changes.
pub fn numbers_change(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let far = Ground::new(64);
    let Some(key) = register(&mut duo, suite, far) else { return };
    let (peer, found) = (duo.peer[A], FoundGround::new());
    assert!(changes(&mut duo, A, peer, &key), "the peer has registered it");
    let top = 1 << 63;
    let swap = |compare, swap| Change::CompareSwap { compare, swap };
    let cases = [
        (5, Change::Add(0)),
        (5, Change::Add(7)),
        (u64::MAX, Change::Add(3)),
        (top | 1, Change::Add(top)),
        (0x0102_0304_0506_0708, Change::Add(0x0101_0101_0101_0101)),
        (9, swap(9, 0x1112_1314_1516_1718)),
        (9, swap(8, 1)),
        (0x0102_0304_0506_0708, swap(0x0807_0605_0403_0201, 3)),
        (top, swap(top, u64::MAX)),
    ];
    for (i, &(old, change)) in (1..).zip(&cases) {
        for offset in [0, 8, 56] {
            far.fill(0xee);
            found.0.fill(0x55);
            far.write(offset, &old.to_ne_bytes());
            let done = Token(i);
            let begun = begin(&mut duo, (A, peer), (&key, offset), change, (&found, done));
            assert_eq!(begun, Ok(()), "{change:?} of {old:#x} at {offset}");
            assert_eq!(ended(&mut duo, A), done);
            let case = format!("{change:?} of {old:#x} at {offset}");
            assert_eq!((found.get(), number(far, offset)), (old, change.of(old)), "{case}");
            let beside = far.read(0, offset).into_iter().chain(far.read(offset + 8, 56 - offset));
            assert!(
                beside.into_iter().all(|byte| byte == 0xee),
                "{case}: a byte beside it changed"
            );
        }
    }
    // What may be changed may be read and written.
    let rdma = duo.ends[A].rdma().expect("as before");
    let extent = [Extent { offset: 8, len: 8 }];
    found.0.fill(0x77);
    // SAFETY: as in `begin`.
    unsafe { rdma.put(peer, &[found.0.0], &key, &extent, Token(100)) }.expect("there is room");
    assert_eq!(ended(&mut duo, A), Token(100));
    assert_eq!(number(far, 8), 0x7777_7777_7777_7777);
    duo.ends[B].rdma().expect("as before").deregister(&key);
    duo.expect_silence();
}

/// Sums of a peer and of the memory's own process, many at once: none is lost, and no two find the same.
pub fn numbers_change_from_both_ends(suite: &Suite, mut fixture: impl Fixture) {
    const EACH: u64 = 120;
    const AT_ONCE: usize = 8;
    let mut duo = Duo::new(&mut fixture);
    let far = Ground::new(16);
    let Some(key) = register(&mut duo, suite, far) else { return };
    far.fill(0);
    let own = duo.ends[B].rdma().expect("as before").own().expect("it has atomic operations");
    let again = duo.ends[B].rdma().expect("as before").own();
    assert_eq!(again, Some(own), "it has one name for itself");
    let names = [duo.peer[A], own];
    for side in [A, B] {
        assert!(changes(&mut duo, side, names[side], &key), "end {side}");
    }
    let places: [Vec<FoundGround>; 2] =
        [(); 2].map(|()| (0..AT_ONCE).map(|_| FoundGround::new()).collect());
    let mut free: [Vec<usize>; 2] = [(); 2].map(|()| (0..AT_ONCE).collect());
    let (mut begun, mut seen) = ([0; 2], BTreeSet::new());
    let watch = Watch::new("all changes");
    while seen.len() < usize::try_from(2 * EACH).expect("few") {
        for side in [A, B] {
            while begun[side] < EACH
                && let Some(at) = free[side].pop()
            {
                let found = (&places[side][at], Token(at as u64));
                let what = ((side, names[side]), (&key, 8));
                begin(&mut duo, what.0, what.1, Change::Add(1), found).expect("a good key");
                begun[side] += 1;
            }
        }
        duo.step();
        for side in [A, B] {
            while !duo.heard[side].is_empty() {
                let at = usize::try_from(ended(&mut duo, side).0).expect("small");
                let old = places[side][at].get();
                assert!(seen.insert(old), "end {side} finds {old} a second time");
                free[side].push(at);
            }
        }
        watch.tick();
    }
    assert_eq!((number(far, 8), number(far, 0)), (2 * EACH, 0));
    assert_eq!(seen.last(), Some(&(2 * EACH - 1)));
    duo.expect_health();
}

/// Places that are no numbers, and keys that are not for this, are refused before anything happens.
pub fn atomics_refuse_what_is_wrong(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let (far, plain) = (Ground::new(24), Ground::new(24));
    let Some(key) = register(&mut duo, suite, far) else { return };
    far.fill(3);
    plain.fill(3);
    let (peer, found) = (duo.peer[A], FoundGround::new());
    assert!(changes(&mut duo, A, peer, &key));
    let change = Change::Add(1);
    let mut refused = |key: &RemoteKey, offset, found: &FoundGround| {
        begin(&mut duo, (A, peer), (key, offset), change, (found, Token(1)))
            .expect_err("it is wrong")
    };
    for offset in [1, 4, 15] {
        let error = refused(&key, offset, &found);
        assert!(matches!(error, RdmaError::Misaligned { .. }), "{error:?}");
    }
    for offset in [17, 24, 1 << 40, u64::MAX, u64::MAX - 7] {
        let error = refused(&key, offset, &found);
        let named = matches!(error, RdmaError::OutOfRange { .. });
        assert!(named, "{offset}: {error:?}");
    }
    let error = refused(&key, 0, &FoundGround(Ground::new(4)));
    assert!(matches!(error, RdmaError::LengthMismatch { .. }), "{error:?}");
    let damaged = RemoteKey::new(&key.as_bytes()[1..]).expect("shorter");
    let error = refused(&damaged, 0, &found);
    assert!(matches!(error, RdmaError::BadKey { .. }), "{error:?}");
    for access in [Access::Read, Access::Write] {
        let owner = duo.ends[B].rdma().expect("as before");
        // SAFETY: ground is never freed, and no reference covers it.
        let key = unsafe { owner.register(plain.0, access) }.expect("host memory");
        let begun = begin(&mut duo, (A, peer), (&key, 0), change, (&found, Token(1)));
        assert_eq!(begun, Err(RdmaError::NotAtomic));
        assert!(!changes(&mut duo, A, peer, &key));
    }
    assert!([far, plain].iter().all(|it| it.read(0, 24) == [3; 24]), "nothing was changed");
    duo.expect_health();
}
