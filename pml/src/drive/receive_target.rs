//! Messages that the transport puts where they go: the transport asks when it has the beginning of a long message
//! ([`Handler::receive_target`](gapless_bml::Handler::receive_target)), and says when all of the message is there.
//!
//! An eager message has a target if its receive is known for sure: it is the next of its source, no receive has a
//! wildcard, and the buffer has no gaps and exactly the message's length. Until the message is there in full nobody has
//! taken it, and its receive may be cancelled, so nothing is put there before all of it has come. A fragment of the
//! pipeline has a target if it was asked for, and the receive's buffer consists of few runs; parts of it stay.

use crate::drive::core::Core;
use crate::drive::operation::{Operation, Recv, RecvStage};
use crate::rndv::incoming::{Incoming, IncomingStage};
use crate::rndv::{RndvStep, RndvTarget};
use crate::status::RequestId;
use crate::wire::{DATA_BYTES, EAGER_BYTES, EAGER_WORDS, Head};
use gapless_bml::TargetAnswer;
use zerocopy::IntoBytes;

impl Core {
    /// Where the end of a message of `len` bytes goes that begins with `head`.
    pub(crate) fn target_of(&mut self, from: u32, head: &[u8], len: usize) -> TargetAnswer<'_> {
        let target = match of_head(head, len) {
            Some(Head::Eager(_)) => self.target_of_eager(from, head, len),
            Some(Head::Data { reply, offset }) => {
                return self.target_of_data(from, reply, offset, (len - DATA_BYTES) as u64);
            }
            _ => None,
        };
        target.map_or(TargetAnswer::Nowhere, TargetAnswer::Here)
    }

    fn target_of_data(&mut self, from: u32, reply: u64, offset: u64, len: u64) -> TargetAnswer<'_> {
        let Some((id, incoming)) = self.incoming_of(from, reply) else {
            return TargetAnswer::Nowhere;
        };
        if incoming.is_failed() {
            return TargetAnswer::Nowhere;
        }
        let Some(Recv { buffer, stage: RecvStage::Incoming(incoming), .. }) =
            self.requests.recv_mut(id)
        else {
            return TargetAnswer::Nowhere;
        };
        let IncomingStage::Going(going) = &mut incoming.stage else { return TargetAnswer::Nowhere };
        let target = match going.receive_target(offset, len) {
            RndvTarget::Nowhere => None,
            RndvTarget::Later => return TargetAnswer::Later,
            RndvTarget::Buffer => {
                buffer.receive_target(&mut self.region_list, offset..offset + len, DATA_BYTES)
            }
            RndvTarget::Staging(staging) => {
                staging.receive_target(&mut self.region_list, DATA_BYTES)
            }
        };
        target.map_or(TargetAnswer::Nowhere, TargetAnswer::Here)
    }

    /// All of a message is in the target that [`target_of`](Core::target_of) gave.
    pub(crate) fn message_in_target(&mut self, from: u32, head: &[u8], len: usize) {
        let taken = match of_head(head, len) {
            Some(Head::Eager(_)) => words_of(head).is_some_and(|words| {
                let bytes = (len - EAGER_BYTES) as u64;
                self.take_direct(from, &words, |buffer| buffer.bytes() == bytes)
            }),
            Some(Head::Data { reply, offset }) => self.data_in_target(from, reply, offset, len),
            _ => false,
        };
        // `target_of` found it in the same poll.
        debug_assert!(
            taken,
            "a message of {len} bytes from {from} in a target that was not given to it"
        );
        if !taken {
            tracing::error!(peer = from, len, "a message in a target that was not given to it");
        }
    }

    fn data_in_target(&mut self, from: u32, reply: u64, offset: u64, len: usize) -> bool {
        let Some((id, _)) = self.incoming_of(from, reply) else { return false };
        let Some((incoming, _)) = self.requests.incoming(id) else { return false };
        let IncomingStage::Going(going) = &mut incoming.stage else { return false };
        match going.target_filled(offset, (len - DATA_BYTES) as u64) {
            RndvStep::Done(by) => {
                self.counters.counts_of(by).fragments += 1;
                self.end_incoming(id, by);
                true
            }
            step @ (RndvStep::Going | RndvStep::Again) => {
                let by = incoming.protocol;
                self.counters.counts_of(by).fragments += 1;
                if matches!(step, RndvStep::Again) {
                    self.rndv.again.push(id);
                }
                true
            }
            RndvStep::Refused(_) | RndvStep::Broken(_) => false,
        }
    }

    /// The receive that has this number in rendezvous with `from`.
    fn incoming_of(&self, from: u32, reply: u64) -> Option<(RequestId, &Incoming)> {
        let id = self.requests.named(reply)?;
        if self.links[from].lost.is_some() {
            return None;
        }
        match self.requests.operation(id)? {
            Operation::Recv(Recv { stage: RecvStage::Incoming(incoming), .. })
                if incoming.from == from =>
            {
                Some((id, incoming))
            }
            _ => None,
        }
    }
}

fn of_head(head: &[u8], len: usize) -> Option<Head> {
    Head::parse(head.first_chunk()?, len).ok()
}

/// The header of an eager message.
pub(crate) fn words_of(head: &[u8]) -> Option<[u64; EAGER_WORDS]> {
    let mut words = [0; EAGER_WORDS];
    words.as_mut_bytes().copy_from_slice(head.get(..EAGER_BYTES)?);
    Some(words)
}
