//! What origins have in pieces, or on a device: it is packed first, and unpacked last, in memory of the host.

use crate::elements::check_apart;
use crate::exposure::WindowPart;
use crate::place::{Access, Place};
use crate::reading::Reading;
use crate::window::{CallError, Driver, Window};
use gapless_engine::{Engine, ReduceOp, Typed};
use gapless_mem::{DeviceError, Outstanding, Region};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes that are packed at a time.
const CHUNK: u64 = 16 << 10;
/// The same where a device has the memory: each time costs a way to it.
const DEVICE_CHUNK: u64 = 1 << 20;

/// The bytes of a packed stream that is one contiguous span in memory of the host.
///
/// # Safety
/// For all of `'a`, `typed` describes memory that is valid for reads, and that nobody writes.
#[must_use]
#[inline]
pub unsafe fn contiguous_span<'a>(typed: &Typed) -> Option<&'a [u8]> {
    let region = typed.as_contiguous()?;
    let len = usize::try_from(region.len()).ok()?;
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: the region lies inside that of `typed`, for which the caller vouches; views describe initialised bytes.
    Some(unsafe { std::slice::from_raw_parts(region.as_ptr()?, len) })
}

/// As [`contiguous_span`], to be written.
///
/// # Safety
/// For all of `'a`, `typed` describes memory that is valid for reads and writes, and that nobody else touches.
#[must_use]
#[inline]
pub unsafe fn contiguous_span_mut<'a>(typed: &Typed) -> Option<&'a mut [u8]> {
    let region = typed.as_contiguous()?;
    let len = usize::try_from(region.len()).ok()?;
    if len == 0 {
        return Some(&mut []);
    }
    // SAFETY: as in `contiguous_span`, and exclusively.
    Some(unsafe { std::slice::from_raw_parts_mut(region.as_ptr()?, len) })
}

/// The longest room that a thread keeps for its next packed stream: pages that are new cost more than bytes that are copied.
const KEPT: usize = 4 << 20;

