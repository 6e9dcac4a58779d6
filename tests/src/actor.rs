//! Tests of several processes: the test program once more, told by the environment which part to
//! play. They talk over the child's standard input and output, in lines; the child's are marked,
//! because the test harness writes to the same place.

use gapless_btl::Address;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PART: &str = "GAPLESS_TEST_PART";
const MARK: &str = "@says ";

/// A process that plays a part; killed when dropped.
#[derive(Debug)]
pub struct Actor {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts this test program again, to run the test `test` alone and play `part` in it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(test: &str, part: &str) -> Actor {
        let program = std::env::current_exe().expect("the test program's own path");
        let mut process = Command::new(program)
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts once more");
        let output = BufReader::new(process.stdout.take().expect("it was asked for"));
        Actor { process, output }
    }

    /// The next line that it says, waiting for it.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).expect("the other process's output");
            assert!(read > 0, "the other process ended: {:?}", self.process.wait());
            if let Some(said) = line.trim().strip_prefix(MARK) {
                return said.to_owned();
            }
        }
    }

    /// Tells it a line.
    ///
    /// # Panics
    /// If it has ended.
    pub fn tell(&mut self, line: &str) {
        let input = self.process.stdin.as_mut().expect("it was asked for");
        writeln!(input, "{line}").expect("the other process listens");
    }

    /// Kills it (SIGKILL) and waits until it is dead.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Fails if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the other process: which part to play.
#[must_use]
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// In the other process: says a line.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever is gone does not hear.
    let _ = writeln!(out, "\n{MARK}{line}");
    let _ = out.flush();
}

/// In the other process: hears a line; ends the process if nobody is there any more.
#[must_use]
pub fn listen() -> String {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(1..) => line.trim().to_owned(),
        _ => std::process::exit(0),
    }
}

/// An address as a word.
#[must_use]
pub fn hex(address: &Address) -> String {
    address.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The address of a word.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn unhex(text: &str) -> Address {
    let digits = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16);
    let bytes: Result<Vec<u8>, _> = (0..text.len() / 2).map(digits).collect();
    Address::new(&bytes.expect("hexadecimal")).expect("as long as an address")
}

/// Repeats until it is so.
///
/// # Panics
/// After a minute.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waiting until {what}");
        std::thread::yield_now();
    }
}
