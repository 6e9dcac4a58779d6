//! `cargo xtask judges`: the MPI library is judged by programs that others wrote, and by their own tests.
//!
//! | file | program | comes by |
//! |---|---|---|
//! | [`mpi4py`] | MPI for Python | pip |
//! | [`fftw3`] | transforms | apt |
//! | [`hypre`] | linear solvers | apt |
//! | [`netpipe`] | message rates, also as Debian has built it with MPICH | apt |
//! | [`hpcc`] | HPL, transposes, random access, … | apt |
//! | [`mpi4py_fft`] | transforms by mpi4py's all-to-alls of datatypes | pip |
//!
//! Each is fetched into the target folder ([`place`]), built with our `mpicc`, and run with our `mpiexec` ([`library`]).
//! With `--peer` the same files then run on MPICH, which has the same ABI: what MPICH passes has to pass. Its results are
//! kept for later runs. A failure counts unless MPICH is known to fail, too, or [`Judge::known`] says why it must.
//!
//! Where Python, pip, apt or the network is missing, a line says so, and the judge counts as skipped.

mod fftw3;
mod hpcc;
mod hypre;
mod library;
mod mpi4py;
mod mpi4py_fft;
mod netpipe;
mod outcome;
mod place;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};
use crate::verbs::make_folder;
use crate::{Failure, mpi, shell};
use library::{Library, MPICH_NAME};
use outcome::{Outcome, Outcomes};
use place::{MPICH, Place};

/// What the user asks for.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Numbers of ranks; those of each judge if there are none
    #[arg(long, value_delimiter = ',')]
    ranks: Vec<u32>,
    /// Only judges with these names, and modules of mpi4py's tests whose names contain one, with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Run MPICH, too
    #[arg(long)]
    peer: bool,
    /// A few modules of mpi4py's tests on two ranks: what `cargo xtask test --rest` runs
    #[arg(long, conflicts_with_all = ["ranks", "only"])]
    sample: bool,
}

/// A program that others wrote, and its tests.
trait Judge {
    fn name(&self) -> &'static str;

    /// On how many ranks it is run; 0: its own tests say so.
    fn ranks(&self) -> &'static [u32] {
        &[2, 4]
    }

    /// Tests that MPICH passes and Gapless does not, and why that is meant so.
    fn known(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Fetches and builds what is not there yet; gives its version. [`Failure::Missing`]: it cannot be fetched.
    fn ready(&self, place: &Place) -> Result<String, Failure>;

    /// Runs its tests.
    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure>;
}

/// A judge's tests on one library, by so many ranks.
struct TestRun<'r> {
    place: &'r Place,
    /// Where the judge was built.
    built: PathBuf,
    library: &'r Library,
    ranks: u32,
    /// What tests say goes there, and they run there.
    folder: &'r Path,
}

impl TestRun<'_> {
    /// Starts a program on the ranks.
    fn job(&self, program: impl AsRef<Path>) -> Command {
        let mut job = self.library.job(self.ranks, program);
        job.current_dir(self.folder);
        job
    }

    /// Runs a command with its output in a file; whether it ended well, and what it said.
    fn said(&self, command: &mut Command, name: &str) -> Result<(bool, String), Failure> {
        let log = self.folder.join(format!("{name}.log"));
        let file = fs::File::create(&log).map_err(|source| mpi::at(&log, source))?;
        let both = file.try_clone().map_err(|source| mpi::at(&log, source))?;
        command.stdin(Stdio::null()).stderr(both).stdout(file);
        let status = command.status().map_err(|source| shell::could_not_start(command, source))?;
        let text = fs::read(&log).map_err(|source| mpi::at(&log, source))?;
        Ok((status.success(), String::from_utf8_lossy(&text).into_owned()))
    }
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

/// What `cargo xtask test --rest` runs.
pub(crate) fn sample(checkout: &Checkout, log: &SkipLog) -> Result<Option<Verdict>, Failure> {
    judge(checkout, log, &Options { sample: true, ..Options::default() })
}

/// How tests ended.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) passed: u64,
    /// Those that MPICH passes, or may pass.
    pub(crate) failed: u64,
}

