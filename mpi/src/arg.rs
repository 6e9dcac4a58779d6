//! Arguments: what C gives, checked as far as anybody can, with the error class that MPI names.
//!
//! Addresses are wrapped once, by exported functions, which promise that they are what MPI says: storing to an [`Out`] is
//! safe after that.

use crate::call::{Done, Fail};
use crate::comm::{self, Comm};
use crate::datatype::{self, Type};
use crate::errhandler::Handler;
use crate::face::{self, RawHandle, Status};
use crate::group::{self, GroupHandle};
use crate::info::{self, Info};
use crate::op::{self, Op};
use crate::process;
use crate::session::{self, Session};
use crate::win::{self, Win};
use std::ffi::{CStr, c_char, c_int};

/// Numbers of an array, which has as many as the function says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Numbers {
    Small(*const c_int),
    Large(*const i64),
}

impl Numbers {
    pub(crate) fn small(numbers: *const c_int) -> Numbers {
        Numbers::Small(numbers)
    }

    pub(crate) fn large(numbers: *const i64) -> Numbers {
        Numbers::Large(numbers)
    }

    pub(crate) fn is_null(self) -> bool {
        match self {
            Numbers::Small(numbers) => numbers.is_null(),
            Numbers::Large(numbers) => numbers.is_null(),
        }
    }

    /// The first `len` of them.
    ///
    /// # Safety
    /// The array is null, or has so many.
    pub(crate) unsafe fn read(self, len: usize, name: &'static str) -> Done<Vec<i64>> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if self.is_null() {
            return Err(null(name));
        }
        Ok(match self {
            Numbers::Small(numbers) => {
                // SAFETY: the caller's promise.
                let numbers = unsafe { std::slice::from_raw_parts(numbers, len) };
                numbers.iter().map(|number| i64::from(*number)).collect()
            }
            Numbers::Large(numbers) => {
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts(numbers, len) }.to_vec()
            }
        })
    }

    /// The same, none of them negative.
    ///
    /// # Safety
    /// As [`read`](Numbers::read).
    pub(crate) unsafe fn counts(self, len: usize, name: &'static str) -> Done<Vec<u64>> {
        // SAFETY: the caller's promise.
        let numbers = unsafe { self.read(len, name) }?;
        numbers.into_iter().map(|number| count(number, name)).collect()
    }
}

/// Where a function puts a count, or finds one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountOut(AnyCount);

#[derive(Clone, Copy, Debug)]
enum AnyCount {
    Small(Out<c_int>),
    Large(Out<i64>),
}

impl CountOut {
    pub(crate) fn small(at: Out<c_int>) -> CountOut {
        CountOut(AnyCount::Small(at))
    }

    pub(crate) fn large(at: Out<i64>) -> CountOut {
        CountOut(AnyCount::Large(at))
    }

    /// Stores a count; one that does not fit is `MPI_UNDEFINED` (MPI 4.1 §3.2.5).
    pub(crate) fn set(self, count: i64) {
        match self.0 {
            AnyCount::Small(at) => at.set(c_int::try_from(count).unwrap_or(face::UNDEFINED)),
            AnyCount::Large(at) => at.set(count),
        }
    }

    /// What is there.
    pub(crate) fn get(self) -> i64 {
        match self.0 {
            AnyCount::Small(at) => i64::from(at.get()),
            AnyCount::Large(at) => at.get(),
        }
    }
}

/// Where a function puts something, or finds it; not null, and valid for reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out<T>(*mut T);

/// Where a handle is.
pub(crate) type HandleOut = Out<RawHandle>;

/// An address that is not null.
///
/// # Safety
/// If it is not, it is valid for reads and writes of a `T` until the exported function returns.
pub(crate) unsafe fn out<T>(at: *mut T, name: &'static str) -> Done<Out<T>> {
    pointer(at, name).map(Out)
}

