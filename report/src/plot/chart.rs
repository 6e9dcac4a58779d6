//! A picture of lines over an axis: what `lines`, `curves` and `growth` have in common.

use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::{LegendPosition, LinePlot, ScatterPlot};
use kuva::render::layout::{ComputedLayout, Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::scale::{self, AxisRange};
use super::text::LINE_PX;
use super::{COLOURS, HEIGHT_MAX, PlotError, WIDTH};

/// Pixels, unless the legend needs more.
const HEIGHT: f64 = 460.0;
/// Pixels of a line of the legend, and of what surrounds it.
pub(super) const LEGEND_PX: f64 = 18.0;
pub(super) const LEGEND_FRAME_PX: f64 = 60.0;

/// What is drawn.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x_label: &'a str,
    /// The base of the x axis; none if it is linear.
    pub(super) base: Option<f64>,
    /// The text of a tick at this exponent.
    pub(super) tick: fn(f64) -> String,
    pub(super) y_label: &'a str,
    pub(super) y_axis: YAxis,
    pub(super) lines: Vec<ChartLine>,
}

/// What the y axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum YAxis {
    Linear,
    /// Logarithmic where a linear one would leave most lines at its bottom.
    Fitting,
    /// Logarithmic if every value is above 0.
    Logarithmic,
}

pub(super) struct ChartLine {
    pub(super) name: String,
    pub(super) marks: Vec<ChartMark>,
}

/// A point and how far it spreads.
#[derive(Clone, Copy)]
pub(super) struct ChartMark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl ChartMark {
    fn check(&self, name: &str) -> Result<(), PlotError> {
        let off = |value: f64| PlotError::OffAxis { name: name.to_owned(), value };
        if self.x < 1.0 {
            return Err(off(self.x));
        }
        match [self.y, self.low, self.high].into_iter().find(|v| !v.is_finite() || *v < 0.0) {
            Some(value) => Err(off(value)),
            None => Ok(()),
        }
    }
}

/// The y axis.
struct Upright {
    /// Of the exponents, if it is logarithmic.
    base: Option<f64>,
    range: AxisRange,
}

impl Upright {
    fn of(chart: &Chart<'_>) -> Upright {
        let marks = || chart.lines.iter().flat_map(|line| &line.marks);
        let low = marks().map(|mark| mark.low.min(mark.y)).fold(f64::INFINITY, f64::min);
        let high = marks().map(|mark| mark.high.max(mark.y)).fold(0.0, f64::max);
        let peaks =
            chart.lines.iter().map(|line| line.marks.iter().map(|mark| mark.y).fold(0.0, f64::max));
        let flat = peaks.filter(|peak| *peak < high / 4.0).count();
        let squeezed = chart.lines.len() > 2 && 2 * flat >= chart.lines.len();
        let logarithmic = match chart.y_axis {
            YAxis::Linear => false,
            YAxis::Fitting => squeezed,
            YAxis::Logarithmic => true,
        };
        if !(logarithmic && low > 0.0) {
            return Upright { base: None, range: scale::linear(low, high) };
        }
        let base = scale::base(low, high);
        let exponent = |value: f64| value.ln() / base.ln();
        let range = scale::exponents(exponent(low), exponent(high), HEIGHT / 2.0, |_| LINE_PX);
        Upright { base: Some(base), range }
    }

    fn at(&self, value: f64) -> f64 {
        self.base.map_or(value, |base| value.ln() / base.ln())
    }

    fn label(&self, of: &str) -> String {
        match self.base {
            Some(_) => format!("{of}, logarithmic"),
            None if self.range.low > 0.0 => {
                format!("{of}; the axis begins at {}", TickFormat::Auto.format(self.range.low))
            }
            None => of.to_owned(),
        }
    }

