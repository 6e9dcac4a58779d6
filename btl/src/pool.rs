//! A pool of heap buffers, for transports whose slots and fragments need no special memory: with
//! it a transport over sockets is written without `unsafe`.
//!
//! A buffer has exactly one owner at a time: the pool (free), a [`Slot`] (a caller packs a message), a [`Buffer`]
//! (the transport reads or fills it), or a [`Fragment`] (the receiver works on a message). [`HeapPool::slot`],
//! [`HeapPool::open`], [`HeapPool::buffer`] and [`Buffer::into_fragment`] change the owner; dropping any of them
//! frees the buffer. Buffers are allocated when first needed, never moved, and reused without clearing. Lengths are
//! in bytes. Taking and giving back is lock-free, from any thread. Devices that a pool was [attached](HeapPool::attach)
//! to know its buffers, and work on slots and fragments without staging.
//!
//! ```
//! use gapless_btl::{PeerId, pool::HeapPool};
//! let pool = HeapPool::new(1, 1024);
//! let mut slot = pool.slot(PeerId(0), 5)?;
//! slot.write(0, b"hello")?;
//! assert!(pool.slot(PeerId(0), 5).is_err()); // the only buffer is in use
//! let buffer = pool.open(slot).expect("a slot of this pool");
//! assert_eq!(&buffer[..], b"hello"); // what a transport would hand to its socket
//! let fragment = buffer.into_fragment(); // what a receiver would get
//! drop(fragment);
//! assert!(pool.buffer(1024).is_some()); // free again
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::memory::{HeapMemory, PAGE};
use crate::{Fragment, PeerId, Reclaim, ReserveError, Slot};
use gapless_mem::{Device, DeviceError, Lease, Region};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Buffers start at multiples of this many bytes; those of a page or more start at one, and have all of their last one.
const ALIGNMENT: usize = 256;
/// The end of the free list.
const NIL: u32 = u32::MAX;

/// A bounded pool of equal heap buffers. Clones share the buffers.
#[derive(Clone)]
pub struct HeapPool {
    shared: Arc<Shared>,
    /// The same `Arc`, as slots know it.
    home: Arc<dyn Reclaim>,
}

struct Shared {
    buffer_bytes: usize,
    /// Those of a page or more are mappings.
    #[cfg(feature = "watch")]
    mapped: bool,
    buffers: Box<[OnceLock<HeapMemory>]>,
    /// How many buffers have ever been given out; later ones are not on the free list.
    touched: AtomicU32,
    /// The free list, a stack: the top's index below, above it a count that changes with every exchange, so that a
    /// top that left and came back is noticed.
    top: AtomicU64,
    /// What lies beneath each buffer on the free list.
    beneath: Box<[AtomicU32]>,
    /// Devices that know the buffers.
    devices: Mutex<Attached>,
}

/// Devices that know a pool's buffers, and those that are allocated later.
#[derive(Default)]
struct Attached {
    all: Vec<Arc<dyn Device>>,
    /// Another works on them that has refused one: they stay ordinary memory.
    refused: bool,
}

fn pack(count: u64, index: u32) -> u64 {
    (count << 32) | u64::from(index)
}

fn index_of(top: u64) -> u32 {
    u32::try_from(top & u64::from(u32::MAX)).unwrap_or(NIL)
}

impl Shared {
    fn new(buffers: usize, buffer_bytes: usize) -> Shared {
        assert!(buffers < NIL as usize, "a pool of {buffers} buffers");
        Shared {
            buffer_bytes,
            #[cfg(feature = "watch")]
            mapped: false,
            buffers: (0..buffers).map(|_| OnceLock::new()).collect(),
            touched: AtomicU32::new(0),
            top: AtomicU64::new(pack(0, NIL)),
            beneath: (0..buffers).map(|_| AtomicU32::new(NIL)).collect(),
            devices: Mutex::default(),
        }
    }

