//! A job of many processes on two hosts over TCP: what starts it is bounded in descriptors and links.
//!
//! `GAPLESS_HOSTS_RANKS=100` has so many processes, half of them on each host; 8 by default.

use crate::common::{self, BODY, again, finish_all, is_rank};
use crate::namespaces::Namespaces;
use crate::rails::number_of;
use gapless::{ReduceOp, World};
use std::ffi::OsString;

const RANKS: &str = "GAPLESS_HOSTS_RANKS";
const NAME: &str = "together::many::many_ranks_on_two_hosts";

/// Open descriptors of this process.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

fn body(world: &World) {
    let comm = world.comm();
    let (me, size) = (comm.rank(), comm.size());
    let distances = u64::from(size.next_power_of_two().trailing_zeros());
    let before = descriptors();
    // A link takes one or two, and so do listening and the launcher.
    assert!(before <= 2 * 2 * distances + 40, "{before} descriptors after the start");
    let mut sum = [0u64];
    comm.allreduce(&[u64::from(me)], &mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [u64::from(size) * u64::from(size - 1) / 2]);
    // A peer of the other host, with which nobody else speaks.
    let other = (me + size / 2) % size;
    for round in 0..3u8 {
        let (out, mut into) = (vec![round; 50_000], vec![0u8; 50_000]);
        comm.sendrecv(&out, (other, 5), &mut into, (other, 5)).unwrap();
        assert_eq!(out, into);
    }
    let link = world.link(other).unwrap().limits.expect("it stands");
    assert_eq!(link.name, "tcp", "from {me} to {other}");
    comm.barrier().unwrap();
    let after = descriptors();
    // Collectives have leaders, who have a link to each rank of their host.
    assert!(after <= 2 * u64::from(size) + 60, "{after} descriptors after messages");
    let mut most = [0u64; 2];
    comm.allreduce(&[before, after], &mut most, ReduceOp::Max).unwrap();
    if me == 0 {
        eprintln!("{size} ranks: at most {} descriptors at the start, {} later", most[0], most[1]);
    }
}

#[test]
fn many_ranks_on_two_hosts() {
    if is_rank(NAME) {
        let world = World::init().expect("the world comes to be");
        body(&world);
        return world.finalize().unwrap();
    }
    let Some(hosts) = Namespaces::new(NAME) else { return };
    let ranks = u32::try_from(number_of(RANKS).unwrap_or(8)).expect("so many processes") / 2 * 2;
    let quoted =
        |words: Vec<OsString>| words.join(" ".as_ref()).into_string().expect("plain words");
    let [one, other] = [0, 1].map(|host| quoted(hosts.enter(host)));
    let half = ranks / 2;
    let script = format!(
        "if [ $PMI_RANK -lt {half} ]; then exec {one} \"$@\"; else exec {other} \"$@\"; fi"
    );
    let mut command = common::gapless();
    command.args(["run", "-n", &ranks.to_string(), "--", "sh", "-c", &script, "sh"]);
    command.env(BODY, NAME).args(again(NAME));
    let output = finish_all(command, crate::WATCHDOG);
    common::assert_ran(&output, ranks);
    let said = common::text(&output.stderr);
    said.lines().filter(|line| line.contains("descriptors")).for_each(|line| println!("{line}"));
}
