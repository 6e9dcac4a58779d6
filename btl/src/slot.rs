//! Slots (room to write a message into) and fragments (a message that has arrived): move-only,
//! owned by whoever holds them, given back by dropping.

use crate::{AmTag, PeerId, Token};
use gapless_mem::{DeviceError, OutOfRange, Region};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// The pool that a slot or fragment goes back to.
///
/// # Safety
/// The memory of a slot or fragment is its holder's alone until [`reclaim`](Reclaim::reclaim). So an
/// implementation keeps these rules:
///
/// 1. While the pool lives, the memory of what is out stays valid; slots and fragments hold the pool.
/// 2. What an index names is given to nobody else before `reclaim` was called with that index.
/// 3. `reclaim` touches, and frees, no memory but that of its index. It may run on any thread, also
///    while it runs on others.
/// 4. It neither blocks nor panics: it runs in `Drop`.
///
/// ```compile_fail,E0200
/// use gapless_btl::Reclaim;
/// struct Pool;
/// impl Reclaim for Pool {
///     unsafe fn reclaim(&self, _: u64) {}
/// }
/// ```
pub unsafe trait Reclaim: Send + Sync {
    /// Takes back what `index` names.
    ///
    /// # Safety
    /// A slot (unsent) or fragment of this pool with that index is being dropped: nothing uses its
    /// memory any more, and this is the one call for it.
    ///
    /// ```compile_fail,E0133
    /// # fn twice(pool: &dyn gapless_btl::Reclaim) {
    /// pool.reclaim(0); // what somebody else has
    /// # }
    /// ```
    unsafe fn reclaim(&self, index: u64);
}

/// The handle of a pool that a slot carries. It only keeps the pool alive: nothing can be reclaimed through it, so
/// its holder cannot free other slots.
#[derive(Clone)]
pub struct PoolHandle(Arc<dyn Reclaim>);

impl From<Arc<dyn Reclaim>> for PoolHandle {
    #[inline]
    fn from(pool: Arc<dyn Reclaim>) -> PoolHandle {
        PoolHandle(pool)
    }
}

impl<P: Reclaim + 'static> From<Arc<P>> for PoolHandle {
    fn from(pool: Arc<P>) -> PoolHandle {
        PoolHandle(pool)
    }
}

impl fmt::Debug for PoolHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolHandle")
    }
}

/// What slots and fragments share: bytes, and their pool.
struct Pooled {
    region: Region,
    index: u64,
    pool: Option<Arc<dyn Reclaim>>,
}

impl Pooled {
    #[inline]
    fn give_back(&mut self) {
        if let Some(pool) = self.pool.take() {
            // SAFETY: who made the slot or fragment said that the pool knows its memory by this index, and
            // nothing else by it; the pool has just been taken out, so this is the one call.
            unsafe { pool.reclaim(self.index) };
        }
    }
}

/// Room for one message to one peer, in memory that the transport owns.
pub struct Slot {
    pooled: Pooled,
    peer: PeerId,
    len: usize,
}

impl Slot {
    /// Makes a slot of the whole of `region`, for the implementation of a transport.
    ///
    /// # Safety
    /// `region` describes memory that stays valid for reads and writes, and that no reference of
    /// this process covers, until `pool` reclaims `index` or the transport takes the slot apart. Until
    /// then no other slot or fragment of `pool` has that index.
    ///
    /// # Panics
    /// If the region is longer than the address space.
    #[must_use]
    #[inline]
    pub unsafe fn new(
        region: Region,
        peer: PeerId,
        index: u64,
        pool: impl Into<PoolHandle>,
    ) -> Slot {
        let len = usize::try_from(region.len()).expect("a slot fits the address space");
        let PoolHandle(pool) = pool.into();
        Slot { pooled: Pooled { region, index, pool: Some(pool) }, peer, len }
    }

    /// The peer it was reserved for.
    #[must_use]
    #[inline]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// How many bytes will be sent.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether an empty message will be sent.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that will be sent, as a region that engines can pack into. It is valid for reads
    /// and writes while the slot lives.
    #[must_use]
    #[inline]
    pub fn region(&self) -> Region {
        let r = &self.pooled.region;
        Region::new(r.space(), r.address(), r.offset(), self.len as u64)
    }

    /// The pool's name for it.
    #[must_use]
    #[inline]
    pub fn index(&self) -> u64 {
        self.pooled.index
    }

