//! What processes are in, shortly before their time is over.
//!
//! All processes of a job with a time limit have the other end of one socket of messages. The launcher hangs up to ask:
//! that end is readable then, for all of them and for good. Threads that wait look there now and then, and each sends a
//! line (`shared/stuck.rs`). Who says nothing is in no call that waits, is stopped, or does not speak so.

use super::LaunchError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, recv, shutdown, socketpair,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// So long before the end they are asked, or at half of the time.
const BEFORE: Duration = Duration::from_secs(1);
/// Lines that are kept of one process, and bytes of each.
const LINES_MAX: usize = 4;
const BYTES_MAX: usize = 1024;

pub(super) struct Asker {
    ours: OwnedFd,
    /// Until all have been started.
    theirs: Option<OwnedFd>,
    at: Instant,
    has_asked: bool,
    /// Whether nobody holds the other end any more.
    is_over: bool,
    /// By each rank.
    said: Vec<Vec<String>>,
}

impl Asker {
    /// For a job of so many ranks that begins now. `None`: there is no limit, or the system gives no socket.
    pub(super) fn new(limit: Option<Duration>, ranks: usize) -> Option<Asker> {
        let limit = limit?;
        let at = Instant::now().checked_add(limit - BEFORE.min(limit / 2))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.ok()?;
        let (has_asked, is_over, said) = (false, false, vec![Vec::new(); ranks]);
        Some(Asker { ours, theirs: Some(theirs), at, has_asked, is_over, said })
    }

    /// The end of a process that is to be started.
    pub(super) fn end(&self) -> Result<Option<OwnedFd>, LaunchError> {
        self.theirs.as_ref().map(OwnedFd::try_clone).transpose().map_err(super::system("dup"))
    }

    /// All have been started.
    pub(super) fn is_complete(&mut self) {
        self.theirs = None;
    }

    /// When to look at the time again.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.at).filter(|_| !self.has_asked)
    }

    /// Asks all processes, if it is time.
    pub(super) fn keep_time(&mut self, now: Instant) {
        if !self.has_asked && now >= self.at {
            self.has_asked = true;
            // Nobody may be there any more.
            let _ = shutdown(&self.ours, Shutdown::Write);
        }
    }

    /// Where processes answer.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (self.has_asked && !self.is_over).then(|| self.ours.as_fd())
    }

    /// Reads what has come, but no more than is kept: processes that go on sending do not hold up the caller.
    pub(super) fn hear(&mut self) {
        let mut bytes = [0; BYTES_MAX];
        for _ in 0..=self.said.len() * LINES_MAX {
            if self.is_over {
                return;
            }
            match recv(&self.ours, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((len @ 1.., _)) => self.take(&String::from_utf8_lossy(&bytes[..len])),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // A message of no bytes looks like the end.
                Ok(_) => self.is_over = self.is_hung_up(),
                Err(_) => self.is_over = true,
            }
        }
    }

    /// Whether nobody has the other end.
    fn is_hung_up(&self) -> bool {
        let mut end = [PollFd::new(&self.ours, PollFlags::empty())];
        let polled = poll(&mut end, Some(&Timespec::default()));
        polled.is_err() || end[0].revents().contains(PollFlags::HUP)
    }

    /// One message: a rank, and what a thread of it says.
    fn take(&mut self, message: &str) {
        let Some((rank, line)) = message.split_once(' ') else { return };
        let Ok(rank) = rank.parse::<usize>() else { return };
        let Some(lines) = self.said.get_mut(rank) else { return };
        if lines.len() < LINES_MAX {
            lines.push(line.chars().filter(|c| !c.is_control()).collect());
        }
    }

    /// What is known of each rank; `runs`: of those that have not ended.
    pub(super) fn lines(mut self, runs: &[bool]) -> Vec<String> {
        self.hear();
        let of = |(rank, runs): (usize, &bool)| match self
            .said
            .get_mut(rank)
            .map(std::mem::take)
            .filter(|lines| !lines.is_empty())
        {
            _ if !*runs => vec![format!("rank {rank} has ended")],
            Some(lines) => lines,
            None => vec![format!(
                "rank {rank} does not answer: it is in no call of Gapless that waits, or stopped"
            )],
        };
        runs.iter().enumerate().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send};

    #[test]
    fn there_is_a_line_of_each_rank() {
        assert!(Asker::new(None, 3).is_none());
        let mut asker = Asker::new(Some(Duration::from_secs(3600)), 3).unwrap();
        let end = asker.end().unwrap().unwrap();
        asker.is_complete();
        let now = Instant::now();
        asker.keep_time(now);
        let mut byte = [0];
        assert_eq!(recv(&end, &mut byte, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        asker.keep_time(now + Duration::from_secs(3600));
        // It has hung up, and whoever looks sees that; answers still pass.
        for _ in 0..2 {
            assert_eq!(recv(&end, &mut byte, RecvFlags::DONTWAIT).unwrap().0, 0);
        }
        let nonsense = ["x y", "7", "9999 no such rank", ""];
        for message in nonsense.into_iter().chain(["1 rank 1 waits\n", "1 in another thread"]) {
            send(&end, message.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        }
        asker.hear();
        assert!(asker.descriptor().is_some());
        drop(end);
        asker.hear();
        // It would be readable for ever.
        assert!(asker.descriptor().is_none());
        let lines = asker.lines(&[false, true, true]);
        assert_eq!(lines[..3], ["rank 0 has ended", "rank 1 waits", "in another thread"]);
        assert!(lines[3].starts_with("rank 2 does not answer") && lines.len() == 4, "{lines:?}");
    }

    /// A process that is not to be trusted holds up nobody, and what is kept is bounded.
    #[test]
    fn whoever_sends_on_and_on_is_not_listened_to_for_ever() {
        let mut asker = Asker::new(Some(Duration::from_secs(3600)), 1).unwrap();
        let end = asker.end().unwrap().unwrap();
        let more = || send(&end, b"0 waits", SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok();
        let sent = std::iter::from_fn(|| more().then_some(())).take(LINES_MAX + 2).count();
        asker.hear();
        let mut byte = [0];
        let left = recv(&asker.ours, &mut byte, RecvFlags::DONTWAIT).is_ok();
        assert_eq!(left, sent > LINES_MAX + 1);
        assert_eq!(asker.lines(&[true]), vec!["waits"; LINES_MAX]);
    }
}
