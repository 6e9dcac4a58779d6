//! Revoked communicators: what waits ends, what is matched goes on, all members learn of it, and survivors go on.
//! Non-members that revoke are in `garbage.rs`.

use crate::common::{Buffer, Job, bytes};
use gapless_bml::{LinkError, PeerState, Rank};
use gapless_pml::{
    Comm, CommRequest, Pml, PmlError, RequestId, SendMode, Source, SurvivorsRequest, TagSel,
};

/// What fits a slot, and what needs a rendezvous.
const LENGTHS: [u64; 2] = [40, 100_000];

/// What `start` makes in each rank.
fn make(
    job: &mut Job,
    mut start: impl FnMut(u32, &mut Pml) -> Result<CommRequest, PmlError>,
) -> Vec<Comm> {
    let ranks = u32::try_from(job.ranks.len()).unwrap();
    let requests: Vec<CommRequest> =
        (0..ranks).map(|rank| start(rank, job.pml(rank)).unwrap()).collect();
    let one = |(rank, request)| {
        job.until("a communicator", |job| job.pml(rank).test_comm(request).transpose())
    };
    (0u32..).zip(requests).map(one).map(|made| made.unwrap().unwrap()).collect()
}

fn dup(job: &mut Job) -> Vec<Comm> {
    make(job, |_, pml| pml.start_dup(&pml.world()))
}

fn isend(job: &mut Job, comms: &[Comm], from: u32, data: &Buffer, to: u32, tag: i32) -> RequestId {
    let mode = SendMode::Synchronous;
    // SAFETY: tests keep the buffer until the request has ended.
    unsafe { job.pml(from).isend_mode(&comms[from as usize], &data.typed(), to, tag, mode) }
        .unwrap()
}

fn irecv(job: &mut Job, comms: &[Comm], at: u32, to: &Buffer, source: Source) -> RequestId {
    // SAFETY: as above.
    unsafe { job.pml(at).irecv(&comms[at as usize], &to.typed(), source, TagSel::Is(5)) }.unwrap()
}

/// A message from each rank to the next, by these communicators.
fn works(job: &mut Job, comms: &[(u32, Comm)]) {
    for (at, (rank, comm)) in comms.iter().enumerate() {
        let (next, theirs) = &comms[(at + 1) % comms.len()];
        let (from, to) = (Buffer::source(&bytes(40), 1, 3), Buffer::target(&bytes(40), 1));
        let dest = comm.rank_of(*next).unwrap();
        // SAFETY: the buffers live until the requests have ended.
        let send = unsafe { job.pml(*rank).isend(comm, &from.typed(), dest, 1) }.unwrap();
        // SAFETY: as above.
        let recv = unsafe { job.pml(*next).irecv(theirs, &to.typed(), Source::Any, TagSel::Any) };
        assert_eq!(job.finish(*next, recv.unwrap()).unwrap().source, comm.rank());
        job.finish(*rank, send).unwrap();
        to.assert_received(&from.packed(), "where nothing was revoked");
    }
}

fn shrunk(job: &mut Job, requests: &[(u32, SurvivorsRequest)]) -> Vec<(u32, Comm)> {
    let one = |(rank, request): &(u32, SurvivorsRequest)| {
        let survivors = job.until("those who are left", |job| {
            job.pml(*rank).progress();
            job.pml(*rank).collect_survivors(*request).transpose()
        });
        (*rank, survivors.unwrap().comm.unwrap())
    };
    requests.iter().map(one).collect()
}

