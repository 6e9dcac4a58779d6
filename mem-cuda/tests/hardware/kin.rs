//! This binary once more, as another process that plays a part in the same test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PART: &str = "GAPLESS_CUDA_TEST_PART";
const MARK: &str = "@says ";

/// In the other process: which part to play.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// In the other process: says a line.
pub(crate) fn say(line: &str) {
    // Not `print!`, which the harness may capture.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n{MARK}{line}");
    let _ = out.flush();
}

/// In the other process: hears a line; ends the process when the first one is gone.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

/// The other process, seen from the first.
pub(crate) struct Kin {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Kin {
    /// Starts `test` (its whole path in this binary) as another process.
    pub(crate) fn start(test: &str, part: &str, variables: &[(&str, &str)]) -> Kin {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Kin { process, input, output }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The other process's next line.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the other process ended early: {:?}", self.process.wait());
            if let Some(said) = line.trim().strip_prefix(MARK) {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Kin {
    fn drop(&mut self) {
        // Fails if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}
