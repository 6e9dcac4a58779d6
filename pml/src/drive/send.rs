//! Sends: starting one, and the states it goes through.

use crate::buffer::{self, Buffer, Transfer};
use crate::comm::Comm;
use crate::cost::{Situation, Touched};
use crate::drive::buffered::Copied;
use crate::drive::core::Core;
use crate::drive::flush::Gone;
use crate::drive::operation::{Operation, Send, SendStage, To};
use crate::error::PmlError;
use crate::links::{AM_TAG, Outgoing};
use crate::protocol::{Protocol, Protocols};
use crate::requests::Submitted;
use crate::rndv::gpudirect::single_copy_costs;
use crate::status::{RequestId, Status};
use crate::wire::{DataState, EAGER_BYTES, Envelope, SERIAL_BYTES, SendMode, Verdict, to_usize};
use gapless_bml::{Bml, Limits, RailSlot, Rank, Token, ZeroCopyResult};
use gapless_engine::{EngineError, Typed};
use gapless_mem::{Completion, DeviceError, Outstanding, Region};

/// Copying a shorter message into a slot is quicker than listing its pieces.
pub(crate) const ZERO_COPY_MIN: u64 = 2048;

/// A send whose arguments were checked.
pub(crate) struct CheckedSend {
    pub(crate) to: To,
    /// The engine that packs the buffer, by its index.
    pub(crate) engine: usize,
    pub(crate) envelope: Envelope,
    /// Longest payload that the link takes eagerly.
    link_eager: u64,
}

