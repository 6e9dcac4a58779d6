//! The environment: start and end, versions (MPI 4.1 chapters 9 and 11).

use crate::arg::Out;
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::process::{self, Process, Stage};
use gapless::World;
use std::ffi::{c_char, c_int, c_void};

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
    unsafe { into.add(bytes.len()).write(0) };
    len.set(c_int::try_from(bytes.len()).unwrap_or(0));
}

/// Ends all processes of the job.
pub(crate) fn end(code: c_int) -> ! {
    if let Some(process) = process::get() {
        process.with_world(|world| world.abort(code));
    }
    std::process::exit(code)
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
    Process::open(World::init()?);
    Ok(())
}

pub(crate) fn init(_argc: *mut c_void, _argv: *mut c_void) -> Done {
    start()
}

pub(crate) fn finalize() -> Done {
    match process::get() {
        Some(process) => Ok(process.finalize()?),
        None => Ok(()),
    }
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
    end(errorcode)
}
