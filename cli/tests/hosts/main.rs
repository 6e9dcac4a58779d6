//! Jobs on two hosts: namespaces of the network, the host's name (UTS) and mounts, joined by a pair of virtual interfaces,
//! so that neither sockets nor shared memory of one host are reached from the other. Ranks 0 and 1 are on the first, 2 and
//! 3 on the second. Needs root and `ip` (iproute2); skipped aloud without. No address outside these namespaces is ever
//! called.

#[path = "../common/mod.rs"]
mod common;
mod launchers;
mod lost;
mod namespaces;
mod proxy;
mod rails;
mod shared;
mod slurm;
mod tasks;
mod together;
mod verbs;
mod windows;

use common::{BODY, again, finish_all, is_rank};
use gapless::{Builder, World};
use namespaces::Namespaces;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

/// No job here takes longer unless something hangs.
const WATCHDOG: Duration = Duration::from_secs(200);

/// Which host a rank is on.
fn host_of(rank: u32) -> usize {
    usize::from(rank >= 2)
}

/// Runs `body` as four ranks on two hosts, which meet in a folder; nobody ends the others when one dies. To be all that
/// the test called `name` does.
fn on_two_hosts(name: &str, dying: &[u32], body: impl FnOnce(Builder)) {
    if is_rank(name) {
        return body(World::builder().wireup(common::folder_wireup()));
    }
    let Some(hosts) = Namespaces::new(name) else { return };
    common::orphans_at(4, name, dying, WATCHDOG, |rank| hosts.enter(host_of(rank)));
}

/// Runs `body` as four ranks on two hosts, under `gapless run` and, where that is installed, MPICH's
/// `mpiexec.hydra`. To be all that the test called `name` does.
fn under_launchers(name: &str, body: impl FnOnce(World)) {
    if is_rank(name) {
        return body(World::init().expect("the world comes to be"));
    }
    let Some(hosts) = Namespaces::new(name) else { return };
    let quoted =
        |words: Vec<OsString>| words.join(" ".as_ref()).into_string().expect("plain words");
    let [one, other] = [0, 1].map(|host| quoted(hosts.enter(host)));
    let script =
        format!("if [ $PMI_RANK -lt 2 ]; then exec {one} \"$@\"; else exec {other} \"$@\"; fi");
    let mut ours = common::gapless();
    ours.args(["run", "-n", "4", "--"]);
    let mut hydra = Command::new("mpiexec.hydra");
    hydra.args(["-n", "4"]).stdin(Stdio::null());
    let installed = Command::new("mpiexec.hydra").arg("--version").output();
    if installed.is_err() {
        common::skip("a job on two hosts under hydra", "mpiexec.hydra is not installed");
    }
    for mut command in [Some(ours), installed.is_ok().then_some(hydra)].into_iter().flatten() {
        command.env(BODY, name).args(["sh", "-c", &script, "sh"]).args(again(name));
        common::assert_ran(&finish_all(command, WATCHDOG), 4);
    }
}
