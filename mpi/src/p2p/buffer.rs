//! Buffers of buffered sends (MPI 4.1 §3.6). The library copies messages into memory of its own; programs' buffers say how
//! much it may take.
//!
//! Sends of all communicators share one account. It is as large as the buffer of the process; if a communicator or a
//! session has a buffer of its own, it has no limit.

use crate::arg::{self, CountOut, HandleOut};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face::{self, RawHandle, Status};
use crate::request;
use crate::session::Session;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whose buffer it is: the process's, or that of the object with this handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Process,
    Comm(u32),
    Session(u32),
}

/// Buffers that are attached: address and length.
static ATTACHED: Mutex<BTreeMap<Owner, (usize, u64)>> = Mutex::new(BTreeMap::new());

fn attached() -> MutexGuard<'static, BTreeMap<Owner, (usize, u64)>> {
    ATTACHED.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// Waits until buffered messages have left. Nothing is locked: others may buffer, attach and detach meanwhile.
fn flush() -> Done {
    let done = arg::process()?.with_world(gapless::World::flush_buffer);
    Ok(done.unwrap_or(Ok(()))?)
}

/// Takes the buffer of an object that is freed: what is in flight has copies.
fn forget(owner: Owner) -> Done {
    let mut all = attached();
    all.remove(&owner).map_or(Ok(()), |_| resize(&all))
}

pub(crate) fn forget_comm_buffer(comm: RawHandle) -> Done {
    forget(Owner::Comm(face::number(comm)))
}

pub(crate) fn forget_session_buffer(session: RawHandle) -> Done {
    forget(Owner::Session(face::number(session)))
}

fn attach(owner: Owner, buffer: *mut c_void, bytes: u64) -> Done {
    let mut all = attached();
    if all.contains_key(&owner) {
        return Err(Fail::new(face::ERR_BUFFER, "a buffer is attached already"));
    }
    all.insert(owner, (buffer.addr(), bytes));
    resize(&all).inspect_err(|_| {
        all.remove(&owner);
    })
}

/// # Safety
/// There is room for an address at `buffer`.
unsafe fn detach(owner: Owner, buffer: *mut c_void, size: CountOut) -> Done {
    let at = arg::pointer(buffer, "buffer_addr")?.cast::<usize>();
    let mut all = attached();
    let (address, bytes) = all.remove(&owner).unwrap_or((0, 0));
    resize(&all)?;
    drop(all);
    flush()?;
    // SAFETY: the caller's promise.
    unsafe { at.write_unaligned(address) };
    size.set(bytes.cast_signed());
    Ok(())
}

pub(crate) fn buffer_attach(buffer: *mut c_void, size: u64) -> Done {
    attach(Owner::Process, buffer, size)
}

pub(crate) unsafe fn buffer_detach(buffer: *mut c_void, size: CountOut) -> Done {
    // SAFETY: the caller's promise.
    unsafe { detach(Owner::Process, buffer, size) }
}

pub(crate) fn buffer_flush() -> Done {
    flush()
}

pub(crate) fn comm_attach_buffer(comm: Comm, buffer: *mut c_void, size: u64) -> Done {
    attach(Owner::Comm(face::number(comm.handle())), buffer, size)
}

pub(crate) unsafe fn comm_detach_buffer(comm: Comm, buffer: *mut c_void, size: CountOut) -> Done {
    // SAFETY: the caller's promise.
    unsafe { detach(Owner::Comm(face::number(comm.handle())), buffer, size) }
}

pub(crate) fn comm_flush_buffer(_comm: Comm) -> Done {
    flush()
}

pub(crate) fn session_attach_buffer(session: Session, buffer: *mut c_void, size: u64) -> Done {
    attach(Owner::Session(face::number(session.handle())), buffer, size)
}

pub(crate) unsafe fn session_detach_buffer(
    session: Session,
    buffer: *mut c_void,
    size: CountOut,
) -> Done {
    // SAFETY: the caller's promise.
    unsafe { detach(Owner::Session(face::number(session.handle())), buffer, size) }
}

pub(crate) fn session_flush_buffer(_session: Session) -> Done {
    flush()
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
fn flush_later(request: HandleOut) -> Done {
    let functions = [query as *const c_void, free as *const c_void, cancel as *const c_void];
    let [query, free, cancel] = functions;
    // SAFETY: they are functions of the types that are asked for, and do not look at their state.
    unsafe { request::grequest_start(query, free, cancel, std::ptr::null_mut(), request) }?;
    let handle = request.get();
    let flush = move || {
        let _ = flush();
        // Freed meanwhile, it is not there any more.
        let _ = request::grequest_complete(handle);
    };
    let thread = std::thread::Builder::new().name("gapless-flush".to_owned()).spawn(flush);
    let none = |error: std::io::Error| Fail::new(face::ERR_NO_MEM, error.to_string());
    thread.map(drop).map_err(none)
}

pub(crate) fn buffer_iflush(request: HandleOut) -> Done {
    flush_later(request)
}

pub(crate) fn comm_iflush_buffer(_comm: Comm, request: HandleOut) -> Done {
    flush_later(request)
}

pub(crate) fn session_iflush_buffer(_session: Session, request: HandleOut) -> Done {
    flush_later(request)
}
