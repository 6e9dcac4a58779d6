//! Time by a number: how a cost grows. The number's axis is logarithmic, with a tick at each power of
//! ten; time's is linear and begins at 0, so that what grows with the logarithm is a straight line.

use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::{LegendPosition, LinePlot, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::{COLOURS, PlotError};
use crate::samples::Summary;

/// One line of [`curves`].
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// A number, at least 1, and the times measured there; the extremes are drawn as quartiles
    /// where they are known.
    pub points: Vec<(u64, Summary)>,
}

/// Median time by `number`, one line a curve.
///
/// # Errors
/// [`PlotError`] when there is no point, or one without a place on the axes.
pub fn curves(title: &str, number: &str, curves: &[Curve]) -> Result<String, PlotError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let Some(most) = points().map(|(number, _)| *number).max() else {
        return Err(PlotError::Empty);
    };
    for curve in curves {
        let off = |value: f64| PlotError::OffAxis { name: curve.name.clone(), value };
        for (number, seconds) in &curve.points {
            if *number == 0 {
                return Err(off(0.0));
            }
            let (low, high) = spread(seconds);
            let times = [seconds.median, low, high];
            if let Some(value) = times.into_iter().find(|t| !t.is_finite() || *t < 0.0) {
                return Err(off(value));
            }
        }
    }
    let longest = points().map(|(_, seconds)| spread(seconds).1).fold(0.0, f64::max);
    let (unit, label) = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]
        .into_iter()
        .find(|(unit, _)| longest >= *unit * 10.0)
        .unwrap_or((1e-9, "ns"));
    let plots: Vec<Plot> =
        curves.iter().enumerate().flat_map(|(at, curve)| drawn(at, curve, unit)).collect();
    let decades = most.ilog10() + u32::from(most != 10_u64.pow(most.ilog10()));
    let layout = Layout::auto_from_plots(&plots)
        .with_title(title)
        .with_width(820.0)
        .with_height(420.0)
        .with_x_label(number)
        .with_y_label(format!("time ({label})"))
        .with_x_axis_min(0.0)
        .with_x_axis_max(f64::from(decades.max(1)))
        .with_y_axis_min(0.0)
        .with_x_tick_step(1.0)
        .with_x_tick_format(TickFormat::Custom(Arc::new(power_of_ten)))
        .with_legend_position(LegendPosition::OutsideRightTop);
    Ok(SvgBackend.render_scene(&render_multiple(plots, layout)))
}

/// Quartiles, or extremes where those are unknown.
fn spread(seconds: &Summary) -> (f64, f64) {
    (seconds.q1.unwrap_or(seconds.min), seconds.q3.unwrap_or(seconds.max))
}

fn drawn(index: usize, curve: &Curve, unit: f64) -> [Plot; 2] {
    let mut points = curve.points.clone();
    points.sort_by_key(|(number, _)| *number);
    let at = |(number, seconds): &(u64, Summary)| ((*number as f64).log10(), seconds.median / unit);
    let arms = |(_, seconds): &(u64, Summary)| {
        let (low, high) = spread(seconds);
        ((seconds.median - low).max(0.0) / unit, (high - seconds.median).max(0.0) / unit)
    };
    let colour = COLOURS[index % COLOURS.len()];
    let line = LinePlot::new()
        .with_data(points.iter().map(at))
        .with_color(colour)
        .with_stroke_width(1.8)
        .with_legend(curve.name.clone());
    let marks = ScatterPlot::new()
        .with_data(points.iter().map(at))
        .with_y_err_asymmetric(points.iter().map(arms))
        .with_color(colour)
        .with_size(3.0);
    [Plot::Line(line), Plot::Scatter(marks)]
}

/// The tick label of log₁₀ `exponent`.
fn power_of_ten(exponent: f64) -> String {
    const NAMES: [&str; 13] = [
        "1", "10", "100", "1 k", "10 k", "100 k", "1 M", "10 M", "100 M", "1 G", "10 G", "100 G",
        "1 T",
    ];
    let near =
        |at: &usize| u32::try_from(*at).is_ok_and(|at| (exponent - f64::from(at)).abs() < 1e-6);
    (0..NAMES.len()).find(near).map_or(String::new(), |at| NAMES[at].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Samples;

    fn curve(name: &str, points: &[(u64, f64)]) -> Curve {
        let time = |ns: f64| Samples::from_seconds([ns * 1e-9, ns * 1.1e-9]).summary().unwrap();
        let points = points.iter().map(|&(number, ns)| (number, time(ns))).collect();
        Curve { name: name.to_owned(), points }
    }

    #[test]
    fn ticks_are_powers_of_ten_and_curves_are_named() {
        let lines = [
            curve("list", &[(10, 20.0), (1000, 40.0), (100_000, 70.0)]),
            curve("strided", &[(10, 20.0), (100_000, 21.0)]),
        ];
        let svg = curves("positioning", "blocks", &lines).unwrap();
        for text in ["positioning", "blocks", "list", "strided", "100 k", "time (ns)"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn what_has_no_place_is_refused() {
        assert_eq!(curves("t", "n", &[]), Err(PlotError::Empty));
        assert_eq!(curves("t", "n", &[curve("empty", &[])]), Err(PlotError::Empty));
        let zero = curves("t", "n", &[curve("zero", &[(0, 1.0)])]);
        assert!(matches!(zero, Err(PlotError::OffAxis { .. })));
        assert!(curves("t", "n", &[curve("one", &[(1, 1.0)])]).is_ok());
    }
}
