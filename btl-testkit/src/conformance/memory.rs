//! The optional abilities. Memory that operations work on is never freed, so that a
//! failing test does not pull it away under one that is still under way.

use super::bench::Watch;
use super::duo::{A, B, Duo, Seen, message};
use super::{Fixture, Suite};
use gapless_btl::{
    Access, AmTag, Btl, Extent, LinkError, MapError, Mapping, RdmaError, RemoteKey, Token,
};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, HostDevice, Lease, Region};
use gapless_testkit::Random;

/// Host memory that is never freed, and that only its test and operations it starts touch.
#[derive(Clone, Copy)]
pub(super) struct Ground(pub(super) Region);

impl Ground {
    pub(super) fn new(len: u64) -> Ground {
        Ground(HostDevice::new().allocate(len).expect("memory for a test"))
    }

    pub(super) fn region(self, offset: u64, len: u64) -> Region {
        self.0.sub(offset, len).expect("inside the test's memory")
    }

    pub(super) fn write(self, offset: u64, bytes: &[u8]) {
        write(&self.region(offset, bytes.len() as u64), bytes);
    }

    pub(super) fn read(self, offset: u64, len: u64) -> Vec<u8> {
        read(&self.region(offset, len))
    }

    pub(super) fn fill(self, value: u8) {
        // SAFETY: this memory is never freed, no reference covers it, and tests start no operation
        // on it before they have seen the last one's end.
        unsafe { gapless_mem::fill(&self.0, value) }.expect("host memory");
    }
}

/// Reads memory that a test holds: grounds, allocations and mappings.
fn read(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.len()).expect("test sizes")];
    // SAFETY: grounds are never freed and the callers hold allocations and mappings over the call;
    // no reference covers any of them.
    unsafe { gapless_mem::read(region, 0, &mut bytes) }.expect("host memory");
    bytes
}

