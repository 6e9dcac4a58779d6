//! In a steady state an eager message allocates nothing, and a long one not per fragment.

mod common;

use common::{Buffer, Job, bytes, strided};
use gapless_pml::{Config, Protocol, Source, TagSel};
use gapless_testkit::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Sends one message from rank 0 to rank 1; `early` posts the receive first.
fn exchange(job: &mut Job, from: &Buffer, to: &Buffer, early: bool) {
    let any = (Source::Any, TagSel::Any);
    let posted = early.then(|| job.irecv(1, to, any.0, any.1));
    let send = job.isend(0, from, 1, 0);
    if !early {
        // It is unexpected, and copied out of the transport's memory.
        for _ in 0..4 {
            job.progress();
        }
    }
    let recv = posted.unwrap_or_else(|| job.irecv(1, to, any.0, any.1));
    while job.pml(1).test(recv).unwrap().is_none() {
        job.progress();
    }
    while job.pml(0).test(send).unwrap().is_none() {
        job.progress();
    }
}

fn allocations(job: &mut Job, from: &Buffer, to: &Buffer, early: bool) -> u64 {
    for _ in 0..200 {
        exchange(job, from, to, early);
    }
    let before = gapless_testkit::allocations();
    for _ in 0..100 {
        exchange(job, from, to, early);
    }
    gapless_testkit::allocations() - before
}

#[test]
fn messages_do_not_allocate_and_fragments_neither() {
    let config = Config { force: Some(Protocol::Eager), ..Config::default() };
    let mut job = Job::with(2, config, common::link());
    for layout in [bytes(0), bytes(1), bytes(5000), strided(300, 8, 16)] {
        for early in [true, false] {
            let (from, to) = (Buffer::source(&layout, 1, 1), Buffer::target(&layout, 1));
            let count = allocations(&mut job, &from, &to, early);
            assert_eq!(count, 0, "{} bytes, early: {early}", layout.size());
        }
    }
    let mut counts = Vec::new();
    for size in [100_000u64, 10_000_000] {
        let config = Config { force: Some(Protocol::Pipeline), ..Config::default() };
        let mut job = Job::with(2, config, common::link());
        let layout = strided(size / 8, 8, 16);
        let (from, to) = (Buffer::source(&layout, 1, 1), Buffer::target(&layout, 1));
        counts.push(allocations(&mut job, &from, &to, true));
    }
    // A few for each rendezvous; one more where the list of fragments is long.
    assert!(counts[1] <= counts[0] + 100, "{counts:?}");
    assert!(counts[0] <= 1000, "{counts:?}");
}
