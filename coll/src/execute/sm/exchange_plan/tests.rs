//! Every byte goes once, and to whom it is for.
use super::*;
use std::collections::HashMap;

/// What rank `from` sends to rank `to`, as a pattern has it.
fn len(pattern: usize, from: usize, to: usize) -> u64 {
    let few = [0, 1, 7, 20, 0, 3];
    let mixed = [0, 1, 300, 5000, 0, 200_000];
    let at = from * 7 + to * 5 + pattern;
    match pattern % 4 {
        0 => few[at % 6],
        1 => mixed[at % 6],
        // One has nearly all.
        2 => {
            if (from, to) == (0, 1) {
                3_000_000
            } else {
                few[at % 6]
            }
        }
        _ => 0,
    }
}

/// The lists of a rank, the same in both directions if they are for calls in place.
fn lists(pattern: usize, me: usize, ranks: usize, even: bool) -> [Vec<u64>; 2] {
    let len = |from: usize, to: usize| match even {
        true => len(pattern, from.min(to), from.max(to)),
        false => len(pattern, from, to),
    };
    [(0..ranks).map(|to| len(me, to)).collect(), (0..ranks).map(|from| len(from, me)).collect()]
}

/// Each rank has edges to the next ones, two to the first of them, and to itself.
fn edges(me: usize, ranks: usize, forth: bool) -> Vec<Option<Edge>> {
    let edge = |distance: usize, lane: u32| {
        let rank = if forth { me + distance } else { me + ranks - distance };
        Some(Edge { rank: u32::try_from(rank % ranks).unwrap(), lane })
    };
    let (far, near) = (edge(2 % ranks, 7), edge(1, 4));
    vec![edge(1, 9), None, far, edge(0, 0), near]
}

/// Bytes along an edge of a lane.
fn along(pattern: usize, from: u32, edge: &Option<Edge>) -> u64 {
    edge.map_or(5, |edge| len(pattern, from as usize, edge.lane as usize))
}

