//! `relay`: a message that two devices hand on to each other by one kernel each, with no processor in between
//! ([`gapless_engine::Relays`]; Wu et al. 2016 §4, without its control messages).
//!
//! ```text
//! sender                      receiver
//!   | RTS(offer) -------------> | choose
//!   | <---- LOAN(ring, turn) -- | its ring, made once for the pair of devices
//!   | map it, once              |
//!   | GO(credit) -------------> | map the credit, once
//!   | begin to pack             | begin to unpack
//!   |  ==== ring and flags ===> |
//!   |                           | all is out of the ring
//!   | <---------------- FIN --- □
//!   ■
//! ```
//!
//! Whatever goes wrong, the offer stands until FIN, so that the receiver chooses again among the other ways,
//! and receives everything anew. QUIT is the sender's word that nothing of its touches the ring any more:
//! because it cannot begin, because its end gave up, or because it was told to by STOP. Whoever has failed
//! says so at once (STOP, QUIT), and the other end is ended by its host; where no word comes, by patience. A ring
//! over which a message has failed is given up by both.
//!
//! A lost peer ends our half the same way: requests and memory go when the device has ended, and memory that the
//! peer may still write to when the transport says that it has it no more. Where the other half is not resident
//! (a device full of others' work), both give up after [`PATIENCE`], and after some such messages in a row no
//! more are tried with that peer.
//!
//! `rings.rs` keeps rings, `receiver.rs` and `sender.rs` have the two ends. Short messages do without the handshake:
//! `standing.rs` has the rings for that, `ahead.rs` the messages.

mod ahead;
mod receiver;
mod rings;
mod sender;
mod standing;

pub(crate) use receiver::RelayRecv;
pub(crate) use rings::Rings;
pub(crate) use sender::RelaySend;

use crate::core::Core;
use crate::inflight::{Flight, InFlight};
use crate::protocol::Protocol;
use crate::request::RequestId;
use gapless_bml::Bml;
use gapless_engine::{EngineError, RelayShape, Relays};
use gapless_mem::{Completion, DeviceError, Region, Space};
use std::time::Duration;

/// How long one half of a message waits for the other to get on. Its device is kept busy meanwhile; a first
/// use of a layout may keep the other half from beginning for some of it.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// The same, for the receiver's half of a message that was begun before it was asked: the other one was begun then,
/// or is just being begun.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);
/// Messages in a row that fail on their way before a peer's are relayed no more.
const FAILURES_MAX: u8 = 3;
/// Lanes that more do not help: see BENCHMARKS.md, "Two GPUs".
const LANES_MAX: u32 = 64;
/// Places of a lane.
const DEPTH: u8 = 4;
/// Bytes of a place, and of a fragment at most.
const PLACE_BYTES: u32 = 256 << 10;
/// Lanes of a ring that stands, at most.
const SHORT_LANES: u32 = 8;
/// Places of each: one is filled while the other one may still be read.
const SHORT_DEPTH: u8 = 2;
/// Bytes of each, and of its fragments.
const SHORT_PLACE_BYTES: u32 = 16 << 10;
/// Bytes of a fragment at least, in shorter messages.
const FRAGMENT_BYTES_MIN: u32 = 16 << 10;
/// Fragments that each lane should have of a message, so that both ends are busy.
const FRAGMENTS_A_LANE: u64 = 4;

/// The fragments of a message of `len` bytes, in bytes.
fn fragment_for(len: u64, lanes: u32, place: u32) -> u32 {
    let fair = len / (u64::from(lanes.max(1)) * FRAGMENTS_A_LANE);
    let fair = u32::try_from(fair).unwrap_or(place).min(place);
    fair.next_multiple_of(1024).clamp(FRAGMENT_BYTES_MIN.min(place), place)
}

/// Zeros, for flags; more than any ring has.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Clears flags on their device.
fn clear(bml: &Bml, flags: Region) -> Result<Completion, DeviceError> {
    let none = || DeviceError::Unsupported { what: "clearing so many flags" };
    let len = usize::try_from(flags.len()).map_err(|_| none())?;
    let zeros = Region::of(ZEROS.get(..len).ok_or_else(none)?);
    let device = crate::staging::device_of(bml, flags.space()).ok_or_else(none)?;
    crate::buffer::copy(&device, flags, zeros, &[])
}

impl Core {
    /// Lanes that a buffer in `space`, which `engine` works on, can be relayed with; 0 if it cannot.
    pub(crate) fn relay_lanes(&self, bml: &Bml, engine: usize, space: Space, beside: bool) -> u32 {
        let wanted = self.config.relay || self.config.force == Some(Protocol::Relay);
        let attached = || crate::staging::device_of(bml, space).is_some();
        match self.engines[engine].relays().filter(|_| wanted && attached()) {
            Some(relays) => relays.lanes(space, beside).min(LANES_MAX),
            None => 0,
        }
    }

    fn relays(&self, engine: usize) -> Result<&dyn Relays, EngineError> {
        let none = EngineError::Device(DeviceError::Unsupported { what: "relaying" });
        self.engines[engine].relays().ok_or(none)
    }

    /// Waits for the end of a half's work, or takes it as it comes.
    fn follow_relay(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        out: bool,
        begun: Result<Completion, EngineError>,
    ) {
        match begun {
            Ok(completion @ Completion::Pending(_)) => {
                let work = Flight::Relay { id, out };
                self.in_flight.push(InFlight { completion, work });
            }
            Ok(Completion::Ready) => self.relay_landed(bml, id, out, Ok(())),
            Err(error) => self.relay_landed(bml, id, out, Err(error)),
        }
    }

    /// A half's work has ended: its flags are clear, or its device has done what it could.
    pub(crate) fn relay_landed(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        out: bool,
        result: Result<(), EngineError>,
    ) {
        if out { self.relay_sent(bml, id, result) } else { self.relay_received(bml, id, result) }
    }

    /// A message could not be relayed: says so once for each peer, and tries no more after some in a row.
    fn relay_failed(&mut self, peer: u32, why: &str) {
        let failed = &mut self.peers[peer as usize].unkeyed[Protocol::Relay.index()];
        if *failed == 0 {
            tracing::info!(peer, why, "a relayed message goes another way");
        }
        *failed = failed.saturating_add(1);
        if *failed >= FAILURES_MAX {
            self.close_way(peer, Protocol::Relay, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_keep_every_lane_busy() {
        let of = |len, lanes| fragment_for(len, lanes, PLACE_BYTES);
        assert_eq!(of(256 << 20, 64), 256 << 10);
        assert_eq!(of(16 << 20, 64), 64 << 10);
        assert_eq!(of(1, 64), 16 << 10);
        assert_eq!(of(u64::MAX, 1), 256 << 10);
        for len in (0..3000u64).map(|k| k * 10_007) {
            let fragment = of(len, 8);
            assert!(fragment.is_multiple_of(16) && fragment <= PLACE_BYTES, "{len}: {fragment}");
        }
    }
}
