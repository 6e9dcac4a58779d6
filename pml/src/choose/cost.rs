//! The cost model: how long each protocol would take for a message, by the numbers of [`Tuning`]. Times in
//! nanoseconds. Estimates, to compare by: what all protocols share is left out or rough.

use super::{DeviceEnds, Protocol, SingleCopyCosts, Situation, Staging};
use crate::tuning::Tuning;

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
struct Model<'m> {
    s: &'m Situation,
    t: &'m Tuning,
}

/// Predicted one-way time in nanoseconds, also where the protocol is impossible.
pub(super) fn predict(protocol: Protocol, s: &Situation, tuning: &Tuning) -> f64 {
    let model = Model { s, t: tuning };
    match (protocol, &s.devices, &s.staged) {
        (Protocol::Eager, None, _) => model.eager(),
        (Protocol::Eager, Some(ends), _) => model.device_eager(ends),
        (Protocol::Pipeline, None, _) => model.pipeline(),
        (Protocol::Pipeline, Some(ends), _) => model.device_pipeline(ends),
        (Protocol::Mapped, None, _) => model.mapped(),
        (Protocol::Mapped, Some(ends), _) => model.direct(ends),
        (Protocol::SingleCopy, _, _) => model.single_copy(),
        (Protocol::Local, ends, _) => model.local(ends.is_some()),
        (staged, _, Some(staging)) => {
            let turns = s.devices.is_some_and(|ends| ends.turns);
            model.handshake_ns() + tuning.map_ns + model.staged(staged, staging, turns)
        }
        (_, _, None) => f64::MAX,
    }
}

