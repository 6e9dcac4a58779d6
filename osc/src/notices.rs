//! Puts and gets with a notice: when one is done, a counter of the target goes up by one. So the target learns that its
//! memory has been written or read without a call that matches. MPI 4.1 has no such thing. Elsewhere it is notified
//! access (foMPI-NA), `gaspi_write_notify` (GASPI), `nvshmem_putmem_signal` (NVSHMEM).
//!
//! The counters of a rank are words beside its lock (`header.rs`), in memory of the host. Who raises one:
//!
//! | the target's memory | who | when |
//! |---|---|---|
//! | is mapped | the origin, by an atomic instruction | after its loads or stores |
//! | is a device's that is mapped | the same | the work of the origin's device is over |
//! | is reached by messages | the target's progress engine, told by the last message of the operation | that message is done; if the memory is a device's, that device's work is over |
//!
//! Messages of one process are done in order, so what came before the last one is done. If something of that origin was
//! refused, and it has not been told so, it gives no notices: what they would stand for may be missing.

use crate::error::WindowError;
use crate::place::Access;
use crate::window::{Driver, Window};
use gapless_bml::Rank;
use std::sync::atomic::{AtomicU64, Ordering};

/// The notice counters of a window, as this rank knows of them.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// How many there are at each rank.
    counters: u32,
    /// Whether other ranks may map this rank's, and whether some cannot.
    by_memory: bool,
    by_messages: bool,
}

impl Window {
    /// Each rank has so many notice counters, and so many others have the keys to this rank's.
    pub(crate) fn with_notices(mut self, counters: u32, given: usize) -> Window {
        let others = self.members.len() - 1;
        self.notices = Notices { counters, by_memory: given > 0, by_messages: given < others };
        self
    }

    /// How many notice counters there are at each rank.
    #[must_use]
    pub fn notice_counters(&self) -> u32 {
        self.notices.counters
    }

    /// The same access with a notice, which [`put_all`](Window::put_all), [`get_all`](Window::get_all) and
    /// [`start_get`](Window::start_get) give: the target's counter goes up by one when the data is there, or was read.
    ///
    /// # Errors
    /// [`WindowError::NoCounter`].
    pub fn with_notice(&self, access: Access, counter: u32) -> Result<Access, WindowError> {
        self.check_counter(counter)?;
        Ok(Access { notice: Some(counter), ..access })
    }

    fn check_counter(&self, counter: u32) -> Result<(), WindowError> {
        let counters = self.notices.counters;
        if counter < counters { Ok(()) } else { Err(WindowError::NoCounter { counter, counters }) }
    }

    /// The data of an access is moved, if its target is mapped; by messages, the last of them gives the notice.
    #[inline]
    pub(crate) fn give_notice(&self, access: &Access) {
        if let Some(counter) = access.notice
            && let Some(header) = self.header(access.rank)
        {
            raise(header.notice(counter));
        }
    }

    fn own_counter(&self, counter: u32) -> Result<&AtomicU64, WindowError> {
        self.check_counter(counter)?;
        let counters = self.notices.counters;
        self.own.header().notice(counter).ok_or(WindowError::NoCounter { counter, counters })
    }

    /// Where others' notices come by messages, these are taken in.
    fn hear_notices<D: Driver>(&self, driver: &D) {
        match self.notices.by_messages {
            true => driver.progress(),
            false => self.progress_now_and_then(driver, 1),
        }
    }

    /// How many notices this rank has got by a counter and not taken. What they stand for is in its memory.
    ///
    /// # Errors
    /// [`WindowError::NoCounter`].
    #[inline]
    pub fn notices<D: Driver>(&self, driver: &D, counter: u32) -> Result<u64, WindowError> {
        let word = self.own_counter(counter)?;
        self.hear_notices(driver);
        Ok(word.load(Ordering::Acquire))
    }

    /// The same, and takes them: the counter is 0 again.
    ///
    /// # Errors
    /// [`WindowError::NoCounter`].
    pub fn take_notices<D: Driver>(&self, driver: &D, counter: u32) -> Result<u64, WindowError> {
        let word = self.own_counter(counter)?;
        self.hear_notices(driver);
        Ok(word.swap(0, Ordering::AcqRel))
    }

    /// Waits until this rank has got so many notices by a counter, and gives how many it has got. `group`: the ranks
    /// that give them; with none, any.
    ///
    /// # Errors
    /// There are fewer, and one of the group is lost; without a group, all others are. [`WindowError::NoCounter`];
    /// no such rank.
    pub fn wait_notices<D: Driver>(
        &self,
        driver: &D,
        (counter, at_least): (u32, u64),
        group: &[u32],
    ) -> Result<u64, D::Error> {
        let word = self.own_counter(counter)?;
        group.iter().try_for_each(|rank| self.epochs.check_rank(*rank))?;
        let found = self.notices(driver, counter)?;
        if found >= at_least {
            return Ok(found);
        }
        let process = |rank: u32| self.members[rank as usize].process;
        let mut met = false;
        let whom = || group.first().map(|rank| process(*rank));
        let counted = driver.until(self.notices.by_memory, whom, |bml| {
            if !met {
                // Deaths of those to whom nothing was sent are to be noticed as well.
                self.givers(group).for_each(|rank| bml.reach(Rank(process(rank))));
                met = true;
            }
            // Before the counter is looked at: what the lost have given counts.
            let lost = self.lost_giver(group);
            let found = word.load(Ordering::Acquire);
            match lost {
                _ if found >= at_least => Some(Ok(found)),
                lost => lost.map(|rank| Err(self.osc().loss(process(rank)))),
            }
        })?;
        Ok(counted?)
    }

    /// Who may give notices: a group, or all others.
    fn givers(&self, group: &[u32]) -> impl Iterator<Item = u32> {
        let others = group.is_empty().then(|| self.all_ranks().filter(|rank| *rank != self.rank));
        group.iter().copied().chain(others.into_iter().flatten())
    }

    /// A rank because of which notices will never come.
    fn lost_giver(&self, group: &[u32]) -> Option<u32> {
        let is_lost =
            |rank: &u32| self.osc().departed().is_lost(self.members[*rank as usize].process);
        if group.is_empty() && !self.givers(group).all(|rank| is_lost(&rank)) {
            return None;
        }
        self.givers(group).find(is_lost)
    }
}

/// What a notice stands for is done.
#[inline]
pub(crate) fn raise(counter: Option<&AtomicU64>) {
    if let Some(counter) = counter {
        counter.fetch_add(1, Ordering::Release);
    }
}
