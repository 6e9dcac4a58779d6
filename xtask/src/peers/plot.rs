//! A figure: for each piece of work a point for each ratio, on a logarithmic axis. SVG, as text.

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

/// Least and greatest exponent of two on the axis; what lies beyond is drawn at the end.
const EXPONENTS: (i32, i32) = (-4, 5);
const WIDTH: f64 = 860.0;
const LEFT: f64 = 240.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const PITCH: f64 = 18.0;

/// Where a ratio is drawn.
fn across(ratio: f64) -> f64 {
    let (least, most) = (f64::from(EXPONENTS.0), f64::from(EXPONENTS.1));
    let exponent = ratio.log2();
    let exponent = if exponent.is_nan() { least } else { exponent.clamp(least, most) };
    LEFT + (exponent - least) / (most - least) * (WIDTH - LEFT - RIGHT)
}

/// The figure of these rows, top down. A hollow row is one whose mark is missed.
pub(super) fn ratios(title: &str, rows: &[&Row]) -> String {
    let mut svg = String::new();
    let mut top = TOP;
    let bottom = rows.iter().fold(TOP, |at, _| at + PITCH);
    let height = bottom + 40.0;
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{title}</text>\n"
    );
    let mut legend = LEFT;
    for (name, colour, _) in OVER {
        let _ = writeln!(
            svg,
            "<circle cx=\"{legend}\" cy=\"40\" r=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">÷ {name}</text>",
            legend + 8.0
        );
        legend += 100.0;
    }
    for exponent in EXPONENTS.0..=EXPONENTS.1 {
        let ratio = f64::from(exponent).exp2();
        let x = across(ratio);
        let colour = if exponent == 0 { "#000000" } else { "#DDDDDD" };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{ratio}</text>",
            bottom + 16.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">speed of Gapless over the others; above 1 it is faster; hollow: a mark is missed</text>",
        bottom + 34.0
    );
    for row in rows {
        let middle = top + PITCH / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            middle + 4.0,
            named(&row.work)
        );
        for (_, colour, over) in OVER {
            let Ratio { median, spread } = over(&row.ratios);
            let (x, low, high) =
                (across(median), across(median * (1.0 - spread)), across(median * (1.0 + spread)));
            let fill = if row.met == Some(false) { "white" } else { colour };
            let _ = writeln!(
                svg,
                "<line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"{colour}\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{middle}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
            );
        }
        top += PITCH;
    }
    svg += "</svg>\n";
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_lie_within_the_axis() {
        assert!(across(1.0) > across(0.5) && across(2.0) > across(1.0));
        for beyond in [0.0, 1e-9, 1e9, f64::INFINITY, f64::NAN] {
            assert!((LEFT..=WIDTH - RIGHT).contains(&across(beyond)), "{beyond}");
        }
    }
}
