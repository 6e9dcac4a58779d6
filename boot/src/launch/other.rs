//! A launcher that is not ours, with a time limit: whatever it waits for, it ends.

use super::{ASK_EVERY, LaunchError, Signals, group, system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::io::{ErrorKind, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long it may tidy up on other hosts, between `SIGTERM` and `SIGKILL`.
const TIDIES_UP: Duration = Duration::from_secs(5);

/// Runs another launcher (`mpiexec`, `srun`) to its end, and passes signals on to it. It has a process group of its
/// own, all of which is ended if it takes longer than `limit`, also if it has started nothing: it may wait for a host
/// that cannot be reached, or for a password. It has this process's input, but not its terminal.
///
/// # Errors
/// It cannot be started; [`LaunchError::Late`]; the system's refusal.
pub fn watch(mut command: Command, limit: Duration) -> Result<ExitStatus, LaunchError> {
    super::drivers::keep_whole(&mut command);
    let signals = Signals::register()?;
    let name = command.get_program().to_string_lossy().into_owned();
    if std::io::stdin().is_terminal() {
        // In a group of its own it would be stopped when it reads from there.
        command.stdin(Stdio::null());
    }
    command.process_group(0);
    let launcher = rustix::process::getpid();
    // SAFETY: the closure runs between fork and exec and only makes system calls (prctl, getppid), which are
    // async-signal-safe; it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            match rustix::process::getppid() == Some(launcher) {
                true => Ok(()),
                // It died before the line above took effect.
                false => Err(ErrorKind::BrokenPipe.into()),
            }
        });
    }
    let start = |error| LaunchError::Start { program: name.clone(), error };
    let child = command.spawn().map_err(start)?;
    let group = Pid::from_child(&child);
    let process = pidfd_open(group, PidfdFlags::empty()).ok();
    let begun = Instant::now();
    let (mut is_late, mut kill_at) = (false, None);
    let status = loop {
        if let Some(status) = group::reap(group).map_err(|error| system("waitpid")(error.into()))? {
            break ExitStatus::from_raw(status.as_raw());
        }
        if !is_late && begun.elapsed() >= limit {
            is_late = true;
            end(group, &mut kill_at);
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let until = match kill_at {
            Some(at) => at.saturating_duration_since(Instant::now()).max(ASK_EVERY),
            None => limit.saturating_sub(begun.elapsed()),
        };
        let until = if process.is_some() { until } else { until.min(ASK_EVERY) };
        let mut watched: Vec<PollFd<'_>> =
            signals.0.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
        let process = process.as_ref().map(AsFd::as_fd);
        watched.extend(process.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
        match poll(&mut watched, Timespec::try_from(until).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let _ = kill_process_group(group, Signal::KILL);
                return Err(system("poll")(error.into()));
            }
        }
        for (signal, pipe) in &signals.0 {
            // Nothing is there: it would block.
            if matches!((&mut &*pipe).read(&mut [0; 64]), Ok(1..)) {
                let _ = kill_process_group(group, *signal);
                if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(signal) {
                    kill_at.get_or_insert(Instant::now() + TIDIES_UP);
                }
            }
        }
    };
    if is_late { Err(LaunchError::Late { launcher: name, limit }) } else { Ok(status) }
}

/// Asks all of the group to end, those that are stopped, too.
fn end(group: Pid, kill_at: &mut Option<Instant>) {
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    kill_at.get_or_insert(Instant::now() + TIDIES_UP);
}
