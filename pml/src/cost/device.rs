//! The cost model's formulas for messages out of, or into, memory of devices that are not staged.

use super::{Model, copy_ns, real};
use crate::cost::{DeviceEnds, Situation};
use crate::tuning::Tuning;
use gapless_dtype::Footprint;

/// Fragments of the pipeline have multiples of this many bytes, so that kernels move whole vectors.
const GRAIN: u64 = 4 << 10;

/// The length of fragments of the pipeline out of a device's memory, or into one: over a network within both bounds of
/// `t`; on one host, where nothing but the ends' own work takes time, that of all messages.
///
/// With fragments of `f` bytes the processor launches and sends `bytes / f` times, and the rail waits for nobody but the
/// first fragment, whose `f` bytes the receiver waits for in turn. The sum is least at a square root. No fragment is much
/// shorter than the others: what is not worth two goes as one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
pub(crate) fn device_fragment(s: &Situation, t: &Tuning) -> u32 {
    if s.staged.is_some() {
        return t.fragment_bytes;
    }
    let most = t.device_fragment_bytes;
    let bytes_each = fragment_ns(s, t) * s.bandwidth_mb_s.max(1.0) / 1000.0;
    let best = (real(s.bytes) * bytes_each).sqrt().clamp(1.0, f64::from(most.max(1))) as u64;
    let count = (s.bytes / best).max(s.bytes.div_ceil(u64::from(most.max(1)))).max(1);
    let even = u32::try_from(s.bytes.div_ceil(count).next_multiple_of(GRAIN)).unwrap_or(most);
    even.max(t.device_fragment_least_bytes).min(most)
}

/// What each fragment over a network takes of the processors' time: a launch, and its way through both systems.
fn fragment_ns(s: &Situation, t: &Tuning) -> f64 {
    t.launch_ns + s.latency_ns
}

