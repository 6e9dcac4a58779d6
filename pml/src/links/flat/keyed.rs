//! Pages whose indices lie in memory of a device, as a peer is told of them. The indices do not travel: a key stands
//! for them, by which the peer's device reads them where they are.
//!
//! ```text
//! GKEY | version 2 | width 2 | stride 8 | count 8 | bytes of the page 8 | the page's layout | the key
//! ```
//!
//! A peer is not trusted. What its indices are does not matter: the kernel that reads them checks each, against the
//! memory that is mapped here.

use gapless_bml::RemoteKey;
use gapless_dtype::{FlattenError, FlattenFault, Layout};
use gapless_engine::{DevicePages, EngineError, Typed};
use gapless_mem::Region;

/// What they begin with, and their version.
const MAGIC: [u8; 4] = *b"GKEY";
const VERSION: u16 = 1;
/// Bytes before the page's layout.
const HEAD: usize = 32;

/// Pages at indices that a key stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyedPages {
    page: Layout,
    stride: u64,
    count: u64,
    /// Whether indices have 64 bits, not 32.
    wide: bool,
    key: RemoteKey,
}

impl KeyedPages {
    /// Those of a buffer of ours, whose indices `key` stands for.
    pub(crate) fn new(pages: &DevicePages, key: RemoteKey) -> KeyedPages {
        let (page, stride, wide) = (pages.page().clone(), pages.stride(), pages.is_wide());
        let count = pages.indices().len() / if wide { 8 } else { 4 };
        KeyedPages { page, stride, count, wide, key }
    }

    /// What stands for the indices.
    pub(crate) fn key(&self) -> &RemoteKey {
        &self.key
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Packed bytes of all pages, if memory of `span` bytes from displacement `low` on has room for a page.
    pub(crate) fn packed_size(&self, low: i64, span: u64) -> Option<u64> {
        let page = self.page.true_lb().abs_diff(self.page.true_ub());
        let fits = low == self.page.true_lb() && page <= span;
        self.page.size().checked_mul(self.count).filter(|_| fits)
    }

    /// The pages in a region, at indices that are mapped at `indices`.
    pub(super) fn in_region(
        &self,
        region: Region,
        origin: u64,
        indices: Region,
    ) -> Result<Typed, EngineError> {
        let typed =
            Typed::device_pages(region, origin, &self.page, self.stride, (indices, self.wide))?;
        if typed.count() != self.count {
            let width = if self.wide { 8 } else { 4 };
            return Err(EngineError::IndexMemory { indices: Box::new(indices), width });
        }
        Ok(typed)
    }

    pub(super) fn flattened_bytes(&self) -> u64 {
        self.page.flattened_bytes() + (HEAD + self.key.as_bytes().len()) as u64
    }

    pub(super) fn flatten(&self) -> Vec<u8> {
        let page = self.page.flatten();
        let width: u16 = if self.wide { 8 } else { 4 };
        let mut out = Vec::from(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(width.to_le_bytes());
        let numbers = [self.stride, self.count, page.len() as u64];
        out.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
        out.extend(page);
        out.extend(self.key.as_bytes());
        out
    }

    /// Whether bytes are of such pages, if they are of a layout or of pages.
    pub(super) fn are_flattened(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The pages that `bytes` are the whole [`flatten`](Self::flatten) of. Trusts nothing.
    pub(super) fn unflatten(bytes: &[u8]) -> Result<KeyedPages, FlattenError> {
        let fault = |offset, reason| FlattenError { offset, reason };
        let truncated = fault(bytes.len().min(HEAD), FlattenFault::Truncated);
        let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(truncated)?;
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let long = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (found, expected) = (short(4), VERSION);
        if found != expected {
            return Err(fault(4, FlattenFault::Version { found, expected }));
        }
        let wide = match short(6) {
            4 => false,
            8 => true,
            _ => {
                let what = "indices of neither 4 nor 8 bytes";
                return Err(fault(6, FlattenFault::Malformed(what)));
            }
        };
        let page_bytes = usize::try_from(long(24)).unwrap_or(usize::MAX);
        let (page, key) = rest.split_at_checked(page_bytes).ok_or(truncated)?;
        let page =
            Layout::unflatten(page).map_err(|error| fault(HEAD + error.offset, error.reason))?;
        let no_key = fault(HEAD + page_bytes, FlattenFault::Malformed("no key of indices"));
        let key = RemoteKey::new(key).filter(|_| !key.is_empty()).ok_or(no_key)?;
        Ok(KeyedPages { page, stride: long(8), count: long(16), wide, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_mem::Space;

    const DEVICE: Space = Space::Device { kind: "fake", device: 0 };

    fn pages() -> KeyedPages {
        let page = Datatype::contiguous(5, &Primitive::Double.into()).unwrap().commit().unwrap();
        let key = RemoteKey::new(&[7; 40]).unwrap();
        KeyedPages { page, stride: 64, count: 9, wide: true, key }
    }

    #[test]
    fn they_are_read_as_they_are_written() {
        for wide in [true, false] {
            let pages = KeyedPages { wide, ..pages() };
            let flat = pages.flatten();
            assert_eq!(flat.len() as u64, pages.flattened_bytes());
            assert_eq!(KeyedPages::unflatten(&flat), Ok(pages));
        }
    }

    #[test]
    fn what_is_no_such_thing_is_refused() {
        let (flat, page) = (pages().flatten(), pages().page.flatten().len());
        for len in 0..flat.len() - 40 + 1 {
            assert!(KeyedPages::unflatten(&flat[..len]).is_err(), "{len} bytes");
        }
        assert!(KeyedPages::unflatten(&[&flat[..], &[0; 41]].concat()).is_err(), "a key of 81");
        for (at, value) in [(4, 2), (6, 5), (24, 255), (31, 1), (HEAD, 0), (HEAD + page - 1, 99)] {
            let mut bad = flat.clone();
            bad[at] = value;
            assert!(KeyedPages::unflatten(&bad).is_err(), "byte {at}");
        }
    }

    /// The indices cannot be longer or shorter than was told, and no page need fit.
    #[test]
    fn a_peer_that_tells_something_else_is_refused() {
        let pages = pages();
        assert_eq!(pages.packed_size(0, 40), Some(360));
        assert_eq!(pages.packed_size(0, 39), None);
        assert_eq!(pages.packed_size(8, 4000), None);
        assert_eq!(KeyedPages { count: u64::MAX / 8, ..pages.clone() }.packed_size(0, 40), None);
        let memory = Region::new(DEVICE, 4096, 0, 64 * 3 + 40);
        let list = |bytes| Region::new(DEVICE, 1 << 20, 0, bytes);
        let typed = pages.in_region(memory, 0, list(72)).unwrap();
        assert_eq!((typed.count(), typed.packed_bytes()), (9, 360));
        let odd = Region::new(DEVICE, (1 << 20) + 4, 0, 72);
        let host = Region::new(Space::Host, 1 << 20, 0, 72);
        for indices in [list(64), list(80), list(71), odd, host] {
            let refused = pages.in_region(memory, 0, indices);
            assert!(matches!(refused, Err(EngineError::IndexMemory { .. })), "{refused:?}");
        }
        assert!(pages.in_region(memory.sub(0, 39).unwrap(), 0, list(72)).is_err());
    }
}
