//! Communicators (MPI 4.1 chapter 7).

use crate::arg::Out;
use crate::attr::Attributes;
use crate::call::{Done, Fail};
use crate::errhandler::Handler;
use crate::face::{self, RawHandle};
use crate::process;
use crate::slots::{Object, Slots};
use gapless::{Communicator, Source};
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod making;
mod naming;

pub(crate) use making::*;
pub(crate) use naming::*;

/// A communicator, and what programs hang on it.
#[derive(Debug)]
pub(crate) struct CommObject {
    pub(crate) comm: Communicator,
    pub(crate) attributes: Attributes,
    more: Mutex<More>,
}

#[derive(Debug)]
struct More {
    errhandler: Handler,
    name: String,
    /// For each of [`HINTS`], whether the program has asserted it.
    hints: [bool; HINTS.len()],
}

pub(crate) type Comm = Object<CommObject>;

pub(crate) static COMMS: Slots<CommObject> = Slots::new();

/// The communicator of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Comm> {
    match handle {
        face::COMM_WORLD => {
            process::get().map(|process| Object::Predefined(&process.comm_world, handle))
        }
        face::COMM_SELF => {
            process::get().map(|process| Object::Predefined(&process.comm_self, handle))
        }
        handle => COMMS.get(handle).map(Object::Made),
    }
}

impl CommObject {
    pub(crate) fn new(comm: Communicator, errhandler: Handler, name: &str) -> CommObject {
        let more = More { errhandler, name: name.to_owned(), hints: [false; HINTS.len()] };
        CommObject { comm, attributes: Attributes::default(), more: Mutex::new(more) }
    }

    fn more(&self) -> MutexGuard<'_, More> {
        // It is whole between any two statements.
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn errhandler(&self) -> Handler {
        self.more().errhandler.clone()
    }

    pub(crate) fn set_errhandler(&self, errhandler: Handler) {
        let before = std::mem::replace(&mut self.more().errhandler, errhandler);
        drop(before);
    }

    /// How many ranks messages go to.
    pub(crate) fn peers(&self) -> u32 {
        self.comm.peers().size()
    }

    /// A rank that messages go to. `None`: `MPI_PROC_NULL`.
    #[inline]
    pub(crate) fn peer(&self, rank: c_int) -> Done<Option<u32>> {
        match u32::try_from(rank) {
            Ok(rank) if rank < self.peers() => Ok(Some(rank)),
            _ if rank == face::PROC_NULL => Ok(None),
            _ => {
                let why = format!("there is no rank {rank} among {}", self.peers());
                Err(Fail::new(face::ERR_RANK, why))
            }
        }
    }

    /// Where messages come from. `None`: `MPI_PROC_NULL`.
    #[inline]
    pub(crate) fn source(&self, rank: c_int) -> Done<Option<Source>> {
        match rank {
            face::ANY_SOURCE => Ok(Some(Source::Any)),
            rank => Ok(self.peer(rank)?.map(Source::Rank)),
        }
    }
}

pub(crate) fn comm_rank(comm: Comm, rank: Out<c_int>) -> Done {
    rank.set(comm.comm.rank().cast_signed());
    Ok(())
}

pub(crate) fn comm_size(comm: Comm, size: Out<c_int>) -> Done {
    size.set(comm.comm.size().cast_signed());
    Ok(())
}
