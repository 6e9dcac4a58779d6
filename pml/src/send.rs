//! Sends: starting one, and the states it goes through.

use crate::buffer::{self, Buffer};
use crate::choose::{Protocol, SingleCopyCosts, Situation, choose};
use crate::comm::Comm;
use crate::core::{AM_TAG, Core};
use crate::error::PmlError;
use crate::header::{EAGER_BYTES, Envelope, Rts};
use crate::peer::Attempt;
use crate::peer::{Gone, Outgoing};
use crate::request::{RequestId, Status, Work};
use gapless_bml::{Bml, Limits, PeerState, Rank, RdmaRail, RemoteKey, Token};
use gapless_engine::Typed;
use gapless_mem::Completion;
use std::sync::Arc;

/// A send under way.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) buffer: Buffer,
    pub(crate) peer: u32,
    /// The receiver's rank in the communicator.
    pub(crate) rank: u32,
    /// Its sequence number is given when it leaves.
    pub(crate) envelope: Envelope,
    pub(crate) stage: SendStage,
}

/// What a send is waiting for.
#[derive(Debug)]
pub(crate) enum SendStage {
    /// Eager: room in the transport, or its engine.
    Eager,
    /// A rendezvous: the receiver's answer.
    Offered(Box<Offered>),
    /// The pipeline: room in the transport, or its engine.
    Streaming(Streaming),
    /// The peer is lost; engines still read the buffer.
    Draining { packing: u32, error: PmlError },
}

/// A rendezvous that waits for an answer.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) rts: Rts,
    /// Where the buffer is registered, if it is.
    pub(crate) registered: Option<(RdmaRail, RemoteKey)>,
    /// The flattened layout, if the receiver may need one.
    pub(crate) layout: Option<Arc<[u8]>>,
    /// Whether the receiver has fetched it.
    pub(crate) fetched: bool,
}

/// A send whose receiver has asked for its data.
#[derive(Debug)]
pub(crate) struct Streaming {
    pub(crate) reply: u64,
    pub(crate) next: u64,
    pub(crate) end: u64,
    pub(crate) fragment: u32,
    pub(crate) depth: u32,
    /// Fragments that engines are packing.
    pub(crate) packing: u32,
}

impl Core {
    /// Starts a send.
    ///
    /// # Safety
    /// As [`Pml::isend`](crate::Pml::isend).
    pub(crate) unsafe fn isend(
        &mut self,
        bml: &mut Bml,
        comm: &Comm,
        buffer: &Typed,
        rank: u32,
        tag: i32,
    ) -> Result<RequestId, PmlError> {
        let peer = comm.process(rank)?;
        if tag < 0 {
            return Err(PmlError::InvalidTag { tag });
        }
        self.comms.check(comm)?;
        let engine = buffer::engine_for(&self.engines, buffer)?;
        let state = &self.peers[peer as usize];
        if let Some(error) = &state.lost {
            return Err(PmlError::PeerLost { rank: peer, error: error.clone() });
        }
        let outbox_empty = state.outbox.is_empty();
        let limits = bml.limits(Rank(peer)).ok_or_else(|| unreachable(bml, peer))?;
        let bytes = buffer.packed_bytes();
        let link_eager = eager_payload(limits);
        let digest = self.digests.of(buffer.layout(), buffer.count());
        let envelope = Envelope { context: comm.context(), tag, sequence: 0, digest };
        if !self.goes_eagerly(bml, peer, buffer, link_eager) {
            // SAFETY: the caller's promise is the one that a buffer takes.
            let buffer = unsafe { Buffer::promised(buffer, engine) };
            return Ok(self.offer(bml, peer, rank, buffer, envelope));
        }
        if outbox_empty
            && let Some(mut slot) = self.reserve(bml, peer, EAGER_BYTES + to_usize(bytes))
        {
            // SAFETY: the caller's promise holds for the time of this call and until the request
            // has ended, which is not before the packing has.
            let packed = unsafe {
                buffer::pack(&self.engines, engine, buffer, 0..bytes, &slot, EAGER_BYTES)
            }?;
            if let Completion::Ready = packed {
                let sequence = self.next_sequence(peer);
                slot.write(0, &Envelope { sequence, ..envelope }.eager())
                    .map_err(gapless_engine::EngineError::from)?;
                bml.send(slot, AM_TAG, Token::NONE);
                let protocol = Protocol::Eager;
                let status = Status { source: rank, tag, bytes, protocol };
                return Ok(self.requests.insert(Work::Done(Ok(status))));
            }
            // SAFETY: the caller's promise is the one that a buffer takes.
            let buffer = unsafe { Buffer::promised(buffer, engine) };
            let stage = SendStage::Eager;
            let id = self.requests.insert(Work::Send(Box::new(Send {
                buffer,
                peer,
                rank,
                envelope,
                stage,
            })));
            self.enqueue(peer, Outgoing::Packing { id, slot, packed });
            return Ok(id);
        }
        if let Some(error) = &self.peers[peer as usize].lost {
            return Err(PmlError::PeerLost { rank: peer, error: error.clone() });
        }
        // SAFETY: the caller's promise is the one that a buffer takes.
        let buffer = unsafe { Buffer::promised(buffer, engine) };
        let stage = SendStage::Eager;
        let id = self.requests.insert(Work::Send(Box::new(Send {
            buffer,
            peer,
            rank,
            envelope,
            stage,
        })));
        self.enqueue(peer, Outgoing::Eager(id));
        Ok(id)
    }

