//! Requests (MPI 4.1 §3.7, §3.9, §13.2): what is in flight, of whatever kind.

use crate::arg::{self, HandleOut, Out, StatusOut, lock};
use crate::call::{Done, Fail, Subject};
use crate::comm::Comm;
use crate::face::{self, RawHandle, Status};
use crate::p2p::{status_of, status_of_nobody};
use crate::slots::{Object, Reserved, Slots};
use gapless::{Error, PmlError, raw};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

mod general;
mod several;

pub(crate) use general::{grequest_complete, grequest_start};
pub(crate) use several::*;

static REQUESTS: Slots<RequestObject> = Slots::new("requests");

/// What was over when it was started: all such requests are one, as they are in MPICH.
static OVER: RequestObject = RequestObject {
    state: RwLock::new(State { work: Work::nobody(false), shared: false, rare: None }),
    subject: Subject::None,
};

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
    /// A message to or from `MPI_PROC_NULL`, or what is over.
    Nobody {
        persistent: bool,
        active: bool,
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
    kept: Option<Box<dyn Send + Sync>>,
    /// The program has freed a generalized request that is not complete.
    freed: bool,
}

/// Where the handle of a new request goes. It is there before anything is started: a table that is full stops nothing that
/// is in flight.
pub(crate) struct Place {
    at: HandleOut,
    reserved: Reserved<RequestObject>,
}

impl Place {
    #[inline]
    pub(crate) fn new(at: HandleOut) -> Done<Place> {
        Ok(Place { at, reserved: REQUESTS.reserve()? })
    }

    /// What the handle will be.
    pub(crate) fn handle(&self) -> RawHandle {
        self.reserved.handle()
    }

    /// Gives the program a handle of what is in flight.
    #[inline]
    pub(crate) fn give(self, subject: Subject, work: Work) {
        match &work {
            Work::Nobody { persistent: false, .. } => self.give_over(),
            Work::One(request) if request.is_over() => self.give_over(),
            _ => self.give_state(subject, work.into()),
        }
    }

    /// Gives the program a request that is over.
    #[inline]
    pub(crate) fn give_over(self) {
        self.at.set(face::REQUEST_OVER);
    }

    #[inline]
    pub(crate) fn give_state(self, subject: Subject, state: State) {
        self.at.set(self.reserved.fill(RequestObject { state: RwLock::new(state), subject }));
    }
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
}

impl Work {
    pub(crate) const fn nobody(persistent: bool) -> Work {
        Work::Nobody { persistent, active: !persistent }
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

    /// What it waits for: nothing, one, or both parts of an exchange.
    fn parts(&self) -> &[raw::Request] {
        match self {
            Work::Nobody { .. } => &[],
            Work::One(request) | Work::SendAlone(request) => std::slice::from_ref(request),
            Work::Both(both) => &both[..],
        }
    }

    /// Whether all of it has ended, without taking anything.
    fn is_over(&self) -> bool {
        self.parts().iter().all(|request| !request.is_active() || request.peek().is_some())
    }

    /// The same, waited for: other threads may cancel it, complete it, or hand parts of it over meanwhile.
    fn await_end(&self) -> Done {
        for request in self.parts() {
            if request.is_active() && request.peek().is_none() {
                raw::Request::wait_any(&[request])?;
            }
        }
        Ok(())
    }
}

/// The request of a handle; `None`: `MPI_REQUEST_NULL`.
pub(crate) fn find(handle: RawHandle) -> Done<Option<Object<RequestObject>>> {
    match handle {
        face::REQUEST_NULL => Ok(None),
        face::REQUEST_OVER => Ok(Some(Object::Predefined(&OVER, handle))),
        handle => match REQUESTS.get(handle) {
            Some(request) => Ok(Some(Object::Made(request))),
            None => Err(arg::bad(face::ERR_REQUEST, handle, "request", "request")),
        },
    }
}

/// The same, where a null request is wrong.
pub(crate) fn find_some(handle: RawHandle) -> Done<Object<RequestObject>> {
    find(handle)?.ok_or_else(|| Fail::new(face::ERR_REQUEST, "request is MPI_REQUEST_NULL"))
}

/// The status of an inactive request, whose error is stored, too (MPI 4.1 §3.7.3).
pub(crate) fn empty_status() -> Status {
    Status::new(face::ANY_SOURCE, face::ANY_TAG, face::SUCCESS)
}

/// How a request ended: its status, what went wrong, and what is left to do.
pub(crate) struct Ended {
    status: Status,
    fail: Option<Fail>,
    rare: Option<Box<Rare>>,
}

impl Ended {
    fn new(status: Status, fail: Option<Fail>) -> Ended {
        Ended { status, fail, rare: None }
    }
}

impl From<Work> for State {
    #[inline]
    fn from(work: Work) -> State {
        State { work, shared: false, rare: None }
    }
}

impl State {
    fn with(work: Work, rare: Rare) -> State {
        State { rare: Some(Box::new(rare)), ..work.into() }
    }