    fn pop(&self) -> Option<u32> {
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            let index = index_of(top);
            let beneath = self.beneath.get(index as usize)?.load(Ordering::Relaxed);
            let next = pack((top >> 32).wrapping_add(1), beneath);
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => top = now,
            }
        }
    }

    fn push(&self, index: u32) {
        let Some(beneath) = self.beneath.get(index as usize) else { return };
        let mut top = self.top.load(Ordering::Acquire);
        loop {
            beneath.store(index_of(top), Ordering::Relaxed);
            let next = pack((top >> 32).wrapping_add(1), index);
            match self.top.compare_exchange_weak(top, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// A buffer that was never given out, if any is left.
    fn fresh(&self) -> Option<u32> {
        let limit = u32::try_from(self.buffers.len()).unwrap_or(NIL);
        self.touched
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then_some(n + 1))
            .ok()
    }

    /// Takes a buffer out of the pool.
    fn take(&self) -> Option<(u32, Region)> {
        let index = self.pop().or_else(|| self.fresh())?;
        let cell = &self.buffers[index as usize];
        if let Some(memory) = cell.get() {
            return Some((index, memory.region()));
        }
        match self.allocate() {
            Some(memory) => {
                let memory = cell.get_or_init(|| memory);
                // In its place, so that a device that is attached meanwhile finds it there.
                self.make_known(memory);
                Some((index, memory.region()))
            }
            None => {
                self.push(index);
                None
            }
        }
    }

    fn devices(&self) -> MutexGuard<'_, Attached> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new buffer. What a device refuses stays ordinary memory, which devices reach by copies.
    fn make_known(&self, memory: &HeapMemory) {
        let Attached { all, refused } = &*self.devices();
        if !refused && let Err(error) = memory.register(all) {
            tracing::debug!(%error, "a buffer that a device does not register: messages in it are staged");
        }
    }

    /// Memory for a buffer.
    fn allocate(&self) -> Option<HeapMemory> {
        match self.buffer_bytes {
            len if len < PAGE => HeapMemory::new(len, ALIGNMENT),
            #[cfg(feature = "watch")]
            len if self.mapped => HeapMemory::mapped(len),
            len => HeapMemory::new(len, PAGE),
        }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. Buffers are in cells of the pool that are filled once, and freed with it.
// 2. An index is in the list of free ones, beyond `touched`, or out: `take` removes it, `push` puts it back.
// 3., 4. `push` changes atomics alone, and asks for no lock.
unsafe impl Reclaim for Shared {
    unsafe fn reclaim(&self, index: u64) {
        if let Ok(index) = u32::try_from(index) {
            self.push(index);
        }
    }
}

impl HeapPool {
    /// At most `buffers` buffers of `buffer_bytes` each; none is allocated yet.
    ///
    /// # Panics
    /// If `buffers` is 2³² - 1 or more.
    #[must_use]
    pub fn new(buffers: usize, buffer_bytes: usize) -> HeapPool {
        HeapPool::of(Shared::new(buffers, buffer_bytes))
    }

    /// The same, whose buffers are mappings of their own if they have a page or more: what is [retired](Buffer::retire) is
    /// unmapped with the pool.
    ///
    /// # Panics
    /// If `buffers` is 2³² - 1 or more.
    #[cfg(feature = "watch")]
    #[must_use]
    pub fn mapped(buffers: usize, buffer_bytes: usize) -> HeapPool {
        HeapPool::of(Shared { mapped: true, ..Shared::new(buffers, buffer_bytes) })
    }

    fn of(shared: Shared) -> HeapPool {
        let shared = Arc::new(shared);
        HeapPool { home: shared.clone(), shared }
    }

    /// Registers the buffers with a device, those too that are allocated later: it then works on what lies in slots and
    /// fragments without staging. They are unregistered before they are freed. Asking again is cheap. It does nothing
    /// if buffers are shorter than a page, or the device does not register memory.
    ///
    /// # Errors
    /// The device has refused a buffer: from now on all are ordinary memory to every device, since this one works on them
    /// as well.
    pub fn attach(&self, device: &Arc<dyn Device>) -> Result<(), DeviceError> {
        if self.shared.buffer_bytes < PAGE {
            return Ok(());
        }
        let mut devices = self.shared.devices();
        let Attached { all, refused } = &mut *devices;
        if *refused || all.iter().any(|known| Arc::ptr_eq(known, device)) {
            return Ok(());
        }
        all.push(Arc::clone(device));
        let buffers = || self.shared.buffers.iter().filter_map(OnceLock::get);
        let known = buffers().try_for_each(|memory| memory.register(all));
        if known.is_err() {
            *refused = true;
            buffers().for_each(HeapMemory::unpin);
        }
        known
    }

    /// Undoes [`attach`](HeapPool::attach).
    ///
    /// # Safety
    /// [`Device::finish`] has returned `true`, and no work of the device's on these buffers began since.
    pub unsafe fn detach(&self, device: &Arc<dyn Device>) {
        let mut devices = self.shared.devices();
        devices.all.retain(|known| !Arc::ptr_eq(known, device));
        let buffers = self.shared.buffers.iter().filter_map(OnceLock::get);
        // SAFETY: the caller's promise.
        buffers.for_each(|memory| unsafe { memory.unregister(device) });
    }

    /// How long each buffer is, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.shared.buffer_bytes
    }

    /// A slot of `len` bytes to `peer`.
    ///
    /// # Errors
    /// [`ReserveError::Full`] when all buffers are in use, [`ReserveError::TooLong`] for more than a
    /// buffer.
    pub fn slot(&self, peer: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let max = self.shared.buffer_bytes;
        if len > max {
            return Err(ReserveError::TooLong { len, max });
        }
        let (index, region) = self.shared.take().ok_or(ReserveError::Full)?;
        let region = region.sub(0, len as u64).map_err(|_| ReserveError::TooLong { len, max })?;
        // SAFETY: the buffer lives as long as the pool, which `home` keeps; taken out of the pool,
        // it is in no other hand until it is reclaimed or opened.
        Ok(unsafe { Slot::new(region, peer, u64::from(index), Arc::clone(&self.home)) })
    }

    /// What was written into a slot of this pool, for the transport that sends it.
    ///
    /// # Errors
    /// Gives the slot back if it is not of this pool.
    pub fn open(&self, slot: Slot) -> Result<Buffer, Slot> {
        if !slot.belongs_to(&self.home) {
            return Err(slot);
        }
        let len = slot.len();
        let (_, index) = slot.into_parts();
        let index = u32::try_from(index).expect("the pool's own index");
        Ok(Buffer { shared: Some(Arc::clone(&self.shared)), index, len })
    }

    /// A whole buffer as memory for engines and devices, free again when the lease and all parts of it are gone; `None`
    /// when all are in use. A lease says that its memory is page-locked if it was so when it was taken: whoever takes one
    /// [attaches](HeapPool::attach) no further device, which might refuse.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        let fragment = self.buffer(self.shared.buffer_bytes)?.into_fragment();
        let region = fragment.region();
        // SAFETY: the memory is there, and in no other hand, until the fragment is dropped.
        Some(unsafe { Lease::new(region, Arc::new(fragment)) })
    }

    /// A buffer to fill with `len` bytes that arrive; `None` when all are in use or `len` is more
    /// than a buffer. Its contents are whatever was there before.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Option<Buffer> {
        if len > self.shared.buffer_bytes {
            return None;
        }
        let (index, _) = self.shared.take()?;
        Some(Buffer { shared: Some(Arc::clone(&self.shared)), index, len })
    }
}

