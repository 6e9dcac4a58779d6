//! Objects behind handles that programs make and free: handles that were freed and numbers that never were handles are
//! found out, also while other threads use the slot. A freed slot is used again after [`RESTING`] others, and has 256
//! generations: a handle that was freed is taken for another one after 16,384 more objects, at the earliest (unless there
//! are a million at a time).
//!
//! ```text
//! handle  = 0x70000000 | generation (8 bits) << 20 | slot (20 bits)
//! state   = LIVE | FULL | generation << 32 | users (32 bits)
//! ```
//!
//! Who looks an object up counts itself as a user first, and then looks whether the slot is live and of that generation.
//! Freeing makes the slot dead; the last user takes the value out. A slot's memory stays for ever, so that a handle of any
//! age can be looked at.

use crate::arg::lock;
use crate::call::{Done, Fail};
use crate::face::{self, MADE, RawHandle};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

const SLOT_BITS: u32 = 20;
const CHUNK: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / CHUNK;
/// Slots that were freed last, which are not used again as long as there are others.
const RESTING: usize = 64;

/// It may be looked up.
const LIVE: u64 = 1 << 63;
/// There is a value.
const FULL: u64 = 1 << 62;
const USERS: u64 = 0xffff_ffff;

fn generation(state: u64) -> u32 {
    ((state >> 32) & 0xff) as u32
}

/// The state of an empty slot, in its next generation.
fn next(state: u64) -> u64 {
    u64::from(generation(state).wrapping_add(1) & 0xff) << 32
}

/// The slot of a handle.
fn place(handle: RawHandle) -> u32 {
    face::number(handle) & ((1 << SLOT_BITS) - 1)
}

struct Slot<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

/// All objects of one kind.
pub(crate) struct Slots<T: 'static> {
    chunks: [AtomicPtr<[Slot<T>; CHUNK]>; CHUNKS],
    places: Mutex<Places>,
    /// One above the place of a slot that was reserved for nothing, and is the next one's; 0: there is none.
    spare: AtomicU32,
    /// What they are called.
    what: &'static str,
}

struct Places {
    /// In the order in which they were freed.
    free: VecDeque<u32>,
    used: u32,
}

// SAFETY: a value is reached by shared references from any thread, and moved out by any thread.
unsafe impl<T: Send + Sync> Sync for Slots<T> {}

/// An object in use: it stays while this does, also if its handle is freed.
pub(crate) struct InUse<T: 'static> {
    slots: &'static Slots<T>,
    slot: &'static Slot<T>,
    handle: RawHandle,
}

// SAFETY: it gives shared references, and the last one drops the value, on whatever thread.
unsafe impl<T: Send + Sync> Send for InUse<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for InUse<T> {}

impl<T> Slots<T> {
    pub(crate) const fn new(what: &'static str) -> Slots<T> {
        let places = Mutex::new(Places { free: VecDeque::new(), used: 0 });
        let (chunks, spare) =
            ([const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], AtomicU32::new(0));
        Slots { chunks, places, spare, what }
    }

