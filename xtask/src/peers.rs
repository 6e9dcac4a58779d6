//! `cargo xtask peers`: Gapless, Open MPI and MPICH side by side on one machine, in one run.
//!
//! `bench/peers` has two programs that do the same work, one with MPI (built once with each library) and one
//! with Gapless. All are started at once and then blocked on a fifo each; a piece of work is given to one after the
//! other, several rounds, so whatever slows the machine for more than a moment slows all alike, and ratios
//! hold on a machine that is not idle. Each answers with a median of its own and with that of `memcpy`, taken
//! in turn with it. Programs are pinned to processors, and the buffers of each side rotate over 64 MiB: more than most
//! last-level caches hold, but not all. Where one holds more, `--rotation` asks for more.
//!
//! Printed and written: for every piece of work the ratios, their spread, whether its mark is met, and where runs are
//! shorter than cache lines what memory allows. A whole run writes `bench/results/cpu/peers.json`, a figure of each
//! family of work beside it, and its tables into `README.md` there. A library that fails at a piece of work is started
//! again, and what it failed at is named.
//!
//! The MPI libraries are Debian's, or installed in folders that the options name, such as the virtual environments of
//! their Python wheels. With `--built` nothing is built of ours, so that the program compares them on a machine without
//! Cargo, or takes another commit's programs.
//!
//! Units: bytes, seconds; ratios are speeds of ours over another's.

mod job;
mod report;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};
use job::Job;
use report::Report;
use work::{PeerWork, Ratios, Row};

/// What each side's buffers rotate over unless the user says otherwise.
const ROTATION_MIB: u64 = 64;

/// What is compared, ours first.
const LIBRARIES: [&str; 3] = ["gapless", "openmpi", "mpich"];

/// An MPI library as Debian has it: its compiler, its launcher, a file that only the developer's package brings, and
/// packages.
const PEERS: [(&str, &str, &str, [&str; 2]); 2] = [
    ("mpicc.openmpi", "mpirun.openmpi", "openmpi/include/mpi.h", ["openmpi-bin", "libopenmpi-dev"]),
    ("mpicc.mpich", "mpiexec.hydra", "libmpich.so", ["mpich", "libmpich-dev"]),
];

/// How a library's work is started.
pub(super) struct Program {
    /// The library's name, one of [`LIBRARIES`].
    library: &'static str,
    /// The launcher of several processes.
    launcher: PathBuf,
    program: PathBuf,
}

/// What the user asks for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Little time and small sizes: shows that it works
    #[arg(long)]
    quick: bool,
    /// Rounds; ratios are medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds for each piece of work, library and round
    #[arg(long, default_value_t = 0.06)]
    seconds: f64,
    /// MiB that the buffers of each side rotate over: what fits the caches stays in them
    #[arg(long, value_name = "MIB", default_value_t = ROTATION_MIB, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    rotation: u64,
    /// Only work whose line contains this, for instance "pack X"; several times: one of these
    #[arg(long)]
    only: Vec<String>,
    /// Collectives, by so many processes each; fewer than processors
    #[arg(long, value_name = "RANKS", value_delimiter = ',', num_args = 1.., requires = "out")]
    coll: Vec<usize>,
    /// Open MPI as installed in this folder, with bin/mpicc and bin/mpiexec, instead of the system's
    #[arg(long, value_name = "FOLDER")]
    openmpi: Option<PathBuf>,
    /// MPICH as installed in this folder, with bin/mpicc and bin/mpiexec, instead of the system's
    #[arg(long, value_name = "FOLDER")]
    mpich: Option<PathBuf>,
    /// gapless and gapless-peers of this folder, instead of building them; needs no Cargo, only the checkout as the
    /// current folder
    #[arg(long, value_name = "FOLDER")]
    built: Option<PathBuf>,
    /// What the report says was called, if a script does that
    #[arg(long, value_name = "COMMAND", default_value = "cargo xtask peers")]
    called: String,
    /// Folder for the report and the figures, or a file NAME.json for the report alone; without it a whole run
    /// writes to bench/results/cpu and the tables into README.md there, and any other nowhere
    #[arg(long)]
    out: Option<PathBuf>,
    /// Measures nothing: makes figures and tables of this report
    #[arg(long, conflicts_with_all = ["quick", "rounds", "seconds", "rotation", "only"])]
    from: Option<PathBuf>,
}

impl Options {
    /// Whether our programs are built already.
    pub(crate) fn has_programs(&self) -> bool {
        self.built.is_some()
    }
}

/// Where a whole run leaves its results, from the root.
const USUAL: &str = "bench/results/cpu";

/// Builds, measures, prints, writes.
pub(crate) fn run(checkout: &Checkout, options: &Options) -> Result<(), Failure> {
    let report = match &options.from {
        Some(path) => Report::read(path)?,
        None => measured(checkout, options)?,
    };
    let whole = !options.quick && options.only.is_empty() && options.coll.is_empty();
    match &options.out {
        Some(path) if path.extension().is_some_and(|name| name == "json") => {
            report.write_json(path)?;
        }
        Some(folder) => report.write(folder)?,
        None if options.from.is_some() => report.write_figures(&checkout.root.join(USUAL))?,
        None if whole => report.write(&checkout.root.join(USUAL))?,
        None => {}
    }
    if whole && options.out.is_none() {
        report.put_into(&checkout.root.join(USUAL).join("README.md"))?;
    }
    match report.not_measured.len() {
        0 => Ok(()),
        failed => Err(Failure::Found { what: "work not measured", number: failed as u64 }),
    }
}

