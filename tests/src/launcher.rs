//! Jobs of real processes without a real launcher: the test program several times more, each told by
//! its environment which part to play, and this process between them, so that a test sees every
//! rank's words and end, and may kill any of them.
//!
//! Ranks and this process, their launcher, talk in lines over pipes. What ranks say is marked, because the test harness
//! writes to the same place. The pipes also carry the wire-up: a rank puts keys and comes to fences; the launcher answers
//! a fence with all keys once every rank that lives has come. Whoever dies before the first fence ends start-up for the
//! others, as under a launcher; later fences do not count the dead. A rank whose launcher is gone ends at once, so that
//! no process outlives a test that was killed.

use gapless::wireup::{Wireup, WireupError};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PART: &str = "GAPLESS_TEST_PART";
const RANK: &str = "GAPLESS_TEST_RANK";
const SIZE: &str = "GAPLESS_TEST_SIZE";
/// Names the job; every process of it carries the word in its environment.
pub const JOB: &str = "GAPLESS_TEST_JOB";
const MARK: &str = "@says ";
/// Longest that a rank waits at a fence.
const FENCE: Duration = Duration::from_secs(60);

/// In a rank: which part to play.
#[must_use]
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// In a rank: says a line.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever is gone does not hear.
    let _ = writeln!(out, "\n{MARK}{line}");
    let _ = out.flush();
}

/// What a rank did.
#[derive(Debug)]
pub enum Said {
    /// It said a line.
    Line(String),
    /// It has ended and was reaped.
    Ended(ExitStatus),
}

/// What the thread that listens to a rank passes on.
enum Heard {
    Line(String),
    /// Nobody can write to its output any more.
    Silence,
}

struct Hand {
    process: Child,
    /// Its last lines besides those for the launcher, for when it fails.
    ended: bool,
    /// Fences that it has come to.
    fences: u32,
    /// Words `key=value` it has put.
    put: Vec<String>,
}

/// The processes of one job; killed and reaped when dropped.
pub struct TestLauncher {
    hands: Vec<Hand>,
    heard: Receiver<(u32, Heard)>,
    job: String,
    /// Fences that were passed.
    passed: u32,
}

impl TestLauncher {
    /// Starts one process for each of `parts`, which runs the test `test` alone and plays its
    /// part. `with` may change a rank's command: its folder, its environment.
    ///
    /// # Panics
    /// If one cannot be started.
    pub fn start<P: AsRef<str>>(
        test: &str,
        parts: &[P],
        with: impl Fn(u32, &mut Command),
    ) -> TestLauncher {
        TestLauncher::start_under(test, parts, |_| Vec::new(), with)
    }

    /// As [`start`](TestLauncher::start), each rank under the command line that `under` gives: `valgrind`,
    /// for instance.
    ///
    /// # Panics
    /// If one cannot be started.
    pub fn start_under<P: AsRef<str>>(
        test: &str,
        parts: &[P],
        under: impl Fn(u32) -> Vec<String>,
        with: impl Fn(u32, &mut Command),
    ) -> TestLauncher {
        static JOBS: AtomicU64 = AtomicU64::new(0);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        let job = format!("job-{}-{number}", std::process::id());
        let program = std::env::current_exe().expect("the test program's own path");
        let (sender, heard) = channel();
        let hands = (0u32..).zip(parts).map(|(rank, part)| {
            let mut words = under(rank).into_iter();
            let mut command = match words.next() {
                None => Command::new(&program),
                Some(runner) => {
                    let mut command = Command::new(runner);
                    command.args(words).arg(&program);
                    command
                }
            };
            command
                .args([test, "--exact", "--nocapture", "--test-threads=1"])
                .env(PART, part.as_ref())
                .env(RANK, rank.to_string())
                .env(SIZE, parts.len().to_string())
                .env(JOB, &job)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            with(rank, &mut command);
            let mut process = command.spawn().expect("the test program starts once more");
            let output = process.stdout.take().expect("it was asked for");
            let sender = sender.clone();
            std::thread::spawn(move || listen_to(rank, BufReader::new(output), &sender));
            Hand { process, ended: false, fences: 0, put: Vec::new() }
        });
        TestLauncher { hands: hands.collect(), heard, job, passed: 0 }
    }

