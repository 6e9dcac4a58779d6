//! Communicators: made together, kept apart, freed.

mod common;

use common::{Buffer, Job, bytes, link};
use gapless_pml::{Bounds, Comm, Config, PmlError, Source, TagSel};

fn dup(job: &mut Job, parents: &[Comm]) -> Vec<Comm> {
    let mut rank = 0..;
    let dups: Vec<_> = parents
        .iter()
        .map(|parent| job.pml(rank.next().unwrap()).start_dup(parent).unwrap())
        .collect();
    (0u32..)
        .zip(dups)
        .map(|(rank, dup)| job.until("a dup", |job| job.pml(rank).test_dup(dup).unwrap()))
        .collect()
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
        job.pml(0).test_dup(ids[0]).unwrap()
    });
    let from = Buffer::source(&bytes(10_000), 1, 1);
    // SAFETY: the buffer lives until the requests have ended.
    let send = unsafe { job.pml(0).isend(&first, &from.typed(), 1, 0) }.unwrap();
    job.settle();
    let second = job.until("rank 1's dup", |job| job.pml(1).test_dup(ids[1]).unwrap());
    let to = Buffer::target(&bytes(10_000), 1);
    // SAFETY: as above.
    let recv = unsafe { job.pml(1).irecv(&second, &to.typed(), Source::Any, TagSel::Any) }.unwrap();
    job.finish(1, recv).unwrap();
    job.finish(0, send).unwrap();
    to.assert_received(&from.packed(), "an early message");
}

#[test]
fn any_number_of_messages_may_come_before_their_communicator() {
    let bounds = Bounds { stray_messages: 3, ..Bounds::default() };
    let mut job = Job::with(2, Config { bounds, ..Config::default() }, link());
    let worlds = worlds(&mut job);
    let ids = [0, 1].map(|rank: u32| job.pml(rank).start_dup(&worlds[rank as usize]).unwrap());
    let first = job.until("rank 0's dup", |job| {
        job.pml(1).progress();
        job.pml(0).test_dup(ids[0]).unwrap()
    });
    let send = |job: &mut Job, comm: &Comm, from: &Buffer| {
        // SAFETY: the buffers live until the requests have ended.
        let send = unsafe { job.pml(0).isend(comm, &from.typed(), 1, 0) }.unwrap();
        job.finish(0, send).unwrap();
    };
    let from: Vec<Buffer> = (0..50).map(|seed| Buffer::source(&bytes(40), 1, seed)).collect();
    from.iter().for_each(|from| send(&mut job, &first, from));
    job.settle();
    let second = job.until("rank 1's dup", |job| job.pml(1).test_dup(ids[1]).unwrap());
    // They count as strays no more: three for a communicator that is gone are still borne.
    let dups = dup(&mut job, &worlds);
    job.pml(1).free(&dups[1]).unwrap();
    from[..3].iter().for_each(|from| send(&mut job, &dups[0], from));
    job.settle();
    for from in &from {
        let to = Buffer::target(&bytes(40), 1);
        // SAFETY: as above.
        let recv = unsafe { job.pml(1).irecv(&second, &to.typed(), Source::Any, TagSel::Any) };
        job.finish(1, recv.unwrap()).unwrap();
        to.assert_received(&from.packed(), "an early message");
    }
    // A fourth is one too many.
    send(&mut job, &dups[0], &from[0]);
    job.settle();
    let lost = job.pml(1).iprobe(&second, Source::Rank(0), TagSel::Any);
    assert!(matches!(lost, Err(PmlError::PeerLost { rank: 0, .. })), "{lost:?}");
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
fn what_is_in_use_or_predefined_is_not_freed() {
    let mut job = Job::new(1);
    let world = job.pml(0).world();
    assert_eq!(job.pml(0).free(&world), Err(PmlError::PredefinedComm));
    let comm = job.pml(0).dup(&world).unwrap();
    let to = Buffer::target(&bytes(1), 1);
    // SAFETY: the buffer lives until the request has ended.
    let recv = unsafe { job.pml(0).irecv(&comm, &to.typed(), Source::Any, TagSel::Any) }.unwrap();
    assert_eq!(job.pml(0).free(&comm), Err(PmlError::CommInUse { requests: 1 }));
    assert_eq!(job.pml(0).cancel_recv(recv), Ok(true));
    job.pml(0).free(&comm).unwrap();
}

#[test]
fn a_member_that_dies_fails_the_dup_and_hangs_nobody() {
    for dead in [0, 1, 2] {
        let mut job = Job::new(3);
        let worlds = worlds(&mut job);
        let alive: Vec<u32> = (0..3).filter(|rank| *rank != dead).collect();
        let dups: Vec<_> = alive
            .iter()
            .map(|&rank| job.pml(rank).start_dup(&worlds[rank as usize]).unwrap())
            .collect();
        job.kill(dead);
        for (&rank, dup) in alive.iter().zip(dups) {
            job.until("a dup", |job| match job.pml(rank).test_dup(dup) {
                Ok(None) => None,
                Ok(Some(_)) => panic!("rank {rank} has a communicator with the dead"),
                Err(_) => Some(()),
            });
        }
    }
}
