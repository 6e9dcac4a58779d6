//! The meeting place: an abstract Unix socket per process, and what travels through it besides the
//! rings: greetings, descriptors, wake-ups, and the end-of-file that tells of a death.
//!
//! Each process connects to each peer's listener, so that a pair has two sockets, each used in one
//! direction, and nobody has to decide who calls whom. Packets keep their boundaries
//! (`SOCK_SEQPACKET`), nothing ever blocks, and all descriptors close on exec.

use crate::suspect::Suspect;
use crate::system;
use gapless_btl::LinkError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Deref;

/// As many descriptors can come along with a packet (the kernel's bound). There is room for all, because the
/// kernel itself closes those without.
const DESCRIPTORS_MAX: usize = 253;
/// Connections that may wait to be accepted; the system caps it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// A connected socket. What is left in its queue goes before it does: the system would close descriptors that
/// are in there, here and now, and some of those hold up whoever does that.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

#[cfg(test)]
impl Socket {
    pub(crate) fn new(socket: OwnedFd) -> Socket {
        Socket(socket)
    }
}

impl Deref for Socket {
    type Target = OwnedFd;

    #[inline]
    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // From now on nothing can be sent to it, and so its queue has an end.
        hang_up(&self.0);
        while has_packet(&self.0) {
            let _ = receive(&self.0, &mut [0; 1]);
        }
    }
}

/// Whether there is a packet in the queue, perhaps of no bytes: those are received like an end.
fn has_packet(socket: &OwnedFd) -> bool {
    // Then each packet brings its sender's credentials, for which there is no room, and an end does not.
    let _ = sockopt::set_socket_passcred(socket, true);
    let mut control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut byte = [0; 1];
    let found =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
    let _ = sockopt::set_socket_passcred(socket, false);
    match found {
        Ok(message) => message.bytes > 0 || message.flags.contains(ReturnFlags::CTRUNC),
        // Told once, before what is in the queue.
        Err(error) => error == Errno::CONNRESET,
    }
}

fn open() -> Result<OwnedFd, LinkError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| system("socket", e))
}

fn place(name: &str) -> Result<SocketAddrUnix, LinkError> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| system("socket address", e))
}

/// Listens under an abstract name.
///
/// # Errors
/// The system refused.
pub(crate) fn listen(name: &str) -> Result<OwnedFd, LinkError> {
    let socket = open()?;
    rustix::net::bind(&socket, &place(name)?).map_err(|e| system("bind", e))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| system("listen", e))?;
    Ok(socket)
}

/// Calls a listener. `None`: its queue is full, try again later.
///
/// # Errors
/// Nobody listens, or the system refused.
pub(crate) fn call(name: &str) -> Result<Option<Socket>, LinkError> {
    let socket = open()?;
    match rustix::net::connect(&socket, &place(name)?) {
        Ok(()) => Ok(Some(Socket(socket))),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(Errno::CONNREFUSED) => {
            Err(LinkError::PeerGone { reason: "nobody listens at its address any more".to_owned() })
        }
        Err(error) => Err(system("connect", error)),
    }
}

/// A caller.
#[derive(Debug)]
pub(crate) enum Accepted {
    Caller(Socket),
    /// Nobody waits.
    Nobody,
    /// This one could not be taken; there may be others.
    Skipped,
    /// Out of descriptors or memory: try again later.
    Exhausted(Errno),
    /// The system lets this process take none, ever.
    Refused(LinkError),
}

/// Takes the next caller.
pub(crate) fn accept(listener: &OwnedFd) -> Accepted {
    match rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok(socket) => Accepted::Caller(Socket(socket)),
        Err(Errno::AGAIN) => Accepted::Nobody,
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
            Accepted::Exhausted(error)
        }
        Err(Errno::INTR | Errno::CONNABORTED) => Accepted::Skipped,
        // A filter of system calls, or one of the security modules.
        Err(error) => Accepted::Refused(system("accept4", error)),
    }
}

/// Sends a packet, with a descriptor or without. `Ok(false)`: no room now.
///
/// # Errors
/// The other end is gone, or the system refused.
pub(crate) fn send(
    socket: &OwnedFd,
    packet: &[u8],
    descriptor: Option<&OwnedFd>,
) -> Result<bool, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd.as_fd()]);
    if let Some(descriptors) = &descriptors {
        let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(pushed, "the space was made for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
        Err(error @ (Errno::PIPE | Errno::CONNRESET)) => {
            Err(LinkError::PeerGone { reason: format!("sending to it: {error}") })
        }
        Err(error) => Err(system("sendmsg", error)),
    }
}

/// What came through a socket.
#[derive(Debug)]
pub(crate) enum Received {
    /// This many bytes, and a descriptor if one came along.
    Packet(usize, Option<Suspect>),
    /// This many bytes, and a descriptor that this process had no room for.
    Robbed(usize),
    /// Nothing now.
    Nothing,
    /// End of file.
    End,
}

/// Takes the next packet, cut to `into`'s length.
///
/// # Errors
/// More descriptors came along than a packet has; the system refused.
pub(crate) fn receive(socket: &OwnedFd, into: &mut [u8]) -> Result<Received, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message =
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(system("recvmsg", error)),
        };
    let mut descriptor = None;
    let mut count = 0u32;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = ancillary {
            for one in descriptors {
                descriptor = Some(Suspect::new(one));
                count += 1;
            }
        }
    }
    if message.bytes == 0 {
        return Ok(Received::End);
    }
    if count > 1 {
        return Err(LinkError::Corrupt { what: format!("a packet with {count} descriptors") });
    }
    if descriptor.is_none() && message.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Robbed(message.bytes));
    }
    Ok(Received::Packet(message.bytes, descriptor))
}

/// Whether `file` leaves enough descriptors for others: a quarter of what this process may open is kept
/// for peers that are still to be met, and for the program itself.
pub(crate) fn can_be_spared(file: &OwnedFd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // Numbers are given out from below.
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    limit.is_none_or(|limit| number < limit - limit / 4)
}

/// Tells the other end that nothing more comes from here, and goes on listening.
pub(crate) fn fall_silent(socket: &OwnedFd) {
    // Fails if the other end was faster.
    let _ = rustix::net::shutdown(socket, Shutdown::Write);
}

/// Tells the other end that it is over, whoever else still holds the socket.
pub(crate) fn hang_up(socket: &OwnedFd) {
    // Fails if the other end was faster.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Asks the system for room for more packets: twice what there was, within its bounds.
pub(crate) fn make_room(socket: &OwnedFd) {
    if let Ok(bytes) = sockopt::socket_send_buffer_size(socket) {
        // The system doubles what it is told.
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}
