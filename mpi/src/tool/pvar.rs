//! Performance variables (MPI 4.1 §15.3.7): they run always, and are only read.

use super::{counters, fail, index_of, no_handle, put, raw, ready, tool_handle};
use crate::arg::{self, Out, Text};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::slots::Slots;
use gapless::{Counters, Protocol};
use std::ffi::{CStr, c_int, c_void};

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
pub(crate) fn pvars() -> usize {
    Protocol::ALL.len() * OF_PROTOCOL.len() + 1
}

impl Pvar {
    fn of(index: c_int) -> Done<Pvar> {
        ready()?;
        let index = usize::try_from(index).ok().filter(|index| *index < pvars());
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

pub(crate) fn t_pvar_get_index(name: &CStr, var_class: c_int, pvar_index: Out<c_int>) -> Done {
    let of_class = |index| {
        let pvar = Pvar(index);
        // What is of another class is not found by any name.
        if pvar.class() == var_class { pvar.name() } else { String::from('\0') }
    };
    index_of((0..pvars()).map(of_class), name, pvar_index)
}

pub(crate) fn t_pvar_get_info(
    pvar_index: c_int,
    name: Text,
    verbosity: Option<Out<c_int>>,
    var_class: Option<Out<c_int>>,
    datatype: Option<Out<RawHandle>>,
    enumtype: Option<Out<usize>>,
    desc: Text,
    bind: Option<Out<c_int>>,
    readonly: Option<Out<c_int>>,
    continuous: Option<Out<c_int>>,
    atomic: Option<Out<c_int>>,
) -> Done {
    let pvar = Pvar::of(pvar_index)?;
    name.give_part(pvar.name().as_bytes());
    desc.give_part(pvar.what().as_bytes());
    put(verbosity, face::T_VERBOSITY_TUNER_DETAIL);
    put(var_class, pvar.class());
    put(datatype, face::UNSIGNED_LONG_LONG);
    put(enumtype, face::T_ENUM_NULL);
    put(bind, face::T_BIND_NO_OBJECT);
    put(readonly, 1);
    put(continuous, 1);
    put(atomic, 0);
    Ok(())
}

/// Sessions of performance variables.
static SESSIONS: Slots<()> = Slots::new("sessions");
/// Variables that a tool has handles of, each with its session.
static HANDLES: Slots<(RawHandle, Pvar)> = Slots::new("handles of variables");

fn session_of(session: usize) -> Done<RawHandle> {
    ready()?;
    let session = raw(session);
    let none = || fail(face::T_ERR_INVALID_SESSION, "the session is none, or was freed");
    SESSIONS.get(session).map(|_| session).ok_or_else(none)
}

/// The variable of a handle of a session.
fn pvar_of(session: usize, handle: usize) -> Done<Pvar> {
    let session = session_of(session)?;
    let found = HANDLES.get(raw(handle)).filter(|found| found.0 == session);
    found.map(|found| found.1).ok_or_else(no_handle)
}

pub(crate) fn t_pvar_session_create(session: Out<usize>) -> Done {
    ready()?;
    let full = |_| fail(face::T_ERR_OUT_OF_SESSIONS, "there are a million sessions");
    session.set(tool_handle(SESSIONS.insert(()).map_err(full)?));
    Ok(())
}

pub(crate) fn t_pvar_session_free(session: Out<usize>) -> Done {
    let its = session_of(session.get())?;
    for handle in HANDLES.all() {
        if HANDLES.get(handle).is_some_and(|of| of.0 == its) {
            HANDLES.free(handle);
        }
    }
    SESSIONS.free(its);
    session.set(face::T_PVAR_SESSION_NULL);
    Ok(())
}

pub(crate) fn t_pvar_handle_alloc(
    session: usize,
    pvar_index: c_int,
    _obj_handle: *mut c_void,
    handle: Out<usize>,
    count: Out<c_int>,
) -> Done {
    let made = HANDLES.insert((session_of(session)?, Pvar::of(pvar_index)?))?;
    handle.set(tool_handle(made));
    count.set(1);
    Ok(())
}

pub(crate) fn t_pvar_handle_free(session: usize, handle: Out<usize>) -> Done {
    pvar_of(session, handle.get())?;
    HANDLES.free(raw(handle.get()));
    handle.set(face::T_PVAR_HANDLE_NULL);
    Ok(())
}

pub(crate) unsafe fn t_pvar_read(session: usize, handle: usize, buf: *mut c_void) -> Done {
    let value = pvar_of(session, handle)?.read()?;
    let buf = arg::pointer(buf, "buf")?.cast::<u64>();
    // SAFETY: there is room for a variable of its type.
    unsafe { buf.write_unaligned(value) };
    Ok(())
}

/// What cannot be done with a variable; with all of a session, there is none to do it with.
fn refused(session: usize, handle: usize, why: Fail) -> Done {
    match handle {
        face::T_PVAR_ALL_HANDLES => session_of(session).map(drop),
        handle => pvar_of(session, handle).and(Err(why)),
    }
}

/// `MPI_T_pvar_start`, `MPI_T_pvar_stop`.
pub(crate) fn always_runs(session: usize, handle: usize) -> Done {
    refused(session, handle, fail(face::T_ERR_PVAR_NO_STARTSTOP, "the variable runs always"))
}

fn read_only() -> Fail {
    fail(face::T_ERR_PVAR_NO_WRITE, "the variable can only be read")
}

pub(crate) fn t_pvar_reset(session: usize, handle: usize) -> Done {
    refused(session, handle, read_only())
}

pub(crate) fn t_pvar_write(session: usize, handle: usize, _buf: *const c_void) -> Done {
    pvar_of(session, handle).and(Err(read_only()))
}

pub(crate) fn t_pvar_readreset(session: usize, handle: usize, _buf: *mut c_void) -> Done {
    let why = fail(face::T_ERR_PVAR_NO_ATOMIC, "the variable cannot be reset");
    pvar_of(session, handle).and(Err(why))
}
