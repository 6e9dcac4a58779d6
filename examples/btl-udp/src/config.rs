//! What a user of the transport may choose. Both ends choose the same.

use crate::Faults;
use crate::seq::WINDOW_MAX;

/// The longest message in bytes: with its header it must fit a UDP datagram.
pub(crate) const FRAGMENT_MAX: usize = 60 << 10;
/// The shortest limit in bytes that the contract allows.
const FRAGMENT_MIN: usize = 256;
/// The fewest messages: with one, nobody could reserve two slots and choose their order.
const WINDOW_MIN: u32 = 2;

/// The transport's parameters; values outside their bounds are moved to the nearest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// [`Limits::max_fragment_bytes`](gapless_btl::Limits), 256 to 61440; one datagram holds one
    /// message. The same at both ends, or they refuse each other.
    pub max_fragment_bytes: usize,
    /// [`Limits::eager_bytes`](gapless_btl::Limits), at most `max_fragment_bytes`.
    pub eager_bytes: usize,
    /// Messages to and from one peer that there are buffers for, 2 to 64 in each direction.
    pub window: u32,
    /// Bytes in flight to one peer, at least one message: what the peer's socket buffer holds.
    pub flying_bytes: usize,
    /// A bad wire, for tests.
    pub faults: Option<Faults>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_fragment_bytes: 32 << 10,
            eager_bytes: 8 << 10,
            window: 32,
            flying_bytes: 256 << 10,
            faults: None,
        }
    }
}

impl Config {
    /// The same, within bounds.
    pub(crate) fn bounded(mut self) -> Config {
        self.max_fragment_bytes = self.max_fragment_bytes.clamp(FRAGMENT_MIN, FRAGMENT_MAX);
        self.eager_bytes = self.eager_bytes.min(self.max_fragment_bytes);
        self.window = self.window.clamp(WINDOW_MIN, WINDOW_MAX);
        self
    }
}
