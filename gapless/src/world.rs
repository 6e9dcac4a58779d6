//! The world: this process's end of a job. Finds the other processes, connects to them, owns the
//! message layer, and leaves in good order.

mod builder;
mod depart;
mod leave;
mod progress;

pub use builder::Builder;
pub(crate) use builder::attach;

use crate::communicator::Communicator;
use crate::device_buf::DeviceBuf;
use crate::error::Error;
use crate::owned::Refused;
use crate::registered_buf::RegisteredBuf;
use crate::shared::Shared;
use crate::shared_buf::SharedBuf;
use crate::xtq::typed::Calls;
use gapless_boot::directory::Connection;
use gapless_dtype::Equivalence;
use gapless_engine::ThreadedHostEngine;
use gapless_mem::{Region, Space};
use gapless_pml::{Config, Counters};
use gapless_tuning::coll::Table;
use progress::ProgressThread;
use std::sync::Arc;
use std::time::Duration;

/// What the link to a peer can do: see [`World::link`].
#[derive(Clone, Debug)]
pub struct Link {
    /// What the transport that carries the messages promises; `None` unless the link is up.
    pub limits: Option<gapless_btl::Limits>,
    /// The peer's memory can be read by single copy.
    pub single_copy: bool,
    /// The peer's memory can be mapped.
    pub mapped: bool,
    /// Network rails that are used together, and live: the name of each and the rate that was last measured, in bytes
    /// per microsecond. Empty if one transport carries all messages.
    pub rails: Vec<(&'static str, u64)>,
}

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
/// A process leaves together with the others by [`finalize`](World::finalize). If it drops its world, it *departs*: it
/// does not know whether others still need it, as it may return by `?` because of an error of its own. It serves them
/// until its own sends have been taken, but no longer than a second after the first moment at which no message was on its
/// way that it knew to be matched; sends that nobody has received then end with
/// [`Unreceived`](gapless_pml::PmlError::Unreceived). A job of one waits for nobody. Whoever waits for a process that has
/// departed, or needs it later, gets an error that names it; nobody else is harmed, and the others'
/// [`finalize`](World::finalize) ends well. A world that is dropped while its thread panics is given up at once.
#[derive(Debug)]
pub struct World {
    shared: Arc<Shared>,
    comm: Communicator,
    myself: Communicator,
    /// `None` once finalized.
    wireup: Option<Arc<Connection>>,
    thread: Option<ProgressThread>,
    /// The engine of host memory, if it has threads.
    copying: Option<Arc<ThreadedHostEngine>>,
    pub(crate) xtq: gapless_xtq::Xtq,
    pub(crate) calls: Arc<Calls>,
}

impl World {
    /// Joins the job that this process's launcher started, or is a job of one. Waits for the other processes of the
    /// job to do the same.
    ///
    /// A process is in its launcher's job once at a time. When it has left, it may join again under
    /// `gapless run`; other launchers do not take it again. Jobs of one, without a launcher, are not counted.
    ///
    /// # Errors
    /// A launcher that is only partly present or gone; a peer that is incompatible or cannot be reached; a transport
    /// that cannot be set up; an invalid [tuning file](crate::tuning).
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// `len` zeroed bytes that peers on this host can map, so that messages out of them move with one copy; heap
    /// memory if no transport can do that. For large, long-lived buffers: an allocation costs system calls and whole
    /// pages.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn alloc(&self, len: usize) -> Result<SharedBuf, Error> {
        SharedBuf::allocate(&self.shared, len)
    }

    /// `len` bytes of the device with the memory `space`. They may be shared with peers, and are freed only when no
    /// peer has them mapped any more; see [`DeviceBuf`] for the rest.
    ///
    /// An OpenCL space must be that of a device that this process has opened or made (`OpenClDevice`), or of another
    /// device in its context. Other handles are refused, because invalid numbers cannot be told from handles.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: no device of that space, or handles that this process does not know; no memory left
    /// there.
    pub fn alloc_device(&self, space: Space, len: u64) -> Result<DeviceBuf, Error> {
        let device = self.shared.with(|state| state.device(space))?;
        DeviceBuf::allocate(&self.shared, device, len)
    }

