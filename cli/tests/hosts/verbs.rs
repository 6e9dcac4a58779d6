//! Jobs whose hosts have a port for InfiniBand or RoCE each: `GAPLESS_IB_PORTS` names the two devices, and
//! `GAPLESS_IB_NETDEV` the network device below the first. `cargo xtask verbs` runs these over Soft-RoCE. The adapters are
//! this machine's; between the hosts, there is TCP besides.

mod striped;

use super::WATCHDOG;
use super::lost::{NOTICE, last_of_four_dies, loses};
use super::namespaces::Namespaces;
use super::together::{collectives, columns, exchange, expect_links};
use super::windows::numbers;
use crate::common::{self, await_flag, flag, is_rank, meeting_folder, skip, text};
use gapless::{Builder, Source, TagSel, World};
use std::process::Command;
use std::time::Instant;

/// The ports' devices, if there are any.
fn devices() -> Option<[String; 2]> {
    let ports = std::env::var("GAPLESS_IB_PORTS").ok()?;
    let (one, other) = ports.split_once(',')?;
    Some([one, other].map(str::to_owned))
}

/// What `gapless info` says of a port.
fn port_line(device: &str, wanted: &str) -> String {
    let mut command = common::gapless();
    command.arg("info").env("GAPLESS_IB_DEVICES", wanted);
    let output = common::finish_all(command, WATCHDOG);
    let info = text(&output.stdout);
    let line = info.lines().find(|line| line.starts_with(&format!("  {device}:1 ")));
    line.unwrap_or_else(|| panic!("{device} in {info}")).to_owned()
}

/// Runs `body` as two or four ranks, half of them on each host. To be all that the test called `name` does.
fn over_verbs(name: &str, ranks: u32, dying: &[u32], body: impl FnOnce(Builder)) {
    over_ports(name, ranks, dying, devices(), body);
}

/// The same, with a list of devices for each host.
fn over_ports(
    name: &str,
    ranks: u32,
    dying: &[u32],
    lists: Option<[String; 2]>,
    body: impl FnOnce(Builder),
) {
    let Some(lists) = lists else {
        let missing =
            if devices().is_some() { "GAPLESS_IB_MORE_PORTS" } else { "GAPLESS_IB_PORTS" };
        let why = format!("{missing} names no two devices; cargo xtask verbs makes some");
        return skip("jobs over InfiniBand or RoCE", &why);
    };
    if is_rank(name) {
        return body(World::builder().wireup(common::folder_wireup()));
    }
    let Some(hosts) = Namespaces::new(name) else { return };
    common::orphans_at(ranks, name, dying, WATCHDOG, |rank| {
        let host = usize::from(rank >= ranks / 2);
        let mut words = hosts.enter(host);
        words.extend(["env".into(), format!("GAPLESS_IB_DEVICES={}", lists[host]).into()]);
        words
    });
}

/// Takes the first port's link up or down, from whichever network namespace.
fn set_link(state: &str) -> bool {
    let Ok(below) = std::env::var("GAPLESS_IB_NETDEV") else { return false };
    let words = ["--net=/proc/1/ns/net", "ip", "link", "set", &below, state];
    let status = Command::new("nsenter").args(words).status().expect("nsenter starts");
    assert!(status.success(), "{words:?}");
    true
}

/// The link is up again when this is dropped, and the port can be used a moment later.
struct Up;

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            set_link("up");
            return;
        }
        let [device, _] = devices().expect("there are ports");
        let begin = Instant::now();
        while set_link("up") && !port_line(&device, &device).contains("active") {
            assert!(begin.elapsed() < NOTICE, "the port does not come back");
        }
    }
}

/// As [`over_verbs`], where the first port's link may be taken down.
fn with_a_link(name: &str, body: impl FnOnce(Builder)) {
    if devices().is_some() && std::env::var_os("GAPLESS_IB_NETDEV").is_none() {
        return skip("links over verbs that go down", "GAPLESS_IB_NETDEV is not set");
    }
    let _up = (devices().is_some() && !is_rank(name)).then(|| Up);
    over_verbs(name, 2, &[], body);
}

fn everything(builder: Builder) {
    let world = builder.init().unwrap();
    [0, 1, 100, 4096, 70_000, 300_000].into_iter().for_each(|len| exchange(&world, len));
    [1, 50, 5_000].into_iter().for_each(|rows| columns(&world, rows));
    [0, 1, 33, 2_000].into_iter().for_each(|len| collectives(&world, len));
    expect_links(&world, "ib");
    numbers(world.comm(), true);
    expect_links(&world, "ib");
    world.finalize().unwrap();
}

#[test]
fn one_rank_on_each_of_two_hosts() {
    over_verbs("verbs::one_rank_on_each_of_two_hosts", 2, &[], everything);
}

