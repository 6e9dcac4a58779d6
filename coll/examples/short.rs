//! How long short collectives take by mailboxes in shared memory: threads as ranks, each with an endpoint of its own.
//!
//! ```text
//! cargo run --release -p gapless-coll --example short -- [RANKS [ROUNDS]]
//! ```
//!
//! Prints microseconds a call. *Slowest rank*: of each call, which follows a barrier, the time of the rank that took
//! longest; its median over the rounds, and the range in which 8 of 10 lie. It includes two looks at the clock. *Back
//! to back*: the time of many calls without anything in between, by their number.
#![allow(unsafe_code, reason = "begins collectives with buffers of its own")]

use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_coll::sm::{Opening, SharedSegment};
use gapless_coll::{BufferBlocks, Call, Combine, Reduction, Rows, Sequencer};
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::{HostEngine, ReduceOp, Typed};
use gapless_mem::Region;
use gapless_pml::{Config, Pml};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::Instant;

/// Looks between two that make progress.
const LOOKS: u32 = 64;
/// Calls whose time back to back is taken together.
const BATCH: usize = 100;

/// Nanoseconds of one rank, round by round.
struct Times {
    single: Vec<u64>,
    /// A call, as the mean of a batch.
    batches: Vec<u64>,
}

struct RankOf {
    pml: Pml,
    segment: SharedSegment,
    sum: Combine,
    /// Of the next call.
    number: u64,
    send: Vec<u64>,
    recv: Vec<u64>,
}

impl RankOf {
    fn call(&mut self, call: &Call<'_>) {
        let (sends, receives) = match *call {
            Call::Barrier => (0, 0),
            Call::Bcast { len, .. } => (0, len),
            Call::Reduce { root, len, .. } if root != self.pml.world().rank() as usize => (len, 0),
            Call::Reduce { len, .. } | Call::Allreduce { len, .. } => (len, len),
            _ => unreachable!("not measured here"),
        };
        let blocks = |words: &mut [u64], bytes: u64| match bytes {
            0 => BufferBlocks::None,
            _ => {
                let start = words.as_mut_ptr().expose_provenance() as u64;
                let region = Region::new(gapless_mem::Space::Host, start, 0, bytes);
                BufferBlocks::Whole(Typed::contiguous(region))
            }
        };
        let rows =
            Rows { send: blocks(&mut self.send, sends), recv: blocks(&mut self.recv, receives) };
        let combine = call.reduction().map(|_| self.sum.clone());
        self.number += 1;
        // SAFETY: the buffers are long enough, and nothing else touches them before the call has ended, below.
        unsafe { self.segment.begin(self.number, call, rows, combine) }.expect("it fits");
        loop {
            match self.segment.advance(&mut self.pml, &HostEngine, &HostEngine) {
                Poll::Ready(result) => return result.expect("nobody is lost"),
                Poll::Pending => {}
            }
            let looks = (0..LOOKS).find(|_| {
                std::hint::spin_loop();
                self.segment.look()
            });
            if looks.is_none() {
                self.pml.progress();
            }
        }
    }
}

fn open(mut pml: Pml) -> (Pml, SharedSegment) {
    let mut opening = Opening::new(&Sequencer::new(&pml.world()));
    loop {
        if let Poll::Ready(segment) = opening.advance(&mut pml, &HostEngine, &HostEngine) {
            return (pml, segment.expect("there is memory").expect("loopbacks map"));
        }
        pml.progress();
    }
}

fn endpoints(ranks: u32) -> Vec<Pml> {
    let hub = Hub::new();
    let mut bmls: Vec<Bml> = (0..ranks).map(|rank| Bml::new(Rank(rank), ranks)).collect();
    for bml in &mut bmls {
        bml.add(Box::new(Loopback::with(&hub, loopback::Config::default())));
    }
    let addresses: Vec<_> = bmls.iter().map(Bml::addresses).collect();
    for (me, bml) in (0..ranks).zip(&mut bmls) {
        for peer in (0..ranks).filter(|peer| *peer != me) {
            bml.connect(Rank(peer), &addresses[peer as usize]).expect("a fresh hub");
        }
    }
    let pml = |bml| Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
    bmls.into_iter().map(pml).collect()
}

fn main() {
    let mut numbers =
        std::env::args().skip(1).map(|number| number.parse::<usize>().expect("a number"));
    let ranks = numbers.next().unwrap_or(2);
    let rounds = numbers.next().unwrap_or(20_000);
    let of = Reduction { unit: 8, commutative: true };
    let in_place = false;
    let mut calls = vec![("barrier", Call::Barrier)];
    for len in [8, 64, 512, 1024] {
        calls.push(("bcast", Call::Bcast { root: 0, len }));
        calls.push(("allreduce", Call::Allreduce { len, of, in_place }));
        calls.push(("reduce", Call::Reduce { root: 0, len, of, in_place }));
    }
    let together = Barrier::new(ranks);
    let start = Instant::now();
    let now = || u64::try_from(start.elapsed().as_nanos()).expect("a short run");
    let pmls = endpoints(u32::try_from(ranks).expect("few ranks"));
    let times: Vec<Vec<Times>> = std::thread::scope(|threads| {
        let rank = |pml| {
            let (pml, segment) = open(pml);
            let double = Datatype::from(Primitive::Double).commit().expect("a basic type");
            let sum = Combine::new(&ReduceOp::Sum.into(), &double).expect("doubles have sums");
            let mut rank =
                RankOf { pml, segment, sum, number: 0, send: vec![0; 128], recv: vec![0; 128] };
            let mut measure = |call: &Call<'_>| {
                together.wait();
                let mut single = Vec::new();
                for round in 0..rounds {
                    rank.send[0] = (round as f64).to_bits();
                    rank.call(&Call::Barrier);
                    let from = now();
                    rank.call(call);
                    single.push(now() - from);
                }
                let mut batches = Vec::new();
                for _ in 0..rounds / BATCH {
                    let from = now();
                    (0..BATCH).for_each(|_| rank.call(call));
                    batches.push((now() - from) / BATCH as u64);
                }
                Times { single, batches }
            };
            calls.iter().map(|(_, call)| measure(call)).collect::<Vec<_>>()
        };
        let each: Vec<_> = pmls.into_iter().map(|pml| threads.spawn(move || rank(pml))).collect();
        each.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    println!("{ranks} ranks, {rounds} rounds; us        slowest rank           back to back");
    for (index, (name, call)) in calls.iter().enumerate() {
        let slowest = |pick: fn(&Times) -> &Vec<u64>| {
            let each: Vec<&Vec<u64>> = times.iter().map(|rank| pick(&rank[index])).collect();
            let worst = |round: usize| each.iter().map(|rank| rank[round]).max().unwrap_or(0);
            let mut worst: Vec<u64> = (0..each[0].len()).map(worst).collect();
            worst.sort_unstable();
            let at = |tenths: usize| worst[(worst.len() - 1) * tenths / 10] as f64 / 1000.0;
            format!("{:7.3} ({:.3} to {:.3})", at(5), at(1), at(9))
        };
        let bytes = call.bytes().unwrap_or(0);
        let (single, batches) = (slowest(|times| &times.single), slowest(|times| &times.batches));
        println!("{name:>10} {bytes:5} B   {single}   {batches}");
    }
}
