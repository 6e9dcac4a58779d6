//! Collectives (MPI 4.1 chapters 6 and 8): blocking, non-blocking and persistent ones are one description each, which is
//! waited for, started, or kept.

use crate::arg::{self, Numbers};
use crate::call::{Done, Fail, Form, Subject};
use crate::comm::Comm;
use crate::datatype::{Type, typed};
use crate::face::{self, RawHandle};
use crate::request::{self, Work};
use gapless::Root;
use gapless::raw::{self, Buffer, Operation, Request, Typed};
use std::ffi::{c_int, c_void};

mod blocks;
mod neighbor;
mod reduce;

pub(crate) use blocks::*;
pub(crate) use neighbor::*;
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
            Form::Blocking => Ok(comm.comm.perform(call)?),
            Form::NonBlocking(request) => {
                // SAFETY: the caller's promise.
                let begun = unsafe { Request::collective(&comm.comm, call) }?;
                request::give(request, subject(), Work::One(begun))
            }
            Form::Persistent(request) => {
                // SAFETY: the caller's promise.
                let described = unsafe { Request::collective_init(&comm.comm, call) }?;
                request::give(request, subject(), Work::One(described))
            }
        }
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
}

impl Rooted {
    fn new(root: c_int, comm: &Comm) -> Done<Rooted> {
        let inter = comm.comm.is_inter();
        let wrong = || {
            let (ranks, kind) = (comm.peers(), if inter { "the other group of" } else { "" });
            Fail::new(face::ERR_ROOT, format!("there is no root {root} among {kind} {ranks} ranks"))
        };
        match u32::try_from(root) {
            Ok(rank) if rank < comm.peers() => {
                let is_root = !inter && rank == comm.comm.rank();
                Ok(Rooted { root: Root::Rank(rank), is_root, is_idle: false })
            }
            Err(_) if inter && root == face::ROOT => {
                Ok(Rooted { root: Root::Here, is_root: true, is_idle: false })
            }
            Err(_) if inter && root == face::PROC_NULL => {
                Ok(Rooted { root: Root::Other, is_root: false, is_idle: true })
            }
            _ => Err(wrong()),
        }
    }

    /// Whether this rank gives its block to the root, or gets one of it.
    fn is_member(self, comm: &Comm) -> bool {
        !self.is_idle && (!comm.comm.is_inter() || !self.is_root)
    }
}

/// An address, a count and a datatype, as C gives them: what they mean depends on the rank.
#[derive(Clone, Copy)]
struct Side {
    buf: *const c_void,
    count: i64,
    datatype: RawHandle,
    names: [&'static str; 2],
}

impl Side {
    fn send(buf: *const c_void, count: i64, datatype: RawHandle) -> Side {
        Side { buf, count, datatype, names: ["sendcount", "sendtype"] }
    }

    fn recv(buf: *mut c_void, count: i64, datatype: RawHandle) -> Side {
        Side { buf, count, datatype, names: ["recvcount", "recvtype"] }
    }

    fn is_in_place(self) -> bool {
        is_in_place(self.buf)
    }

    /// The whole of it, as many times as there are blocks.
    ///
    /// # Safety
    /// The memory is as MPI says.
    unsafe fn times(self, blocks: u32) -> Done<Buffer> {
        let datatype = arg::datatype(self.datatype, self.names[1])?;
        let count = arg::count(self.count, self.names[0])?;
        let too_many =
            || Fail::new(face::ERR_COUNT, "the buffer is too long for the address space");
        let count = count.checked_mul(u64::from(blocks)).ok_or_else(too_many)?;
        // SAFETY: the caller's promise.
        Ok(Buffer::Whole(unsafe { typed(self.buf, count, &datatype) }?))
    }

    /// One block, or nothing if it is in place.
    ///
    /// # Safety
    /// As [`times`](Side::times).
    unsafe fn one(self) -> Done<Buffer> {
        // SAFETY: the caller's promise.
        unsafe { self.or_in_place(1) }
    }

