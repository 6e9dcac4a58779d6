//! Requests (MPI 4.1 §3.7, §3.9, §13.2): what is in flight, of whatever kind.

use crate::arg::{self, HandleOut, Out, StatusOut};
use crate::call::{Done, Fail, Subject};
use crate::face::{self, RawHandle, Status};
use crate::p2p::{status_of, status_of_nobody};
use crate::slots::{InUse, Slots};
use gapless::{Error, PmlError, raw};
use std::ffi::c_int;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

mod general;
mod several;

pub(crate) use general::{grequest_complete, grequest_start};
pub(crate) use several::*;

pub(crate) static REQUESTS: Slots<RequestObject> = Slots::new();

/// What is done when a request has ended well, before its status is given.
pub(crate) type Then = Box<dyn FnOnce(&mut raw::Request) -> Done + Send + Sync>;

/// A request, as handles have it.
pub(crate) struct RequestObject {
    /// Shared by threads that wait for it, while others complete a generalized one.
    state: RwLock<State>,
    /// Whose error handler is told.
    subject: Subject,
}

/// What a request waits for.
pub(crate) enum Work {
    One(raw::Request),
    /// A send, and the receive whose status is given.
    Both(Box<[raw::Request; 2]>),
    /// A send of an exchange that receives from nobody: the status is of that.
    SendAlone(raw::Request),
    /// A message to or from `MPI_PROC_NULL`.
    Nobody {
        persistent: bool,
        active: bool,
        status: Status,
    },
}

pub(crate) struct State {
    work: Work,
    /// Whether other threads end it, or hand parts of it over: then who waits shares it.
    shared: bool,
    /// Most have none.
    rare: Option<Box<Rare>>,
}

/// What few requests have.
#[derive(Default)]
struct Rare {
    then: Option<Then>,
    general: Option<general::General>,
    /// Memory that it needs until it has ended.
    kept: Option<Box<dyn Send + Sync>>,
    /// The program has freed a generalized request that is not complete.
    freed: bool,
}

impl RequestObject {
    pub(crate) fn state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, to look at.
    pub(crate) fn look(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error that its error handler is told.
    pub(crate) fn fails(&self, error: impl Into<Fail>) -> Fail {
        error.into().on(self.subject.clone())
    }

    /// Waits until all of a request has ended, by looking at its state: other threads may cancel it, complete it, or hand
    /// parts of it over meanwhile.
    fn await_shared(&self) -> Done {
        let state = self.look();
        for request in state.parts() {
            if request.is_active() && request.peek().is_none() {
                raw::Request::wait_any(&[request])?;
            }
        }
        Ok(())
    }
}

impl Work {
    pub(crate) fn nobody(persistent: bool) -> Work {
        Work::Nobody { persistent, active: !persistent, status: status_of_nobody() }
    }

    fn is_active(&self) -> bool {
        match self {
            Work::One(request) | Work::SendAlone(request) => request.is_active(),
            Work::Both(both) => both.iter().any(raw::Request::is_active),
            Work::Nobody { active, .. } => *active,
        }
    }

    fn is_persistent(&self) -> bool {
        match self {
            Work::One(request) => request.is_persistent(),
            Work::Both(..) | Work::SendAlone(_) => false,
            Work::Nobody { persistent, .. } => *persistent,
        }
    }
}

/// Makes a handle of what is in flight.
pub(crate) fn give(request: HandleOut, subject: Subject, work: Work) -> Done {
    give_then(request, subject, work, None)
}

/// The same, of which something is done when it has ended.
pub(crate) fn give_then(
    request: HandleOut,
    subject: Subject,
    work: Work,
    then: Option<Then>,
) -> Done {
    give_state(
        request,
        subject,
        State::with(work, then.map(|then| Rare { then: Some(then), ..Rare::default() })),
    )
}

/// The same, of a partitioned message: threads hand partitions over while others wait.
pub(crate) fn give_shared(request: HandleOut, subject: Subject, work: raw::Request) -> Done {
    let state = State { shared: true, ..State::with(Work::One(work), None) };
    give_state(request, subject, state)
}

/// The same, which keeps memory until it has ended; also if the request is freed before.
pub(crate) fn give_keeping(
    request: HandleOut,
    subject: Subject,
    work: Work,
    kept: Box<dyn Send + Sync>,
) -> Done {
    give_state(
        request,
        subject,
        State::with(work, Some(Rare { kept: Some(kept), ..Rare::default() })),
    )
}

fn give_state(request: HandleOut, subject: Subject, state: State) -> Done {
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million requests");
    let object = RequestObject { state: RwLock::new(state), subject };
    request.set(REQUESTS.insert(object).ok_or_else(full)?);
    Ok(())
}

/// The request of a handle; `None`: `MPI_REQUEST_NULL`.
pub(crate) fn find(handle: RawHandle) -> Done<Option<InUse<RequestObject>>> {
    if handle == face::REQUEST_NULL {
        return Ok(None);
    }
    match REQUESTS.get(handle) {
        Some(request) => Ok(Some(request)),
        None => Err(arg::bad(face::ERR_REQUEST, handle, "request", "request")),
    }
}

/// The same, where a null request is wrong.
pub(crate) fn find_some(handle: RawHandle) -> Done<InUse<RequestObject>> {
    find(handle)?.ok_or_else(|| Fail::new(face::ERR_REQUEST, "request is MPI_REQUEST_NULL"))
}

/// The status of an inactive request, whose error is stored, too (MPI 4.1 §3.7.3).
pub(crate) fn empty_status() -> Status {
    Status::new(face::ANY_SOURCE, face::ANY_TAG, face::SUCCESS)
}

/// How a request ended: its status, and what went wrong.
pub(crate) struct Ended {
    pub(crate) status: Status,
    pub(crate) fail: Option<Fail>,
}

impl State {
    fn with(work: Work, rare: Option<Rare>) -> State {
        State { work, shared: false, rare: rare.map(Box::new) }
    }

