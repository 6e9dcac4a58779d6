//! Plots as SVG text: GB/s by payload as lines, or by case as bars; times by payload; ratios by case.
//!
//! `report` decides what of a report is drawn, and how. The kind of the picture makes its lines and marks: `lines`,
//! `curves` and `growth`, which share `chart`; `bars`; `ratios`. Axes show what is drawn, all of it and little else
//! (`scale`). `text` finds room for labels. No picture is higher than a page.

mod bars;
mod chart;
mod curves;
mod growth;
mod lines;
mod ratios;
mod report;
mod scale;
mod text;

pub(crate) use text::escaped;

pub use bars::{BarGroup, bars};
pub use curves::{Curve, curves, latency};
pub use growth::{Growth, course, growth};
pub use lines::{Axis, Point, Series, lines, lines_by};
pub use ratios::{RatioRow, Spread, ratios};

/// Pixels of every picture.
const WIDTH: f64 = 820.0;
/// Pixels of a page.
const HEIGHT_MAX: f64 = 1100.0;

/// Colours of successive series: Paul Tol's "muted" and "bright" picks that stay apart in grey and for
/// colour-blind readers. They repeat, dashed, after the last.
const COLOURS: [&str; 8] =
    ["#4477AA", "#EE6677", "#228833", "#AA7700", "#66CCEE", "#AA3377", "#332288", "#777777"];

/// Nothing a plot could show.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlotError {
    /// There is no series, or none with a point.
    #[error("there is nothing to plot")]
    Empty,
    /// A value has no place on the axes.
    #[error("{name}: {value} has no place on the axis")]
    OffAxis {
        /// The series or group.
        name: String,
        /// The value: a rate in GB/s, or a payload in bytes.
        value: f64,
    },
    /// A group of bars does not hold one bar for each name in the legend.
    #[error("{group} has {bars} bars for {names} names")]
    UnevenGroup {
        /// The group's label.
        group: String,
        /// Bars it holds.
        bars: usize,
        /// Names in the legend.
        names: usize,
    },
}

/// The tick label of log₂ `exponent`.
fn power_of_two(exponent: f64, shown: impl Fn(u64) -> String) -> String {
    let rounded = exponent.round();
    if (exponent - rounded).abs() > 1e-6 || !(0.0..64.0).contains(&rounded) {
        return String::new();
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 63, checked above"
    )]
    let shift = rounded as u32;
    shown(1 << shift)
}

#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
