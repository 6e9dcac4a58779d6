//! `cargo xtask judges`: the MPI library is judged by a program that others wrote: the tests of mpi4py.
//!
//! pip brings mpi4py's source of a fixed version into the target folder ([`mod@setup`]); it is built there with our
//! `mpicc`. Each module of its tests is a job of its own, so that what hangs or crashes takes nothing else with it. A rank
//! writes how each test ended ([`mod@outcome`], `drive.py`).
//!
//! With `--peer` the same file of mpi4py then runs on MPICH, which has the same ABI: what MPICH passes has to pass. Its
//! results are kept for later runs. A failure counts unless MPICH is known to fail, too, or [`KNOWN`] says why it must.
//!
//! Where Python, pip or the network is missing, a line says so, and all of it counts as skipped.

mod outcome;
mod setup;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};
use crate::verbs::make_folder;
use crate::{Failure, mpi, shell};
use outcome::{Outcome, Outcomes};
use setup::Setup;

/// Modules that are not run: Gapless starts no jobs from jobs, and has no files.
const LEFT_OUT: &[&str] = &["test_dynproc", "test_file", "test_io", "test_spawn"];
/// Tests that MPICH passes and Gapless does not, and why that is meant so.
const KNOWN: &[(&str, &str)] = &[
    ("test_datatype.TestDatatypeCreate.testValueIndex", UNNAMED_PAIRS),
    ("test_datatype.TestDatatypePickle.testValueIndex", UNNAMED_PAIRS),
    ("test_util_dtlib.TestUtilDTLib.testPair", UNNAMED_PAIRS),
    ("test_objmodel.TestObjModel.testSafeFreeCreated", "Gapless has no files"),
    (
        "test_util_dtlib.TestUtilDTLib.testHVector",
        "an extent follows from the type map (MPI 4.1 §5.1.6); mpi4py wants the old type's padding in it",
    ),
    (
        "test_msgspec.TestMessageDLPackCPUBuf.testDtypeLanes",
        "bytes are sent as MPI_UINT8_T, and received as another type, which MPI forbids",
    ),
    (
        "test_ulfm.TestULFMWorld.testIAgree",
        "two collectives are started in different orders on different ranks, which MPI forbids",
    ),
];
const UNNAMED_PAIRS: &str =
    "mpi4py can convert no pairs but the named ones; Gapless has more, which MPI 4.1 §6.9.4 allows";
/// The modules of a sample.
const SAMPLE: &[&str] = &[
    "test_comm",
    "test_cco_nb_vec",
    "test_cco_obj",
    "test_errhandler",
    "test_p2p_buf",
    "test_request",
    "test_rma",
];
/// Seconds that a module gets.
const SECONDS: u64 = 300;
/// What is skipped where it cannot run.
const WHAT: &str = "the tests of mpi4py";

/// What the user asks for.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5])]
    ranks: Vec<u32>,
    /// Only modules whose names contain one of these, with commas between them
    #[arg(long, value_name = "MODULES", value_delimiter = ',')]
    only: Vec<String>,
    /// Run MPICH, too
    #[arg(long)]
    peer: bool,
    /// A few modules on two ranks: what `cargo xtask test` runs
    #[arg(long, conflicts_with_all = ["ranks", "only"])]
    sample: bool,
}

/// A library and its launcher.
struct Library {
    name: &'static str,
    /// With `bin/mpiexec` and `lib`.
    prefix: PathBuf,
    /// How the launcher is told how long a job may take: as an option, or by a variable.
    limit: (&'static [&'static str], &'static str),
}

/// Builds, runs, prints.
pub(crate) fn run(checkout: &Checkout, options: &Options) -> Result<(), Failure> {
    let log = SkipLog::open(&checkout.target.join("xtask"))?;
    match judge(checkout, &log, options)? {
        Some(Verdict { failed: 0, .. }) | None => Ok(()),
        Some(Verdict { failed, .. }) => {
            Err(Failure::Found { what: "tests that MPICH passes", number: failed })
        }
    }
}

/// What `cargo xtask test` runs.
pub(crate) fn sample(checkout: &Checkout, log: &SkipLog) -> Result<Option<Verdict>, Failure> {
    let options = Options { ranks: Vec::new(), only: Vec::new(), peer: false, sample: true };
    judge(checkout, log, &options)
}

/// How tests ended.
pub(crate) struct Verdict {
    pub(crate) passed: u64,
    /// Those that MPICH passes, or may pass.
    pub(crate) failed: u64,
}

