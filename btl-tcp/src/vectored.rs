//! System calls on pieces of callers' memory (`sendmsg`, `readv`): a message leaves from where it
//! [lies](ZeroCopyMessage), or is read into its [target](ReceiveTarget). What is short, or encrypted, goes through
//! buffers.

use crate::burst::Next;
use crate::socket::Socket;
use gapless_btl::{ReceiveTarget, ZeroCopyMessage, parts};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;

/// Pieces of one call.
const PIECES: usize = 64;
/// Pieces that a message may lie in.
pub(crate) const PIECES_MAX: usize = PIECES - 2;

/// Pieces for a call.
struct Pieces {
    list: [libc::iovec; PIECES],
    count: usize,
}

impl Pieces {
    fn new() -> Pieces {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Pieces { list: [none; PIECES], count: 0 }
    }

    /// Appends a piece; whether there was room.
    fn push(&mut self, start: *mut u8, len: usize) -> bool {
        let Some(piece) = self.list.get_mut(self.count) else { return false };
        *piece = libc::iovec { iov_base: start.cast(), iov_len: len };
        self.count += 1;
        true
    }

    /// For how many bytes there is room.
    fn bytes(&self) -> usize {
        self.list[..self.count].iter().map(|piece| piece.iov_len).sum()
    }

    /// Appends what is left of `body` behind its first `skip` bytes, as far as there is room for it and one more;
    /// whether that was all.
    fn push_all(&mut self, body: &[gapless_mem::Region], skip: usize, len: usize) -> bool {
        for part in parts(body, skip, len) {
            let start = part.as_ptr().expect("the CPU may touch a message's body");
            let len = usize::try_from(part.len()).expect("it was counted");
            if self.count + 1 == PIECES || !self.push(start, len) {
                return false;
            }
        }
        true
    }
}

fn errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(code.unwrap_or(libc::EIO))
}

/// Writes `head` and a message of at most [`PIECES_MAX`] pieces; how many bytes there was room for.
pub(crate) fn write(
    socket: &Socket,
    head: &[u8],
    message: &ZeroCopyMessage<'_>,
    next: Next,
) -> Result<usize, Errno> {
    let mut pieces = Pieces::new();
    for start in [head, message.head()] {
        pieces.push(start.as_ptr().cast_mut(), start.len());
    }
    pieces.push_all(message.body(), 0, message.len());
    let wait = if next == Next::Waits { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | wait;
    // SAFETY: all zeros are a valid header: no address, no pieces, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.list.as_mut_ptr();
    header.msg_iovlen = pieces.count;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the pieces until it returns. They are the two slices, and memory that is valid for reads
    // as long as `message` is borrowed.
    let written = unsafe { libc::sendmsg(fd, &raw const header, flags) };
    match usize::try_from(written) {
        Ok(count) => Ok(count),
        Err(_) => match errno() {
            Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM => Ok(0),
            error => Err(error),
        },
    }
}

/// Reads the bytes of a message from `at` on to their target, and what follows into `beyond`: how many bytes have come,
/// and for how many there was room. `None`: nothing has come. 0 is the end.
pub(crate) fn read(
    socket: &Socket,
    target: &ReceiveTarget<'_>,
    at: usize,
    beyond: &mut [u8],
) -> Result<Option<(usize, usize)>, Errno> {
    let mut pieces = Pieces::new();
    if pieces.push_all(target.body(), at.saturating_sub(target.skip()), target.len()) {
        pieces.push(beyond.as_mut_ptr(), beyond.len());
    }
    let fd = socket.as_fd().as_raw_fd();
    let count = libc::c_int::try_from(pieces.count).expect("a few pieces");
    // SAFETY: the kernel writes the pieces until it returns. They are memory that is valid for writes, and nobody
    // else's, as long as `target` is borrowed, and the slice.
    let read = unsafe { libc::readv(fd, pieces.list.as_ptr(), count) };
    match usize::try_from(read) {
        Ok(count) => Ok(Some((count, pieces.bytes()))),
        Err(_) => match errno() {
            Errno::AGAIN | Errno::INTR | Errno::NOMEM => Ok(None),
            error => Err(error),
        },
    }
}
