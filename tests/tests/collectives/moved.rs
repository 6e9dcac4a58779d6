//! Operations that move blocks.

use crate::collectives::{Case, everywhere};
use gapless::{Blocks, BlocksMut, Collective, InPlace};

/// Whose turn it is to be the root: all are.
fn roots(case: &Case<'_>) -> std::ops::Range<usize> {
    0..case.size()
}

fn rank(rank: usize) -> u32 {
    u32::try_from(rank).unwrap()
}

#[test]
fn barrier() {
    everywhere(|case| case.call(Collective::barrier()).unwrap());
}

#[test]
fn bcast() {
    everywhere(|case| {
        for root in roots(case) {
            let right = case.given(root, case.len);
            let mut field =
                if case.me() == root { case.field(&right) } else { case.room(case.len) };
            case.call(Collective::bcast(field.view_mut(), rank(root))).unwrap();
            field.assert_has(&right, "bcast");
        }
    });
}

#[test]
fn gather_and_scatter() {
    everywhere(|case| {
        let (me, size, len) = (case.me(), case.size(), case.len);
        let all: Vec<i32> = (0..size).flat_map(|from| case.given(from, len)).collect();
        for root in roots(case) {
            let own = case.field(&case.given(me, len));
            let mut into = case.room(if me == root { size * len } else { 0 });
            case.call(Collective::gather(own.view(), into.view_mut(), rank(root))).unwrap();
            into.assert_has(if me == root { &all } else { &[] }, "gather");

            // What does not matter may be left out, and the root's own block may be where it belongs.
            if me == root {
                let mut start = vec![-5; size * len];
                start[root * len..(root + 1) * len].copy_from_slice(&case.given(root, len));
                let mut placed = case.field(&start);
                case.call(Collective::gather(InPlace, placed.view_mut(), rank(root))).unwrap();
                placed.assert_has(&all, "gather in place");
            } else {
                case.call(Collective::gather(own.view(), (), rank(root))).unwrap();
            }

            let whole = case.field(&all);
            let mut block = case.room(len);
            if me == root {
                case.call(Collective::scatter(whole.view(), block.view_mut(), rank(root)))
            } else {
                case.call(Collective::scatter((), block.view_mut(), rank(root)))
            }
            .unwrap();
            block.assert_has(&case.given(me, len), "scatter");
            if me == root {
                case.call(Collective::scatter(whole.view(), InPlace, rank(root))).unwrap();
            } else {
                case.call(Collective::scatter((), block.view_mut(), rank(root))).unwrap();
            }
            block.assert_has(&case.given(me, len), "scatter in place");
        }
    });
}

/// How long each rank's block is, and where it lies: in reverse order, with gaps.
fn uneven(case: &Case<'_>) -> (Vec<u64>, Vec<u64>, usize) {
    let counts: Vec<u64> = (0..case.size()).map(|at| (case.len * (at % 3)) as u64).collect();
    let mut end = 1;
    let mut starts = vec![0; counts.len()];
    for (start, count) in starts.iter_mut().zip(&counts).rev() {
        *start = end;
        end += count + 1;
    }
    (counts, starts, usize::try_from(end).unwrap())
}

fn number(count: u64) -> usize {
    usize::try_from(count).unwrap()
}

/// All ranks' blocks, where they lie.
fn placed(case: &Case<'_>, base: i32) -> Vec<i32> {
    let (counts, starts, end) = uneven(case);
    let mut all = vec![base; end];
    for (from, (count, start)) in counts.iter().zip(&starts).enumerate() {
        let (count, start) = (number(*count), number(*start));
        all[start..start + count].copy_from_slice(&case.given(from, count));
    }
    all
}

#[test]
fn gatherv_and_scatterv() {
    everywhere(|case| {
        let (counts, starts, end) = uneven(case);
        let own = case.given(case.me(), number(counts[case.me()]));
        let send = case.field(&own);
        for root in roots(case) {
            let (is_root, root) = (case.me() == root, rank(root));
            let mut into = case.room(end);
            if is_root {
                let blocks = BlocksMut::new(into.view_mut(), &counts, &starts).unwrap();
                case.call(Collective::gatherv(send.view(), blocks, root)).unwrap();
                into.assert_has(&placed(case, -5), "gatherv");
                let blocks = BlocksMut::new(into.view_mut(), &counts, &starts).unwrap();
                case.call(Collective::gatherv(InPlace, blocks, root)).unwrap();
                into.assert_has(&placed(case, -5), "gatherv in place");
            } else {
                for _ in 0..2 {
                    case.call(Collective::gatherv(send.view(), (), root)).unwrap();
                }
            }
            let whole = case.field(&placed(case, 9));
            for in_place in [false, true] {
                let mut block = case.room(own.len());
                if is_root {
                    let blocks = Blocks::new(whole.view(), &counts, &starts).unwrap();
                    let call = match in_place {
                        true => Collective::scatterv(blocks, InPlace, root),
                        false => Collective::scatterv(blocks, block.view_mut(), root),
                    };
                    case.call(call).unwrap();
                } else {
                    case.call(Collective::scatterv((), block.view_mut(), root)).unwrap();
                }
                if !(is_root && in_place) {
                    block.assert_has(&own, "scatterv");
                }
            }
        }
    });
}

