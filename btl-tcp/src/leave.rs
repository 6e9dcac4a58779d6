//! Leaving: what was sent arrives.
//!
//! The system passes on what it has taken, also after this process has ended, unless the peer says something after
//! that: then the connection is reset and the rest is thrown away. So whoever leaves says that nothing more comes, and
//! reads what peers still say, until they hang up in turn, as they do when they have read all.

use crate::burst::Next;
use crate::link::{LinkState, Up};
use crate::tcp::Tcp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::{Duration, Instant};

/// How long whoever leaves waits for peers that take nothing.
const LINGER: Duration = Duration::from_millis(150);
/// How long it sleeps at a time.
const NAP_NS: i64 = 5_000_000;
/// Reads of one peer in a row.
const READS: usize = 16;

/// A link that is on its way out.
struct Leaving {
    up: Box<Up>,
    silent: bool,
}

impl Leaving {
    /// Goes on; whether the link still needs us, and whether anything was done.
    fn step(&mut self) -> (bool, bool) {
        let stepped = self.go_on();
        let Up { connection, outbound, .. } = &mut *self.up;
        outbound.hear_notices(connection);
        stepped
    }

    fn go_on(&mut self) -> (bool, bool) {
        let Up { connection, outbound, .. } = &mut *self.up;
        let mut moved = false;
        if !outbound.is_empty() {
            match outbound.flush(connection, Next::Leaves, &mut VecDeque::new()) {
                Ok(wrote) => moved |= wrote,
                Err(_) => return (false, true),
            }
        }
        if outbound.is_empty() && !self.silent {
            connection.fall_silent();
            self.silent = true;
        }
        let mut bytes = [0; 4096];
        for _ in 0..READS {
            // What they say is of no use, sealed or not.
            match connection.socket().read(&mut [IoSliceMut::new(&mut bytes)]) {
                // It has read all, or reads no more.
                Ok(Some(0)) | Err(_) => return (false, true),
                Ok(Some(_)) => moved = true,
                Ok(None) => break,
            }
        }
        (true, moved)
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let mut leaving = Vec::new();
        for link in &mut self.links {
            let gone = LinkState::Lost(gapless_btl::LinkError::PeerGone { reason: String::new() });
            let LinkState::Up(mut up) = std::mem::replace(&mut link.state, gone) else { continue };
            if up.broken.is_some() {
                // Buffers that the system has done with are free.
                let Up { connection, outbound, .. } = &mut *up;
                outbound.end(connection);
                continue;
            }
            // Nobody would wait for the notices of what leaves from now on.
            up.outbound.msg_zerocopy.stop();
            leaving.push(Leaving { up, silent: false });
        }
        self.hear_fading();
        // No new callers, and no hope for those that wait.
        self.listeners.clear();
        if std::thread::panicking() {
            return;
        }
        let start = Instant::now();
        let mut moved = start;
        while !leaving.is_empty() {
            leaving.retain_mut(|link| {
                let (stays, went_on) = link.step();
                if went_on {
                    moved = Instant::now();
                }
                stays
            });
            let now = Instant::now();
            if now.duration_since(moved) >= LINGER
                || now.duration_since(start) >= self.config.notice
            {
                return;
            }
            let mut list: Vec<PollFd<'_>> = leaving
                .iter()
                .map(|Leaving { up, silent }| {
                    let writing = if *silent { PollFlags::empty() } else { PollFlags::OUT };
                    PollFd::from_borrowed_fd(up.connection.as_fd(), PollFlags::IN | writing)
                })
                .collect();
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP_NS };
            let _ = poll(&mut list, Some(&nap));
        }
    }
}
