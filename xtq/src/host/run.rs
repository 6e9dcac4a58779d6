//! One task: what it needs, and running it.

use super::{Inner, Xtq};
use crate::buffer::Received;
use crate::error::TaskError;
use crate::launcher::{Kernel, KernelTask, Runner};
use crate::packet::{Command, Flags, Work};
use crate::signal::Signal;
use crate::task::{Function, Task};
use gapless_bml::Rank;
use gapless_mem::{Outstanding, Region};
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
        let code = self.code.clone();
        let run = || match &code {
            Code::Function(function) => self.call(function),
            Code::Kernel(kernel) => self.launch(kernel),
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(panicked(payload)))
    }

    fn call(&mut self, function: &Function) -> Result<(), TaskError> {
        let Work::Function { arguments } = self.command.work else {
            return Err("its packet is a kernel's".into());
        };
        let mut task = Task {
            xtq: &self.xtq,
            initiator: self.from,
            index: self.command.index,
            arguments,
            payload: &mut self.payload,
            buffer: None,
        };
        match &function.buffer {
            None => (function.run)(&mut task),
            Some(buffer) => {
                buffer.with(|bytes| (function.run)(&mut Task { buffer: Some(bytes), ..task }))
            }
        }
    }

    #[allow(unsafe_code, reason = "launches a kernel that was registered by an unsafe function")]
    fn launch(&mut self, kernel: &Kernel) -> Result<(), TaskError> {
        let Work::Kernel(launch) = self.command.work else {
            return Err("its packet is a function's".into());
        };
        let (launcher, object) = match &kernel.runner {
            Runner::Launcher { launcher, object } => (launcher, *object),
            Runner::Worker(_) => {
                let body = [&self.arguments[..], self.payload.bytes()];
                return self.xtq.inner.run_on_worker(&self.command, body);
            }
        };
        let task = KernelTask {
            object,
            launch,
            arguments: &self.arguments,
            buffer: kernel.memory.as_ref(),
            payload: Region::of(self.payload.bytes()),
        };
        let failed = |error: gapless_mem::DeviceError| TaskError(error.to_string());
        // SAFETY: arguments and payload are this task's, which lives until the launch has ended: that is waited for
        // here, also if something panics (`Outstanding`). The registered memory is kept by its lease. Whoever
        // registered the kernel has promised that it stays inside with any arguments.
        let launched = unsafe { launcher.launch(&task) }.map_err(failed)?;
        Outstanding::new(launched).wait().map_err(failed)
    }
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
