//! Kernels: loading images, launching, and how much of the device a launch fills.
//!
//! A loaded image stays loaded until the device's context ends, so a [`Function`] never dangles and
//! nothing is unloaded under a running kernel ([`Module::unload`] is unsafe). Load an image once per device.

mod image;

use crate::context::Context;
use crate::driver::{LaunchShape, LinkFault, LinkPart, RawFunction, RawModule};
use crate::stream::Stream;
use crate::{CudaDevice, CudaError};
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

/// Parameters that a kernel may have.
pub const PARAMETERS_MAX: usize = 32;

/// A loaded kernel image.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: RawModule,
}

impl Module {
    /// Loads a cubin, a fat binary or PTX text (which the driver compiles first, in tenths of a
    /// second) into a device.
    ///
    /// # Safety
    /// The CUDA tools made the image, and nothing has changed it since: the driver believes what
    /// it says. (An image that was cut off is noticed.)
    ///
    /// # Errors
    /// An image that is incomplete, not for this device, or too new for this driver.
    pub unsafe fn load(device: &CudaDevice, image: &[u8]) -> Result<Module, CudaError> {
        let image = image::complete(image)?;
        let context = device.context();
        let _bound = context.bind()?;
        // SAFETY: `complete` found the ends that the headers announce, or appended a NUL to PTX; the
        // caller vouches for the rest.
        let raw = unsafe { context.driver.module_load(&image) };
        let raw = raw.map_err(|fault| context.fault(fault))?;
        Ok(Module { context: Arc::clone(context), raw })
    }

    /// Links relocatable device code (cubins, fat binaries, PTX, which is compiled first), and loads it. Threads of its
    /// kernels have at most `registers` registers.
    ///
    /// # Safety
    /// As [`load`](Module::load), of each image.
    ///
    /// # Errors
    /// [`CudaError::Link`], with what the linker said; an image that is incomplete.
    pub unsafe fn link(
        device: &CudaDevice,
        images: &[(&CStr, &[u8])],
        registers: u32,
    ) -> Result<Module, CudaError> {
        let whole = images.iter().map(|(_, image)| image::complete(image));
        let whole: Vec<Vec<u64>> = whole.collect::<Result<_, _>>()?;
        let parts = images.iter().zip(&whole).map(|((name, image), whole)| {
            let (kind, len) = image::kind(image);
            LinkPart { image: whole, len, kind, name }
        });
        let parts: Vec<LinkPart<'_>> = parts.collect();
        let context = device.context();
        let _bound = context.bind()?;
        // SAFETY: `complete` found the ends of all; the caller vouches for the rest.
        let linked = unsafe { context.driver.link(&parts, registers) };
        let raw = linked.map_err(|LinkFault { fault, log }| match log.is_empty() {
            true => context.fault(fault),
            false => CudaError::Link { log },
        })?;
        Ok(Module { context: Arc::clone(context), raw })
    }

    /// Unloads it.
    ///
    /// # Safety
    /// No kernel of it runs, and none of its [`Function`]s is used any more.
    ///
    /// # Errors
    /// The driver refuses.
    pub unsafe fn unload(self) -> Result<(), CudaError> {
        let context = self.context;
        let _bound = context.bind()?;
        // SAFETY: its context is bound; the caller vouches for its kernels.
        let unloaded = unsafe { context.driver.module_unload(self.raw) };
        unloaded.map_err(|fault| context.fault(fault))
    }

    /// The ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.context.ordinal
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// The image has none.
    pub fn function(&self, name: &CStr) -> Result<Function, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        let raw = context.driver.module_function(&self.raw, name);
        let raw = raw.map_err(|fault| context.fault(fault))?;
        Ok(Function { context: Arc::clone(context), raw })
    }
}

/// A kernel that can be launched on one device. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Function {
    context: Arc<Context>,
    raw: RawFunction,
}

/// What a kernel needs of a multiprocessor, as compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionProperties {
    /// Threads that a block may have.
    pub threads_max: u32,
    /// Registers of each thread.
    pub registers: u32,
    /// Shared memory of a block in bytes, without what the launch adds.
    pub shared_bytes: u32,
    /// Memory for spilled registers of each thread in bytes; good kernels have none.
    pub spilled_bytes: u32,
    /// The architecture that the loaded code was compiled for: 90 means sm_90.
    pub architecture: u32,
}

