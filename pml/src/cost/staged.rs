//! The cost model's formulas for staged messages, and how they are cut into fragments.
//!
//! A message passes a chain of stages; each works on another fragment at the same time. The slowest stage sets the
//! *pace*. It idles while the stages before it work on the first fragment; the stages after it finish the last one.

use super::{Model, copy_ns, real};
use crate::cost::{Situation, Staging};
use crate::protocol::Protocol;
use crate::tuning::Tuning;
use crate::wire::cut::{Cut, FragmentShape};

/// What a device loses between two kernels that fill it, if the second starts while the first one's last blocks still
/// run.
const KERNEL_GAP_NS: f64 = 800.0;

/// The same if the second starts when the first has ended. That holds for shorter fragments, which the other end
/// waits for, and for all fragments beside a copier.
const KERNEL_END_NS: f64 = 3_000.0;

/// The extra cost of each fragment on a processor that copies fragments. With this, 16 and 32 MiB are cut into fragments of
/// about 1 MiB, which were the quickest between an H200 and its host, of 0.5, 1 and 2 MiB.
const HOST_GAP_NS: f64 = 1_000.0;

/// Who shares the runs of a long fragment on the processor: a thread and the four that help it. Where none do, the choice
/// is the same: the pipeline, which nobody helps with, takes longer as well.
const HOST_SHARE: f64 = 5.0;

/// The most of a copy engine between a device and a ring whose other end is a processor's, whatever the fragments: 14 to
/// 19 GB/s into an H200, 21 to 25 GB/s out of it, where kernels have 24 to 46. The cause has not been found.
const COPY_BESIDE_HOST_MB_S: f64 = 20_000.0;

/// The least gap: a tuner may measure none within the noise.
const GAP_LEAST_NS: f64 = 1.0;

/// Fragments start at multiples of this, and ramps of two steps at multiples of a page, so that kernels move
/// whole vectors.
const GRAIN: u64 = 16 << 10;

/// Steps of a ramp, if there is one: more would save less than they cost.
const STEPS: u8 = 2;

/// Work on all bytes of a message at one stage.
#[derive(Clone, Copy)]
struct CostStage {
    /// Of the device, or of the processor if it does the work itself.
    work: f64,
    /// After each fragment.
    gap: f64,
    /// Before each that is shorter than others.
    short_gap: f64,
    /// For each fragment.
    launches: f64,
}

impl CostStage {
    const NONE: CostStage = CostStage { work: 0.0, gap: 0.0, short_gap: 0.0, launches: 0.0 };

    fn kernel(work: f64) -> CostStage {
        CostStage { work, gap: KERNEL_GAP_NS, short_gap: KERNEL_END_NS, launches: 1.0 }
    }

    /// A kernel beside a copier: each fragment waits for the one before.
    fn kernel_in_turn(work: f64) -> CostStage {
        CostStage { gap: KERNEL_END_NS, ..CostStage::kernel(work) }
    }

    fn copy(work: f64, gap: f64) -> CostStage {
        CostStage { work, gap, short_gap: gap, launches: 1.0 }
    }

    fn host(work: f64) -> CostStage {
        CostStage { work, gap: HOST_GAP_NS, short_gap: HOST_GAP_NS, launches: 0.0 }
    }

    /// What is lost between fragments.
    fn gaps(&self, cut: &Cut) -> f64 {
        let FragmentShape { head, tail, .. } = cut.shape();
        let short = f64::from(head) + f64::from(tail);
        let between = (real(cut.total()) - 1.0).max(0.0);
        short.min(between) * self.short_gap + (between - short).max(0.0) * self.gap
    }
}

/// A message's stages in their order: two at the sender, two at the receiver.
struct Chain([CostStage; 4]);

impl Chain {
    /// Which stage is the slowest.
    fn pace(&self) -> usize {
        let slower =
            |best: usize, at: usize| if self.0[at].work > self.0[best].work { at } else { best };
        (1..self.0.len()).fold(0, slower)
    }

    /// The work of the stages before it, and after it.
    fn beside(&self) -> (f64, f64) {
        let sum = |stages: &[CostStage]| stages.iter().map(|stage| stage.work).sum();
        let pace = self.pace();
        (sum(&self.0[..pace]), sum(&self.0[pace + 1..]))
    }

    /// The cost of a cut beside the slowest stage's work: the gaps between fragments, and the waits for the first and
    /// the last one.
    fn cost(&self, cut: &Cut) -> f64 {
        let end = real(cut.end());
        let share = |index: u64| {
            let range = cut.range(index);
            real(range.end - range.start) / end
        };
        let (before, behind) = self.beside();
        let waits = before * share(0) + behind * share(cut.total() - 1);
        self.0[self.pace()].gaps(cut) + waits
    }

