//! A launcher over two hosts that is killed: its processes end on both hosts, although they wait for each other.

use super::each;
use crate::common::{BODY, again, is_rank, skip};
use gapless::World;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "launchers::killed::a_killed_launcher_leaves_nobody_behind_on_either_host";
const RANKS: u32 = 4;

/// Says who it is in the folder that is the last argument, and waits for a message that nobody sends. The test harness takes
/// that argument for one more filter, which matches no test.
fn body() {
    let folder = std::env::args().next_back().expect("the parent says it");
    let world = World::init().expect("the world comes to be");
    let (comm, me) = (world.comm(), world.rank());
    for other in (0..comm.size()).filter(|&other| other != me) {
        let mut byte = [0u8];
        comm.sendrecv(&[1u8], (other, 5), &mut byte, (other, 5)).unwrap();
    }
    comm.barrier().unwrap();
    let (new, place) = (format!("{folder}/new-{me}"), format!("{folder}/{me}"));
    std::fs::write(&new, std::process::id().to_string()).unwrap();
    std::fs::rename(new, place).unwrap();
    let error = comm.recv(&mut [0u8], (me + 1) % comm.size(), 99).expect_err("nobody sends this");
    eprintln!("\nrank {me}: {error}");
    std::mem::forget(world);
    std::process::exit(3);
}

/// The process of a rank, once it has said so.
fn process(folder: &Path, rank: u32) -> Option<Pid> {
    let said = std::fs::read_to_string(folder.join(rank.to_string())).ok()?;
    Pid::from_raw(said.parse().ok()?)
}

/// Whether a process runs; one that nobody has waited for does not.
fn runs(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let state = stat.as_deref().ok().and_then(|stat| stat.rsplit_once(") "));
    state.is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() && begin.elapsed() < crate::WATCHDOG {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(is_so(), "waiting until {what}");
    begin.elapsed()
}

/// Ends what the launcher has left, if the test fails.
struct Rest(Vec<Pid>);

impl Drop for Rest {
    fn drop(&mut self) {
        for &process in self.0.iter().filter(|process| runs(**process)) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The launcher.
struct Launched(Child);

impl Launched {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_killed_launcher_leaves_nobody_behind_on_either_host() {
    if is_rank(NAME) {
        return body();
    }
    each(NAME, |make, what| {
        if what.starts_with("srun") {
            let why = "Slurm's jobs are its daemons': they go on without `srun`, until `scancel`";
            return skip(&format!("{what} that is killed"), why);
        }
        let folder = tempfile::tempdir().unwrap();
        let mut command = make();
        // What it cannot remove any more goes with the test.
        command.env("TMPDIR", folder.path()).env(BODY, NAME).args(again(NAME)).arg(folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut launcher = Launched(command.spawn().unwrap());
        let all =
            || (0..RANKS).map(|rank| process(folder.path(), rank)).collect::<Option<Vec<_>>>();
        until(&format!("all ranks of {what} are there"), || all().is_some());
        let rest = Rest(all().unwrap());
        assert!(rest.0.iter().all(|process| runs(*process)));
        launcher.end();
        let took =
            until(&format!("nobody of {what} is left"), || !rest.0.iter().any(|it| runs(*it)));
        if std::env::var_os("GAPLESS_SHOW_LAUNCHERS").is_some() {
            eprintln!("{what}, killed: the last rank ended after {took:?}");
        }
    });
}