    /// Opens the device with the memory `space` now, and not when a message first needs it: so that a process without
    /// messages in its memory can [`register`](World::register) memory of the host with it.
    ///
    /// # Errors
    /// As [`alloc_device`](World::alloc_device).
    pub fn open_device(&self, space: Space) -> Result<(), Error> {
        self.shared.with(|state| state.device(space)).map(drop)
    }

    /// Page-locks memory of yours (a `Vec<T>` or `Box<[T]>`) for all devices that are open here and whose kernels reach
    /// memory of the host, as CUDA's do. Messages of 64 KiB and more between it and another process's device memory are
    /// then moved by the device of this process, and pass nothing else. Registering takes milliseconds, once for any
    /// number of messages. The driver may wait until all kernels on the GPU have ended, here and when the memory is
    /// unregistered or dropped: do both while no kernel stays there, and tell workers to leave
    /// ([`Tasks::keep_worker`](crate::xtq::Tasks::keep_worker) and its like).
    ///
    /// Without such a device it is ordinary memory ([`is_registered`](RegisteredBuf::is_registered)): a process whose
    /// messages all lie in memory of the host [opens](World::open_device) a device first.
    ///
    /// # Errors
    /// The device that refuses it, and why: a limit of locked memory, say. The memory comes back, unless another device
    /// that has registered it does not let go: then an empty `Vec` comes back, and the log tells.
    #[doc(alias = "cudaHostRegister")]
    #[expect(
        clippy::result_large_err,
        reason = "the memory comes back, as from other calls that own it"
    )]
    pub fn register<T: Equivalence>(
        &self,
        memory: impl Into<Vec<T>>,
    ) -> Result<RegisteredBuf<T>, Refused<Vec<T>>> {
        RegisteredBuf::register(&self.shared, memory.into())
    }

    /// Makes peers release the device memory that `region` touches, and waits until they have. Call this before you
    /// free (`cudaFree`) memory that messages used and that did not come from [`alloc_device`](World::alloc_device).
    /// Messages in it must have ended. A peer releases it when it next makes progress (a call that waits, a test, a
    /// progress thread), or dies; for memory that nobody has mapped this returns at once. Later messages may share it
    /// again.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn invalidate(&self, region: Region) -> Result<(), Error> {
        // A release is no event that ends a wait: ask again.
        let mut pause = Duration::from_micros(10);
        while !self.try_invalidate(region)? {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// As [`invalidate`](World::invalidate), without waiting: whether the memory may be freed now. If not,
    /// ask again after some progress.
    ///
    /// # Errors
    /// As [`invalidate`](World::invalidate).
    pub fn try_invalidate(&self, region: Region) -> Result<bool, Error> {
        self.shared.with(|state| {
            self.shared.drive_once(state);
            Ok(!state.pml.bml_mut().invalidate(region))
        })
    }

    /// Gives up what is kept of an OpenCL context that messages used: queues, buffers, programs, and references to the
    /// context and to a queue of yours. Call this before you release a context (`clReleaseContext`) that you will not
    /// use again, or nothing of it is freed before [other contexts](Builder::opencl_contexts) take its place. Messages
    /// in its memory should have ended; those in flight, and later ones, make what they need again. Gives whether
    /// anything was kept. While work waits in a queue of yours that is kept, that queue and its context are kept on: a
    /// later call of this world gives them up. Devices that you opened yourself, and memory of
    /// [`alloc_device`](World::alloc_device), keep their references.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: the space is not one of OpenCL. A panic in another thread.
    #[doc(alias = "withdraw_context")]
    pub fn release_context(&self, space: Space) -> Result<bool, Error> {
        self.shared.with(|state| state.release_context(space))
    }

    /// What messages of this process have done so far, by protocol: their number, fragments, launches, copies and
    /// staged bytes, and how deep their pipelines were.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn counters(&self) -> Result<Counters, Error> {
        self.shared.with(|state| Ok(state.open()?.counters()))
    }

    /// Reserves `bytes` for [`Communicator::bsend`] (`MPI_Buffer_attach`, MPI 4.1 §3.6): the most that copies of
    /// buffered sends take at a time, [`BUFFERED_OVERHEAD`](crate::BUFFERED_OVERHEAD) for each message included.
    ///
    /// # Errors
    /// A buffer is attached already.
    pub fn attach_buffer(&self, bytes: u64) -> Result<(), Error> {
        self.shared.with(|state| Ok(state.open()?.attach_buffer(bytes)?))
    }

    /// Makes the attached buffer as large as this at once, or attaches one. Messages that are in it stay, and count.
    ///
    /// # Errors
    /// A panic in another thread.
    pub fn resize_buffer(&self, bytes: u64) -> Result<(), Error> {
        self.shared.with(|state| {
            state.open()?.resize_buffer(bytes);
            Ok(())
        })
    }

    /// Waits until no message is in the attached buffer (`MPI_Buffer_flush`).
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn flush_buffer(&self) -> Result<(), Error> {
        self.shared.wait_until(|state| state.pml.is_buffer_empty().then_some(()))
    }

    /// Waits until every message in the attached buffer has left, and detaches it
    /// (`MPI_Buffer_detach`); gives its size in bytes, 0 if there is none.
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn detach_buffer(&self) -> Result<u64, Error> {
        self.shared.wait_until(|state| state.pml.try_detach_buffer())
    }

    /// How many threads [help to copy](Builder::copy_threads) long pieces here: before the first one, how many will be
    /// asked for; after it, how many the system gave.
    #[must_use]
    pub fn copy_threads(&self) -> usize {
        self.copying.as_ref().map_or(0, |engine| engine.threads())
    }

    /// What this process's link to `peer` can do now. A link that is not up yet can do nothing.
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn link(&self, peer: u32) -> Result<Link, Error> {
        let peer = gapless_bml::Rank(peer);
        self.shared.with(|state| {
            let bml = state.open()?.bml_mut();
            bml.look_up(peer);
            Ok(Link {
                limits: bml.limits(peer).cloned(),
                single_copy: bml.rdma(peer).is_some(),
                mapped: bml.mapped(peer).is_some(),
                rails: bml.rails_to(peer),
            })
        })
    }

    /// How messages that start now are carried.
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn config(&self) -> Result<Config, Error> {
        self.shared.with(|state| Ok(state.open()?.config().clone()))
    }

    /// Changes how messages that start from now on are carried. It does not affect messages in flight.
    /// Processes may differ in it, as they may from the start.
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn set_config(&self, config: Config) -> Result<(), Error> {
        self.shared.with(|state| {
            *state.open()?.config_mut() = config;
            Ok(())
        })
    }

    /// The table by which collectives of communicators that are made from now on choose their algorithms.
    #[must_use]
    pub fn coll_table(&self) -> Arc<Table> {
        self.shared.table()
    }

    /// Changes the table by which collectives of communicators that are made from now on choose their algorithms. All
    /// members of such a communicator must have given the same: nobody compares them.
    pub fn set_coll_table(&self, table: Table) {
        self.shared.set_table(table);
    }

    /// Ends all processes of the job (`MPI_Abort`, MPI 4.1 §9.3): asks the launcher to, and ends this process with
    /// `code`. Without a launcher, or if it cannot be told, the others notice this process's end as any death.
    pub fn abort(&self, code: i32) -> ! {
        if let Some(connection) = &self.wireup {
            connection.launcher().abort(code);
        }
        std::process::exit(code)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.abandon();
            return self.end_thread();
        }
        if self.is_within() {
            return self.give_up_from_within();
        }
        if let Err(error) = self.depart() {
            tracing::warn!(%error, "the world could not be left in good order");
        }
        self.end_thread();
    }
}