    /// Something is done when it has ended.
    pub(crate) fn then(work: Work, then: Then) -> State {
        State::with(work, Rare { then: Some(then), ..Rare::default() })
    }

    /// It needs memory until it has ended; also if the request is freed before.
    pub(crate) fn keeping(work: Work, kept: Box<dyn Send + Sync>) -> State {
        State::with(work, Rare { kept: Some(kept), ..Rare::default() })
    }

    /// Other threads end it, or hand parts of it over.
    pub(crate) fn shared(self) -> State {
        State { shared: true, ..self }
    }

    fn general(&self) -> Option<&general::General> {
        self.rare.as_ref()?.general.as_ref()
    }

    /// What came of it.
    fn outcome(result: Result<gapless::Status, Error>) -> Ended {
        match result {
            Ok(status) => Ended::new(status_of(status), None),
            Err(Error::Message(failure)) if failure.error == PmlError::Cancelled => {
                let mut status = empty_status();
                status.set_cancelled(true);
                Ended::new(status, None)
            }
            Err(error) => {
                let status = error.status().map_or_else(empty_status, status_of);
                Ended::new(status, Some(error.into()))
            }
        }
    }

    /// Waits until it has ended, and takes how.
    pub(crate) fn wait(&mut self) -> Ended {
        let ended = match &mut self.work {
            Work::Nobody { persistent, active } => {
                *active = !*persistent;
                Ended::new(status_of_nobody(), None)
            }
            Work::One(request) => State::outcome(request.wait()),
            Work::SendAlone(request) => {
                Ended::new(status_of_nobody(), request.wait().err().map(Fail::from))
            }
            Work::Both(both) => {
                let [send, recv] = &mut **both;
                let (sent, mut ended) = (send.wait(), State::outcome(recv.wait()));
                ended.fail = ended.fail.or(sent.err().map(Fail::from));
                ended
            }
        };
        self.finish(ended)
    }

    /// How it ended, if it has; makes progress.
    pub(crate) fn test(&mut self) -> Option<Ended> {
        match &mut self.work {
            Work::Nobody { .. } => Some(self.wait()),
            Work::One(request) => {
                let ended = State::outcome(request.test()?);
                Some(self.finish(ended))
            }
            Work::SendAlone(_) | Work::Both(_) => self.is_over().then(|| self.wait()),
        }
    }

