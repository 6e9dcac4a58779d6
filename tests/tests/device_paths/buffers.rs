//! Buffers that come and go: freed and allocated anew at the same address, more of them than is
//! remembered, and no memory left to stage in.

use crate::gear::{Gear, Held, Kind};
use crate::heard::Warnings;
use crate::letters::{Exchange, Letter, exchange};
use crate::{Words, listen, seed, tuned};
use gapless::{Config, Protocol, World};
use gapless_tests::launcher::{Member, TestLauncher, say};
use rustix::process::{Resource, getrlimit};
use std::collections::HashSet;

/// Runs ranks that play `part`.
fn ranks(test: &str, part: &str, kind: Kind, numbers: &[u64]) {
    let numbers: String = numbers.iter().map(|number| format!(" {number}")).collect();
    let part = format!("{part} {} {}{numbers}", kind.name(), seed(test));
    listen(&mut TestLauncher::start(test, &[&part, &part], |_, _| {}), test);
}

/// Protocols that share the user's own buffers, or might.
const SHARING: [Option<Protocol>; 5] = [
    None,
    Some(Protocol::Mapped),
    Some(Protocol::MappedPut),
    Some(Protocol::StagedPut),
    Some(Protocol::StagedGet),
];

fn name(force: Option<Protocol>) -> &'static str {
    force.map_or("the cost model", Protocol::name)
}

/// A buffer is freed after each message and the next one allocated in its place: whoever remembers the old
/// one would find its bytes.
pub(crate) fn same_address(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return same_address_as(member);
    }
    let [rounds, bytes] = if kind.is_cuda() { [30, 8 << 20] } else { [12, 200 << 10] };
    ranks(test, "same", kind, &[rounds, bytes]);
}

fn same_address_as(mut member: Member) {
    let _warnings = Warnings::hear();
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let [seed, rounds] = [words.number(), words.number()];
    let bytes = words.size();
    for force in SHARING {
        let config = Config { force, ..tuned(bytes) };
        let world = gear.world(&mut member, config).expect("they meet");
        let (me, peer) = (world.rank(), 1 - world.rank());
        let (mut seen, mut again) = (HashSet::new(), 0u64);
        let mut protocols = HashSet::new();
        for round in 0..rounds {
            let letter = |from: u32| Letter::row(seed ^ u64::from(from) << 40 ^ round, bytes);
            let (out, inn) = (letter(me), letter(peer));
            let both = Exchange::prepare(&gear, &out, &inn);
            let ended = both.run(world.comm(), peer, 0, [&out, &inn], false).expect("both start");
            let [_, received] = ended.map(|end| end.expect("both end"));
            protocols.insert(received.protocol.name());
            both.compare(&out, &inn, &format!("{}, seed {seed}, round {round}", name(force)));
            // Peers of the pretended device keep what was freed: they must notice by themselves.
            let silently = gear.kind == Kind::Fake && round.is_multiple_of(2);
            let free = |held: Held| if silently { held.free_silently() } else { held.free(&world) };
            for address in [free(both.out), free(both.inn)] {
                again += u64::from(!seen.insert(address));
            }
        }
        say(&format!(
            "{:<18} {again} of {} addresses came again, by {protocols:?}",
            name(force),
            2 * rounds
        ));
        world.finalize().expect("they part");
    }
    say("clean");
}

/// More buffers than a transport shares or keeps mapped, used in turns.
pub(crate) fn many_buffers(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return many_buffers_as(member);
    }
    // 128 are shared at a time, and 64 kept mapped. A pretended device's take a descriptor each: where there are few,
    // only the bound of what is kept mapped is passed.
    let few = getrlimit(Resource::Nofile).maximum.is_some_and(|most| most < 512);
    let [buffers, bytes] = match (kind.is_cuda(), few) {
        (true, _) => [200, 64 << 10],
        (false, false) => [132, 8 << 10],
        (false, true) => [70, 8 << 10],
    };
    ranks(test, "many", kind, &[buffers, bytes]);
}

