//! Signature digests of buffers that are used again and again.
//!
//! A digest of `n` instances takes time logarithmic in `n`; for small messages that would be a large
//! part of the whole.

use crate::hash::WordHasher;
use gapless_dtype::{Layout, SignatureDigest};
use std::hash::Hasher;

/// Pairs of layout and count that are remembered; each keeps its layout alive.
const ENTRIES: usize = 64;

#[derive(Debug)]
struct Entry {
    layout: Layout,
    count: u64,
    digest: SignatureDigest,
}

/// Digests by layout object and count; a newcomer takes the place of whoever has it.
#[derive(Debug)]
pub(crate) struct Digests {
    entries: Box<[Option<Entry>; ENTRIES]>,
}

impl Default for Digests {
    fn default() -> Digests {
        Digests { entries: Box::new([const { None }; ENTRIES]) }
    }
}

/// Two handles of one layout object have the same; the signature lies inside the object.
pub(crate) fn identity(layout: &Layout) -> usize {
    std::ptr::from_ref(layout.signature()).addr()
}

impl Digests {
    /// The digest of `count` instances.
    #[inline]
    pub(crate) fn of(&mut self, layout: &Layout, count: u64) -> SignatureDigest {
        let mut hasher = WordHasher::default();
        hasher.write_usize(identity(layout));
        hasher.write_u64(count);
        // The upper half is the better mixed one.
        let place = (hasher.finish() >> 40) as usize % ENTRIES;
        match &self.entries[place] {
            Some(entry) if entry.count == count && identity(&entry.layout) == identity(layout) => {
                entry.digest
            }
            _ => self.remember(place, layout, count),
        }
    }

    #[cold]
    fn remember(&mut self, place: usize, layout: &Layout, count: u64) -> SignatureDigest {
        let digest = layout.signature().digest(count);
        self.entries[place] = Some(Entry { layout: layout.clone(), count, digest });
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Primitive};

    #[test]
    fn digests_are_those_of_the_signature() {
        let mut digests = Digests::default();
        for length in 1..50 {
            let double = Datatype::contiguous(length, &Primitive::Double.into()).unwrap();
            let layout = double.commit().unwrap();
            for count in (0..20).chain(0..20) {
                assert_eq!(digests.of(&layout, count), layout.signature().digest(count));
            }
        }
    }
}
