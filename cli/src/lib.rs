//! The `gapless` command: one file per verb. [`pingpong`] and [`collectives`] are libraries, too: other programs measure
//! with their loops.
//!
//! Every verb reports a problem in one line on standard error. Exit codes: 0 all is well, 1 it ran
//! and something was wrong, 2 it was called wrongly, and for `run` whatever the job's first failure
//! exited with.
#![deny(unsafe_code)]

pub mod collectives;
mod explain;
mod failure;
mod info;
mod layout;
pub mod pingpong;
mod run;
mod selection;
mod spaces;
mod tree;
mod tune;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;

/// Non-contiguous messages between processes, wherever the data lies.
#[derive(Debug, Parser)]
#[command(name = "gapless", version)]
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
    /// Start the processes of a job on this host
    Run(run::Run),
    /// What this machine and this build can do
    Info(info::Info),
    /// Which protocol would carry a message, and by which numbers
    Explain(explain::Explain),
    /// Measure what the choice of protocols goes by, and write it to the tuning file
    Tune(tune::Tune),
    /// A layout's datatype, its committed program, shape and bounds
    Layout(layout::Layout),
}

/// Runs the command that this process's arguments name.
#[must_use]
pub fn main() -> ExitCode {
    let Arguments { verbose, verb } = Arguments::parse();
    log(verbose);
    let result = match verb {
        Verb::Pingpong(verb) => verb.run(),
        Verb::Run(verb) => verb.run(),
        Verb::Info(verb) => verb.run(),
        Verb::Explain(verb) => verb.run(),
        Verb::Tune(verb) => verb.run(),
        Verb::Layout(verb) => verb.run(),
    };
    match result {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            complain(&failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
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

/// Text on standard output, all of it at once.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
}
