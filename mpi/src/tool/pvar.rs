//! Performance variables (MPI 4.1 §15.3.7): they run always, and are only read.

use super::{counters, fail, index_of, no_handle, place, put, put_text, raw, ready, tool_handle};
use crate::arg::{self, Out};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::slots::Slots;
use gapless::{Counters, Protocol};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Name, meaning and value of a number of a protocol.
type OfProtocol = (&'static str, &'static str, fn(&Counters, Protocol) -> u64);

/// What is counted of each protocol.
const OF_PROTOCOL: [OfProtocol; 8] = [
    ("messages", "messages that ended well", |all, of| all.of(of).messages),
    ("bytes", "packed bytes of these", |all, of| all.of(of).bytes),
    ("fragments", "fragments begun", |all, of| all.of(of).fragments),
    ("packs", "calls that pack", |all, of| all.of(of).packs),
    ("unpacks", "calls that unpack", |all, of| all.of(of).unpacks),
    ("copies", "copies by copy engines", |all, of| all.of(of).copies),
    ("staged_bytes", "bytes that passed staging memory", |all, of| all.of(of).staged_bytes),
    ("depth_max", "most fragments of a message in flight", |all, of| {
        u64::from(all.of(of).depth_max)
    }),
];

/// A variable: of a protocol, or of all.
#[derive(Clone, Copy, Debug)]
struct Pvar(usize);

/// How many there are.
pub(super) fn len() -> usize {
    Protocol::ALL.len() * OF_PROTOCOL.len() + 1
}

impl Pvar {
    fn of(index: c_int) -> Done<Pvar> {
        ready()?;
        let index = usize::try_from(index).ok().filter(|index| *index < len());
        let none = || fail(face::T_ERR_INVALID_INDEX, "there is no such performance variable");
        index.map(Pvar).ok_or_else(none)
    }

    /// Its protocol, and what of that.
    fn parts(self) -> Option<(Protocol, usize)> {
        let protocol = Protocol::ALL.get(self.0 / OF_PROTOCOL.len())?;
        Some((*protocol, self.0 % OF_PROTOCOL.len()))
    }

    fn name(self) -> String {
        match self.parts() {
            Some((protocol, what)) => format!("{}.{}", protocol.name(), OF_PROTOCOL[what].0),
            None => "without_staging".to_owned(),
        }
    }

    fn what(self) -> &'static str {
        match self.parts() {
            Some((_, what)) => OF_PROTOCOL[what].1,
            None => "messages that found no staging memory",
        }
    }

    fn class(self) -> c_int {
        match self.parts() {
            Some((_, what)) if OF_PROTOCOL[what].0 == "depth_max" => {
                face::T_PVAR_CLASS_HIGHWATERMARK
            }
            _ => face::T_PVAR_CLASS_COUNTER,
        }
    }

    fn read(self) -> Done<u64> {
        let all = counters()?;
        Ok(match self.parts() {
            Some((protocol, what)) => OF_PROTOCOL[what].2(&all, protocol),
            None => all.without_staging(),
        })
    }
}

pub(crate) fn t_pvar_get_num(num_pvar: Out<c_int>) -> Done {
    ready()?;
    num_pvar.set(arg::int(len()));
    Ok(())
}

pub(crate) fn t_pvar_get_index(name: &CStr, var_class: c_int, pvar_index: Out<c_int>) -> Done {
    let of_class = |index| {
        let pvar = Pvar(index);
        // What is of another class is not found by any name.
        if pvar.class() == var_class { pvar.name() } else { String::from('\0') }
    };
    index_of((0..len()).map(of_class), name, pvar_index)
}

pub(crate) unsafe fn t_pvar_get_info(
    pvar_index: c_int,
    name: *mut c_char,
    name_len: *mut c_int,
    verbosity: *mut c_int,
    var_class: *mut c_int,
    datatype: *mut RawHandle,
    enumtype: *mut c_void,
    desc: *mut c_char,
    desc_len: *mut c_int,
    bind: *mut c_int,
    readonly: *mut c_int,
    continuous: *mut c_int,
    atomic: *mut c_int,
) -> Done {
    let pvar = Pvar::of(pvar_index)?;
    // SAFETY: this and what follows: as the first page of the crate says.
    unsafe { put_text(&pvar.name(), name, name_len) }?;
    // SAFETY: as above.
    unsafe { put_text(pvar.what(), desc, desc_len) }?;
    // SAFETY: as above.
    unsafe { put(datatype, face::UNSIGNED_LONG_LONG) };
    // SAFETY: as above.
    unsafe { put(enumtype.cast(), face::T_ENUM_NULL) };
    let numbers = [
        (verbosity, face::T_VERBOSITY_TUNER_DETAIL),
        (var_class, pvar.class()),
        (bind, face::T_BIND_NO_OBJECT),
        (readonly, 1),
        (continuous, 1),
        (atomic, 0),
    ];
    for (at, number) in numbers {
        // SAFETY: as above.
        unsafe { put(at, number) };
    }
    Ok(())
}

