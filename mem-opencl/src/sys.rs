//! Handles that are released when dropped, and the raw calls as results.
//!
//! Every OpenCL object counts references; a handle here owns one. All calls but `clSetKernelArg` may be made
//! from any thread (OpenCL 1.2 §A.2), so handles are `Send` and `Sync`, and whoever sets arguments holds a
//! lock on the kernel.

use crate::OpenClError;
use crate::counts::Object;
use opencl3::command_queue as queue;
use opencl3::context::context;
use opencl3::event::{self, CL_EVENT_COMMAND_EXECUTION_STATUS};
use opencl3::kernel;
use opencl3::memory;
use opencl3::program;
use opencl3::types::{
    cl_buffer_region, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem,
    cl_program,
};
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Held while platforms are listed, contexts made and programs built: OpenCL says that any thread may, but
/// loaders and drivers set themselves up at the first of these calls, and not all of them survive two at
/// once.
static SET_UP: Mutex<()> = Mutex::new(());

/// Threads that wait for the set-up lock, those in the background not counted.
static WAITING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IN_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Takes the set-up lock.
pub(crate) fn setting_up() -> MutexGuard<'static, ()> {
    if IN_BACKGROUND.get() {
        while WAITING.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        return SET_UP.lock().unwrap_or_else(PoisonError::into_inner);
    }
    WAITING.fetch_add(1, Ordering::Relaxed);
    let guard = SET_UP.lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::Relaxed);
    guard
}

/// Runs work that no thread waits for. Where it makes contexts or builds programs, other threads go first.
pub fn in_background<T>(work: impl FnOnce() -> T) -> T {
    let before = IN_BACKGROUND.replace(true);
    let done = work();
    IN_BACKGROUND.set(before);
    done
}

