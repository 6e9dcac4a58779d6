//! One page of several reports: pictures and tables in a single HTML file. It needs no network, no script and no other
//! file, and can be printed.

use std::fmt::Write as _;
use std::path::Path;

use crate::compared::Compared;
use crate::file::FileError;
use crate::plot::{PlotError, escaped};
use crate::schema::Report;
use crate::table::{Align, Table};

/// What a page can hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// What a measuring program wrote.
    Report(Box<Report>),
    /// Ratios of speed to several others.
    Compared(Compared),
}

impl Document {
    /// Reads either kind of file; a report is validated.
    ///
    /// # Errors
    /// [`FileError`], naming the path: it cannot be read, is neither, or its figures contradict each other.
    pub fn read_json(path: impl AsRef<Path>) -> Result<Document, FileError> {
        let path = path.as_ref();
        match Report::read_json(path) {
            Ok(report) => Ok(Document::Report(Box::new(report))),
            // What has rows of work is the other kind; of everything else, the first error says what is wrong.
            Err(error @ FileError::Json { .. }) => {
                Compared::read_json(path).map(Document::Compared).map_err(|_| error)
            }
            Err(error) => Err(error),
        }
    }

    fn heading(&self) -> &str {
        match self {
            Document::Report(report) => &report.experiment,
            Document::Compared(compared) => compared.title(),
        }
    }

    /// What is said of where it comes from.
    fn origin(&self) -> Vec<(&'static str, String)> {
        match self {
            Document::Report(report) => vec![
                ("machine", report.machine.one_line()),
                ("commit", report.commit.clone()),
                ("command", report.command.clone()),
            ],
            Document::Compared(compared) => vec![
                ("machine", compared.cpu.clone()),
                ("commit", compared.commit.clone()),
                ("command", compared.command.clone()),
            ],
        }
    }

    /// Its pictures, the most telling first.
    fn pictures(&self) -> Result<Vec<String>, PlotError> {
        match self {
            Document::Report(report) => {
                let rated = report.rows.iter().any(|row| row.payload_bytes > 0);
                let mut pictures: Vec<String> = report.growth_svg()?.into_iter().collect();
                if pictures.is_empty() && rated {
                    pictures = report.to_svgs()?;
                    pictures.extend(report.latency_svgs()?);
                }
                pictures.extend(report.ratio_svgs()?);
                Ok(pictures)
            }
            Document::Compared(compared) if compared.names().is_empty() => Ok(Vec::new()),
            Document::Compared(compared) => compared.to_svgs(),
        }
    }

    fn table(&self) -> Table {
        match self {
            Document::Report(report) => report.table(),
            Document::Compared(compared) => compared.table(),
        }
    }
}

/// Pictures of a document that are seen without a click.
const PICTURES_OPEN: usize = 4;

