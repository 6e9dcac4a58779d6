//! Communicators: made together, kept apart, freed.

use crate::common::{Buffer, Job, bytes};
use gapless_pml::{Comm, CommRequest, Comparison, Group, Pml, PmlError, Source, TagSel};

/// What `start` makes in each rank.
fn make(
    job: &mut Job,
    mut start: impl FnMut(u32, &mut Pml) -> Result<CommRequest, PmlError>,
) -> Vec<Option<Comm>> {
    let ranks = u32::try_from(job.ranks.len()).unwrap();
    let requests: Vec<CommRequest> =
        (0..ranks).map(|rank| start(rank, job.pml(rank)).unwrap()).collect();
    (0u32..).zip(requests).map(|(rank, request)| made(job, rank, request).unwrap()).collect()
}

fn made(job: &mut Job, rank: u32, request: CommRequest) -> Result<Option<Comm>, PmlError> {
    job.until("a communicator", |job| job.pml(rank).test_comm(request).transpose())
}

fn dup(job: &mut Job, parents: &[Comm]) -> Vec<Comm> {
    let comms = make(job, |rank, pml| pml.start_dup(&parents[rank as usize]));
    comms.into_iter().map(Option::unwrap).collect()
}

/// One message from `from` to each of the ranks that it can send to, seen only there.
fn check_reach(job: &mut Job, comms: &[Option<Comm>], from: u32) {
    let comm = comms[from as usize].as_ref().unwrap();
    let data = Buffer::source(&bytes(4), 1, u64::from(from));
    let sends: Vec<_> = (0..comm.peers().size())
        .map(|rank| {
            // SAFETY: the buffers live until the requests have ended.
            unsafe { job.pml(from).isend(comm, &data.typed(), rank, 1) }.unwrap()
        })
        .collect();
    for send in sends {
        job.finish(from, send).unwrap();
    }
    job.settle();
    let mut received = 0;
    for process in comm.peers().clone().processes() {
        let theirs = comms[process as usize].as_ref().unwrap();
        let to = Buffer::target(&bytes(4), 1);
        // SAFETY: as above.
        let recv = unsafe { job.pml(process).irecv(theirs, &to.typed(), Source::Any, TagSel::Any) };
        let status = job.finish(process, recv.unwrap()).unwrap();
        assert_eq!(theirs.process(status.source), Ok(from));
        assert_eq!(status.source, comm.rank());
        to.assert_received(&data.packed(), "through a new communicator");
        received += 1;
    }
    assert_eq!(received, comm.peers().size());
}

fn worlds(job: &mut Job) -> Vec<Comm> {
    let ranks = u32::try_from(job.ranks.len()).unwrap();
    (0..ranks).map(|rank| job.pml(rank).world()).collect()
}

#[test]
fn messages_of_one_communicator_are_not_received_in_another() {
    let mut job = Job::new(3);
    let worlds = worlds(&mut job);
    let dups = dup(&mut job, &worlds);
    let (a, b) = (Buffer::source(&bytes(4), 1, 1), Buffer::source(&bytes(4), 1, 2));
    let to = [Buffer::target(&bytes(4), 1), Buffer::target(&bytes(4), 1)];
    let comms = [&worlds[0], &dups[0]];
    for (comm, from) in comms.into_iter().zip([&a, &b]) {
        // SAFETY: the buffers live until the requests have ended.
        let send = unsafe { job.pml(0).isend(comm, &from.typed(), 2, 1) }.unwrap();
        job.finish(0, send).unwrap();
    }
    job.settle();
    // The later message first: the communicator decides, not the order.
    for (comm, to, from) in [(&dups[2], &to[0], &b), (&worlds[2], &to[1], &a)] {
        // SAFETY: as above.
        let recv =
            unsafe { job.pml(2).irecv(comm, &to.typed(), Source::Any, TagSel::Any) }.unwrap();
        assert_eq!(job.finish(2, recv).unwrap().source, 0);
        to.assert_received(&from.packed(), "by communicator");
    }
    // Nor in the collective context of the same one.
    // SAFETY: as above.
    let send = unsafe { job.pml(0).isend(&dups[0].collective(), &a.typed(), 1, 1) }.unwrap();
    job.finish(0, send).unwrap();
    job.settle();
    assert_eq!(job.pml(1).iprobe(&dups[1], Source::Any, TagSel::Any), Ok(None));
    let seen = job.pml(1).iprobe(&dups[1].collective(), Source::Any, TagSel::Any).unwrap();
    assert_eq!(seen.map(|status| status.bytes), Some(4));
}

