//! Mapped memory: the only place that maps, unmaps and turns addresses into references.
//!
//! Shared segments are memfds sealed against shrinking and growing, so a mapping never faults
//! because a peer changed the file; they have no name in any file system, so nothing is left behind
//! however a process ends. No reference other than to atomics is ever formed to shared memory.

use crate::ring::RingLine;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::system;
use gapless_btl::LinkError;
use gapless_mem::{Device, DeviceError, Region, Space};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, PoisonError};

/// The seals that every segment carries before it is handed out.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What `fstatfs` says of a memfd of ordinary pages. Those of huge pages come from a pool that may be
/// empty when a hole that a peer punched is touched, which would be a bus error.
const TMPFS: u64 = 0x0102_1994;

/// A mapping, unmapped when dropped, after every device that knows it has forgotten it.
pub(crate) struct Segment {
    base: NonNull<u8>,
    len: usize,
    /// Devices it is registered with.
    devices: Mutex<Vec<Arc<dyn Device>>>,
    /// Whether there are any: regions then say so.
    pinned: AtomicBool,
    /// Pages that nobody shares with us any more.
    private: Mutex<BTreeSet<usize>>,
}

// SAFETY: a `Segment` owns its mapping; what is reached through it are atomics and addresses.
unsafe impl Send for Segment {}
// SAFETY: as above: `&Segment` gives references to atomics only, which threads may share.
unsafe impl Sync for Segment {}

/// Rounds up to whole pages of the system; `None` beyond the address space.
pub(crate) fn whole_pages(len: u64) -> Option<usize> {
    usize::try_from(len).ok()?.max(1).checked_next_multiple_of(rustix::param::page_size())
}

/// Whether shared memory of `len` bytes may be made. The system counts it as a file, and would end this process for
/// making one beyond its limit (`SIGXFSZ`).
///
/// # Errors
/// It is longer than files of this process may be.
pub(crate) fn check_length(len: usize) -> Result<(), LinkError> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len as u64 > limit => {
            let reason = format!(
                "it takes {len} bytes of shared memory, and files of this process may have {limit} (ulimit -f; \
                 `ulimit -f unlimited` lifts that)"
            );
            Err(system("ftruncate", reason))
        }
        _ => Ok(()),
    }
}

fn map(len: usize, file: Option<&OwnedFd>) -> rustix::io::Result<Segment> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let base = match file {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing of ours.
        Some(file) => unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)
        },
        // SAFETY: as above.
        None => unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)
        },
    }?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
    base.expose_provenance();
    let (devices, pinned) = (Mutex::default(), AtomicBool::new(false));
    Ok(Segment { base, len, devices, pinned, private: Mutex::default() })
}

impl Segment {
    /// A new sealed, zeroed memfd of `len` bytes (whole pages), mapped; the descriptor is for
    /// handing to peers. `huge` asks for huge pages.
    ///
    /// # Errors
    /// The system refused, or would refuse such a length.
    pub(crate) fn create(len: usize, huge: bool) -> Result<(Segment, OwnedFd), LinkError> {
        check_length(len)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            rustix::fs::memfd_create("gapless", flags).map_err(|e| system("memfd_create", e))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(|e| system("ftruncate", e))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(|e| system("F_ADD_SEALS", e))?;
        let segment = map(len, Some(&file)).map_err(|e| system("mmap", e))?;
        if huge {
            // SAFETY: the advice concerns our own mapping and does not change its contents.
            let advised = unsafe {
                rustix::mm::madvise(segment.base.as_ptr().cast(), len, Advice::LinuxHugepage)
            };
            if let Err(error) = advised {
                tracing::debug!(%error, "no huge pages for shared memory");
            }
        }
        Ok((segment, file))
    }

    /// Private zeroed memory of `len` bytes (whole pages).
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn private(len: usize) -> Result<Segment, LinkError> {
        map(len, None).map_err(|e| system("mmap", e))
    }

