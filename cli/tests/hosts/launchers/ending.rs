//! Jobs that end badly over two hosts: a rank is killed, aborts or panics. The launcher ends with an error, and nobody is
//! left waiting, whichever launcher it is.
//!
//! Each launcher runs one of the three, by the seed; `GAPLESS_LAUNCHER_ENDS=all` has each run all of them.

use super::each;
use crate::common::{BODY, again, finish, is_rank, text};
use crate::host_of;
use crate::rails::{SEED, first_seed};
use gapless::World;
use std::process::Output;

/// Whether each launcher runs all.
const ALL: &str = "GAPLESS_LAUNCHER_ENDS";
const NAME: &str = "launchers::ending::a_rank_that_ends_badly_ends_the_job_on_both_hosts";
/// What rank 2 does, which is on the other host than the launcher.
const WAYS: [&str; 3] = ["abort", "kill", "panic"];

/// Ends as the last argument says. The test harness takes that argument for one more filter, which matches no test.
fn body() {
    let way = std::env::args().next_back().expect("the parent says it");
    let world = World::init().expect("the world comes to be");
    let comm = world.comm();
    // Nobody ends before everybody has a link to everybody.
    for other in (0..comm.size()).filter(|&other| other != comm.rank()) {
        let mut byte = [0u8];
        comm.sendrecv(&[1u8], (other, 5), &mut byte, (other, 5)).unwrap();
    }
    comm.barrier().unwrap();
    if comm.rank() == 2 {
        assert_eq!(host_of(2), 1, "on the other host");
        match way.as_str() {
            "abort" => world.abort(7),
            "kill" => {
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
            }
            _ => panic!("rank 2 panics on purpose"),
        }
    }
    // Whom the launcher leaves alone hears of it, and goes.
    let _ = comm.recv(&mut [0u8; 8], 2, 99).expect_err("rank 2 sends nothing any more");
    std::mem::forget(world);
    std::process::exit(3);
}

fn check(what: &str, way: &str, output: &Output) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let said = format!("{what}, {way}: {}\n{out}\n{err}", output.status);
    assert!(!output.status.success(), "{said}");
    assert!(!out.contains("1 passed"), "nobody goes on: {said}");
    // Launchers pass on the code of an abort; of `srun` it is only known that it fails.
    if way == "abort" && !what.starts_with("srun") {
        assert_eq!(output.status.code(), Some(7), "{said}");
    }
}

#[test]
fn a_rank_that_ends_badly_ends_the_job_on_both_hosts() {
    if is_rank(NAME) {
        return body();
    }
    let seed = first_seed();
    println!("{SEED}={seed}");
    let all = std::env::var_os(ALL).is_some();
    let mut turn = usize::try_from(seed % 3).unwrap();
    each(NAME, |make, what| {
        let ways: Vec<&str> = if all { WAYS.to_vec() } else { vec![WAYS[turn]] };
        turn = (turn + 1) % WAYS.len();
        for way in ways {
            let mut command = make();
            command.env(BODY, NAME).args(again(NAME)).arg(way);
            let begin = std::time::Instant::now();
            let output = finish(command, crate::WATCHDOG);
            super::show(&format!("{what}, {way}"), begin);
            check(what, way, &output);
        }
    });
}
