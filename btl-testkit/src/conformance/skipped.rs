//! Which parts of the suite did not run, for people: one line a fixture, when the test program ends.
//!
//! The harness throws away what a passing test prints, so the lines go to the standard error itself, at
//! the end of the process: only then is it known which tests were asked for.

use super::child;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// By fixture, the reasons, and the tests that did not run for each.
type Skipped = BTreeMap<String, BTreeMap<String, Vec<String>>>;

static SKIPPED: Mutex<Skipped> = Mutex::new(BTreeMap::new());
static AT_EXIT: Once = Once::new();

fn skipped() -> MutexGuard<'static, Skipped> {
    SKIPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes note of a test that does not run.
pub(super) fn note(package: &str, test: &str, why: &str) {
    // A child plays a part in its parent's test.
    if child::role().is_some() {
        return;
    }
    AT_EXIT.call_once(|| {
        // SAFETY: `tell` does not unwind, and calls nothing that may not run at the end of a process.
        let registered = unsafe { libc::atexit(tell) };
        assert_eq!(registered, 0, "the system has no room for one more function at exit");
    });
    let (fixture, test) = test.rsplit_once("::").unwrap_or(("", test));
    let fixture = format!("{package} {fixture}");
    skipped().entry(fixture).or_default().entry(why.to_owned()).or_default().push(test.to_owned());
}

extern "C" fn tell() {
    // Neither a lock that somebody holds for ever nor a closed descriptor keeps the process from ending.
    let Ok(skipped) = SKIPPED.try_lock() else { return };
    let mut text = String::new();
    for (fixture, reasons) in &*skipped {
        text.push_str(&line(fixture, reasons));
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn line(fixture: &str, reasons: &BTreeMap<String, Vec<String>>) -> String {
    let count: usize = reasons.values().map(Vec::len).sum();
    let parts = reasons.iter().map(|(why, tests)| {
        let mut tests = tests.clone();
        tests.sort();
        format!("{why} ({})", tests.join(", "))
    });
    let parts: Vec<String> = parts.collect();
    format!("SKIPPED: {count} conformance tests of {fixture}: {}\n", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixture_has_one_line() {
        let tests = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let reasons = BTreeMap::from([
            ("no garbage".to_owned(), tests(&["garbage"])),
            ("no mapping".to_owned(), tests(&["revoked", "mapped"])),
        ]);
        assert_eq!(
            line("btl plain", &reasons),
            "SKIPPED: 3 conformance tests of btl plain: no garbage (garbage); no mapping (mapped, revoked)\n"
        );
    }
}
