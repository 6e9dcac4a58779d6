//! The environment: start and end, versions (MPI 4.1 chapters 9 and 11).

use crate::arg::{self, Out};
use crate::attr::Attributed;
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::info::Info;
use crate::process::{self, Stage, User};
use gapless::SharedBuf;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

mod abi;

pub(crate) use abi::*;

/// The thread that has initialized MPI.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

/// Copies a text to where C wants it, as much as there is room for, and 0 behind it.
///
/// # Safety
/// There is room for `room` characters.
pub(crate) unsafe fn give_text(text: &str, room: c_int, into: *mut c_char, len: Out<c_int>) {
    let most = usize::try_from(room).unwrap_or(1).saturating_sub(1);
    let bytes = text.as_bytes().get(..text.len().min(most)).unwrap_or_default();
    // SAFETY: `bytes` are fewer than there is room for, and lie elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len()) };
    // SAFETY: one more than `bytes` are at most `room`.
    unsafe { into.wrapping_add(bytes.len()).write(0) };
    len.set(c_int::try_from(bytes.len()).unwrap_or(0));
}

/// Ends all processes of the job.
pub(crate) fn end(code: c_int) -> ! {
    if let Some(process) = process::get() {
        process.with_world(|world| world.abort(code));
    }
    std::process::exit(code)
}

/// The name of this host.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "localhost".to_owned(), |name| name.trim_end().to_owned())
}

fn start() -> Done {
    let why = match process::stage() {
        Stage::Before => None,
        Stage::Open => Some("MPI is initialized already"),
        Stage::Finalized => Some("MPI was finalized, and cannot be initialized again"),
    };
    if let Some(why) = why {
        return Err(Fail::new(face::ERR_OTHER, why));
    }
    process::join(User::WorldModel)?;
    let _ = MAIN.set(std::thread::current().id());
    Ok(())
}

pub(crate) fn init(_argc: *mut c_void, _argv: *mut c_void) -> Done {
    start()
}

pub(crate) fn init_thread(
    _argc: *mut c_void,
    _argv: *mut c_void,
    required: c_int,
    provided: Out<c_int>,
) -> Done {
    let levels = face::THREAD_SINGLE..=face::THREAD_MULTIPLE;
    if !levels.contains(&required) {
        let why = format!("there is no thread level {required}");
        return Err(Fail::new(face::ERR_ARG, why));
    }
    start()?;
    if required == face::THREAD_MULTIPLE {
        process::set_threaded();
    }
    provided.set(face::THREAD_MULTIPLE);
    Ok(())
}

pub(crate) fn query_thread(provided: Out<c_int>) -> Done {
    provided.set(face::THREAD_MULTIPLE);
    Ok(())
}

pub(crate) fn is_thread_main(flag: Out<c_int>) -> Done {
    flag.set(c_int::from(MAIN.get() == Some(&std::thread::current().id())));
    Ok(())
}

pub(crate) fn finalize() -> Done {
    if process::stage() != Stage::Open {
        return Err(Fail::new(face::ERR_OTHER, "MPI_Init was not called, or MPI was finalized"));
    }
    // Before anything else ends (MPI 4.1 §11.2.4).
    arg::process()?.comm_self.attributes().delete_all(face::COMM_SELF)?;
    process::leave(User::WorldModel)
}

pub(crate) fn initialized(flag: Out<c_int>) -> Done {
    flag.set(c_int::from(process::stage() != Stage::Before));
    Ok(())
}

pub(crate) fn finalized(flag: Out<c_int>) -> Done {
    flag.set(c_int::from(process::stage() == Stage::Finalized));
    Ok(())
}

pub(crate) fn abort(_comm: Comm, errorcode: c_int) -> Done {
    let rank = arg::process()?.comm_world.comm.rank();
    crate::call::say(format_args!(
        "gapless: rank {rank} called MPI_Abort with error code {errorcode}"
    ));
    end(errorcode)
}

pub(crate) fn pcontrol(_level: c_int) -> Done {
    Ok(())
}

pub(crate) unsafe fn get_processor_name(name: *mut c_char, resultlen: Out<c_int>) -> Done {
    // SAFETY: as the first page of the crate says.
    unsafe { give_text(&host(), face::MAX_PROCESSOR_NAME, name, resultlen) };
    Ok(())
}

/// Memory of `MPI_Alloc_mem`, by its address. Only the program touches it.
static MEMORY: Mutex<BTreeMap<usize, SharedBuf>> = Mutex::new(BTreeMap::new());

fn memory() -> MutexGuard<'static, BTreeMap<usize, SharedBuf>> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) unsafe fn alloc_mem(size: i64, _info: Option<Info>, baseptr: *mut c_void) -> Done {
    let at = arg::pointer(baseptr, "baseptr")?.cast::<*mut c_void>();
    let negative = |_| Fail::new(face::ERR_ARG, format!("size is {size}, which is negative"));
    let size = usize::try_from(size).map_err(negative)?;
    let none = |why| Fail::new(face::ERR_NO_MEM, why);
    let allocated = arg::process()?.with_world(|world| world.alloc(size.max(1)));
    let mut allocated = match allocated {
        Some(Ok(allocated)) => allocated,
        Some(Err(error)) => return Err(none(error.to_string())),
        None => return Err(none("the job was left".to_owned())),
    };
    let address = allocated.as_mut_ptr();
    memory().insert(address.addr(), allocated);
    // SAFETY: there is room for an address, as the first page of the crate says.
    unsafe { at.write_unaligned(address.cast()) };
    Ok(())
}

pub(crate) fn free_mem(base: *mut c_void) -> Done {
    let freed = memory().remove(&base.addr());
    match freed {
        Some(_) => Ok(()),
        None if base.is_null() => Ok(()),
        None => Err(Fail::new(
            face::ERR_BASE,
            format!("MPI_Alloc_mem has not given {base:p}, or it is free"),
        )),
    }
}
