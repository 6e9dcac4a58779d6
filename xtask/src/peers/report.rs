//! What a run leaves behind: a file, figures, and a part of a document. Units: bytes, seconds.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use gapless_report::{RatioRow, Spread, Time, ratios};
use serde::{Deserialize, Serialize};

use super::work::{Ratio, Row};
use super::{Program, at};
use crate::Failure;

/// The lines before and behind our part of the document.
const BEGIN: &str = "<!-- peers: begin -->";
const END: &str = "<!-- peers: end -->";

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) what: String,
    pub(super) command: String,
    pub(super) commit: String,
    pub(super) date: String,
    pub(super) cpu: String,
    pub(super) processors: usize,
    /// Before the first piece of work, and after the last: processes that wanted a processor.
    pub(super) load_average: [String; 2],
    pub(super) openmpi: String,
    pub(super) mpich: String,
    pub(super) rows: Vec<Row>,
    /// What a library failed at.
    pub(super) not_measured: Vec<String>,
}

/// Rows that are shown together.
struct Family {
    name: &'static str,
    title: &'static str,
    holds: fn(&str) -> bool,
}

const FAMILIES: [Family; 12] = [
    Family {
        name: "pack",
        title: "packing",
        holds: |work| work.starts_with("pack ") && !is_sparse(work),
    },
    Family {
        name: "unpack",
        title: "unpacking",
        holds: |work| work.starts_with("unpack ") && !is_sparse(work),
    },
    Family {
        name: "lists",
        title: "index lists and x-faces",
        holds: |work| work.contains("pack ") && is_sparse(work),
    },
    Family {
        name: "types",
        title: "making types: an indexed block of so many single doubles",
        holds: |work| work.starts_with("commit ") || work.starts_with("create "),
    },
    Family {
        name: "message",
        title: "messages between two processes, ordinary memory",
        holds: |work| {
            let verbs = ["message ", "anew ", "rate "];
            verbs.iter().any(|verb| work.starts_with(verb))
        },
    },
    Family {
        name: "message-alloc",
        title: "messages out of and into `World::alloc` memory (peers: ordinary memory)",
        holds: |work| work.starts_with("message-alloc "),
    },
    Family {
        name: "window",
        title: "one-sided operations on a passive target",
        holds: |work| work.starts_with("window "),
    },
    Family {
        name: "mixture",
        title: "16 different short collectives on 3 communicators in turn; the same each repeated",
        holds: |work| work.starts_with("mixture "),
    },
    Family {
        name: "coll-combining",
        title: "collectives that combine, to the last rank's end",
        holds: |work| is_one_of(work, &["reduce", "allreduce", "reduce_scatter_block", "scan"]),
    },
    Family {
        name: "coll-moving",
        title: "collectives that move, to the last rank's end",
        holds: |work| {
            is_one_of(work, &["barrier", "bcast", "gather", "scatter", "allgather", "alltoall"])
        },
    },
    Family {
        name: "coll-comb",
        title: "collectives on every other double, to the last rank's end",
        holds: |work| work.starts_with("coll ") && work.contains(" comb "),
    },
    Family {
        name: "coll-alloc",
        title: "collectives on `World::alloc` memory (peers: ordinary memory), to the last rank's end",
        holds: |work| work.starts_with("coll-alloc "),
    },
];

/// Whether the work is a collective of one of these, on doubles without gaps.
fn is_one_of(work: &str, operations: &[&str]) -> bool {
    let operation = work.strip_prefix("coll ").filter(|work| !work.contains(" comb "));
    operation.and_then(|work| work.split(' ').next()).is_some_and(|name| operations.contains(&name))
}

fn is_sparse(work: &str) -> bool {
    ["list", "block", "xface"].iter().any(|layout| work.contains(layout))
}

/// Processes that want a processor, over the last minutes.
pub(super) fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

