//! Lists of entries by key: the queues that matching is made of.
//!
//! An [`Index`] keeps, for each key, its entries in the order of [`push`](Index::push). Everything
//! takes constant time: the front of a key, removing any entry, appending. Memory is recycled; in
//! a steady state nothing is allocated.
//!
//! If very many keys wait, the cost is not computing but the cache misses of a table larger than any cache. So a key
//! has one place of 16 bytes, which is freed with its last entry. Keys with neighbouring tags are neighbours, because
//! programs that use many tags count. The most used key is kept beside the table.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What entries are found by. A wildcard's component is 0 in the index that ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) context: u32,
    pub(crate) source: u32,
    pub(crate) tag: i32,
}

/// Tags that differ in these bits only are neighbours: 16 keys, 256 bytes.
const NEAR_BITS: u32 = 4;
const NEAR: u64 = (1 << NEAR_BITS) - 1;

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.context) << 32 | u64::from(self.source));
        state.write_u32(self.tag.cast_unsigned());
    }
}

/// Spreads keys, neighbours together. Not keyed: a peer can choose tags that collide and slow down
/// the lookup of messages. It cannot make anything wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    far: u64,
    near: u64,
}

impl Hasher for Neighbours {
    /// The table takes the place from the low bits, and from the high seven what it compares first.
    fn finish(&self) -> u64 {
        let far = self.far ^ (self.far >> 32);
        (far << NEAR_BITS | self.near) ^ self.near << 60
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.near = u64::from(word) & NEAR;
        self.write_u64(u64::from(word) >> NEAR_BITS);
    }