#[test]
fn two_ranks_on_each_of_two_hosts() {
    over_verbs("verbs::two_ranks_on_each_of_two_hosts", 4, &[], everything);
}

#[test]
fn a_rank_that_is_killed() {
    over_verbs("verbs::a_rank_that_is_killed", 4, &[3], last_of_four_dies);
}

/// Over the link there are messages when it goes down: some may be lost, so the peer is.
#[test]
fn a_link_that_goes_down_in_use_loses_the_peer() {
    with_a_link("verbs::a_link_that_goes_down_in_use_loses_the_peer", |builder| {
        let world = builder.init().unwrap();
        exchange(&world, 5000);
        expect_links(&world, "ib");
        let (me, comm) = (world.rank(), world.comm());
        if me == 0 {
            set_link("down");
        }
        let lost = match me {
            0 => loses(1, || comm.recv(&mut [0u8; 8], 1, 0)),
            _ => loses(0, || comm.send(&vec![0u8; 1 << 20], 0, 0)),
        };
        let [own, _] = devices().expect("there are ports");
        assert!(me == 1 || lost.contains(&format!("{own} port 1")), "{lost}");
        std::mem::forget(world);
    });
}

/// Nothing was sent over the link: TCP takes over.
#[test]
fn a_link_that_goes_down_unused_is_replaced() {
    with_a_link("verbs::a_link_that_goes_down_unused_is_replaced", |builder| {
        let world = builder.init().unwrap();
        expect_links(&world, "ib");
        let folder = meeting_folder();
        flag(&folder, &format!("joined-{}", world.rank()));
        await_flag(&folder, &format!("joined-{}", 1 - world.rank()));
        if world.rank() == 0 {
            set_link("down");
        }
        let carrier = || world.link(1 - world.rank()).unwrap().limits.expect("it is there").name;
        let begin = Instant::now();
        while carrier() == "ib" {
            assert!(begin.elapsed() < NOTICE, "nothing is noticed");
            let _ = world.comm().iprobe(Source::Any, TagSel::Any).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        exchange(&world, 70_000);
        collectives(&world, 33);
        expect_links(&world, "tcp");
        world.finalize().unwrap();
    });
}

/// One host has no port that is wanted: both use TCP.
#[test]
fn a_host_without_a_port_is_reached_by_tcp() {
    over_verbs("verbs::a_host_without_a_port_is_reached_by_tcp", 2, &[], |builder| {
        let me = folder_rank();
        let builder = if me == 1 { builder.ib_devices("!*") } else { builder };
        let world = builder.init().unwrap();
        exchange(&world, 5000);
        expect_links(&world, "tcp");
        world.finalize().unwrap();
    });
}

/// One host uses both ports, the other one of them: one link joins two processes, by the port that either end has.
#[test]
fn several_ports_are_transports_each() {
    let lists = devices().map(|[one, other]| [format!("{one},{other}"), other]);
    let name = "verbs::several_ports_are_transports_each";
    over_ports(name, 4, &[], lists.clone(), |builder| {
        let world = builder.init().unwrap();
        exchange(&world, 5000);
        expect_links(&world, "ib");
        for peer in (0..world.size()).filter(|&peer| peer != world.rank()) {
            assert!(world.link(peer).unwrap().rails.len() <= 1, "never two at a time");
        }
        numbers(world.comm(), true);
        collectives(&world, 33);
        world.finalize().unwrap();
    });
    if let Some([both, _]) = lists.filter(|_| !is_rank(name)) {
        for device in both.split(',') {
            let line = port_line(device, &both);
            assert!(line.contains("active") && !line.contains("not used"), "{line}");
        }
    }
}

/// Without TCP the error says why the port is not used.
#[test]
fn ports_are_shown_and_the_reasons_why_they_are_not_used() {
    let name = "verbs::ports_are_shown_and_the_reasons_why_they_are_not_used";
    over_verbs(name, 2, &[], |builder| {
        let error = builder.only(["sm", "ib"]).ib_devices("!*").init().expect_err("none is left");
        let [one, _] = devices().expect("there are ports");
        let text = error.to_string();
        assert!(text.contains(&format!("{one}:1: it was not asked for")), "{text}");
    });
    if let Some([one, other]) = devices().filter(|_| !is_rank(name)) {
        let (used, unused) = (port_line(&one, &one), port_line(&other, &one));
        assert!(used.contains("active") && used.contains("GID"), "{used}");
        assert!(!used.contains("not used"), "{used}");
        assert!(unused.contains("not used: it was not asked for"), "{unused}");
    }
}

fn folder_rank() -> u32 {
    common::folder_wireup().rank()
}
