//! Plots as SVG text: GB/s by payload as lines, or by case as bars.
//!
//! Lines put log₂ of the payload on the x axis, with ticks at powers of two; a report whose layouts
//! were mostly measured at one size only has no such axis and becomes bars, beside their reference; so
//! does one with more layouts than there are colours.

mod curves;

use std::path::Path;
use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::{BarPlot, LegendPosition, LinePlot, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use crate::file::{self, FileError};
use crate::human::Bytes;
use crate::schema::{Report, Row};

pub use curves::{Curve, curves};

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
    /// Rate of the slowest and of the fastest sample, in GB/s, drawn as a bar through the point.
    pub spread: Option<(f64, f64)>,
}

/// The bars of one case, one for each name in the legend.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// The case.
    pub label: String,
    /// Rates, in GB/s, in the legend's order; 0 leaves a gap.
    pub gbps: Vec<f64>,
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
    for one in series {
        for point in &one.points {
            on_axis(&one.name, point)?;
        }
    }
    let points = || series.iter().flat_map(|one| &one.points);
    let payloads = || points().map(|point| point.payload_bytes);
    let (Some(smallest), Some(largest)) = (payloads().min(), payloads().max()) else {
        return Err(PlotError::Empty);
    };

    let mut plots = Vec::new();
    for (index, one) in series.iter().enumerate() {
        plots.extend(line_and_marks(index, one));
    }
    let (label, ticks): (&str, fn(f64) -> String) = match axis {
        Axis::Bytes(label) => (label, |exponent| power_of_two(exponent, |n| Bytes(n).to_string())),
        Axis::Number(label) => (label, |exponent| power_of_two(exponent, |n| n.to_string())),
    };
    // Whole powers of two at both ends, so that every tick is one.
    let (first, last) = (smallest.ilog2(), ceil_log2(largest));
    let step = (last - first).div_ceil(14).max(1);
    let layout = Layout::auto_from_plots(&plots)
        .with_title(title)
        .with_width(820.0)
        .with_height(460.0)
        .with_x_label(label)
        .with_y_label("GB/s (payload)")
        .with_x_axis_min(f64::from(first))
        .with_x_axis_max(f64::from(first + step * (last - first).div_ceil(step).max(1)))
        .with_y_axis_min(0.0)
        .with_x_tick_step(f64::from(step))
        .with_x_tick_format(TickFormat::Custom(Arc::new(ticks)))
        .with_legend_position(LegendPosition::OutsideRightTop);
    Ok(SvgBackend.render_scene(&render_multiple(plots, layout)))
}

/// GB/s by case, horizontal bars in groups; `names` is the legend.
///
/// # Errors
/// [`PlotError`] when there is no group, a group is not as long as `names`, or a rate is negative or
/// not finite.
pub fn bars(title: &str, names: &[&str], groups: &[BarGroup]) -> Result<String, PlotError> {
    if groups.is_empty() || names.is_empty() {
        return Err(PlotError::Empty);
    }
    let mut plot = BarPlot::new().with_horizontal(true);
    // The first group stands at the bottom of a horizontal plot; readers start at the top.
    for group in groups.iter().rev() {
        if group.gbps.len() != names.len() {
            return Err(PlotError::UnevenGroup {
                group: group.label.clone(),
                bars: group.gbps.len(),
                names: names.len(),
            });
        }
        if let Some(&value) = group.gbps.iter().find(|v| !v.is_finite() || **v < 0.0) {
            return Err(PlotError::OffAxis { name: group.label.clone(), value });
        }
        let coloured = group.gbps.iter().copied().zip(COLOURS.iter().cycle());
        plot =
            plot.with_group(group.label.clone(), coloured.map(|(value, &colour)| (value, colour)));
    }
    let plots = vec![Plot::Bar(plot.with_legend(names.to_vec()))];
    let bar_count = u32::try_from(groups.len() * names.len()).unwrap_or(u32::MAX);
    let layout = Layout::auto_from_plots(&plots)
        .with_title(title)
        .with_width(820.0)
        .with_height((140.0 + 16.0 * f64::from(bar_count)).clamp(300.0, 4000.0))
        .with_x_label("GB/s (payload)")
        .with_legend_position(LegendPosition::OutsideRightTop);
    Ok(SvgBackend.render_scene(&render_multiple(plots, layout)))
}

