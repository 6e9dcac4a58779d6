//! A connection of two ends that have proved themselves, plain or encrypted ([`crate::tls`]).

use crate::burst::Next;
use crate::socket::Socket;
use crate::tls::Records;
use crate::vectored;
use gapless_btl::{LinkError, ReceiveTarget, ZeroCopyMessage};
use rustix::fd::{AsFd, BorrowedFd};
use std::io::{IoSlice, IoSliceMut};

/// The connection.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    /// If it is encrypted.
    records: Option<Box<Records>>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// A plain connection.
    pub(crate) fn bare(socket: Socket) -> Connection {
        Connection { socket, records: None }
    }

    /// An encrypted connection.
    pub(crate) fn of_records(socket: Socket, records: Box<Records>) -> Connection {
        Connection { socket, records: Some(records) }
    }

    /// Its socket, for everything except reading and writing messages.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Reads into the pieces, in their order. `None`: nothing has come. 0 is the end. If it is less than there is room
    /// for and it does not [have more](Connection::has_more), all that has come was read.
    ///
    /// # Errors
    /// Why nothing more will come.
    pub(crate) fn read(
        &mut self,
        pieces: &mut [IoSliceMut<'_>],
    ) -> Result<Option<usize>, LinkError> {
        match &mut self.records {
            Some(records) => records.read(&self.socket, pieces),
            None => self.socket.read(pieces).map_err(|error| self.socket.ended(error)),
        }
    }

    /// Whether there is something to read that was taken from the socket already.
    pub(crate) fn has_more(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.has_more())
    }

    /// Writes the pieces, in their order; exactly how many bytes of them the system has taken. If some are then
    /// [sealed](Connection::sealed), the next call has to begin with the same bytes. What the system has taken may
    /// [wait](Socket::write_next) there.
    ///
    /// # Errors
    /// Why nothing more can be written.
    pub(crate) fn write(&mut self, pieces: &[IoSlice<'_>], next: Next) -> Result<usize, LinkError> {
        match &mut self.records {
            Some(records) => records.write(&self.socket, pieces, next),
            None => {
                let written = self.socket.write_next(pieces, next);
                written.map_err(|error| self.socket.ended(error))
            }
        }
    }

    /// Whether bytes pass as they are, so that they need no buffer.
    pub(crate) fn is_plain(&self) -> bool {
        self.records.is_none()
    }

    /// Writes a head and a message, of a plain connection; how many bytes there was room for.
    ///
    /// # Errors
    /// Why nothing more can be written.
    pub(crate) fn write_zero_copy(
        &mut self,
        head: &[u8],
        message: &ZeroCopyMessage<'_>,
        next: Next,
    ) -> Result<usize, LinkError> {
        let written = vectored::write(&self.socket, head, message, next);
        written.map_err(|error| self.socket.ended(error))
    }

    /// [Reads](Connection::read) the bytes of a message from `at` on to their target, and what follows into `beyond`,
    /// of a plain connection: how many bytes have come, and for how many there was room.
    ///
    /// # Errors
    /// Why nothing more will come.
    pub(crate) fn read_to(
        &mut self,
        target: &ReceiveTarget<'_>,
        at: usize,
        beyond: &mut [u8],
    ) -> Result<Option<(usize, usize)>, LinkError> {
        let read = vectored::read(&self.socket, target, at, beyond);
        read.map_err(|error| self.socket.ended(error))
    }

    /// Whether so many bytes of a plain connection can be read at once.
    pub(crate) fn has(&self, count: usize) -> bool {
        let waiting = rustix::io::ioctl_fionread(&self.socket);
        waiting.is_ok_and(|waiting| waiting >= count as u64)
    }

    /// How many bytes `write` has sealed that the system has not taken.
    pub(crate) fn sealed(&self) -> usize {
        self.records.as_ref().map_or(0, |records| records.sealed())
    }

    /// How many bytes of records were ever written.
    pub(crate) fn carried(&self) -> u64 {
        self.records.as_ref().map_or(0, |records| records.carried())
    }

    /// Tells the other end that nothing more comes from here.
    pub(crate) fn fall_silent(&mut self) {
        if let Some(records) = &mut self.records {
            records.fall_silent(&self.socket);
        }
        self.socket.fall_silent();
    }

    /// The other end has closed the connection.
    pub(crate) fn closed(&self) -> LinkError {
        self.socket.closed()
    }

    /// Changes keys after so many records.
    #[cfg(all(test, feature = "encryption"))]
    pub(crate) fn renew_after(&mut self, records: u64) {
        self.records.as_mut().expect("it is encrypted").renew_after(records);
    }
}
