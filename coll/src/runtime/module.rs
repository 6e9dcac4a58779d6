//! The contract of a way to carry out collectives.

use std::any::Any;
use std::fmt;
use std::ops::RangeFrom;
use std::sync::Arc;
use std::task::Poll;

use gapless_engine::{Engine, Reducer};
use gapless_pml::{Comm, Pml, RequestId};

use super::CollOp;
use crate::{CallBuffers, CollError, Combine, Lender, Outcome, Tasks};

/// Tags of a communicator's collective context that no module of this crate uses.
pub const MODULE_TAGS: RangeFrom<i32> = 1 << 30..;

/// What moves and combines data, and what it needs.
pub trait Engines: Engine + Reducer {
    /// Who lends memory for intermediate data of a reduction of these buffers. `None`: memory of the host does.
    fn lender(&self, buffers: &CallBuffers, combine: &Combine) -> Option<Arc<dyn Lender>>;

    /// Who carries tasks.
    fn tasks(&self) -> Option<Arc<dyn Tasks>>;
}

/// What a [`Module`] works with: messages and engines.
pub struct Cx<'c> {
    /// Messages.
    pub pml: &'c mut Pml,
    /// Engines of all memory.
    pub engines: &'c dyn Engines,
}

impl fmt::Debug for Cx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx").field("pml", &self.pml).finish_non_exhaustive()
    }
}

/// How a [`Module`] has taken a call: in order, beside others, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The module carries it out, and begins no other until it has ended.
    InOrder,
    /// The operation goes by messages alone, beside others: the module has no part in it any more. For modules of this
    /// crate: an operation of another's cannot be given what carries it out.
    Apart,
    /// The operation has not begun, at this rank; at the others it ends so, too. The next module has it.
    Declined,
}

/// What wakes a rank that is about to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing does: it is to poll.
    Poll,
    /// Messages, as they do anyway.
    Messages,
    /// The end of this request.
    Until(RequestId),
}

/// A way to carry out collectives: one value for each communicator.
///
/// All ranks have the same modules in the same order, and call the same collectives in the same order. A module carries
/// out one at a time. Its methods never block; they are called, and it is dropped, with the lock held that the endpoint
/// is behind, so that a call to the world from there is refused.
///
/// # Safety
/// The buffers of a [`CollOp`] are touched only after [`begin`](Module::begin) has given [`Begun::InOrder`], until
/// [`advance`](Module::advance) gives [`Poll::Ready`], or [`abandon`](Module::abandon) returns, or a method unwinds and
/// `abandon` returns after that. Within that time, the send buffer is only read. With [`Outcome::Elsewhere`] or
/// [`Outcome::ByMessages`] nothing has been written to any.
pub unsafe trait Module: Any + fmt::Debug + Send {
    /// The module's name: `sm`, say.
    fn name(&self) -> &'static str;

    /// Whether a call goes by it. Goes by what all ranks know, so that all answer alike.
    fn takes(&self, op: &CollOp) -> bool;

    /// Begins a call that it takes.
    ///
    /// # Errors
    /// This rank cannot take part. The others are told by [`skip`](Module::skip), which is called then.
    fn begin(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Result<Begun, CollError>;

    /// Goes on as far as it can. [`Outcome::Elsewhere`], [`Outcome::ByMessages`]: it cannot carry the call out, at no rank;
    /// the next module does.
    ///
    /// # Errors
    /// The call has failed; its buffers are free.
    fn advance(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>>;

    /// Whether [`advance`](Module::advance) would get on with what is under way, as far as a few loads tell.
    fn look(&mut self) -> bool {
        true
    }

    /// Announces that this rank is about to sleep. Afterwards the caller advances once more, and sleeps if what was
    /// announced [still holds](Module::is_armed).
    fn arm(&mut self, cx: &mut Cx<'_>) -> Armed {
        let _ = cx;
        Armed::Poll
    }

    /// Whether what was announced is still what this rank waits for.
    fn is_armed(&mut self) -> bool {
        true
    }

    /// Whether an engine works for the call, and no rank is waited for: the caller is to poll.
    fn is_busy(&self, op: &CollOp) -> bool {
        let _ = op;
        false
    }

    /// The process that this rank sleeps for.
    fn awaits(&self) -> Option<u32> {
        None
    }

    /// Gives up what is under way, if something is. When it returns, the module touches no buffers.
    fn abandon(&mut self);

    /// This rank has no part in the collective with this number, because it was refused, or goes by a later module;
    /// ranks that wait for this one learn that.
    fn skip(&mut self, number: u64, cx: &mut Cx<'_>);

    /// Gives up what it has with the endpoint, for a communicator that is freed. Nothing is under way. `false`: peers
    /// use memory of its, so it is to be called again.
    fn close(&mut self, cx: &mut Cx<'_>) -> bool {
        let _ = cx;
        true
    }
}

/// A communicator's modules, in the order in which they are asked.
pub type Modules = Vec<Box<dyn Module>>;

/// Makes modules for communicators; for modules that are not of this crate. They come before this crate's own.
pub trait Component: fmt::Debug + Send + Sync {
    /// A module for a communicator. Called in its first collective that is not persistent (persistent ones go by
    /// modules of this crate alone); all ranks answer alike. Messages of the module go by the communicator's
    /// [collective context](Comm::collective), with [tags of its own](MODULE_TAGS).
    fn module(&self, comm: &Comm) -> Option<Box<dyn Module>>;
}
