//! System calls: sockets that never block, and what the system's refusals mean.

use crate::burst::Next;
use crate::system;
use gapless_btl::LinkError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Connections that may wait to be accepted; the system caps it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
/// Keep-alives in a row that remain unanswered when an idle connection is given up; fewer if the patience is short.
const PROBES: u32 = 3;

/// A connection, or one that is being made.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// The other end.
    pub(crate) at: SocketAddr,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(address: IpAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Listens at an address and the first port of a range that is free, beginning somewhere in the middle: `turn` says
/// where.
///
/// # Errors
/// No port is free, or the address is not of this host.
pub(crate) fn listen(
    address: IpAddr,
    ports: &RangeInclusive<u16>,
    turn: u32,
) -> Result<(OwnedFd, SocketAddr), LinkError> {
    let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let count = (last + 1).saturating_sub(first);
    let refused = |reason: String| system("bind", format!("{address}: {reason}"));
    if count == 0 || (first == 0 && count > 1) {
        return Err(refused(format!("{first} to {last} is no range of ports")));
    }
    for step in 0..count {
        let port = first + (turn % count + step) % count;
        let place = SocketAddr::new(address, u16::try_from(port).unwrap_or(0));
        match listen_at(place) {
            Ok(listener) => {
                let bound =
                    rustix::net::getsockname(&listener).map_err(|e| system("getsockname", e))?;
                let bound = SocketAddr::try_from(bound).map_err(|e| system("getsockname", e))?;
                return Ok((listener, bound));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(refused(error.to_string())),
        }
    }
    Err(refused(format!("all ports from {first} to {last} are in use")))
}

fn listen_at(place: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = open(place.ip())?;
    if place.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Connections of the last job that linger do not take up the range.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &place)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A caller.
#[derive(Debug)]
pub(crate) enum Accepted {
    Caller(Socket),
    /// Nobody waits.
    Nobody,
    /// This one has gone again; there may be others.
    Skipped,
    /// Out of descriptors or memory: try again later.
    Exhausted(Errno),
}

/// Takes the next caller.
pub(crate) fn accept(listener: &OwnedFd) -> Accepted {
    match rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((fd, at)) => match at.and_then(|at| SocketAddr::try_from(at).ok()) {
            Some(at) => Accepted::Caller(Socket { fd, at }),
            None => Accepted::Skipped,
        },
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
            Accepted::Exhausted(error)
        }
        // accept(2): errors of the new connection come here, too.
        Err(_) => Accepted::Skipped,
    }
}

