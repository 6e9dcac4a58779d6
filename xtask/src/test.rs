//! `cargo xtask test`: set-up ([`crate::tools`]) and all tests of the workspace in one go, with the features that its
//! crates turn on for each other. What was skipped, and why, and the sum come last.
//!
//! `cargo xtask test --rest` runs what CI runs beside them. It depends less on the machine, and needs more of it:
//!
//! 1. what differs from the workspace without the rest of it is checked by the compiler ([`alone`]), of the crates that
//!    need fewest others: a crate that forgot to ask for a feature passes in the workspace and fails here. Features of
//!    ours only add what others can call, so that tests come out as they did;
//! 2. the libraries that use loom, built with `--cfg loom`: their lock-free parts under every
//!    interleaving that the memory model allows;
//! 3. a few of the workspace's tests on odd machines ([`odd::ALWAYS`]);
//! 4. btl-ib is linted, and some of its tests run over Soft-RoCE in an emulated machine ([`verbs::sample`]);
//! 5. a few modules of mpi4py's tests run on the MPI library ([`judges::sample`]).
//!
//! The rest of step 1, all rounds of random tests, workspaces below `examples/`, and the fuzz targets' short run take
//! long: they are part of `cargo xtask soak` ([`rare`]).
//!
//! The sum comes from libtest's `test result:` lines. Those that mention filtered tests are not counted, unless tests
//! of the program were chosen: they come from a test that ran its own binary again as another process.

mod alone;
mod programs;
mod silence;
mod tally;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::metadata::Checkout;
use crate::skips::{self, SkipLog};
use crate::{Failure, fuzz, judges, odd, shell, tools, verbs};
use tally::Tally;

/// A step that ran.
struct TestStep {
    name: String,
    took: Duration,
    tally: Tally,
}

/// Runs the workspace's tests.
pub(crate) fn run(checkout: &Checkout) -> Result<(), Failure> {
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    shell::timed("tools", || tools::set_up(&log)).0?;
    let workspace = step(checkout, &log, "the workspace", &["--workspace"], &plain_kernels())?;
    summarise(&[workspace], &log)
}

/// Runs what is beside the workspace's tests.
pub(crate) fn rest(checkout: &Checkout) -> Result<(), Failure> {
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    shell::timed("tools", || tools::set_up(&log)).0?;
    check_alone(checkout, alone::groups(checkout)?.iter().rev().take(ALONE))?;
    let loom = [
        ("RUSTFLAGS", "--cfg loom".into()),
        ("CARGO_TARGET_DIR", checkout.target.join("loom").into()),
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "0".into()),
    ];
    // What they depend on is built once, and not optimised: models spend their time in loom, which is not either.
    let mut arguments = vec!["--lib", "--config", "profile.dev.package.gapless-dtype.opt-level=0"];
    let with_models = checkout.packages.iter().filter(|package| package.has_models());
    arguments.extend(with_models.flat_map(|package| ["-p", &*package.name]));
    let mut steps = vec![step(checkout, &log, "models under loom", &arguments, &loom)?];
    steps.extend(always_odd(checkout, &log)?);
    steps.extend(over_verbs(checkout, &log)?);
    steps.extend(judged(checkout, &log)?);
    summarise(&steps, &log)
}

/// Runs the workspace's tests with all rounds of those that repeat what random numbers choose.
pub(crate) fn all_rounds(checkout: &Checkout) -> Result<(), Failure> {
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    let variables = [("GAPLESS_ALL_ROUNDS", OsString::from("1"))];
    let all = step(checkout, &log, "all rounds", &["--workspace"], &variables)?;
    summarise(&[all], &log)
}

/// One `cargo test`, timed.
fn step(
    checkout: &Checkout,
    log: &SkipLog,
    name: &str,
    arguments: &[&str],
    variables: &[(&str, OsString)],
) -> Result<TestStep, Failure> {
    let (tally, took) = shell::timed(name, || cargo_test(checkout, log, arguments, variables));
    Ok(TestStep { name: name.to_owned(), took, tally: tally? })
}

/// PoCL compiles kernels as they are written, unless the user says: with its optimiser each takes a second of a
/// processor and more, and there are hundreds. No GPU has that compiler. Rounds on odd machines keep it ([`mod@odd`]).
fn plain_kernels() -> Vec<(&'static str, OsString)> {
    let usual = (POCL_FLAGS, "-cl-opt-disable".into());
    if std::env::var_os(POCL_FLAGS).is_some() { Vec::new() } else { vec![usual] }
}

/// What PoCL adds to the options of every program.
const POCL_FLAGS: &str = "POCL_EXTRA_BUILD_FLAGS";

