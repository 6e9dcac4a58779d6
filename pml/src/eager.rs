//! Eager: header and packed data in one slot, without a rendezvous.
//!
//! ```text
//! sender                      receiver
//!   | EAGER(envelope, data) ---> | matched at once: unpacked from the fragment
//!   | complete                   | or kept until a receive matches it
//! ```
//!
//! The send completes when its data is in the slot. A message too long for its receive is truncated; the sender is
//! not told. The sender's side is in `request/send.rs`.

#[allow(unsafe_code, reason = "takes the caller's promise")]
pub(crate) mod short;
#[allow(unsafe_code, reason = "moves bytes of users' buffers by words")]
pub(crate) mod stretch;
pub(crate) mod unanswered;
#[allow(unsafe_code, reason = "reads buffers of requests that have not ended")]
pub(crate) mod unmet;

pub use short::Awaited;

use crate::buffer::Transfer;
use crate::choose::{Excluded, Model, Protocol};
use crate::drive::core::Core;
use crate::drive::inflight::InFlight;
use crate::error::PmlError;
use crate::matching::body::Body;
use crate::request::RequestId;
use crate::request::recv::{Matched, RecvStage};
use crate::rndv::Kind;
use crate::wire::Envelope;

/// The longest message from or to a device that goes eagerly. Its kernels wait neither for an offer nor for a receive, but
/// longer ones gain more by direct paths.
const DEVICE_BYTES_MAX: u64 = 8 << 10;

/// Eager is no rendezvous, so no offer starts it; it only takes part in the choice.
pub(crate) const KIND: Kind = Kind {
    name: "eager",
    wire: 1,
    exclude: |s, tuning| {
        let device = if s.devices.is_some() { DEVICE_BYTES_MAX } else { u64::MAX };
        let most = s.link_eager_bytes.min(tuning.eager_bytes_max).min(device);
        (s.bytes > most).then_some(Excluded::TooLong)
    },
    cost: |s, tuning| match &s.devices {
        None => Model::new(s, tuning).eager(),
        Some(ends) => Model::new(s, tuning).device_eager(ends),
    },
    ..Kind::NONE
};

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
        let failure = match recv.verdict(&mut self.digests, envelope) {
            Err(error @ PmlError::Truncated { .. }) => Some(error),
            Err(error) => {
                self.finish_recv(id, Matched { failure: Some(error), ..matched });
                return self.pool.give(body);
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
                self.pool.give(body);
            }
            Ok(Err(unpacking)) => {
                recv.stage = RecvStage::Unpacking { from };
                self.in_flight.push(InFlight::Unpack { id, unpacking, matched });
            }
            Err(error) => {
                self.finish_recv(id, Matched { failure: Some(error.into()), ..matched });
            }
        }
    }
}
