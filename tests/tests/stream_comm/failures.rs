//! Ranks that do something else, or come late.

use super::{Rank, launcher};
use gapless::{Primitive, ReduceOp, StreamComm, StreamError};
use gapless_tests::launcher::Member;
use std::time::Duration;

#[test]
fn a_rank_that_does_something_else_is_named() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher("failures::a_rank_that_does_something_else_is_named", None);
    };
    let rank = Rank::new(&mut member);
    let (me, memory) = (rank.comm().rank(), rank.memory(4 << 20));
    let (sum, max) = (ReduceOp::Sum, ReduceOp::Max);
    // Long and short; short ones of as many words, and of more; another operation.
    let cases = [
        [(1 << 20, sum), (1 << 19, sum)],
        [(3, sum), (4, sum)],
        [(2, sum), (2, max)],
        [(4000, sum), (40, sum)],
    ];
    for case in cases {
        let mut on = rank.on();
        // SAFETY: it outlives `on`.
        let shared = unsafe { on.register(memory.region()) }.unwrap();
        let (count, op) = case[usize::from(me == 0)];
        // SAFETY: as above; nothing else uses it.
        unsafe { on.allreduce(shared, shared, count, Primitive::Float, op) }.unwrap();
        let error = on.wait().unwrap_err();
        let named = match error {
            StreamError::Differs { rank } | StreamError::Failed { rank } => rank,
            other => panic!("{case:?}: {other}"),
        };
        assert!(named != me && named < rank.comm().size(), "{case:?}: rank {named}");
        // And so does every later call.
        // SAFETY: as above.
        let later = unsafe { on.allreduce(shared, shared, 1, Primitive::Float, sum) };
        assert!(later.is_err());
        rank.comm().barrier().unwrap();
    }
    rank.world.finalize().unwrap();
}

#[test]
fn what_is_dropped_while_its_stream_is_captured_ends_by_an_error() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "failures::what_is_dropped_while_its_stream_is_captured_ends_by_an_error",
            None,
        );
    };
    let rank = Rank::new(&mut member);
    let memory = rank.memory(4096);
    let mut on = rank.on();
    let call = |on: &mut StreamComm<'_>| {
        // SAFETY: it outlives the kernel, and nothing else uses it.
        unsafe {
            on.allreduce(memory.region(), memory.region(), 64, Primitive::Float, ReduceOp::Sum)
        }
    };
    call(&mut on).unwrap();
    on.wait().unwrap();
    if rank.comm().rank() == 0 {
        // It waits for ranks that do not come.
        call(&mut on).unwrap();
        let captured = rank.stream.capture(|_| {
            drop(on);
            Ok::<_, StreamError>(())
        });
        drop(captured.unwrap());
        while !rank.stream.is_idle().unwrap() {
            std::thread::yield_now();
        }
        rank.comm().barrier().unwrap();
    } else {
        rank.comm().barrier().unwrap();
        let failed = call(&mut on).and_then(|()| on.wait());
        assert_eq!(failed, Err(StreamError::Failed { rank: 0 }));
        drop(on);
    }
    rank.world.finalize().unwrap();
}

#[test]
fn a_rank_that_stays_away_is_waited_for_no_longer_than_allowed() {
    let Some(mut member) = Member::of_launcher() else {
        return launcher(
            "failures::a_rank_that_stays_away_is_waited_for_no_longer_than_allowed",
            None,
        );
    };
    let mut rank = Rank::new(&mut member);
    rank.options.patience = Duration::from_millis(200);
    let memory = rank.memory(4096);
    let mut on = rank.on();
    let mut call = || {
        // SAFETY: it outlives `on`, and nothing else uses it.
        unsafe {
            on.allreduce(memory.region(), memory.region(), 64, Primitive::Float, ReduceOp::Sum)
        }?;
        on.wait()
    };
    if rank.comm().rank() == 0 {
        assert!(matches!(call(), Err(StreamError::Late { rank: 1.. })));
        rank.comm().barrier().unwrap();
    } else {
        rank.comm().barrier().unwrap();
        assert_eq!(call(), Err(StreamError::Failed { rank: 0 }));
    }
    drop(on);
    // A new one works.
    rank.options.patience = Duration::from_secs(60);
    let mut on = rank.on();
    // SAFETY: as above.
    unsafe { on.allreduce(memory.region(), memory.region(), 64, Primitive::Float, ReduceOp::Sum) }
        .unwrap();
    on.wait().unwrap();
    drop(on);
    rank.world.finalize().unwrap();
}
