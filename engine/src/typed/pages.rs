//! The pages that a buffer is, with indices in memory of the host or of a device.

use gapless_dtype::{Layout, Pages};
use gapless_mem::Region;

/// A page, repeated at indices that lie in memory of a device, as [`Pages`] are at indices in memory of the host. What
/// the indices are is known to kernels alone, which check each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePages {
    pub(super) page: Layout,
    pub(super) stride: u64,
    pub(super) indices: Region,
    pub(super) wide: bool,
    /// The largest index whose page lies inside the region.
    pub(super) last: u64,
}

/// The pages that a [`Typed`](super::Typed) is.
#[derive(Clone, Copy, Debug)]
pub enum PagesOf<'a> {
    /// Indices in memory of the host.
    Host(&'a Pages),
    /// Indices in memory of a device.
    Device(&'a DevicePages),
}

impl DevicePages {
    /// The layout of a page.
    #[must_use]
    pub fn page(&self) -> &Layout {
        &self.page
    }

    /// Bytes from an index to the next.
    #[must_use]
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Where the indices lie.
    #[must_use]
    pub fn indices(&self) -> Region {
        self.indices
    }

    /// Whether indices have 64 bits, not 32. They have no sign.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// The largest index whose page lies inside the memory. No byte of a page with a larger one is touched.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl PagesOf<'_> {
    /// Bytes of an index: 4 or 8.
    #[must_use]
    pub fn index_bytes(self) -> u32 {
        match self {
            PagesOf::Host(pages) => pages.indices().index_bytes().into(),
            PagesOf::Device(pages) => index_bytes(pages.wide),
        }
    }
}

/// Bytes of an index in memory of a device.
#[must_use]
pub fn index_bytes<T: From<u8>>(wide: bool) -> T {
    T::from(if wide { 8 } else { 4 })
}