/// Names the call in the error.
pub(crate) trait Named<T> {
    fn named(self, operation: &'static str) -> Result<T, OpenClError>;
}

impl<T> Named<T> for Result<T, i32> {
    fn named(self, operation: &'static str) -> Result<T, OpenClError> {
        self.map_err(|code| OpenClError::refused(operation, code))
    }
}

macro_rules! handles {
    ($($(#[$about:meta])* $name:ident($raw:ty) $kind:ident: $retain:path, $release:path, $call:literal;)*) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name($raw);

        // SAFETY: the handle is a counted reference to an object that OpenCL 1.2 §A.2 lets any thread
        // use, release included.
        unsafe impl Send for $name {}

        // SAFETY: as above; calls that are not safe to make at once are not reachable through `&self`
        // without a lock (`clSetKernelArg`, see `launch`).
        unsafe impl Sync for $name {}

        impl $name {
            /// Takes a reference of our own to an object of somebody else's.
            ///
            /// # Safety
            /// `raw` is a live handle of this kind.
            ///
            /// # Errors
            /// What OpenCL answers.
            pub unsafe fn retain(raw: $raw) -> Result<$name, OpenClError> {
                // SAFETY: the caller guarantees a live handle.
                unsafe { $retain(raw) }.named($call)?;
                Object::$kind.retained();
                Ok($name(raw))
            }

            /// The only reference to an object that a call has just made.
            fn made(raw: $raw) -> $name {
                Object::$kind.made();
                $name(raw)
            }

            /// The raw handle, valid as long as `self`.
            #[must_use]
            pub fn raw(&self) -> $raw {
                self.0
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: `self` owns one reference, given up here and never again. A refusal has
                // nobody to be told to.
                let _ = unsafe { $release(self.0) };
                Object::$kind.released();
            }
        }
    )*};
}

handles! {
    /// A context.
    Context(cl_context) Context: context::retain_context, context::release_context, "clRetainContext";
    /// A command queue.
    Queue(cl_command_queue) Queue: queue::retain_command_queue, queue::release_command_queue,
        "clRetainCommandQueue";
    /// A built program.
    ProgramHandle(cl_program) Program: program::retain_program, program::release_program, "clRetainProgram";
    /// A kernel of a program.
    KernelHandle(cl_kernel) Kernel: kernel::retain_kernel, kernel::release_kernel, "clRetainKernel";
    /// The end of a command.
    Event(cl_event) Event: event::retain_event, event::release_event, "clRetainEvent";
}

impl Context {
    /// A new context of one device.
    pub(crate) fn create(device: cl_device_id) -> Result<Context, OpenClError> {
        let _alone = setting_up();
        context::create_context(&[device], ptr::null(), None, ptr::null_mut())
            .map(Context::made)
            .named("clCreateContext")
    }
}

impl Queue {
    /// A new queue, in order.
    #[expect(deprecated, reason = "its successor is missing from drivers of OpenCL 1.2")]
    pub(crate) fn create(context: &Context, device: cl_device_id) -> Result<Queue, OpenClError> {
        // SAFETY: `context` is live and `device` one of its devices, or the call answers so.
        unsafe { queue::create_command_queue(context.raw(), device, 0) }
            .map(Queue::made)
            .named("clCreateCommandQueue")
    }

    /// Hands what was enqueued to the device, so that its events advance on their own.
    pub(crate) fn flush(&self) -> Result<(), OpenClError> {
        queue::flush(self.raw()).named("clFlush")
    }
}

impl Event {
    /// The event that an enqueueing call returned.
    pub(crate) fn owned(raw: cl_event) -> Event {
        Event::made(raw)
    }

    /// Whether the command has ended; an error is the command's own. Where the driver cannot say, it has not.
    pub(crate) fn ended(&self) -> Result<bool, OpenClError> {
        match event::get_event_info(self.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from) {
            // To have asked is no point of synchronisation, to have waited is: this thread sees what was written.
            Ok(0) => event::wait_for_events(&[self.raw()]).named("clWaitForEvents").map(|()| true),
            Ok(code) if code < 0 => Err(OpenClError::refused("a command", code)),
            Ok(_) | Err(_) => Ok(false),
        }
    }

    /// Hands the command to the device, and waits for its end.
    pub(crate) fn wait(&self) {
        while matches!(self.ended(), Ok(false)) {
            // It says how the command ended, or that it could not wait: both are asked for above.
            let _ = event::wait_for_events(&[self.raw()]);
            std::thread::yield_now();
        }
    }
}

impl ProgramHandle {
    /// Builds a program for one device; the error is the compiler's log.
    pub(crate) fn build(
        context: &Context,
        device: cl_device_id,
        name: &str,
        source: &str,
        options: &CStr,
    ) -> Result<ProgramHandle, OpenClError> {
        let _alone = setting_up();
        let handle = program::create_program_with_source(context.raw(), &[source])
            .map(ProgramHandle::made)
            .named("clCreateProgramWithSource")?;
        let built = program::build_program(handle.raw(), &[device], options, None, ptr::null_mut());
        match built {
            Ok(()) => Ok(handle),
            Err(code) => {
                let log = program::get_program_build_info(
                    handle.raw(),
                    device,
                    program::CL_PROGRAM_BUILD_LOG,
                );
                let log = log.map_or_else(|_| format!("code {code}"), String::from);
                Err(OpenClError::Build { device: name.to_owned(), log })
            }
        }
    }

    /// Makes a program of a binary that the driver gave for the same device.
    pub(crate) fn load(
        context: &Context,
        device: cl_device_id,
        binary: &[u8],
        options: &CStr,
    ) -> Result<ProgramHandle, OpenClError> {
        let _alone = setting_up();
        // SAFETY: the context is live; the call itself refuses a device that is none of the context's.
        let made =
            unsafe { program::create_program_with_binary(context.raw(), &[device], &[binary]) };
        let handle = made.map(ProgramHandle::made).named("clCreateProgramWithBinary")?;
        program::build_program(handle.raw(), &[device], options, None, ptr::null_mut())
            .named("clBuildProgram")?;
        Ok(handle)
    }

    /// What the driver made of it for a device; `None` if it gives nothing away.
    pub(crate) fn binary(&self, device: cl_device_id) -> Option<Vec<u8>> {
        let _alone = setting_up();
        let ask = |what| program::get_program_info(self.raw(), what).ok();
        let devices = Vec::<isize>::from(ask(program::CL_PROGRAM_DEVICES)?);
        let at = devices.iter().position(|&one| one.cast_unsigned() as u64 == number(device))?;
        let binaries = Vec::<Vec<u8>>::from(ask(program::CL_PROGRAM_BINARIES)?);
        binaries.into_iter().nth(at).filter(|binary| !binary.is_empty())
    }

    /// A kernel of the program.
    pub(crate) fn kernel(&self, name: &CStr) -> Result<KernelHandle, OpenClError> {
        kernel::create_kernel(self.raw(), name).map(KernelHandle::made).named("clCreateKernel")
    }
}

impl KernelHandle {
    /// How many parameters it has.
    pub(crate) fn parameters(&self) -> Result<u32, OpenClError> {
        let count = kernel::get_kernel_info(self.raw(), kernel::CL_KERNEL_NUM_ARGS);
        Ok(u32::from(count.named("clGetKernelInfo")?))
    }

    /// Sets one argument. The caller holds the only reference, or a lock.
    ///
    /// # Safety
    /// `value` points to `len` readable bytes that are what parameter `index` of the kernel takes.
    pub(crate) unsafe fn set(
        &mut self,
        index: u32,
        len: usize,
        value: *const c_void,
    ) -> Result<(), OpenClError> {
        // SAFETY: the kernel is live and exclusively ours; the caller guarantees the value.
        unsafe { kernel::set_kernel_arg(self.raw(), index, len, value) }.named("clSetKernelArg")
    }
}

/// Makes a buffer of `len` bytes.
pub(crate) fn create_buffer(context: &Context, len: usize) -> Result<cl_mem, OpenClError> {
    // SAFETY: the context is live; without a host pointer nothing else is promised.
    unsafe { memory::create_buffer(context.raw(), memory::CL_MEM_READ_WRITE, len, ptr::null_mut()) }
        .named("clCreateBuffer")
        .inspect(|_| Object::Buffer.made())
}

/// Makes a buffer out of `len` bytes of host memory at `host`.
///
/// # Safety
/// The memory stays valid until the buffer is released and its commands have ended.
pub(crate) unsafe fn wrap_buffer(
    context: &Context,
    len: usize,
    host: *mut c_void,
) -> Result<cl_mem, OpenClError> {
    let flags = memory::CL_MEM_READ_WRITE | memory::CL_MEM_USE_HOST_PTR;
    // SAFETY: the context is live; the caller guarantees `len` bytes at `host` for the buffer's life.
    unsafe { memory::create_buffer(context.raw(), flags, len, host) }
        .named("clCreateBuffer")
        .inspect(|_| Object::Buffer.made())
}

/// Makes a buffer of `len` bytes from `origin` on of another, which OpenCL keeps as long.
///
/// # Safety
/// `buffer` is the handle of a live buffer.
pub(crate) unsafe fn sub_buffer(
    buffer: cl_mem,
    origin: usize,
    len: usize,
) -> Result<cl_mem, OpenClError> {
    let part = cl_buffer_region { origin, size: len };
    let flags = memory::CL_MEM_READ_WRITE;
    // SAFETY: the caller guarantees a live buffer; the structure is the one that this kind of part takes.
    unsafe {
        memory::create_sub_buffer(
            buffer,
            flags,
            memory::CL_BUFFER_CREATE_TYPE_REGION,
            (&raw const part).cast(),
        )
    }
    .named("clCreateSubBuffer")
    .inspect(|_| Object::Buffer.made())
}

/// Releases a buffer of ours.
///
/// # Safety
/// `buffer` holds a reference that nothing else gives up or uses later.
pub(crate) unsafe fn release_buffer(buffer: cl_mem) -> Result<(), OpenClError> {
    // SAFETY: the caller guarantees the reference.
    unsafe { memory::release_mem_object(buffer) }
        .named("clReleaseMemObject")
        .inspect(|()| Object::Buffer.released())
}

/// A handle told as a number, as regions and spaces do.
pub(crate) fn number(raw: *mut c_void) -> u64 {
    raw.expose_provenance() as u64
}

/// The handle that a number tells.
pub(crate) fn pointer(number: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap_or(0))
}
