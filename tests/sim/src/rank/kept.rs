//! Persistent requests (MPI 4.1 §3.9): operations that a rank starts again and again, each time as
//! another message or receive of the journal.

use super::{Pending, RECV_GAP, Rank, SCRIBBLE, What};
use crate::journal::{Failure, Journal, Sent};
use crate::plan::Mode;
use crate::shapes::{Shape, payload};
use gapless_pml::{Persistent, PmlError, RequestId};
use std::rc::Rc;

/// An operation that can be started again.
pub(super) struct Kept {
    pub(super) persistent: Persistent,
    pub(super) memory: usize,
    pub(super) shape: Rc<Shape>,
    pub(super) op: Op,
}

/// Which.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Send { to: u32, comm: usize, tag: i32, mode: Mode },
    Recv { from: (Option<u32>, usize, Option<i32>) },
}

impl Rank {
    /// Starts a kept operation once more, as message or receive `number`; one that is in flight must
    /// refuse.
    pub(super) fn restart(
        &mut self,
        journal: &mut Journal,
        number: u32,
        nth: u32,
    ) -> Result<(), Failure> {
        let Some(at) = self.kept.len().checked_sub(nth as usize + 1) else { return Ok(()) };
        let memory = self.kept[at].memory;
        if self.pending.iter().any(|pending| pending.memory == memory) {
            return match self.start(at) {
                Err(PmlError::StillActive) => Ok(()),
                other => {
                    let what = format!("an active persistent request was started: {other:?}");
                    Err(Failure::new(what, &[self.rank]))
                }
            };
        }
        let (op, shape) = (self.kept[at].op, Rc::clone(&self.kept[at].shape));
        let tick = self.tick();
        self.tell(None, || format!("starts {op:?} once more, as {number}"));
        match op {
            Op::Send { to, comm, tag, mode } => {
                let stream = payload(number, shape.places.len());
                let bytes = stream.len() as u64;
                for (byte, place) in stream.into_iter().zip(&shape.places) {
                    self.memory[memory][*place] = byte;
                }
                let id = match self.start(at) {
                    Ok(id) => id,
                    Err(error) => return self.refused(to, mode, &error),
                };
                let from = self.rank;
                journal.sent.push(Sent {
                    number,
                    from,
                    to,
                    comm,
                    tag,
                    bytes,
                    mode,
                    tick,
                    again: true,
                    ..Sent::default()
                });
                let what = What::Send(journal.sent.len() - 1);
                self.pending.push(Pending { id, what, memory, done: None });
                if mode == Mode::Buffered {
                    self.memory[memory].fill(SCRIBBLE);
                }
            }
            Op::Recv { from } => {
                self.memory[memory].fill(RECV_GAP);
                let id = match self.start(at) {
                    Ok(id) => id,
                    Err(error) => {
                        return self.refused(from.0.unwrap_or(self.rank), Mode::Standard, &error);
                    }
                };
                self.took(journal, (number, from, tick), shape, (id, memory), None);
                journal.taken.last_mut().expect("just booked").again = true;
            }
        }
        Ok(())
    }

    fn start(&mut self, at: usize) -> Result<RequestId, PmlError> {
        let pml = self.pml.as_mut().expect("only the living are given their turn");
        // SAFETY: the memory is this rank's until the world has ended; nothing else uses it before
        // the request has ended, and an active one is refused.
        unsafe { pml.start(&mut self.kept[at].persistent) }
    }

    /// What a receive that can be started again has left in its buffer, set aside.
    pub(super) fn set_aside(&mut self, memory: usize) -> usize {
        if !self.kept.iter().any(|kept| kept.memory == memory) {
            return memory;
        }
        let copy = self.memory[memory].clone();
        self.memory.push(copy);
        self.memory.len() - 1
    }
}
