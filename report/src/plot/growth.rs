//! Any quantity by a number: how something grows. Both axes are logarithmic if one picture would not show all lines
//! otherwise.

use super::chart::{Chart, ChartLine, ChartMark, YAxis};
use super::{PlotError, power_of_two, scale};

/// One line of [`growth`].
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Its name in the legend.
    pub name: String,
    /// A number, at least 1, and the quantity there.
    pub points: Vec<(u64, f64)>,
}

/// `quantity` by `number`, one line a growth.
///
/// # Errors
/// [`PlotError`] when there is no point, or one without a place on the axes.
pub fn growth(
    title: &str,
    number: &str,
    quantity: &str,
    lines: &[Growth],
) -> Result<String, PlotError> {
    let numbers = || lines.iter().flat_map(|line| &line.points).map(|(number, _)| *number as f64);
    let base = scale::base(numbers().fold(f64::INFINITY, f64::min), numbers().fold(0.0, f64::max));
    drawn(title, number, quantity, lines, Some(base))
}

/// As [`growth`], on linear axes: what comes one after the other, days say.
///
/// # Errors
/// As there.
pub fn course(
    title: &str,
    number: &str,
    quantity: &str,
    lines: &[Growth],
) -> Result<String, PlotError> {
    drawn(title, number, quantity, lines, None)
}

fn drawn(
    title: &str,
    number: &str,
    quantity: &str,
    lines: &[Growth],
    base: Option<f64>,
) -> Result<String, PlotError> {
    let mark = |(number, value): &(u64, f64)| ChartMark {
        x: *number as f64,
        y: *value,
        low: *value,
        high: *value,
    };
    let line = |one: &Growth| ChartLine {
        name: one.name.clone(),
        marks: one.points.iter().map(mark).collect(),
    };
    Chart {
        title,
        x_label: number,
        base,
        tick: match base {
            None => |number| number.to_string(),
            Some(10.0) => super::curves::power_of_ten,
            Some(_) => |exponent| power_of_two(exponent, |n| n.to_string()),
        },
        y_label: quantity,
        y_axis: if base.is_some() { YAxis::Fitting } else { YAxis::Linear },
        lines: lines.iter().map(line).collect(),
    }
    .draw()
}
