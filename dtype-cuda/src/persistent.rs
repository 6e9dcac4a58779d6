//! A persistent kernel stays on a device for a while, and runs what its host gives it, without a launch and in that order
//! (`gapless-kernels`, `persistent`): the copy worker, and the one of a stream's communicator. This file has its ring
//! and its lives; what starts a life is the vendor's.
//!
//! It stays until nothing has come for a while. What finds it away goes by a launch, and starts it for what follows: it
//! changes nothing but how long things take.
//!
//! **Nothing is lost.** A life's last word is `AWAY`. Then it fences, and looks once more for commands. Whoever gives
//! it a command fences, and reads the state: if that is `AWAY`, the next life is started, which begins where the last
//! one ended. Where commands may wait for other processes, who asks for the command's end does that, when the life is
//! over: one that waits behind it would keep work of other streams waiting, as far as they share a hardware queue.
//!
//! loom explores the hand-over as it is here (`model.rs`).

mod hand_over;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub(crate) use hand_over::{Lives, PersistentKernel};

/// What the hand-over is made of. Its model has loom's, and a ring of a few words.
mod primitive {
    pub(super) use gapless_kernels::persistent::{Command, ENDED, SLOTS, STATE, slot};
    pub(super) use gapless_mem::Words;
    pub(super) use std::sync::atomic::{AtomicU64, fence};
    pub(super) use std::sync::{Mutex, MutexGuard};
    pub(super) use std::thread::yield_now;

    /// Questions for the end of a command between two whether the kernel lives.
    pub(super) const ASKS: u32 = 512;
}
