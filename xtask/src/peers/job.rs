//! A program that waits for commands: its processes, its fifos, its answers.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::work::Times;
use super::{Program, at};
use crate::{Failure, shell};

/// No piece of work takes as long, memory to be filled included.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pins a process by the rank that its launcher tells: `$0` lists the processors, `$@` is the program.
const PINNED: &str = r#"rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
exec taskset -c $(echo "$0" | cut -d, -f$((rank + 1))) "$@""#;

/// A library's processes.
pub(super) struct Job {
    library: &'static str,
    child: Child,
    commands: Vec<File>,
    answers: Receiver<String>,
}

impl Job {
    /// Starts `ranks` processes of `program`, each on a core of its own if there are so many. Their buffers rotate over
    /// `rotation` bytes a side.
    pub(super) fn start(
        program: &Program,
        folder: &Path,
        ranks: usize,
        rotation: u64,
    ) -> Result<Job, Failure> {
        let library = program.library;
        let fifos = folder.join(library);
        let _ = fs::remove_dir_all(&fifos);
        fs::create_dir_all(&fifos).map_err(at(&fifos))?;
        let names: Vec<String> =
            (0..ranks).map(|rank| rank.to_string()).chain(["answers".to_owned()]).collect();
        let mut mkfifo = Command::new("mkfifo");
        shell::output(mkfifo.args(names.iter().map(|name| fifos.join(name))))?;
        // Opened for both, a fifo does not wait for its other end.
        let open = |name: &String| {
            let path = fifos.join(name);
            OpenOptions::new().read(true).write(true).open(&path).map_err(at(&path))
        };
        let mut commands = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let answers = commands.pop().map(BufReader::new);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in answers.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut command = launcher(program, ranks);
        command.args(["sh", "-c", PINNED, &processors(ranks)]).arg(&program.program).arg(&fifos);
        command.arg(rotation.to_string());
        command.stdin(Stdio::null());
        let child = command.spawn().map_err(|source| shell::could_not_start(&command, source))?;
        Ok(Job { library, child, commands, answers: receiver })
    }

    /// Gives all processes a command and waits for the answer.
    pub(super) fn ask(&mut self, command: &str) -> Result<Times, Failure> {
        for fifo in &mut self.commands {
            writeln!(fifo, "{command}").map_err(at(Path::new(self.library)))?;
        }
        let mut waited = Duration::ZERO;
        let step = Duration::from_millis(200);
        let answer = loop {
            match self.answers.recv_timeout(step) {
                Ok(answer) => break Some(answer),
                Err(RecvTimeoutError::Timeout) if waited < PATIENCE => waited += step,
                Err(_) => break None,
            }
            if let Ok(Some(_)) = self.child.try_wait() {
                break None;
            }
        };
        let times = answer.as_deref().and_then(Times::read);
        times.ok_or_else(|| {
            let _ = self.child.kill();
            Failure::Missing(format!("{}'s answer to {command:?}", self.library))
        })
    }

    /// Lets the processes end.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        self.commands.clear();
        let status = self.child.wait().map_err(at(Path::new(self.library)))?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Command { command: self.library.to_owned(), status })
    }
}

/// The processors of so many ranks, with commas between them.
fn processors(ranks: usize) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.map(listed).unwrap_or_default();
    let siblings = |processor: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        fs::read_to_string(path).map(|list| listed(&list)).unwrap_or_default()
    };
    let order = order(&allowed, siblings);
    let names = (0..ranks).map(|rank| order.get(rank % order.len().max(1)).unwrap_or(&0));
    names.map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Processors, one of each core first, and the last ones first: the first serve more interrupts.
fn order(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let leads = |processor: &usize| {
        let siblings = siblings(*processor);
        siblings.iter().filter(|it| allowed.contains(it)).min().is_none_or(|it| it == processor)
    };
    let (firsts, others): (Vec<usize>, Vec<usize>) = allowed.iter().rev().partition(|it| leads(it));
    firsts.into_iter().chain(others).collect()
}

/// The numbers of a list such as `0-2,7`.
fn listed(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// How a library starts processes; one needs no launcher.
fn launcher(program: &Program, ranks: usize) -> Command {
    if ranks == 1 {
        return Command::new("env");
    }
    let mut command = Command::new(&program.launcher);
    match program.library {
        "openmpi" => drop(command.args(["--bind-to", "none"])),
        "mpich" => {}
        _ => drop(command.arg("run")),
    }
    command.args(["-n", &ranks.to_string()]);
    // As root, which containers mostly are, Open MPI wants to be told twice.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn each_core_comes_before_the_second_threads() {
        assert_eq!(listed("0-2,7\n"), [0, 1, 2, 7]);
        assert!(listed("nothing").is_empty());
        let pairs = |processor: usize| vec![processor / 2 * 2, processor / 2 * 2 + 1];
        assert_eq!(order(&[0, 1, 2, 3, 5], pairs), [5, 2, 0, 3, 1]);
        assert_eq!(order(&[0, 1, 2], |_| Vec::new()), [2, 1, 0], "nobody tells");
    }

    #[test]
    fn a_program_is_asked_and_ends() {
        let folder =
            std::env::temp_dir().join(format!("gapless-peers-test-{}", std::process::id()));
        let program = folder.join("program");
        fs::create_dir_all(&folder).unwrap();
        let text = "#!/bin/sh\nexec 3>$1/answers\nwhile read command; do echo 1e-3 2e-3 $2 >&3; done <$1/0\n";
        fs::write(&program, text).unwrap();
        let mut chmod = Command::new("chmod");
        shell::output(chmod.arg("+x").arg(&program)).unwrap();
        let program = Program { library: "test", launcher: PathBuf::new(), program };
        let mut job = Job::start(&program, &folder, 1, 1 << 20).unwrap();
        let times = job.ask("anything").unwrap();
        assert_eq!((times.work, times.memcpy, times.lines), (1e-3, 2e-3, 1 << 20));
        job.end().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
