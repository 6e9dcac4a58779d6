//! Example programs as processes.

use std::path::PathBuf;
use std::process::Command;

/// An example program, where cargo puts examples: beside the folder of test programs. `cargo test`
/// has built it; `cargo test --test halo` has not.
pub(crate) fn example(name: &str) -> PathBuf {
    let mut profile = std::env::current_exe().unwrap();
    profile.pop();
    profile.pop();
    let path = profile.join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        cargo.args(profile.ends_with("release").then_some("--release"));
        assert!(cargo.status().unwrap().success(), "building {}", path.display());
    }
    path
}
