//! `cargo xtask soak`: eight processes exchange messages of random layouts and sizes for so many minutes,
//! every byte compared, memory and descriptors sampled (`tests/tests/resilience/soak.rs`). Before that, each package is
//! checked without the rest, workspaces of examples are tested, the fuzz targets run for a short time ([`test::rare`]),
//! the kernel images are built and compared with the committed ones, the tests of btl-ib run over Soft-RoCE
//! ([`crate::verbs`]), a job of 500 processes runs under the usual limit of 1,024 descriptors (`cli/tests/peers.rs`), and
//! jobs on two hosts go through [`RAIL_CUTS`] cuts of rails (`cli/tests/hosts/rails.rs`); after it, the workspace's tests on every
//! odd machine (`odd.rs`), with the minutes that each took.

use crate::metadata::Checkout;
use crate::{Failure, kernels, shell, test, verbs};

/// Most minutes: a week.
pub(crate) const MINUTES_MAX: u64 = 7 * 24 * 60;

/// Runs the test for `minutes`. It prints its seed and, for each process, what it took at most. The odd machines come
/// last, so that nothing else waits for them.
pub(crate) fn run(checkout: &Checkout, minutes: u64, release: bool) -> Result<(), Failure> {
    test::rare(checkout)?;
    shell::timed("kernel images", || kernels::run(checkout, true)).0?;
    shell::timed("verbs", || verbs::run(checkout, &[], verbs::SECONDS)).0?;
    let mut many = shell::cargo();
    many.current_dir(&checkout.root).args(["test", "-p", "gapless-cli", "--test", "peers"]);
    many.args(release.then_some("--release"));
    many.args(["--", "--nocapture", "--exact", MANY]).env("GAPLESS_RANKS", "500");
    shell::timed("500 ranks", || shell::run(&mut many)).0?;
    let mut rails = shell::cargo();
    rails.current_dir(&checkout.root).args(["test", "-p", "gapless-cli", "--test", "hosts"]);
    rails.args(release.then_some("--release"));
    rails.args(["--", "--nocapture", "--exact", RAILS]).env("GAPLESS_RAIL_CUTS", RAIL_CUTS);
    shell::timed("cuts of rails", || shell::run(&mut rails)).0?;
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).args(["test", "-p", "gapless-tests"]);
    command.args(release.then_some("--release"));
    command.args(["--test", "resilience", "--", "--nocapture", "--exact", TEST]);
    command.env("GAPLESS_SOAK_SECONDS", (minutes * 60).to_string());
    shell::timed(&format!("soak, {minutes} min"), || shell::run(&mut command)).0?;
    test::odd(checkout, "all", release)
}

const RAILS: &str = "rails::rails_that_are_cut_cost_nothing";
/// So many cuts of rails.
const RAIL_CUTS: &str = "200";
const MANY: &str = "many_ranks_fit_under_few_descriptors";
const TEST: &str = "soak::eight_processes_exchange_everything_in_flat_memory";
