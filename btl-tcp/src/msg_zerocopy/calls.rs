//! The system calls.

use crate::socket::Socket;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::mem::offset_of;

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
    set(socket, libc::SOL_SOCKET, SO_ZEROCOPY, &[1])
}

/// Sets an option of so many words; whether the system has it.
pub(super) fn set(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &[libc::c_int],
) -> bool {
    let len = libc::socklen_t::try_from(size_of_val(value)).expect("a few bytes");
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `len` bytes of `value`, which lives until it returns.
    unsafe { libc::setsockopt(fd, level, option, value.as_ptr().cast(), len) == 0 }
}

/// Sends; the system may read the bytes until its notice.
pub(super) fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Errno> {
    let zerocopy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned());
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | zerocopy)
}

/// Room for what the system says with one entry of the error queue: the error, an address, what else a user of the
/// machine has turned on.
#[repr(C, align(8))]
struct Room([u8; 512]);

/// An entry of the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEntry {
    Notice(Notice),
    /// It tells of something else, which is of no use here.
    Other,
}

/// Takes the next entry of the error queue; `None` if it is empty.
pub(super) fn entry(socket: &Socket) -> Option<CallEntry> {
    let mut room = Room([0; 512]);
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
    let notice = room.0.get(..header.msg_controllen as usize).and_then(read);
    Some(notice.map_or(CallEntry::Other, CallEntry::Notice))
}

/// Where what follows a header, or another message, begins: the system aligns to the size of a length.
const fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// The first notice among these control messages (cmsg(3)), whatever is before it.
fn read(mut control: &[u8]) -> Option<Notice> {
    loop {
        let word = |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
        let len = control.get(..size_of::<usize>())?;
        let len = usize::from_ne_bytes(len.try_into().ok()?);
        let kind = (
            word(offset_of!(libc::cmsghdr, cmsg_level))?,
            word(offset_of!(libc::cmsghdr, cmsg_type))?,
        );
        let data = control.get(aligned(size_of::<libc::cmsghdr>())..len)?;
        if matches!(kind, (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR))
            && let Some(notice) = read_error(data)
        {
            return Some(notice);
        }
        control = control.get(aligned(len)..)?;
    }
}

/// Reads an error (struct sock_extended_err). Anything but a notice is none.
fn read_error(error: &[u8]) -> Option<Notice> {
    let word = |at: usize| Some(u32::from_ne_bytes(error.get(at..at + 4)?.try_into().ok()?));
    // errno (4), origin, type, code, pad, info (4), data (4).
    let [_, _, _, _, origin, _, code, ..] = *error else { return None };
    let is_notice = word(0)? == 0 && origin == SO_EE_ORIGIN_ZEROCOPY;
    let copied = code & SO_EE_CODE_ZEROCOPY_COPIED != 0;
    is_notice.then_some(Notice { first: word(8)?, last: word(12)?, copied })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control message.
    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let head = aligned(size_of::<libc::cmsghdr>());
        let mut bytes = vec![0; aligned(head + data.len())];
        bytes[..size_of::<usize>()].copy_from_slice(&(head + data.len()).to_ne_bytes());
        for (at, word) in [
            (offset_of!(libc::cmsghdr, cmsg_level), level),
            (offset_of!(libc::cmsghdr, cmsg_type), kind),
        ] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[head..head + data.len()].copy_from_slice(data);
        bytes
    }

    /// An error of this origin, with its code; the range is 3 to 5.
    fn error(errno: u32, origin: u8, code: u8) -> Vec<u8> {
        let mut bytes = errno.to_ne_bytes().to_vec();
        bytes.extend([origin, 0, code, 0]);
        bytes.extend([3u32, 5].iter().flat_map(|word| word.to_ne_bytes()));
        // The address of the offender.
        bytes.extend([0; 16]);
        bytes
    }

    #[test]
    fn a_notice_is_found_behind_other_control_messages() {
        let notice = error(0, SO_EE_ORIGIN_ZEROCOPY, SO_EE_CODE_ZEROCOPY_COPIED);
        let right = Some(Notice { first: 3, last: 5, copied: true });
        let v4 = message(libc::SOL_IP, libc::IP_RECVERR, &notice);
        let v6 = message(libc::SOL_IPV6, libc::IPV6_RECVERR, &notice);
        // Of an odd length, and with bytes that would be a notice elsewhere.
        let time = message(libc::SOL_SOCKET, libc::SCM_TIMESTAMP, &notice[..17]);
        let icmp = message(libc::SOL_IP, libc::IP_RECVERR, &error(113, 2, 1));
        for before in [vec![], time.clone(), icmp.clone(), [time.clone(), icmp.clone()].concat()] {
            for notice in [&v4, &v6] {
                assert_eq!(read(&[&before[..], notice].concat()), right);
                assert_eq!(read(&[&before[..], notice, &time].concat()), right);
            }
            assert_eq!(read(&before), None);
        }
    }

    /// The system writes none of these; they end all the same.
    #[test]
    fn control_messages_that_are_cut_off_or_have_no_length_are_no_notice() {
        let whole = message(libc::SOL_IP, libc::IP_RECVERR, &error(0, SO_EE_ORIGIN_ZEROCOPY, 0));
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), None, "{len} bytes");
        }
        for len in [0, 1, 15, 17, 1000, usize::MAX - 3, usize::MAX] {
            let mut bytes = whole.clone();
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(read(&bytes), None, "a length of {len}");
        }
    }
}
