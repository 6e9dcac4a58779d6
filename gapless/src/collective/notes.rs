//! Blocking collectives without messages: by notes and slots in memory that the ranks of a host share, if they can map
//! each other's.
//!
//! A communicator's ranks make that memory in its first blocking collective, whatever that is: before a rank looks at its
//! arguments, so that one that is refused takes part as well (`gapless_coll::page`). From then on blocking collectives
//! make no requests, if they are of a kind that it [takes](Page::takes). All ranks decide alike, by what all of them know.

use super::last::{Last, Plain};
use super::perform::Common;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, State, UnderWay};
use gapless_coll::page::{Known, Opening, Page};
use gapless_coll::{CollError, Operation};
use gapless_pml::RequestId;
use gapless_sync::{Gate, Pass};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// What a communicator has for notes.
#[derive(Debug, Default)]
pub(crate) enum Notes {
    /// No collective has asked so far.
    #[default]
    Unknown,
    Made(Box<Page>, Box<Last>),
    /// Some rank cannot map the memory, or the communicator was freed.
    Impossible,
}

impl Notes {
    /// What is known of the last call, if collectives may go this way.
    pub(super) fn last(&mut self) -> Option<&mut Last> {
        match self {
            Notes::Made(_, last) => Some(last),
            Notes::Unknown | Notes::Impossible => None,
        }
    }
}

/// A communicator's notes, for one thread at a time. A gate, because locked instructions would wait until the notes that
/// were just published have reached other ranks.
#[derive(Debug)]
pub(crate) struct Desk {
    notes: Gate<Notes>,
    /// Which thread has them; 0: none. Only that thread has to see it.
    holder: AtomicUsize,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { notes: Gate::new(Notes::default()), holder: AtomicUsize::new(0) }
    }
}

/// A thread has the notes.
#[derive(Debug)]
pub(crate) struct Turn<'d> {
    /// `None` only while it is dropped.
    notes: Option<Pass<'d, Notes>>,
    holder: &'d AtomicUsize,
}

impl Deref for Turn<'_> {
    type Target = Notes;

    #[inline]
    fn deref(&self) -> &Notes {
        match &self.notes {
            Some(notes) => notes,
            None => unreachable!("only a turn that is dropped has no pass"),
        }
    }
}

impl DerefMut for Turn<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Notes {
        match &mut self.notes {
            Some(notes) => notes,
            None => unreachable!("only a turn that is dropped has no pass"),
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
        if let Some(notes) = self.notes.take() {
            // Whoever panics has given the world up, or leaves a page that refuses what comes next.
            notes.done();
        }
    }
}

/// A number that no other thread has meanwhile; not 0.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Common {
    /// Held for the whole of a blocking collective by notes: two at once on one communicator have no order. While it
    /// waits, users' functions are called, which may come back here.
    ///
    /// # Errors
    /// This thread has them already.
    #[inline]
    pub(crate) fn notes(&self) -> Result<Turn<'_>, Error> {
        let Desk { notes, holder } = &self.desk;
        let me = this_thread();
        if holder.load(Ordering::Relaxed) == me {
            return Err(Error::CollectiveUnderWay);
        }
        let notes = notes.try_enter().unwrap_or_else(|| notes.enter());
        holder.store(me, Ordering::Relaxed);
        Ok(Turn { notes: Some(notes), holder })
    }
}

/// A page that works on memory of a caller. However the call is left, nothing works on it any more.
struct Lent<'p>(&'p mut Page);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // Nothing, if the collective has ended.
        self.0.give_up();
    }
}

