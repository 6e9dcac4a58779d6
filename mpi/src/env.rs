//! The environment: start and end, versions (MPI 4.1 chapters 9 and 11).

use crate::arg::{self, Out, Text, lock};
use crate::attr::Attributed;
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::info::Info;
use crate::p2p;
use crate::process::{self, Stage, User};
use gapless::SharedBuf;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;

mod abi;

pub(crate) use abi::*;

/// The thread that has initialized MPI.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

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

pub(crate) fn init(_argc: impl Sized, _argv: *mut c_void) -> Done {
    start()
}

pub(crate) fn init_thread(
    _argc: impl Sized,
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
    query_thread(provided)
}

/// Threads of a program that has not asked to call MPI at the same time may call it one after another.
pub(crate) fn query_thread(provided: Out<c_int>) -> Done {
    provided.set(match process::is_threaded() {
        true => face::THREAD_MULTIPLE,
        false => face::THREAD_SERIALIZED,
    });
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
    p2p::forget_all();
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

pub(crate) fn get_processor_name(name: Text) -> Done {
    name.give(&host())
}

/// Memory of `MPI_Alloc_mem`, by its address. Only the program touches it.
static MEMORY: Mutex<BTreeMap<usize, SharedBuf>> = Mutex::new(BTreeMap::new());

pub(crate) fn alloc_mem(size: i64, _info: Option<Info>, baseptr: Out<usize>) -> Done {
    let size = arg::len(size, "size")?;
    let none = |why| Fail::new(face::ERR_NO_MEM, why);
    let allocated = arg::process()?.with_world(|world| world.alloc(size.max(1)));
    let mut allocated = match allocated {
        Some(Ok(allocated)) => allocated,
        Some(Err(error)) => return Err(none(error.to_string())),
        None => return Err(none("the job was left".to_owned())),
    };
    let address = allocated.as_mut_ptr().expose_provenance();
    lock(&MEMORY).insert(address, allocated);
    baseptr.set(address);
    Ok(())
}

pub(crate) fn free_mem(base: *mut c_void) -> Done {
    let freed = lock(&MEMORY).remove(&base.addr());
    if freed.is_some() || base.is_null() {
        return Ok(());
    }
    Err(Fail::new(face::ERR_BASE, format!("MPI_Alloc_mem has not given {base:p}, or it is free")))
}
