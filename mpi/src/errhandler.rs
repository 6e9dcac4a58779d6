//! Error handlers (MPI 4.1 §9.3): objects that communicators, windows and sessions have, and that are told of errors.
//!
//! A handler lives as long as anybody has it: the program, from each create or get to a free, and each object that it was
//! set on. Its handle is one number for all of that time.

use crate::arg::{self, HandleOut, Out, pointer};
use crate::call::{Done, Fail, Subject};
use crate::comm::{self, Comm};
use crate::face::{self, RawHandle};
use crate::process;
use crate::session::{self, Session};
use crate::slots::Slots;
use crate::win::{self, Win};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

mod class;
mod codes;

pub(crate) use codes::*;

/// A function of the program. Others may follow the two arguments, of which MPI says nothing.
type Function = unsafe extern "C" fn(*mut RawHandle, *mut c_int, ...);

/// What a handler may be set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Comm,
    Win,
    Session,
    File,
}

/// A handler that a program has made.
#[derive(Debug)]
pub(crate) struct Made {
    function: Function,
    kind: Kind,
    /// The program's references, and those of objects.
    references: AtomicUsize,
}

static ERRHANDLERS: Slots<Arc<Made>> = Slots::new();

/// An error handler, as objects have it: one reference.
#[derive(Debug)]
pub(crate) struct Handler {
    handle: RawHandle,
    made: Option<Arc<Made>>,
}

impl Handler {
    pub(crate) const FATAL: Handler = Handler { handle: face::ERRORS_ARE_FATAL, made: None };
    const RETURN: Handler = Handler { handle: face::ERRORS_RETURN, made: None };

    fn of(handle: RawHandle, made: &Arc<Made>) -> Handler {
        made.references.fetch_add(1, Ordering::Relaxed);
        Handler { handle, made: Some(Arc::clone(made)) }
    }

    /// Whether it may be set on such an object.
    pub(crate) fn fits(self, kind: Kind) -> Done<Handler> {
        match &self.made {
            Some(made) if made.kind != kind => {
                let why = format!("the error handler was made for a {:?}", made.kind);
                Err(Fail::new(face::ERR_ERRHANDLER, why))
            }
            _ => Ok(self),
        }
    }

    /// Gives it to the program: one more reference.
    pub(crate) fn give(&self, errhandler: HandleOut) -> Done {
        if let Some(made) = &self.made {
            made.references.fetch_add(1, Ordering::Relaxed);
        }
        errhandler.set(self.handle);
        Ok(())
    }

    /// Tells it of an error of an object: the code that the function gives.
    fn tell(&self, name: &str, on: RawHandle, code: c_int, why: &str) -> c_int {
        match (&self.made, self.handle) {
            (Some(made), _) => {
                let (mut on, mut code) = (on, code);
                // SAFETY: the program gave this function for such a handle and a code; both are places of this call.
                unsafe { (made.function)(&raw mut on, &raw mut code) };
                code
            }
            (None, face::ERRORS_RETURN) => code,
            (None, _) => fatal(name, code, why),
        }
    }
}