    fn ticks(&self) -> TickFormat {
        match self.base {
            None => TickFormat::Auto,
            Some(base) => TickFormat::Custom(Arc::new(move |exponent| {
                let value = base.powf(exponent);
                // Three digits are enough for a power of two below 1.
                let places = if value < 1.0 { (-value.log10()).ceil() + 2.0 } else { 0.0 };
                let unit = 10_f64.powf(places);
                format!("{}", (value * unit).round() / unit)
            })),
        }
    }
}

impl Chart<'_> {
    /// The picture.
    ///
    /// # Errors
    /// [`PlotError`] if there is no point, or one without a place on the axes.
    pub(super) fn draw(mut self) -> Result<String, PlotError> {
        self.lines.retain(|line| !line.marks.is_empty());
        for line in &mut self.lines {
            line.marks.iter().try_for_each(|mark| mark.check(&line.name))?;
            line.marks.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        let across = |value: f64| self.base.map_or(value, |base| value.ln() / base.ln());
        let places = || self.lines.iter().flat_map(|line| &line.marks).map(|mark| across(mark.x));
        if self.lines.is_empty() {
            return Err(PlotError::Empty);
        }
        let (first, last) =
            (places().fold(f64::INFINITY, f64::min), places().fold(f64::NEG_INFINITY, f64::max));

        let upright = Upright::of(&self);
        let mut plots = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            plots.extend(line.drawn(index, across, &upright));
        }
        let legend = LEGEND_FRAME_PX + LEGEND_PX * count(self.lines.len());
        let layout = Layout::auto_from_plots(&plots)
            .with_title(self.title)
            .with_width(WIDTH)
            .with_height(legend.clamp(HEIGHT, HEIGHT_MAX))
            .with_x_label(self.x_label)
            .with_x_tick_format(TickFormat::Custom(Arc::new(self.tick)))
            .with_y_label(upright.label(self.y_label))
            .with_y_axis_min(upright.range.low)
            .with_y_axis_max(upright.range.high)
            .with_y_tick_step(upright.range.step)
            .with_y_tick_format(upright.ticks())
            .with_legend_position(LegendPosition::OutsideRightTop);
        // As wide as the legend leaves it.
        let pixels = ComputedLayout::from_layout(&layout).plot_width();
        let room = |exponent| scale::wide(&(self.tick)(exponent));
        let axis = match self.base {
            None => scale::linear(first, last),
            Some(_) => scale::exponents(first, last, pixels, room),
        };
        let layout =
            layout.with_x_axis_min(axis.low).with_x_axis_max(axis.high).with_x_tick_step(axis.step);
        Ok(SvgBackend.render_scene(&render_multiple(plots, layout)))
    }
}

impl ChartLine {
    /// kuva's two plots of it: the line, then its marks with their spread.
    fn drawn(&self, index: usize, across: impl Fn(f64) -> f64, upright: &Upright) -> [Plot; 2] {
        let at = |mark: &ChartMark| (across(mark.x), upright.at(mark.y));
        let arms = |mark: &ChartMark| {
            let arm = |end: f64| (upright.at(end) - upright.at(mark.y)).abs();
            (arm(mark.low.min(mark.y)), arm(mark.high.max(mark.y)))
        };
        let colour = COLOURS[index % COLOURS.len()];
        let line = LinePlot::new()
            .with_data(self.marks.iter().map(at))
            .with_color(colour)
            .with_stroke_width(1.8)
            .with_legend(self.name.clone());
        let line = if index < COLOURS.len() { line } else { line.with_dashed() };
        let marks = ScatterPlot::new()
            .with_data(self.marks.iter().map(at))
            .with_y_err_asymmetric(self.marks.iter().map(arms))
            .with_color(colour)
            .with_size(3.0);
        [Plot::Line(line), Plot::Scatter(marks)]
    }
}

/// A small number of things, to be multiplied with pixels.
pub(super) fn count(things: usize) -> f64 {
    u32::try_from(things).map_or(f64::from(u32::MAX), f64::from)
}
