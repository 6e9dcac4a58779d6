//! Arguments: what C gives, checked as far as anybody can, with the error class that MPI names.
//!
//! Addresses are wrapped once, by exported functions, which promise that they are what MPI says: storing to an [`Out`] is
//! safe after that.

use crate::call::{Done, Fail};
use crate::comm::{self, Comm};
use crate::datatype::{self, Type};
use crate::errhandler::{self, File, Handler};
use crate::face::{self, RawHandle, Status};
use crate::group::{self, GroupHandle};
use crate::info::{self, Info};
use crate::op::{self, Op};
use crate::process;
use crate::session::{self, Session};
use crate::win::{self, Win};
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex has. A panic of another thread is nothing to this one: it is whole between any two statements.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

    /// The first `len` of them.
    ///
    /// # Safety
    /// The array is null, or has so many.
    pub(crate) unsafe fn read(self, len: usize, name: &'static str) -> Done<Vec<i64>> {
        match self {
            Numbers::Small(numbers) => {
                // SAFETY: the caller's promise.
                let numbers = unsafe { list(numbers, len, name) }?;
                Ok(numbers.iter().map(|number| i64::from(*number)).collect())
            }
            // SAFETY: the caller's promise.
            Numbers::Large(numbers) => Ok(unsafe { list(numbers, len, name) }?.to_vec()),
        }
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
#[inline]
pub(crate) unsafe fn out<T>(at: *mut T, name: &'static str) -> Done<Out<T>> {
    pointer(at, name).map(Out)
}

/// An address that a program leaves out if it does not want what the function gives there.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn maybe<T>(at: *mut T) -> Option<Out<T>> {
    (!at.is_null()).then_some(Out(at))
}

impl<T: Copy> Out<T> {
    #[inline]
    pub(crate) fn set(self, value: T) {
        // SAFETY: `out` was promised that.
        unsafe { self.0.write_unaligned(value) }
    }

    #[inline]
    pub(crate) fn get(self) -> T {
        // SAFETY: as above.
        unsafe { self.0.read_unaligned() }
    }
}

/// Room for an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<T> {
    at: *mut T,
    len: usize,
    name: &'static str,
}

impl<T: Copy> Room<T> {
    /// # Safety
    /// Unless it is null, or a constant of MPI's, so many are valid for reads and writes until the exported function
    /// returns.
    pub(crate) unsafe fn new(at: *mut T, len: usize, name: &'static str) -> Room<T> {
        Room { at, len, name }
    }

    /// An error if there is no room at all, though there should be.
    pub(crate) fn check(self) -> Done {
        if self.len > 0 { pointer(self.at, self.name).map(drop) } else { Ok(()) }
    }

    /// Its address: constants of MPI stand in some places.
    pub(crate) fn addr(self) -> usize {
        self.at.addr()
    }

    /// What is there.
    pub(crate) fn read(self) -> Done<Vec<T>> {
        // SAFETY: `new` was promised that.
        Ok(unsafe { list(self.at, self.len, self.name) }?.to_vec())
    }

    /// An error if there is no room for so many.
    pub(crate) fn holds(self, len: usize) -> Done {
        if len <= self.len {
            return Ok(());
        }
        let why = format!("{} has room for {} of {len}", self.name, self.len);
        Err(Fail::new(face::ERR_ARG, why))
    }

    /// Stores all of these.
    pub(crate) fn give(self, values: &[T]) -> Done {
        self.holds(values.len())?;
        // SAFETY: `new` was promised that, and they are no more.
        unsafe { give_all(self.at, values, self.name) }
    }
}

impl Room<c_int> {
    /// Stores the first of these numbers, as many as there is room for.
    pub(crate) fn give_first<N>(self, numbers: impl IntoIterator<Item = N>) -> Done
    where
        c_int: TryFrom<N>,
    {
        let number = |number| c_int::try_from(number).unwrap_or(c_int::MAX);
        let numbers: Vec<c_int> = numbers.into_iter().take(self.len).map(number).collect();
        self.give(&numbers)
    }
}

/// Where a function puts a text, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    at: *mut c_char,
    room: c_int,
    len: Option<Out<c_int>>,
}

impl Text {
    /// # Safety
    /// Unless the address is null, there is room for so many characters until the exported function returns.
    pub(crate) unsafe fn new(at: *mut c_char, room: c_int, len: Option<Out<c_int>>) -> Text {
        Text { at, room, len }
    }

    /// A text that has as much room as the number says that its length replaces.
    ///
    /// # Safety
    /// As [`new`](Text::new).
    pub(crate) unsafe fn sized(at: *mut c_char, len: Option<Out<c_int>>) -> Text {
        Text { at, room: len.map_or(0, Out::get), len }
    }

    /// An error if there is no room, though the number says so.
    pub(crate) fn check(self, name: &'static str) -> Done {
        match len(self.room.into(), "the room for a text")? {
            0 => Ok(()),
            _ => pointer(self.at, name).map(drop),
        }
    }

