//! Which range of an axis is shown. It is chosen from what is drawn: every value lies on it, and little of it is
//! empty.
//!
//! A logarithmic axis is measured in exponents of its base, and its ticks are whole exponents.

use super::text::{self, GAP_PX, TICK_PX};

/// A range of an axis, with a tick at every multiple of `step`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisRange {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) step: f64,
}

/// Steps of a linear axis, at most.
const STEPS_MAX: f64 = 10.0;
/// What is left empty at both ends of a logarithmic axis, so that marks are whole.
const MARGIN: f64 = 0.02;
/// Exponents between two ticks, at most: more than an `f64` has in base 2.
const STEP_MAX: u32 = 2048;

/// A linear axis for values from `low` to `high`, none of which is negative.
///
/// It begins at 0, unless that left half of it empty. No difference looks more than twice as large as it is.
pub(super) fn linear(low: f64, high: f64) -> AxisRange {
    let high = if high > 1e-12 { high } else { 1.0 };
    let from = if low > high / 2.0 { high / 2.0 } else { 0.0 };
    let step = nice((high - from) / STEPS_MAX);
    // A value on a tick needs no further step, whatever the last bit of the quotient is.
    let steps = |value: f64| value / step;
    AxisRange {
        low: (steps(from) + 1e-9).floor() * step,
        high: (steps(high) - 1e-9).ceil() * step,
        step,
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
fn nice(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * decade)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * decade)
}

/// The base whose powers suit an axis from `low` to `high`: ten for three decades and more.
pub(super) fn base(low: f64, high: f64) -> f64 {
    if high >= 1000.0 * low { 10.0 } else { 2.0 }
}

/// A logarithmic axis for exponents from `low` to `high`; `room` says how much of its `pixels` the label of an exponent
/// takes.
pub(super) fn exponents(low: f64, high: f64, pixels: f64, room: impl Fn(f64) -> f64) -> AxisRange {
    let margin = if high > low { (high - low) * MARGIN } else { 1.0 };
    let (mut from, mut to) = (low - margin, high + margin);
    // An axis with a single tick has no scale.
    if (to.floor() - from.ceil()) < 1.0 {
        (from, to) = (from.min(low.floor()), to.max(high.ceil()));
    }
    let px = pixels / (to - from);
    let fits = |step: &f64| {
        let ticks: Vec<f64> = ticks(from, to, *step).collect();
        ticks.windows(2).all(|pair| {
            let apart = (pair[1] - pair[0]) * px;
            apart >= f64::midpoint(room(pair[0]), room(pair[1])) + GAP_PX
        })
    };
    let step = (1..=STEP_MAX).map(f64::from).find(fits).unwrap_or(f64::from(STEP_MAX));
    AxisRange { low: from, high: to, step }
}

/// Room of a label below an axis.
pub(super) fn wide(label: &str) -> f64 {
    text::width(label, TICK_PX)
}

fn ticks(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (low / step).ceil() * step;
    (0..).map(move |at| first + f64::from(at) * step).take_while(move |tick| *tick <= high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of an axis that lies between the least and the greatest value.
    fn used(low: f64, high: f64, axis: AxisRange) -> f64 {
        (high - low) / (axis.high - axis.low)
    }

    #[test]
    fn linear_axes_hold_their_values_and_little_else() {
        for high in [1e-9, 0.3, 0.999, 1.0, 1.001, 7.0, 48.0, 100.0, 1801.0, 1e12] {
            let axis = linear(0.0, high);
            assert_eq!(axis.low, 0.0);
            assert!(axis.high >= high, "{high}: {axis:?}");
            assert!(used(0.0, high, axis) >= 0.75, "{high}: {axis:?}");
            assert!((axis.high / axis.step).round() <= STEPS_MAX + 1e-9, "{high}: {axis:?}");
        }
        assert_eq!(linear(0.0, 0.0), AxisRange { low: 0.0, high: 1.0, step: 0.1 });
    }

    #[test]
    fn linear_axes_begin_above_nothing_only_where_half_would_be_empty() {
        assert_eq!(linear(27.0, 55.0).low, 0.0);
        let axis = linear(35.0, 52.0);
        assert_eq!((axis.low, axis.high), (25.0, 55.0));
        let flat = linear(355.0, 380.0);
        assert!(flat.low > 150.0 && flat.low <= 190.0 && flat.high >= 380.0, "{flat:?}");
    }

    #[test]
    fn exponents_are_thinned_until_their_labels_fit() {
        let room = |_| 50.0;
        let axis = exponents(0.0, 26.0, 600.0, room);
        assert!(axis.low < 0.0 && axis.high > 26.0 && used(0.0, 26.0, axis) > 0.9);
        assert_eq!(axis.step, 3.0);
        assert_eq!(exponents(0.0, 26.0, 6000.0, room).step, 1.0);
        assert_eq!(exponents(0.0, 26.0, 60.0, room).step, 26.0);
    }

    #[test]
    fn every_logarithmic_axis_has_two_ticks() {
        for (low, high) in [(10.1, 10.2), (10.0, 10.0), (10.5, 10.5), (9.9, 10.1), (-3.5, -3.4)] {
            let axis = exponents(low, high, 600.0, |_| 40.0);
            assert!(axis.low <= low && axis.high >= high, "{axis:?}");
            assert!(ticks(axis.low, axis.high, axis.step).count() >= 2, "{low} {high}: {axis:?}");
        }
    }
}
