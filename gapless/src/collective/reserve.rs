//! The place of a collective in the order of calls: it is taken before arguments are looked at, and kept until it is
//! known what the collective does. Meanwhile functions of users may be called, which begin others: these come later.

use super::Collective;
use super::perform::{CommunicatorState, refused};
use super::prepare::{Prepared, Shares};
use super::remembered::KnownCall;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::WorldState;
use gapless_coll::Operation;
use gapless_coll::runtime::{
    AtRest, Blocking, CollOp, Cx, Form, INLINE_LOOKS, Modules, Queue, SharedBy, Started,
};
use gapless_pml::{Comm, PmlError};
use std::sync::Arc;

/// The place of a collective in the order of calls. If it is dropped before the collective has begun, there is none.
#[derive(Debug)]
pub(super) struct Reserved<'c> {
    comm: &'c Communicator,
    number: u64,
    shared_by: SharedBy,
    /// What it does, if that was found out before.
    known_call: Option<KnownCall>,
    /// Whether this thread is noted as being in a blocking collective.
    noted: bool,
}

/// How a non-blocking collective has begun.
#[derive(Debug)]
pub(super) enum Start<'c> {
    /// It has ended well.
    Over(Started),
    Going(Box<Reserved<'c>>),
    /// It needs more, or something else has the shared memory. It has no place in the order of calls so far.
    Unknown,
}

impl Communicator {
    /// Begins a non-blocking collective, if it is the next one through shared memory and its description is all that is
    /// needed: others may need what this rank contributes.
    ///
    /// # Safety
    /// As for [`SharedSegment::attempt`](gapless_coll::sm::SharedSegment::attempt), until this returns.
    ///
    /// # Errors
    /// The world was finalized.
    pub(super) unsafe fn begin_known(
        &self,
        collective: &Collective<'_>,
    ) -> Result<Start<'_>, Error> {
        let CommunicatorState { queue, sequencer, .. } = &*self.common;
        self.shared.with(|state| {
            state.open()?;
            let WorldState { pml, tools, .. } = &mut *state;
            let begun = queue.with(|queue_state| {
                let AtRest { segment, mut before, memo } = queue_state.at_rest()?;
                let (known_call, contiguous) = self.look_up(memo, collective)?;
                let number = sequencer.pass();
                if known_call.asks {
                    before.skip(number, &mut Cx { pml, engines: &**tools });
                }
                let mut left = INLINE_LOOKS;
                let looks = || {
                    left -= 1;
                    left > 0
                };
                // A long one is not done in the call that begins it.
                let is_over = known_call.known.is_short() && {
                    // SAFETY: the caller's promise.
                    unsafe { segment.attempt(number, &known_call.known, contiguous, pml, looks) }
                };
                if is_over {
                    return Some(None);
                }
                let known = Box::new((number, known_call.clone()));
                queue_state.reserve(number);
                Some(Some(known))
            });
            Ok(match begun {
                None => Start::Unknown,
                Some(None) => Start::Over(Started::OVER),
                Some(Some(known)) => {
                    let (number, known_call) = *known;
                    let mut reserved = Reserved::new(self, number, SharedBy::All);
                    reserved.known_call = Some(known_call);
                    Start::Going(Box::new(reserved))
                }
            })
        })
    }

    /// Gives a collective its place in the order of calls. In the first one of the communicator, the ranks begin to
    /// agree on modules; if it is `blocking`, this waits until they have.
    ///
    /// # Errors
    /// The world was finalized; this thread is in a blocking collective, and asks for another.
    pub(super) fn reserve(
        &self,
        operation: Operation,
        blocking: bool,
    ) -> Result<Reserved<'_>, Error> {
        let CommunicatorState { queue, sequencer, .. } = &*self.common;
        let (mut reserved, is_first) = self.shared.with(|state| {
            state.open()?;
            let WorldState { pml, collectives, spent, .. } = &mut *state;
            if blocking && self.common.blocking() == Blocking::Here {
                return Err(Error::CollectiveUnderWay);
            }
            let (is_freed, is_first) =
                queue.with(|queue_state| (queue_state.is_freed(), queue_state.is_new()));
            if is_freed {
                return Err(PmlError::NoSuchComm.into());
            }
            if is_first {
                let host_ranks = self.host_ranks();
                collectives.open((pml, spent), self.queue(), sequencer, host_ranks);
                self.shared.rouse(state);
            }
            let reserved = queue.with(|queue_state| {
                let number = sequencer.pass();
                queue_state.reserve(number);
                let mut reserved = Reserved::new(self, number, queue_state.shared_by());
                reserved.noted = blocking && queue_state.set_holder();
                reserved
            });
            Ok((reserved, is_first))
        })?;
        if is_first && blocking {
            let number = reserved.number;
            self.shared.wait_in(&|| self.in_call(operation, number), |_| {
                queue.with(|queue_state| {
                    reserved.shared_by = queue_state.shared_by();
                    (reserved.shared_by != SharedBy::Unknown).then_some(())
                })
            })?;
        }
        Ok(reserved)
    }

    /// The communicator of its collectives' order, and that order.
    pub(super) fn queue(&self) -> (Comm, Arc<Queue>) {
        (self.comm.clone(), Arc::clone(&self.common.queue))
    }
}

