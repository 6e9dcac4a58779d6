//! MPICH's ABI: handles are integers, and the status has 20 bytes.

use std::ffi::{c_int, c_void};

/// A handle: an `int` in C.
pub(crate) type RawHandle = c_int;

/// The request that is over: a predefined one, as in MPICH.
pub(crate) const REQUEST_OVER: RawHandle = 0x6c00_0001;

/// A handle as a number.
pub(crate) fn number(handle: RawHandle) -> u32 {
    handle.cast_unsigned()
}

/// A number as a handle.
pub(crate) fn handle(number: u32) -> RawHandle {
    number.cast_signed()
}

/// `MPI_Status`: 20 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Status {
    count_low: u32,
    /// The count's upper 31 bits, above whether it was cancelled.
    count_high_and_cancelled: u32,
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    pub(crate) error: c_int,
}

const _: () = assert!(size_of::<Status>() == 20);

impl Status {
    pub(crate) fn new(source: c_int, tag: c_int, error: c_int) -> Status {
        Status { source, tag, error, ..Status::default() }
    }

    /// Packed bytes of the message.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.count_low) | u64::from(self.count_high_and_cancelled >> 1) << 32
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.count_low = (bytes & 0xffff_ffff) as u32;
        let high = ((bytes >> 32) & 0x7fff_ffff) as u32;
        self.count_high_and_cancelled = high << 1 | self.count_high_and_cancelled & 1;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.count_high_and_cancelled & 1 != 0
    }

    pub(crate) fn set_cancelled(&mut self, yes: bool) {
        self.count_high_and_cancelled = self.count_high_and_cancelled & !1 | u32::from(yes);
    }
}

/// The place of a predefined datatype in the table of all.
pub(crate) fn type_index(handle: RawHandle) -> Option<usize> {
    let number = number(handle);
    match number >> 16 {
        // Basic ones, numbered by their lowest byte.
        0x4c00 => Some((number & 0xff) as usize),
        // Pairs of a value and an index.
        0x8c00 if number & 0xffff < 0x10 => Some(0x100 + (number & 0xf) as usize),
        _ => None,
    }
}

/// What `MPI_COMM_DUP_FN` and its like are in MPICH's header: copies an attribute.
///
/// # Safety
/// As MPI says of a function that copies attributes.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "MPICH's name")]
unsafe extern "C" fn MPIR_Dup_fn(
    _object: c_int,
    _keyval: c_int,
    _extra: *mut c_void,
    value: *mut c_void,
    copy: *mut *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { copy.write(value) };
    // SAFETY: the caller's promise.
    unsafe { flag.write(1) };
    super::SUCCESS
}
