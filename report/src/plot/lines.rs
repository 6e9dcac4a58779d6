//! GB/s by payload or by another number, one line a series.

use super::chart::{Chart, ChartLine, ChartMark, YAxis};
use super::{PlotError, power_of_two};
use crate::human::Bytes;

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points; drawn by ascending payload.
    pub points: Vec<Point>,
}

/// One point of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Payload, in bytes, or what the axis of [`lines_by`] counts; at least 1.
    pub payload_bytes: u64,
    /// Median rate, in GB/s.
    pub gbps: f64,
    /// The ends of the spread, in GB/s, the slower first, drawn as a bar through the point.
    pub spread: Option<(f64, f64)>,
}

/// The x axis of [`lines_by`]; always log₂.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis<'a> {
    /// Bytes of something.
    Bytes(&'a str),
    /// A number of something.
    Number(&'a str),
}

/// GB/s by payload, one line a series.
///
/// # Errors
/// [`PlotError`] when there is no point, or one without a place on the axes.
pub fn lines(title: &str, series: &[Series]) -> Result<String, PlotError> {
    lines_by(title, Axis::Bytes("payload"), series)
}

/// GB/s by what the axis says, which stands in [`Point::payload_bytes`]; one line a series.
///
/// # Errors
/// As [`lines`].
pub fn lines_by(title: &str, axis: Axis<'_>, series: &[Series]) -> Result<String, PlotError> {
    let mark = |point: &Point| {
        let (low, high) = point.spread.unwrap_or((point.gbps, point.gbps));
        ChartMark { x: point.payload_bytes as f64, y: point.gbps, low, high }
    };
    let (x_label, tick): (&str, fn(f64) -> String) = match axis {
        Axis::Bytes(label) => (label, |exponent| power_of_two(exponent, |n| Bytes(n).to_string())),
        Axis::Number(label) => (label, |exponent| power_of_two(exponent, |n| n.to_string())),
    };
    let line = |one: &Series| ChartLine {
        name: one.name.clone(),
        marks: one.points.iter().map(mark).collect(),
    };
    Chart {
        title,
        x_label,
        base: Some(2.0),
        tick,
        y_label: "GB/s (payload)",
        y_axis: YAxis::Fitting,
        lines: series.iter().map(line).collect(),
    }
    .draw()
}
