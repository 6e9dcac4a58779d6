//! The world: this process's end of a job. Finds the other processes, connects to them, owns the
//! message layer, and leaves in good order.

mod builder;
mod card;

pub use builder::Builder;

use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::Shared;
use crate::shared_buf::SharedBuf;
use crate::wireup::{Wireup, WireupError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// This process's end of a job.
///
/// ```
/// # fn main() -> Result<(), gapless::Error> {
/// let world = gapless::World::init()?; // a job of one, unless a launcher started us
/// let comm = world.comm();
/// let next = (comm.rank() + 1) % comm.size();
/// let mut token = [0u32];
/// comm.scope(|s| {
///     let _ = s.isend(&[17u32], next, 0)?;
///     let _ = s.irecv(&mut token, gapless::Source::Any, 0)?;
///     Ok(())
/// })?;
/// assert_eq!(token, [17]);
/// world.finalize()
/// # }
/// ```
///
/// All processes of the job must call [`finalize`](World::finalize) or drop their world; dropping
/// does the same as well as it can, and says nothing about failures. While a thread unwinds,
/// dropping only leaves: the launcher then ends the job.
#[derive(Debug)]
pub struct World {
    shared: Arc<Shared>,
    comm: Communicator,
    myself: Communicator,
    /// `None` once finalized.
    wireup: Option<Connection>,
}

/// Polls in a row, each with effect, after which even a busy world is left.
const POLLS_MAX: u32 = 100_000;

/// The launcher, as the world keeps it: used once, in the end.
struct Connection(Mutex<Box<dyn Wireup>>);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl World {
    /// Joins the job that this process's launcher started, or is a job of one. Waits for the other
    /// processes of the job to come as far.
    ///
    /// # Errors
    /// A launcher that is half there or gone; a peer that is incompatible or cannot be reached; a
    /// transport that cannot be set up.
    pub fn init() -> Result<World, Error> {
        World::builder().init()
    }

    /// As [`init`](World::init), with choices.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// This process's number in the job, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }

    /// How many processes the job has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.comm.size()
    }

    /// The communicator of all processes (`MPI_COMM_WORLD`).
    #[must_use]
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// The communicator of this process alone (`MPI_COMM_SELF`).
    #[must_use]
    pub fn self_comm(&self) -> &Communicator {
        &self.myself
    }

    /// `len` zeroed bytes that peers on this host can map, so that messages out of them move with
    /// one copy; heap memory where no transport can do that. For large, long-lived buffers: an
    /// allocation costs system calls and whole pages.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn alloc(&self, len: usize) -> Result<SharedBuf, Error> {
        if len == 0 {
            return SharedBuf::heap(0);
        }
        let allocated = self.shared.lock()?.open()?.bml_mut().allocate(len as u64);
        match allocated {
            Some(Ok(allocation)) => match SharedBuf::mapped(allocation, len) {
                Some(memory) => Ok(memory),
                None => {
                    tracing::warn!(
                        len,
                        "a transport gave too little memory, or none of the host's"
                    );
                    SharedBuf::heap(len)
                }
            },
            Some(Err(error)) => {
                tracing::info!(len, %error, "memory that peers can map is refused; heap instead");
                SharedBuf::heap(len)
            }
            None => SharedBuf::heap(len),
        }
    }

    /// Whether `peer`'s memory can be read by single copy, and whether it can be mapped.
    #[cfg(feature = "cli")]
    pub(crate) fn link(&self, peer: u32) -> Result<(bool, bool), Error> {
        let mut state = self.shared.lock()?;
        let bml = state.open()?.bml_mut();
        let single_copy = bml.rdma(gapless_bml::Rank(peer)).is_some();
        Ok((single_copy, bml.mapped(gapless_bml::Rank(peer)).is_some()))
    }

    /// Leaves the job in good order (`MPI_Finalize`, MPI 4.1 §11.2.2): waits until every process of
    /// the job is here, ends what is still under way, and tells the launcher.
    ///
    /// Receives with an owned buffer that no message has matched are cancelled; sends that no
    /// receive has matched are given up once every process has come here. Communicators and
    /// requests that outlive this call get [`Error::Finalized`] for anything new.
    ///
    /// # Errors
    /// The launcher is gone, as it is when another process died.
    pub fn finalize(mut self) -> Result<(), Error> {
        self.leave()
    }

    fn leave(&mut self) -> Result<(), Error> {
        let Some(Connection(wireup)) = self.wireup.take() else { return Ok(()) };
        let mut wireup = wireup.into_inner().map_err(|_| Error::Poisoned)?;
        self.shared.lock()?.close();
        // Nobody starts anything after the first fence, so whatever can match has matched or is on
        // its way; nobody leaves before the second, by which all have received what is theirs.
        // What was started here and still waits for room goes on its way before that.
        let left = self
            .shared
            .wait_until(|state| (!state.pml.is_busy()).then_some(()))
            .and_then(|()| self.fence(&mut *wireup))
            .and_then(|()| self.end_receives())
            .and_then(|()| self.fence(&mut *wireup));
        self.shared.abandon();
        left?;
        Ok(wireup.finalize()?)
    }

    /// Waits for all processes, and serves their requests meanwhile.
    fn fence(&self, wireup: &mut dyn Wireup) -> Result<(), Error> {
        if wireup.size() == 1 {
            return Ok(wireup.fence()?);
        }
        let (shared, passed) = (&self.shared, AtomicBool::new(false));
        std::thread::scope(|threads| {
            let fence = threads.spawn(|| {
                let result = wireup.fence();
                passed.store(true, Ordering::Release);
                shared.ring();
                result
            });
            let waited = shared.wait_until(|_| passed.load(Ordering::Acquire).then_some(()));
            let fenced = fence.join().unwrap_or_else(|_| {
                let reason = "its thread panicked".to_owned();
                Err(WireupError::LauncherGone { doing: "fence", reason })
            });
            waited.and(fenced.map_err(Error::from))
        })
    }

    /// Ends receives with owned buffers: cancels those without a message, waits for the others.
    fn end_receives(&self) -> Result<(), Error> {
        let coming: Vec<_> = {
            let mut state = self.shared.lock()?;
            // What has been sent is here by now, or can be waited for.
            let _ = (0..POLLS_MAX).find(|_| state.progress() == 0);
            let receives = state.parked.receives();
            receives.into_iter().filter(|&id| matches!(state.cancel(id), Ok(false))).collect()
        };
        coming.into_iter().try_for_each(|id| self.shared.wait_ended(id))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.shared.abandon();
        }
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "the world could not be left in good order");
        }
    }
}
