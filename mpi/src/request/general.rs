//! Generalized requests (MPI 4.1 §13.2): the program does the work, and says when it is done.

use super::{Place, REQUESTS, Rare, State, Work, find_some};
use crate::arg;
use crate::call::{Done, Fail, Subject};
use crate::face::{self, RawHandle, Status};
use gapless::raw;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;

type Query = unsafe extern "C" fn(*mut c_void, *mut Status) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type Cancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

/// Functions of the program.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    query: Query,
    free: Free,
    cancel: Cancel,
    extra: *mut c_void,
}

// SAFETY: MPI calls a generalized request's functions from any thread that completes, frees or cancels it.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl Functions {
    /// The status that the program gives.
    pub(super) fn query(self, status: &mut Status) -> Done {
        *status = super::empty_status();
        // SAFETY: the program gave this function for this state, and the status is a whole one.
        told(unsafe { (self.query)(self.extra, status) }, "query_fn")
    }

    /// Tells the program that its request is to be cancelled.
    pub(super) fn cancel(self, complete: bool) -> Done {
        // SAFETY: the program gave this function for this state.
        told(unsafe { (self.cancel)(self.extra, c_int::from(complete)) }, "cancel_fn")
    }
}

/// The functions of a request. When it is dropped without [`free`](General::free), the request is freed, too.
pub(super) struct General(Functions);

impl General {
    pub(super) fn functions(&self) -> Functions {
        self.0
    }

    pub(super) fn query(&self, status: &mut Status) -> Done {
        self.0.query(status)
    }

    /// Tells the program that the request is freed.
    pub(super) fn free(self) -> Done {
        let Functions { free, extra, .. } = ManuallyDrop::new(self).0;
        // SAFETY: the program gave this function for this state, and this is the last time: nothing is dropped.
        told(unsafe { free(extra) }, "free_fn")
    }
}

impl Drop for General {
    fn drop(&mut self) {
        // SAFETY: the program gave this function for this state, and this is the last time.
        unsafe { (self.0.free)(self.0.extra) };
    }
}

/// The error code that a function of the program gave is the call's.
fn told(code: c_int, name: &str) -> Done {
    match code {
        face::SUCCESS => Ok(()),
        code => Err(Fail::new(code, format!("{name} gave error code {code}"))),
    }
}

pub(crate) unsafe fn grequest_start(
    query: *const c_void,
    free: *const c_void,
    cancel: *const c_void,
    extra: *mut c_void,
    request: Place,
) -> Done {
    for (function, name) in [(query, "query_fn"), (free, "free_fn"), (cancel, "cancel_fn")] {
        arg::pointer(function.cast_mut(), name)?;
    }
    // SAFETY: it is not null, and a function of this type, as the first page of the crate says.
    let query = unsafe { std::mem::transmute::<*const c_void, Query>(query) };
    // SAFETY: as above.
    let free = unsafe { std::mem::transmute::<*const c_void, Free>(free) };
    // SAFETY: as above.
    let cancel = unsafe { std::mem::transmute::<*const c_void, Cancel>(cancel) };
    let work = Work::One(raw::Request::general(&arg::process()?.comm_self.comm)?);
    let general = Some(General(Functions { query, free, cancel, extra }));
    let state = State::with(work, Rare { general, ..Rare::default() });
    request.give_state(Subject::None, state.shared());
    Ok(())
}

pub(crate) fn grequest_complete(request: RawHandle) -> Done {
    let object = find_some(request)?;
    let freed = {
        let state = object.look();
        match (state.general(), state.raw()) {
            (Some(_), Some(request)) => request.complete()?,
            _ => {
                let why = "the request is not a generalized one";
                return Err(object.fails(Fail::new(face::ERR_REQUEST, why)));
            }
        }
        state.rare.as_ref().is_some_and(|rare| rare.freed)
    };
    if freed {
        REQUESTS.free(request);
    }
    Ok(())
}