    /// What is left to do when it has ended: the library's part of it.
    fn finish(&mut self, mut ended: Ended) -> Ended {
        ended.rare = self.rare.take();
        if let Some(rare) = &mut ended.rare
            && let (Some(then), None, Work::One(request)) =
                (rare.then.take(), &ended.fail, &mut self.work)
        {
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

    fn is_over(&self) -> bool {
        self.work.is_over()
    }

    pub(crate) fn raw(&self) -> Option<&raw::Request> {
        self.work.parts().first()
    }
}

/// A request that has ended: its handle goes, unless it is persistent. Functions of the program are called: nothing is
/// locked.
fn settle(
    object: Object<RequestObject>,
    at: HandleOut,
    goes: bool,
    ended: Ended,
) -> (Status, Done) {
    let Ended { mut status, mut fail, rare } = ended;
    if let Some(general) = rare.and_then(|rare| rare.general) {
        let queried = if fail.is_none() { general.query(&mut status) } else { Ok(()) };
        let freed = general.free();
        fail = fail.or(queried.and(freed).err());
    }
    let done = fail.map_or(Ok(()), |fail| {
        status.error = fail.code;
        Err(object.fails(fail))
    });
    if goes {
        at.set(face::REQUEST_NULL);
        object.free();
    }
    (status, done)
}

/// Gives the status of a request that has ended; of none, or an inactive one, an empty one.
fn give_status(ended: Option<(Status, Done)>, status: StatusOut) -> Done {
    match ended {
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

pub(crate) fn wait(request: HandleOut, status: StatusOut) -> Done {
    let object = find(request.get())?;
    give_status(object.and_then(|object| several::wait_for(object, request)), status)
}

pub(crate) fn test(request: HandleOut, flag: Out<c_int>, status: StatusOut) -> Done {
    flag.set(1);
    let Some(object) = find(request.get())? else { return give_status(None, status) };
    if let Object::Predefined(..) = object {
        return give_status(several::wait_for(object, request), status);
    }
    let mut state = object.state();
    if !state.is_active() {
        return give_status(None, status);
    }
    let Some(ended) = state.test() else {
        flag.set(0);
        return Ok(());
    };
    let goes = state.goes();
    drop(state);
    give_status(Some(settle(object, request, goes, ended)), status)
}

pub(crate) fn request_free(request: HandleOut) -> Done {
    let object = find_some(request.get())?;
    if let Object::Predefined(..) = object {
        request.set(face::REQUEST_NULL);
        return Ok(());
    }
    let mut state = object.state();
    let over = state.is_over();
    let mut general = None;
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
        general = rare.general.take();
    }
    // Predefined ones are never disconnected.
    if let (Subject::OfComm(comm @ Object::Made(_)), false) = (&object.subject, over) {
        let work = std::mem::replace(&mut state.work, Work::nobody(false));
        comm.freed.add(work);
    }
    drop(state);
    let done = general.map_or(Ok(()), general::General::free);
    REQUESTS.free(request.get());
    request.set(face::REQUEST_NULL);
    done.map_err(|fail| object.fails(fail))
}

/// What is in flight on a communicator though the program has freed its requests.
#[derive(Default)]
pub(crate) struct Freed(Mutex<Vec<Work>>);

impl Freed {
    fn add(&self, work: Work) {
        let mut all = lock(&self.0);
        if all.len() == all.capacity() {
            all.retain(|work| !work.is_over());
        }
        all.push(work);
    }
}

/// Waits until nothing is in flight on a communicator.
pub(crate) fn await_all(comm: &Comm) -> Done {
    for object in REQUESTS.all().into_iter().filter_map(|handle| REQUESTS.get(handle)) {
        if matches!(&object.subject, Subject::OfComm(its) if its.handle() == comm.handle()) {
            // Other threads use the request meanwhile: it is locked for a look at a time.
            while !object.look().work.is_over() {
                std::thread::yield_now();
            }
        }
    }
    let freed = std::mem::take(&mut *lock(&comm.freed.0));
    freed.iter().try_for_each(Work::await_end)
}

pub(crate) fn cancel(request: HandleOut) -> Done {
    let object = find_some(request.get())?;
    let state = object.look();
    let Some(general) = state.general().map(general::General::functions) else {
        return match &state.work {
            Work::One(request) if request.is_active() => {
                request.cancel().map(drop).map_err(|error| object.fails(error))
            }
            _ => Ok(()),
        };
    };
    let complete = state.is_over();
    // The program's function may call MPI on this request: nothing is locked.
    drop(state);
    general.cancel(complete)
}

pub(crate) fn start(request: HandleOut) -> Done {
    match find_some(request.get())? {
        Object::Predefined(..) => Err(Fail::new(face::ERR_REQUEST, NOT_PERSISTENT)),
        object => begin(&object),
    }
}

pub(crate) fn startall(requests: Vec<HandleOut>) -> Done {
    requests.into_iter().try_for_each(start)
}

const NOT_PERSISTENT: &str = "the request is not persistent";

fn begin(object: &RequestObject) -> Done {
    let mut state = object.state();
    if !state.work.is_persistent() {
        return Err(object.fails(Fail::new(face::ERR_REQUEST, NOT_PERSISTENT)));
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