impl<T: Copy> Out<T> {
    pub(crate) fn set(self, value: T) {
        // SAFETY: `out` was promised that.
        unsafe { self.0.write(value) }
    }

    pub(crate) fn get(self) -> T {
        // SAFETY: as above.
        unsafe { self.0.read() }
    }
}

/// Where a function puts a status: nowhere, if it is `MPI_STATUS_IGNORE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusOut(*mut Status);

impl StatusOut {
    /// # Safety
    /// Unless it is `MPI_STATUS_IGNORE`, the address is valid for reads and writes until the exported function returns.
    pub(crate) unsafe fn new(at: *mut Status) -> StatusOut {
        StatusOut(at)
    }

    pub(crate) fn is_ignored(self) -> bool {
        self.0.is_null() || self.0.addr() == face::STATUS_IGNORE
    }

    /// Stores a status, but for its error, which only functions that complete several requests set (MPI 4.1 §3.2.5).
    pub(crate) fn set(self, mut status: Status) {
        if let Some(before) = self.get() {
            status.error = before.error;
            self.set_all(status);
        }
    }

    /// Stores a status with its error.
    pub(crate) fn set_all(self, status: Status) {
        if !self.is_ignored() {
            // SAFETY: `new` was promised that.
            unsafe { self.0.write(status) };
        }
    }

    /// What is there; `None` if it is ignored.
    pub(crate) fn get(self) -> Option<Status> {
        // SAFETY: `new` was promised that.
        (!self.is_ignored()).then(|| unsafe { self.0.read() })
    }
}

/// Where a function puts several statuses: nowhere, if it is `MPI_STATUSES_IGNORE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusesOut(*mut Status);

impl StatusesOut {
    /// # Safety
    /// As [`StatusOut::new`], for each of as many as the function says.
    pub(crate) unsafe fn new(at: *mut Status) -> StatusesOut {
        StatusesOut(at)
    }

    pub(crate) fn is_ignored(self) -> bool {
        StatusOut(self.0).is_ignored() || self.0.addr() == face::STATUSES_IGNORE
    }

    /// The place of one of them.
    pub(crate) fn at(self, index: usize) -> StatusOut {
        match self.is_ignored() {
            true => StatusOut(std::ptr::null_mut()),
            false => StatusOut(self.0.wrapping_add(index)),
        }
    }
}

pub(crate) fn null(name: &'static str) -> Fail {
    Fail::new(face::ERR_ARG, format!("{name} is a null pointer"))
}

/// An address that is not null.
pub(crate) fn pointer<T>(at: *mut T, name: &'static str) -> Done<*mut T> {
    if at.is_null() { Err(null(name)) } else { Ok(at) }
}

/// # Safety
/// Unless it is null, a status is there until the exported function returns.
pub(crate) unsafe fn status<'s>(at: *const Status, name: &'static str) -> Done<&'s Status> {
    if StatusOut(at.cast_mut()).is_ignored() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { &*at })
}

/// # Safety
/// Unless it is null, a string that ends with 0 is there until the exported function returns.
pub(crate) unsafe fn text<'s>(at: *const c_char, name: &'static str) -> Done<&'s CStr> {
    if at.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(at) })
}

pub(crate) fn count(count: i64, name: &'static str) -> Done<u64> {
    let negative = |_| Fail::new(face::ERR_COUNT, format!("{name} is {count}, which is negative"));
    u64::try_from(count).map_err(negative)
}

/// A number of entries of an array.
pub(crate) fn len(count: c_int, name: &'static str) -> Done<usize> {
    let negative = |_| Fail::new(face::ERR_ARG, format!("{name} is {count}, which is negative"));
    usize::try_from(count).map_err(negative)
}

