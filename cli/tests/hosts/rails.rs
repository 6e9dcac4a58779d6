//! Two hosts with several cables between them, and a rail for each: rails are cut while messages go over them, or somebody
//! in the middle does mischief. Until one is left, nothing is lost, doubled or out of order.
//!
//! `GAPLESS_RAIL_CUTS=200` makes so many cuts, two in a job, and `GAPLESS_SEED` says where they are. `GAPLESS_RAIL_JOBS=50`
//! has so many jobs with somebody in the middle, with a kernel that drops packets, and with a cable that is cut while a
//! rank is killed; `GAPLESS_RAIL_KIND` says which of these (0 to 3) all of them are.

mod slow;

use super::lost::loses;
use super::namespaces::{Namespaces, interface};
use super::proxy::{Mischief, Proxy};
use super::together::collectives;
use super::windows::neighbours;
use super::{WATCHDOG, host_of};
use crate::common::{self, is_rank, pattern};
use gapless::{Error, World};
pub(super) use gapless_testkit::Random;
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const CABLES: usize = 3;
pub(super) const SEED: &str = "GAPLESS_SEED";
const CUTS: &str = "GAPLESS_RAIL_CUTS";
const NAME: &str = "rails::rails_that_are_cut_cost_nothing";
const JOBS: &str = "GAPLESS_RAIL_JOBS";
const MISCHIEF: &str = "rails::mischief_between_hosts_costs_nothing";
/// Set in jobs in which rank 3 is killed.
const KILLS: &str = "GAPLESS_RAIL_KILLS";
/// Set in jobs in which a cable is cut meanwhile.
const CUT_TOO: &str = "GAPLESS_RAIL_CUT_TOO";
const KIND: &str = "GAPLESS_RAIL_KIND";
/// Where ranks listen if somebody in the middle is to know that.
const PORTS: std::ops::RangeInclusive<u16> = 45_000..=45_003;

pub(super) fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(words: &str) -> String {
    let mut words = words.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    common::text(&output.stdout)
}

/// Resets the connections over a cable; whether there were any, and `ss` and the system can do that.
fn kill_sockets(cable: usize) -> bool {
    let words = ["-H".to_owned(), "-K".to_owned(), "-t".to_owned(), "dst".to_owned()];
    let killed = Command::new("ss").args(words).arg(format!("10.{}.0.2", 77 + cable)).output();
    killed.is_ok_and(|it| it.status.success() && common::text(&it.stdout).contains("10."))
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
    let far = (0..world.size()).filter(|&other| host_of(other) != host_of(world.rank()));
    exchange_with(world, round, random, &far.collect::<Vec<_>>()).unwrap();
}

/// The same with these.
pub(super) fn exchange_with(
    world: &World,
    round: u64,
    random: &mut Random,
    far: &[u32],
) -> Result<(), Error> {
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
    let seed =
        |from: u32, to: u32, at: usize| round << 16 | u64::from(from * 4 + to) << 8 | at as u64;
    let each =
        || far.iter().flat_map(move |&other| lengths.iter().enumerate().map(move |it| (other, it)));
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
    })?;
    for ((from, (at, len)), (_, got)) in each().zip(&into) {
        let due = pattern(*len, seed(from, me, at));
        assert!(*got == due, "round {round}: message {at} of {len} bytes from {from} is wrong");
    }
    Ok(())
}

/// Whether everybody says yes.
pub(super) fn all_say(world: &World, yes: bool) -> bool {
    let comm = world.comm();
    let (mut all, others) = (yes, (0..comm.size()).filter(|&other| other != comm.rank()));
    for other in others {
        let mut theirs = [0u8];
        comm.sendrecv(&[u8::from(yes)], (other, 2), &mut theirs, (other, 2)).unwrap();
        all &= theirs == [1];
    }
    all
}

pub(super) fn rails_left(world: &World) -> usize {
    let far = (0..world.size()).filter(|&other| host_of(other) != host_of(world.rank()));
    far.map(|other| world.link(other).unwrap().rails.len()).max().unwrap()
}

/// Cuts a cable after a while.
pub(super) fn cut_after(
    pause: Duration,
    cable: usize,
    how: usize,
    by_silence: bool,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(pause);
        if by_silence || !kill_sockets(cable) {
            return silence(cable, how);
        }
        // Those of links that were made since, too.
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(200));
            kill_sockets(cable);
        }
    })
}

