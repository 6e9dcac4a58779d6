//! The endpoint: its public face. Decisions are elsewhere; this file checks arguments and drives.

mod asks;
mod exchange;
mod general;
mod leave;
mod modes;
pub(crate) mod persistent;
mod polled;
mod sweep;
mod take_back;
mod wait;

pub use persistent::Persistent;

use crate::agree::Agreements;
use crate::buffer;
use crate::choose::{self, Candidate};
use crate::comm::Comm;
use crate::cost::Situation;
use crate::counters::Counters;
use crate::drive::core::Core;
use crate::drive::short::Awaited;
use crate::error::{Failure, PmlError};
use crate::matching::{MessageId, Source, TagSel};
use crate::pml::persistent::PersistentCall;
use crate::protocol::Protocol;
use crate::status::{RequestId, Status};
use crate::tuning::{Config, Tuning};
use crate::wire::SendMode;
use gapless_bml::{Bml, LinkError, Next, Waiter};
use gapless_engine::{Engine, Typed};
use gapless_mem::{Device, Space};
use std::sync::Arc;

/// One process's end of all its messages.
///
/// Owns the transports. Nothing happens unless a method is called: [`progress`](Pml::progress), or
/// one that waits, drives everything. It is not shared between threads.
///
/// Dropping it ends everything under way, once engines have ended theirs; to peers this process is
/// then lost. What peers were granted stays granted: see [`take_back`](Pml::take_back).
pub struct Pml {
    pub(crate) bml: Bml,
    pub(crate) core: Core,
    pub(crate) waiter: Waiter,
    pub(crate) agreements: Agreements,
    world: Comm,
    myself: Comm,
    /// The job has processes on other hosts.
    has_remote_hosts: bool,
}

impl Pml {
    /// An endpoint for the process of `bml`. The first of `engines` that serves a buffer's memory is used.
    #[must_use]
    pub fn new(bml: Bml, engines: Vec<Arc<dyn Engine>>, config: Config) -> Pml {
        let (me, size) = (bml.me().0, bml.size());
        let core = Core::new(me, size, engines, config);
        let (world, myself) = core.predefined();
        let waiter = Waiter::new(size as usize);
        Pml {
            bml,
            core,
            waiter,
            agreements: Agreements::default(),
            world,
            myself,
            has_remote_hosts: false,
        }
    }

    /// The communicator of all processes (`MPI_COMM_WORLD`).
    #[must_use]
    pub fn world(&self) -> Comm {
        self.world.clone()
    }

    /// The communicator of this process alone (`MPI_COMM_SELF`).
    #[must_use]
    pub fn self_comm(&self) -> Comm {
        self.myself.clone()
    }

    /// The transports, for connecting peers and allocating memory.
    pub fn bml_mut(&mut self) -> &mut Bml {
        &mut self.bml
    }

    /// The job has processes on other hosts: devices that are attached from now on are made ready for long messages to
    /// these hosts.
    pub fn expect_remote_hosts(&mut self) {
        self.has_remote_hosts = true;
    }

