//! A figure: for each piece of work a point for each ratio, on a logarithmic axis. SVG, as text.
//!
//! The axis reaches from the least ratio to the greatest. What no axis can hold (nothing, infinity) stands at its end,
//! with an arrow and its number.

use std::fmt::Write as _;

use super::report::named;
use super::work::{Ratio, Ratios, Row};

/// What is compared with, and its colour; as in `report/src/plot.rs`.
type Over = (&'static str, &'static str, fn(&Ratios) -> Ratio);
const OVER: [Over; 3] = [
    ("memcpy", "#777777", |ratios| ratios.memcpy),
    ("Open MPI", "#4477AA", |ratios| ratios.openmpi),
    ("MPICH", "#EE6677", |ratios| ratios.mpich),
];

/// Exponents of two beyond which no axis goes.
const EXPONENT_MAX: f64 = 20.0;
/// Ticks, at most: so many labels stand beside each other.
const TICKS_MAX: u32 = 12;
const WIDTH: f64 = 860.0;
/// Of a letter of the labels, about, and beside them.
const LETTER: f64 = 6.6;
const MARGIN: f64 = 24.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 40.0;
/// From one row to the next, unless a page is too short for all.
const PITCH: f64 = 18.0;
/// As in `report/src/plot.rs`.
const HEIGHT_MAX: f64 = 1100.0;

/// Exponents of two, and where the least is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    least: i32,
    most: i32,
    left: f64,
}

impl Axis {
    /// As long as it takes for these ratios, and for 1; beside labels of so many letters.
    fn of(ratios: impl Iterator<Item = f64>, letters: usize) -> Axis {
        let exponents = ratios.map(f64::log2).filter(|exponent| exponent.abs() <= EXPONENT_MAX);
        let (low, high) = exponents.fold((0.0_f64, 0.0_f64), |(low, high), exponent| {
            (low.min(exponent), high.max(exponent))
        });
        #[expect(clippy::cast_possible_truncation, reason = "whole, and at most EXPONENT_MAX")]
        let [least, most] = [low.floor(), high.ceil()].map(|exponent| exponent as i32);
        let letters = u32::try_from(letters).map_or(f64::INFINITY, f64::from);
        let left = (letters * LETTER + MARGIN).min(WIDTH / 2.0);
        Axis { least: least.min(most - 1), most, left }
    }

    /// Where a ratio is drawn, and whether it lies beyond that: below (-1), above (1) or not (0).
    fn across(self, ratio: f64) -> (f64, i8) {
        let (least, most) = (f64::from(self.least), f64::from(self.most));
        let exponent = ratio.log2();
        let (exponent, beyond) = match exponent {
            _ if exponent.is_nan() || exponent < least => (least, -1),
            _ if exponent > most => (most, 1),
            _ => (exponent, 0),
        };
        (self.left + (exponent - least) / (most - least) * (WIDTH - self.left - RIGHT), beyond)
    }

    fn ticks(self) -> impl Iterator<Item = i32> {
        let step = self.least.abs_diff(self.most).div_ceil(TICKS_MAX).max(1);
        // 1 has a tick.
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        (self.least.div_euclid(step)..=self.most.div_euclid(step))
            .map(move |at| at * step)
            .filter(move |exponent| *exponent >= self.least)
    }
}

/// A power of two as a tick's label.
fn power(exponent: i32) -> String {
    let power = 1_u64 << exponent.unsigned_abs();
    if exponent < 0 { format!("1/{power}") } else { power.to_string() }
}

/// The median of a ratio, and the quartiles about it.
fn ends(Ratio { median, spread }: Ratio) -> [f64; 3] {
    [median * (1.0 - spread), median, median * (1.0 + spread)]
}