/// What a rank does while cables are cut.
fn body(seed: u64) {
    let builder = World::builder().wireup(common::folder_wireup());
    let list: Vec<String> = (0..CABLES).map(interface).collect();
    // Of half of the seeds.
    let builder = builder.encrypt(!seed.is_multiple_of(2));
    let world = builder.tcp_interfaces(list.join(",")).init().unwrap();
    assert_eq!(rails_left(&world), CABLES);
    let (mut random, mut moments) = (Random::new(seed), Random::new(seed + 1));
    let mut round = 0;
    let mut until = |world: &World, left: usize, cutters: &mut Vec<JoinHandle<()>>| loop {
        round += 1;
        exchange(world, round, &mut random);
        // Collectives and windows go over the same rails.
        match round % 4 {
            1 => collectives(world, 300),
            3 => neighbours(world.comm()),
            _ => {}
        }
        // Whoever cuts nothing, because a tool has failed, says so, and is not waited for.
        let at = cutters.iter().position(JoinHandle::is_finished);
        at.into_iter().for_each(|at| cutters.swap_remove(at).join().unwrap());
        if all_say(world, rails_left(world) <= left) {
            return;
        }
    };
    let mut cutters = Vec::new();
    (0..3).for_each(|_| until(&world, CABLES, &mut cutters));
    let (first, after) = (moments.below(CABLES), 1 + moments.below(CABLES - 1));
    let (second, how) = ((first + after) % CABLES, moments.below(3));
    let (silent_first, at_once) = (moments.below(2) == 0, moments.below(2) == 0);
    for (at, cable) in [first, second].into_iter().enumerate() {
        let pause = Duration::from_millis(moments.below(60) as u64);
        if world.rank() == 0 {
            cutters.push(cut_after(pause, cable, how, (at == 0) == silent_first));
        }
        // The second goes before anybody has noticed that the first has gone, or afterwards.
        if !at_once {
            until(&world, CABLES - 1 - at, &mut cutters);
        }
    }
    until(&world, CABLES - 2, &mut cutters);
    cutters.into_iter().for_each(|thread| thread.join().unwrap());
    until(&world, CABLES - 2, &mut Vec::new());
    world.finalize().unwrap();
}

/// What a rank does while others do mischief. The last one may die in the middle of it.
fn endure(seed: u64) {
    let builder = World::builder().wireup(common::folder_wireup());
    let list: Vec<String> = (0..2).map(interface).collect();
    let world = builder.tcp_interfaces(list.join(",")).tcp_ports(PORTS).init().unwrap();
    let (mut random, mut moments) = (Random::new(seed), Random::new(seed + 1));
    let kills = std::env::var_os(KILLS).is_some();
    if !kills {
        (1..10).for_each(|round| exchange(&world, round, &mut random));
        assert!(all_say(&world, true));
        return world.finalize().unwrap();
    }
    let (me, last) = (world.rank(), moments.below(6) as u64);
    let cutter = (me == 0 && std::env::var_os(CUT_TOO).is_some()).then(|| {
        // Before the death, after it, or while it is noticed.
        let pause = Duration::from_millis(moments.below(120) as u64);
        cut_after(pause, moments.below(2), moments.below(3), moments.below(2) == 0)
    });
    if me == 3 {
        let pause = Duration::from_millis(1 + moments.below(30) as u64);
        // Until then it waits for nobody in particular: it may die anywhere.
        std::thread::spawn(move || {
            while exchanges_of(last) > DONE.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            std::thread::sleep(pause);
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        });
    }
    let far: Vec<u32> = (0..4).filter(|&other| host_of(other) != host_of(me)).collect();
    let mut lost = false;
    // It goes on until it dies; the others end together.
    for round in 1..if me == 3 { 2000 } else { last + 12 } {
        for &other in &far {
            if lost && other == 3 {
                continue;
            }
            // Lengths are a pair's own, so that the others do not depend on the dead.
            let pair = seed + round * 64 + u64::from(me.min(other) * 8 + me.max(other));
            let ended = exchange_with(&world, round, &mut Random::new(pair), &[other]);
            DONE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if let Err(error) = ended {
                assert_eq!((error.lost_rank(), other), (Some(3), 3), "{error}");
                lost = true;
            }
        }
    }
    let comm = world.comm();
    loses(3, || comm.recv(&mut [0u8; 8], 3, 77));
    // Survivors are not harmed.
    for other in (0..3).filter(|&other| other != me) {
        let mut byte = [0u8];
        comm.sendrecv(&[7u8], (other, 6), &mut byte, (other, 6)).unwrap();
        assert_eq!(byte, [7]);
    }
    if let Some(cutter) = cutter {
        cutter.join().unwrap();
    }
    // Whoever ends at once may take back what it has said.
    common::flag(&common::meeting_folder(), &format!("over-{me}"));
    (0..3).for_each(|rank| common::await_flag(&common::meeting_folder(), &format!("over-{rank}")));
    std::mem::forget(world);
}

