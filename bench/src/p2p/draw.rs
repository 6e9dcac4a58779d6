//! Pictures and tables of messages between two processes.

use gapless_report::{Axis, PlotError, Report, Row, Series, lines, lines_by};

use super::marks;
use crate::experiment::{Drawing, gathered, gpu, rate_at};
use crate::table::{self, CASE, Column, OP, PAYLOAD, PROTOCOL, QUOTED, RATE, SPREAD, TIME, called};

/// The matrix's edge of a row; that of a contiguous one is V's of the same payload.
fn edge(row: &Row) -> Option<u64> {
    match row.case.split_once("n=") {
        Some((_, n)) => n.split(' ').next()?.parse().ok(),
        None => Some((row.payload_bytes / 8).isqrt()),
    }
}

/// A line for each layout, place and protocol that was asked for.
fn name(row: &Row) -> String {
    let layout = row.case.split(' ').next().unwrap_or_default();
    let asked = row.op.strip_prefix("oneway, ").map_or(String::new(), |asked| format!(", {asked}"));
    format!("{layout} {}{asked}", row.space)
}

fn series(report: &Report, at: impl Fn(&Row) -> Option<u64>) -> Vec<Series> {
    let placed = |row| Some((name(row), rate_at(row, at(row).filter(|at| *at > 0)?)));
    gathered(report.rows.iter().filter_map(placed))
}

/// Lines that a picture has room for.
const LINES_MAX: usize = 12;

/// One picture by the matrix's edge.
///
/// # Errors
/// Figures that have no place on a plot.
pub fn by_edge(title: &str, report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let title = format!("{title} ({})", gpu(report));
    Drawing::alone(lines_by(&title, Axis::Number("matrix edge"), &series(report, edge)))
}

/// Pictures by payload: one of each layout, if all do not fit one.
///
/// # Errors
/// Figures that have no place on a plot.
pub fn by_payload(title: &str, report: &Report) -> Result<Vec<Drawing>, PlotError> {
    let title = format!("{title} ({})", gpu(report));
    let all = series(report, |row| Some(row.payload_bytes));
    if all.len() <= LINES_MAX {
        return Drawing::alone(lines(&title, &all));
    }
    let layout = |one: &Series| one.name.split(' ').next().unwrap_or_default().to_owned();
    let mut layouts: Vec<String> = all.iter().map(layout).collect();
    layouts.sort_unstable();
    layouts.dedup();
    let pictures = layouts.into_iter().map(|one| {
        // Single points are in the table.
        let own = all.iter().filter(|series| layout(series) == one && series.points.len() > 1);
        let own = own.take(LINES_MAX).cloned().collect();
        (format!("-{}", one.to_ascii_lowercase()), format!("{one}, {title}"), own)
    });
    Drawing::some(pictures, lines)
}

/// Messages between GPUs: the marks first, if there are any, then every row.
#[must_use]
pub fn table(report: &Report) -> String {
    let (met, all, void, missed) = marks::tally(&report.rows);
    let failed = report.absent.iter().filter(|absent| absent.failed).count();
    let mut text = String::new();
    if all > 0 {
        text += &format!("**{met} of {all} marks met**, {void} void, {failed} rows failed.\n\n");
    }
    text += &table::missed(&missed);
    let latencies: Vec<String> = report.rows.iter().filter_map(marks::breakdown).collect();
    if !latencies.is_empty() {
        text += &latencies.iter().map(|told| format!("- {told}\n")).collect::<String>();
        text.push('\n');
    }
    let first: Column = ("÷ reference", |row| {
        let first = row.reference.as_deref().zip(row.ratio);
        first.map_or("-".to_owned(), |(name, ratio)| format!("{name} {ratio:.2}"))
    });
    let others: Column = ("÷ other", |row| {
        table::or_none(row.others.iter().map(|it| format!("{} {:.2}", it.reference, it.ratio)))
    });
    let mark: Column = ("mark", |row| {
        let void = row.extra.contains_key(marks::VOID);
        let mark = match row.met() {
            None => "-",
            Some(true) => "met",
            Some(false) if void => "void",
            Some(false) => "missed",
        };
        mark.to_owned()
    });
    let columns = [
        called("message", CASE),
        OP,
        ("between", |row| row.space.clone()),
        PAYLOAD,
        PROTOCOL,
        TIME,
        SPREAD,
        RATE,
        first,
        others,
        QUOTED,
        mark,
    ];
    text + &table::table(&columns, &report.rows)
}
