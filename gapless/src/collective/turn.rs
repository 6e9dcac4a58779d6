//! The place of a collective in the order of calls: it is taken before arguments are looked at, and kept until it is known
//! what the collective does. Meanwhile functions of users may be called, which begin others: these come later.

use super::Collective;
use super::desk::{Blocking, Item, Lent, Notes, Seen};
use super::errand::{Errand, Instead};
use super::line::{Line, brief_looks};
use super::perform::Common;
use super::prepare::{Prepared, Shares, Terms, Way};
use super::remembered::Direct;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::State;
use gapless_coll::{Combine, Operation, Rows, Schedule, Ticket};
use gapless_pml::RequestId;
use std::sync::Arc;

/// The place of a collective in the order of calls. If it is dropped before the collective has begun, there is none.
#[derive(Debug)]
pub(super) struct Turn<'c> {
    comm: &'c Communicator,
    number: u64,
    seen: Seen,
    /// What it does, if that was found out before.
    direct: Option<Direct>,
    /// The call, if ranks ask each other before it where their buffers lie.
    asked: Option<Terms>,
    /// Whether this thread is noted as being in a blocking collective.
    noted: bool,
}

/// How a non-blocking collective has begun.
#[derive(Debug)]
pub(super) enum Start<'c> {
    /// It has ended well; this request is not there any more.
    Over(RequestId),
    Going(Box<Turn<'c>>),
    /// It needs more, or something else has the page. It has no place in the order of calls so far.
    Unknown,
}

/// How a collective can begin.
#[derive(Debug)]
pub(super) enum Ready {
    Shared(Box<Errand>),
    Messages(Box<(Arc<Schedule>, Rows, Option<Combine>, Ticket)>),
}

impl Communicator {
    /// Begins a non-blocking collective, if it is the next one through shared memory and its description is all that is
    /// needed: others may need what this rank contributes.
    ///
    /// # Safety
    /// As for [`Page::attempt`](gapless_coll::page::Page::attempt), until this returns.
    ///
    /// # Errors
    /// The world was finalized.
    pub(super) unsafe fn begin_direct(
        &self,
        collective: &Collective<'_>,
    ) -> Result<Start<'_>, Error> {
        let Common { desk, sequencer, .. } = &*self.common;
        self.shared.with(|state| {
            let pml = state.open()?;
            let begun = desk.with(|at| {
                let (page, hyperq, remembered) = at.at_rest()?;
                let known = remembered.recall(collective, || self.direct(collective));
                let ((direct, plain), number) = (known?, sequencer.pass());
                if let Some(hyperq) = hyperq.filter(|_| direct.asks) {
                    hyperq.decline(number);
                }
                // A long one is not done in the call that begins it.
                if direct.known.is_short() {
                    // SAFETY: the caller's promise.
                    let over =
                        unsafe { page.attempt(number, &direct.known, plain, pml, brief_looks()) };
                    if over {
                        return Some(None);
                    }
                }
                let direct = direct.clone();
                at.line.push_back(Item::Held(number));
                Some(Some((number, direct)))
            });
            Ok(match begun {
                None => Start::Unknown,
                Some(None) => {
                    // One that is not there any more has ended.
                    let request = pml.begin_general();
                    let _ = pml.end_general(request);
                    let _ = pml.release(request);
                    Start::Over(request)
                }
                Some(Some((number, direct))) => {
                    let mut turn = Turn::new(self, number, Seen::Made);
                    turn.direct = Some(direct);
                    Start::Going(Box::new(turn))
                }
            })
        })
    }

    /// Gives a collective its place in the order of calls. In the first one of the communicator, the ranks begin to make a
    /// page; if it is `blocking`, this waits until they have.
    ///
    /// # Errors
    /// The world was finalized; this thread is in a blocking collective, and asks for another.
    pub(super) fn turn(&self, operation: Operation, blocking: bool) -> Result<Turn<'_>, Error> {
        let Common { desk, sequencer, .. } = &*self.common;
        let (mut turn, is_first) = self.shared.with(|state| {
            state.open()?;
            let State { pml, collectives, spent, .. } = &mut *state;
            if blocking && self.common.blocking() == Blocking::Here {
                return Err(Error::CollectiveUnderWay);
            }
            let is_first = desk.with(|at| matches!(at.notes, Notes::Unknown));
            if is_first {
                let mates = self.mates();
                collectives.open_page((pml, spent), self.line(), sequencer, mates);
                self.shared.rouse(state);
            }
            let turn = desk.with(|at| {
                let number = sequencer.pass();
                at.line.push_back(Item::Held(number));
                let noted = blocking && at.note_blocking();
                let mut turn = Turn::new(self, number, at.seen());
                turn.noted = noted;
                turn
            });
            Ok((turn, is_first))
        })?;
        if is_first && blocking {
            let number = turn.number;
            self.shared.wait_in(&|| self.in_call(operation, number), |_| {
                desk.with(|at| {
                    turn.seen = at.seen();
                    (turn.seen != Seen::Open).then_some(())
                })
            })?;
        }
        Ok(turn)
    }

    fn line(&self) -> Line {
        Line { comm: self.comm.clone(), desk: Arc::clone(&self.common.desk) }
    }
}

