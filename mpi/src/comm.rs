//! Communicators (MPI 4.1 chapter 7).

use crate::arg::{self, Out};
use crate::attr::Attributes;
use crate::call::Done;
use crate::errhandler::{Handled, Handler, HandlerSlot, Kind};
use crate::face::{self, RawHandle};
use crate::info::Hints;
use crate::process;
use crate::request::Freed;
use crate::slots::{Object, Slots};
use gapless::{Communicator, Source};
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

mod making;
mod naming;

pub(crate) use making::*;
pub(crate) use naming::*;

/// A communicator, and what programs hang on it.
pub(crate) struct CommObject {
    pub(crate) comm: Communicator,
    pub(crate) attributes: Attributes,
    errhandler: Arc<HandlerSlot>,
    name: Mutex<String>,
    /// Hints that MPI defines (MPI 4.1 §7.4.4). They are kept; Gapless needs none of them.
    hints: Hints,
    pub(crate) freed: Freed,
}

pub(crate) type Comm = Object<CommObject>;

static COMMS: Slots<CommObject> = Slots::new("communicators");

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

impl Handled for CommObject {
    const KIND: Kind = Kind::Comm;

    fn errhandler(&self) -> &HandlerSlot {
        &self.errhandler
    }
}

impl CommObject {
    pub(crate) fn new(comm: Communicator, errhandler: Handler, name: &str) -> CommObject {
        let hints = Hints::new(&[
            ("mpi_assert_no_any_tag", "false"),
            ("mpi_assert_no_any_source", "false"),
            ("mpi_assert_exact_length", "false"),
            ("mpi_assert_allow_overtaking", "false"),
        ]);
        CommObject {
            comm,
            attributes: Attributes::default(),
            errhandler: Arc::new(HandlerSlot::new(errhandler)),
            name: Mutex::new(name.to_owned()),
            hints,
            freed: Freed::default(),
        }
    }

    /// How many ranks messages go to.
    pub(crate) fn peers(&self) -> u32 {
        self.comm.peers().size()
    }

    /// A rank that messages go to. `None`: `MPI_PROC_NULL`.
    #[inline]
    pub(crate) fn peer(&self, rank: c_int) -> Done<Option<u32>> {
        arg::some_rank(rank, self.peers())
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
