//! Signature digests of buffers that are used again and again.
//!
//! A digest of `n` instances takes time logarithmic in `n`; for a small message that would be a large part of its
//! whole cost.

use crate::hash::WordHasher;
use crate::wire;
use gapless_dtype::{Layout, SignatureDigest};
use std::hash::Hasher;

/// Pairs of layout and count that are remembered; each keeps its layout alive.
const ENTRIES: usize = 64;

#[derive(Debug)]
struct DigestEntry {
    layout: Layout,
    count: u64,
    digest: SignatureDigest,
    word: u64,
}

/// Digests by layout object and count; a new entry replaces the one in its place.
#[derive(Debug)]
pub(crate) struct Digests {
    entries: Box<[Option<DigestEntry>; ENTRIES]>,
    /// The last answer, which is among `entries`.
    last: Last,
}

/// The layout and the count of an entry, and what a header has of its digest: the hash and the elements.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    identity: usize,
    count: u64,
    words: (u64, u64),
}

impl Default for Digests {
    fn default() -> Digests {
        Digests { entries: Box::new([const { None }; ENTRIES]), last: Last::default() }
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
        self.with_word(layout, count).0
    }

    /// What a header has of the digest of `count` instances: its hash, and how many elements.
    #[inline(always)] // on short messages' path
    pub(crate) fn words(&mut self, layout: &Layout, count: u64) -> (u64, u64) {
        let identity = identity(layout);
        if self.last.identity != identity || self.last.count != count {
            let (digest, word) = self.with_word(layout, count);
            // Nothing else is remembered without becoming the last, so its layout is alive.
            self.last = Last { identity, count, words: (word, digest.elements) };
        }
        self.last.words
    }

    /// The digest of `count` instances, and the word of a header that has its hash.
    #[inline(never)]
    fn with_word(&mut self, layout: &Layout, count: u64) -> (SignatureDigest, u64) {
        let mut hasher = WordHasher::default();
        hasher.write_usize(identity(layout));
        hasher.write_u64(count);
        // The upper half is the better mixed one.
        let place = (hasher.finish() >> 40) as usize % ENTRIES;
        match &self.entries[place] {
            Some(entry) if entry.count == count && identity(&entry.layout) == identity(layout) => {
                (entry.digest, entry.word)
            }
            _ => self.remember(place, layout, count),
        }
    }

    #[cold]
    fn remember(&mut self, place: usize, layout: &Layout, count: u64) -> (SignatureDigest, u64) {
        let digest = layout.signature().digest(count);
        let word = wire::hash_word(&digest);
        // Its layout may go with the entry that this takes the place of.
        self.last = Last::default();
        self.entries[place] = Some(DigestEntry { layout: layout.clone(), count, digest, word });
        (digest, word)
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
                let digest = layout.signature().digest(count);
                let words = (wire::hash_word(&digest), digest.elements);
                assert_eq!(digests.words(&layout, count), words);
                assert_eq!(digests.of(&layout, count), digest);
                assert_eq!(digests.words(&layout, count), words);
            }
        }
    }
}
