//! A hash of an op, to find equal ones by. Lists are hashed at the speed of memory, because they are long and are
//! read only once or twice in a commit.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::program::Op;

/// Independent sums, so that the processor works on several entries at once.
const LANES: usize = 4;
/// Odd, with its bits spread (the golden ratio's).
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Equal ops have equal summaries.
pub(super) fn summary(op: &Op) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(op).hash(&mut hasher);
    match op {
        Op::Run { .. } | Op::Loop { .. } | Op::Affine { .. } => op.hash(&mut hasher),
        Op::Blocks { len, disps } => (len, list(disps, i64::cast_unsigned)).hash(&mut hasher),
        Op::List { disps, starts } => {
            (list(disps, i64::cast_unsigned), list(starts, u64::from)).hash(&mut hasher);
        }
        Op::Each { disps, body } => (body, list(disps, i64::cast_unsigned)).hash(&mut hasher),
        // Sizes follow from the parts.
        Op::Seq { parts, .. } => parts.hash(&mut hasher),
    }
    hasher.finish()
}

/// Length and entries of a list.
fn list<T: Copy>(entries: &[T], word: impl Fn(T) -> u64) -> (usize, [u64; LANES]) {
    let mut lanes = [0u64; LANES];
    let (groups, rest) = entries.as_chunks::<LANES>();
    let mut add = |lane: usize, entry: T| {
        lanes[lane] = (lanes[lane].rotate_left(23) ^ word(entry)).wrapping_mul(FACTOR);
    };
    for group in groups {
        for (lane, &entry) in group.iter().enumerate() {
            add(lane, entry);
        }
    }
    for (lane, &entry) in rest.iter().enumerate() {
        add(lane, entry);
    }
    (entries.len(), lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn blocks(disps: Vec<i64>) -> u64 {
        summary(&Op::Blocks { len: 8, disps: Arc::new(disps) })
    }

    #[test]
    fn every_entry_and_its_place_count() {
        for entries in 2..20usize {
            let base: Vec<i64> = (0..entries as i64).map(|i| i * 64).collect();
            let mut seen = BTreeSet::from([blocks(base.clone())]);
            for at in 0..entries {
                let mut other = base.clone();
                other[at] += 1;
                assert!(seen.insert(blocks(other)), "entry {at} of {entries}");
                for with in 0..at {
                    let mut swapped = base.clone();
                    swapped.swap(at, with);
                    assert!(seen.insert(blocks(swapped)), "{with} and {at} of {entries}");
                }
            }
            assert_eq!(blocks(base.clone()), blocks(base));
        }
    }
}
