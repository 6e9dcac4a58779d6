//! Bars that consist of parts, one after the other: the phases of Figure 7.

use std::fmt::Write;

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its label.
    pub label: String,
    /// How long each part is, in the legend's order.
    pub parts: Vec<f64>,
}

const COLOURS: [&str; 8] =
    ["#4477AA", "#66CCEE", "#AA7700", "#228833", "#EE6677", "#AA3377", "#777777", "#332288"];
const WIDTH: f64 = 820.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 44.0;
const BAR: f64 = 26.0;
const PITCH: f64 = 38.0;
const LEGEND: f64 = 20.0;
/// Entries of the legend in a line.
const COLUMNS: usize = 4;

/// Bars of parts as SVG text; `names` is the legend, and `unit` stands behind each bar's whole length.
#[must_use]
pub fn stacked(title: &str, names: &[&str], unit: &str, bars: &[Bar]) -> String {
    let longest = bars
        .iter()
        .map(|bar| bar.parts.iter().sum::<f64>())
        .fold(0.0, f64::max)
        .max(f64::MIN_POSITIVE);
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    let legend_top = TOP + PITCH * count(bars.len()) + 14.0;
    let height = legend_top + LEGEND * count(names.len().div_ceil(COLUMNS)) + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"DejaVu Sans, sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
         <text x=\"{}\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">{title}</text>",
        WIDTH / 2.0
    );
    let colour = |at: usize| COLOURS[at % COLOURS.len()];
    let mut add = |text: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = svg.write_fmt(text);
    };
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + PITCH * count(at);
        let middle = y + BAR / 2.0 + 4.0;
        add(format_args!(
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            bar.label
        ));
        let mut x = LEFT;
        for (part, length) in bar.parts.iter().enumerate() {
            let width = length * scale;
            let fill = colour(part);
            add(format_args!(
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\" stroke=\"white\" \
                 stroke-width=\"0.5\"/>"
            ));
            if width > 30.0 {
                let x = x + width / 2.0;
                add(format_args!(
                    "<text x=\"{x:.1}\" y=\"{middle}\" text-anchor=\"middle\" fill=\"white\">{length:.0}</text>"
                ));
            }
            x += width;
        }
        let whole: f64 = bar.parts.iter().sum();
        add(format_args!("<text x=\"{:.1}\" y=\"{middle}\">{whole:.0} {unit}</text>", x + 6.0));
    }
    for (at, name) in names.iter().enumerate() {
        let x = LEFT + count(at % COLUMNS) * (WIDTH - LEFT) / count(COLUMNS);
        let y = legend_top + LEGEND * count(at / COLUMNS);
        let fill = colour(at);
        add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{fill}\"/>"
        ));
        add(format_args!("<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", x + 17.0, y + 10.5));
    }
    svg + "</svg>\n"
}

/// A small number of things, to be multiplied with pixels.
fn count(things: usize) -> f64 {
    u32::try_from(things).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_parts() {
        let bar =
            |label: &str, parts: &[f64]| Bar { label: label.to_owned(), parts: parts.to_vec() };
        let svg =
            stacked("t", &["a", "b"], "ns", &[bar("x", &[100.0, 220.0]), bar("y", &[640.0, 0.0])]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for text in
            [">320 ns<", ">640 ns<", "width=\"100.0\"", "width=\"220.0\"", "width=\"640.0\"", ">b<"]
        {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }
}
