//! What cannot be taken back ends the process, with one line; what can is waited for, whatever unwinds.

use gapless_mem::{Completion, DeviceError, Outstanding, Pending, abort_on_unwind};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the part that this process is to play.
const PART: &str = "GAPLESS_ABORT_PART";

/// Work that ends after so many polls; if `panics`, every poll panics.
struct Work {
    left: AtomicU32,
    panics: bool,
}

impl Work {
    fn new(left: u32, panics: bool) -> Arc<Work> {
        Arc::new(Work { left: AtomicU32::new(left), panics })
    }
}

// SAFETY: there is no work behind it that would touch memory; once none are left it says so for ever.
unsafe impl Pending for Work {
    fn poll(&self) -> Result<bool, DeviceError> {
        assert!(!self.panics, "nobody can tell");
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(left == 0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn what_cannot_be_waited_for_ends_the_process_with_one_line() {
    match std::env::var(PART).as_deref() {
        Ok("drain") => Completion::Pending(Work::new(0, true)).drain(),
        Ok("outstanding") => drop(Outstanding::new(Completion::Pending(Work::new(0, true)))),
        Ok("unwind") => abort_on_unwind("what was started is half done", || panic!("no")),
        _ => {}
    }
    if std::env::var_os(PART).is_some() {
        // Still here.
        std::process::exit(0);
    }
    for (part, line) in [
        ("drain", "gapless: work on memory that is taken back cannot be waited for"),
        ("outstanding", "gapless: work on memory that is taken back cannot be waited for"),
        ("unwind", "gapless: what was started is half done"),
    ] {
        let test = "what_cannot_be_waited_for_ends_the_process_with_one_line";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), None, "{part}: a signal ends it: {said}");
        let ours: Vec<_> = said.lines().filter(|line| line.starts_with("gapless:")).collect();
        assert_eq!(ours, [line], "{part}: {said}");
    }
}

#[test]
fn work_is_waited_for_if_what_comes_next_panics() {
    let work = Work::new(5, false);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let started = Outstanding::new(Completion::Pending(Arc::clone(&work) as _));
        assert!(!started.work().poll().unwrap());
        panic!("in the next call");
    }));
    assert!(panicked.is_err());
    assert_eq!(work.left.load(Ordering::Relaxed), 0, "it was waited for");
    // Handed on, it is the next one's.
    let work = Work::new(5, false);
    let handed = Outstanding::new(Completion::Pending(Arc::clone(&work) as _)).hand_on();
    assert_eq!(work.left.load(Ordering::Relaxed), 5);
    handed.drain();
    assert_eq!(work.left.load(Ordering::Relaxed), 0);
    assert_eq!(abort_on_unwind("never", || 7), 7);
}