impl Clone for Handler {
    fn clone(&self) -> Handler {
        match &self.made {
            Some(made) => Handler::of(self.handle, made),
            None => Handler { handle: self.handle, made: None },
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if let Some(made) = &self.made
            && made.references.fetch_sub(1, Ordering::Relaxed) == 1
        {
            ERRHANDLERS.free(self.handle);
        }
    }
}

pub(crate) fn find(handle: RawHandle) -> Option<Handler> {
    match handle {
        face::ERRORS_ARE_FATAL | face::ERRORS_ABORT | face::ERRORS_RETURN => {
            Some(Handler { handle, made: None })
        }
        handle => ERRHANDLERS.get(handle).map(|made| Handler::of(handle, &made)),
    }
}

thread_local! {
    /// The last error of this thread: its code, and what was said.
    static LAST: RefCell<(c_int, String)> = const { RefCell::new((0, String::new())) };
}

/// That of files: none is open, so they all have what `MPI_FILE_NULL` has (MPI 4.1 §14.7).
static OF_FILES: Mutex<Handler> = Mutex::new(Handler::RETURN);

fn of_files() -> Handler {
    OF_FILES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The handler of a subject, and the handle that it is told.
fn handler_of(subject: &Subject) -> Option<(Handler, RawHandle)> {
    match *subject {
        Subject::Comm(handle) => comm::find(handle).map(|comm| (comm.errhandler(), handle)),
        Subject::OfComm(ref comm) => Some((comm.errhandler(), comm.handle())),
        Subject::Session(handle) => {
            session::find(handle).map(|session| (session.errhandler(), handle))
        }
        Subject::File(handle) => Some((of_files(), handle)),
        Subject::Handler(ref handler, on) => Some((handler.clone(), on)),
        Subject::Win(handle) => win::find(handle).map(|win| (win.errhandler(), handle)),
        Subject::None => None,
    }
}

/// Tells a handler of an error; the code that the function gives.
#[cold]
pub(crate) fn handle(name: &'static str, subject: Subject, fail: &Fail) -> c_int {
    // A thread that ends has no last error any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (fail.code, format!("{name}: {}", fail.why)));
    let default = || {
        let of_self = process::get().map(|process| process.comm_self.errhandler());
        (of_self.unwrap_or(Handler::FATAL), face::COMM_SELF)
    };
    let (handler, on) =
        handler_of(fail.subject.as_ref().unwrap_or(&subject)).unwrap_or_else(default);
    handler.tell(name, on, fail.code, &fail.why)
}

/// Ends the job, as `MPI_ERRORS_ARE_FATAL` does.
#[cold]
pub(crate) fn fatal(name: &str, code: c_int, why: &str) -> ! {
    let rank = process::get().map(|process| process.comm_world.comm.rank());
    let rank = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    crate::call::say(format_args!(
        "gapless: {name}{rank} failed: {}: {why}",
        text_of(code).unwrap_or_default()
    ));
    // A process that ends with a multiple of 256 looks as if all were well.
    crate::env::end(if code & 0xff == 0 { 1 } else { code })
}

/// A handler that calls a function of the program.
fn create(function: *const c_void, kind: Kind, errhandler: HandleOut) -> Done {
    pointer(function.cast_mut(), "the function of an error handler")?;
    // SAFETY: it is not null, and a function of this type, as the first page of the crate says.
    let function = unsafe { std::mem::transmute::<*const c_void, Function>(function) };
    let made = Arc::new(Made { function, kind, references: AtomicUsize::new(1) });
    let full = || Fail::new(face::ERR_NO_MEM, "there are a million error handlers");
    errhandler.set(ERRHANDLERS.insert(made).ok_or_else(full)?);
    Ok(())
}

pub(crate) unsafe fn comm_create_errhandler(f: *const c_void, errhandler: HandleOut) -> Done {
    create(f, Kind::Comm, errhandler)
}

pub(crate) unsafe fn win_create_errhandler(f: *const c_void, errhandler: HandleOut) -> Done {
    create(f, Kind::Win, errhandler)
}

pub(crate) unsafe fn session_create_errhandler(f: *const c_void, errhandler: HandleOut) -> Done {
    create(f, Kind::Session, errhandler)
}

pub(crate) unsafe fn file_create_errhandler(f: *const c_void, errhandler: HandleOut) -> Done {
    create(f, Kind::File, errhandler)
}

pub(crate) unsafe fn errhandler_create(f: *const c_void, errhandler: HandleOut) -> Done {
    create(f, Kind::Comm, errhandler)
}

pub(crate) fn errhandler_free(errhandler: HandleOut) -> Done {
    let handler = arg::errhandler(errhandler.get(), "errhandler")?;
    if let Some(made) = &handler.made {
        // The program's; `handler` still has one.
        made.references.fetch_sub(1, Ordering::Relaxed);
    }
    errhandler.set(face::ERRHANDLER_NULL);
    Ok(())
}

/// Tells a handler of an error of the program's own.
fn call(name: &'static str, (handler, on): (Handler, RawHandle), code: c_int) -> Done {
    let text = text_of(code).ok_or_else(|| no_code(code))?;
    handler.tell(name, on, code, &text);
    Ok(())
}

pub(crate) fn comm_set_errhandler(comm: RawHandle, errhandler: Handler) -> Done {
    let errhandler = errhandler.fits(Kind::Comm)?;
    if !comm::set_unmade(comm, &errhandler) {
        arg::comm(comm, "comm")?.set_errhandler(errhandler);
    }
    Ok(())
}

pub(crate) fn comm_get_errhandler(comm: RawHandle, errhandler: HandleOut) -> Done {
    match comm::of_unmade(comm) {
        Some(its) => its.give(errhandler),
        None => arg::comm(comm, "comm")?.errhandler().give(errhandler),
    }
}

pub(crate) fn comm_call_errhandler(comm: Comm, errorcode: c_int) -> Done {
    call("MPI_Comm_call_errhandler", (comm.errhandler(), comm.handle()), errorcode)
}

pub(crate) fn errhandler_set(comm: Comm, errhandler: Handler) -> Done {
    comm_set_errhandler(comm.handle(), errhandler)
}

pub(crate) fn errhandler_get(comm: Comm, errhandler: HandleOut) -> Done {
    comm_get_errhandler(comm.handle(), errhandler)
}

pub(crate) fn win_set_errhandler(win: Win, errhandler: Handler) -> Done {
    win.set_errhandler(errhandler.fits(Kind::Win)?);
    Ok(())
}

pub(crate) fn win_get_errhandler(win: Win, errhandler: HandleOut) -> Done {
    win.errhandler().give(errhandler)
}

pub(crate) fn win_call_errhandler(win: Win, errorcode: c_int) -> Done {
    call("MPI_Win_call_errhandler", (win.errhandler(), win.handle()), errorcode)
}

pub(crate) fn session_set_errhandler(session: Session, errhandler: Handler) -> Done {
    session.set_errhandler(errhandler.fits(Kind::Session)?);
    Ok(())
}

pub(crate) fn session_get_errhandler(session: Session, errhandler: HandleOut) -> Done {
    session.errhandler().give(errhandler)
}

pub(crate) fn session_call_errhandler(session: Session, errorcode: c_int) -> Done {
    call("MPI_Session_call_errhandler", (session.errhandler(), session.handle()), errorcode)
}

/// There is no file but `MPI_FILE_NULL`, whose handler new files get.
fn no_file(file: RawHandle) -> Done {
    match file {
        face::FILE_NULL => Ok(()),
        file => Err(arg::bad(face::ERR_FILE, file, "file", "file")),
    }
}

pub(crate) fn file_set_errhandler(file: RawHandle, errhandler: Handler) -> Done {
    no_file(file)?;
    let errhandler = errhandler.fits(Kind::File)?;
    let mut of_files = OF_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *of_files, errhandler);
    drop(of_files);
    drop(before);
    Ok(())
}

pub(crate) fn file_get_errhandler(file: RawHandle, errhandler: HandleOut) -> Done {
    no_file(file)?;
    of_files().give(errhandler)
}

pub(crate) fn file_call_errhandler(file: RawHandle, errorcode: c_int) -> Done {
    no_file(file)?;
    call("MPI_File_call_errhandler", (of_files(), file), errorcode)
}

pub(crate) unsafe fn error_string(
    errorcode: c_int,
    string: *mut c_char,
    resultlen: Out<c_int>,
) -> Done {
    let mut text = text_of(errorcode).ok_or_else(|| no_code(errorcode))?;
    let _ = LAST.try_with(|last| {
        let (code, said) = &*last.borrow();
        if *code == errorcode && errorcode != face::SUCCESS && is_predefined(errorcode) {
            text = format!("{text}: {said}");
        }
    });
    // SAFETY: as the first page of the crate says.
    unsafe { crate::env::give_text(&text, face::MAX_ERROR_STRING, string, resultlen) };
    Ok(())
}