/// Writes memory that a test holds: grounds, allocations and mappings.
fn write(region: &Region, bytes: &[u8]) {
    // SAFETY: as in `read`.
    unsafe { gapless_mem::write(region, 0, bytes) }.expect("host memory");
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OneSidedKind {
    Get,
    Put,
    /// As a get, in the call; only where the transport can.
    SingleCopyRead,
}

/// One operation of `A` on memory of `B`, to its end.
fn one_sided<T: Btl>(
    duo: &mut Duo<T>,
    way: OneSidedKind,
    local: &[Region],
    key: &RemoteKey,
    remote: &[Extent],
) -> Result<Result<(), LinkError>, RdmaError> {
    let done = Token(0xd0);
    let peer = duo.peer[A];
    let watch = Watch::new("an operation");
    loop {
        let rdma = duo.ends[A].rdma().expect("it was there before");
        let started = match way {
            // SAFETY: `local` is ground, which is never freed and that nothing else touches until
            // this function has seen the end; or the operation is refused.
            OneSidedKind::Get => unsafe { rdma.get(peer, local, key, remote, done) },
            // SAFETY: as above.
            OneSidedKind::Put => unsafe { rdma.put(peer, local, key, remote, done) },
            OneSidedKind::SingleCopyRead => {
                // SAFETY: as above; the key is of ground, which nothing writes meanwhile.
                return unsafe { rdma.single_copy_read(peer, key, remote[0].offset, local[0]) }
                    .map(Ok);
            }
        };
        match started {
            Ok(()) => break,
            Err(RdmaError::Full) => duo.step(),
            Err(error) => return Err(error),
        }
        watch.tick();
    }
    match duo.hear(A) {
        Seen::Completed { token, result } if token == done => Ok(result),
        other => panic!("instead of the end of an operation: {other:?}"),
    }
}

pub(super) fn ready<T: Btl>(duo: &mut Duo<T>, suite: &Suite) -> bool {
    let peer = duo.peer[A];
    let watch = Watch::new("knowing whether the peer's memory can be reached");
    loop {
        let Some(rdma) = duo.ends[A].rdma() else {
            suite.skip("the transport has no one-sided operations");
            return false;
        };
        match rdma.reaches(peer) {
            Some(true) => return true,
            Some(false) => {
                suite.skip("the peer's memory cannot be reached here");
                return false;
            }
            None => duo.step(),
        }
        watch.tick();
    }
}

fn register<T: Btl>(duo: &mut Duo<T>, ground: Ground) -> RemoteKey {
    let rdma = duo.ends[B].rdma().expect("both ends are alike");
    // SAFETY: ground is never freed, and no reference covers it.
    unsafe { rdma.register(ground.0, Access::Write) }.expect("host memory can be registered")
}

/// Gets, puts and, where there are some, single-copy reads of 0 to 70 bytes and around pages, at every alignment modulo
/// 16 of both sides; not a byte beside them changes.
pub fn rdma_at_every_alignment(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    if !ready(&mut duo, suite) {
        return;
    }
    let (near, far) = (Ground::new(3 << 12), Ground::new(3 << 12));
    let key = register(&mut duo, far);
    let peer = duo.peer[B];
    let single_copy_key = duo.ends[B].rdma().expect("as before").single_copy_key(peer, far.0);
    let mut cases: Vec<(u64, u64, u64)> = Vec::new();
    for len in (0..=33).chain([63, 64, 65, 70]) {
        cases.extend((0..16).map(|i| (i, (i * 7 + len) % 16, len)));
    }
    cases.extend((0..256).map(|i| (i / 16, i % 16, 37)));
    cases.extend((0..16).map(|i| (4096 - 8 + i, 4096 - i, 4097)));
    for (i, &(near_at, far_at, len)) in (0u64..).zip(&cases) {
        for way in [OneSidedKind::Get, OneSidedKind::Put, OneSidedKind::SingleCopyRead] {
            let Some(key) =
                (if way == OneSidedKind::SingleCopyRead { single_copy_key } else { Some(key) })
            else {
                continue;
            };
            let (from, from_at, to, to_at) = match way {
                OneSidedKind::Get | OneSidedKind::SingleCopyRead => (far, far_at, near, near_at),
                OneSidedKind::Put => (near, near_at, far, far_at),
            };
            let bytes = message(i, usize::try_from(len).expect("short"));
            to.fill(0xee);
            from.fill(0x11);
            from.write(from_at, &bytes);
            let local = [near.region(near_at, len)];
            let remote = [Extent { offset: far_at, len }];
            let result = one_sided(&mut duo, way, &local, &key, &remote);
            let case = format!("{way:?} of {len} bytes, near at {near_at}, far at {far_at}");
            assert_eq!(result, Ok(Ok(())), "{case}");
            let all = to.read(0, to.0.len());
            let (before, rest) = all.split_at(usize::try_from(to_at).expect("short"));
            let (moved, after) = rest.split_at(bytes.len());
            assert!(moved == bytes, "{case}: the bytes are wrong");
            let beside = before.iter().chain(after).all(|&byte| byte == 0xee);
            assert!(beside, "{case}: a byte beside them changed");
        }
    }
    if let Some(key) = single_copy_key {
        let outside = [Extent { offset: far.0.len() - 3, len: 4 }];
        let error =
            one_sided(&mut duo, OneSidedKind::SingleCopyRead, &[near.region(0, 4)], &key, &outside);
        assert!(matches!(error, Err(RdmaError::OutOfRange { .. })), "{error:?}");
    }
    duo.ends[B].rdma().expect("as before").deregister(&key);
    duo.expect_silence();
}

/// Cuts `total` bytes into up to `most` pieces, some of them empty.
fn cut(random: &mut Random, total: u64, most: usize) -> Vec<u64> {
    let cuts = random.below(most);
    let total_len = usize::try_from(total).expect("short");
    let mut at: Vec<u64> = (0..cuts).map(|_| random.below(total_len + 1) as u64).collect();
    at.extend([0, total]);
    at.sort_unstable();
    at.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Operations whose two sides are cut differently, into as many pieces as the transport takes.
pub fn rdma_in_many_pieces(suite: &Suite, mut fixture: impl Fixture) {
    const ROOM: u64 = 1 << 16;
    let mut duo = Duo::new(&mut fixture);
    if !ready(&mut duo, suite) {
        return;
    }
    let mut random = Random::new(suite.seed());
    let (near, far) = (Ground::new(ROOM), Ground::new(ROOM));
    let key = register(&mut duo, far);
    let most = duo.ends[A].rdma().expect("as before").rdma_limits().max_pieces;
    assert!(most >= 1);
    let most = most.min(2000);
    for round in 0..300 {
        let way = if round % 2 == 0 { OneSidedKind::Get } else { OneSidedKind::Put };
        let total = random.below(if round % 10 == 0 { 30_000 } else { 500 }) as u64;
        // Each side's pieces in order, with gaps between them.
        let mut lay = |lens: Vec<u64>| {
            let gap = (ROOM - total) / (lens.len() as u64 + 1);
            let mut at = 0;
            let place = |len| {
                let start = at + random.below(usize::try_from(gap).expect("short") + 1) as u64;
                at = start + len;
                Extent { offset: start, len }
            };
            lens.into_iter().map(place).collect::<Vec<_>>()
        };
        let mut cuts = Random::new(suite.seed() ^ round);
        let near_pieces = lay(cut(&mut cuts, total, most));
        let far_pieces = lay(cut(&mut cuts, total, most));
        let (from, from_pieces, to, to_pieces) = match way {
            OneSidedKind::Get | OneSidedKind::SingleCopyRead => {
                (far, &far_pieces, near, &near_pieces)
            }
            OneSidedKind::Put => (near, &near_pieces, far, &far_pieces),
        };
        let bytes = message(round, usize::try_from(ROOM).expect("short"));
        from.write(0, &bytes);
        to.fill(0xee);
        let local: Vec<Region> =
            near_pieces.iter().map(|piece| near.region(piece.offset, piece.len)).collect();
        let result = one_sided(&mut duo, way, &local, &key, &far_pieces);
        assert_eq!(result, Ok(Ok(())), "round {round}");
        let stream: Vec<u8> = from_pieces.iter().flat_map(|p| from.read(p.offset, p.len)).collect();
        let mut right = vec![0xee; usize::try_from(ROOM).expect("short")];
        let mut done = 0;
        for piece in to_pieces {
            let (at, len) = (piece.offset, usize::try_from(piece.len).expect("short"));
            let at = usize::try_from(at).expect("short");
            right[at..at + len].copy_from_slice(&stream[done..done + len]);
            done += len;
        }
        assert!(to.read(0, ROOM) == right, "round {round}: {way:?} of {total} bytes is wrong");
    }
    duo.expect_silence();
}

/// Wrong lengths, pieces outside, too many pieces, damaged keys and memory of devices are refused,
/// before a byte moves.
pub fn rdma_refuses_what_is_wrong(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    if !ready(&mut duo, suite) {
        return;
    }
    let (near, far) = (Ground::new(4096), Ground::new(4096));
    near.fill(1);
    far.fill(2);
    let key = register(&mut duo, far);
    let all = |len| [near.region(0, len)];
    let at = |offset, len| [Extent { offset, len }];
    for way in [OneSidedKind::Get, OneSidedKind::Put] {
        for (local, remote) in [(8, 9), (9, 8), (0, 1), (1, 0)] {
            let error = one_sided(&mut duo, way, &all(local), &key, &at(0, remote));
            assert_eq!(error, Err(RdmaError::LengthMismatch { local, remote }), "{way:?}");
        }
        for (offset, len) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 3, 8), (1 << 40, 4)]
        {
            let error = one_sided(&mut duo, way, &all(len), &key, &at(offset, len));
            let right = RdmaError::OutOfRange { offset, len, key_len: 4096 };
            assert_eq!(error, Err(right), "{way:?}");
        }
        let max = duo.ends[A].rdma().expect("as before").rdma_limits().max_pieces;
        if max < 100_000 {
            let pieces = vec![Extent { offset: 0, len: 0 }; max + 1];
            let error = one_sided(&mut duo, way, &all(0), &key, &pieces);
            assert_eq!(error, Err(RdmaError::TooManyPieces { pieces: max + 1, max }), "{way:?}");
        }
        let bytes = key.as_bytes();
        for bad in [vec![], bytes[..bytes.len() - 1].to_vec(), [bytes, &[0]].concat()] {
            let Some(bad) = RemoteKey::new(&bad) else { continue };
            let error = one_sided(&mut duo, way, &all(8), &bad, &at(0, 8));
            assert!(matches!(error, Err(RdmaError::BadKey { .. })), "{way:?}: {error:?}");
        }
        let nobody = gapless_btl::PeerId(77);
        let rdma = duo.ends[A].rdma().expect("as before");
        // SAFETY: refused, there is no such peer; and ground is never freed.
        let error = unsafe { rdma.get(nobody, &all(8), &key, &at(0, 8), Token::NONE) };
        assert!(matches!(error, Err(RdmaError::Link(_))), "{error:?}");
    }
    // Nonsense of the right length: any answer but a crash. (Only gets: a put might hit.)
    let mut random = Random::new(suite.seed());
    for _ in 0..200 {
        let nonsense: Vec<u8> =
            key.as_bytes().iter().map(|byte| byte ^ random.next().to_le_bytes()[0]).collect();
        let nonsense = RemoteKey::new(&nonsense).expect("as long as a key");
        _ = one_sided(&mut duo, OneSidedKind::Get, &all(8), &nonsense, &at(0, 8));
    }
    let owner = duo.ends[B].rdma().expect("both ends are alike");
    // SAFETY: ground is never freed, and nothing writes it while a peer reads.
    let readable = unsafe { owner.register(far.0, Access::Read) }.expect("host memory");
    let error = one_sided(&mut duo, OneSidedKind::Put, &all(8), &readable, &at(0, 8));
    assert!(matches!(error, Err(RdmaError::ReadOnly)), "{error:?}");
    let device = FakeDevice::new(0);
    let region = device.allocate(64).expect("fake memory");
    let rdma = duo.ends[A].rdma().expect("as before");
    // SAFETY: refused; and the device outlives the transport's use of it.
    let refused = unsafe { rdma.register(region, Access::Write) };
    assert!(refused.is_err(), "memory that the CPU cannot touch");
    let error = one_sided(&mut duo, OneSidedKind::Get, &[region], &key, &at(0, 64));
    assert!(error.is_err(), "memory that the CPU cannot touch");
    assert_eq!(far.read(0, 4096), vec![2; 4096]);
    assert_eq!(near.read(100, 100), vec![1; 100]);
    duo.expect_health();
}

