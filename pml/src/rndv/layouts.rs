//! Layouts on the wire: what we have published to peers, and what we have learnt from them.
//!
//! ```text
//! sender                                  receiver
//!   | RTS(layout id, its length) ---------> | not inline, not in the cache
//!   | <--- LAYOUT-REQUEST(piece size) ----- |
//!   | flatten, LAYOUT-DATA(offset) -------> | all there: unflatten, which trusts nothing
//! ```
//!
//! For a buffer that the sender may write (`rndv/mapped_put.rs`) the roles are swapped: the sender asks, the receiver
//! sends. No two names are equal, so the same messages serve.
//!
//! An identifier names one layout for ever: it is a counter. Both caches are bounded in bytes and entries; the least
//! recently used entries leave first. Pages are named for one message, by numbers from [`PAGES`] on: what is remembered
//! of layouts is not forgotten for such names.

use crate::digests::identity;
use crate::hash::FastMap;
use crate::links::{FlatLayout, RemoteIndexPages, WireLayout};
use crate::rndv::pieces::Pieces;
use crate::tuning::Bounds;
use crate::wire::LAYOUT_BYTES;
use gapless_bml::{Fragment, RemoteKey};
use gapless_dtype::{FlattenFault, Layout, SignatureDecodeError};
use gapless_engine::{PagesOf, Typed};
use std::sync::Arc;

/// The names of pages have this bit, those of layouts have not.
const PAGES: u64 = 1 << 63;

/// Whether a name is that of pages, which no other message uses.
pub(crate) fn is_of_pages(name: u64) -> bool {
    name & PAGES != 0
}

/// Layouts of ours that peers may ask for, by object.
#[derive(Debug)]
pub(crate) struct Published {
    entries: FastMap<usize, LayoutEntry>,
    bytes: u64,
    next_id: u64,
    uses: u64,
    entries_max: usize,
    bytes_max: u64,
}

#[derive(Debug)]
struct LayoutEntry {
    id: u64,
    /// Keeps the layout's object, so that its address stays its own.
    flat: Arc<FlatLayout>,
    used: u64,
}

impl Published {
    pub(crate) fn new(bounds: &Bounds) -> Published {
        Published {
            entries: FastMap::default(),
            bytes: 0,
            next_id: 1,
            uses: 0,
            entries_max: bounds.layout_cache_entries.max(1),
            bytes_max: bounds.layout_cache_bytes,
        }
    }

    /// The identifier and the bytes of how instances lie; `None` if no peer can be told: as for a layout, or because
    /// their indices lie in memory of a device, and there is no key `indices` for them. Those of pages are not kept:
    /// the next message has others.
    pub(crate) fn publish_of(
        &mut self,
        typed: &Typed,
        indices: Option<RemoteKey>,
    ) -> Option<(u64, Arc<FlatLayout>)> {
        let pages = match typed.as_pages() {
            None => return self.publish(typed.layout()),
            Some(PagesOf::Device(pages)) => {
                WireLayout::RemoteIndices(RemoteIndexPages::new(pages, indices?))
            }
            Some(PagesOf::Host(pages)) => WireLayout::Pages(pages.clone()),
        };
        let flat = FlatLayout::new(pages);
        if flat.len() > self.bytes_max {
            return None;
        }
        self.next_id += 1;
        Some((PAGES | (self.next_id - 1), Arc::new(flat)))
    }

    /// The identifier of a layout and its bytes; `None` if it is longer than the whole cache, so that it would be
    /// flattened and fetched anew for every message.
    fn publish(&mut self, layout: &Layout) -> Option<(u64, Arc<FlatLayout>)> {
        let address = identity(layout);
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.used = self.uses;
            return Some((entry.id, Arc::clone(&entry.flat)));
        }
        let flat = Arc::new(FlatLayout::new(WireLayout::Layout(layout.clone())));
        if flat.len() > self.bytes_max {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.bytes += flat.len();
        self.entries.insert(address, LayoutEntry { id, flat: Arc::clone(&flat), used: self.uses });
        while self.entries.len() > self.entries_max || self.bytes > self.bytes_max {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(address) = oldest.map(|(address, _)| *address) else { break };
            if let Some(gone) = self.entries.remove(&address) {
                self.bytes -= gone.flat.len();
            }
        }
        Some((id, flat))
    }
}

/// How many messages came with each of some layouts, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Uses(FastMap<u64, u32>);

impl Uses {
    /// Counts a message with a layout; gives how many there were, as a power of two: choices are remembered, and would
    /// differ from message to message. `most` layouts are remembered, then all are forgotten; pages are not.
    pub(crate) fn count(&mut self, id: u64, most: usize) -> u64 {
        if is_of_pages(id) {
            return 1;
        }
        if self.0.len() >= most && !self.0.contains_key(&id) {
            self.0.clear();
        }
        let count = self.0.entry(id).or_insert(0);
        *count = count.saturating_add(1);
        1 << count.ilog2()
    }

