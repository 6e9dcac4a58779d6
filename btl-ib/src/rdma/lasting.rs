//! Memory that lives long is registered once, as a whole, for peers to read and for own operations.
//!
//! Whoever allocates it tells of it ([`Rdma::remember`](gapless_btl::Rdma::remember)). Its registration is attached to it,
//! and so ends before it goes; here it is known by weak pointers alone. So no stale registration can be found. (The pages
//! behind its addresses stay the same ones until its world is given up, after which nothing is asked of the transport.)
//!
//! Registration takes time for each page, and pins the pages. So at first each message registers what it needs. Once
//! messages have asked for as many bytes as the memory has, all of it is registered. If the system refuses that, or
//! there is no room, messages go on as before, and it is tried again when they have asked for twice as much.
//!
//! These registrations count towards the same bounds as the others. If one more is too many, the least recently used is
//! ended, of those that no peer has a key for and that no operation works through. Its memory must be asked for in full
//! again.

use crate::ib::Ib;
use crate::verbs::flags::MemoryAccess;
use crate::verbs::memory::Mr;
use gapless_btl::RdmaError;
use gapless_mem::{Lasting, Region};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// How many registrations there are, and their bytes: memory is freed by any thread.
#[derive(Debug, Default)]
struct Registrations {
    count: AtomicUsize,
    bytes: AtomicU64,
}

/// A registration, as it is attached to its memory.
struct KeptLasting<R> {
    registration: Arc<R>,
    bytes: u64,
    alive: Arc<Registrations>,
}

impl<R> Drop for KeptLasting<R> {
    fn drop(&mut self) {
        self.alive.count.fetch_sub(1, Ordering::Relaxed);
        self.alive.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory, and what it is registered as.
struct KnownAllocation<R> {
    memory: Weak<Lasting>,
    len: u64,
    kept: Weak<KeptLasting<R>>,
    /// Bytes that messages have asked for, and with how many it is registered.
    asked: u64,
    due: u64,
    /// When it was used last.
    turn: u64,
}

/// A key that peers have: how often it was given, and what it is of.
struct GivenKey<R> {
    count: u32,
    #[expect(dead_code, reason = "held, so that it is not ended")]
    kept: Arc<KeptLasting<R>>,
}

/// All memory that was told of.
pub(crate) struct Remembered<R = Mr> {
    /// By address. Of memory that is gone some entries are left.
    known: BTreeMap<u64, KnownAllocation<R>>,
    /// Keys that peers have, by address and number.
    keys: HashMap<(u64, u32), GivenKey<R>>,
    alive: Arc<Registrations>,
    turn: u64,
    /// So many entries, and those of memory that is gone are thrown away.
    sweep_at: usize,
}

impl<R> Default for Remembered<R> {
    fn default() -> Remembered<R> {
        let (known, keys, alive) = (BTreeMap::new(), HashMap::new(), Arc::default());
        Remembered { known, keys, alive, turn: 0, sweep_at: 64 }
    }
}

impl<R: Send + Sync + 'static> Remembered<R> {
    pub(super) fn remember(&mut self, memory: &Arc<Lasting>) {
        let region = memory.region();
        if !region.space().cpu_accessible() || region.is_empty() {
            return;
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, known| known.memory.strong_count() > 0);
            self.sweep_at = (2 * self.known.len()).max(64);
        }
        let (memory, kept, len) = (Arc::downgrade(memory), Weak::new(), region.len());
        let same = self.known.get(&region.start()).map(|known| &known.memory);
        if same.is_some_and(|known| known.ptr_eq(&memory)) {
            return;
        }
        let known = KnownAllocation { memory, len, kept, asked: 0, due: len, turn: 0 };
        self.known.insert(region.start(), known);
    }

    /// The memory that all of `region` lies in.
    fn whole(&mut self, region: &Region) -> Option<(&mut KnownAllocation<R>, Arc<Lasting>)> {
        let end = region.start().checked_add(region.len())?;
        loop {
            let (&at, known) = self.known.range(..=region.start()).next_back()?;
            let fits = end - at <= known.len;
            if !fits && known.memory.strong_count() > 0 {
                return None;
            }
            // What lay there is gone, and may hide what is there now.
            let Some(memory) = known.memory.upgrade().filter(|_| fits) else {
                self.known.remove(&at);
                continue;
            };
            return self.known.get_mut(&at).map(|known| (known, memory));
        }
    }

    /// The registration of the memory that `region` lies in, if it is registered.
    fn find(&mut self, region: &Region) -> Option<Arc<KeptLasting<R>>> {
        self.turn += 1;
        let turn = self.turn;
        // Held meanwhile; whoever asks has promised it for longer.
        let (known, _memory) = self.whole(region)?;
        known.turn = turn;
        known.kept.upgrade()
    }

    /// The memory that is to be registered for a message that asks for `region`, if it is.
    fn due(&mut self, region: &Region) -> Option<Arc<Lasting>> {
        let (known, memory) = self.whole(region)?;
        known.asked = known.asked.saturating_add(region.len());
        (known.asked >= known.due).then_some(memory)
    }

