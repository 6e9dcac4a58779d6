//! `reduce-gpu`: combining elements on one GPU, against the traffic floor: a `cudaMemcpy` that moves as many bytes as
//! the kernel has to, each source once and the result once.

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::ReduceOp;
use gapless_report::{BarGroup, PlotError, Report, Row, bars};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::session::Session;
use crate::gpu::timing::{Operation, race};
use crate::random::Random;

/// The experiment.
pub struct ReduceGpu;

/// What is combined: a name, the operation, its elements.
const KINDS: [(&str, ReduceOp, Primitive); 3] = [
    ("sum f32", ReduceOp::Sum, Primitive::Float),
    ("sum f16", ReduceOp::Sum, Primitive::Float16),
    ("max f64", ReduceOp::Max, Primitive::Double),
];
/// How it lies: a name, the bytes from a block to the next, the part of the floor that is wanted of long ranges.
const LAYOUTS: [(&str, u64, f64); 2] = [("contiguous", BLOCK, 0.90), ("V", 2 * BLOCK, 0.80)];
const SOURCES: [usize; 3] = [2, 4, 8];
/// Bytes of a block: a column of V, out of a matrix twice as high.
const BLOCK: u64 = 4096;
/// From here on ranges are long.
const LONG: u64 = 64 << 20;
/// Bytes at either end of each buffer that are compared with what the host makes of them.
const COMPARED: u64 = 1 << 20;
/// Buffers begin at multiples of this.
const PAGE: u64 = 4096;

impl Experiment for ReduceGpu {
    type Options = NoOptions;

    const NAME: &'static str = "reduce-gpu";
    const ABOUT: &'static str = "combining elements on one GPU, against the traffic floor";