impl Model<'_> {
    fn blocks(&self) -> f64 {
        real(self.s.sender_blocks.max(self.s.receiver_blocks))
    }

    fn ring_mb_s(&self) -> f64 {
        self.t.pipeline_mb_s.min(self.s.bandwidth_mb_s.max(1.0))
    }

    /// RTS and whatever answers it.
    fn handshake_ns(&self) -> f64 {
        2.0 * self.s.latency_ns + self.t.rendezvous_ns
    }

    /// The layout that the receiver fetches first.
    fn fetch_ns(&self) -> f64 {
        if self.s.layout_fetch_bytes == 0 {
            return 0.0;
        }
        2.0 * self.s.latency_ns + copy_ns(self.s.layout_fetch_bytes, self.t.layout_mb_s)
    }

    /// Packing and unpacking follow each other.
    fn eager(&self) -> f64 {
        let blocks = real(self.s.sender_blocks) + real(self.s.receiver_blocks);
        self.s.latency_ns + blocks * self.t.block_ns + copy_ns(self.s.bytes, self.ring_mb_s())
    }

    /// Packing and unpacking overlap; the last fragment pays another latency.
    fn pipeline(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.ring_mb_s());
        self.handshake_ns() + self.s.latency_ns + copy_ns.max(engine_ns) + engine_ns / 2.0
    }

    fn mapped(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.t.mapped_mb_s);
        let before = self.s.latency_ns + self.t.rendezvous_ns + self.t.map_ns;
        before + self.fetch_ns() + copy_ns + engine_ns
    }

    fn single_copy(&self) -> f64 {
        let (s, t) = (self.s, self.t);
        let costs = s.single_copy.unwrap_or(SingleCopyCosts {
            operation_ns: 0.0,
            piece_ns: 0.0,
            bandwidth_mb_s: t.single_copy_mb_s,
            pieces_max: 1,
        });
        let blocks = s.sender_blocks.max(s.receiver_blocks);
        let operations = blocks
            .div_ceil(costs.pieces_max.max(1))
            .max(s.bytes.div_ceil(t.single_copy_batch_bytes.max(1)));
        let mb_s = t.single_copy_mb_s.min(costs.bandwidth_mb_s.max(1.0));
        let before = s.latency_ns + t.rendezvous_ns + self.fetch_ns();
        before
            + real(operations) * costs.operation_ns
            + real(blocks) * costs.piece_ns
            + copy_ns(s.bytes, mb_s)
    }

    fn local(&self, device: bool) -> f64 {
        let engine_ns = if device {
            self.t.launch_wait_ns
                + self.both_blocks_ns()
                + copy_ns(self.s.bytes, self.t.device_mb_s)
        } else {
            self.blocks() * self.t.block_ns + copy_ns(self.s.bytes, self.t.mapped_mb_s)
        };
        self.handshake_ns() + engine_ns
    }

    /// The kernels of both ends, so many times in turn: where processes take turns on a device, each waits
    /// for its own.
    fn turns_ns(&self, times: f64) -> f64 {
        let turns = self.s.devices.is_some_and(|ends| ends.turns);
        if turns { times * self.t.turn_ns } else { 0.0 }
    }

    /// Runs of bytes, to kernels.
    fn blocks_ns(&self, blocks: u64) -> f64 {
        if blocks <= 1 { 0.0 } else { real(blocks) * self.t.device_block_ns }
    }

    fn both_blocks_ns(&self) -> f64 {
        self.blocks_ns(self.s.sender_blocks) + self.blocks_ns(self.s.receiver_blocks)
    }

    /// One end of `bytes` that pass through the transport's memory.
    fn end_ns(&self, device: bool, bytes: u64, blocks: u64, device_mb_s: f64) -> f64 {
        if device {
            self.blocks_ns(blocks) + copy_ns(bytes, device_mb_s)
        } else {
            // Half of the two copies that the ring's rate stands for.
            real(blocks) * self.t.block_ns + copy_ns(bytes, 2.0 * self.ring_mb_s())
        }
    }

    /// A kernel packs into the transport's memory, another unpacks from there.
    fn device_eager(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let launches = f64::from(u8::from(ends.sender)) + f64::from(u8::from(ends.receiver));
        // Short data without gaps goes by the copy engine, which waits for nobody.
        let kernels = s.sender_blocks > 1 || s.receiver_blocks > 1;
        s.latency_ns
            + launches * t.launch_wait_ns
            + self.turns_ns(if kernels { 1.0 } else { 0.0 })
            + self.end_ns(ends.sender, s.bytes, s.sender_blocks, t.store_host_mb_s)
            + self.end_ns(ends.receiver, s.bytes, s.receiver_blocks, t.load_host_mb_s)
    }

    /// The same, fragment by fragment: each costs the processor a launch.
    fn device_pipeline(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let fragments = s.bytes.div_ceil(u64::from(t.fragment_bytes.max(1))).max(1);
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
            + launches * t.launch_wait_ns
            + self.turns_ns(2.0 * rounds)
            + sender.max(receiver)
            + fill
    }

    /// Out of the sender's memory, which the receiver's device maps: one kernel from layout to layout, or
    /// a copy engine where neither side has gaps.
    fn direct(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let gapless = s.sender_blocks <= 1 && s.receiver_blocks <= 1;
        let copied = gapless && s.bytes >= t.copy_bytes_min;
        let (mb_s, import_ns) = match (ends.sender, ends.one_device, copied) {
            // The sender's is memory of the host.
            (false, _, _) => (t.load_host_mb_s, 0.0),
            (true, true, true) => (t.device_copy_mb_s, t.import_same_ns),
            (true, true, false) => (t.device_mb_s, t.import_same_ns),
            (true, false, true) => (t.peer_copy_mb_s, t.import_ns),
            (true, false, false) => (t.peer_load_mb_s, t.import_ns),
        };
        s.latency_ns
            + t.rendezvous_ns
            + t.map_ns
            + import_ns / f64::from(t.import_uses.max(1))
            + self.fetch_ns()
            + t.launch_wait_ns
            + self.turns_ns(1.0)
            + self.both_blocks_ns()
            + copy_ns(s.bytes, mb_s)
    }

    /// Fragments pass a chain of stages, each of which works on another fragment at the same time: the
    /// slowest sets the pace, the others are seen once. A stage may be the processor that launches.
    fn staged(&self, protocol: Protocol, staging: &Staging, turns: bool) -> f64 {
        let (s, t) = (self.s, self.t);
        let fragment = u64::from(staged_fragment(s.bytes, staging, t, turns));
        let fragments = s.bytes.div_ceil(fragment).max(1);
        let bytes = s.bytes.min(fragment);
        let near = |far: f64, near: f64| if staging.one_device { near } else { far };
        let kernel = |blocks, mb_s| {
            Stage::kernel(self.blocks_ns(blocks) / real(fragments) + copy_ns(bytes, mb_s))
        };
        let copy = |mb_s| Stage::copy(copy_ns(bytes, mb_s), t.copy_gap_ns);
        let local = |blocks| kernel(blocks, t.device_mb_s);
        let between = || copy(near(t.peer_copy_mb_s, t.device_copy_mb_s));
        let (from, to) = (s.sender_blocks, s.receiver_blocks);
        let packed = |yes: bool, blocks| if yes { local(blocks) } else { Stage::NONE };
        let gapless = from <= 1;
        let [a, b, c, d] = match protocol {
            Protocol::StagedPut => {
                let store = kernel(from, near(t.peer_store_mb_s, t.device_mb_s));
                [store, Stage::NONE, packed(!staging.direct, to), Stage::NONE]
            }
            Protocol::StagedPutCopy => {
                [packed(!gapless, from), between(), packed(!staging.direct, to), Stage::NONE]
            }
            Protocol::StagedGet => {
                let load = kernel(to, near(t.peer_load_mb_s, t.device_mb_s));
                [local(from), Stage::NONE, load, Stage::NONE]
            }
            Protocol::StagedGetCopy => [local(from), Stage::NONE, between(), packed(to > 1, to)],
            Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
                let zero = protocol == Protocol::ZeroCopyInOut;
                let side = |device, blocks, store: f64, copied: f64| match device {
                    false => [
                        Stage::host(
                            copy_ns(bytes, t.mapped_mb_s)
                                + real(blocks) * t.block_ns / real(fragments),
                        ),
                        Stage::NONE,
                    ],
                    true if zero => [kernel(blocks, store), Stage::NONE],
                    true => [packed(blocks > 1, blocks), copy(copied)],
                };
                let [a, b] = side(staging.sender_device, from, t.store_host_mb_s, t.to_host_mb_s);
                let [c, d] = side(staging.receiver_device, to, t.load_host_mb_s, t.from_host_mb_s);
                // Down and up is the order at the receiver; only the sum and the most count.
                [a, b, c, d]
            }
            _ => return f64::MAX,
        };
        let ends = [[a, b], [c, d]].map(|stages| End::of(&stages, t));
        let pace = ends.iter().map(|end| end.pace).fold(0.0, f64::max);
        let once: f64 = ends.iter().map(|end| end.once).sum();
        // The receiver's buffer is mapped like any other of the user's; rings stay mapped.
        let import_ns = match (staging.direct && protocol.puts(), staging.one_device) {
            (false, _) => 0.0,
            (true, true) => t.import_same_ns,
            (true, false) => t.import_ns,
        } / f64::from(t.import_uses.max(1));
        // A ring at the sender is told of in words of its own.
        let words = if protocol.puts() { 0.0 } else { 2.0 * s.latency_ns };
        // Both ends' kernels work in turn, as many fragments at a time as there are places; copies to and from
        // the host wait for nobody.
        let gapless_through_host = matches!(protocol, Protocol::CopyInOut) && from <= 1 && to <= 1;
        let (pace, turns) = if !turns || gapless_through_host {
            (pace, 0.0)
        } else if staging.direct && protocol.puts() {
            (pace, t.turn_ns)
        } else {
            let both = ends.iter().map(|end| end.pace).sum();
            let rounds = (real(fragments) / f64::from(staging.depth.max(1))).ceil();
            (both, 2.0 * rounds * t.turn_ns)
        };
        once + s.latency_ns + words + import_ns + real(fragments - 1) * pace + turns
    }
}

