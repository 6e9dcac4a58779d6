//! The system calls.

use crate::socket::Socket;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::net::SendFlags;

// linux/errqueue.h
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
/// asm-generic/socket.h, which all but a few architectures follow.
const SO_ZEROCOPY: libc::c_int = 60;

/// The system has done with a range of sends, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) first: u32,
    pub(super) last: u32,
    /// It has copied after all.
    pub(super) copied: bool,
}

/// Asks for sends without a copy; whether the system can.
pub(super) fn allow(socket: &Socket) -> bool {
    // Those that number options in their own way.
    if libc::SO_KEEPALIVE != 9 {
        return false;
    }
    set(socket, libc::SOL_SOCKET, SO_ZEROCOPY, 1)
}

/// Sets an option that is a number; whether the system has it.
pub(super) fn set(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> bool {
    let len = libc::socklen_t::try_from(size_of_val(&value)).expect("4 bytes");
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `len` bytes of `value`, which lives until it returns.
    unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) == 0 }
}

/// Sends; the system may read the bytes until its notice.
pub(super) fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    let zerocopy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned());
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | zerocopy)
}

/// Room for what the system says about one notice: a header, the error, an address.
#[repr(C, align(8))]
struct Room([u8; 128]);

/// The next notice; `None` if there is none.
pub(super) fn notice(socket: &Socket) -> Option<Notice> {
    let mut room = Room([0; 128]);
    // SAFETY: all zeros are a valid header: no address, no pieces, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_control = room.0.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&room) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `msg_controllen` bytes to the room, and the header; both live until it returns.
    if unsafe { libc::recvmsg(fd, &raw mut header, flags) } < 0 {
        return None;
    }
    room.0.get(..header.msg_controllen as usize).and_then(read)
}

/// Reads the one control message there is, of which the error comes first. Anything but a notice is none.
fn read(control: &[u8]) -> Option<Notice> {
    let error = control.get(size_of::<libc::cmsghdr>()..)?;
    let word = |at: usize| Some(u32::from_ne_bytes(error.get(at..at + 4)?.try_into().ok()?));
    // struct sock_extended_err: errno (4), origin, type, code, pad, info (4), data (4).
    let [_, _, _, _, origin, _, code, ..] = *error else { return None };
    let is_notice = word(0)? == 0 && origin == SO_EE_ORIGIN_ZEROCOPY;
    let copied = code & SO_EE_CODE_ZEROCOPY_COPIED != 0;
    is_notice.then_some(Notice { first: word(8)?, last: word(12)?, copied })
}