#[test]
fn what_waits_ends_and_what_is_matched_goes_on() {
    for len in LENGTHS {
        let mut job = Job::new(3);
        let comms = dup(&mut job);
        let (from, early) = (Buffer::source(&bytes(len), 1, 1), Buffer::source(&bytes(len), 1, 2));
        let short = Buffer::target(&bytes(8), 1);
        let rooms: Vec<Buffer> = (0..4).map(|_| Buffer::target(&bytes(len), 1)).collect();
        // Rank 2 receives what rank 1 sends.
        let matched = irecv(&mut job, &comms, 2, &rooms[0], Source::Rank(1));
        let sent = isend(&mut job, &comms, 1, &early, 2, 5);
        for rank in [1, 2, 1] {
            job.pml(rank).progress();
        }
        // Receives that nothing matches: of a rank, of any, and one that was released.
        let named = irecv(&mut job, &comms, 1, &rooms[1], Source::Rank(2));
        let any = irecv(&mut job, &comms, 1, &rooms[2], Source::Any);
        let released = irecv(&mut job, &comms, 1, &rooms[3], Source::Rank(0));
        job.pml(1).release(released).unwrap();
        // Messages that nobody receives: one is taken by a probe, one waits, one is to this process itself.
        let probed = isend(&mut job, &comms, 0, &from, 1, 6);
        let waits = isend(&mut job, &comms, 0, &from, 1, 7);
        let own = isend(&mut job, &comms, 0, &from, 0, 8);
        let (message, _) = job.until("a message", |job| {
            job.pml(1).improbe(&comms[1], Source::Any, TagSel::Is(6)).unwrap()
        });
        // A communicator that rank 2 does not help to make.
        let made = [0, 1].map(|rank: u32| job.pml(rank).start_dup(&comms[rank as usize]).unwrap());
        job.pml(2).revoke(&comms[2]).unwrap();
        job.pml(2).revoke(&comms[2]).unwrap();
        assert!(comms[2].is_revoked() && !comms[0].is_revoked());
        for id in [named, any] {
            assert_eq!(job.finish(1, id), Err(PmlError::Revoked), "{len} bytes");
        }
        for id in [probed, waits, own] {
            assert_eq!(job.finish(0, id), Err(PmlError::Revoked), "{len} bytes");
        }
        assert_eq!(job.finish(2, matched).unwrap().bytes, len);
        assert_eq!(job.finish(1, sent).unwrap().bytes, len);
        rooms[0].assert_received(&early.packed(), "what was matched");
        rooms[1..].iter().for_each(|room| room.assert_received(&[], "what was revoked"));
        for (rank, request) in (0..).zip(made) {
            let result =
                job.until("no communicator", |job| job.pml(rank).test_comm(request).transpose());
            assert_eq!(result.map(drop), Err(PmlError::Revoked));
        }
        // SAFETY: the buffer lives until this returns, as nothing is started.
        let taken = unsafe { job.pml(1).imrecv(&message, &short.typed()) }.unwrap_err();
        // What was taken is told, as much as there was room for.
        let status = taken.status().unwrap();
        assert_eq!((taken.error, status.source, status.tag), (PmlError::Revoked, 0, 6));
        assert_eq!(status.bytes, 8, "of {len}");
        for (rank, comm) in (0..).zip(&comms) {
            assert!(comm.is_revoked() && comm.collective().is_revoked());
            refused(job.pml(rank), comm, &from);
        }
        let worlds = (0..3).map(|rank| (rank, job.pml(rank).world())).collect::<Vec<_>>();
        works(&mut job, &worlds);
        // They agree and go on, and what is revoked can be freed.
        let requests: Vec<_> = (0..3)
            .map(|rank: u32| (rank, job.pml(rank).start_shrink(&comms[rank as usize]).unwrap()))
            .collect();
        let rest = shrunk(&mut job, &requests);
        assert!(rest.iter().all(|(_, comm)| comm.size() == 3 && !comm.is_revoked()));
        works(&mut job, &rest);
        for (rank, comm) in (0..).zip(&comms) {
            job.pml(rank).free(comm).unwrap();
            assert_eq!(job.pml(rank).revoke(comm), Err(PmlError::NoSuchComm));
        }
        job.settle();
        for rank in 0..3 {
            assert!(!job.pml(rank).has_requests() && !job.pml(rank).is_busy(), "rank {rank}");
        }
    }
}

/// No call but those of survivors does anything on a revoked communicator.
fn refused(pml: &mut Pml, comm: &Comm, buffer: &Buffer) {
    let (any, tag) = (Source::Any, TagSel::Any);
    let typed = buffer.typed();
    // SAFETY: nothing is started.
    let send = unsafe { pml.isend(comm, &typed, 0, 1) };
    // SAFETY: as above.
    let recv = unsafe { pml.irecv(comm, &typed, Source::Rank(0), TagSel::Is(1)) };
    // SAFETY: as above.
    let copy = unsafe { pml.isend_copy(&comm.collective(), &typed, 0, 1) };
    for started in [send, recv, copy] {
        assert_eq!(started, Err(PmlError::Revoked));
    }
    // SAFETY: as above.
    assert!(unsafe { pml.send_at_once(comm, &typed, 0, 1) }.is_none());
    assert_eq!(pml.iprobe(comm, any, tag), Err(PmlError::Revoked));
    assert_eq!(pml.improbe(comm, any, tag).map(drop), Err(PmlError::Revoked));
    assert_eq!(pml.probe(comm, any, tag), Err(PmlError::Revoked));
    assert_eq!(pml.start_dup(comm), Err(PmlError::Revoked));
    assert_eq!(pml.start_split(comm, None, 0), Err(PmlError::Revoked));
    assert_eq!(pml.sweep(comm, 0, |_| true), Err(PmlError::Revoked));
}

