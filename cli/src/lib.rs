#![doc = include_str!("../README.md")]
//!
//! ## Errors
//!
//! Every verb reports a problem in one line on standard error. Exit codes: 0 all is well, 1 it ran
//! and something was wrong, 2 it was called wrongly, and for `run` whatever the job's first failure
//! exited with.

// What is where, for who reads the code.
//
// - verbs: `run`, `info`, `doctor`, `explain`, `layout`, `tune`, `bench`, `pingpong`, `report`, `completions`, `man`;
// - what they share: `selection` (layouts and sizes), `memory` and `spaces` (where messages lie), `job` (a rank's way
//   into a job that measures), `sampling`, `load` (how busy the machine is), `lines` and `tree` (text), `failure` (exit
//   codes).

#![deny(unsafe_code)]

mod bench;
pub mod collectives;
mod completions;
mod doctor;
mod explain;
mod failure;
mod info;
mod job;
mod layout;
mod lines;
mod load;
mod man;
mod memory;
pub mod pingpong;
mod report;
mod run;
pub mod sampling;
mod selection;
mod spaces;
mod tree;
mod tune;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use failure::Failure;
use gapless::{Builder, World};
use gapless_report::Report;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::num::{ParseFloatError, ParseIntError};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

/// The version, and the commit of the sources.
static VERSION: LazyLock<String> =
    LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), gapless_report::commit()));

/// Non-contiguous messages between processes, wherever the data lies.
#[derive(Debug, Parser)]
#[command(name = "gapless", version = VERSION.as_str())]
struct Arguments {
    /// Say more about what happens; twice for everything (RUST_LOG says it more finely)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Send real layouts back and forth between two processes, and check every byte
    Pingpong(pingpong::Pingpong),
    /// Latency, bandwidth, message rate, one-sided operations and collectives: a line for each size
    Bench(bench::Bench),
    /// Start the processes of a job on this host
    Run(run::Run),
    /// What this machine and this build can do
    Info(info::Info),
    /// What hinders speed or correctness on this machine, and what mends it
    Doctor(doctor::Doctor),
    /// Which protocol would carry a message, and by which numbers
    Explain(explain::Explain),
    /// Measure what the choice of protocols goes by, and write it to the tuning file
    Tune(tune::Tune),
    /// Reports of measurements as one HTML page
    Report(report::Report),
    /// A layout's datatype, its committed program, shape and bounds
    Layout(layout::Layout),
    /// A script by which a shell completes the words of this command
    Completions(completions::Completions),
    /// Manual pages of this command and of each of its verbs
    Man(man::Man),
}

/// Makes the choices about a world, for each that is started.
#[derive(Clone, Copy)]
struct Worlds<'m>(&'m dyn Fn() -> Result<Builder, Box<dyn Error>>);

impl Worlds<'_> {
    fn builder(self) -> Result<Builder, Failure> {
        (self.0)().map_err(|error| Failure::Builder(error.to_string()))
    }
}

/// Runs the command that this process's arguments name.
#[must_use]
pub fn main() -> ExitCode {
    main_with(|| Ok(World::builder()))
}

