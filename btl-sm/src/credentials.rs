//! SO_PEERCRED: who is at the other end of a socket, as the kernel vouches.
//!
//! Read through libc because the process number is 0 for a peer in a foreign process-id namespace,
//! which wrappers that promise a positive number cannot hold.

use crate::system;
use gapless_btl::LinkError;
use rustix::fd::{AsRawFd, OwnedFd};

/// The peer's process number in our namespace (0 if it has none there), once it is sure that it runs
/// as our user.
///
/// # Errors
/// Another user's process, or the system refused.
pub(crate) fn check_peer(socket: &OwnedFd) -> Result<i32, LinkError> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len: libc::socklen_t = const {
        assert!(size_of::<libc::ucred>() == 12);
        12
    };
    // SAFETY: `peer` is valid for writes of `len` bytes, and `len` for reads and writes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(system("SO_PEERCRED", std::io::Error::last_os_error()));
    }
    let own = rustix::process::geteuid().as_raw();
    if peer.uid != own {
        return Err(LinkError::Unreachable {
            reason: format!("it runs as user {}, not {own}", peer.uid),
        });
    }
    Ok(peer.pid)
}
