//! Which processes are lost, and which of them have died.

use std::sync::atomic::{AtomicBool, Ordering};

/// By process.
#[derive(Debug)]
pub(crate) struct Departed {
    lost: Box<[AtomicBool]>,
    dead: Box<[AtomicBool]>,
}

impl Departed {
    /// None of so many.
    pub(crate) fn new(processes: u32) -> Departed {
        let none = || (0..processes).map(|_| AtomicBool::new(false)).collect();
        Departed { lost: none(), dead: none() }
    }

    /// Whether a process is known to be lost.
    #[inline]
    pub(crate) fn is_lost(&self, process: u32) -> bool {
        self.lost.get(process as usize).is_some_and(|lost| lost.load(Ordering::Relaxed))
    }

    /// Whether a process is known to have died: one that was given up may live.
    pub(crate) fn is_dead(&self, process: u32) -> bool {
        self.dead.get(process as usize).is_some_and(|dead| dead.load(Ordering::Relaxed))
    }

    /// A process is lost, dead or not.
    pub(crate) fn note(&self, process: u32, dead: bool) {
        if let (Some(is_lost), Some(is_dead)) =
            (self.lost.get(process as usize), self.dead.get(process as usize))
        {
            is_dead.store(dead, Ordering::Release);
            is_lost.store(true, Ordering::Release);
        }
    }

    /// As if a process had been given up, or not.
    #[cfg(test)]
    pub(crate) fn set_lost(&self, process: u32, lost: bool) {
        self.lost[process as usize].store(lost, Ordering::Release);
    }
}
