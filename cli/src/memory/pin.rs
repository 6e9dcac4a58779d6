//! Running on one processor, so that no figure contains a migration.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps the calling thread on one processor; what it may use before is restored when dropped.
/// Processes started meanwhile inherit the restriction.
#[derive(Debug)]
pub struct Pinned {
    before: Option<CpuSet>,
    processor: Option<usize>,
}

impl Pinned {
    /// Moves the calling thread to the `nth` processor that it may use, counted from the last one
    /// (the first serves more interrupts) and wrapping around. Where the system does not let a
    /// thread choose, nothing happens.
    #[must_use]
    pub fn to(nth: usize) -> Pinned {
        let unpinned = Pinned { before: None, processor: None };
        let Ok(before) = sched_getaffinity(None) else { return unpinned };
        let allowed: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&processor| before.is_set(processor)).collect();
        if allowed.is_empty() {
            return unpinned;
        }
        let processor = allowed[allowed.len() - 1 - nth % allowed.len()];
        let mut only = CpuSet::new();
        only.set(processor);
        match sched_setaffinity(None, &only) {
            Ok(()) => Pinned { before: Some(before), processor: Some(processor) },
            Err(_) => unpinned,
        }
    }

    /// The processor, by the system's number; `None` if the thread may move.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        self.processor
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // What was allowed before is allowed now, unless somebody changed it: then so be it.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<bool> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).map(|processor| set.is_set(processor)).collect()
    }

    #[test]
    fn pins_to_one_and_restores() {
        let before = allowed();
        for nth in [0, 1, 1000] {
            let pinned = Pinned::to(nth);
            if let Some(processor) = pinned.processor() {
                assert!(before[processor]);
                let now = allowed();
                assert_eq!(now.iter().filter(|&&set| set).count(), 1);
                assert!(now[processor]);
            }
            drop(pinned);
            assert_eq!(allowed(), before);
        }
    }
}
