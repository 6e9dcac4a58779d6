//! Sockets: non-blocking, bound to 127.0.0.1, and speaking of outcomes rather than errors.

use crate::wire::HEADER_BYTES;
use gapless_btl::LinkError;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// What a socket's receive buffer is asked to hold, in bytes; the system may give less, and then
/// more is sent again.
const RECEIVE_BYTES: usize = 1 << 20;

/// What the system refused.
pub(crate) fn system(operation: &'static str) -> impl Fn(std::io::Error) -> LinkError {
    move |error| LinkError::System { operation, reason: error.to_string() }
}

pub(crate) fn local(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// What became of a datagram that was to go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    Gone,
    /// Not now.
    Busy,
    /// Nobody has the peer's port any more. Said of an earlier datagram; this one did not go out.
    Refused,
}

/// What a socket had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    /// A datagram that was so many bytes long, header included, even if it did not fit.
    Datagram { bytes: usize, from_port: u16 },
    /// Nothing.
    Empty,
    /// Nobody has the peer's port any more.
    Refused,
    /// From elsewhere than this interface: nothing of ours.
    Foreign,
}

pub(crate) struct Socket {
    socket: UdpSocket,
    port: u16,
}

impl Socket {
    pub(crate) fn bind() -> Result<Socket, LinkError> {
        let socket = UdpSocket::bind(local(0)).map_err(system("binding a UDP socket"))?;
        socket.set_nonblocking(true).map_err(system("fcntl"))?;
        // Less room means more retransmission, nothing worse.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
        let port = socket.local_addr().map_err(system("getsockname"))?.port();
        Ok(Socket { socket, port })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// From now on the kernel takes datagrams from that port alone, and says when nobody has it.
    pub(crate) fn connect(&self, port: u16) -> Result<(), LinkError> {
        self.socket.connect(local(port)).map_err(system("connecting a UDP socket"))
    }

    /// Sends to the connected peer.
    pub(crate) fn send(&self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> Send {
        let parts = [IoSlice::new(header), IoSlice::new(payload)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        loop {
            let sent =
                rustix::net::sendmsg(&self.socket, &parts, &mut control, SendFlags::DONTWAIT);
            return match sent {
                Ok(_) => Send::Gone,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => Send::Refused,
                // Anything else (no memory, a firewall) is a loss like any other.
                Err(_) => Send::Busy,
            };
        }
    }

    /// Sends to a port. Losses are the caller's to repair.
    pub(crate) fn send_to(&self, port: u16, header: &[u8; HEADER_BYTES], payload: &[u8]) {
        let mut datagram = [0; HEADER_BYTES + crate::wire::Hello::BYTES];
        let Some(room) = datagram.get_mut(HEADER_BYTES..HEADER_BYTES + payload.len()) else {
            return;
        };
        room.copy_from_slice(payload);
        datagram[..HEADER_BYTES].copy_from_slice(header);
        let _ = self.socket.send_to(&datagram[..HEADER_BYTES + payload.len()], local(port));
    }

    /// Receives a datagram: its header and its payload.
    pub(crate) fn receive(&self, header: &mut [u8; HEADER_BYTES], payload: &mut [u8]) -> Receive {
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(payload)];
        let mut control = RecvAncillaryBuffer::default();
        loop {
            let got = rustix::net::recvmsg(
                &self.socket,
                &mut parts,
                &mut control,
                // The length is that of the datagram, even if it did not fit.
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            );
            let message = match got {
                Ok(message) => message,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => return Receive::Refused,
                Err(_) => return Receive::Empty,
            };
            let from = message.address.and_then(|any| SocketAddr::try_from(any).ok());
            return match from {
                Some(from) if from.ip() == Ipv4Addr::LOCALHOST => {
                    Receive::Datagram { bytes: message.bytes, from_port: from.port() }
                }
                _ => Receive::Foreign,
            };
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
