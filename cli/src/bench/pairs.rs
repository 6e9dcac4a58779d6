//! The tests of messages between pairs of ranks, size by size.

use super::messages::Series;
use super::pair::{PairEnd, Pattern, Prepared};
use super::show::{BenchOutput, Column, Figure};
use super::timing::Timing;
use super::{Windowed, rank};
use crate::Worlds;
use crate::failure::Failure;
use crate::job;
use crate::memory::{Budget, Devices, Ends, Where};
use gapless::World;
use gapless_layouts::Case;
use gapless_report::Bytes;
use std::process::ExitCode;

/// Which test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairTest {
    Latency,
    PairLatency,
    Overlap,
    Bandwidth,
    BothWays,
    Rate,
    PairRate,
}

impl PairTest {
    fn name(self) -> &'static str {
        match self {
            PairTest::Latency => "latency",
            PairTest::PairLatency => "pair-latency",
            PairTest::Overlap => "overlap",
            PairTest::Bandwidth => "bw",
            PairTest::BothWays => "bibw",
            PairTest::Rate => "rate",
            PairTest::PairRate => "pair-rate",
        }
    }

    fn pattern(self) -> Pattern {
        match self {
            PairTest::Latency | PairTest::PairLatency => Pattern::PingPong,
            PairTest::BothWays | PairTest::Overlap => Pattern::BothWays,
            _ => Pattern::OneWay,
        }
    }

    fn has_window(self) -> bool {
        !matches!(self, PairTest::Latency | PairTest::PairLatency | PairTest::Overlap)
    }

    /// Messages of one iteration, in the time that is shown: of all pairs together.
    fn messages(self, window: u64, pairs: u64) -> u64 {
        match self {
            // Of each pair.
            PairTest::Latency | PairTest::PairLatency | PairTest::BothWays => 2 * window,
            PairTest::Overlap => 1,
            _ => window * pairs,
        }
    }

    /// What is shown first; and what else in full.
    fn columns(self) -> (Column, Option<Column>) {
        match self {
            PairTest::Latency | PairTest::PairLatency => (Column::MICROSECONDS, None),
            PairTest::Overlap => (Column::MICROSECONDS, Some(Column::OVERLAP)),
            PairTest::Bandwidth | PairTest::BothWays => (Column::BANDWIDTH, None),
            PairTest::Rate | PairTest::PairRate => (Column::RATE, Some(Column::BANDWIDTH)),
        }
    }
}

/// This rank's part.
pub(super) fn run(
    options: &Windowed,
    (kind, pairs): (PairTest, Option<u32>),
    series: &[Series],
    worlds: Worlds<'_>,
) -> Result<ExitCode, Failure> {
    let ends = options.message.space;
    let (world, mut devices) =
        job::join(worlds, |rank, size| vec![place_of(ends, rank, size)], Budget::default())?;
    let size = world.size();
    let fits = |pairs: u32| size == 2 * pairs;
    if size % 2 != 0 || size == 0 || !pairs.is_none_or(fits) {
        let why = match pairs {
            Some(1) => Failure::NotTwo { ranks: size },
            _ => Failure::NotPairs { ranks: size, pairs },
        };
        return job::refuse(world, why);
    }
    rank::run(world, ends, |world| measure(options, kind, series, world, &mut devices))
}

/// Where a rank's messages lie: the first half's in the first place.
pub(super) fn place_of(ends: Ends, rank: u32, size: u32) -> Where {
    ends.of(u32::from(rank >= size.div_ceil(2)))
}

fn measure(
    options: &Windowed,
    kind: PairTest,
    series: &[Series],
    world: &World,
    devices: &mut Devices,
) -> Result<(), Failure> {
    let (message, ranks) = (&options.message, world.size());
    let bytes_max = options.buffers;
    let prepare = |case: &Case| Prepared::new(case, options.window, bytes_max);
    let len = |case: &Case| Ok(prepare(case)?.1);
    let arena = rank::arena(world, devices, message.space, series, len)?;
    rank::force(world, message.protocol)?;
    let place = (place_of(message.space, world.rank(), ranks), message.memory.source());
    let mut output =
        BenchOutput::new(&message.common, world.rank() == 0, kind.name(), kind.columns())
            .asks_for(message.protocol);
    let memory = rank::memory(message.space, message.memory.source());
    let mut about = format!("{ranks} ranks, memory {memory}");
    if kind.has_window() {
        about += &format!(", window {} (in {} at most)", options.window, Bytes(bytes_max));
    }
    output.begin(&about)?;
    // Filling much memory takes a while.
    let mut end = PairEnd::new(world, devices, kind.pattern(), place, (arena, message.seed))?;
    let plan = message.common.plan();
    for one in series {
        output.series(one.layout.as_deref())?;
        for case in &one.cases {
            let (prepared, _) = prepare(case)?;
            let (protocol, wrong) = end.verify(&prepared)?;
            if let Some((at, wrong)) = wrong {
                return rank::wrong(world, format!("{}, at rank {at}: {wrong}", case.name));
            }
            let timing = end.time(&prepared, &plan)?;
            let hidden = match kind {
                PairTest::Overlap => Some(end.hidden(&prepared, &plan, &timing)?),
                _ => None,
            };
            let window = prepared.window();
            let figure = figure(case, kind.messages(window, u64::from(ranks / 2)), &timing);
            output.figure(&Figure {
                // Of several pairs, the slowest one's time counts.
                shows_average: matches!(kind, PairTest::PairLatency | PairTest::PairRate),
                overlap: hidden,
                space: message.space.to_string(),
                protocol: protocol.name().to_owned(),
                blocks: prepared.blocks(),
                extra: vec![
                    ("window", window),
                    ("ranks", u64::from(ranks)),
                    ("iterations", timing.iterations),
                ],
                ..figure
            })?;
        }
    }
    output.finish()
}

/// What a size took, for each message.
#[expect(clippy::cast_precision_loss, reason = "at most 2^26 messages")]
fn figure(case: &Case, messages: u64, timing: &Timing) -> Figure {
    let messages = messages as f64;
    Figure {
        case: case.name.clone(),
        payload_bytes: case.payload_bytes,
        average: timing.average() / messages,
        samples: timing.samples.iter().map(|seconds| seconds / messages).collect(),
        ..Figure::default()
    }
}