/// As [`main()`], with worlds of one's own: `bench`, `pingpong`, `info` and `tune` measure over the transports that
/// `builder` adds, also in the processes that they start, which are this program again; `explain` predicts by what these
/// promise. `builder` is called once in each process that joins a job; if it fails, the command ends with its error and
/// exit code 1.
///
/// The [crate's](crate) example and `examples/btl-udp/examples/gapless_udp.rs` are such programs.
#[must_use]
pub fn main_with(builder: impl Fn() -> Result<Builder, Box<dyn Error>>) -> ExitCode {
    gapless::launch::remember_environment();
    let Arguments { verbose, verb } =
        match Arguments::try_parse_from(run::prepare(std::env::args_os())) {
            Ok(arguments) => arguments,
            Err(error) => return misread(&error),
        };
    log(verbose);
    let worlds = Worlds(&builder);
    let result = match verb {
        Verb::Pingpong(verb) => verb.run(worlds),
        Verb::Bench(verb) => verb.run(worlds),
        Verb::Report(verb) => verb.run(),
        Verb::Run(verb) => verb.run(),
        Verb::Info(verb) => verb.run(worlds),
        Verb::Doctor(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(worlds),
        Verb::Tune(verb) => verb.run(worlds),
        Verb::Layout(verb) => verb.run(),
        Verb::Completions(verb) => verb.run(),
        Verb::Man(verb) => verb.run(),
    };
    match result {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            // A rank that has ended early is known by that.
            match gapless::wireup::is_launched() {
                true => ExitCode::from(run::SIGPIPE_EXIT),
                false => ExitCode::SUCCESS,
            }
        }
        Err(failure) => {
            complain(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Says in one line what is wrong with the arguments, or shows the help that was asked for.
fn misread(error: &clap::Error) -> ExitCode {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(all)) => all.join(", "),
        _ => String::new(),
    };
    // As `--iterations <COUNT>`.
    let option = text(ContextKind::InvalidArg);
    let option = option.split(' ').next().unwrap_or_default();
    let value = text(ContextKind::InvalidValue);
    match (error.kind(), error.source()) {
        (ErrorKind::ValueValidation, Some(why)) if why.is::<ParseIntError>() => {
            complain(&format!("{option} {value}: it is a whole number"));
        }
        (ErrorKind::ValueValidation, Some(why)) if why.is::<ParseFloatError>() => {
            complain(&format!("{option} {value}: it is a number"));
        }
        (ErrorKind::ValueValidation, Some(why)) => complain(&format!("{option} {value}: {why}")),
        (ErrorKind::InvalidValue, _) if !value.is_empty() => {
            complain(&format!("{option} {value}: it is one of {}", text(ContextKind::ValidValue)));
        }
        (ErrorKind::DisplayHelp, _) => {
            // Nobody reads it, then.
            let _ = lines::tell(&error.render().to_string());
        }
        (ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            let _ = error.print();
        }
        _ => {
            let hint = run::hint(std::env::args_os());
            complain(&one_line(&error.render().to_string(), hint));
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The parser's complaint and tips, without its usage, and what may have been meant.
fn one_line(complaint: &str, hint: Option<String>) -> String {
    let said = complaint.trim_start_matches("error: ").split("\n\n");
    let said = said.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let general = |part: &String| part.starts_with("Usage:") || part.starts_with("For more");
    said.filter(|part| !general(part)).chain(hint).collect::<Vec<_>>().join("; ")
}

fn log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "gapless=debug,gapless_bml=debug,gapless_pml=debug,gapless_btl_sm=debug,info",
        _ => "trace",
    };
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if verbose == 0 && !text.is_empty() => EnvFilter::new(text),
        _ => EnvFilter::new(level),
    };
    // There is one logger in a process; if a library's user has set theirs, theirs it is.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).try_init();
}

/// One line on standard error, if anybody reads it.
fn complain(text: &str) {
    // In one piece: other ranks write too.
    let _ = io::stderr().write_all(format!("gapless: {text}\n").as_bytes());
}

/// What stands for standard output where a file is named.
const STANDARD_OUTPUT: &str = "-";

/// Figures as JSON: to a file, or to standard output (`--json -`).
fn write_json(report: &Report, path: &Path) -> Result<(), Failure> {
    match path.as_os_str() == STANDARD_OUTPUT {
        true => say(&report.to_json(path)?),
        false => Ok(report.write_json(path)?),
    }
}

/// Text for people: on standard error if standard output is for programs (`--json -`).
fn say_beside(json: Option<&Path>, text: &str) -> Result<(), Failure> {
    match json {
        Some(path) if path.as_os_str() == STANDARD_OUTPUT => {
            // If nobody reads it, the figures are wanted still.
            let _ = io::stderr().write_all(text.as_bytes());
            Ok(())
        }
        _ => say(text),
    }
}

/// Refuses a file that cannot be written, before anything is measured.
fn check_writable(option: &'static str, path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let why = match folder {
        _ if path.as_os_str() == STANDARD_OUTPUT => return Ok(()),
        _ if path.is_dir() => "it is a folder".to_owned(),
        Some(folder) if !folder.is_dir() => format!("there is no folder {}", folder.display()),
        _ => match try_to_write(path) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        },
    };
    Err(Failure::BadOption { option, value: path.display().to_string(), why })
}

/// Opens a file for writing; leaves it as it was, or none if there was none.
fn try_to_write(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        // Pipes wait for a reader.
        Err(_) if path.metadata().is_ok_and(|found| !found.is_file()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A link may lead to what is not there yet.
            match OpenOptions::new().append(true).open(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Text on standard output, all of it at once.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}
