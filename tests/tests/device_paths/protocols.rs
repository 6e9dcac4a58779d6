//! Every protocol, forced: random layouts on both sides, device memory on both or one; and long messages that
//! both ends start before either waits.

use crate::gear::{Gear, Kind};
use crate::heard::Warnings;
use crate::letters::{Carried, Exchange, Letter, exchange};
use crate::{Words, listen, seed, tuned};
use gapless::{Config, Protocol};
use gapless_tests::launcher::{Member, TestLauncher, say};
use std::process::Command;

/// Messages in each direction by each protocol, the longest, and the length of those that fill a pipeline.
pub(crate) fn extent(kind: Kind) -> [u64; 3] {
    match kind {
        Kind::Fake => [16, 300 << 10, 768 << 10],
        Kind::FakeSealed | Kind::FakeBlind => [4, 100 << 10, 300 << 10],
        Kind::OpenCl => [4, 100 << 10, 200 << 10],
        Kind::CudaOne | Kind::CudaTwo => [24, 6 << 20, 32 << 20],
        _ => [8, 2 << 20, 12 << 20],
    }
}

/// What a protocol needs to be possible between two buffers of devices of a kind, so that a row of which
/// no message went as forced is a failure, and not only void.
pub(crate) fn applies(kind: Kind, protocol: Protocol) -> bool {
    match protocol {
        Protocol::Eager | Protocol::Pipeline | Protocol::Local => true,
        Protocol::CopyInOut | Protocol::ZeroCopyInOut => {
            matches!(
                kind,
                Kind::Fake | Kind::OpenCl | Kind::CudaOne | Kind::CudaTwo | Kind::CudaVmm
            )
        }
        Protocol::MappedPut => matches!(kind, Kind::Fake | Kind::CudaOne | Kind::CudaTwo),
        protocol if protocol.is_staged() => {
            matches!(kind, Kind::Fake | Kind::CudaOne | Kind::CudaTwo)
        }
        _ => false,
    }
}

pub(crate) fn every_protocol(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return every_protocol_as(member);
    }
    every_protocol_with(test, kind, extent(kind), applies, |_, _| {});
}

/// The same, so many messages of such lengths, with a change to each rank's command; `sure` says which rows
/// must not be void. What the first rank says is given.
pub(crate) fn every_protocol_with(
    test: &str,
    kind: Kind,
    [steps, bytes_max, long]: [u64; 3],
    sure: fn(Kind, Protocol) -> bool,
    with: impl Fn(u32, &mut Command),
) -> Vec<String> {
    let part = format!("every {} {} {steps} {bytes_max} {long}", kind.name(), seed(test));
    let mut launcher = TestLauncher::start(test, &[&part, &part], with);
    let rows = listen(&mut launcher, test);
    for protocol in Protocol::ALL {
        let row = rows.iter().find(|row| row.split_whitespace().next() == Some(protocol.name()));
        let row = row.unwrap_or_else(|| panic!("{test}: nothing was said of {protocol}"));
        assert!(!row.contains("VOID") || !sure(kind, protocol), "{test}: {row}");
    }
    rows
}

pub(crate) fn every_protocol_as(mut member: Member) {
    let warnings = Warnings::hear();
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let [seed, steps] = [words.number(), words.number()];
    let [bytes_max, long] = [words.size(), words.size()];
    for (force, salt) in Protocol::ALL.into_iter().zip(1u64..) {
        let config = Config { force: Some(force), ..tuned(long) };
        let world = gear.world(&mut member, config).expect("they meet");
        let (me, peer) = (world.rank(), 1 - world.rank());
        let mut carried = Carried::new();
        let mut count = |protocol: Protocol| *carried.entry(protocol.name()).or_default() += 1;
        let seed = seed ^ salt << 24;
        for step in 0..steps {
            let letter = |from, to| Letter::of(seed, from, to, step, bytes_max);
            let (out, inn) = (letter(me, peer), letter(peer, me));
            let what = format!("{force} forced, seed {seed}, step {step}, to rank {me}");
            count(exchange(&world, &gear, Some(peer), [&out, &inn], step, &what));
            if step.is_multiple_of(4) {
                let own = letter(me, me);
                let what = format!("{what}, to itself");
                count(exchange(&world, &gear, None, [&own, &own], step, &what));
            }
        }
        // Whatever was drawn: two that fill a pipeline, one that goes eagerly, and one to itself.
        for (index, bytes) in (0..).zip([long, long, 1000, long]) {
            let letter = |from: u32| Letter::comb(seed ^ u64::from(from) << 8 ^ index, bytes);
            let (out, inn) = (letter(me), letter(peer));
            let what = format!("{force} forced, seed {seed}, comb {index}, to rank {me}");
            let (to, letters) =
                if index < 3 { (Some(peer), [&out, &inn]) } else { (None, [&out, &out]) };
            count(exchange(&world, &gear, to, letters, steps + index, &what));
        }
        let tally = world.counters().expect("an open world").of(force);
        let depth = if force.is_staged() { tally.depth_max } else { 0 };
        assert!(tally.messages == 0 || !force.is_staged() || depth >= 2, "{force}: {tally:?}");
        say(&format!("{}, depth {depth}", row(force, &carried)));
        world.finalize().expect("they part");
        assert!(gear.imported().is_none_or(|left| left == 0), "{force}: peers' memory is mapped");
    }
    for line in warnings.with("") {
        say(&format!("warned: {line}"));
    }
    say("clean");
}

