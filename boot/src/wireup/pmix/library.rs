//! `libpmix`, opened at run time: the nine functions that are used, and the three structures that they
//! take. All `unsafe` of PMIx is here.
//!
//! Read first: the PMIx standard 4.1, chapters 3 (data structures), 4 and 5 (start-up, abort), 6
//! (put, commit, get, fence). The declarations here are those of versions 2 to 6; what versions add
//! to structures comes after what is read, and what is handed over is larger than any of them.
//!
//! ```text
//! pmix_proc_t                          pmix_value_t
//!   0  name space, zero-ended, 256       0  type, u16
//! 256  rank, u32                         8  union: bool, u16, u32, u64, char *, … (24 bytes or more)
//!
//! pmix_info_t
//!   0  key, zero-ended, 512
//! 512  flags, u32
//! 520  value
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{offset_of, transmute_copy};
use std::ptr::{null, null_mut};

/// A status: 0, or a negative number with a name.
pub(super) type Status = i32;

pub(super) const SUCCESS: Status = 0;
pub(super) const TIMEOUT: Status = -24;
pub(super) const UNREACHABLE: Status = -25;
pub(super) const NOT_FOUND: Status = -46;
pub(super) const COMM_FAILURE: Status = -49;
pub(super) const LOST_CONNECTION: Status = -61;

/// The rank that means the whole job.
pub(super) const WILDCARD: u32 = 0xffff_fffe;

const NAME_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// Longest key, in bytes.
pub(super) const KEY_BYTES_MAX: usize = KEY_BYTES - 1;

/// Published to all processes, near and far.
const SCOPE_GLOBAL: u8 = 3;

/// Types of values.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const SIZE: u16 = 4;
const UINT: u16 = 11;
const UINT16: u16 = 13;
const UINT32: u16 = 14;
const UINT64: u16 = 15;

/// A process: `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Proc {
    name: [u8; NAME_BYTES],
    pub(super) rank: u32,
}

const _: () = assert!(size_of::<Proc>() == 260 && offset_of!(Proc, rank) == 256);

impl Proc {
    /// The name space, as text.
    pub(super) fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

/// A value: `pmix_value_t`, as far as it is used.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    yes: bool,
    string: *const c_char,
    short: u16,
    number: u32,
    wide: u64,
    size: usize,
}

/// A value to hand over, with room after it for what any version may read.
#[repr(C)]
struct Handed {
    value: Value,
    rest: [u64; 14],
}

const _: () = assert!(offset_of!(Value, kind) == 0 && offset_of!(Value, data) == 8);
const _: () = assert!(size_of::<Data>() == 8);
const _: () = assert!(size_of::<Handed>() == 128 && offset_of!(Handed, value) == 0);

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PmixValue {
    Text(String),
    Number(u64),
    /// A value of a type that is not used here.
    Other(u16),
}

/// `pmix_info_t`: a directive to a call. One is handed over at most, so what a version has behind it does not matter.
#[repr(C)]
struct Info {
    key: [u8; KEY_BYTES],
    flags: u32,
    value: Handed,
}

const _: () = assert!(offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);

/// Has a fence carry what was published to all servers: some of them do not ask each other again for what a process has
/// published after they asked the first time.
const COLLECT: &[u8] = b"pmix.collect";

impl Info {
    fn collect() -> Info {
        let mut key = [0; KEY_BYTES];
        key[..COLLECT.len()].copy_from_slice(COLLECT);
        let value = Value { kind: BOOL, data: Data { yes: true } };
        Info { key, flags: 0, value: Handed { value, rest: [0; 14] } }
    }
}

type GetVersion = unsafe extern "C" fn() -> *const c_char;
type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
type Init = unsafe extern "C" fn(*mut Proc, *const Info, usize) -> Status;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> Status;
type Abort = unsafe extern "C" fn(c_int, *const c_char, *const Proc, usize) -> Status;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
type Commit = unsafe extern "C" fn() -> Status;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> Status;
type Get =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> Status;