impl fmt::Debug for HeapPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { buffer_bytes, buffers, .. } = &*self.shared;
        write!(f, "HeapPool of {} buffers of {buffer_bytes} bytes", buffers.len())
    }
}

/// A buffer that the transport owns: plain bytes.
pub struct Buffer {
    /// Where it goes back to; `None` once it has become a fragment, or was retired.
    shared: Option<Arc<Shared>>,
    index: u32,
    len: usize,
}

impl Buffer {
    /// Keeps the first `len` bytes; nothing happens if there are no more anyway.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Hands the bytes to the receiver.
    #[must_use]
    pub fn into_fragment(mut self) -> Fragment {
        let region = self.memory().region();
        let region = region.sub(0, self.len as u64).expect("a buffer is no longer than its memory");
        let home: Arc<dyn Reclaim> = self.shared.take().expect("a buffer is given away once");
        // SAFETY: the buffer lives as long as the pool, which `home` keeps, and this was the only
        // hand on it; from here on only the fragment is, until it is reclaimed.
        unsafe { Fragment::new(region, u64::from(self.index), home) }
    }

    /// Gives it up while the system may still read it: the pool never gives it to anybody again. Its memory goes with the
    /// pool if that is mapped (`HeapPool::mapped`, feature `watch`), where the system keeps the pages until it has done
    /// with them. Other memory is never freed, since the allocator would give it to somebody else.
    pub fn retire(mut self) {
        self.memory().retire();
        self.shared = None;
    }

