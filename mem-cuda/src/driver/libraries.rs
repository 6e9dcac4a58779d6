//! Whether the process has loaded a library since the driver's was looked for, in one load: the linker appends to its list,
//! so that what was the last one has no successor.
//!
//! The last one is kept loaded, once it was noted, so that its entry stays.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `struct link_map` of <link.h>, as far as it is public.
#[repr(C)]
pub(super) struct LinkMap {
    address: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: AtomicPtr<LinkMap>,
}

/// The last library of the list when one that was looked for was not in it; null before.
pub(super) struct AbsentUpTo(AtomicPtr<LinkMap>);

impl AbsentUpTo {
    pub(super) const fn nothing() -> AbsentUpTo {
        AbsentUpTo(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Whether a library was looked for in vain, and none was loaded since.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        // SAFETY: it is null, or an entry of a library that `note` keeps loaded; the linker changes `next` alone.
        let last = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        last.is_some_and(|last| last.next.load(Ordering::Relaxed).is_null())
    }

    /// A library was looked for after `last` was found, and is not loaded.
    pub(super) fn note(&self, last: Option<Kept>) {
        let Some(kept) = last else { return };
        if self.0.swap(kept.entry, Ordering::AcqRel) == kept.entry {
            // It is kept already. Otherwise one more library stays loaded: there are not more of these than libraries.
            kept.let_go();
        }
    }
}

/// A reference to a loaded library, and its entry.
pub(super) struct Kept {
    handle: *mut c_void,
    entry: *mut LinkMap,
}

/// The last library of the list, kept loaded. `None`: the linker does not tell.
pub(super) fn last() -> Option<Kept> {
    let name = last_name()?;
    let name = if name.is_empty() { std::ptr::null() } else { name.as_ptr() };
    // SAFETY: the name is a C string, or null for the program itself; nothing is loaded, and no code runs.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    let mut entry: *mut LinkMap = std::ptr::null_mut();
    // SAFETY: the handle is of a loaded library, and the request stores a pointer to its entry.
    let asked =
        unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut entry).cast::<c_void>()) };
    let kept = Kept { handle, entry };
    if asked == 0 && !entry.is_null() {
        return Some(kept);
    }
    kept.let_go();
    None
}

impl Kept {
    fn let_go(self) {
        // SAFETY: gives back the reference that `last` took.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// The name of the last library that the linker lists.
fn last_name() -> Option<CString> {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _len: libc::size_t,
        last: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker lends a structure for the call.
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: the linker's names are C strings.
            let name = unsafe { CStr::from_ptr(name) };
            // SAFETY: `last` is the option that is passed below, which nobody else uses meanwhile.
            unsafe { *last.cast::<Option<CString>>() = Some(name.to_owned()) };
        }
        0
    }
    let mut last: Option<CString> = None;
    // SAFETY: `each` may be called with any library, and writes the option that it is given, which lives until the call
    // has returned.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut last).cast()) };
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a library that is loaded later. Other tests may load some meanwhile.
    #[test]
    fn a_library_that_is_loaded_is_noticed() {
        static SINCE: AbsentUpTo = AbsentUpTo::nothing();
        let notes = || {
            SINCE.note(last());
            SINCE.is_last()
        };
        assert!(!SINCE.is_last(), "nothing was looked for");
        assert!((0..1000).any(|_| notes()));
        let load = |name: &CStr, how: c_int| {
            // SAFETY: these are glibc's own libraries, whose initialisers do nothing of note.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | how) }
        };
        // Nobody links them any more. What the process has loaded all the same would not be new.
        let names = [c"libBrokenLocale.so.1", c"libanl.so.1", c"libresolv.so.2"];
        let new = |name: &&CStr| load(name, libc::RTLD_NOLOAD).is_null();
        if names.into_iter().filter(new).all(|name| load(name, 0).is_null()) {
            eprintln!("skipped: there is none of {names:?}");
            return;
        }
        assert!(!SINCE.is_last());
        assert!((0..1000).any(|_| notes()));
    }
}