/// Whoever revokes reaches one member and dies: that one passes it on.
#[test]
fn it_is_passed_on_if_whoever_revokes_dies() {
    let mut job = Job::new(4);
    let comms = dup(&mut job);
    let room = Buffer::target(&bytes(40), 1);
    let waits = [2, 3].map(|rank| (rank, irecv(&mut job, &comms, rank, &room, Source::Rank(1))));
    for other in [2, 3] {
        let what = "the link is cut".to_owned();
        job.pml(0).bml_mut().give_up(Rank(other), LinkError::Corrupt { what });
    }
    job.settle();
    job.pml(0).revoke(&comms[0]).unwrap();
    job.kill(0);
    for (rank, id) in waits {
        assert_eq!(job.finish(rank, id), Err(PmlError::Revoked));
    }
    let requests: Vec<_> = (1..4)
        .map(|rank: u32| (rank, job.pml(rank).start_shrink(&comms[rank as usize]).unwrap()))
        .collect();
    let rest = shrunk(&mut job, &requests);
    assert!(rest.iter().all(|(_, comm)| comm.size() == 3));
    works(&mut job, &rest);
}

/// A member that has the communicator already may revoke it before another has it.
#[test]
fn a_communicator_can_be_revoked_before_it_is_there() {
    let mut job = Job::new(2);
    let ids = [0, 1].map(|rank: u32| {
        let world = job.pml(rank).world();
        job.pml(rank).start_dup(&world).unwrap()
    });
    let first = job.until("rank 0's dup", |job| {
        job.pml(1).progress();
        job.pml(0).test_comm(ids[0]).unwrap().flatten()
    });
    job.pml(0).revoke(&first).unwrap();
    job.pml(0).progress();
    let second = job.until("rank 1's dup", |job| job.pml(1).test_comm(ids[1]).unwrap().flatten());
    job.until("that it is revoked", |_| second.is_revoked().then_some(()));
    assert!(matches!(job.pml(1).bml_mut().state(Rank(0)), PeerState::Up));
}

/// Both sides of an intercommunicator learn of it, whoever says so, and what its collectives use ends, too.
#[test]
fn both_sides_of_an_intercommunicator_are_revoked() {
    for by in 0..4 {
        let mut job = Job::new(4);
        let halves = make(&mut job, |rank, pml| pml.start_split(&pml.world(), Some(rank % 2), 0));
        let inter = make(&mut job, |rank, pml| {
            let world = pml.world();
            pml.start_intercomm(&halves[rank as usize], 0, (&world, 1 - rank % 2), 7)
        });
        let room = Buffer::target(&bytes(40), 1);
        let across: Vec<_> =
            (0..4).map(|rank| irecv(&mut job, &inter, rank, &room, Source::Rank(0))).collect();
        let sides: Vec<Comm> = inter.iter().map(|comm| comm.side().collective()).collect();
        let within: Vec<_> =
            (0..4).map(|rank| irecv(&mut job, &sides, rank, &room, Source::Any)).collect();
        job.pml(by).revoke(&inter[by as usize]).unwrap();
        for (rank, id) in (0..).zip(across).chain((0..).zip(within)) {
            assert_eq!(job.finish(rank, id), Err(PmlError::Revoked), "{by} revokes, {rank}");
        }
        let requests = make(&mut job, |rank, pml| pml.start_dup(&halves[rank as usize]));
        assert_eq!(requests.len(), 4, "what it was made of is there");
        let merged = job.pml(0).start_merge(&inter[0], false);
        assert_eq!(merged, Err(PmlError::Revoked));
        (0..).zip(&inter).for_each(|(rank, comm)| job.pml(rank).free(comm).unwrap());
    }
}