impl<'c> Reserved<'c> {
    fn new(comm: &'c Communicator, number: u64, shared_by: SharedBy) -> Reserved<'c> {
        Reserved { comm, number, shared_by, known_call: None, noted: false }
    }

    /// The collective's number among those of the communicator.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Checks a description, and finds out how the collective goes.
    ///
    /// # Safety
    /// As for [`CollOp::new`], of the memory that is described.
    pub(super) unsafe fn op(
        &mut self,
        collective: Collective<'_>,
        form: Form,
    ) -> Result<Box<CollOp>, Error> {
        let (comm, what) = (self.comm, (collective.operation, form, self.number));
        if let Some(KnownCall { known, call, uses, .. }) = self.known_call.take() {
            let buffers = uses.buffers(collective.send, collective.recv);
            let buffers = buffers.map_err(|error| refused(what.0, error))?;
            // SAFETY: the caller's promise.
            let op = unsafe { CollOp::new(what, Some(call), (buffers, None)) };
            // The others know where its buffers lie.
            // SAFETY: `known_call` found `known` by all of the description but where its buffers are.
            return Ok(Box::new(unsafe { op.shared().with_plan(known) }));
        }
        let may_share = matches!(self.shared_by, SharedBy::Unknown | SharedBy::All);
        let shares = match self.shared_by {
            SharedBy::Unknown => Shares::Unknown,
            SharedBy::OfHost => Shares::Yes,
            SharedBy::All | SharedBy::Nobody => Shares::No,
        };
        let prepared = comm.prepare(collective, may_share, shares)?;
        let Prepared { call, shared, asks, schedules, buffers, combine } = prepared;
        // SAFETY: the caller's promise.
        let mut op = unsafe { CollOp::new(what, call, (buffers, combine)) };
        if shared {
            op = op.shared().asking(asks);
        }
        if let Some(schedules) = schedules {
            let ticket = comm.common.sequencer.claim(self.number);
            op = op.or_by(schedules, Some(ticket));
        }
        Ok(Box::new(op))
    }

    /// The modules, if it is this collective's turn already.
    pub(super) fn lend(&mut self) -> Option<Modules> {
        let Communicator { shared, common, .. } = self.comm;
        let modules = shared.with_anyway(|_| {
            common.queue.with(|queue_state| queue_state.lend(Some(self.number)))
        })?;
        // `QueueState::give_back` clears the holder.
        self.noted = false;
        Some(modules)
    }

    /// Tells the others in its turn that this rank's arguments were refused.
    pub(super) fn refuse(self) {
        let Communicator { shared, .. } = self.comm;
        // A world that is closed has nobody to tell.
        let _ = shared.with(|state| {
            state.open()?;
            let WorldState { pml, collectives, spent, .. } = &mut *state;
            collectives.refuse((pml, spent), self.comm.queue(), self.number);
            shared.rouse(state);
            Ok(())
        });
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let Communicator { shared, common, .. } = self.comm;
        let hindered = shared.with_anyway(|_| {
            common.queue.with(|queue_state| {
                if self.noted {
                    queue_state.clear_holder();
                }
                queue_state.leave(self.number)
            })
        });
        if hindered {
            // Those behind it have waited for this.
            shared.signal();
        }
    }
}
