//! Programs, built once and kept, and kernel launches.

use crate::event::WaitList;
use crate::sys::{KernelHandle, Named, ProgramHandle, pointer};
use crate::{OpenClDevice, OpenClError};
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
    handle: ProgramHandle,
    /// A kernel's arguments are set and it is enqueued under its lock.
    kernels: Mutex<HashMap<String, Arc<Mutex<KernelHandle>>>>,
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Program {
    fn kernel(&self, name: &str) -> Result<Arc<Mutex<KernelHandle>>, OpenClError> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        // A name with a zero byte is no kernel's.
        let terminated = CString::new(name).unwrap_or_default();
        let kernel = Arc::new(Mutex::new(self.handle.kernel(&terminated)?));
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
        let terminated = CString::new(options).unwrap_or_default();
        let handle = ProgramHandle::build(
            self.context(),
            self.info().raw(),
            &self.name(),
            source,
            &terminated,
        )?;
        let program = Arc::new(Program { handle, kernels: Mutex::default() });
        programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    /// Launches `groups` groups of `threads` work-items, in one dimension, once all of `after` have
    /// ended.
    ///
    /// # Safety
    /// The program's kernel `kernel` takes exactly these arguments, buffers as pointers to global
    /// memory and values of these sizes; with them it stays inside the buffers, terminates, and races
    /// with nothing. The buffers stay allocated until the completion.
    ///
    /// # Errors
    /// No such kernel, arguments or sizes that the driver refuses, buffers of another context.
    pub unsafe fn launch(
        &self,
        program: &Program,
        kernel: &str,
        groups: u32,
        threads: u32,
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
        let mut kernel = lock(&kernel);
        for (index, argument) in (0u32..).zip(arguments) {
            let buffer: cl_mem;
            let (len, value) = match argument {
                Argument::Buffer(region) => {
                    buffer = pointer(region.address());
                    (size_of::<cl_mem>(), (&raw const buffer).cast())
                }
                Argument::Null => (size_of::<cl_mem>(), ptr::null()),
                Argument::Value(bytes) => (bytes.len(), bytes.as_ptr().cast()),
            };
            // SAFETY: `value` points to `len` live bytes (or is null for a null buffer), which are what
            // the parameter takes by the caller's guarantee; a handle is copied by the call.
            unsafe { kernel.set(index, len, value) }.map_err(failed)?;
        }
        let local = threads as usize;
        let global = groups as usize * local;
        // SAFETY: queue, kernel and events are live; sizes are one-dimensional, one number each; the
        // caller guarantees what the kernel does.
        let event = unsafe {
            queue::enqueue_nd_range_kernel(
                self.queue().raw(),
                kernel.raw(),
                1,
                ptr::null(),
                &raw const global,
                &raw const local,
                list.len(),
                list.as_ptr(),
            )
        };
        let event = event.named("clEnqueueNDRangeKernel").map_err(failed)?;
        self.started(event)
    }
}