/// How it looks, on a screen and on paper.
const STYLE: &str = "\
:root{color-scheme:light}
body{font:15px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}
nav ul{columns:2;padding-left:1.2rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:#666}dd{margin:0;overflow-wrap:anywhere}
code{font:13px ui-monospace,monospace}
figure{margin:1rem 0}figure svg{max-width:100%;height:auto;display:block}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.15rem .6rem;text-align:left;white-space:nowrap}th{border-bottom:2px solid #888;position:sticky;top:0;background:#fff}
tr:nth-child(even) td{background:#f5f5f5}.n{text-align:right}
summary{cursor:pointer;color:#336}
@media print{body{max-width:none;margin:0}figure{break-inside:avoid}tr{break-inside:avoid}}
";

/// The page: `title`, then each document with the name of its file, its machine, commit and command, its pictures, and
/// its figures as a table.
///
/// ```
/// # use gapless_report::{Document, Machine, Report, Row, Samples, html};
/// let time = Samples::from_seconds([2.0e-6]).summary()?;
/// let row = Row::new("V n=64", "pack", "host", "cpu", 32_768, time).verified(true);
/// let report = Report::new("pack", Machine::describe(), "cargo bench", vec![row]);
/// let page = html("Packing", &[("pack.json".to_owned(), Document::Report(Box::new(report)))])?;
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PlotError`] when a figure has no place on its axes.
pub fn html(title: &str, documents: &[(String, Document)]) -> Result<String, PlotError> {
    let title = escaped(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    if documents.len() > 1 {
        page += "<nav><ul>\n";
        for (at, (name, document)) in documents.iter().enumerate() {
            let (heading, name) = (escaped(document.heading()), escaped(name));
            let _ =
                writeln!(page, "<li><a href=\"#d{at}\">{heading}</a> <small>{name}</small></li>");
        }
        page += "</ul></nav>\n";
    }
    for (at, (name, document)) in documents.iter().enumerate() {
        section(&mut page, at, name, document)?;
    }
    page += "</body>\n</html>\n";
    Ok(page)
}

fn section(page: &mut String, at: usize, name: &str, document: &Document) -> Result<(), PlotError> {
    let _ =
        writeln!(page, "<section id=\"d{at}\">\n<h2>{}</h2>\n<dl>", escaped(document.heading()));
    let file = [("file", name.to_owned())];
    for (what, text) in file.into_iter().chain(document.origin()) {
        let _ = writeln!(page, "<dt>{what}</dt><dd><code>{}</code></dd>", escaped(&text));
    }
    *page += "</dl>\n";
    let pictures = document.pictures()?;
    for (number, picture) in pictures.iter().enumerate() {
        if number == PICTURES_OPEN {
            let more = pictures.len() - PICTURES_OPEN;
            let _ = writeln!(page, "<details><summary>{more} more pictures</summary>");
        }
        let _ =
            writeln!(page, "<figure>\n{}</figure>", inline(picture, &format!("d{at}-{number}-")));
    }
    if pictures.len() > PICTURES_OPEN {
        *page += "</details>\n";
    }
    let table = document.table();
    let rows = table.rows().len();
    let few = if rows <= 30 { " open" } else { "" };
    let _ = writeln!(
        page,
        "<details{few}><summary>{rows} figures</summary>\n<div class=\"wide\"><table>\n<tr>"
    );
    let class = |align: &Align| if *align == Align::Right { " class=\"n\"" } else { "" };
    for (heading, align) in table.columns() {
        let _ = write!(page, "<th{}>{}</th>", class(align), escaped(heading));
    }
    *page += "</tr>\n";
    for row in table.rows() {
        *page += "<tr>";
        for (cell, (_, align)) in row.iter().zip(table.columns()) {
            let _ = write!(page, "<td{}>{}</td>", class(align), escaped(cell));
        }
        *page += "</tr>\n";
    }
    *page += "</table></div></details>\n";
    if let Document::Report(report) = document
        && !report.absent.is_empty()
    {
        *page += "<p>Not measured:</p>\n<ul>\n";
        for absent in &report.absent {
            let why = escaped(&format!("{} {}: {}", absent.case, absent.op, absent.why));
            let _ = writeln!(page, "<li>{why}</li>");
        }
        *page += "</ul>\n";
    }
    *page += "</section>\n";
    Ok(())
}

/// A picture inside a page: its names begin with `prefix`, as those of two pictures must differ, and it shrinks with
/// the page.
fn inline(svg: &str, prefix: &str) -> String {
    let renamed = svg
        .replace(" id=\"", &format!(" id=\"{prefix}"))
        .replace("url(#", &format!("url(#{prefix}"));
    let Some((head, _)) = renamed.split_once('>').filter(|(head, _)| !head.contains("viewBox"))
    else {
        return renamed;
    };
    let size = |name: &str| {
        let (_, rest) = head.split_once(&format!(" {name}=\""))?;
        rest.split('"').next()?.parse::<f64>().ok()
    };
    match (size("width"), size("height")) {
        (Some(width), Some(height)) => {
            renamed.replacen("<svg ", &format!("<svg viewBox=\"0 0 {width} {height}\" "), 1)
        }
        _ => renamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Absent, Machine, Row, Samples};

    fn report(cases: &[(&str, u64)]) -> Document {
        let time = |seconds| Samples::from_seconds([seconds]).summary().unwrap();
        let row = |(case, bytes): &(&str, u64)| {
            Row::new(*case, "oneway", "host", "eager", *bytes, time(2e-6))
                .against("memcpy", time(1e-6))
        };
        let rows = cases.iter().map(row).collect();
        let machine = Machine { cpu: "A <fast> CPU".to_owned(), ..Machine::default() };
        let absent =
            Absent { case: "T".into(), op: "pack".into(), why: "no GPU".into(), failed: false };
        let report = Report::new("one way", machine, "gapless pingpong", rows).absent(vec![absent]);
        Document::Report(Box::new(report))
    }

    fn page(documents: &[(String, Document)]) -> String {
        html("A & B", documents).unwrap()
    }

    #[test]
    fn a_page_holds_all_and_needs_nothing_else() {
        let swept = report(&[("V n=1", 64), ("V n=2", 4096)]);
        let page = page(&[("a.json".into(), swept), ("b.json".into(), report(&[("T n=9", 640)]))]);
        for part in [
            "<title>A &amp; B</title>",
            "A &lt;fast&gt; CPU",
            "gapless pingpong",
            "a.json",
            "href=\"#d1\"",
            "time (ns), logarithmic",
            "GB/s (payload)",
            "÷ memcpy",
            "<td>V n=2</td>",
            "<td class=\"n\">4 KiB</td>",
            "<li>T pack: no GPU</li>",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // Rates, latencies and ratios of the first; rates and ratios of the second.
        assert_eq!(page.matches("<svg").count(), 5);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("@import"));
        let links = page.matches("http").count();
        assert_eq!(links, page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    }

    #[test]
    fn names_in_pictures_are_their_own() {
        let page = page(&[("a".into(), report(&[("V", 64)])), ("b".into(), report(&[("V", 64)]))]);
        let ids: Vec<&str> =
            page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
        for used in page.split("url(#").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            assert!(ids.contains(&used), "{used}");
        }
        assert_eq!(page.matches("viewBox=\"0 0 820 ").count(), page.matches("<svg").count());
    }

    #[test]
    fn what_has_no_payload_is_a_table() {
        let page = page(&[("a".into(), report(&[("match n=1", 0)]))]);
        assert!(page.contains("<td>match n=1</td>") && !page.contains("GB/s (payload)"));
    }

    #[test]
    fn both_kinds_of_files_are_read_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.json");
        let Document::Report(written) = report(&[("V", 64)]) else { unreachable!() };
        written.write_json(&path).unwrap();
        assert!(matches!(Document::read_json(&path), Ok(Document::Report(_))));
        let compared = r#"{"command": "c", "commit": "0", "cpu": "x", "rows": [{"work": "w", "seconds": 1e-6}]}"#;
        std::fs::write(&path, compared).unwrap();
        let read = Document::read_json(&path).unwrap();
        assert!(page(&[("f".into(), read)]).contains("<td>w</td>"));
        std::fs::write(&path, "{}").unwrap();
        let error = Document::read_json(&path).unwrap_err().to_string();
        assert!(error.contains("file.json is no report: missing field `experiment`"), "{error}");
    }
}
