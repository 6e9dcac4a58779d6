//! Layouts as they are sent to peers.

use gapless_dtype::{Layout, Pages};
use std::sync::OnceLock;

/// A layout, or pages, that are flattened when a peer first needs them.
#[derive(Debug)]
pub(crate) struct FlatLayout {
    source: Source,
    len: u64,
    bytes: OnceLock<Vec<u8>>,
}

#[derive(Debug)]
enum Source {
    Layout(Layout),
    Pages(Pages),
}

impl FlatLayout {
    pub(crate) fn new(layout: &Layout) -> FlatLayout {
        let (source, len) = (Source::Layout(layout.clone()), layout.flattened_bytes());
        FlatLayout { source, len, bytes: OnceLock::new() }
    }

    pub(crate) fn of_pages(pages: &Pages) -> FlatLayout {
        let (source, len) = (Source::Pages(pages.clone()), pages.flattened_bytes());
        FlatLayout { source, len, bytes: OnceLock::new() }
    }

    /// Its length in bytes, which is known before it is flattened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The flattened layout.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| match &self.source {
            Source::Layout(layout) => layout.flatten(),
            Source::Pages(pages) => pages.flatten(),
        })
    }

    /// The flattened layout, if it has `most` bytes at most; else nothing.
    pub(crate) fn inline(&self, most: usize) -> &[u8] {
        if self.len <= most as u64 { self.bytes() } else { &[] }
    }
}