/// Sessions of performance variables.
static SESSIONS: Slots<()> = Slots::new();
/// Variables that a tool has handles of, each with its session.
static HANDLES: Slots<(RawHandle, Pvar)> = Slots::new();

fn session_of(session: *mut c_void) -> Done<RawHandle> {
    ready()?;
    let session = raw(session);
    let none = || fail(face::T_ERR_INVALID_SESSION, "the session is none, or was freed");
    SESSIONS.get(session).map(|_| session).ok_or_else(none)
}

/// The variable of a handle of a session.
fn pvar_of(session: *mut c_void, handle: *mut c_void) -> Done<Pvar> {
    let session = session_of(session)?;
    let found = HANDLES.get(raw(handle)).filter(|found| found.0 == session);
    found.map(|found| found.1).ok_or_else(no_handle)
}

pub(crate) unsafe fn t_pvar_session_create(session: *mut c_void) -> Done {
    ready()?;
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(session) }?;
    let full = || fail(face::T_ERR_OUT_OF_SESSIONS, "there are a million sessions");
    place.set(tool_handle(SESSIONS.insert(()).ok_or_else(full)?));
    Ok(())
}

pub(crate) unsafe fn t_pvar_session_free(session: *mut c_void) -> Done {
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(session) }?;
    let session = session_of(place.get())?;
    for handle in HANDLES.all() {
        if HANDLES.get(handle).is_some_and(|its| its.0 == session) {
            HANDLES.free(handle);
        }
    }
    SESSIONS.free(session);
    place.set(std::ptr::without_provenance_mut(face::T_PVAR_SESSION_NULL));
    Ok(())
}

pub(crate) unsafe fn t_pvar_handle_alloc(
    session: *mut c_void,
    pvar_index: c_int,
    _obj_handle: *mut c_void,
    handle: *mut c_void,
    count: Out<c_int>,
) -> Done {
    let (session, pvar) = (session_of(session)?, Pvar::of(pvar_index)?);
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(handle) }?;
    let full = || fail(face::T_ERR_OUT_OF_HANDLES, "there are a million handles");
    place.set(tool_handle(HANDLES.insert((session, pvar)).ok_or_else(full)?));
    count.set(1);
    Ok(())
}

pub(crate) unsafe fn t_pvar_handle_free(session: *mut c_void, handle: *mut c_void) -> Done {
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(handle) }?;
    pvar_of(session, place.get())?;
    HANDLES.free(raw(place.get()));
    place.set(std::ptr::without_provenance_mut(face::T_PVAR_HANDLE_NULL));
    Ok(())
}

pub(crate) unsafe fn t_pvar_read(
    session: *mut c_void,
    handle: *mut c_void,
    buf: *mut c_void,
) -> Done {
    let value = pvar_of(session, handle)?.read()?;
    let buf = arg::pointer(buf, "buf")?.cast::<u64>();
    // SAFETY: there is room for a variable of its type.
    unsafe { buf.write_unaligned(value) };
    Ok(())
}

/// Why something cannot be done with a variable, or with all of a session: then there is none to do it with.
fn cannot(session: *mut c_void, handle: *mut c_void, why: Fail) -> Done {
    if handle.addr() == face::T_PVAR_ALL_HANDLES {
        return session_of(session).map(drop);
    }
    pvar_of(session, handle)?;
    Err(why)
}

fn always() -> Fail {
    fail(face::T_ERR_PVAR_NO_STARTSTOP, "the variable runs always")
}

fn read_only() -> Fail {
    fail(face::T_ERR_PVAR_NO_WRITE, "the variable can only be read")
}

pub(crate) fn t_pvar_start(session: *mut c_void, handle: *mut c_void) -> Done {
    cannot(session, handle, always())
}

pub(crate) fn t_pvar_stop(session: *mut c_void, handle: *mut c_void) -> Done {
    cannot(session, handle, always())
}

pub(crate) fn t_pvar_reset(session: *mut c_void, handle: *mut c_void) -> Done {
    cannot(session, handle, read_only())
}

pub(crate) fn t_pvar_write(session: *mut c_void, handle: *mut c_void, _buf: *const c_void) -> Done {
    pvar_of(session, handle)?;
    Err(read_only())
}

pub(crate) fn t_pvar_readreset(
    session: *mut c_void,
    handle: *mut c_void,
    _buf: *mut c_void,
) -> Done {
    pvar_of(session, handle)?;
    Err(fail(face::T_ERR_PVAR_NO_ATOMIC, "the variable cannot be reset"))
}