/// Groups of packages without the rest that `--rest` checks: of those that need fewest others.
const ALONE: usize = 3;

/// Has the compiler check groups of packages, each without the rest of the workspace.
fn check_alone<'g>(
    checkout: &Checkout,
    groups: impl Iterator<Item = &'g Vec<String>>,
) -> Result<(), Failure> {
    for group in groups {
        let heading = format!("without the rest: {}", group.join(" "));
        shell::timed(&heading, || cargo_check(checkout, group)).0?;
    }
    Ok(())
}

/// Packages that know vendors of accelerators, each a feature.
const VENDORED: [&str; 4] = ["gapless-dtype-cuda", "gapless-gpu", "gapless", "gapless-cli"];

/// Has the compiler check what users get who ask for one vendor, or none.
fn check_vendors(checkout: &Checkout) -> Result<(), Failure> {
    for package in VENDORED {
        for vendor in ["", "cuda", "opencl"] {
            let mut command = shell::cargo();
            command.args(["check", "-p", package, "--no-default-features", "--features", vendor]);
            let heading = format!("{package} with features [{vendor}]");
            let command = command.current_dir(&checkout.root);
            shell::timed(&heading, || shell::run(command)).0?;
        }
    }
    Ok(())
}

/// What takes longer to compile than it is worth in every run: all packages without the rest; those that know vendors
/// with one or none; each workspace below `examples/`; the fuzz targets' short run. What clippy says of these workspaces
/// fails here, too.
pub(crate) fn rare(checkout: &Checkout) -> Result<(), Failure> {
    check_alone(checkout, alone::groups(checkout)?.iter())?;
    check_vendors(checkout)?;
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    let mut steps = Vec::new();
    let mut step = |name: String, manifest: &Path, variables: &[(&str, OsString)]| {
        let [wrapper, arguments] = shell::linting();
        let variables = [variables, &[wrapper, arguments]].concat();
        let path = manifest.to_string_lossy();
        let (tally, took) = shell::timed(&name, || {
            cargo_test(checkout, &log, &["--manifest-path", &path], &variables)
        });
        steps.push(TestStep { name, took, tally: tally? });
        Ok::<(), Failure>(())
    };
    for manifest in checkout.examples() {
        let shown = checkout.relative(&manifest).display().to_string();
        // The workspace's, where most of what others have written is built already.
        step(shown, &manifest, &[("CARGO_TARGET_DIR", checkout.target.clone().into())])?;
    }
    let fuzz = [
        ("CARGO_TARGET_DIR", checkout.target.join("fuzz").into()),
        // As in fuzz/.cargo, which cargo looks for from where it was started.
        ("RUSTFLAGS", fuzz::FLAGS.into()),
    ];
    step("fuzz, the short run".to_owned(), &checkout.fuzz().join("Cargo.toml"), &fuzz)?;
    summarise(&steps, &log)
}

/// Runs tests on machines that are odd in the ways named: [`mod@odd`]. Tells how many minutes each took.
pub(crate) fn odd(checkout: &Checkout, names: &str, release: bool) -> Result<(), Failure> {
    let oddities = odd::named(names).map_err(Failure::Argument)?;
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    shell::timed("tools", || tools::set_up(&log)).0?;
    let programs = shell::timed("build", || programs::build(checkout, release)).0?;
    let mut steps = Vec::new();
    for oddity in oddities {
        let wanted = programs.iter().filter(|program| oddity.crates.contains(&&*program.package));
        let wanted = wanted.map(|program| (program, &[][..]));
        let Some(step) = round(checkout, &log, oddity, wanted)? else { continue };
        let (minutes, tally) = (step.took.as_secs_f64() / 60.0, &step.tally);
        let (passed, failed) = (tally.passed(), tally.failed());
        println!("== {}: {minutes:.1} min, {passed} passed, {failed} failed", step.name);
        steps.push(step);
    }
    summarise(&steps, &log)
}

/// What `--rest` does on odd machines: [`odd::ALWAYS`].
fn always_odd(checkout: &Checkout, log: &SkipLog) -> Result<Vec<TestStep>, Failure> {
    let programs = programs::build(checkout, false)?;
    let mut steps = Vec::new();
    for (name, chosen) in odd::ALWAYS {
        let mut wanted = Vec::new();
        for some in *chosen {
            let is =
                |it: &&programs::Program| it.package == some.package && it.target == some.target;
            let missing = || Failure::Missing(format!("{} {}", some.package, some.target));
            wanted.push((programs.iter().find(is).ok_or_else(missing)?, some.words));
        }
        for oddity in odd::named(name).map_err(Failure::Argument)? {
            steps.extend(round(checkout, log, oddity, wanted.iter().copied())?);
        }
    }
    Ok(steps)
}

