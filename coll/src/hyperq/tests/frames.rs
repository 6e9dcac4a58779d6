//! The frame of each operation, and how what is staged is cut.

use super::super::*;
use crate::schedule::Buffer;
use crate::{Call, Reduction};

/// What each operation is defined to give, by moving numbers as its frame says.
#[test]
fn frames_move_what_operations_mean() {
    let of = Reduction { unit: 4, commutative: true };
    for (ranks, len, root) in [(2, 4, 0), (3, 300, 2), (5, 2564, 1), (4, 4096, 3)] {
        for in_place in [false, true] {
            for call in [
                Call::Bcast { root, len },
                Call::Gather { root, len, in_place },
                Call::Scatter { root, len, in_place },
                Call::Allgather { len, in_place },
                Call::Alltoall { len, in_place },
                Call::Reduce { root, len, of, in_place },
                Call::Allreduce { len, of, in_place },
                Call::ReduceScatterBlock { len, of, in_place },
            ] {
                follow(&call, ranks);
            }
        }
    }
    let not = [
        Call::Barrier,
        Call::Scan { len: 8, of, in_place: false },
        Call::Bcast { root: 0, len: 0 },
    ];
    assert!(not.iter().all(|call| Frame::new(call, 4).is_none()));
    let huge = Call::Alltoall { len: u64::MAX / 8, in_place: false };
    assert_eq!(Frame::new(&huge, 16), None);
}

fn follow(call: &Call<'_>, ranks: usize) {
    let frame = Frame::new(call, ranks).unwrap();
    let what = |rank: usize| format!("{call:?}: rank {rank}");
    let size = |bytes: u64| usize::try_from(bytes).unwrap();
    let rows: Vec<_> = (0..ranks).map(|rank| crate::build::rows(call, rank, ranks)).collect();
    let byte =
        |rank: usize, side: usize, at: usize| (rank * 31 + side * 7 + at * 3).to_le_bytes()[0];
    let fill = |rank, side, len| (0..size(len)).map(|at| byte(rank, side, at)).collect::<Vec<u8>>();
    let mut buffers: Vec<[Vec<u8>; 2]> = rows
        .iter()
        .enumerate()
        .map(|(rank, (send, recv))| [fill(rank, 0, send.len()), fill(rank, 1, recv.len())])
        .collect();
    let mut expected = buffers.clone();
    let schedules: Vec<_> = {
        let algorithms = crate::choose::candidates(call, &crate::Locality::flat(ranks));
        let build =
            |rank| crate::build(rank, &crate::Locality::flat(ranks), call, &algorithms[0]).unwrap();
        (0..ranks).map(build).collect()
    };
    let before: Vec<_> = expected
        .iter()
        .map(|[send, recv]| crate::testkit::Content { send: send.clone(), recv: recv.clone() })
        .collect();
    let after = crate::testkit::after(
        &vec![*call; ranks],
        &schedules,
        &before,
        crate::testkit::Arithmetic::Sum,
    );
    for (buffers, after) in expected.iter_mut().zip(after) {
        buffers[1] = after;
    }
    let mut shared = vec![0u8; size(frame.bytes())];
    for (rank, buffers) in buffers.iter().enumerate() {
        let Some(Give { buffer, range, at }) = frame.give(rank) else { continue };
        let from = &buffers[usize::from(buffer == Buffer::Recv)];
        let bytes = &from[size(range.start)..size(range.end)];
        assert_eq!(bytes.len() as u64, frame.gather_bytes(), "{}", what(rank));
        shared[size(at)..size(at) + bytes.len()].copy_from_slice(bytes);
    }
    if frame.reduces() {
        let into = size(frame.slot(frame.leader));
        let all: Vec<_> = (0..ranks).map(|rank| size(frame.slot(rank))).collect();
        for at in (0..size(frame.gather_bytes())).step_by(4) {
            let number =
                |slot: usize| u32::from_le_bytes(shared[slot + at..][..4].try_into().unwrap());
            let sum = all.iter().fold(0u32, |sum, slot| sum.wrapping_add(number(*slot)));
            shared[into + at..][..4].copy_from_slice(&sum.to_le_bytes());
        }
    }
    for (rank, buffers) in buffers.iter_mut().enumerate() {
        let Some(take) = frame.take(rank) else { continue };
        assert!(take.bytes() <= frame.scatter_bytes());
        let blocks = (0..take.blocks).flat_map(|block| {
            let at = size(take.at + block * take.pitch);
            shared[at..at + size(take.len)].to_vec()
        });
        let got: Vec<u8> = blocks.collect();
        buffers[1][..got.len()].copy_from_slice(&got);
    }
    for rank in 0..ranks {
        assert_eq!(buffers[rank][1], expected[rank][1], "{}", what(rank));
    }
}

/// What is staged of each rank, and mirrored for it, is what its frame says, and nothing lies on anything else.
#[test]
fn staging_memory_is_cut_without_overlaps() {
    for (ranks, len) in [(2, 1), (5, 1000), (4, 200 << 10), (3, 9 << 20), (16, 16 << 20)] {
        for call in [
            Call::Allgather { len, in_place: false },
            Call::Bcast { root: 1, len },
            Call::Alltoall { len, in_place: false },
        ] {
            let frame = Frame::new(&call, ranks).unwrap();
            let staging = Staging::new(&frame, ranks);
            let mut at = 0;
            for chunk in 0..staging.chunks() {
                let range = staging.chunk(chunk);
                assert!(
                    range.start == at && range.end > at && range.end - range.start <= 512 << 10
                );
                at = range.end;
            }
            let gathers = frame.copies(HyperQStep::Gather) > 0;
            assert_eq!(at, if gathers { frame.gather_bytes() } else { 0 });
            assert!(staging.is_whole() == (staging.chunks() <= 1));
            // Chunks that are there at once, of all ranks, and the mirror.
            let first = staging.chunks().min(RING);
            let mut places: Vec<_> = (0..ranks)
                .flat_map(|rank| (0..first).map(move |chunk| (rank, chunk)))
                .map(|(rank, chunk)| staging.place(rank, chunk))
                .collect();
            if staging.is_whole() && places.len() > 1 {
                assert_eq!(places[1].start - places[0].start, frame.slot(1) - frame.slot(0));
            }
            let mut pieces = 0;
            if staging.can_mirror() {
                let mut next = None;
                for (from, at) in staging.mirror() {
                    assert!(next.is_none_or(|next| next == from.start));
                    assert_eq!(staging.mirror_place(from.start), at);
                    next = Some(from.end);
                    pieces += 1;
                    assert_eq!(staging.mirrored(pieces), from.end);
                    let twin = staging.apart().map(|apart| at + apart);
                    let is_short = (0..ranks)
                        .filter(|rank| *rank != frame.leader)
                        .filter_map(|rank| frame.take(rank))
                        .any(|take| take.len < QUICK_BYTES);
                    assert_eq!(twin.is_some(), is_short);
                    let places_of = [Some(at), twin].into_iter().flatten();
                    places.extend(places_of.map(|at| at..at + (from.end - from.start)));
                }
                let takes = (0..ranks)
                    .filter(|rank| *rank != frame.leader)
                    .filter_map(|rank| frame.take(rank));
                let ends = takes.map(|take| take.range().end).max();
                assert_eq!(next, ends);
            }
            places.sort_by_key(|place| place.start);
            assert!(places.windows(2).all(|two| two[0].end <= two[1].start), "{call:?}");
            assert!(places.iter().all(|place| place.end <= staging.bytes()));
        }
    }
}
