//! Processes that others may not read: single copy is refused, and messages arrive all the same.

use crate::common::{WATCHDOG, finish, gapless, pattern, ranks_with, skip, text};
use gapless::{Config, Protocol, World};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::os::unix::process::CommandExt as _;

const LEN: usize = 4 << 20;

fn forced() -> gapless::Builder {
    World::builder().config(Config { force: Some(Protocol::SingleCopy), ..Config::default() })
}

fn hide() {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).expect("anybody may hide");
}

/// Sends 4 MiB of ordinary memory from rank 0 to rank 1, which gives how they came.
fn exchange(world: &World, seed: u64) -> Option<Protocol> {
    let comm = world.comm();
    if comm.rank() == 0 {
        // Once rank 1 has said something the link is up, and single copy has been probed.
        comm.recv(&mut [0u8], 1, 1).unwrap();
        comm.send(&pattern(LEN, seed), 1, 0).unwrap();
        return None;
    }
    comm.send(&[0u8], 0, 1).unwrap();
    let mut into = vec![0u8; LEN];
    let status = comm.recv(&mut into, 0, 0).unwrap();
    assert!(into == pattern(LEN, seed));
    Some(status.protocol)
}

/// Rank 0 may be read at first, and then hides: the receiver is refused when it reads, and chooses
/// again. Root may read everything, so the job runs as nobody then.
#[test]
fn what_single_copy_is_refused_comes_by_another_protocol() {
    const TEST: &str = "hidden::what_single_copy_is_refused_comes_by_another_protocol";
    if std::env::var_os("PMI_FD").is_some() {
        return ranks_with(2, TEST, forced, |world| {
            let open = exchange(&world, 1);
            if world.rank() == 0 {
                hide();
            }
            let hidden = exchange(&world, 2);
            match open {
                None => {}
                // No process may read another here; then both came by another protocol.
                Some(protocol) if protocol != Protocol::SingleCopy => {
                    println!("unreadable: {protocol:?}")
                }
                Some(_) => assert_eq!(hidden, Some(Protocol::Pipeline)),
            }
            world.finalize().unwrap();
        });
    }
    let mut command = gapless();
    command.args(["run", "-n", "2", "-e", &format!("GAPLESS_TEST_BODY={TEST}")]);
    command.arg(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]).current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(65_534);
    }
    let output = finish(command, WATCHDOG);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    assert_eq!(said.matches("1 passed").count(), 2, "{said}");
    if said.contains("unreadable") {
        skip(TEST, "no process may read another here");
    }
}
