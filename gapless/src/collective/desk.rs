//! Where a communicator's collectives through shared memory begin: its page, whose turn it is, and those that wait.
//!
//! A communicator's ranks make a page in its first collective, blocking or not, whatever that is: before a rank looks
//! at its arguments, so that one that is refused takes part as well (`gapless_coll::page`). From then on collectives
//! make no messages, if they are of a kind that it [takes](Page::takes). All ranks decide alike, by what all of them
//! know. If the ranks are on several hosts and have no page, those of each host make one of their own: then the
//! schedules of collectives may have steps that go by it (`line.rs`). Whether one host has one is of no concern to the
//! others. A persistent collective has a desk of its own, as its starts have no order among the communicator's
//! collectives: its ranks make the page in its second start. The first one goes by messages, and compares what the
//! ranks have described.
//!
//! A desk is used with the world's lock held, by [`Desk::with`] alone. A blocking collective that waits takes the page
//! away ([`Notes::Lent`]), so that it can look without the lock.

use super::live::Number;
use super::remembered::Remembered;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, State};
use gapless_coll::hyperq::Settings;
use gapless_coll::page::{Opening, Page, Task};
use gapless_coll::{CollError, HyperQ, Operation};
use gapless_pml::{Doing, Pml, RequestId};
use gapless_sync::Gate;
use std::cell::Cell;
use std::collections::VecDeque;
use std::task::Poll;

/// What a communicator, or a persistent collective, has for collectives through shared memory.
#[derive(Debug)]
pub(crate) struct Desk(Gate<AtDesk>);

#[derive(Debug, Default)]
pub(super) struct AtDesk {
    pub(super) notes: Notes,
    /// What is known of the last calls.
    pub(super) remembered: Remembered,
    /// What waits for its turn, in the order of calls; the first has it (`line.rs`).
    pub(super) line: VecDeque<Item>,
    /// Whether it is among the lines that are advanced.
    pub(super) listed: bool,
    /// This rank's place among ranks that may share a GPU: beside the page, for blocking collectives (`hyperq.rs`). One
    /// that is under way has it.
    pub(super) hyperq: Option<Box<HyperQ>>,
    /// How such ranks go about it; `None`: they do not.
    pub(super) settings: Option<Settings>,
    /// The thread that is in a blocking collective here; 0: none.
    holder: usize,
}

#[derive(Debug, Default)]
pub(super) enum Notes {
    /// No collective has asked so far.
    #[default]
    Unknown,
    /// It is being made: that is the first in the line.
    Opening,
    Here(Box<Page>),
    /// A blocking collective has it.
    Lent,
    /// Some rank cannot map the memory, also of those of this host, or the communicator was freed.
    Impossible,
}

/// What has its place in the order of calls.
#[derive(Debug)]
pub(super) enum Item {
    /// The page is made.
    Opening(Box<Opening>),
    Collective(Number),
    /// One that is not known so far (`turn.rs`): it has this number.
    Held(u64),
    /// One that this rank was refused: the others are told.
    Refused(u64),
}

/// How far the making of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nobody can tell yet.
    Open,
    Made,
    /// The ranks of this host have one of their own.
    OfHost,
    Impossible,
}

/// Which thread is in a blocking collective at a desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    None,
    /// This one.
    Here,
    Elsewhere,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk(Gate::new(AtDesk::default()))
    }
}

impl Desk {
    /// A communicator's.
    pub(super) fn new(settings: Settings) -> Desk {
        Desk(Gate::new(AtDesk { settings: Some(settings), ..AtDesk::default() }))
    }

    /// Does something at the desk. The caller holds the world's lock.
    #[inline]
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut AtDesk) -> T) -> T {
        // Whoever has it holds the world's lock, so it is free.
        let mut at = self.0.try_enter().unwrap_or_else(|| self.0.enter());
        let result = act(&mut at);
        at.done();
        result
    }
}

