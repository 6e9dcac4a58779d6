//! Peers killed (SIGKILL) at random moments of messages in device memory, by every protocol: whoever is left is
//! told within [`PROMISED`], has nothing of theirs mapped, and its device goes on.
//!
//! Rank 0 lives; the others exchange messages with it and are killed one after the other.

use crate::gear::{Gear, Kind, settle};
use crate::heard::Warnings;
use crate::letters::{Exchange, Letter};
use crate::{Words, seed, tuned};
use gapless::{Config, Error, Protocol, World};
use gapless_dtype::testkit::Rng;
use gapless_mem::Region;
use gapless_tests::launcher::{Member, Said, TestLauncher, say};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A lost peer is an error within two seconds, it is promised; a watchdog waits ten times as long.
const PROMISED: Duration = Duration::from_secs(20);

/// Longest that ranks take to begin: drivers and devices are opened.
const BEGIN: Duration = Duration::from_secs(120);

/// How many are killed in one job.
const VICTIMS: u32 = 3;

/// How many jobs.
fn jobs(kind: Kind) -> u64 {
    let given = std::env::var("GAPLESS_DEVICE_KILLS").ok();
    let given = given.map(|text| text.parse::<u64>().expect("GAPLESS_DEVICE_KILLS, a number"));
    given.map_or(if kind.is_cuda() { 9 } else { 10 }, |kills| kills.div_ceil(VICTIMS.into()))
}

pub(crate) fn peers_are_killed(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    let seed = seed(test);
    let mut figures = BTreeMap::new();
    let begin = Instant::now();
    let mut slowest = Duration::ZERO;
    // Every protocol in turn, starting anywhere.
    let protocols: Vec<&str> = Protocol::ALL
        .into_iter()
        .filter(|protocol| {
            let between_hosts = matches!(protocol, Protocol::SingleCopy | Protocol::StagedRead);
            !between_hosts && !matches!(protocol, Protocol::Eager | Protocol::Local)
        })
        .map(Protocol::name)
        .collect();
    let first = Rng::new(seed).index(protocols.len());
    for number in 0..jobs(kind) {
        let seed = seed.wrapping_add(number);
        let protocol = protocols[(first + usize::try_from(number).expect("few")) % protocols.len()];
        slowest = slowest.max(job(test, kind, seed, protocol, &mut figures));
    }
    let took = begin.elapsed().as_secs_f64();
    let killed = jobs(kind) * u64::from(VICTIMS);
    let slowest = slowest.as_millis();
    println!("{test}: {killed} killed in {took:.1} s, told in {slowest} ms at most: {figures:?}");
    let compared = figures.get("compared").copied().unwrap_or(0);
    assert!(compared > 0, "nothing was tested");
}

/// One job. Gives the longest from a kill until the survivor was told.
fn job(
    test: &str,
    kind: Kind,
    seed: u64,
    protocol: &str,
    figures: &mut BTreeMap<String, u64>,
) -> Duration {
    let mut rng = Rng::new(seed);
    let bytes = if kind.is_cuda() { 24 << 20 } else { 300 << 10 };
    let part = format!("killed {} {protocol} {seed} {bytes}", kind.name());
    let parts = vec![part; VICTIMS as usize + 1];
    let mut launcher = TestLauncher::start(test, &parts, |_, _| {});
    let what = format!("{test}: {protocol} forced, seed {seed}");
    let mut lost = BTreeSet::new();
    let mut hear = |launcher: &mut TestLauncher,
                    within: Duration,
                    until: &dyn Fn(&BTreeSet<u32>, &str) -> bool| {
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match launcher.hear(left) {
                Some((0, Said::Line(line))) => {
                    let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
                    match verb {
                        "lost" => drop(lost.insert(rest.parse().expect("a rank"))),
                        "did" => {
                            let (what, count) = rest.split_once(' ').expect("a number");
                            let count: u64 = count.parse().expect("a number");
                            *figures.entry(what.to_owned()).or_default() += count;
                        }
                        _ => {}
                    }
                    if until(&lost, &line) {
                        return;
                    }
                }
                Some((0, Said::Ended(status))) => {
                    assert!(status.success(), "{what}: the survivor ended with {status}");
                    assert!(until(&lost, "ended"), "{what}: the survivor ended too soon");
                    return;
                }
                Some(_) => {}
                None => assert!(end > Instant::now(), "{what}: the survivor hangs; lost {lost:?}"),
            }
        }
    };
    hear(&mut launcher, BEGIN, &|_, line| line == "started");
    let mut slowest = Duration::ZERO;
    for victim in 1..=VICTIMS {
        let longest = *rng.pick(&[1_000, 20_000, 100_000]);
        let until = Instant::now() + Duration::from_micros(rng.below(longest));
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        launcher.kill(victim);
        let dead = Instant::now();
        hear(&mut launcher, PROMISED, &|lost, _| lost.contains(&victim));
        slowest = slowest.max(dead.elapsed());
    }
    hear(&mut launcher, PROMISED, &|_, line| line == "clean");
    hear(&mut launcher, PROMISED, &|_, line| line == "ended");
    slowest
}

