//! Which memory of ours a peer may still use although its link is over, and how we learn that it does not
//! any more.
//!
//! ```text
//! we                                        a peer
//!   | hang up, if it broke the rules ------> |
//!   |                                        | buries its link
//!   |                                        |   …
//!   | <-------------------------- BYE, end - | nothing there uses memory of ours any more
//!   let go of
//!
//!   | <------------------------------- end - | it has died: what it had devices do may still go on
//!   let go of, once the process is gone
//! ```
//!
//! A peer's socket to us is kept by an [`ImportGuard`]: there, whatever uses memory of ours holds it, and so it ends no
//! sooner. That is also so if it only broke the rules, or we did in its eyes, and lives. A BYE that finds
//! the socket full, because its receiver has not looked for long, is said later.

use crate::link::SmLink;
use crate::sm::Sm;
use crate::socket::{self, Received, Socket};
use crate::wire::{self, PACKET_BYTES, revoke_packet};
use gapless_btl::{LinkError, PeerId};
use gapless_mem::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets read from one socket at a time.
const PACKETS: usize = 16;

/// Sockets to peers that are owed a BYE for which there was no room, from any thread.
#[derive(Debug)]
pub(crate) struct Owed {
    /// `None` once there is no transport any more to say it later. At most one socket for each peer.
    list: Mutex<Option<Vec<Arc<Socket>>>>,
    any: AtomicBool,
}

impl Default for Owed {
    fn default() -> Owed {
        Owed { list: Mutex::new(Some(Vec::new())), any: AtomicBool::new(false) }
    }
}

impl Owed {
    fn list(&self) -> MutexGuard<'_, Option<Vec<Arc<Socket>>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says BYE through a socket that has no other use any more: now if there is room, otherwise later.
    fn say(&self, socket: &Arc<Socket>) {
        if say_bye(socket) {
            return;
        }
        match &mut *self.list() {
            Some(list) => {
                list.push(Arc::clone(socket));
                self.any.store(true, Ordering::Relaxed);
            }
            None => say_last(socket),
        }
    }

    /// Says what is owed, as far as there is room now.
    pub(crate) fn settle(&self) {
        if self.any.load(Ordering::Relaxed)
            && let Some(list) = &mut *self.list()
        {
            list.retain(|socket| !say_bye(socket));
            self.any.store(!list.is_empty(), Ordering::Relaxed);
        }
    }

    /// The transport goes: what is owed is said now or never.
    pub(crate) fn close(&self) {
        let list = self.list().take();
        list.iter().flatten().for_each(|socket| say_last(socket));
    }
}

/// Says BYE and hangs up, or does nothing where there is no room: whether that is done with. It is so for a
/// peer that is gone, too.
fn say_bye(socket: &OwnedFd) -> bool {
    let done = socket::send(socket, &[wire::BYE], None) != Ok(false);
    if done {
        // Fragments that are still parked hold the socket as well.
        socket::hang_up(socket);
    }
    done
}

/// Says BYE through a socket that nobody will look at again, and hangs up. Where the system gives it no more
/// room, the peer waits until this process has ended.
fn say_last(socket: &OwnedFd) {
    socket::make_room(socket);
    if !say_bye(socket) {
        socket::hang_up(socket);
    }
}

/// Our socket to a peer, held by whatever uses its memory: when the last of these is gone, after the link,
/// the peer is told.
#[derive(Debug)]
pub(crate) struct ImportGuard {
    socket: Arc<Socket>,
    owed: Arc<Owed>,
}

impl ImportGuard {
    pub(crate) fn new(socket: &Arc<Socket>, owed: &Arc<Owed>) -> Arc<ImportGuard> {
        Arc::new(ImportGuard { socket: Arc::clone(socket), owed: Arc::clone(owed) })
    }
}

impl Drop for ImportGuard {
    fn drop(&mut self) {
        self.owed.say(&self.socket);
    }
}

