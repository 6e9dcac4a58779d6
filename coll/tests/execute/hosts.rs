//! Collectives on several hosts, whose ranks go through memory that they share: by executors that have their host's
//! shared segment.
use super::*;
use crate::job::Job;
use crate::late::Late;
use crate::sm::open_all;
use gapless_coll::choose::candidates;
use gapless_coll::sm::{Opening, SharedSegment};
use gapless_coll::{CollError, Operation};
use gapless_engine::{Engine, HostEngine, Reducer};
use std::task::Poll;

const TURNS_MAX: u32 = 200_000;

/// Ranks on pretended hosts, and the shared segment of each rank's host, if it has one.
struct Hosts {
    locality: Locality,
    job: Job,
    sequencers: Vec<Sequencer>,
    segments: Vec<Option<SharedSegment>>,
}

/// Hosts of so many ranks, which follow each other.
fn in_a_row(sizes: &[usize]) -> Locality {
    let starts = sizes.iter().scan(0, |end, size| {
        *end += size;
        Some(*end - size..*end)
    });
    Locality::new(starts.map(Iterator::collect).collect()).unwrap()
}

/// So many hosts, whose ranks are by turns.
fn by_turns(n: usize, hosts: usize) -> Locality {
    Locality::new((0..hosts).map(|host| (host..n).step_by(hosts).collect()).collect()).unwrap()
}

fn open(
    job: &mut Job,
    sequencers: &[Sequencer],
    locality: &Locality,
    kill: Option<(u32, u32)>,
) -> Vec<Option<SharedSegment>> {
    let group = |rank: usize| locality.hosts().iter().find(|it| it.contains(&rank)).unwrap();
    let start = |(rank, sequencer)| Some(Opening::of_host(sequencer, group(rank)));
    open_all(job, sequencers.iter().enumerate().map(start).collect(), kill)
}

impl Hosts {
    /// Those of some hosts, by their first rank, share no memory.
    fn new(locality: Locality, apart: &[usize]) -> Hosts {
        let mut job = Job::new(u32::try_from(locality.ranks()).unwrap());
        let comms = job.dup();
        let sequencers = Job::sequencers(&comms);
        let mut segments = open(&mut job, &sequencers, &locality, None);
        for host in locality.hosts() {
            for rank in host {
                assert_eq!(segments[*rank].is_some(), host.len() > 1, "rank {rank}");
                if apart.contains(&host[0]) {
                    segments[*rank] = None;
                }
            }
        }
        Hosts { locality, job, sequencers, segments }
    }

    /// A collective of all ranks, by a random algorithm.
    fn collective(
        &self,
        call: &Call<'_>,
        how: Arithmetic,
        lies: &[Lie],
        random: &mut Random,
    ) -> Collective {
        let calls = vec![*call; self.locality.ranks()];
        let mut all = candidates(call, &self.locality);
        all.retain(|it| it.within.is_shared());
        let algorithm = all[random.index(all.len())].segmented([0, 400][random.index(2)]);
        let one = |rank: usize| match self.segments[rank] {
            Some(_) => build(rank, &self.locality, call, &algorithm).unwrap(),
            None => build_apart(rank, &self.locality, call, &algorithm).unwrap(),
        };
        let schedules = (0..calls.len()).map(one).collect();
        let what = format!("{call:?} by {algorithm}, {:?}, {lies:?}", self.locality);
        let expected =
            |schedules: &[Schedule], before: &[Content]| after(&calls, schedules, before, how);
        Collective::of(what, schedules, (how, lies), expected, random)
    }

    /// Goes on with a collective of a rank.
    fn advance(
        &mut self,
        rank: usize,
        (executor, number): (&mut Executor, u64),
        engine: &(impl Engine + Reducer),
    ) -> Poll<Result<(), CollError>> {
        let pml = self.job.ranks[rank].as_mut().unwrap();
        match &mut self.segments[rank] {
            Some(segment) => executor.advance_with((segment, number), pml, engine, engine),
            None => executor.advance(pml, engine, engine),
        }
    }
}

