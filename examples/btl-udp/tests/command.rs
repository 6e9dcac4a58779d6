//! The `gapless` command over this transport: it starts itself, and its ranks have no other.

mod common;

use common::example;
use std::process::{Command, Output};

fn call(arguments: &[&str]) -> Output {
    let mut command = Command::new(example("gapless_udp"));
    command.env("GAPLESS_TUNING", "").env("GAPLESS_COLL", "").args(arguments).output().unwrap()
}

fn shown(arguments: &[&str]) -> String {
    let output = call(arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}{wrong}");
    said
}

#[test]
fn benchmarks_measure_it() {
    let few = ["-i", "3", "-x", "1"];
    let lines = |arguments: &[&str]| {
        let said = shown(&[&["bench"], arguments, &few].concat());
        said.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&["latency", "-m", "1K:2K"]).len(), 2);
    assert_eq!(lines(&["coll", "barrier", "-n", "3"]).len(), 1);
    // Nothing can be mapped over a network, so a long message goes in fragments.
    let long = lines(&["bw", "--layout", "v", "-m", "512K", "-W", "2", "-f"]);
    assert!(long[0].starts_with("524288 ") && long[0].ends_with(" pipeline"), "{long:?}");
}

#[test]
fn real_layouts_arrive_over_it() {
    let arguments = ["--layout", "v,t", "--n", "64", "--iterations", "3", "--buffers", "2M"];
    let table = shown(&[&["pingpong"], &arguments[..]].concat());
    assert_eq!(table.matches("right").count(), 2, "{table}");
    assert!(!table.contains("mapped"), "{table}");
}

#[test]
fn its_promises_are_what_messages_are_explained_by() {
    let said = shown(&["explain", "--layout", "v", "--n", "512", "--all"]);
    assert!(said.starts_with("link udp: "), "{said}");
    let chosen = said.lines().find(|line| line.ends_with("chosen"));
    assert!(chosen.is_some_and(|line| line.starts_with("pipeline ")), "{said}");
    let mapped = said.lines().find(|line| line.trim_start().starts_with("mapped "));
    assert!(
        mapped.is_some_and(|line| line.ends_with("the sender's memory cannot be mapped")),
        "{said}"
    );
}

#[test]
fn info_names_it() {
    let said = shown(&["info"]);
    let line = said.lines().find(|line| line.starts_with("transport udp  "));
    assert!(line.is_some_and(|line| line.contains("fragments up to 32 KiB")), "{said}");
    assert!(said.contains("single copy    not available\n"), "{said}");
}

#[test]
fn a_transport_that_cannot_be_made_ends_the_command_with_a_line() {
    // One descriptor is enough to load libraries, and not for its sockets.
    let words = ["-c", "ulimit -n 4; exec \"$0\" info --as-rank"];
    let output = Command::new("sh").args(words).arg(example("gapless_udp")).output().unwrap();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{wrong}");
    assert!(wrong.starts_with("gapless: no world can be made: "), "{wrong}");
    assert_eq!(wrong.lines().count(), 1, "{wrong}");
}