impl Communicator {
    /// The first time, all ranks make the communicator's page, or find that they cannot.
    pub(super) fn make_page(&self, notes: &mut Notes, operation: Operation) -> Result<(), Error> {
        let Notes::Unknown = notes else { return Ok(()) };
        let mut under_way = UnderWay::new(&self.shared);
        self.shared.with(|state| under_way.begin(state))?;
        let mut opening = Opening::new(&self.common.sequencer);
        let made = self.shared.wait_until(|state| {
            if state.has_left() {
                return None;
            }
            let State { pml, collectives, .. } = state;
            let tools = &**collectives.tools();
            let Poll::Ready(made) = opening.advance(pml, tools, tools) else { return None };
            under_way.end(state);
            Some(made)
        })?;
        *notes = Notes::Impossible;
        if let Some(page) = made.map_err(|error| self.failed(operation, error))? {
            *notes = Notes::Made(Box::new(page), Box::default());
        }
        Ok(())
    }

    /// Tells the others that this rank's arguments were refused.
    pub(super) fn refuse(&self, notes: &mut Notes, number: u64) {
        if let Notes::Made(page, _) = notes {
            // A world that is closed has nobody to tell.
            let _ = self.shared.with(|state| {
                page.refuse(number, state.open()?);
                Ok(())
            });
        }
    }

    /// Does a short collective that was done before, if nothing delays it; whether it has ended. If not, it is gone on
    /// with by [`by_notes`](Self::by_notes), with the same number.
    ///
    /// # Safety
    /// As for [`Page::attempt`], until this returns.
    pub(super) unsafe fn at_once(
        &self,
        page: &mut Page,
        number: u64,
        known: &Known,
        buffers: Plain,
    ) -> Result<bool, Error> {
        self.shared.look_often(|pml, look| {
            // SAFETY: the caller's promise.
            unsafe { page.attempt(number, known, buffers, pml, look) }
        })
    }

    /// Does a collective by notes, which `begin` begins, and waits until this rank's part is over.
    ///
    /// What `begin` has granted the page needs to stay granted until this returns or unwinds. Then nothing of this process
    /// is under way: the collective has ended, or `Lent` gives the page up, which waits for engines, and the page never
    /// goes on with what it has given up. Peers only read what the memory holds, through mappings that stay valid whatever
    /// becomes of it here; the collective ends when they have. If it is given up, they may find other bytes there.
    #[inline(never)] // its frame is large
    pub(super) fn by_notes(
        &self,
        page: &mut Page,
        (operation, number): (Operation, u64),
        begin: impl FnOnce(&mut Page) -> Result<(), CollError>,
    ) -> Result<(), Error> {
        let page = Lent(page);
        if let Err(error) = begin(page.0) {
            self.shared.with(|state| {
                page.0.refuse(number, state.open()?);
                Ok(())
            })?;
            return Err(self.failed(operation, error));
        }
        let waited =
            self.shared.wait_looking(
                &mut *page.0,
                Page::look,
                |page, state, patient| match advance(page, state) {
                    Poll::Ready(result) => Look::Found(result),
                    Poll::Pending if patient => sleepy(page, state),
                    Poll::Pending => Look::NotYet,
                },
            );
        waited?.map_err(|error| self.failed(operation, error))
    }
}

/// Goes on as far as it can. What engines do to a short collective is waited for.
fn advance(page: &mut Page, state: &mut State) -> Poll<Result<(), CollError>> {
    let State { pml, collectives, .. } = state;
    let tools = &**collectives.tools();
    loop {
        let result = page.advance(pml, tools, tools);
        if result.is_ready() || !page.is_busy() {
            return result;
        }
        std::thread::yield_now();
    }
}

/// Announces sleep, and looks a last time.
fn sleepy(page: &mut Page, state: &mut State) -> Look<Result<(), CollError>> {
    loop {
        let bell: Option<RequestId> = page.doze(&mut state.pml);
        match (advance(page, state), bell) {
            (Poll::Ready(result), _) => return Look::Found(result),
            (Poll::Pending, None) => return Look::NotYet,
            (Poll::Pending, Some(bell)) if page.is_announced() => return Look::Until(bell),
            // It has got on, and waits for another rank now.
            (Poll::Pending, Some(_)) => {}
        }
    }
}