impl Model<'_> {
    /// The kernels of both ends, so many times in turn: if processes take turns on a device, each waits for its own
    /// turn.
    pub(super) fn turns_ns(&self, times: f64) -> f64 {
        let turns = self.s.devices.is_some_and(|ends| ends.turns);
        if turns { times * self.t.turn_ns } else { 0.0 }
    }

    /// A kernel's start, and until its end is noticed; or a copy worker's for short messages, unless processes take
    /// turns, where there is none.
    fn launch_wait_ns(&self) -> f64 {
        let (s, t) = (self.s, self.t);
        let turns = s.devices.is_some_and(|ends| ends.turns);
        if s.bytes <= t.worker_bytes_max && !turns { t.worker_wait_ns } else { t.launch_wait_ns }
    }

    /// Runs of bytes, to kernels.
    pub(super) fn blocks_ns(&self, blocks: u64) -> f64 {
        if blocks <= 1 { 0.0 } else { real(blocks) * self.t.device_block_ns }
    }

    pub(super) fn both_blocks_ns(&self) -> f64 {
        self.blocks_ns(self.s.sender_blocks) + self.blocks_ns(self.s.receiver_blocks)
    }

    /// One end of `bytes` that pass through the transport's memory.
    pub(super) fn end_ns(&self, device: bool, bytes: u64, blocks: u64, device_mb_s: f64) -> f64 {
        if device {
            self.blocks_ns(blocks) + copy_ns(bytes, device_mb_s)
        } else {
            // One of the two copies that the rail's bandwidth stands for.
            let mb_s = self.t.device_host_mb_s.min(2.0 * self.s.bandwidth_mb_s.max(1.0));
            real(blocks) * self.t.device_host_block_ns + copy_ns(bytes, mb_s)
        }
    }

    /// A kernel packs into the transport's memory, another unpacks from there. Where nothing can be mapped the rail is a
    /// network, on which the bytes travel in between.
    pub(crate) fn device_eager(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let wire = if s.staged.is_none() { copy_ns(s.bytes, s.bandwidth_mb_s) } else { 0.0 };
        let launches = f64::from(u8::from(ends.sender)) + f64::from(u8::from(ends.receiver));
        // The copy engine moves short data without gaps, and waits for no turn.
        let kernels = s.sender_blocks > 1 || s.receiver_blocks > 1;
        s.latency_ns
            + wire
            + launches * self.launch_wait_ns()
            + self.turns_ns(if kernels { 1.0 } else { 0.0 })
            + self.end_ns(ends.sender, s.bytes, s.sender_blocks, t.store_host_mb_s)
            + self.end_ns(ends.receiver, s.bytes, s.receiver_blocks, t.load_host_mb_s)
    }

    /// The same, fragment by fragment: each costs the processor a launch. Over a network all bytes travel while both ends
    /// work, and fragments take the processor's time from that.
    pub(crate) fn device_pipeline(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let fragment = device_fragment(s, t);
        let fragments = s.bytes.div_ceil(u64::from(fragment.max(1))).max(1);
        let wire = match s.staged {
            None => {
                copy_ns(s.bytes.saturating_add(u64::from(fragment)), s.bandwidth_mb_s)
                    + real(fragments) * fragment_ns(s, t)
            }
            Some(_) => 0.0,
        };
        let end = |device, blocks, mb_s| {
            let work = self.end_ns(device, s.bytes, blocks, mb_s);
            if device { work.max(real(fragments) * t.launch_ns) } else { work }
        };
        let sender = end(ends.sender, s.sender_blocks, t.store_host_mb_s);
        let receiver = end(ends.receiver, s.receiver_blocks, t.load_host_mb_s);
        let fill = sender.min(receiver) / real(fragments);
        let launches = f64::from(u8::from(ends.sender)) + f64::from(u8::from(ends.receiver));
        let rounds = (real(fragments) / f64::from(t.depth.max(1))).ceil();
        self.handshake_ns()
            + s.latency_ns
            + launches * self.launch_wait_ns()
            + self.turns_ns(2.0 * rounds)
            + sender.max(receiver).max(wire)
            + fill
    }

    /// Out of the sender's memory, which the receiver's device maps: one kernel from layout to layout, or
    /// a copy engine where neither side has gaps. The layout that may have to be fetched first counts nothing: it takes
    /// about as long as both ends take anyhow to commit such a layout and to write its plans.
    pub(crate) fn direct(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let gapless = s.sender_blocks <= 1 && s.receiver_blocks <= 1;
        let copied = gapless && s.bytes >= t.copy_bytes_min;
        let (mb_s, import_ns) = match (ends.sender, ends.one_device, copied) {
            // The receiver's is memory of the host, which its device reaches.
            _ if !ends.receiver => {
                (if copied { t.to_host_mb_s } else { t.store_host_mb_s }, t.import_ns)
            }
            // The sender's is memory of the host.
            (false, _, true) => (t.from_host_mb_s, 0.0),
            (false, _, false) => (t.load_host_mb_s, 0.0),
            (true, true, true) => (t.device_copy_mb_s, t.import_same_ns),
            (true, true, false) => (t.device_mb_s, t.import_same_ns),
            (true, false, true) => (t.peer_copy_mb_s, t.import_ns),
            (true, false, false) => (t.peer_load_mb_s, t.import_ns),
        };
        s.latency_ns
            + self.rendezvous_ns()
            + self.map_ns()
            + import_ns / f64::from(t.import_uses.max(1))
            + self.launch_wait_ns()
            + self.keeping_ns(!ends.sender_keeps)
            + self.between_ns(ends, mb_s, s.touched.map(|touched| touched.read_sectors))
    }

    /// Into the receiver's memory, which the sender's device maps: as above, with the ends swapped.
    pub(crate) fn direct_put(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let gapless = s.sender_blocks <= 1 && s.receiver_blocks <= 1;
        let copied = gapless && s.bytes >= t.copy_bytes_min;
        let (mb_s, import_ns) = match (ends.receiver, ends.one_device, copied) {
            // The sender's is memory of the host, which its device reaches.
            _ if !ends.sender => {
                (if copied { t.from_host_mb_s } else { t.load_host_mb_s }, t.import_ns)
            }
            // The receiver's is memory of the host.
            (false, _, true) => (t.to_host_mb_s, 0.0),
            (false, _, false) => (t.store_host_mb_s, 0.0),
            (true, true, true) => (t.device_copy_mb_s, t.import_same_ns),
            (true, true, false) => (t.device_mb_s, t.import_same_ns),
            (true, false, true) => (t.peer_copy_mb_s, t.import_ns),
            (true, false, false) => (t.peer_store_mb_s, t.import_ns),
        };
        self.handshake_ns()
            + s.latency_ns
            + self.map_ns()
            + import_ns / f64::from(t.import_uses.max(1))
            + self.launch_wait_ns()
            + self.keeping_ns(ends.sender_keeps)
            + self.between_ns(ends, mb_s, s.touched.map(|touched| touched.written_sectors))
    }

    /// One launch from layout to layout, at `mb_s` over the link or within a device. The side across the link is
    /// touched in `sectors`, if known: scattered runs cost a sector for each piece, neighbouring runs cost nothing. A
    /// side on the device itself costs what its runs cost, at the same time.
    fn between_ns(&self, ends: &DeviceEnds, mb_s: f64, sectors: Option<u64>) -> f64 {
        /// Rows from this length on are moved by the copy engine as fast as one piece.
        const ROW: u64 = 256;
        let (s, t) = (self.s, self.t);
        let across = ends.sender && ends.receiver && !ends.one_device;
        let (Some(touched), Some(sectors), true) = (s.touched, sectors, across) else {
            return self.both_blocks_ns() + copy_ns(s.bytes, mb_s);
        };
        if touched.rows.saturating_mul(ROW) <= s.bytes && s.bytes >= t.copy_bytes_min {
            return copy_ns(s.bytes, t.peer_copy_mb_s.max(mb_s));
        }
        let moved = copy_ns(s.bytes.max(sectors.saturating_mul(Footprint::SECTOR)), mb_s);
        let blocks = if touched.alike { 0.0 } else { self.both_blocks_ns() };
        moved.max(blocks + copy_ns(s.bytes, t.device_mb_s))
    }

    /// The cost of a switch of the device to a message that one process moves alone: a turn, unless that process
    /// moves all messages of the two (`keeps`). It then mostly has the device already.
    fn keeping_ns(&self, keeps: bool) -> f64 {
        /// The share of its messages that find the other process on the device nevertheless.
        const INTERRUPTED: f64 = 0.05;
        self.turns_ns(if keeps { INTERRUPTED } else { 1.0 })
    }

    /// A kernel from buffer to buffer.
    pub(crate) fn device_local(&self, _: &DeviceEnds) -> f64 {
        self.handshake_ns()
            + self.launch_wait_ns()
            + self.both_blocks_ns()
            + copy_ns(self.s.bytes, self.t.device_mb_s)
    }
}
