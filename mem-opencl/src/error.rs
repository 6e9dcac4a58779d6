//! Why OpenCL cannot be used, and what a failed call means.

use gapless_mem::DeviceError;
use opencl3::error_codes::{
    CL_INVALID_BUFFER_SIZE, CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY,
    CL_OUT_OF_RESOURCES, error_text,
};
use thiserror::Error;

/// Why OpenCL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenClError {
    /// There is no OpenCL library on this machine.
    #[error("no OpenCL: libOpenCL.so.1 cannot be opened ({reason})")]
    NoLibrary {
        /// What the loader said.
        reason: String,
    },
    /// The library knows no platform: no driver is installed.
    #[error("no OpenCL platform: the loader is there, but no driver (see /etc/OpenCL/vendors)")]
    NoPlatform,
    /// The platforms have no device.
    #[error("no OpenCL device on {platforms} platforms")]
    NoDevice {
        /// How many platforms there are.
        platforms: usize,
    },
    /// There are fewer devices.
    #[error("no OpenCL device {ordinal}: there are {present}")]
    NoSuchDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        present: usize,
    },
    /// The space handed over is not one of OpenCL.
    #[error("{space} is not an OpenCL space")]
    NotOpenCl {
        /// The space.
        space: gapless_mem::Space,
    },
    /// The space names handles that no device of this process has: they are not followed.
    #[error("{space} names handles that no OpenCL device of this process was opened or made with")]
    Unknown {
        /// The space.
        space: gapless_mem::Space,
    },
    /// The device is none of the context's.
    #[error("OpenCL device {device:#x} is none of context {context:#x}")]
    WrongDevice {
        /// The `cl_device_id`.
        device: u64,
        /// The `cl_context`.
        context: u64,
    },
    /// The queue cannot be worked on.
    #[error("OpenCL queue {queue:#x} cannot be used: {reason}")]
    WrongQueue {
        /// The `cl_command_queue`.
        queue: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The buffer cannot be worked on.
    #[error("OpenCL buffer {buffer:#x} cannot be used: {reason}")]
    WrongBuffer {
        /// The `cl_mem`.
        buffer: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A call was refused.
    #[error("OpenCL: {operation} failed: {reason} ({code})")]
    Refused {
        /// The call.
        operation: &'static str,
        /// OpenCL's name for the code.
        reason: &'static str,
        /// The code.
        code: i32,
    },
    /// A program does not compile for this device.
    #[error("OpenCL: building a program for {device} failed: {log}")]
    Build {
        /// The device.
        device: String,
        /// What the compiler said.
        log: String,
    },
}

impl OpenClError {
    pub(crate) fn refused(operation: &'static str, code: i32) -> OpenClError {
        OpenClError::Refused { operation, reason: error_text(code), code }
    }

    /// The same, as what devices answer with; `len` is what was asked for, if memory was.
    pub(crate) fn on(self, device: &str, len: u64) -> DeviceError {
        const MEMORY: [i32; 4] = [
            CL_MEM_OBJECT_ALLOCATION_FAILURE,
            CL_OUT_OF_RESOURCES,
            CL_OUT_OF_HOST_MEMORY,
            CL_INVALID_BUFFER_SIZE,
        ];
        let device = device.to_owned();
        match self {
            OpenClError::Refused { reason, code, .. } if MEMORY.contains(&code) => {
                DeviceError::OutOfMemory { device, len, reason: reason.to_owned() }
            }
            OpenClError::Refused { operation, reason, code } => {
                DeviceError::Failed { device, operation, reason: format!("{reason} ({code})") }
            }
            other => DeviceError::Failed { device, operation: "OpenCL", reason: other.to_string() },
        }
    }
}
