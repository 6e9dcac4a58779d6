//! Tables of rows as Markdown: columns that know their heading and a row's cell.

use gapless_report::{Bytes, Rate, Report, Row, Summary, Time};

/// A column: its heading, and a row's cell.
pub(crate) type Column = (&'static str, fn(&Row) -> String);

pub(crate) const CASE: Column = ("case", |row| row.case.clone());
pub(crate) const OP: Column = ("op", |row| row.op.clone());
pub(crate) const PROTOCOL: Column = ("protocol", |row| row.protocol.clone());
pub(crate) const PAYLOAD: Column = ("payload", |row| Bytes(row.payload_bytes).to_string());
pub(crate) const TIME: Column = ("time", |row| Time(row.seconds.median).to_string());
pub(crate) const SPREAD: Column = ("spread", |row| spread(&row.seconds));
pub(crate) const RATE: Column = ("GB/s", |row| Rate(row.gbps).to_string());
pub(crate) const RESIDENT: Column =
    ("resident", |row| row.resident_gbps.map_or("-".to_owned(), |rate| Rate(rate).to_string()));
pub(crate) const OVER_MEMCPY: Column = ("÷ memcpy", |row| ratio(row, "memcpy"));
pub(crate) const OVER_CONTIGUOUS: Column = ("÷ contiguous", |row| ratio(row, "contiguous"));
pub(crate) const OVER_FLOOR: Column = ("÷ floor", |row| ratio(row, "floor"));
/// What peers reach, as they say.
pub(crate) const QUOTED: Column = ("peers, quoted GB/s", |row| {
    let quoted = row.extra.get("quoted_gbps").and_then(|it| it.as_object());
    or_none(quoted.into_iter().flatten().map(|(peer, gbps)| format!("{peer} {gbps}")))
});

/// The same cells under another heading.
pub(crate) const fn called(heading: &'static str, column: Column) -> Column {
    (heading, column.1)
}

/// A line for each row.
pub(crate) fn table<'r>(columns: &[Column], rows: impl IntoIterator<Item = &'r Row>) -> String {
    let headings: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let cells = |row| columns.iter().map(|column| column.1(row)).collect::<Vec<_>>();
    head(&headings) + &rows.into_iter().map(|row| line(&cells(row))).collect::<String>()
}

/// Every row in a line of its own: what the pictures show.
pub(crate) fn brief(report: &Report) -> String {
    let first: Column =
        ("÷ reference", |row| row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
    let columns = [CASE, OP, called("way", PROTOCOL), TIME, SPREAD, RATE, first];
    table(&columns, &report.rows)
}

/// Times by a count that ends each case's name, one column for each kind and operation.
pub(crate) fn by_count(report: &Report, what: &str) -> String {
    let split = |row: &Row| {
        let (kind, count) = row.case.split_once(' ').unwrap_or((&row.case, ""));
        let count = count.rsplit('=').next().unwrap_or_default().to_owned();
        (count, format!("{kind}, {}", row.op))
    };
    crossed(report, what, split, |row, _| Time(row.seconds.median).to_string())
}

/// A line and a column for each of the two names that `split` gives rows; `what` stands above the lines' names.
pub(crate) fn crossed(
    report: &Report,
    what: &str,
    split: impl Fn(&Row) -> (String, String),
    cell: impl Fn(&Row, &str) -> String,
) -> String {
    let (mut lines, mut columns): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (line, column) in report.rows.iter().map(&split) {
        if !lines.contains(&line) {
            lines.push(line);
        }
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let mut text =
        head(&[&[what], &columns.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    for name in lines {
        let cells = columns.iter().map(|column| {
            let key = (name.clone(), column.clone());
            let row = report.rows.iter().find(|row| split(row) == key);
            row.map_or("-".to_owned(), |row| cell(row, column))
        });
        text += &line(&[name.clone()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    text
}

pub(crate) fn head(columns: &[&str]) -> String {
    let rule: Vec<&str> =
        columns.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" }).collect();
    format!("| {} |\n| {} |\n", columns.join(" | "), rule.join(" | "))
}

pub(crate) fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// What was missed, a line each; nothing if nothing was.
pub(crate) fn missed(missed: &[String]) -> String {
    if missed.is_empty() {
        return String::new();
    }
    format!("Missed:\n\n{}\n", missed.iter().map(|one| format!("- {one}\n")).collect::<String>())
}

/// A list in a cell.
pub(crate) fn or_none(list: impl IntoIterator<Item = String>) -> String {
    let list: Vec<String> = list.into_iter().collect();
    if list.is_empty() { "-".to_owned() } else { list.join("; ") }
}

pub(crate) fn ratio(row: &Row, reference: &str) -> String {
    row.ratio_to(reference).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Half the distance between the quartiles, relative to the median.
pub(crate) fn spread(seconds: &Summary) -> String {
    let (q1, q3) = (seconds.q1.unwrap_or(seconds.min), seconds.q3.unwrap_or(seconds.max));
    format!("±{:.0} %", 50.0 * (q3 - q1) / seconds.median)
}
