//! The other end's buffer, mapped here.

use super::{Buffer, Transfer};
use crate::links::WireLayout;
use gapless_bml::Mapping;
use gapless_engine::{Engine, EngineError, Typed};
use gapless_mem::{Device, Outstanding, Region};
use std::sync::Arc;

/// What the other end says about its buffer.
#[derive(Clone, Copy)]
pub(crate) struct RemoteShape<'a> {
    /// The bytes it touches, relative to displacement 0.
    pub(crate) low: i64,
    pub(crate) span: u64,
    /// Instances of the layout.
    pub(crate) count: u64,
    /// `None` if it has no gaps.
    pub(crate) layout: Option<&'a WireLayout>,
}

/// The other end's buffer in a mapping of what it touches. Every byte that it touches lies in the mapping.
#[derive(Debug)]
pub(crate) struct Remote {
    typed: Typed,
    /// Keeps the memory, which is valid for reads and writes, and which no reference of this process covers; and the
    /// indices of its pages, if a key stands for them.
    _mappings: (Mapping, Option<Mapping>),
}

impl Remote {
    /// Finds the buffer in the mapping, and its pages by the indices that are mapped. An error says what the other end
    /// got wrong.
    pub(crate) fn new(
        shape: RemoteShape<'_>,
        (mapping, indices): (Mapping, Option<Mapping>),
    ) -> Result<Remote, String> {
        let RemoteShape { low, span, layout, .. } = shape;
        let mapped = mapping.region();
        let short = |_| format!("a key for {} bytes of a buffer that spans {span}", mapped.len());
        let mapped = mapped.sub(0, span).map_err(short)?;
        let typed = match layout {
            None => Typed::contiguous(mapped),
            Some(layout) => {
                // It touches `span` bytes from displacement `low` on, and the mapping starts with these.
                packed_size(layout, shape.count, low, span)?;
                let indices = indices.as_ref().map(Mapping::region);
                Self::place(mapped, (low, span), layout, (shape.count, indices))?
            }
        };
        Ok(Remote { typed, _mappings: (mapping, indices) })
    }

    fn place(
        mapped: Region,
        (low, span): (i64, u64),
        layout: &WireLayout,
        instances: (u64, Option<Region>),
    ) -> Result<Typed, String> {
        // If displacement 0 is before the mapping, the region below starts before it: only bytes from `low` on are
        // touched.
        let (region, origin) = match u64::try_from(low) {
            Ok(before) => {
                let start = mapped.address().wrapping_sub(before);
                let len = before.saturating_add(span);
                (Region::new(mapped.space(), start, mapped.offset(), len), 0)
            }
            Err(_) => (mapped, low.unsigned_abs()),
        };
        layout.in_region(region, origin, instances).map_err(|error| error.to_string())
    }

    /// What engines work on.
    pub(crate) fn typed(&self) -> &Typed {
        &self.typed
    }
}

impl Buffer {
    /// Moves the first `bytes` of `remote` to the start of this buffer: the `mover`'s device copies them, if it has one
    /// and neither side has gaps, else its engine moves them.
    pub(crate) fn copy_from_remote(
        &self,
        mover: &Mover<'_>,
        remote: Remote,
        bytes: u64,
    ) -> Result<Transfer<Remote>, EngineError> {
        // SAFETY: all that `remote` touches is valid for reads while the transfer has it (its owner may write it: then
        // these are arbitrary bytes). This buffer is promised while the transfer has a clone of it.
        let work = unsafe { mover.moved((remote.typed(), &self.typed), bytes) }?;
        Ok(Transfer::new(work, self, remote))
    }

    /// Moves the first `bytes` of this buffer to the start of `remote`, by what
    /// [`copy_from_remote`](Buffer::copy_from_remote) chooses.
    pub(crate) fn copy_to_remote(
        &self,
        mover: &Mover<'_>,
        remote: Remote,
        bytes: u64,
    ) -> Result<Transfer<Remote>, EngineError> {
        // SAFETY: this buffer is promised while the transfer has a clone of it. All that `remote` touches is valid for
        // writes, and no reference's of this process, while the transfer has it. Its owner was asked for it; what an
        // owner does to it meanwhile changes what it receives, nothing else.
        let work = unsafe { mover.moved((&self.typed, remote.typed()), bytes) }?;
        Ok(Transfer::new(work, self, remote))
    }
}

/// What moves data between a buffer of ours and the other end's.
pub(crate) struct Mover<'a> {
    pub(crate) engine: &'a dyn Engine,
    /// Copies what has no gaps.
    pub(crate) copier: Option<Arc<dyn Device>>,
}

impl Mover<'_> {
    /// Moves the first `bytes` of one side to the start of the other.
    ///
    /// # Safety
    /// Until the work is over, `from` is valid for reads and `into` for writes, and no reference of this process covers
    /// what is written.
    unsafe fn moved(
        &self,
        (from, into): (&Typed, &Typed),
        bytes: u64,
    ) -> Result<Outstanding, EngineError> {
        let sides = from.as_contiguous().zip(into.as_contiguous());
        let work = if let Some((device, (from, into))) = self.copier.as_ref().zip(sides) {
            let (into, from) = (into.sub(0, bytes)?, from.sub(0, bytes)?);
            // SAFETY: the caller's promise.
            unsafe { device.copy(into, from, &[]) }?
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.engine.transfer(from, into, 0..bytes, &[]) }?
        };
        Ok(Outstanding::new(work))
    }
}

/// The packed bytes of `count` instances of a peer's layout, which must touch just `span` bytes from `low` on; of pages
/// whose indices are not known here, none of any others.
pub(crate) fn packed_size(
    layout: &WireLayout,
    count: u64,
    low: i64,
    span: u64,
) -> Result<u64, String> {
    let other = |pages: u64| Err(format!("{pages} pages, of which {count} were told"));
    if let WireLayout::RemoteIndices(pages) = layout {
        return match pages.packed_size(low, span) {
            _ if pages.count() != count => other(pages.count()),
            Some(packed) => Ok(packed),
            None => Err("pages that do not fit what was told of their memory".to_owned()),
        };
    }
    let convertor = layout.convertor(count).map_err(|error| error.to_string())?;
    if convertor.count() != count {
        return other(convertor.count());
    }
    let told = (low, low.saturating_add(i64::try_from(span).unwrap_or(i64::MAX)));
    if convertor.bounds() != Some(told) {
        return Err("a layout that touches other bytes than was told".to_owned());
    }
    Ok(convertor.packed_size())
}
