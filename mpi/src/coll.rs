//! Collectives (MPI 4.1 chapters 6 and 8): blocking, non-blocking and persistent ones are one description each, which is
//! waited for, started, or kept.

use crate::arg::{self, Numbers};
use crate::call::{Done, Fail, Form, Subject};
use crate::comm::Comm;
use crate::datatype::{Elements, typed};
use crate::face::{self, RawHandle};
use crate::request::Work;
use gapless::Root;
use gapless::raw::{self, Buffer, Operation, Request};
use std::ffi::{c_int, c_void};

mod blocks;
mod reduce;

pub(crate) use blocks::*;
pub(crate) use reduce::*;

/// What a rank gives to a collective.
struct Call {
    operation: Operation,
    root: Root,
    send: Buffer,
    recv: Buffer,
    counts: Vec<u64>,
    op: Option<gapless::Op>,
}

impl Call {
    fn new(operation: Operation, send: Buffer, recv: Buffer) -> Call {
        Call { operation, root: Root::Rank(0), send, recv, counts: Vec::new(), op: None }
    }

    fn rooted(self, root: Root) -> Call {
        Call { root, ..self }
    }

    /// Does it as a form says.
    ///
    /// # Safety
    /// The memory that it describes is as [`raw::collective`] asks; unless the form is blocking, until the request has
    /// ended.
    unsafe fn go(self, form: Form, comm: &Comm) -> Done {
        let Call { operation, root, send, recv, counts, op } = self;
        // SAFETY: the caller's promise.
        let call = unsafe { raw::collective(operation, root, (send, recv), &counts, op) };
        let subject = || Subject::OfComm(comm.clone());
        match form {
            Form::Blocking => comm.comm.perform(call)?,
            Form::NonBlocking(request) => {
                // SAFETY: the caller's promise.
                let begun = unsafe { Request::collective(&comm.comm, call) }?;
                request.give(subject(), Work::One(begun));
            }
            Form::Persistent(request) => {
                // SAFETY: the caller's promise.
                let described = unsafe { Request::collective_init(&comm.comm, call) }?;
                request.give(subject(), Work::One(described));
            }
        }
        Ok(())
    }
}

/// What a rank is to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rooted {
    root: Root,
    /// Whether this rank is the root.
    is_root: bool,
    /// Whether this rank has nothing to do.
    is_idle: bool,
    /// Whether this rank gives its block to the root, or gets one of it.
    is_member: bool,
}

impl Rooted {
    fn new(root: c_int, comm: &Comm) -> Done<Rooted> {
        let inter = comm.comm.is_inter();
        let (root, is_root, is_idle) = match u32::try_from(root) {
            Ok(rank) if rank < comm.peers() => {
                (Root::Rank(rank), !inter && rank == comm.comm.rank(), false)
            }
            Err(_) if inter && root == face::ROOT => (Root::Here, true, false),
            Err(_) if inter && root == face::PROC_NULL => (Root::Other, false, true),
            _ => {
                let (ranks, of) = (comm.peers(), if inter { "the other group of" } else { "" });
                let why = format!("there is no root {root} among {of} {ranks} ranks");
                return Err(Fail::new(face::ERR_ROOT, why));
            }
        };
        Ok(Rooted { root, is_root, is_idle, is_member: !is_idle && (!inter || !is_root) })
    }
}

/// A side of a collective, as C gives it: what it means depends on the rank.
pub(crate) struct Blocks {
    buf: *const c_void,
    of: Of,
}

