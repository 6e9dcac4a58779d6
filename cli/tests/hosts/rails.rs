//! Two hosts with three cables between them, and a rail for each: rails are cut while messages go over them. Until one is
//! left, nothing is lost, doubled or out of order.
//!
//! `GAPLESS_RAIL_CUTS=200` makes so many cuts, two in a job, and `GAPLESS_SEED` says where they are.

use super::namespaces::{Namespaces, interface};
use super::{WATCHDOG, host_of};
use crate::common::{self, is_rank, pattern};
use gapless::World;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

const CABLES: usize = 3;
const SEED: &str = "GAPLESS_SEED";
const CUTS: &str = "GAPLESS_RAIL_CUTS";
const NAME: &str = "rails::rails_that_are_cut_cost_nothing";

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(words: &str) -> String {
    let mut words = words.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    common::text(&output.stdout)
}

/// Resets the connections over a cable; whether the system can do that.
fn kill_sockets(cable: usize) -> bool {
    run(&format!("ss -H -K -t dst 10.{}.0.2", 77 + cable)).contains("10.")
}

/// The other host is not reached any more over a cable, and says nothing.
fn silence(cable: usize, how: usize) {
    match how {
        0 => run(&format!("ip link set {} down", interface(cable))),
        1 => run(&format!("ip route add blackhole 10.{}.0.2/32", 77 + cable)),
        _ => run(&format!("ip addr flush dev {}", interface(cable))),
    };
}

/// Several messages to everybody of the other host, of many lengths, in a window; what comes is compared.
fn exchange(world: &World, round: u64, random: &mut Random) {
    let comm = world.comm();
    let me = comm.rank();
    let lengths: Vec<usize> = (0..10)
        .map(|_| match random.below(4) {
            0 => random.below(64),
            1 => random.below(4096),
            2 => random.below(80_000),
            _ => random.below(400_000),
        })
        .collect();
    let lengths = &lengths[..];
    let far = || (0..comm.size()).filter(move |&other| host_of(other) != host_of(me));
    let seed =
        |from: u32, to: u32, at: usize| round << 16 | u64::from(from * 4 + to) << 8 | at as u64;
    let each =
        || far().flat_map(move |other| lengths.iter().enumerate().map(move |it| (other, it)));
    let out: Vec<(u32, Vec<u8>)> =
        each().map(|(to, (at, len))| (to, pattern(*len, seed(me, to, at)))).collect();
    let mut into: Vec<(u32, Vec<u8>)> =
        each().map(|(from, (_, len))| (from, vec![0; *len])).collect();
    comm.scope(|s| {
        for (from, buffer) in &mut into {
            let _ = s.irecv(buffer, *from, 1)?;
        }
        for (to, buffer) in &out {
            let _ = s.isend(buffer, *to, 1)?;
        }
        Ok(())
    })
    .unwrap();
    for ((from, (at, len)), (_, got)) in each().zip(&into) {
        let due = pattern(*len, seed(from, me, at));
        assert!(*got == due, "round {round}: message {at} of {len} bytes from {from} is wrong");
    }
}

/// Whether everybody says yes.
fn all_say(world: &World, yes: bool) -> bool {
    let comm = world.comm();
    let (mut all, others) = (yes, (0..comm.size()).filter(|&other| other != comm.rank()));
    for other in others {
        let mut theirs = [0u8];
        comm.sendrecv(&[u8::from(yes)], (other, 2), &mut theirs, (other, 2)).unwrap();
        all &= theirs == [1];
    }
    all
}

fn rails_left(world: &World) -> usize {
    let far = (0..world.size()).filter(|&other| host_of(other) != host_of(world.rank()));
    far.map(|other| world.link(other).unwrap().rails.len()).max().unwrap()
}

/// What a rank does.
fn body(seed: u64) {
    let builder = World::builder().wireup(common::folder_wireup());
    let list: Vec<String> = (0..CABLES).map(interface).collect();
    let world = builder.tcp_interfaces(list.join(",")).init().unwrap();
    assert_eq!(rails_left(&world), CABLES);
    let (mut random, mut moments) = (Random::new(seed), Random::new(seed + 1));
    let mut round = 0;
    let mut until = |world: &World, left: usize| loop {
        round += 1;
        exchange(world, round, &mut random);
        if all_say(world, rails_left(world) <= left) {
            return;
        }
    };
    (0..3).for_each(|_| until(&world, CABLES));
    let (first, after) = (moments.below(CABLES), 1 + moments.below(CABLES - 1));
    let (second, how) = ((first + after) % CABLES, moments.below(3));
    let silent_first = moments.below(2) == 0;
    for (at, cable) in [first, second].into_iter().enumerate() {
        let pause = Duration::from_millis(moments.below(60) as u64);
        let cutter = (world.rank() == 0).then(|| {
            std::thread::spawn(move || {
                std::thread::sleep(pause);
                if (at == 0) == silent_first || !kill_sockets(cable) {
                    return silence(cable, how);
                }
                // Those of links that were made since, too.
                for _ in 0..5 {
                    std::thread::sleep(Duration::from_millis(200));
                    kill_sockets(cable);
                }
            })
        });
        until(&world, CABLES - 1 - at);
        cutter.into_iter().for_each(|thread| thread.join().unwrap());
    }
    until(&world, 1);
    world.finalize().unwrap();
}

#[test]
fn rails_that_are_cut_cost_nothing() {
    let seed = number_of(SEED);
    if is_rank(NAME) {
        return body(seed.expect("the test gives it"));
    }
    let jobs = number_of(CUTS).unwrap_or(2).div_ceil(2);
    let first = seed.unwrap_or_else(|| u64::from(std::process::id()));
    for seed in first..first + jobs {
        println!("{SEED}={seed}");
        let Some(hosts) = Namespaces::with_cables(NAME, CABLES) else { return };
        common::orphans_at(4, NAME, &[], WATCHDOG, |rank| {
            let mut words = hosts.enter(host_of(rank));
            words.extend(["env".to_owned(), format!("{SEED}={seed}")].map(OsString::from));
            words
        });
    }
}
