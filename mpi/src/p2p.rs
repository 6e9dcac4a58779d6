//! Messages (MPI 4.1 chapter 3): blocking and non-blocking in all modes, probes, persistent and partitioned ones.

use crate::arg::{self, HandleOut, Out, StatusOut, lock};
use crate::call::{Done, Fail, Form, Subject};
use crate::comm::{Comm, CommObject};
use crate::datatype::{Elements, packed};
use crate::face::{self, Status};
use crate::request::{Place, State, Work};
use crate::slots::{Reserved, Slots};
use gapless::raw::{Request, Typed};
use gapless::{Message, SendMode, Source, TagSel, raw};
use std::ffi::c_int;
use std::sync::Mutex;

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

/// Sends in a mode: blocking, non-blocking or persistent.
#[inline]
pub(crate) unsafe fn send(
    mode: SendMode,
    form: Form,
    data: Elements,
    dest: c_int,
    tag: c_int,
    comm: Comm,
) -> Done {
    let Some(dest) = comm.peer(dest)? else { return to_nobody(form, comm) };
    let typed = data.typed()?;
    match form {
        Form::Blocking => {
            // SAFETY: the caller's promise, until this returns.
            let view = unsafe { raw::view(typed) };
            match mode {
                SendMode::Standard => comm.comm.send(view, dest, tag)?,
                mode => comm.comm.send_mode(view, dest, tag, mode)?,
            };
        }
        Form::NonBlocking(request) => {
            // SAFETY: the caller's promise.
            if mode == SendMode::Standard && unsafe { raw::send_now(&comm.comm, &typed, dest, tag) }
            {
                request.give_over();
                return Ok(());
            }
            // SAFETY: the caller's promise.
            let sent = unsafe { Request::send(&comm.comm, &typed, dest, tag, mode) }?;
            request.give(Subject::OfComm(comm), Work::One(sent));
        }
        Form::Persistent(request) => {
            // SAFETY: the caller's promise.
            let sent = unsafe { Request::send_init(&comm.comm, &typed, dest, tag, mode) }?;
            request.give(Subject::OfComm(comm), Work::One(sent));
        }
    }
    Ok(())
}

fn to_nobody(form: Form, comm: Comm) -> Done {
    match form {
        Form::Blocking => {}
        Form::NonBlocking(request) => request.give(Subject::OfComm(comm), Work::nobody(false)),
        Form::Persistent(request) => request.give(Subject::OfComm(comm), Work::nobody(true)),
    }
    Ok(())
}

pub(crate) unsafe fn recv(
    into: Elements,
    source: c_int,
    tag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        status.set(status_of_nobody());
        return Ok(());
    };
    // SAFETY: the caller's promise, until this returns.
    let view = unsafe { raw::view_mut(into.typed()?) };
    received(comm.comm.recv(view, source, tag_of(tag)), status)
}

/// A non-blocking or persistent receive.
pub(crate) unsafe fn start_recv(
    persistent: bool,
    into: Elements,
    source: c_int,
    tag: c_int,
    comm: Comm,
    request: Place,
) -> Done {
    let work = match comm.source(source)? {
        None => Work::nobody(persistent),
        Some(source) => {
            let (typed, tag) = (into.typed()?, tag_of(tag));
            Work::One(match persistent {
                // SAFETY: the caller's promise.
                true => unsafe { Request::recv_init(&comm.comm, &typed, source, tag) }?,
                // SAFETY: the caller's promise.
                false => unsafe { Request::recv(&comm.comm, &typed, source, tag) }?,
            })
        }
    };
    request.give(Subject::OfComm(comm), work);
    Ok(())
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
    data: Elements,
    dest: c_int,
    sendtag: c_int,
    into: Elements,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    request: Place,
) -> Done {
    let (dest, source) = (comm.peer(dest)?, comm.source(source)?);
    let send = dest.map(|dest| data.typed().map(|typed| (typed, dest))).transpose()?;
    let recv = source.map(|source| into.typed().map(|typed| (typed, source))).transpose()?;
    let exchange = Exchange { send, recv, tags: (sendtag, tag_of(recvtag)) };
    // SAFETY: the caller's promise.
    request.give(Subject::OfComm(comm.clone()), unsafe { exchange.start(&comm) }?);
    Ok(())
}

pub(crate) unsafe fn sendrecv(
    data: Elements,
    dest: c_int,
    sendtag: c_int,
    into: Elements,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let (Some(to), Some(from)) = (comm.peer(dest)?, comm.source(source)?) else {
        // To or from nobody: one of both, in a blocking form.
        let (mode, form) = (SendMode::Standard, Form::Blocking);
        // SAFETY: the caller's promise.
        unsafe { send(mode, form, data, dest, sendtag, comm.clone()) }?;
        // SAFETY: the caller's promise.
        return unsafe { recv(into, source, recvtag, comm, status) };
    };
    // SAFETY: the caller's promise, until this returns.
    let out = unsafe { raw::view(data.typed()?) };
    // SAFETY: the caller's promise, until this returns.
    let into = unsafe { raw::view_mut(into.typed()?) };
    received(comm.comm.sendrecv(out, (to, sendtag), into, (from, tag_of(recvtag))), status)
}

