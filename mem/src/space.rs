//! Which memory a byte lies in. One message has one space, found at its first byte.

use std::fmt;

/// A kind of memory, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Ordinary host memory.
    Host,
    /// Host memory that is page-locked and registered with a device.
    Pinned,
    /// Memory of the CUDA device with this ordinal.
    Cuda {
        /// The driver's device ordinal in this process.
        device: u32,
    },
    /// CUDA managed memory, which the driver migrates between host and devices.
    Managed,
    /// An OpenCL buffer. Handles are those of the OpenCL library in this process.
    OpenCl {
        /// The `cl_context` the buffer belongs to.
        context: u64,
        /// The `cl_device_id` that works on it.
        device: u64,
        /// The `cl_command_queue` that the user wants used, if any.
        queue: Option<u64>,
    },
    /// Memory of a device of a kind that Gapless itself does not know. Nobody opens such a device on demand: a program
    /// hands it over, with its engine.
    Device {
        /// What devices of the kind are called: the name of the interface, as `hip`.
        kind: &'static str,
        /// The device's number in this process.
        device: u32,
    },
}

impl Space {
    /// Whether the CPU may load and store there by address.
    #[must_use]
    #[inline]
    pub fn cpu_accessible(self) -> bool {
        matches!(self, Space::Host | Space::Pinned | Space::Managed)
    }

    /// Whether bytes there have addresses: otherwise a region names a buffer by its handle.
    #[must_use]
    #[inline]
    pub fn has_addresses(self) -> bool {
        !matches!(self, Space::OpenCl { .. })
    }

    /// Whether both are memory of one device in one context: a queue is a wish for one buffer, and does not count.
    #[must_use]
    pub fn is_of_same_device(self, other: Space) -> bool {
        let without_queue = |space| match space {
            Space::OpenCl { context, device, .. } => Space::OpenCl { context, device, queue: None },
            other => other,
        };
        without_queue(self) == without_queue(other)
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Space::Host => f.write_str("host"),
            Space::Pinned => f.write_str("pinned"),
            Space::Cuda { device } => write!(f, "cuda:{device}"),
            Space::Managed => f.write_str("managed"),
            Space::OpenCl { device, .. } => write!(f, "opencl:{device:#x}"),
            Space::Device { kind, device } => write!(f, "{kind}:{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Space;

    #[test]
    fn only_host_kinds_are_for_the_cpu() {
        assert!(Space::Host.cpu_accessible());
        assert!(Space::Pinned.cpu_accessible());
        assert!(!Space::Cuda { device: 0 }.cpu_accessible());
        assert!(!Space::Device { kind: "fake", device: 0 }.cpu_accessible());
        assert_eq!(Space::Cuda { device: 3 }.to_string(), "cuda:3");
        assert_eq!(Space::Device { kind: "hip", device: 1 }.to_string(), "hip:1");
    }

    #[test]
    fn a_queue_is_no_part_of_a_device() {
        let of = |context, queue| Space::OpenCl { context, device: 7, queue };
        assert!(of(1, Some(2)).is_of_same_device(of(1, None)));
        assert!(!of(1, None).is_of_same_device(of(2, None)));
        assert!(!Space::Cuda { device: 0 }.is_of_same_device(Space::Cuda { device: 1 }));
    }
}
