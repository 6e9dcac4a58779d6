//! Windows over memory that the caller vouches for, of elements that each operation names (MPI 4.1 chapter 12).
//!
//! `make.rs` makes and frees them, `sync.rs` has the epochs, `operate.rs` the operations, `requested.rs` those with
//! requests, `notices.rs` those with notices. All that they do is in `gapless-osc`. The safe [`Window`](crate::Window)
//! is one of these, with a type and with memory that it owns.

mod make;
mod notices;
mod operate;
mod requested;
mod sync;

pub(crate) use make::Made;
pub(crate) use operate::At;
pub(crate) use requested::DrainOnDrop;

use crate::communicator::Communicator;
use crate::error::Error;
use crate::page_locked::PageLocked;
use crate::shared::Shared;
use crate::shared_buf::SharedBuf;
use crate::window::{Registration, WindowFlavor};
use gapless_mem::{Atomics, Lease, Region};
use gapless_osc::{Profile, WindowCall, WindowError, WindowProfile};
use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

/// A window: memory at each rank of a communicator that the other ranks access, one-sided.
///
/// Displacements are in units of the target, which says how long its unit is. Elements are what the layouts of an operation
/// say, at both ends: any types meet in one window. Threads share a window: all calls take `&self`, and one that waits
/// hinders no other, except where MPI allows no other epoch (MPI 4.1 §12.5).
///
/// # When operations end
///
/// What is given ([`put`](Window::put), [`accumulate`](Window::accumulate)) may be changed again when the call returns. What
/// is read ([`get`](Window::get), [`get_accumulate`](Window::get_accumulate), [`fetch_and_op`](Window::fetch_and_op),
/// [`compare_and_swap`](Window::compare_and_swap)) is there after [`flush_local`](Window::flush_local),
/// [`flush`](Window::flush) or the end of the epoch, and what the target refuses is told there. Up to 4096 such reads of a
/// target are under way at once (or 4 MiB of those whose results are no one span of the host's memory); a call that finds
/// as many waits for the older half.
///
/// ```
/// use gapless::raw::{Typed, Window};
/// use gapless::{Assertions, Lock, Primitive, ReduceOp, World};
/// # fn main() -> Result<(), gapless::Error> {
/// let world = World::init()?;
/// let comm = world.comm();
/// let window = Window::allocate(comm, 64, 8)?;
/// let (double, mut found) = (Primitive::Double.layout(), [0.0f64; 2]);
/// let at = |value: &mut [f64; 2]| {
///     Typed::at(gapless::Space::Host, value.as_mut_ptr().expose_provenance() as u64, double, 2)
/// };
/// let (mut given, target) = ([1.5, 2.5], (double, 2));
/// window.lock(0, Lock::Exclusive, Assertions::empty())?;
/// // SAFETY: nobody writes `given` meanwhile.
/// unsafe { window.put(&at(&mut given)?, 0, 4, target) }?;
/// // SAFETY: nobody touches `found` before the lock is given back.
/// unsafe { window.get_accumulate(None, &at(&mut found)?, 0, 4, target, ReduceOp::NoOp) }?;
/// window.unlock(0)?;
/// assert_eq!(found, given);
/// window.free()?;
/// world.finalize()
/// # }
/// ```
///
/// A window that is dropped, and not [freed](Window::free), gives up its reads, refuses the others' messages from then
/// on, and gives back the locks that its rank has.
pub struct Window {
    pub(crate) inner: gapless_osc::Window,
    /// Of the same ranks, for the collectives of this window alone.
    pub(crate) comm: Communicator,
    /// What was allocated for it.
    memory: Option<SharedBuf>,
    /// The lock and the notice counters.
    header: PageLocked<SharedBuf>,
    /// While adapters may change the memory.
    numbers: Option<Registration>,
    profile: Option<Box<Profile>>,
    flavor: WindowFlavor,
    /// What went wrong before a fence that another rank was refused: the next fence says so.
    owed: Mutex<Option<Error>>,
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flavor, rank) = (self.inner.flavor(), self.inner.rank());
        write!(f, "Window({flavor:?}, rank {rank} of {})", self.inner.size())
    }
}