/// What a side is made of.
enum Of {
    /// Blocks of as many elements, with the names of both arguments.
    Even(i64, RawHandle, [&'static str; 2]),
    /// Blocks of any lengths at displacements, which count elements, of one datatype.
    Varied((Numbers, Numbers), RawHandle, &'static str),
    /// Blocks of any datatypes at displacements, which count bytes.
    Typed((Numbers, Numbers), *const RawHandle, &'static str),
}

impl Blocks {
    pub(crate) fn even(
        buf: *const c_void,
        count: i64,
        datatype: RawHandle,
        names: [&'static str; 2],
    ) -> Blocks {
        Blocks { buf, of: Of::Even(count, datatype, names) }
    }

    pub(crate) fn varied(
        buf: *const c_void,
        lists: (Numbers, Numbers),
        datatype: RawHandle,
        name: &'static str,
    ) -> Blocks {
        Blocks { buf, of: Of::Varied(lists, datatype, name) }
    }

    pub(crate) fn typed(
        buf: *const c_void,
        lists: (Numbers, Numbers),
        datatypes: *const RawHandle,
        name: &'static str,
    ) -> Blocks {
        Blocks { buf, of: Of::Typed(lists, datatypes, name) }
    }

    fn is_even(&self) -> bool {
        matches!(self.of, Of::Even(..))
    }

    fn is_in_place(&self) -> bool {
        is_in_place(self.buf)
    }

    /// One of even blocks.
    ///
    /// # Errors
    /// The count or the datatype is none.
    pub(crate) fn elements(&self) -> Done<Elements> {
        let Of::Even(count, datatype, [count_name, type_name]) = self.of else {
            return Err(Fail::new(face::ERR_INTERN, "blocks of different lengths are not one"));
        };
        let datatype = arg::datatype(datatype, type_name)?;
        Ok(Elements::new(self.buf, arg::count(count, count_name)?, datatype))
    }

    /// One block, or nothing if it is in place.
    fn one(&self) -> Done<Buffer> {
        match self.is_in_place() {
            true => Ok(Buffer::InPlace),
            false => Ok(Buffer::Whole(self.elements()?.typed()?)),
        }
    }

    /// So many blocks.
    ///
    /// # Safety
    /// The lists have so many.
    unsafe fn all(&self, blocks: u32) -> Done<Buffer> {
        let many = blocks as usize;
        let (lists, one, each) = match self.of {
            Of::Even(..) => return Ok(Buffer::Whole(self.elements()?.times(blocks)?.typed()?)),
            Of::Varied(lists, datatype, name) => {
                (lists, Some(arg::datatype(datatype, name)?), Vec::new())
            }
            Of::Typed(lists, all, name) => {
                // SAFETY: the caller's promise.
                let each = unsafe { arg::datatypes(all, many, name) }?;
                (lists, None, each)
            }
        };
        // SAFETY: the caller's promise.
        let counts = unsafe { lists.0.counts(many, "counts") }?;
        // SAFETY: the caller's promise.
        let starts = unsafe { lists.1.read(many, "displacements") }?;
        let unit = one.as_ref().map_or(1, |datatype| datatype.datatype.extent());
        if let Some(datatype) = &one
            && counts.iter().any(|count| *count > 0)
        {
            datatype.check_buffer(self.buf)?;
        }
        let block = |(index, (count, start)): (usize, (u64, i64))| {
            let offset = isize::try_from(start.wrapping_mul(unit)).unwrap_or(0);
            let datatype = one.as_ref().unwrap_or_else(|| &each[index]);
            typed(self.buf.wrapping_byte_offset(offset), count, datatype)
        };
        let each = counts.into_iter().zip(starts).enumerate().map(block);
        Ok(Buffer::Each(each.collect::<Done<_>>()?))
    }

    /// The same, or nothing if it is in place.
    ///
    /// # Safety
    /// As [`all`](Blocks::all).
    unsafe fn all_or_in_place(&self, blocks: u32) -> Done<Buffer> {
        match self.is_in_place() {
            true => Ok(Buffer::InPlace),
            // SAFETY: the caller's promise.
            false => unsafe { self.all(blocks) },
        }
    }
}

fn is_in_place(buf: *const c_void) -> bool {
    buf.addr() == face::IN_PLACE
}

pub(crate) unsafe fn barrier(form: Form, comm: Comm) -> Done {
    // SAFETY: it describes no memory.
    unsafe { Call::new(Operation::Barrier, Buffer::Nothing, Buffer::Nothing).go(form, &comm) }
}

pub(crate) unsafe fn bcast(form: Form, buffer: Blocks, root: c_int, comm: Comm) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let recv = match rooted.is_idle {
        true => Buffer::Nothing,
        false => Buffer::Whole(buffer.elements()?.typed()?),
    };
    let call = Call::new(Operation::Bcast, Buffer::Nothing, recv).rooted(rooted.root);
    // SAFETY: the caller's promise.
    unsafe { call.go(form, &comm) }
}