    /// The job's name, which every process of it carries in its environment.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.hands.len()
    }

    /// A rank's process number.
    #[must_use]
    pub fn pid(&self, rank: u32) -> u32 {
        self.hands[rank as usize].process.id()
    }

    /// What the ranks have published under `key`, as far as it has been heard.
    #[must_use]
    pub fn published(&self, key: &str) -> Vec<(u32, String)> {
        let value = |word: &String| Some(word.strip_prefix(key)?.strip_prefix('=')?.to_owned());
        let of = |(rank, hand): (u32, &Hand)| Some((rank, hand.put.iter().find_map(value)?));
        (0u32..).zip(&self.hands).filter_map(of).collect()
    }

    /// Waits until a rank says something or ends, at most `within`; serves fences meanwhile.
    ///
    /// # Panics
    /// If a process cannot be waited for.
    pub fn hear(&mut self, within: Duration) -> Option<(u32, Said)> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (rank, heard) = match self.heard.recv_timeout(left) {
                Ok(heard) => heard,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            };
            let hand = &mut self.hands[rank as usize];
            match heard {
                Heard::Line(line) => {
                    if let Some(word) = line.strip_prefix("put ") {
                        hand.put.push(word.to_owned());
                    } else if line == "fence" {
                        hand.fences += 1;
                        self.serve_fences();
                    } else {
                        return Some((rank, Said::Line(line)));
                    }
                }
                Heard::Silence => {
                    let status = hand.process.wait().expect("it can be waited for");
                    hand.ended = true;
                    self.serve_fences();
                    return Some((rank, Said::Ended(status)));
                }
            }
        }
    }

    /// Answers those who wait at a fence, if it can be passed or never will be.
    fn serve_fences(&mut self) {
        let next = self.passed + 1;
        let waits = |hand: &Hand| !hand.ended && hand.fences >= next;
        if !self.hands.iter().any(waits) {
            return;
        }
        let all: Vec<String> = (0u32..)
            .zip(&self.hands)
            .flat_map(|(rank, hand)| hand.put.iter().map(move |word| format!("{rank}.{word}")))
            .collect();
        let answer = if next == 1 && self.hands.iter().any(|hand| hand.ended && hand.fences == 0) {
            "fence gone".to_owned()
        } else if self.hands.iter().all(|hand| hand.ended || hand.fences >= next) {
            self.passed = next;
            format!("fence passed {}", all.join(" "))
        } else {
            return;
        };
        for hand in self.hands.iter_mut().filter(|hand| !hand.ended && hand.fences >= next) {
            tell(&mut hand.process, &answer);
        }
    }

    /// Tells a rank a line, if it is there to hear.
    pub fn tell(&mut self, rank: u32, line: &str) {
        tell(&mut self.hands[rank as usize].process, line);
    }

    /// Kills a rank (SIGKILL). [`Said::Ended`] follows.
    pub fn kill(&mut self, rank: u32) {
        let hand = &mut self.hands[rank as usize];
        if !hand.ended {
            // Fails if it has ended by itself.
            let _ = hand.process.kill();
        }
    }

    /// Stops a rank (SIGSTOP), until it is told to [go on](TestLauncher::go_on).
    ///
    /// # Panics
    /// It has ended.
    pub fn stop(&mut self, rank: u32) {
        self.signal(rank, Signal::STOP);
    }

    /// Lets a rank go on that was [stopped](TestLauncher::stop).
    ///
    /// # Panics
    /// It has ended.
    pub fn go_on(&mut self, rank: u32) {
        self.signal(rank, Signal::CONT);
    }

    fn signal(&mut self, rank: u32, signal: Signal) {
        let hand = &self.hands[rank as usize];
        assert!(!hand.ended, "rank {rank} has ended");
        kill_process(Pid::from_child(&hand.process), signal).expect("a child that was not reaped");
    }

    /// Whether a rank has ended and was reaped.
    #[must_use]
    pub fn has_ended(&self, rank: u32) -> bool {
        self.hands[rank as usize].ended
    }
}

/// Lines that the ranks of a job have said. One of the ranks may die; the others leave when they have said all.
pub struct Lines {
    of: String,
    victim: u32,
    within: Duration,
    heard: Vec<String>,
}

impl Lines {
    /// None yet. `of` is named if they do not come `within` that time.
    #[must_use]
    pub fn new(of: &str, victim: u32, within: Duration) -> Lines {
        Lines { of: of.to_owned(), victim, within, heard: Vec::new() }
    }

    /// Waits until `count` ranks have said `wanted`. One may say its next line before another's is heard.
    ///
    /// # Panics
    /// If they do not in time, or a rank ends that may not.
    pub fn wait(&mut self, launcher: &mut TestLauncher, wanted: &str, count: usize) {
        let until = Instant::now() + self.within;
        while self.heard.iter().filter(|line| *line == wanted).count() < count {
            match launcher.hear(until.saturating_duration_since(Instant::now())) {
                Some((_, Said::Line(line))) => self.heard.push(line),
                Some((rank, Said::Ended(status))) if rank == self.victim || status.success() => {}
                other => {
                    let Lines { of, heard, .. } = self;
                    panic!("{of}: {heard:?} while {wanted:?} is due, then {other:?}");
                }
            }
        }
    }
}

impl Drop for TestLauncher {
    fn drop(&mut self) {
        for hand in &mut self.hands {
            if !hand.ended {
                let _ = hand.process.kill();
                let _ = hand.process.wait();
            }
        }
    }
}

impl std::fmt::Debug for TestLauncher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job {} of {}", self.job, self.hands.len())
    }
}

fn tell(process: &mut Child, line: &str) {
    if let Some(input) = process.stdin.as_mut() {
        // Who has been killed does not hear.
        let _ = writeln!(input, "{line}");
    }
}