impl Socket {
    /// A connection that was made elsewhere.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(fd: OwnedFd, at: SocketAddr) -> Socket {
        Socket { fd, at }
    }

    /// Begins to connect. The first look at [`connected`](Socket::connected) says how it went.
    ///
    /// # Errors
    /// The system refused at once.
    pub(crate) fn call(at: SocketAddr, patience: Duration) -> Result<Socket, Errno> {
        let socket = Socket { fd: open(at.ip())?, at };
        socket.be_watchful(patience)?;
        match rustix::net::connect(&socket.fd, &at) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
            Err(error) => Err(error),
        }
    }

    /// Whether the connection stands.
    ///
    /// # Errors
    /// It never will.
    pub(crate) fn connected(&self) -> Result<bool, Errno> {
        sockopt::socket_error(&self.fd)??;
        match rustix::net::getpeername(&self.fd) {
            Ok(_) => Ok(true),
            Err(Errno::NOTCONN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends at once what is written, and has the system ask the other host for a sign of life while everything is
    /// acknowledged ([`KeepAlive`]). Until [`unlimit`](Socket::unlimit) what was written must be acknowledged within
    /// the patience: while a connection is proved, it is so little that there is always room.
    pub(crate) fn be_watchful(&self, patience: Duration) -> Result<(), Errno> {
        let KeepAlive { idle_s, interval_s, probes } = KeepAlive::new(patience);
        sockopt::set_tcp_nodelay(&self.fd, true)?;
        sockopt::set_tcp_keepidle(&self.fd, Duration::from_secs(idle_s))?;
        sockopt::set_tcp_keepintvl(&self.fd, Duration::from_secs(interval_s))?;
        sockopt::set_tcp_keepcnt(&self.fd, probes)?;
        sockopt::set_socket_keepalive(&self.fd, true)?;
        let ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&self.fd, ms)
    }

    /// From now on the other host may have no room for as long as its process is busy. (The system's limit counts that
    /// time, too; so [`crate::silence`] has to do its work.)
    pub(crate) fn unlimit(&self) -> Result<(), Errno> {
        sockopt::set_tcp_user_timeout(&self.fd, 0)
    }

    /// Reads into the pieces, in their order. `None`: nothing has come. 0 is the end.
    pub(crate) fn read(&self, pieces: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Errno> {
        match rustix::io::readv(&self.fd, pieces) {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads no more than what is missing of something short; likewise.
    pub(crate) fn read_exact(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        match rustix::net::recv(&self.fd, into, RecvFlags::DONTWAIT) {
            Ok((_, count)) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the pieces, in their order; how many bytes there was room for.
    pub(crate) fn write(&self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.write_next(pieces, Next::Leaves)
    }

    /// The same, where they may wait: until something is written that does not, or for a [`push`](Socket::push); or
    /// until the other host has acknowledged all that has left, but at most 200 ms.
    pub(crate) fn write_next(&self, pieces: &[IoSlice<'_>], next: Next) -> Result<usize, Errno> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, next == Next::Waits);
        let mut nothing = SendAncillaryBuffer::default();
        match rustix::net::sendmsg(&self.fd, pieces, &mut nothing, flags) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// What waits leaves: that is what the system does if it is told not to wait.
    pub(crate) fn push(&self) {
        // Fails if the connection has ended, which reading tells.
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
    }

    /// Tells the other end that nothing more comes from here.
    pub(crate) fn fall_silent(&self) {
        // Fails if the other end was faster.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Ends the connection, and has the system throw away what has not left, and what was not acknowledged.
    pub(crate) fn throw_away(&self) {
        // Fails if it has ended already.
        let _ = rustix::net::connect_unspec(&self.fd);
    }

    /// What the end of the connection says about the peer.
    pub(crate) fn ended(&self, error: Errno) -> LinkError {
        let at = self.at;
        if is_silence(error) {
            return LinkError::Unreachable { reason: format!("{at}: {error}") };
        }
        LinkError::PeerGone { reason: format!("{at}: {error}") }
    }

    /// The other end has closed the connection.
    pub(crate) fn closed(&self) -> LinkError {
        LinkError::PeerGone { reason: format!("{} closed the connection", self.at) }
    }
}

/// How the system watches over an idle connection. It counts in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeepAlive {
    idle_s: u64,
    interval_s: u64,
    probes: u32,
}

impl KeepAlive {
    /// A connection whose other end falls silent ends within twice the patience, if that is 3 s or more.
    fn new(patience: Duration) -> KeepAlive {
        let all_s = (2 * patience).as_secs();
        let interval_s = (patience / PROBES).as_secs().max(1);
        let probes = if all_s > u64::from(PROBES) { PROBES } else { PROBES - 1 };
        let rest_s = all_s.saturating_sub(interval_s * u64::from(probes));
        KeepAlive { idle_s: rest_s.min(patience.as_secs()).max(1), interval_s, probes }
    }
}

/// Whether an error says that the other host, or the way to it, is gone; all others come from the other host. A route
/// that leads nowhere is an invalid argument to Linux (`blackhole`), or not allowed (`prohibit`).
pub(crate) fn is_silence(error: Errno) -> bool {
    matches!(
        error,
        Errno::TIMEDOUT
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::NETRESET
            | Errno::INVAL
            | Errno::ACCESS
    )
}

/// Whether an error is this process's own: it may pass.
pub(crate) fn is_ours(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE
            | Errno::NFILE
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::ADDRNOTAVAIL
            | Errno::AGAIN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alives_end_within_twice_the_patience() {
        for notice_ms in (5_000..20_000).step_by(100).chain([60_000, 3_600_000]) {
            let patience = Duration::from_millis(notice_ms) / 3;
            let KeepAlive { idle_s, interval_s, probes } = KeepAlive::new(patience);
            let all = Duration::from_secs(idle_s + interval_s * u64::from(probes));
            assert!(all <= 2 * patience, "{all:?} for {patience:?}");
            assert!(idle_s >= 1 && interval_s >= 1 && probes >= 2, "one lost packet is no loss");
        }
    }
}
