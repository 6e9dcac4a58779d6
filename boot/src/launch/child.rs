//! One process of a job: what tells its end, its PMI socket and, where asked for, its output pipes.

use super::drivers::keep_whole;
use super::output::Stream;
use super::{End, Launch, LaunchError, Output, Program, group, system};
use crate::pmi::PmiLine;
use crate::wireup::{ASKED, name_asked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, waitid,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};

/// Longest PMI request that is accepted, in bytes; a process that sends more loses its connection.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// How the end of a process is noticed.
enum Watch {
    /// This becomes readable.
    Pidfd(OwnedFd),
    /// The system has to be asked now and then ([`any_ended`]), as it gives no pidfd (an old kernel, a filter of system
    /// calls).
    Asking,
}

pub(super) struct Child {
    pid: Pid,
    /// Until it was collected.
    process: Option<Watch>,
    pmi: Option<UnixStream>,
    pending: Vec<u8>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl Child {
    /// `asked`: its end of the socket by which it is asked what it waits for.
    pub(super) fn start(
        job: &Launch,
        program: &Program,
        rank: u32,
        asked: Option<OwnedFd>,
    ) -> Result<Child, LaunchError> {
        let (ours, theirs) = UnixStream::pair().map_err(system("socketpair"))?;
        ours.set_nonblocking(true).map_err(system("fcntl"))?;
        let descriptor = theirs.as_raw_fd();
        let mut command = Command::new(&program.program);
        keep_whole(&mut command);
        command
            .args(&program.arguments)
            .envs(program.environment.iter().map(|(key, value)| (key, value)))
            .env("PMI_FD", descriptor.to_string())
            .env("PMI_RANK", rank.to_string())
            .env("PMI_SIZE", job.ranks().to_string())
            .env("MPI_LOCALRANKID", rank.to_string())
            .env("MPI_LOCALNRANKS", job.ranks().to_string())
            .process_group(0);
        match asked.as_ref().and_then(name_asked) {
            Some(name) => command.env(ASKED, name),
            None => command.env_remove(ASKED),
        };
        if let Some(folder) = &program.folder {
            command.current_dir(folder);
        }
        // Another launcher's variables are not for them.
        for (name, _) in std::env::vars_os() {
            if is_of_another_launcher(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        // Rank 0 has the launcher's input, but not its terminal: in a process group of its own it
        // would be stopped when it reads from there.
        if rank != 0 || std::io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if job.output != Output::Direct {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if let Some(file) = job.file(Stream::Out, rank)? {
            command.stdout(file);
        }
        if let Some(file) = job.file(Stream::Err, rank)? {
            command.stderr(file);
        }
        let launcher = rustix::process::getpid();
        // SAFETY: the closure runs between fork and exec and only makes system calls
        // (fcntl, prctl, getppid), which are async-signal-safe; it allocates nothing.
        unsafe {
            command.pre_exec(move || {
                rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
                if let Some(asked) = &asked {
                    rustix::io::fcntl_setfd(asked, rustix::io::FdFlags::empty())?;
                }
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if rustix::process::getppid() != Some(launcher) {
                    // The launcher died before the line above took effect.
                    return Err(ErrorKind::BrokenPipe.into());
                }
                Ok(())
            });
        }
        let spawned = kept_on(job, rank, || command.spawn())?;
        let mut child = spawned.map_err(|error| LaunchError::Start {
            program: program.program.to_string_lossy().into_owned(),
            error,
        })?;
        let pid = Pid::from_child(&child);
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Watch::Pidfd(pidfd),
            Err(error) => {
                tracing::debug!(rank, %error, "no pidfd");
                Watch::Asking
            }
        };
        Ok(Child {
            pid,
            process: Some(process),
            pmi: Some(ours),
            pending: Vec::new(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
        })
    }

    /// Whether the process has not been seen to end.
    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Whether the process runs or something of its output may still come.
    pub(super) fn is_open(&self) -> bool {
        self.process.is_some() || self.stdout.is_some() || self.stderr.is_some()
    }

    pub(super) fn pmi(&self) -> Option<BorrowedFd<'_>> {
        self.pmi.as_ref().map(AsFd::as_fd)
    }

    /// What becomes readable when the process ends, if there is such a thing.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        match &self.process {
            Some(Watch::Pidfd(pidfd)) => Some(pidfd.as_fd()),
            Some(Watch::Asking) | None => None,
        }
    }

    /// Whether nothing but [`reap`](Child::reap) tells that the process has ended.
    pub(super) fn must_be_asked(&self) -> bool {
        matches!(self.process, Some(Watch::Asking))
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        let stdout = self.stdout.as_ref().map(|pipe| (Stream::Out, pipe.as_fd()));
        let stderr = self.stderr.as_ref().map(|pipe| (Stream::Err, pipe.as_fd()));
        stdout.into_iter().chain(stderr)
    }

    /// What the process wrote, once its pipe is readable; `None` at its end.
    pub(super) fn read_output(&mut self, stream: Stream) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 32 << 10];
        let read = match stream {
            Stream::Out => self.stdout.as_mut()?.read(&mut bytes),
            Stream::Err => self.stderr.as_mut()?.read(&mut bytes),
        };
        match read {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => return Some(Vec::new()),
            Err(_) => {}
            Ok(len) => {
                bytes.truncate(len);
                return Some(bytes);
            }
        }
        match stream {
            Stream::Out => self.stdout = None,
            Stream::Err => self.stderr = None,
        }
        None
    }

    /// Waits for no more output of a process that has ended, unless there is some, which `all` gives up as well; whether a
    /// pipe was closed.
    pub(super) fn close_output_if_ended(&mut self, stream: Stream, all: bool) -> bool {
        let closes = self.process.is_none() && (all || !self.has_written(stream));
        match stream {
            Stream::Out => self.stdout.take_if(|_| closes).is_some(),
            Stream::Err => self.stderr.take_if(|_| closes).is_some(),
        }
    }

    fn has_written(&self, stream: Stream) -> bool {
        self.outputs().filter(|(of, _)| *of == stream).any(|(_, pipe)| {
            let mut readable = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
            poll(&mut readable, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
    }

    /// The next whole request, if one has come.
    pub(super) fn read_request(&mut self) -> Option<PmiLine> {
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(PmiLine::parse(&String::from_utf8_lossy(&line)));
            }
            let mut bytes = [0; 4096];
            match self.pmi.as_mut()?.read(&mut bytes) {
                Ok(0) => self.pmi = None,
                Ok(len) if self.pending.len() + len <= REQUEST_BYTES_MAX => {
                    self.pending.extend_from_slice(&bytes[..len]);
                }
                Ok(_) => self.pmi = None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => self.pmi = None,
            }
        }
    }

    /// Sends an answer. A process that does not read its answers loses its connection.
    pub(super) fn send(&mut self, answer: &str) {
        if let Some(socket) = self.pmi.as_mut()
            && socket.write_all(answer.as_bytes()).is_err()
        {
            self.pmi = None;
        }
    }

    /// Collects the process, if it has ended.
    pub(super) fn reap(&mut self) -> Option<End> {
        let status = match group::reap(self.pid) {
            Ok(Some(status)) => status,
            Ok(None) => return None,
            Err(_) => {
                self.process = None;
                return Some(End::Code(1));
            }
        };
        self.process = None;
        self.pmi = None;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => End::Code(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => End::Code(1),
        })
    }

    /// Sends a signal to the process and all of its group, while it has not been collected.
    pub(super) fn kill(&mut self, signal: Signal) {
        if self.process.is_some() {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

/// Whether a child of this process may have ended and has not been collected. It need not be one of the job's: nothing
/// is collected here, so whoever started others can still do that. One system call, however many children there are.
pub(super) fn any_ended() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, look), Ok(None))
}

/// Does `start` on the processors that the process may use, if it was told; it inherits them. Numbers that no set can hold
/// are left out.
fn kept_on<T>(job: &Launch, rank: u32, start: impl FnOnce() -> T) -> Result<T, LaunchError> {
    let listed = job.processors.get(rank as usize).map_or(&[][..], Vec::as_slice);
    let mut set = CpuSet::new();
    listed.iter().filter(|&&processor| processor < CpuSet::MAX_CPU).for_each(|&p| set.set(p));
    if set.count() == 0 {
        return Ok(start());
    }
    let refused = |error: rustix::io::Errno| LaunchError::Bind {
        rank,
        processors: listed.to_vec(),
        error: error.into(),
    };
    let before = sched_getaffinity(None).map_err(refused)?;
    sched_setaffinity(None, &set).map_err(refused)?;
    let started = start();
    // What was allowed before is allowed again.
    let _ = sched_setaffinity(None, &before);
    Ok(started)
}

/// Whether a variable tells processes of a launcher that is not ours.
fn is_of_another_launcher(name: &str) -> bool {
    let prefixes = ["PMIX_", "OMPI_COMM_WORLD_"];
    matches!(name, "PMI_PORT" | "PMI_ID") || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill(Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}
