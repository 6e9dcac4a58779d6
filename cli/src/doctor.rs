//! `gapless doctor`: what hinders speed or correctness on this machine, and the command or setting that mends it.
//!
//! `facts.rs` and `devices.rs` read what there is, and never fail: what cannot be read is not known. The checks in
//! `checks.rs` and `devices.rs` are pure functions of that.

mod checks;
mod devices;
mod facts;

use super::failure::Failure;
use super::say;
use facts::Facts;
use gapless::launch::RANKS_MAX;
use gapless_report::{folded, terminal_columns};
use serde_json::json;
use std::process::ExitCode;

/// What to look at, and how to say it.
#[derive(Debug, clap::Args)]
pub(super) struct Doctor {
    /// How many processes a job is to have on this machine
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2,
          value_parser = ranks)]
    ranks: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

fn ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|ranks| (1..=RANKS_MAX).contains(ranks));
    number.ok_or_else(|| format!("it is a whole number, 1 to {RANKS_MAX}"))
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckState {
    Ok,
    /// Something is slower than it could be, or fails for other libraries.
    Warn,
    /// Programs fail, or do not start.
    Problem,
}

impl CheckState {
    fn name(self) -> &'static str {
        match self {
            CheckState::Ok => "ok",
            CheckState::Warn => "warn",
            CheckState::Problem => "problem",
        }
    }
}

/// What one check says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    state: CheckState,
    found: String,
    why: &'static str,
    /// The command or setting that mends it; `None` if all is well or nothing can be done.
    mend: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, why: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, state: CheckState::Ok, found: found.into(), why, mend: None }
    }

    /// Not well, and what mends it.
    fn but(mut self, state: CheckState, mend: impl Into<String>) -> Finding {
        self.state = state;
        self.mend = Some(mend.into());
        self
    }
}

impl Doctor {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let facts = Facts::read(self.ranks);
        let mut findings = checks::all(&facts);
        findings.extend(devices::all(&facts.devices, self.ranks));
        let text = match self.json {
            true => as_json(&findings, self.ranks),
            false => as_text(&findings, terminal_columns()),
        };
        say(&text)?;
        let worst = findings.iter().map(|finding| finding.state).max();
        Ok(if worst == Some(CheckState::Problem) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn count(findings: &[Finding], state: CheckState) -> usize {
    findings.iter().filter(|finding| finding.state == state).count()
}

/// The longest name of a check, in characters.
const CHECK_WIDTH: usize = 15;
/// Where names of checks begin, and where what is found does.
const CHECK_AT: usize = "problem".len() + 2;
const FOUND_AT: usize = CHECK_AT + CHECK_WIDTH + 2;

fn as_text(findings: &[Finding], columns: Option<usize>) -> String {
    let columns = columns.unwrap_or(120);
    let mut text = String::new();
    let paragraph = |text: &mut String, mut heading: String, body: &str, at: usize| {
        for line in folded(body, columns.saturating_sub(at).max(20)).lines() {
            *text += &format!("{heading:<at$}{line}\n");
            heading.clear();
        }
    };
    for Finding { check, state, found, why, mend } in findings {
        let heading = format!("{:<7}  {check}", state.name());
        paragraph(&mut text, heading, found, FOUND_AT);
        if *state != CheckState::Ok {
            paragraph(&mut text, "  why".to_owned(), why, CHECK_AT);
        }
        if let Some(mend) = mend {
            // In one piece, so that it can be copied.
            text += &format!("{:<CHECK_AT$}{mend}\n", "  mend");
        }
    }
    let (warnings, problems) =
        (count(findings, CheckState::Warn), count(findings, CheckState::Problem));
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    text += &format!(
        "\n{problems} problem{}, {warnings} warning{}\n",
        plural(problems),
        plural(warnings)
    );
    text
}

fn as_json(findings: &[Finding], ranks: u32) -> String {
    let each = findings.iter().map(|Finding { check, state, found, why, mend }| {
        json!({ "check": check, "state": state.name(), "found": found, "why": why, "mend": mend })
    });
    let all = json!({
        "ranks": ranks,
        "problems": count(findings, CheckState::Problem),
        "warnings": count(findings, CheckState::Warn),
        "findings": each.collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        let long = "what was found is said in so many words that it takes more than one line of a terminal";
        vec![
            Finding::ok("open files", "links are files", "1024"),
            Finding::ok("governor", "clocks rise late", long).but(CheckState::Warn, "cpupower"),
            Finding::ok("kernel", "calls are missing", "4.4")
                .but(CheckState::Problem, "a newer one"),
        ]
    }

    #[test]
    fn what_is_well_is_one_line_and_the_rest_says_why() {
        let text = as_text(&findings(), Some(60));
        assert!(text.starts_with("ok       open files       1024\nwarn     governor         what"));
        assert!(!text.contains("links are files"), "{text}");
        assert!(text.contains("\n  why    calls are missing\n  mend   a newer one\n"), "{text}");
        assert!(text.ends_with("\n1 problem, 1 warning\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn the_json_has_it_all() {
        let read: serde_json::Value = serde_json::from_str(&as_json(&findings(), 4)).unwrap();
        assert_eq!(read["problems"], 1);
        assert_eq!(read["findings"][0]["why"], "links are files");
        assert_eq!(read["findings"][0]["mend"], serde_json::Value::Null);
        assert_eq!(read["findings"][1]["state"], "warn");
    }
}
