#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the numbers here are small"
)]

use super::*;
use crate::launch::{Grid, GridDim};
use crate::lookup::side_at;

#[test]
fn every_byte_has_one_block_and_both_ends_agree() {
    let mut state = 5u64;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..2000u64 {
        let most = [10, 5000, 40_000, 3 << 20][(round % 4) as usize];
        let lens: Vec<u64> = (0..=next(30)).map(|_| next(most)).collect();
        let blocks = [1, 2, 7, 64][next(4) as usize];
        let start = next(64) as u32;
        let parts = share(&lens, blocks, start);
        assert_eq!(parts, share(&lens, blocks, start));
        let mut ends = vec![0; lens.len()];
        for part in &parts {
            assert!(part.block < blocks && part.range.start < part.range.end);
            assert_eq!(part.range.start, ends[part.of], "round {round}: {lens:?}");
            assert!(part.range.start.is_multiple_of(CUT));
            ends[part.of] = part.range.end;
        }
        assert_eq!(ends, lens, "round {round}");
        // No block has much more than its share, and short pieces are not all one block's.
        let weight = |part: &LayoutPart| (part.range.end - part.range.start).max(LEAST);
        let total: u64 = parts.iter().map(weight).sum();
        for block in 0..blocks {
            let has: u64 = parts.iter().filter(|part| part.block == block).map(weight).sum();
            let share = (total / u64::from(blocks)).max(CHUNK);
            assert!(has <= share + 4 * LEAST, "round {round}: block {block} has {has} of {total}");
        }
    }
}

/// Carries out the jobs of a table as the kernel does, on memory whose addresses are indices.
fn carry_out(table: &LayoutTable, step: LayoutStep, memory: &mut [u8]) {
    let none = |_: u64, _: u32| panic!("no plan");
    for block in 0..table.blocks() {
        for (job, piece) in table.jobs(step, block) {
            let (t, w) = (&piece.transfer, 1u32 << piece.width);
            let at = |side: &crate::args::Side, base: i64, word: u32| {
                let place = base + side_at(side, &none, side.first.wrapping_add(word), w);
                usize::try_from(place).unwrap()
            };
            let mut copy = |word: u32, bytes: std::ops::Range<u32>| {
                let from = at(&t.from, t.span.typed, word);
                let to = at(&t.to, t.span.packed, word);
                for byte in bytes {
                    memory[to + byte as usize] = memory[from + byte as usize];
                }
            };
            (job.first..job.first + job.words).for_each(|word| copy(word, 0..w));
            if job.edges != 0 {
                assert_eq!(t.span.edges & 255, 0, "streams begin with a word");
                copy(t.span.words, 0..t.span.edges >> 8 & 255);
            }
        }
    }
}

fn grid(len: u64, dims: &[(u64, i64)]) -> TransferSide {
    let dims = dims.iter().map(|&(count, stride)| GridDim { count, stride }).collect();
    TransferSide::Strided(Grid { displacement: 0, len, dims })
}

fn at(offset: u64) -> KernelAddress {
    KernelAddress { address: 0, offset: offset.cast_signed() }
}

