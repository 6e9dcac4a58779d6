//! Which protocol carries a message: a pure function of the message, the link and the tuning.
//!
//! The sender asks whether the message goes eagerly; if not, it makes an offer and the receiver,
//! which alone knows both layouts, asks again. Both use [`candidates`]; so does
//! `gapless explain`.

pub use crate::protocol::Protocol;
use crate::tuning::Tuning;
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
}

/// Everything that the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Situation {
    /// Packed bytes that will be moved.
    pub bytes: u64,
    /// Runs of bytes in the sender's buffer; 1 means that it has no gaps.
    pub sender_blocks: u64,
    /// Runs of bytes in the receiver's buffer. The sender, who does not know it, takes its own.
    pub receiver_blocks: u64,
    /// Whether both buffers are memory that a CPU may touch.
    pub host: bool,
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
    /// Whether, and at what cost, the receiver can read the sender's memory.
    pub single_copy: Option<SingleCopyCosts>,
    /// Bytes of flattened layout that the receiver would have to fetch first; 0 if it knows the
    /// layout or needs none.
    pub layout_fetch_bytes: u64,
    /// Longest layout that the receiver would fetch.
    pub layout_fetch_max: u64,
    /// Which staged ways there are; `None` where neither buffer lies in device memory, or where the
    /// link maps nothing.
    pub staged: Option<Staging>,
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
    /// Predicted one-way time in nanoseconds, also where it is impossible here.
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
    /// The link cannot read the peer's memory.
    NoSingleCopy,
    /// A buffer lies in device memory.
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

/// All protocols with their predicted times, in the order of [`Protocol::ALL`].
#[must_use]
pub fn candidates(situation: &Situation, tuning: &Tuning) -> [Candidate; Protocol::ALL.len()] {
    Protocol::ALL.map(|protocol| Candidate {
        protocol,
        predicted_ns: predict(protocol, situation, tuning),
        excluded: exclude(protocol, situation, tuning),
    })
}

fn predict(protocol: Protocol, s: &Situation, tuning: &Tuning) -> f64 {
    let blocks = s.sender_blocks.max(s.receiver_blocks);
    let ring_mb_s = tuning.pipeline_mb_s.min(s.bandwidth_mb_s.max(1.0));
    // RTS and whatever answers it.
    let handshake_ns = 2.0 * s.latency_ns + tuning.rendezvous_ns;
    let fetch_ns = if s.layout_fetch_bytes == 0 {
        0.0
    } else {
        2.0 * s.latency_ns + copy_ns(s.layout_fetch_bytes, tuning.layout_mb_s)
    };
    match protocol {
        // Packing and unpacking follow each other.
        Protocol::Eager => {
            let engine_ns = (real(s.sender_blocks) + real(s.receiver_blocks)) * tuning.block_ns;
            s.latency_ns + engine_ns + copy_ns(s.bytes, ring_mb_s)
        }
        // Packing and unpacking overlap; the last fragment pays another latency.
        Protocol::Pipeline => {
            let engine_ns = real(blocks) * tuning.block_ns;
            let copy_ns = copy_ns(s.bytes, ring_mb_s);
            handshake_ns + s.latency_ns + copy_ns.max(engine_ns) + engine_ns / 2.0
        }
        Protocol::Mapped => {
            let engine_ns = real(blocks) * tuning.block_ns;
            let copy_ns = copy_ns(s.bytes, tuning.mapped_mb_s);
            s.latency_ns + tuning.rendezvous_ns + tuning.map_ns + fetch_ns + copy_ns + engine_ns
        }
        Protocol::SingleCopy => {
            let costs = s.single_copy.unwrap_or(SingleCopyCosts {
                operation_ns: 0.0,
                piece_ns: 0.0,
                bandwidth_mb_s: tuning.single_copy_mb_s,
                pieces_max: 1,
            });
            let operations = blocks
                .div_ceil(costs.pieces_max.max(1))
                .max(s.bytes.div_ceil(tuning.single_copy_batch_bytes.max(1)));
            let mb_s = tuning.single_copy_mb_s.min(costs.bandwidth_mb_s.max(1.0));
            s.latency_ns
                + tuning.rendezvous_ns
                + fetch_ns
                + real(operations) * costs.operation_ns
                + real(blocks) * costs.piece_ns
                + copy_ns(s.bytes, mb_s)
        }
        Protocol::Local => {
            let engine_ns = real(blocks) * tuning.block_ns;
            handshake_ns + copy_ns(s.bytes, tuning.mapped_mb_s) + engine_ns
        }
        staged => handshake_ns + tuning.map_ns + staged_ns(staged, s, tuning),
    }
}