impl Report {
    /// The report as an SVG: lines when most layouts were measured at several payloads and a colour
    /// is there for each, else bars.
    ///
    /// # Errors
    /// [`PlotError`] when there is nothing to plot.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        let title = format!("{} ({})", self.experiment, self.machine.cpu);
        let series = self.series();
        let swept = series.iter().filter(|one| one.points.len() > 1).count();
        if swept * 2 > series.len() && series.len() <= COLOURS.len() {
            return lines(&title, &series);
        }
        // The references of a bar plot must be one and the same, else the legend would lie.
        let first = self.rows.iter().find_map(|row| row.reference.as_deref());
        let theirs = |row: &Row| row.ratio_to(first?).map(|ratio| row.gbps / ratio);
        let distinct =
            |key: fn(&Row) -> &str| self.rows.iter().any(|r| key(r) != key(&self.rows[0]));
        let (ops, spaces) = (distinct(|r| &r.op), distinct(|r| &r.space));
        let groups: Vec<BarGroup> = self
            .rows
            .iter()
            .map(|row| BarGroup {
                label: label(row, &row.case, ops, spaces),
                gbps: match first {
                    Some(_) => vec![row.gbps, theirs(row).unwrap_or(0.0)],
                    None => vec![row.gbps],
                },
            })
            .collect();
        let names: Vec<&str> = std::iter::once("gapless").chain(first).collect();
        bars(&title, &names, &groups)
    }

    /// Writes [`Self::to_svg`], replacing `path` in one step.
    ///
    /// # Errors
    /// [`FileError`], naming the path.
    pub fn write_svg(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        let svg = self.to_svg().map_err(|source| FileError::plot(path, source))?;
        file::write_atomically(path, svg.as_bytes())
    }

    /// One series for each layout, operation and space; rows without payload have no rate and are
    /// left out.
    fn series(&self) -> Vec<Series> {
        let rows = || self.rows.iter().filter(|row| row.payload_bytes > 0);
        let distinct = |key: fn(&Row) -> &str| rows().any(|r| key(r) != key(&self.rows[0]));
        let (ops, spaces) = (distinct(|r| &r.op), distinct(|r| &r.space));
        let mut series: Vec<Series> = Vec::new();
        for row in rows() {
            let name = label(row, family(&row.case), ops, spaces);
            let rate = |seconds| crate::samples::gbps(row.payload_bytes, seconds);
            let point = Point {
                payload_bytes: row.payload_bytes,
                gbps: row.gbps,
                spread: Some((rate(row.seconds.max), rate(row.seconds.min))),
            };
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.push(point),
                None => series.push(Series { name, points: vec![point] }),
            }
        }
        series
    }
}

/// The layout's name: what stands before the parameters, `V` of `V n=4096`, `NAS LU y` of
/// `NAS LU y n=12`. A word with a digit or an equals sign begins the parameters.
fn family(case: &str) -> &str {
    let mut end = case.len();
    for word in case.split(' ').skip(1) {
        if word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit()) {
            // The word is a slice of `case`: its place is the distance of their starts.
            end = word.as_ptr() as usize - case.as_ptr() as usize;
            break;
        }
    }
    case[..end].trim_end()
}

/// What sets a row apart from the others of its report.
fn label(row: &Row, case: &str, with_op: bool, with_space: bool) -> String {
    let mut label = case.to_owned();
    for (wanted, text) in [(with_op, &row.op), (with_space, &row.space)] {
        if wanted {
            label.push_str(", ");
            label.push_str(text);
        }
    }
    label
}

fn on_axis(name: &str, point: &Point) -> Result<(), PlotError> {
    let (low, high) = point.spread.unwrap_or((point.gbps, point.gbps));
    let off = |value: f64| PlotError::OffAxis { name: name.to_owned(), value };
    if point.payload_bytes == 0 {
        return Err(off(0.0));
    }
    match [point.gbps, low, high].into_iter().find(|v| !v.is_finite() || *v < 0.0) {
        Some(value) => Err(off(value)),
        None => Ok(()),
    }
}

/// A series as kuva's two plots: the line, then its marks with their spread.
fn line_and_marks(index: usize, series: &Series) -> [Plot; 2] {
    let mut points = series.points.clone();
    points.sort_by_key(|point| point.payload_bytes);
    let at = |point: &Point| ((point.payload_bytes as f64).log2(), point.gbps);
    let arms = |point: &Point| match point.spread {
        Some((low, high)) => ((point.gbps - low).max(0.0), (high - point.gbps).max(0.0)),
        None => (0.0, 0.0),
    };
    let colour = COLOURS[index % COLOURS.len()];
    let line = LinePlot::new()
        .with_data(points.iter().map(at))
        .with_color(colour)
        .with_stroke_width(1.8)
        .with_legend(series.name.clone());
    let line = if index < COLOURS.len() { line } else { line.with_dashed() };
    let marks = ScatterPlot::new()
        .with_data(points.iter().map(at))
        .with_y_err_asymmetric(points.iter().map(arms))
        .with_color(colour)
        .with_size(3.0);
    [Plot::Line(line), Plot::Scatter(marks)]
}

fn ceil_log2(n: u64) -> u32 {
    n.ilog2() + u32::from(!n.is_power_of_two())
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
mod tests;