#[test]
fn a_message_may_come_before_its_communicator() {
    let mut job = Job::new(2);
    let worlds = worlds(&mut job);
    let ids = [0, 1].map(|rank: u32| job.pml(rank).start_dup(&worlds[rank as usize]).unwrap());
    let first = job.until("rank 0's dup", |job| {
        job.pml(1).progress();
        job.pml(0).test_comm(ids[0]).unwrap().flatten()
    });
    let from = Buffer::source(&bytes(10_000), 1, 1);
    // SAFETY: the buffer lives until the requests have ended.
    let send = unsafe { job.pml(0).isend(&first, &from.typed(), 1, 0) }.unwrap();
    job.settle();
    let second = job.until("rank 1's dup", |job| job.pml(1).test_comm(ids[1]).unwrap().flatten());
    let to = Buffer::target(&bytes(10_000), 1);
    // SAFETY: as above.
    let recv = unsafe { job.pml(1).irecv(&second, &to.typed(), Source::Any, TagSel::Any) }.unwrap();
    job.finish(1, recv).unwrap();
    job.finish(0, send).unwrap();
    to.assert_received(&from.packed(), "an early message");
}

#[test]
fn messages_for_a_communicator_that_was_freed_are_dropped_and_nobody_is_lost() {
    let mut job = Job::new(2);
    let worlds = worlds(&mut job);
    let dups = dup(&mut job, &worlds);
    let small: Vec<Buffer> = (0..50).map(|seed| Buffer::source(&bytes(40), 1, seed)).collect();
    let large = Buffer::source(&bytes(100_000), 1, 1);
    let send = |job: &mut Job, from: &Buffer| {
        // SAFETY: the buffers live until the requests have ended.
        unsafe { job.pml(0).isend(&dups[0], &from.typed(), 1, 0) }.unwrap()
    };
    let before = send(&mut job, &large);
    job.settle();
    job.pml(1).free(&dups[1]).unwrap();
    let after = send(&mut job, &large);
    for from in &small {
        let send = send(&mut job, from);
        job.finish(0, send).unwrap();
    }
    for send in [before, after] {
        assert_eq!(job.finish(0, send), Err(PmlError::Unreceived { rank: 1, tag: 0 }));
    }
    // The place is used again, and what is late does not get there.
    let again = dup(&mut job, &worlds);
    let late = send(&mut job, &small[0]);
    job.finish(0, late).unwrap();
    job.settle();
    assert_eq!(job.pml(1).iprobe(&again[1], Source::Any, TagSel::Any), Ok(None));
    check_reach(&mut job, &again.into_iter().map(Some).collect::<Vec<_>>(), 0);
}

#[test]
fn identifiers_differ_where_they_must_and_come_back() {
    let mut job = Job::new(2);
    // Rank 0 has one communicator more than rank 1.
    let alone = job.pml(0).self_comm();
    let mine = job.pml(0).dup(&alone).unwrap();
    let worlds = worlds(&mut job);
    let dups = dup(&mut job, &worlds);
    assert!(!dups[0].same(&worlds[0]) && !dups[0].same(&mine));
    let again = dup(&mut job, &dups);
    assert_eq!((again[0].rank(), again[1].rank(), again[0].size()), (0, 1, 2));
    for (rank, comm) in (0u32..).zip(&dups) {
        job.pml(rank).free(comm).unwrap();
        assert_eq!(job.pml(rank).free(comm), Err(PmlError::NoSuchComm));
    }
    let fresh = dup(&mut job, &worlds);
    let from = Buffer::source(&bytes(1), 1, 1);
    // SAFETY: the buffer lives until the request has ended.
    let send = unsafe { job.pml(0).isend(&fresh[0], &from.typed(), 1, 0) }.unwrap();
    job.finish(0, send).unwrap();
    job.settle();
    assert_eq!(job.pml(1).iprobe(&again[1], Source::Any, TagSel::Any), Ok(None));
    assert!(job.pml(1).iprobe(&fresh[1], Source::Any, TagSel::Any).unwrap().is_some());
}