    fn general(&self) -> Option<&general::General> {
        self.rare.as_ref()?.general.as_ref()
    }

    /// What came of it.
    fn outcome(&mut self, result: Result<gapless::Status, Error>) -> Ended {
        match result {
            Ok(status) => Ended { status: status_of(status), fail: None },
            Err(Error::Message(failure)) if failure.error == PmlError::Cancelled => {
                let mut status = empty_status();
                status.set_cancelled(true);
                Ended { status, fail: None }
            }
            Err(error) => {
                let mut status = error.status().map_or_else(empty_status, status_of);
                let fail = Fail::from(error);
                status.error = fail.code;
                Ended { status, fail: Some(fail) }
            }
        }
    }

    /// Waits until it has ended, and takes how.
    pub(crate) fn wait(&mut self) -> Ended {
        let ended = match &mut self.work {
            Work::Nobody { active, status, .. } => {
                *active = false;
                Ended { status: *status, fail: None }
            }
            Work::One(request) => {
                let result = request.wait();
                self.outcome(result)
            }
            Work::SendAlone(request) => {
                let fail = request.wait().err().map(Fail::from);
                Ended { status: status_of_nobody(), fail }
            }
            Work::Both(both) => {
                let [send, recv] = &mut **both;
                let (sent, received) = (send.wait(), recv.wait());
                let ended = self.outcome(received);
                match (ended.fail.is_none(), sent) {
                    (true, Err(error)) => Ended { fail: Some(error.into()), ..ended },
                    _ => ended,
                }
            }
        };
        self.finish(ended)
    }

    /// How it ended, if it has; makes progress.
    pub(crate) fn test(&mut self) -> Option<Ended> {
        match &mut self.work {
            Work::Nobody { .. } => Some(self.wait()),
            Work::One(request) => {
                let result = request.test()?;
                let ended = self.outcome(result);
                Some(self.finish(ended))
            }
            Work::SendAlone(request) => request.peek().is_some().then(|| self.wait()),
            Work::Both(_) => self.is_over().then(|| self.wait()),
        }
    }

    /// What is left to do when it has ended.
    fn finish(&mut self, mut ended: Ended) -> Ended {
        if let Some(rare) = self.rare.take() {
            ended = self.finish_rare(*rare, ended);
        }
        if let Some(fail) = &ended.fail {
            ended.status.error = fail.code;
        }
        ended
    }

    fn finish_rare(&mut self, rare: Rare, mut ended: Ended) -> Ended {
        if let Some(general) = rare.general {
            let queried = match ended.fail {
                None => general.query(&mut ended.status),
                Some(_) => Ok(()),
            };
            let freed = general.free();
            ended.fail = ended.fail.or(queried.and(freed).err());
        }
        if let (Some(then), None, Work::One(request)) = (rare.then, &ended.fail, &mut self.work) {
            ended.fail = then(request).err();
        }
        ended
    }

    /// Whether its handle goes when it has ended.
    pub(crate) fn goes(&self) -> bool {
        !self.work.is_persistent()
    }

    pub(crate) fn is_active(&self) -> bool {
        self.work.is_active()
    }

