//! Eager: header and packed data in one slot, without a rendezvous.
//!
//! ```text
//! sender                      receiver
//!   | EAGER(envelope, data) ---> | matched at once: unpacked from the fragment
//!   | complete                   | or kept until a receive matches it
//! ```
//!
//! The send completes when its data is in the slot. A message too long for its receive is truncated; the sender is
//! not told. The sender's side is in `drive/send.rs`.

use crate::arrival::{Body, Matched};
use crate::buffer::Transfer;
use crate::drive::core::Core;
use crate::drive::operation::RecvStage;
use crate::error::PmlError;
use crate::protocol::Protocol;
use crate::rndv::in_flight::InFlight;
use crate::status::RequestId;
use crate::wire::Envelope;

impl Core {
    /// Gives an eager message to its receive; `late` if the receive should have been posted before.
    pub(crate) fn receive_eager(
        &mut self,
        id: RequestId,
        from: u32,
        envelope: &Envelope,
        body: Body,
        late: bool,
    ) {
        let Some(recv) = self.requests.recv_mut(id) else { return };
        let sent = envelope.digest.bytes;
        let len = sent.min(recv.buffer.bytes());
        let matched =
            Matched { from, tag: envelope.tag, sent, protocol: Protocol::Eager, failure: None };
        let failure = match recv.check_fit(&mut self.digests, envelope) {
            Err(error @ PmlError::Truncated { .. }) => Some(error),
            Err(error) => {
                self.finish_recv(id, Matched { failure: Some(error), ..matched });
                return self.matching.pool.give(body);
            }
            Ok(()) if late => {
                let rank = self.comms.rank_in(recv.context, from);
                Some(PmlError::NotReady { rank, tag: envelope.tag })
            }
            Ok(()) => None,
        };
        let matched = Matched { failure, ..matched };
        let unpacked = match len {
            0 => Ok(Transfer::over(body)),
            _ => recv.buffer.unpack(&self.engines, body, envelope.eager_bytes() as u64, 0..len),
        };
        match unpacked.map(Transfer::now) {
            Ok(Ok(body)) => {
                self.finish_recv(id, matched);
                self.matching.pool.give(body);
            }
            Ok(Err(unpacking)) => {
                recv.stage = RecvStage::Unpacking { from };
                self.rndv.in_flight.push(InFlight::Unpack { id, unpacking, matched });
            }
            Err(error) => {
                self.finish_recv(id, Matched { failure: Some(error.into()), ..matched });
            }
        }
    }
}
