//! Ranks of the other host that are killed, and a cable that is pulled out.
//!
//! A silent host is given up after five seconds here. `GAPLESS_LOST_SECONDS=30` leaves the default, and asserts that nobody
//! waits for longer than that: for a machine that is not busy.

use super::rails::number_of;
use super::{host_of, namespaces::INTERFACE, on_two_hosts};
use crate::common::{await_flag, flag, meeting_folder};
use gapless::{Builder, Error, World};
use std::process::Command;
use std::time::{Duration, Instant};

/// Twelve seconds are promised, and two of progress; a watchdog waits ten times as long.
pub(super) const NOTICE: Duration = Duration::from_secs(140);

/// How long a loss may take, and the default notice.
const SECONDS: &str = "GAPLESS_LOST_SECONDS";

/// Everybody has a link to everybody.
fn meet(world: &World) {
    let comm = world.comm();
    for round in 0..3u8 {
        for other in (0..comm.size()).filter(|&other| other != comm.rank()) {
            let mut byte = [0u8];
            comm.sendrecv(&[round], (other, 5), &mut byte, (other, 5)).unwrap();
            assert_eq!(byte, [round]);
        }
    }
    flag(&meeting_folder(), &format!("met-{}", world.rank()));
    (0..world.size()).for_each(|rank| await_flag(&meeting_folder(), &format!("met-{rank}")));
}

pub(super) fn loses<T: std::fmt::Debug>(
    rank: u32,
    wait: impl FnOnce() -> Result<T, Error>,
) -> String {
    let begin = Instant::now();
    let error = wait().expect_err("it is gone");
    let most = number_of(SECONDS).map_or(NOTICE, Duration::from_secs);
    assert!(begin.elapsed() < most, "after {:?}: {error}", begin.elapsed());
    println!("rank {rank} was lost after {:.1} s: {error}", begin.elapsed().as_secs_f64());
    assert_eq!(error.lost_rank(), Some(rank), "{error}");
    error.to_string()
}

/// Rank 3 of 4 dies.
pub(super) fn last_of_four_dies(builder: Builder) {
    let world = builder.init().unwrap();
    meet(&world);
    let comm = world.comm();
    if world.rank() == 3 {
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    }
    loses(3, || comm.recv(&mut [0u8; 8], 3, 0));
    loses(3, || comm.send(&vec![0u8; 1 << 20], 3, 0));
    // The others are not harmed, on whichever host.
    for other in (0..3).filter(|&other| other != world.rank()) {
        let mut byte = [0u8];
        comm.sendrecv(&[7u8], (other, 6), &mut byte, (other, 6)).unwrap();
        assert_eq!(byte, [7]);
    }
    std::mem::forget(world);
}

#[test]
fn a_rank_that_is_killed() {
    on_two_hosts("lost::a_rank_that_is_killed", &[3], last_of_four_dies);
}

/// Acknowledgements are delayed by up to 40 ms. So on some links everything is acknowledged when the cable goes, and on
/// others the last message is not.
#[test]
fn a_cable_that_is_pulled_out() {
    on_two_hosts("lost::a_cable_that_is_pulled_out", &[], |builder| {
        let is_default = number_of(SECONDS).is_some();
        let notice = if is_default { 12 } else { 5 };
        let builder = if is_default { builder } else { builder.notice(Duration::from_secs(5)) };
        let world = builder.init().unwrap();
        meet(&world);
        let limits = world.link((world.rank() + 2) % 4).unwrap().limits.expect("it stands");
        assert_eq!((limits.name, limits.death_notice_ms), ("tcp", notice * 1000));
        let comm = world.comm();
        if world.rank() == 0 {
            let down = Command::new("ip").args(["link", "set", INTERFACE, "down"]).status();
            assert!(down.unwrap().success());
            flag(&meeting_folder(), "down");
        }
        await_flag(&meeting_folder(), "down");
        let far = (0..4).filter(|&other| host_of(other) != host_of(world.rank()));
        for (turn, other) in (0u32..).zip(far) {
            // One waits for a message, one sends: an idle connection, and one that is not acknowledged.
            if (turn + world.rank()).is_multiple_of(2) {
                loses(other, || comm.recv(&mut [0u8; 8], other, 0));
            } else {
                loses(other, || comm.send(&vec![0u8; 1 << 20], other, 0));
            }
        }
        // Neighbours have each other.
        let near = world.rank() ^ 1;
        let mut byte = [0u8];
        comm.sendrecv(&[9u8], (near, 6), &mut byte, (near, 6)).unwrap();
        assert_eq!(byte, [9]);
        flag(&meeting_folder(), &format!("over-{}", world.rank()));
        (0..4).for_each(|rank| await_flag(&meeting_folder(), &format!("over-{rank}")));
        std::mem::forget(world);
    });
}
