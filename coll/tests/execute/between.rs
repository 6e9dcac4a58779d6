//! Intercommunicators: groups of unequal sizes, whose processes are mixed.
use super::*;
use crate::job::Job;
use gapless_coll::execute::between;
use gapless_coll::testkit::after_between;
use gapless_coll::{Between, BetweenCall, BufferBlocks, CollError};
use gapless_pml::Comm;

const LIES: [&[Lie]; 3] = [&[Lie::Plain], &[Lie::Gaps], &[Lie::Gaps, Lie::Plain, Lie::Apart]];

/// One collective of both groups, with its executors started. Ranks of executors are processes.
struct Both {
    comms: Vec<Comm>,
    sequencers: Vec<Sequencer>,
    sizes: (usize, usize),
}

impl Both {
    fn new(job: &mut Job, is_one: impl Fn(u32) -> bool) -> Both {
        let comms = job.inter(is_one);
        let at = between(&comms[0]).unwrap();
        let sequencers = Job::sequencers(&comms);
        Both { comms, sequencers, sizes: (at.first, at.second) }
    }

    fn at(&self, rank: usize) -> Between {
        Between { rank, first: self.sizes.0, second: self.sizes.1 }
    }

    /// The process of a rank.
    fn process(&self, rank: usize) -> u32 {
        let comm = &self.comms[rank];
        comm.group().process(comm.rank()).unwrap()
    }

    fn collective(
        &self,
        calls: &[BetweenCall<'_>],
        how: (Arithmetic, &[Lie]),
        random: &mut Random,
    ) -> Collective {
        let each = calls.iter().enumerate();
        let schedules: Vec<Schedule> =
            each.map(|(rank, call)| self.at(rank).build(call).unwrap()).collect();
        let what = format!("{:?} between {:?}", calls[0], self.sizes);
        let expected = |schedules: &[Schedule], before: &[Content]| {
            after_between(calls, self.sizes, schedules, before, how.0)
        };
        Collective::of(what, schedules, how, expected, random)
    }

    fn start(&self, collective: &mut Collective) -> Vec<(u32, Executor)> {
        let mut executors = collective.start(&self.sequencers);
        for (rank, (process, _)) in executors.iter_mut().enumerate() {
            *process = self.process(rank);
        }
        executors
    }

    fn run<'a>(
        &self,
        job: &mut Job,
        (how, random): (Arithmetic, &mut Random),
        call: impl Fn(Between) -> BetweenCall<'a>,
    ) {
        let ranks = self.sizes.0 + self.sizes.1;
        let calls: Vec<_> = (0..ranks).map(|rank| call(self.at(rank))).collect();
        let lies = LIES[random.index(3)];
        let mut collective = self.collective(&calls, (how, lies), random);
        let mut executors = self.start(&mut collective);
        for (rank, result) in job.finish(&mut executors).into_iter().enumerate() {
            assert_eq!(result, Some(Ok(())), "{}: rank {rank}", collective.what);
        }
        drop(executors);
        collective.check();
    }
}

/// Calls `test` with two groups of each of some sizes: the processes of the first follow each other, or not, and the
/// first process of the job is in either.
fn each_size(seed: u64, mut test: impl FnMut(&mut Job, &Both, &mut Random)) {
    let mut random = Random(seed);
    for (size, modulus) in [(2, 2), (3, 2), (5, 5), (6, 3), (9, 4)] {
        for part in [0, 1] {
            let mut job = Job::new(size);
            let both = Both::new(&mut job, |process| process % modulus == part);
            test(&mut job, &both, &mut random);
        }
    }
}

#[test]
fn barriers_and_exchanges() {
    each_size(40, |job, both, random| {
        let how = Arithmetic::Sum;
        let first = both.sizes.0;
        both.run(job, (how, random), |_| BetweenCall::Barrier);
        for (one, other) in [(8, 12), (0, 40), (9000, 4)] {
            let lens = |at: Between| if at.rank < first { (one, other) } else { (other, one) };
            both.run(job, (how, random), |at| BetweenCall::Allgather {
                send: lens(at).0,
                recv: lens(at).1,
            });
            both.run(job, (how, random), |at| BetweenCall::Alltoall {
                send: lens(at).0,
                recv: lens(at).1,
            });
        }
        let n = first + both.sizes.1;
        let own: Vec<u64> = (0..n).map(|_| 4 * random.below(30)).collect();
        both.run(job, (how, random), |at| BetweenCall::Allgatherv {
            send: own[at.rank],
            recv: &own[at.remote()],
        });
        let out: Vec<Vec<u64>> =
            (0..n).map(|_| (0..n).map(|_| 4 * random.below(30)).collect()).collect();
        let into: Vec<Vec<u64>> =
            (0..n).map(|to| (0..n).map(|from| out[from][to]).collect()).collect();
        both.run(job, (how, random), |at| BetweenCall::Alltoallv {
            send: &out[at.rank][at.remote()],
            recv: &into[at.rank][at.remote()],
        });
    });
}