pub(crate) unsafe fn sendrecv_replace(
    data: Elements,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let (Some(to), Some(from)) = (comm.peer(dest)?, comm.source(source)?) else {
        let into = data.clone();
        // SAFETY: the caller's promise: to or from nobody, one of both is used.
        return unsafe { sendrecv(data, dest, sendtag, into, source, recvtag, comm, status) };
    };
    // SAFETY: the caller's promise, until this returns.
    let view = unsafe { raw::view_mut(data.typed()?) };
    received(comm.comm.sendrecv_replace(view, (to, sendtag), (from, tag_of(recvtag))), status)
}

pub(crate) unsafe fn isendrecv_replace(
    data: Elements,
    dest: c_int,
    sendtag: c_int,
    source: c_int,
    recvtag: c_int,
    comm: Comm,
    request: Place,
) -> Done {
    let (dest, source, whole) = (comm.peer(dest)?, comm.source(source)?, data.typed()?);
    // What is sent is copied, and the copy kept until the request has ended.
    // SAFETY: the caller's promise.
    let copy = PackedCopy(unsafe { packed(&whole) }?);
    let exchange = Exchange {
        send: dest.map(|dest| (copy.typed(), dest)),
        recv: source.map(|source| (whole, source)),
        tags: (sendtag, tag_of(recvtag)),
    };
    // SAFETY: the caller's promise; the copy is kept by what is done at the end.
    let work = unsafe { exchange.start(&comm) }?;
    request.give_state(Subject::OfComm(comm), State::keeping(work, Box::new(copy)));
    Ok(())
}

/// A copy of what a message has.
struct PackedCopy(Vec<u8>);

impl PackedCopy {
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

static MESSAGES: Slots<MessageObject> = Slots::new("messages");

/// Makes a handle of a message, if there is one, and gives its status. Its place is there before the message is taken.
fn give_message(
    place: Reserved<MessageObject>,
    comm: Comm,
    found: Option<Message>,
    message: HandleOut,
    status: StatusOut,
) {
    let Some(found) = found else { return message.set(face::MESSAGE_NULL) };
    status.set(status_of(found.status()));
    let object = MessageObject { message: Mutex::new(Some(found)), subject: Subject::OfComm(comm) };
    message.set(place.fill(object));
}

fn give_message_of_nobody(message: HandleOut, status: StatusOut) {
    message.set(face::MESSAGE_NO_PROC);
    status.set(status_of_nobody());
}

pub(crate) fn mprobe(
    source: c_int,
    tag: c_int,
    comm: Comm,
    message: HandleOut,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        give_message_of_nobody(message, status);
        return Ok(());
    };
    let place = MESSAGES.reserve()?;
    let found = comm.comm.mprobe(source, tag_of(tag))?;
    give_message(place, comm, Some(found), message, status);
    Ok(())
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
        give_message_of_nobody(message, status);
        return Ok(());
    };
    let place = MESSAGES.reserve()?;
    let found = comm.comm.improbe(source, tag_of(tag))?;
    flag.set(c_int::from(found.is_some()));
    give_message(place, comm, found, message, status);
    Ok(())
}

/// Starts to receive the message of a handle, which is null after that. `None`: it is from nobody.
///
/// # Safety
/// As [`Request::recv_message`].
unsafe fn start_message(into: &Elements, handle: HandleOut) -> Done<Option<(Request, Subject)>> {
    let (typed, number) = (into.typed()?, handle.get());
    if number == face::MESSAGE_NO_PROC {
        handle.set(face::MESSAGE_NULL);
        return Ok(None);
    }
    let none = || arg::bad(face::ERR_REQUEST, number, "message", "message");
    let object = MESSAGES.get(number).ok_or_else(none)?;
    let message = lock(&object.message).take();
    MESSAGES.free(number);
    handle.set(face::MESSAGE_NULL);
    // SAFETY: the caller's promise.
    let started = unsafe { Request::recv_message(message.ok_or_else(none)?, &typed) };
    let subject = object.subject.clone();
    match started {
        Ok(started) => Ok(Some((started, subject))),
        Err(error) => Err(Fail::from(error).on(subject)),
    }
}

pub(crate) unsafe fn mrecv(into: Elements, message: HandleOut, status: StatusOut) -> Done {
    // SAFETY: the caller's promise, until this returns.
    match unsafe { start_message(&into, message) }? {
        Some((mut started, subject)) => {
            received(started.wait(), status).map_err(|fail| fail.on(subject))
        }
        None => {
            status.set(status_of_nobody());
            Ok(())
        }
    }
}

pub(crate) unsafe fn imrecv(into: Elements, message: HandleOut, request: Place) -> Done {
    // SAFETY: the caller's promise.
    match unsafe { start_message(&into, message) }? {
        Some((started, subject)) => request.give(subject, Work::One(started)),
        None => request.give(Subject::None, Work::nobody(false)),
    }
    Ok(())
}