#[test]
fn what_is_in_use_is_freed_later_and_what_is_predefined_never() {
    let mut job = Job::new(2);
    let worlds = worlds(&mut job);
    assert_eq!(job.pml(0).free(&worlds[0]), Err(PmlError::PredefinedComm));
    let comms = dup(&mut job, &worlds);
    let (from, to) = (Buffer::source(&bytes(9), 1, 3), Buffer::target(&bytes(9), 1));
    // SAFETY: the buffers live until the requests have ended.
    let recv =
        unsafe { job.pml(0).irecv(&comms[0], &to.typed(), Source::Any, TagSel::Any) }.unwrap();
    // The making of another one goes on, too.
    let requests = [0, 1].map(|rank| {
        let request = job.pml(rank).start_dup(&comms[rank as usize]).unwrap();
        job.pml(rank).free(&comms[rank as usize]).unwrap();
        request
    });
    assert_eq!(job.pml(0).free(&comms[0]), Err(PmlError::NoSuchComm));
    // Rank 1 has it until the new one is made, so this comes in time.
    // SAFETY: as above.
    let send = unsafe { job.pml(1).isend(&comms[1], &from.typed(), 0, 5) }.unwrap();
    let made: Vec<Comm> =
        (0..).zip(requests).map(|(rank, r)| made(&mut job, rank, r).unwrap().unwrap()).collect();
    assert_eq!(made.len(), 2);
    job.finish(1, send).unwrap();
    let status = job.finish(0, recv).unwrap();
    assert_eq!((status.source, status.tag, status.bytes), (1, 5, 9));
    to.assert_received(&from.packed(), "a message of a communicator that was freed");
    job.settle();
    for rank in 0..2 {
        let probed = job.pml(rank).iprobe(&comms[rank as usize], Source::Any, TagSel::Any);
        assert_eq!(probed, Err(PmlError::NoSuchComm), "rank {rank}");
    }
}

#[test]
fn a_receive_or_a_send_under_way_keeps_its_communicator() {
    for receives in [true, false] {
        let mut job = Job::new(2);
        let worlds = worlds(&mut job);
        let comms = dup(&mut job, &worlds);
        let (from, to) = (Buffer::source(&bytes(90_000), 1, 3), Buffer::target(&bytes(90_000), 1));
        let send = |job: &mut Job| {
            // SAFETY: the buffers live until the requests have ended.
            unsafe { job.pml(1).isend(&comms[1], &from.typed(), 0, 5) }.unwrap()
        };
        let recv = |job: &mut Job| {
            // SAFETY: as above.
            unsafe { job.pml(0).irecv(&comms[0], &to.typed(), Source::Any, TagSel::Any) }.unwrap()
        };
        // It is freed while its peer has not begun.
        let free = |job: &mut Job, rank: u32| {
            job.pml(rank).free(&comms[rank as usize]).unwrap();
            (0..20).for_each(|step| {
                job.pml(step % 2).progress();
            });
        };
        let (sent, received) = match receives {
            true => {
                let received = recv(&mut job);
                free(&mut job, 0);
                (send(&mut job), received)
            }
            false => {
                let sent = send(&mut job);
                free(&mut job, 1);
                (sent, recv(&mut job))
            }
        };
        assert_eq!(job.finish(0, received).unwrap().bytes, 90_000, "receives: {receives}");
        job.finish(1, sent).unwrap();
        to.assert_received(&from.packed(), "a message of a communicator that was freed");
        job.settle();
        let rank = u32::from(!receives);
        let probed = job.pml(rank).iprobe(&comms[rank as usize], Source::Any, TagSel::Any);
        assert_eq!(probed, Err(PmlError::NoSuchComm));
    }
}

#[test]
fn every_tag_that_messages_take_is_taken_for_groups() {
    let mut job = Job::new(2);
    let worlds = worlds(&mut job);
    let tags = [0, 1, (1 << 28) - 1, 1 << 28, 1 << 29, 1 << 30, i32::MAX];
    // All at once, and begun in opposite orders.
    let group = worlds[0].group();
    let start = |job: &mut Job, rank: u32, tag: i32| {
        job.pml(rank).start_create_group(&worlds[rank as usize], &group, tag).unwrap()
    };
    let here: Vec<CommRequest> = tags.iter().map(|&tag| start(&mut job, 0, tag)).collect();
    let mut there: Vec<CommRequest> =
        tags.iter().rev().map(|&tag| start(&mut job, 1, tag)).collect();
    there.reverse();
    for ((a, b), tag) in here.into_iter().zip(there).zip(tags) {
        let pair = [(0, a), (1, b)].map(|(rank, r)| made(&mut job, rank, r).unwrap().unwrap());
        let (from, to) = (Buffer::source(&bytes(4), 1, 1), Buffer::target(&bytes(4), 1));
        // SAFETY: the buffers live until the requests have ended.
        let recv = unsafe { job.pml(1).irecv(&pair[1], &to.typed(), Source::Rank(0), TagSel::Any) };
        // SAFETY: as above.
        let send = unsafe { job.pml(0).isend(&pair[0], &from.typed(), 1, 1) }.unwrap();
        job.finish(0, send).unwrap();
        job.finish(1, recv.unwrap()).unwrap();
        to.assert_received(&from.packed(), &format!("tag {tag}"));
    }
    let refused = job.pml(0).start_create_group(&worlds[0], &group, -1);
    assert_eq!(refused, Err(PmlError::InvalidTag { tag: -1 }));
}

