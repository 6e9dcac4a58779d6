//! Errors: classes, what is said of them, and the handlers that are told (MPI 4.1 chapter 9).

use crate::arg::Out;
use crate::call::{Done, Fail, Subject};
use crate::comm::{self, Comm};
use crate::face::{self, RawHandle};
use crate::process;
use gapless::{Error, PmlError};
use std::cell::RefCell;
use std::ffi::{c_char, c_int};

/// An error handler, as objects have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handler(pub(crate) RawHandle);

impl Handler {
    pub(crate) const FATAL: Handler = Handler(face::ERRORS_ARE_FATAL);
}

pub(crate) fn find(handle: RawHandle) -> Option<Handler> {
    match handle {
        face::ERRORS_ARE_FATAL | face::ERRORS_ABORT | face::ERRORS_RETURN => Some(Handler(handle)),
        _ => None,
    }
}

thread_local! {
    /// The last error of this thread: its code, and what was said.
    static LAST: RefCell<(c_int, String)> = const { RefCell::new((0, String::new())) };
}

/// Tells a handler of an error; the code that the function gives.
#[cold]
pub(crate) fn handle(name: &'static str, subject: Subject, fail: &Fail) -> c_int {
    let subject = fail.subject.unwrap_or(subject);
    let of_comm = |handle| comm::find(handle).map(|comm| comm.errhandler());
    let default = || process::get().map(|process| process.comm_self.errhandler());
    let handler = match subject {
        Subject::Comm(handle) => of_comm(handle).or_else(default),
        _ => default(),
    };
    LAST.with_borrow_mut(|last| *last = (fail.code, format!("{name}: {}", fail.why)));
    match handler {
        Some(Handler(face::ERRORS_RETURN)) => fail.code,
        _ => fatal(name, fail.code, &fail.why),
    }
}

/// Ends the job, as `MPI_ERRORS_ARE_FATAL` does.
#[cold]
pub(crate) fn fatal(name: &str, code: c_int, why: &str) -> ! {
    let rank = process::get().map(|process| process.comm_world.comm.rank());
    let rank = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    eprintln!("gapless: {name}{rank} failed: {}: {why}", class_text(code));
    crate::env::end(code)
}

/// What an error class means (MPI 4.1 §9.4).
pub(crate) fn class_text(class: c_int) -> &'static str {
    match class {
        face::SUCCESS => "no error",
        face::ERR_BUFFER => "invalid buffer",
        face::ERR_COUNT => "invalid count",
        face::ERR_TYPE => "invalid datatype",
        face::ERR_TAG => "invalid tag",
        face::ERR_COMM => "invalid communicator",
        face::ERR_RANK => "invalid rank",
        face::ERR_REQUEST => "invalid request",
        face::ERR_ROOT => "invalid root",
        face::ERR_GROUP => "invalid group",
        face::ERR_OP => "invalid operation",
        face::ERR_TOPOLOGY => "invalid topology",
        face::ERR_ARG => "invalid argument",
        face::ERR_TRUNCATE => "message truncated",
        face::ERR_UNSUPPORTED_OPERATION => "unsupported operation",
        _ => "error",
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        Fail::new(class_of(&error), error.to_string())
    }
}

/// The class of an error of the library.
pub(crate) fn class_of(error: &Error) -> c_int {
    if error.lost_rank().is_some() {
        return face::ERR_PROC_ABORTED;
    }
    match error {
        Error::Message(failure) => match &failure.error {
            PmlError::Truncated { .. } => face::ERR_TRUNCATE,
            PmlError::SignatureMismatch { .. } => face::ERR_TYPE,
            PmlError::InvalidRank { .. } => face::ERR_RANK,
            PmlError::InvalidTag { .. } => face::ERR_TAG,
            PmlError::NoSuchComm | PmlError::InterComm | PmlError::IntraComm => face::ERR_COMM,
            _ => face::ERR_OTHER,
        },
        _ => face::ERR_OTHER,
    }
}

pub(crate) fn error_class(errorcode: c_int, errorclass: Out<c_int>) -> Done {
    errorclass.set(errorcode);
    Ok(())
}

pub(crate) unsafe fn error_string(
    errorcode: c_int,
    string: *mut c_char,
    resultlen: Out<c_int>,
) -> Done {
    let mut text = class_text(errorcode).to_owned();
    LAST.with_borrow(|(code, said)| {
        if *code == errorcode && errorcode != face::SUCCESS {
            text = format!("{text}: {said}");
        }
    });
    // SAFETY: as the first page of the crate says.
    unsafe { crate::env::give_text(&text, face::MAX_ERROR_STRING, string, resultlen) };
    Ok(())
}

pub(crate) fn comm_set_errhandler(comm: Comm, errhandler: Handler) -> Done {
    comm.set_errhandler(errhandler);
    Ok(())
}