/// `None` if it cannot be done here.
fn judge(
    checkout: &Checkout,
    log: &SkipLog,
    options: &Options,
) -> Result<Option<Verdict>, Failure> {
    let what = if options.sample { mpi::Build::WithTests } else { mpi::Build::Dev };
    shell::timed("the MPI library", || mpi::run(checkout, what)).0?;
    let setup = match shell::timed("Python", || Setup::ready(checkout, options.peer)).0 {
        Ok(setup) => setup,
        Err(failure) => {
            let why = failure.to_string();
            println!("SKIPPED: {WHAT}: {why}");
            log.add(&Skip { what: WHAT.to_owned(), why })?;
            return Ok(None);
        }
    };
    let ours = Library {
        name: "gapless",
        prefix: checkout.target.join("mpi"),
        limit: (&["--oversubscribe", "--timeout"], ""),
    };
    let mpich =
        Library { name: "mpich", prefix: setup.mpich.clone(), limit: (&[], "MPIEXEC_TIMEOUT") };
    let modules = wanted(setup.modules()?, options);
    let ranks = if options.sample { &[2][..] } else { &options.ranks[..] };
    let (mut lines, mut verdict) = (Vec::new(), Verdict { passed: 0, failed: 0 });
    for &ranks in ranks {
        if options.peer {
            run_all(&setup, &mpich, ranks, &modules)?;
        }
        run_all(&setup, &ours, ranks, &modules)?;
        let (own, peer) =
            (results(&setup, &ours, ranks, &modules)?, results(&setup, &mpich, ranks, &modules)?);
        for (library, outcomes) in [(&ours, &own), (&mpich, &peer)] {
            let [passed, failed, skipped] = outcomes.sums();
            if passed + failed + skipped > 0 {
                lines.push(format!(
                    "{:<10} {ranks:>5} {passed:>8} {failed:>8} {skipped:>8}",
                    library.name
                ));
            }
        }
        verdict.passed += own.sums()[0] as u64;
        for (test, why) in own.failed() {
            let (says, counts) = of_others(test, peer.0.get(test));
            verdict.failed += u64::from(counts);
            lines.push(format!("    {test}: {why}; {says}"));
        }
    }
    println!("\n{:<10} {:>5} {:>8} {:>8} {:>8}", "library", "ranks", "passed", "failed", "skipped");
    lines.iter().for_each(|line| println!("{line}"));
    Ok(Some(verdict))
}

/// What is known of a test that failed, and whether it must not.
fn of_others(test: &str, peer: Option<&Outcome>) -> (String, bool) {
    if let Some((_, why)) = KNOWN.iter().find(|(known, _)| *known == test) {
        return (format!("known: {why}"), false);
    }
    match peer {
        Some(Outcome::Passed) => ("MPICH passes it".to_owned(), true),
        Some(Outcome::Skipped) => ("skipped with MPICH".to_owned(), false),
        Some(Outcome::Failed(why)) => (format!("MPICH fails, too: {why}"), false),
        None => ("it is not known of MPICH".to_owned(), true),
    }
}

/// The modules that are to run.
fn wanted(mut modules: Vec<String>, options: &Options) -> Vec<String> {
    modules.retain(|module| match options.sample {
        true => SAMPLE.contains(&module.as_str()),
        false if options.only.is_empty() => !LEFT_OUT.contains(&module.as_str()),
        false => options.only.iter().any(|only| module.contains(only.as_str())),
    });
    modules
}

/// Where a library's results on so many ranks are.
fn folder(setup: &Setup, library: &Library, ranks: u32) -> PathBuf {
    setup.results.join(format!("{}-{ranks}", library.name))
}

/// What there is of modules: of this run, or an earlier one.
fn results(
    setup: &Setup,
    library: &Library,
    ranks: u32,
    modules: &[String],
) -> Result<Outcomes, Failure> {
    let (folder, mut all) = (folder(setup, library, ranks), Outcomes::default());
    if folder.exists() {
        for module in modules {
            all.add(Outcomes::read(&folder, module)?);
        }
    }
    Ok(all)
}

/// Runs modules, one after the other.
fn run_all(
    setup: &Setup,
    library: &Library,
    ranks: u32,
    modules: &[String],
) -> Result<(), Failure> {
    let folder = folder(setup, library, ranks);
    make_folder(&folder)?;
    println!("\n== {}, ranks: {ranks}", library.name);
    for module in modules {
        let begun = Instant::now();
        let ended = job(setup, library, ranks, module, &folder)?;
        let mut all = Outcomes::read(&folder, module)?;
        if !ended && all.failed().next().is_none() {
            // Nobody wrote that a test failed: the job did.
            let line = format!("failed {module} the job failed: {module}.log\n");
            let path = folder.join(format!("{module}.0"));
            let add = |line: &str| -> std::io::Result<()> {
                let before = fs::read_to_string(&path).unwrap_or_default();
                fs::write(&path, before + line)
            };
            add(&line).map_err(|source| Failure::File { path: path.clone(), source })?;
            all = Outcomes::read(&folder, module)?;
        }
        let [passed, failed, skipped] = all.sums();
        println!(
            "{module:<24} {:>6.1} s {passed:>6} passed {failed:>4} failed {skipped:>4} skipped",
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Runs a module; whether the job ended well.
fn job(
    setup: &Setup,
    library: &Library,
    ranks: u32,
    module: &str,
    folder: &Path,
) -> Result<bool, Failure> {
    for old in 0..64 {
        let _ = fs::remove_file(folder.join(format!("{module}.{old}")));
    }
    let log = folder.join(format!("{module}.log"));
    let file = |source| Failure::File { path: log.clone(), source };
    let (stdout, seconds) = (fs::File::create(&log).map_err(file)?, SECONDS.to_string());
    let mut command = Command::new(library.prefix.join("bin/mpiexec"));
    let (option, variable) = library.limit;
    if let [_, ..] = option {
        command.args(option).arg(&seconds);
    } else {
        command.env(variable, &seconds);
    }
    command.args(["-n", &ranks.to_string()]).arg(&setup.python).arg(&setup.driver);
    command.arg(folder.join(module)).arg(&setup.tests);
    command.args(["--no-builddir", "-v", "-i", &format!("^{module}\\.py$")]);
    command.env("LD_LIBRARY_PATH", library.prefix.join("lib"));
    // Libraries of numerics otherwise start threads that nobody needs here.
    command.envs([("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")]);
    command.current_dir(folder).stdin(Stdio::null());
    command.stderr(stdout.try_clone().map_err(file)?).stdout(stdout);
    Ok(command.status().map_err(|source| shell::could_not_start(&command, source))?.success())
}
