//! The figures that a document quotes, taken from the reports and from nowhere else.
//!
//! `figures summary BENCHMARKS.md --out bench/results/cpu` replaces what stands between two marks of
//! the document. Reports that are not there are left out.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use gapless_report::{Bytes, Rate, Report, Row, Summary, Time, write_atomically};

use crate::error::Failure;
use crate::experiments::ALL;

/// The line before the summary.
pub const BEGIN: &str = "<!-- figures: begin -->";
/// The line after it.
pub const END: &str = "<!-- figures: end -->";

/// Payloads below this are in the reports only.
const PACK_BYTES_MIN: u64 = 1 << 20;

/// Replaces the summary in `document` by one of the reports in `folder`.
///
/// # Errors
/// A report that does not hold together, a document that has no marks or cannot be replaced.
pub fn update(folder: &Path, document: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(document).map_err(Failure::io("read", document))?;
    let no_marks = || Failure::NoMarks { path: document.to_owned() };
    let begin = text.find(BEGIN).ok_or_else(no_marks)? + BEGIN.len();
    let end = begin + text[begin..].find(END).ok_or_else(no_marks)?;
    let text = format!("{}\n\n{}{}", &text[..begin], of(folder)?, &text[end..]);
    Ok(write_atomically(document, text.as_bytes())?)
}

/// The summary of the reports in `folder`, as Markdown.
///
/// # Errors
/// A report that does not hold together.
pub fn of(folder: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    for entry in ALL {
        let path = folder.join(entry.name).with_extension("json");
        if !path.is_file() {
            continue;
        }
        let report = Report::read_json(&path)?;
        let changed = fs::metadata(&path).and_then(|data| data.modified());
        let date = date(changed.map_err(Failure::io("read", &path))?);
        text += &format!("### {}: {}\n\n", entry.name, entry.about);
        text += &format!(
            "`{}` at {}, {date}; {}.\n\n",
            report.command,
            report.commit,
            machine(&report)
        );
        text += &match entry.name {
            "pack" => pack(&report),
            "transfer" => transfer(&report),
            "position" => by_count(&report, "blocks"),
            "matching" => by_count(&report, "outstanding"),
            "oneway" => oneway(&report),
            _ => format!("```text\n{}```\n", report.table()),
        };
        text.push('\n');
    }
    Ok(text)
}

/// The machine without what identifies it.
fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let cpus = machine.cpus_online.map_or("some".to_owned(), |n| n.to_string());
    let kind = if machine.virtual_machine { "virtual machine" } else { "machine" };
    let cache = machine.last_level_cache_bytes();
    let cache = cache.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
    format!("{cpus}-core {} {kind}, last-level cache {cache}", machine.cpu)
}

fn head(columns: &[&str]) -> String {
    let rule: Vec<&str> =
        columns.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" }).collect();
    format!("| {} |\n| {} |\n", columns.join(" | "), rule.join(" | "))
}

fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn ratio(row: &Row, reference: &str) -> String {
    row.ratio_to(reference).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Half the distance between the quartiles, relative to the median.
fn spread(seconds: &Summary) -> String {
    let (q1, q3) = (seconds.q1.unwrap_or(seconds.min), seconds.q3.unwrap_or(seconds.max));
    format!("±{:.0} %", 50.0 * (q3 - q1) / seconds.median)
}

fn pack(report: &Report) -> String {
    let mut text = head(&[
        "layout",
        "payload",
        "blocks",
        "pack GB/s",
        "spread",
        "÷ memcpy",
        "unpack GB/s",
        "spread",
        "÷ memcpy",
    ]);
    let large = report.rows.iter().filter(|row| row.payload_bytes >= PACK_BYTES_MIN);
    for row in large.filter(|row| row.op == "pack") {
        let mut cells = vec![row.case.clone(), Bytes(row.payload_bytes).to_string()];
        cells.push(row.blocks.map_or("-".to_owned(), |blocks| blocks.to_string()));
        let unpack =
            report.rows.iter().find(|other| other.case == row.case && other.op == "unpack");
        for row in [Some(row), unpack].into_iter().flatten() {
            cells.extend([Rate(row.gbps).to_string(), spread(&row.seconds), ratio(row, "memcpy")]);
        }
        text += &line(&cells);
    }
    text + "\nSmaller layouts are in the report.\n"
}

fn transfer(report: &Report) -> String {
    let mut text =
        head(&["layouts", "payload", "GB/s", "spread", "resident", "÷ memcpy", "÷ pack+unpack"]);
    for row in &report.rows {
        text += &line(&[
            row.case.clone(),
            Bytes(row.payload_bytes).to_string(),
            Rate(row.gbps).to_string(),
            spread(&row.seconds),
            row.resident_gbps.map_or("-".to_owned(), |rate| Rate(rate).to_string()),
            ratio(row, "memcpy"),
            ratio(row, "pack+unpack"),
        ]);
    }
    text
}

/// Times by a count that ends each case's name, one column for each kind and operation.
fn by_count(report: &Report, what: &str) -> String {
    let split = |row: &Row| {
        let (kind, count) = row.case.split_once(' ').unwrap_or((&row.case, ""));
        let count = count.rsplit('=').next().unwrap_or_default().to_owned();
        (format!("{kind}, {}", row.op), count)
    };
    let (mut columns, mut counts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (column, count) in report.rows.iter().map(split) {
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !counts.contains(&count) {
            counts.push(count);
        }
    }
    let headings: Vec<&str> =
        [what].into_iter().chain(columns.iter().map(String::as_str)).collect();
    let mut text = head(&headings);
    for count in counts {
        let cells = columns.iter().map(|column| {
            let key = (column.clone(), count.clone());
            let row = report.rows.iter().find(|row| split(row) == key);
            row.map_or("-".to_owned(), |row| Time(row.seconds.median).to_string())
        });
        let cells: Vec<String> = [count.clone()].into_iter().chain(cells).collect();
        text += &line(&cells);
    }
    text
}

/// What is chosen by itself: times of each layout by payload, with the ratio to `memcpy`.
fn oneway(report: &Report) -> String {
    let asked = |row: &Row| row.extra.get("asked").and_then(|way| way.as_str()) == Some("auto");
    let rows: Vec<&Row> = report.rows.iter().filter(|row| asked(row)).collect();
    let mut text = head(&[
        "message",
        "payload",
        "protocol",
        "time",
        "spread",
        "GB/s",
        "resident",
        "÷ memcpy",
        "÷ contiguous",
    ]);
    for row in rows {
        text += &line(&[
            row.case.clone(),
            Bytes(row.payload_bytes).to_string(),
            row.protocol.clone(),
            Time(row.seconds.median).to_string(),
            spread(&row.seconds),
            Rate(row.gbps).to_string(),
            row.resident_gbps.map_or("-".to_owned(), |rate| Rate(rate).to_string()),
            ratio(row, "memcpy"),
            ratio(row, "contiguous"),
        ]);
    }
    text + "\nOrdinary memory and each protocol by force are in the report and the plots.\n"
}

/// Year, month and day in UTC (Hinnant, "chrono-compatible low-level date algorithms": years begin in
/// March, so that leap days come last).
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 { march_based + 3 } else { march_based - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_709_251_200, "2024-03-01"),
            (4_102_444_799, "2099-12-31"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("document.md");
        fs::write(&document, format!("before\n{BEGIN}\nold\n{END}\nafter\n")).unwrap();
        update(folder.path(), &document).unwrap();
        update(folder.path(), &document).unwrap();
        let text = fs::read_to_string(&document).unwrap();
        assert_eq!(text, format!("before\n{BEGIN}\n\n{END}\nafter\n"));
        fs::write(&document, "no marks").unwrap();
        assert!(matches!(update(folder.path(), &document), Err(Failure::NoMarks { .. })));
    }
}
