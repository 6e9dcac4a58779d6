//! What is asked of communicators: names, hints, groups, how two compare.

use super::{Comm, CommObject};
use crate::arg::{self, HandleOut, Out};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::group;
use crate::info::{Info, InfoObject};
use std::ffi::{CStr, c_char, c_int};

/// Hints that MPI defines (MPI 4.1 §7.4.4). They are kept; Gapless needs none of them.
pub(super) const HINTS: [&str; 4] = [
    "mpi_assert_no_any_tag",
    "mpi_assert_no_any_source",
    "mpi_assert_exact_length",
    "mpi_assert_allow_overtaking",
];

impl CommObject {
    /// Takes the hints that are known; others are ignored.
    pub(super) fn set_hints(&self, info: &Info) {
        let mut more = self.more();
        for (hint, asserted) in HINTS.iter().zip(&mut more.hints) {
            match info.get(hint).as_deref() {
                Some("true") => *asserted = true,
                Some("false") => *asserted = false,
                _ => {}
            }
        }
    }
}

pub(crate) fn comm_set_info(comm: Comm, info: Option<Info>) -> Done {
    if let Some(info) = info {
        comm.set_hints(&info);
    }
    Ok(())
}

pub(crate) fn comm_get_info(comm: Comm, info_used: HandleOut) -> Done {
    let hints = comm.more().hints;
    let text = |asserted: bool| if asserted { "true" } else { "false" };
    InfoObject::of(HINTS.into_iter().zip(hints.map(text))).give(info_used)
}

pub(crate) fn comm_set_name(comm: Comm, comm_name: &CStr) -> Done {
    comm.more().name = comm_name.to_string_lossy().into_owned();
    Ok(())
}

pub(crate) unsafe fn comm_get_name(
    comm: RawHandle,
    comm_name: *mut c_char,
    resultlen: Out<c_int>,
) -> Done {
    let name = match comm {
        face::COMM_NULL => "MPI_COMM_NULL".to_owned(),
        comm => arg::comm(comm, "comm")?.more().name.clone(),
    };
    // SAFETY: as the first page of the crate says.
    unsafe { crate::env::give_text(&name, face::MAX_OBJECT_NAME, comm_name, resultlen) };
    Ok(())
}

pub(crate) fn comm_compare(one: Comm, other: Comm, result: Out<c_int>) -> Done {
    result.set(group::comparison(one.comm.compare(&other.comm)));
    Ok(())
}

pub(crate) fn comm_test_inter(comm: Comm, flag: Out<c_int>) -> Done {
    flag.set(c_int::from(comm.comm.is_inter()));
    Ok(())
}

pub(crate) fn comm_group(comm: Comm, group: HandleOut) -> Done {
    group::give(comm.comm.group(), group)
}

/// The communicator, if it has two sides.
fn inter(comm: Comm) -> Done<Comm> {
    match comm.comm.is_inter() {
        true => Ok(comm),
        false => Err(Fail::new(face::ERR_COMM, "the communicator is no intercommunicator")),
    }
}

pub(crate) fn comm_remote_group(comm: Comm, group: HandleOut) -> Done {
    group::give(inter(comm)?.comm.peers().clone(), group)
}

pub(crate) fn comm_remote_size(comm: Comm, size: Out<c_int>) -> Done {
    size.set(inter(comm)?.peers().cast_signed());
    Ok(())
}

pub(crate) fn comm_get_parent(parent: HandleOut) -> Done {
    // Nobody was spawned.
    parent.set(face::COMM_NULL);
    Ok(())
}
