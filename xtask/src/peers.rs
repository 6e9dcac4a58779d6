//! `cargo xtask peers`: Gapless, Open MPI and MPICH side by side on one machine, in one run.
//!
//! `bench/peers` has two programs that do the same work, one with MPI (built once with each library) and one
//! with Gapless. All are started at once and then blocked on a fifo each; a piece of work is given to one after the
//! other, several rounds, so whatever slows the machine for more than a moment slows all alike, and ratios
//! hold on a machine that is not idle. Each answers with a median of its own and with that of `memcpy`, taken
//! in turn with it. Programs are pinned to processors, and buffers rotate over more than the caches hold.
//!
//! Printed and written (`bench/results/cpu/peers.json`): for every piece of work the ratios, their spread, and whether
//! its mark is met. Units: bytes, seconds; ratios are speeds of ours over another's.

mod job;
mod work;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::metadata::Checkout;
use crate::{Failure, shell, tools};
use job::Job;
use work::{Ratios, Work};

/// What is compared, ours first.
const LIBRARIES: [&str; 3] = ["gapless", "openmpi", "mpich"];

/// An MPI library as Debian has it: its compiler, a file that only the developer's package brings, and packages.
const PEERS: [(&str, &str, [&str; 2]); 2] = [
    ("mpicc.openmpi", "openmpi/include/mpi.h", ["openmpi-bin", "libopenmpi-dev"]),
    ("mpicc.mpich", "libmpich.so", ["mpich", "libmpich-dev"]),
];

/// What the user asks for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Little time and small sizes: shows that it works
    #[arg(long)]
    quick: bool,
    /// Rounds; ratios are medians over them
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds for each piece of work, library and round
    #[arg(long, default_value_t = 0.08)]
    seconds: f64,
    /// Only work whose line contains this, for instance "pack X"
    #[arg(long)]
    only: Option<String>,
    /// Where the results go; nowhere if --quick or --only is given without it
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Builds, measures, prints, writes.
pub(crate) fn run(checkout: &Checkout, options: &Options) -> Result<(), Failure> {
    let folder = checkout.target.join("peers");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let programs = build(checkout, &folder)?;
    let (rounds, seconds) = match options.quick {
        true => (2, 0.01),
        false => (options.rounds.max(1), options.seconds),
    };
    let mut rows = Vec::new();
    for ranks in [1, 2] {
        let mut list = work::list(ranks, options.quick);
        list.retain(|work| options.only.as_ref().is_none_or(|only| work.command().contains(only)));
        if list.is_empty() {
            continue;
        }
        println!("\n{}", if ranks == 1 { "== one process" } else { "== two processes" });
        let mut jobs = LIBRARIES
            .iter()
            .zip(&programs)
            .map(|(library, program)| Job::start(library, program, &folder, ranks))
            .collect::<Result<Vec<_>, _>>()?;
        for work in list {
            let ratios = measure(&mut jobs, &work, rounds, seconds)?;
            println!("{}", work.line(&ratios));
            rows.push((work, ratios));
        }
        for job in jobs {
            job.end()?;
        }
    }
    summarise(&rows);
    let whole = !options.quick && options.only.is_none();
    let usual = whole.then(|| checkout.root.join("bench/results/cpu/peers.json"));
    if let Some(path) = options.out.clone().or(usual) {
        let text = document(checkout, &rows, rounds, seconds);
        fs::write(&path, text).map_err(at(&path))?;
        println!("written to {}", path.display());
    }
    Ok(())
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |source| Failure::File { path: path.to_owned(), source }
}

/// The programs, in the order of [`LIBRARIES`]; libraries that are missing are installed, or named.
fn build(checkout: &Checkout, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    for (compiler, file, packages) in PEERS {
        let there = tools::on_search_path(compiler)
            && ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"]
                .iter()
                .any(|folder| Path::new(folder).join(file).exists());
        if !there {
            tools::bring(compiler, &packages)?;
        }
    }
    shell::run(shell::cargo().current_dir(&checkout.root).args([
        "build",
        "--release",
        "-p",
        "gapless-peers",
        "-p",
        "gapless",
        "--bins",
    ]))?;
    let mut programs = vec![checkout.target.join("release/gapless-peers")];
    for (compiler, ..) in PEERS {
        let program = folder.join(compiler.replace("mpicc", "peers"));
        let mut command = Command::new(compiler);
        command.args(["-O2", "-o"]).arg(&program).arg(checkout.root.join("bench/peers/peers.c"));
        shell::run(&mut command)?;
        programs.push(program);
    }
    Ok(programs)
}

/// Has every library do the work, in turn, some rounds.
fn measure(jobs: &mut [Job], work: &Work, rounds: usize, seconds: f64) -> Result<Ratios, Failure> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let mut round = Vec::with_capacity(jobs.len());
        for (i, job) in jobs.iter_mut().enumerate() {
            let command = if i == 0 { work.command() } else { work.peers_command() };
            round.push(job.ask(&format!("{command} {seconds}"))?);
        }
        times.push(round);
    }
    Ok(Ratios::of(&times))
}

fn summarise(rows: &[(Work, Ratios)]) {
    let marked = rows.iter().filter(|(work, _)| work.mark.is_some());
    let (met, missed): (Vec<_>, Vec<_>) =
        marked.partition(|(work, ratios)| work.met(ratios) == Some(true));
    println!("\n{} of {} marks met", met.len(), met.len() + missed.len());
    for (work, ratios) in missed {
        println!("missed: {}", work.line(ratios));
    }
}

fn document(checkout: &Checkout, rows: &[(Work, Ratios)], rounds: usize, seconds: f64) -> String {
    let said = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(&checkout.root).args(arguments);
        let text = command.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
    };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let rows: Vec<_> = rows.iter().map(|(work, ratios)| work.json(ratios)).collect();
    let document = json!({
        "what": "ratios of speed: Gapless over memcpy, Open MPI and MPICH, medians over rounds",
        "command": format!("cargo xtask peers --rounds {rounds} --seconds {seconds}"),
        "commit": said("git", &["describe", "--always", "--dirty"]),
        "cpu": cpu.trim_start_matches([' ', '\t', ':']),
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "load_average": load.trim(),
        "openmpi": said("mpirun.openmpi", &["--version"]),
        "mpich": said("mpichversion", &[]),
        "rows": rows,
    });
    format!("{document:#}\n")
}
