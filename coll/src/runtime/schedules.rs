//! Schedules of calls, and a cache of the schedules of a communicator's last calls: a call that is repeated is not
//! built again. A schedule depends only on the call and on what never changes in a communicator (this rank, which ranks
//! are near each other, the table).

use std::sync::{Arc, Mutex, PoisonError};

use crate::{BuildError, Call, Schedule};

/// What a collective goes by if it needs messages.
#[derive(Clone, Debug)]
pub struct Schedules {
    /// The schedule, which may need the segment of this host.
    schedule: Arc<Schedule>,
    /// What is in its place if there is none, if that is not known.
    apart: Option<Arc<Schedule>>,
}

impl Schedules {
    /// A schedule, and what is in its place if it needs a segment of this host's ranks, and there is none.
    #[must_use]
    pub fn new(schedule: Arc<Schedule>, apart: Option<Arc<Schedule>>) -> Schedules {
        Schedules { schedule, apart }
    }

    /// What may need the segment of this host.
    #[must_use]
    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// Whether the schedule needs the segment of this host.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.schedule.subgroup().is_some()
    }

    /// What goes by messages alone.
    #[must_use]
    pub fn by_messages(self) -> Arc<Schedule> {
        self.apart.unwrap_or(self.schedule)
    }
}

/// How many schedules are kept.
const KEPT_MAX: usize = 8;

/// The most bytes of memory that a kept schedule takes: a longer one has so many steps that building it takes little of
/// the time that it takes to carry it out.
const BYTES_MAX: usize = 64 << 10;

/// The last schedules, the latest first. Only calls without lists are kept: they are quickly compared.
#[derive(Debug, Default)]
pub struct ScheduleCache(Mutex<Vec<(Key, Arc<Schedule>)>>);

/// A call, and whether the ranks of this host share memory.
type Key = (Call<'static>, bool);

impl ScheduleCache {
    /// The schedule of a call, which `build` makes if it is not here.
    ///
    /// # Errors
    /// The errors of `build`; nothing is kept then.
    pub fn schedule(
        &self,
        (call, shares): (&Call<'_>, bool),
        build: impl FnOnce() -> Result<Schedule, BuildError>,
    ) -> Result<Arc<Schedule>, BuildError> {
        let Some(call) = call.without_lists() else { return Ok(Arc::new(build()?)) };
        let key = (call, shares);
        if let Some(schedule) = self.find(&key) {
            return Ok(schedule);
        }
        let schedule = Arc::new(build()?);
        if schedule.memory() <= BYTES_MAX {
            self.keep(key, Arc::clone(&schedule));
        }
        Ok(schedule)
    }

    fn find(&self, key: &Key) -> Option<Arc<Schedule>> {
        // Whatever panics while it is held leaves a list that is right.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(kept, _)| kept == key)?;
        all[..=at].rotate_right(1);
        Some(Arc::clone(&all[0].1))
    }

    fn keep(&self, key: Key, schedule: Arc<Schedule>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have built it meanwhile; it goes when it is the oldest.
        all.truncate(KEPT_MAX - 1);
        all.insert(0, (key, schedule));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::{Table, choose};
    use crate::{Locality, build};
    use std::cell::Cell;

    fn bcast(len: u64) -> Call<'static> {
        Call::Bcast { root: 0, len }
    }

    #[test]
    fn the_last_calls_are_not_built_again() {
        let (cache, locality, built) = (ScheduleCache::default(), Locality::flat(4), Cell::new(0));
        let ask = |call: Call<'_>| {
            let before = built.get();
            let schedule = cache.schedule((&call, true), || {
                built.set(before + 1);
                build(1, &locality, &call, &choose(&Table::default(), &call, &locality))
            });
            let schedule = schedule.unwrap();
            let (_, row) = (schedule.rank(), schedule.row(crate::schedule::Buffer::Recv));
            assert_eq!(row.len(), call.bytes().unwrap_or(0), "{call:?}");
            built.get() > before
        };
        let kept = KEPT_MAX as u64;
        for len in 0..kept {
            assert!(ask(bcast(len)), "{len} is new");
        }
        assert!(!ask(bcast(0)), "it is the oldest, and there");
        assert!(ask(bcast(kept)), "it is new");
        assert!(!ask(bcast(0)), "it was asked for lately");
        assert!(ask(bcast(1)), "it has been the oldest");
        assert!(ask(Call::Barrier), "it is no other operation");
        assert!(!ask(Call::Barrier));
    }

    #[test]
    fn what_is_long_or_has_lists_or_fails_is_not_kept() {
        let (cache, locality) = (ScheduleCache::default(), Locality::flat(3));
        let is_kept = |call: Call<'_>, build: &dyn Fn() -> Result<Schedule, BuildError>| {
            let _ = cache.schedule((&call, true), build);
            call.without_lists().is_some_and(|call| cache.find(&(call, true)).is_some())
        };
        let by = |call: Call<'static>, name: &str| {
            let (locality, algorithm) = (locality.clone(), name.parse().unwrap());
            move || build(1, &locality, &call, &algorithm)
        };
        let long = bcast(1 << 20);
        let cut = by(long, "chain in 64");
        assert!(cut().unwrap().memory() > BYTES_MAX);
        assert!(!is_kept(long, &cut));
        assert!(!is_kept(bcast(9), &|| Err(BuildError::TooLong)));
        assert!(is_kept(bcast(9), &by(bcast(9), "chain")));
        let lens = [1, 2, 3];
        let listed = Call::Allgatherv { lens: &lens, in_place: false };
        let bruck = "bruck".parse().unwrap();
        let built = cache.schedule((&listed, true), || build(1, &locality, &listed, &bruck));
        assert_eq!(built.unwrap().row(crate::schedule::Buffer::Recv).len(), 6);
    }
}