    /// Attaches a registration to its memory.
    fn keep(&mut self, memory: &Arc<Lasting>, registration: R) -> Arc<KeptLasting<R>> {
        let (registration, alive) = (Arc::new(registration), Arc::clone(&self.alive));
        let bytes = memory.region().len();
        alive.count.fetch_add(1, Ordering::Relaxed);
        alive.bytes.fetch_add(bytes, Ordering::Relaxed);
        let kept = Arc::new(KeptLasting { registration, bytes, alive });
        memory.attach(Arc::clone(&kept) as Arc<dyn Any + Send + Sync>);
        if let Some(known) = self.known.get_mut(&memory.region().start()) {
            known.kept = Arc::downgrade(&kept);
        }
        kept
    }

    /// This memory is not registered now: the system refuses it, or there is no room.
    fn put_off(&mut self, memory: &Lasting) {
        if let Some(known) = self.known.get_mut(&memory.region().start()) {
            (known.asked, known.due) = (0, known.due.saturating_mul(2));
        }
    }

    /// A peer is given a key.
    fn give_key(&mut self, key: (u64, u32), kept: Arc<KeptLasting<R>>) {
        self.keys.entry(key).or_insert(GivenKey { count: 0, kept }).count += 1;
    }

    /// A key is given back; whether it was one of these.
    pub(super) fn return_key(&mut self, address: u64, number: u32) -> bool {
        let Some(in_use) = self.keys.get_mut(&(address, number)) else { return false };
        in_use.count -= 1;
        if in_use.count == 0 {
            self.keys.remove(&(address, number));
        }
        true
    }

    /// Registrations that nothing uses: when each was used last, it, and its memory, which is dropped after it.
    fn idle(&self) -> impl Iterator<Item = (u64, Arc<KeptLasting<R>>, Arc<Lasting>)> {
        self.known.values().filter_map(|known| {
            let memory = known.memory.upgrade()?;
            let kept = known.kept.upgrade()?;
            // The memory has one, this is one; keys have others, operations have the registration.
            let free = Arc::strong_count(&kept) == 2 && Arc::strong_count(&kept.registration) == 1;
            free.then_some((known.turn, kept, memory))
        })
    }

    /// How many registrations nothing uses, and their bytes.
    fn idle_counts(&self) -> (usize, u64) {
        self.idle().fold((0, 0), |(count, bytes), (_, kept, _)| (count + 1, bytes + kept.bytes))
    }

    /// Ends the one of them that was not used for the longest time. Gives whether there was one.
    fn evict(&mut self) -> bool {
        let Some((_, kept, memory)) = self.idle().min_by_key(|(turn, ..)| *turn) else {
            return false;
        };
        if let Some(known) = self.known.get_mut(&memory.region().start()) {
            known.asked = 0;
        }
        let kept: Arc<dyn Any + Send + Sync> = kept;
        let detached = memory.detach(&kept);
        drop(kept);
        detached
    }

    /// How many registrations there are, and their bytes.
    pub(super) fn counts(&self) -> (usize, u64) {
        (self.alive.count.load(Ordering::Relaxed), self.alive.bytes.load(Ordering::Relaxed))
    }
}

impl Ib {
    /// The registration of memory that lives long and has all of `region`, which is made now if it is due.
    fn lasting(&mut self, region: &Region, asks: bool) -> Option<Arc<KeptLasting<Mr>>> {
        let remembered = &mut self.one_sided.remembered;
        if let Some(kept) = remembered.find(region) {
            return Some(kept);
        }
        let memory = if asks { remembered.due(region)? } else { return None };
        let whole = memory.region();
        if self.make_room(whole.len()).is_err() {
            self.one_sided.remembered.put_off(&memory);
            return None;
        }
        let rights = MemoryAccess::lasting(whole.len());
        // SAFETY: the memory keeps the registration, and ends it before it goes. Others keep it for operations, until
        // whose end callers lend the memory, and for keys, as long as callers have registered it. Peers get the right to
        // read, which is done by the adapter; own operations write by their callers' promises alone.
        match unsafe { Mr::new(&self.domain, whole, rights) } {
            Ok(mr) => Some(self.one_sided.remembered.keep(&memory, mr)),
            Err(error) => {
                tracing::debug!(%error, bytes = whole.len(), "not registered as a whole");
                self.one_sided.remembered.put_off(&memory);
                None
            }
        }
    }

    /// The number of a key by which peers may read `region` of memory that lives long.
    pub(super) fn lasting_key(&mut self, region: &Region) -> Option<u32> {
        let kept = self.lasting(region, true)?;
        let rkey = kept.registration.rkey();
        self.one_sided.remembered.give_key((region.start(), rkey), kept);
        Some(rkey)
    }

    /// How own operations reach `region` of memory that lives long. Short ones do not have it registered.
    pub(super) fn lasting_piece(&mut self, region: &Region, long: bool) -> Option<Arc<Mr>> {
        self.lasting(region, long).map(|kept| Arc::clone(&kept.registration))
    }