impl Core {
    /// Starts a send, in the first of these ways that is possible:
    ///
    /// 1. A message that is not to go eagerly is [offered](Core::offer); in buffered mode a copy of it is.
    /// 2. An eager message out of a device's memory is offered, too, if the receiver may know something better.
    /// 3. An eager message in synchronous mode is [queued](Core::queue_eager), because its answer is waited for.
    /// 4. If no message waits for its turn, a long one is sent from where it lies, without a copy.
    /// 5. Otherwise the message is packed into a slot of the transport (a strided buffer by its engine's convertor),
    ///    and sent.
    /// 6. If there is no room, the message is queued, or a copy in buffered mode.
    ///
    /// # Safety
    /// As [`Pml::isend_mode`](crate::Pml::isend_mode).
    pub(crate) unsafe fn isend(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
        mode: SendMode,
    ) -> Result<RequestId, PmlError> {
        let checked = self.check_send(bml, comm, buffer, (rank, tag), mode)?;
        let peer = checked.to.peer;
        let bytes = buffer.packed_bytes();
        // SAFETY: the caller's promise holds for the time of this call.
        if !unsafe { self.goes_eagerly(bml, &checked, buffer) } {
            if mode == SendMode::Buffered {
                // SAFETY: the caller's promise holds for the time of this call.
                return unsafe { self.send_copy(bml, checked, buffer, true) };
            }
            // SAFETY: the caller's promise is the one that a buffer takes.
            let buffer = unsafe { Buffer::promised(buffer, checked.engine) };
            return Ok(self.offer(
                bml,
                checked.to,
                buffer,
                checked.envelope,
                None,
                DataState::Present,
            ));
        }
        if bytes > 0
            && !buffer.space().cpu_accessible()
            && mode != SendMode::Ready
            && mode != SendMode::Buffered
            && self.is_better_offered(bml, peer, buffer)
        {
            // SAFETY: the caller's promise is the one that a buffer takes.
            let buffer = unsafe { Buffer::promised(buffer, checked.engine) };
            let id =
                self.offer(bml, checked.to, buffer, checked.envelope, None, DataState::Present);
            if mode == SendMode::Standard {
                // Its data follows if the receiver does not answer.
                self.expect_answer(id);
            }
            return Ok(id);
        }
        if mode == SendMode::Synchronous {
            // SAFETY: the caller's promise is the one that a buffer takes.
            let buffer = unsafe { Buffer::promised(buffer, checked.engine) };
            return Ok(self.queue_eager(bml, checked, buffer, None));
        }
        let outbox_empty = self.links[peer].outbox.is_empty();
        if outbox_empty
            && bytes >= ZERO_COPY_MIN
            // SAFETY: the caller's promise holds for the time of this call.
            && let Some(submitted) = unsafe { self.send_eager_zero_copy(bml, &checked, buffer) }
        {
            return Ok(self.requests.insert_submitted(&submitted));
        }
        if outbox_empty
            && let Some(mut slot) = self.reserve(bml, peer, EAGER_BYTES + to_usize(bytes))
        {
            let engine = checked.engine;
            // SAFETY: the caller's promise holds until the request has ended, in buffered mode for the time of this call.
            // `work` has the slot's memory until it is dropped, which waits for it, or in a transfer with the slot.
            let mut work = unsafe {
                buffer::pack(&self.engines, engine, buffer, 0..bytes, &mut slot, EAGER_BYTES)
            }?;
            if mode == SendMode::Buffered {
                work.wait().map_err(EngineError::from)?;
                work = Outstanding::new(Completion::Ready);
            }
            if let Completion::Pending(_) = work.work() {
                // SAFETY: the caller's promise is the one that a buffer takes.
                let buffer = unsafe { Buffer::promised(buffer, engine) };
                let packing = Box::new(buffer.packing(work, slot));
                let (to, envelope) = (checked.to, checked.envelope);
                let stage = SendStage::Eager { serial: 0 };
                let send = Send { buffer, to, envelope, _copied: None, stage };
                let id = self.requests.insert(Operation::Send(Box::new(send)));
                self.links.enqueue(peer, Outgoing::Packing { id, packing });
                return Ok(id);
            }
            let sequence = self.links[peer].next_sequence;
            slot.write(0, &Envelope { sequence, ..checked.envelope }.eager())
                .map_err(EngineError::from)?;
            self.links.next_sequence(peer);
            bml.send(slot, AM_TAG, Token::NONE);
            let protocol = Protocol::Eager;
            let status = Status { source: rank, tag, bytes, protocol };
            return Ok(self.requests.insert_submitted(&Submitted { status, peer, sequence }));
        }
        if let Some(fault) = self.links.fault(peer) {
            return Err(fault);
        }
        if mode == SendMode::Buffered {
            // SAFETY: the caller's promise holds for the time of this call.
            return unsafe { self.send_copy(bml, checked, buffer, true) };
        }
        // SAFETY: the caller's promise is the one that a buffer takes.
        let buffer = unsafe { Buffer::promised(buffer, checked.engine) };
        Ok(self.queue_eager(bml, checked, buffer, None))
    }

