//! The cost model: how long each protocol would take for a message, by the numbers of [`Tuning`], in nanoseconds. The
//! results are estimates for comparison: costs that all protocols share are left out or rough. This file has what the
//! formulas of `host`, `device` and `staged` have in common.

mod device;
mod host;
mod read;
mod staged;

use super::Situation;
use crate::tuning::Tuning;
pub(crate) use device::device_fragment;
pub(crate) use host::{longest_fragment, wished_fragment};
pub(crate) use read::read_shape;
pub(crate) use staged::staged_shape;

/// Turns a count into the model's arithmetic; 53 bits are plenty.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn real(count: u64) -> f64 {
    count as f64
}

/// Nanoseconds for `bytes` at `mb_s` bytes per microsecond.
fn copy_ns(bytes: u64, mb_s: f64) -> f64 {
    real(bytes) * 1000.0 / mb_s.max(1.0)
}

/// What a message would take.
pub(crate) struct Model<'m> {
    s: &'m Situation,
    t: &'m Tuning,
}

impl<'m> Model<'m> {
    pub(crate) fn new(s: &'m Situation, t: &'m Tuning) -> Model<'m> {
        Model { s, t }
    }
}

impl Model<'_> {
    fn blocks(&self) -> f64 {
        real(self.s.blocks())
    }

    /// RTS and its answer.
    fn handshake_ns(&self) -> f64 {
        2.0 * self.s.latency_ns + self.rendezvous_ns()
    }

    fn rendezvous_ns(&self) -> f64 {
        self.of_ends(self.t.rendezvous_ns, self.t.device_rendezvous_ns)
    }

    fn map_ns(&self) -> f64 {
        self.of_ends(self.t.map_ns, self.t.device_map_ns)
    }

    /// Which number of two holds: that of messages between buffers of the host, or that of the others.
    fn of_ends(&self, host: f64, device: f64) -> f64 {
        if self.s.devices.is_some() { device } else { host }
    }

    /// The layout that the receiver fetches first.
    fn fetch_ns(&self) -> f64 {
        self.layout_ns(self.s.layout_fetch_bytes, self.s.layout_uses)
    }

    /// The layout of the receiver's that the sender fetches first.
    fn granted_fetch_ns(&self) -> f64 {
        self.layout_ns(self.s.granted_layout_bytes, self.s.granted_layout_uses)
    }

    /// One message's share of fetching a layout of so many bytes; none if 0.
    fn layout_ns(&self, bytes: u64, uses: u64) -> f64 {
        if bytes == 0 {
            return 0.0;
        }
        (2.0 * self.s.latency_ns + copy_ns(bytes, self.t.layout_mb_s)) / real(uses.max(1))
    }
}