/// A call of those that go on levels.
fn call(n: usize, of: Reduction, random: &mut Random) -> Call<'static> {
    let in_place = random.below(2) == 0;
    let root = random.index(n);
    let most = [2, 16, 256, 1500, 30_000][random.index(5)];
    let len = of.unit * random.below(most);
    [
        Call::Barrier,
        Call::Bcast { root, len },
        Call::Allgather { len: len / 4 * 4, in_place },
        Call::Gather { root, len: len / 4 * 4, in_place },
        Call::Scatter { root, len: len / 4 * 4, in_place },
        Call::Alltoall { len: len % 400 / 4 * 4, in_place },
        // Of longer ones no algorithm is proposed: a leader would need too much memory.
        Call::ReduceScatterBlock { len: len % (3000 * of.unit), of, in_place },
        Call::Reduce { root, len, of, in_place },
        Call::Allreduce { len, of, in_place },
    ][random.index(9)]
}

/// One rank's way through a program: at which collective it is, and what carries that out.
#[derive(Default)]
struct At {
    index: usize,
    going: Option<(Executor, u64)>,
}

impl At {
    /// Goes on; how a collective went that has ended now.
    fn go(
        &mut self,
        rank: usize,
        (hosts, program): (&mut Hosts, &mut [Collective]),
        engine: &(impl Engine + Reducer),
    ) -> Option<Result<(), CollError>> {
        let one = program.get_mut(self.index)?;
        let (executor, number) = self.going.get_or_insert_with(|| {
            let ticket = hosts.sequencers[rank].next();
            let number = ticket.number();
            let (send, recv) = &mut one.held[rank];
            let rows = CallBuffers { send: send.blocks(), recv: recv.blocks() };
            let (schedule, combine) = (one.schedules[rank].clone(), Some(one.how.how()));
            // SAFETY: tests keep the buffers until all has ended, or the endpoints and shared segments are gone.
            (unsafe { Executor::new(schedule, rows, combine, ticket) }.unwrap(), number)
        });
        let Poll::Ready(result) = hosts.advance(rank, (executor, *number), engine) else {
            return None;
        };
        (self.index, self.going) = (self.index + 1, None);
        Some(result)
    }
}

/// Ranks go through a list of random calls, each as far ahead of others as it can: all results are as defined.
fn play(
    (locality, apart, count): (Locality, &[usize], usize),
    engine: &(impl Engine + Reducer),
    random: &mut Random,
) {
    let n = locality.ranks();
    let consecutive = locality.is_consecutive(&gapless_coll::Within::SHARED);
    let mut hosts = Hosts::new(locality, apart);
    let lies: [&[Lie]; 3] = [&[Lie::Plain], &[Lie::Gaps, Lie::Plain], &[Lie::Apart, Lie::Gaps]];
    let mut program: Vec<Collective> = Vec::new();
    while program.len() < count {
        let ordered = consecutive && random.below(2) == 0;
        let how = if ordered { Arithmetic::Affine } else { Arithmetic::Sum };
        let call = call(n, sum(how), random);
        use Operation::{Allgather, Alltoall, Gather, ReduceScatterBlock, Scatter};
        let joins = matches!(
            call.operation(),
            Allgather | Alltoall | Gather | Scatter | ReduceScatterBlock
        );
        if consecutive || !joins {
            program.push(hosts.collective(&call, how, lies[random.index(3)], random));
        }
    }
    let mut at: Vec<At> = (0..n).map(|_| At::default()).collect();
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "they do not end");
        if at.iter().all(|at| at.index == count) {
            break;
        }
        let rank = random.index(n);
        for _ in 0..=random.below(4) * 3 {
            let what = program.get(at[rank].index).map(|one| one.what.clone());
            let ended = at[rank].go(rank, (&mut hosts, &mut program), engine);
            assert!(ended.is_none_or(|result| result == Ok(())), "{what:?}, rank {rank}");
        }
        hosts.job.progress();
    }
    drop(hosts);
    program.iter().for_each(Collective::check);
}

#[test]
fn every_operation_gives_what_it_is_defined_to_give() {
    let mut random = Random(80);
    for (locality, apart) in [
        (in_a_row(&[2, 2]), &[][..]),
        (in_a_row(&[2, 2]), &[2]),
        (in_a_row(&[1, 3]), &[]),
        (in_a_row(&[3, 1, 2]), &[]),
        (in_a_row(&[4, 2, 3, 1]), &[4]),
        (by_turns(5, 2), &[]),
        (by_turns(8, 3), &[1]),
        (in_a_row(&[9, 8]), &[]),
    ] {
        play((locality, apart, 60), &HostEngine, &mut random);
    }
}

#[test]
fn engines_that_work_later_are_waited_for() {
    let mut random = Random(81);
    play((in_a_row(&[2, 3]), &[], 40), &Late, &mut random);
    play((by_turns(6, 2), &[], 20), &Late, &mut random);
}