#[test]
fn a_member_that_dies_is_named_to_everybody() {
    for victim in 0..4 {
        let mut job = Job::new(4);
        let worlds = worlds(&mut job);
        let others: Vec<u32> = (0..4).filter(|rank| *rank != victim).collect();
        let requests: Vec<CommRequest> = others
            .iter()
            .map(|&rank| job.pml(rank).start_dup(&worlds[rank as usize]).unwrap())
            .collect();
        job.settle();
        job.kill(victim);
        for (&rank, request) in others.iter().zip(requests) {
            match made(&mut job, rank, request).unwrap_err() {
                PmlError::PeerLost { rank: culprit, .. }
                | PmlError::CommFailed { rank: culprit } => {
                    assert_eq!(culprit, victim);
                }
                error => panic!("{error}"),
            }
        }
    }
}

#[test]
fn many_are_made_at_once_in_any_order() {
    let mut job = Job::new(3);
    let worlds = worlds(&mut job);
    let second = dup(&mut job, &worlds);
    let mut requests: Vec<Vec<CommRequest>> = Vec::new();
    for rank in 0..3u32 {
        // Per parent the same order; between parents each rank has its own.
        let (a, b) = (&worlds[rank as usize], &second[rank as usize]);
        let pml = job.pml(rank);
        let mut mine = vec![None; 10];
        let of_a = [0, 1, 2, 3, 4].map(|at| (at, a));
        let of_b = [5, 6, 7, 8, 9].map(|at| (at, b));
        let order: Vec<_> = match rank {
            0 => of_a.into_iter().chain(of_b).collect(),
            1 => of_b.into_iter().chain(of_a).collect(),
            _ => of_a.into_iter().zip(of_b).flat_map(|(a, b)| [b, a]).collect(),
        };
        for (at, parent) in order {
            mine[at] = Some(match at % 3 {
                0 => pml.start_dup(parent).unwrap(),
                1 => pml.start_split(parent, Some(0), -i32::try_from(rank).unwrap()).unwrap(),
                _ => pml.start_create(parent, &parent.group().incl(&[2, 0]).unwrap()).unwrap(),
            });
        }
        requests.push(mine.into_iter().map(Option::unwrap).collect());
    }
    // The last one first, and each rank begins elsewhere.
    let mut comms = vec![vec![None; 3]; 10];
    for step in 0..10 {
        for rank in 0..3u32 {
            let at = (9 * (step + 1) + 3 * rank as usize) % 10;
            comms[at][rank as usize] = made(&mut job, rank, requests[rank as usize][at]).unwrap();
        }
    }
    for (at, these) in comms.iter().enumerate() {
        let leader = if at % 3 == 2 { 2 } else { 0 };
        check_reach(&mut job, these, leader);
        assert_eq!(these[1].is_none(), at % 3 == 2);
        if at % 3 == 1 {
            assert_eq!(these[0].as_ref().unwrap().compare(&worlds[0]), Comparison::Similar);
        }
    }
}

#[test]
fn colors_split_and_whoever_has_none_gets_nothing() {
    let mut job = Job::new(7);
    let worlds = worlds(&mut job);
    let comms = make(&mut job, |rank, pml| {
        let color = (rank != 3).then_some(rank % 2);
        pml.start_split(&worlds[rank as usize], color, 10 - i32::try_from(rank / 4).unwrap())
    });
    let members =
        |rank: usize| comms[rank].as_ref().unwrap().group().processes().collect::<Vec<_>>();
    assert_eq!((members(0), members(1)), (vec![4, 6, 0, 2], vec![5, 1]));
    assert!(comms[3].is_none());
    for from in [0, 1, 5, 6] {
        check_reach(&mut job, &comms, from);
    }
    // Loopbacks of one process share memory.
    let comms = make(&mut job, |rank, pml| {
        pml.start_split_shared(&worlds[rank as usize], -i32::try_from(rank).unwrap())
    });
    assert_eq!(comms[2].as_ref().unwrap().rank(), 4);
    check_reach(&mut job, &comms, 0);
}

