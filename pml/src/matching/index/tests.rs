use super::*;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::BuildHasher;

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
    assert!(index.heads.is_empty());
    assert!(index.heads.capacity() < 10 && index.links.links.len() == 1);
}

/// Any order of operations, beside queues that cannot be wrong.
#[test]
fn it_is_a_queue_for_each_key() {
    let mut state = 1_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    for keys in [1, 2, 3, 40, 1000] {
        let mut index = Index::default();
        let mut queues: BTreeMap<i32, VecDeque<(u64, u32, Cell)>> = BTreeMap::new();
        for stamp in 0..20_000 {
            let tag = i32::try_from(below(keys)).unwrap() * 16;
            let queue = queues.entry(tag).or_default();
            assert_eq!(index.front(key(tag)), queue.front().copied());
            match below(if stamp % 4000 < 2000 { 4 } else { 6 }) {
                0..2 => {
                    let item = u32::try_from(stamp).unwrap();
                    let cell = index.push(key(tag), stamp, item);
                    queue.push_back((stamp, item, cell));
                }
                2..4 => {
                    let first = queue.pop_front().map(|(_, item, _)| item);
                    assert_eq!(index.pop(key(tag)), first);
                }
                _ if !queue.is_empty() => {
                    let at = usize::try_from(below(queue.len() as u64)).unwrap();
                    let (_, _, cell) = queue.remove(at).unwrap();
                    index.remove(cell);
                }
                _ => {}
            }
            assert_eq!(index.len(), queues.values().map(VecDeque::len).sum::<usize>());
        }
    }
}

#[test]
fn keys_spread_and_neighbours_stay_together() {
    let spread = BuildHasherDefault::<Neighbours>::default();
    let places = |step: i32| {
        let hashes = (0..4096).map(|n| spread.hash_one(key(n * step)));
        hashes.map(|hash| (hash & 4095, hash >> 57)).collect::<Vec<_>>()
    };
    for step in [1, 3, 16, 1000] {
        let low: HashSet<u64> = places(step).iter().map(|(place, _)| place >> 4).collect();
        // Of 256 groups a perfectly random function of 256 or more fills at least about 63 %.
        assert!(low.len() > 140, "step {step}: {} of 256 groups", low.len());
        let high: HashSet<u64> = places(step).iter().map(|(_, high)| *high).collect();
        assert!(high.len() > 100, "step {step}: {} of 128", high.len());
    }
    for group in places(1).chunks(16) {
        let first = group[0].0;
        assert!(group.iter().zip(first..).all(|((place, _), due)| *place == due));
        let high: HashSet<u64> = group.iter().map(|(_, high)| *high).collect();
        assert_eq!(high.len(), 16);
    }
}