    /// Starts to send a copy, so that the memory can be used at once. The request ends as the copy's
    /// does; nothing of the attached buffer is taken.
    ///
    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads.
    pub(crate) unsafe fn isend_copy(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
    ) -> Result<RequestId, PmlError> {
        let checked = self.check_send(bml, comm, buffer, (rank, tag), SendMode::Standard)?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.send_copy(bml, checked, buffer, false) }
    }

    /// Sends an eager message straight out of its buffer, if the transport does that and the runs are long. It has left
    /// then: the memory is not needed any more.
    ///
    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads, and nothing writes it.
    unsafe fn send_eager_zero_copy(
        &mut self,
        bml: &mut Bml,
        checked: &CheckedSend,
        buffer: &Typed,
    ) -> Option<Submitted> {
        let (To { peer, rank, .. }, tag) = (checked.to, checked.envelope.tag);
        if !buffer.space().cpu_accessible() || !bml.has_zero_copy(Rank(peer)) {
            return None;
        }
        let sequence = self.links[peer].next_sequence;
        let head = Envelope { sequence, ..checked.envelope }.eager();
        let bytes = buffer.packed_bytes();
        // SAFETY: the caller's promise; the value is dropped before this returns.
        let promised = unsafe { Buffer::promised(buffer, checked.engine) };
        let result = promised.send_zero_copy(
            bml,
            (Rank(peer), AM_TAG),
            &mut self.region_list,
            &head,
            0..bytes,
        );
        if result != ZeroCopyResult::Sent {
            return None;
        }
        self.links.next_sequence(peer);
        let status = Status { source: rank, tag, bytes, protocol: Protocol::Eager };
        Some(Submitted { status, peer, sequence })
    }

    /// Checks what a send is given.
    #[inline(always)] // on every message's path, and its result is large
    pub(crate) fn check_send(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        (rank, tag): (u32, i32),
        mode: SendMode,
    ) -> Result<CheckedSend, PmlError> {
        let peer = comm.process_of(rank, "the destination of a send")?;
        if tag < 0 && !comm.is_collective() {
            return Err(PmlError::InvalidTag { tag });
        }
        self.comms.check(comm)?;
        let engine = buffer::engine_for(&self.engines, buffer)?;
        if !buffer.space().cpu_accessible() {
            self.know_device(bml, engine, buffer.space());
        }
        if let Some(fault) = self.links.fault(peer) {
            return Err(fault);
        }
        let limits = match bml.limits(Rank(peer)) {
            Some(limits) => limits,
            None => first_limits(bml, peer)?,
        };
        let mut link_eager = eager_payload(limits);
        if mode == SendMode::Synchronous {
            link_eager = link_eager.saturating_sub(SERIAL_BYTES as u64);
        }
        let digest = self.digests.of(buffer.layout(), buffer.count());
        let envelope = Envelope { context: comm.context_at(rank), tag, sequence: 0, digest, mode };
        let to = To { peer, rank, comm: comm.id() };
        Ok(CheckedSend { to, engine, envelope, link_eager })
    }

    /// Starts to send a copy of `buffer`. Where it counts against the attached buffer, the request
    /// has ended at once.
    ///
    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads.
    #[cold]
    unsafe fn send_copy(
        &mut self,
        bml: &mut Bml,
        checked: CheckedSend,
        buffer: &Typed,
        attached: bool,
    ) -> Result<RequestId, PmlError> {
        let bytes = buffer.packed_bytes();
        let share = if attached { Some(self.take_share(bytes)?) } else { None };
        // SAFETY: the caller's promise is passed on.
        let copy = unsafe { buffer::copy_out(&self.engines, checked.engine, buffer) }?;
        let typed = Typed::contiguous(Region::of(&copy));
        let engine = buffer::engine_for(&self.engines, &typed)?;
        // SAFETY: the copy lives in the send, whose request ends when nothing reads it any more, and
        // nobody writes it.
        let own = unsafe { Buffer::promised(&typed, engine) };
        let copied = Some(Copied { _bytes: copy, _share: share });
        let (To { rank, .. }, tag) = (checked.to, checked.envelope.tag);
        // SAFETY: the copy lives.
        let id = if unsafe { self.goes_eagerly(bml, &checked, &typed) } {
            self.queue_eager(bml, checked, own, copied)
        } else {
            self.offer(bml, checked.to, own, checked.envelope, copied, DataState::Present)
        };
        if !attached {
            return Ok(id);
        }
        self.requests.release(id)?;
        let protocol = Protocol::Eager;
        Ok(self.requests.insert_done(Status { source: rank, tag, bytes, protocol }))
    }

    /// Makes an eager message leave as soon as earlier ones have left, and there is room.
    #[cold]
    fn queue_eager(
        &mut self,
        bml: &mut Bml,
        checked: CheckedSend,
        buffer: Buffer,
        copied: Option<Copied>,
    ) -> RequestId {
        let CheckedSend { to, envelope, .. } = checked;
        let peer = to.peer;
        let stage = SendStage::Eager { serial: 0 };
        let send = Send { buffer, to, envelope, _copied: copied, stage };
        let id = self.requests.insert(Operation::Send(Box::new(send)));
        if envelope.mode == SendMode::Synchronous {
            let serial = self.requests.name(id);
            if let Some(send) = self.requests.send_mut(id) {
                send.stage = SendStage::Eager { serial };
            }
        }
        self.links.enqueue(peer, Outgoing::Eager(id));
        self.may_be_unmet(peer, id);
        if envelope.mode == SendMode::Synchronous {
            self.flush_peer(bml, peer);
        }
        id
    }

    /// # Safety
    /// For the time of this call, `buffer` describes memory that is valid for reads.
    #[inline]
    unsafe fn goes_eagerly(
        &mut self,
        bml: &mut Bml,
        checked: &CheckedSend,
        buffer: &Typed,
    ) -> bool {
        let bytes = buffer.packed_bytes();
        let tuning = &self.config.tuning;
        let force = self.config.force;
        if bytes == 0 {
            return true;
        }
        if bytes > checked.link_eager.min(tuning.eager_bytes_max) {
            return false;
        }
        if matches!(force, None | Some(Protocol::Eager)) && bytes <= tuning.eager_bytes_sure {
            return true;
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.eager_wins(bml, checked, buffer) }
    }

    /// Whether the cost model chooses eager.
    ///
    /// # Safety
    /// As [`goes_eagerly`](Core::goes_eagerly).
    #[inline(never)]
    unsafe fn eager_wins(&mut self, bml: &mut Bml, checked: &CheckedSend, buffer: &Typed) -> bool {
        let peer = checked.to.peer;
        let mut situation = self.expectation(bml, peer, buffer);
        situation.mapped =
            buffer.space().cpu_accessible() && bml.mapped(Rank(peer)).is_some() && !situation.local;
        let mut wins = |situation: &Situation| {
            let (tuning, force) = (&self.config.tuning, self.config.force);
            self.recent.choose(situation, tuning, force, Protocols::ALL) == Protocol::Eager
        };
        let sure = wins(&situation);
        if sure || !situation.mapped {
            return sure;
        }
        // Something is better for memory that the receiver can map. Whether this is such memory has a price, too.
        // SAFETY: the memory is promised for the time of this call, in which this buffer is dropped.
        let promised = unsafe { Buffer::promised(buffer, checked.engine) };
        situation.mapped = promised.key(bml, peer, false).is_some();
        wins(&situation)
    }

    /// The situation as the sender sees it: the receiver's buffer is assumed to be like its own.
    pub(crate) fn expectation(&self, bml: &mut Bml, peer: u32, buffer: &Typed) -> Situation {
        let blocks = buffer.blocks().max(1);
        let devices = self.device_ends(bml, !buffer.space().cpu_accessible(), 0, buffer.space());
        let side = (buffer.layout(), buffer.count());
        let single_copy = single_copy_costs(bml, peer, buffer.space());
        let staged = self.expected_staging(bml, peer, buffer.space());
        let limits = bml.limits(Rank(peer));
        Situation {
            bytes: buffer.packed_bytes(),
            sender_blocks: blocks,
            // What the receiver will know: where lines are touched only in part, it does not map.
            sender_span: buffer.span(),
            receiver_blocks: blocks,
            devices,
            local: peer == self.me,
            link_eager_bytes: limits.map_or(0, eager_payload),
            latency_ns: limits.map_or(0.0, |limits| f64::from(limits.latency_ns)),
            bandwidth_mb_s: limits.map_or(1.0, |limits| f64::from(limits.bandwidth_mb_s)),
            // Whether the memory can be mapped is known when a key is requested.
            mapped: false,
            single_copy,
            layout_fetch_max: self.config.bounds.layout_cache_bytes,
            // Nor is it told of pages.
            touched: devices
                .filter(|_| buffer.as_pages().is_none())
                .map(|_| Touched::between(side, side)),
            staged,
            staged_read: single_copy.filter(|costs| devices.is_some() && costs.devices),
            ..Situation::default()
        }
    }

    /// Reserves a slot for a queued eager message and has it packed. `Ok(None)`: no room.
    pub(crate) fn start_packing(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        id: RequestId,
    ) -> Result<Option<Transfer<RailSlot>>, Gone> {
        let send = self.requests.send_mut(id).ok_or(Gone)?;
        let (bytes, start) = (send.buffer.bytes(), send.envelope.eager_bytes());
        let Some(slot) = self.reserve(bml, peer, start + to_usize(bytes)) else {
            // If the peer was lost by that, so was the request.
            self.requests.send_mut(id).ok_or(Gone)?;
            return Ok(None);
        };
        let send = self.requests.send_mut(id).ok_or(Gone)?;
        match send.buffer.pack(&self.engines, 0..bytes, slot, start) {
            Ok(packing) => Ok(Some(packing)),
            Err(error) => {
                self.requests.finish_eager(id, Err(error.into()));
                Err(Gone)
            }
        }
    }

    /// Sends an eager message whose packing has ended.
    pub(crate) fn send_packed(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        (id, mut slot): (RequestId, RailSlot),
        packed: Result<(), DeviceError>,
    ) {
        if let Err(error) = packed {
            return self.requests.finish_eager(id, Err(EngineError::from(error).into()));
        }
        // Numbered only if it leaves: the receiver would wait for ever for a missing number.
        let sequence = self.links[peer].next_sequence;
        let Some(send) = self.requests.send_mut(id) else { return };
        let header = Envelope { sequence, ..send.envelope }.eager();
        let status = send.status(Protocol::Eager);
        let SendStage::Eager { serial } = send.stage else { return };
        let mut written = slot.write(0, &header);
        if serial != 0 {
            written = written.and_then(|()| slot.write(EAGER_BYTES, &serial.to_le_bytes()));
            send.stage = SendStage::Unanswered { serial };
        }
        bml.send(slot, AM_TAG, Token::NONE);
        self.links.next_sequence(peer);
        match written {
            Ok(()) if serial != 0 => {}
            Ok(()) => self.requests.finish_submitted(id, Submitted { status, peer, sequence }),
            Err(error) => self.requests.finish_eager(id, Err(EngineError::from(error).into())),
        }
    }

    /// The receiver's answer on an eager message of ours that waits for it, or was cancelled; `false` if the request
    /// does not wait for one.
    pub(crate) fn answered_eager(
        &mut self,
        from: u32,
        id: RequestId,
        verdict: Verdict,
    ) -> Result<bool, String> {
        if self.eager_cancel_answered(from, id, verdict)? {
            return Ok(true);
        }
        let departing = self.departing;
        let Some(send) = self.requests.send_mut(id) else { return Ok(false) };
        if !matches!(send.stage, SendStage::Unanswered { .. }) || send.to.peer != from {
            return Ok(false);
        }
        let outcome = send.outcome(verdict, departing);
        self.requests.finish_eager(id, outcome);
        Ok(true)
    }
}

/// Longest payload that a link takes eagerly.
pub(crate) fn eager_payload(limits: &Limits) -> u64 {
    let eager = limits.eager_bytes.min(limits.max_fragment_bytes);
    eager.saturating_sub(EAGER_BYTES) as u64
}

/// What the link to a peer promises that was not needed before, and whose addresses are looked up therefore.
#[cold]
#[inline(never)]
fn first_limits(bml: &mut Bml, peer: u32) -> Result<&Limits, PmlError> {
    bml.look_up(Rank(peer));
    if bml.limits(Rank(peer)).is_none() {
        return Err(unreachable(bml, peer));
    }
    bml.limits(Rank(peer)).ok_or(PmlError::Unreachable { rank: peer })
}

fn unreachable(bml: &Bml, rank: u32) -> PmlError {
    match bml.blame(Rank(rank)) {
        Some((culprit, error)) => PmlError::PeerLost { rank: culprit.0, error },
        None => PmlError::Unreachable { rank },
    }
}