impl Report {
    /// Describes the machine and the run.
    pub(super) fn new(programs: &[Program], command: String, before: String) -> Report {
        let said = |program: &Path, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments);
            let text = command.output().map(|output| output.stdout).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        // Both launchers have a number with a point in it first of all, but words around it of their own.
        let version = |name: &str, i: usize| {
            let text = said(&programs[i].launcher, &["--version"]);
            let number =
                |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
            format!(
                "{name} {}",
                text.split_whitespace().find(number).unwrap_or("of no known version")
            )
        };
        // `gapless 0.1.0 (35bc120)`: the commit that our programs were built of.
        let ours = said(&programs[0].launcher, &["--version"]);
        let commit = ours.split_once('(').and_then(|(_, rest)| rest.trim().strip_suffix(')'));
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        Report {
            what: "ratios of speed: Gapless over memcpy, Open MPI and MPICH, medians over rounds"
                .to_owned(),
            command,
            commit: commit.unwrap_or("unknown").to_owned(),
            date: said(Path::new("date"), &["+%F"]).trim().to_owned(),
            cpu: cpu.trim_start_matches([' ', '\t', ':']).to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load_average: [before, load()],
            openmpi: version("Open MPI", 1),
            mpich: version("MPICH", 2),
            rows: Vec::new(),
            not_measured: Vec::new(),
        }
    }

    /// Reads what [`Report::write`] wrote.
    pub(super) fn read(path: &Path) -> Result<Report, Failure> {
        let text = fs::read_to_string(path).map_err(at(path))?;
        serde_json::from_str(&text).map_err(|error| at(path)(error.into()))
    }

    /// Writes `peers.json` and a figure of each family to `folder`.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Failure> {
        fs::create_dir_all(folder).map_err(at(folder))?;
        self.write_json(&folder.join("peers.json"))?;
        self.write_figures(folder)
    }

    /// Writes the report alone.
    pub(super) fn write_json(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(|error| at(path)(error.into()))?;
        fs::write(path, text + "\n").map_err(at(path))?;
        println!("written to {}", path.display());
        Ok(())
    }

    /// Writes the figures of each family that has rows.
    pub(super) fn write_figures(&self, folder: &Path) -> Result<(), Failure> {
        for family in &FAMILIES {
            for (name, figure) in self.figures(family)? {
                let path = folder.join(name);
                fs::write(&path, figure).map_err(at(&path))?;
                println!("written to {}", path.display());
            }
        }
        Ok(())
    }

    /// The figures of a family, one a page, and the names of their files.
    fn figures(&self, family: &Family) -> Result<Vec<(String, String)>, Failure> {
        let rows: Vec<RatioRow> = self
            .of(family)
            .map(|Row { work, ratios, met, .. }| RatioRow {
                label: named(work),
                met: *met,
                ratios: [ratios.memcpy, ratios.openmpi, ratios.mpich].map(drawn).to_vec(),
            })
            .collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let (title, name) = (family.title.replace('`', ""), family.name);
        let pages = ratios(&title, &["memcpy", "Open MPI", "MPICH"], &rows)
            .map_err(|error| at(Path::new(name))(std::io::Error::other(error)))?;
        let file = |number: usize| match pages.len() {
            1 => format!("peers-{name}.svg"),
            _ => format!("peers-{name}-{number}.svg"),
        };
        let files: Vec<String> = (1..=pages.len()).map(file).collect();
        Ok(files.into_iter().zip(pages).collect())
    }

    fn of(&self, family: &Family) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| (family.holds)(&row.work))
    }

    /// Marks met, marks, and how many of those that are missed memory does not allow.
    pub(super) fn marks(&self) -> (usize, usize, usize) {
        let marked = self.rows.iter().filter(|row| row.met.is_some());
        let beyond = self.rows.iter().filter(|row| row.beyond_floor).count();
        (marked.clone().filter(|row| row.met == Some(true)).count(), marked.count(), beyond)
    }

    /// The tables, with links to the figures, which lie beside the document.
    fn markdown(&self) -> Result<String, Failure> {
        let mut text = String::new();
        let (met, marks, beyond) = self.marks();
        let _ = write!(
            text,
            "`{}` at {}, {}; {}, {} processors, load average {} before and {} after. {}; {}.\n\n\
             {met} of {marks} marks are met; {beyond} of those missed ask for more than memory allows.\n",
            self.command,
            self.commit,
            self.date,
            self.cpu,
            self.processors,
            self.load_average[0],
            self.load_average[1],
            self.openmpi,
            self.mpich,
        );
        if !self.not_measured.is_empty() {
            let _ = write!(text, "\nNot measured: {}.\n", self.not_measured.join("; "));
        }
        for family in &FAMILIES {
            let figures = self.figures(family)?;
            if figures.is_empty() {
                continue;
            }
            let _ = write!(text, "\n### {}\n\n", family.title);
            for (file, _) in figures {
                let _ = writeln!(text, "![{}]({file})", family.name);
            }
            text += "\n| work | time | ÷ memcpy | ÷ Open MPI | ÷ MPICH | most ÷ memcpy | mark | |\n\
                     | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |\n";
            self.of(family).for_each(|row| text += &table_row(row));
        }
        Ok(text)
    }

    /// Puts the tables between the marks of `document`.
    pub(super) fn put_into(&self, document: &Path) -> Result<(), Failure> {
        let text = fs::read_to_string(document).map_err(at(document))?;
        let Some(text) = replaced(&text, &self.markdown()?) else {
            let what = format!("the lines {BEGIN} and {END} in {}", document.display());
            return Err(Failure::Missing(what));
        };
        fs::write(document, text).map_err(at(document))?;
        println!("tables put into {}", document.display());
        Ok(())
    }
}