/// Fragments pass a chain of stages, each of which works on another fragment at the same time: the
/// slowest sets the pace, the others are seen once.
fn staged_ns(protocol: Protocol, s: &Situation, tuning: &Tuning) -> f64 {
    let Some(staging) = s.staged else { return f64::MAX };
    let fragment = staged_fragment(s.bytes, staging.fragment_bytes, staging.depth);
    let fragments = s.bytes.div_ceil(u64::from(fragment)).max(1);
    let bytes = s.bytes.min(u64::from(fragment));
    let work = |mb_s: f64| tuning.launch_ns + copy_ns(bytes, mb_s);
    let one = |between: f64| if staging.one_device { tuning.device_mb_s } else { between };
    let (store, copy) = (one(tuning.peer_store_mb_s), one(tuning.peer_copy_mb_s));
    let local = work(tuning.device_mb_s);
    let host = |blocks: u64| {
        copy_ns(bytes, tuning.mapped_mb_s) + real(blocks) * tuning.block_ns / real(fragments)
    };
    let pack = if s.sender_blocks > 1 { local } else { 0.0 };
    let unpack = if staging.direct { 0.0 } else { local };
    let stages = match protocol {
        Protocol::StagedPut => [work(store), unpack, 0.0, 0.0],
        Protocol::StagedPutCopy => [pack, work(copy), unpack, 0.0],
        Protocol::StagedGet => [local, work(store), 0.0, 0.0],
        Protocol::StagedGetCopy => [local, work(copy), local, 0.0],
        Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
            let zero = protocol == Protocol::ZeroCopyInOut;
            let crossing = work(if zero { tuning.pinned_store_mb_s } else { tuning.pinned_mb_s });
            let side = |device: bool, gapless: bool, blocks| match device {
                true if zero || gapless => [crossing, 0.0],
                true => [crossing, local],
                false => [host(blocks), 0.0],
            };
            let [a, b] = side(staging.sender_device, s.sender_blocks <= 1, s.sender_blocks);
            let [c, d] = side(staging.receiver_device, s.receiver_blocks <= 1, s.receiver_blocks);
            [a, b, c, d]
        }
        _ => return f64::MAX,
    };
    let slowest = stages.into_iter().fold(0.0, f64::max);
    stages.into_iter().sum::<f64>() + s.latency_ns + real(fragments - 1) * slowest
}

/// The fragment size of a staged message: as wished, but so that a message which is shorter than the
/// whole ring still keeps both ends busy.
#[must_use]
pub fn staged_fragment(bytes: u64, wish: u32, depth: u32) -> u32 {
    /// Shorter fragments spend their time on launches.
    const LEAST: u64 = 256 << 10;
    /// Fragments start at multiples of this, so that kernels move whole vectors.
    const GRAIN: u64 = 4096;
    let wish = wish.max(1);
    let share = bytes.div_ceil(u64::from(depth.max(1))).clamp(LEAST, 1 << 32);
    u32::try_from(share.next_multiple_of(GRAIN)).unwrap_or(wish).min(wish)
}

fn exclude(protocol: Protocol, s: &Situation, tuning: &Tuning) -> Option<Excluded> {
    let layout = || (s.layout_fetch_bytes > s.layout_fetch_max).then_some(Excluded::LayoutTooLong);
    match protocol {
        Protocol::Eager => {
            (s.bytes > s.link_eager_bytes.min(tuning.eager_bytes_max)).then_some(Excluded::TooLong)
        }
        Protocol::Pipeline => None,
        Protocol::Mapped if !s.mapped => Some(Excluded::NotMappable),
        Protocol::Mapped => layout(),
        Protocol::SingleCopy if s.single_copy.is_none() => Some(Excluded::NoSingleCopy),
        Protocol::SingleCopy if !s.host => Some(Excluded::DeviceMemory),
        Protocol::SingleCopy => layout(),
        Protocol::Local => (!s.local).then_some(Excluded::OtherProcess),
        staged => {
            let possible = s.staged.is_some_and(|staging| match staged {
                Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
                    staging.sender_device || staging.receiver_device
                }
                _ => staging.sender_device && staging.receiver_device,
            });
            (!possible || s.local).then_some(Excluded::NoStaging)
        }
    }
}

