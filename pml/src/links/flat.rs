//! Layouts as peers tell them to each other.

use gapless_dtype::{Convertor, ConvertorError, FlattenError, Layout, Pages};
use gapless_engine::{EngineError, Typed};
use gapless_mem::Region;
use std::sync::OnceLock;

/// How the instances of a buffer lie.
#[derive(Clone, Debug)]
pub(crate) enum WireLayout {
    /// One after the other.
    Layout(Layout),
    /// At indices, which are of one message.
    Pages(Pages),
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
        match Pages::are_flattened(flat) {
            true => Pages::unflatten(flat).map(WireLayout::Pages),
            false => Layout::unflatten(flat).map(WireLayout::Layout),
        }
    }

    /// A cursor over `count` instances.
    pub(crate) fn convertor(&self, count: u64) -> Result<Convertor, ConvertorError> {
        match self {
            WireLayout::Layout(layout) => Convertor::new(layout, count),
            WireLayout::Pages(pages) => Ok(Convertor::of_pages(pages)),
        }
    }

    /// The instances in a region.
    pub(crate) fn in_region(
        &self,
        region: Region,
        origin: u64,
        count: u64,
    ) -> Result<Typed, EngineError> {
        match self {
            WireLayout::Layout(layout) => Typed::new(region, origin, layout, count),
            WireLayout::Pages(pages) => Typed::pages(region, origin, pages),
        }
    }
}

impl FlatLayout {
    pub(crate) fn new(layout: WireLayout) -> FlatLayout {
        let len = match &layout {
            WireLayout::Layout(layout) => layout.flattened_bytes(),
            WireLayout::Pages(pages) => pages.flattened_bytes(),
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
        })
    }

    /// The flattened layout, if it has `most` bytes at most; else nothing.
    pub(crate) fn inline(&self, most: usize) -> &[u8] {
        if self.len <= most as u64 { self.bytes() } else { &[] }
    }
}
