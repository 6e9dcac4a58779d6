//! Sessions (MPI 4.1 §11.3): a process may have several, beside `MPI_Init` or without it.

use crate::arg::{self, HandleOut, Out, Text};
use crate::call::{Done, Fail, Subject};
use crate::errhandler::{Handled, Handler, HandlerSlot, Kind};
use crate::face::{self, RawHandle};
use crate::info::{Info, InfoObject};
use crate::p2p::{self, Owner};
use crate::process::{self, User};
use crate::slots::{Object, Slots};
use gapless::Group;
use std::ffi::{CStr, c_int};

/// A session. What it makes is of the one world that the process is in.
pub(crate) struct SessionObject(HandlerSlot);

pub(crate) type Session = Object<SessionObject>;

static SESSIONS: Slots<SessionObject> = Slots::new("sessions");

/// Sets of processes that all processes know.
const WORLD: &str = "mpi://WORLD";
const SELF: &str = "mpi://SELF";
const PSETS: [&str; 2] = [WORLD, SELF];

pub(crate) fn find(handle: RawHandle) -> Option<Session> {
    SESSIONS.get(handle).map(Object::Made)
}

impl Handled for SessionObject {
    const KIND: Kind = Kind::Session;

    fn errhandler(&self) -> &HandlerSlot {
        &self.0
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
    session.set(SESSIONS.insert(SessionObject(HandlerSlot::new(errhandler)))?);
    Ok(())
}

pub(crate) fn session_finalize(session: HandleOut) -> Done {
    drop(arg::session(session.get(), "session")?);
    if !SESSIONS.free(session.get()) {
        // Another thread has.
        return Err(arg::bad(face::ERR_SESSION, session.get(), "session", "session"));
    }
    p2p::forget(Owner::Session(session.get()))?;
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

pub(crate) fn session_get_nth_pset(
    _session: Session,
    _info: Option<Info>,
    n: c_int,
    pset_name: Text,
) -> Done {
    let known = usize::try_from(n).ok().and_then(|n| PSETS.get(n));
    let absent = || Fail::new(face::ERR_ARG, format!("there is no process set number {n}"));
    let name = known.ok_or_else(absent)?;
    pset_name.check("pset_name")?;
    pset_name.give_part(name.as_bytes());
    Ok(())
}

pub(crate) fn session_get_pset_info(_session: Session, pset_name: &CStr, info: HandleOut) -> Done {
    InfoObject::of([("mpi_size", pset(pset_name)?.size().to_string())]).give(info)
}
