//! Ratios by case: a line a case, a point a reference, on a logarithmic axis about 1.

use std::fmt::Write as _;

use super::text::{self, TICK_PX, escaped};
use super::{HEIGHT_MAX, PlotError, WIDTH};

/// The colour of the first reference, of the second and so on. Grey is for what is no peer, as `memcpy`.
const COLOURS: [&str; 6] = ["#777777", "#4477AA", "#EE6677", "#228833", "#AA7700", "#AA3377"];

/// Powers of two beyond which the axis does not go: what lies further off has an arrow and its number.
const EXPONENT_MAX: f64 = 6.0;
/// Pixels: beside the axis, above and below the lines, from one line to the next.
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 44.0;
const PITCH: f64 = 18.0;
/// Pixels of the title's letters.
const TITLE_PX: f64 = 16.0;
/// The share of the width that labels take, at most; longer ones are shortened.
const LABELS_MAX: f64 = 0.45;

/// One line of a picture of ratios.
#[derive(Clone, Debug, PartialEq)]
pub struct RatioRow {
    /// The case.
    pub label: String,
    /// Whether what was asked of it is met, if anything was; points of a line that misses it are hollow.
    pub met: Option<bool>,
    /// The ratio to each reference, in the legend's order; `None` leaves it out.
    pub ratios: Vec<Option<Spread>>,
}

/// A ratio and how far it spreads; above 1 ours is faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// What is drawn as a point.
    pub median: f64,
    /// One end of the line through the point, not above the median.
    pub low: f64,
    /// The other end.
    pub high: f64,
}

impl Spread {
    /// A ratio of which no spread is known.
    #[must_use]
    pub fn exact(ratio: f64) -> Spread {
        Spread { median: ratio, low: ratio, high: ratio }
    }
}

/// A range of exponents of two; 1 is on it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
    left: f64,
}

impl Axis {
    fn of(ratios: impl Iterator<Item = f64>, left: f64) -> Axis {
        let exponents = ratios.map(f64::log2).filter(|exponent| exponent.is_finite());
        let clamped = exponents.map(|exponent| exponent.clamp(-EXPONENT_MAX, EXPONENT_MAX));
        let (low, high) =
            clamped.fold((0.0_f64, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
        // A little room, so that points are whole; two ticks at least.
        let margin = ((high - low) * 0.02).max(0.05);
        let (low, high) = (low - margin, high + margin);
        let (low, high) =
            if high - low < 1.0 { (low.min(-0.55), high.max(0.55)) } else { (low, high) };
        Axis { low, high, left }
    }

    fn at(self, exponent: f64) -> f64 {
        self.left + (exponent - self.low) / (self.high - self.low) * (WIDTH - RIGHT - self.left)
    }

    /// Where a ratio is drawn, and whether it lies beyond that: below (-1), above (1) or not (0).
    fn across(self, ratio: f64) -> (f64, i8) {
        let exponent = ratio.log2();
        let beyond = i8::from(exponent > self.high) - i8::from(exponent < self.low);
        (self.at(exponent.clamp(self.low, self.high)), beyond)
    }

    /// Ticks with their labels: powers of two, and between them where those are few.
    fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        const BETWEEN: [(f64, &str); 4] =
            [(0.8, "0.8"), (0.9, "0.9"), (1.1, "1.1"), (1.25, "1.25")];
        #[expect(clippy::cast_possible_truncation, reason = "whole, and at most EXPONENT_MAX")]
        let (low, high) = (self.low.ceil() as i32, self.high.floor() as i32);
        let powers = (low..=high).map(|exponent| {
            let power = 1_u32 << exponent.unsigned_abs();
            let label = if exponent < 0 { format!("1/{power}") } else { power.to_string() };
            (f64::from(exponent), label)
        });
        let between = BETWEEN.into_iter().filter(move |_| high - low < 2);
        powers.chain(between.map(|(ratio, label)| (ratio.log2(), label.to_owned())))
    }
}

/// The ratios of these rows, top down, on as many pages as it takes; `names` is the legend.
///
/// # Errors
/// [`PlotError`] when there is no row or no name, a row is not as long as `names`, or a ratio is negative or not a
/// number.
pub fn ratios(title: &str, names: &[&str], rows: &[RatioRow]) -> Result<Vec<String>, PlotError> {
    if rows.is_empty() || names.is_empty() {
        return Err(PlotError::Empty);
    }
    for row in rows {
        if row.ratios.len() != names.len() {
            let (group, bars) = (row.label.clone(), row.ratios.len());
            return Err(PlotError::UnevenGroup { group, bars, names: names.len() });
        }
        let values = row.ratios.iter().flatten().flat_map(|it| [it.low, it.median, it.high]);
        if let Some(value) = values.into_iter().find(|value| value.is_nan() || *value < 0.0) {
            return Err(PlotError::OffAxis { name: row.label.clone(), value });
        }
    }
    let fitting = (1..rows.len()).find(|&n| height(n + 1) > HEIGHT_MAX).unwrap_or(rows.len());
    let pages = rows.len().div_ceil(fitting);
    // Pages of about equal length.
    let parts = rows.chunks(rows.len().div_ceil(pages));
    let pages = parts.len();
    let drawn = parts.enumerate().map(|(at, part)| match pages {
        1 => page(title, names, part),
        _ => page(&format!("{title}, {} of {pages}", at + 1), names, part),
    });
    Ok(drawn.collect())
}

fn height(rows: usize) -> f64 {
    TOP + PITCH * super::chart::count(rows) + BOTTOM
}

fn page(title: &str, names: &[&str], rows: &[RatioRow]) -> String {
    let longest = rows.iter().map(|row| text::width(&row.label, TICK_PX)).fold(0.0, f64::max);
    let left = (longest + 20.0).min(WIDTH * LABELS_MAX);
    let values = rows.iter().flat_map(|row| row.ratios.iter().flatten());
    let axis = Axis::of(values.flat_map(|it| [it.low, it.median, it.high]), left);
    let (height, bottom) = (height(rows.len()), height(rows.len()) - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"DejaVu Sans, sans-serif\" font-size=\"{TICK_PX}\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"22\" font-size=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
        WIDTH / 2.0,
        // A long title is small.
        TITLE_PX.min(TITLE_PX * (WIDTH - RIGHT) / text::width(title, TITLE_PX)),
        escaped(title)
    );
    let mut x = left;
    for (at, name) in names.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"44\" r=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"48\">÷ {}</text>",
            x + 10.0,
            escaped(name)
        );
        x += text::width(&format!("÷ {name}"), TICK_PX) + 34.0;
    }
    for (exponent, label) in axis.ticks().filter(|(at, _)| (axis.low..=axis.high).contains(at)) {
        let (x, colour) = (axis.at(exponent), if exponent == 0.0 { "#000000" } else { "#DDDDDD" });
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" stroke=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }
    let hollow = if rows.iter().any(|row| row.met == Some(false)) {
        "; hollow: a mark is missed"
    } else {
        ""
    };
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"middle\">speed over the reference, logarithmic; above 1 it is faster{hollow}</text>",
        WIDTH / 2.0,
        bottom + 34.0
    );
    for (row, at) in rows.iter().zip(0u32..) {
        let middle = TOP + PITCH * (f64::from(at) + 0.5);
        line(&mut svg, row, axis, middle);
    }
    svg += "</svg>\n";
    svg
}

