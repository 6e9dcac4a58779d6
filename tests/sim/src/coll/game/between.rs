//! The calls of collectives between two groups.

use gapless_coll::testkit::{Arithmetic, Random};
use gapless_coll::{Between, BetweenCall, Operation};

/// The calls of an operation by all ranks, numbered through both groups; `then` is given them. Operations that there
/// are not between groups become others.
pub(super) fn with_calls<T>(
    operation: Operation,
    (first, second, how): (usize, usize, Arithmetic),
    random: &mut Random,
    then: impl FnOnce(&[BetweenCall<'_>], &mut Random) -> T,
) -> T {
    let of = how.reduction();
    let longest = if first + second <= 8 { 300 } else { 30 };
    let len = |random: &mut Random| of.unit * random.below(longest);
    let (one, other) = (len(random), len(random));
    let n = first + second;
    let root = random.index(n);
    let remote = Between { rank: root, first, second }.remote();
    let all: Vec<Between> = (0..n).map(|rank| Between { rank, first, second }).collect();
    let named = |at: &Between| (at.rank == root || remote.contains(&at.rank)).then_some(root);
    let lens: Vec<u64> = (0..n).map(|_| len(random)).collect();
    let own = |at: &Between| if remote.contains(&at.rank) { lens[at.rank] } else { 0 };
    let at_root = |at: &Between| if at.rank == root { &lens[remote.clone()] } else { &[] };
    let lens_of = |at: &Between| if at.rank < first { (one, other) } else { (other, one) };
    let table: Vec<Vec<u64>> = (0..n).map(|_| (0..n).map(|_| len(random)).collect()).collect();
    let across: Vec<Vec<u64>> =
        (0..n).map(|to| (0..n).map(|from| table[from][to]).collect()).collect();
    // The results of both groups are as long.
    let cut = |n: usize| {
        let mut lens = vec![of.unit; n];
        lens[n / 2] += of.unit * (first * second) as u64 - of.unit * n as u64;
        lens
    };
    let cuts = (cut(first), cut(second));
    let call = |at: &Between| match operation {
        Operation::Bcast => BetweenCall::Bcast { root: named(at), len: one },
        Operation::Gather => BetweenCall::Gather { root: named(at), len: one },
        Operation::Gatherv => {
            BetweenCall::Gatherv { root: named(at), len: own(at), lens: at_root(at) }
        }
        Operation::Scatter => BetweenCall::Scatter { root: named(at), len: one },
        Operation::Scatterv => {
            BetweenCall::Scatterv { root: named(at), len: own(at), lens: at_root(at) }
        }
        Operation::Allgather => BetweenCall::Allgather { send: lens_of(at).0, recv: lens_of(at).1 },
        Operation::Allgatherv => {
            BetweenCall::Allgatherv { send: lens[at.rank], recv: &lens[at.remote()] }
        }
        Operation::Alltoall => BetweenCall::Alltoall { send: lens_of(at).0, recv: lens_of(at).1 },
        Operation::Alltoallv => BetweenCall::Alltoallv {
            send: &table[at.rank][at.remote()],
            recv: &across[at.rank][at.remote()],
        },
        Operation::Reduce => BetweenCall::Reduce { root: named(at), len: one, of },
        Operation::Allreduce | Operation::Scan => BetweenCall::Allreduce { len: one, of },
        Operation::ReduceScatter => {
            BetweenCall::ReduceScatter { lens: if at.rank < first { &cuts.0 } else { &cuts.1 }, of }
        }
        Operation::ReduceScatterBlock => {
            BetweenCall::ReduceScatterBlock { len: one * at.remote().len() as u64, of }
        }
        _ => BetweenCall::Barrier,
    };
    let calls: Vec<_> = all.iter().map(call).collect();
    then(&calls, random)
}
