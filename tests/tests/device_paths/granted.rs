//! Host memory of `World::alloc` and memory of a device, each sent to the other: the device's process writes the
//! peer's memory, or reads it, and nothing is staged.

use crate::gear::{Gear, Kind};
use crate::letters::{Exchange, Letter};
use crate::{Words, listen, seed, tuned};
use gapless::{SharedBuf, View, ViewMut, World};
use gapless_mem::Region;
use gapless_tests::launcher::{Member, TestLauncher, say};

/// Messages in each direction.
const ROUNDS: u64 = 6;

pub(crate) fn host_memory_is_granted(test: &str, kind: Kind) {
    if let Some(member) = Member::of_launcher() {
        return rank(member);
    }
    let bytes = if kind.is_cuda() { 16 << 20 } else { 200 << 10 };
    let part = format!("granted {} {} {bytes}", kind.name(), seed(test));
    let rows = listen(&mut TestLauncher::start(test, &[&part, &part], |_, _| {}), test);
    for protocol in ["mapped-put", "mapped"] {
        // Not the first message, before which the link is not up. Layouts that must be fetched need not be granted, and
        // OpenCL's devices move what has no gaps in memory of the host.
        let kinds = if kind == Kind::OpenCl { 1 } else { 2 };
        let least = kinds * ROUNDS / 3 - 1;
        let so = |row: &&String| row.ends_with(&format!("by {protocol}"));
        let count = rows.iter().filter(so).count();
        assert!(count as u64 >= least, "{test}: {count} by {protocol}: {rows:#?}");
    }
}

fn shared(world: &World, bytes: &[u8]) -> SharedBuf {
    let mut memory = world.alloc(bytes.len()).expect("memory");
    memory.copy_from_slice(bytes);
    memory
}

/// Both ranks do both parts: what is in the device goes to the peer's shared memory, and back.
fn rank(mut member: Member) {
    let part = member.part.clone();
    let mut words = Words::of(&part);
    let gear = Gear::open(words.word(), member.rank);
    let seed = words.number();
    let bytes = words.size();
    let world = gear.world(&mut member, tuned(bytes)).expect("they meet");
    let (me, peer) = (world.rank(), 1 - world.rank());
    for round in 0..ROUNDS {
        // Whole at both ends, or in pieces at one or both.
        let letter = |from: u32, to_device: bool| {
            let seed = seed ^ u64::from(from) << 40 ^ round << 1 ^ u64::from(to_device);
            let mut letter = match round % 3 {
                0 => Letter::row(seed, bytes),
                1 => Letter::comb(seed, bytes),
                _ => Letter::long(seed, bytes),
            };
            (letter.from_device, letter.to_device) = (!to_device, to_device);
            letter
        };
        for to_device in [false, true] {
            let (out, inn) = (letter(me, to_device), letter(peer, to_device));
            let what = format!("seed {seed}, round {round}, to rank {me}, device: {to_device}");
            let both = Exchange::prepare(&gear, &out, &inn);
            let source = shared(&world, &both.out.fetch());
            let target = shared(&world, &both.inn.fetch());
            let from: Region = if to_device { source.region() } else { both.out.region() };
            let to: Region = if to_device { both.inn.region() } else { target.region() };
            let (send, recv) = (&out.send, &inn.recv);
            let status = world.comm().scope(|s| {
                // SAFETY: both buffers outlive the scope, which joins the messages, and nobody else
                // touches them.
                let view =
                    unsafe { View::of_region(from, send.origin, &send.layout(), send.count) };
                let sent = s.isend(view.expect("it fits"), peer, 0).expect("it starts");
                // SAFETY: as above.
                let view =
                    unsafe { ViewMut::of_region(to, recv.origin, &recv.layout(), recv.count) };
                let received = s.irecv(view.expect("it fits"), peer, 0).expect("it starts");
                s.wait(sent).unwrap_or_else(|error| panic!("{what}: sending: {error}"));
                s.wait(received)
            });
            let status = status.unwrap_or_else(|error| panic!("{what}: receiving: {error}"));
            let got = if to_device { both.inn.fetch() } else { target.to_vec() };
            inn.compare(&got, &what);
            say(&format!("{what}: by {}", status.protocol));
            both.out.free(&world);
            both.inn.free(&world);
        }
    }
    world.finalize().expect("they part");
    assert!(gear.imported().is_none_or(|left| left == 0), "peers' memory is mapped");
    say("clean");
}
