//! Messages that no process of ours sends: whatever they say, nothing outside the window changes, and nothing panics.

mod attached;
mod bounded;
mod device;
mod mixed;
pub(crate) mod net;
mod notices;
mod numbers;
mod pace;
mod reads;
mod rogue;
mod tasks;

use crate::core::Done;
use crate::wire::{HEADER, Head, OPERANDS, WindowMessage};
use crate::{Exposure, Header, Lock, Osc};
use gapless_bml::{Bml, Handler, Rank, RankEvent};
use gapless_btl::loopback::{Config, Hub, Loopback};
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{ReduceOp, Typed};
use gapless_mem::{Atomics, Lease, Region, Space, Words};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 1024;
/// Where the lock is: behind the window's words, and some that are nobody's.
const LOCK: usize = 40;
/// Words of a lock of two ranks, and notice counters.
const LOCK_WORDS: usize = 528 + NOTICES as usize;
const NOTICES: u32 = 4;

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

/// Processes that reach each other.
fn connected(count: u32, config: &Config) -> Vec<Bml> {
    let hub = Hub::new();
    let end = |me| {
        let mut bml = Bml::new(Rank(me), count);
        bml.add(Box::new(Loopback::with(&hub, config.clone())));
        bml
    };
    let mut ends: Vec<Bml> = (0..count).map(end).collect();
    let addresses: Vec<_> = ends.iter().map(Bml::addresses).collect();
    for (me, bml) in (0..).zip(&mut ends) {
        for (other, addresses) in (0..).zip(&addresses).filter(|(other, _)| *other != me) {
            bml.connect(Rank(other), addresses).unwrap();
        }
    }
    ends
}

/// Words that are all the same.
type Memory = Arc<Vec<AtomicU64>>;

fn memory(words: usize, word: u64) -> Memory {
    Arc::new((0..words).map(|_| AtomicU64::new(word)).collect())
}

fn lease(memory: &Memory, words: Range<usize>) -> Lease {
    let start = memory.as_ptr().expose_provenance() as u64;
    let region = Region::new(Space::Host, start, 8 * words.start as u64, 8 * words.len() as u64);
    // SAFETY: the list is kept by the Arc.
    unsafe { Lease::new(region, Arc::clone(memory) as _) }
}

fn atomics(memory: &Memory, words: Range<usize>) -> Atomics {
    // SAFETY: it is initialised, and touched by atomics only.
    unsafe { Atomics::new(lease(memory, words)) }.unwrap()
}

/// A lock of so many ranks.
fn header(memory: &Memory, words: Range<usize>, ranks: usize) -> Header {
    // SAFETY: it is initialised, and touched by atomics only.
    let words = unsafe { Words::new(lease(memory, words)) }.unwrap();
    Header::new(words, ranks, NOTICES).unwrap()
}

/// A window of 16 words that lies among others, and a lock of one rank.
struct Island(Memory);

impl Island {
    const WINDOW: Range<usize> = 16..32;
    const AROUND: u64 = 77;

    fn new() -> Island {
        let memory = memory(WORDS, Island::AROUND);
        memory[LOCK..LOCK + LOCK_WORDS].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Island(memory)
    }

    fn exposure(&self) -> Exposure {
        let header = header(&self.0, LOCK..LOCK + LOCK_WORDS, 1);
        Exposure::new(atomics(&self.0, Island::WINDOW), header)
    }

    /// Words of a range that were changed.
    fn changed(&self, range: Range<usize>) -> usize {
        let is_changed = |word: &&AtomicU64| word.load(Ordering::Relaxed) != Island::AROUND;
        self.0[range].iter().filter(is_changed).count()
    }

    /// Words outside the window and its lock that were changed.
    fn spoilt(&self) -> usize {
        let outside = [0..16, 32..LOCK, LOCK + LOCK_WORDS..WORDS];
        outside.into_iter().map(|range| self.changed(range)).sum()
    }
}

/// So many numbers at an origin, of which only the type matters.
fn numbers(primitive: Primitive, count: u64) -> Typed {
    let layout = Datatype::from(primitive).commit().unwrap();
    let region = Region::new(Space::Host, 0, 0, layout.size() * count);
    Typed::new(region, 0, &layout, count).unwrap()
}

/// A message that adds a number of 8 bytes to the first of a window.
fn addition(primitive: Primitive, window: u32, rank: u32) -> Head {
    let sum = ReduceOp::ALL.iter().position(|op| *op == ReduceOp::Sum).unwrap();
    Head {
        op: u8::try_from(sum).unwrap(),
        primitive: primitive as u8,
        flag: OPERANDS,
        count: 8,
        length: 8,
        ..Head::new(WindowMessage::Accumulate, window, rank)
    }
}

/// The flat form of a layout with gaps.
fn flat() -> Vec<u8> {
    let double = Datatype::from(Primitive::Double);
    Datatype::vector(3, 1, 2, &double).unwrap().commit().unwrap().flatten()
}

#[test]
fn made_up_messages_change_nothing_but_the_window() {
    let seed = gapless_testkit::seed(7);
    let island = Island::new();
    let mut bml = Bml::new(Rank(0), 1);
    let osc = Osc::register(&mut bml).unwrap();
    let handle = osc.host(island.exposure(), &[0], 0);
    let flat = flat();
    let mut random = Random(seed);
    let small = |random: &mut Random, bound: u64| u8::try_from(random.below(bound)).unwrap();
    for round in 0..60_000u32 {
        let kind = match random.below(3) {
            0 => WindowMessage::ALL[usize::try_from(random.below(13)).unwrap()],
            _ => WindowMessage::ALL[usize::try_from(random.below(4)).unwrap()],
        };
        let length = random.number();
        let mut bytes = vec![small(&mut random, 256); usize::try_from(random.below(70)).unwrap()];
        if random.below(2) == 0 && length < 300 {
            bytes.resize(usize::try_from(length).unwrap(), 3);
        }
        let mut head = Head {
            op: small(&mut random, 16),
            primitive: small(&mut random, 42),
            flag: small(&mut random, 8),
            token: random.below(3),
            origin: random.number(),
            layout: u32::try_from(random.below(3)).unwrap(),
            value: u32::try_from(random.below(6)).unwrap(),
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
        assert_eq!(island.spoilt(), 0, "round {round}: {head:?}");
    }
    let inside = island.changed(Island::WINDOW);
    assert!(inside > 8, "some of them are right: {inside}");
    assert!(Head::read(&[0; HEADER]).is_none());
}

/// What a peer says ends its own lock alone, once, and of the kind that it has.
#[test]
fn a_lock_is_given_back_by_who_has_it() {
    let memory = memory(WORDS, 0);
    let header = header(&memory, LOCK..LOCK + LOCK_WORDS, 2);
    let mut bml = Bml::new(Rank(0), 2);
    let osc = Osc::register(&mut bml).unwrap();
    let exposure = Exposure::new(atomics(&memory, 16..32), header.clone());
    let handle = osc.host(exposure, &[0, 1], 0);
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
