//! The `gapless` command.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use gapless::launch::{self, Job};
use std::ffi::OsString;
use std::process::ExitCode;

/// Non-contiguous messages between processes, wherever the data lies.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start the processes of a job on this host
    Run(Run),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// How many processes
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: u32,
    /// Put the rank before each line of output
    #[arg(short = 'p', long)]
    prefix: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let Arguments { verb } = Arguments::parse();
    match verb {
        Verb::Run(run) => self::run(run),
    }
}

fn run(run: Run) -> ExitCode {
    let mut words = run.program.into_iter();
    let program = words.next().unwrap_or_default();
    let job = Job {
        ranks: run.ranks,
        program,
        arguments: words.collect(),
        environment: Vec::new(),
        prefix: run.prefix,
    };
    match launch::run(&job) {
        Ok(outcome) => {
            if let Some((rank, end)) = outcome.failed {
                eprintln!("gapless run: rank {rank} {end}; the job was ended");
            }
            ExitCode::from(outcome.exit_code())
        }
        Err(error) => {
            eprintln!("gapless run: {error}");
            ExitCode::from(2)
        }
    }
}
