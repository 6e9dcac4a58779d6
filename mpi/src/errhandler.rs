//! Error handlers (MPI 4.1 §9.3): objects that communicators, windows and sessions have, and that are told of errors.
//!
//! A handler lives as long as anybody has it: the program, from each create or get to a free, and each object that it was
//! set on. Its handle is one number for all of that time.

use crate::arg::{self, HandleOut, Text, lock, pointer};
use crate::call::{Done, Fail, Subject};
use crate::comm;
use crate::face::{self, RawHandle};
use crate::process;
use crate::session;
use crate::slots::{Object, Slots};
use crate::win;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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

static ERRHANDLERS: Slots<Arc<Made>> = Slots::new("error handlers");

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

/// The error handler of an object.
pub(crate) struct HandlerSlot(Mutex<Handler>);

impl HandlerSlot {
    pub(crate) const fn new(errhandler: Handler) -> HandlerSlot {
        HandlerSlot(Mutex::new(errhandler))
    }

    pub(crate) fn get(&self) -> Handler {
        lock(&self.0).clone()
    }

    fn set(&self, errhandler: Handler) {
        let before = std::mem::replace(&mut *lock(&self.0), errhandler);
        drop(before);
    }
}

/// Something that has an error handler.
pub(crate) trait Handled: 'static {
    const KIND: Kind;

    fn errhandler(&self) -> &HandlerSlot;
}

/// What files have: none is open, so they all have what `MPI_FILE_NULL` has (MPI 4.1 §14.7).
pub(crate) struct FileObject(HandlerSlot);

pub(crate) type File = Object<FileObject>;

static FILES: FileObject = FileObject(HandlerSlot::new(Handler::RETURN));

/// `MPI_FILE_NULL`.
pub(crate) fn no_file() -> File {
    Object::Predefined(&FILES, face::FILE_NULL)
}

impl Handled for FileObject {
    const KIND: Kind = Kind::File;

    fn errhandler(&self) -> &HandlerSlot {
        &self.0
    }
}

/// The handler of a subject, and the handle that it is told.
fn handler_of(subject: &Subject) -> Option<(Handler, RawHandle)> {
    fn of<T: Handled>(object: &Object<T>) -> (Handler, RawHandle) {
        (object.errhandler().get(), object.handle())
    }
    match *subject {
        Subject::Comm(handle) => comm::find(handle).as_ref().map(of),
        Subject::OfComm(ref comm) => Some(of(comm)),
        Subject::Session(handle) => session::find(handle).as_ref().map(of),
        Subject::File(handle) => Some((FILES.0.get(), handle)),
        Subject::Handler(ref handler, on) => Some((handler.clone(), on)),
        Subject::Win(handle) => win::find(handle).as_ref().map(of),
        Subject::None => None,
    }
}

/// Tells a handler of an error; the code that the function gives.
#[cold]
pub(crate) fn handle(name: &'static str, subject: Subject, fail: &Fail) -> c_int {
    // A thread that ends has no last error any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (fail.code, format!("{name}: {}", fail.why)));
    let default = || {
        let of_self = process::get().map(|process| process.comm_self.errhandler().get());
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
pub(crate) unsafe fn create(kind: Kind, function: *const c_void, errhandler: HandleOut) -> Done {
    pointer(function.cast_mut(), "the function of an error handler")?;
    // SAFETY: it is not null, and a function of this type, as the first page of the crate says.
    let function = unsafe { std::mem::transmute::<*const c_void, Function>(function) };
    let made = Arc::new(Made { function, kind, references: AtomicUsize::new(1) });
    errhandler.set(ERRHANDLERS.insert(made)?);
    Ok(())
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

/// Tells the handler of an object of an error of the program's own.
pub(crate) fn call<T: Handled>(object: Object<T>, code: c_int) -> Done {
    let text = text_of(code).ok_or_else(|| no_code(code))?;
    let name = format!("MPI_{:?}_call_errhandler", T::KIND);
    object.errhandler().get().tell(&name, object.handle(), code, &text);
    Ok(())
}

pub(crate) fn set<T: Handled>(object: Object<T>, errhandler: Handler) -> Done {
    object.errhandler().set(errhandler.fits(T::KIND)?);
    Ok(())
}

pub(crate) fn get<T: Handled>(object: Object<T>, errhandler: HandleOut) -> Done {
    object.errhandler().get().give(errhandler)
}

pub(crate) fn comm_set_errhandler(comm: RawHandle, errhandler: Handler) -> Done {
    match comm::of_unmade(comm) {
        Some(its) => its.set(errhandler.fits(Kind::Comm)?),
        None => set(arg::comm(comm, "comm")?, errhandler)?,
    }
    Ok(())
}

pub(crate) fn comm_get_errhandler(comm: RawHandle, errhandler: HandleOut) -> Done {
    match comm::of_unmade(comm) {
        Some(its) => its.get().give(errhandler),
        None => get(arg::comm(comm, "comm")?, errhandler),
    }
}

pub(crate) fn error_string(errorcode: c_int, string: Text) -> Done {
    let mut text = text_of(errorcode).ok_or_else(|| no_code(errorcode))?;
    let _ = LAST.try_with(|last| {
        let (code, said) = &*last.borrow();
        if *code == errorcode && errorcode != face::SUCCESS && is_predefined(errorcode) {
            text = format!("{text}: {said}");
        }
    });
    string.give(&text)
}
