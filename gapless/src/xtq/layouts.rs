//! Payloads that lie by a layout in memory of this process: packed when the put goes, straight into where it goes. A ring is
//! written word by word, so bodies that go into one pass the stack, long ones through 512 bytes of it.

use crate::error::Error;
use crate::owned::{Owned, OwnedBuffer, Refused};
use crate::view::{View, pages_in, region_of, typed_in};
use gapless_dtype::{ElementType, Equivalence, Layout, Pages};
use gapless_engine::Typed;
use gapless_mem::{DeviceError, Region};
use gapless_xtq::{Gather, GatherInto, Payload, XtqError};
use std::sync::Arc;

/// Bytes that pass the stack at a time.
const CHUNK: usize = 512;

/// A layout in memory that a put owns, alone or with others.
struct LaidOut<M> {
    typed: Typed,
    /// Keeps the memory.
    _memory: M,
}

impl<M: Send + Sync> Gather for LaidOut<M> {
    fn bytes(&self) -> usize {
        // Less than the memory has, or a layout that names bytes more than once: what is more is refused by the put.
        usize::try_from(self.typed.packed_bytes()).unwrap_or(usize::MAX)
    }

    fn gather(&self, from: usize, into: &mut GatherInto<'_>) {
        // SAFETY: whoever made this vouches that the memory stays what it is, and is not written, until it is dropped.
        unsafe { pack(&self.typed, from as u64, into) }
    }
}

/// Packs the bytes from `from` on, until the place is full.
///
/// # Safety
/// `typed` describes memory that is valid for reads, and that nothing of this process writes.
unsafe fn pack(typed: &Typed, from: u64, into: &mut GatherInto<'_>) {
    let (Some(start), Ok(mut convertor)) = (typed.region().as_ptr(), typed.convertor()) else {
        return;
    };
    if convertor.seek(from).is_err() {
        return;
    }
    // Inside the region, or so far outside that no byte is named.
    let origin = usize::try_from(typed.origin()).unwrap_or(0);
    let origin = start.wrapping_add(origin).cast_const();
    let left = usize::try_from(convertor.remaining()).unwrap_or(usize::MAX).min(into.left());
    if let Some(region) = into.direct(left) {
        if let Some(to) = region.as_ptr() {
            // SAFETY: `Typed` has checked that all runs lie inside its region, which the caller says is valid for reads. The
            // place gives memory that is valid for writes and nobody else's, so not of the source.
            let _ = unsafe { convertor.pack_raw(origin, to, region.len()) };
        }
        return;
    }
    let mut chunk = [0; CHUNK];
    while into.left() > 0 && convertor.remaining() > 0 {
        let bytes = CHUNK.min(into.left()) as u64;
        // SAFETY: as above; the chunk is as long, and this call's.
        let packed = unsafe { convertor.pack_raw(origin, chunk.as_mut_ptr(), bytes) };
        into.write(&chunk[..usize::try_from(packed).unwrap_or(CHUNK)]);
    }
}

/// What a layout names of elements that several share, as the payload of a task: `count` instances; displacement 0 is
/// `origin` *elements* into them. They are not copied before the put goes. The layout has to fit the elements as
/// [`View::typed`] says; it may have holes, and may name a byte twice.
///
/// An [`Owned`] buffer becomes a payload by `Payload::try_from`, and so does a [`View`], which is packed at once because it is
/// only borrowed.
///
/// ```
/// use gapless::xtq::{Payload, by_layout};
/// use gapless::{Datatype, Primitive};
/// use std::sync::Arc;
/// let matrix: Arc<[u32]> = (0..12).collect(); // 3 × 4
/// let column = Datatype::vector(3, 1, 4, &Primitive::of::<u32>().into())?.commit()?;
/// let payload = Payload::pieces([by_layout(&matrix, 1, &column, 1)?, vec![7].into()]);
/// assert_eq!(payload.to_vec(), [1, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 7]);
/// # Ok::<(), gapless::Error>(())
/// ```
///
/// # Errors
/// The instances reach outside the elements, or their bytes overflow 64 bits; [`Error::Fit`].
pub fn by_layout<T: Equivalence>(
    elements: &Arc<[T]>,
    origin: u64,
    layout: &Layout,
    count: u64,
) -> Result<Payload, Error> {
    shared(elements, |region, element| typed_in(region, element, origin, layout, count))
}

