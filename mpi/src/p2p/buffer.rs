//! Buffers of buffered sends (MPI 4.1 §3.6). The library copies messages into memory of its own; programs' buffers say how
//! much it may take.
//!
//! Sends of all communicators share one account. It is as large as the buffer of the process; if a communicator or a
//! session has a buffer of its own, it has no limit.

use crate::arg::{self, CountOut, Out, lock};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face::{self, RawHandle, Status};
use crate::request::{self, Place};
use crate::session::Session;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

/// Whose buffer it is: the process's, or that of the object with this handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Process,
    Comm(RawHandle),
    Session(RawHandle),
}

impl From<Comm> for Owner {
    fn from(comm: Comm) -> Owner {
        Owner::Comm(comm.handle())
    }
}

impl From<Session> for Owner {
    fn from(session: Session) -> Owner {
        Owner::Session(session.handle())
    }
}

/// Buffers that are attached: address and length.
static ATTACHED: Mutex<BTreeMap<Owner, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// Makes the library's account as large as it is to be. Messages that are in it stay.
fn resize(all: &BTreeMap<Owner, (usize, u64)>) -> Done {
    let automatic = |(owner, (address, _)): (&Owner, &(usize, u64))| {
        *owner != Owner::Process || *address == face::BUFFER_AUTOMATIC
    };
    let bytes = match all.iter().any(automatic) {
        true => u64::MAX >> 1,
        false => all.get(&Owner::Process).map_or(0, |(_, bytes)| *bytes),
    };
    let done = arg::process()?.with_world(|world| world.resize_buffer(bytes));
    Ok(done.unwrap_or(Ok(()))?)
}

/// Takes the buffer of an object that is freed: what is in flight has copies.
pub(crate) fn forget(owner: Owner) -> Done {
    let mut all = lock(&ATTACHED);
    all.remove(&owner).map_or(Ok(()), |_| resize(&all))
}

/// Takes all buffers but those of sessions, as the world model is finalized.
pub(crate) fn forget_all() {
    lock(&ATTACHED).retain(|owner, _| matches!(owner, Owner::Session(_)));
}

pub(crate) fn attach(owner: impl Into<Owner>, buffer: *mut c_void, bytes: u64) -> Done {
    let (owner, mut all) = (owner.into(), lock(&ATTACHED));
    if all.contains_key(&owner) {
        return Err(Fail::new(face::ERR_BUFFER, "a buffer is attached already"));
    }
    all.insert(owner, (buffer.addr(), bytes));
    resize(&all).inspect_err(|_| {
        all.remove(&owner);
    })
}

pub(crate) fn detach(owner: impl Into<Owner>, buffer: Out<usize>, size: CountOut) -> Done {
    let (owner, mut all) = (owner.into(), lock(&ATTACHED));
    let (address, bytes) = all.remove(&owner).unwrap_or((0, 0));
    resize(&all)?;
    drop(all);
    flush(owner)?;
    buffer.set(address);
    size.set(bytes.cast_signed());
    Ok(())
}

/// Waits until buffered messages have left: those of all buffers, as they share an account. Nothing is locked: others may
/// buffer, attach and detach meanwhile.
pub(crate) fn flush(_: impl Into<Owner>) -> Done {
    let done = arg::process()?.with_world(gapless::World::flush_buffer);
    Ok(done.unwrap_or(Ok(()))?)
}

/// What a generalized request of the library calls: it has nothing to say, to free, or to cancel.
extern "C" fn query(_: *mut c_void, _: *mut Status) -> c_int {
    face::SUCCESS
}

extern "C" fn free(_: *mut c_void) -> c_int {
    face::SUCCESS
}

extern "C" fn cancel(_: *mut c_void, _: c_int) -> c_int {
    face::SUCCESS
}

/// A request that ends when buffered messages have left: a thread waits for them, as this process may have to do
/// something else before they can (MPI 4.1 §3.6).
pub(crate) fn iflush(owner: impl Into<Owner>, request: Place) -> Done {
    let (owner, handle) = (owner.into(), request.handle());
    let functions = [query as *const c_void, free as *const c_void, cancel as *const c_void];
    let [query, free, cancel] = functions;
    // SAFETY: they are functions of the types that are asked for, and do not look at their state.
    unsafe { request::grequest_start(query, free, cancel, std::ptr::null_mut(), request) }?;
    let flush = move || {
        let _ = flush(owner);
        // Freed meanwhile, it is not there any more.
        let _ = request::grequest_complete(handle);
    };
    let thread = std::thread::Builder::new().name("gapless-flush".to_owned()).spawn(flush);
    let none = |error: std::io::Error| Fail::new(face::ERR_NO_MEM, error.to_string());
    thread.map(drop).map_err(none)
}
