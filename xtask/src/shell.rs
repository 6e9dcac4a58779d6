//! Running other programs: every command line is shown before it runs.

use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Failure;

/// Cargo itself, as the cargo that started us, in a clean environment: what `cargo run` sets for the
/// program it runs would otherwise reach build scripts and make them run again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
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
    fn failing_and_missing_programs_are_told_apart() {
        assert!(run(&mut Command::new("true")).is_ok());
        assert!(matches!(run(&mut Command::new("false")), Err(Failure::Command { .. })));
        let missing = run(&mut Command::new("gapless-no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("gapless-no-such-program"), "{missing}");
    }
}