#[test]
fn groups_make_communicators_of_their_own() {
    let mut job = Job::new(5);
    let worlds = worlds(&mut job);
    let group = |ranks: &[u32]| worlds[0].group().incl(ranks).unwrap();
    // Disjoint groups at once, and one process in two of them.
    let sets = [group(&[4, 1]), group(&[0, 2]), group(&[2, 4])];
    let mut requests = Vec::new();
    for (tag, set) in (0..).zip(&sets) {
        for rank in set.processes() {
            let request =
                job.pml(rank).start_create_group(&worlds[rank as usize], set, tag).unwrap();
            requests.push((rank, tag, request));
        }
    }
    requests.reverse();
    let mut comms = vec![vec![None; 5]; 3];
    for (rank, tag, request) in requests {
        let set = usize::try_from(tag).unwrap();
        comms[set][rank as usize] = made(&mut job, rank, request).unwrap();
    }
    for (set, group) in comms.iter().zip(&sets) {
        check_reach(&mut job, set, group.process(1).unwrap());
        let comm = set[group.process(0).unwrap() as usize].as_ref().unwrap();
        assert_eq!(comm.group().compare(group), Comparison::Identical);
    }
    let pml = job.pml(3);
    let world = &worlds[3];
    assert_eq!(pml.start_create_group(world, &sets[0], 0), Err(PmlError::NotAMember));
    assert_eq!(
        pml.start_create_group(world, &group(&[3]), -1),
        Err(PmlError::InvalidTag { tag: -1 })
    );
    let alone = pml.self_comm();
    assert_eq!(pml.start_create(&alone, &sets[0]), Err(PmlError::NotAMember));
    let empty =
        make(&mut job, |rank, pml| pml.start_create(&worlds[rank as usize], &Group::empty()));
    assert!(empty.iter().all(Option::is_none));
}

/// They are told, too, if it cannot be made (`table.rs`), and do not go on alone.
#[test]
fn members_of_the_parent_outside_a_group_wait_for_it() {
    let mut job = Job::new(3);
    let worlds = worlds(&mut job);
    let group = worlds[0].group().incl(&[1, 0]).unwrap();
    let start = |job: &mut Job, rank: u32| {
        job.pml(rank).start_create(&worlds[rank as usize], &group).unwrap()
    };
    let outside = start(&mut job, 2);
    job.settle();
    assert!(matches!(job.pml(2).collect_comm(outside), Ok(None)), "it waits");
    let [one, two] = [0, 1].map(|rank| start(&mut job, rank));
    assert!(made(&mut job, 2, outside).unwrap().is_none());
    let made = [(0, one), (1, two)].map(|(rank, it)| made(&mut job, rank, it).unwrap().unwrap());
    assert_eq!(made.map(|comm| (comm.rank(), comm.size())), [(1, 2), (0, 2)]);
}

/// Ranks 0, 2, 4 and 1, 3 of the world, as two sides.
fn sides(job: &mut Job) -> (Vec<Comm>, Vec<Option<Comm>>) {
    let worlds = worlds(job);
    let halves = make(job, |rank, pml| pml.start_split(&worlds[rank as usize], Some(rank % 2), 0));
    let inter = make(job, |rank, pml| {
        let half = halves[rank as usize].as_ref().unwrap();
        // The leaders are not the first of their sides.
        let remote = if rank % 2 == 0 { 3 } else { 4 };
        pml.start_intercomm(half, half.size() - 1, (&worlds[rank as usize], remote), 77)
    });
    (worlds, inter)
}