#[test]
fn jobs_move_every_byte_of_every_piece_to_its_place() {
    // Rows of 3 words to columns; a contiguous span with a tail; bytes alone; short ones of several peers.
    let blocks = [1, 3, 64];
    for blocks in blocks {
        for further in [0, 5] {
            let column = grid(4, &[(3, 4), (1000, 12)]);
            let row = grid(4, &[(3, 4000), (1000, 4)]);
            let pieces = [
                (0, 12_000, (column, at(0)), (row, at(50_000))),
                (
                    1,
                    3001,
                    (TransferSide::Contiguous(0), at(12_016)),
                    (TransferSide::Contiguous(0), at(70_000)),
                ),
                (
                    2,
                    7,
                    (TransferSide::Contiguous(0), at(16_001)),
                    (TransferSide::Contiguous(0), at(80_003)),
                ),
                (
                    1,
                    40_000,
                    (grid(100, &[(400, 1)]), at(20_000)),
                    (grid(10, &[(4000, 12)]), at(90_000)),
                ),
            ];
            let group = |(distance, bytes, from, to): (u32, u64, _, _)| Group {
                step: LayoutStep::First,
                distance,
                moved: vec![Moved { bytes, from, to }],
            };
            let groups: Vec<Group> = pieces.into_iter().map(group).collect();
            let table = LayoutTable::new(&groups, (blocks, further), 3, false).unwrap();
            assert_eq!((table.len(), table.steps(), table.meeting), (4, 1, blocks));
            assert_eq!(table.further, further.min(2));
            let mut memory: Vec<u8> = (0..150_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
            let mut right = memory.clone();
            for (n, word) in (0..12_000).step_by(4).enumerate() {
                let to = 50_000 + n % 3 * 4000 + n / 3 * 4;
                right.copy_within(word..word + 4, to);
            }
            right.copy_within(12_016..12_016 + 3001, 70_000);
            right.copy_within(16_001..16_008, 80_003);
            let stream: Vec<u8> =
                (0..400).flat_map(|row| memory[20_000 + row..20_100 + row].to_vec()).collect();
            for (n, bytes) in stream.chunks(10).enumerate() {
                right[90_000 + n * 12..90_010 + n * 12].copy_from_slice(bytes);
            }
            carry_out(&table, LayoutStep::First, &mut memory);
            assert!(memory == right, "{blocks} blocks and {further}");
        }
    }
}

#[test]
fn a_table_as_bytes_is_where_it_says() {
    let span = |at| (TransferSide::Contiguous(0), KernelAddress { address: 0, offset: at });
    let moved = vec![Moved { bytes: 100_000, from: span(64), to: span(1 << 20) }; 3];
    let groups = [LayoutStep::First, LayoutStep::Second].map(|step| Group {
        step,
        distance: 1,
        moved: moved.clone(),
    });
    let table = LayoutTable::new(&groups, (8, 8), 2, false).unwrap();
    assert_eq!((table.steps(), table.blocks(), table.further), (2, 8, 0));
    let (bytes, [begins, jobs, pieces]) = table.to_bytes();
    assert!([begins, jobs, pieces].iter().all(|at| at.is_multiple_of(16)));
    assert_eq!(&bytes[pieces as usize..][..784 * 6], table.pieces.as_bytes());
    assert_eq!(&bytes[jobs as usize..][..table.jobs.len() * 16], table.jobs.as_bytes());
    assert_eq!(&bytes[begins as usize..], table.begins.as_bytes());
    assert_eq!((table.begins.len(), table.begins[16] as usize), (17, table.jobs.len()));
    let (first, second) = (table.jobs(LayoutStep::First, 3), table.jobs(LayoutStep::Second, 3));
    // What a block packs, it unpacks.
    let words = |(job, _): (Job, &Piece)| (job.piece % 3, job.first, job.words, job.edges);
    assert_eq!(first.map(words).collect::<Vec<_>>(), second.map(words).collect::<Vec<_>>());
}

/// The kernel looks for a list of each block in each step.
#[test]
fn who_has_nothing_in_the_second_step_has_lists_for_it() {
    let span = |at| (TransferSide::Contiguous(0), KernelAddress { address: 0, offset: at });
    let moved = vec![Moved { bytes: 100_000, from: span(64), to: span(1 << 20) }];
    for distance in [0, 1] {
        for groups in
            [vec![], vec![Group { step: LayoutStep::First, distance, moved: moved.clone() }]]
        {
            let table = LayoutTable::new(&groups, (8, 4), 2, true).unwrap();
            let all = table.blocks() as usize;
            assert_eq!((table.steps(), table.begins.len()), (2, 2 * all + 1));
            let jobs = |step| (0..table.blocks()).map(move |block| (step, block));
            let second: usize =
                jobs(LayoutStep::Second).map(|(s, b)| table.jobs(s, b).count()).sum();
            let first: usize = jobs(LayoutStep::First).map(|(s, b)| table.jobs(s, b).count()).sum();
            assert_eq!((first, second), (table.jobs.len(), 0));
        }
    }
}

#[test]
fn what_is_too_long_for_one_numbering_is_several_pieces() {
    let side = |at: i64| (TransferSide::Contiguous(0), KernelAddress { address: 0, offset: at });
    let moved = Moved { bytes: (5 << 30) + 3, from: side(1), to: side(1 << 40) };
    let group = Group { step: LayoutStep::First, distance: 1, moved: vec![moved] };
    let table = LayoutTable::new(&[group], (64, 0), 2, false).unwrap();
    assert!(table.len() > 2);
    let jobs = |block| table.jobs(LayoutStep::First, block).map(|(job, _)| u64::from(job.words));
    assert_eq!((0..64).flat_map(jobs).sum::<u64>(), (5 << 30) + 3);
}