#[test]
fn rooted() {
    each_size(41, |job, both, random| {
        let n = both.sizes.0 + both.sizes.1;
        for root in [0, both.sizes.0 - 1, both.sizes.0, n - 1] {
            let remote = both.at(root).remote();
            let named =
                |at: Between| (at.rank == root || remote.contains(&at.rank)).then_some(root);
            for how in [Arithmetic::Sum, Arithmetic::Affine] {
                let (of, len) = (how.reduction(), how.unit() * random.below(900));
                both.run(job, (how, random), |at| BetweenCall::Bcast { root: named(at), len });
                both.run(job, (how, random), |at| BetweenCall::Gather { root: named(at), len });
                both.run(job, (how, random), |at| BetweenCall::Scatter { root: named(at), len });
                both.run(job, (how, random), |at| BetweenCall::Reduce { root: named(at), len, of });
            }
            let lens: Vec<u64> = remote.clone().map(|_| 4 * random.below(30)).collect();
            let listed = |at: Between| if at.rank == root { &lens[..] } else { &[] };
            let own = |at: Between| match remote.contains(&at.rank) {
                true => lens[at.rank - remote.start],
                false => 0,
            };
            let how = Arithmetic::Sum;
            both.run(job, (how, random), |at| BetweenCall::Gatherv {
                root: named(at),
                len: own(at),
                lens: listed(at),
            });
            both.run(job, (how, random), |at| BetweenCall::Scatterv {
                root: named(at),
                len: own(at),
                lens: listed(at),
            });
        }
    });
}

#[test]
fn reductions() {
    each_size(42, |job, both, random| {
        for how in [Arithmetic::Sum, Arithmetic::Affine] {
            let of = how.reduction();
            let len = of.unit * (1 + random.below(200));
            both.run(job, (how, random), |_| BetweenCall::Allreduce { len, of });
            both.run(job, (how, random), |at| BetweenCall::ReduceScatterBlock {
                len: len * at.remote().len() as u64,
                of,
            });
            let total = both.sizes.0 * both.sizes.1 + 3;
            let cut = |n: usize| -> Vec<u64> {
                let mut lens: Vec<u64> = (0..n as u64).map(|rank| of.unit * (rank % 2)).collect();
                lens[n - 1] += of.unit * total as u64 - lens.iter().sum::<u64>();
                lens
            };
            let (one, other) = (cut(both.sizes.0), cut(both.sizes.1));
            both.run(job, (how, random), |at| BetweenCall::ReduceScatter {
                lens: if at.rank < both.sizes.0 { &one } else { &other },
                of,
            });
        }
    });
}

/// Whoever needs the dead names it by its number among both groups, whichever group it was in.
#[test]
fn a_rank_dies() {
    let mut random = Random(43);
    for dead in 0..5 {
        let mut job = Job::new(5);
        let both = Both::new(&mut job, |process| process % 2 == 1);
        let calls = [BetweenCall::Barrier; 5];
        let how = (Arithmetic::Sum, LIES[0]);
        let mut collective = both.collective(&calls, how, &mut random);
        let mut executors = both.start(&mut collective);
        job.kill(both.process(dead));
        let mut failed = 0;
        for (rank, result) in job.finish(&mut executors).into_iter().enumerate() {
            match result {
                None => assert_eq!(rank, dead),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    failed += 1;
                    assert_eq!(error.culprit(), u32::try_from(dead).ok(), "rank {rank}: {error}");
                }
            }
        }
        assert!(failed >= 2, "{failed} ranks have noticed");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut job = Job::new(3);
    let both = Both::new(&mut job, |process| process == 0);
    assert_eq!(both.sizes, (1, 2));
    let worlds = job.worlds();
    assert_eq!(between(&worlds[0]), None);
    let none = || CallBuffers { send: BufferBlocks::None, recv: BufferBlocks::None };
    let schedule = both.at(2).build(&BetweenCall::Barrier).unwrap();
    // SAFETY: it never runs.
    let made = unsafe { Executor::new(schedule, none(), None, both.sequencers[1].next()) };
    assert_eq!(made.unwrap_err(), CollError::OtherRank { rank: 2, ranks: 3, own: 1, size: 3 });
}
