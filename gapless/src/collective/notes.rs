//! Short blocking collectives: by notes in memory that the ranks of a host share, if they can map each other's.
//!
//! A communicator's ranks make that memory in the first collective that could use it (`gapless_coll::short`). From then
//! on a blocking collective of up to 1 KiB makes no request. All ranks decide alike, by what all of them know.

use super::perform::Common;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, State};
use gapless_coll::short::{Opening, Page};
use gapless_coll::{Call, CollError, Combine, Operation, Rows};
use gapless_pml::RequestId;
use std::sync::{MutexGuard, PoisonError};
use std::task::Poll;

/// What a communicator has for notes.
#[derive(Debug, Default)]
pub(crate) enum Notes {
    /// No collective has asked so far.
    #[default]
    Unknown,
    Made(Box<Page>),
    /// Some rank cannot map the memory.
    Impossible,
}

impl Notes {
    /// Whether a collective may go by notes.
    pub(super) fn may_be(&self) -> bool {
        !matches!(self, Notes::Impossible)
    }
}

impl Common {
    /// Held for the whole of a blocking collective: two at once on one communicator have no order.
    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        // Whoever has panicked has given the world up, or left a page that refuses what comes next.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator {
    /// The communicator's page. The first time, all ranks make it, or find that they cannot.
    pub(super) fn page<'n>(
        &self,
        notes: &'n mut Notes,
        operation: Operation,
    ) -> Result<Option<&'n mut Page>, Error> {
        if let Notes::Unknown = notes {
            self.shared.with(|state| state.open().map(drop))?;
            let mut opening = Opening::new(&self.common.sequencer);
            let made = self.shared.wait_until(|state| {
                let State { pml, collectives, .. } = state;
                let tools = &**collectives.tools();
                match opening.advance(pml, tools, tools) {
                    Poll::Ready(made) => Some(made),
                    Poll::Pending => None,
                }
            })?;
            *notes = Notes::Impossible;
            if let Some(page) = made.map_err(|error| self.failed(operation, error))? {
                *notes = Notes::Made(Box::new(page));
            }
        }
        Ok(match notes {
            Notes::Made(page) => Some(page),
            Notes::Unknown | Notes::Impossible => None,
        })
    }

    /// Does a collective by notes, and waits until this rank's part is over.
    ///
    /// # Safety
    /// What the rows describe stays granted, as [`Page::begin`] demands, until this returns or unwinds.
    pub(super) unsafe fn by_notes(
        &self,
        page: &mut Page,
        call: &Call<'_>,
        rows: Rows,
        combine: Option<Combine>,
    ) -> Result<(), Error> {
        let operation = call.operation();
        let number = self.common.sequencer.pass();
        // SAFETY: the caller's promise. Nothing is under way when this returns: it waits for the end, or gives up, which
        // waits for engines. If it unwinds, the world is given up, and the page keeps what is under way until it is
        // dropped, which waits as well; peers never touch the memory.
        if let Err(error) = unsafe { page.begin(number, call, rows, combine) } {
            self.shared.with(|state| state.open().map(drop))?;
            return Err(self.failed(operation, error));
        }
        let waited =
            self.shared.wait_looking(page, Page::look, |page, state, patient| {
                match advance(page, state) {
                    Poll::Ready(result) => Look::Found(result),
                    Poll::Pending if patient => sleepy(page, state),
                    Poll::Pending => Look::NotYet,
                }
            });
        match waited {
            Ok(result) => result.map_err(|error| self.failed(operation, error)),
            Err(error) => {
                page.give_up();
                Err(error)
            }
        }
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
    let bell: Option<RequestId> = page.doze(&mut state.pml);
    match (advance(page, state), bell) {
        (Poll::Ready(result), _) => Look::Found(result),
        (Poll::Pending, Some(bell)) => Look::Until(bell),
        (Poll::Pending, None) => Look::NotYet,
    }
}
