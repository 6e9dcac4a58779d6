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
use gapless_dtype::{FlattenError, FlattenFault, PagesHead};
use gapless_engine::{DevicePages, EngineError, Typed, index_bytes};
use gapless_mem::Region;

/// What they begin with.
const MAGIC: [u8; 4] = *b"GKEY";

/// Pages at indices that a key stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RemoteIndexPages {
    head: PagesHead,
    key: RemoteKey,
}

impl RemoteIndexPages {
    /// Those of a buffer of ours, whose indices `key` stands for.
    pub(crate) fn new(pages: &DevicePages, key: RemoteKey) -> RemoteIndexPages {
        let index_bytes = index_bytes::<u16>(pages.is_wide());
        let count = pages.indices().len() / u64::from(index_bytes);
        let (page, stride) = (pages.page().clone(), pages.stride());
        RemoteIndexPages { head: PagesHead { page, stride, count, index_bytes }, key }
    }

    /// What stands for the indices.
    pub(crate) fn key(&self) -> &RemoteKey {
        &self.key
    }

    pub(crate) fn count(&self) -> u64 {
        self.head.count
    }

    /// Packed bytes of all pages, if memory of `span` bytes from displacement `low` on has room for a page.
    pub(crate) fn packed_size(&self, low: i64, span: u64) -> Option<u64> {
        let page = self.head.page.true_lb().abs_diff(self.head.page.true_ub());
        let fits = low == self.head.page.true_lb() && page <= span;
        self.head.page.size().checked_mul(self.head.count).filter(|_| fits)
    }

    /// The pages in a region, at indices that are mapped at `indices`.
    pub(super) fn in_region(
        &self,
        region: Region,
        origin: u64,
        indices: Region,
    ) -> Result<Typed, EngineError> {
        let PagesHead { page, stride, count, index_bytes } = &self.head;
        let list = (indices, *index_bytes == 8);
        let typed = Typed::device_pages(region, origin, page, *stride, list)?;
        if typed.count() != *count {
            let width = (*index_bytes).into();
            return Err(EngineError::IndexMemory { indices: Box::new(indices), width });
        }
        Ok(typed)
    }

    pub(super) fn flattened_bytes(&self) -> u64 {
        self.head.flattened_bytes() + self.key.as_bytes().len() as u64
    }

    pub(super) fn flatten(&self) -> Vec<u8> {
        let mut out = self.head.flatten(MAGIC);
        out.extend(self.key.as_bytes());
        out
    }

    /// Whether bytes are of such pages, if they are of a layout or of pages.
    pub(super) fn are_flattened(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// The pages that `bytes` are the whole [`flatten`](Self::flatten) of. Trusts nothing.
    pub(super) fn unflatten(bytes: &[u8]) -> Result<RemoteIndexPages, FlattenError> {
        let (head, key) = PagesHead::unflatten(MAGIC, bytes)?;
        let reason = FlattenFault::Malformed("no key of indices");
        let no_key = FlattenError { offset: bytes.len() - key.len(), reason };
        let key = RemoteKey::new(key).filter(|_| !key.is_empty()).ok_or(no_key)?;
        Ok(RemoteIndexPages { head, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};
    use gapless_mem::Space;

    const DEVICE: Space = Space::Device { kind: "fake", device: 0 };

    fn pages() -> RemoteIndexPages {
        let page = Datatype::contiguous(5, &Primitive::Double.into()).unwrap().commit().unwrap();
        let key = RemoteKey::new(&[7; 40]).unwrap();
        RemoteIndexPages { head: PagesHead { page, stride: 64, count: 9, index_bytes: 8 }, key }
    }

    #[test]
    fn they_are_read_as_they_are_written() {
        for index_bytes in [4, 8] {
            let mut pages = pages();
            pages.head.index_bytes = index_bytes;
            let flat = pages.flatten();
            assert_eq!(flat.len() as u64, pages.flattened_bytes());
            assert_eq!(RemoteIndexPages::unflatten(&flat), Ok(pages));
        }
    }

    #[test]
    fn what_is_no_such_thing_is_refused() {
        let (flat, page) = (pages().flatten(), pages().head.page.flatten().len());
        for len in 0..flat.len() - 40 + 1 {
            assert!(RemoteIndexPages::unflatten(&flat[..len]).is_err(), "{len} bytes");
        }
        assert!(
            RemoteIndexPages::unflatten(&[&flat[..], &[0; 41]].concat()).is_err(),
            "a key of 81"
        );
        for (at, value) in [(4, 2), (6, 5), (24, 255), (31, 1), (32, 0), (32 + page - 1, 99)] {
            let mut bad = flat.clone();
            bad[at] = value;
            assert!(RemoteIndexPages::unflatten(&bad).is_err(), "byte {at}");
        }
    }

    /// The indices cannot be longer or shorter than was told, and no page need fit.
    #[test]
    fn a_peer_that_tells_something_else_is_refused() {
        let pages = pages();
        assert_eq!(pages.packed_size(0, 40), Some(360));
        assert_eq!(pages.packed_size(0, 39), None);
        assert_eq!(pages.packed_size(8, 4000), None);
        let mut endless = pages.clone();
        endless.head.count = u64::MAX / 8;
        assert_eq!(endless.packed_size(0, 40), None);
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