/// If a rank dies before all of its host have the shared segment, these agree all the same. Other hosts have theirs.
#[test]
fn all_ranks_of_a_host_have_a_segment_or_none_has() {
    let (mut some, mut none) = (0, 0);
    let locality = in_a_row(&[3, 2]);
    for (dead, near) in [(0, [1, 2]), (1, [0, 2])] {
        for when in 0..40 {
            let mut job = Job::new(5);
            let worlds = job.worlds();
            let kill = Some((dead, when));
            let segments = open(&mut job, &Job::sequencers(&worlds), &locality, kill);
            let opened = near.iter().filter(|rank| segments[**rank].is_some()).count();
            assert!([0, 2].contains(&opened), "{opened} of 2");
            assert!(segments[3].is_some() && segments[4].is_some(), "the other host");
            if opened == 0 { none += 1 } else { some += 1 }
        }
    }
    assert!(some > 0 && none > 0, "{some} {none}");
}

/// A program of calls for as many ranks.
fn program(hosts: &Hosts, random: &mut Random) -> Vec<Collective> {
    let n = hosts.locality.ranks();
    let mut one = |_| {
        let call = call(n, sum(Arithmetic::Sum), random);
        hosts.collective(&call, Arithmetic::Sum, &[Lie::Plain, Lie::Gaps], random)
    };
    (0..8).map(&mut one).collect()
}

/// A rank dies in the midst of collectives, a leader or another one: whoever needs it fails and names it, on all hosts,
/// and the others end well.
#[test]
fn a_death_ends_collectives_on_all_hosts_with_its_name() {
    let mut random = Random(82);
    let (mut failed, mut well, mut far) = (0, 0, 0);
    for round in 0..120 {
        let mut hosts = Hosts::new(in_a_row(&[3, 2, 1, 2]), &[]);
        let dead = usize::try_from(round % 8).unwrap();
        let host = |rank: usize| hosts_of(&[3, 2, 1, 2], rank);
        let mut program = program(&hosts, &mut random);
        let mut at: Vec<At> = (0..8).map(|_| At::default()).collect();
        for turn in 0.. {
            assert!(turn < 4000, "round {round}");
            if turn == round / 4 {
                hosts.job.kill(u32::try_from(dead).unwrap());
                at[dead] = At { index: program.len(), going: None };
            }
            for rank in (0..8).filter(|rank| *rank != dead || turn < round / 4) {
                match at[rank].go(rank, (&mut hosts, &mut program), &HostEngine) {
                    None => {}
                    Some(Ok(())) => well += 1,
                    Some(Err(error)) => {
                        let what = format!("round {round}, rank {rank}: {error}");
                        assert_eq!(error.culprit(), u32::try_from(dead).ok(), "{what}");
                        failed += 1;
                        far += i32::from(host(rank) != host(dead));
                    }
                }
            }
            hosts.job.progress();
            if at.iter().all(|at| at.index == program.len()) {
                break;
            }
        }
        drop((at, hosts));
    }
    assert!(failed > 500 && well > 500 && far > 300, "{failed} {well} {far}");
}

fn hosts_of(sizes: &[usize], rank: usize) -> usize {
    let mut end = 0;
    sizes
        .iter()
        .take_while(|size| {
            end += **size;
            end <= rank
        })
        .count()
}

/// One rank takes no part any more, and revokes: what the others wait for ends there, also on the shared segment.
#[test]
fn collectives_end_on_all_hosts_when_a_rank_revokes() {
    let mut random = Random(83);
    let (mut failed, mut well) = (0, 0);
    for round in 0..60 {
        let mut job = Job::new(6);
        let (locality, comms) = (in_a_row(&[3, 3]), job.dup());
        let sequencers = Job::sequencers(&comms);
        let segments = open(&mut job, &sequencers, &locality, None);
        let mut hosts = Hosts { locality, job, sequencers, segments };
        let absent = usize::try_from(round % 6).unwrap();
        let mut program = program(&hosts, &mut random);
        let mut at: Vec<At> = (0..6).map(|_| At::default()).collect();
        for turn in 0.. {
            assert!(turn < 4000, "round {round}");
            let over = turn > round / 6;
            if turn == round / 6 {
                hosts.job.pml(u32::try_from(absent).unwrap()).revoke(&comms[absent]).unwrap();
            }
            for rank in (0..6).filter(|rank| *rank != absent || over) {
                match at[rank].go(rank, (&mut hosts, &mut program), &HostEngine) {
                    None => {}
                    Some(Ok(())) => well += 1,
                    Some(Err(error)) => {
                        assert_eq!(error, CollError::Revoked, "round {round}, rank {rank}");
                        failed += 1;
                    }
                }
            }
            hosts.job.progress();
            if at.iter().all(|at| at.index == program.len()) {
                break;
            }
        }
    }
    assert!(failed > 500 && well > 20, "{failed} {well}");
}