fn line(svg: &mut String, row: &RatioRow, axis: Axis, middle: f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        axis.left - 10.0,
        middle + 4.0,
        escaped(&shortened(&row.label, axis.left - 16.0))
    );
    for (at, it) in row.ratios.iter().enumerate() {
        let (Some(Spread { median, low, high }), colour) = (it, COLOURS[at % COLOURS.len()]) else {
            continue;
        };
        let ((from, _), (to, _), (x, beyond)) =
            (axis.across(*low), axis.across(*high), axis.across(*median));
        if to - from > 0.05 {
            let _ = writeln!(
                svg,
                "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"{colour}\"/>"
            );
        }
        let fill = if row.met == Some(false) { "white" } else { colour };
        let _ = match beyond {
            0 => writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\"/>"
            ),
            // An arrow at the end of the axis, and the number it leads to. References stand beside each other.
            side => {
                let shift = 64.0 * super::chart::count(at) + 2.0;
                let (x, anchor, text) = match side {
                    -1 => (x + shift, "start", format!("← {}", number(*median))),
                    _ => (x - shift, "end", format!("{} →", number(*median))),
                };
                writeln!(
                    svg,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>",
                    middle + 4.0
                )
            }
        };
    }
}

/// A ratio beyond the axis, in few characters.
fn number(ratio: f64) -> String {
    match ratio {
        0.0 => "0".to_owned(),
        _ if ratio.is_infinite() => "∞".to_owned(),
        _ if (1e-3..1e4).contains(&ratio) && ratio >= 1.0 => format!("{ratio:.0}"),
        _ if (1e-3..1.0).contains(&ratio) => format!("{ratio:.3}"),
        _ => format!("{ratio:.0e}"),
    }
}

