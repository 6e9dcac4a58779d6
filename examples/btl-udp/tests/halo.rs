//! The example program: four processes compute the plate, and each checks its block bit by bit.

mod common;

use common::example;
use std::process::Command;

#[test]
fn four_processes_exchange_halos() {
    let output = Command::new(example("halo2d_udp")).args(["-n", "4"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{wrong}");
    for rank in 0..4 {
        let expected = format!("rank {rank} of 4 over udp (2 × 2 processes)");
        let line = said.lines().find(|line| line.contains(&expected));
        let line = line.unwrap_or_else(|| panic!("no line says {expected:?}:\n{said}{wrong}"));
        // Fifty steps, a row of 320 and a column of 240 cells of eight bytes each.
        assert!(line.contains(&format!("{} bytes sent, 0 wrong", 50 * (320 + 240) * 8)), "{line}");
    }
}

#[test]
fn nothing_to_start_and_nonsense_are_refused() {
    for arguments in [&["-n", "0"][..], &["-n", "x"], &["-n"], &["--help"]] {
        let output = Command::new(example("halo2d_udp")).args(arguments).output().unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
