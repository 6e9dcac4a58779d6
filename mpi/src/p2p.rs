//! Messages (MPI 4.1 chapter 3): blocking and non-blocking in all modes, probes, persistent and partitioned ones.

use crate::arg::{self, HandleOut, Out, StatusOut};
use crate::call::{Done, Fail, Subject};
use crate::comm::{Comm, CommObject};
use crate::datatype::{Type, typed};
use crate::face::{self, Status};
use crate::request::{self, Work};
use crate::slots::Slots;
use gapless::raw::{Request, Typed};
use gapless::{Message, SendMode, Source, TagSel, raw};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

mod buffer;
mod partitioned;

pub(crate) use buffer::*;
pub(crate) use partitioned::*;

/// The status of a message that came.
pub(crate) fn status_of(status: gapless::Status) -> Status {
    let mut it = Status::new(status.source.cast_signed(), status.tag, face::SUCCESS);
    it.set_bytes(status.bytes);
    it
}

/// The status of a receive from `MPI_PROC_NULL` (MPI 4.1 §3.10).
pub(crate) fn status_of_nobody() -> Status {
    Status::new(face::PROC_NULL, face::ANY_TAG, face::SUCCESS)
}

fn tag_of(tag: c_int) -> TagSel {
    if tag == face::ANY_TAG { TagSel::Any } else { TagSel::Is(tag) }
}

/// Whose error handler a communicator's requests tell.
fn subject(comm: Comm) -> Subject {
    Subject::OfComm(comm)
}

/// Gives a blocking receive's status, also beside an error.
fn received(result: Result<gapless::Status, gapless::Error>, status: StatusOut) -> Done {
    match result {
        Ok(came) => {
            status.set(status_of(came));
            Ok(())
        }
        Err(error) => {
            if let Some(came) = error.status() {
                status.set(status_of(came));
            }
            Err(error.into())
        }
    }
}

pub(crate) unsafe fn send(
    buf: *const c_void,
    count: u64,
    datatype: Type,
    dest: c_int,
    tag: c_int,
    comm: Comm,
) -> Done {
    let Some(dest) = comm.peer(dest)? else { return Ok(()) };
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: the caller's promise, until this returns.
    let view = unsafe { raw::view(typed) };
    comm.comm.send(view, dest, tag)?;
    Ok(())
}

pub(crate) unsafe fn recv(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    source: c_int,
    tag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        status.set(status_of_nobody());
        return Ok(());
    };
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: the caller's promise, until this returns.
    let view = unsafe { raw::view_mut(typed) };
    received(comm.comm.recv(view, source, tag_of(tag)), status)
}

/// Sends in each mode: blocking, non-blocking, persistent.
macro_rules! sends {
    ($($blocking:ident $nonblocking:ident $persistent:ident $mode:ident;)*) => {
        $(
            pub(crate) unsafe fn $blocking(
                buf: *const c_void,
                count: u64,
                datatype: Type,
                dest: c_int,
                tag: c_int,
                comm: Comm,
            ) -> Done {
                let Some(dest) = comm.peer(dest)? else { return Ok(()) };
                // SAFETY: the caller's promise.
                let typed = unsafe { typed(buf, count, &datatype) }?;
                // SAFETY: the caller's promise, until this returns.
                let view = unsafe { raw::view(typed) };
                comm.comm.send_mode(view, dest, tag, SendMode::$mode)?;
                Ok(())
            }

            sends! { @started $nonblocking $persistent $mode }
        )*
    };
    (@started $nonblocking:ident $persistent:ident $mode:ident) => {
        pub(crate) unsafe fn $nonblocking(
            buf: *const c_void,
            count: u64,
            datatype: Type,
            dest: c_int,
            tag: c_int,
            comm: Comm,
            request: HandleOut,
        ) -> Done {
            let Some(dest) = comm.peer(dest)? else {
                return request::give(request, subject(comm), Work::nobody(false));
            };
            // SAFETY: the caller's promise.
            let typed = unsafe { typed(buf, count, &datatype) }?;
            // SAFETY: the caller's promise.
            let sent = unsafe { Request::send(&comm.comm, &typed, dest, tag, SendMode::$mode) }?;
            request::give(request, subject(comm), Work::One(sent))
        }

        pub(crate) unsafe fn $persistent(
            buf: *const c_void,
            count: u64,
            datatype: Type,
            dest: c_int,
            tag: c_int,
            comm: Comm,
            request: HandleOut,
        ) -> Done {
            let Some(dest) = comm.peer(dest)? else {
                return request::give(request, subject(comm), Work::nobody(true));
            };
            // SAFETY: the caller's promise.
            let typed = unsafe { typed(buf, count, &datatype) }?;
            // SAFETY: the caller's promise.
            let sent = unsafe { Request::send_init(&comm.comm, &typed, dest, tag, SendMode::$mode) }?;
            request::give(request, subject(comm), Work::One(sent))
        }
    };
}

sends! { @started isend send_init Standard }
sends! {
    ssend issend ssend_init Synchronous;
    rsend irsend rsend_init Ready;
    bsend ibsend bsend_init Buffered;
}

