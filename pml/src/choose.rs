//! Which protocol carries a message: a pure function of the message, the link and the tuning.
//!
//! The sender asks whether a message is eager. If not, it makes an offer, and the receiver, which alone knows both
//! layouts, asks again. Both use [`candidates`]; so does `gapless explain`.

mod recent;

pub use crate::cost::{DeviceEnds, Excluded, SingleCopyCosts, Situation, Staging, Touched};
pub use crate::protocol::Protocol;
use crate::tuning::Tuning;
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
    for candidate in candidates(situation, tuning) {
        if candidate.excluded.is_some() || !allowed(candidate.protocol) {
            continue;
        }
        if force == Some(candidate.protocol) {
            return candidate.protocol;
        }
        if candidate.predicted_ns < best.1 {
            best = (candidate.protocol, candidate.predicted_ns);
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
