//! What a rank gives to a window: memory of the host, or of a device.

use crate::device_buf::DeviceBuf;
use crate::error::Error;
use crate::owned::{Park, RawList};
use crate::shared::Shared;
use crate::shared_buf::SharedBuf;
use gapless_dtype::AnyBits;
use gapless_engine::{Engine, EngineError, Typed};
use gapless_mem::{Lease, Outstanding, Region};
use gapless_osc::WindowError;
use std::sync::Arc;

/// Bytes of zeros that are written at a time.
const ZEROS: u64 = 4 << 20;

/// Gives back the memory of a window that no longer exists.
pub(super) type GivesBack<M> = Box<dyn FnOnce() -> M + Send + Sync>;

pub trait Sealed: Sized {
    /// The bytes, with what keeps them, and a way to get the value back. Until the value is back, and as long as somebody
    /// uses the lease, its bytes are accessed through the lease alone.
    fn lend(self) -> Result<(Lease, GivesBack<Self>), Error>;
}

/// Memory that a window can be made of: a [`SharedBuf`] or a [`DeviceBuf`], which are bytes, or a `Vec` of `Copy` values
/// that have [`AnyBits`] and no padding. [`Window::free`](super::Window::free) gives it back.
///
/// Peers on this host can map a `SharedBuf` of [`World::alloc`](crate::World::alloc). Other ranks access a `Vec` by
/// messages.
pub trait WindowMemory: Sealed {
    /// What displacements count.
    type Element: AnyBits;
}

impl Sealed for SharedBuf {
    fn lend(self) -> Result<(Lease, GivesBack<Self>), Error> {
        Ok((self.lease()?, Box::new(move || self)))
    }
}

impl WindowMemory for SharedBuf {
    type Element = u8;
}

impl Sealed for DeviceBuf {
    fn lend(self) -> Result<(Lease, GivesBack<Self>), Error> {
        Ok((self.lease(), Box::new(move || self)))
    }
}

impl WindowMemory for DeviceBuf {
    type Element = u8;
}

impl<T: AnyBits + Copy> Sealed for Vec<T> {
    fn lend(self) -> Result<(Lease, GivesBack<Self>), Error> {
        // Others read all bytes. Bytes of padding are not initialised.
        let layout = T::layout();
        if !layout.is_contiguous() || layout.size() != size_of::<T>() as u64 {
            let flavor = "elements with padding";
            return Err(WindowError::Flavor { call: "create", flavor }.into());
        }
        let list = Arc::new(RawList::of(self));
        let region = Park::<Vec<T>>::region(&*list);
        // SAFETY: the list owns the memory, and never moves it.
        let lease = unsafe { Lease::new(region, Arc::clone(&list) as _) };
        let give_back = move || {
            Arc::try_unwrap(list).map_or_else(
                // A rank of this process has not let go of its window yet, which it does not use any more.
                // SAFETY: as the window is no more, nothing writes the elements.
                |list| unsafe { list.copy() },
                RawList::into_list,
            )
        };
        Ok((lease, Box::new(give_back)))
    }
}

impl<T: AnyBits + Copy> WindowMemory for Vec<T> {
    type Element = T;
}

/// Writes zeros to all of a device's memory.
pub(super) fn clear(shared: &Shared, memory: &mut DeviceBuf) -> Result<(), Error> {
    let all = memory.region();
    let zeros = vec![0u8; usize::try_from(all.len().min(ZEROS)).unwrap_or_default()];
    let mut start = 0;
    while start < all.len() {
        let len = (all.len() - start).min(ZEROS);
        let piece = all.sub(start, len).map_err(EngineError::from)?;
        let from = Region::of(&zeros).sub(0, len).map_err(EngineError::from)?;
        // SAFETY: the buffer is borrowed exclusively, the zeros live, and the work is waited for.
        let work = unsafe { shared.tools.unpack(from, &Typed::contiguous(piece), 0..len, &[]) }?;
        Outstanding::new(work).wait()?;
        start += len;
    }
    Ok(())
}
