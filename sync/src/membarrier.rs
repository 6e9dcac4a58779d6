//! membarrier(2): a full memory barrier on every processor that currently runs a registered
//! process, at the expense of the caller alone.

use libc::{
    MEMBARRIER_CMD_GLOBAL_EXPEDITED as GLOBAL_EXPEDITED,
    MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as REGISTER_GLOBAL_EXPEDITED,
};
use std::sync::OnceLock;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

/// Registers this process with the kernel, once. `false` where the kernel or a filter refuses.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED
        .get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED) && membarrier(GLOBAL_EXPEDITED))
}

/// A full barrier on every processor that runs a registered process; whether it took place. After a
/// successful [`register`] the kernel knows the command, and it has no other way to fail.
#[must_use]
pub fn barrier() -> bool {
    let fenced = membarrier(GLOBAL_EXPEDITED);
    if !fenced {
        tracing::error!("membarrier(2) failed after it had been registered");
    }
    fenced
}