/// The last moment, in seconds since 1970, at which the tests over verbs may begin; CI sets it, because its time is
/// limited. Unset: always.
const UNTIL: &str = "GAPLESS_VERBS_UNTIL";

/// `cargo xtask verbs --sample`.
pub(crate) fn over_verbs_alone(checkout: &Checkout) -> Result<(), Failure> {
    let log = SkipLog::start(&checkout.target.join("xtask"))?;
    let steps: Vec<TestStep> = over_verbs(checkout, &log)?.into_iter().collect();
    summarise(&steps, &log)
}

/// Runs the sample of tests over verbs that `--rest` includes; `None` if it cannot run.
fn over_verbs(checkout: &Checkout, log: &SkipLog) -> Result<Option<TestStep>, Failure> {
    let name = "btl-ib over Soft-RoCE, a sample".to_owned();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if std::env::var(UNTIL)
        .is_ok_and(|until| until.parse().is_ok_and(|until: u64| now.as_secs() > until))
    {
        let why =
            format!("it would begin later than {UNTIL} says; cargo xtask verbs --sample runs it");
        println!("SKIPPED: {name}: {why}");
        log.add(&skips::Skip { what: name, why })?;
        return Ok(None);
    }
    let (end, took) = shell::timed(&name, || verbs::sample(checkout));
    let Some(end) = end? else { return Ok(None) };
    log.add_lines(&end.skips)?;
    let tally = Tally::of_some(&end.log, end.passed).of("gapless-btl-ib", "cargo xtask verbs");
    Ok(Some(TestStep { name, took, tally }))
}

/// A few modules of mpi4py's tests; `None` if they cannot run.
fn judged(checkout: &Checkout, log: &SkipLog) -> Result<Option<TestStep>, Failure> {
    let name = "mpi4py's tests, a sample".to_owned();
    let (verdict, took) = shell::timed(&name, || judges::sample(checkout, log));
    let tally = |verdict: judges::Verdict| {
        Tally::of_sums(verdict.passed, verdict.failed).of("gapless-mpi", "cargo xtask judges")
    };
    Ok(verdict?.map(|verdict| TestStep { name, took, tally: tally(verdict) }))
}

/// Test programs, and words that choose tests of each, on one odd machine; nothing where there can be no such machine.
fn round<'p>(
    checkout: &Checkout,
    log: &SkipLog,
    oddity: odd::Oddity,
    programs: impl Iterator<Item = (&'p programs::Program, &'p [&'p str])>,
) -> Result<Option<TestStep>, Failure> {
    let Some((prefix, _company)) = oddity.prepare(checkout, log)? else { return Ok(None) };
    let all = || {
        let mut sum = Tally::default();
        for (program, words) in programs {
            let mut command = program.command();
            command.args(words);
            command.env(skips::VARIABLE, log.path()).envs(odd::shorter());
            let mut command = prefix.before(&command);
            println!("\n{} {} on a machine with {}", program.package, program.target, oddity.name);
            let counted = if words.is_empty() { Tally::default() } else { Tally::of_chosen() };
            let tally = count_with(command.stdin(Stdio::null()), silence::MOST, counted)?;
            sum.add(&tally.of(&program.package, &program.target));
        }
        Ok::<_, Failure>(sum)
    };
    let (tally, took) = shell::timed(oddity.name, all);
    let name = format!("a machine with {}", oddity.name);
    Ok(Some(TestStep { name, took, tally: tally? }))
}

/// Whether crates and their tests compile with the features that they ask for themselves.
fn cargo_check(checkout: &Checkout, packages: &[String]) -> Result<(), Failure> {
    let mut command = shell::cargo();
    command.args(["check", "--all-targets"]).current_dir(&checkout.root);
    packages.iter().for_each(|package| {
        command.args(["-p", package]);
    });
    shell::run(&mut command)
}

/// How many tests of a program run at once, unless the user says: many of ours wait for processes that they have started.
const AT_ONCE: &str = "RUST_TEST_THREADS";

fn at_once() -> OsString {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    std::env::var_os(AT_ONCE).unwrap_or_else(|| (processors + 2).to_string().into())
}

/// One `cargo test`, shown as it runs and counted.
fn cargo_test(
    checkout: &Checkout,
    log: &SkipLog,
    arguments: &[&str],
    variables: &[(&str, OsString)],
) -> Result<Tally, Failure> {
    let mut command = shell::cargo();
    command
        .args(["test", "--no-fail-fast"])
        .args(arguments)
        .current_dir(&checkout.root)
        .env(skips::VARIABLE, log.path())
        .env(AT_ONCE, at_once())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    shell::show(&command);
    count(&mut command)
}

/// Runs a command, passes its output on line by line and counts what it says of tests. What hangs is ended
/// ([`silence`]).
fn count(command: &mut Command) -> Result<Tally, Failure> {
    count_with(command, silence::MOST, Tally::default())
}

/// The same, for as long as it is not silent for `silence`; `tests` says which sums of libtest's it takes.
fn count_with(
    command: &mut Command,
    silence: Duration,
    mut tests: Tally,
) -> Result<Tally, Failure> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| shell::could_not_start(command, source))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let process = child.id();
    let (tests, builds) = thread::scope(|scope| {
        let (heard, lines) = mpsc::channel();
        let told = heard.clone();
        let builds = scope.spawn(move || {
            let mut tally = Tally::default();
            each_line(stderr, |line| {
                let _ = told.send(());
                eprintln!("{line}");
                tally.cargo_says(line);
            });
            tally
        });
        scope.spawn(move || silence::watch(process, silence, &lines));
        each_line(stdout, |line| {
            let _ = heard.send(());
            println!("{line}");
            tests.harness_says(line);
        });
        drop(heard);
        (tests, builds.join().unwrap_or_default())
    });
    let status = child.wait().map_err(|source| shell::could_not_start(command, source))?;
    let mut tally = tests;
    tally.add(&builds);
    tally.ended(status.success());
    Ok(tally)
}

