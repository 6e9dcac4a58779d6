//! Plans that were made, for the next use of their layout on this device.
//!
//! Keyed by the layout's identity: a layout is committed once and used often, and comparing two long ones
//! would cost what the plan saves. Bounded in bytes of device memory, least recently used out first, and
//! before any of those the plans of layouts that no longer exist. A plan is handed out in an `Arc`, so one
//! that is thrown out lives until its last user lets go.
//!
//! Threads that want the same plan at once get one: the first builds it, the others wait for it. A thread
//! that is building one never waits for another's, so no two can wait for each other.
//!
//! Nothing here knows what a plan is. Plans are dropped outside the lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use gapless_dtype::{Layout, LayoutId, WeakLayout};

/// Plans at most, so that looking for dead ones among all takes microseconds.
const ENTRIES_MAX: usize = 4096;

/// How long to wait before looking again. A builder that ends, or dies, wakes whoever waits.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a cache of plans holds, and what has become of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanStatistics {
    /// Plans held.
    pub entries: usize,
    /// Bytes of device memory that they take.
    pub bytes: u64,
    /// Uses that found a plan, or waited for one that another thread was making.
    pub hits: u64,
    /// Uses that had to make a plan.
    pub misses: u64,
    /// Plans thrown out for lack of room.
    pub evictions: u64,
}

/// A bounded cache of plans of type `P`.
pub(crate) struct Cache<P> {
    bytes_max: u64,
    books: Mutex<Books<P>>,
}

struct Books<P> {
    entries: HashMap<LayoutId, CacheEntry<P>>,
    /// Entries by when they were last used, oldest first.
    by_age: BTreeMap<u64, LayoutId>,
    /// Uses so far.
    clock: u64,
    building: HashMap<LayoutId, Arc<Site<P>>>,
    statistics: PlanStatistics,
}

struct CacheEntry<P> {
    plan: Arc<P>,
    bytes: u64,
    used: u64,
    /// Keeps the identity from going to another layout.
    layout: WeakLayout,
}

/// Where a plan is being built.
struct Site<P> {
    builder: ThreadId,
    state: Mutex<Progress<P>>,
    changed: Condvar,
}

enum Progress<P> {
    Building,
    Built(Arc<P>),
    /// The builder gave up.
    Abandoned,
}

/// What [`Cache::get_or_begin`] found.
pub(crate) enum CacheLookup<'a, P> {
    /// The plan.
    Ready(Arc<P>),
    /// There is none: build it, then [`finish`](Building::finish).
    Begin(Building<'a, P>),
}

/// The right to build a layout's plan, and the duty: others wait for it. Dropping it gives up; one of them
/// will build then.
#[must_use]
pub(crate) struct Building<'a, P> {
    cache: &'a Cache<P>,
    layout: Layout,
    /// `None` if another plan of the same layout is being made.
    site: Option<Arc<Site<P>>>,
}

impl<P> Cache<P> {
    /// An empty cache that holds plans of at most `bytes_max` bytes together.
    pub(crate) fn new(bytes_max: u64) -> Cache<P> {
        let books = Books {
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            clock: 0,
            building: HashMap::new(),
            statistics: PlanStatistics::default(),
        };
        Cache { bytes_max, books: Mutex::new(books) }
    }

    /// Whether a plan of so many bytes would be kept.
    pub(crate) fn keeps(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max
    }

    /// The plan of `layout`, if it is there; does not wait and counts as a use only if so.
    #[cfg(test)]
    pub(crate) fn get(&self, layout: &Layout) -> Option<Arc<P>> {
        self.books().find(layout.id())
    }

