//! Messages (MPI 4.1 chapter 3).

use crate::arg::StatusOut;
use crate::call::Done;
use crate::comm::Comm;
use crate::datatype::{Type, typed};
use crate::face::{self, Status};
use gapless::{TagSel, raw};
use std::ffi::{c_int, c_void};

/// The status of a message that came.
pub(crate) fn status_of(status: gapless::Status) -> Status {
    let mut it = Status::new(status.source.cast_signed(), status.tag, face::SUCCESS);
    it.set_bytes(status.bytes);
    it
}

/// The status of a receive from `MPI_PROC_NULL` (MPI 4.1 §3.10).
pub(crate) fn status_of_nobody() -> Status {
    Status::new(face::PROC_NULL, face::ANY_TAG, face::SUCCESS)
}

pub(crate) fn tag_of(tag: c_int) -> TagSel {
    if tag == face::ANY_TAG { TagSel::Any } else { TagSel::from(tag) }
}

pub(crate) unsafe fn send(
    buf: *const c_void,
    count: u64,
    datatype: Type,
    dest: c_int,
    tag: c_int,
    comm: Comm,
) -> Done {
    let Some(dest) = comm.peer(dest)? else { return Ok(()) };
    // SAFETY: as the first page of the crate says.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: as above, until this returns.
    let view = unsafe { raw::view(typed) };
    comm.comm.send(view, dest, tag)?;
    Ok(())
}

pub(crate) unsafe fn recv(
    buf: *mut c_void,
    count: u64,
    datatype: Type,
    source: c_int,
    tag: c_int,
    comm: Comm,
    status: StatusOut,
) -> Done {
    let Some(source) = comm.source(source)? else {
        status.set(status_of_nobody());
        return Ok(());
    };
    // SAFETY: as the first page of the crate says.
    let typed = unsafe { typed(buf, count, &datatype) }?;
    // SAFETY: as above, until this returns.
    let view = unsafe { raw::view_mut(typed) };
    match comm.comm.recv(view, source, tag_of(tag)) {
        Ok(came) => {
            status.set(status_of(came));
            Ok(())
        }
        Err(error) => {
            if let Some(came) = error.status() {
                status.set(status_of(came));
            }
            Err(error.into())
        }
    }
}