    /// Makes a device known to all transports ([`Bml::attach`]). In a job with [other hosts](Pml::expect_remote_hosts),
    /// page-locked memory for the first long messages is registered with it now, since a driver may wait for kernels
    /// that stay.
    ///
    /// # Errors
    /// As [`Bml::attach`].
    pub fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        let attached = self.bml.attach(device);
        if self.has_remote_hosts && !device.space().cpu_accessible() {
            let Config { tuning, bounds, .. } = &self.core.config;
            let packet = tuning.device_packet_bytes.into();
            self.core.rndv.rings.prepare(device, bounds.staging_bytes, packet);
        }
        attached
    }

    /// Undoes [`attach`](Pml::attach), and frees what is kept for messages of the device; see [`Bml::detach`]. Messages
    /// in flight end as they would have.
    #[must_use]
    pub fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        self.core.rndv.rings.forget(device);
        self.core.rndv.staging.forget(&mut self.bml, device);
        self.bml.detach(device)
    }

    /// How blocking calls wait; at first for as many processes on this machine as the job has.
    pub fn set_waiter(&mut self, waiter: Waiter) {
        self.waiter = waiter;
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Changes the configuration for messages started from now on.
    pub fn config_mut(&mut self) -> &mut Config {
        self.core.recent.forget();
        self.core.rndv.facts.iter_mut().for_each(|facts| facts.forget_choices());
        &mut self.core.config
    }

    /// Adds an engine, asked after those that are there.
    pub fn add_engine(&mut self, engine: Arc<dyn Engine>) {
        self.core.engines.push(engine);
        self.core.host = buffer::host_engine(&self.core.engines);
    }

    /// Whether an engine works on memory of this space.
    #[must_use]
    pub fn serves(&self, space: Space) -> bool {
        self.core.engines.iter().any(|engine| engine.serves(space))
    }

    /// The error of a buffer in memory that no engine [serves](Pml::serves).
    #[must_use]
    pub fn no_engine(&self, space: Space) -> PmlError {
        buffer::no_engine(&self.core.engines, space)
    }

    /// Starts to send `buffer` to rank `dest` of `comm` (`MPI_Isend`, MPI 4.1 §3.7.2). The request
    /// ends when the buffer may be used again. Never waits.
    ///
    /// # Safety
    /// Until the request has ended, `buffer` describes memory that is valid for reads, and nothing
    /// writes it; also if the request is released.
    ///
    /// # Errors
    /// Nothing was started: a rank or tag that is not there, a peer that is lost or not connected,
    /// memory that no engine serves.
    pub unsafe fn isend(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.isend_mode(comm, buffer, dest, tag, SendMode::Standard) }
    }

    /// As [`isend`](Pml::isend), in a mode of one's choice (`MPI_Issend`, `MPI_Irsend`,
    /// `MPI_Ibsend`). A buffered send has ended when this returns.
    ///
    /// # Safety
    /// As [`isend`](Pml::isend); in buffered mode, until this returns.
    ///
    /// # Errors
    /// As [`isend`](Pml::isend); in buffered mode also [`PmlError::BufferExhausted`].
    pub unsafe fn isend_mode(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
        mode: SendMode,
    ) -> Result<RequestId, PmlError> {
        if mode == SendMode::Standard {
            // SAFETY: the caller's promise is passed on.
            if let Some(id) = unsafe { self.isend_short(comm, buffer, dest, tag) } {
                return Ok(id);
            }
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.isend(&mut self.bml, comm, buffer, (dest, tag), mode) }
    }

    /// Sends in standard mode if that can be done at once and leaves nothing to wait for. Otherwise it does nothing
    /// and returns `None`: then [`isend`](Pml::isend) does it, or gives the error.
    ///
    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads, and nothing writes
    /// it.
    #[inline]
    pub unsafe fn send_at_once(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
    ) -> Option<Status> {
        // SAFETY: the caller's promise is passed on.
        let left = unsafe { self.core.send_short(&mut self.bml, comm, buffer, (dest, tag)) };
        left.map(|left| left.status)
    }

    /// As [`isend`](Pml::isend), if the message is short and nothing must be waited for; otherwise it does nothing
    /// and returns `None`. For latency-critical callers: the name of the request comes in registers.
    ///
    /// # Safety
    /// As [`isend`](Pml::isend).
    pub unsafe fn isend_short(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
    ) -> Option<RequestId> {
        // SAFETY: the caller's promise is passed on.
        let left = unsafe { self.core.send_short(&mut self.bml, comm, buffer, (dest, tag)) };
        Some(self.core.requests.insert_submitted(&left?))
    }

    /// As [`irecv`](Pml::irecv), if its buffer is plain and nothing must be waited for; otherwise it does nothing and
    /// returns `None`. For latency-critical callers, as [`isend_short`](Pml::isend_short).
    ///
    /// # Safety
    /// As [`irecv`](Pml::irecv).
    pub unsafe fn irecv_short(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Option<RequestId> {
        let (Source::Rank(rank), TagSel::Is(tag)) = (source, tag) else { return None };
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.recv_short(&mut self.bml, comm, buffer, (rank, tag)) }
    }

    /// For a blocking receive: what it waits for, if that is a short message and no other receive or message can come
    /// between. Nothing is posted: call [`take_awaited`](Pml::take_awaited) a few times, and then
    /// [`irecv`](Pml::irecv). The value is void after any other call of this endpoint.
    #[inline]
    pub fn awaited(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Option<Awaited> {
        let (Source::Rank(rank), TagSel::Is(tag)) = (source, tag) else { return None };
        if self.core.is_busy() || self.agreements.open > 0 {
            return None;
        }
        self.core.comes_next(comm, buffer, (rank, tag))
    }

    /// Receives the awaited message, if it is the next one of its source and has arrived.
    ///
    /// # Safety
    /// For the time of this call, the buffer that `awaited` was made for describes memory that is valid for
    /// writes, and nothing else touches it. Nothing else was done with this endpoint since.
    #[inline]
    pub unsafe fn take_awaited(&mut self, awaited: &Awaited) -> Next {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.take_awaited(&mut self.bml, awaited) }
    }

    /// As [`isend`](Pml::isend), of a copy that is made before this returns: the memory may be used
    /// again, and the request ends as the copy's does.
    ///
    /// # Safety
    /// Until this returns, `buffer` describes memory that is valid for reads, and nothing writes it.
    ///
    /// # Errors
    /// As [`isend`](Pml::isend); there is no memory for the copy.
    pub unsafe fn isend_copy(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.isend_copy(&mut self.bml, comm, buffer, (dest, tag)) }
    }

    /// Starts to receive a message into `buffer` (`MPI_Irecv`, MPI 4.1 §3.7.2). Never waits.
    ///
    /// A message that is too long fills the buffer and ends with [`PmlError::Truncated`]; one of
    /// other types touches nothing and ends with [`PmlError::SignatureMismatch`].
    ///
    /// # Safety
    /// Until the request has ended, `buffer` describes memory that is valid for reads and writes,
    /// and nothing else touches it; also if the request is released.
    ///
    /// # Errors
    /// Nothing was started: as for [`isend`](Pml::isend). From any source: nobody is left. A layout that names a byte
    /// twice: [`PmlError::OverlappingReceive`].
    pub unsafe fn irecv(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        source: Source,
        tag: TagSel,
    ) -> Result<RequestId, PmlError> {
        // SAFETY: the caller's promise is passed on.
        if let Some(id) = unsafe { self.irecv_short(comm, buffer, source, tag) } {
            return Ok(id);
        }
        // SAFETY: as above.
        unsafe { self.core.irecv(&mut self.bml, comm, buffer, source, tag) }
    }

    /// Starts what `persistent` describes (`MPI_Start`, MPI 4.1 §3.9).
    ///
    /// # Safety
    /// As [`isend_mode`](Pml::isend_mode) or [`irecv`](Pml::irecv), for the buffer it was made with.
    ///
    /// # Errors
    /// As those; [`PmlError::StillActive`], if the result of what it started last was not collected.
    pub unsafe fn start(&mut self, persistent: &mut Persistent) -> Result<RequestId, PmlError> {
        if persistent.active.is_some_and(|id| self.core.requests.is_done(id).is_ok()) {
            return Err(PmlError::StillActive);
        }
        let Persistent { comm, buffer, what, .. } = &*persistent;
        let id = match *what {
            // SAFETY: the caller's promise is passed on.
            PersistentCall::Send { dest, tag, mode } => unsafe {
                self.isend_mode(comm, buffer, dest, tag, mode)
            },
            // SAFETY: the caller's promise is passed on.
            PersistentCall::Recv { source, tag } => unsafe {
                self.irecv(comm, buffer, source, tag)
            },
        }?;
        persistent.active = Some(id);
        Ok(id)
    }

    /// Takes the message that a receive would take now, for [`imrecv`](Pml::imrecv) to receive (`MPI_Improbe`, MPI
    /// 4.1 §3.8.2). Makes progress if there is none.
    ///
    /// # Errors
    /// As [`iprobe`](Pml::iprobe).
    pub fn improbe(
        &mut self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<(MessageId, Status)>, PmlError> {
        if let Some(found) = self.claim(comm, source, tag)? {
            return Ok(Some(found));
        }
        self.progress();
        self.claim(comm, source, tag)
    }

    /// As [`improbe`](Pml::improbe), without progress.
    ///
    /// # Errors
    /// As there.
    pub fn claim(
        &mut self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<(MessageId, Status)>, PmlError> {
        self.core.claim(&mut self.bml, comm, source, tag)
    }

    /// Starts to receive a message that a matched probe has taken (`MPI_Imrecv`, MPI 4.1 §3.8.3).
    ///
    /// # Safety
    /// As [`irecv`](Pml::irecv).
    ///
    /// # Errors
    /// Nothing was started.
    /// - [`OverlappingReceive`](PmlError::OverlappingReceive), or no engine serves the memory: the message is still
    ///   there. Receive it into other memory, or [drop](Pml::drop_message) it; until then the sender of
    ///   a long message waits.
    /// - [`NoSuchMessage`](PmlError::NoSuchMessage): it was received or dropped already.
    /// - [`PeerLost`](PmlError::PeerLost): its sender was lost before the data came. The message is gone, and the
    ///   failure has its status.
    pub unsafe fn imrecv(
        &mut self,
        message: &MessageId,
        buffer: &Typed,
    ) -> Result<RequestId, Failure> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.core.imrecv(&mut self.bml, message, buffer) }
    }

    /// Drops a message that a matched probe has taken. Its sender completes normally.
    pub fn drop_message(&mut self, message: &MessageId) {
        self.core.drop_claim(&mut self.bml, message);
    }

    /// Makes progress on everything in flight; returns how much happened. Never blocks; the work is bounded.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let events = self.bml.poll_for(&mut self.core);
        self.pump(events)
    }

    /// As [`progress`](Pml::progress), and looks at everything that is looked at only now and then, as new links: for a
    /// caller that has not made progress for long.
    pub fn progress_thoroughly(&mut self) -> usize {
        let events = self.bml.poll_thoroughly(&mut self.core);
        self.pump(events)
    }

    /// Whether [`progress`](Pml::progress) would do nothing, if a quick check can tell: for callers that wait.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.bml.is_quiet()
            && !self.core.is_busy()
            && self.agreements.open == 0
            && !self.core.matching.has_parked()
    }

    /// The work after a poll that brought `events`.
    #[inline]
    pub(crate) fn pump(&mut self, events: usize) -> usize {
        let mut done = events;
        if self.core.is_busy() {
            done += self.core.pump(&mut self.bml);
        }
        done += self.agree();
        if done == 0 && self.core.matching.has_parked() {
            self.core.matching.spill();
        }
        done
    }

    /// The result of a request if it has ended (`MPI_Test`); makes progress otherwise.
    ///
    /// # Errors
    /// The request's failure, or there is no such request. Either way it is gone.
    pub fn test(&mut self, id: RequestId) -> Result<Option<Status>, Failure> {
        if let Some(status) = self.core.requests.collect(id)? {
            return Ok(Some(status));
        }
        self.progress();
        self.core.requests.collect(id)
    }

    /// Drops the result in advance (`MPI_Request_free`). The operation goes on, and its buffer must stay valid until
    /// it has ended, which can no longer be tested.
    ///
    /// # Errors
    /// There is no such request.
    pub fn release(&mut self, id: RequestId) -> Result<(), PmlError> {
        self.core.requests.release(id)
    }

    /// Cancels a receive that no message has taken yet (`MPI_Cancel`): the request then ends with
    /// [`PmlError::Cancelled`]. Returns whether it was in time.
    ///
    /// # Errors
    /// There is no such request.
    pub fn cancel_recv(&mut self, id: RequestId) -> Result<bool, PmlError> {
        self.core.cancel(id)
    }

    /// The message that a receive would take now (`MPI_Iprobe`, MPI 4.1 §3.8.1); makes progress if
    /// there is none.
    ///
    /// # Errors
    /// A rank or tag that is not there; nobody is left who could send.
    pub fn iprobe(
        &mut self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<Status>, PmlError> {
        if let Some(status) = self.find(comm, source, tag)? {
            return Ok(Some(status));
        }
        self.progress();
        self.find(comm, source, tag)
    }

    /// As [`iprobe`](Pml::iprobe), without progress.
    ///
    /// # Errors
    /// As there.
    pub fn find(
        &mut self,
        comm: &Comm,
        source: Source,
        tag: TagSel,
    ) -> Result<Option<Status>, PmlError> {
        self.core.probe(&mut self.bml, comm, source, tag)
    }

    /// What the choice for a message from `buffer` to rank `dest` would depend on; the receiver's buffer is assumed
    /// to be like the sender's.
    ///
    /// # Errors
    /// A rank that is not there.
    pub fn situation(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
    ) -> Result<Situation, PmlError> {
        let peer = comm.process_of(dest, "the destination of a send")?;
        Ok(self.core.expectation(&mut self.bml, peer, buffer))
    }

    /// All protocols for a message from `buffer` to rank `dest`, with predicted times and what
    /// excludes them; the quickest that is not excluded would be chosen.
    ///
    /// # Errors
    /// A rank that is not there.
    pub fn explain(
        &mut self,
        comm: &Comm,
        buffer: &Typed,
        dest: u32,
    ) -> Result<[Candidate; Protocol::ALL.len()], PmlError> {
        let situation = self.situation(comm, buffer, dest)?;
        Ok(choose::candidates(&situation, self.tuning()))
    }

    /// What this endpoint has done so far, by protocol.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.core.counters.with(&self.core.requests.ended)
    }

    /// Staging memory of devices and of the host: bytes kept, and how many of them messages use now, or lost peers
    /// have not released.
    pub fn staging_bytes(&mut self) -> (u64, u64) {
        self.core.rndv.staging.look_back(&mut self.bml);
        self.core.rndv.staging.bytes()
    }

    fn tuning(&self) -> &Tuning {
        &self.core.config.tuning
    }
}

impl std::fmt::Debug for Pml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pml of process {} in {}", self.world.rank(), self.world.size())
    }
}
