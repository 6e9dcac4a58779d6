//! A thread that learns when a peer's process ends, and ends the waits of our kernels then: nobody else may be in a call
//! that makes progress while the program waits for its stream.
//!
//! It sleeps on the processes' descriptors, and asks neither the message layer nor the driver for anything. A process of
//! another namespace cannot be watched; its loss shows by the time that a wait may last.

use super::words::HostWords;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The thread; ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches these processes, given with their ranks; waits end at once if one has ended already. `None` if there is
    /// none that can be watched, or no thread or descriptor is to be had.
    pub(super) fn new(processes: &[(u32, u32)], words: &Arc<HostWords>) -> Option<Watch> {
        let open = |(rank, process): &(u32, u32)| {
            let pid = Pid::from_raw(i32::try_from(*process).ok()?)?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(file) => Some((*rank, file)),
                // It has ended since it said its number.
                Err(Errno::SRCH) => {
                    words.abort(*rank);
                    None
                }
                Err(error) => {
                    tracing::debug!(rank, %error, "the end of this rank's process will show late");
                    None
                }
            }
        };
        let files: Vec<(u32, OwnedFd)> = processes.iter().filter_map(open).collect();
        if files.is_empty() {
            return None;
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).ok()?);
        let (words, woken) = (Arc::clone(words), Arc::clone(&stop));
        let watch = move || {
            if let Some(rank) = first_to_end(&files, &woken) {
                words.abort(rank);
            }
        };
        let thread = std::thread::Builder::new().name("gapless-stream".to_owned()).spawn(watch);
        Some(Watch { stop, thread: Some(thread.ok()?) })
    }
}

/// Sleeps until a process ends; `None` when it is told to stop.
fn first_to_end(files: &[(u32, OwnedFd)], stop: &OwnedFd) -> Option<u32> {
    loop {
        let all = files.iter().map(|(_, file)| file).chain([stop]);
        let mut polled: Vec<PollFd<'_>> =
            all.map(|file| PollFd::new(file, PollFlags::IN)).collect();
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        let (stopped, ended) = polled.split_last()?;
        if !stopped.revents().is_empty() {
            return None;
        }
        if let Some(at) = ended.iter().position(|file| !file.revents().is_empty()) {
            return Some(files[at].0);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It does not panic, and what it does is over in any case.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let words = Arc::new(HostWords::in_memory());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let ourselves = std::process::id();
        let _watch = Watch::new(&[(4, ourselves), (7, child.id())], &words).unwrap();
        assert_eq!(words.aborted(), None);
        drop(child.stdin.take());
        // Its descriptor shows the end before it is waited for.
        while words.aborted().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(words.aborted(), Some(7));
        child.wait().unwrap();
        // Now it is nobody's number.
        let words = Arc::new(HostWords::in_memory());
        assert!(Watch::new(&[(7, child.id())], &words).is_none());
        assert_eq!(words.aborted(), Some(7));
    }

    #[test]
    fn nobody_to_watch_takes_no_thread_and_a_dropped_watch_stops() {
        let words = Arc::new(HostWords::in_memory());
        assert!(Watch::new(&[], &words).is_none());
        assert!(Watch::new(&[(0, u32::MAX)], &words).is_none());
        drop(Watch::new(&[(0, std::process::id())], &words).unwrap());
        assert_eq!(words.aborted(), None);
    }
}