    /// A layout was fetched. If the cache drops it later, or it could not be decoded, its messages are counted from 1
    /// again.
    pub(crate) fn paid(&mut self, id: u64) {
        self.0.remove(&id);
    }
}

/// Layouts of one peer, by its identifiers.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Those that were not fetched.
    pub(crate) unknown: Uses,
    entries: FastMap<u64, (Layout, u64, u64)>,
    bytes: u64,
    uses: u64,
}

impl Fetched {
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.entries.contains_key(&id)
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<WireLayout> {
        let (layout, _, used) = self.entries.get_mut(&id)?;
        self.uses += 1;
        *used = self.uses;
        Some(WireLayout::Layout(layout.clone()))
    }

    /// Decodes a layout and keeps it, or pages. `Ok(None)`: it may be sound, but exceeds this decoder's bounds.
    pub(crate) fn insert(
        &mut self,
        id: u64,
        flat: &[u8],
        bounds: &Bounds,
    ) -> Result<Option<WireLayout>, String> {
        if let Some(known) = self.get(id) {
            return Ok(Some(known));
        }
        let layout = match WireLayout::unflatten(flat) {
            Ok(WireLayout::Layout(layout)) => layout,
            Ok(pages) => return Ok(Some(pages)),
            Err(error) if is_beyond_bounds(&error.reason) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        self.uses += 1;
        self.bytes += flat.len() as u64;
        self.entries.insert(id, (layout.clone(), flat.len() as u64, self.uses));
        while self.entries.len() > bounds.layout_cache_entries
            || self.bytes > bounds.layout_cache_bytes
        {
            let oldest = self.entries.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(id) = oldest.map(|(id, _)| *id) else { break };
            if let Some((_, len, _)) = self.entries.remove(&id) {
                self.bytes -= len;
            }
        }
        Ok(Some(WireLayout::Layout(layout)))
    }
}

/// Whether a layout was refused for its size and not for its contents: commit has no such bounds for signatures, so
/// an honest peer may have one.
fn is_beyond_bounds(fault: &FlattenFault) -> bool {
    use SignatureDecodeError as Signature;
    matches!(
        fault,
        FlattenFault::TooManyOps
            | FlattenFault::TooDeep
            | FlattenFault::Signature(Signature::TooLarge { .. } | Signature::TooDeep)
    )
}

/// A layout on its way here.
#[derive(Debug)]
pub(crate) struct Fetch {
    bytes: Vec<u8>,
    pieces: Pieces,
}

impl Fetch {
    /// Of `length` bytes, which was compared with the bound, in pieces of `piece` bytes.
    pub(crate) fn new(length: u64, piece: u64) -> Fetch {
        let bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        Fetch { bytes, pieces: Pieces::new(0, length, piece) }
    }