    fn run(_: &NoOptions, common: &Common) -> Result<Findings, Failure> {
        let lab = Lab::open(common.quick)?;
        let mut session = Session::new(&lab, common)?;
        let sizes: &[u64] = if common.quick { &[1] } else { &[1, 4, 16, 64, 256] };
        let progress = common.progress(sizes.len() * KINDS.len());
        for mib in sizes {
            for kind in KINDS {
                for (layout, sources) in LAYOUTS.iter().flat_map(|l| SOURCES.map(|s| (l, s))) {
                    let case = Case { kind, layout: *layout, sources, bytes: mib << 20 };
                    let name = case.name();
                    session.attempt(&name, "reduce", |session| Ok(vec![case.measure(session)?]));
                }
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = notes(&session.rows);
        Ok(session.findings(notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let groups: Vec<BarGroup> = report
            .rows
            .iter()
            .map(|row| BarGroup {
                label: row.case.clone(),
                gbps: vec![row.gbps, row.ratio_to("floor").map_or(0.0, |ratio| row.gbps / ratio)],
            })
            .collect();
        let title = format!("reductions ({})", crate::experiment::gpu(report));
        Ok(Drawing::pages("", bars(&title, &["reduce", "floor"], &groups)?))
    }
}

/// There are none.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct NoOptions {}

/// One row.
#[derive(Clone, Copy)]
struct Case {
    kind: (&'static str, ReduceOp, Primitive),
    layout: (&'static str, u64, f64),
    sources: usize,
    bytes: u64,
}

impl Case {
    fn name(&self) -> String {
        let (Case { kind, layout, sources, bytes }, mib) = (self, self.bytes >> 20);
        debug_assert_eq!(*bytes, mib << 20);
        format!("{} {} of {sources}, {mib} MiB", kind.0, layout.0)
    }

    /// The layout of a block.
    fn block(&self) -> Result<Layout, Failure> {
        let (element, stride) = (Datatype::from(self.kind.2), self.layout.1);
        let block = Datatype::contiguous(BLOCK / self.kind.2.size_bytes(), &element)?;
        Ok(Datatype::resized(0, stride.cast_signed(), &block)?.commit()?)
    }

    fn measure(&self, session: &Session<'_>) -> Result<Row, Failure> {
        let (lab, op) = (session.lab, self.kind.1);
        let (block, blocks) = (self.block()?, self.bytes / BLOCK);
        let span = (blocks * self.layout.1).next_multiple_of(PAGE);
        let arena = lab.arenas().typed;
        let set_bytes = span * (self.sources as u64 + 1);
        let sets = (4 * lab.cache_bytes() / set_bytes + 1).min(arena.len() / set_bytes).max(1);
        // The target, then the sources.
        let set = |set: u64| -> Result<Vec<(Spot, Laid)>, Failure> {
            let buffer = |side: u64| {
                let spot = arena.sub(set * set_bytes + side * span, span)?;
                Ok((spot, lab.lay_blocks(&spot, &block, blocks)?))
            };
            (0..=self.sources as u64).map(buffer).collect()
        };
        let all: Vec<Vec<(Spot, Laid)>> = (0..sets).map(set).collect::<Result<_, _>>()?;
        let queue = lab.on(lab.engine())?;
        self.compare(session, &block, &all[0])?;
        let sides: Vec<Vec<Laid>> =
            all.iter().map(|set| set.iter().map(|(_, laid)| laid.clone()).collect()).collect();
        let mut copies = session.copies(self.bytes)?;
        let mut turn = 0;
        let mut operations: Vec<Operation<'_>> = vec![
            Box::new(|| {
                turn = (turn + 1) % sides.len();
                let [target, sources @ ..] = &sides[turn][..] else { return Ok(()) };
                queue.reduce(op, sources, target)
            }),
            Box::new(|| copies.copy(lab)),
        ];
        let times = race(lab, session.seconds(), true, &mut operations)?;
        drop(operations);
        let traffic = self.bytes * (self.sources as u64 + 1);
        let floor = self.bytes as f64 / session.rate().seconds(traffic) / 1e9;
        let space = arena.space().to_string();
        Ok(Row::new(self.name(), "reduce", space, "kernel", self.bytes, times[0])
            .against("memcpy", times[1])
            .against_gbps("floor", floor)
            .blocks(if self.layout.1 == BLOCK { 1 } else { blocks })
            .verified(true)
            .with("verified_by", "host engine, 1 MiB at either end")
            .with("sources", self.sources)
            .with("traffic_bytes", traffic)
            .with("rotation_bytes", sets * set_bytes))
    }

    /// Reduces once, and compares both ends with what the host makes of them.
    fn compare(
        &self,
        session: &Session<'_>,
        block: &Layout,
        set: &[(Spot, Laid)],
    ) -> Result<(), Failure> {
        let lab = session.lab;
        let some = COMPARED.min(self.bytes) / BLOCK;
        let len = some * self.layout.1;
        let last = (self.bytes / BLOCK - some) * self.layout.1;
        let mut random = Random::new(session.common.seed);
        let size = usize::try_from(self.kind.2.size_bytes()).unwrap_or(usize::MAX);
        let mut given: Vec<Vec<Vec<u8>>> = Vec::new();
        for (spot, _) in set {
            let mut ends = Vec::new();
            for at in [0, last] {
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
                random.fill(&mut bytes);
                // Finite numbers, of both signs.
                for number in bytes.chunks_exact_mut(size) {
                    number[size - 1] = number[size - 1] & 0x80 | 0x3c;
                }
                lab.upload(&spot.sub(at, len)?, &bytes)?;
                ends.push(bytes);
            }
            given.push(ends);
        }
        let laid: Vec<Laid> = set.iter().map(|(_, laid)| laid.clone()).collect();
        let [target, sources @ ..] = &laid[..] else { return Ok(()) };
        lab.on(lab.engine())?.reduce(self.kind.1, sources, target)?;
        lab.settle()?;
        let near = lab.pinned_memory(len)?;
        for (end, at) in [0, last].into_iter().enumerate() {
            // Where the ends overlap, only what was uploaded last is known.
            if end == 0 && last < len {
                continue;
            }
            lab.copy(lab.stream(), &near, &set[0].0.sub(at, len)?)?;
            lab.settle()?;
            let mut got = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            lab.read(&near, &mut got)?;
            let sides: Vec<Vec<u8>> = given.iter().map(|ends| ends[end].clone()).collect();
            let want = lab.combined(self.kind.1, block, some, sides)?;
            if let Err(wrong) = crate::check::same(&got, &want) {
                return Err(Failure::Wrong { case: self.name(), op: "reduce", wrong });
            }
        }
        Ok(())
    }
}

/// How many long ranges reach what is wanted of them, and which do not.
fn notes(rows: &[Row]) -> String {
    let mut notes = String::from("floor: a cudaMemcpy that moves each source once and the result once\n");
    for (layout, _, wanted) in LAYOUTS {
        let long = rows.iter().filter(|row| row.payload_bytes >= LONG && row.case.contains(layout));
        let ratio = |row: &Row| row.ratio_to("floor").unwrap_or(0.0);
        let (all, met) = (long.clone().count(), long.clone().filter(|row| ratio(row) >= wanted).count());
        notes += &format!("{layout} from {} MiB: {met} of {all} reach {wanted:.2} of the floor\n", LONG >> 20);
        for row in long.filter(|row| ratio(row) < wanted) {
            notes += &format!("  missed: {}: {:.2}\n", row.case, ratio(row));
        }
    }
    notes
}