/// Calls `with` on every line until the stream ends; bytes that are no UTF-8 are replaced.
fn each_line(stream: Option<impl Read>, mut with: impl FnMut(&str)) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => with(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])),
        }
    }
}

/// Lists the steps, then the skips, then the sum.
fn summarise(steps: &[TestStep], log: &SkipLog) -> Result<(), Failure> {
    let mut sum = Tally::default();
    println!("\n== summary");
    for step in steps {
        println!(
            "{:>7.1} s  {:>5} passed  {:>3} failed  {}",
            step.took.as_secs_f64(),
            step.tally.passed(),
            step.tally.failed(),
            step.name
        );
        sum.add(&step.tally);
    }
    let skipped: BTreeSet<_> = log.read()?.into_iter().chain(sum.ignored()).collect();
    println!("\n== skipped: {}", skipped.len());
    for skip in &skipped {
        println!("SKIPPED: {}: {}", skip.what, skip.why);
    }
    println!();
    for culprit in sum.culprits() {
        println!("FAILED: {culprit}");
    }
    println!("{} passed, {} failed, {} skipped", sum.passed(), sum.failed(), skipped.len());
    if sum.failed() == 0 {
        return Ok(());
    }
    Err(Failure::Found { what: "failed tests", number: sum.failed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Tally {
        count(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn both_streams_are_counted() {
        let tally = shell(
            "echo '     Running unittests src/lib.rs (a)' >&2; \
             echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'",
        );
        assert_eq!((tally.passed(), tally.failed()), (5, 0));
    }

    #[test]
    fn a_command_that_fails_without_a_word_counts_as_one_failure() {
        let tally = shell("exit 101");
        assert_eq!((tally.passed(), tally.failed()), (0, 1));
    }

    #[test]
    fn what_hangs_is_ended_and_the_rest_goes_on() {
        let script = "sleep 1000 & sleep 1000; echo 'test result: FAILED. 1 passed; 1 failed; \
                      0 ignored; 0 measured; 0 filtered out'; wait";
        let mut command = Command::new("sh");
        // Less than the sleeps by far, and more than a busy machine takes to start a shell.
        let soon = Duration::from_secs(3);
        let tally = count_with(command.args(["-c", script]), soon, Tally::default()).unwrap();
        assert_eq!((tally.passed(), tally.failed()), (1, 1));
        let mut command = Command::new("sleep");
        let tally = count_with(command.arg("1000"), soon, Tally::default()).unwrap();
        assert_eq!(tally.failed(), 1);
    }

    #[test]
    fn much_output_on_both_streams_does_not_block() {
        let tally = shell("yes x | head -n 60000 >&2; yes y | head -n 60000");
        assert_eq!(tally.failed(), 0);
    }

    #[test]
    fn lines_that_are_not_text_pass() {
        let mut lines = Vec::new();
        each_line(Some(&b"a\xff\r\nb"[..]), |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["a\u{fffd}", "b"]);
    }
}
