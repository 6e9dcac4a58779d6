//! A rail at a hundredth of the other's rate, as `tc` makes it: everything arrives, and both rails live. What each carries
//! is printed: the slow one has copies of a few messages, by which it is found to be slow.

use super::rails_left;
use crate::common::{self, is_rank, pattern, skip};
use crate::namespaces::{Namespaces, interface};
use crate::{WATCHDOG, host_of};
use gapless::World;

const LEN: usize = 256 << 10;
const MESSAGES: usize = 16;
const NAME: &str = "rails::slow::a_slow_rail_harms_no_message";

/// Bytes that this host has sent over a cable.
fn sent(cable: usize) -> u64 {
    // As `ip` sees it: `/sys` is that of the system.
    let text = super::run(&format!("ip -s -j link show dev {}", interface(cable)));
    let (_, rest) = text.split_once("\"tx\":{\"bytes\":").expect("statistics");
    rest.split(',').next().and_then(|number| number.trim().parse().ok()).expect("a number")
}

#[test]
fn a_slow_rail_harms_no_message() {
    if is_rank(NAME) {
        let builder = World::builder().wireup(common::folder_wireup());
        let world = builder.tcp_interfaces("eth0,eth1").init().unwrap();
        let comm = world.comm();
        comm.barrier().unwrap();
        let before = [0, 1].map(sent);
        // Ranks 0 and 1 send to 2 and 3, all at once.
        let message = |at: usize| pattern(LEN, at as u64);
        if host_of(comm.rank()) == 0 {
            let all: Vec<Vec<u8>> = (0..MESSAGES).map(message).collect();
            comm.scope(|s| {
                all.iter().try_for_each(|one| s.isend(one, comm.rank() + 2, 1).map(drop))
            })
            .unwrap();
        } else {
            let mut all = vec![vec![0u8; LEN]; MESSAGES];
            comm.scope(|s| {
                all.iter_mut().try_for_each(|one| s.irecv(one, comm.rank() - 2, 1).map(drop))
            })
            .unwrap();
            assert!(all.iter().enumerate().all(|(at, got)| *got == message(at)));
        }
        comm.barrier().unwrap();
        if host_of(comm.rank()) == 0 {
            let carried = [0, 1].map(|cable| sent(cable) - before[cable]);
            println!("the quick rail carried {} bytes, the slow one {}", carried[0], carried[1]);
            // How much the slow one may carry depends on how quick the machine makes the other.
            assert!(carried.iter().all(|&bytes| bytes > 0), "{carried:?}");
        }
        assert_eq!(rails_left(&world), 2, "it is slow, not dead");
        return world.finalize().unwrap();
    }
    let Some(hosts) = Namespaces::with_cables(NAME, 2) else { return };
    let rates = ["1000mbit burst 128k", "10mbit burst 32k"];
    let limited = (0..4).try_for_each(|at| {
        hosts.spoil(at / 2, at % 2, &format!("tbf rate {} latency 50ms", rates[at % 2]))
    });
    if let Err(why) = limited {
        return skip("a rail that is slow", &why);
    }
    common::orphans_at(4, NAME, &[], WATCHDOG, |rank| hosts.enter(host_of(rank)));
}