    /// Takes a piece; gives all of the layout, once it is there.
    pub(crate) fn take(
        &mut self,
        offset: u64,
        length: u64,
        fragment: &Fragment,
    ) -> Result<Option<Vec<u8>>, String> {
        let wrong = || format!("a piece of a layout of {length} bytes, which is another's");
        if length != self.bytes.len() as u64 {
            return Err(wrong());
        }
        let len = fragment.len() - LAYOUT_BYTES;
        self.pieces.take(offset, len as u64)?;
        let at = usize::try_from(offset).map_err(|error| error.to_string())?;
        let place = self.bytes.get_mut(at..at + len).ok_or_else(wrong)?;
        fragment.read(LAYOUT_BYTES, place).map_err(|error| error.to_string())?;
        Ok(self.pieces.complete().then(|| std::mem::take(&mut self.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Pages, Primitive};
    use gapless_mem::{Region, Space};

    fn list(blocks: i64) -> Layout {
        let at: Vec<i64> = (0..blocks).map(|i| 2 * i + i % 3).collect();
        Datatype::indexed_block(1, &at, &Primitive::Double.into()).unwrap().commit().unwrap()
    }

    #[test]
    fn uses_are_counted_in_powers_of_two_and_bounded() {
        let mut uses = Uses::default();
        let counts: Vec<u64> = (0..9).map(|_| uses.count(7, 2)).collect();
        assert_eq!(counts, [1, 2, 2, 4, 4, 4, 4, 8, 8]);
        assert_eq!((uses.count(8, 2), uses.count(7, 2)), (1, 8));
        uses.paid(8);
        assert_eq!(uses.count(8, 2), 1, "after a fetch its price counts anew");
        assert_eq!((uses.count(9, 2), uses.count(7, 2)), (1, 1), "all were forgotten");
    }

    #[test]
    fn what_is_longer_than_all_that_is_kept_is_not_published_and_others_stay() {
        let bounds = Bounds { layout_cache_bytes: 4096, ..Bounds::default() };
        let mut published = Published::new(&bounds);
        let (short, long) = (list(20), list(2000));
        let (id, flat) = published.publish(&short).unwrap();
        assert!(flat.len() < 4096 && long.flatten().len() > 4096);
        assert_eq!(flat.bytes(), short.flatten());
        assert_eq!(flat.inline(4096), short.flatten());
        assert_eq!(flat.inline(8), []);
        for _ in 0..3 {
            assert!(published.publish(&long).is_none());
            assert_eq!(published.publish(&short).unwrap().0, id);
        }
    }

    #[test]
    fn pages_are_named_once_and_not_remembered() {
        let bounds = Bounds { layout_cache_bytes: 4096, ..Bounds::default() };
        let mut published = Published::new(&bounds);
        let memory = Region::new(Space::Host, 4096, 0, 1 << 20);
        let pages = |page: &Layout, count: u32| {
            let indices: Vec<u32> = (0..count).collect();
            Typed::pages(memory, 0, &Pages::new(page, 8, indices).unwrap()).unwrap()
        };
        let (some, page) = (pages(&list(1), 100), list(1));
        let names = [&some, &some].map(|typed| {
            let (name, flat) = published.publish_of(typed, None).unwrap();
            assert_eq!(flat.bytes().len() as u64, flat.len());
            name
        });
        assert!(names[0] != names[1] && names.into_iter().all(is_of_pages), "{names:?}");
        assert!(!is_of_pages(published.publish(&page).unwrap().0));
        assert_eq!(published.entries.len(), 1, "no pages");
        let mut uses = Uses::default();
        assert_eq!((uses.count(7, 2), uses.count(7, 2)), (1, 2));
        assert!((0..9).all(|message| uses.count(PAGES | message, 2) == 1));
        assert_eq!(uses.count(7, 2), 2, "it was not forgotten");
        // Too long are a list, and a page.
        let named = published.next_id;
        assert!(published.publish_of(&pages(&page, 1000), None).is_none());
        assert!(published.publish_of(&pages(&list(2000), 1), None).is_none());
        assert_eq!(published.next_id, named);
    }

    #[test]
    fn the_published_layout_that_was_used_longest_ago_makes_room() {
        let layouts = [20, 21, 22].map(list);
        let lens = layouts.each_ref().map(|layout| layout.flatten().len() as u64);
        let two = Bounds { layout_cache_bytes: lens[1] + lens[2], ..Bounds::default() };
        let few = Bounds { layout_cache_entries: 2, ..Bounds::default() };
        for bounds in [two, few] {
            let mut published = Published::new(&bounds);
            let mut id = |which: usize| published.publish(&layouts[which]).unwrap().0;
            let first = [id(0), id(1), id(0)];
            assert_eq!(first[0], first[2], "both fit");
            let third = id(2);
            assert_eq!((id(0), id(2)), (first[0], third), "used later than the other one");
            assert_eq!(published.entries.len(), 2, "{bounds:?}");
            let kept: u64 = published.entries.values().map(|entry| entry.flat.len()).sum();
            assert_eq!(published.bytes, kept);
            let again = published.publish(&layouts[1]).unwrap().0;
            assert!(![first[0], first[1], third].contains(&again), "an identifier comes once");
        }
        let exact = Bounds { layout_cache_bytes: lens[0], ..Bounds::default() };
        assert!(Published::new(&exact).publish(&layouts[0]).is_some(), "it fits exactly");
    }

    #[test]
    fn the_fetched_layout_that_was_used_longest_ago_makes_room() {
        let flats = [20, 21, 22].map(|blocks| list(blocks).flatten());
        let lens = flats.each_ref().map(|flat| flat.len() as u64);
        let two = Bounds { layout_cache_bytes: lens[1] + lens[2], ..Bounds::default() };
        let few = Bounds { layout_cache_entries: 2, ..Bounds::default() };
        for bounds in [two, few] {
            let mut fetched = Fetched::default();
            for (id, flat) in (1..).zip(&flats[..2]) {
                assert!(fetched.insert(id, flat, &bounds).unwrap().is_some());
            }
            assert!(fetched.knows(1) && fetched.knows(2), "both fit: {bounds:?}");
            let Some(WireLayout::Layout(first)) = fetched.get(1) else { panic!("it is kept") };
            assert_eq!(first.flatten(), flats[0]);
            fetched.insert(3, &flats[2], &bounds).unwrap();
            assert!(fetched.knows(1) && !fetched.knows(2) && fetched.knows(3), "{bounds:?}");
            assert_eq!(fetched.bytes, lens[0] + lens[2]);
            assert!(fetched.get(2).is_none());
            // What came last was used last.
            fetched.insert(2, &flats[1], &bounds).unwrap();
            assert!(fetched.knows(3) && fetched.knows(2) && !fetched.knows(1), "{bounds:?}");
        }
    }
}
