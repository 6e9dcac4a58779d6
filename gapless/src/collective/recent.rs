//! The schedules of a communicator's last calls: a call that is repeated is not built again. A schedule depends only on
//! the call and on what never changes in a communicator (this rank, which ranks are near each other, the table).

use gapless_coll::{BuildError, Call, Schedule};
use std::sync::{Arc, Mutex, PoisonError};

/// How many schedules are kept.
const KEPT_MAX: usize = 8;

/// The longest that is kept, in bytes: a longer one has so many steps that building it takes little of their time.
const BYTES_MAX: usize = 64 << 10;

/// The last schedules, the latest first. Only calls without lists are kept: they are quickly compared.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Vec<(Key, Arc<Schedule>)>>);

/// A call, and whether the ranks of this host share memory.
type Key = (Call<'static>, bool);

impl Recent {
    /// The schedule of a call, which `build` makes if it is not here.
    ///
    /// # Errors
    /// Those of `build`; nothing is kept then.
    pub(super) fn schedule(
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
    use gapless_coll::choose::{Table, choose};
    use gapless_coll::{Locality, build};
    use std::cell::Cell;

    fn bcast(len: u64) -> Call<'static> {
        Call::Bcast { root: 0, len }
    }

    #[test]
    fn the_last_calls_are_not_built_again() {
        let (recent, locality, built) = (Recent::default(), Locality::flat(4), Cell::new(0));
        let ask = |call: Call<'_>| {
            let before = built.get();
            let schedule = recent.schedule((&call, true), || {
                built.set(before + 1);
                build(1, &locality, &call, &choose(&Table::default(), &call, &locality))
            });
            let schedule = schedule.unwrap();
            let (_, row) = (schedule.rank(), schedule.row(gapless_coll::schedule::Buffer::Recv));
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
        let (recent, locality) = (Recent::default(), Locality::flat(3));
        let is_kept = |call: Call<'_>, build: &dyn Fn() -> Result<Schedule, BuildError>| {
            let _ = recent.schedule((&call, true), build);
            call.without_lists().is_some_and(|call| recent.find(&(call, true)).is_some())
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
        let built = recent.schedule((&listed, true), || build(1, &locality, &listed, &bruck));
        assert_eq!(built.unwrap().row(gapless_coll::schedule::Buffer::Recv).len(), 6);
    }
}