/// A rank that was refused has no part in a collective: the others of its host learn that, and those of other hosts
/// through them; the next collective goes on.
#[test]
fn a_rank_that_was_refused_is_named_on_all_hosts() {
    let mut random = Random(84);
    for len in [8, 5000] {
        let mut hosts = Hosts::new(in_a_row(&[2, 2]), &[]);
        let call = Call::Allreduce { len, of: sum(Arithmetic::Sum), in_place: false };
        let mut program: Vec<Collective> = (0..2)
            .map(|_| hosts.collective(&call, Arithmetic::Sum, &[Lie::Plain], &mut random))
            .collect();
        let mut at: Vec<At> = (0..4).map(|_| At::default()).collect();
        let number = hosts.sequencers[1].pass();
        hosts.segments[1].as_mut().unwrap().refuse(number, hosts.job.pml(1));
        at[1].index = 1;
        for turn in 0.. {
            assert!(turn < 4000, "they do not end");
            for (rank, at) in at.iter_mut().enumerate() {
                let index = at.index;
                match at.go(rank, (&mut hosts, &mut program), &HostEngine) {
                    Some(Err(error)) if index == 0 => {
                        assert_eq!(error.culprit(), Some(1), "rank {rank}: {error}");
                    }
                    Some(result) => assert_eq!((result, index), (Ok(()), 1)),
                    None => {}
                }
            }
            hosts.job.progress();
            if at.iter().all(|at| at.index == 2) {
                break;
            }
        }
        drop((at, hosts));
        program[1].check();
    }
}

/// The mailbox entries of collectives with one step lie in all places by turns: who needs nothing of the others is as
/// far ahead.
#[test]
fn a_leader_is_as_far_ahead_as_there_is_room_for_entries() {
    let mut random = Random(85);
    let mut hosts = Hosts::new(in_a_row(&[2, 2]), &[]);
    let one = |_| {
        let call = Call::Bcast { root: 0, len: 8 };
        hosts.collective(&call, Arithmetic::Sum, &[Lie::Plain], &mut random)
    };
    let mut program: Vec<Collective> = (0..6).map(one).collect();
    let mut at: Vec<At> = (0..4).map(|_| At::default()).collect();
    for _ in 0..500 {
        let ended = at[0].go(0, (&mut hosts, &mut program), &HostEngine);
        assert!(ended.is_none_or(|result| result == Ok(())));
        hosts.job.progress();
    }
    assert_eq!(at[0].index, 4);
    finish((&mut hosts, &mut program), &mut at);
    drop((at, hosts));
    program.iter().for_each(Collective::check);
}

/// All go on until all is over, and well.
fn finish((hosts, program): (&mut Hosts, &mut [Collective]), at: &mut [At]) {
    for turn in 0.. {
        assert!(turn < 4000, "they do not end");
        for (rank, at) in at.iter_mut().enumerate() {
            let ended = at.go(rank, (hosts, program), &HostEngine);
            assert!(ended.is_none_or(|result| result == Ok(())), "rank {rank}");
        }
        hosts.job.progress();
        if at.iter().all(|at| at.index == program.len()) {
            return;
        }
    }
}

/// Hosts, other shared segments of their ranks, and all-reductions.
fn with_other_segments(
    random: &mut Random,
) -> (Hosts, Vec<Option<SharedSegment>>, Vec<Collective>) {
    let mut hosts = Hosts::new(in_a_row(&[2, 2]), &[]);
    let comms = hosts.job.dup();
    let others = open(&mut hosts.job, &Job::sequencers(&comms), &hosts.locality, None);
    let of = sum(Arithmetic::Sum);
    let one = |len| {
        let call = Call::Allreduce { len, of, in_place: false };
        hosts.collective(&call, Arithmetic::Sum, &[Lie::Plain], random)
    };
    let program = [8, 5000].map(one).into();
    (hosts, others, program)
}

