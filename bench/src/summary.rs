//! The tables of a folder of reports, taken from the reports and from nowhere else.
//!
//! `figures summary --out bench/results/cpu` replaces what stands between two marks of `README.md` in that folder; a
//! folder without one gets one. Reports that are not there are left out. [`crate::page`] fills the marks of
//! `BENCHMARKS.md` in the same way.

use std::fs;
use std::path::Path;

use gapless_report::{Bytes, Rate, Report, Row, Summary, Time, write_atomically};

use crate::age::dated;
use crate::error::Failure;
use crate::experiments::ALL;

/// The document in a folder of reports.
const DOCUMENT: &str = "README.md";

/// The line before what is generated; a document with several parts names them.
#[must_use]
pub fn begin(section: &str) -> String {
    format!("<!-- figures{}: begin -->", named(section))
}

/// The line after it.
#[must_use]
pub fn end(section: &str) -> String {
    format!("<!-- figures{}: end -->", named(section))
}

fn named(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!(" {section}") }
}

/// Payloads below this are in the reports only.
const PACK_BYTES_MIN: u64 = 1 << 20;

/// Puts the tables of the reports in `folder` into the document there.
///
/// # Errors
/// A report that does not hold together, a document that has no marks or cannot be written.
pub fn update(folder: &Path) -> Result<(), Failure> {
    let document = folder.join(DOCUMENT);
    if !document.exists() {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let text = format!("# Results: {name}\n\n{}\n{}\n", begin(""), end(""));
        write_atomically(&document, text.as_bytes())?;
    }
    let text = fs::read_to_string(&document).map_err(Failure::io("read", &document))?;
    let text = replaced(&text, &document, "", &of(folder)?)?;
    Ok(write_atomically(&document, text.as_bytes())?)
}

/// `text`, which `document` has, with `part` between the marks of `section`.
///
/// # Errors
/// There are no such marks.
pub(crate) fn replaced(
    text: &str,
    document: &Path,
    section: &str,
    part: &str,
) -> Result<String, Failure> {
    let (first, last) = (begin(section), end(section));
    let no_marks =
        || Failure::NoMarks { path: document.to_owned(), begin: first.clone(), end: last.clone() };
    let begin = text.find(&first).ok_or_else(no_marks)? + first.len();
    let end = begin + text[begin..].find(&last).ok_or_else(no_marks)?;
    Ok(format!("{}\n\n{part}{}", &text[..begin], &text[end..]))
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
        text += &format!("### {}: {}\n\n{}.\n\n", entry.name, entry.about, origin(&report, folder));
        for drawing in drawings(folder, entry.name)? {
            text += &format!("![{drawing}]({drawing}.svg)\n\n");
        }
        text += &match entry.name {
            "pack" => pack(&report),
            "transfer" => transfer(&report),
            "position" => by_count(&report, "blocks"),
            "matching" => by_count(&report, "outstanding"),
            "oneway" => oneway(&report),
            "gpu" => gpu(&report),
            "wu7" | "wu8" | "wu13" | "wu14" | "wu15" => brief(&report),
            "p2p-matrix" => by_protocol(&report),
            "p2p" | "wu9" | "wu10" | "wu11" | "wu12" => p2p(&report),
            "wu10-net" | "wu11-net" | "wu12-net" | "wu15-net" => p2p(&report),
            "scale" => crate::experiments::scale::summary(&report),
            "wu6" => gpu_rows(report.rows.iter()),
            "xtq7" => crate::experiments::xtq7::phases(&report),
            "xtq8" => crate::experiments::xtq8::table(&report),
            "xtq9" => crate::experiments::xtq9::tables(&report),
            "xtq10" => crate::experiments::xtq10::summary_of(&report),
            _ => format!("```text\n{}```\n", report.table()),
        };
        text.push('\n');
    }
    Ok(text)
}

/// The command, the commit with its age, and the machine of a report in `folder`.
pub(crate) fn origin(report: &Report, folder: &Path) -> String {
    format!("`{}` at {}; {}", report.command, dated(&report.commit, folder), machine(report))
}