    /// Whether `pool` is where it goes back to: a transport's check that a slot is its own.
    #[must_use]
    #[inline]
    pub fn belongs_to(&self, pool: &Arc<dyn Reclaim>) -> bool {
        self.pooled
            .pool
            .as_ref()
            .is_some_and(|own| std::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(pool)))
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// They do not lie inside, or the slot is not in memory that the CPU may touch.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: `Slot::new`'s caller guarantees the region until the slot is given back, and
        // `&mut self` that no other use of this slot is in flight.
        unsafe { gapless_mem::write(&self.region(), offset as u64, bytes) }
    }

    /// Sends fewer bytes than were reserved.
    ///
    /// # Errors
    /// `len` is more than the slot holds; nothing changes.
    #[inline]
    pub fn truncate(&mut self, len: usize) -> Result<(), OutOfRange> {
        self.region().sub(0, len as u64)?;
        self.len = len;
        Ok(())
    }

    /// Sends so many of the bytes that were reserved, which may be more than now.
    ///
    /// # Errors
    /// It was not reserved with so many; nothing changes.
    pub fn resize(&mut self, len: usize) -> Result<(), OutOfRange> {
        self.pooled.region.sub(0, len as u64)?;
        self.len = len;
        Ok(())
    }

    /// The bytes that will be sent, copied.
    ///
    /// # Errors
    /// The slot is not in memory that the CPU may touch.
    pub fn to_vec(&self) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; self.len];
        // SAFETY: `Slot::new`'s caller guarantees the region until the slot is given back. Its bytes were written by the
        // pool or by an earlier owner at the latest.
        unsafe { gapless_mem::read(&self.region(), 0, &mut bytes) }?;
        Ok(bytes)
    }

    /// Takes the slot apart, for the transport that sends it: it will not be reclaimed. Gives the
    /// region (as long as what is to be sent) and the index.
    #[must_use]
    #[inline]
    pub fn into_parts(self) -> (Region, u64) {
        let (region, index, _) = self.into_parts_and_pool();
        (region, index)
    }

    /// Like [`into_parts`](Slot::into_parts), and also returns the pool's handle, so that a fast transport can reuse
    /// it for the next slot instead of counting down and up.
    #[must_use]
    #[inline]
    pub fn into_parts_and_pool(mut self) -> (Region, u64, Option<PoolHandle>) {
        let pool = self.pooled.pool.take().map(PoolHandle);
        (self.region(), self.pooled.index, pool)
    }
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        self.pooled.give_back();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot {} to {} of {} bytes", self.pooled.index, self.peer, self.len)
    }
}

/// A message that has arrived, in memory that the transport owns.
pub struct Fragment {
    pooled: Pooled,
}

impl Fragment {
    /// Makes a fragment of the whole of `region`, for the implementation of a transport.
    ///
    /// # Safety
    /// `region` describes memory that stays valid for reads, and that no exclusive reference of this process covers,
    /// until `pool` reclaims `index`; until then no other slot or fragment of `pool` has that index. Another process
    /// may write it: readers copy first and check the copy.
    #[must_use]
    #[inline]
    pub unsafe fn new(region: Region, index: u64, pool: Arc<dyn Reclaim>) -> Fragment {
        Fragment { pooled: Pooled { region, index, pool: Some(pool) } }
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        usize::try_from(self.pooled.region.len()).unwrap_or(usize::MAX)
    }

    /// Whether it is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pooled.region.is_empty()
    }

    /// Its bytes, as a region that engines can unpack from; valid for reads while the fragment lives. The sender may
    /// still overwrite it.
    #[must_use]
    #[inline]
    pub fn region(&self) -> Region {
        self.pooled.region
    }

    /// Keeps the first `len` bytes; nothing happens if there are no more anyway.
    pub fn truncate(&mut self, len: usize) {
        if let Ok(region) = self.pooled.region.sub(0, len as u64) {
            self.pooled.region = region;
        }
    }

    /// Its first `len` bytes, or all if there are no more, as a fragment of their own that ends with this borrow.
    #[must_use]
    pub fn trimmed(&self, len: usize) -> Trimmed<'_> {
        let all = self.pooled.region;
        let region = all.sub(0, len as u64).unwrap_or(all);
        // Without a pool: it gives nothing back.
        let pooled = Pooled { region, index: self.pooled.index, pool: None };
        Trimmed { fragment: Fragment { pooled }, of: PhantomData }
    }

    /// Copies `into.len()` bytes out, from `offset` on.
    ///
    /// # Errors
    /// They do not lie inside, or the fragment is not in memory that the CPU may touch.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: `Fragment::new`'s caller guarantees the region while the fragment lives.
        unsafe { gapless_mem::read(&self.pooled.region, offset as u64, into) }
    }

    /// All of its bytes, copied.
    ///
    /// # Errors
    /// The fragment is not in memory that the CPU may touch.
    pub fn to_vec(&self) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Fragment {
    #[inline]
    fn drop(&mut self) {
        self.pooled.give_back();
    }
}

/// The beginning of a [`Fragment`], borrowed: [`Fragment::trimmed`].
#[derive(Debug)]
pub struct Trimmed<'f> {
    fragment: Fragment,
    of: PhantomData<&'f Fragment>,
}

impl Deref for Trimmed<'_> {
    type Target = Fragment;
    fn deref(&self) -> &Fragment {
        &self.fragment
    }
}

/// A message that a link which has ended may not have delivered: [`Btl::unacknowledged`](crate::Btl::unacknowledged).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// What it is for.
    pub tag: AmTag,
    /// Its bytes.
    pub message: Vec<u8>,
    /// The token whose [`Event::Sent`](crate::Event::Sent) has not come, else [`Token::NONE`].
    pub done: Token,
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fragment of {} bytes", self.pooled.region.len())
    }
}