    fn write_u64(&mut self, word: u64) {
        // Odd, with bits spread evenly: 2^64 divided by the golden ratio.
        self.far = (self.far.rotate_left(29) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Where an entry sits in its index.
pub(crate) type Cell = u32;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct ListLink {
    /// Of the first entry of a list: the last one.
    previous: u32,
    /// Of a link that is not in use: the next such.
    next: u32,
    item: u32,
    key: Key,
    stamp: u64,
}

/// The entries themselves, in lists; the owner of a list keeps its first entry.
#[derive(Debug)]
struct ListLinks {
    links: Vec<ListLink>,
    free: u32,
    used: usize,
}

/// Entries by key, each key's in order.
#[derive(Debug)]
pub(crate) struct Index {
    /// The first entry of every key but `hot`; never [`NONE`].
    heads: HashMap<Key, u32, BuildHasherDefault<Neighbours>>,
    /// A key, and its first entry or [`NONE`]. It is not in `heads`.
    hot: (Key, u32),
    /// The key that was last appended to in `heads`; if it comes again, it becomes the hot one.
    warm: Key,
    links: ListLinks,
}

impl Default for Index {
    fn default() -> Self {
        let links = ListLinks { links: Vec::new(), free: NONE, used: 0 };
        Index {
            heads: HashMap::default(),
            hot: (Key::default(), NONE),
            warm: Key::default(),
            links,
        }
    }
}

impl ListLinks {
    fn at(&mut self, cell: u32) -> &mut ListLink {
        &mut self.links[cell as usize]
    }

    /// Appends an entry to the list that begins with `head`.
    #[inline(always)] // so that the entry is put together in its place
    fn append(&mut self, head: &mut u32, (key, stamp, item): (Key, u64, u32)) -> Cell {
        let cell = if self.free == NONE { self.links.len() as u64 } else { self.free.into() };
        // Requests and messages are numbered by 32 bits themselves.
        let cell = u32::try_from(cell).expect("fewer than 2^32 entries");
        let previous = if *head == NONE {
            *head = cell;
            cell
        } else {
            let last = std::mem::replace(&mut self.at(*head).previous, cell);
            self.at(last).next = cell;
            last
        };
        let link = ListLink { previous, next: NONE, item, key, stamp };
        if self.free == NONE {
            self.links.push(link);
        } else {
            self.free = self.at(cell).next;
            *self.at(cell) = link;
        }
        self.used += 1;
        cell
    }

    /// Takes an entry out of the list that begins with `head`.
    #[inline]
    fn unlink(&mut self, head: &mut u32, cell: Cell) {
        let ListLink { previous, next, .. } = *self.at(cell);
        if *head == cell {
            *head = next;
        } else {
            self.at(previous).next = next;
        }
        // The entry behind it, or the first one, if it was the last.
        let behind = if next == NONE { *head } else { next };
        if behind != NONE {
            self.at(behind).previous = previous;
        }
        self.at(cell).next = self.free;
        self.free = cell;
        self.used -= 1;
    }
}

impl Index {
    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.links.used
    }

    /// Appends `item` to the list of `key`.
    #[inline]
    pub(crate) fn push(&mut self, key: Key, stamp: u64, item: u32) -> Cell {
        let Key { context, source, tag } = key;
        if self.hot.0 != key {
            if self.hot.1 != NONE && self.warm != key {
                return self.push_warm((context, source), tag, stamp, item);
            }
            self.heat((context, source), tag);
        }
        // Word by word: reading a key that was just assembled from shorter stores would stall.
        self.links.append(&mut self.hot.1, (Key { context, source, tag }, stamp, item))
    }

    #[inline(never)]
    fn push_warm(
        &mut self,
        (context, source): (u32, u32),
        tag: i32,
        stamp: u64,
        item: u32,
    ) -> Cell {
        let key = Key { context, source, tag };
        self.warm = key;
        let head = self.heads.entry(key).or_insert(NONE);
        self.links.append(head, (key, stamp, item))
    }

    /// Makes this key the hot one.
    #[inline(never)]
    fn heat(&mut self, (context, source): (u32, u32), tag: i32) {
        let key = Key { context, source, tag };
        let head = if self.heads.is_empty() { None } else { self.heads.remove(&key) };
        let (cold, first) = std::mem::replace(&mut self.hot, (key, head.unwrap_or(NONE)));
        if first != NONE {
            self.heads.insert(cold, first);
        }
    }

    /// The oldest entry of `key`: its stamp, item and place.
    #[inline]
    pub(crate) fn front(&self, key: Key) -> Option<(u64, u32, Cell)> {
        let head = if self.hot.0 == key {
            self.hot.1
        } else if self.heads.is_empty() {
            NONE
        } else {
            *self.heads.get(&key)?
        };
        let link = self.links.links.get(head as usize)?;
        Some((link.stamp, link.item, head))
    }

    /// The key of an entry.
    pub(crate) fn key(&self, cell: Cell) -> Key {
        self.links.links[cell as usize].key
    }

    /// Whether `key` has any entry.
    #[inline]
    pub(crate) fn has(&self, key: Key) -> bool {
        if self.hot.0 == key { self.hot.1 != NONE } else { self.front(key).is_some() }
    }

    /// Removes the oldest entry of `key`; gives its item.
    #[inline]
    pub(crate) fn pop(&mut self, key: Key) -> Option<u32> {
        if self.hot.0 != key {
            return self.pop_cold(key);
        }
        let item = self.links.links.get(self.hot.1 as usize)?.item;
        let head = self.hot.1;
        self.links.unlink(&mut self.hot.1, head);
        Some(item)
    }

    #[inline(never)]
    fn pop_cold(&mut self, key: Key) -> Option<u32> {
        if self.heads.is_empty() {
            return None;
        }
        let Entry::Occupied(mut place) = self.heads.entry(key) else { return None };
        let head = *place.get();
        let item = self.links.at(head).item;
        self.links.unlink(place.get_mut(), head);
        if *place.get() == NONE {
            place.remove();
        }
        Some(item)
    }

    /// Removes an entry. `cell` is one that [`push`](Index::push) gave and that was not removed.
    pub(crate) fn remove(&mut self, cell: Cell) {
        let key = self.links.at(cell).key;
        if self.hot.0 == key {
            return self.links.unlink(&mut self.hot.1, cell);
        }
        let Entry::Occupied(mut place) = self.heads.entry(key) else {
            debug_assert!(false, "an entry of no list");
            return;
        };
        self.links.unlink(place.get_mut(), cell);
        if *place.get() == NONE {
            place.remove();
        }
    }
}

#[cfg(test)]
mod tests;