/// The library's functions. It is never closed, so they stay valid and can be copied. PMIx is safe to
/// call from several threads (standard 4.1 §2.3: calls are thread-safe).
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    get_version: GetVersion,
    error_string: ErrorString,
    init: Init,
    finalize: Finalize,
    abort: Abort,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
}

impl Library {
    /// Opens the library of this file name.
    ///
    /// # Errors
    /// What the loader says, in one line.
    pub(super) fn open(name: &str) -> Result<Library, String> {
        let file = CString::new(name).map_err(|_| "its name has a zero byte".to_owned())?;
        // SAFETY: `file` is a zero-ended string that outlives the call. Opening a library runs its
        // initialisers; that this one is fit to be loaded is what the user or the system says by
        // naming it or having it on the loader's path, as for a library that is linked to.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(loader_says());
        }
        // SAFETY of all: the types are those that PMIx's headers declare for the names.
        Ok(Library {
            // SAFETY: const char *PMIx_Get_version(void).
            get_version: unsafe { symbol(handle, c"PMIx_Get_version") }?,
            // SAFETY: const char *PMIx_Error_string(pmix_status_t).
            error_string: unsafe { symbol(handle, c"PMIx_Error_string") }?,
            // SAFETY: pmix_status_t PMIx_Init(pmix_proc_t *, pmix_info_t *, size_t).
            init: unsafe { symbol(handle, c"PMIx_Init") }?,
            // SAFETY: pmix_status_t PMIx_Finalize(const pmix_info_t *, size_t).
            finalize: unsafe { symbol(handle, c"PMIx_Finalize") }?,
            // SAFETY: pmix_status_t PMIx_Abort(int, const char *, pmix_proc_t *, size_t).
            abort: unsafe { symbol(handle, c"PMIx_Abort") }?,
            // SAFETY: pmix_status_t PMIx_Put(uint8_t, const char *, pmix_value_t *).
            put: unsafe { symbol(handle, c"PMIx_Put") }?,
            // SAFETY: pmix_status_t PMIx_Commit(void).
            commit: unsafe { symbol(handle, c"PMIx_Commit") }?,
            // SAFETY: pmix_status_t PMIx_Fence(const pmix_proc_t *, size_t, const pmix_info_t *, size_t).
            fence: unsafe { symbol(handle, c"PMIx_Fence") }?,
            // SAFETY: pmix_status_t PMIx_Get(const pmix_proc_t *, const char *, const pmix_info_t *,
            // size_t, pmix_value_t **).
            get: unsafe { symbol(handle, c"PMIx_Get") }?,
        })
    }

    /// What the library says of its version.
    pub(super) fn version(&self) -> String {
        // SAFETY: takes nothing; may be called before PMIx_Init (standard §4.1.2).
        let text = unsafe { (self.get_version)() };
        // SAFETY: the library returns a string constant of its own.
        unsafe { owned(text) }
    }

    /// The library's name of a status.
    pub(super) fn name_of(&self, status: Status) -> String {
        // SAFETY: takes a number, any; unknown ones have a name too.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: the library returns a string constant of its own.
        unsafe { owned(text) }
    }

    /// Connects to the server that the environment names: who this process is.
    pub(super) fn init(&self) -> Result<Proc, Status> {
        let mut me = Proc { name: [0; NAME_BYTES], rank: 0 };
        // SAFETY: `me` is a pmix_proc_t to write to; no directives, as their number says.
        checked(unsafe { (self.init)(&raw mut me, null(), 0) }).map(|()| me)
    }

    /// Leaves in good order.
    pub(super) fn finalize(&self) -> Result<(), Status> {
        // SAFETY: no directives, as their number says.
        checked(unsafe { (self.finalize)(null(), 0) })
    }

    /// Asks the server to end all processes of the job.
    pub(super) fn abort(&self, code: i32, message: &CStr) -> Result<(), Status> {
        // SAFETY: a string that outlives the call; no processes given, which means all of the job.
        checked(unsafe { (self.abort)(code, message.as_ptr(), null(), 0) })
    }

    /// Publishes a text; it leaves this process at [`commit`](Library::commit).
    pub(super) fn put(&self, key: &Key, text: &CStr) -> Result<(), Status> {
        let data = Data { string: text.as_ptr() };
        let mut handed = Handed { value: Value { kind: STRING, data }, rest: [0; 14] };
        // The pointer may reach all of `handed`.
        let value = (&raw mut handed).cast::<Value>();
        // SAFETY: key and value outlive the call, which copies both; the value is larger than any
        // version's pmix_value_t, and its union holds a zero-ended string, as its type says.
        checked(unsafe { (self.put)(SCOPE_GLOBAL, key.as_ptr(), value) })
    }

    /// Sends the published values.
    pub(super) fn commit(&self) -> Result<(), Status> {
        // SAFETY: takes nothing.
        checked(unsafe { (self.commit)() })
    }

    /// Waits until all processes of the job are here.
    pub(super) fn fence(&self) -> Result<(), Status> {
        let collect = Info::collect();
        // SAFETY: no processes given, which means all of the job; one directive, which outlives the call, with a key that
        // ends and a value of its type.
        checked(unsafe { (self.fence)(null(), 0, &raw const collect, 1) })
    }

    /// What the process `rank` of the job of `me` published, or the server says of it.
    pub(super) fn get(&self, me: &Proc, rank: u32, key: &Key) -> Result<PmixValue, Status> {
        let of = Proc { rank, ..*me };
        let mut value: *mut Value = null_mut();
        // SAFETY: process and key outlive the call; no directives; a pointer to write to.
        checked(unsafe { (self.get)(&raw const of, key.as_ptr(), null(), 0, &raw mut value) })?;
        if value.is_null() {
            return Err(NOT_FOUND);
        }
        // SAFETY: on success the library has written the address of a pmix_value_t that it allocated
        // with malloc and that is now the caller's; it is read and freed once, here.
        Ok(unsafe { take(value) })
    }
}