thread_local! {
    static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Room for a packed stream, which the thread uses again.
struct Room {
    all: Vec<u8>,
    len: usize,
}

impl Room {
    fn new(bytes: u64) -> Result<Room, DeviceError> {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut last = LAST.try_with(RefCell::take).unwrap_or_default();
        if last.len() < len {
            last = room(bytes)?;
        }
        Ok(Room { all: last, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.all[..self.len]
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.all);
        if all.len() <= KEPT {
            let _ = LAST.try_with(|last| last.replace(all));
        }
    }
}

/// Allocates a zeroed buffer for a packed stream.
///
/// # Errors
/// There is not so much memory.
pub fn room(bytes: u64) -> Result<Vec<u8>, DeviceError> {
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|error| DeviceError::OutOfMemory {
        device: "the host".to_owned(),
        len: bytes,
        reason: error.to_string(),
    })?;
    room.resize(len, 0);
    Ok(room)
}

/// Unpacks bytes into the memory that `typed` describes, by an engine, and waits for it.
///
/// # Safety
/// During the call, `typed` describes memory that is valid for reads and writes, and that nobody else touches.
///
/// # Errors
/// The engine's.
pub unsafe fn unpack<E: CallError>(
    engine: &dyn Engine,
    typed: &Typed,
    range: Range<u64>,
    bytes: &[u8],
) -> Result<(), E> {
    // SAFETY: the caller's promise; the bytes are borrowed, and the work is waited for.
    let work = unsafe { engine.unpack(Region::of(bytes), typed, range, &[]) }?;
    Ok(Outstanding::new(work).wait()?)
}

/// Packs a range of what is described.
///
/// # Safety
/// During the call, `typed` describes memory that is valid for reads, and that nobody writes.
unsafe fn pack<E: CallError>(
    engine: &dyn Engine,
    typed: &Typed,
    range: Range<u64>,
    into: &mut [u8],
) -> Result<(), E> {
    // SAFETY: the caller's promise; `into` is borrowed exclusively, and the work is waited for.
    let work = unsafe { engine.pack(typed, range, Region::of_mut(into), &[]) }?;
    Ok(Outstanding::new(work).wait()?)
}

/// All bytes of what is described, packed.
///
/// # Safety
/// As [`pack`].
pub(crate) unsafe fn give_all<R, E: CallError>(
    engine: &dyn Engine,
    typed: &Typed,
    take: impl FnOnce(&[u8]) -> Result<R, E>,
) -> Result<R, E> {
    // SAFETY: the caller's promise.
    if let Some(bytes) = unsafe { contiguous_span(typed) } {
        return take(bytes);
    }
    let mut packed = Room::new(typed.packed_bytes())?;
    let packed = packed.bytes();
    // SAFETY: the caller's promise.
    unsafe { pack::<E>(engine, typed, 0..typed.packed_bytes(), packed) }?;
    take(packed)
}

impl Window {
    fn chunk(&self, origin: &Typed) -> u64 {
        match &self.own {
            WindowPart::Host(_) if origin.space().cpu_accessible() => CHUNK,
            _ => DEVICE_CHUNK,
        }
    }

    /// Gives all bytes of what is described, packed, in pieces.
    ///
    /// # Safety
    /// As [`pack`].
    unsafe fn give_pieces<E: CallError>(
        &self,
        typed: &Typed,
        mut take: impl FnMut(Range<u64>, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = typed.packed_bytes();
        // SAFETY: the caller's promise.
        if let Some(bytes) = unsafe { contiguous_span(typed) } {
            return take(0..all, bytes);
        }
        let chunk = self.chunk(typed);
        let mut packed = Room::new(all.min(chunk))?;
        let packed = packed.bytes();
        let mut start = 0;
        while start < all {
            let end = all.min(start + chunk);
            let len = usize::try_from(end - start).unwrap_or(packed.len());
            // SAFETY: the caller's promise.
            unsafe { pack::<E>(self.engine(), typed, start..end, &mut packed[..len]) }?;
            take(start..end, &packed[..len])?;
            start = end;
        }
        Ok(())
    }

    /// Fills what is described, in pieces.
    ///
    /// # Safety
    /// As [`unpack`].
    unsafe fn take_pieces<E: CallError>(
        &self,
        typed: &Typed,
        mut give: impl FnMut(Range<u64>, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        check_apart(typed)?;
        let all = typed.packed_bytes();
        // SAFETY: the caller's promise.
        if let Some(bytes) = unsafe { contiguous_span_mut(typed) } {
            return give(0..all, bytes);
        }
        let chunk = self.chunk(typed);
        let mut packed = Room::new(all.min(chunk))?;
        let packed = packed.bytes();
        let mut start = 0;
        while start < all {
            let end = all.min(start + chunk);
            let len = usize::try_from(end - start).unwrap_or(packed.len());
            give(start..end, &mut packed[..len])?;
            // SAFETY: the caller's promise.
            unsafe { unpack::<E>(self.engine(), typed, start..end, &packed[..len]) }?;
            start = end;
        }
        Ok(())
    }

    /// [`load`](Window::load) of all that `origin` describes.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads and writes, and that nobody else touches.
    ///
    /// # Errors
    /// As there; `origin` has some byte twice; an engine's.
    pub unsafe fn load_all<E: CallError>(&self, access: &Access, origin: &Typed) -> Result<(), E> {
        let load = |range: Range<u64>, bytes: &mut [u8]| Ok(self.load(access, range, bytes)?);
        // SAFETY: the caller's promise.
        unsafe { self.take_pieces(origin, load) }
    }

    /// [`store`](Window::store) of all that `origin` describes.
    ///
    /// # Safety
    /// During the call, `origin` describes memory that is valid for reads, and that nobody writes.
    ///
    /// # Errors
    /// As there; an engine's.
    pub unsafe fn store_all<E: CallError>(&self, access: &Access, origin: &Typed) -> Result<(), E> {
        let store = |range: Range<u64>, bytes: &[u8]| Ok(self.store(access, range, bytes)?);
        // SAFETY: the caller's promise.
        unsafe { self.give_pieces(origin, store) }
    }

    /// [`put`](Window::put) of all that `origin` describes: run by run into memory that is mapped, if the runs of both
    /// sides correspond ([`put_runs`](Window::put_runs)); else packed, a piece at a time. Then the target has its
    /// [notice](Window::with_notice).
    ///
    /// # Safety
    /// As [`store_all`](Window::store_all).
    ///
    /// # Errors
    /// As `put`; an engine's.
    pub unsafe fn put_all<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        origin: &Typed,
    ) -> Result<(), D::Error> {
        let put = |range: Range<u64>, bytes: &[u8]| self.put(driver, access, range, bytes);
        if access.packed_bytes() == 0 {
            put(0..0, &[])?;
        // SAFETY: the caller's promise.
        } else if !unsafe { self.put_runs(driver, access, origin) }? {
            // SAFETY: the caller's promise.
            unsafe { self.give_pieces(origin, put) }?;
        }
        self.give_notice(access);
        Ok(())
    }

    /// [`get`](Window::get) of all that `origin` describes, packed, a piece at a time.
    ///
    /// # Safety
    /// As [`load_all`](Window::load_all).
    pub(crate) unsafe fn get_pieces<D: Driver>(
        &self,
        driver: &D,
        access: &Access,
        origin: &Typed,
    ) -> Result<(), D::Error> {
        let get = |range: Range<u64>, bytes: &mut [u8]| self.get(driver, access, range, bytes);
        // SAFETY: the caller's promise.
        unsafe { self.take_pieces(origin, get) }
    }

    /// [`accumulate`](Window::accumulate) of all that `origin` describes.
    ///
    /// # Safety
    /// As [`store_all`](Window::store_all).
    ///
    /// # Errors
    /// As `accumulate`; an engine's.
    pub unsafe fn accumulate_all<D: Driver>(
        &self,
        driver: &D,
        what: (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
    ) -> Result<(), D::Error> {
        // SAFETY: the caller's promise.
        if unsafe { self.accumulate_runs(driver, what, (origin, at)) }? {
            return Ok(());
        }
        let accumulate = |bytes: &[u8]| self.accumulate(driver, what, (origin, at), bytes);
        // SAFETY: the caller's promise.
        unsafe { give_all(self.engine(), origin, accumulate) }
    }

    /// [`start_get_accumulate`](Window::start_get_accumulate) of all that `origin` describes, which is not looked at if
    /// nothing is given.
    ///
    /// # Safety
    /// As [`store_all`](Window::store_all).
    ///
    /// # Errors
    /// As there; an engine's.
    pub unsafe fn start_get_accumulate_all<D: Driver>(
        &self,
        driver: &D,
        what: (&Access, ReduceOp),
        (origin, at): (&Typed, &Place),
    ) -> Result<Reading, D::Error> {
        let begin = |bytes: &[u8]| self.start_get_accumulate(driver, what, (origin, at), bytes);
        match what.1 {
            ReduceOp::NoOp => begin(&[]),
            // SAFETY: the caller's promise.
            _ => unsafe { give_all(self.engine(), origin, begin) },
        }
    }
}