    fn goes_eagerly(&self, bml: &mut Bml, peer: u32, buffer: &Typed, link_eager: u64) -> bool {
        let bytes = buffer.packed_bytes();
        let tuning = &self.config.tuning;
        let force = self.config.force;
        if bytes == 0 {
            return true;
        }
        if bytes > link_eager.min(tuning.eager_bytes_max) {
            return false;
        }
        if force.is_none() && bytes <= tuning.eager_bytes_sure {
            return true;
        }
        let situation = self.expectation(bml, peer, buffer);
        choose(&situation, tuning, force, |_| true) == Protocol::Eager
    }

    /// What a sender expects of a message: the receiver's buffer is taken to be like its own.
    pub(crate) fn expectation(&self, bml: &mut Bml, peer: u32, buffer: &Typed) -> Situation {
        let blocks = buffer.layout().blocks_of(buffer.count()).unwrap_or(u64::MAX).max(1);
        let single_copy = single_copy_costs(bml, peer);
        let limits = bml.limits(Rank(peer));
        Situation {
            bytes: buffer.packed_bytes(),
            sender_blocks: blocks,
            receiver_blocks: blocks,
            host: buffer.space().cpu_accessible(),
            local: peer == self.me,
            link_eager_bytes: limits.map_or(0, eager_payload),
            latency_ns: limits.map_or(0.0, |limits| f64::from(limits.latency_ns)),
            bandwidth_mb_s: limits.map_or(1.0, |limits| f64::from(limits.bandwidth_mb_s)),
            // Whether the memory really can be mapped shows when a key is asked for.
            mapped: false,
            single_copy,
            layout_fetch_bytes: 0,
            layout_fetch_max: self.config.bounds.layout_cache_bytes,
        }
    }

    /// The number of the next matched message to `peer`.
    pub(crate) fn next_sequence(&mut self, peer: u32) -> u32 {
        let state = &mut self.peers[peer as usize];
        let sequence = state.next_sequence;
        state.next_sequence = sequence.wrapping_add(1);
        sequence
    }

    /// Reserves a slot for a queued eager message and has it packed. `Ok(None)`: no room.
    pub(crate) fn start_packing(
        &mut self,
        bml: &mut Bml,
        peer: u32,
        id: RequestId,
    ) -> Result<Option<Outgoing>, Gone> {
        let bytes = self.requests.send_mut(id).ok_or(Gone)?.buffer.bytes();
        let Some(slot) = self.reserve(bml, peer, EAGER_BYTES + to_usize(bytes)) else {
            // If the peer was lost by that, so was the request.
            self.requests.send_mut(id).ok_or(Gone)?;
            return Ok(None);
        };
        let send = self.requests.send_mut(id).ok_or(Gone)?;
        match send.buffer.pack(&self.engines, 0..bytes, &slot, EAGER_BYTES) {
            Ok(packed) => Ok(Some(Outgoing::Packing { id, slot, packed })),
            Err(error) => {
                self.requests.finish(id, Err(error.into()));
                Err(Gone)
            }
        }
    }

    /// Sends an eager message whose packing has ended.
    pub(crate) fn attempt_packed(&mut self, bml: &mut Bml, peer: u32, item: Outgoing) -> Attempt {
        let Outgoing::Packing { id, mut slot, packed } = item else { return Attempt::Waits(item) };
        match packed.poll() {
            Ok(true) => {}
            Ok(false) => return Attempt::Waits(Outgoing::Packing { id, slot, packed }),
            Err(error) => {
                let error = gapless_engine::EngineError::from(error);
                self.requests.finish(id, Err(error.into()));
                return Attempt::Sent;
            }
        }
        let sequence = self.next_sequence(peer);
        let Some(send) = self.requests.send_mut(id) else { return Attempt::Sent };
        let header = Envelope { sequence, ..send.envelope }.eager();
        let status = send.status(Protocol::Eager);
        let result = match slot.write(0, &header) {
            Ok(()) => Ok(status),
            Err(error) => Err(gapless_engine::EngineError::from(error).into()),
        };
        bml.send(slot, AM_TAG, Token::NONE);
        self.requests.finish(id, result);
        Attempt::Sent
    }
}

impl Send {
    pub(crate) fn status(&self, protocol: Protocol) -> Status {
        let bytes = self.buffer.bytes();
        Status { source: self.rank, tag: self.envelope.tag, bytes, protocol }
    }
}

/// What single copy to or from `peer` costs, if the link can do it.
pub(crate) fn single_copy_costs(bml: &mut Bml, peer: u32) -> Option<SingleCopyCosts> {
    let (id, rdma) = bml.rdma(Rank(peer))?;
    if rdma.reaches(id) != Some(true) {
        return None;
    }
    let limits = rdma.rdma_limits();
    Some(SingleCopyCosts {
        operation_ns: f64::from(limits.operation_ns),
        piece_ns: f64::from(limits.piece_ns),
        bandwidth_mb_s: f64::from(limits.bandwidth_mb_s),
        pieces_max: limits.max_pieces as u64,
    })
}

/// Longest payload that a link takes eagerly.
pub(crate) fn eager_payload(limits: &Limits) -> u64 {
    let eager = limits.eager_bytes.min(limits.max_fragment_bytes);
    eager.saturating_sub(EAGER_BYTES) as u64
}

/// Lengths that fit a slot fit the address space.
pub(crate) fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("checked against a link's limit")
}

fn unreachable(bml: &Bml, rank: u32) -> PmlError {
    match bml.state(Rank(rank)) {
        PeerState::Lost(error) => PmlError::PeerLost { rank, error: error.clone() },
        _ => PmlError::Unreachable { rank },
    }
}
