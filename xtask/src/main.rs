//! `cargo xtask`: the project's own chores.
//!
//! - `ages` tells how old the committed figures are, in commits;
//! - `deps` checks which crate depends on which (the map is in `deps/rules.rs`);
//! - `kernels` builds the committed GPU images anew, or checks that they are their sources';
//! - `test` does all set-up and runs every test, and lists last what was skipped and why;
//! - `gpu-bundle` puts the tests that need a GPU into a folder that runs without cargo;
//! - `fuzz` lets libFuzzer at everything that other processes can write;
//! - `counts` counts the instructions of the paths that matter and compares them with committed counts;
//! - `peers` compares Gapless with Open MPI and MPICH on this machine, in one run;
//! - `book` makes a book of `docs/`, with all that its pages point at;
//! - `unsafe` makes the table of unsafe code, `docs/unsafe.md`;
//! - `soak` has eight processes exchange messages for minutes or days, and looks whether memory stays flat; then it runs
//!   all tests on odd machines;
//! - `valgrind` runs the unit tests of the crates with `unsafe` code under memcheck;
//! - `verbs` runs the tests of btl-ib over Soft-RoCE, in an emulated machine;
//! - `mutants` changes the modules that decide, one place at a time, and looks whether a test notices;
//! - `judges` has programs that others wrote for MPI judge the MPI library, and their own tests;
//! - `package` looks whether the crates for others could be published, and packs them; `release` prepares a release,
//!   `publish` hands its crates to the registry;
//! - `mpi` makes the MPI library, its header, compilers and launcher; `wheel` makes a Python wheel of it;
//! - `ci` runs every check and then `test`: what has to pass before a change lands.
//!
//! What they share: `metadata` (the checkout and its packages), `shell` (other programs), `tools` (what tests need from the
//! system), `skips` (tests that were skipped, and why), `bundle`, `odd` (the tests as machines differ). `main` reads the
//! name of a chore and calls its file; a chore runs programs by `shell`, reads what they say, and ends with a status.
//!
//! Each chore prints what it does as it goes and ends with a non-zero status if anything is wrong. It
//! depends on no crate of ours, so that it builds while they do not.

#![forbid(unsafe_code)]

mod ages;
mod artifact;
mod book;
mod bundle;
mod ci;
mod counts;
mod deps;
mod fuzz;
mod judges;
mod kernels;
mod metadata;
mod mpi;
mod mutants;
mod odd;
mod package;
mod peers;
mod release;
mod shell;
mod skips;
mod soak;
mod test;
mod tools;
mod unsafe_code;
mod valgrind;
mod verbs;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::metadata::Checkout;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own chores", version)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Tell how old the committed figures are, in commits
    Ages {
        /// Fail if a table of BENCHMARKS.md is too old: before a release
        #[arg(long)]
        refuse: bool,
    },
    /// Check which crate depends on which
    Deps,
    /// Build the GPU images in kernels/images
    Kernels {
        /// Only compare them with what the sources give
        #[arg(long)]
        check: bool,
    },
    /// Set up and run all tests of the workspace
    Test {
        /// Instead, what CI runs beside them: packages without the rest, models under loom, samples on odd machines, over
        /// Soft-RoCE and of mpi4py's tests
        #[arg(long)]
        rest: bool,
        /// The workspace on odd machines, a round each: all of them, or those named, with commas between them
        #[arg(long, value_name = "NAMES", num_args = 0..=1, default_missing_value = "all")]
        odd: Option<String>,
    },
    /// Build the tests that need a GPU into gpu-bundle/ and gpu-bundle.tar.xz, to be carried to where one is
    GpuBundle {
        /// Warn if the packed bundle is longer than this, in bytes
        #[arg(long, default_value_t = bundle::BYTES_MAX)]
        max_bytes: u64,
    },
    /// Fuzz with coverage guidance: all targets, or those that are named
    Fuzz {
        /// How long altogether
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Targets; see fuzz/src/lib.rs
        targets: Vec<String>,
    },
    /// Count instructions, and fail where they rose by more than 5 %
    Counts {
        /// Write the committed counts anew
        #[arg(long)]
        bless: bool,
    },
    /// Compare Gapless with Open MPI and MPICH, work by work, in one run
    Peers(peers::Options),
    /// Make a book of docs/ with mdbook, in target/book/
    Book,
    /// Make docs/unsafe.md: where unsafe code is, and why
    Unsafe {
        /// Only compare it with the sources
        #[arg(long)]
        check: bool,
    },
    /// Eight processes, random layouts and sizes, every byte compared, flat memory; then all tests on odd machines
    Soak {
        /// How long the eight processes run; the odd machines come on top
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=soak::MINUTES_MAX))]
        minutes: u64,
        /// Optimised
        #[arg(long)]
        release: bool,
    },
    /// Run unit tests under valgrind's memcheck: of all crates with unsafe code, or of those named
    Valgrind {
        /// Packages
        packages: Vec<String>,
    },
    /// Run the tests of btl-ib over Soft-RoCE in an emulated machine: all, or those whose names contain one of the words
    Verbs {
        /// How long the machine may run
        #[arg(long, default_value_t = verbs::SECONDS)]
        seconds: u64,
        /// Only those that `cargo xtask test --rest` runs
        #[arg(long, conflicts_with_all = ["filters", "seconds"])]
        sample: bool,
        /// Only those of the transport: no jobs are built
        #[arg(long, conflicts_with = "sample")]
        transport: bool,
        /// Parts of names of tests
        filters: Vec<String>,
    },
    /// Change the modules that decide, one place at a time, and see whether a test notices
    Mutants {
        /// A part of the list only: its number, from 0, and of how many, as `0/8`
        #[arg(long, value_name = "K/N")]
        part: Option<String>,
        /// Files, as patterns; the modules that decide if there are none
        paths: Vec<String>,
    },
    /// Run programs that others wrote, and their tests, on the MPI library, and tell what fails that MPICH passes
    Judges(judges::Options),
    /// Make target/mpi: the MPI library, mpi.h, mpicc, mpicxx, mpiexec
    Mpi {
        /// As tests are built, not optimised
        #[arg(long)]
        dev: bool,
    },
    /// Make target/wheel/dist: the MPI library as a Python wheel
    Wheel {
        /// As tests are built, not optimised
        #[arg(long)]
        dev: bool,
    },
    /// Check, pack and compile the crates for others, as if they were published
    Package,
    /// Prepare a release: compare interfaces with the last one, write version and changelog
    Release {
        /// Its version, as 0.2.0
        version: String,
    },
    /// Publish all crates for others, one after the other; without --go, only show it
    Publish {
        /// Do it
        #[arg(long)]
        go: bool,
        /// Minutes between two crates: registries take new ones at about this pace
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// The crate to begin with, after a failure
        #[arg(long, value_name = "CRATE")]
        from: Option<String>,
    },
    /// Run every check of CI, then all tests
    Ci {
        /// Only the checks, not the tests
        #[arg(long)]
        checks: bool,
    },
}

