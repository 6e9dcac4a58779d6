//! `cargo xtask soak`: eight processes exchange messages of random layouts and sizes for so many minutes, every byte
//! compared, memory and descriptors sampled (`tests/tests/resilience/soak.rs`). Before that, each package is checked
//! without the rest, the crates for others are packed ([`crate::package`]), workspaces of examples are tested, the fuzz
//! targets run for a short time ([`test::rare`]), random tests have all their rounds ([`test::all_rounds`]), the kernel images are built and compared with the committed ones, the
//! tests of btl-ib run over Soft-RoCE ([`crate::verbs`]), all experiments of `bench` run, 10,000 unauthenticated
//! callers call at TCP links and 2,000 bits of encrypted ones are changed (`btl-tcp`), messages pass through 1,000
//! OpenCL contexts one after the other in flat memory (`tests/tests/opencl_contexts.rs`), 200 pairs of ranks are
//! stopped or lose one of them beside persistent kernels, where there is a GPU (`tests/tests/stream_comm/deaths.rs`),
//! the simulator plays [`SEEDS`] worlds, a job of 500 processes runs under the usual limit of 1,024 descriptors
//! (`cli/tests/peers.rs`), and jobs on two hosts go through [`RAIL_CUTS`] cuts of rails, and [`RAIL_JOBS`] jobs have
//! somebody between the hosts, or lose a cable and a rank (`cli/tests/hosts/rails.rs`). Then jobs of 100 processes on
//! two hosts, jobs that end badly under each launcher, a job beside 10,000 unauthenticated callers, and a cable that is
//! pulled out, which must be noticed within 30 s, so that the machine may not be busy with others (`cli/tests/hosts`);
//! after it, the workspace's tests on every odd machine (`odd.rs`), with the minutes that each took.

use crate::metadata::Checkout;
use crate::{Failure, kernels, package, shell, test, verbs};

/// Most minutes: a week.
pub(crate) const MINUTES_MAX: u64 = 7 * 24 * 60;

/// Runs the test for `minutes`. It prints its seed and, for each process, what it took at most. The odd machines come
/// last, so that nothing else waits for them.
pub(crate) fn run(checkout: &Checkout, minutes: u64, release: bool) -> Result<(), Failure> {
    test::rare(checkout)?;
    test::all_rounds(checkout)?;
    shell::timed("packages", || package::run(checkout)).0?;
    shell::timed("kernel images", || kernels::run(checkout, true)).0?;
    shell::timed("verbs", || verbs::run(checkout, &[], verbs::SECONDS)).0?;
    // Unit tests of the transport.
    for (what, name, (key, value)) in [
        ("unauthenticated callers", "unauthenticated", ("GAPLESS_UNAUTHENTICATED", "10000")),
        ("bits that are changed", "every_change_on_the_way", ("GAPLESS_FLIPS", "2000")),
    ] {
        let mut command = shell::cargo();
        command.current_dir(&checkout.root).args(["test", "-p", "gapless-btl-tcp"]);
        command.args(["--features", "encryption", "--lib"]).args(release.then_some("--release"));
        command.args(["--", "--nocapture", name]).env(key, value);
        shell::timed(what, || shell::run(&mut command)).0?;
    }
    let long = |what: &str, package: &str, test: &str, name: &str, (key, value): (&str, &str)| {
        let mut command = shell::cargo();
        command.current_dir(&checkout.root).args(["test", "-p", package, "--test", test]);
        command.args(release.then_some("--release"));
        command.args(["--", "--nocapture", "--exact", name]).env(key, value);
        shell::timed(what, || shell::run(&mut command)).0
    };
    let mut smoke = shell::cargo();
    smoke.current_dir(&checkout.root).args(["test", "-p", "gapless-bench", "--test", "smoke"]);
    smoke.args(release.then_some("--release")).env("GAPLESS_SMOKE_ALL", "1");
    shell::timed("all experiments", || shell::run(&mut smoke)).0?;
    long("OpenCL contexts", "gapless-tests", "opencl_contexts", CONTEXTS, CONTEXTS_MADE)?;
    long("deaths beside persistent kernels", "gapless-tests", "stream_comm", DEATHS, DEATHS_JOBS)?;
    long("worlds", "gapless-sim", "all", WORLDS, ("GAPLESS_SIM_SEEDS", SEEDS))?;
    long("500 ranks", "gapless-cli", "all", MANY, ("GAPLESS_RANKS", "500"))?;
    long("cuts of rails", "gapless-cli", "hosts", RAILS, ("GAPLESS_RAIL_CUTS", RAIL_CUTS))?;
    long("mischief on rails", "gapless-cli", "hosts", MISCHIEF, ("GAPLESS_RAIL_JOBS", RAIL_JOBS))?;
    let (name, ends) = (ENDS, ("GAPLESS_LAUNCHER_ENDS", "all"));
    long("jobs that end badly, under all launchers", "gapless-cli", "hosts", name, ends)?;
    long("100 ranks on two hosts", "gapless-cli", "hosts", FAR, ("GAPLESS_HOSTS_RANKS", "100"))?;
    long(
        "unauthenticated callers beside a job",
        "gapless-cli",
        "hosts",
        BESET,
        ("GAPLESS_UNAUTHENTICATED", "10000"),
    )?;
    long(
        "a cable that is pulled out",
        "gapless-cli",
        "hosts",
        LOST,
        ("GAPLESS_LOST_SECONDS", "30"),
    )?;
    let seconds = (minutes * 60).to_string();
    let what = format!("soak, {minutes} min");
    long(&what, "gapless-tests", "resilience", TEST, ("GAPLESS_SOAK_SECONDS", &seconds))?;
    test::odd(checkout, "all", release)
}

const CONTEXTS: &str = "contexts_come_and_go";
const CONTEXTS_MADE: (&str, &str) = ("GAPLESS_OPENCL_CONTEXTS", "1000");
const DEATHS: &str = "deaths::killed_or_stopped_at_any_moment_nobody_hangs_and_nothing_remains";
/// Skipped without a GPU.
const DEATHS_JOBS: (&str, &str) = ("GAPLESS_STREAM_DEATHS", "200");
const WORLDS: &str = "seeds::every_world_obeys_mpi";
const SEEDS: &str = "100000";
const RAILS: &str = "rails::rails_that_are_cut_cost_nothing";
/// So many cuts of rails.
const RAIL_CUTS: &str = "200";
const MISCHIEF: &str = "rails::mischief_between_hosts_costs_nothing";
/// So many jobs with somebody between the hosts.
const RAIL_JOBS: &str = "80";
const ENDS: &str = "launchers::ending::a_rank_that_ends_badly_ends_the_job_on_both_hosts";
const FAR: &str = "together::many::many_ranks_on_two_hosts";
const BESET: &str =
    "together::unauthenticated::unauthenticated_callers_of_the_other_host_get_nowhere";
const LOST: &str = "lost::a_cable_that_is_pulled_out";
const MANY: &str = "peers::many_ranks_fit_under_few_descriptors";
const TEST: &str = "soak::eight_processes_exchange_everything_in_flat_memory";
