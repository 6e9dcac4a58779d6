//! The cost model's formulas for staged messages, and how they are cut into fragments.

use super::{Model, copy_ns, real};
use crate::choose::{Protocol, Staging};
use crate::tuning::Tuning;

impl Model<'_> {
    /// Fragments pass a chain of stages, each of which works on another fragment at the same time: the
    /// slowest sets the pace, the others are seen once. A stage may be the processor that launches.
    pub(super) fn staged(&self, protocol: Protocol, staging: &Staging, turns: bool) -> f64 {
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