/// A number of entries, for C.
pub(crate) fn int(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// The largest tag.
pub(crate) const TAG_UB: c_int = c_int::MAX;

pub(crate) fn tag(tag: c_int, name: &'static str) -> Done<c_int> {
    match tag {
        0.. => Ok(tag),
        _ => Err(Fail::new(face::ERR_TAG, format!("{name} is {tag}, which is negative"))),
    }
}

pub(crate) fn anytag(it: c_int, name: &'static str) -> Done<c_int> {
    if it == face::ANY_TAG { Ok(it) } else { tag(it, name) }
}

/// A handle that is not what it should be.
pub(crate) fn bad(class: c_int, handle: RawHandle, what: &str, name: &'static str) -> Fail {
    let why = format!("{name} ({:#x}) is no {what}, or one that was freed", face::number(handle));
    Fail::new(class, why)
}

pub(crate) fn comm(handle: RawHandle, name: &'static str) -> Done<Comm> {
    comm::find(handle).ok_or_else(|| match handle {
        face::COMM_NULL => Fail::new(face::ERR_COMM, format!("{name} is MPI_COMM_NULL")),
        handle => bad(face::ERR_COMM, handle, "communicator", name),
    })
}

pub(crate) fn datatype(handle: RawHandle, name: &'static str) -> Done<Type> {
    datatype::find(handle).ok_or_else(|| match handle {
        face::DATATYPE_NULL => Fail::new(face::ERR_TYPE, format!("{name} is MPI_DATATYPE_NULL")),
        handle => bad(face::ERR_TYPE, handle, "datatype", name),
    })
}

pub(crate) fn op(handle: RawHandle, name: &'static str) -> Done<Op> {
    op::find(handle).ok_or_else(|| match handle {
        face::OP_NULL => Fail::new(face::ERR_OP, format!("{name} is MPI_OP_NULL")),
        handle => bad(face::ERR_OP, handle, "operation", name),
    })
}

pub(crate) fn errhandler(handle: RawHandle, name: &'static str) -> Done<Handler> {
    crate::errhandler::find(handle)
        .ok_or_else(|| bad(face::ERR_ERRHANDLER, handle, "error handler", name))
}

pub(crate) fn group(handle: RawHandle, name: &'static str) -> Done<GroupHandle> {
    group::find(handle).ok_or_else(|| match handle {
        face::GROUP_NULL => Fail::new(face::ERR_GROUP, format!("{name} is MPI_GROUP_NULL")),
        handle => bad(face::ERR_GROUP, handle, "group", name),
    })
}

pub(crate) fn session(handle: RawHandle, name: &'static str) -> Done<Session> {
    session::find(handle).ok_or_else(|| bad(face::ERR_SESSION, handle, "session", name))
}

pub(crate) fn win(handle: RawHandle, name: &'static str) -> Done<Win> {
    win::find(handle).ok_or_else(|| match handle {
        face::WIN_NULL => Fail::new(face::ERR_WIN, format!("{name} is MPI_WIN_NULL")),
        handle => bad(face::ERR_WIN, handle, "window", name),
    })
}

/// An info; `None`: `MPI_INFO_NULL`.
pub(crate) fn info(handle: RawHandle) -> Done<Option<Info>> {
    if handle == face::INFO_NULL {
        return Ok(None);
    }
    let found = info::find(handle);
    found.map(Some).ok_or_else(|| bad(face::ERR_INFO, handle, "info", "info"))
}

/// Stores several numbers.
///
/// # Safety
/// If the array is not null, there is room for so many.
pub(crate) unsafe fn give_all<T: Copy>(at: *mut T, values: &[T], name: &'static str) -> Done {
    if !values.is_empty() {
        // SAFETY: the caller's promise; `values` lie elsewhere.
        unsafe { pointer(at, name)?.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
    Ok(())
}

/// What there is while MPI is in use; an error before the first init.
pub(crate) fn process() -> Done<&'static process::Process> {
    let closed = || Fail::new(face::ERR_OTHER, "MPI is not initialized, or is finalized");
    process::get().ok_or_else(closed)
}
