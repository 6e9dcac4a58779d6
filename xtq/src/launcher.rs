//! Kernels that a process lets others launch, and what launches them on its accelerator.
//!
//! The *host* back end plays the NIC and the command processor: a thread launches the kernel when its packet is due, and
//! waits until it has ended. What a worker of the accelerator runs ([`Kernel::of_worker`]) needs no launch.

use crate::device::{DeviceFunction, DeviceKernel, Runs};
use crate::error::{Refusal, TaskError};
use crate::packet::Launch;
use crate::signal::Signal;
use crate::tables::TaskEntry;
use gapless_mem::{Completion, DeviceError, Lease, Outstanding, Region, WorkerCode};
use std::fmt;
use std::sync::Arc;

/// What an accelerator allows a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Work-items, at most.
    pub items_max: u32,
    /// Local (shared) memory in bytes, at most.
    pub local_bytes_max: u32,
    /// Work-items of the whole grid, at most, in each dimension.
    pub grid_max: [u32; 3],
}

impl GroupLimits {
    /// Whether a launch is within them, or why not.
    #[doc(hidden)]
    pub fn allow(&self, launch: &Launch) -> Result<(), Refusal> {
        let GroupLimits { items_max, local_bytes_max, grid_max } = *self;
        if launch.group_items() > items_max.into() || launch.local_bytes > local_bytes_max {
            return Err(Refusal::Group { items_max });
        }
        if launch.grid.iter().zip(grid_max).any(|(&items, max)| items > max) {
            return Err(Refusal::Grid);
        }
        Ok(())
    }
}

/// One launch of a registered kernel.
#[derive(Debug)]
pub struct KernelTask<'t> {
    /// The kernel, by the number that it was registered with.
    pub object: u64,
    /// Its grid, groups and local memory; within the [limits](Launcher::limits).
    pub launch: Launch,
    /// Its arguments, rewritten: the first word is the address of the registered buffer or table of pointers, the
    /// second that of the payload; 0 if there is none.
    pub arguments: &'t [u8],
    /// The registered buffer or table of pointers.
    pub buffer: Option<&'t Lease>,
    /// The payload, in host memory.
    pub payload: Region,
}

/// Launches kernels on one accelerator.
///
/// # Safety
/// Tasks hand receive buffers and registered memory to the accelerator on the strength of what this answers. So an
/// implementation keeps these rules:
///
/// 1. [`launch`](Launcher::launch) runs the kernel that `object` names over the whole grid, once, with these arguments.
///    If the accelerator cannot reach the payload where it lies, the implementation moves it and replaces the second
///    argument; the payload itself is not written.
/// 2. Its completion ends only when neither the kernel nor a copy touches the arguments, the payload or registered
///    memory any more. An error means that nothing was started, or that all that was started is over; likewise a panic.
pub unsafe trait Launcher: Send + Sync {
    /// What the accelerator allows.
    fn limits(&self) -> GroupLimits;

    /// What it allows launches of this kernel, which may need more of it than others. It is asked when a [`Kernel`] is
    /// made.
    fn limits_of(&self, _object: u64) -> GroupLimits {
        self.limits()
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// The memory of `task` stays valid until the completion, the payload readable and not written meanwhile. With
    /// these arguments the kernel stays inside its registered memory and the payload, and terminates.
    ///
    /// # Errors
    /// The driver's refusal.
    unsafe fn launch(&self, task: &KernelTask<'_>) -> Result<Completion, DeviceError>;
}

/// Who runs a kernel.
#[derive(Clone)]
pub(crate) enum Runner {
    /// It is launched.
    Launcher { launcher: Arc<dyn Launcher>, object: u64 },
    /// The worker of this process's accelerator has it.
    Worker(Runs),
}

/// A kernel for the Kernel Table.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) runner: Runner,
    #[doc(hidden)]
    pub limits: GroupLimits,
    #[doc(hidden)]
    pub argument_bytes: u16,
    pub(crate) payload_max: u32,
    pub(crate) memory: Option<Lease>,
    #[doc(hidden)]
    pub signal: Option<Signal>,
    /// Whether a worker counts its tasks, without a signal.
    pub(crate) counted: bool,
}

impl Kernel {
    /// The kernel that `launcher` knows by `object`. It takes `argument_bytes` of arguments, of which the first two
    /// words are the target's, and payloads of at most `payload_max` bytes.
    pub fn new(
        launcher: Arc<dyn Launcher>,
        object: u64,
        argument_bytes: u16,
        payload_max: u32,
    ) -> Kernel {
        let limits = launcher.limits_of(object);
        let runner = Runner::Launcher { launcher, object };
        Kernel::of(runner, limits, argument_bytes, payload_max)
    }

    /// A function of the worker that this process has [attached](crate::Xtq::attach_worker): initiators that can map the
    /// memory of its rings put tasks of it without this process's CPU.
    #[must_use]
    pub fn of_worker(function: DeviceFunction, payload_max: u32) -> Kernel {
        Kernel::run_by_worker(Runs::Own(function), function.argument_bytes(), payload_max)
    }

