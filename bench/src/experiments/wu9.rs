//! `wu9`: Figure 9 of Wu et al. 2016: bandwidth of the bus (PCI Express) when V and T travel between a GPU and
//! the other process's host memory, by the matrix's edge, beside contiguous data (C) and page-locked copies.

use gapless_report::{Axis, PlotError, Point, Report, Row, Series, lines, lines_by};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::p2p::item::{Item, Shape, Sites, Size};
use crate::p2p::job::{self, Options, Pair};

/// The experiment.
pub struct Wu9;

/// Matrix edges of Figures 9 to 12.
pub(super) const EDGES: [u64; 4] = [512, 1024, 2048, 4096];

impl Experiment for Wu9 {
    type Options = Options;

    const NAME: &'static str = "wu9";
    const ABOUT: &'static str = "bus bandwidth of V, T and contiguous data (C), by matrix size";

    fn run(options: &Options, common: &Common) -> Result<Findings, Failure> {
        let notes = "rank 0's messages lie on the GPU, rank 1's in host memory; pinned copy: the slower \
                     direction between the GPU and\npage-locked memory. Wu et al. on a K40: 90 % of the \
                     bus for V, 78 % for T\n";
        job::run(Self::NAME, options, common, plan, notes)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        by_edge("between a GPU and host memory", report)
    }
}

fn plan(_: &Options, sites: &Sites) -> Vec<Pair> {
    let sized = |edge| {
        [Shape::Contiguous, Shape::V, Shape::T]
            .map(|shape| Item::new(shape, Size::Edge(edge), sites.bus()))
    };
    vec![Pair::new("bus", EDGES.into_iter().flat_map(sized).collect())]
}

/// The matrix's edge of a row; that of a contiguous one is V's of the same payload.
fn edge(row: &Row) -> Option<u64> {
    match row.case.split_once("n=") {
        Some((_, n)) => n.split(' ').next()?.parse().ok(),
        None => Some((row.payload_bytes / 8).isqrt()),
    }
}

fn point(row: &Row, at: u64) -> Point {
    let rate = |seconds: f64| row.payload_bytes as f64 / seconds / 1e9;
    let spread = row.seconds.q1.zip(row.seconds.q3).map(|(q1, q3)| (rate(q3), rate(q1)));
    Point { payload_bytes: at, gbps: row.gbps, spread }
}

/// A line for each layout, place and protocol that was asked for.
fn name(row: &Row) -> String {
    let layout = row.case.split(' ').next().unwrap_or_default();
    let asked = row.op.strip_prefix("oneway, ").map_or(String::new(), |asked| format!(", {asked}"));
    format!("{layout} {}{asked}", row.space)
}

fn series(report: &Report, at: impl Fn(&Row) -> Option<u64>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in &report.rows {
        let Some(at) = at(row).filter(|at| *at > 0) else { continue };
        let (name, point) = (name(row), point(row, at));
        match all.iter_mut().find(|one| one.name == name) {
            Some(one) => one.points.push(point),
            None => all.push(Series { name, points: vec![point] }),
        }
    }
    all
}

/// Lines that a picture has room for.
const LINES_MAX: usize = 12;

/// One picture by the matrix's edge.
pub(super) fn by_edge(title: &str, report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let title = format!("{title} ({})", super::wu6::gpu(report));
    let svg = lines_by(&title, Axis::Number("matrix edge"), &series(report, edge))?;
    Ok(vec![Drawing { suffix: String::new(), svg }])
}

/// Pictures by payload: one of each layout, if all do not fit one.
pub(super) fn by_payload(title: &str, report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let title = format!("{title} ({})", super::wu6::gpu(report));
    let all = series(report, |row| Some(row.payload_bytes));
    if all.len() <= LINES_MAX {
        return Ok(vec![Drawing { suffix: String::new(), svg: lines(&title, &all)? }]);
    }
    let layout = |one: &Series| one.name.split(' ').next().unwrap_or_default().to_owned();
    let mut layouts: Vec<String> = all.iter().map(layout).collect();
    layouts.sort_unstable();
    layouts.dedup();
    let mut drawings = Vec::new();
    for one in layouts {
        // Single points are in the table.
        let own = all.iter().filter(|series| layout(series) == one && series.points.len() > 1);
        let own: Vec<Series> = own.take(LINES_MAX).cloned().collect();
        if !own.is_empty() {
            let svg = lines(&format!("{one}, {title}"), &own)?;
            drawings.push(Drawing { suffix: format!("-{}", one.to_ascii_lowercase()), svg });
        }
    }
    if drawings.is_empty() { Err(PlotError::Empty) } else { Ok(drawings) }
}
