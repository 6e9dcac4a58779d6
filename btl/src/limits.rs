//! The promises of a transport, in numbers.

/// A transport's promises. Constant for the transport's lifetime.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Short name, e.g. `"sm"`: the same at both ends, used to pair addresses.
    pub name: &'static str,
    /// The longest message, in bytes, worth sending eagerly.
    pub eager_bytes: usize,
    /// The longest message one slot can hold, in bytes; at least `eager_bytes` and at least 256.
    pub max_fragment_bytes: usize,
    /// Messages from one sender arrive in the order of `send`.
    pub ordered: bool,
    /// Estimated one-way time of a tiny message, in nanoseconds.
    pub latency_ns: u32,
    /// Estimated bandwidth of large messages, in bytes per microsecond (= MB/s).
    pub bandwidth_mb_s: u32,
    /// A peer's death is reported within this many milliseconds, provided that `poll` is called.
    pub death_notice_ms: u32,
}