/// How many blocks of how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y and z.
    pub threads: [u32; 3],
    /// Shared memory of a block in bytes, besides what the kernel declares.
    pub shared_bytes: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads in a row, without further shared memory.
    #[must_use]
    pub fn line(blocks: u32, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// One argument of a launch: where its bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    at: *mut c_void,
    _borrowed: PhantomData<&'a ()>,
}

impl<'a> Argument<'a> {
    /// A value that the kernel gets a copy of, made during the launch call. Its size and layout must
    /// be those of the kernel's parameter: use `#[repr(C)]` for structures, and `u64` for pointers.
    #[must_use]
    pub fn of<T: Copy>(value: &'a T) -> Argument<'a> {
        Argument { at: std::ptr::from_ref(value).cast_mut().cast(), _borrowed: PhantomData }
    }
}

impl Function {
    /// Enqueues the kernel on a stream. Returns when it is enqueued, not when it has run.
    ///
    /// # Safety
    /// `arguments` are as many as the kernel has parameters, in order, each of its parameter's size
    /// and layout. Memory that the kernel reaches by them stays valid until it has ended, and
    /// nothing else writes there (or reads what it writes) meanwhile, unless the kernel is made for
    /// that.
    ///
    /// # Errors
    /// A stream of another device, a shape that the device or the kernel does not allow, more than
    /// [`PARAMETERS_MAX`] arguments, or the driver's refusal. What the kernel does wrong shows later,
    /// at its completion.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        let context = &self.context;
        if !Arc::ptr_eq(context, stream.context()) {
            return Err(CudaError::Malformed {
                object: "launch",
                reason: "kernel and stream are of different devices",
            });
        }
        let mut pointers = [std::ptr::null_mut(); PARAMETERS_MAX];
        let Some(pointers) = pointers.get_mut(..arguments.len()) else {
            return Err(CudaError::Malformed { object: "launch", reason: "too many arguments" });
        };
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = argument.at;
        }
        let shape = LaunchShape {
            blocks: grid.blocks,
            threads: grid.threads,
            shared_bytes: grid.shared_bytes,
        };
        let _bound = context.bind()?;
        // SAFETY: the context lives; each pointer is to a value that is borrowed during this call;
        // the caller vouches for their number, sizes and meaning.
        let launched = unsafe { context.driver.launch(self.raw, shape, stream.raw(), pointers) };
        launched.map_err(|fault| context.fault(fault))
    }

    fn attribute(&self, which: u32) -> Result<u32, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        // SAFETY: the context lives.
        let value = unsafe { context.driver.function_attribute(self.raw, which) };
        Ok(u32::try_from(value.map_err(|fault| context.fault(fault))?).unwrap_or(0))
    }

    /// What the kernel needs.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn properties(&self) -> Result<FunctionProperties, CudaError> {
        use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
        let ask = |which: Attribute| self.attribute(which as u32);
        Ok(FunctionProperties {
            threads_max: ask(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            registers: ask(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            spilled_bytes: ask(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            architecture: ask(Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        })
    }

    /// The bytes of each of the kernel's parameters, in order; of more than [`PARAMETERS_MAX`], the first and one more.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn parameters(&self) -> Result<Vec<usize>, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        // SAFETY: the context lives.
        let sizes = unsafe { context.driver.function_parameters(self.raw, PARAMETERS_MAX + 1) };
        sizes.map_err(|fault| context.fault(fault))
    }

    /// Lets launches ask for up to `bytes` of shared memory in [`Grid::shared_bytes`]; without this
    /// the driver allows 48 KiB.
    ///
    /// # Errors
    /// More than a block of this device can have.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        use cudarc::driver::sys::CUfunction_attribute_enum as Attribute;
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
        let context = &self.context;
        let _bound = context.bind()?;
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the context lives.
        let set = unsafe { context.driver.function_set_attribute(self.raw, which, value) };
        set.map_err(|fault| context.fault(fault))
    }

    /// How many blocks of `threads` threads and `shared_bytes` bytes of launch-time shared memory
    /// one multiprocessor holds at a time.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn blocks_per_unit(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        // SAFETY: the context lives.
        let blocks = unsafe { context.driver.occupancy(self.raw, threads, shared_bytes) };
        blocks.map_err(|fault| context.fault(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_point_to_their_values() {
        let value = 42u32;
        let argument = Argument::of(&value);
        assert_eq!(argument.at.addr(), std::ptr::from_ref(&value).addr());
    }

    #[test]
    fn a_line_of_blocks() {
        assert_eq!(
            Grid::line(7, 256),
            Grid { blocks: [7, 1, 1], threads: [256, 1, 1], shared_bytes: 0 }
        );
    }
}
