//! What can go wrong, and whose doing it is. Each variant's text is one line for the user.

use gapless_mem::DeviceError;
use thiserror::Error;

/// Why CUDA cannot be used, or why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver library on this machine. Gapless works without one.
    #[error("no CUDA here: {reason}")]
    NoDriver {
        /// What was looked for.
        reason: String,
    },
    /// The driver is for an older CUDA than this crate is written for.
    #[error(
        "the CUDA driver is for CUDA {}.{}, and {}.{} is the oldest that will do: update the driver",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    DriverTooOld {
        /// What the driver says of itself: 1000 × major + 10 × minor.
        found: u32,
        /// The oldest that will do, likewise.
        needed: u32,
    },
    /// The driver lacks a function.
    #[error("the CUDA driver has no {name}: update the driver")]
    MissingSymbol {
        /// The function.
        name: &'static str,
    },
    /// The driver works and shows no device.
    #[error("the CUDA driver shows no device (is CUDA_VISIBLE_DEVICES set to hide them?)")]
    NoDevice,
    /// There is no device of that number.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}, counted from 0")]
    WrongOrdinal {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// There is not enough memory.
    #[error("{device} has no {len} bytes to give: {reason}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        len: u64,
        /// What the driver said.
        reason: String,
    },
    /// Work on the device failed in a way that ends every later call of this process on it (an
    /// illegal address, an uncorrectable memory error, …). Only a new process can use the device.
    #[error("{device} is lost to this process: {operation} found {reason}")]
    Sticky {
        /// The device.
        device: String,
        /// The call that reported it; seldom the one that caused it.
        operation: &'static str,
        /// What the driver said.
        reason: String,
    },
    /// The driver refused a call.
    #[error("{device}: {operation} failed: {reason}")]
    Failed {
        /// The device, or the driver itself.
        device: String,
        /// The driver's function.
        operation: &'static str,
        /// The driver's code (`CUresult`).
        code: u32,
        /// What the driver said.
        reason: String,
    },
    /// A key that came from another process is not what this crate makes.
    #[error("an exported CUDA {object} is malformed: {reason}")]
    Malformed {
        /// What it claims to be.
        object: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A kernel image is not one that can be loaded.
    #[error("a kernel image is malformed: {reason}")]
    Image {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no compiler of CUDA C++ on this machine: it comes with the toolkit, not with the driver.
    #[error("no compiler of CUDA C++ here: {reason}")]
    NoCompiler {
        /// What was looked for.
        reason: String,
    },
    /// A source cannot be compiled.
    #[error("CUDA C++ cannot be compiled: {}", log.lines().next().unwrap_or_default())]
    Compile {
        /// All that the compiler said.
        log: String,
    },
    /// Device code cannot be linked.
    #[error("device code cannot be linked: {}", log.lines().next().unwrap_or_default())]
    Link {
        /// All that the linker said.
        log: String,
    },
    /// The caller asked for something that no device does, or another device's work failed.
    #[error(transparent)]
    Refused(#[from] DeviceError),
}

impl CudaError {
    /// Whether the device does no work for this process any more: it is lost, or the driver has been shut
    /// down at the end of the process. After other errors, work that was enqueued goes on.
    pub(crate) fn ends_all_work(&self) -> bool {
        match self {
            CudaError::Sticky { .. } => true,
            CudaError::Failed { code, .. } => *code == code::DEINITIALIZED,
            _ => false,
        }
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> DeviceError {
        match error {
            CudaError::Refused(error) => error,
            CudaError::OutOfMemory { device, len, reason } => {
                DeviceError::OutOfMemory { device, len, reason }
            }
            CudaError::Failed { device, operation, reason, .. } => {
                DeviceError::Failed { device, operation, reason }
            }
            CudaError::Sticky { ref device, operation, .. } => {
                DeviceError::Failed { device: device.clone(), operation, reason: error.to_string() }
            }
            CudaError::Link { log } => DeviceError::Link { log },
            other => DeviceError::Failed {
                device: "CUDA".to_owned(),
                operation: "a request",
                reason: other.to_string(),
            },
        }
    }
}

/// The driver's answers that are told apart here (`CUresult`).
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    /// The driver is being shut down.
    pub(crate) const DEINITIALIZED: u32 = 4;
    pub(crate) const STUB_LIBRARY: u32 = 34;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    /// The default stream, while a stream that it would wait for is captured.
    pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;

    /// Whether every later call on the device will fail as well: the context is corrupted or gone.
    ///
    /// These are the codes of which the driver API says that the process must be restarted, and
    /// those by which the device, the link or the MPS server is lost.
    pub(crate) fn is_sticky(code: u32) -> bool {
        matches!(
            code,
            // ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED
            214 | 220 | 226
            // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED, ASSERT
            | 700 | 702 | 709 | 710
            // HARDWARE_STACK_ERROR … LAUNCH_FAILED, TENSOR_MEMORY_LEAK
            | 714
                ..=719 | 721
            // MPS_CLIENT_TERMINATED, EXTERNAL_DEVICE
            | 810 | 911
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_one_clear_line() {
        let old = CudaError::DriverTooOld { found: 11040, needed: 12000 };
        assert_eq!(
            old.to_string(),
            "the CUDA driver is for CUDA 11.4, and 12.0 is the oldest that will do: update the driver"
        );
        let ordinal = CudaError::WrongOrdinal { ordinal: 7, count: 2 };
        assert_eq!(
            ordinal.to_string(),
            "there is no CUDA device 7: the driver shows 2, counted from 0"
        );
        for error in [old, ordinal, CudaError::NoDevice] {
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn memory_and_misuse_keep_their_meaning_as_device_errors() {
        let error = CudaError::OutOfMemory {
            device: "cuda:0".into(),
            len: 9,
            reason: "out of memory".into(),
        };
        assert!(matches!(DeviceError::from(error), DeviceError::OutOfMemory { len: 9, .. }));
        let misuse = DeviceError::LengthMismatch { src_len: 1, dst_len: 2 };
        assert_eq!(DeviceError::from(CudaError::Refused(misuse.clone())), misuse);
        let log = "undefined 'f'\nin g".to_owned();
        let link = DeviceError::from(CudaError::Link { log: log.clone() });
        assert_eq!(link, DeviceError::Link { log });
        assert_eq!(link.to_string(), "device code cannot be linked: undefined 'f'");
        let sticky = CudaError::Sticky {
            device: "cuda:1".into(),
            operation: "cuEventQuery",
            reason: "an illegal memory access".into(),
        };
        assert!(DeviceError::from(sticky).to_string().contains("lost to this process"));
    }

    #[test]
    fn only_lasting_failures_are_sticky() {
        assert!(code::is_sticky(700) && code::is_sticky(719) && code::is_sticky(214));
        for passing in [1, code::OUT_OF_MEMORY, code::NOT_READY, 209, 704, 712, 713, 720] {
            assert!(!code::is_sticky(passing), "{passing}");
        }
    }
}