fn rank(mut member: Member) {
    let _warnings = Warnings::hear();
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let force = Protocol::of_name(words.word());
    let (seed, bytes) = (words.number(), words.size());
    let config = Config { force, ..tuned(bytes) };
    let world = gear.world(&mut member, config).expect("all meet before anybody is killed");
    if world.rank() != 0 {
        let mut step = 0;
        while talk(&world, &gear, 0, seed, step, bytes).is_ok() {
            step += 1;
        }
        return;
    }
    let mut live: BTreeSet<u32> = (1..world.size()).collect();
    let (mut step, mut compared) = (0, 0u64);
    while !live.is_empty() {
        for peer in live.clone() {
            match talk(&world, &gear, peer, seed, step, bytes) {
                Ok(()) => compared += 1,
                Err(error) => {
                    assert_eq!(error.lost_rank(), Some(peer), "{error}");
                    live.remove(&peer);
                    say(&format!("lost {peer}"));
                }
            }
        }
        if step == 0 {
            say("started");
        }
        step += 1;
    }
    let imported = gear.imported();
    assert!(imported.is_none_or(|left| left == 0), "memory of the dead is mapped: {imported:?}");
    // No kernel is left waiting for the dead: the device ends what it is given.
    let (one, mut two) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    let memory = gear.hold(one.clone(), true);
    // SAFETY: both live until the copy is waited for.
    let back = unsafe { gear.device.copy(Region::of_mut(&mut two), memory.region(), &[]) };
    settle(&back.expect("a copy"));
    assert!(one == two, "the device does not work any more");
    memory.free(&world);
    let own = Letter::long(seed, bytes);
    let both = Exchange::prepare(&gear, &own, &own);
    let ended = both.run(world.self_comm(), 0, 0, [&own, &own], false).expect("both start");
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    both.compare(&own, &own, "to itself, when all others were dead");
    say(&format!("did compared {compared}"));
    drop(both);
    // That somebody died is worth an error.
    let _ = world.finalize();
    say("clean");
}

/// One message in each direction, compared if both ended well. A peer's death is the only error there may be.
fn talk(
    world: &World,
    gear: &Gear,
    peer: u32,
    seed: u64,
    step: u64,
    bytes: usize,
) -> Result<(), Error> {
    let me = world.rank();
    let letter = |from: u32, to: u32| {
        Letter::long(seed ^ u64::from(from) << 40 ^ u64::from(to) << 44 ^ step << 4, bytes)
    };
    let (out, inn) = (letter(me, peer), letter(peer, me));
    let both = Exchange::prepare(gear, &out, &inn);
    let ended = both.run(world.comm(), peer, 0, [&out, &inn], step.is_multiple_of(2));
    let ended = ended.and_then(|[sent, received]| sent.and(received));
    if ended.is_ok() {
        both.compare(&out, &inn, &format!("seed {seed}, step {step}, from {peer}"));
    }
    // Also when it was lost: whatever had the memory mapped is gone with it.
    both.out.free(world);
    both.inn.free(world);
    ended.map(drop)
}