/// How many messages the forced protocol carried. If it carried none, the row says that it is void.
fn row(force: Protocol, carried: &Carried) -> String {
    let forced = carried.get(force.name()).copied().unwrap_or(0);
    let others = carried.iter().filter(|(name, _)| **name != force.name());
    let others: Vec<String> = others.map(|(name, count)| format!("{count} {name}")).collect();
    let others = if others.is_empty() { String::new() } else { format!(", {}", others.join(", ")) };
    let verdict = if forced == 0 { "VOID, none used it" } else { "ok" };
    format!("{force:<18} {forced:>4} as forced{others}: {verdict}")
}

/// Both ranks start sending before either receives or waits, and both finish, several fragments of a message being
/// in flight at a time.
pub(crate) fn both_send_first(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return both_send_first_as(member);
    }
    let bytes = if kind.is_cuda() { 256 << 20 } else { 3 << 20 };
    let part = format!("both {} {} {bytes}", kind.name(), seed(test));
    listen(&mut TestLauncher::start(test, &[&part, &part], |_, _| {}), test);
}

fn both_send_first_as(mut member: Member) {
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let (seed, bytes) = (words.number(), words.size());
    let protocols =
        [None, Some(Protocol::Pipeline), Some(Protocol::Mapped), Some(Protocol::MappedPut)];
    for force in protocols.into_iter().chain(Protocol::STAGED.map(Some)) {
        let config = Config { force, ..tuned(bytes) };
        let world = gear.world(&mut member, config).expect("they meet");
        let (me, peer) = (world.rank(), 1 - world.rank());
        // As long as can be where the library chooses; the others are held against it elsewhere.
        let bytes = if force.is_some() && bytes > 64 << 20 { 64 << 20 } else { bytes };
        // Gaps at both ends, and a layout that the other end can know: every protocol is possible, none is direct.
        let letter = |from: u32| Letter::comb(seed ^ u64::from(from) << 8, bytes);
        let (out, inn) = (letter(me), letter(peer));
        // The link is up after one message. Until then the sender's memory has no key.
        let (first, theirs) = (Letter::row(u64::from(me), 64), Letter::row(u64::from(peer), 64));
        exchange(&world, &gear, Some(peer), [&first, &theirs], 1, "the first message");
        let both = Exchange::prepare(&gear, &out, &inn);
        // Both sends are in flight before there is a receive.
        let ended = both.run(world.comm(), peer, 0, [&out, &inn], true).expect("both start");
        let [sent, received] = ended.map(|end| end.expect("both end"));
        let forced = force.map_or("the cost model".to_owned(), |force| force.to_string());
        both.compare(&out, &inn, &format!("{forced}, seed {seed}"));
        let counters = world.counters().expect("an open world");
        let depth = counters.depth_max();
        // A sender lays down as much as it may; a receiver may take fragments out as fast as they come.
        let deep = counters.of(sent.protocol).depth_max >= 2;
        assert!(!sent.protocol.is_staged() || deep, "{forced}: {counters:?}");
        let (out, inn) = (sent.protocol, received.protocol);
        let void = force.is_some_and(|force| force != out && force != inn);
        let void = if void { ", VOID" } else { "" };
        say(&format!("{forced:<18} {bytes} out by {out}, in by {inn}, depth {depth}{void}"));
        both.out.free(&world);
        both.inn.free(&world);
        world.finalize().expect("they part");
    }
    say("clean");
}
