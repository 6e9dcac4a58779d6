//! One-sided windows (MPI 4.1 chapter 12): memory that other ranks of a communicator read, write and accumulate into.
//!
//! `make.rs` makes them of memory (`memory.rs`), `sync.rs` has the epochs, `operate.rs` the operations, `notify.rs`
//! those of which the target has a notice, `request.rs` those that own their buffers, `scope.rs` those that borrow
//! them, `local.rs` a rank's own memory, `attributes.rs` what a window says of itself, `worker.rs` a worker that does accumulations, `dropped.rs` memory that
//! adapters may change when a window is gone. All that they do is in `raw/window.rs`, and below that in `gapless-osc`:
//! this is its safe face, which adds the type of the elements, and memory that it owns or borrows.

mod attributes;
mod dropped;
mod local;
mod make;
mod memory;
mod notify;
mod operate;
mod request;
mod scope;
mod sync;
mod worker;

pub use attributes::{Assertions, WindowFlavor, WindowModel};
pub(crate) use dropped::{KeptRegistrations, Registration};
pub use local::SharedPart;
pub use make::WindowBuilder;
pub use memory::WindowMemory;
pub use request::WindowRequest;
pub use scope::{WindowOperation, WindowScope};

use crate::error::Error;
use crate::raw;
use crate::shared::{Shared, stuck};
use crate::shared_buf::SharedBuf;
use attributes::Hints;
use gapless_bml::Bml;
use gapless_dtype::AnyBits;
use gapless_osc::{Accumulations, Driver, WindowCall, WindowProfile};
use gapless_pml::Doing;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

/// A window: `T`s at each rank of a communicator that the other ranks access, one-sided.
///
/// Displacements are in elements of the target. Operations need an epoch, which gives access to a target: between two
/// [fences](Window::fence), between [`start`](Window::start) and [`complete`](Window::complete), or while the target is
/// [locked](Window::lock). Calls that begin or end epochs need the window exclusively, operations do not: any number of
/// threads may be in them at once.
///
/// ```
/// use gapless::{Lock, ReduceOp, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let (me, right) = (comm.rank(), (comm.rank() + 1) % comm.size());
/// let mut window = comm.window_allocate::<f64>(4)?;
///
/// // Between fences: each rank writes to its neighbour.
/// window.fence()?;
/// window.put(&[1.0, 2.0], right, 1)?; // elements 1 and 2 there
/// window.fence_last()?;
/// assert_eq!(window.load(2)?, 2.0);
///
/// // Passive: rank 0 calls nothing.
/// window.lock(0, Lock::Shared)?;
/// window.accumulate(&[f64::from(me)], 0, 3, ReduceOp::Sum)?;
/// let mut sum = [0.0];
/// window.flush(0)?;
/// window.get(&mut sum, 0, 3)?;
/// window.unlock(0)?;
/// window.free()?;
/// world.finalize()
/// # }
/// ```
///
/// # Memory
///
/// The memory model is the unified one (`MPI_WIN_UNIFIED`): there is one copy. No reference to it exists while others
/// may write it. A rank reads and writes its own part by [`read`](Window::read), [`write`](Window::write),
/// [`load`](Window::load) and [`store`](Window::store), which copy by atomic accesses: a number is never seen half
/// written.
///
/// # When operations end
///
/// An operation has ended at the origin when its call returns: buffers may be changed again, and what was read is
/// there. At the target it has ended after [`flush`](Window::flush), [`unlock`](Window::unlock), a fence, or the
/// target's [`wait`](Window::wait). If a process that is needed dies, calls fail with an error that names it
/// ([`Error::lost_rank`](crate::Error::lost_rank)).
///
/// A window that is dropped, and not [freed](Window::free), refuses the others' messages from then on, and gives back
/// the locks that its rank has.
pub struct Window<T, M = SharedBuf> {
    raw: raw::Window,
    /// Gives the memory back.
    memory: memory::GivesBack<M>,
    /// In a dynamic window: by address.
    attached: Vec<(u64, SharedBuf)>,
    hints: Hints,
    name: String,
    element: PhantomData<fn() -> T>,
}

impl<T, M> fmt::Debug for Window<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<T: AnyBits, M> Window<T, M> {
    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.raw.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.raw.size()
    }

    /// How many elements the window has at a rank; 0 if it is dynamic.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn len(&self, rank: u32) -> Result<u64, Error> {
        let member = self.inner().member(rank)?;
        Ok(member.bytes / member.unit)
    }

    /// Whether operations on a rank's memory are carried out by this process, because it maps that memory: by loads,
    /// stores and atomic instructions, or by its device. If not, they go by messages, and the rank has to make
    /// progress.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn is_mapped(&self, rank: u32) -> Result<bool, Error> {
        self.raw.is_mapped(rank)
    }

    /// Whether accumulations are carried out by adapters, at all ranks, so that no target needs to make progress for
    /// them: only in a [window of numbers](WindowBuilder::allocate_numbers).
    #[must_use]
    pub fn is_by_adapter(&self) -> bool {
        self.inner().is_by_adapter()
    }

    /// How accumulations are carried out at their targets: all ranks agreed on that when the window was made.
    #[must_use]
    pub fn accumulations(&self) -> Accumulations {
        self.inner().accumulations()
    }

    /// What the calls on this window have cost at this rank; `None` unless it was made
    /// [profiled](crate::WindowBuilder::profiled).
    #[must_use]
    pub fn profile(&self) -> Option<WindowProfile> {
        self.raw.profile()
    }

    /// When a call began, if that is wanted.
    #[inline]
    fn began(&self) -> Option<Instant> {
        self.raw.began()
    }

    /// A call is over.
    #[inline]
    fn note(&self, call: WindowCall, bytes: u64, began: Option<Instant>) {
        self.raw.note(call, bytes, began);
    }

    #[inline]
    fn inner(&self) -> &gapless_osc::Window {
        &self.raw.inner
    }

    #[inline]
    fn shared(&self) -> &Shared {
        self.raw.shared()
    }

    /// The shared part of the world, to be kept.
    fn world(&self) -> Arc<Shared> {
        Arc::clone(&self.raw.comm.shared)
    }
}

impl Driver for Shared {
    type Error = Error;

    fn until<A>(
        &self,
        polled: bool,
        whom: impl Fn() -> Option<u32>,
        mut step: impl FnMut(&mut Bml) -> Option<A>,
    ) -> Result<A, Error> {
        if polled {
            self.with(|state| {
                state.polled += 1;
                Ok(())
            })?;
        }
        let what = || Doing { whom: whom(), ..stuck::WINDOW };
        let found = self.wait_in(&what, |state| match state.open() {
            Ok(pml) => step(pml.bml_mut()).map(Ok),
            Err(error) => Some(Err(error)),
        });
        if polled {
            self.with_anyway(|state| state.polled -= 1);
        }
        found?
    }

    fn progress(&self) {
        // Whoever needs something of the world hears of its end.
        let _ = self.with(|state| {
            self.drive_once(state);
            // Accumulations that are tasks may have gone straight into rings.
            self.rouse(state);
            Ok(())
        });
    }
}
