//! Processes of this program of which one is killed while the others go on. A launcher would end them all, so they have
//! none: they meet through files in a folder, and leave there what they find.
//!
//! Times are those of the system's clock, which all processes of a host have in common.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gapless::wireup::{Wireup, WireupError};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::processes::{Processes, left};

/// How long all of them may take to begin, and the others to end when one was killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often files are looked for.
const LOOK: Duration = Duration::from_millis(1);

/// Nanoseconds of the host's clock.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Which one a process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seat {
    rank: u32,
    ranks: u32,
    folder: PathBuf,
}

impl Seat {
    /// How it finds the others.
    pub(crate) fn meeting(&self) -> Box<dyn Wireup> {
        Box::new(Meeting { seat: self.clone(), fences: 0 })
    }

    /// Says a word to whoever has started it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn say(&self, word: &str) -> Result<(), Failure> {
        let path = self.place(self.rank, word);
        std::fs::write(&path, "").map_err(Failure::io("write", &path))
    }

    fn place(&self, rank: u32, word: &str) -> PathBuf {
        self.folder.join(format!("{rank}.{word}"))
    }
}

/// Meeting through files.
struct Meeting {
    seat: Seat,
    fences: u32,
}

impl Meeting {
    /// Others see all of it or nothing.
    fn write(&self, word: &str, text: &str) -> std::io::Result<()> {
        let unfinished = self.seat.place(self.seat.rank, "unfinished");
        std::fs::write(&unfinished, text)?;
        std::fs::rename(unfinished, self.seat.place(self.seat.rank, word))
    }
}

fn gone(doing: &'static str) -> impl FnOnce(std::io::Error) -> WireupError {
    move |error| WireupError::LauncherGone { doing, reason: error.to_string() }
}

impl Wireup for Meeting {
    fn rank(&self) -> u32 {
        self.seat.rank
    }

    fn size(&self) -> u32 {
        self.seat.ranks
    }

    fn local_size(&self) -> Option<u32> {
        Some(self.seat.ranks)
    }

    fn job(&self) -> &str {
        self.seat.folder.file_name().and_then(|name| name.to_str()).unwrap_or("deaths")
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        self.write(&format!("key.{key}"), value).map_err(gone("put"))
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.fence_while(&|| true)
    }

    fn fence_while(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), WireupError> {
        self.fences += 1;
        let word = format!("fence.{}", self.fences);
        self.write(&word, "").map_err(gone("fence"))?;
        let begun = Instant::now();
        while !(0..self.seat.ranks).all(|rank| self.seat.place(rank, &word).exists()) {
            if !go_on() {
                return Err(WireupError::GivenUp);
            }
            if begun.elapsed() > PATIENCE {
                return Err(WireupError::Late { waited: begun.elapsed(), doing: "fence" });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let path = self.seat.place(from, &format!("key.{key}"));
        let missing = |_| WireupError::NoSuchKey { from, key: key.to_owned() };
        std::fs::read_to_string(path).map_err(missing)
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        Ok(())
    }
}

/// The processes; killed and waited for when dropped.
pub(crate) struct Mortals {
    children: Vec<Child>,
    seat: Seat,
    _folder: tempfile::TempDir,
}

impl Mortals {
    /// Starts them.
    ///
    /// # Errors
    /// One cannot be started.
    pub(crate) fn start(processes: &Processes<'_>) -> Result<Mortals, Failure> {
        let folder = tempfile::Builder::new().prefix("gapless-deaths-").tempdir();
        let folder = folder.map_err(Failure::io("make", std::env::temp_dir()))?;
        let seat = Seat { rank: 0, ranks: processes.ranks, folder: folder.path().to_owned() };
        let mut mortals = Mortals { children: Vec::new(), seat, _folder: folder };
        for rank in 0..processes.ranks {
            let seat = Seat { rank, ..mortals.seat.clone() };
            let (program, arguments) = processes.command_line(&seat, &mortals.file(rank))?;
            let mut command = Command::new(&program);
            command.args(arguments).envs(processes.environment.iter().cloned());
            let child = command.stdin(Stdio::null()).spawn();
            mortals.children.push(child.map_err(Failure::io("start", Path::new(&program)))?);
        }
        Ok(mortals)
    }

    fn file(&self, rank: u32) -> PathBuf {
        self.seat.place(rank, "found")
    }

    /// Waits until all have said a word.
    ///
    /// # Errors
    /// One has ended before; they take too long.
    pub(crate) fn until_all_say(&mut self, word: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        while !(0..self.seat.ranks).all(|rank| self.seat.place(rank, word).exists()) {
            for (rank, child) in (0u32..).zip(&mut self.children) {
                if let Some(status) = child.try_wait().map_err(Failure::io("wait for", "a rank"))? {
                    return Err(ended(rank, status));
                }
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::Hangs { seconds: PATIENCE.as_secs() });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Kills one (SIGKILL), and waits until the system says that it has ended: when each of that was.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(crate) fn kill(&mut self, victim: u32) -> Result<(u64, u64), Failure> {
        let child = &mut self.children[victim as usize];
        let killed = now();
        let end = child.kill().and_then(|()| child.wait());
        let ended = now();
        end.map_err(Failure::io("kill", "a rank"))?;
        Ok((killed, ended))
    }

    /// What the others have left; waits until they have ended.
    ///
    /// # Errors
    /// One ended badly, or not at all; what was left cannot be read.
    pub(crate) fn found<T: DeserializeOwned>(mut self, victim: u32) -> Result<Vec<T>, Failure> {
        let begun = Instant::now();
        for (rank, child) in (0u32..).zip(&mut self.children).filter(|(rank, _)| *rank != victim) {
            let status = loop {
                match child.try_wait().map_err(Failure::io("wait for", "a rank"))? {
                    Some(status) => break status,
                    None if begun.elapsed() > PATIENCE => {
                        return Err(Failure::Hangs { seconds: PATIENCE.as_secs() });
                    }
                    None => std::thread::sleep(LOOK),
                }
            };
            if !status.success() {
                return Err(ended(rank, status));
            }
        }
        (0..self.seat.ranks)
            .filter(|rank| *rank != victim)
            .map(|rank| left(&self.file(rank)))
            .collect()
    }
}

fn ended(rank: u32, status: ExitStatus) -> Failure {
    Failure::Job(format!("rank {rank} has ended: {status}"))
}

impl Drop for Mortals {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Those that have ended were waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