/// The best of the protocols that are possible and that `allowed` lets pass; [`Protocol::Pipeline`]
/// is always possible and the last resort. `force` wins where it is possible.
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
        // Not possible after all; among the others, a forced rendezvous must stay one.
        Some(Protocol::Eager) | None => best.0,
        Some(_) if best.0 == Protocol::Eager => Protocol::Pipeline,
        Some(_) => best.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Situation {
        Situation {
            bytes: 8,
            sender_blocks: 1,
            receiver_blocks: 1,
            host: true,
            local: false,
            link_eager_bytes: 8192,
            latency_ns: 100.0,
            bandwidth_mb_s: 25_000.0,
            mapped: false,
            single_copy: Some(SingleCopyCosts {
                operation_ns: 1000.0,
                piece_ns: 350.0,
                bandwidth_mb_s: 15_000.0,
                pieces_max: 1024,
            }),
            layout_fetch_bytes: 0,
            layout_fetch_max: 1 << 20,
            staged: None,
        }
    }

    fn winner(situation: &Situation) -> Protocol {
        choose(situation, &Tuning::default(), None, |_| true)
    }

    #[test]
    fn small_is_eager_and_mappable_is_mapped() {
        assert_eq!(winner(&node()), Protocol::Eager);
        let large = Situation { bytes: 1 << 20, sender_blocks: 128, ..node() };
        assert_eq!(winner(&large), Protocol::Pipeline);
        assert_eq!(winner(&Situation { mapped: true, ..large }), Protocol::Mapped);
        assert_eq!(winner(&Situation { local: true, ..large }), Protocol::Local);
    }

    #[test]
    fn a_slow_ring_makes_single_copy_win_for_few_blocks_only() {
        let slow = Situation { bytes: 1 << 20, bandwidth_mb_s: 5_000.0, ..node() };
        assert_eq!(winner(&slow), Protocol::SingleCopy);
        assert_eq!(winner(&Situation { sender_blocks: 100_000, ..slow }), Protocol::Pipeline);
        assert_eq!(winner(&Situation { host: false, ..slow }), Protocol::Pipeline);
    }

    #[test]
    fn what_is_forced_wins_where_it_is_possible() {
        let tuning = Tuning::default();
        for force in [Protocol::Eager, Protocol::Pipeline, Protocol::SingleCopy] {
            assert_eq!(choose(&node(), &tuning, Some(force), |_| true), force);
        }
        // Mapping is impossible here: a rendezvous it stays.
        let chosen = choose(&node(), &tuning, Some(Protocol::Mapped), |_| true);
        assert_ne!(chosen, Protocol::Eager);
    }

    #[test]
    fn below_the_sure_size_nothing_beats_eager() {
        let tuning = Tuning::default();
        for bytes in 0..=tuning.eager_bytes_sure {
            for blocks in [1, 2, bytes / 8 + 1] {
                let s = Situation {
                    bytes,
                    sender_blocks: blocks,
                    receiver_blocks: blocks,
                    mapped: true,
                    ..node()
                };
                let eager = predict(Protocol::Eager, &s, &tuning);
                let pipeline = predict(Protocol::Pipeline, &s, &tuning);
                assert!(eager < pipeline, "{bytes} bytes in {blocks} blocks");
            }
        }
    }

    fn devices(bytes: u64, blocks: u64) -> Situation {
        let staged = Staging {
            sender_device: true,
            receiver_device: true,
            one_device: false,
            direct: false,
            fragment_bytes: 4 << 20,
            depth: 4,
        };
        Situation {
            bytes,
            sender_blocks: blocks,
            receiver_blocks: blocks,
            host: false,
            single_copy: None,
            staged: Some(staged),
            ..node()
        }
    }

    #[test]
    fn device_memory_is_staged_and_the_link_is_used() {
        let tuning = Tuning::default();
        for blocks in [1, 1 << 20] {
            let chosen = winner(&devices(256 << 20, blocks));
            assert!(chosen.is_staged() && chosen != Protocol::CopyInOut, "{chosen}");
        }
        let host = Situation {
            staged: devices(0, 1).staged.map(|s| Staging { sender_device: false, ..s }),
            ..devices(64 << 20, 100)
        };
        for way in Protocol::STAGED {
            let through_host = matches!(way, Protocol::CopyInOut | Protocol::ZeroCopyInOut);
            let found = candidates(&host, &tuning)[way.index()].excluded;
            assert_eq!(found.is_none(), through_host, "{way}");
            assert!(candidates(&node(), &tuning)[way.index()].excluded.is_some(), "{way}");
        }
    }

    #[test]
    fn fragments_are_as_wished_and_shorter_where_the_message_is() {
        assert_eq!(staged_fragment(1 << 30, 4 << 20, 4), 4 << 20);
        assert_eq!(staged_fragment(8 << 20, 4 << 20, 4), 2 << 20);
        assert_eq!(staged_fragment(100, 4 << 20, 4), 256 << 10);
        assert_eq!(staged_fragment(u64::MAX, 1000, 0), 1000);
        assert_eq!(staged_fragment(0, 0, 0), 1);
    }

    #[test]
    fn numbers_that_a_peer_makes_up_do_no_harm() {
        let most = u64::MAX;
        let s = Situation {
            bytes: most,
            sender_blocks: most,
            receiver_blocks: most,
            mapped: true,
            layout_fetch_bytes: most,
            layout_fetch_max: most,
            staged: devices(most, most).staged,
            ..node()
        };
        let times = candidates(&s, &Tuning::default()).map(|candidate| candidate.predicted_ns);
        assert!(times.iter().all(|ns| ns.is_finite()), "{times:?}");
    }

    #[test]
    fn a_layout_beyond_the_bound_is_not_fetched() {
        let s = Situation { bytes: 1 << 30, mapped: true, layout_fetch_bytes: 2 << 20, ..node() };
        assert_eq!(winner(&s), Protocol::Pipeline);
        let mapped = candidates(&s, &Tuning::default())[2];
        assert_eq!(mapped.excluded, Some(Excluded::LayoutTooLong));
    }
}
