//! `position`: finding a random packed byte of a layout, by number of blocks.
//!
//! A convertor's whole state is a packed position, and every call finds its place from there. If that
//! cost grew with the number of blocks, fragments could not be handled in any order. `position` asks
//! for the runs of 64 bytes from a random byte on, which touches no data; `position+pack` packs them,
//! and so also pays for the cache misses of memory that is larger and larger.

use gapless_cli::pingpong::Pinned;
use gapless_dtype::{Convertor, Datatype, Layout, Primitive, Run};
use gapless_report::{PlotError, Report, Row, Summary, curves};

use crate::check::{Wrong, same};
use crate::clock::race;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, by_kind};
use crate::random::Random;
use crate::table::by_count;

/// The experiment.
pub struct Position;

/// Options of the experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The largest layout, in blocks; the sizes are powers of ten up to it
    #[arg(long, value_name = "BLOCKS", default_value_t = 10_000_000,
        value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    blocks: u64,
}

/// Bytes packed at each position.
const PIECE: usize = 64;
/// Positions that are visited in turn.
const POSITIONS: usize = 4096;
const DOUBLE: usize = 8;
/// What the smallest layout is called as a reference.
const SMALLEST: &str = "10 blocks";

impl Experiment for Position {
    type Options = Options;

    const NAME: &'static str = "position";
    const ABOUT: &'static str = "seek to random bytes and pack 64, by number of blocks";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let most = if common.quick { 1000 } else { options.blocks };
        let pinned = Pinned::to(0);
        let sizes: Vec<u64> =
            std::iter::successors(Some(10), |n: &u64| n.checked_mul(10).filter(|n| *n <= most))
                .collect();
        let progress = common.progress(2 * sizes.len());
        let mut rows = Vec::new();
        for kind in [PositionKind::Strided, PositionKind::List] {
            let mut smallest = None;
            for &blocks in &sizes {
                progress.set_message(format!("{} blocks={blocks}", kind.name()));
                let subject = Subject::new(kind, blocks, common.seed)?;
                let times = subject.measure(common)?;
                let reference = *smallest.get_or_insert(times);
                rows.extend(subject.rows(times, reference));
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = format!(
            "strided: blocks of 8 B, 16 B apart; list: blocks of 8 to 24 B at irregular distances; {POSITIONS} \
             positions, at random;\nposition: find the runs of {PIECE} B there; position+pack: pack \
             them out of memory that is not in cache where it is\nlarge; ÷ {SMALLEST}: speed relative \
             to the smallest layout; {}.\n",
            match pinned.processor() {
                Some(processor) => format!("on processor {processor}"),
                None => "not pinned".to_owned(),
            }
        );
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let lines = by_kind(report, |row| row.blocks.unwrap_or(1));
        let title = format!("positioning at random ({})", report.machine.cpu);
        Drawing::alone(curves(&title, "blocks", &lines))
    }

    fn summary(report: &Report) -> String {
        by_count(report, "blocks")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PositionKind {
    Strided,
    List,
}

impl PositionKind {
    fn name(self) -> &'static str {
        match self {
            PositionKind::Strided => "strided",
            PositionKind::List => "list",
        }
    }
}

/// A layout with memory it lies in, and what is known about both.
struct Subject {
    kind: PositionKind,
    layout: Layout,
    blocks: u64,
    memory: Vec<u8>,
    positions: Vec<u64>,
    /// First packed byte of each block, and one past the last; the block's place in memory.
    starts: Vec<u64>,
    places: Vec<u64>,
}

impl Subject {
    fn new(kind: PositionKind, blocks: u64, seed: u64) -> Result<Subject, Failure> {
        let mut random = Random::new(seed ^ blocks);
        let (mut packed, mut next) = (0, 0);
        let (mut starts, mut places, mut lengths) = (vec![0], Vec::new(), Vec::new());
        for _ in 0..blocks {
            // In doubles.
            let (length, gap) = match kind {
                PositionKind::Strided => (1, 1),
                PositionKind::List => (1 + random.below(3), 1 + random.below(3)),
            };
            lengths.push(length);
            places.push(next * DOUBLE as u64);
            next += length + gap;
            packed += length * DOUBLE as u64;
            starts.push(packed);
        }
        let double = Datatype::from(Primitive::Double);
        let datatype = match kind {
            PositionKind::Strided => Datatype::vector(blocks, 1, 2, &double)?,
            PositionKind::List => {
                let displacements: Vec<i64> =
                    places.iter().map(|place| (place / DOUBLE as u64).cast_signed()).collect();
                Datatype::indexed(&lengths, &displacements, &double)?
            }
        };
        let room = packed - PIECE as u64 + 1;
        let mut memory = vec![0; usize::try_from(next).unwrap_or(usize::MAX) * DOUBLE];
        random.fill(&mut memory);
        let positions = (0..POSITIONS).map(|_| random.below(room)).collect();
        let layout = datatype.commit()?;
        Ok(Subject { kind, layout, blocks, memory, positions, starts, places })
    }

    fn case(&self) -> String {
        format!("{} blocks={}", self.kind.name(), self.blocks)
    }

    /// Times of finding a place, and of packing from it.
    fn measure(&self, common: &Common) -> Result<[Summary; 2], Failure> {
        let mut cursor = Convertor::new(&self.layout, 1)?;
        self.verify(&mut cursor)?;
        let mut packing = cursor.clone();
        let mut runs = [Run::default(); PIECE];
        let mut packed = [0; PIECE];
        let (mut here, mut there) = (self.positions.iter().cycle(), self.positions.iter().cycle());
        let mut find = || {
            let position = *here.next().expect("a cycle has no end");
            cursor.seek(position).expect("drawn below the packed size");
            std::hint::black_box(cursor.iov(&mut runs, PIECE as u64));
        };
        let mut pack = || {
            let position = *there.next().expect("a cycle has no end");
            packing.seek(position).expect("drawn below the packed size");
            let taken = packing.pack(&self.memory, 0, &mut packed);
            std::hint::black_box(taken.expect("it has worked when it was verified"));
        };
        race(common.seconds(), [&mut find, &mut pack]).map_err(Failure::samples(self.case()))
    }

    /// Compares what lies at each position with the blocks' own list.
    fn verify(&self, cursor: &mut Convertor) -> Result<(), Failure> {
        let wrong = |op, wrong: Wrong| Failure::Wrong { case: self.case(), op, wrong };
        let mut runs = [Run::default(); PIECE];
        for &position in &self.positions {
            let expected: Vec<u8> =
                (position..position + PIECE as u64).map(|byte| self.byte(byte)).collect();
            let mut packed = [0; PIECE];
            cursor.seek(position)?;
            cursor.pack(&self.memory, 0, &mut packed)?;
            same(&packed, &expected).map_err(|w| wrong("position+pack", w))?;
            cursor.seek(position)?;
            let (used, _) = cursor.iov(&mut runs, PIECE as u64);
            let listed: Vec<u8> = runs[..used]
                .iter()
                .flat_map(|run| {
                    let start = usize::try_from(run.displacement).unwrap_or(usize::MAX);
                    &self.memory[start..start + usize::try_from(run.len).unwrap_or(0)]
                })
                .copied()
                .collect();
            same(&listed, &expected).map_err(|w| wrong("position", w))?;
        }
        Ok(())
    }

    /// One packed byte, by bisection in the list of blocks.
    fn byte(&self, position: u64) -> u8 {
        let block = self.starts.partition_point(|start| *start <= position) - 1;
        let at = self.places[block] + position - self.starts[block];
        self.memory[usize::try_from(at).unwrap_or(usize::MAX)]
    }

    fn rows(&self, times: [Summary; 2], smallest: [Summary; 2]) -> [Row; 2] {
        let row = |op: &str, time: Summary, smallest: Summary| {
            Row::new(self.case(), op, "host", "none", PIECE as u64, time)
                .against(SMALLEST, smallest)
                .blocks(self.blocks)
                .verified(true)
        };
        [row("position", times[0], smallest[0]), row("position+pack", times[1], smallest[1])]
    }
}
