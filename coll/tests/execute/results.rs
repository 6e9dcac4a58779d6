//! Every operation gives what it is defined to give.
use super::*;
use crate::job::Job;
use gapless_coll::choose::candidates;
use gapless_coll::topologies::{Cartesian, Neighborhood};
use gapless_coll::{CollError, Method, Tree};
use gapless_pml::{Config, Protocol};
use std::task::Poll;

const LIES: [&[Lie]; 4] =
    [&[Lie::Plain], &[Lie::Gaps], &[Lie::Apart], &[Lie::Gaps, Lie::Plain, Lie::Apart]];

/// The longest buffer goes in about so many segments, if it goes in some,
const SEGMENTS: u64 = 10;
/// of a multiple of so many bytes.
const SEGMENT: u64 = 24;

/// Runs the calls of all ranks by all candidates, some in segments, and compares.
fn run_all(job: &mut Job, sequencers: &[Sequencer], calls: &[Call<'_>], random: &mut Random) {
    run_with(job, sequencers, calls, Arithmetic::Sum, random);
}

fn run_with(
    job: &mut Job,
    sequencers: &[Sequencer],
    calls: &[Call<'_>],
    how: Arithmetic,
    random: &mut Random,
) {
    let locality = near(calls.len());
    let longest = calls.iter().filter_map(Call::bytes).max().unwrap_or(0);
    let cut = (longest / SEGMENTS / SEGMENT).max(1) * SEGMENT;
    for (index, algorithm) in candidates(&calls[0], &locality).into_iter().enumerate() {
        let segment = if index % 2 == 0 { 0 } else { cut };
        let algorithm = algorithm.segmented(segment);
        let lies = LIES[usize::try_from(random.below(4)).unwrap()];
        let mut collective = Collective::new(calls, &algorithm, (how, lies), random);
        let mut executors = collective.start(sequencers);
        for (rank, result) in job.finish(&mut executors).into_iter().enumerate() {
            assert_eq!(result, Some(Ok(())), "{}: rank {rank}", collective.what);
        }
        drop(executors);
        collective.check();
    }
}

/// Calls `test` with jobs of 1 to 9 ranks.
fn each_size(seed: u64, mut test: impl FnMut(&mut Job, &[Sequencer], usize, &mut Random)) {
    let mut random = Random(seed);
    for n in 1..=9 {
        let mut job = Job::new(n);
        let worlds = job.worlds();
        test(&mut job, &Job::sequencers(&worlds), n as usize, &mut random);
    }
}

#[test]
fn barrier_and_bcast() {
    each_size(1, |job, sequencers, n, random| {
        run_all(job, sequencers, &vec![Call::Barrier; n], random);
        for root in [0, n - 1] {
            for len in [0, 4, 4 * random.below(400), 24_000] {
                run_all(job, sequencers, &vec![Call::Bcast { root, len }; n], random);
            }
        }
    });
}

#[test]
fn gather_and_scatter() {
    each_size(2, |job, sequencers, n, random| {
        for in_place in [false, true] {
            let (root, len) = (n / 2, 4 * random.below(60));
            run_all(job, sequencers, &vec![Call::Gather { root, len, in_place }; n], random);
            run_all(job, sequencers, &vec![Call::Scatter { root, len, in_place }; n], random);
            let lens: Vec<u64> = (0..n).map(|_| 4 * random.below(30)).collect();
            let at = |rank| if rank == root { &lens[..] } else { &[] };
            let own = |rank: usize| (lens[rank], at(rank));
            let gather = |rank: usize| {
                let (len, lens) = own(rank);
                Call::Gatherv { root, len, lens, in_place }
            };
            let scatter = |rank: usize| {
                let (len, lens) = own(rank);
                Call::Scatterv { root, len, lens, in_place }
            };
            run_all(job, sequencers, &(0..n).map(gather).collect::<Vec<_>>(), random);
            run_all(job, sequencers, &(0..n).map(scatter).collect::<Vec<_>>(), random);
        }
    });
}

#[test]
fn allgather() {
    each_size(3, |job, sequencers, n, random| {
        for in_place in [false, true] {
            for len in [4, 4 * random.below(60), 6000] {
                run_all(job, sequencers, &vec![Call::Allgather { len, in_place }; n], random);
            }
            let lens: Vec<u64> = (0..n).map(|_| 4 * random.below(30)).collect();
            let lens = &lens[..];
            run_all(job, sequencers, &vec![Call::Allgatherv { lens, in_place }; n], random);
        }
    });
}

#[test]
fn alltoall() {
    each_size(4, |job, sequencers, n, random| {
        for in_place in [false, true] {
            let len = 4 * random.below(60);
            run_all(job, sequencers, &vec![Call::Alltoall { len, in_place }; n], random);
            let mut lens: Vec<Vec<u64>> =
                (0..n).map(|_| (0..n).map(|_| 4 * random.below(30)).collect()).collect();
            // In place, both ends give one length.
            for (from, to) in (0..n).flat_map(|from| (0..from).map(move |to| (from, to))) {
                if in_place {
                    lens[from][to] = lens[to][from];
                }
            }
            let recv: Vec<Vec<u64>> =
                (0..n).map(|to| (0..n).map(|from| lens[from][to]).collect()).collect();
            let each = lens.iter().zip(&recv);
            let calls: Vec<_> =
                each.map(|(send, recv)| Call::Alltoallv { send, recv, in_place }).collect();
            run_all(job, sequencers, &calls, random);
        }
    });
}

#[test]
fn reductions() {
    each_size(5, |job, sequencers, n, random| {
        for how in [Arithmetic::Sum, Arithmetic::Affine] {
            for in_place in [false, true] {
                let of = sum(how);
                for count in [1, random.below(100), 300] {
                    let (root, len) = (n / 2, of.unit * count);
                    for call in [
                        Call::Reduce { root, len, of, in_place },
                        Call::Allreduce { len, of, in_place },
                        Call::Scan { len, of, in_place },
                        Call::Exscan { len, of, in_place },
                        Call::ReduceScatterBlock { len, of, in_place },
                    ] {
                        run_with(job, sequencers, &vec![call; n], how, random);
                    }
                }
                let lens: Vec<u64> = (0..n).map(|_| of.unit * random.below(30)).collect();
                let lens = &lens[..];
                let calls = vec![Call::ReduceScatter { lens, of, in_place }; n];
                run_with(job, sequencers, &calls, how, random);
            }
        }
    });
}

#[test]
fn neighborhoods() {
    each_size(6, |job, sequencers, n, random| {
        let grid = Cartesian::new(&[u32::try_from(n).unwrap()], &[true]).unwrap();
        let around: Vec<Neighborhood> =
            (0..n).map(|rank| grid.neighbors(u32::try_from(rank).unwrap()).unwrap()).collect();
        let len = 4 * (1 + random.below(60));
        let recv = [len; 2];
        let gather = around.iter().map(|Neighborhood { sources, destinations }| {
            Call::NeighborAllgather { sources, destinations, len, recv: &recv }
        });
        run_all(job, sequencers, &gather.collect::<Vec<_>>(), random);
        let alltoall = around.iter().map(|Neighborhood { sources, destinations }| {
            Call::NeighborAlltoall { sources, destinations, send: &recv, recv: &recv }
        });
        run_all(job, sequencers, &alltoall.collect::<Vec<_>>(), random);
    });
}

/// Messages that end only when their receive has begun.
#[test]
fn by_rendezvous() {
    let mut random = Random(7);
    let config = Config { force: Some(Protocol::Pipeline), ..Config::default() };
    for n in [2, 3, 5] {
        let mut job = Job::with(n, &config);
        let worlds = job.worlds();
        let (sequencers, n) = (Job::sequencers(&worlds), n as usize);
        let of = sum(Arithmetic::Affine);
        let (root, len) = (1, of.unit * 5000);
        for call in [
            Call::Bcast { root, len },
            Call::Alltoall { len: 4000, in_place: false },
            Call::Alltoall { len: 4000, in_place: true },
            Call::Allreduce { len, of, in_place: true },
        ] {
            run_with(&mut job, &sequencers, &vec![call; n], Arithmetic::Affine, &mut random);
        }
    }
}

/// Two at once on one communicator and one on another; ranks begin and advance them in different orders.
#[test]
fn several_at_once_do_not_meet() {
    let mut random = Random(8);
    let n = 6;
    let mut job = Job::new(n);
    let comms = [job.worlds(), job.dup()];
    let sequencers = comms.map(|comms| Job::sequencers(&comms));
    let of = sum(Arithmetic::Sum);
    for call in [
        Call::Allreduce { len: 400, of, in_place: false },
        Call::Bcast { root: 2, len: 9000 },
        Call::Alltoall { len: 120, in_place: true },
    ] {
        let calls = vec![call; n as usize];
        for algorithm in candidates(&call, &near(n as usize)) {
            let make = |_| {
                let how = (Arithmetic::Sum, LIES[3]);
                Collective::new(&calls, &algorithm, how, &mut random)
            };
            let mut all: [Collective; 3] = [0, 1, 2].map(make);
            let mut executors = Vec::new();
            for (each, on) in all.iter_mut().zip([0, 0, 1]) {
                executors.extend(each.start(&sequencers[on]));
            }
            // Odd ranks advance the last first.
            executors.sort_by_key(|(rank, _)| *rank);
            for three in executors.chunks_mut(3).skip(1).step_by(2) {
                three.reverse();
            }
            for result in job.finish(&mut executors) {
                assert_eq!(result, Some(Ok(())), "{algorithm}");
            }
            drop(executors);
            all.iter().for_each(Collective::check);
        }
    }
}

/// More than tags can tell apart: those beyond wait for the first, which one rank begins last.
#[test]
fn very_many_at_once_wait_for_the_first() {
    let mut random = Random(9);
    let mut job = Job::new(2);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let algorithm = Algorithm::new(Method::Tree(Tree::Binomial));
    let calls = [Call::Bcast { root: 0, len: 8 }; 2];
    let count = usize::try_from(gapless_coll::execute::IN_FLIGHT_MAX).unwrap() + 3;
    let how = (Arithmetic::Sum, LIES[0]);
    let mut all: Vec<Collective> =
        (0..count).map(|_| Collective::new(&calls, &algorithm, how, &mut random)).collect();
    let mut executors: Vec<_> = all.iter_mut().map(|each| each.start(&sequencers)).collect();
    // Rank 1 begins all but the first.
    for _ in 0..20 {
        for each in &mut executors[..] {
            let _ = job.advance(0, &mut each[0].1);
        }
        for each in &mut executors[1..] {
            let _ = job.advance(1, &mut each[1].1);
        }
        job.progress();
    }
    let beyond = &mut executors[count - 3][1].1;
    assert_eq!(job.advance(1, beyond), Poll::Pending);
    let mut flat: Vec<_> = executors.into_iter().flatten().collect();
    for result in job.finish(&mut flat) {
        assert_eq!(result, Some(Ok(())));
    }
    all.iter().for_each(Collective::check);
}

#[test]
fn persistent_ones_start_again_in_any_order() {
    let mut random = Random(10);
    let n = 4;
    let mut job = Job::new(n);
    let worlds = job.worlds();
    let sequencers = Job::sequencers(&worlds);
    let algorithm = Algorithm::new(Method::Tree(Tree::Binomial));
    let calls = vec![Call::Bcast { root: 1, len: 60 }; n as usize];
    let how = (Arithmetic::Sum, LIES[3]);
    let mut all = [0, 1].map(|_| Collective::new(&calls, &algorithm, how, &mut random));
    let mut executors: Vec<_> = Vec::new();
    for each in &mut all {
        let tickets = sequencers.iter().map(|each| each.next_persistent().unwrap()).collect();
        executors.extend(each.with(tickets));
    }
    executors.sort_by_key(|(rank, _)| *rank);
    for round in 0..4 {
        if round > 0 {
            for (_, executor) in &mut executors {
                // SAFETY: as when it was made.
                unsafe { executor.restart() }.unwrap();
            }
        }
        // Each rank in another order, and another one each time.
        for (index, two) in executors.chunks_mut(2).enumerate() {
            if (index + round) % 2 == 0 {
                two.reverse();
            }
        }
        for result in job.finish(&mut executors) {
            assert_eq!(result, Some(Ok(())), "round {round}");
        }
        all.iter().for_each(Collective::check);
    }
    // SAFETY: as above.
    unsafe { executors[0].1.restart() }.unwrap();
    // Rank 0 is a leaf and waits.
    assert_eq!(job.advance(0, &mut executors[0].1), Poll::Pending);
    // SAFETY: it is refused.
    assert_eq!(unsafe { executors[0].1.restart() }, Err(CollError::StillActive));
}