/// Sends a key the way a protocol does, and maps it on arrival.
pub(super) fn map_by_message<T: Btl>(
    duo: &mut Duo<T>,
    key: &RemoteKey,
) -> Result<Mapping, MapError> {
    duo.say(A, AmTag(9), key.as_bytes(), Token::NONE);
    let (_, bytes) = duo.hear_message(B);
    let key = RemoteKey::new(&bytes).expect("as long as a key");
    let peer = duo.peer[B];
    duo.ends[B].mapped().expect("both ends are alike").map(peer, &key)
}

/// Allocated memory is zeroed and aligned; the peer maps any part of it and both see what the other
/// writes; it lives while either holds it, and a thousand of them come and go.
pub fn mapped_memory(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let peer = duo.peer[A];
    if duo.ends[A].mapped().is_none() {
        return suite.skip("the transport does not map memory");
    }
    for len in [1, 64, 4095, 4096, 4097, 1 << 20] {
        let mapped = duo.ends[A].mapped().expect("as before");
        let memory = mapped.allocate(len).expect("memory for a test");
        let region = memory.region();
        assert_eq!(region.len(), len);
        assert_eq!(region.start() % 4096, 0, "page-aligned");
        assert!(read(&region).iter().all(|&byte| byte == 0), "zeroed");
        let (offset, part) = (len / 3, len - len / 3 - len / 5);
        let part = region.sub(offset, part).expect("inside");
        let lease = memory.lease().sub(offset, part.len()).expect("inside");
        let Some(key) = mapped.key(peer, &lease) else {
            return suite.skip("the peer cannot map memory here");
        };
        let mapping = map_by_message(&mut duo, &key).expect("a good key");
        assert_eq!(mapping.region().len(), part.len());
        write(&part, &message(len, usize::try_from(part.len()).expect("short")));
        assert_eq!(read(&mapping.region()), read(&part), "the peer sees it");
        write(&mapping.region(), &message(len + 1, usize::try_from(part.len()).expect("short")));
        assert_eq!(read(&mapping.region()), read(&part), "and we see the peer");
        let again = map_by_message(&mut duo, &key).expect("a good key");
        assert_eq!(again.region(), mapping.region(), "mapped once");
        // It outlives the owner's hold, and the owner's end.
        let right = read(&part);
        drop((memory, lease, again));
        duo.expect_health();
        assert_eq!(read(&mapping.region()), right);
    }
    // Memory that is freed and allocated again, often at the same address, is never mixed up.
    for round in 0..1000u64 {
        let len = 4096 * (1 + round % 3);
        let mapped = duo.ends[A].mapped().expect("as before");
        let memory = mapped.allocate(len).expect("memory that was given back");
        let key = mapped.key(peer, memory.lease()).expect("it gave one before");
        write(&memory.region().sub(0, 100).expect("inside"), &message(round, 100));
        let mapping = map_by_message(&mut duo, &key).expect("a good key");
        assert_eq!(read(&mapping.region().sub(0, 100).expect("inside")), message(round, 100));
    }
    duo.expect_silence();
}