    /// Whether one more region may be registered, once others that are idle have ended. None ends if that is not enough.
    pub(super) fn make_room(&mut self, bytes: u64) -> Result<(), RdmaError> {
        if self.may_register(bytes, (0, 0)).is_ok() {
            return Ok(());
        }
        self.may_register(bytes, self.one_sided.remembered.idle_counts())?;
        while self.may_register(bytes, (0, 0)).is_err() && self.one_sided.remembered.evict() {}
        self.may_register(bytes, (0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::{Lease, Space};

    fn memory(at: u64, len: u64) -> Arc<Lasting> {
        let region = Region::new(Space::Host, at, 0, len);
        // SAFETY: nothing touches the memory.
        Lasting::new(unsafe { Lease::kept_by_caller(region) })
    }

    fn part(at: u64, len: u64) -> Region {
        Region::new(Space::Host, at, 0, len)
    }

    #[test]
    fn memory_is_registered_once_messages_have_asked_for_all_of_it() {
        let mut all: Remembered<u32> = Remembered::default();
        let whole = memory(1000, 100);
        all.remember(&whole);
        assert!(all.due(&part(1000, 60)).is_none() && all.due(&part(1000, 30)).is_none());
        assert!(all.due(&part(990, 20)).is_none() && all.due(&part(1090, 20)).is_none());
        let due = all.due(&part(1090, 10)).expect("a hundred bytes were asked for");
        assert!(all.find(&part(1000, 1)).is_none());
        let kept = all.keep(&due, 7);
        assert_eq!((*kept.registration, all.counts()), (7, (1, 100)));
        drop(kept);
        for (at, len) in [(1000, 100), (1099, 1), (1050, 0)] {
            assert_eq!(all.find(&part(at, len)).map(|kept| *kept.registration), Some(7));
        }
        assert!(all.find(&part(1000, 101)).is_none() && all.find(&part(999, 2)).is_none());
        drop((whole, due));
        assert!(all.find(&part(1000, 1)).is_none(), "it went with its memory");
        assert_eq!(all.counts(), (0, 0));
        let refused = memory(1000, 100);
        all.remember(&refused);
        all.put_off(&refused);
        assert!(all.due(&part(1000, 100)).is_none() && all.due(&part(1000, 50)).is_none());
        assert!(all.due(&part(1000, 50)).is_some(), "twice as much was asked for");
        all.remember(&refused);
        assert!(all.due(&part(1000, 1)).is_some(), "it was known");
    }

    /// Memory is freed, and other memory, longer or shorter, lies at its addresses.
    #[test]
    fn what_lay_there_before_hides_nothing() {
        let mut all: Remembered<u32> = Remembered::default();
        let [low, high] = [memory(1000, 100), memory(1100, 100)];
        for memory in [&low, &high] {
            all.remember(memory);
            all.keep(memory, 1);
        }
        drop((low, high));
        let long = memory(1000, 200);
        all.remember(&long);
        assert!(all.find(&part(1150, 10)).is_none(), "that was the other memory's");
        assert!(all.due(&part(1150, 50)).is_none());
        assert!(all.due(&part(1050, 150)).is_some());
        drop(long);
        for at in 0..1000 {
            all.remember(&memory(1 << 20 | at << 8, 256));
        }
        assert!(all.known.len() <= 64, "{}", all.known.len());
    }

    #[test]
    fn the_one_that_was_not_used_for_the_longest_time_is_ended_unless_it_is_in_use() {
        let mut all: Remembered<u32> = Remembered::default();
        let memories = [0, 1, 2, 3].map(|at| memory(1000 * (at + 1), 100));
        for (at, memory) in (0..).zip(&memories) {
            all.remember(memory);
            let kept = all.keep(memory, at);
            all.find(&memory.region());
            if at == 0 {
                all.give_key((1000, 0), Arc::clone(&kept));
                all.give_key((1000, 0), kept);
            }
        }
        let works = Arc::clone(&all.find(&part(2000, 1)).unwrap().registration);
        all.find(&part(3000, 1));
        let gone = |all: &mut Remembered<u32>| {
            let lives = |at: u64| all.find(&part(1000 * (at + 1), 1)).is_some();
            [0, 1, 2, 3].map(lives).iter().filter(|lives| !**lives).count()
        };
        // In the order of use 3 comes first, since 0 has keys and 1 is worked through.
        assert_eq!(all.idle_counts(), (2, 200));
        assert!(all.due(&part(4000, 100)).is_some() && all.evict());
        assert!(all.find(&part(4000, 1)).is_none());
        assert!(all.due(&part(4000, 99)).is_none(), "it is asked for in full again");
        assert!(all.evict());
        assert!(all.find(&part(3000, 1)).is_none());
        assert!(!all.evict());
        assert_eq!((gone(&mut all), all.counts()), (2, (2, 200)));
        assert!(all.return_key(1000, 0) && !all.evict() && all.return_key(1000, 0));
        assert!(!all.return_key(1000, 0));
        assert!(all.evict() && all.find(&part(1000, 1)).is_none());
        drop(works);
        assert!(all.evict() && !all.evict());
        assert_eq!(all.counts(), (0, 0));
    }
}
