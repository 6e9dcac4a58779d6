//! Which protocol carries a message: a pure function of the message, the link and the tuning.
//!
//! The sender asks whether a message is eager. If not, it makes an offer, and the receiver, which alone knows both
//! layouts, asks again. Both use [`candidates`]; so does `gapless explain`.

mod lately;
mod recent;

pub use crate::cost::{DeviceEnds, Excluded, SingleCopyCosts, Situation, Staging, Touched};
pub use crate::protocol::Protocol;
use crate::tuning::Tuning;
pub(crate) use lately::Lately;
pub(crate) use recent::Recent;

/// A protocol and its prospects.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The protocol.
    pub protocol: Protocol,
    /// Predicted one-way time in nanoseconds, also if it is impossible here.
    pub predicted_ns: f64,
    /// Why it is impossible here, if it is.
    pub excluded: Option<Excluded>,
}

/// All protocols with their predicted times, in the order of [`Protocol::ALL`].
#[must_use]
pub fn candidates(situation: &Situation, tuning: &Tuning) -> [Candidate; Protocol::ALL.len()] {
    Protocol::ALL.map(|protocol| Candidate {
        protocol,
        predicted_ns: protocol.cost(situation, tuning),
        excluded: (protocol.kind().exclude)(situation, tuning),
    })
}

/// What can be mapped is staged only if so many times the time predicted for that is less. Staging needs two kernels,
/// and memory, and the model is too hopeful of it by about as much: between two H200s, V of 2 and 8 MiB and lists of 4
/// MiB took 38, 67 and 51 µs staged, not 26, 45 and 34.
const STAGED_DOUBT: f64 = 1.25;

/// The best of the protocols that are possible and that `allowed` contains. [`Protocol::Pipeline`] is always possible
/// and the last resort. `force` wins if it is possible.
#[must_use]
pub fn choose(
    situation: &Situation,
    tuning: &Tuning,
    force: Option<Protocol>,
    allowed: impl Fn(Protocol) -> bool,
) -> Protocol {
    let mut best = (Protocol::Pipeline, f64::INFINITY);
    let mut can_map = false;
    for candidate in candidates(situation, tuning) {
        let Candidate { protocol, predicted_ns, excluded } = candidate;
        if excluded.is_some() || !allowed(protocol) {
            continue;
        }
        if force == Some(protocol) {
            return protocol;
        }
        can_map |= matches!(protocol, Protocol::Mapped | Protocol::MappedPut);
        let doubt = if can_map && protocol.is_staged() { STAGED_DOUBT } else { 1.0 };
        if predicted_ns * doubt < best.1 {
            best = (protocol, predicted_ns);
        }
    }
    match force {
        // Not possible; a forced rendezvous must stay a rendezvous.
        Some(Protocol::Eager) | None => best.0,
        Some(_) if best.0 == Protocol::Eager => Protocol::Pipeline,
        Some(_) => best.0,
    }
}

#[cfg(test)]
mod tests;
