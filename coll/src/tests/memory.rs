//! How much memory algorithms take that are chosen or proposed.
use super::*;
use crate::choose::{Table, candidates, choose};
use crate::schedule::Buffer;
use crate::{Exchange, Method};

fn calls(root: usize, len: u64, lens: &[u64], of: Reduction) -> Vec<Call<'_>> {
    let in_place = false;
    vec![
        Call::Barrier,
        Call::Bcast { root, len },
        Call::Gather { root, len, in_place },
        Call::Scatter { root, len, in_place },
        Call::Allgather { len, in_place },
        Call::Allgatherv { lens, in_place },
        Call::Alltoall { len, in_place },
        Call::Reduce { root, len, of, in_place },
        Call::Allreduce { len, of, in_place },
        Call::ReduceScatter { lens, of, in_place },
        Call::ReduceScatterBlock { len, of, in_place },
        Call::Scan { len, of, in_place },
        Call::Exscan { len, of, in_place },
    ]
}

/// No rank takes more than four times the bytes of the largest rank's buffers, and a MiB.
#[test]
fn what_is_proposed_takes_no_more_than_a_few_times_the_buffers() {
    for (n, lens) in
        [(3, [8, 1 << 20]), (16, [8, 1 << 20]), (64, [2 << 10, 1 << 20]), (300, [8, 1 << 20])]
    {
        let hosts = (0..n).step_by(12).map(|start| (start..n.min(start + 12)).collect()).collect();
        let hosts = Locality::new(hosts).expect("all ranks once");
        for locality in [Locality::flat(n), hosts].into_iter().chain(nested(n)) {
            for len in lens {
                let blocks = vec![len; n];
                for call in calls(1, len, &blocks, sum(8, true)) {
                    let mut all = candidates(&call, &locality);
                    all.push(choose(&Table::default(), &call, &locality));
                    all.iter().for_each(|algorithm| is_bounded(&locality, &call, algorithm));
                }
            }
        }
    }
}

#[test]
fn what_is_chosen_among_many_ranks_takes_no_more_than_a_few_times_the_buffers() {
    let n = 10_000;
    let many = Locality::flat(n);
    for len in [8, 256, 2 << 10, 64 << 10, 1 << 20] {
        for of in [sum(8, true), sum(8, false)] {
            let blocks = vec![len; n];
            for call in calls(1, len, &blocks, of) {
                let chosen = choose(&Table::default(), &call, &many);
                is_bounded(&many, &call, &chosen);
            }
        }
    }
    // Whatever the number of ranks is.
    let long = Call::ReduceScatterBlock { len: 1 << 20, of: sum(8, true), in_place: false };
    let ring = choose(&Table::default(), &long, &many);
    let schedule = build(7, &many, &long, &ring).expect("a schedule");
    assert!(schedule.scratch() <= 2 << 20, "{} bytes by {ring}", schedule.scratch());
}

#[track_caller]
fn is_bounded(locality: &Locality, call: &Call<'_>, algorithm: &Algorithm) {
    let n = locality.ranks();
    let build = |rank| build(rank, locality, call, algorithm).expect("a schedule");
    let some = [0, 1, 2, n / 2, n - 1].map(build);
    let buffers = |it: &Schedule| it.row(Buffer::Send).len() + it.row(Buffer::Recv).len();
    let most = some.iter().map(buffers).max().unwrap_or(0);
    let scratch = some.iter().map(Schedule::scratch).max().unwrap_or(0);
    let what = || format!("{call:?} by {algorithm}, {n} ranks: {scratch} bytes");
    assert!(scratch <= 4 * most + (1 << 20), "{}", what());
}

/// What is left out is what takes much, and nothing else.
#[test]
fn what_takes_much_memory_is_not_proposed() {
    let (linear, flat) = (Algorithm::new(Method::Linear), Algorithm::new(Method::Tree(Tree::Flat)));
    let ring = Algorithm::new(Method::Exchange(Exchange::Ring));
    let (of, in_place) = (sum(8, true), false);
    let proposed = |call: &Call<'_>, n: usize| candidates(call, &Locality::flat(n));
    for (len, n, fits) in [(8, 300, true), (1 << 20, 4, true), (1 << 20, 16, false)] {
        let all = proposed(&Call::Allreduce { len, of, in_place }, n);
        assert!(all.contains(&ring));
        assert_eq!(all.contains(&linear), fits, "{len} bytes, {n} ranks");
        assert_eq!(all.contains(&flat), fits, "{len} bytes, {n} ranks");
    }
    let cut = flat.segmented(32 << 10);
    assert!(proposed(&Call::Reduce { root: 0, len: 1 << 20, of, in_place }, 64).contains(&cut));
    let block = Call::ReduceScatterBlock { len: 1 << 20, of, in_place };
    assert!(!proposed(&block, 16).contains(&flat));
    // A broadcast's root holds no more than its vector.
    assert!(proposed(&Call::Bcast { root: 0, len: 1 << 20 }, 300).contains(&flat));
}