impl<'c> Turn<'c> {
    fn new(comm: &'c Communicator, number: u64, seen: Seen) -> Turn<'c> {
        Turn { comm, number, seen, direct: None, asked: None, noted: false }
    }

    /// The collective's number among those of the communicator.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Checks a description, and finds out how the collective goes.
    pub(super) fn ready(&mut self, collective: Collective<'_>) -> Result<Ready, Error> {
        let (comm, number) = (self.comm, self.number);
        let Common { desk, sequencer, .. } = &*comm.common;
        if let Some(direct) = self.direct.take() {
            // The others know where its buffers lie.
            let task = direct.task(collective);
            return Ok(Ready::Shared(Box::new(Errand::new(desk, number, task))));
        }
        let may_share = matches!(self.seen, Seen::Open | Seen::Made);
        let shares = match self.seen {
            Seen::Open => Shares::Unknown,
            Seen::OfHost => Shares::Yes,
            Seen::Made | Seen::Impossible => Shares::No,
        };
        let Prepared { way, asks, rows, combine } = comm.prepare(collective, may_share, shares)?;
        let terms = match way {
            Way::Schedule(schedules) => {
                let ticket = sequencer.claim(number);
                if !schedules.shares() {
                    let schedule = schedules.by_messages();
                    return Ok(Ready::Messages(Box::new((schedule, rows, combine, ticket))));
                }
                let instead = Instead::new(schedules, ticket);
                return Ok(Ready::Shared(Box::new(Errand::of_host(
                    desk,
                    (rows, combine),
                    instead,
                ))));
            }
            Way::Shared(terms) => terms,
        };
        let call = comm.call(&terms)?;
        let task = comm.task(&call, rows, combine)?;
        let mut errand = match self.seen {
            Seen::Made => Errand::new(desk, number, task),
            _ => {
                let schedules = comm.schedules(&call, shares)?;
                Errand::or(desk, task, Instead::new(schedules, sequencer.claim(number)))
            }
        };
        errand.asks = asks;
        self.asked = asks.then_some(terms);
        Ok(Ready::Shared(Box::new(errand)))
    }

    /// The call, if ranks ask each other before it where their buffers lie, and this rank's are not known to lie elsewhere.
    pub(super) fn asked(&mut self) -> Option<Terms> {
        self.asked.take()
    }

    /// The page, if it is this collective's turn already.
    pub(super) fn lend(&mut self) -> Option<Lent<'c>> {
        let Communicator { shared, common, .. } = self.comm;
        let page = shared.with_anyway(|_| common.desk.with(|at| at.lend(Some(self.number))))?;
        // Whoever brings the page back takes the note back.
        self.noted = false;
        Some(Lent::new(self.comm, page))
    }

    /// Tells the others in its turn that this rank's arguments were refused.
    pub(super) fn refuse(self) {
        let Communicator { shared, .. } = self.comm;
        // A world that is closed has nobody to tell.
        let _ = shared.with(|state| {
            state.open()?;
            let State { pml, collectives, spent, .. } = &mut *state;
            collectives.refuse((pml, spent), self.comm.line(), self.number);
            shared.rouse(state);
            Ok(())
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Communicator { shared, common, .. } = self.comm;
        let hindered = shared.with_anyway(|_| {
            common.desk.with(|at| {
                if self.noted {
                    at.note_no_blocking();
                }
                at.leave(self.number) && !at.line.is_empty()
            })
        });
        if hindered {
            // Those behind it have waited for this.
            shared.ring();
        }
    }
}