    /// A function of a user's that this process's worker runs, by its name in the code, with arguments of so many bytes.
    /// Registering it takes the worker away, links the code to it, and starts it again: puts wait meanwhile. Tasks find the
    /// function that was registered before or this one. All codes that are linked at a time have one space of names.
    #[must_use]
    pub fn of_worker_from(
        code: &WorkerCode,
        name: &str,
        argument_bytes: u16,
        payload_max: u32,
    ) -> Kernel {
        let runs = Runs::Users { code: code.clone(), name: name.into() };
        Kernel::run_by_worker(runs, argument_bytes, payload_max)
    }

    fn run_by_worker(runs: Runs, argument_bytes: u16, payload_max: u32) -> Kernel {
        let limits =
            GroupLimits { items_max: u32::MAX, local_bytes_max: 0, grid_max: [u32::MAX; 3] };
        Kernel::of(Runner::Worker(runs), limits, argument_bytes, payload_max)
    }

    fn of(runner: Runner, limits: GroupLimits, argument_bytes: u16, payload_max: u32) -> Kernel {
        Kernel {
            runner,
            limits,
            argument_bytes,
            payload_max,
            memory: None,
            signal: None,
            counted: false,
        }
    }

    /// What the worker is told, if this is one of its functions, but for the signal.
    pub(crate) fn for_worker(&self) -> Option<DeviceKernel> {
        let Runner::Worker(runs) = &self.runner else { return None };
        let mut kernel = DeviceKernel::of(runs.clone(), self.payload_max)
            .argument_bytes(self.argument_bytes)
            .grid_max(self.limits.grid_max);
        if let Some(memory) = &self.memory {
            kernel = kernel.buffer(memory.clone());
        }
        Some(kernel)
    }

    /// Launches it and waits until it has ended. A worker's is none that is launched.
    ///
    /// # Safety
    /// It was registered by an unsafe function, whose caller has promised that it stays inside its registered memory and
    /// the payload, and does not write that, with any arguments, within its limits, which `launch` keeps.
    #[doc(hidden)]
    pub unsafe fn run(
        &self,
        launch: Launch,
        arguments: &[u8],
        payload: &[u8],
    ) -> Result<(), TaskError> {
        let Runner::Launcher { launcher, object } = &self.runner else {
            return Err("it is a worker's, and not launched".into());
        };
        let (buffer, payload) = (self.memory.as_ref(), Region::of(payload));
        let task = KernelTask { object: *object, launch, arguments, buffer, payload };
        let failed = |error: DeviceError| TaskError(error.to_string());
        // SAFETY: arguments and payload are borrowed until the launch has ended: that is waited for here, also if
        // something panics (`Outstanding`). The registered memory is kept by its lease. That the kernel stays inside is
        // the caller's promise.
        let launched = unsafe { launcher.launch(&task) }.map_err(failed)?;
        Outstanding::new(launched).wait().map_err(failed)
    }

    /// Its entry in a table, by this name.
    #[doc(hidden)]
    pub fn entry(&self, object: u64) -> TaskEntry {
        let memory = self.memory.as_ref().map(Lease::region);
        TaskEntry {
            object,
            buffer: memory.map_or(0, |region| region.start()),
            buffer_bytes: memory.map_or(0, |region| region.len()),
            signal: self.signal.as_ref().map_or(0, Signal::name),
            payload_max: self.payload_max,
            argument_bytes: self.argument_bytes,
        }
    }

    /// Whether a worker runs it.
    #[doc(hidden)]
    pub fn is_of_worker(&self) -> bool {
        matches!(self.runner, Runner::Worker(_))
    }

    /// The buffer that its first argument becomes.
    #[must_use]
    pub fn buffer(mut self, buffer: Lease) -> Kernel {
        self.memory = Some(buffer);
        self
    }

    /// A table of pointers that its first argument becomes, if one buffer is not enough. Whoever registers the kernel
    /// keeps what the pointers lead to.
    #[must_use]
    pub fn pointers(self, table: Lease) -> Kernel {
        self.buffer(table)
    }

    /// The largest grid, in work-items of each dimension, unless the launcher allows less: larger ones are refused.
    #[must_use]
    pub fn grid_max(mut self, items: [u32; 3]) -> Kernel {
        let allowed = self.limits.grid_max;
        self.limits.grid_max = std::array::from_fn(|at| items[at].min(allowed[at]));
        self
    }

    /// The signal that each of its tasks counts down. Without one the packet's own passes through.
    #[must_use]
    pub fn signal(mut self, signal: &Signal) -> Kernel {
        self.signal = Some(signal.clone());
        self
    }

    /// Has the worker count its tasks that have ended, if it is the worker's and has no signal: whoever registers it asks
    /// [`count_of`](crate::Xtq::count_of) how often. A signal has to be looked at by the process's progress; this is one
    /// load. A worker counts up to 64 signals and kernels; an index that was once counted keeps its count.
    #[must_use]
    pub fn counted(mut self) -> Kernel {
        self.counted = true;
        self
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.runner {
            Runner::Launcher { object, .. } => write!(f, "Kernel {object:#x}")?,
            Runner::Worker(Runs::Own(function)) => write!(f, "Kernel {function:?} of a worker")?,
            Runner::Worker(Runs::Users { name, .. }) => {
                write!(f, "Kernel {name} of a worker's user")?
            }
        }
        write!(f, " with {} bytes of arguments", self.argument_bytes)
    }
}