fn many_buffers_as(mut member: Member) {
    let _warnings = Warnings::hear();
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let [seed, buffers] = [words.number(), words.number()];
    let bytes = words.size();
    for force in [Some(Protocol::Mapped), Some(Protocol::MappedPut), Some(Protocol::StagedPut)] {
        let config = Config { force, ..tuned(bytes) };
        let world = gear.world(&mut member, config).expect("they meet");
        let (me, peer) = (world.rank(), 1 - world.rank());
        let letter = |from: u32, at: u64| Letter::row(seed ^ u64::from(from) << 40 ^ at, bytes);
        let all: Vec<(Exchange, Letter, Letter)> = (0..buffers)
            .map(|at| {
                let (out, inn) = (letter(me, at), letter(peer, at));
                (Exchange::prepare(&gear, &out, &inn), out, inn)
            })
            .collect();
        let mut protocols = HashSet::new();
        for round in 0..2 {
            for at in 0..buffers {
                // Forwards, then backwards: the last ones are remembered, the first ones are not.
                let at = if round == 0 { at } else { buffers - 1 - at };
                let (both, out, inn) = &all[usize::try_from(at).expect("few")];
                let ended = both.run(world.comm(), peer, 0, [out, inn], false).expect("both start");
                let [_, received] = ended.map(|end| end.expect("both end"));
                protocols.insert(received.protocol.name());
            }
        }
        for (at, (both, out, inn)) in all.into_iter().enumerate() {
            both.compare(&out, &inn, &format!("{}, seed {seed}, buffer {at}", name(force)));
            both.out.free(&world);
            both.inn.free(&world);
        }
        say(&format!(
            "{:<18} {buffers} buffers in each direction, twice, by {protocols:?}",
            name(force)
        ));
        world.finalize().expect("they part");
    }
    say("clean");
}

/// No staging memory, hardly any, or none left while many messages are in flight: they use other protocols.
pub(crate) fn no_staging(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return no_staging_as(member);
    }
    let [messages, bytes] = if kind.is_cuda() { [24, 8 << 20] } else { [12, 150 << 10] };
    ranks(test, "none", kind, &[messages, bytes]);
}

fn no_staging_as(mut member: Member) {
    let _warnings = Warnings::hear();
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let (seed, messages, bytes) = (words.number(), words.size(), words.size());
    for force in [None].into_iter().chain(Protocol::STAGED.map(Some)) {
        // Enough for some of them: staging memory is taken in pieces of 2 MiB.
        for bound in [0, (4 * bytes as u64).max(4 << 20)] {
            let mut config = Config { force, ..tuned(bytes) };
            config.bounds.staging_bytes = bound;
            let world = gear.world(&mut member, config).expect("they meet");
            let protocols = crowd(&world, &gear, seed, messages, bytes);
            let staged =
                Protocol::STAGED.into_iter().any(|protocol| protocols.contains(protocol.name()));
            assert!(bound > 0 || !staged, "{}: {protocols:?} without staging memory", name(force));
            // The others need some at both ends, and both ends may have granted theirs.
            let one = force == Some(Protocol::StagedPut) && bound > 0;
            assert!(!one || staged, "{}: {protocols:?} with some staging memory", name(force));
            say(&format!("{:<18} {bound} bytes of staging: by {protocols:?}", name(force)));
            world.finalize().expect("they part");
        }
    }
    if gear.kind == Kind::CudaOne {
        let world = gear.world(&mut member, tuned(bytes)).expect("they meet");
        let (me, peer) = (world.rank(), 1 - world.rank());
        // Buffers first: there is no room for them later, nor for the list of a layout that has no closed form.
        let letter = |from: u32| Letter::comb(seed ^ u64::from(from) << 8, bytes);
        let (out, inn) = (letter(me), letter(peer));
        let both = Exchange::prepare(&gear, &out, &inn);
        let all = if me == 0 { gear.hog() } else { Vec::new() };
        world.comm().dup().expect("a fence").free().expect("as above");
        let ended = both.run(world.comm(), peer, 0, [&out, &inn], false).expect("both start");
        let [_, received] = ended.map(|end| end.expect("both end"));
        both.compare(&out, &inn, &format!("seed {seed}, no device memory left"));
        say(&format!("no device memory left: by {}", received.protocol));
        drop(all);
        world.finalize().expect("they part");
    }
    say("clean");
}

/// Many messages in each direction at once; the protocols that carried them.
fn crowd(
    world: &World,
    gear: &Gear,
    seed: u64,
    messages: usize,
    bytes: usize,
) -> HashSet<&'static str> {
    let (me, peer) = (world.rank(), 1 - world.rank());
    let letter =
        |from: u32, at: usize| Letter::comb(seed ^ u64::from(from) << 40 ^ (at as u64) << 8, bytes);
    let letters: Vec<(Letter, Letter)> =
        (0..messages).map(|at| (letter(me, at), letter(peer, at))).collect();
    let all: Vec<Exchange> =
        letters.iter().map(|(out, inn)| Exchange::prepare(gear, out, inn)).collect();
    let ended = Exchange::run_all(&all, world.comm(), peer, &letters).expect("all start");
    let mut protocols = HashSet::new();
    for ((end, both), (out, inn)) in ended.into_iter().zip(all).zip(&letters) {
        let [_, received] = end.map(|end| end.expect("all end"));
        protocols.insert(received.protocol.name());
        both.compare(out, inn, &format!("seed {seed}, one of {messages}"));
        both.out.free(world);
        both.inn.free(world);
    }
    // And the world goes on.
    let (out, inn) = (letter(me, messages), letter(peer, messages));
    exchange(world, gear, Some(peer), [&out, &inn], 0, "after a crowd");
    protocols
}
