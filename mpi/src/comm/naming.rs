//! What is asked of communicators: names, hints, groups, how two compare.

use super::Comm;
use crate::arg::{self, HandleOut, Out, Text, lock};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::group;
use crate::info::Info;
use std::ffi::{CStr, c_int};

pub(crate) fn comm_set_info(comm: Comm, info: Option<Info>) -> Done {
    comm.hints.set(info);
    Ok(())
}

pub(crate) fn comm_get_info(comm: Comm, info_used: HandleOut) -> Done {
    comm.hints.give(info_used)
}

pub(crate) fn comm_set_name(comm: Comm, comm_name: &CStr) -> Done {
    *lock(&comm.name) = comm_name.to_string_lossy().into_owned();
    Ok(())
}

pub(crate) fn comm_get_name(comm: RawHandle, comm_name: Text) -> Done {
    match comm {
        face::COMM_NULL => comm_name.give("MPI_COMM_NULL"),
        comm => comm_name.give(&lock(&arg::comm(comm, "comm")?.name)),
    }
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