/// Builds, measures, prints.
fn measured(checkout: &Checkout, options: &Options) -> Result<Report, Failure> {
    let folder = checkout.target.join("peers");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let programs = build(checkout, &folder, options)?;
    let (rounds, seconds) = match options.quick {
        true => (2, 0.01),
        false => (options.rounds.max(1), options.seconds),
    };
    let (before, mut rows, mut not_measured) = (report::load(), Vec::new(), Vec::new());
    let collectives = !options.coll.is_empty();
    for &ranks in if collectives { &options.coll[..] } else { &[1, 2] } {
        let list = if collectives { work::collectives } else { work::list };
        let mut list = list(ranks, options.quick);
        let is_meant = |work: &PeerWork| {
            let label = work.label();
            options.only.is_empty() || options.only.iter().any(|only| label.contains(only))
        };
        list.retain(is_meant);
        if list.is_empty() {
            continue;
        }
        println!("\n== processes: {ranks}");
        let start = |program| Job::start(program, &folder, ranks, options.rotation << 20);
        let mut jobs = programs.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for work in list {
            match measure(&mut jobs, &work, rounds, seconds) {
                Ok(ratios) => {
                    let row = Row::new(&work, ratios);
                    println!("{}", row.line());
                    rows.push(row);
                }
                Err((i, failure)) => {
                    println!("{}: {failure}", work.label());
                    not_measured.push(format!("{}: {failure}", work.label()));
                    jobs[i] = start(&programs[i])?;
                }
            }
        }
        for job in jobs {
            job.end()?;
        }
    }
    let rotation = match options.rotation {
        ROTATION_MIB => String::new(),
        other => format!(" --rotation {other}"),
    };
    let only: String = options.only.iter().map(|only| format!(" --only \"{only}\"")).collect();
    let called = &options.called;
    let command = format!("{called} --rounds {rounds} --seconds {seconds}{rotation}{only}");
    let report = Report { rows, not_measured, ..Report::new(&programs, command, before) };
    summarise(&report);
    Ok(report)
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |source| Failure::File { path: path.to_owned(), source }
}

/// The programs, in the order of [`LIBRARIES`]; libraries that are missing are installed, or named.
fn build(checkout: &Checkout, folder: &Path, options: &Options) -> Result<Vec<Program>, Failure> {
    let built = match &options.built {
        Some(built) => built.clone(),
        None => {
            shell::run(shell::cargo().current_dir(&checkout.root).args([
                "build",
                "--release",
                "-p",
                "gapless-peers",
                "-p",
                "gapless-cli",
                "--bins",
            ]))?;
            checkout.target.join("release")
        }
    };
    let mut programs = vec![Program {
        library: LIBRARIES[0],
        launcher: built.join("gapless"),
        program: built.join("gapless-peers"),
    }];
    for (i, installed) in [&options.openmpi, &options.mpich].into_iter().enumerate() {
        let library = LIBRARIES[i + 1];
        let (compiler, launcher) = match installed {
            Some(installed) => (installed.join("bin/mpicc"), installed.join("bin/mpiexec")),
            None => debian(i)?,
        };
        let program = folder.join(format!("peers.{library}"));
        let mut command = Command::new(compiler);
        command.args(["-O2", "-o"]).arg(&program).arg(checkout.root.join("bench/peers/peers.c"));
        shell::run(&mut command)?;
        programs.push(Program { library, launcher, program });
    }
    Ok(programs)
}

/// The compiler and launcher of one of [`PEERS`], installed if need be.
fn debian(i: usize) -> Result<(PathBuf, PathBuf), Failure> {
    let (compiler, launcher, file, packages) = PEERS[i];
    let there = tools::on_search_path(compiler)
        && ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"]
            .iter()
            .any(|folder| Path::new(folder).join(file).exists());
    if !there {
        tools::bring(compiler, &packages)?;
    }
    Ok((compiler.into(), launcher.into()))
}

/// Has every library do the work, in turn, some rounds. A failure comes with the number of the library.
fn measure(
    jobs: &mut [Job],
    work: &PeerWork,
    rounds: usize,
    seconds: f64,
) -> Result<Ratios, (usize, Failure)> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let mut round = Vec::with_capacity(jobs.len());
        for (i, job) in jobs.iter_mut().enumerate() {
            let command = if i == 0 { work.command() } else { work.peers_command() };
            let answer = job.ask(&format!("{command} {seconds}"));
            round.push(answer.map_err(|failure| (i, failure))?);
        }
        times.push(round);
    }
    Ok(if work.makes_types() { Ratios::of_own_lists(&times) } else { Ratios::of(&times) })
}

fn summarise(report: &Report) {
    let (met, marks, beyond) = report.marks();
    println!("\n{met} of {marks} marks met; {beyond} of the others are beyond what memory allows");
    for row in report.rows.iter().filter(|row| row.met == Some(false)) {
        println!("missed: {}", row.line());
    }
}
