//! Epochs between groups (MPI 4.1 §12.5.2): post, start, complete, wait. Who has posted or completed says so by a message,
//! also where memory is mapped.

use crate::error::WindowError;
use crate::window::{Driver, Window, nobody};
use crate::wire::WindowMessage;
use gapless_bml::Rank;
use std::sync::atomic::{Ordering, fence};

impl Window {
    /// Exposes this rank's memory to a group (`MPI_Win_post`, MPI 4.1 §12.5.2). Does not wait for it.
    ///
    /// # Errors
    /// It is exposed already; epochs that do not go with it; a rank is named twice; a member is lost: then no epoch is
    /// possible any more.
    pub fn post<D: Driver>(&self, driver: &D, group: &[u32]) -> Result<(), D::Error> {
        self.post_unchecked(group)?;
        let told = self.tell(driver, group, WindowMessage::Post);
        self.sound(told)
    }

    /// The same, without telling the group (`MPI_MODE_NOCHECK`): all of it calls
    /// [`start_unchecked`](Window::start_unchecked), and knows by other means that this was called.
    ///
    /// # Errors
    /// As [`post`](Window::post).
    pub fn post_unchecked(&self, group: &[u32]) -> Result<(), WindowError> {
        fence(Ordering::SeqCst);
        self.epochs.open().post(group)
    }

    /// After a failure nobody knows who of a group accesses the memory still.
    fn sound<T, E>(&self, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() {
            self.epochs.open().break_off();
        }
        result
    }

    /// Sends a message without an answer to each of a group.
    fn tell<D: Driver>(
        &self,
        driver: &D,
        group: &[u32],
        kind: WindowMessage,
    ) -> Result<(), D::Error> {
        let told = driver.until(false, nobody, |bml| {
            let tell = |rank: &u32| {
                let process = self.members[*rank as usize].process;
                self.osc().post(bml, process, self.head(kind, *rank))
            };
            Some(group.iter().map(tell).fold(Ok(()), Result::and))
        })?;
        Ok(told?)
    }

    /// The process of the first of a group that has not posted, or completed.
    fn missing(&self, group: &[u32], kind: WindowMessage) -> Option<u32> {
        let core = self.osc().core();
        let hosted = core.windows.get(&self.handle.id)?;
        let counts = if kind == WindowMessage::Post { &hosted.posts } else { &hosted.completes };
        let missing = group.iter().find(|rank| counts[**rank as usize] == 0)?;
        Some(self.members[*missing as usize].process)
    }

    /// Takes one post, or complete, of each of a group, if all are there.
    fn heard(&self, group: &[u32], kind: WindowMessage) -> Option<Result<(), WindowError>> {
        let mut core = self.osc().core();
        let Some(hosted) = core.windows.get_mut(&self.handle.id) else {
            return Some(Err(WindowError::Freed { rank: self.rank }));
        };
        let counts =
            if kind == WindowMessage::Post { &mut hosted.posts } else { &mut hosted.completes };
        if let Some(missing) = group.iter().find(|rank| counts[**rank as usize] == 0) {
            let process = self.members[*missing as usize].process;
            drop(core);
            let lost = self.osc().departed().is_lost(process);
            return lost.then(|| Err(self.osc().loss(process)));
        }
        for rank in group {
            counts[*rank as usize] -= 1;
        }
        Some(Ok(()))
    }

    /// Waits for a post, or complete, of each of a group.
    fn hear<D: Driver>(
        &self,
        driver: &D,
        group: &[u32],
        kind: WindowMessage,
    ) -> Result<(), D::Error> {
        let mut met = false;
        let whom = || self.missing(group, kind);
        let heard = driver.until(false, whom, |bml| {
            if !met {
                // Deaths of those to whom nothing was sent are to be noticed as well.
                group.iter().for_each(|rank| bml.reach(Rank(self.members[*rank as usize].process)));
                met = true;
            }
            self.heard(group, kind)
        })?;
        fence(Ordering::SeqCst);
        Ok(heard?)
    }

    /// Begins access to the memory of a group, and waits until all of it has posted (`MPI_Win_start`).
    ///
    /// # Errors
    /// Epochs that do not go with it; a member is lost.
    pub fn start<D: Driver>(&self, driver: &D, group: &[u32]) -> Result<(), D::Error> {
        self.epochs.open().begin_start(group)?;
        let heard = self.hear(driver, group, WindowMessage::Post);
        let mut epochs = self.epochs.open();
        match heard {
            Ok(()) => epochs.started(group),
            Err(_) => epochs.stay(),
        }
        heard
    }

    /// The same, without waiting: all of the group have called [`post_unchecked`](Window::post_unchecked).
    ///
    /// # Errors
    /// Epochs that do not go with it.
    pub fn start_unchecked(&self, group: &[u32]) -> Result<(), WindowError> {
        let mut epochs = self.epochs.open();
        epochs.begin_start(group)?;
        fence(Ordering::SeqCst);
        epochs.started(group);
        Ok(())
    }

    /// Ends that access (`MPI_Win_complete`): operations have ended here, and will have there when
    /// [`wait`](Window::wait) returns. Targets to which operations went by messages are asked what came of them: this waits
    /// for their progress.
    ///
    /// # Errors
    /// There is no such epoch; a member is lost, or has refused an operation: the epoch has ended nevertheless.
    pub fn complete<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let group = self.epochs.open().begin_complete()?;
        fence(Ordering::SeqCst);
        let (mut result, mut asked, mut quiet) = (Ok(()), Vec::new(), Vec::new());
        for &rank in &*group {
            result = result.and(self.end_tasks(driver, rank)).and(self.end_transfers(driver, rank));
            let sent = &self.sent[rank as usize];
            if sent.unconfirmed().is_none() {
                quiet.push(rank);
                continue;
            }
            sent.all_confirmed();
            match self.question(driver, rank, self.head(WindowMessage::Complete, rank)) {
                Ok(token) => asked.push((rank, token)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result = result.and(self.tell(driver, &quiet, WindowMessage::Complete));
        for (rank, token) in asked {
            result = result.and(self.answer(driver, rank, token));
        }
        for &rank in &*group {
            result = result.and(self.end_reads(driver, rank));
        }
        self.epochs.open().closed();
        result
    }

    /// Waits until all of the group have completed (`MPI_Win_wait`).
    ///
    /// # Errors
    /// Nothing is posted; a member is lost. Then others of the group may access the memory still, so no epoch is possible
    /// any more.
    pub fn wait<D: Driver>(&self, driver: &D) -> Result<(), D::Error> {
        let group = self.epochs.open().begin_wait()?;
        let heard = self.hear(driver, &group, WindowMessage::Complete);
        self.epochs.open().heard(true);
        self.sound(heard)
    }

    /// The same without waiting: whether the exposure has ended (`MPI_Win_test`).
    ///
    /// # Errors
    /// As [`wait`](Window::wait).
    pub fn test<D: Driver>(&self, driver: &D) -> Result<bool, D::Error> {
        let group = self.epochs.open().begin_wait()?;
        driver.progress();
        let heard = self.heard(&group, WindowMessage::Complete);
        fence(Ordering::SeqCst);
        self.epochs.open().heard(heard.is_some());
        let Some(heard) = heard else { return Ok(false) };
        self.sound(heard)?;
        Ok(true)
    }
}