/// A key: zero-ended, in as many bytes as `pmix_key_t` has, because some versions declare an array.
#[derive(Clone)]
pub(super) struct Key([u8; KEY_BYTES]);

impl Key {
    /// `None` if the text is too long or has a zero byte.
    pub(super) fn new(text: &str) -> Option<Key> {
        if text.len() > KEY_BYTES_MAX || text.contains('\0') {
            return None;
        }
        let mut bytes = [0; KEY_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Key(bytes))
    }

    fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Reads a value, and frees it with the text that it may point to.
///
/// # Safety
/// `value` points to a `pmix_value_t` from malloc, whose union is as its type says and whose string,
/// if it is one, is zero-ended and from malloc; neither is used by anybody else, or after.
unsafe fn take(value: *mut Value) -> PmixValue {
    // SAFETY: in bounds of a valid value, whatever its version: the type is its first member, a u16.
    let kind = unsafe { value.cast::<u16>().read() };
    // SAFETY: the union begins at byte 8 of the value in every version (asserted for ours).
    let data = unsafe { &raw const (*value).data };
    let found = match kind {
        STRING => {
            // SAFETY: the type says that the union holds the string's address.
            let text = unsafe { data.cast::<*const c_char>().read() };
            // SAFETY: zero-ended, as the caller promises; null is looked for there.
            let copy = unsafe { owned(text) };
            // SAFETY: from malloc, or null, and not used any more.
            unsafe { libc::free(text.cast_mut().cast()) };
            PmixValue::Text(copy)
        }
        // SAFETY: the type says that the union holds a u16.
        UINT16 => PmixValue::Number(u64::from(unsafe { data.cast::<u16>().read() })),
        // SAFETY: the type says that the union holds a u32 (C's unsigned int).
        UINT | UINT32 => PmixValue::Number(u64::from(unsafe { data.cast::<u32>().read() })),
        // SAFETY: the type says that the union holds a u64.
        UINT64 => PmixValue::Number(unsafe { data.cast::<u64>().read() }),
        // SAFETY: the type says that the union holds a size_t.
        SIZE => PmixValue::Number(unsafe { data.cast::<usize>().read() } as u64),
        // Anything it points to is lost: it was not asked for.
        other => PmixValue::Other(other),
    };
    // SAFETY: from malloc, and not used any more.
    unsafe { libc::free(value.cast()) };
    found
}

fn checked(status: Status) -> Result<(), Status> {
    if status == SUCCESS { Ok(()) } else { Err(status) }
}

/// A function of a library.
///
/// # Safety
/// `F` is the type of a function pointer that the library declares for this name; `library` was
/// opened and is never closed.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library, and a zero-ended name.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(loader_says());
    }
    // SAFETY: as large as an address (asserted), not null, and of the type that the caller vouches
    // for; POSIX guarantees that dlsym's pointer can be used as a function pointer.
    Ok(unsafe { transmute_copy::<*mut c_void, F>(&address) })
}

