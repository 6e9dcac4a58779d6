//! Lists of entries by key: the queues that matching is made of.
//!
//! An [`Index`] keeps, for each key, its entries in the order of [`push`](Index::push). Everything
//! takes constant time: the front of a key, removing any entry, appending. Memory is recycled; in
//! a steady state nothing is allocated.

use crate::hash::FastMap;
use slab::Slab;
use std::hash::{Hash, Hasher};

/// What entries are found by. A wildcard's component is 0 in the index that ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) context: u32,
    pub(crate) source: u32,
    pub(crate) tag: i32,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.context) << 32 | u64::from(self.source));
        state.write_u32(self.tag.cast_unsigned());
    }
}

/// Where an entry sits in its index.
pub(crate) type Cell = u32;

const NONE: u32 = u32::MAX;

/// Empty lists are kept for the next entry of their key until there are this many.
const EMPTY_LISTS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct List {
    key: Key,
    head: u32,
    tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    list: u32,
    previous: u32,
    next: u32,
    stamp: u64,
    item: u32,
}

/// Entries by key, each key's in order.
#[derive(Debug, Default)]
pub(crate) struct Index {
    names: FastMap<Key, u32>,
    lists: Slab<List>,
    links: Slab<Link>,
    empty: usize,
    /// The list that was asked for last: programs use one key again and again.
    last: Option<(Key, u32)>,
}

/// Slab keys are kept below `u32::MAX` by [`Index::push`]'s caller: requests and messages are
/// numbered by 32 bits themselves.
fn narrow(key: usize) -> u32 {
    u32::try_from(key).expect("fewer than 2^32 entries")
}

impl Index {
    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// Appends `item` to the list of `key`.
    pub(crate) fn push(&mut self, key: Key, stamp: u64, item: u32) -> Cell {
        if self.empty > EMPTY_LISTS_MAX {
            self.drop_empty_lists();
        }
        let list_id = match self.last {
            Some((last, list_id)) if last == key => list_id,
            _ => self.list_of(key),
        };
        let list = &mut self.lists[list_id as usize];
        let previous = list.tail;
        let cell =
            narrow(self.links.insert(Link { list: list_id, previous, next: NONE, stamp, item }));
        list.tail = cell;
        if previous == NONE {
            list.head = cell;
            self.empty -= 1;
        } else {
            self.links[previous as usize].next = cell;
        }
        cell
    }

    fn list_of(&mut self, key: Key) -> u32 {
        let lists = &mut self.lists;
        let list_id = *self.names.entry(key).or_insert_with(|| {
            self.empty += 1;
            narrow(lists.insert(List { key, head: NONE, tail: NONE }))
        });
        self.last = Some((key, list_id));
        list_id
    }

    /// The oldest entry of `key`: its stamp, item and place.
    #[inline]
    pub(crate) fn front(&self, key: Key) -> Option<(u64, u32, Cell)> {
        if self.links.is_empty() {
            return None;
        }
        let list_id = match self.last {
            Some((last, list_id)) if last == key => list_id,
            _ => *self.names.get(&key)?,
        };
        let list = self.lists[list_id as usize];
        let link = self.links.get(list.head as usize)?;
        Some((link.stamp, link.item, list.head))
    }

    /// Removes an entry. `cell` is one that [`push`](Index::push) gave and that was not removed.
    pub(crate) fn remove(&mut self, cell: Cell) {
        let link = self.links.remove(cell as usize);
        let list = &mut self.lists[link.list as usize];
        if link.previous == NONE {
            list.head = link.next;
        } else {
            self.links[link.previous as usize].next = link.next;
        }
        if link.next == NONE {
            list.tail = link.previous;
        } else {
            self.links[link.next as usize].previous = link.previous;
        }
        if list.head == NONE {
            self.empty += 1;
        }
    }

    fn drop_empty_lists(&mut self) {
        let names = &mut self.names;
        self.lists.retain(|_, list| {
            let keep = list.head != NONE;
            if !keep {
                names.remove(&list.key);
            }
            keep
        });
        self.empty = 0;
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: i32) -> Key {
        Key { context: 1, source: 2, tag }
    }

    #[test]
    fn entries_leave_in_order_and_from_the_middle() {
        let mut index = Index::default();
        let cells = [0u32, 1, 2, 3].map(|item| index.push(key(7), u64::from(item), item));
        index.remove(cells[1]);
        index.remove(cells[0]);
        assert_eq!(index.front(key(7)), Some((2, 2, cells[2])));
        index.remove(cells[3]);
        index.remove(cells[2]);
        assert_eq!(index.front(key(7)), None);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn keys_that_come_and_go_leave_no_memory_behind() {
        let mut index = Index::default();
        for tag in 0..100_000 {
            let cell = index.push(key(tag), 0, 0);
            assert!(index.front(key(tag)).is_some());
            index.remove(cell);
        }
        assert!(index.names.len() <= EMPTY_LISTS_MAX + 1, "{} lists", index.names.len());
    }
}
