//! A test that hangs would use up all the time that is left, and nobody would learn which one it was. If a command prints
//! nothing for [`MOST`], the programs that it has started are killed. Cargo reports that a test program was killed, and
//! goes on with the next one. By then libtest has named the test, as it names all that run for over a minute.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a command may print nothing. Compilers are never killed.
pub(super) const MOST: Duration = Duration::from_secs(8 * 60);

/// Watches a process until the channel is closed. Each message stands for a line of output.
pub(super) fn watch(process: u32, most: Duration, lines: &Receiver<()>) {
    let mut last = Instant::now();
    loop {
        match lines.recv_timeout(most.saturating_sub(last.elapsed())) {
            Ok(()) => last = Instant::now(),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                kill(process, most);
                last = Instant::now();
            }
        }
    }
}

/// Kills what a process has started, or the process, if it has started nothing.
fn kill(process: u32, silent: Duration) {
    let all = processes();
    let mut doomed = vec![process];
    let mut at = 0;
    while let Some(&parent) = doomed.get(at) {
        let children = all.iter().filter(|one| one.parent == parent && !one.compiles());
        doomed.extend(children.map(|one| one.number));
        at += 1;
    }
    let spared = usize::from(doomed.len() > 1);
    if spared == 0 && all.iter().any(|one| one.parent == process) {
        return;
    }
    let doomed = &doomed[spared..];
    let names = all.iter().filter(|one| doomed.contains(&one.number));
    let names: Vec<&str> = names.map(|one| &*one.name).collect();
    println!("KILLED after {} s without a line: {}", silent.as_secs(), names.join(", "));
    let numbers = doomed.iter().map(u32::to_string);
    let _ = Command::new("sh").args(["-c", "kill -9 \"$@\"", "sh"]).args(numbers).status();
}

/// A process of this machine.
struct Process {
    number: u32,
    parent: u32,
    name: String,
}

impl Process {
    fn compiles(&self) -> bool {
        matches!(&*self.name, "rustc" | "clippy-driver")
    }

    /// What `/proc/PID/stat` says.
    fn read(number: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // The name is between brackets, and may contain some.
        let (name, rest) = (stat.split_once('(')?.1).rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
        Some(Process { number, parent, name: name.to_owned() })
    }
}

fn processes() -> Vec<Process> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}
