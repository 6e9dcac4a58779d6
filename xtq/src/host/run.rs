//! One task: what it needs, and running it.

use super::{Inner, Xtq};
use crate::buffer::Received;
use crate::error::TaskError;
use crate::launcher::Kernel;
use crate::packet::{Command, Flags, TaskWork};
use crate::signal::Signal;
use crate::task::{Function, Task};
use crate::within::Running;
use gapless_bml::Rank;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The code of a task; the old one, if it was registered anew since.
#[derive(Clone)]
pub(super) enum Code {
    Function(Arc<Function>),
    Kernel(Arc<Kernel>),
}

impl Code {
    /// Whether the worker runs it.
    pub(super) fn is_of_worker(&self) -> bool {
        matches!(self, Code::Kernel(kernel) if kernel.is_of_worker())
    }
}

/// A task in a queue.
pub(super) struct Ready {
    pub(super) xtq: Xtq,
    /// Rewritten.
    pub(super) command: Command,
    pub(super) code: Code,
    /// A kernel's, rewritten.
    pub(super) arguments: Vec<u8>,
    pub(super) payload: Received,
    /// What it leaves for its initiator.
    pub(super) answer: Vec<u8>,
    pub(super) from: Rank,
    /// Its name there.
    pub(super) put: u64,
    /// The payload lies in no receive buffer of this process.
    pub(super) private: bool,
    /// Its initiator's ring waits for its end.
    pub(super) counts: bool,
}

impl Ready {
    pub(super) fn inner(&self) -> Arc<Inner> {
        Arc::clone(&self.xtq.inner)
    }

    pub(super) fn is_barrier(&self) -> bool {
        self.command.flags.contains(Flags::BARRIER)
    }

    /// The signal that its kernel was registered with, and that is counted here: a worker counts itself.
    pub(super) fn registered_signal(&self) -> Option<&Signal> {
        match &self.code {
            Code::Kernel(kernel) if !kernel.is_of_worker() => kernel.signal.as_ref(),
            _ => None,
        }
    }

    /// Runs it. A panic is its failure.
    pub(super) fn run(&mut self) -> Result<(), TaskError> {
        let (code, _running) = (self.code.clone(), self.running());
        failing(|| match &code {
            Code::Function(function) => self.call(function),
            Code::Kernel(kernel) => self.launch(kernel),
        })
    }

    fn running(&self) -> Running {
        Running::of(Arc::as_ptr(&self.xtq.inner))
    }

    /// Whether it may run where progress is made.
    pub(super) fn is_quick(&self) -> bool {
        let Code::Function(function) = &self.code else { return false };
        function.quick.as_ref().is_some_and(|(bytes, _)| self.command.payload_bytes <= *bytes)
    }

    /// Runs it where progress is made, unless it would have to wait for something.
    pub(super) fn try_quick(&mut self) -> Option<Result<(), TaskError>> {
        let Code::Function(function) = self.code.clone() else { return None };
        let (_, quick) = function.quick.as_ref()?;
        let _running = self.running();
        let mut ended = None;
        let failed = failing(|| {
            let mut task = self.task()?;
            ended = match &function.buffer {
                None => quick(&mut task),
                Some(buffer) => buffer
                    .try_with(|bytes| quick(&mut Task { buffer: Some(bytes), ..task }))
                    .flatten(),
            };
            Ok(())
        });
        failed.map_or_else(|error| Some(Err(error)), |()| ended)
    }

    /// A function's task, without its buffer.
    fn task(&mut self) -> Result<Task<'_>, TaskError> {
        let TaskWork::Function { arguments } = self.command.work else {
            return Err("its packet is a kernel's".into());
        };
        Ok(Task {
            xtq: &self.xtq,
            initiator: self.from,
            index: self.command.index,
            arguments,
            payload: &mut self.payload,
            answer: &mut self.answer,
            buffer: None,
        })
    }

    fn call(&mut self, function: &Function) -> Result<(), TaskError> {
        let mut task = self.task()?;
        match &function.buffer {
            None => (function.run)(&mut task),
            Some(buffer) => {
                buffer.lend(|bytes| (function.run)(&mut Task { buffer: Some(bytes), ..task }))
            }
        }
    }

    #[allow(unsafe_code, reason = "launches a kernel that was registered by an unsafe function")]
    fn launch(&mut self, kernel: &Kernel) -> Result<(), TaskError> {
        let TaskWork::Kernel(launch) = self.command.work else {
            return Err("its packet is a function's".into());
        };
        if kernel.is_of_worker() {
            let body = [&self.arguments[..], self.payload.bytes()];
            return self.xtq.inner.run_on_worker(&self.command, body);
        }
        // SAFETY: whoever registered the kernel has promised that it stays inside with any arguments. Its limits were
        // checked when the packet came.
        unsafe { kernel.run(launch, &self.arguments, self.payload.bytes()) }
    }
}

/// Runs a task's code. A panic is its failure.
#[doc(hidden)]
pub fn failing(run: impl FnOnce() -> Result<(), TaskError>) -> Result<(), TaskError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(panicked(payload)))
}

/// What somebody panicked with, as text. The payload is forgotten: dropping it may panic as well.
fn panicked(payload: Box<dyn Any + Send>) -> TaskError {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    std::mem::forget(payload);
    TaskError(format!("it panicked: {}", text.as_deref().unwrap_or("without a text")))
}

/// Calls what is a user's. A panic goes no further than to the log, as `said`.
pub(super) fn contain(said: &str, act: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(act)) else { return };
    let error = panicked(payload);
    // Whoever listens to the log is a user, too.
    if let Err(payload) = catch_unwind(|| tracing::error!(%error, "{said}")) {
        std::mem::forget(payload);
    }
}

/// Drops what may be a user's; a panic goes no further.
pub(super) fn lay_down<T>(spent: T) {
    contain("what a task left behind panicked when it was dropped", || drop(spent));
}
