//! Functions that a process lets others call, and what they see while they run.

use crate::buffer::{Received, TargetBuffer};
use crate::error::{TaskError, XtqError};
use crate::host::Xtq;
use crate::put::{Put, PutHandle};
use gapless_bml::Rank;
use std::fmt;
use std::sync::Arc;

type Run = dyn Fn(&mut Task<'_>) -> Result<(), TaskError> + Send + Sync;
type Quick = dyn Fn(&mut Task<'_>) -> Option<Result<(), TaskError>> + Send + Sync;

/// A function for the Function Table.
///
/// It runs on a worker thread of this process, or, if it is [quick](Function::quick), on the one that makes progress. An
/// error, or a panic, is the task's failure: it is told to whoever waits for the task, and goes no further.
#[derive(Clone)]
pub struct Function {
    pub(crate) run: Arc<Run>,
    pub(crate) buffer: Option<TargetBuffer>,
    pub(crate) payload_max: u32,
    /// What may run where progress is made, of payloads of so many bytes.
    pub(crate) quick: Option<(u32, Arc<Quick>)>,
}

impl Function {
    /// A function that takes payloads of at most `payload_max` bytes.
    pub fn new(
        payload_max: u32,
        run: impl Fn(&mut Task<'_>) -> Result<(), TaskError> + Send + Sync + 'static,
    ) -> Function {
        Function { run: Arc::new(run), buffer: None, payload_max, quick: None }
    }

    /// Tasks with at most `bytes` of payload may run at once where progress is made, if they may begin when they come: no
    /// thread has to wake up for them. `run` is tried then. If it would have to wait for something, it answers `None`,
    /// and has changed nothing: then a thread runs the function itself.
    ///
    /// `run` holds up all progress of the process meanwhile, and runs under the locks of whoever makes it. So it should
    /// take some microseconds, and must not wait, nor call what makes progress or takes a lock that is held then: of this
    /// crate [`Task::put`] does not, of the layers above all calls may, and would wait for themselves. Nor may dropping
    /// what it has captured: the last task of a function that was replaced drops it.
    #[must_use]
    pub fn quick(
        mut self,
        bytes: u32,
        run: impl Fn(&mut Task<'_>) -> Option<Result<(), TaskError>> + Send + Sync + 'static,
    ) -> Function {
        self.quick = Some((bytes, Arc::new(run)));
        self
    }

    /// The buffer that it works on.
    #[must_use]
    pub fn buffer(mut self, buffer: &TargetBuffer) -> Function {
        self.buffer = Some(buffer.clone());
        self
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function of at most {} bytes, {:?}", self.payload_max, self.buffer)
    }
}

/// A task, as its function sees it.
#[derive(Debug)]
pub struct Task<'t> {
    pub(crate) xtq: &'t Xtq,
    pub(crate) initiator: Rank,
    pub(crate) index: u8,
    pub(crate) arguments: [u64; 4],
    pub(crate) payload: &'t mut Received,
    pub(crate) answer: &'t mut Vec<u8>,
    pub(crate) buffer: Option<&'t mut [u8]>,
}

impl Task<'_> {
    /// Who put it.
    #[must_use]
    pub fn initiator(&self) -> Rank {
        self.initiator
    }

    /// The index by which it was named.
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// The four arguments. The first two are addresses of the registered buffer and of the payload, 0 if there is
    /// none: safe code uses [`parts`](Task::parts). The last two are the initiator's.
    #[must_use]
    pub fn arguments(&self) -> [u64; 4] {
        self.arguments
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    /// The registered buffer; without bytes if there is none.
    pub fn buffer(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }

    /// The payload, and the registered buffer.
    pub fn parts(&mut self) -> (&[u8], &mut [u8]) {
        (self.payload.bytes(), self.buffer.as_deref_mut().unwrap_or_default())
    }

    /// Takes the payload in its receive buffer, which is then not posted again: [`Xtq::post`] does that, with this (at its
    /// whole capacity) or another buffer. Gives what a second call gives, nothing, if there was no payload.
    #[must_use]
    pub fn take_payload(&mut self) -> Vec<u8> {
        let mut taken = std::mem::take(self.payload);
        taken.memory.truncate(taken.len);
        taken.memory
    }

    /// Leaves an answer for whoever put this task, if it [asks](Xtq::ask) for one and the task does not fail. The last
    /// one counts; more than [`ANSWER_MAX`](crate::ANSWER_MAX) bytes are a failure.
    pub fn answer(&mut self, answer: Vec<u8>) {
        *self.answer = answer;
    }

    /// Puts another task, without waiting for anything: so one task leads to the next, at this process or any other.
    ///
    /// # Errors
    /// As [`Xtq::put`].
    pub fn put(&self, put: Put) -> Result<PutHandle, XtqError> {
        self.xtq.put_on(put)
    }

    /// This process's end.
    #[must_use]
    pub fn xtq(&self) -> &Xtq {
        self.xtq
    }
}
