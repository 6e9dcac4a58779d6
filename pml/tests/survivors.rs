//! Those who are left agree who is left. Deaths at every point are in `tests/sim/tests/survivors.rs`; here are lies, lost
//! links, and what comes after.

use crate::common::Job;
use gapless_bml::{LinkError, PeerState, Rank};
use gapless_engine::Typed;
use gapless_mem::Region;
use gapless_pml::{Comm, PmlError, Survivors, SurvivorsRequest};

/// The tag of the first agreement of a communicator.
const TAG: i32 = 3 << 29;
const NO_ID: u32 = u32::MAX;

fn result(job: &mut Job, rank: u32, request: SurvivorsRequest) -> Result<Survivors, PmlError> {
    job.until("those who are left", |job| {
        job.pml(rank).progress();
        job.pml(rank).collect_survivors(request).transpose()
    })
}

fn shrink(job: &mut Job, rank: u32) -> SurvivorsRequest {
    let world = job.pml(rank).world();
    job.pml(rank).start_shrink(&world).unwrap()
}

fn left(survivors: &Survivors) -> Vec<u32> {
    survivors.group.processes().collect()
}

/// Says something in the world's collective context that no endpoint says.
fn lie(job: &mut Job, from: u32, to: u32, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let data = Typed::contiguous(Region::of(&bytes));
    let context = job.pml(from).world().collective();
    // SAFETY: the bytes are borrowed until this returns.
    let sent = unsafe { job.pml(from).isend_copy(&context, &data, to, TAG) };
    job.pml(from).release(sent.unwrap()).unwrap();
}

/// A word: kind, flags, number of entries, and an entry of a process.
fn word(kind: u32, count: u32, process: u32, id: u32) -> [u32; 10] {
    [kind, u32::MAX, count, process, id, NO_ID, 0, 0, 0, 0]
}

#[test]
fn all_are_left_and_agree() {
    let mut job = Job::new(3);
    let worlds: Vec<Comm> = (0..3).map(|rank| job.pml(rank).world()).collect();
    let flags = [0b0111, 0b1101, 0b1111];
    let both = [0u32, 1, 2].map(|rank| {
        let (world, pml) = (&worlds[rank as usize], job.pml(rank));
        (pml.start_agree(world, flags[rank as usize]).unwrap(), pml.start_shrink(world).unwrap())
    });
    for (rank, (agreed, shrunk)) in (0..).zip(both) {
        let survivors = result(&mut job, rank, agreed).unwrap();
        assert_eq!((survivors.flags, left(&survivors)), (0b0101, vec![0, 1, 2]));
        assert!(survivors.comm.is_none());
        let comm = result(&mut job, rank, shrunk).unwrap().comm.unwrap();
        assert_eq!((comm.rank(), comm.size()), (rank, 3));
        let again = job.pml(rank).collect_survivors(shrunk);
        assert_eq!(again.unwrap_err(), PmlError::NoSuchRequest);
        // It can be shrunk itself, and freed.
        let agreed = job.pml(rank).start_agree(&comm, 1).unwrap();
        assert!(job.pml(rank).free(&comm).is_ok());
        if rank == 0 {
            // The others have not begun.
            assert!(job.pml(0).collect_survivors(agreed).unwrap().is_none());
        }
    }
}

#[test]
fn a_member_that_lies_is_not_left() {
    let short = [1, 2];
    for words in [
        &word(9, 0, 1, 5)[..],
        &word(1, 0, 2, 5),
        &word(1, 4, 1, 5),
        &word(1, 0, 1, NO_ID - 1),
        &short,
    ] {
        let mut job = Job::new(3);
        lie(&mut job, 1, 0, words);
        let requests = [0, 2].map(|rank| shrink(&mut job, rank));
        for (rank, request) in [0, 2].into_iter().zip(requests) {
            let survivors = result(&mut job, rank, request).unwrap();
            assert_eq!(left(&survivors), [0, 2], "{words:?}");
        }
    }
}

#[test]
fn a_leader_that_lies_is_not_left() {
    let table = |entries: &[[u32; 2]]| -> Vec<u32> {
        entries.iter().flat_map(|[process, id]| [*process, *id, NO_ID, 0, 0, 0]).collect()
    };
    for (words, entries) in [
        (word(1, 0, 0, 5), vec![]),
        (word(2, 4, 0, 5), vec![]),
        (word(2, 2, 0, 5), table(&[[1, 4], [0, 5]])),
        (word(2, 2, 0, 5), table(&[[0, 5], [7, 5]])),
    ] {
        let mut job = Job::new(3);
        for to in [1, 2] {
            lie(&mut job, 0, to, &words);
            if !entries.is_empty() {
                lie(&mut job, 0, to, &entries);
            }
        }
        let requests = [1, 2].map(|rank| shrink(&mut job, rank));
        for (rank, request) in [1, 2].into_iter().zip(requests) {
            let survivors = result(&mut job, rank, request).unwrap();
            assert_eq!(left(&survivors), [1, 2], "{words:?} {entries:?}");
        }
    }
}

/// Whoever hears of an entry of its own that it has not given cannot know who lies: nobody is blamed, nobody waits.
#[test]
fn a_leader_that_invents_an_entry_makes_others_fail() {
    let mut job = Job::new(3);
    for to in [1, 2] {
        lie(&mut job, 0, to, &word(2, 2, 0, 5));
        lie(&mut job, 0, to, &[0, 5, NO_ID, 0, 0, 0, 1, 1 << 20, NO_ID, 0, 0, 0]);
    }
    let requests = [1, 2].map(|rank| shrink(&mut job, rank));
    for (rank, request) in [1, 2].into_iter().zip(requests) {
        let error = result(&mut job, rank, request).unwrap_err();
        assert_eq!(error, PmlError::CommFailed { rank });
    }
    for (rank, other) in [(1, 2), (2, 1)] {
        assert!(matches!(job.pml(rank).bml_mut().state(Rank(other)), PeerState::Up));
    }
}

/// Two ranks live, but have lost each other: one of them is told that it is left out.
#[test]
fn without_a_link_a_rank_is_left_out_and_hears_of_it() {
    let mut job = Job::new(3);
    let what = "the link is cut".to_owned();
    job.pml(0).bml_mut().give_up(Rank(1), LinkError::Corrupt { what });
    job.settle();
    let requests = [0, 1, 2].map(|rank| shrink(&mut job, rank));
    for (rank, request) in (0..).zip(requests) {
        match result(&mut job, rank, request) {
            Ok(survivors) => assert_eq!((left(&survivors), rank == 1), (vec![0, 2], false)),
            Err(error) => assert_eq!((rank, error), (1, PmlError::CommFailed { rank: 1 })),
        }
    }
}

#[test]
fn an_intercommunicator_cannot_be_shrunk() {
    let mut job = Job::new(2);
    let requests = [0, 1].map(|rank: u32| {
        let (world, own) = (job.pml(rank).world(), job.pml(rank).self_comm());
        job.pml(rank).start_intercomm(&own, 0, (&world, 1 - rank), 3).unwrap()
    });
    for (rank, request) in (0..).zip(requests) {
        let inter =
            job.until("an intercommunicator", |job| job.pml(rank).test_comm(request).transpose());
        let inter = inter.unwrap().unwrap();
        assert_eq!(job.pml(rank).start_shrink(&inter).unwrap_err(), PmlError::InterComm);
        assert_eq!(job.pml(rank).start_agree(&inter, 0).unwrap_err(), PmlError::InterComm);
    }
}
