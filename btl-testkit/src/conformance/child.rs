//! A peer in a process of its own, to be killed: this test program once more, told to run the one
//! test it is started from, in which it plays the child.
//!
//! They talk over the child's standard input and output, in lines; the child's are marked, because
//! the test harness writes to the same place.

use super::Suite;
use gapless_btl::Address;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// In the child: what it is to do.
const ROLE: &str = "GAPLESS_CONFORMANCE_CHILD";
/// Begins what the child says.
const MARK: &str = "@gapless ";

/// What this process is to do, if it is a child.
pub(super) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// In the child: says a line.
pub(super) fn tell(line: &str) {
    // Not `print!`, which the harness captures; a parent that is gone does not hear.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n{MARK}{line}");
    let _ = out.flush();
}

/// In the child: hears a line; ends the process when the parent is gone.
pub(super) fn listen() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

/// The parent's side.
pub(super) struct Kin {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Kin {
    /// Starts this test again as a child with a role.
    pub(super) fn start(suite: &Suite, role: &str) -> Kin {
        let program = std::env::current_exe().expect("the test program's own path");
        let mut process = Command::new(program)
            .args([suite.name(), "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("GAPLESS_SEED", suite.seed().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts once more");
        let input = process.stdin.take().expect("it was asked for");
        let output = BufReader::new(process.stdout.take().expect("it was asked for"));
        Kin { process, input, output }
    }

    /// Tells the child a line.
    pub(super) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the child listens");
    }

    /// Hears the child's next line.
    pub(super) fn listen(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("the child's output");
            assert!(read > 0, "the child ended early: {:?}", self.process.wait());
            if let Some(said) = line.strip_prefix(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    /// Kills it (SIGKILL) and waits until it is dead.
    pub(super) fn kill(mut self) {
        self.process.kill().expect("a child of ours");
        self.process.wait().expect("a child of ours");
    }
}

impl Drop for Kin {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address as a word.
pub(super) fn encode(address: &Address) -> String {
    let mut text = String::from("x");
    for byte in address.as_bytes() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The address of a word.
pub(super) fn decode(text: &str) -> Address {
    let digits = text.strip_prefix('x').expect("an address as a word");
    let bytes: Vec<u8> = (0..digits.len() / 2)
        .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hexadecimal"))
        .collect();
    Address::new(&bytes).expect("as long as an address")
}
