//! How exported functions run, and what becomes of their errors.

use crate::comm::Comm;
use crate::errhandler::{self, Handler};
use crate::face::{self, RawHandle};
use crate::process;
use crate::request::Place;
use std::borrow::Cow;
use std::ffi::c_int;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a function failed: an error class, or a code that a program has added, and what to say.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) code: c_int,
    pub(crate) why: Cow<'static, str>,
    /// Whose error it is, if that is not what the function was called on.
    pub(crate) subject: Option<Subject>,
}

/// What a function of MPI gives.
pub(crate) type Done<T = ()> = Result<T, Fail>;

/// Whose error handler is told of an error.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Comm(RawHandle),
    /// A communicator that may be freed before the error: of a request or a message.
    OfComm(Comm),
    Win(RawHandle),
    Session(RawHandle),
    File(RawHandle),
    /// This handler itself, and the null handle that it is told: of what could not be made, or has been freed.
    Handler(Handler, RawHandle),
    /// That of `MPI_COMM_SELF` (MPI 4.1 §9.3).
    None,
}

impl Fail {
    pub(crate) fn new(class: c_int, why: impl Into<Cow<'static, str>>) -> Fail {
        Fail { code: class, why: why.into(), subject: None }
    }

    /// The same, told to another handler.
    pub(crate) fn on(self, subject: Subject) -> Fail {
        Fail { subject: Some(subject), ..self }
    }

    pub(crate) fn unsupported() -> Fail {
        Fail::new(face::ERR_UNSUPPORTED_OPERATION, "Gapless does not have it")
    }
}

/// Runs a function that needs MPI to be initialized.
#[inline]
pub(crate) fn run(name: &'static str, subject: Subject, call: impl FnOnce() -> Done) -> c_int {
    if !process::is_open() {
        return process::not_open(name);
    }
    run_any_time(name, subject, call)
}

/// Runs a function that may be called at any time.
#[inline]
pub(crate) fn run_any_time(
    name: &'static str,
    subject: Subject,
    call: impl FnOnce() -> Done,
) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => face::SUCCESS,
        Ok(Err(fail)) => errhandler::handle(name, subject, &fail),
        Err(_) => {
            let why = "a panic inside the library: its message says where";
            errhandler::handle(name, subject, &Fail::new(face::ERR_INTERN, why))
        }
    }
}

/// Runs a function of the tools' interface: errors are told by its result alone (MPI 4.1 §15.3).
pub(crate) fn run_tool(_: &'static str, _: Subject, call: impl FnOnce() -> Done) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => face::SUCCESS,
        Ok(Err(fail)) if fail.code == face::ERR_UNSUPPORTED_OPERATION => face::T_ERR_NOT_SUPPORTED,
        Ok(Err(fail)) if fail.code == face::ERR_ARG => face::T_ERR_INVALID,
        Ok(Err(fail)) if fail.code == face::ERR_NO_MEM => face::T_ERR_OUT_OF_HANDLES,
        Ok(Err(fail)) => fail.code,
        Err(_) => face::T_ERR_INVALID,
    }
}

/// When a collective or a send ends, and where its request goes.
pub(crate) enum Form {
    Blocking,
    NonBlocking(Place),
    Persistent(Place),
}

/// Says something on standard error, if it can be written.
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{what}");
}