    /// Maps what a peer sent, if it is exactly `len` bytes long and sealed so that it stays so.
    ///
    /// # Errors
    /// [`LinkError::Corrupt`] for a file that is not as promised; the system refused.
    pub(crate) fn adopt(file: &OwnedFd, len: usize) -> Result<Segment, LinkError> {
        let corrupt = |what: String| LinkError::Corrupt { what };
        let seals = rustix::fs::fcntl_get_seals(file.as_fd())
            .map_err(|e| corrupt(format!("a segment that cannot be sealed: {e}")))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(corrupt(format!("a segment with the seals {seals:?} only")));
        }
        let system_type = rustix::fs::fstatfs(file).map_err(|e| system("fstatfs", e))?.f_type;
        if u64::try_from(system_type) != Ok(TMPFS) {
            return Err(corrupt(format!("a segment in a file system of type {system_type:#x}")));
        }
        let found = rustix::fs::fstat(file.as_fd()).map_err(|e| system("fstat", e))?.st_size;
        if usize::try_from(found) != Ok(len) || len == 0 {
            return Err(corrupt(format!("a segment of {found} bytes instead of {len}")));
        }
        map(len, Some(file)).map_err(|e| system("mmap", e))
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of its first byte.
    pub(crate) fn start(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Describes `len` bytes from `at` on. Nothing is checked: describing is safe.
    pub(crate) fn region(&self, at: usize, len: usize) -> Region {
        let space = if self.pinned.load(Ordering::Relaxed) { Space::Pinned } else { Space::Host };
        Region::new(space, self.start(), at as u64, len as u64)
    }

    /// Where `count` values of `T` start `at` bytes into the mapping.
    fn place<T>(&self, at: usize, count: usize) -> NonNull<T> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(at));
        assert!(
            end.is_some_and(|end| end <= self.len) && at.is_multiple_of(align_of::<T>()),
            "{count} values at byte {at} leave a segment of {} bytes",
            self.len
        );
        // SAFETY: `at` lies inside the mapping, as was just checked.
        unsafe { self.base.byte_add(at) }.cast()
    }

    /// `count` 64-bit words from byte `at` on.
    pub(crate) fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        let place = self.place::<AtomicU64>(at, count);
        // SAFETY: `place` proved that they lie inside the mapping, which starts at a page and lives
        // as long as `self`; any bytes are valid atomics, and the memory is initialised.
        unsafe { NonNull::slice_from_raw_parts(place, count).as_ref() }
    }

    /// `count` 32-bit words from byte `at` on.
    pub(crate) fn flags(&self, at: usize, count: usize) -> &[AtomicU32] {
        let place = self.place::<AtomicU32>(at, count);
        // SAFETY: as in `words`.
        unsafe { NonNull::slice_from_raw_parts(place, count).as_ref() }
    }

    /// Asks for the cache lines of `len` bytes from `at` on, to be written: all at once, where stores would
    /// fetch them one after the other from the cache of whoever has read them.
    #[inline]
    pub(crate) fn expect_writes(&self, at: usize, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (at..at.saturating_add(len).min(self.len)).step_by(64) {
            let place = self.base.as_ptr().wrapping_add(line);
            // SAFETY: a hint: it changes no memory and no register, and does not fault.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags))
            };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (at, len);
    }

    fn devices(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whole(&self) -> Region {
        Region::new(Space::Host, self.start(), 0, self.len as u64)
    }

    /// Makes the memory known to a device, once each.
    ///
    /// # Errors
    /// The device refused.
    pub(crate) fn register(&self, device: &Arc<dyn Device>) -> Result<(), DeviceError> {
        let mut devices = self.devices();
        if devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            return Ok(());
        }
        // SAFETY: the mapping lives until `drop`, which unregisters it first.
        unsafe { device.register(self.whole()) }?;
        devices.push(Arc::clone(device));
        self.pinned.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether some of it was [made private](Segment::make_private).
    pub(crate) fn is_private(&self) -> bool {
        !self.private.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Puts pages of this process alone in the place of those of `file`, which this maps, that hold the `len`
    /// bytes from `at` on, and has devices forget the segment. No device works on any byte of it; other threads may
    /// use other bytes of these pages meanwhile.
    ///
    /// The new mapping is a private one of the same file: there the system copies a page when it is first
    /// written to. The system is asked to do that at once, which is no access of this program's: threads may read any of the bytes. No store of another thread is lost: until the copy
    /// is made it lands in the file, or makes the copy itself.
    ///
    /// # Errors
    /// A device does not forget the memory; the system refused.
    pub(crate) fn make_private(
        &self,
        file: &OwnedFd,
        at: usize,
        len: usize,
    ) -> Result<(), LinkError> {
        let page = rustix::param::page_size();
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| LinkError::Incompatible {
            what: format!("{len} bytes at {at} of a segment of {}", self.len),
        })?;
        self.unregister_all()?;
        let mut private = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        // Once more would bring the file's pages back.
        let shared: Vec<usize> =
            (at / page..end.div_ceil(page)).filter(|number| !private.contains(number)).collect();
        for run in shared.chunk_by(|one, next| one + 1 == *next) {
            let (start, bytes) = (run[0] * page, run.len() * page);
            let place = self.place::<u8>(start, bytes).as_ptr().cast();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: the pages are this mapping's own, and hold the same bytes afterwards; nobody but `drop`
            // unmaps them. What refers to them are atomics, or bytes that nobody but this process writes.
            unsafe { rustix::mm::mmap(place, bytes, protection, flags, file, start as u64) }
                .map_err(|error| system("mmap", error))?;
            // Noted at once: the next run may be refused.
            for &number in run {
                let place = self.place::<u8>(number * page, page).as_ptr().cast();
                // SAFETY: the page is this mapping's own, and holds the same bytes afterwards.
                match unsafe { rustix::mm::madvise(place, page, Advice::LinuxPopulateWrite) } {
                    Ok(()) => {}
                    // Before Linux 5.14.
                    Err(Errno::INVAL) => self.write_to(at.max(number * page)),
                    Err(error) => return Err(system("madvise", error)),
                }
                private.insert(number);
            }
        }
        Ok(())
    }

    /// Writes to a byte, which stays as it is: the system copies its page. Another thread may read the byte meanwhile, in
    /// the gaps of a message's layout, and sees the same value.
    fn write_to(&self, at: usize) {
        let byte = self.place::<AtomicU8>(at, 1);
        // SAFETY: `place` proved that it lies inside the mapping. No thread writes it, as no message of this process does
        // any more; one atomic operation on the byte changes nothing.
        let byte = unsafe { byte.as_ref() };
        let mut value = byte.load(Ordering::Relaxed);
        while let Err(now) =
            byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed)
        {
            value = now;
        }
    }

    /// Has all devices forget the segment, on which none of them works.
    ///
    /// # Errors
    /// A device refused; it and those not yet asked still know the segment.
    fn unregister_all(&self) -> Result<(), LinkError> {
        let mut devices = self.devices();
        let mut result = Ok(());
        while let Some(device) = devices.last() {
            // SAFETY: it was registered with this device. By the contract of `Mapped::make_private` no device works on
            // any byte of the allocation: work of devices is started by unsafe calls, whose callers answer for its
            // memory until it has ended.
            result = unsafe { device.unregister(self.whole()) };
            if result.is_err() {
                break;
            }
            devices.pop();
        }
        self.pinned.store(!devices.is_empty(), Ordering::Relaxed);
        result.map_err(|error| system("unregistering shared memory", error))
    }

    /// Undoes [`register`](Segment::register), if it happened.
    pub(crate) fn unregister(&self, device: &Arc<dyn Device>) {
        let mut devices = self.devices();
        let Some(at) = devices.iter().position(|known| Arc::ptr_eq(known, device)) else { return };
        let device = devices.swap_remove(at);
        self.pinned.store(!devices.is_empty(), Ordering::Relaxed);
        // SAFETY: it was registered with this device, no work of which is in flight: the caller undoes an attachment
        // before anything was started, or the device has finished.
        let result = unsafe { device.unregister(self.whole()) };
        if let Err(error) = result {
            tracing::warn!(%error, "a device did not forget a segment");
        }
    }
}

