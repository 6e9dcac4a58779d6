//! Kernel images, functions and launches.

use super::order::Relaxed;
use super::{Driver, Fault, RawStream, check};
use crate::error::code;
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use std::ffi::{CStr, c_int, c_void};

/// A loaded image. It stays loaded until its context ends, or it is unloaded.
#[derive(Debug)]
pub(crate) struct RawModule(pub(super) *mut CUmod_st);

// SAFETY: the driver's modules may be used from any thread; the driver locks.
unsafe impl Send for RawModule {}
// SAFETY: as above.
unsafe impl Sync for RawModule {}

/// A kernel of a loaded image; valid while the context is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFunction(*mut CUfunc_st);

// SAFETY: the driver's functions may be used from any thread; the driver locks.
unsafe impl Send for RawFunction {}
// SAFETY: as above.
unsafe impl Sync for RawFunction {}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared_bytes: u32,
}

impl Driver {
    /// Loads an image into the current context.
    ///
    /// # Safety
    /// `image` is complete: an ELF file, a fat binary or NUL-terminated PTX.
    pub(crate) unsafe fn module_load(&self, image: &[u64]) -> Result<RawModule, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut pointer: *mut CUmod_st = std::ptr::null_mut();
        // SAFETY: the driver finds the image's end by its own headers or the NUL; the caller vouches
        // that they do not point beyond it.
        let answer =
            unsafe { (self.api.module_load)(&raw mut pointer, image.as_ptr().cast::<c_void>()) };
        check("cuModuleLoadData", answer)?;
        Ok(RawModule(pointer))
    }

    /// Unloads an image.
    ///
    /// # Safety
    /// Its context is current. None of its kernels runs, or is launched any more.
    pub(crate) unsafe fn module_unload(&self, module: RawModule) -> Result<(), Fault> {
        // SAFETY: the module lives, because this consumes it; the caller vouches for its kernels.
        check("cuModuleUnload", unsafe { (self.api.module_unload)(module.0) })
    }

    /// Finds a kernel by name and loads it. (Left to itself the driver loads a kernel at its first
    /// launch, and may wait for all running kernels then.)
    pub(crate) fn module_function(
        &self,
        module: &RawModule,
        name: &CStr,
    ) -> Result<RawFunction, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut pointer: *mut CUfunc_st = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call, the module lives, the name ends in NUL.
        let answer =
            unsafe { (self.api.module_function)(&raw mut pointer, module.0, name.as_ptr()) };
        check("cuModuleGetFunction", answer)?;
        // SAFETY: the function was found in a module that is loaded.
        let answer = unsafe { (self.api.function_load)(pointer) };
        check("cuFuncLoad", answer)?;
        Ok(RawFunction(pointer))
    }

    /// One of a kernel's numbers (`CUfunction_attribute`).
    ///
    /// # Safety
    /// The function's context lives.
    pub(crate) unsafe fn function_attribute(
        &self,
        function: RawFunction,
        which: u32,
    ) -> Result<i32, Fault> {
        let mut value: c_int = 0;
        // SAFETY: `value` is writable for the call; the caller vouches for the function.
        let answer = unsafe { (self.api.function_attribute)(&raw mut value, which, function.0) };
        check("cuFuncGetAttribute", answer)?;
        Ok(value)
    }

    /// The bytes of a kernel's parameters, in order; no more than `most` are asked for.
    ///
    /// # Safety
    /// The function's context lives.
    pub(crate) unsafe fn function_parameters(
        &self,
        function: RawFunction,
        most: usize,
    ) -> Result<Vec<usize>, Fault> {
        let mut sizes = Vec::new();
        while sizes.len() < most {
            let (mut offset, mut bytes) = (0, 0);
            let (offset_to, bytes_to) = (&raw mut offset, &raw mut bytes);
            // SAFETY: both numbers are writable for the call; the caller vouches for the function.
            let answer = unsafe {
                (self.api.function_parameter)(function.0, sizes.len(), offset_to, bytes_to)
            };
            // There is no such parameter.
            if answer == code::INVALID_VALUE {
                break;
            }
            check("cuFuncGetParamInfo", answer)?;
            sizes.push(bytes);
        }
        Ok(sizes)
    }

    /// Sets one of a kernel's numbers.
    ///
    /// # Safety
    /// The function's context lives.
    pub(crate) unsafe fn function_set_attribute(
        &self,
        function: RawFunction,
        which: u32,
        value: i32,
    ) -> Result<(), Fault> {
        // SAFETY: takes numbers by value; the caller vouches for the function.
        let answer = unsafe { (self.api.function_set_attribute)(function.0, which, value) };
        check("cuFuncSetAttribute", answer)
    }

    /// How many blocks of this size one multiprocessor holds at a time.
    ///
    /// # Safety
    /// The function's context lives.
    pub(crate) unsafe fn occupancy(
        &self,
        function: RawFunction,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, Fault> {
        let mut blocks: c_int = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let shared = usize::try_from(shared_bytes).unwrap_or(usize::MAX);
        // SAFETY: `blocks` is writable for the call; the caller vouches for the function.
        let answer = unsafe { (self.api.occupancy)(&raw mut blocks, function.0, threads, shared) };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", answer)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// The function's context lives. `arguments` has one pointer
    /// per parameter of the kernel, in order, each to as many readable bytes as the parameter has
    /// (they are read during this call). What the kernel does with them is sound.
    pub(crate) unsafe fn launch(
        &self,
        function: RawFunction,
        shape: LaunchShape,
        stream: &RawStream,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Fault> {
        let ([bx, by, bz], [tx, ty, tz]) = (shape.blocks, shape.threads);
        // SAFETY: the caller's own promise; the stream lives; the shape is checked by the driver.
        let answer = unsafe {
            (self.api.launch)(
                function.0,
                bx,
                by,
                bz,
                tx,
                ty,
                tz,
                shape.shared_bytes,
                stream.pointer(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", answer)
    }
}