    /// Launches for a fragment at either end.
    fn launches(&self) -> [f64; 2] {
        let [a, b, c, d] = self.0.map(|stage| stage.launches);
        [a + b, c + d]
    }
}

impl Model<'_> {
    fn chain(&self, protocol: Protocol, staging: &Staging) -> Option<Chain> {
        let (s, t) = (self.s, self.t);
        let near = |far: f64, near: f64| if staging.one_device { near } else { far };
        let local = |blocks| self.blocks_ns(blocks) + copy_ns(s.bytes, t.device_mb_s);
        // A kernel reads here and writes there at the same time.
        let across = |blocks, mb_s| {
            CostStage::kernel(copy_ns(s.bytes, near(mb_s, t.device_mb_s)).max(local(blocks)))
        };
        let copy = |mb_s| CostStage::copy(copy_ns(s.bytes, mb_s), t.copy_gap_ns);
        let between = || copy(near(t.peer_copy_mb_s, t.device_copy_mb_s));
        let (from, to) = (s.sender_blocks, s.receiver_blocks);
        let packed = |blocks| CostStage::kernel(local(blocks));
        let in_turn = |blocks| {
            if blocks > 1 { CostStage::kernel_in_turn(local(blocks)) } else { CostStage::NONE }
        };
        let unpacked = if staging.direct { CostStage::NONE } else { packed(to) };
        Some(Chain(match protocol {
            Protocol::StagedPut => {
                [CostStage::NONE, across(from, t.peer_store_mb_s), unpacked, CostStage::NONE]
            }
            Protocol::StagedPutCopy => [in_turn(from), between(), unpacked, CostStage::NONE],
            Protocol::StagedGet => {
                [packed(from), CostStage::NONE, across(to, t.peer_load_mb_s), CostStage::NONE]
            }
            Protocol::StagedGetCopy => [packed(from), CostStage::NONE, between(), in_turn(to)],
            Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
                let zero = protocol == Protocol::ZeroCopyInOut;
                let devices = staging.sender_device && staging.receiver_device;
                let copied =
                    |mb_s: f64| if devices { mb_s } else { mb_s.min(COPY_BESIDE_HOST_MB_S) };
                let side = |device, blocks, kernel_mb_s: f64, copy_mb_s| match device {
                    false => {
                        let runs_ns = real(blocks) * t.device_host_block_ns / HOST_SHARE;
                        let work = copy_ns(s.bytes, t.device_host_mb_s) + runs_ns;
                        (CostStage::NONE, CostStage::host(work))
                    }
                    true if zero => {
                        let work = copy_ns(s.bytes, kernel_mb_s).max(local(blocks));
                        (CostStage::NONE, CostStage::kernel(work))
                    }
                    true => (in_turn(blocks), copy(copied(copy_mb_s))),
                };
                let (a, b) = side(staging.sender_device, from, t.store_host_mb_s, t.to_host_mb_s);
                let (d, c) = side(staging.receiver_device, to, t.load_host_mb_s, t.from_host_mb_s);
                [a, b, c, d]
            }
            _ => return None,
        }))
    }

    /// A staged protocol; [`f64::MAX`] where nothing is staged.
    pub(crate) fn staged(&self, protocol: Protocol) -> f64 {
        let Some(staging) = &self.s.staged else { return f64::MAX };
        let turns = self.s.devices.is_some_and(|ends| ends.turns);
        self.handshake_ns() + self.map_ns() + self.fragments_ns(protocol, staging, turns)
    }

    fn fragments_ns(&self, protocol: Protocol, staging: &Staging, turns: bool) -> f64 {
        let (s, t) = (self.s, self.t);
        let Some(chain) = self.chain(protocol, staging) else { return f64::MAX };
        let shape = self.shape(&chain, staging, turns);
        let Some(cut) = Cut::new(s.bytes.max(1), shape) else { return f64::MAX };
        let total = real(cut.total());
        // The processor that launches may set the pace.
        let work = chain.0[chain.pace()].work;
        let pace = chain.launches().into_iter().fold(work + chain.cost(&cut), |pace, launches| {
            pace.max(total * launches * t.launch_ns)
        });
        let waited = (t.launch_wait_ns - t.launch_ns).max(0.0);
        let launched = chain.launches().into_iter().filter(|launches| *launches > 0.0);
        let once: f64 = launched.map(|launches| launches * t.launch_ns + waited).sum();
        // The receiver's buffer is mapped like any buffer of a user; rings stay mapped.
        let import_ns = match (staging.direct && protocol.puts(), staging.one_device) {
            (false, _) => 0.0,
            (true, true) => t.import_same_ns,
            (true, false) => t.import_ns,
        } / f64::from(t.import_uses.max(1));
        // READY, and RING and FREE if the ring is the sender's. Between devices, get also starts later: 10 to 30 µs,
        // between two H200s.
        let asked = if protocol.puts() { 0.0 } else { 2.0 * s.latency_ns + self.rendezvous_ns() };
        let opened = protocol.puts() || protocol.through_host();
        let asked = asked + if opened { 0.0 } else { t.launch_wait_ns };
        let words = s.latency_ns + self.rendezvous_ns() + asked;
        // On one device the stages share its memory.
        let all: f64 = chain.0.iter().map(|stage| stage.work).sum();
        let near = staging.one_device && !protocol.through_host();
        let pace = if near { pace.max(all) } else { pace };
        // Both ends' kernels work in turn, with as many fragments at a time as there are places; copies to and from
        // the host wait for no turn.
        let gapless_through_host = matches!(protocol, Protocol::CopyInOut)
            && s.sender_blocks <= 1
            && s.receiver_blocks <= 1;
        let (pace, turns) = if !turns || gapless_through_host {
            (pace, 0.0)
        } else if staging.direct && protocol.puts() {
            (pace, t.turn_ns)
        } else {
            let rounds = (total / f64::from(staging.depth.max(1))).ceil();
            (pace.max(all), 2.0 * rounds * t.turn_ns)
        };
        once + words + import_ns + pace + turns
    }

    /// Lengths of the fragments: the pace should be kept from soon after the start until shortly before the end, with
    /// few gaps in between.
    ///
    /// With fragments of `f` bytes the slowest stage waits for `f` bytes of the others, and there are `bytes / f`
    /// gaps; their sum is least at a square root. Ramps make the first and the last fragment a half or a quarter of
    /// the others. They are used if a stage beside the slowest is quick enough to finish a fragment before the next,
    /// twice as long, has come, and if that saves more than the gaps of more fragments cost. If processes take turns
    /// on a device (`turns`), every fragment waits for a turn, and long ones are best.
    fn shape(&self, chain: &Chain, staging: &Staging, turns: bool) -> FragmentShape {
        let (bytes, t) = (self.s.bytes.max(1), self.t);
        let wish = staging.fragment_bytes.max(1);
        let least = f64::from(t.staged_least_bytes.clamp(1, wish));
        if turns {
            let place = bytes.div_ceil(u64::from(staging.depth.max(1)));
            return FragmentShape::even(rounded(real(place).max(least), wish));
        }
        let all = real(bytes);
        let slowest = chain.0[chain.pace()];
        let pace = slowest.work / all;
        let (before, behind) = chain.beside();
        // Shorter ones would end before their successors are launched.
        let floor = t.launch_wait_ns / pace.max(f64::MIN_POSITIVE);
        let ramped = |head: u8, tail: u8| {
            let part = |steps: u8| 0.5_f64.powi(i32::from(steps));
            let idle = (before * part(head) + behind * part(tail)) / all;
            let best = (all * slowest.gap.max(GAP_LEAST_NS) / idle.max(f64::MIN_POSITIVE)).sqrt();
            let best = best.max(floor).max(least).min(f64::from(wish));
            // The middle is cut evenly, too.
            let ramps = 2.0 - part(head) - part(tail);
            let middle = (all / best - ramps).ceil().max(1.0);
            let shape =
                FragmentShape { fragment: rounded(all / (middle + ramps), wish), head, tail };
            let shortest = f64::from(shape.fragment) * part(head.max(tail));
            let long_enough = head.max(tail) == 0 || shortest >= least.max(floor / 2.0);
            let cut = Cut::new(bytes, shape).filter(|_| long_enough)?;
            Some((shape, chain.cost(&cut)))
        };
        let steps = |work: f64| {
            if work > 0.0 && 2.0 * work <= slowest.work { STEPS } else { 0 }
        };
        let (heads, tails) = (0..=steps(before), 0..=steps(behind));
        heads
            .flat_map(|head| tails.clone().map(move |tail| (head, tail)))
            .filter_map(|(head, tail)| ramped(head, tail))
            .min_by(|(_, one), (_, other)| one.total_cmp(other))
            .map_or(FragmentShape::even(wish), |(shape, _)| shape)
    }
}

/// A fragment of about so many bytes, `wish` at most.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the wish")]
fn rounded(bytes: f64, wish: u32) -> u32 {
    let bytes = bytes.min(f64::from(wish)).ceil() as u64;
    u32::try_from(bytes.next_multiple_of(GRAIN)).unwrap_or(wish).min(wish)
}

/// Lengths of the fragments of a staged message; see the notes on `Model::shape`.
pub(crate) fn staged_shape(
    protocol: Protocol,
    s: &Situation,
    staging: &Staging,
    tuning: &Tuning,
) -> FragmentShape {
    let model = Model { s, t: tuning };
    let turns = s.devices.is_some_and(|ends| ends.turns);
    match model.chain(protocol, staging) {
        Some(chain) => model.shape(&chain, staging, turns),
        None => FragmentShape::even(staging.fragment_bytes),
    }
}
