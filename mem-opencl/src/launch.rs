//! Programs, built once and kept, and kernel launches.

use crate::event::WaitList;
use crate::sys::{KernelHandle, Named, ProgramHandle, pointer};
use crate::{OpenClDevice, OpenClError, programs};
use gapless_mem::{Completion, DeviceError, Region};
use opencl3::command_queue as queue;
use opencl3::types::cl_mem;
use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A program built for one device.
#[derive(Debug)]
pub struct Program {
    handle: Arc<ProgramHandle>,
    /// A kernel's arguments are set and it is enqueued under its lock.
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

/// A kernel of a program.
#[derive(Debug)]
struct Kernel {
    parameters: usize,
    handle: Mutex<KernelHandle>,
}

/// How many groups of how many work-items a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Groups in each dimension.
    pub groups: [u32; 3],
    /// Work-items of a group in each dimension.
    pub items: [u32; 3],
}

impl Grid {
    /// `groups` groups of `items` work-items in one dimension.
    #[must_use]
    pub fn line(groups: u32, items: u32) -> Grid {
        Grid { groups: [groups, 1, 1], items: [items, 1, 1] }
    }
}

/// Programs by source and options.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<HashMap<(String, String), Arc<Program>>>);

/// What a kernel's parameter gets.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A buffer: the region's handle. Where in the buffer is told by other arguments.
    Buffer(Region),
    /// No buffer.
    Null,
    /// A value, as bytes in the device's order.
    Value(&'a [u8]),
    /// Local memory of so many bytes, which each group has for itself. That the parameter is a pointer to local memory is
    /// not checked: of 8 bytes, one to global memory would be null.
    Local(u32),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    fn kernel(&self, name: &str) -> Result<Arc<Kernel>, OpenClError> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        // A name with a zero byte is no kernel's.
        let terminated = CString::new(name).unwrap_or_default();
        let handle = self.handle.kernel(&terminated)?;
        let parameters = handle.parameters()? as usize;
        let kernel = Arc::new(Kernel { parameters, handle: Mutex::new(handle) });
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl OpenClDevice {
    /// The program of `source`, built with `options` at first use.
    ///
    /// # Errors
    /// [`OpenClError::Build`] with the compiler's log.
    pub fn program(&self, source: &str, options: &str) -> Result<Arc<Program>, OpenClError> {
        let key = (source.to_owned(), options.to_owned());
        // Built under the lock: two threads that want the same program build it once.
        let mut programs = lock(&self.programs.0);
        if let Some(program) = programs.get(&key) {
            return Ok(Arc::clone(program));
        }
        let terminated = CString::new(self.options(options)).unwrap_or_default();
        let of = (self.context(), self.info().raw());
        let handle = programs::prepared(of, (&self.name(), !self.info().cpu), source, &terminated)?;
        let program = Arc::new(Program { handle, kernels: Mutex::default() });
        programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    /// Launches the kernel `kernel` of a program, once all of `after` have ended.
    ///
    /// # Safety
    /// The program's kernel `kernel` takes exactly these arguments, buffers as pointers to global
    /// memory, local memory of these lengths, and values of these sizes; with them it stays inside the buffers,
    /// terminates, and races with nothing. The buffers stay allocated until the completion.
    ///
    /// # Errors
    /// No such kernel, another number of arguments than it has parameters, arguments or sizes that the driver refuses,
    /// buffers of another context.
    pub unsafe fn launch(
        &self,
        program: &Program,
        kernel: &str,
        grid: Grid,
        arguments: &[Argument<'_>],
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        let name = self.name();
        let failed = |error: OpenClError| error.on(&name, 0);
        for argument in arguments {
            if let Argument::Buffer(region) = argument {
                if region.space().cpu_accessible() {
                    return Err(self.wrong_space(region.space()));
                }
                self.check(region)?;
            }
        }
        let list = WaitList::of(self, after)?;
        let kernel = program.kernel(kernel).map_err(failed)?;
        // The driver keeps what was set for the launch before.
        if kernel.parameters != arguments.len() {
            let what = "a launch with another number of arguments than the kernel has parameters";
            return Err(DeviceError::Unsupported { what });
        }
        let mut kernel = lock(&kernel.handle);
        for (index, argument) in (0u32..).zip(arguments) {
            let buffer: cl_mem;
            let (len, value) = match argument {
                Argument::Buffer(region) => {
                    buffer = pointer(region.address());
                    (size_of::<cl_mem>(), (&raw const buffer).cast())
                }
                Argument::Null => (size_of::<cl_mem>(), ptr::null()),
                Argument::Value(bytes) => (bytes.len(), bytes.as_ptr().cast()),
                Argument::Local(bytes) => (*bytes as usize, ptr::null()),
            };
            // SAFETY: `value` points to `len` live bytes (or is null for a null buffer and for local memory), which are what
            // the parameter takes by the caller's guarantee; a handle is copied by the call.
            unsafe { kernel.set(index, len, value) }.map_err(failed)?;
        }
        let local = grid.items.map(|items| items as usize);
        let global: [usize; 3] = std::array::from_fn(|at| grid.groups[at] as usize * local[at]);
        let dimensions = if global[1..] == [1, 1] { 1 } else { 3 };
        // SAFETY: queue, kernel and events are live; both lists have a number for each dimension; the
        // caller guarantees what the kernel does.
        let event = unsafe {
            queue::enqueue_nd_range_kernel(
                self.queue().raw(),
                kernel.raw(),
                dimensions,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                list.len(),
                list.as_ptr(),
            )
        };
        let event = event.named("clEnqueueNDRangeKernel").map_err(failed)?;
        self.started(event)
    }
}