/// A ratio, and its quartiles.
fn drawn(Ratio { median, spread }: Ratio) -> Option<Spread> {
    let [low, high] = [1.0 - spread, 1.0 + spread].map(|end| (median * end).max(0.0));
    Some(Spread { median, low, high })
}

/// `document` with `part` between the marks, if it has them.
fn replaced(document: &str, part: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{part}\n{END}{after}"))
}

fn table_row(row: &Row) -> String {
    let part = |ratio: Ratio| format!("{:.2} ±{:.0} %", ratio.median, 100.0 * ratio.spread);
    let ratios = &row.ratios;
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        named(&row.work),
        Time(ratios.seconds),
        part(ratios.memcpy),
        part(ratios.openmpi),
        part(ratios.mpich),
        row.floor.map_or_else(String::new, |floor| format!("{:.2}", floor.over_memcpy)),
        row.mark.as_deref().unwrap_or_default().replace(">=", "≥").replace("<=", "≤"),
        row.verdict(),
    )
}

/// The work, with its bytes as people write them.
pub(super) fn named(work: &str) -> String {
    let human = |word: &str| match word.parse::<u64>() {
        Ok(bytes) if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", bytes >> 20)
        }
        Ok(bytes) if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{} KiB", bytes >> 10)
        }
        _ => word.to_owned(),
    };
    work.split(' ').map(human).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::work::{self, Ratios, Times};
    use super::*;

    fn report() -> Report {
        let times = |work| Times { work, memcpy: 1e-6, lines: 262_144 };
        let ratios = Ratios::of(&[vec![times(1e-5), times(2e-5), times(3e-5)]]);
        let mut everything = [1, 2].map(|ranks| work::list(ranks, false)).concat();
        everything.extend(work::collectives(4, false));
        Report {
            what: String::new(),
            command: "cargo xtask peers".to_owned(),
            commit: "abc".to_owned(),
            date: "2026-01-01".to_owned(),
            cpu: "a processor".to_owned(),
            processors: 2,
            load_average: ["0".to_owned(), "1".to_owned()],
            openmpi: String::new(),
            mpich: String::new(),
            rows: everything.iter().map(|work| Row::new(work, ratios)).collect(),
            not_measured: vec!["pack V 1: said nothing".to_owned()],
        }
    }

    #[test]
    fn every_row_is_in_one_family() {
        for row in report().rows {
            let families = FAMILIES.iter().filter(|family| (family.holds)(&row.work)).count();
            assert_eq!(families, 1, "{}", row.work);
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        report().write(folder.path()).unwrap();
        let read = Report::read(&folder.path().join("peers.json")).unwrap();
        // Numbers may differ in the last place.
        let lines = |report: Report| report.rows.iter().map(Row::line).collect::<Vec<_>>();
        assert_eq!(lines(read), lines(report()));
        for family in FAMILIES {
            let figure = folder.path().join(format!("peers-{}.svg", family.name));
            assert!(fs::read_to_string(figure).unwrap().starts_with("<svg"));
        }
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let text = replaced(&document, &report().markdown().unwrap()).unwrap();
        assert!(text.starts_with("before\n<!-- peers: begin -->\n\n`cargo xtask peers` at abc"));
        assert!(text.ends_with("\n<!-- peers: end -->\nafter\n") && !text.contains("old"));
        assert!(text.contains("| pack xface 8 MiB | 10.0 µs | 0.10 ±0 % |"));
        assert!(text.contains("(peers-lists.svg)") && text.contains("pack V 1: said"));
        let again = replaced(&text, &report().markdown().unwrap()).unwrap();
        assert_eq!(again, text);
        assert_eq!(replaced("no marks", ""), None);
    }

    #[test]
    fn the_tables_are_those_of_the_committed_report() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/results/cpu"));
        let report = Report::read(&folder.join("peers.json")).unwrap();
        let text = fs::read_to_string(folder.join("README.md")).unwrap();
        let now = replaced(&text, &report.markdown().unwrap()).unwrap();
        assert!(text == now, "run: cargo xtask peers --from bench/results/cpu/peers.json");
    }

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(named("pack V 65536"), "pack V 64 KiB");
        assert_eq!(named("message contiguous 1"), "message contiguous 1");
        assert_eq!(named("pack xface 8388608"), "pack xface 8 MiB");
    }
}