    /// So many blocks, or nothing if it is in place.
    ///
    /// # Safety
    /// As [`times`](Side::times).
    unsafe fn or_in_place(self, blocks: u32) -> Done<Buffer> {
        match self.is_in_place() {
            true => Ok(Buffer::InPlace),
            // SAFETY: the caller's promise.
            false => unsafe { self.times(blocks) },
        }
    }
}

fn is_in_place(buf: *const c_void) -> bool {
    buf.addr() == face::IN_PLACE
}

/// Blocks of any lengths at displacements, which count elements, of one datatype.
///
/// # Safety
/// The lists have so many, and the memory is as MPI says.
unsafe fn blocks(
    buf: *const c_void,
    (counts, displacements): (Numbers, Numbers),
    datatype: &Type,
    many: u32,
) -> Done<Buffer> {
    // SAFETY: the caller's promise.
    let counts = unsafe { counts.counts(many as usize, "counts") }?;
    // SAFETY: the caller's promise.
    let starts = unsafe { displacements.read(many as usize, "displacements") }?;
    let null = buf.is_null() && datatype.datatype.true_lb() == 0;
    if null && datatype.datatype.size() > 0 && counts.iter().any(|count| *count > 0) {
        return Err(Fail::new(face::ERR_BUFFER, "the buffer is a null pointer"));
    }
    let extent = datatype.datatype.extent();
    let one = |(count, start): (u64, i64)| {
        let at = buf.wrapping_byte_offset(isize::try_from(start.wrapping_mul(extent)).unwrap_or(0));
        // SAFETY: the caller's promise.
        unsafe { typed(at, count, datatype) }
    };
    let each: Vec<Typed> = counts.into_iter().zip(starts).map(one).collect::<Done<_>>()?;
    Ok(Buffer::Each(each))
}

/// Blocks of any datatypes at displacements, which count bytes.
///
/// # Safety
/// As [`blocks`].
unsafe fn blocks_of_types(
    buf: *const c_void,
    (counts, displacements): (Numbers, Numbers),
    datatypes: *const RawHandle,
    many: u32,
) -> Done<Buffer> {
    let many = many as usize;
    if many == 0 {
        return Ok(Buffer::Each(Vec::new()));
    }
    // SAFETY: the caller's promise.
    let counts = unsafe { counts.counts(many, "counts") }?;
    // SAFETY: the caller's promise.
    let starts = unsafe { displacements.read(many, "displacements") }?;
    let datatypes = arg::pointer(datatypes.cast_mut(), "datatypes")?;
    // SAFETY: the caller's promise.
    let datatypes = unsafe { std::slice::from_raw_parts(datatypes, many) };
    let one = |((count, start), handle): ((u64, i64), &RawHandle)| {
        let datatype = arg::datatype(*handle, "datatypes")?;
        let at = buf.wrapping_byte_offset(isize::try_from(start).unwrap_or(0));
        // SAFETY: the caller's promise.
        unsafe { typed(at, count, &datatype) }
    };
    let each = counts.into_iter().zip(starts).zip(datatypes).map(one).collect::<Done<_>>()?;
    Ok(Buffer::Each(each))
}

pub(crate) unsafe fn barrier(form: Form, comm: Comm) -> Done {
    // SAFETY: it describes no memory.
    unsafe { Call::new(Operation::Barrier, Buffer::Nothing, Buffer::Nothing).go(form, &comm) }
}

pub(crate) unsafe fn bcast(
    form: Form,
    buffer: *mut c_void,
    count: i64,
    datatype: RawHandle,
    root: c_int,
    comm: Comm,
) -> Done {
    let rooted = Rooted::new(root, &comm)?;
    let recv = match rooted.is_idle {
        true => Buffer::Nothing,
        false => {
            let side = Side { buf: buffer, count, datatype, names: ["count", "datatype"] };
            // SAFETY: the caller's promise.
            unsafe { side.times(1) }?
        }
    };
    // SAFETY: the caller's promise.
    unsafe {
        Call::new(Operation::Bcast, Buffer::Nothing, recv).rooted(rooted.root).go(form, &comm)
    }
}