#[test]
fn allgather() {
    everywhere(|case| {
        let (me, size, len) = (case.me(), case.size(), case.len);
        let all: Vec<i32> = (0..size).flat_map(|from| case.given(from, len)).collect();
        let own = case.field(&case.given(me, len));
        let mut into = case.room(size * len);
        case.call(Collective::allgather(own.view(), into.view_mut())).unwrap();
        into.assert_has(&all, "allgather");
        let mut start = vec![-5; size * len];
        start[me * len..(me + 1) * len].copy_from_slice(&case.given(me, len));
        let mut placed = case.field(&start);
        case.call(Collective::allgather(InPlace, placed.view_mut())).unwrap();
        placed.assert_has(&all, "allgather in place");
    });
}

#[test]
fn allgatherv() {
    everywhere(|case| {
        let (counts, starts, end) = uneven(case);
        let own = case.field(&case.given(case.me(), number(counts[case.me()])));
        let mut into = case.room(end);
        let blocks = BlocksMut::new(into.view_mut(), &counts, &starts).unwrap();
        case.call(Collective::allgatherv(own.view(), blocks)).unwrap();
        into.assert_has(&placed(case, -5), "allgatherv");
        let blocks = BlocksMut::new(into.view_mut(), &counts, &starts).unwrap();
        case.call(Collective::allgatherv(InPlace, blocks)).unwrap();
        into.assert_has(&placed(case, -5), "allgatherv in place");
    });
}

/// What one rank sends another.
fn sent(case: &Case<'_>, from: usize, to: usize, count: usize) -> Vec<i32> {
    case.given(from * 11 + to, count)
}

#[test]
fn alltoall() {
    everywhere(|case| {
        let (me, size, len) = (case.me(), case.size(), case.len.min(700));
        let out: Vec<i32> = (0..size).flat_map(|to| sent(case, me, to, len)).collect();
        let right: Vec<i32> = (0..size).flat_map(|from| sent(case, from, me, len)).collect();
        let send = case.field(&out);
        let mut into = case.room(size * len);
        case.call(Collective::alltoall(send.view(), into.view_mut())).unwrap();
        into.assert_has(&right, "alltoall");
        let mut both = send.clone();
        case.call(Collective::alltoall(InPlace, both.view_mut())).unwrap();
        both.assert_has(&right, "alltoall in place");
    });
}

#[test]
fn alltoallv_and_alltoallw() {
    everywhere(|case| {
        let (me, size) = (case.me(), case.size());
        let count = |from: usize, to: usize| (from + 2 * to) % 4 * case.len.min(300);
        let counts = |one: &dyn Fn(usize) -> usize| -> Vec<u64> {
            (0..size).map(|other| one(other) as u64).collect()
        };
        let (out, inn) = (counts(&|to| count(me, to)), counts(&|from| count(from, me)));
        let numbers: Vec<i32> =
            (0..size).flat_map(|to| sent(case, me, to, count(me, to))).collect();
        let right: Vec<i32> =
            (0..size).flat_map(|from| sent(case, from, me, count(from, me))).collect();
        let send = case.field(&numbers);
        let mut into = case.room(right.len());
        let blocks = Blocks::packed(send.view(), &out).unwrap();
        let room = BlocksMut::packed(into.view_mut(), &inn).unwrap();
        case.call(Collective::alltoallv(blocks, room)).unwrap();
        into.assert_has(&right, "alltoallv");

        // Each block in memory of its own, with a layout of its own.
        let blocks: Vec<_> = (0..size)
            .map(|to| crate::collectives::Field::of(&sent(case, me, to, count(me, to)), 1 + to % 3))
            .collect();
        let mut room: Vec<_> = (0..size)
            .map(|from| crate::collectives::Field::of(&vec![0; count(from, me)], 1 + from % 2))
            .collect();
        let views = Blocks::each(blocks.iter().map(crate::collectives::Field::view));
        let into = BlocksMut::each(room.iter_mut().map(crate::collectives::Field::view_mut));
        case.call(Collective::alltoallw(views, into)).unwrap();
        for (from, block) in room.iter().enumerate() {
            block.assert_has(&sent(case, from, me, count(from, me)), "alltoallw");
        }

        // In place the same goes both ways.
        let same = |one: usize, other: usize| (one + other) % 3 * case.len.min(300);
        let counts = counts(&|other| same(me, other));
        let all = |dir: &dyn Fn(usize) -> (usize, usize)| -> Vec<i32> {
            let block = |other| {
                let (from, to) = dir(other);
                sent(case, from, to, same(me, other))
            };
            (0..size).flat_map(block).collect()
        };
        let mut both = case.field(&all(&|to| (me, to)));
        let blocks = BlocksMut::packed(both.view_mut(), &counts).unwrap();
        case.call(Collective::alltoallv(InPlace, blocks)).unwrap();
        both.assert_has(&all(&|from| (from, me)), "alltoallv in place");
    });
}
