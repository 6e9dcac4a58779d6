//! The collective of [the tutorial](../../docs/tutorial/6-own-collective.md), which shows it piece by piece: the last
//! test here compares the two.
#![allow(unsafe_code, reason = "promises buffers that outlive the job")]

use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_coll::prove::{Definition, prove, prove_same_bits};
use gapless_coll::{BufferBlocks, CallBuffers, Combine, Executor, Sequencer};
use gapless_coll::{Call, Draft, DraftError, Reduction, Schedule};
use gapless_dtype::{Layout, Primitive};
use gapless_engine::{HostEngine, ReduceOp, Typed};
use gapless_mem::Region;
use gapless_pml::{Config, Pml};
use std::sync::Arc;

/// An all-reduce of two vectors that meet in the middle: the ranks of a chain combine from both ends, the rank in the
/// middle has the result first, and sends it back both ways.
fn from_both_ends(rank: usize, ranks: usize, call: &Call<'_>) -> Result<Schedule, DraftError> {
    let mut draft = Draft::new(rank, ranks, call).expect("the call fits");
    draft.set_segment(1 << 16);
    let (own, result) = (draft.send_buffer(), draft.recv_buffer());
    let middle = ranks / 2;
    // Who is further from the middle, on each side of this rank; and who is nearer.
    let below = (rank > 0 && rank <= middle).then(|| rank - 1);
    let above = (rank + 1 < ranks && rank >= middle).then_some(rank + 1);
    let nearer = if rank < middle { rank + 1 } else { rank.wrapping_sub(1) };
    // In the order of ranks: what came from below, this rank's, what came from above.
    let from_below = below.map(|from| (from, draft.scratch(own.len())));
    let from_above = above.map(|from| (from, draft.scratch(own.len())));
    for (from, into) in from_below.into_iter().chain(from_above) {
        draft.receive(from, into);
    }
    let below_too = from_below.map(|(_, area)| area);
    let above_too = from_above.map(|(_, area)| area);
    let operands: Vec<_> = below_too.into_iter().chain([own]).chain(above_too).collect();
    draft.reduce(&operands, result);
    if rank != middle {
        draft.send(nearer, result);
        draft.receive(nearer, result);
    }
    for further in below.into_iter().chain(above) {
        draft.send(further, result);
    }
    draft.finish()
}

/// Sums of 1000 numbers of 8 bytes.
const LEN: u64 = 8000;

fn sum(len: u64) -> Call<'static> {
    let of = Reduction { unit: 8, commutative: false };
    Call::Allreduce { len, of, in_place: false }
}

fn schedules(ranks: usize, call: &Call<'_>) -> Result<Vec<Schedule>, DraftError> {
    (0..ranks).map(|rank| from_both_ends(rank, ranks, call)).collect()
}

#[test]
fn it_is_proved() -> Result<(), Box<dyn std::error::Error>> {
    for ranks in 1..=9 {
        // Lengths of one segment, and of several.
        for len in [0, 8, LEN, 3 << 16] {
            let call = sum(len);
            let schedules = schedules(ranks, &call)?;
            let mut definition = Definition::new(&vec![call; ranks], 8);
            prove(&schedules, &mut definition)?;
            // Also if sums round: all ranks have the result of the one in the middle.
            prove_same_bits(&schedules, &definition)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_refuted() -> Result<(), Box<dyn std::error::Error>> {
    // Rank 3 does nothing.
    let call = sum(LEN);
    let mut schedules = schedules(4, &call)?;
    schedules[3] = Draft::new(3, 4, &call)?.finish()?;
    let refuted = prove(&schedules, &mut Definition::new(&[call; 4], 8)).unwrap_err();
    assert!(refuted.to_string().contains("has no other end of its length"), "{refuted}");
    Ok(())
}

/// The message layers of so many ranks, here in one thread.
fn job(ranks: u32) -> Vec<Pml> {
    let hub = Hub::new();
    let mut bmls: Vec<Bml> = (0..ranks).map(|rank| Bml::new(Rank(rank), ranks)).collect();
    for bml in &mut bmls {
        bml.add(Box::new(Loopback::new(&hub)));
    }
    let addresses: Vec<_> = bmls.iter().map(Bml::addresses).collect();
    for (me, bml) in (0..).zip(&mut bmls) {
        for (peer, address) in (0..).zip(&addresses).filter(|(peer, _)| *peer != me) {
            bml.connect(Rank(peer), address).expect("a loopback");
        }
    }
    let pml = |bml| Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
    bmls.into_iter().map(pml).collect()
}

#[test]
fn it_runs_among_four_ranks() -> Result<(), Box<dyn std::error::Error>> {
    let (ranks, count) = (4, LEN / 8);
    let numbers: Layout = gapless_dtype::Datatype::from(Primitive::Int64).commit()?;
    let bytes = |number: fn(i64, i64) -> i64, rank| -> Vec<u8> {
        (0..1000).flat_map(|at| number(at, rank).to_ne_bytes()).collect()
    };
    let given: Vec<Vec<u8>> = (0..4).map(|rank| bytes(|at, rank| at * 10 + rank, rank)).collect();
    let mut results = vec![vec![0u8; 8000]; 4];
    let mut job = job(ranks);
    let mut running = Vec::new();
    for ((rank, pml), (own, result)) in (0..).zip(&mut job).zip(given.iter().zip(&mut results)) {
        let schedule = from_both_ends(rank, 4, &sum(LEN))?;
        let rows = CallBuffers {
            send: BufferBlocks::Whole(Typed::new(Region::of(own), 0, &numbers, count)?),
            recv: BufferBlocks::Whole(Typed::new(Region::of_mut(result), 0, &numbers, count)?),
        };
        let combine = Combine::new(&ReduceOp::Sum.into(), &numbers)?;
        // The n-th collective of a communicator has the n-th ticket, at all ranks alike.
        let ticket = Sequencer::new(&pml.world()).next();
        // SAFETY: the vectors live, and nobody else touches them, until all executors have ended.
        running.push(unsafe { Executor::new(schedule, rows, Some(combine), ticket) }?);
    }
    let mut ended = [false; 4];
    while ended.contains(&false) {
        for (at, (executor, pml)) in running.iter_mut().zip(&mut job).enumerate() {
            pml.progress();
            if !ended[at] {
                ended[at] =
                    executor.advance(pml, &HostEngine, &HostEngine).map(Result::unwrap).is_ready();
            }
        }
    }
    drop(running);
    let sums = bytes(|at, _| 4 * at * 10 + 6, 0);
    assert!(results.iter().all(|result| *result == sums));
    Ok(())
}

#[test]
fn the_tutorial_shows_this_file() {
    let chapter = include_str!("../../docs/tutorial/6-own-collective.md");
    let here = include_str!("tutorial_collective.rs");
    let mut shown = 0;
    for block in chapter.split("```rust\n").skip(1) {
        let code = block.split("```").next().unwrap_or_default();
        assert!(here.contains(code), "this is in the chapter, but not in the file:\n{code}");
        shown += 1;
    }
    assert!(shown >= 4, "the chapter shows {shown} pieces");
}
