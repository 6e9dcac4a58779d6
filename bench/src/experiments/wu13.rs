//! `wu13`: Figure 13 of Wu et al. 2016: what packing and unpacking a sub-matrix (V) reaches of the GPU's
//! memory and of the bus, by the number of thread blocks that a launch may have. `wu14` is the same of a
//! triangle.

use std::num::NonZeroU32;

use gapless_kernels::Direction;
use gapless_report::{Axis, PlotError, Point, Report, Row, lines_by};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, NoOptions, gathered, gpu};
use crate::gpu::lab::{Lab, Spot};
use crate::gpu::session::{BOTH, Session, launches, op};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::{Operation, race};

const EDGES: [u64; 3] = [1024, 2048, 4096];
/// Thread blocks; the last stands for as many as there are tiles.
const BLOCKS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 0];
/// Beyond these the bus has long been full.
const BUS_BLOCKS: [u32; 5] = [1, 2, 4, 8, 16];

/// Declares the experiment of a layout.
macro_rules! of {
    ($experiment:ident $name:literal $about:literal $layout:literal $make:path) => {
        #[doc = $about]
        pub struct $experiment;

        impl Experiment for $experiment {
            type Options = NoOptions;

            const NAME: &'static str = $name;
            const ABOUT: &'static str = $about;

            fn run(_: &NoOptions, common: &Common) -> Result<Findings, Failure> {
                measure(common, $layout, $make)
            }

            fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
                drawings(report)
            }

            fn summary(report: &Report) -> String {
                crate::table::brief(report)
            }
        }
    };
}

of!(Wu13 "wu13" "V: GPU memory and bus bandwidth by number of thread blocks" "V" subject::v);
of!(Wu14 "wu14" "T: GPU memory and bus bandwidth by number of thread blocks" "T" subject::t);

/// The experiment, for one layout.
fn measure(
    common: &Common,
    name: &str,
    make: fn(u64) -> Result<Subject, Failure>,
) -> Result<Findings, Failure> {
    let lab = Lab::open(common.quick)?;
    let mut session = Session::new(&lab, common)?;
    let edges = if common.quick { &[64, 128][..] } else { &EDGES[..] };
    let host = lab.pinned_memory(8 * edges[edges.len() - 1].pow(2) + 4096)?;
    let progress = common.progress(edges.len());
    for &n in edges {
        progress.set_message(format!("{name} n={n}"));
        for direction in BOTH {
            let case = format!("{name} n={n}");
            session.attempt(&case, op(direction), |session| {
                by_blocks(session, &make(n)?, direction, None, &BLOCKS)
            });
            session.attempt(&case, op(direction), |session| {
                by_blocks(session, &make(n)?, direction, Some(&host), &BUS_BLOCKS)
            });
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    let notes = "0 thread blocks: as many as the kernel likes. To and from host memory kernels go \
                 directly (zero-copy). Wu et al. on a K40:\n16 blocks for the GPU's memory, 2 for the \
                 bus\n";
    Ok(session.findings(notes.to_owned()))
}

fn by_blocks(
    session: &mut Session<'_>,
    subject: &Subject,
    direction: Direction,
    host: Option<&Spot>,
    blocks: &[u32],
) -> Result<Vec<Row>, Failure> {
    let lab = session.lab;
    let host = host.map(|host| host.sub(0, subject.payload)).transpose()?;
    session.prepare(lab.engine(), subject)?;
    let mut rows = Vec::new();
    for &blocks in blocks {
        let engine = lab.engine().with_budget(NonZeroU32::new(blocks));
        let queue = lab.on(&engine)?;
        session.prove(subject, direction, host, |laid, spot| queue.go(direction, laid, spot))?;
        let (mut places, mut copies) = (session.places(subject)?, session.copies(subject.payload)?);
        let (laid, packed) = places.first();
        let launched = launches(&engine, direction, laid, host.as_ref().unwrap_or(packed))?;
        let mut operations: Vec<Operation<'_>> = vec![
            Box::new(|| {
                let (laid, packed) = places.turn();
                queue.go(direction, laid, host.as_ref().unwrap_or(packed))
            }),
            Box::new(|| match &host {
                None => copies.copy(lab),
                Some(host) => copies.copy_by(lab, direction, host),
            }),
        ];
        let times = race(lab, session.seconds() / 2.0, true, &mut operations)?;
        drop(operations);
        let mut row = session
            .row(subject, direction, times[0], &launched)
            .against(if host.is_some() { "pinned copy" } else { "memcpy" }, times[1])
            .with("budget", blocks);
        if host.is_some() {
            row.space = "bus".to_owned();
        }
        row.op = format!("{} {blocks}", op(direction));
        rows.push(row);
    }
    Ok(rows)
}

/// One picture of the GPU's memory and one of the bus.
fn drawings(report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let most = report.rows.iter().filter_map(budget).max().unwrap_or(1);
    let picture = |(bus, suffix, what): (bool, &str, &str)| {
        let placed = report.rows.iter().filter(|row| (row.space == "bus") == bus).filter_map(|row| {
            let blocks = budget(row)?;
            // Without a budget there are more than with any.
            let at = if blocks == 0 { 2 * most } else { blocks };
            let direction = row.op.split(' ').next().unwrap_or_default();
            let point = Point { payload_bytes: at, gbps: row.gbps, spread: None };
            Some((format!("{}, {direction}", row.case), point))
        });
        let title = format!("{what}, by thread blocks ({})", gpu(report));
        (suffix.to_owned(), title, gathered(placed))
    };
    let axis = Axis::Number("thread blocks (the last: no bound)");
    let pictures = [(false, "", "GPU memory"), (true, "-bus", "the bus")].map(picture);
    Drawing::some(pictures, |title, series| lines_by(title, axis, series))
}

fn budget(row: &Row) -> Option<u64> {
    row.extra.get("budget").and_then(|it| it.as_u64())
}