pub(crate) unsafe fn irecv(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    source: c_int,
    tag: c_int,
    comm: Comm,
    request: HandleOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        return request::give(request, subject(comm), Work::nobody(false));
    };
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: the caller's promise.
    let started = unsafe { Request::recv(&comm.comm, &typed, source, tag_of(tag)) }?;
    request::give(request, subject(comm), Work::One(started))
}

pub(crate) unsafe fn recv_init(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    source: c_int,
    tag: c_int,
    comm: Comm,
    request: HandleOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        return request::give(request, subject(comm), Work::nobody(true));
    };
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: the caller's promise.
    let described = unsafe { Request::recv_init(&comm.comm, &typed, source, tag_of(tag)) }?;
    request::give(request, subject(comm), Work::One(described))
}

/// What is sent and received at once: `None` to or from nobody.
struct Exchange {
    send: Option<(Typed, u32)>,
    recv: Option<(Typed, Source)>,
    tags: (c_int, TagSel),
}

impl Exchange {
    /// # Safety
    /// The memory of both is as [`Request::send`] and [`Request::recv`] ask.
    unsafe fn start(self, comm: &CommObject) -> Done<Work> {
        let Exchange { send, recv, tags: (tag, from) } = self;
        let recv = recv.map(|(typed, source)| {
            // SAFETY: the caller's promise.
            unsafe { Request::recv(&comm.comm, &typed, source, from) }
        });
        let mut recv = recv.transpose()?;
        let send = send.map(|(typed, dest)| {
            // SAFETY: the caller's promise.
            unsafe { Request::send(&comm.comm, &typed, dest, tag, SendMode::Standard) }
        });
        let send = send.transpose().inspect_err(|_| {
            // Nobody will ask for it. If it cannot be cancelled, the message is in flight, and comes.
            if let Some(recv) = &mut recv {
                let _ = recv.cancel();
                let _ = recv.wait();
            }
        });
        Ok(match (send?, recv) {
            (Some(send), Some(recv)) => Work::Both(Box::new([send, recv])),
            (None, Some(recv)) => Work::One(recv),
            // A send has the status of a receive from nobody.
            (Some(send), None) => Work::SendAlone(send),
            (None, None) => Work::nobody(false),
        })
    }
}

pub(crate) unsafe fn isendrecv(
    sendbuf: *const c_void,
    sendcount: u64,
    sendtype: Type,
    dest: c_int,
    sendtag: c_int,
    recvbuf: *mut c_void,
    recvcount: u64,
    recvtype: Type,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    request: HandleOut,
) -> Done {
    let (dest, source) = (comm.peer(dest)?, comm.source(source)?);
    let send = match dest {
        // SAFETY: the caller's promise.
        Some(dest) => Some((unsafe { typed(sendbuf, sendcount, &sendtype) }?, dest)),
        None => None,
    };
    let recv = match source {
        // SAFETY: the caller's promise.
        Some(source) => Some((unsafe { typed(recvbuf, recvcount, &recvtype) }?, source)),
        None => None,
    };
    let exchange = Exchange { send, recv, tags: (sendtag, tag_of(recvtag)) };
    // SAFETY: the caller's promise.
    let work = unsafe { exchange.start(&comm) }?;
    request::give(request, subject(comm), work)
}

pub(crate) unsafe fn sendrecv(
    sendbuf: *const c_void,
    sendcount: u64,
    sendtype: Type,
    dest: c_int,
    sendtag: c_int,
    recvbuf: *mut c_void,
    recvcount: u64,
    recvtype: Type,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let (Some(dest), Some(source)) = (comm.peer(dest)?, comm.source(source)?) else {
        // To or from nobody: one of both, in a blocking form.
        // SAFETY: the caller's promise.
        unsafe { send(sendbuf, sendcount, sendtype, dest, sendtag, comm.clone()) }?;
        // SAFETY: the caller's promise.
        return unsafe { recv(recvbuf, recvcount, recvtype, source, recvtag, comm, status) };
    };
    // SAFETY: the caller's promise.
    let out = unsafe { typed(sendbuf, sendcount, &sendtype) }?;
    // SAFETY: the caller's promise.
    let into = unsafe { typed(recvbuf, recvcount, &recvtype) }?;
    // SAFETY: the caller's promise, until this returns.
    let out = unsafe { raw::view(out) };
    // SAFETY: the caller's promise, until this returns.
    let into = unsafe { raw::view_mut(into) };
    received(comm.comm.sendrecv(out, (dest, sendtag), into, (source, tag_of(recvtag))), status)
}

pub(crate) unsafe fn sendrecv_replace(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let (Some(dest), Some(source)) = (comm.peer(dest)?, comm.source(source)?) else {
        // SAFETY: the caller's promise.
        unsafe { send(buf, count, datatype.clone(), dest, sendtag, comm.clone()) }?;
        // SAFETY: the caller's promise.
        return unsafe { recv(buf, count, datatype, source, recvtag, comm, status) };
    };
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: the caller's promise, until this returns.
    let view = unsafe { raw::view_mut(typed) };
    received(comm.comm.sendrecv_replace(view, (dest, sendtag), (source, tag_of(recvtag))), status)
}

