//! Fragments of all operations, among few and many ranks.
use super::*;
use crate::Reduction;
use crate::execute::sm::slots::LAST_BYTES;

fn calls(root: usize, len: u64, of: Reduction) -> Vec<Call<'static>> {
    let each = |in_place| {
        [
            Call::Bcast { root, len },
            Call::Gather { root, len, in_place },
            Call::Scatter { root, len, in_place },
            Call::Allgather { len, in_place },
            Call::Alltoall { len, in_place },
            Call::Reduce { root, len, of, in_place },
            Call::Allreduce { len, of, in_place },
            Call::ReduceScatterBlock { len, of, in_place },
            Call::Scan { len, of, in_place },
            Call::Exscan { len, of, in_place },
        ]
    };
    [false, true].into_iter().flat_map(each).collect()
}

/// Calls with blocks of other lengths, some of no bytes.
fn ragged(lens: &[u64], of: Reduction) -> Vec<Call<'_>> {
    let each = |in_place| {
        [Call::Allgatherv { lens, in_place }, Call::ReduceScatter { lens, of, in_place }]
    };
    [false, true].into_iter().flat_map(each).collect()
}

/// Every byte of a buffer goes through a slot once, whoever's fragments are counted; nothing lies outside of a slot;
/// what is read of a slot was put there, and is combined before where it has to be.
#[test]
fn fragments_cover_all_and_stay_in_their_slots() {
    for (ranks, unit) in [(2, 4), (3, 12), (5, 1), (16, 8), (17, 2), (33, 4), (40, 10)] {
        let of = Reduction { unit, commutative: true };
        for len in [1, 7, 1000, 70_000, 300_000].map(|len| len * unit) {
            let lens = |rank: usize| [len, 0, unit, len / 2 / unit * unit][rank % 4];
            let lens: Vec<u64> = (0..ranks).map(lens).collect();
            let rooted = calls(ranks - 1, len, of).into_iter();
            for call in rooted.chain(ragged(&lens, of)) {
                let plans: Vec<LongPlan> =
                    (0..ranks).map(|me| LongPlan::new(&call, me, ranks).unwrap()).collect();
                for plan in &plans {
                    check(&call, plan.me, &plans, None);
                }
            }
        }
    }
}

/// The same if what is left after some fragments goes in longer ones, at all ranks.
#[test]
fn longer_fragments_cover_what_is_left() {
    for (ranks, unit) in [(2, 8), (3, 12), (5, 1), (16, 8)] {
        let of = Reduction { unit, commutative: true };
        for call in calls(ranks - 1, (5 << 20) / unit * unit + unit, of) {
            let plans: Vec<LongPlan> =
                (0..ranks).map(|me| LongPlan::new(&call, me, ranks).unwrap()).collect();
            let one_way =
                matches!(call, Call::Bcast { .. } | Call::Gather { .. } | Call::Scatter { .. });
            for plan in &plans {
                assert_eq!(plan.may_lengthen(), !one_way, "{call:?}");
                let mut longer = plan.clone();
                longer.lengthen(1);
                assert!(!longer.may_lengthen() && 2 * longer.fragments <= plan.fragments + 4);
                for from in [1, 3].into_iter().filter(|_| !one_way) {
                    check(&call, plan.me, &plans, Some(from));
                }
            }
        }
    }
}

/// Whether a rank puts these bytes of its slot there, all or only what others read.
fn fills(plan: &LongPlan, fragment: u64, all: bool, bytes: &Range<u64>) -> bool {
    let mut pieces = plan.input(fragment, all);
    bytes.is_empty() || pieces.any(|it| it.at <= bytes.start && bytes.end <= it.in_slot().end)
}