    /// The plan of `layout`, or the right to build it. Waits while another thread builds it, unless this
    /// thread is building one: then it may build this one for itself.
    pub(crate) fn get_or_begin(&self, layout: &Layout) -> CacheLookup<'_, P> {
        let id = layout.id();
        loop {
            let mut books = self.books();
            if let Some(plan) = books.find(id) {
                return CacheLookup::Ready(plan);
            }
            let me = thread::current().id();
            let site = books.building.get(&id).cloned();
            let busy = books.building.values().any(|site| site.builder == me);
            let (Some(site), false) = (site.clone(), busy) else {
                books.statistics.misses += 1;
                let mine = site.is_none().then(|| Arc::new(Site::new(me)));
                if let Some(mine) = &mine {
                    books.building.insert(id, Arc::clone(mine));
                }
                return CacheLookup::Begin(Building {
                    cache: self,
                    layout: layout.clone(),
                    site: mine,
                });
            };
            drop(books);
            if let Some(plan) = site.wait() {
                self.books().statistics.hits += 1;
                return CacheLookup::Ready(plan);
            }
        }
    }

    /// Throws out the plan of `layout`, if it is there.
    pub(crate) fn forget(&self, layout: &Layout) {
        let thrown = self.books().take(layout.id());
        drop(thrown);
    }

    /// What is there, and what has been.
    pub(crate) fn statistics(&self) -> PlanStatistics {
        self.books().statistics
    }

    /// Keeps a plan, and makes room for it.
    fn insert(&self, layout: &Layout, plan: &Arc<P>, bytes: u64) {
        if !self.keeps(bytes) {
            return;
        }
        let mut books = self.books();
        let mut thrown = Vec::new();
        thrown.extend(books.take(layout.id()));
        books.make_room(self.bytes_max - bytes, &mut thrown);
        books.clock += 1;
        let used = books.clock;
        books.by_age.insert(used, layout.id());
        let entry = CacheEntry { plan: Arc::clone(plan), bytes, used, layout: layout.downgrade() };
        books.entries.insert(layout.id(), entry);
        books.statistics.bytes += bytes;
        books.statistics.entries = books.entries.len();
        drop(books);
        drop(thrown);
    }

    fn books(&self) -> MutexGuard<'_, Books<P>> {
        // The books are in order after every statement that may panic (allocation).
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Books<P> {
    /// The plan, which is now the most recently used.
    fn find(&mut self, id: LayoutId) -> Option<Arc<P>> {
        let entry = self.entries.get_mut(&id)?;
        self.clock += 1;
        self.by_age.remove(&entry.used);
        self.by_age.insert(self.clock, id);
        entry.used = self.clock;
        self.statistics.hits += 1;
        Some(Arc::clone(&entry.plan))
    }

    fn take(&mut self, id: LayoutId) -> Option<Arc<P>> {
        let entry = self.entries.remove(&id)?;
        self.by_age.remove(&entry.used);
        self.statistics.bytes -= entry.bytes;
        self.statistics.entries = self.entries.len();
        Some(entry.plan)
    }

    /// Throws out plans until those left have at most `bytes_max` bytes and one more may be there.
    fn make_room(&mut self, bytes_max: u64, thrown: &mut Vec<Arc<P>>) {
        let full = |books: &Books<P>| {
            books.statistics.bytes > bytes_max || books.entries.len() >= ENTRIES_MAX
        };
        if !full(self) {
            return;
        }
        let dead: Vec<LayoutId> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.layout.is_alive())
            .map(|(id, _)| *id)
            .collect();
        let mut evict = |books: &mut Books<P>, id| {
            thrown.extend(books.take(id));
            books.statistics.evictions += 1;
        };
        // Nobody can ask for these again.
        for id in dead {
            evict(self, id);
        }
        while full(self)
            && let Some((_, &oldest)) = self.by_age.first_key_value()
        {
            evict(self, oldest);
        }
    }
}

impl<P> Site<P> {
    fn new(builder: ThreadId) -> Site<P> {
        Site { builder, state: Mutex::new(Progress::Building), changed: Condvar::new() }
    }

    /// Waits for the builder; `None` if it gives up.
    fn wait(&self) -> Option<Arc<P>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*state {
                Progress::Built(plan) => return Some(Arc::clone(plan)),
                Progress::Abandoned => return None,
                Progress::Building => {}
            }
            let waited = self.changed.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn end(&self, progress: Progress<P>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        self.changed.notify_all();
    }
}

impl<P> Building<'_, P> {
    /// The plan is built, or so far that whoever uses it waits for the rest by other means; it takes
    /// `bytes` of device memory. It is kept unless it alone exceeds the cache's bound.
    pub(crate) fn finish(mut self, plan: Arc<P>, bytes: u64) {
        self.cache.insert(&self.layout, &plan, bytes);
        self.leave(Progress::Built(plan));
    }

    fn leave(&mut self, progress: Progress<P>) {
        if let Some(site) = self.site.take() {
            self.cache.books().building.remove(&self.layout.id());
            site.end(progress);
        }
    }
}

impl<P> Drop for Building<'_, P> {
    fn drop(&mut self) {
        self.leave(Progress::Abandoned);
    }
}

#[cfg(test)]
mod tests;
