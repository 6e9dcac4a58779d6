//! Peers that die, at every stage of every protocol: whoever is left gets an error, or what was sent.

use crate::common::{Buffer, Job, bytes, link};
use gapless_btl::loopback::{self, Loopback};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_btl_testkit::trace::{Record, Recorder, Trace};
use gapless_pml::{Bounds, Config, PmlError, Protocol, RequestId, Source, TagSel, Tuning};

const PROTOCOLS: [Protocol; 4] =
    [Protocol::Eager, Protocol::Pipeline, Protocol::Mapped, Protocol::SingleCopy];

/// One rank's progress, `steps` times in all, taking turns.
fn turns(job: &mut Job, steps: u32) {
    for step in 0..steps {
        job.pml(step % 2).progress();
    }
}

fn lost_or_done(job: &mut Job, rank: u32, dead: u32, id: RequestId, what: &str) -> bool {
    match job.finish(rank, id) {
        Ok(_) => true,
        Err(PmlError::PeerLost { rank, .. }) => {
            assert_eq!(rank, dead, "{what}");
            false
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

/// Every step does little, so that there are many moments to die at.
fn slow(protocol: Protocol) -> Config {
    let tuning = Tuning { single_copy_batch_bytes: 4096, ..Tuning::default() };
    let bounds = Bounds { fragments_per_progress: 1, ..Bounds::default() };
    Config { force: Some(protocol), tuning, bounds, ..Config::default() }
}

#[test]
fn either_end_dies_at_any_moment() {
    let mut survived = 0;
    let mut failed = 0;
    for protocol in PROTOCOLS {
        // Long enough that the pipeline takes several turns.
        let size = if protocol == Protocol::Eager { 2000 } else { 60_000 };
        let link = loopback::Config { slots: 4, max_fragment_bytes: 4096, ..link() };
        for dead in [0, 1] {
            for steps in 0..40 {
                let mut job = Job::build(2, slow(protocol), &mut |rank, hub| {
                    let seed = u64::from(steps * 2 + rank);
                    let plan = Plan { seed, delay_polls_max: 4, ..Plan::default() };
                    Box::new(Fault::new(Loopback::with(hub, link.clone()), plan))
                });
                let home = job.mappable(0, &bytes(size), 1);
                let from = Buffer::source_in(&bytes(size), 1, 1, home);
                let to = Buffer::target(&bytes(size), 1);
                let ids =
                    [job.isend(0, &from, 1, 0), job.irecv(1, &to, Source::Rank(0), TagSel::Is(0))];
                turns(&mut job, steps);
                job.kill(dead);
                let alive = 1 - dead;
                let what = format!("{protocol}, rank {dead} dies after {steps} steps");
                let id = ids[alive as usize];
                if lost_or_done(&mut job, alive, dead, id, &what) {
                    survived += 1;
                    if alive == 1 {
                        to.assert_received(&from.packed(), &what);
                    }
                } else {
                    failed += 1;
                }
            }
        }
    }
    assert!(survived > 40 && failed > 40, "{survived} went well, {failed} did not");
}

#[test]
fn receives_that_name_the_dead_end_and_others_go_on() {
    let mut job = Job::new(3);
    let to: Vec<Buffer> = (0..3).map(|_| Buffer::target(&bytes(8), 1)).collect();
    let named = job.irecv(0, &to[0], Source::Rank(1), TagSel::Any);
    let other = job.irecv(0, &to[1], Source::Rank(2), TagSel::Any);
    let any = job.irecv(0, &to[2], Source::Any, TagSel::Is(5));
    job.kill(1);
    let error = job.finish(0, named).unwrap_err();
    assert!(matches!(error, PmlError::PeerLost { rank: 1, .. }), "{error}");
    assert_eq!(job.pml(0).test(other), Ok(None));
    assert_eq!(job.pml(0).test(any), Ok(None));
    let from = Buffer::source(&bytes(8), 1, 1);
    let send = job.isend(2, &from, 0, 5);
    // The first posted that matches.
    assert_eq!(job.finish(0, other).unwrap().source, 2);
    job.finish(2, send).unwrap();
    job.kill(2);
    let error = job.finish(0, any).unwrap_err();
    assert!(matches!(error, PmlError::NobodyLeft { .. }), "{error}");
    // Nothing new is started towards the dead, and nothing from anybody.
    let world = job.pml(0).world();
    // SAFETY: refused before anything is touched.
    let send = unsafe { job.pml(0).isend(&world, &from.typed(), 1, 0) };
    assert!(matches!(send, Err(PmlError::PeerLost { rank: 1, .. })));
    for source in [Source::Rank(2), Source::Any] {
        // SAFETY: as above.
        let recv = unsafe { job.pml(0).irecv(&world, &to[0].typed(), source, TagSel::Any) };
        assert!(recv.is_err());
        assert!(job.pml(0).iprobe(&world, source, TagSel::Any).is_err());
    }
}

/// An error that was given, and handled, long ago is not why a process departs.
#[test]
fn who_departs_blames_the_last_one_that_it_missed() {
    let mut job = Job::new(4);
    let to = Buffer::target(&bytes(8), 1);
    for gone in [3, 1] {
        assert_eq!(job.pml(gone).depart(), gone);
        let missed = job.irecv(0, &to, Source::Rank(gone), TagSel::Any);
        let error = job.finish(0, missed).unwrap_err();
        assert!(matches!(error, PmlError::PeerLost { rank, .. } if rank == gone), "{error}");
    }
    assert_eq!(job.pml(0).depart(), 1);
    // Nobody has told it that it missed anybody.
    assert_eq!(job.pml(2).depart(), 2);
}

#[test]
fn what_had_arrived_in_full_can_still_be_received() {
    let mut job = Job::new(2);
    let from = [Buffer::source(&bytes(100), 1, 1), Buffer::source(&bytes(100_000), 1, 2)];
    let small = job.isend(1, &from[0], 0, 1);
    job.isend(1, &from[1], 0, 2);
    job.settle();
    job.finish(1, small).unwrap();
    job.kill(1);
    job.settle();
    let to = Buffer::target(&bytes(100_000), 1);
    let recv = job.irecv(0, &to, Source::Rank(1), TagSel::Is(1));
    job.finish(0, recv).unwrap();
    to.assert_received(&from[0].packed(), "a dead sender's message");
    // The offer is gone with its sender.
    let world = job.pml(0).world();
    // SAFETY: refused before anything is touched.
    let recv = unsafe { job.pml(0).irecv(&world, &to.typed(), Source::Rank(1), TagSel::Is(2)) };
    assert!(matches!(recv, Err(PmlError::PeerLost { rank: 1, .. })));
}

#[test]
fn what_was_registered_for_the_dead_is_given_back() {
    let recorder = Recorder::new(1000);
    let config = Config { force: Some(Protocol::SingleCopy), ..Config::default() };
    let mut job = Job::build(2, config, &mut |rank, hub| {
        let end = Loopback::with(hub, link());
        if rank == 0 { Box::new(Trace::new(end, recorder.listener())) } else { Box::new(end) }
    });
    let from = Buffer::source(&bytes(100_000), 1, 1);
    let sends = [0, 1, 2].map(|tag| job.isend(0, &from, 1, tag));
    job.settle();
    job.kill(1);
    for send in sends {
        assert!(!lost_or_done(&mut job, 0, 1, send, "an offer to the dead"));
    }
    let count = |name| {
        let calls = recorder.records().into_iter();
        calls.filter(|r| matches!(r, Record::Ability { call, .. } if *call == name)).count()
    };
    assert_eq!((count("register"), count("deregister")), (3, 3), "{}", recorder.text());
}

#[test]
fn queued_messages_end_when_their_peer_does() {
    let link = loopback::Config { slots: 1, ..link() };
    let mut job = Job::with(2, Config::default(), link);
    let from: Vec<Buffer> = (0..10)
        .map(|i| Buffer::source(&bytes(if i % 2 == 0 { 10 } else { 50_000 }), 1, i))
        .collect();
    let sends: Vec<RequestId> = from.iter().map(|from| job.isend(0, from, 1, 0)).collect();
    job.kill(1);
    let outcomes: Vec<bool> = sends
        .into_iter()
        .map(|send| lost_or_done(&mut job, 0, 1, send, "a queued message"))
        .collect();
    // The first was in its slot already.
    assert_eq!(outcomes.iter().filter(|ok| **ok).count(), 1, "{outcomes:?}");
}

#[test]
fn a_blocking_wait_ends_when_the_peer_dies() {
    let mut job = Job::new(2);
    let to = Buffer::target(&bytes(8), 1);
    let recv = job.irecv(0, &to, Source::Rank(1), TagSel::Any);
    let other = job.ranks[1].take().expect("that rank lives");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(other);
    });
    let error = job.pml(0).wait(recv).unwrap_err();
    assert!(matches!(error.error, PmlError::PeerLost { rank: 1, .. }), "{error}");
    killer.join().unwrap();
}