/// The judges that are asked for.
fn chosen<'a>(checkout: &'a Checkout, options: &Options) -> Vec<Box<dyn Judge + 'a>> {
    let mpi4py = |only| mpi4py::Mpi4py { checkout, only, sample: options.sample };
    let mut others: Vec<Box<dyn Judge + 'a>> = vec![
        Box::new(fftw3::Fftw3),
        Box::new(hypre::Hypre),
        Box::new(netpipe::NetPipe),
        Box::new(hpcc::Hpcc),
        Box::new(mpi4py_fft::Mpi4pyFft(mpi4py(Vec::new()))),
    ];
    let is_named = |name: &str| options.only.iter().any(|only| only == name);
    let mut only = options.only.clone();
    only.retain(|only| only != "mpi4py" && others.iter().all(|judge| judge.name() != only));
    let all = options.only.is_empty();
    others.retain(|judge| !options.sample && (all || is_named(judge.name())));
    let mut judges: Vec<Box<dyn Judge + 'a>> = Vec::new();
    if all || is_named("mpi4py") || !only.is_empty() {
        judges.push(Box::new(mpi4py(only)));
    }
    judges.extend(others);
    judges
}

/// `None` if none of them can be had here.
fn judge(
    checkout: &Checkout,
    log: &SkipLog,
    options: &Options,
) -> Result<Option<Verdict>, Failure> {
    let what = if options.sample { mpi::Build::WithTests } else { mpi::Build::Dev };
    shell::timed("the MPI library", || mpi::run(checkout, what)).0?;
    let place = Place::new(checkout)?;
    let ours = Library { name: "gapless", prefix: checkout.target.join("mpi") };
    let mpich = Library { name: MPICH_NAME, prefix: place.venv() };
    let (mut lines, mut verdict) = (Vec::new(), None);
    for judge in chosen(checkout, options) {
        let ready = || {
            if options.peer {
                place.mpich()?;
            }
            judge.ready(&place)
        };
        let version = match shell::timed(judge.name(), ready).0 {
            Ok(version) => version,
            Err(failure @ Failure::Missing(_)) => {
                let skip = Skip {
                    what: format!("the tests of {}", judge.name()),
                    why: failure.to_string(),
                };
                println!("SKIPPED: {}: {}", skip.what, skip.why);
                log.add(&skip)?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let verdict = verdict.get_or_insert_with(Verdict::default);
        let own_ranks = options.ranks.is_empty() || judge.ranks() == [0];
        let ranks = if own_ranks { judge.ranks() } else { &options.ranks };
        for &ranks in ranks {
            let run = |library: &Library| -> Result<Outcomes, Failure> {
                let name = format!("{}-{}-{ranks}", judge.name(), library.name);
                let folder = place.folder.join("results").join(&name);
                make_folder(&folder)?;
                let built = place.folder.join(judge.name());
                let run = TestRun { place: &place, built, library, ranks, folder: &folder };
                shell::timed(&name, || judge.run(run)).0
            };
            let kept = format!("{}-{version}-{MPICH}-{ranks}", judge.name());
            let kept = place.folder.join("results").join(kept);
            let (mut own, mut peer) = (run(&ours)?, Outcomes::kept(&kept));
            if own.0.is_empty() {
                own.note(judge.name(), false, "no test ran");
            }
            let mut print = |library: &Library, outcomes: &Outcomes| {
                let [passed, failed, skipped] = outcomes.sums();
                lines.push(format!(
                    "{:<10} {version:<8} {:<8} {ranks:>5} {passed:>8} {failed:>8} {skipped:>8}",
                    judge.name(),
                    library.name
                ));
            };
            print(&ours, &own);
            if options.peer {
                let outcomes = run(&mpich)?;
                print(&mpich, &outcomes);
                peer.0.extend(outcomes.0);
                peer.keep(&kept)?;
            }
            verdict.passed += own.sums()[0] as u64;
            for (test, why) in own.failed() {
                let (says, counts) = of_others(judge.known(), test, peer.0.get(test));
                verdict.failed += u64::from(counts);
                lines.push(format!("    {test}: {why}; {says}"));
            }
        }
    }
    println!(
        "\n{:<10} {:<8} {:<8} {:>5} {:>8} {:>8} {:>8}",
        "judge", "version", "library", "ranks", "passed", "failed", "skipped"
    );
    lines.iter().for_each(|line| println!("{line}"));
    Ok(verdict)
}

/// What is known of a test that failed, and whether it must not.
fn of_others(known: &[(&str, &str)], test: &str, peer: Option<&Outcome>) -> (String, bool) {
    if let Some((_, why)) = known.iter().find(|(known, _)| *known == test) {
        return (format!("known: {why}"), false);
    }
    match peer {
        Some(Outcome::Passed) => ("MPICH passes it".to_owned(), true),
        Some(Outcome::Skipped) => ("skipped with MPICH".to_owned(), false),
        Some(Outcome::Failed(why)) => (format!("MPICH fails, too: {why}"), false),
        None => ("it is not known of MPICH".to_owned(), true),
    }
}
