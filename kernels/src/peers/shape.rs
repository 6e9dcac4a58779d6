//! How many blocks and threads a launch has. All ranks compute the same from the same numbers: a budget of blocks that
//! they have agreed on, bytes, and how many they are.

use super::{BLOCKS_MAX, Element, RANKS_MAX, WORDS_BYTES, Window};

/// Threads of a block, at most.
const THREADS: u32 = 512;

/// Threads of a warp.
const WARP: u32 = 32;

/// Bytes of data in a word with flags.
const PACKET: u64 = 8;

/// Bytes that a thread of the other kernels should have at least, in accesses of 16.
const PER_THREAD: u64 = 64;

/// Blocks and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridShape {
    /// Blocks; at most the budget.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
}

/// How many bytes go through words with flags, at most: what a slot holds. They take twice their bytes of each link to
/// each peer, so there are fewer the more ranks there are.
#[must_use]
pub fn flagged_max(ranks: u32) -> u64 {
    let ranks = u64::from(ranks).clamp(2, RANKS_MAX as u64).next_power_of_two();
    // Two parities, twice the bytes.
    WORDS_BYTES / (4 * ranks)
}

/// How many bytes a block has, at most, that is moved through words with flags. They take twice their bytes of each
/// link, which longer blocks have no time for: they meet, and are written in place.
#[must_use]
pub fn words_max(ranks: u32) -> u64 {
    flagged_max(ranks) / 4
}

/// The number as few bits; what is larger is cut off.
fn few(number: u64, most: u32) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX).clamp(1, most)
}

/// An all-reduce of `bytes`, or a move of blocks of as many, through words with flags: a packet a thread as long as there
/// are blocks.
#[must_use]
pub fn flagged(bytes: u64, budget: u32) -> GridShape {
    let packets = bytes.div_ceil(PACKET).max(1);
    let threads = few(packets, THREADS).next_multiple_of(WARP);
    let blocks = few(packets.div_ceil(u64::from(threads)), budget.clamp(1, BLOCKS_MAX));
    GridShape { blocks, threads }
}

/// An all-reduce where the data lies: `bytes` is what this rank combines, the part of one.
#[must_use]
pub fn direct(bytes: u64, budget: u32) -> GridShape {
    let blocks = few(bytes / (PER_THREAD * u64::from(THREADS)), budget.clamp(1, BLOCKS_MAX));
    GridShape { blocks, threads: THREADS }
}

/// An all-reduce of `elements` through staging memory; also how many elements a block takes at a time.
#[must_use]
pub fn staged(elements: u64, element: Element, ranks: u32, budget: u32) -> (GridShape, u64) {
    let bytes = elements.saturating_mul(element.bytes());
    let shape = direct(bytes, budget);
    // Whole words for every thread, and for every rank's part.
    let unit = 16 / element.bytes();
    let most = Window { ranks }.piece_max(element.bytes());
    let share = elements.div_ceil(u64::from(shape.blocks)).clamp(1, most);
    (shape, share.next_multiple_of(unit))
}

/// Writing blocks of `bytes` to each peer.
#[must_use]
pub fn moved(bytes: u64, ranks: u32, budget: u32) -> GridShape {
    direct(bytes.saturating_mul(u64::from(ranks)), budget)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_kept_whatever_the_length_is() {
        for budget in [0, 1, 7, 64, 1000] {
            let most = budget.clamp(1, BLOCKS_MAX);
            for bytes in (0..64).map(|bit| 1u64 << bit).chain([0, 3, 12_345, u64::MAX]) {
                for shape in
                    [flagged(bytes, budget), direct(bytes, budget), moved(bytes, 8, budget)]
                {
                    assert!(
                        shape.blocks >= 1 && shape.blocks <= most,
                        "{bytes} {budget} {shape:?}"
                    );
                    assert!(shape.threads.is_multiple_of(WARP) && shape.threads <= THREADS);
                }
                for element in Element::ALL {
                    let (shape, piece) = staged(bytes, element, 2, budget);
                    assert!(shape.blocks <= most);
                    assert!(piece >= 1 && piece <= Window { ranks: 2 }.piece_max(element.bytes()));
                    assert_eq!(piece * element.bytes() % 16, 0);
                }
            }
        }
    }

    #[test]
    fn short_ones_take_a_packet_a_thread() {
        assert_eq!(flagged(8, 64), GridShape { blocks: 1, threads: 32 });
        assert_eq!(flagged(4096, 64), GridShape { blocks: 1, threads: 512 });
        assert_eq!(flagged(32 << 10, 64), GridShape { blocks: 8, threads: 512 });
        assert_eq!(flagged(1 << 20, 64), GridShape { blocks: 64, threads: 512 });
    }

    #[test]
    fn slots_hold_what_goes_through_them() {
        assert_eq!(
            (flagged_max(2), flagged_max(4), flagged_max(5)),
            (1 << 20, 512 << 10, 256 << 10)
        );
        assert_eq!(flagged_max(16), 128 << 10);
    }

    #[test]
    fn all_pieces_together_cover_everything() {
        for elements in [1, 5, 1000, 65_537, 10_000_000] {
            for element in Element::ALL {
                let (shape, piece) = staged(elements, element, 2, 64);
                let round = piece * u64::from(shape.blocks);
                let rounds = elements.div_ceil(round);
                assert!(rounds * round >= elements);
                // No more rounds than the staging memory makes necessary.
                let most = Window { ranks: 2 }.piece_max(element.bytes()) * u64::from(shape.blocks);
                assert_eq!(rounds, elements.div_ceil(most).max(1), "{elements} of {element:?}");
            }
        }
    }
}