/// Passes on what a rank says, until nobody can say anything any more.
fn listen_to(rank: u32, mut output: impl BufRead, to: &Sender<(u32, Heard)>) {
    let mut line = String::new();
    loop {
        line.clear();
        match output.read_line(&mut line) {
            Ok(1..) => {}
            _ => break,
        }
        if let Some(said) = line.trim_end().strip_prefix(MARK)
            && to.send((rank, Heard::Line(said.to_owned()))).is_err()
        {
            return;
        }
    }
    // Nobody listens if the launcher was dropped.
    let _ = to.send((rank, Heard::Silence));
}

/// In a rank: itself.
#[derive(Debug)]
pub struct Member {
    /// The part to play.
    pub part: String,
    /// Its number in the job.
    pub rank: u32,
    /// How many processes the job has.
    pub size: u32,
    /// The job's name.
    pub job: Arc<str>,
    /// Lines from the launcher, except answers to fences.
    pub lines: Receiver<String>,
    fences: Arc<Mutex<Receiver<String>>>,
}

impl Member {
    /// Itself, in a process that a launcher started. To be asked once.
    #[must_use]
    pub fn of_launcher() -> Option<Member> {
        let part = part()?;
        let number = |name| std::env::var(name).ok()?.parse().ok();
        let (lines_in, lines) = channel();
        let (fences_in, fences) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                let to = if line.starts_with("fence ") { &fences_in } else { &lines_in };
                let _ = to.send(line);
            }
            // The launcher is gone.
            std::process::exit(0);
        });
        Some(Member {
            part,
            rank: number(RANK)?,
            size: number(SIZE)?,
            job: std::env::var(JOB).ok()?.into(),
            lines,
            fences: Arc::new(Mutex::new(fences)),
        })
    }

    /// How it finds the others. For one world after the other: all ranks make equally many.
    #[must_use]
    pub fn wireup(&mut self) -> Box<dyn Wireup> {
        Box::new(Pipe {
            rank: self.rank,
            size: self.size,
            job: Arc::clone(&self.job),
            fences: Arc::clone(&self.fences),
            known: HashMap::new(),
        })
    }
}

/// Finding the others through the launcher.
struct Pipe {
    rank: u32,
    size: u32,
    job: Arc<str>,
    fences: Arc<Mutex<Receiver<String>>>,
    /// By `rank.key`.
    known: HashMap<String, String>,
}

impl Wireup for Pipe {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        Some(self.size)
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        say(&format!("put {key}={value}"));
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        let gone = |reason: &str| {
            Err(WireupError::LauncherGone { doing: "fence", reason: reason.to_owned() })
        };
        say("fence");
        let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(answer) = fences.recv_timeout(FENCE) else { return gone("no answer") };
        let Some(words) = answer.strip_prefix("fence passed") else {
            return gone("a process has died");
        };
        for (key, value) in words.split_whitespace().filter_map(|word| word.split_once('=')) {
            self.known.insert(key.to_owned(), value.to_owned());
        }
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let missing = || WireupError::NoSuchKey { from, key: key.to_owned() };
        self.known.get(&format!("{from}.{key}")).cloned().ok_or_else(missing)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

/// What a process holds open, by what it is; without what belongs to `/proc` itself. Empty for a
/// process that is gone or another user's.
#[must_use]
pub fn descriptors(pid: &str) -> Vec<String> {
    let list = std::fs::read_dir(Path::new("/proc").join(pid).join("fd"));
    let mut names: Vec<_> = list
        .into_iter()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("/proc"))
        .collect();
    names.sort();
    names
}

/// Files in /dev/shm that a process has open or mapped. Such a file would remain if the process were
/// killed. Empty for a process that is gone or another user's.
#[must_use]
pub fn shared_files(pid: &str) -> Vec<String> {
    // A path may have any bytes.
    let maps = std::fs::read(Path::new("/proc").join(pid).join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().filter_map(|line| Some(line[line.find("/dev/shm/")?..].to_owned()));
    let opened = descriptors(pid).into_iter().filter(|name| name.starts_with("/dev/shm/"));
    mapped.chain(opened).collect()
}

/// The segments that a process has mapped: first and last address of each.
#[must_use]
pub fn segments(pid: &str) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(Path::new("/proc").join(pid).join("maps"));
    let maps = maps.unwrap_or_default();
    let place = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    maps.lines().filter(|line| line.contains("memfd:gapless")).filter_map(place).collect()
}

/// The processes that carry `job` in their environment, as [`TestLauncher`]'s do, save this one.
#[must_use]
pub fn processes_of(job: &str) -> Vec<String> {
    let word = format!("{JOB}={job}");
    let own = std::process::id().to_string();
    let carries = |pid: &OsStr| {
        let environment = std::fs::read(Path::new("/proc").join(pid).join("environ"));
        environment.is_ok_and(|all| all.split(|&byte| byte == 0).any(|one| one == word.as_bytes()))
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|name| name.to_string_lossy() != own && carries(name))
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}