/// Exchanges with one rank that rank 3 has ended.
static DONE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn exchanges_of(rounds: u64) -> u64 {
    2 * rounds
}

/// Runs a test's four ranks on two hosts, with these variables set.
pub(super) fn job(name: &str, hosts: &Namespaces, seed: u64, set: &[&str]) {
    let dying: &[u32] = if set.contains(&KILLS) { &[3] } else { &[] };
    common::orphans_at(4, name, dying, WATCHDOG, |rank| {
        let mut words = hosts.enter(host_of(rank));
        let set = set.iter().map(|variable| format!("{variable}=1"));
        let variables = ["env".to_owned(), format!("{SEED}={seed}")].into_iter().chain(set);
        words.extend(variables.map(OsString::from));
        words
    });
}

/// The first seed: the one that is set, of long runs any, and else always the same.
pub(super) fn first_seed() -> u64 {
    const SAMPLE: u64 = 103;
    let is_long = [CUTS, JOBS].into_iter().any(|variable| number_of(variable).is_some());
    let other = if is_long { u64::from(std::process::id()) } else { SAMPLE };
    number_of(SEED).unwrap_or(other)
}

#[test]
fn rails_that_are_cut_cost_nothing() {
    if is_rank(NAME) {
        return body(number_of(SEED).expect("the test gives it"));
    }
    if let Err(error) = Command::new("ss").arg("-V").output() {
        common::skip(
            "connections that are reset while messages go over them",
            &format!("ss: {error}"),
        );
    }
    let jobs = number_of(CUTS).unwrap_or(2).div_ceil(2);
    let first = first_seed();
    for seed in first..first + jobs {
        println!("{SEED}={seed}");
        let Some(hosts) = Namespaces::with_cables(NAME, CABLES) else { return };
        job(NAME, &hosts, seed, &[]);
    }
}

/// Somebody in the middle passes bytes on in pieces and late, and resets what goes over one cable; a rank dies in the
/// middle of that; the kernel drops and reorders packets; a cable is cut while a rank dies.
#[test]
fn mischief_between_hosts_costs_nothing() {
    if is_rank(MISCHIEF) {
        return endure(number_of(SEED).expect("the test gives it"));
    }
    let (first, jobs) = (first_seed(), number_of(JOBS).unwrap_or(4));
    for seed in first..first + jobs {
        println!("{SEED}={seed}");
        let mut random = Random::new(seed);
        let kind = number_of(KIND).unwrap_or((seed - first) % 4);
        if kind == 3 {
            let Some(hosts) = Namespaces::with_cables(MISCHIEF, 2) else { return };
            println!("a cable is cut, and a rank is killed");
            job(MISCHIEF, &hosts, seed, &[KILLS, CUT_TOO]);
            continue;
        }
        if kind == 2 {
            let Some(hosts) = Namespaces::with_cables(MISCHIEF, 2) else { return };
            let how = "netem loss 2% reorder 5% delay 1ms";
            let spoilt = (0..4).try_for_each(|at| hosts.spoil(at / 2, at % 2, how));
            if let Err(why) = spoilt {
                common::skip("rails whose packets the kernel drops", &why);
                continue;
            }
            job(MISCHIEF, &hosts, seed, &[]);
            continue;
        }
        let Some((hosts, middles)) = Namespaces::with_a_middle(MISCHIEF) else { return };
        let cable = random.below(2);
        let most = [3_000, 100_000, 3_000_000][random.below(3)];
        let resets = (random.below(4) > 0).then_some((cable, most));
        println!("resets: {resets:?}, a rank is killed: {}", kind == 1);
        let proxy = Proxy::new(&Arc::new(middles), PORTS, Mischief { seed, resets });
        job(MISCHIEF, &hosts, seed, if kind == 1 { &[KILLS] } else { &[] });
        assert!(proxy.connections() >= 4, "all links went through the middle");
    }
}
