//! Which protocol carries a message: a pure function of the message, the link and the tuning.
//!
//! The sender asks whether a message is eager. If not, it makes an offer, and the receiver, which alone knows both
//! layouts, asks again. Both use [`candidates`]; so does `gapless explain`.

mod cost;
mod recent;

pub use crate::rndv::protocol::Protocol;
use crate::tuning::Tuning;
pub(crate) use cost::{
    Model, device_fragment, longest_fragment, read_shape, staged_shape, wished_fragment,
};
use gapless_dtype::{Footprint, Layout, Shape};
pub(crate) use recent::{Protocols, Recent};
use std::fmt;

/// What single copy costs on a link; from [`gapless_bml::RdmaLimits`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleCopyCosts {
    /// Fixed cost of an operation, in nanoseconds.
    pub operation_ns: f64,
    /// Cost of each piece, in nanoseconds.
    pub piece_ns: f64,
    /// Bandwidth in MB/s.
    pub bandwidth_mb_s: f64,
    /// Pieces that one operation takes.
    pub pieces_max: u64,
    /// Whether the adapter reaches memory of devices by itself (GPUDirect), where a buffer is a device's.
    pub devices: bool,
    /// Cost of registering memory for a message, in nanoseconds: in any case, and for each MiB.
    pub register_ns: [f64; 2],
}

impl SingleCopyCosts {
    /// Whether memory is registered first, as for an adapter; the kernel reads it as it is.
    pub(crate) fn registers(&self) -> bool {
        self.register_ns != [0.0; 2]
    }
}

/// Everything that the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Packed bytes that will be moved.
    pub bytes: u64,
    /// Runs of bytes in the sender's buffer; 1 means that it has no gaps.
    pub sender_blocks: u64,
    /// Bytes from the first to the last that the sender's buffer touches, gaps included; as many as `bytes`
    /// where that is not known.
    pub sender_span: u64,
    /// Runs of bytes in the receiver's buffer. The sender does not know them, and assumes its own.
    pub receiver_blocks: u64,
    /// What is known of devices; `None` where both buffers are memory that a CPU may touch.
    pub devices: Option<DeviceEnds>,
    /// Whether both ends are this process.
    pub local: bool,
    /// Longest payload that the link takes eagerly, in bytes.
    pub link_eager_bytes: u64,
    /// One-way time of a tiny message on the link, in nanoseconds.
    pub latency_ns: f64,
    /// The link's bandwidth in MB/s.
    pub bandwidth_mb_s: f64,
    /// Whether the receiver can map the sender's memory.
    pub mapped: bool,
    /// Whether the sender can map the receiver's memory, as far as the receiver knows.
    pub grants: bool,
    /// Whether, and at what cost, the receiver can read the sender's memory.
    pub single_copy: Option<SingleCopyCosts>,
    /// Whether both buffers were used so lately that a cache is likely to have them.
    pub cached: bool,
    /// What reading costs, if the sender can pack into memory of its device that the receiver's adapter reads, and that
    /// reaches the receiver's memory, too.
    pub staged_read: Option<SingleCopyCosts>,
    /// Bytes of flattened layout that the receiver would have to fetch first; 0 if it knows the
    /// layout or needs none.
    pub layout_fetch_bytes: u64,
    /// Messages that have come with that layout, this one included. As many are expected to come, and what is fetched
    /// is kept: so a layout that is sent again and again is fetched in the end. 0 counts as 1.
    pub layout_uses: u64,
    /// Longest layout that the receiver would fetch, and that it expects a sender to fetch.
    pub layout_fetch_max: u64,
    /// Bytes of flattened layout that the sender would have to fetch of the receiver; 0 if it knows the
    /// layout or needs none.
    pub granted_layout_bytes: u64,
    /// Messages that were received by that layout, likewise.
    pub granted_layout_uses: u64,
    /// How a move from layout to layout touches memory; `None` where a layout is not known yet, and where
    /// no device moves anything.
    pub touched: Option<Touched>,
    /// Which staged protocols are possible; `None` if neither buffer is in device memory, or if the link maps
    /// nothing.
    pub staged: Option<Staging>,
}

impl Situation {
    /// Runs of bytes in the buffer that has more.
    pub(crate) fn blocks(&self) -> u64 {
        self.sender_blocks.max(self.receiver_blocks)
    }
}

/// Buffers in memory of devices. At least one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEnds {
    /// Whether the sender's buffer is.
    pub sender: bool,
    /// Whether the receiver's is.
    pub receiver: bool,
    /// Whether both are known to be one device.
    pub one_device: bool,
    /// Whether processes take turns on that one device, because no MPS server lets them share it.
    pub turns: bool,
    /// Whether the sender's process moves the messages of both directions where two processes would take turns; then
    /// the device need not switch. It is the process with the lower number, so both agree without a message.
    pub sender_keeps: bool,
    /// Whether the end in memory of the host is page-locked, so that a device of its process can do all the work in
    /// memory of the other end's.
    pub locked: bool,
}

/// How a kernel, or a copy engine, that moves a message from layout to layout touches the memory of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Sectors of the sender's memory that are read at most; of
    /// [`Footprint::SECTOR`](gapless_dtype::Footprint::SECTOR) bytes.
    pub read_sectors: u64,
    /// Sectors of the receiver's memory that are written at most.
    pub written_sectors: u64,
    /// Rows that a copy engine would move: stretches of bytes without gaps on both sides.
    pub rows: u64,
    /// Whether both sides have one layout: it can be moved in any order, that of addresses for instance.
    pub alike: bool,
}