/// Pages of elements that several share, as [`by_layout`]: displacement 0 is `origin` *elements* into them. They fit as
/// [`View::pages`] says; an index may occur twice.
///
/// # Errors
/// A page reaches outside the elements; [`Error::Fit`].
pub fn by_pages<T: Equivalence>(
    elements: &Arc<[T]>,
    origin: u64,
    pages: &Pages,
) -> Result<Payload, Error> {
    shared(elements, |region, element| pages_in(region, element, origin, pages))
}

fn shared<T: Equivalence>(
    elements: &Arc<[T]>,
    describe: impl FnOnce(Region, ElementType) -> Result<Typed, Error>,
) -> Result<Payload, Error> {
    // A payload is dropped under a lock, where no code of users may run.
    const { assert!(!std::mem::needs_drop::<T>(), "elements that are dropped by code of their own") };
    let region = region_of(elements.as_ptr(), elements.len());
    let typed = describe(region, ElementType::of::<T>())?;
    // The shared slice stays where it is while somebody has it, and elements that have a datatype do not change behind a
    // shared reference.
    Ok(Payload::gathered(Arc::new(LaidOut { typed, _memory: Arc::clone(elements) })))
}

/// The list is the put's until the target has accepted it.
impl<T: Equivalence> TryFrom<Owned<Vec<T>>> for Payload {
    type Error = Refused<Vec<T>>;

    fn try_from(owned: Owned<Vec<T>>) -> Result<Payload, Refused<Vec<T>>> {
        of_owned::<T, _>(owned)
    }
}

/// The slice is the put's until the target has accepted it.
impl<T: Equivalence> TryFrom<Owned<Box<[T]>>> for Payload {
    type Error = Refused<Box<[T]>>;

    fn try_from(owned: Owned<Box<[T]>>) -> Result<Payload, Refused<Box<[T]>>> {
        of_owned::<T, _>(owned)
    }
}

/// A buffer that is dropped without code of users: not one that keeps a lease of somebody's.
fn of_owned<T, B>(owned: Owned<B>) -> Result<Payload, Refused<B>>
where
    B: OwnedBuffer<Item = T>,
    B::Parked: Sync,
{
    // As in `shared`.
    const { assert!(!std::mem::needs_drop::<T>(), "elements that are dropped by code of their own") };
    let (memory, typed) = owned.park()?;
    // Parked memory stays where it is until it is dropped or taken out, which nobody does.
    Ok(Payload::gathered(Arc::new(LaidOut { typed, _memory: memory })))
}

/// Packed at once: a put may outlive the view. Memory of a device is not read, nor are pages whose indices lie there.
impl TryFrom<View<'_>> for Payload {
    type Error = Error;

    fn try_from(view: View<'_>) -> Result<Payload, Error> {
        let space = view.typed.space();
        if !space.cpu_accessible() {
            return Err(DeviceError::WrongSpace { device: "the CPU".to_owned(), space }.into());
        }
        // Refuses indices that lie in memory of a device.
        view.typed.convertor()?;
        let bytes = usize::try_from(view.typed.packed_bytes()).unwrap_or(usize::MAX);
        if u32::try_from(bytes).is_err() {
            // No put takes so many.
            return Err(XtqError::PayloadTooLong { bytes }.into());
        }
        let laid_out = LaidOut { typed: view.typed.clone(), _memory: () };
        // The view lives until the copy is made.
        Ok(Payload::gathered(Arc::new(laid_out)).to_vec().into())
    }
}

#[cfg(test)]
mod tests;