/// What remains of a link to a peer that knows memory of ours.
#[derive(Debug)]
pub(crate) struct DepartedPeer {
    /// Its socket to us.
    socket: Socket,
    /// Nothing more is read from it: it has sent what it must not.
    pub(crate) deaf: bool,
    /// The process; `None` if that cannot be known: then the end of its socket has to do.
    process: Option<OwnedFd>,
    /// It has said that it uses nothing.
    said: bool,
}

impl DepartedPeer {
    pub(crate) fn new(socket: Socket, process: Option<OwnedFd>) -> DepartedPeer {
        DepartedPeer { socket, deaf: false, process, said: false }
    }

    /// Whether the peer uses no memory of ours any more, nor do devices for it.
    pub(crate) fn is_over(&mut self) -> bool {
        let mut packet = [0; PACKET_BYTES];
        for _ in 0..PACKETS {
            if self.deaf {
                return is_ready(&self.socket, PollFlags::HUP) && self.lets_go();
            }
            match socket::receive(&self.socket, &mut packet) {
                Ok(Received::Packet(_, None)) if packet[0] == wire::BYE => self.said = true,
                // Too late for anything else.
                Ok(Received::Packet(_, None) | Received::Robbed(_)) => {}
                // What was in flight when the link ended is shared memory, or a device's.
                Ok(Received::Packet(_, Some(file))) => self.deaf = file.of_device().is_err(),
                Ok(Received::Nothing) => return false,
                Err(LinkError::Corrupt { .. }) => self.deaf = true,
                Err(_) => return false,
                Ok(Received::End) => return self.lets_go(),
            }
        }
        false
    }

    /// Whether, now that its socket has ended, it uses nothing.
    fn lets_go(&self) -> bool {
        let process = self.process.as_ref();
        self.said || process.is_none_or(|it| is_ready(it, PollFlags::IN))
    }
}

/// Whether one of `what` is so, without waiting.
fn is_ready(file: &impl AsFd, what: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut files = [PollFd::new(file, what)];
    poll(&mut files, Some(&now)).is_ok() && files[0].revents().intersects(what)
}

impl SmLink {
    /// Remembers the peer's process before something is shared with it for the first time. False if it is
    /// gone.
    pub(crate) fn know_process(&mut self) -> bool {
        let known = self.process.is_some() || !self.shared.is_empty();
        let own = rustix::process::getpid();
        if let Some(pid) = Pid::from_raw(self.pid).filter(|pid| !known && *pid != own) {
            let process = pidfd_open(pid, PidfdFlags::empty()).ok();
            self.process = process.filter(socket::can_be_spared);
            // The number may be another process's by now, but then the socket has ended.
            let gone = |socket| is_ready(socket, PollFlags::HUP);
            return !self.incoming.as_ref().is_none_or(gone);
        }
        true
    }

    /// The link is over: keeps what tells whether the peer still uses memory of ours.
    pub(crate) fn track_departed(&mut self) {
        let used = !self.shared.is_empty() || !self.leaving.is_empty();
        let process = self.process.take();
        let socket = self.incoming.take().filter(|_| used);
        self.departed = socket.map(|socket| DepartedPeer::new(socket, process));
        self.forget_departed();
    }

    /// Looks whether the peer uses memory of ours.
    pub(crate) fn forget_departed(&mut self) {
        if self.departed.as_mut().is_none_or(DepartedPeer::is_over) {
            self.departed = None;
            self.shared.clear();
            self.leaving.clear();
        }
    }

    /// Tells the peer something about memory, as soon as there is room. To a lost one there is nothing to say.
    pub(crate) fn tell(&mut self, packet: &[u8]) {
        if self.outgoing.is_some() {
            self.unsent.push_back(packet.into());
        }
    }
}

impl Sm {
    /// Looks at all that is left of lost peers.
    pub(crate) fn forget_departed(&mut self) {
        for link in self.links.iter_mut().filter(|link| link.departed.is_some()) {
            link.forget_departed();
        }
    }

