//! What the system knows about the other end of a connection: whether it has acknowledged everything, when it was last
//! heard, and how often it has not answered (`TCP_INFO`).

use crate::socket::Socket;
use rustix::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// 32-bit words of `struct tcp_info` (linux/tcp.h) that are asked for. Fields of it never move; new ones are appended.
const WORDS: usize = 40;
/// Of the bytes of the first word: how often the oldest data was sent again since something new was acknowledged.
const RETRANSMITS: usize = 2;
/// Likewise: probes of a full window, or keep-alives, since anything was acknowledged.
const PROBES: usize = 3;
/// Segments that left and are not acknowledged.
const UNACKED: usize = 6;
/// Milliseconds since data came.
const LAST_DATA_RECEIVED: usize = 13;
/// Milliseconds since an acknowledgement came, also one that acknowledges nothing new.
const LAST_ACK_RECEIVED: usize = 14;
/// Bytes that have not left.
const NOT_SENT: usize = 36;

/// What a connection shows of the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    /// All that was written has been acknowledged. As long as it is not, the system sends no keep-alives.
    pub(crate) acknowledged: bool,
    /// For how long nothing at all has come.
    pub(crate) silent_for: Duration,
    /// So often the system has sent the same again, or a probe, and nothing new was acknowledged.
    pub(crate) unanswered: u8,
}

/// Asks the system; `None` if it does not say.
pub(crate) fn sign(socket: &Socket) -> Option<Sign> {
    let mut words = [0u32; WORDS];
    let mut len = libc::socklen_t::try_from(size_of_val(&words)).expect("160 bytes");
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to the words, and the length to `len`; both live until it returns.
    let failed = unsafe {
        let into = words.as_mut_ptr().cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut len)
    };
    let whole = usize::try_from(len).is_ok_and(|len| len >= 4 * (NOT_SENT + 1));
    if failed != 0 || !whole {
        return None;
    }
    let first = words[0].to_ne_bytes();
    let silent_ms = words[LAST_DATA_RECEIVED].min(words[LAST_ACK_RECEIVED]);
    Some(Sign {
        acknowledged: words[UNACKED] == 0 && words[NOT_SENT] == 0,
        silent_for: Duration::from_millis(silent_ms.into()),
        unanswered: first[RETRANSMITS].max(first[PROBES]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{IoSlice, Read};
    use std::net::TcpListener;

    #[test]
    fn what_is_not_read_is_acknowledged_only_as_far_as_there_is_room() {
        let begin = std::time::Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let patience = Duration::from_secs(4);
        let socket = Socket::call(listener.local_addr().unwrap(), patience).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        // It may be stopped for longer than the system's patience with a full window.
        socket.unlimit().unwrap();
        let wait_until = |acknowledged: bool| {
            let patience = crate::tests::Patience::new();
            while sign(&socket).unwrap().acknowledged != acknowledged {
                patience.tick("an acknowledgement");
            }
        };
        wait_until(true);
        assert_eq!(socket.write(&[IoSlice::new(b"a few")]), Ok(5));
        wait_until(true);
        let long = vec![0; 1 << 16];
        let mut written = 0;
        loop {
            match socket.write(&[IoSlice::new(&long)]).unwrap() {
                0 => break,
                count => written += count,
            }
        }
        wait_until(false);
        other.read_exact(&mut vec![0; 5 + written]).unwrap();
        wait_until(true);
        // It answered since the test began; the system's clock is coarse.
        let silent_for = sign(&socket).unwrap().silent_for;
        assert!(silent_for <= begin.elapsed() + Duration::from_secs(1), "{silent_for:?}");
    }
}