impl Window {
    /// This process's rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.inner.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.inner.size()
    }

    /// The window's own duplicate of the communicator that it was made on (`MPI_Win_get_group` is its group).
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// How the window was made (`MPI_WIN_CREATE_FLAVOR`) by this rank.
    #[must_use]
    pub fn flavor(&self) -> WindowFlavor {
        self.flavor
    }

    /// Where this rank's memory is (`MPI_WIN_BASE`). Of no bytes if the window is dynamic.
    #[must_use]
    pub fn base(&self) -> Region {
        self.inner.own().lease().region()
    }

    /// Bytes of the memory of a rank (`MPI_WIN_SIZE`); 0 if the window is dynamic.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn bytes(&self, rank: u32) -> Result<u64, Error> {
        Ok(self.inner.member(rank)?.bytes)
    }

    /// Bytes of a unit of displacements at a rank (`MPI_WIN_DISP_UNIT`).
    ///
    /// # Errors
    /// There is no such rank.
    pub fn unit(&self, rank: u32) -> Result<u64, Error> {
        Ok(self.inner.member(rank)?.unit)
    }

    /// Whether operations on a rank's memory are carried out by this process, because it maps that memory: then they have
    /// ended when their calls return.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn is_mapped(&self, rank: u32) -> Result<bool, Error> {
        let member = self.inner.member(rank)?;
        Ok(member.mapped.is_some() || member.device.is_some())
    }

    /// Where a rank's memory is in this process, its bytes and its unit (`MPI_Win_shared_query`, MPI 4.1 §12.2.3), to be
    /// loaded and stored as the rules of MPI's shared memory say ([`sync`](Window::sync)). `None` stands for
    /// `MPI_PROC_NULL`: the lowest rank that has bytes. Address and bytes are 0 if this process does not map the memory: in
    /// windows that were not made [shared](Window::allocate_shared), that depends on where it is.
    ///
    /// # Errors
    /// There is no such rank.
    pub fn shared_query(&self, rank: Option<u32>) -> Result<(u64, u64, u64), Error> {
        let has_bytes = |rank: &u32| self.bytes(*rank).is_ok_and(|bytes| bytes > 0);
        let rank = rank.or_else(|| (0..self.size()).find(has_bytes)).unwrap_or(0);
        let member = self.inner.member(rank)?;
        let region = member.mapped.as_ref().map(gapless_osc::Exposure::region);
        let found = region.filter(|region| !region.is_empty());
        Ok(found.map_or((0, 0, member.unit), |region| (region.start(), region.len(), member.unit)))
    }

    /// Attaches memory of the host to a dynamic window (`MPI_Win_attach`, MPI 4.1 §12.2.4): others access it by its
    /// address.
    ///
    /// # Errors
    /// The window is not dynamic; the memory is a device's.
    ///
    /// # Safety
    /// Until [`detach`](Window::detach) has returned, or the window is gone, the region describes initialised memory that is
    /// valid for reads and writes. Where others may access it at the same time, this process does so by atomic accesses
    /// alone.
    pub unsafe fn attach(&self, memory: Region) -> Result<(), Error> {
        // SAFETY: the caller's promise: whoever has the lease is in the window.
        let lease = unsafe { Lease::kept_by_caller(memory) };
        // SAFETY: the caller's promise.
        let memory = unsafe { Atomics::new(lease) }?;
        Ok(self.inner.attach(memory).map(drop)?)
    }

    /// Takes memory back that was attached at this address (`MPI_Win_detach`): from now on nothing of others touches it.
    ///
    /// # Errors
    /// [`WindowError::NotAttached`].
    pub fn detach(&self, address: u64) -> Result<(), Error> {
        match self.inner.detach(address) {
            true => Ok(()),
            false => Err(WindowError::NotAttached { address }.into()),
        }
    }

    /// What the calls on this window have cost at this rank; `None` unless it was made
    /// [profiled](crate::WindowBuilder::profiled).
    #[must_use]
    pub fn profile(&self) -> Option<WindowProfile> {
        let accumulations = self.inner.accumulations();
        self.profile.as_ref().map(|profile| profile.read(accumulations))
    }

    /// Does a call, and notes what it cost, if that is wanted.
    #[inline]
    pub(crate) fn timed<R>(&self, call: WindowCall, bytes: u64, act: impl FnOnce() -> R) -> R {
        match &self.profile {
            None => act(),
            Some(_) => slowly(|| {
                let began = self.began();
                let done = act();
                self.note(call, bytes, began);
                done
            }),
        }
    }

    /// When a call began, if that is wanted.
    #[inline]
    pub(crate) fn began(&self) -> Option<Instant> {
        self.profile.as_ref().map(|_| Instant::now())
    }

    /// A call is over.
    #[inline]
    pub(crate) fn note(&self, call: WindowCall, bytes: u64, began: Option<Instant>) {
        if let (Some(profile), Some(began)) = (&self.profile, began) {
            profile.note(call, bytes, began);
        }
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        &self.comm.shared
    }
}

/// Does what few calls need out of line: they would all be longer for it.
#[inline(never)]
fn slowly<R>(act: impl FnOnce() -> R) -> R {
    act()
}