    /// Has a peer let go of the memory of the host or of devices that `region` touches; whether it may still
    /// use it.
    pub(crate) fn revoke_all_access(&mut self, peer: PeerId, region: Region) -> bool {
        self.forget_released();
        let Some(link) = self.links.get_mut(peer.0 as usize) else { return false };
        if region.space().cpu_accessible() {
            let numbers = self.exports.touched(region);
            for &number in &numbers {
                if link.shared.remove(&number) {
                    link.tell(&revoke_packet(number));
                    link.leaving.insert(number);
                }
            }
            self.flush_packets();
            let link = &self.links[peer.0 as usize];
            return numbers.iter().any(|number| link.leaving.contains(number));
        }
        self.revoke_device_access(peer, region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    /// A guard's two ends, and a process that plays the peer's.
    fn peer() -> (Arc<Socket>, DepartedPeer, Process) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        (
            Arc::new(Socket::new(theirs)),
            DepartedPeer::new(Socket::new(ours), Some(process)),
            Process(child),
        )
    }

    /// Soon: what other tests start holds our sockets until it runs its program.
    fn ends(mut departed: DepartedPeer) {
        let start = Instant::now();
        while !departed.is_over() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody uses anything");
        }
    }

    /// Ends with its test, also where that fails.
    struct Process(Child);

    impl Drop for Process {
        fn drop(&mut self) {
            let _ = self.0.kill().and_then(|()| self.0.wait());
        }
    }

    #[test]
    fn a_peer_that_lives_says_when_it_is_done() {
        let (socket, mut departed, child) = peer();
        let (first, other) = (ImportGuard::new(&socket, &Arc::default()), Arc::clone(&socket));
        let second = Arc::clone(&first);
        drop((first, socket));
        assert_eq!(socket::send(&other, &[99], None), Ok(true));
        assert!(!departed.is_over(), "something holds the guard, whatever the peer says");
        drop(second);
        assert!(departed.is_over(), "although the socket is held, and the process lives");
        assert!(departed.is_over(), "it stays so");
        drop(other);
        drop(child);
    }

    #[test]
    fn a_peer_that_dies_is_waited_for_until_its_process_is_gone() {
        let (socket, mut departed, child) = peer();
        drop(socket);
        assert!(!departed.is_over(), "it ended without a word, and its devices may be at work");
        drop(child);
        ends(departed);
        // Where the process is not known, the end of its socket has to do.
        let (socket, departed, child) = peer();
        let mut unknown = DepartedPeer { process: None, ..departed };
        assert!(!unknown.is_over());
        drop(socket);
        ends(unknown);
        drop(child);
    }

    /// A guard of a socket that its peer has not read until it was full.
    fn full(owed: &Arc<Owed>) -> (Arc<ImportGuard>, DepartedPeer, Process) {
        let (socket, departed, child) = peer();
        // Small, so that the system can be asked for more.
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
        while socket::send(&socket, &[wire::WAKE], None) == Ok(true) {}
        (ImportGuard::new(&socket, owed), departed, child)
    }

    #[test]
    fn a_bye_that_finds_no_room_is_said_later() {
        let owed = Arc::default();
        let (guard, mut departed, child) = full(&owed);
        drop(guard);
        owed.settle();
        assert!(owed.any.load(Ordering::Relaxed), "there is still no room");
        for _ in 0..10_000 {
            assert!(!departed.is_over(), "its peer has not said so, and holds the socket");
        }
        owed.settle();
        ends(departed);
        assert!(!owed.any.load(Ordering::Relaxed) && owed.list().as_ref().unwrap().is_empty());
        drop(child);
    }

    #[test]
    fn without_a_transport_a_bye_is_said_at_once() {
        for late in [false, true] {
            let owed = Arc::default();
            let (guard, departed, child) = full(&owed);
            if late {
                owed.close();
                drop(guard);
            } else {
                drop(guard);
                owed.close();
            }
            ends(departed);
            drop(child);
        }
    }

    #[test]
    fn nobody_owes_the_dead() {
        let owed = Arc::default();
        let (guard, departed, child) = full(&owed);
        drop((guard, departed));
        // What other tests start may hold the other end a while.
        let start = Instant::now();
        while owed.any.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(60), "the dead are forgotten");
            owed.settle();
        }
        drop(child);
    }
}