/// A shared segment that has begun a step works on the rank's memory: no other segment ends that step.
#[test]
fn a_step_waits_for_the_segment_that_it_has_begun_on() {
    let mut random = Random(86);
    let (mut hosts, mut others, mut program) = with_other_segments(&mut random);
    let mut at: Vec<At> = (0..4).map(|_| At::default()).collect();
    for _ in 0..program.len() {
        let index = at[0].index;
        assert!(at[0].go(0, (&mut hosts, &mut program), &HostEngine).is_none());
        std::mem::swap(&mut hosts.segments[0], &mut others[0]);
        for _ in 0..200 {
            for (rank, at) in at.iter_mut().enumerate() {
                if at.index == index {
                    let ended = at.go(rank, (&mut hosts, &mut program), &HostEngine);
                    assert!(ended.is_none(), "rank {rank} has ended: {ended:?}");
                }
            }
            hosts.job.progress();
        }
        std::mem::swap(&mut hosts.segments[0], &mut others[0]);
        for turn in 0.. {
            assert!(turn < 4000, "they do not end");
            for (rank, at) in at.iter_mut().enumerate().filter(|(_, at)| at.index == index) {
                let ended = at.go(rank, (&mut hosts, &mut program), &HostEngine);
                assert!(ended.is_none_or(|result| result == Ok(())), "rank {rank}");
            }
            hosts.job.progress();
            if at.iter().all(|at| at.index > index) {
                break;
            }
        }
    }
    drop((at, hosts));
    program.iter().for_each(Collective::check);
}

/// A shared segment that is gone works on nothing any more: the step ends, and other hosts are told.
#[test]
fn a_step_fails_if_its_segment_is_gone() {
    let mut random = Random(87);
    for which in 0..2 {
        let (mut hosts, mut others, program) = with_other_segments(&mut random);
        let mut program: Vec<_> = program.into_iter().skip(which).take(1).collect();
        let mut at: Vec<At> = (0..4).map(|_| At::default()).collect();
        assert!(at[0].go(0, (&mut hosts, &mut program), &HostEngine).is_none());
        hosts.segments[0] = others[0].take();
        let mut ended = [None, None, None, None];
        for _ in 0..500 {
            for rank in [0, 2, 3] {
                if let Some(result) = at[rank].go(rank, (&mut hosts, &mut program), &HostEngine) {
                    ended[rank] = Some(result);
                }
            }
            hosts.job.progress();
        }
        assert_eq!(ended[0], Some(Err(CollError::Abandoned)));
        for far in [2, 3] {
            let error = ended[far].take().map(Result::unwrap_err);
            assert_eq!(error.and_then(|error| error.culprit()), Some(0), "rank {far}");
        }
        drop((at, hosts));
    }
}

/// A rank that has no shared segment where its schedule needs one fails, and other hosts are told.
#[test]
fn a_step_without_a_segment_fails() {
    let mut random = Random(88);
    let (mut hosts, _, mut program) = with_other_segments(&mut random);
    program.truncate(1);
    hosts.segments[2] = None;
    let mut at: Vec<At> = (0..4).map(|_| At::default()).collect();
    let mut ended = [None, None, None];
    for _ in 0..500 {
        for rank in 0..3 {
            if let Some(result) = at[rank].go(rank, (&mut hosts, &mut program), &HostEngine) {
                ended[rank] = Some(result);
            }
        }
        hosts.job.progress();
    }
    let operation = Operation::Allreduce;
    assert_eq!(ended[2], Some(Err(CollError::NotShared { operation })));
    for far in [0, 1] {
        let error = ended[far].take().map(Result::unwrap_err);
        assert_eq!(error.and_then(|error| error.culprit()), Some(2), "rank {far}");
    }
}

/// What combines elements is asked for before anything begins.
#[test]
fn a_sum_of_a_host_needs_what_combines() {
    let mut job = Job::new(4);
    let comms = job.dup();
    let of = sum(Arithmetic::Sum);
    let call = Call::Allreduce { len: 8, of, in_place: false };
    let algorithm = "doubling over shared".parse().unwrap();
    let schedule = build(1, &in_a_row(&[2, 2]), &call, &algorithm).unwrap();
    let held = |row| Held::new(&row, Lie::Plain, &[0; 8], &mut Random(1));
    let (mut send, mut recv) = (held(schedule.row(Buffer::Send)), held(schedule.row(Buffer::Recv)));
    let rows = CallBuffers { send: send.blocks(), recv: recv.blocks() };
    // SAFETY: it never begins.
    let made = unsafe { Executor::new(schedule, rows, None, Sequencer::new(&comms[1]).next()) };
    assert_eq!(made.err(), Some(CollError::Combine { unit: of.unit, given: None }));
}
