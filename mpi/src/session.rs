//! Sessions (MPI 4.1 §11.3): a process may have several, beside `MPI_Init` or without it.

use crate::arg::{self, HandleOut, Out};
use crate::call::{Done, Fail, Subject};
use crate::errhandler::{Handler, Kind};
use crate::face::{self, RawHandle};
use crate::info::{Info, InfoObject};
use crate::p2p;
use crate::process::{self, User};
use crate::slots::{InUse, Slots};
use gapless::Group;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

/// A session. What it makes is of the one world that the process is in.
#[derive(Debug)]
pub(crate) struct SessionObject(Mutex<Handler>);

pub(crate) type Session = InUse<SessionObject>;

static SESSIONS: Slots<SessionObject> = Slots::new();

/// Sets of processes that all processes know.
const WORLD: &str = "mpi://WORLD";
const SELF: &str = "mpi://SELF";
const PSETS: [&str; 2] = [WORLD, SELF];

pub(crate) fn find(handle: RawHandle) -> Option<Session> {
    SESSIONS.get(handle)
}

impl SessionObject {
    pub(crate) fn errhandler(&self) -> Handler {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_errhandler(&self, errhandler: Handler) {
        let mut its = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *its, errhandler);
        drop(its);
        drop(before);
    }
}

/// The processes of a set.
pub(crate) fn pset(name: &CStr) -> Done<Group> {
    let process = arg::process()?;
    let is = |known: &str| name.to_bytes().eq_ignore_ascii_case(known.as_bytes());
    let absent = || Fail::new(face::ERR_ARG, format!("there is no process set {name:?}"));
    let of_set = [(WORLD, &process.comm_world), (SELF, &process.comm_self)];
    let found = of_set.into_iter().find(|(known, _)| is(known));
    found.map(|(_, of)| of.comm.group()).ok_or_else(absent)
}

pub(crate) fn session_init(_info: Option<Info>, errhandler: Handler, session: HandleOut) -> Done {
    let errhandler = errhandler.fits(Kind::Session)?;
    let told = Subject::Handler(errhandler.clone(), face::SESSION_NULL);
    process::join(User::Session).map_err(|fail| fail.on(told))?;
    // Sessions name no level that they need: it is this one (MPI 4.1 §11.3.1).
    process::set_threaded();
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million sessions");
    let object = SessionObject(Mutex::new(errhandler));
    session.set(SESSIONS.insert(object).ok_or_else(full)?);
    Ok(())
}

pub(crate) fn session_finalize(session: HandleOut) -> Done {
    drop(arg::session(session.get(), "session")?);
    if !SESSIONS.free(session.get()) {
        // Another thread has.
        return Err(arg::bad(face::ERR_SESSION, session.get(), "session", "session"));
    }
    p2p::forget_session_buffer(session.get())?;
    session.set(face::SESSION_NULL);
    process::leave(User::Session)
}

pub(crate) fn session_get_info(_session: Session, info_used: HandleOut) -> Done {
    let pairs = [("thread_level", "MPI_THREAD_MULTIPLE"), ("mpi_memory_alloc_kinds", "mpi,system")];
    InfoObject::of(pairs).give(info_used)
}

pub(crate) fn session_get_num_psets(
    _session: Session,
    _info: Option<Info>,
    npset_names: Out<c_int>,
) -> Done {
    npset_names.set(arg::int(PSETS.len()));
    Ok(())
}

pub(crate) unsafe fn session_get_nth_pset(
    _session: Session,
    _info: Option<Info>,
    n: c_int,
    pset_len: Out<c_int>,
    pset_name: *mut c_char,
) -> Done {
    let known = usize::try_from(n).ok().and_then(|n| PSETS.get(n));
    let absent = || Fail::new(face::ERR_ARG, format!("there is no process set number {n}"));
    let name = known.ok_or_else(absent)?;
    let room = pset_len.get();
    if room > 0 {
        let pset_name = arg::pointer(pset_name, "pset_name")?;
        // SAFETY: there is room for `pset_len` characters.
        unsafe { crate::env::give_text(name, room, pset_name, pset_len) };
    }
    pset_len.set(arg::int(name.len() + 1));
    Ok(())
}

pub(crate) fn session_get_pset_info(_session: Session, pset_name: &CStr, info: HandleOut) -> Done {
    InfoObject::of([("mpi_size", pset(pset_name)?.size().to_string())]).give(info)
}
