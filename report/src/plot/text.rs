//! How much room a text takes in a picture, so that no two labels touch.

/// Pixels of a tick's label; what kuva takes unless it is told otherwise.
pub(super) const TICK_PX: f64 = 12.0;
/// Pixels from one line of ticks' labels to the next.
pub(super) const LINE_PX: f64 = 15.0;
/// Pixels that are left between two labels, at least.
pub(super) const GAP_PX: f64 = 6.0;

/// About how wide `text` is at `size` pixels, in a wide sans-serif face such as DejaVu Sans.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|c| em(c) * size).sum()
}

/// Text as it stands in a picture or a page.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            // Control characters have no place in XML.
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// The advance of a character, in units of the size.
fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' => 0.3,
        ' ' | '.' | ',' | ':' => 0.32,
        'f' | 'r' | 't' | '(' | ')' | '-' => 0.41,
        'm' | 'w' | 'M' | 'W' | '%' => 0.98,
        '>' | '=' | '+' | '÷' | '×' => 0.84,
        'c' | 's' | 'z' => 0.55,
        'k' | 'v' | 'x' | 'y' => 0.6,
        'A'..='Z' => 0.74,
        _ => 0.64,
    }
}