/// The loader's last complaint, in one line.
fn loader_says() -> String {
    // SAFETY: takes nothing; the loader keeps a message for each thread.
    let text = unsafe { libc::dlerror() };
    // SAFETY: null, or a zero-ended string that stays until this thread's next call of the loader.
    let text = unsafe { owned(text) };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A copy of a C string; empty for null.
///
/// # Safety
/// `text` is null or points to a zero-ended string that nobody changes meanwhile.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value as the library would hand it over.
    fn value(kind: u16, data: Data) -> *mut Value {
        // SAFETY: as many bytes as a value of ours has.
        let memory = unsafe { libc::malloc(size_of::<Value>()) }.cast::<Value>();
        assert!(!memory.is_null());
        // SAFETY: allocated just now, with malloc's alignment.
        unsafe { memory.write(Value { kind, data }) };
        memory
    }

    #[test]
    fn values_are_read_by_their_type() {
        // SAFETY: copies a string constant with malloc.
        let text = unsafe { libc::strdup(c"a record".as_ptr()) };
        for (kind, data, expected) in [
            (STRING, Data { string: text }, PmixValue::Text("a record".to_owned())),
            (STRING, Data { string: null() }, PmixValue::Text(String::new())),
            (UINT16, Data { short: 7 }, PmixValue::Number(7)),
            (UINT, Data { number: 1 << 31 }, PmixValue::Number(1 << 31)),
            (UINT32, Data { number: 3 }, PmixValue::Number(3)),
            (UINT64, Data { wide: 1 << 40 }, PmixValue::Number(1 << 40)),
            (SIZE, Data { size: 9 }, PmixValue::Number(9)),
            (27, Data { wide: 0 }, PmixValue::Other(27)),
        ] {
            let made = value(kind, data);
            // SAFETY: made just now, from malloc, and not used after.
            assert_eq!(unsafe { take(made) }, expected);
        }
    }

    #[test]
    fn keys_end_with_a_zero() {
        assert!(Key::new(&"k".repeat(KEY_BYTES_MAX)).is_some_and(|key| key.0[KEY_BYTES_MAX] == 0));
        assert!(Key::new(&"k".repeat(KEY_BYTES)).is_none() && Key::new("a\0b").is_none());
    }

    #[test]
    fn what_is_no_pmix_is_said_in_one_line() {
        for (name, complaint) in
            [("libgapless-no-such.so", "libgapless-no-such"), ("libc.so.6", "PMIx_Get_version")]
        {
            let error = Library::open(name).unwrap_err();
            assert!(error.contains(complaint) && error.lines().count() == 1, "{error}");
        }
        assert!(Library::open("a\0b").is_err());
    }
}
