//! Layouts as peers tell them to each other.

mod remote_indices;

use gapless_dtype::{Convertor, FlattenError, Layout, Pages};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Region;
pub(crate) use remote_indices::RemoteIndexPages;
use std::sync::OnceLock;

/// How the instances of a buffer lie.
#[derive(Clone, Debug)]
pub(crate) enum WireLayout {
    /// One after the other.
    Layout(Layout),
    /// At indices, which are of one message.
    Pages(Pages),
    /// The same; the indices lie in memory of the peer's device, and a key stands for them.
    RemoteIndices(RemoteIndexPages),
}

/// A layout, or pages, that are flattened when a peer first needs them.
#[derive(Debug)]
pub(crate) struct FlatLayout {
    layout: WireLayout,
    len: u64,
    bytes: OnceLock<Vec<u8>>,
}

impl WireLayout {
    /// What flattened bytes are of. Trusts nothing.
    pub(crate) fn unflatten(flat: &[u8]) -> Result<WireLayout, FlattenError> {
        if RemoteIndexPages::are_flattened(flat) {
            return RemoteIndexPages::unflatten(flat).map(WireLayout::RemoteIndices);
        }
        match Pages::are_flattened(flat) {
            true => Pages::unflatten(flat).map(WireLayout::Pages),
            false => Layout::unflatten(flat).map(WireLayout::Layout),
        }
    }

    /// A cursor over `count` instances.
    ///
    /// # Errors
    /// More bytes than can be counted; indices that a device alone reads.
    pub(crate) fn convertor(&self, count: u64) -> Result<Convertor, EngineError> {
        match self {
            WireLayout::Layout(layout) => Ok(Convertor::new(layout, count)?),
            WireLayout::Pages(pages) => Ok(Convertor::of_pages(pages)),
            WireLayout::RemoteIndices(_) => Err(EngineError::DeviceIndices),
        }
    }

    /// The instances in a region; `indices` are what their key stands for, if they have one.
    pub(crate) fn in_region(
        &self,
        region: Region,
        origin: u64,
        (count, indices): (u64, Option<Region>),
    ) -> Result<Typed, EngineError> {
        match (self, indices) {
            (WireLayout::Layout(layout), _) => Typed::new(region, origin, layout, count),
            (WireLayout::Pages(pages), _) => Typed::pages(region, origin, pages),
            (WireLayout::RemoteIndices(pages), Some(indices)) => {
                pages.in_region(region, origin, indices)
            }
            (WireLayout::RemoteIndices(_), None) => Err(EngineError::DeviceIndices),
        }
    }
}

impl FlatLayout {
    pub(crate) fn new(layout: WireLayout) -> FlatLayout {
        let len = match &layout {
            WireLayout::Layout(layout) => layout.flattened_bytes(),
            WireLayout::Pages(pages) => pages.flattened_bytes(),
            WireLayout::RemoteIndices(pages) => pages.flattened_bytes(),
        };
        FlatLayout { layout, len, bytes: OnceLock::new() }
    }

    /// Its length in bytes, which is known before it is flattened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The flattened layout.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| match &self.layout {
            WireLayout::Layout(layout) => layout.flatten(),
            WireLayout::Pages(pages) => pages.flatten(),
            WireLayout::RemoteIndices(pages) => pages.flatten(),
        })
    }

    /// The flattened layout, if it has `most` bytes at most; else nothing.
    pub(crate) fn inline(&self, most: usize) -> &[u8] {
        if self.len <= most as u64 { self.bytes() } else { &[] }
    }
}