#[test]
fn two_sides_talk_to_each_other_and_not_within() {
    let mut job = Job::new(5);
    let (worlds, inter) = sides(&mut job);
    let one = inter[2].as_ref().unwrap();
    assert!(one.is_inter());
    assert_eq!((one.rank(), one.size(), one.peers().size()), (1, 3, 2));
    for from in 0..5 {
        check_reach(&mut job, &inter, from);
    }
    let dups = make(&mut job, |rank, pml| pml.start_dup(inter[rank as usize].as_ref().unwrap()));
    assert_eq!(
        dups[0].as_ref().unwrap().compare(inter[0].as_ref().unwrap()),
        Comparison::Congruent
    );
    check_reach(&mut job, &dups, 4);
    // Split: ranks 0 and 1 of both sides together; rank 4 is alone, without another side.
    let split = make(&mut job, |rank, pml| {
        pml.start_split(inter[rank as usize].as_ref().unwrap(), Some(rank / 2), 0)
    });
    assert!(split[4].is_none());
    for from in 0..4 {
        check_reach(&mut job, &split, from);
    }
    for rank in 0..5 {
        let free = inter[rank as usize].as_ref().unwrap();
        job.pml(rank).free(free).unwrap();
        assert_eq!(job.pml(rank).free(free), Err(PmlError::NoSuchComm));
    }
    check_reach(&mut job, &dups, 1);
    assert_eq!(job.pml(0).start_merge(&worlds[0], false), Err(PmlError::IntraComm));
}

#[test]
fn an_intercommunicator_is_made_of_groups_of_both_sides() {
    let mut job = Job::new(5);
    let (_, inter) = sides(&mut job);
    let of = |rank: u32| inter[rank as usize].as_ref().unwrap();
    // Each side turns its members round and leaves its first one out.
    let turned = |comm: &Comm| {
        let ranks: Vec<u32> = (1..comm.size()).rev().collect();
        comm.group().incl(&ranks).unwrap()
    };
    let made = make(&mut job, |rank, pml| pml.start_create(of(rank), &turned(of(rank))));
    for rank in 0..5 {
        let wanted = turned(of(rank));
        let Some(comm) = &made[rank as usize] else {
            assert_eq!(wanted.rank_of(rank), None, "{rank}");
            continue;
        };
        assert!(
            comm.is_inter() && comm.group().compare(&wanted) == Comparison::Identical,
            "{rank}"
        );
        let other = (0..5).find(|other| of(rank).group().rank_of(*other).is_none()).unwrap();
        assert_eq!(comm.peers().compare(&turned(of(other))), Comparison::Identical, "{rank}");
        check_reach(&mut job, &made, rank);
    }
    // A side without members has no intercommunicator; nor has the other.
    let first = of(0).group();
    let made = make(&mut job, |rank, pml| {
        let side = of(rank).group();
        let mine =
            if side.compare(&first) == Comparison::Identical { side } else { Group::empty() };
        pml.start_create(of(rank), &mine)
    });
    assert!(made.iter().all(Option::is_none));
    let non_members = job.pml(0).start_create(of(0), of(0).peers());
    assert_eq!(non_members, Err(PmlError::NotAMember));
}

#[test]
fn two_sides_are_merged() {
    let mut job = Job::new(5);
    let (_, inter) = sides(&mut job);
    for (even_high, odd_high, first) in [(true, false, 1), (false, true, 0), (true, true, 0)] {
        let merged = make(&mut job, |rank, pml| {
            let high = if rank % 2 == 0 { even_high } else { odd_high };
            pml.start_merge(inter[rank as usize].as_ref().unwrap(), high)
        });
        let list: Vec<u32> = merged[0].as_ref().unwrap().group().processes().collect();
        let expected = if first == 0 { [0, 2, 4, 1, 3] } else { [1, 3, 0, 2, 4] };
        assert_eq!(list, expected);
        check_reach(&mut job, &merged, 3);
    }
}

#[test]
fn a_member_that_dies_is_named_on_the_other_side_too() {
    for victim in 0..5 {
        let mut job = Job::new(5);
        let (_, inter) = sides(&mut job);
        let others: Vec<u32> = (0..5).filter(|rank| *rank != victim).collect();
        let requests: Vec<_> = others
            .iter()
            .map(|&rank| {
                let comm = inter[rank as usize].as_ref().unwrap();
                (rank, job.pml(rank).start_merge(comm, false).unwrap())
            })
            .collect();
        job.settle();
        job.kill(victim);
        for (rank, request) in requests {
            match made(&mut job, rank, request).unwrap_err() {
                PmlError::PeerLost { rank: culprit, .. }
                | PmlError::CommFailed { rank: culprit } => {
                    assert_eq!(culprit, victim, "as rank {rank} hears it");
                }
                error => panic!("{error}"),
            }
        }
    }
}