/// A number that no other thread has meanwhile; not 0.
fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl AtDesk {
    pub(super) fn seen(&self) -> Seen {
        match &self.notes {
            Notes::Unknown | Notes::Opening => Seen::Open,
            Notes::Here(page) if !page.is_whole() => Seen::OfHost,
            Notes::Here(_) | Notes::Lent => Seen::Made,
            Notes::Impossible => Seen::Impossible,
        }
    }

    /// The page, if it is what gets the collective on that is the first in the line. That of a host is so only while it
    /// is at work: otherwise messages do.
    pub(super) fn busy_page(&mut self) -> Option<&mut Page> {
        match (&mut self.notes, self.line.front()) {
            (Notes::Here(page), Some(Item::Collective(_)))
                if page.is_whole() || page.is_at_work() =>
            {
                Some(page)
            }
            _ => None,
        }
    }

    /// Gives up what the page has with the endpoint.
    pub(super) fn close(&mut self, pml: &mut Pml) {
        if let Notes::Here(page) = &mut self.notes {
            page.close(pml);
        }
    }

    /// Which thread is in a blocking collective here.
    pub(super) fn blocking(&self) -> Blocking {
        match self.holder {
            0 => Blocking::None,
            holder if holder == this_thread() => Blocking::Here,
            _ => Blocking::Elsewhere,
        }
    }

    /// The page, if a collective can have it now, what goes on beside it, and what is known of the last calls.
    #[inline]
    pub(super) fn at_rest(&mut self) -> Option<(&mut Page, Option<&mut HyperQ>, &mut Remembered)> {
        match &mut self.notes {
            Notes::Here(page) if page.is_whole() && self.line.is_empty() && self.holder == 0 => {
                Some((page, self.hyperq.as_deref_mut(), &mut self.remembered))
            }
            _ => None,
        }
    }

    /// Lends the page to this thread, for the collective that is the first in the line, or if there is none.
    pub(super) fn lend(&mut self, number: Option<u64>) -> Option<Box<Page>> {
        let is_next = match (self.line.front(), number) {
            (None, None) => true,
            (Some(Item::Held(held)), Some(number)) => *held == number,
            _ => false,
        };
        let may = is_next && matches!(self.blocking(), Blocking::None | Blocking::Here);
        match std::mem::replace(&mut self.notes, Notes::Lent) {
            Notes::Here(page) if may && page.is_whole() => {
                self.line.pop_front();
                self.holder = this_thread();
                Some(page)
            }
            other => {
                self.notes = other;
                None
            }
        }
    }

    /// Where a collective waits that is not known so far.
    pub(super) fn held(&self, number: u64) -> Option<usize> {
        self.line.iter().rposition(|item| matches!(item, Item::Held(held) if *held == number))
    }

    /// A collective does not begin, if it has not; whether it has not.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        self.held(number).is_some_and(|at| self.line.remove(at).is_some())
    }

    /// This thread is in a blocking collective from now on; `false`: another one is.
    pub(super) fn note_blocking(&mut self) -> bool {
        let is_free = self.holder == 0;
        if is_free {
            self.holder = this_thread();
        }
        is_free
    }

    pub(super) fn note_no_blocking(&mut self) {
        self.holder = 0;
    }
}

/// A page that works on memory of a caller. However the call is left, nothing works on it any more, and it is back.
pub(super) struct Lent<'c> {
    comm: &'c Communicator,
    /// `None` only while this is dropped.
    page: Option<Box<Page>>,
}

impl<'c> Lent<'c> {
    /// A page that the communicator's desk has [lent](AtDesk::lend).
    pub(super) fn new(comm: &'c Communicator, page: Box<Page>) -> Lent<'c> {
        Lent { comm, page: Some(page) }
    }

    fn page(&mut self) -> &mut Page {
        match &mut self.page {
            Some(page) => page,
            None => unreachable!("only one that is dropped has no page"),
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut page) = self.page.take() else { return };
        // Nothing, if the collective has ended.
        page.give_up();
        let Communicator { shared, common, .. } = self.comm;
        let waited_for = shared.with_anyway(|_| {
            common.desk.with(|at| {
                (at.notes, at.holder) = (Notes::Here(page), 0);
                !at.line.is_empty()
            })
        });
        if waited_for {
            // Whoever sleeps could not announce that.
            shared.ring();
        }
    }
}

impl Communicator {
    /// Does a collective by a page that was lent, and waits until this rank's part is over.
    ///
    /// # Safety
    /// As for [`Page::begin_task`], until this returns or unwinds. That is when nothing works on the memory any more:
    /// the collective has ended, or `Lent` gives the page up, which waits for engines, and the page never goes on with
    /// what it has given up. Peers only read what the memory holds, through mappings that stay valid whatever becomes
    /// of it here; the collective ends when they have. If it is given up, they may find other bytes there.
    #[inline(never)] // its frame is large
    pub(super) unsafe fn by_page(
        &self,
        mut lent: Lent<'_>,
        (operation, number): (Operation, u64),
        task: Task,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { lent.page().begin_task(number, task) } {
            self.shared.with(|state| {
                lent.page().refuse(number, state.open()?);
                Ok(())
            })?;
            return Err(self.failed(operation, error));
        }
        let (call, whom) = (self.in_call(operation, number), Cell::new(None));
        let waited = self.shared.wait_looking(
            (&|| Doing { whom: whom.get(), ..call }, lent.page()),
            Page::look,
            |page, state, patient| match advance(page, state) {
                Poll::Ready(result) => Look::Found(result),
                Poll::Pending if patient => {
                    let look = sleepy(page, state);
                    whom.set(page.awaits());
                    look
                }
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