/// `longer`: from this fragment on they are.
fn check(call: &Call<'_>, me: usize, plans: &[LongPlan], longer: Option<u64>) {
    // Where what a rank contributes lies is asked before fragments get longer.
    let own_input = plans[me].own_input.clone();
    let (mut plans, ranks) = (plans.to_vec(), plans.len());
    let slot = match longer {
        None => plans[me].slot(),
        Some(_) => slot_bytes(ranks) - LAST_BYTES,
    };
    assert!(slot <= slot_bytes(ranks));
    let (send, recv) = crate::build::rows(call, me, ranks);
    let (mut sent, mut received) = (0, 0);
    for fragment in 0.. {
        if Some(fragment) == longer {
            plans.iter_mut().for_each(|plan| plan.lengthen(fragment));
        }
        let plan = &plans[me];
        if fragment == plan.fragments {
            break;
        }
        let mut filled = 0;
        for piece in plan.input(fragment, true).filter(|_| plan.exposes()) {
            let bytes = piece.len();
            assert!(piece.at >= filled && piece.at + bytes <= slot, "{call:?}");
            filled = piece.at + bytes;
            sent += bytes;
            let row = if piece.buffer == Buffer::Send { &send } else { &recv };
            assert!(piece.range.end <= row.len(), "{call:?} {piece:?}");
            assert_eq!(row.range(piece.block).start + piece.start, piece.range.start);
            if let Some((buffer, own)) = &own_input {
                let at = own.start + plan.position(fragment, piece.at);
                assert_eq!((piece.buffer, piece.range.start), (*buffer, at), "{call:?}");
                assert!(piece.range.end <= own.end);
            }
        }
        for (from, after, piece) in (0..).map_while(|index| plan.output(fragment, index)) {
            let bytes = piece.len();
            if bytes == 0 {
                continue;
            }
            received += bytes;
            let alone = from == me && after == combined_step(fragment);
            assert!(plans[from].exposes() || alone, "{call:?} {piece:?}");
            assert_eq!(recv.range(piece.block).start + piece.start, piece.range.start);
            assert!(after == exposed_step(fragment) || after == combined_step(fragment));
            let reader = plans[from].readers();
            assert!(reader == Readers::All || reader == Readers::One(me) || from == me);
            let there = || fills(&plans[from], fragment, from == me, &(piece.at..piece.at + bytes));
            assert!(after == combined_step(fragment) || there(), "{call:?} {piece:?}");
            assert!(piece.range.end <= recv.len(), "{call:?} {piece:?}");
            if after == combined_step(fragment) {
                assert_eq!(
                    plans[from].combines(fragment),
                    Some(piece.at..piece.at + bytes),
                    "{call:?}"
                );
            }
        }
        let alone = match plan.call {
            Call::Reduce { root, .. } => root == me,
            Call::ReduceScatterBlock { .. } => true,
            Call::Allreduce { .. } => plan.shape == SlotShape::Vectors,
            _ => false,
        };
        assert_eq!(plan.own_result(fragment).is_some(), alone, "{call:?} rank {me}");
        if let Some(own) = plan.own_result(fragment).filter(|own| !own.is_empty()) {
            let mine = |index| plan.output(fragment, index).filter(|it| it.0 == me);
            let (_, after, piece) = (0..ranks).find_map(mine).expect("its own");
            assert_eq!((after, piece.range), (combined_step(fragment), own), "{call:?}");
        }
        if let Some(slice) = plan.combines(fragment) {
            let unit = call.reduction().unwrap().unit;
            assert!(slice.start % unit == 0 && slice.end % unit == 0 && slice.end <= slot);
            let there = plan.in_slot(&slice);
            assert!(there == slice || (there.start >= slot && there.end <= slot_bytes(ranks)));
            assert!(there == slice || plan.shape == SlotShape::Vectors, "{call:?}");
            for (rank, other) in plans.iter().enumerate() {
                assert!(fills(other, fragment, rank == me, &slice), "{call:?} {rank} {slice:?}");
            }
        }
    }
    let plan = &plans[me];
    let input = if send.blocks() == 0 { recv.len() } else { send.len() };
    let block = matches!(plan.call, Call::Gather { .. } | Call::Allgather { .. });
    let input = if plan.in_place() && block { plan.block_bytes(me) } else { input };
    if plan.exposes() {
        assert_eq!(sent, input, "{call:?} rank {me}");
    }
    let own = plan.block_bytes(me);
    let kept = match plan.call {
        Call::Bcast { root, .. } if root == me => recv.len(),
        Call::Gather { root, .. } if root == me && plan.in_place() => own,
        Call::Allgather { in_place: true, .. } => own,
        Call::ReduceScatterBlock { in_place: true, .. } => recv.len() - own,
        Call::Exscan { .. } if me == 0 => recv.len(),
        _ => 0,
    };
    assert_eq!(received, recv.len() - kept, "{call:?} rank {me}");
}

/// Both read what the other has, and write where nobody reads.
#[test]
fn two_ranks_combine_whole_vectors_each_for_itself() {
    let of = Reduction { unit: 8, commutative: false };
    for len in [2000, 8 << 10, VECTORS_MAX, VECTORS_MAX + 8] {
        for in_place in [false, true] {
            let plan = |me| LongPlan::new(&Call::Allreduce { len, of, in_place }, me, 2).unwrap();
            let is_whole = len <= VECTORS_MAX;
            for plan in [plan(0), plan(1)] {
                assert_eq!(plan.combines(0) == Some(0..len), is_whole, "{len}");
                assert_eq!(plan.shares_results(), !is_whole);
                assert_eq!(plan.own_input.is_none(), is_whole && in_place);
            }
            let plan =
                |me| LongPlan::new(&Call::Reduce { root: 1, len, of, in_place }, me, 2).unwrap();
            let (other, root) = (plan(0), plan(1));
            assert_eq!(other.fragments, root.fragments);
            assert_eq!((other.exposes(), root.exposes()), (true, !is_whole));
            assert_eq!(other.combines(0).is_none(), is_whole);
            assert_eq!(other.readers() == Readers::One(1), is_whole);
            assert!(root.own_input.is_some(), "nobody else reads it, or a slice at most");
        }
    }
    let three = LongPlan::new(&Call::Allreduce { len: 2000, of, in_place: false }, 0, 3).unwrap();
    assert_eq!(three.shape, SlotShape::Slices);
}

#[test]
fn what_has_no_slots_goes_another_way() {
    let of = Reduction { unit: 8, commutative: true };
    assert_eq!(LongPlan::new(&Call::Barrier, 0, 2), None);
    let lens = [8000, 8000];
    let call = Call::Alltoallv { send: &lens, recv: &lens, in_place: false };
    assert_eq!(LongPlan::new(&call, 0, 2), None);
    for lens in [&[u64::MAX, 8][..], &[8000], &[0, 0]] {
        let call = Call::ReduceScatter { lens, of, in_place: false };
        assert_eq!(LongPlan::new(&call, 0, 2), None, "{lens:?}");
    }
    assert_eq!(LongPlan::new(&Call::Bcast { root: 0, len: u64::MAX }, 0, 2), None);
    assert_eq!(LongPlan::new(&Call::Bcast { root: 0, len: 0 }, 0, 2), None);
    assert_eq!(LongPlan::new(&Call::Bcast { root: 0, len: 8000 }, 0, RANKS_MAX + 1), None);
    let large = Reduction { unit: 1 << 20, commutative: true };
    let call = Call::Allreduce { len: 2 << 20, of: large, in_place: false };
    assert_eq!(LongPlan::new(&call, 0, 2), None, "an element is longer than a slot");
    let call = Call::Alltoall { len: u64::MAX - 1, in_place: false };
    assert_eq!(LongPlan::new(&call, 0, 2), None);
}