pub(crate) unsafe fn isendrecv_replace(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    request: HandleOut,
) -> Done {
    let (dest, source) = (comm.peer(dest)?, comm.source(source)?);
    // SAFETY: the caller's promise.
    let whole = unsafe { typed(buf, count, &datatype) }?;
    // What is sent is copied, and the copy kept until the request has ended.
    // SAFETY: the caller's promise.
    let copy = Packed(unsafe { crate::datatype::packed(&whole) }?);
    let send = dest.map(|dest| (copy.typed(), dest));
    let exchange = Exchange {
        send,
        recv: source.map(|source| (whole, source)),
        tags: (sendtag, tag_of(recvtag)),
    };
    // SAFETY: the caller's promise; the copy is kept by what is done at the end.
    let work = unsafe { exchange.start(&comm) }?;
    request::give_keeping(request, subject(comm), work, Box::new(copy))
}

/// A copy of what a message has.
struct Packed(Vec<u8>);

impl Packed {
    fn typed(&self) -> Typed {
        Typed::contiguous(gapless::Region::of(&self.0))
    }
}

pub(crate) fn probe(source: c_int, tag: c_int, comm: Comm, status: StatusOut) -> Done {
    let found = match comm.source(source)? {
        Some(source) => status_of(comm.comm.probe(source, tag_of(tag))?),
        None => status_of_nobody(),
    };
    status.set(found);
    Ok(())
}

pub(crate) fn iprobe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    flag: Out<c_int>,
    status: StatusOut,
) -> Done {
    let found = match comm.source(source)? {
        Some(source) => comm.comm.iprobe(source, tag_of(tag))?.map(status_of),
        None => Some(status_of_nobody()),
    };
    flag.set(c_int::from(found.is_some()));
    if let Some(found) = found {
        status.set(found);
    }
    Ok(())
}

/// A message that a probe has taken, until it is received.
pub(crate) struct MessageObject {
    message: Mutex<Option<Message>>,
    subject: Subject,
}

pub(crate) static MESSAGES: Slots<MessageObject> = Slots::new();

/// Makes a handle of a message, and gives its status.
fn give_message(comm: Comm, found: Option<Message>, message: HandleOut, status: StatusOut) -> Done {
    let Some(found) = found else {
        message.set(face::MESSAGE_NULL);
        return Ok(());
    };
    status.set(status_of(found.status()));
    let object = MessageObject { message: Mutex::new(Some(found)), subject: subject(comm) };
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million messages");
    message.set(MESSAGES.insert(object).ok_or_else(full)?);
    Ok(())
}

pub(crate) fn mprobe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    message: HandleOut,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        message.set(face::MESSAGE_NO_PROC);
        status.set(status_of_nobody());
        return Ok(());
    };
    let found = comm.comm.mprobe(source, tag_of(tag))?;
    give_message(comm, Some(found), message, status)
}

pub(crate) fn improbe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    flag: Out<c_int>,
    message: HandleOut,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        flag.set(1);
        message.set(face::MESSAGE_NO_PROC);
        status.set(status_of_nobody());
        return Ok(());
    };
    let found = comm.comm.improbe(source, tag_of(tag))?;
    flag.set(c_int::from(found.is_some()));
    give_message(comm, found, message, status)
}

/// The message of a handle, which is null after that. `None`: it is from nobody.
fn take_message(handle: HandleOut) -> Done<Option<(Message, Subject)>> {
    let number = handle.get();
    if number == face::MESSAGE_NO_PROC {
        handle.set(face::MESSAGE_NULL);
        return Ok(None);
    }
    let object = MESSAGES.get(number);
    let none = || arg::bad(face::ERR_REQUEST, number, "message", "message");
    let object = object.ok_or_else(none)?;
    let message = object.message.lock().unwrap_or_else(PoisonError::into_inner).take();
    MESSAGES.free(number);
    handle.set(face::MESSAGE_NULL);
    Ok(Some((message.ok_or_else(none)?, object.subject.clone())))
}

pub(crate) unsafe fn mrecv(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    message: HandleOut,
    status: StatusOut,
) -> Done {
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    let Some((message, subject)) = take_message(message)? else {
        status.set(status_of_nobody());
        return Ok(());
    };
    // SAFETY: the caller's promise, until this returns.
    let started = unsafe { Request::recv_message(message, &typed) };
    let done = started.map_err(Fail::from).and_then(|mut started| received(started.wait(), status));
    done.map_err(|fail| fail.on(subject))
}

pub(crate) unsafe fn imrecv(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    message: HandleOut,
    request: HandleOut,
) -> Done {
    // SAFETY: the caller's promise.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    let Some((message, subject)) = take_message(message)? else {
        return request::give(request, Subject::None, Work::nobody(false));
    };
    // SAFETY: the caller's promise.
    let started = unsafe { Request::recv_message(message, &typed) };
    let started = started.map_err(|error| Fail::from(error).on(subject.clone()))?;
    request::give(request, subject, Work::One(started))
}