/// What one end does with a fragment.
#[derive(Clone, Copy)]
struct Stage {
    /// Of the device, or of the processor where it does the work itself.
    work: f64,
    /// After which the next fragment's can begin.
    gap: f64,
    launches: f64,
}

impl Stage {
    const NONE: Stage = Stage { work: 0.0, gap: 0.0, launches: 0.0 };

    fn kernel(work: f64) -> Stage {
        Stage { work, gap: 0.0, launches: 1.0 }
    }

    fn copy(work: f64, gap: f64) -> Stage {
        Stage { work, gap, launches: 1.0 }
    }

    fn host(work: f64) -> Stage {
        Stage { work, gap: 0.0, launches: 0.0 }
    }
}

/// One end, with all it does.
struct End {
    /// From fragment to fragment.
    pace: f64,
    /// For the first one.
    once: f64,
}

impl End {
    fn of(stages: &[Stage; 2], t: &Tuning) -> End {
        let launches: f64 = stages.iter().map(|stage| stage.launches).sum();
        let slowest = stages.iter().map(|stage| stage.work + stage.gap).fold(0.0, f64::max);
        let waited = if launches > 0.0 { t.launch_wait_ns - t.launch_ns } else { 0.0 };
        let work: f64 = stages.iter().map(|stage| stage.work).sum();
        let processor = launches * t.launch_ns;
        End { pace: slowest.max(processor), once: work + processor + waited.max(0.0) }
    }
}

/// The fragment size of a staged message: as wished, but so that the first and the last fragment, with
/// which the link is idle, are a small part of it, and so that a message which is shorter than the whole
/// ring still keeps both ends busy. Where processes take turns on a device (`turns`), every fragment waits
/// for one, and long ones are best.
#[must_use]
pub fn staged_fragment(bytes: u64, staging: &Staging, tuning: &Tuning, turns: bool) -> u32 {
    /// Shorter fragments spend their time on launches.
    const LEAST: u64 = 256 << 10;
    /// Shorter ones than these are worth it only where the ring would not be filled.
    const SHORT: u64 = 2 << 20;
    /// Fragments start at multiples of this, so that kernels move whole vectors.
    const GRAIN: u64 = 4096;
    let wish = staging.fragment_bytes.max(1);
    let parts = if turns { 1 } else { tuning.staged_fragments_min.max(1) };
    let part = bytes.div_ceil(u64::from(parts)).max(SHORT);
    let place = bytes.div_ceil(u64::from(staging.depth.max(1))).max(LEAST);
    let share = part.min(place).min(1 << 32);
    u32::try_from(share.next_multiple_of(GRAIN)).unwrap_or(wish).min(wish)
}