/// The figure of these rows, top down. A hollow row is one whose mark is missed.
pub(super) fn ratios(title: &str, rows: &[&Row]) -> String {
    let all = rows.iter().flat_map(|row| OVER.map(|(_, _, over)| ends(over(&row.ratios))));
    let letters = rows.iter().map(|row| named(&row.work).chars().count()).max().unwrap_or(0);
    let axis = Axis::of(all.flatten(), letters);
    let left = axis.left;
    let mut svg = String::new();
    let mut top = TOP;
    let count = u32::try_from(rows.len().max(1)).map_or(f64::INFINITY, f64::from);
    let pitch = PITCH.min((HEIGHT_MAX - TOP - BOTTOM) / count);
    let bottom = rows.iter().fold(TOP, |at, _| at + pitch);
    let height = bottom + BOTTOM;
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left:.1}\" y=\"20\" font-size=\"15\">{title}</text>\n"
    );
    let mut legend = left;
    for (name, colour, _) in OVER {
        let _ = writeln!(
            svg,
            "<circle cx=\"{legend}\" cy=\"40\" r=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">÷ {name}</text>",
            legend + 8.0
        );
        legend += 100.0;
    }
    for exponent in axis.ticks() {
        let (x, _) = axis.across(f64::from(exponent).exp2());
        let colour = if exponent == 0 { "#000000" } else { "#DDDDDD" };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            power(exponent)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{left:.1}\" y=\"{}\">speed of Gapless over the others; above 1 it is faster; hollow: a mark is missed</text>",
        bottom + 34.0
    );
    for row in rows {
        let middle = top + pitch / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            middle + 4.0,
            named(&row.work)
        );
        for (_, colour, over) in OVER {
            let [low, median, high] = ends(over(&row.ratios));
            let [(from, below), (x, beyond), (to, above)] =
                [low, median, high].map(|ratio| axis.across(ratio));
            let fill = if row.met == Some(false) { "white" } else { colour };
            let _ = writeln!(
                svg,
                "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"{colour}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{middle}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
            );
            for (x, side, ratio) in [(from, below, low), (x, beyond, median), (to, above, high)] {
                svg += &arrow(x, middle, side, ratio, colour);
            }
        }
        top += pitch;
    }
    svg += "</svg>\n";
    svg
}

/// An arrow off the axis beside its end, with the number it leads to; nothing for a ratio on the axis.
fn arrow(x: f64, y: f64, side: i8, ratio: f64, colour: &str) -> String {
    let (shift, anchor, text) = match side {
        0 => return String::new(),
        -1 => (6.0, "start", format!("← {ratio:.2e}")),
        _ => (-6.0, "end", format!("{ratio:.2e} →")),
    };
    format!(
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>\n",
        x + shift,
        y + 4.0
    )
}

#[cfg(test)]
mod tests {
    use super::super::work::{self, Times};
    use super::*;

    /// Rows of one ratio each.
    fn drawn(over_memcpy: &[f64]) -> String {
        let work = &work::list(1, false)[0];
        let rows: Vec<Row> = over_memcpy
            .iter()
            .map(|&ratio| {
                let times = |work| Times { work, memcpy: 1e-6, lines: 262_144 };
                let mut ratios = Ratios::of(&[vec![times(1e-6), times(1e-6), times(1e-6)]]);
                ratios.memcpy = Ratio { median: ratio, spread: 0.1 };
                Row::new(work, ratios)
            })
            .collect();
        ratios("a figure", &rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn the_axis_holds_every_ratio_and_one() {
        for ratios in [&[0.7, 1.4][..], &[48.0], &[0.01, 0.3], &[1.0], &[1e-6, 1e6]] {
            let axis = Axis::of(ratios.iter().copied(), 20);
            for &ratio in ratios.iter().chain(&[1.0]) {
                assert_eq!(axis.across(ratio).1, 0, "{ratio}: {axis:?}");
            }
            assert!(axis.ticks().count() >= 2 && axis.ticks().count() <= TICKS_MAX as usize + 1);
            assert!(axis.ticks().any(|exponent| exponent == 0), "{axis:?}");
        }
        let axis = Axis::of([0.4, 48.0].into_iter(), 20);
        assert_eq!((axis.least, axis.most), (-2, 6));
        assert!(Axis::of([1.0].into_iter(), 60).left > axis.left, "labels have room");
    }

    #[test]
    fn what_no_axis_holds_has_an_arrow_and_its_number() {
        assert!(!drawn(&[0.1, 48.0]).contains(['←', '→']));
        for (ratio, arrow) in [(0.0, "← 0.00e0"), (1e30, "1.00e30 →"), (f64::INFINITY, "inf →")]
        {
            let figure = drawn(&[1.0, ratio]);
            assert!(figure.contains(arrow), "{arrow}: {figure}");
        }
        let axis = Axis::of([2.0, f64::NAN].into_iter(), 20);
        assert_eq!(axis.across(f64::NAN), (axis.left, -1));
    }

    #[test]
    fn no_figure_is_higher_than_a_page() {
        let height = |rows: usize| -> f64 {
            let figure = drawn(&vec![1.0; rows]);
            let (_, rest) = figure.split_once("height=\"").unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        assert_eq!(height(10), TOP + 10.0 * PITCH + BOTTOM);
        assert!(height(500) <= HEIGHT_MAX + 0.1);
    }
}
