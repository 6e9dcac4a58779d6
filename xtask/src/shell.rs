//! Running other programs: every command line is shown before it runs.

use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Failure;

/// Cargo itself, as the cargo that started us, in a clean environment: what `cargo run` sets for the
/// program it runs would otherwise reach build scripts and make them run again. Nothing is kept for compiling parts of
/// a crate again, unless the user asks for it: what builds everything once then needs gigabytes less, and no more time.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    if std::env::var_os("CARGO_INCREMENTAL").is_none() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, _) in std::env::vars_os() {
        if is_cargo_run_variable(&name) {
            command.env_remove(name);
        }
    }
    command
}

fn is_cargo_run_variable(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || name == "CARGO_PRIMARY_PACKAGE"
    })
}

/// Shows and runs a command; its output goes where ours does.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    show(command);
    let status = command.status().map_err(|source| could_not_start(command, source))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Command { command: line(command), status })
}

/// Runs a command quietly and returns what it printed to standard output, if it succeeded.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|source| could_not_start(command, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Err(Failure::Command { command: line(command), status: output.status })
}

pub(crate) fn could_not_start(command: &Command, source: std::io::Error) -> Failure {
    Failure::Start { program: command.get_program().to_string_lossy().into_owned(), source }
}

pub(crate) fn show(command: &Command) {
    println!("$ {}", line(command));
}

/// The command line a reader could type, with the variables set for it.
pub(crate) fn line(command: &Command) -> String {
    let mut words: Vec<String> = command
        .get_envs()
        .filter_map(|(name, value)| {
            let value = value?.to_string_lossy();
            let quote = if value.contains(' ') { "'" } else { "" };
            Some(format!("{}={quote}{value}{quote}", name.to_string_lossy()))
        })
        .collect();
    let program = OsString::from(command.get_program());
    let program = std::path::Path::new(&program).file_name().unwrap_or(&program);
    words.push(program.to_string_lossy().into_owned());
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Variables with which cargo lints the packages of a workspace as it compiles them, and every warning is an error: what
/// `cargo clippy -- -D warnings` says, without checking all that they depend on a second time.
pub(crate) fn linting() -> [(&'static str, OsString); 2] {
    // As cargo-clippy does it; the test below notices if a toolchain no longer does.
    let arguments = "-Dwarnings__CLIPPY_HACKERY__";
    [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver".into()), ("CLIPPY_ARGS", arguments.into())]
}

/// Runs a step under a heading and says how long it took.
pub(crate) fn timed<T>(heading: &str, step: impl FnOnce() -> T) -> (T, Duration) {
    println!("\n== {heading}");
    let start = Instant::now();
    let result = step();
    let took = start.elapsed();
    println!("== {heading}: {:.1} s", took.as_secs_f64());
    (result, took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shown_can_be_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command
            .args(["doc", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings")
            .env_remove("CARGO_PKG_NAME");
        assert_eq!(line(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn what_clippy_finds_fails_as_it_is_compiled() {
        let folder = tempfile::tempdir().unwrap();
        let compile = |text: &str| {
            let source = folder.path().join("lib.rs");
            std::fs::write(&source, text).unwrap();
            let [(_, wrapper), arguments] = linting();
            let mut command = Command::new(wrapper);
            command.args(["rustc", "--crate-type", "rlib", "--edition", "2024", "--out-dir"]);
            command.arg(folder.path()).arg(&source).envs([arguments]);
            // What cargo sets for a package of the workspace.
            command.env("CARGO_PRIMARY_PACKAGE", "1");
            let output = command.output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        assert!(compile("pub fn f(x: u8) -> u8 { x }").0);
        let (success, said) = compile("pub fn f(x: u8) -> u8 { return x; }");
        assert!(!success && said.contains("needless_return"), "{said}");
        let (success, said) = compile("fn f() {}");
        assert!(!success && said.contains("never used"), "{said}");
    }

    #[test]
    fn failing_and_missing_programs_are_told_apart() {
        assert!(run(&mut Command::new("true")).is_ok());
        assert!(matches!(run(&mut Command::new("false")), Err(Failure::Command { .. })));
        let missing = run(&mut Command::new("gapless-no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("gapless-no-such-program"), "{missing}");
    }
}