    /// As much of it as there is room for, and 0 behind it. How many characters that are.
    pub(crate) fn copy(self, text: &[u8]) -> usize {
        let room = usize::try_from(self.room).unwrap_or(0).checked_sub(1);
        let Some(most) = room.filter(|_| !self.at.is_null()) else { return 0 };
        let text = text.get(..most).unwrap_or(text);
        // SAFETY: `new` was promised the room, which is elsewhere, for these and one more.
        unsafe { self.at.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        // SAFETY: as above.
        unsafe { self.at.wrapping_add(text.len()).write(0) };
        text.len()
    }

    /// Gives as much of it as there is room for, and how long that is.
    pub(crate) fn give(self, text: &str) -> Done {
        let copied = int(self.copy(text.as_bytes()));
        self.len.into_iter().for_each(|len| len.set(copied));
        Ok(())
    }

    /// The same, and how long all of it is with the 0. Without a place for that, nothing is given (MPI 4.1 §15.3.3).
    pub(crate) fn give_part(self, text: &[u8]) {
        self.copy(text);
        self.len.into_iter().for_each(|len| len.set(int(text.len() + 1)));
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
pub(crate) fn len(count: i64, name: &'static str) -> Done<usize> {
    let negative = |_| Fail::new(face::ERR_ARG, format!("{name} is {count}, which is negative"));
    usize::try_from(count).map_err(negative)
}

/// The same, if it is a count.
pub(crate) fn many(it: i64, name: &'static str) -> Done<usize> {
    let too_many = |_| Fail::new(face::ERR_COUNT, "no array is so long");
    usize::try_from(count(it, name)?).map_err(too_many)
}

/// Entries of an array.
///
/// # Safety
/// The array is null, or has so many until the exported function returns.
pub(crate) unsafe fn list<'l, T>(at: *const T, len: usize, name: &'static str) -> Done<&'l [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    let at = pointer(at.cast_mut(), name)?;
    // SAFETY: the caller's promise; it is not null.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Where handles of an array are.
///
/// # Safety
/// As [`list`]; they may be written, too.
pub(crate) unsafe fn places(
    at: *mut RawHandle,
    len: usize,
    name: &'static str,
) -> Done<Vec<HandleOut>> {
    if len > 0 {
        pointer(at, name)?;
    }
    Ok((0..len).map(|index| Out(at.wrapping_add(index))).collect())
}

/// Datatypes of an array.
///
/// # Safety
/// As [`list`].
pub(crate) unsafe fn datatypes(
    at: *const RawHandle,
    len: usize,
    name: &'static str,
) -> Done<Vec<Type>> {
    // SAFETY: the caller's promise.
    let handles = unsafe { list(at, len, name) }?;
    handles.iter().map(|handle| datatype(*handle, name)).collect()
}

/// A number of entries, for C.
pub(crate) fn int(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

#[cold]
fn no_rank(rank: c_int, ranks: u32, name: &str) -> Fail {
    Fail::new(face::ERR_RANK, format!("{name}: there is no rank {rank} among {ranks}"))
}

/// One of so many ranks.
pub(crate) fn rank(rank: c_int, ranks: u32, name: &str) -> Done<u32> {
    let found = u32::try_from(rank).ok().filter(|rank| *rank < ranks);
    found.ok_or_else(|| no_rank(rank, ranks, name))
}

/// The same. `None`: `MPI_PROC_NULL`.
#[inline]
pub(crate) fn some_rank(rank: c_int, ranks: u32) -> Done<Option<u32>> {
    match u32::try_from(rank) {
        Ok(rank) if rank < ranks => Ok(Some(rank)),
        _ if rank == face::PROC_NULL => Ok(None),
        _ => Err(no_rank(rank, ranks, "rank")),
    }
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
#[cold]
pub(crate) fn bad(class: c_int, handle: RawHandle, what: &str, name: &'static str) -> Fail {
    let why = format!("{name} ({:#x}) is no {what}, or one that was freed", face::number(handle));
    Fail::new(class, why)
}

/// The object of a handle that is neither null, nor freed, nor of another kind.
macro_rules! objects {
    ($($kind:ident $object:ty, $class:ident $null:ident $what:literal)*) => {
        $(
            #[inline]
            pub(crate) fn $kind(handle: RawHandle, name: &'static str) -> Done<$object> {
                $kind::find(handle).ok_or_else(|| match handle {
                    face::$null => {
                        let why = concat!(" is MPI_", stringify!($null));
                        Fail::new(face::$class, format!("{name}{why}"))
                    }
                    handle => bad(face::$class, handle, $what, name),
                })
            }
        )*
    };
}

objects! {
    comm Comm, ERR_COMM COMM_NULL "communicator"
    datatype Type, ERR_TYPE DATATYPE_NULL "datatype"
    errhandler Handler, ERR_ERRHANDLER ERRHANDLER_NULL "error handler"
    group GroupHandle, ERR_GROUP GROUP_NULL "group"
    op Op, ERR_OP OP_NULL "operation"
    session Session, ERR_SESSION SESSION_NULL "session"
    win Win, ERR_WIN WIN_NULL "window"
}

/// There is no file but `MPI_FILE_NULL`, whose handler new files get.
pub(crate) fn file(handle: RawHandle, name: &'static str) -> Done<File> {
    match handle {
        face::FILE_NULL => Ok(errhandler::no_file()),
        file => Err(bad(face::ERR_FILE, file, "file", name)),
    }
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