    fn memory(&self) -> &HeapMemory {
        let shared = self.shared.as_ref().expect("only those that consume it empty it");
        shared.buffers[self.index as usize].get().expect("taken buffers have memory")
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: a buffer is in one hand at a time, this one, and writing takes `&mut self`.
        unsafe { self.memory().bytes(self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: a buffer is in one hand at a time, this one, borrowed exclusively.
        unsafe { self.memory().bytes_mut(self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.push(self.index);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer {} of {} bytes", self.index, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::Space;
    use gapless_mem::fake::FakeDevice;
    use gapless_mem::testkit::{Call, Wrapped};

    #[test]
    fn a_lease_keeps_its_buffer_with_all_its_parts() {
        let pool = HeapPool::new(1, 64);
        let lease = pool.lease().unwrap();
        assert_eq!((lease.region().len(), lease.region().space()), (64, Space::Host));
        let part = lease.sub(60, 4).unwrap();
        drop(lease);
        assert!(pool.lease().is_none() && pool.buffer(1).is_none());
        drop(part);
        assert!(pool.buffer(64).is_some());
    }

    #[test]
    fn a_buffer_goes_round() {
        let pool = HeapPool::new(2, 64);
        let mut slot = pool.slot(PeerId(1), 64).unwrap();
        slot.write(0, &[7; 64]).unwrap();
        slot.truncate(10).unwrap();
        let fragment = pool.open(slot).unwrap().into_fragment();
        assert_eq!(fragment.to_vec().unwrap(), [7; 10]);
        let mut other = pool.buffer(64).unwrap();
        other.fill(3);
        other.truncate(2);
        assert_eq!(pool.slot(PeerId(1), 1).unwrap_err(), ReserveError::Full);
        drop(fragment);
        assert_eq!(&other[..], [3, 3]);
        assert!(pool.slot(PeerId(1), 1).is_ok());
        assert_eq!(
            pool.slot(PeerId(1), 65).unwrap_err(),
            ReserveError::TooLong { len: 65, max: 64 }
        );
    }

    #[test]
    fn devices_know_buffers_that_are_there_and_those_to_come() {
        let fake = Arc::new(FakeDevice::new(0));
        let device = Arc::clone(&fake) as Arc<dyn Device>;
        let pool = HeapPool::new(3, PAGE + 1);
        let early = pool.slot(PeerId(0), 7).unwrap();
        assert_eq!(early.region().space(), Space::Host);
        (0..2).for_each(|_| pool.attach(&device).unwrap());
        let later = pool.slot(PeerId(0), PAGE + 1).unwrap();
        assert_eq!(later.region().space(), Space::Pinned);
        assert!(fake.alias(later.region()).is_ok());
        let at = early.region().start();
        drop(early);
        let again = pool.buffer(5).unwrap().into_fragment();
        assert_eq!((again.region().start(), again.region().space()), (at, Space::Pinned));
        assert_eq!(fake.registered().len(), 2);
        drop((pool, later));
        assert_eq!(fake.registered().len(), 2, "a fragment keeps them");
        drop(again);
        assert!(fake.registered().is_empty());
        HeapPool::new(1, 64).attach(&device).unwrap();
    }

    #[test]
    fn a_device_that_refuses_a_buffer_leaves_all_ordinary_memory() {
        let willing = Arc::new(FakeDevice::new(0));
        let refuses = Wrapped::new(Arc::new(FakeDevice::new(1)) as _, |call| match call {
            Call::Register(_) => {
                let (device, operation, reason) = ("fake:1".to_owned(), "register", String::new());
                Err(DeviceError::Failed { device, operation, reason })
            }
            _ => Ok(()),
        });
        let pool = HeapPool::new(3, PAGE);
        pool.attach(&(Arc::clone(&willing) as _)).unwrap();
        let held = pool.slot(PeerId(0), 1).unwrap();
        assert_eq!(held.region().space(), Space::Pinned);
        let refuses: Arc<dyn Device> = Arc::new(refuses);
        assert!(pool.attach(&refuses).is_err());
        pool.attach(&refuses).unwrap();
        // The first buffer again, and a new one.
        drop(held);
        let both = [0, 1].map(|_| pool.slot(PeerId(0), 1).unwrap());
        assert!(both.iter().all(|slot| slot.region().space() == Space::Host));
        drop((pool, both));
        assert!(willing.registered().is_empty());
    }

    #[test]
    fn foreign_slots_are_handed_back() {
        let (one, other) = (HeapPool::new(1, 0), HeapPool::new(1, 0));
        let slot = one.slot(PeerId(0), 0).unwrap();
        let slot = other.open(slot).unwrap_err();
        assert!(one.clone().open(slot).is_ok());
    }

    #[test]
    fn fragments_outlive_the_pool() {
        let pool = HeapPool::new(1, 8);
        let mut buffer = pool.buffer(8).unwrap();
        buffer.fill(5);
        let fragment = buffer.into_fragment();
        drop(pool);
        assert_eq!(fragment.to_vec().unwrap(), [5; 8]);
    }

    /// Nobody gets them again, and the pool ends without them: devices forget them.
    #[test]
    fn retired_buffers_are_gone_with_their_pool() {
        let pools = [
            HeapPool::new(2, PAGE),
            #[cfg(feature = "watch")]
            HeapPool::mapped(2, PAGE),
        ];
        for pool in pools {
            let fake = Arc::new(FakeDevice::new(0));
            pool.attach(&(Arc::clone(&fake) as _)).unwrap();
            let [one, other] = [0, 1].map(|_| pool.buffer(PAGE).unwrap());
            one.retire();
            assert!(pool.buffer(1).is_none());
            drop(other);
            let other = pool.buffer(1).unwrap();
            assert!(pool.buffer(1).is_none());
            drop(pool);
            assert_eq!(fake.registered().len(), 2, "a buffer keeps the pool");
            drop(other);
            assert!(fake.registered().is_empty());
        }
    }

    #[test]
    fn threads_never_share_a_buffer() {
        let pool = HeapPool::new(3, 8);
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        let Some(mut buffer) = pool.buffer(8) else { continue };
                        buffer.fill(id);
                        assert!(buffer.iter().all(|&b| b == id));
                        drop(buffer.into_fragment());
                    }
                });
            }
        });
        let all: Vec<_> = (0..4).map_while(|_| pool.buffer(8)).collect();
        assert_eq!(all.len(), 3);
    }
}