    fn slot(&'static self, place: u32) -> Option<&'static Slot<T>> {
        let place = place as usize;
        let chunk = self.chunks.get(place / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: a chunk is null, or was leaked by `room`, which published it with `Release`.
        let chunk = unsafe { chunk.as_ref() }?;
        chunk.get(place % CHUNK)
    }

    /// A slot that nobody has.
    fn room(&'static self) -> Option<(u32, &'static Slot<T>)> {
        // Who makes requests that are over at once gives the same one back each time.
        if self.spare.load(Ordering::Relaxed) != 0
            && let Some(place) = self.spare.swap(0, Ordering::Acquire).checked_sub(1)
        {
            return Some((place, self.slot(place)?));
        }
        let mut places = lock(&self.places);
        let is_full = places.used as usize == CHUNKS * CHUNK;
        if places.free.len() > RESTING || is_full {
            let place = places.free.pop_front()?;
            return Some((place, self.slot(place)?));
        }
        let place = places.used;
        let chunk = self.chunks.get(place as usize / CHUNK)?;
        if chunk.load(Ordering::Relaxed).is_null() {
            let slot = || Slot { state: AtomicU64::new(0), value: UnsafeCell::new(None) };
            let slots: Box<[Slot<T>; CHUNK]> = Box::new(std::array::from_fn(|_| slot()));
            chunk.store(Box::leak(slots), Ordering::Release);
        }
        places.used += 1;
        Some((place, self.slot(place)?))
    }

    /// A handle of a new object.
    ///
    /// # Errors
    /// There are a million.
    pub(crate) fn insert(&'static self, value: T) -> Done<RawHandle> {
        Ok(self.reserve()?.fill(value))
    }

    /// A handle of an object that is yet to be made. Until then it is none.
    ///
    /// # Errors
    /// There are a million.
    #[inline]
    pub(crate) fn reserve(&'static self) -> Done<Reserved<T>> {
        let full = || Fail::new(face::ERR_NO_MEM, format!("there are a million {}", self.what));
        let (place, slot) = self.room().ok_or_else(full)?;
        Ok(Reserved { slots: self, slot, place, filled: false, told: false })
    }

    fn find(&'static self, handle: RawHandle) -> Option<(u32, &'static Slot<T>)> {
        // A handle of 64 bits that does not fit into 32 is none.
        let whole = Some(face::number(handle)).filter(|number| face::handle(*number) == handle)?;
        let number = whole.checked_sub(MADE).filter(|number| *number < 1 << 28)?;
        Some((number >> SLOT_BITS, self.slot(place(handle))?))
    }

    /// The object of a handle. `None`: it was freed, or never was one.
    #[inline]
    pub(crate) fn get(&'static self, handle: RawHandle) -> Option<InUse<T>> {
        let (of, slot) = self.find(handle)?;
        let state = slot.state.fetch_add(1, Ordering::Acquire);
        let it = InUse { slots: self, slot, handle };
        (state & LIVE != 0 && generation(state) == of).then_some(it)
    }

    /// Frees a handle: whether it was one. The object goes when nobody uses it.
    pub(crate) fn free(&'static self, handle: RawHandle) -> bool {
        let Some((of, slot)) = self.find(handle) else { return false };
        let dead =
            |state: u64| (state & LIVE != 0 && generation(state) == of).then_some(state & !LIVE);
        if slot.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, dead).is_err() {
            return false;
        }
        // The table's own use.
        drop(InUse { slots: self, slot, handle });
        true
    }

    /// The handles of all objects, for when all are freed.
    pub(crate) fn all(&'static self) -> Vec<RawHandle> {
        let used = lock(&self.places).used;
        let handle = |place| {
            let state = self.slot(place)?.state.load(Ordering::Relaxed);
            let made = MADE | generation(state) << SLOT_BITS | place;
            (state & LIVE != 0).then(|| face::handle(made))
        };
        (0..used).filter_map(handle).collect()
    }
}

/// A handle whose object is yet to be made.
pub(crate) struct Reserved<T: 'static> {
    slots: &'static Slots<T>,
    slot: &'static Slot<T>,
    place: u32,
    filled: bool,
    /// Whether a program may know the handle.
    told: bool,
}

// SAFETY: it puts a value into its slot, from whatever thread.
unsafe impl<T: Send + Sync> Send for Reserved<T> {}
// SAFETY: `&Reserved` gives its number alone.
unsafe impl<T: Send + Sync> Sync for Reserved<T> {}

impl<T> Reserved<T> {
    /// What the handle will be, for a program.
    pub(crate) fn tell(&mut self) -> RawHandle {
        self.told = true;
        self.handle()
    }

    /// What the handle is, or will be.
    pub(crate) fn handle(&self) -> RawHandle {
        let generation = generation(self.slot.state.load(Ordering::Relaxed));
        face::handle(MADE | generation << SLOT_BITS | self.place)
    }

    /// Here the object is.
    pub(crate) fn fill(mut self, value: T) -> RawHandle {
        // SAFETY: `room` gives a slot to one caller, and it is empty and not live: nobody else looks at the value.
        unsafe { *self.slot.value.get() = Some(value) };
        // One user: the table itself.
        let made = |state: u64| Some((state + 1) | LIVE | FULL);
        let _ = self.slot.state.fetch_update(Ordering::Release, Ordering::Relaxed, made);
        self.filled = true;
        self.handle()
    }
}

impl<T> Drop for Reserved<T> {
    fn drop(&mut self) {
        if self.filled {
            return;
        }
        if !self.told {
            if let Some(other) =
                self.slots.spare.swap(self.place + 1, Ordering::AcqRel).checked_sub(1)
            {
                lock(&self.slots.places).free.push_front(other);
            }
            return;
        }
        // Who looks at it meanwhile counts as a user.
        let skipped = |state: u64| Some(next(state) | state & USERS);
        let _ = self.slot.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, skipped);
        lock(&self.slots.places).free.push_back(self.place);
    }
}

impl<T> InUse<T> {
    pub(crate) fn handle(&self) -> RawHandle {
        self.handle
    }

    /// Frees its handle. The object goes now, unless others use it.
    pub(crate) fn free(self) {
        let this = ManuallyDrop::new(self);
        let of = (face::number(this.handle) - MADE) >> SLOT_BITS;
        // The users are the table itself, and this one.
        let alone = |state: u64| {
            let alone = generation(state) == of && state & (LIVE | USERS) == LIVE | 2;
            alone.then_some(next(state))
        };
        match this.slot.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, alone) {
            Ok(_) => vacate(this.slots, this.slot, place(this.handle)),
            Err(_) => {
                this.slots.free(this.handle);
                drop(ManuallyDrop::into_inner(this));
            }
        }
    }
}