/// Makes the plans of all ranks, and checks them.
fn each(ranks: usize, apart: bool, call: impl Fn(usize, &mut dyn FnMut(&Call<'_>))) {
    let (mut plans, mut rows, mut what) = (Vec::new(), Vec::new(), String::new());
    for me in 0..ranks {
        call(me, &mut |call| {
            assert_eq!(call.check(me, ranks), Ok(()), "{call:?}");
            assert!(fits(call, ranks));
            let in_place = matches!(call, Call::Alltoallv { in_place: true, .. });
            plans.push(ExchangePlan::new(call, me, ranks, apart && !in_place).unwrap());
            rows.push(crate::build::rows(call, me, ranks));
            what = format!("{call:?} of rank {me}, {ranks} ranks");
        });
    }
    for (me, plan) in plans.iter().enumerate() {
        assert_eq!(plan.into.bytes.iter().sum::<u64>() + kept(plan), rows[me].1.len(), "{what}");
        sent(plan, &rows[me], &what);
        for (from, other) in plans.iter().enumerate() {
            assert_eq!(plan.into.bytes(from), other.out.bytes(me), "{what} {from} to {me}");
            let reads = from != me && plan.into.bytes(from) > 0;
            let meant = [Some(Readers::All), Some(Readers::One(me))];
            assert!(!reads || meant.contains(&other.readers()), "{what}");
            if reads {
                assert!(plan.keeps_up(other.cells[me].step.min(plan.into.bytes(from))), "{what}");
            }
        }
    }
}

/// Bytes of the receive buffer that nobody sends.
fn kept(plan: &ExchangePlan) -> u64 {
    let in_place = plan.out.buffer == Buffer::Recv;
    match plan.operation {
        Operation::Alltoallv if in_place => len_of_own(plan),
        Operation::NeighborAllgather | Operation::NeighborAlltoall => 5,
        Operation::Gatherv if plan.root == Some(plan.me) => len_of_own(plan),
        _ => 0,
    }
}

fn len_of_own(plan: &ExchangePlan) -> u64 {
    if plan.into.bytes(plan.me) == 0 { len(PATTERN.get(), plan.me, plan.me) } else { 0 }
}

thread_local! {
    static PATTERN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// What is sent lies in the entry, or in slots; each byte once, and none outside.
fn sent(plan: &ExchangePlan, (send, recv): &(Row, Row), what: &str) {
    let ranks = plan.ranks();
    let row = if plan.out.buffer == Buffer::Send { send } else { recv };
    let there = |piece: &SlotPiece| {
        assert_eq!(row.range(piece.block).start + piece.start, piece.range.start, "{what}");
        assert!(piece.range.end <= row.range(piece.block).end, "{what}");
        piece.len()
    };
    if plan.is_inline() {
        let ends: Vec<u8> = plan.ends().flatten().collect();
        let mut entry = vec![0; HEAD_BYTES];
        entry.extend(&ends);
        let mut end = data_at(ranks);
        for piece in plan.inline_pieces() {
            assert_eq!(piece.at, end as u64, "{what}");
            end += usize::try_from(there(&piece)).unwrap();
        }
        assert_eq!(plan.entry_bytes(), end, "{what}");
        assert!(end <= ENTRY_BYTES, "{what}");
        for rank in 0..ranks {
            let range = ends_read(&entry[ends_at(rank)], ranks).unwrap();
            assert_eq!(range.len() as u64, plan.celled(rank), "{what}");
            assert_eq!(range.start, plan.end(rank));
        }
        return;
    }
    let mut bytes: HashMap<u64, u64> = HashMap::new();
    for fragment in 0..plan.sends {
        let mut end = (DIRECTORY_ENTRY_BYTES * ranks) as u64;
        for piece in plan.input(fragment) {
            assert!(piece.at >= end, "{what}");
            end = piece.at + there(&piece);
            *bytes.entry(piece.range.start).or_default() += piece.len();
        }
        assert!(end <= slot_bytes(ranks), "{what}");
    }
    let all: u64 = (0..ranks).map(|rank| plan.celled(rank)).sum();
    assert_eq!(bytes.values().sum::<u64>(), all, "{what}");
    for rank in 0..ranks {
        let entry = plan.entry(rank);
        let read = DirectoryEntry::read(entry.write(), ranks).unwrap();
        assert_eq!((read.bytes, read.cell), (entry.bytes, entry.cell), "{what}");
        let windows = (0..plan.sends).map(|it| window(it, entry.cell.step, entry.bytes));
        let mut end = 0;
        for window in windows.filter(|it| !it.is_empty()) {
            assert_eq!(window.start, end, "{what}");
            end = window.end;
        }
        assert_eq!(end, entry.bytes, "{what} to {rank}");
    }
}

#[test]
fn every_byte_goes_once_to_whom_it_is_for() {
    for (ranks, apart) in [(2, false), (3, true), (5, false), (16, true), (65, false), (256, true)]
    {
        // Work grows with the square of the ranks.
        for pattern in (0..8).step_by(if ranks < 200 { 1 } else { 3 }) {
            PATTERN.set(pattern);
            let root = pattern % ranks;
            for in_place in [false, true] {
                each(ranks, apart, |me, check| {
                    let [send, recv] = lists(pattern, me, ranks, in_place);
                    check(&Call::Alltoallv { send: &send, recv: &recv, in_place });
                });
                each(ranks, apart, |me, check| {
                    let [_, lens] = lists(pattern, root, ranks, false);
                    let lens = if me == root { lens } else { Vec::new() };
                    let len = len(pattern, me, root);
                    check(&Call::Gatherv { root, len, lens: &lens, in_place });
                });
                each(ranks, apart, |me, check| {
                    let [lens, _] = lists(pattern, root, ranks, false);
                    let lens = if me == root { lens } else { Vec::new() };
                    let len = len(pattern, root, me);
                    check(&Call::Scatterv { root, len, lens: &lens, in_place });
                });
            }
            each(ranks, apart, |me, check| {
                let (sources, destinations) = (edges(me, ranks, false), edges(me, ranks, true));
                let own = u32::try_from(me).unwrap();
                let from = |edge: &Option<Edge>| edge.map_or(own, |edge| edge.rank);
                let sent = destinations.iter().map(|edge| along(pattern, own, edge));
                let come = sources.iter().map(|edge| along(pattern, from(edge), edge));
                let (send, recv): (Vec<u64>, Vec<u64>) = (sent.collect(), come.collect());
                let (sources, destinations) = (&sources, &destinations);
                let (send, recv) = (&send, &recv);
                check(&Call::NeighborAlltoall { sources, destinations, send, recv });
            });
            each(ranks, apart, |me, check| {
                let (sources, destinations) = (edges(me, ranks, false), edges(me, ranks, true));
                let lens = |edge: &Option<Edge>| edge.map_or(5, |it| 10 * u64::from(it.rank));
                let recv: Vec<u64> = sources.iter().map(lens).collect();
                let (sources, destinations, len) = (&sources, &destinations, 10 * me as u64);
                check(&Call::NeighborAllgather { sources, destinations, len, recv: &recv });
            });
        }
    }
}

#[test]
fn one_large_stream_has_nearly_the_whole_slot() {
    let (mut send, recv) = (vec![8; 16], vec![8; 16]);
    send[3] = 1 << 20;
    let call = Call::Alltoallv { send: &send, recv: &recv, in_place: false };
    let plan = ExchangePlan::new(&call, 0, 16, false).unwrap();
    assert_eq!(plan.sends, (1u64 << 20).div_ceil(pieces_bytes(16)) + 1);
}

#[test]
fn directories_that_no_rank_writes_are_refused() {
    let cell = Cell { at: 64, step: 64 };
    let entry = |cell: Cell| DirectoryEntry::read(DirectoryEntry { bytes: 8, cell }.write(), 4);
    assert!(entry(cell).is_some());
    assert_eq!(entry(Cell { step: 0, ..cell }), None);
    assert_eq!(entry(Cell { at: slot_bytes(4) - 63, ..cell }), None);
    assert_eq!(entry(Cell { step: u64::from(u32::MAX), ..cell }), None);
    let many = DirectoryEntry { bytes: 1 << 30, cell: Cell { at: 64, step: 1 } };
    assert_eq!(DirectoryEntry::read(many.write(), 4), None, "a byte a fragment");
    assert_eq!(ends_read(&[8, 0, 12, 0], 4), Some(8..12));
    assert_eq!(ends_read(&[8, 0, 7, 0], 4), None);
    assert_eq!(ends_read(&[0, 0, 0, 4], 4), None, "behind the entry's end");
}

#[test]
fn what_has_more_fragments_than_there_can_be_is_refused() {
    let send = [0, 1 << 47];
    let call = Call::Alltoallv { send: &send, recv: &[0, 0], in_place: false };
    assert_eq!(ExchangePlan::new(&call, 0, 2, false), None);
    assert!(!fits(&call, 1) && !fits(&call, RANKS_MAX + 1));
    assert!(!fits(&Call::Barrier, 2));
}
