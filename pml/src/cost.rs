//! The cost model: how long each protocol would take for a message, by the numbers of [`Tuning`], in nanoseconds. The
//! results are estimates for comparison: costs that all protocols share are left out or rough. This file has what the
//! formulas of `host`, `device`, `read` and `staged` have in common, and what they depend on: a [`Situation`].

mod device;
mod host;
mod read;
mod staged;

use crate::tuning::Tuning;
pub(crate) use device::device_fragment;
use gapless_dtype::{Footprint, Layout, Shape};
pub(crate) use host::{longest_fragment, wished_fragment};
pub(crate) use read::read_shape;
pub(crate) use staged::staged_shape;
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

/// Everything that the choice depends on. By default, no bytes on a link of which nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// is kept: so a layout that is sent again and again is fetched in the end. 0 counts as 1. Where devices map each
    /// other's memory, a layout is fetched for its first message.
    pub layout_uses: u64,
    /// Longest layout that the receiver would fetch.
    pub layout_fetch_max: u64,
    /// How a move from layout to layout touches memory; `None` where no device moves anything.
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
    /// Whether the device of the one end that is in a device's memory reaches the host's by copies alone. If both are,
    /// it means nothing.
    pub copies_only: bool,
}

/// How a kernel, or a copy engine, that moves a message from layout to layout touches the memory of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Sectors of the sender's memory that are read at most; of
    /// [`Footprint::SECTOR`](gapless_dtype::Footprint::SECTOR) bytes.
    pub read_sectors: u64,
    /// Sectors of the receiver's memory that are written at most.
    pub written_sectors: u64,
    /// Rows that a copy engine would move: contiguous spans of bytes on both sides.
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
        Touched {
            read_sectors: sectors_of(from),
            written_sectors: sectors_of(to),
            rows: runs(from).saturating_add(runs(to)),
            alike: false,
        }
    }

    /// Of a message into `to` out of a layout of which an offer says this alone: how many bytes, in how many runs, how
    /// far apart the first and the last byte lie.
    #[must_use]
    pub fn unseen((bytes, blocks, span): (u64, u64, u64), to: (&Layout, u64)) -> Touched {
        let even = bytes.checked_div(blocks).filter(|len| len.saturating_mul(blocks) == bytes);
        let touched = sectors(bytes, blocks, even.unwrap_or(1));
        Touched {
            read_sectors: touched.min(span / Footprint::SECTOR + 2),
            written_sectors: sectors_of(to),
            rows: blocks.saturating_add(runs(to)),
            alike: false,
        }
    }
}

/// Runs of bytes in so many instances.
fn runs((layout, count): (&Layout, u64)) -> u64 {
    layout.blocks_of(count).unwrap_or(u64::MAX)
}

/// Sectors that instances of a layout touch.
fn sectors_of(side: (&Layout, u64)) -> u64 {
    let bytes = side.0.size().saturating_mul(side.1);
    let step = side.0.granularity() | side.0.extent().unsigned_abs();
    sectors(bytes, runs(side), step).min(side.0.footprint(side.1).sectors)
}

/// Sectors that `runs` runs touch. Runs of whole sectors, at multiples of `step` bytes, touch no other: buffers of
/// devices begin at one.
fn sectors(bytes: u64, runs: u64, step: u64) -> u64 {
    let more = if step.is_multiple_of(Footprint::SECTOR) { 0 } else { runs };
    (bytes / Footprint::SECTOR).saturating_add(more)
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

/// What the staged protocols depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Whether the sender's buffer lies in memory of a device that can stage.
    pub sender_device: bool,
    /// Whether the receiver's buffer does.
    pub receiver_device: bool,
    /// Whether the device of each end maps memory of the other's.
    pub shared: bool,
    /// Whether both are known to be one device.
    pub one_device: bool,
    /// Whether the receiver's buffer can be written where it is: it has no gaps, and a key.
    pub direct: bool,
    /// Fragment size that both ends agree to, in bytes.
    pub fragment_bytes: u32,
    /// Fragments in work at once that both ends agree to.
    pub depth: u32,
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
    /// The time by one formula between buffers of the host, and by another where one is a device's.
    pub(crate) fn by_ends(
        &self,
        host: fn(&Self) -> f64,
        device: fn(&Self, &DeviceEnds) -> f64,
    ) -> f64 {
        self.s.devices.as_ref().map_or_else(|| host(self), |ends| device(self, ends))
    }

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

    /// The message's share of the layout that the receiver fetches first, if it does.
    fn fetch_ns(&self) -> f64 {
        let (bytes, uses) = (self.s.layout_fetch_bytes, self.s.layout_uses);
        if bytes == 0 {
            return 0.0;
        }
        (2.0 * self.s.latency_ns + copy_ns(bytes, self.t.layout_mb_s)) / real(uses.max(1))
    }
}