/// What a peer was granted and is to let go of: it maps nothing of it any more, and the owner knows when what
/// it had mapped is gone; other memory is not concerned.
pub fn revoked_memory(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let peer = duo.peer[A];
    let Some(mapped) = duo.ends[A].mapped() else {
        return suite.skip("the transport does not map memory");
    };
    let memory = [0; 3].map(|_| mapped.allocate(10_000).expect("memory for a test"));
    let [granted, unseen, _] = memory.each_ref().map(|memory| memory.region());
    let part = granted.sub(100, 50).expect("inside");
    let lease = memory[0].lease().sub(100, 50).expect("inside");
    let leases = [&lease, memory[1].lease(), memory[2].lease()];
    let keys = leases.map(|lease| mapped.key(peer, lease));
    let [Some(key), Some(unseen_key), Some(other_key)] = keys else {
        return suite.skip("the peer cannot map memory here");
    };
    fn revoke_access<T: Btl>(duo: &mut Duo<T>, region: Region) -> bool {
        let peer = duo.peer[A];
        duo.ends[A].mapped().expect("both ends are alike").revoke_access(peer, region)
    }
    fn ends<T: Btl>(duo: &mut Duo<T>, region: Region) {
        let watch = Watch::new("the peer to let go of it");
        while revoke_access(duo, region) {
            duo.step();
            watch.tick();
        }
    }
    let mapping = map_by_message(&mut duo, &key).expect("a good key");
    // Any byte of it stands for all of it.
    let elsewhere = granted.sub(9000, 1).expect("inside");
    for _ in 0..50 {
        assert!(revoke_access(&mut duo, elsewhere), "it is mapped over there");
        duo.step();
    }
    write(&mapping.region(), &message(3, 50));
    drop(mapping);
    ends(&mut duo, granted);
    assert_eq!(read(&part), message(3, 50), "what was written until then is there");
    assert!(map_by_message(&mut duo, &key).is_err(), "it was revoked");
    // A key that has not been used yet.
    ends(&mut duo, unseen);
    assert!(map_by_message(&mut duo, &unseen_key).is_err(), "it was revoked");
    assert!(map_by_message(&mut duo, &other_key).is_ok(), "nobody has revoked it");
    assert!(!revoke_access(&mut duo, Ground::new(64).0), "memory that nobody knows");
    duo.expect_health();
}

