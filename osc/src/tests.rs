//! Messages that no process of ours sends: whatever they say, nothing outside the window changes, and nothing panics.

mod attached;
mod bounded;
mod device;
mod mixed;
pub(crate) mod net;
mod numbers;
mod pace;
mod rogue;
mod tasks;

use crate::core::Done;
use crate::wire::{HEADER, Head, WindowMessage};
use crate::{Exposure, Header, Lock, Osc};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_dtype::{Datatype, Primitive};
use gapless_mem::{Atomics, Lease, Region, Space, Words};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 1024;
/// Where the lock is: behind the window's words, and some that are nobody's.
const LOCK: usize = 40;
/// Words of a lock of two ranks.
const LOCK_WORDS: usize = 522;

struct Nobody;

impl Handler for Nobody {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Mostly a small number.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX - self.below(20),
            1 => 1 << self.below(64),
            _ => self.below(140),
        }
    }
}

fn lease(memory: &Arc<Vec<AtomicU64>>, at: usize, words: usize) -> Lease {
    let start = memory.as_ptr().expose_provenance() as u64;
    let region = Region::new(Space::Host, start, 8 * at as u64, 8 * words as u64);
    // SAFETY: the list is kept by the Arc.
    unsafe { Lease::new(region, Arc::clone(memory) as _) }
}

#[test]
fn made_up_messages_change_nothing_but_the_window() {
    let seed = gapless_testkit::seed(7);
    let memory: Arc<Vec<AtomicU64>> = Arc::new((0..WORDS).map(|_| AtomicU64::new(77)).collect());
    // The window is 16 words in the middle; nothing is locked.
    let lock = LOCK..LOCK + LOCK_WORDS;
    memory[lock.clone()].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    // SAFETY: it is initialised, and touched by atomics only.
    let window = unsafe { Atomics::new(lease(&memory, 16, 16)) }.unwrap();
    // SAFETY: as above.
    let words = unsafe { Words::new(lease(&memory, LOCK, LOCK_WORDS)) }.unwrap();
    let mut bml = Bml::new(Rank(0), 1);
    let osc = Osc::register(&mut bml).unwrap();
    let handle = osc.host(Exposure::new(window, Header::new(words, 1).unwrap()), &[0], 0);
    let double = Datatype::from(Primitive::Double);
    let flat = Datatype::vector(3, 1, 2, &double).unwrap().commit().unwrap().flatten();
    let kinds = [
        WindowMessage::Put,
        WindowMessage::Get,
        WindowMessage::Accumulate,
        WindowMessage::Compare,
        WindowMessage::Lock,
        WindowMessage::Unlock,
        WindowMessage::Flush,
        WindowMessage::Post,
        WindowMessage::Complete,
        WindowMessage::Layout,
        WindowMessage::Forget,
        WindowMessage::Answer,
        WindowMessage::Credit,
    ];
    let mut random = Random(seed);
    let small = |random: &mut Random, bound: u64| u8::try_from(random.below(bound)).unwrap();
    for round in 0..60_000u32 {
        let kind = match random.below(3) {
            0 => kinds[usize::try_from(random.below(13)).unwrap()],
            _ => kinds[usize::try_from(random.below(4)).unwrap()],
        };
        let length = random.number();
        let mut bytes = vec![small(&mut random, 256); usize::try_from(random.below(70)).unwrap()];
        if random.below(2) == 0 && length < 300 {
            bytes.resize(usize::try_from(length).unwrap(), 3);
        }
        let mut head = Head {
            op: small(&mut random, 16),
            primitive: small(&mut random, 42),
            flag: small(&mut random, 4),
            token: random.below(3),
            origin: random.number(),
            layout: u32::try_from(random.below(3)).unwrap(),
            count: random.number(),
            start: random.number(),
            length,
            ..Head::new(kind, handle.id() + u32::from(random.below(20) == 0), 0)
        };
        if kind == WindowMessage::Layout && random.below(2) == 0 {
            (head.start, head.count) = (0, flat.len() as u64);
            bytes.clone_from(&flat);
            if random.below(2) == 0 {
                let at = usize::try_from(random.below(flat.len() as u64)).unwrap();
                bytes[at] = bytes[at].wrapping_add(small(&mut random, 255));
            }
        }
        let message = [&head.write()[..], &bytes].concat();
        osc.core().execute(&osc, &mut bml, Rank(0), &message);
        if round.is_multiple_of(16) {
            bml.poll(&mut Nobody);
            osc.advance(&mut bml);
        }
        let outside = memory[..16].iter().chain(&memory[32..lock.start]).chain(&memory[lock.end..]);
        let changed = outside.map(|word| word.load(Ordering::Relaxed)).find(|word| *word != 77);
        assert_eq!(changed, None, "round {round}: {head:?}");
    }
    let inside = memory[16..32].iter().filter(|word| word.load(Ordering::Relaxed) != 77).count();
    assert!(inside > 8, "some of them are right: {inside}");
    assert!(Head::read(&[0; HEADER]).is_none());
}

/// What a peer says ends its own lock alone, once, and of the kind that it has.
#[test]
fn a_lock_is_given_back_by_who_has_it() {
    let memory: Arc<Vec<AtomicU64>> = Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect());
    // SAFETY: it is initialised, and touched by atomics only.
    let window = unsafe { Atomics::new(lease(&memory, 16, 16)) }.unwrap();
    // SAFETY: as above.
    let words = unsafe { Words::new(lease(&memory, LOCK, LOCK_WORDS)) }.unwrap();
    let header = Header::new(words, 2).unwrap();
    let mut bml = Bml::new(Rank(0), 2);
    let osc = Osc::register(&mut bml).unwrap();
    let handle = osc.host(Exposure::new(window, header.clone()), &[0, 1], 0);
    let mut say = |kind, flag| {
        let head = Head { flag, ..Head::new(kind, handle.id(), 1) };
        osc.core().execute(&osc, &mut bml, Rank(1), &head.write())
    };
    let is_nonsense = |done| matches!(done, Done::Nonsense(_));
    let try_lock = |rank, kind| header.try_lock(rank, kind, false, |_| false);
    assert!(try_lock(0, Lock::Exclusive));
    assert!(
        is_nonsense(say(WindowMessage::Unlock, 1)) && is_nonsense(say(WindowMessage::Unlock, 0))
    );
    assert!(!try_lock(1, Lock::Shared), "rank 0 has it still");
    assert!(!is_nonsense(say(WindowMessage::Lock, 0)) && is_nonsense(say(WindowMessage::Lock, 0)));
    header.unlock(0, Lock::Exclusive);
    // Given when there is progress; not twice, and of no other kind.
    osc.core().grant_locks(&osc, &mut Bml::new(Rank(0), 2));
    assert!(!try_lock(0, Lock::Exclusive));
    header.cancel(0);
    assert!(
        is_nonsense(say(WindowMessage::Unlock, 1)) && !is_nonsense(say(WindowMessage::Unlock, 0))
    );
    assert!(is_nonsense(say(WindowMessage::Unlock, 0)) && try_lock(0, Lock::Exclusive));
}