impl Chore {
    /// Whether cargo is asked what there is.
    fn needs_cargo(&self) -> bool {
        !matches!(self, Chore::Peers(options) if options.has_programs())
    }
}

/// Why a chore could not be done, or what it found wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program ran and failed; it has said why.
    #[error("{command} failed ({status})")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Cargo's description of the workspace was not understood.
    #[error("cargo metadata of {manifest}: {source}")]
    Metadata {
        /// The manifest described.
        manifest: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A check found something; it is printed already.
    #[error("{what}: {number}, see above")]
    Found {
        /// What was found.
        what: &'static str,
        /// How many.
        number: u64,
    },
    /// An argument names nothing.
    #[error("{0}")]
    Argument(String),
    /// Tools are missing and cannot be installed by this user.
    #[error("missing: {0}; see the line to run above")]
    Missing(String),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chore = arguments.chore;
    let checkout = if chore.needs_cargo() { Checkout::find() } else { Ok(Checkout::here()) };
    let done = checkout.and_then(|checkout| obey(&checkout, chore));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Does a chore in the checkout.
fn obey(checkout: &Checkout, chore: Chore) -> Result<(), Failure> {
    match chore {
        Chore::Ages { refuse } => ages::run(checkout, refuse),
        Chore::Deps => deps::run(checkout),
        Chore::Kernels { check } => kernels::run(checkout, check),
        Chore::Test { odd: Some(names), .. } => test::odd(checkout, &names, false),
        Chore::Test { rest: true, .. } => test::rest(checkout),
        Chore::Test { .. } => test::run(checkout),
        Chore::GpuBundle { max_bytes } => bundle::run(checkout, max_bytes),
        Chore::Fuzz { seconds, targets } => fuzz::run(checkout, seconds, &targets),
        Chore::Counts { bless } => counts::run(checkout, bless),
        Chore::Peers(options) => peers::run(checkout, &options),
        Chore::Book => book::run(checkout),
        Chore::Unsafe { check } => unsafe_code::run(checkout, check),
        Chore::Soak { minutes, release } => soak::run(checkout, minutes, release),
        Chore::Valgrind { packages } => valgrind::run(checkout, &packages),
        Chore::Verbs { sample: true, .. } => test::over_verbs_alone(checkout),
        Chore::Verbs { transport: true, filters, seconds, .. } => {
            verbs::run_transport(checkout, &filters, seconds)
        }
        Chore::Verbs { filters, seconds, .. } => verbs::run(checkout, &filters, seconds),
        Chore::Judges(options) => judges::run(checkout, &options),
        Chore::Mpi { dev } => mpi::run(checkout, mpi::Build::of(dev)),
        Chore::Wheel { dev } => wheel::run(checkout, mpi::Build::of(dev)),
        Chore::Mutants { part, paths } => mutants::run(checkout, &paths, part.as_deref()),
        Chore::Package => package::run(checkout),
        Chore::Release { version } => release::run(checkout, &version),
        Chore::Publish { go, minutes, from } => {
            release::publish(checkout, go, minutes, from.as_deref())
        }
        Chore::Ci { checks } => ci::run(checkout, checks),
    }
}