/// The names of an experiment's plots in `folder`, sorted.
pub(crate) fn drawings(folder: &Path, name: &str) -> Result<Vec<String>, Failure> {
    let is_of = |stem: &str, name: &str| {
        stem.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let longer = |stem: &str| {
        ALL.iter().any(|other| other.name.len() > name.len() && is_of(stem, other.name))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::io("read", folder))? {
        let path = entry.map_err(Failure::io("read", folder))?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|kind| kind == "svg")
            && is_of(&stem, name)
            && !longer(&stem)
        {
            found.push(stem.into_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// Every row in a line of its own: what the pictures show.
fn brief(report: &Report) -> String {
    let mut text = head(&["case", "op", "way", "time", "spread", "GB/s", "÷ reference"]);
    for row in &report.rows {
        let ratio = row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        text += &line(&[
            row.case.clone(),
            row.op.clone(),
            row.protocol.clone(),
            Time(row.seconds.median).to_string(),
            spread(&row.seconds),
            Rate(row.gbps).to_string(),
            ratio,
        ]);
    }
    text
}

/// The marks first, then the engine's rows, then what users do without it.
fn gpu(report: &Report) -> String {
    let (met, all, missed) = crate::gpu::aims::tally(&report.rows);
    let failed = report.absent.iter().filter(|absent| absent.failed).count();
    let mut text = format!("**{met} of {all} marks met**, {failed} rows failed.\n\n");
    if !missed.is_empty() {
        text += "Missed:\n\n";
        text += &missed.iter().map(|missed| format!("- {missed}\n")).collect::<String>();
        text.push('\n');
    }
    let baseline = |row: &&Row| row.extra.contains_key("baseline");
    let small = |row: &&Row| row.case.starts_with("app ") && row.payload_bytes < PACK_BYTES_MIN;
    text += &gpu_rows(report.rows.iter().filter(|row| !baseline(row) && !small(row)));
    if report.rows.iter().any(|row| small(&row)) {
        text += "\nApplication layouts below 1 MiB are in the report.\n";
    }
    let baselines: Vec<&Row> = report.rows.iter().filter(baseline).collect();
    if baselines.is_empty() {
        return text;
    }
    text += "\nWithout a datatype engine:\n\n";
    text += &head(&["case", "op", "by", "time", "GB/s", "÷ own bound", ""]);
    for row in baselines {
        let flag = if row.extra.contains_key("crippled") { "crippled" } else { "" };
        text += &line(&[
            row.case.clone(),
            row.op.clone(),
            row.protocol.clone(),
            Time(row.seconds.median).to_string(),
            Rate(row.gbps).to_string(),
            ratio(row, "own bound"),
            flag.to_owned(),
        ]);
    }
    text
}

/// Messages between GPUs: the marks first, if there are any, then every row.
fn p2p(report: &Report) -> String {
    let (met, all, void, missed) = crate::p2p::marks::tally(&report.rows);
    let failed = report.absent.iter().filter(|absent| absent.failed).count();
    let mut text = String::new();
    if all > 0 {
        text += &format!("**{met} of {all} marks met**, {void} void, {failed} rows failed.\n\n");
    }
    if !missed.is_empty() {
        text += "Missed:\n\n";
        text += &missed.iter().map(|missed| format!("- {missed}\n")).collect::<String>();
        text.push('\n');
    }
    let latencies: Vec<String> =
        report.rows.iter().filter_map(crate::p2p::marks::breakdown).collect();
    if !latencies.is_empty() {
        text += &latencies.iter().map(|told| format!("- {told}\n")).collect::<String>();
        text.push('\n');
    }
    text += &head(&[
        "message",
        "op",
        "between",
        "payload",
        "protocol",
        "time",
        "spread",
        "GB/s",
        "÷ reference",
        "÷ other",
        "peers, quoted GB/s",
        "mark",
    ]);
    for row in &report.rows {
        let first = row.reference.as_deref().zip(row.ratio);
        let others: Vec<String> = row
            .others
            .iter()
            .map(|other| format!("{} {:.2}", other.reference, other.ratio))
            .collect();
        let quoted = row.extra.get("quoted_gbps").and_then(|it| it.as_object());
        let quoted: Vec<String> =
            quoted.into_iter().flatten().map(|(peer, gbps)| format!("{peer} {gbps}")).collect();
        let void = row.extra.contains_key(crate::p2p::marks::VOID);
        let mark = match row.met() {
            None => "-",
            Some(true) => "met",
            Some(false) if void => "void",
            Some(false) => "missed",
        };
        text += &line(&[
            row.case.clone(),
            row.op.clone(),
            row.space.clone(),
            Bytes(row.payload_bytes).to_string(),
            row.protocol.clone(),
            Time(row.seconds.median).to_string(),
            spread(&row.seconds),
            Rate(row.gbps).to_string(),
            first.map_or("-".to_owned(), |(name, ratio)| format!("{name} {ratio:.2}")),
            or_none(others),
            or_none(quoted),
            mark.to_owned(),
        ]);
    }
    text
}

/// GB/s of each message, by the protocol that it was to take; what took another is in brackets.
fn by_protocol(report: &Report) -> String {
    const CHOSEN: &str = "chosen";
    let split = |row: &Row| {
        let mut parts = row.op.split(", ").skip(1);
        let asked = parts.next().unwrap_or(CHOSEN).to_owned();
        let rest: Vec<&str> = parts.collect();
        let place = [&[row.case.as_str(), row.space.as_str()], &rest[..]].concat().join(", ");
        (place, asked)
    };
    let (mut places, mut ways): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (place, way) in report.rows.iter().map(split) {
        if !places.contains(&place) {
            places.push(place);
        }
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    let mut text =
        head(&[&["message"], &ways.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    for place in places {
        let cells = ways.iter().map(|way| {
            let key = (place.clone(), way.clone());
            let Some(row) = report.rows.iter().find(|row| split(row) == key) else {
                return "-".to_owned();
            };
            let rate = Rate(row.gbps);
            match row.protocol == *way {
                true => rate.to_string(),
                false => format!("{rate} ({})", row.protocol),
            }
        });
        text += &line(&[place.clone()].into_iter().chain(cells).collect::<Vec<_>>());
    }
    text
}

/// A list in a cell.
fn or_none(list: Vec<String>) -> String {
    if list.is_empty() { "-".to_owned() } else { list.join("; ") }
}

fn gpu_rows<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let mut text = head(&[
        "work",
        "op",
        "payload",
        "kernel",
        "device time",
        "spread",
        "GB/s",
        "÷ memcpy",
        "÷ contiguous",
        "÷ floor",
        "÷ other",
        "call",
        "peers, quoted GB/s",
        "mark",
    ]);
    for row in rows {
        let known = ["memcpy", "contiguous", "floor"];
        let others = row.others.iter().map(|other| (other.reference.as_str(), other.ratio));
        let first = row.reference.as_deref().zip(row.ratio);
        let others: Vec<String> = first
            .into_iter()
            .chain(others)
            .filter(|(name, _)| !known.contains(name))
            .map(|(name, ratio)| format!("{name} {ratio:.2}"))
            .collect();
        let call = row.extra.get("call_seconds").and_then(|it| it.as_f64());
        let quoted = row.extra.get("quoted_gbps").and_then(|it| it.as_object());
        let quoted: Vec<String> =
            quoted.into_iter().flatten().map(|(peer, gbps)| format!("{peer} {gbps}")).collect();
        let mark = row.met().map_or("-", |met| if met { "met" } else { "missed" });
        text += &line(&[
            row.case.clone(),
            row.op.clone(),
            Bytes(row.payload_bytes).to_string(),
            row.protocol.clone(),
            Time(row.seconds.median).to_string(),
            spread(&row.seconds),
            Rate(row.gbps).to_string(),
            ratio(row, "memcpy"),
            ratio(row, "contiguous"),
            ratio(row, "floor"),
            or_none(others),
            call.map_or("-".to_owned(), |call| Time(call).to_string()),
            or_none(quoted),
            mark.to_owned(),
        ]);
    }
    text
}

/// The machine without what identifies it.
fn machine(report: &Report) -> String {
    if let Some(gpu) = report.machine.gpus.first() {
        let many = report.machine.gpus.len();
        let several = if many > 1 { format!("{many} × ") } else { String::new() };
        return format!("{several}{}, {}", gpu.name, gpu.driver);
    }
    let machine = &report.machine;
    let cpus = machine.cpus_online.map_or("some".to_owned(), |n| n.to_string());
    let kind = if machine.virtual_machine { "virtual machine" } else { "machine" };
    let cache = machine.last_level_cache_bytes();
    let cache = cache.map_or("?".to_owned(), |bytes| Bytes(bytes).to_string());
    format!("{cpus}-core {} {kind}, last-level cache {cache}", machine.cpu)
}

pub(crate) fn head(columns: &[&str]) -> String {
    let rule: Vec<&str> =
        columns.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" }).collect();
    format!("| {} |\n| {} |\n", columns.join(" | "), rule.join(" | "))
}

pub(crate) fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn ratio(row: &Row, reference: &str) -> String {
    row.ratio_to(reference).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Half the distance between the quartiles, relative to the median.
pub(crate) fn spread(seconds: &Summary) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let document = Path::new("document.md");
        for section in ["", "gpu"] {
            let (first, last, other) = (begin(section), end(section), begin("other"));
            let before = format!("before\n{other}\n{first}\nold\n{last}\nafter\n");
            let once = replaced(&before, document, section, "new\n").unwrap();
            assert_eq!(once, format!("before\n{other}\n{first}\n\nnew\n{last}\nafter\n"));
            assert_eq!(replaced(&once, document, section, "new\n").unwrap(), once);
        }
        let wrong = replaced("no marks", document, "", "");
        assert!(matches!(wrong, Err(Failure::NoMarks { .. })));
    }

    #[test]
    fn a_folder_without_a_document_gets_one() {
        let folder = tempfile::tempdir().unwrap();
        update(folder.path()).unwrap();
        let document = folder.path().join(DOCUMENT);
        let text = fs::read_to_string(&document).unwrap();
        assert!(text.starts_with("# Results: "), "{text}");
        fs::write(&document, text + "mine\n").unwrap();
        update(folder.path()).unwrap();
        assert!(fs::read_to_string(&document).unwrap().ends_with("-->\nmine\n"));
    }

    #[test]
    fn plots_belong_to_the_experiment_with_the_longest_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p2p-v.svg", "p2p.svg", "p2p-matrix-v.svg", "p2p.json", "p2pq.svg"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(drawings(folder.path(), "p2p").unwrap(), ["p2p", "p2p-v"]);
        assert_eq!(drawings(folder.path(), "p2p-matrix").unwrap(), ["p2p-matrix-v"]);
    }

    #[test]
    fn a_matrix_has_a_column_for_each_way() {
        let time = gapless_report::Samples::from_seconds([1e-3]).summary().unwrap();
        let row = |op: &str, ran: &str| Row::new("V n=9", op, "cuda:0->cuda:1", ran, 1 << 20, time);
        let rows = vec![
            row("oneway", "mapped"),
            row("oneway, staged-put", "staged-put"),
            row("oneway, staged-put, 1 MiB × 4", "pipeline"),
        ];
        let report = Report::new("p2p-matrix", gapless_report::Machine::default(), "figures", rows);
        let text = by_protocol(&report);
        assert!(text.starts_with("| message | chosen | staged-put |\n"), "{text}");
        assert!(text.contains("| V n=9, cuda:0->cuda:1 | 1.05 (mapped) | 1.05 |"), "{text}");
        assert!(text.contains("1 MiB × 4 | - | 1.05 (pipeline) |"), "{text}");
    }

    #[test]
    fn a_gpu_report_says_what_was_missed_and_which_baseline_limps() {
        let time = |seconds| gapless_report::Samples::from_seconds([seconds]).summary().unwrap();
        let row = |case: &str, kernel: &str| {
            Row::new(case, "pack", "cuda:0", kernel, 1 << 20, time(1e-3)).verified(true)
        };
        let ours = row("V n=1024", "pack_rows_w16")
            .against("memcpy", time(0.9e-3))
            .against("bare launch", time(2e-3))
            .with("call_seconds", 2e-3)
            .mark(gapless_report::Mark::at_least("memcpy", 0.95, 0.9));
        let theirs = row("V n=1024", "cudaMemcpy2D").against_gbps("own bound", 10.0);
        let theirs = theirs.with("baseline", true).with("crippled", true);
        let machine = gapless_report::Machine::default();
        let text = gpu(&Report::new("gpu", machine, "figures gpu", vec![ours, theirs]));
        for part in [
            "**0 of 1 marks met**",
            "- V n=1024, pack: memcpy 0.900, asked ≥ 0.95",
            "| pack_rows_w16 |",
            "| bare launch 2.00 |",
            "| missed |",
            "| cudaMemcpy2D |",
            "| crippled |",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }
}
