//! What this thread is in: waits that would be for itself are refused, not begun.

use std::cell::Cell;
use std::ptr::null;

thread_local! {
    /// The end whose task this thread runs.
    static RUNS: Cell<*const ()> = const { Cell::new(null()) };
    /// How many target buffers this thread has taken, but for those of tasks.
    static HOLDS: Cell<u32> = const { Cell::new(0) };
}

/// This thread runs a task until this is dropped.
#[must_use]
pub(crate) struct Running(*const ());

impl Running {
    /// A task of this end's.
    pub(crate) fn of<T>(end: *const T) -> Running {
        Running(RUNS.replace(end.cast()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNS.set(self.0);
    }
}

/// Whether this thread runs a task of this end's.
pub(crate) fn runs<T>(end: *const T) -> bool {
    RUNS.get() == end.cast()
}

/// This thread has a target buffer until this is dropped.
#[must_use]
pub(crate) struct Holding(());

impl Holding {
    pub(crate) fn one() -> Holding {
        HOLDS.set(HOLDS.get() + 1);
        Holding(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        HOLDS.set(HOLDS.get() - 1);
    }
}

/// Whether this thread has target buffers.
pub(crate) fn holds() -> bool {
    HOLDS.get() > 0
}