impl Touched {
    /// Of a message out of `from` into `to`: each a layout and a count.
    #[must_use]
    pub fn between(from: (&Layout, u64), to: (&Layout, u64)) -> Touched {
        let (a, b) = (from.0, to.0);
        let facts =
            |layout: &Layout| (layout.size(), layout.blocks(), layout.extent(), layout.true_lb());
        // Comparing lists would take as long as reading them, and they have no better order.
        let listed = matches!(a.shape(), Shape::EqualBlocks { .. } | Shape::General);
        let same =
            !listed && (a.id() == b.id() || (facts(a) == facts(b) && a.shape() == b.shape()));
        if same && from.1 == to.1 {
            let Footprint { sectors, runs } = b.footprint(to.1);
            return Touched {
                read_sectors: sectors,
                written_sectors: sectors,
                rows: runs,
                alike: true,
            };
        }
        // In the order of the stream, a run is touched when its turn comes. But kernels transpose in tiles, so
        // neighbours in memory are touched together.
        let runs = |(layout, count): (&Layout, u64)| layout.blocks_of(count).unwrap_or(u64::MAX);
        let sectors = |side: (&Layout, u64)| {
            let bytes = side.0.size().saturating_mul(side.1);
            let apart = (bytes / Footprint::SECTOR).saturating_add(runs(side));
            apart.min(side.0.footprint(side.1).sectors)
        };
        Touched {
            read_sectors: sectors(from),
            written_sectors: sectors(to),
            rows: runs(from).saturating_add(runs(to)),
            alike: false,
        }
    }
}

/// The factor by which blocks of a layout count for a device that writes them: 1, or 4 for a list whose neighbours in
/// the stream lie pages apart in memory (a sample of them tells). Each such block has sectors of its own, and writes
/// them in part: an H200 unpacks 64 MiB in blocks of 24 bytes in 86 µs if they ascend, and in 209 µs if they are
/// shuffled.
pub(crate) fn weight_of_blocks(layout: &Layout) -> u64 {
    /// Size of the sample.
    const SOME: usize = 8;
    const PAGE: u64 = 4096;
    /// Longer blocks are mostly whole sectors.
    const SHORT: u64 = 4 * Footprint::SECTOR;
    let Shape::EqualBlocks { len, displacements, .. } = layout.shape() else { return 1 };
    if *len >= SHORT || displacements.len() < 2 * SOME {
        return 1;
    }
    let step = displacements.len() / SOME;
    let far = displacements.windows(2).step_by(step).take(SOME);
    let far = far.filter(|pair| pair[0].abs_diff(pair[1]) >= PAGE).count();
    if far > SOME / 2 { 4 } else { 1 }
}

/// Bytes from the first to the last that instances of a layout touch.
pub(crate) fn span_of(layout: &Layout, count: u64) -> u64 {
    let Some(steps) = count.checked_sub(1) else { return 0 };
    let between = layout.extent().unsigned_abs().saturating_mul(steps);
    layout.true_extent().unsigned_abs().saturating_add(between)
}

/// What the staged protocols depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Whether the sender's buffer lies in memory of a device that can stage.
    pub sender_device: bool,
    /// Whether the receiver's buffer does.
    pub receiver_device: bool,
    /// Whether both are known to be one device.
    pub one_device: bool,
    /// Whether the receiver's buffer can be written where it is: it has no gaps, and a key.
    pub direct: bool,
    /// Fragment size that both ends agree to, in bytes.
    pub fragment_bytes: u32,
    /// Fragments in work at once that both ends agree to.
    pub depth: u32,
}

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

/// Why a protocol is impossible for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excluded {
    /// Longer than the eager limit of the link or the tuning.
    TooLong,
    /// The sender's memory was not allocated for mapping, or the link cannot map.
    NotMappable,
    /// The receiver's memory was not allocated for mapping, or the link cannot map.
    NotGrantable,
    /// The link cannot read the peer's memory.
    NoSingleCopy,
    /// A buffer lies in device memory, which the transport does not reach.
    DeviceMemory,
    /// The layout is longer than the receiver keeps.
    LayoutTooLong,
    /// Sender and receiver are different processes.
    OtherProcess,
    /// No staging memory for it: a buffer lies in host memory, or in that of a device that is not
    /// attached, or the link maps nothing.
    NoStaging,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Excluded::TooLong => "longer than the eager limit",
            Excluded::NotMappable => "the sender's memory cannot be mapped",
            Excluded::NotGrantable => "the receiver's memory is not granted",
            Excluded::NoSingleCopy => "the link cannot read the peer's memory",
            Excluded::DeviceMemory => "a buffer lies in device memory",
            Excluded::LayoutTooLong => "the layout is longer than a receiver keeps",
            Excluded::OtherProcess => "another process",
            Excluded::NoStaging => "no staging memory between the buffers",
        })
    }
}

/// All protocols with their predicted times, in the order of [`Protocol::ALL`].
#[must_use]
pub fn candidates(situation: &Situation, tuning: &Tuning) -> [Candidate; Protocol::ALL.len()] {
    Protocol::ALL.map(|protocol| Candidate {
        protocol,
        predicted_ns: (protocol.kind().cost)(situation, tuning),
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
