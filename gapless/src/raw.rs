//! What bindings of other languages stand on: memory that the caller vouches for, and one kind of request.
//!
//! Everything else of Gapless is safe, because a handle borrows or owns the memory that it works on. A binding has
//! pointers of its own users, and handles that know no lifetimes. Here
//!
//! - memory is a [`Typed`]: instances of a layout at an address, in any space;
//! - [`view`] and [`view_mut`] make what the blocking calls of [`Communicator`] take;
//! - [`collective`] describes any collective, of [`Buffer`]s, for [`Communicator::perform`] and [`Request::collective`];
//! - [`Request`] is everything that can be waited for: messages, collectives, persistent and partitioned ones,
//!   communicators that are being made, work of the binding itself; [`send_now`] needs none;
//! - a [`Window`] has elements that each operation names, and reads that end at a flush.
//!
//! ```
//! use gapless::raw::{self, Buffer, Operation, Request, Typed};
//! use gapless::{Datatype, Primitive, ReduceOp, Root, SendMode, Source, Space, TagSel, World};
//! # fn main() -> Result<(), gapless::Error> {
//! let world = World::init()?;
//! let comm = world.comm();
//! // What a binding has got: pointers, counts, a datatype.
//! let double = Datatype::from(Primitive::Double).commit()?;
//! let (mut from, mut into) = ([1.0, 2.0, 3.0], [0.0; 3]);
//! let at = |pointer: *mut f64| Typed::at(Space::Host, pointer.expose_provenance() as u64, &double, 3);
//! let (sent, received) = (at(from.as_mut_ptr())?, at(into.as_mut_ptr())?);
//!
//! let me = comm.rank();
//! // SAFETY: until the request has ended, nobody touches `into`.
//! let mut recv = unsafe { Request::recv(comm, &received, Source::Rank(me), TagSel::Is(7)) }?;
//! // SAFETY: until the request has ended, nobody writes `from`.
//! let mut send = unsafe { Request::send(comm, &sent, me, 7, SendMode::Standard) }?;
//! let first = Request::wait_any(&[&recv, &send])?;
//! assert!(first.is_some());
//! send.wait()?;
//! assert_eq!(recv.wait()?.bytes, 24);
//! assert_eq!(into, from);
//!
//! let sides = (Buffer::Whole(sent), Buffer::Whole(received));
//! let sum = Some(ReduceOp::Sum.into());
//! // SAFETY: the call below returns before anything else happens to the memory.
//! let call = unsafe { raw::collective(Operation::Allreduce, Root::Rank(0), sides, &[], sum) };
//! comm.perform(call)?;
//! assert_eq!(into[2], 3.0 * f64::from(comm.size()));
//! world.finalize()
//! # }
//! ```
//!
//! # What the caller vouches for
//!
//! Memory of a request stays valid, and untouched as each function says, until the request has *ended*:
//! [`Request::test`] or [`Request::wait`] has given its result, or an error that the world was left or given up
//! ([`Error::Finalized`], [`Error::Poisoned`]). Dropping a request ends nothing: what is in flight goes on, and nobody
//! can tell the caller when it has ended, but leaving the world ends all.
//!
//! # Errors
//!
//! A status beside an error ([`Error::status`]) says which message a receive had taken before it failed, and how many
//! bytes of it came: if the message is longer than the memory, what fits was written (`MPI_ERR_TRUNCATE`).

// How the rest of this crate makes requests of other things: `Request::of_work`, with a `Work` that says when it is
// over (asked under the world's lock whenever the world makes progress) and then gives its status. Windows do so.

mod partitioned;
mod request;
mod window;

pub use crate::collective::Buffer;
pub use gapless_coll::Operation;
pub use gapless_engine::Typed;
pub(crate) use partitioned::Channels;
pub use request::{Request, send_now};
pub(crate) use request::{RequestKind, Work};
pub use window::Window;
pub(crate) use window::{At, DrainOnDrop, Made};

use crate::{Collective, Root, View, ViewMut};
#[cfg(doc)]
use crate::{Communicator, Error};
use gapless_engine::Op;

/// The source of a blocking call, of memory that the caller vouches for.
///
/// # Safety
/// For all of `'a`, the memory that `typed` describes is valid for reads, and nothing writes it.
#[must_use]
#[inline]
pub unsafe fn view<'a>(typed: Typed) -> View<'a> {
    // SAFETY: the caller's promise.
    unsafe { View::of_typed(typed) }
}

/// The destination of a blocking call, of memory that the caller vouches for.
///
/// # Safety
/// For all of `'a`, the memory that `typed` describes is valid for reads and writes, and nothing else touches it.
#[must_use]
#[inline]
pub unsafe fn view_mut<'a>(typed: Typed) -> ViewMut<'a> {
    // SAFETY: the caller's promise.
    unsafe { ViewMut::of_typed(typed) }
}

/// Describes a collective: what this rank sends, and what it receives into. The buffer of a broadcast is the second
/// side, at the root too. Operations with blocks of any lengths take [`Buffer::Each`]; `Operation` has one variant for
/// `MPI_Alltoallv` and `MPI_Alltoallw`, and so on. `counts`: of [`Operation::ReduceScatter`], the elements of each
/// rank's block; otherwise empty. `op`: of reductions. `root` is not looked at where there is none.
///
/// Arguments are checked when the description is used, as those of [`Collective`]'s methods are.
///
/// # Safety
/// For all of `'a`, what the first side describes is valid for reads, and nothing writes it; what the second side
/// describes is valid for reads and writes, and nothing else touches it. No two blocks of the second side have a byte
/// in common. [`Request::collective`] and [`Request::collective_init`] ask for more.
pub unsafe fn collective<'a>(
    operation: Operation,
    root: Root,
    sides: (Buffer, Buffer),
    counts: &[u64],
    op: Option<Op>,
) -> Collective<'a> {
    // SAFETY: the caller's promise.
    unsafe { Collective::of_buffers(operation, root, sides, counts, op) }
}

#[cfg(test)]
mod tests;