/// Memory that is made private keeps its bytes, mapped by a peer or not. If the transport says that it is this
/// process's alone, nothing shows that the peer writes later.
pub fn memory_made_private(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let peer = duo.peer[A];
    if duo.ends[A].mapped().is_none() {
        return suite.skip("the transport does not map memory");
    }
    for held in [true, false] {
        let mapped = duo.ends[A].mapped().expect("as before");
        let memory = mapped.allocate(20_000).expect("memory for a test");
        let region = memory.region();
        let Some(key) = mapped.key(peer, memory.lease()) else {
            return suite.skip("the peer cannot map memory here");
        };
        let mapping = map_by_message(&mut duo, &key).expect("a good key");
        let bytes = message(5, 20_000);
        write(&mapping.region(), &bytes);
        let mut mappings: Vec<Mapping> = [mapping].into_iter().filter(|_| held).collect();
        let part = region.sub(5000, 9000).expect("inside");
        let alone = duo.ends[A].mapped().expect("as before").make_private(part);
        let case = format!("mapped {held}, private {alone}");
        assert!(read(&region) == bytes, "{case}: bytes changed when memory was made private");
        mappings.extend(map_by_message(&mut duo, &key));
        for mapping in &mappings {
            write(&mapping.region(), &[0xee; 20_000]);
        }
        let unchanged = read(&part) == bytes[5000..14_000];
        assert!(!alone || unchanged, "{case}: what a peer wrote later shows");
    }
    duo.expect_health();
}

