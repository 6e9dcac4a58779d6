//! Programs of one device are built apart from those of others, on drivers of the host's processor.
//!
//! PoCL keeps one list of loaded kernels for a process. It finds a kernel there by program, work-group size **and** grid
//! when a launch begins, but by program and work-group size alone when it ends. So if two devices of a process launch the
//! same kernel at once, and the second with a larger grid than any before, the end of one is counted as that of the other,
//! and PoCL aborts the process (`pocl_release_dlhandle_cache`; seen with PoCL 3.1 and 5.0). Launches of one device, whose
//! queue is in order, follow each other, so they are safe. So each device that is open has a number, as small as possible,
//! and defines it when it builds a program: that makes it another program to PoCL. What is built so stays in PoCL's cache on
//! disk, for the next process as well.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Which numbers are taken.
static TAKEN: Mutex<Vec<bool>> = Mutex::new(Vec::new());

fn taken() -> MutexGuard<'static, Vec<bool>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that no other open device of this process has. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Number(usize);

impl Number {
    /// The smallest that is free.
    pub(crate) fn take() -> Number {
        let mut taken = taken();
        let number = taken.iter().position(|taken| !taken).unwrap_or(taken.len());
        match taken.get_mut(number) {
            Some(place) => *place = true,
            None => taken.push(true),
        }
        Number(number)
    }

    /// Options with which a program is built: these, and the number.
    pub(crate) fn options(&self, options: &str) -> String {
        format!("{options} -D GAPLESS_OPEN_DEVICE={}", self.0)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(place) = taken().get_mut(self.0) {
            *place = false;
        }
    }
}
