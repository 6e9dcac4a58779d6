//! Messages that a matched probe has taken, and nobody has received yet: they keep their communicator, and are
//! refused when their receiver leaves.

use crate::common::{Buffer, Job, bytes};
use gapless_pml::{Comm, MessageId, PmlError, RequestId, SendMode, Source, TagSel};

const TAG: i32 = 7;

/// What fits a slot, and what needs a rendezvous.
const LENGTHS: [u64; 2] = [40, 100_000];

/// Rank 0 sends a message whose end it is told, and rank 1 takes it.
fn taken(job: &mut Job, comms: [&Comm; 2], from: &Buffer) -> (RequestId, MessageId) {
    let mode = SendMode::Synchronous;
    // SAFETY: tests keep the buffer until the request has ended.
    let send = unsafe { job.pml(0).isend_mode(comms[0], &from.typed(), 1, TAG, mode) }.unwrap();
    let (message, status) = job.until("a message", |job| {
        job.pml(1).improbe(comms[1], Source::Any, TagSel::Is(TAG)).unwrap()
    });
    assert_eq!((status.source, status.bytes), (0, from.packed().len() as u64));
    (send, message)
}

fn worlds(job: &mut Job) -> [Comm; 2] {
    [0, 1].map(|rank| job.pml(rank).world())
}

#[test]
fn a_message_that_was_taken_is_refused_when_its_receiver_leaves() {
    for len in LENGTHS {
        let mut job = Job::new(2);
        let [there, here] = worlds(&mut job);
        let from = Buffer::source(&bytes(len), 1, 1);
        let (send, message) = taken(&mut job, [&there, &here], &from);
        // One more that nobody has taken.
        // SAFETY: the buffer lives until the request has ended.
        let other =
            unsafe { job.pml(0).isend_mode(&there, &from.typed(), 1, TAG, SendMode::Synchronous) }
                .unwrap();
        job.settle();
        assert_eq!(job.pml(0).test(send), Ok(None), "nobody has received it");
        job.pml(1).refuse_unreceived();
        for send in [send, other] {
            let outcome = job.finish(0, send);
            assert_eq!(outcome, Err(PmlError::Unreceived { rank: 1, tag: TAG }), "{len} bytes");
        }
        let to = Buffer::target(&bytes(len), 1);
        // SAFETY: as above.
        let late = unsafe { job.pml(1).imrecv(&message, &to.typed()) };
        assert_eq!(late, Err(PmlError::NoSuchMessage.into()));
        to.assert_received(&[], "what was refused");
        job.settle();
        for rank in 0..2 {
            assert!(!job.pml(rank).has_requests() && !job.pml(rank).is_busy(), "rank {rank}");
        }
    }
}

#[test]
fn a_communicator_is_not_freed_while_a_message_of_it_is_taken() {
    for len in LENGTHS {
        for received in [true, false] {
            let mut job = Job::new(2);
            let worlds = worlds(&mut job);
            let requests = [0, 1].map(|rank| {
                let world = &worlds[rank as usize];
                job.pml(rank).start_dup(world).unwrap()
            });
            let [there, here] = [0, 1].map(|rank| {
                let request = requests[rank as usize];
                job.until("a communicator", |job| job.pml(rank).test_comm(request).unwrap())
                    .unwrap()
            });
            let from = Buffer::source(&bytes(len), 1, 1);
            // What is taken elsewhere is no matter.
            let [a, b] = &worlds;
            let (_elsewhere, unrelated) = taken(&mut job, [a, b], &from);
            let (send, message) = taken(&mut job, [&there, &here], &from);
            job.pml(1).free(&here).unwrap();
            assert_eq!(job.pml(1).free(&here), Err(PmlError::NoSuchComm), "once is enough");
            job.settle();
            // It is there until the message is taken.
            let probed = job.pml(1).iprobe(&here, Source::Any, TagSel::Any);
            assert_eq!(probed, Ok(None), "{len} bytes");
            if received {
                let to = Buffer::target(&bytes(len), 1);
                // SAFETY: the buffer lives until the request has ended.
                let recv = unsafe { job.pml(1).imrecv(&message, &to.typed()) }.unwrap();
                let status = job.finish(1, recv).unwrap();
                // It can be told whose it was only as long as the communicator is known.
                assert_eq!((status.source, status.bytes), (0, len));
                to.assert_received(&from.packed(), "a message that was taken");
            } else {
                job.pml(1).drop_message(&message);
            }
            job.finish(0, send).unwrap();
            job.settle();
            let probed = job.pml(1).iprobe(&here, Source::Any, TagSel::Any);
            assert_eq!(probed, Err(PmlError::NoSuchComm), "{len} bytes, received: {received}");
            job.pml(1).drop_message(&unrelated);
        }
    }
}
