//! Verbs, as far as they are used here, behind types that free themselves in the right order.
//!
//! - [`library`]: the entry points of `libibverbs`, looked up when first needed;
//! - [`flags`]: access and capabilities as sets;
//! - [`device`]: devices, their ports and addresses; an open device;
//! - [`memory`]: protection domain, memory regions, memory of ours that is registered;
//! - [`queues`]: completion queue and its channel, shared receive queue;
//! - [`pair`]: queue pairs, a type for every state;
//! - [`datagram`]: the queue pair and the addresses of datagrams.
//!
//! An object keeps what it was made of by an `Arc`, and is destroyed before it lets go: a queue pair before its
//! completion queue, that before its channel, all before the device is closed. Verbs may be called from any thread;
//! exceptions stand where a type is made `Send` or `Sync`.

pub(crate) mod datagram;
pub(crate) mod device;
pub(crate) mod flags;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod pair;
pub(crate) mod queues;

use gapless_btl::LinkError;
use std::io::Error;

/// What a verb says that ends something. Of a device that was taken out nothing is left: the kernel has ended everything
/// by itself, and says `EIO` from then on.
///
/// # Errors
/// It has not ended: the error's number.
pub(crate) fn over(errno: i32) -> Result<(), i32> {
    if errno == 0 || errno.abs() == libc::EIO { Ok(()) } else { Err(errno) }
}

/// What the system said last in this thread, as an error of the link.
pub(crate) fn refused(operation: &'static str) -> LinkError {
    refused_with(operation, &Error::last_os_error())
}

/// As [`refused`], of a call that gives the error's number.
pub(crate) fn refused_as(operation: &'static str, errno: i32) -> LinkError {
    refused_with(operation, &Error::from_raw_os_error(errno.abs()))
}

fn refused_with(operation: &'static str, error: &Error) -> LinkError {
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => " (the limit of locked memory, `ulimit -l`, may be too low)",
        Some(libc::EMFILE) => " (the limit of open files, `ulimit -n`)",
        _ => "",
    };
    LinkError::System { operation, reason: format!("{error}{hint}") }
}

#[cfg(test)]
mod tests {
    use super::over;

    #[test]
    fn a_device_that_was_taken_out_holds_nothing() {
        assert_eq!([over(0), over(libc::EIO), over(-libc::EIO)], [Ok(()); 3]);
        assert_eq!(over(libc::EBUSY), Err(libc::EBUSY));
    }
}
