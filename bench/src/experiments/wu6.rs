//! `wu6`: Figure 6 of Wu et al. 2016: what packing a sub-matrix (V), a triangle (T) and a stair triangle
//! reaches of the GPU's memory, beside contiguous bytes (C, `cudaMemcpy`), over the matrix's size.

use gapless_report::{PlotError, Point, Report, Row, Series, lines};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, NoOptions, gpu};
use crate::gpu::aims::AimKind;
use crate::gpu::lab::Lab;
use crate::gpu::quoted::{OPENMPI, QUOTED, SOURCE, YAKSA};
use crate::gpu::session::{Session, SessionWork};
use crate::gpu::subject::{self, Subject};

/// The experiment.
pub struct Wu6;

/// Multiples of the stair's step.
const EDGES: [u64; 9] = [512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384];
const QUICK_EDGES: [u64; 2] = [256, 512];

type Make = fn(u64) -> Result<Subject, Failure>;

impl Experiment for Wu6 {
    type Options = NoOptions;

    const NAME: &'static str = "wu6";
    const ABOUT: &'static str = "GPU memory bandwidth of packing V, T and the stair triangle, against C";

    fn run(_: &NoOptions, common: &Common) -> Result<Findings, Failure> {
        let lab = Lab::open(common.quick)?;
        let mut session = Session::new(&lab, common)?;
        let edges = if common.quick { &QUICK_EDGES[..] } else { &EDGES[..] };
        let layouts: [(&str, Make); 3] =
            [("V", subject::v), ("T", subject::t), ("stair", subject::stair)];
        let progress = common.progress(layouts.len() * edges.len());
        for (name, make) in layouts {
            for &n in edges {
                progress.set_message(format!("{name} n={n}"));
                session.attempt(&format!("{name} n={n}"), "pack", |session| {
                    let subject = make(n)?;
                    session.measure(&SessionWork::new(&subject, AimKind::General).quoted(name, n))
                });
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = format!(
            "Wu et al. on a K40: V 0.94 and T 0.80 of cudaMemcpy; the stair as V. Points of peers are \
             {SOURCE}.\n"
        );
        Ok(session.findings(notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let packs = || report.rows.iter().filter(|row| row.op == "pack");
        let point = |row: &Row| Point {
            payload_bytes: row.payload_bytes,
            gbps: row.gbps,
            spread: None,
        };
        let mut series: Vec<Series> = ["V", "T", "stair"]
            .into_iter()
            .map(|name| Series {
                name: name.to_owned(),
                points: packs().filter(|row| is(row, name)).map(point).collect(),
            })
            .collect();
        let copied = |row: &Row| {
            let gbps = row.gbps / row.ratio_to("memcpy")?;
            Some(Point { payload_bytes: row.payload_bytes, gbps, spread: None })
        };
        let c = packs().filter(|row| is(row, "V")).filter_map(copied).collect();
        series.push(Series { name: "C (cudaMemcpy)".to_owned(), points: c });
        for (peer, layout) in [(YAKSA, "V"), (YAKSA, "T"), (OPENMPI, "V"), (OPENMPI, "T")] {
            let readings = QUOTED.iter().filter(|it| {
                it.peer == peer && it.layout == layout && it.op == "pack"
            });
            let payload = |n| if layout == "V" { 8 * n * n } else { 4 * n * (n + 1) };
            let points = readings
                .map(|it| Point { payload_bytes: payload(it.n), gbps: it.gbps, spread: None })
                .collect();
            series.push(Series { name: format!("{layout}, {peer} (quoted)"), points });
        }
        series.retain(|one| !one.points.is_empty());
        let title = format!("packing by size ({})", gpu(report));
        Drawing::alone(lines(&title, &series))
    }

    fn summary(report: &Report) -> String {
        crate::gpu::rows_table(&report.rows)
    }
}

fn is(row: &Row, layout: &str) -> bool {
    row.case.split(' ').next() == Some(layout)
}
