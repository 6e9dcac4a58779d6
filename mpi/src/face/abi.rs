//! The standard ABI (MPI 5.0 chapter 20): handles are pointers, small numbers for predefined objects.

use std::ffi::c_int;

/// A handle: a pointer in C, which nobody follows.
pub(crate) type RawHandle = usize;

/// The request that is over: none of the handles that the standard has given a meaning.
pub(crate) const REQUEST_OVER: RawHandle = 0x181;

/// A handle as a number. Handles of both ABIs fit into 32 bits: an MPI program can have them as Fortran's integers.
pub(crate) fn number(handle: RawHandle) -> u32 {
    (handle as u64 & 0xffff_ffff) as u32
}

/// A number as a handle.
pub(crate) fn handle(number: u32) -> RawHandle {
    number as RawHandle
}

/// `MPI_Status`: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Status {
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    pub(crate) error: c_int,
    /// Bytes, low and high half; whether it was cancelled.
    internal: [u32; 5],
}

const _: () = assert!(size_of::<Status>() == 32);

impl Status {
    pub(crate) fn new(source: c_int, tag: c_int, error: c_int) -> Status {
        Status { source, tag, error, internal: [0; 5] }
    }

    /// Packed bytes of the message.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.internal[0]) | u64::from(self.internal[1]) << 32
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.internal[0] = (bytes & 0xffff_ffff) as u32;
        self.internal[1] = (bytes >> 32) as u32;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.internal[2] != 0
    }

    pub(crate) fn set_cancelled(&mut self, yes: bool) {
        self.internal[2] = u32::from(yes);
    }
}

/// The place of a predefined datatype in the table of all.
pub(crate) fn type_index(handle: RawHandle) -> Option<usize> {
    handle.checked_sub(0x200).filter(|index| *index < crate::datatype::PREDEFINED)
}