    /// Whether all of it has ended, without taking anything.
    fn is_over(&self) -> bool {
        self.parts().iter().all(|request| !request.is_active() || request.peek().is_some())
    }

    /// What it waits for: nothing, one, or both parts of an exchange.
    fn parts(&self) -> &[raw::Request] {
        match &self.work {
            Work::Nobody { .. } => &[],
            Work::One(request) | Work::SendAlone(request) => std::slice::from_ref(request),
            Work::Both(both) => &both[..],
        }
    }

    pub(crate) fn raw(&self) -> Option<&raw::Request> {
        match &self.work {
            Work::One(request) | Work::SendAlone(request) => Some(request),
            Work::Both(both) => Some(&both[0]),
            Work::Nobody { .. } => None,
        }
    }
}

/// A request that has ended: its handle goes, unless it is persistent.
fn settle(object: &RequestObject, at: HandleOut, goes: bool, ended: Ended) -> (Status, Done) {
    if goes {
        REQUESTS.free(at.get());
        at.set(face::REQUEST_NULL);
    }
    let fail = ended.fail.map(|fail| object.fails(fail));
    (ended.status, fail.map_or(Ok(()), Err))
}

pub(crate) fn wait(request: HandleOut, status: StatusOut) -> Done {
    let Some(object) = find(request.get())? else {
        status.set_all(empty_status());
        return Ok(());
    };
    match several::wait_for(&object, request) {
        Some((came, done)) => {
            status.set(came);
            done
        }
        None => {
            status.set_all(empty_status());
            Ok(())
        }
    }
}

pub(crate) fn test(request: HandleOut, flag: Out<c_int>, status: StatusOut) -> Done {
    flag.set(1);
    let Some(object) = find(request.get())? else {
        status.set_all(empty_status());
        return Ok(());
    };
    let mut state = object.state();
    if !state.is_active() {
        status.set_all(empty_status());
        return Ok(());
    }
    let Some(ended) = state.test() else {
        flag.set(0);
        return Ok(());
    };
    let goes = state.goes();
    drop(state);
    let (came, done) = settle(&object, request, goes, ended);
    status.set(came);
    done
}

pub(crate) fn request_free(request: HandleOut) -> Done {
    let object = find_some(request.get())?;
    let mut state = object.state();
    let over = state.is_over();
    let mut done = Ok(());
    if let Some(rare) = &mut state.rare {
        if let Some(kept) = rare.kept.take().filter(|_| !over) {
            // Nobody can tell when it has ended: the memory stays. This is seldom.
            std::mem::forget(kept);
        }
        if rare.general.is_some() && !over {
            // It goes when the program completes it (MPI 4.1 §13.2).
            rare.freed = true;
            request.set(face::REQUEST_NULL);
            return Ok(());
        }
        if let Some(general) = rare.general.take() {
            done = general.free();
        }
    }
    drop(state);
    REQUESTS.free(request.get());
    request.set(face::REQUEST_NULL);
    done.map_err(|fail| object.fails(fail))
}

pub(crate) fn cancel(request: HandleOut) -> Done {
    let object = find_some(request.get())?;
    let general = {
        let state = object.look();
        if let Work::One(request) = &state.work
            && state.general().is_none()
            && request.is_active()
        {
            return request.cancel().map(drop).map_err(|error| object.fails(error));
        }
        let complete = state.is_over();
        state.general().map(|general| (general.canceller(), complete))
    };
    // The program's function may call MPI on this request: nothing is locked.
    general.map_or(Ok(()), |(cancel, complete)| cancel.call(complete))
}

pub(crate) fn start(request: HandleOut) -> Done {
    let object = find_some(request.get())?;
    begin(&object)
}

pub(crate) unsafe fn startall(count: c_int, requests: *mut RawHandle) -> Done {
    // SAFETY: the caller's promise.
    for at in unsafe { several::places(count, requests) }? {
        start(at)?;
    }
    Ok(())
}

fn begin(object: &RequestObject) -> Done {
    let mut state = object.state();
    if !state.work.is_persistent() {
        let why = "the request is not persistent";
        return Err(object.fails(Fail::new(face::ERR_REQUEST, why)));
    }
    if state.work.is_active() {
        return Err(object.fails(Fail::new(face::ERR_REQUEST, "the request is active")));
    }
    match &mut state.work {
        Work::One(request) => request.start().map_err(|error| object.fails(error)),
        Work::Both(..) | Work::SendAlone(_) => Ok(()),
        Work::Nobody { active, .. } => {
            *active = true;
            Ok(())
        }
    }
}
