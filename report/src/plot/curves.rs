//! Time by a number: how a cost grows. The number's axis is logarithmic; time's is linear, so that what grows with the
//! logarithm is a straight line.

use super::chart::{Chart, ChartLine, ChartMark, YAxis};
use super::{PlotError, power_of_two, scale};
use crate::human::Bytes;
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
    let longest = points().map(|(_, seconds)| spread(seconds).1).fold(0.0, f64::max);
    let (unit, label) = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]
        .into_iter()
        .find(|(unit, _)| longest >= *unit * 10.0)
        .unwrap_or((1e-9, "ns"));
    let numbers = || points().map(|(number, _)| *number as f64);
    let base = scale::base(numbers().fold(f64::INFINITY, f64::min), numbers().fold(0.0, f64::max));
    Chart {
        title,
        x_label: number,
        base: Some(base),
        tick: if base == 10.0 {
            power_of_ten
        } else {
            |exponent| power_of_two(exponent, |n| n.to_string())
        },
        y_label: &format!("time ({label})"),
        y_axis: YAxis::Linear,
        lines: in_units(curves, unit),
    }
    .draw()
}

/// A line for each curve, of medians and spreads in units of so many seconds.
fn in_units(curves: &[Curve], unit: f64) -> Vec<ChartLine> {
    let mark = |(number, seconds): &(u64, Summary)| {
        let (low, high) = spread(seconds);
        let [y, low, high] = [seconds.median, low, high].map(|seconds| seconds / unit);
        ChartMark { x: *number as f64, y, low, high }
    };
    let line = |curve: &Curve| ChartLine {
        name: curve.name.clone(),
        marks: curve.points.iter().map(mark).collect(),
    };
    curves.iter().map(line).collect()
}

/// Median time by payload in bytes, one line a curve, on two logarithmic axes: short messages show their latency, long
/// ones their bandwidth as a slope.
///
/// # Errors
/// As [`curves`].
pub fn latency(title: &str, curves: &[Curve]) -> Result<String, PlotError> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let longest = points().map(|(_, seconds)| spread(seconds).1).fold(0.0, f64::max);
    let (unit, label) = if longest >= 100e-6 { (1e-6, "µs") } else { (1e-9, "ns") };
    Chart {
        title,
        x_label: "payload",
        base: Some(2.0),
        tick: |exponent| power_of_two(exponent, |n| Bytes(n).to_string()),
        y_label: &format!("time ({label})"),
        y_axis: YAxis::Logarithmic,
        lines: in_units(curves, unit),
    }
    .draw()
}

/// Quartiles, or extremes where those are unknown.
fn spread(seconds: &Summary) -> (f64, f64) {
    (seconds.q1.unwrap_or(seconds.min), seconds.q3.unwrap_or(seconds.max))
}

/// The tick label of log₁₀ `exponent`.
pub(super) fn power_of_ten(exponent: f64) -> String {
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
    fn latencies_are_drawn_on_two_logarithmic_axes() {
        let line = curve("V", &[(8, 300.0), (8 << 10, 3000.0), (8 << 20, 3e6)]);
        let svg = latency("one way", &[line]).unwrap();
        for text in [">16 B<", ">4 KiB<", "time (µs), logarithmic", ">1<", ">10<", ">1000<"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        let short = latency("one way", &[curve("V", &[(8, 300.0), (64, 400.0)])]).unwrap();
        assert!(short.contains("time (ns), logarithmic") && short.contains(">512<"), "{short}");
        assert_eq!(latency("t", &[]), Err(PlotError::Empty));
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