/// The end of a label that is wider than so many pixels; what tells cases apart stands there.
fn shortened(label: &str, pixels: f64) -> String {
    if text::width(label, TICK_PX) <= pixels {
        return label.to_owned();
    }
    let ends = label.char_indices().map(|(at, _)| format!("…{}", &label[at..]));
    ends.into_iter().find(|end| text::width(end, TICK_PX) <= pixels).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, ratio: f64) -> RatioRow {
        RatioRow { label: label.to_owned(), met: None, ratios: vec![Some(Spread::exact(ratio))] }
    }

    fn drawn(values: &[f64]) -> String {
        let rows: Vec<RatioRow> = values.iter().map(|&value| row("a case", value)).collect();
        ratios("t", &["memcpy"], &rows).unwrap().concat()
    }

    #[test]
    fn axes_are_tight_and_hold_one() {
        for values in [&[0.97, 1.02][..], &[0.7, 1.4], &[48.0], &[0.03, 0.3], &[1.0], &[0.9]] {
            let axis = Axis::of(values.iter().copied(), 100.0);
            for &ratio in values.iter().chain(&[1.0]) {
                assert_eq!(axis.across(ratio).1, 0, "{ratio}: {axis:?}");
            }
            let ticks = axis.ticks().filter(|(at, _)| (axis.low..=axis.high).contains(at));
            assert!(ticks.count() >= 2, "{axis:?}");
        }
        let axis = Axis::of([0.25, 8.0].into_iter(), 100.0);
        assert!(axis.low > -2.2 && axis.high < 3.2, "{axis:?}");
    }

    #[test]
    fn what_is_clamped_has_an_arrow_and_its_number() {
        assert!(!drawn(&[0.1, 48.0]).contains(['←', '→']));
        for (ratio, arrow) in [
            (0.0, "← 0<"),
            (0.004, "← 0.004<"),
            (1e30, "1e30 →"),
            (128.0, ">128 →"),
            (f64::INFINITY, "∞ →"),
        ] {
            let picture = drawn(&[1.0, ratio]);
            assert!(picture.contains(arrow), "{arrow}: {picture}");
            assert_eq!(picture.matches("<circle").count(), 1 + 1, "the legend's and that of 1");
        }
    }

    #[test]
    fn pages_are_no_higher_than_a_page_and_hold_all() {
        for rows in [1, 54, 55, 200] {
            let rows: Vec<RatioRow> = (0..rows).map(|n| row(&format!("case {n}."), 1.0)).collect();
            let pages = ratios("t", &["memcpy"], &rows).unwrap();
            for page in &pages {
                let (_, rest) = page.split_once("height=\"").unwrap();
                let height: f64 = rest.split('"').next().unwrap().parse().unwrap();
                assert!(height <= HEIGHT_MAX);
            }
            let all = pages.concat();
            assert!(rows.iter().all(|row| all.contains(&format!(">{}<", row.label))));
        }
    }

    #[test]
    fn a_long_title_fits() {
        let title = "ratios of speed ".repeat(10);
        let picture = ratios(&title, &["a"], &[row("r", 1.0)]).unwrap().concat();
        let (_, rest) = picture.split_once("y=\"22\" font-size=\"").unwrap();
        let size: f64 = rest.split('"').next().unwrap().parse().unwrap();
        assert!(text::width(&title, size) <= WIDTH, "{size}");
    }

    #[test]
    fn labels_are_escaped_and_fit() {
        let long = format!("{} & n=4<5", "very ".repeat(40));
        let picture = ratios("a \"title\"", &["x & y"], &[row(&long, 1.0)]).unwrap().concat();
        assert!(picture.contains("very  &amp; n=4&lt;5") && picture.contains(">…"), "{picture}");
        assert!(picture.contains("a &quot;title&quot;") && picture.contains("÷ x &amp; y"));
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        assert_eq!(ratios("t", &["a"], &[]), Err(PlotError::Empty));
        assert_eq!(ratios("t", &[], &[row("r", 1.0)]), Err(PlotError::Empty));
        let two = ratios("t", &["a", "b"], &[row("r", 1.0)]);
        assert!(matches!(two, Err(PlotError::UnevenGroup { bars: 1, names: 2, .. })));
        for bad in [-1.0, f64::NAN] {
            let error = ratios("t", &["a"], &[row("r", bad)]).unwrap_err();
            assert!(error.to_string().starts_with("r: "), "{error}");
        }
    }

    #[test]
    fn a_missed_mark_is_hollow_and_said() {
        let missed = RatioRow { met: Some(false), ..row("r", 2.0) };
        let picture = ratios("t", &["a"], &[missed]).unwrap().concat();
        assert!(picture.contains("hollow") && picture.contains("fill=\"white\" stroke"));
        assert!(!drawn(&[2.0]).contains("hollow"));
    }
}
