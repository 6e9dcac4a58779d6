//! Several rails over verbs, or over verbs and TCP, one of which goes down while messages go over it: nothing is lost,
//! doubled or out of order, and the job goes on over what is left.

use super::super::rails::{Random, SEED, all_say, exchange_with, number_of};
use super::{Up, devices, over_ports, set_link};
use crate::common::{is_rank, skip};
use crate::namespaces::INTERFACE;
use gapless::{Builder, Config, Protocol, World};
use std::thread::JoinHandle;
use std::time::Duration;

/// Decides the lengths of messages, and when the rail goes down. `cargo xtask verbs` gives another one in each run.
fn seed() -> u64 {
    number_of(SEED).unwrap_or(1)
}

/// For each host one of the first two ports and one of two more, which are on another cable.
fn two_each() -> Option<[String; 2]> {
    let more = std::env::var("GAPLESS_IB_MORE_PORTS").ok()?;
    let ([one, other], (more, others)) = (devices()?, more.split_once(',')?);
    Some([format!("{one},{more}"), format!("{other},{others}")])
}

/// Runs `body` as two ranks, where the link of the first ports may be taken down.
fn with_lists(name: &str, lists: Option<[String; 2]>, body: impl FnOnce(Builder)) {
    if lists.is_some() && std::env::var_os("GAPLESS_IB_NETDEV").is_none() {
        return skip("rails over verbs that go down", "GAPLESS_IB_NETDEV is not set");
    }
    let _up = (lists.is_some() && !is_rank(name)).then(|| Up);
    over_ports(name, 2, &[], lists, body);
}

fn rails(world: &World) -> Vec<&'static str> {
    let rails = &world.link(1 - world.rank()).unwrap().rails;
    let mut names: Vec<_> = rails.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}

/// Messages go over all `before`; the first ports' link goes down at some moment; they go on over what is `left`.
fn survive(world: &World, before: &[&str], left: &[&str]) {
    let (me, seed) = (world.rank(), seed());
    println!("GAPLESS_SEED={seed}");
    assert_eq!(rails(world), before);
    // Both ends draw the same lengths.
    let (mut lengths, mut round) = (Random::new(seed), 0);
    let mut exchange = || {
        round += 1;
        exchange_with(world, round, &mut lengths, &[1 - me]).unwrap();
    };
    (0..3).for_each(|_| exchange());
    assert_eq!(rails(world), before, "nothing has gone down so far");
    let mut cutter: Option<JoinHandle<()>> = (me == 0).then(|| {
        let pause = Duration::from_millis(Random::new(seed + 1).below(400) as u64);
        std::thread::spawn(move || {
            std::thread::sleep(pause);
            set_link("down");
        })
    });
    loop {
        exchange();
        if all_say(world, rails(world) == left) {
            break;
        }
        if cutter.as_ref().is_some_and(JoinHandle::is_finished) {
            cutter.take().unwrap().join().expect("the link goes down");
        }
    }
    (0..3).for_each(|_| exchange());
    assert_eq!(rails(world), left);
}

/// Long messages are read at once by the receiver's adapter over one of the rails: those that the dying rail carried are
/// repeated over the other.
#[test]
fn two_ports_are_rails_one_of_which_goes_down() {
    let name = "verbs::striped::two_ports_are_rails_one_of_which_goes_down";
    with_lists(name, two_each(), |builder| {
        let config = Config { force: Some(Protocol::SingleCopy), ..Config::default() };
        let world = builder.config(config).only(["sm", "ib"]).init().unwrap();
        survive(&world, &["ib", "ib1"], &["ib1"]);
        world.finalize().unwrap();
    });
}

#[test]
fn a_port_and_an_interface_are_rails_and_the_port_goes_down() {
    let name = "verbs::striped::a_port_and_an_interface_are_rails_and_the_port_goes_down";
    with_lists(name, devices(), |builder| {
        let world = builder.tcp_interfaces(INTERFACE).init().unwrap();
        survive(&world, &["ib", "tcp"], &["tcp"]);
        world.finalize().unwrap();
    });
}