/// Memory that was not allocated for mapping has no key, and damaged keys map nothing.
pub fn mapped_keys_are_checked(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    let peer = duo.peer[A];
    let Some(mapped) = duo.ends[A].mapped() else {
        return suite.skip("the transport does not map memory");
    };
    let memory = mapped.allocate(8192).expect("memory for a test");
    let Some(key) = mapped.key(peer, memory.lease()) else {
        return suite.skip("the peer cannot map memory here");
    };
    let device = FakeDevice::new(0);
    let fake = device.allocate(64).expect("fake memory");
    for (elsewhere, what) in [(Ground::new(64).0, "heap memory"), (fake, "a device's memory")] {
        // SAFETY: the memory was just allocated, and is freed with the device or never.
        let lease = unsafe { Lease::kept_by_caller(elsewhere) };
        assert!(mapped.key(peer, &lease).is_none(), "{what}");
    }
    assert!(mapped.key(gapless_btl::PeerId(77), memory.lease()).is_none(), "nobody is called that");
    assert!(mapped.allocate(u64::MAX).is_err(), "more than there is");
    assert!(mapped.allocate(u64::MAX / 2).is_err(), "more than there is");

    let bytes = key.as_bytes();
    for bad in [vec![], bytes[..bytes.len() - 1].to_vec(), [bytes, &[0]].concat()] {
        let Some(bad) = RemoteKey::new(&bad) else { continue };
        let error = map_by_message(&mut duo, &bad).expect_err("a damaged key");
        assert!(matches!(error, MapError::BadKey { .. }), "{error:?}");
    }
    let mut random = Random::new(suite.seed());
    for _ in 0..300 {
        let mut nonsense = bytes.to_vec();
        let at = random.below(nonsense.len());
        nonsense[at] ^= 1 << random.below(8);
        let nonsense = RemoteKey::new(&nonsense).expect("as long as a key");
        // What still maps is memory of the peer's that it shares, all of it there.
        if let Ok(mapping) = map_by_message(&mut duo, &nonsense) {
            assert_eq!(read(&mapping.region()).len() as u64, mapping.region().len());
        }
    }
    assert!(map_by_message(&mut duo, &key).is_ok());
    duo.expect_health();
}