/// The places of a ring in a segment, checked once so that using them costs nothing.
#[derive(Debug)]
pub(crate) struct Fixed {
    lines: NonNull<[RingLine]>,
    head: NonNull<AtomicUsize>,
    sleep: NonNull<AtomicU32>,
    /// The start of the segment that they were checked for.
    start: u64,
}

// SAFETY: the pointers are to atomics that threads may share, and are only used while the caller
// shows the segment.
unsafe impl Send for Fixed {}
// SAFETY: as above.
unsafe impl Sync for Fixed {}

impl Fixed {
    /// `count` lines at byte `lines`, a counter at `head`, a flag at `sleep`.
    pub(crate) fn of(
        segment: &Segment,
        lines: usize,
        count: usize,
        head: usize,
        sleep: usize,
    ) -> Fixed {
        Fixed {
            lines: NonNull::slice_from_raw_parts(segment.place(lines, count), count),
            head: segment.place(head, 1),
            sleep: segment.place(sleep, 1),
            start: segment.start(),
        }
    }

    #[inline]
    pub(crate) fn lines<'a>(&self, segment: &'a Segment) -> &'a [RingLine] {
        debug_assert_eq!(self.start, segment.start());
        // SAFETY: `place` proved that the lines lie inside the mapping of the segment that owns
        // this (a `Lane` keeps both and never exchanges them), which lives for `'a`; any bytes are
        // valid atomics, and the memory is initialised.
        unsafe { self.lines.as_ref() }
    }

    #[inline]
    pub(crate) fn head<'a>(&self, segment: &'a Segment) -> &'a AtomicUsize {
        debug_assert_eq!(self.start, segment.start());
        // SAFETY: as in `lines`.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    pub(crate) fn sleep<'a>(&self, segment: &'a Segment) -> &'a AtomicU32 {
        debug_assert_eq!(self.start, segment.start());
        // SAFETY: as in `lines`.
        unsafe { self.sleep.as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let devices = std::mem::take(&mut *self.devices());
        for device in devices {
            // SAFETY: registered before, and nothing can use a segment that is being dropped.
            let result = unsafe { device.unregister(self.whole()) };
            if let Err(error) = result {
                tracing::warn!(%error, "a device did not forget a segment");
            }
        }
        // SAFETY: the mapping is ours, and every slot, fragment and mapping handed out holds the
        // segment, so no address into it is in use.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap: {result:?}");
    }
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment of {} bytes at {:#x}", self.len, self.start())
    }
}

#[cfg(test)]
mod tests;