impl<T> Deref for InUse<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this counts as a user of a slot that was live then, so nobody takes the value out, nor changes it.
        let value = unsafe { &*self.slot.value.get() };
        match value {
            Some(value) => value,
            None => unreachable!("a live slot has a value"),
        }
    }
}

impl<T> Drop for InUse<T> {
    #[inline]
    fn drop(&mut self) {
        let state = self.slot.state.fetch_sub(1, Ordering::AcqRel);
        if state & USERS == 1 && state & LIVE == 0 {
            empty(self.slots, self.slot, place(self.handle));
        }
    }
}

/// Takes the value out, if nobody uses it any more.
#[cold]
fn empty<T>(slots: &'static Slots<T>, slot: &'static Slot<T>, place: u32) {
    let taken = |state: u64| {
        let unused = state & (USERS | LIVE) == 0 && state & FULL != 0;
        unused.then_some(next(state))
    };
    if slot.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, taken).is_err() {
        // Somebody looked at it meanwhile, and does this when it has looked; or somebody has.
        return;
    }
    vacate(slots, slot, place);
}

/// Drops the value of a slot that the caller has made dead and empty, and lets others have the slot.
fn vacate<T>(slots: &'static Slots<T>, slot: &'static Slot<T>, place: u32) {
    // SAFETY: the slot is dead and empty, which one caller alone has made it, and not free yet: nobody else looks here.
    unsafe { *slot.value.get() = None };
    lock(&slots.places).free.push_back(place);
}

impl<T> Clone for InUse<T> {
    fn clone(&self) -> InUse<T> {
        // One more user of a value that this use keeps.
        self.slot.state.fetch_add(1, Ordering::Relaxed);
        InUse { slots: self.slots, slot: self.slot, handle: self.handle }
    }
}

/// A predefined object and its handle, or one that a program has made.
pub(crate) enum Object<T: 'static> {
    Predefined(&'static T, RawHandle),
    Made(InUse<T>),
}

impl<T> Object<T> {
    /// Frees its handle, if a program may.
    #[inline]
    pub(crate) fn free(self) {
        if let Object::Made(it) = self {
            it.free();
        }
    }

    #[inline]
    pub(crate) fn handle(&self) -> RawHandle {
        match self {
            Object::Predefined(_, handle) => *handle,
            Object::Made(it) => it.handle(),
        }
    }
}

impl<T> Clone for Object<T> {
    fn clone(&self) -> Object<T> {
        match self {
            Object::Predefined(it, handle) => Object::Predefined(it, *handle),
            Object::Made(it) => Object::Made(it.clone()),
        }
    }
}

impl<T> std::fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.handle())
    }
}

impl<T> Deref for Object<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Object::Predefined(it, _) => it,
            Object::Made(it) => it,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn freed_handles_and_numbers_that_are_none_find_nothing() {
        static SLOTS: Slots<Arc<u32>> = Slots::new("numbers");
        let value = Arc::new(7);
        let handle = SLOTS.insert(Arc::clone(&value)).unwrap();
        let used = SLOTS.get(handle).unwrap();
        assert!(SLOTS.free(handle));
        assert!(!SLOTS.free(handle), "it is freed once");
        assert!(SLOTS.get(handle).is_none());
        assert_eq!(**used, 7, "who uses it has it");
        drop(used);
        assert_eq!(Arc::strong_count(&value), 1);
        for _ in 0..16_000 {
            let next = SLOTS.insert(Arc::clone(&value)).unwrap();
            assert_ne!(handle, next, "the same slot is another generation");
            assert!(SLOTS.get(handle).is_none());
            assert!(SLOTS.free(next));
        }
        assert!(lock(&SLOTS.places).used <= 70, "slots are used again");
        let next = SLOTS.insert(Arc::clone(&value)).unwrap();
        for number in [0, 1, 0x101, 0x6fff_ffff, 0x7000_0001, 0x7fff_ffff, u32::MAX] {
            assert!(SLOTS.get(face::handle(number)).is_none(), "{number:#x}");
        }
        assert_eq!(SLOTS.all(), [next]);
    }

    #[test]
    fn threads_that_look_while_others_free_see_whole_values_or_none() {
        static SLOTS: Slots<Arc<[u64; 4]>> = Slots::new("numbers");
        let alive = Arc::new([9; 4]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let handle = SLOTS.insert(Arc::clone(&alive)).unwrap();
                        // Others' handles, freed or not.
                        for other in
                            [handle, face::handle(MADE), face::handle(MADE | 1 << SLOT_BITS | 1)]
                        {
                            if let Some(found) = SLOTS.get(other) {
                                assert_eq!(**found, [9; 4]);
                            }
                        }
                        assert!(SLOTS.free(handle));
                    }
                });
            }
        });
        assert_eq!(Arc::strong_count(&alive), 1, "all values are gone");
    }
}
