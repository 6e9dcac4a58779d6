//! The environment that tells where drivers are, kept whole for the processes that this one starts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::OnceLock;

/// Where a loader of OpenCL (ocl-icd) is told of drivers. It cuts the text up where it lies, so that processes which are
/// started later would find the first driver alone.
const CUT_UP: &str = "OCL_ICD_FILENAMES";

static WHOLE: OnceLock<OsString> = OnceLock::new();

/// Notes what loaders of drivers change in this process's environment, so that processes which [`Launch`](super::Launch)
/// and [`watch`](super::watch) start get it whole. Programs that start others call it before they look for devices.
pub fn remember_environment() {
    if let Some(whole) = std::env::var_os(CUT_UP) {
        WHOLE.get_or_init(|| whole);
    }
}

/// Gives a command the text that was noted, if a loader has cut it up since.
pub(super) fn keep_whole(command: &mut Command) {
    let now = std::env::var_os(CUT_UP);
    if let (Some(whole), Some(now)) = (WHOLE.get(), now)
        && is_cut(now.as_bytes(), whole.as_bytes())
    {
        command.env(CUT_UP, whole);
    }
}

/// Whether `now` is the beginning of a list of which the rest is missing.
fn is_cut(now: &[u8], whole: &[u8]) -> bool {
    whole.strip_prefix(now).is_some_and(|rest| rest.first() == Some(&b':'))
}

#[cfg(test)]
mod tests {
    use super::is_cut;

    #[test]
    fn a_list_that_ends_at_a_colon_was_cut() {
        assert!(is_cut(b"a.so", b"a.so:b.so"));
        assert!(!is_cut(b"a.so:b.so", b"a.so:b.so"));
        assert!(!is_cut(b"a.s", b"a.so:b.so"));
        assert!(!is_cut(b"c.so", b"a.so:b.so"), "the program has set it anew");
    }
}
