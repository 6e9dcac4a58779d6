//! Over a transport that does not keep messages in order: nothing shows, not even in the order of
//! matching.

use crate::common::{Buffer, Job, bytes, strided};
use gapless_bml::{Btl, Rank};
use gapless_btl::loopback::{self, Loopback};
use gapless_btl_testkit::fault::{Fault, Plan};
use gapless_dtype::testkit::Rng;
use gapless_pml::{Config, PmlError, RequestId, Source, TagSel};

fn job(seed: u64, rdma: bool, mapped: bool) -> Job {
    Job::build(2, Config::default(), &mut |rank, hub| {
        let link =
            loopback::Config { ordered: false, slots: 12, rdma, mapped, ..crate::common::link() };
        let plan = Plan {
            seed: seed ^ u64::from(rank),
            reorder_per_mille: 400,
            delay_polls_max: 4,
            full_per_mille: 30,
            full_calls_max: 6,
            ..Plan::default()
        };
        Box::new(Fault::new(Loopback::with(hub, link), plan)) as Box<dyn Btl>
    })
}

#[test]
fn messages_are_matched_in_the_order_of_sending() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut job = job(seed, rng.chance(50), rng.chance(50));
        assert!(!job.pml(0).bml_mut().limits(Rank(1)).unwrap().ordered);
        let mut lens = [0; 60];
        lens.fill_with(|| {
            let most = if rng.chance(20) { 60_000 } else { 600 };
            rng.below(most)
        });
        let source = |(seed, len): (u64, &u64)| match len % 3 {
            0 => Buffer::source(&strided(len / 4, 4, 7), 1, seed),
            _ => Buffer::source(&bytes(*len), 1, seed),
        };
        let sources: Vec<Buffer> = (0..).zip(&lens).map(source).collect();
        let targets: Vec<Buffer> = lens.iter().map(|len| Buffer::target(&bytes(*len), 1)).collect();
        let mut sends: Vec<RequestId> = Vec::new();
        let mut receives: Vec<RequestId> = Vec::new();
        while receives.len() < targets.len() {
            if sends.len() < sources.len() && rng.chance(60) {
                sends.push(job.isend(0, &sources[sends.len()], 1, 5));
            } else {
                let target = &targets[receives.len()];
                receives.push(job.irecv(1, target, Source::Any, TagSel::Any));
            }
            if rng.chance(40) {
                job.progress();
            }
        }
        sources[sends.len()..].iter().for_each(|from| sends.push(job.isend(0, from, 1, 5)));
        for ((send, receive), (from, to)) in
            sends.into_iter().zip(receives).zip(sources.iter().zip(&targets))
        {
            let sent = from.packed();
            job.finish(0, send).unwrap();
            let outcome = job.finish(1, receive);
            // Of one signature only where both are bytes.
            match outcome {
                Ok(status) => assert_eq!(status.bytes, sent.len() as u64, "seed {seed}"),
                Err(error) => panic!("seed {seed}: {error}"),
            }
            assert_eq!(to.packed()[..sent.len()], sent, "seed {seed}");
        }
        // Asked for back while it may overtake: gone all the same.
        let late = job.isend(0, &sources[0], 1, 6);
        job.pml(0).cancel_send(late).unwrap();
        assert_eq!(job.finish(0, late), Err(PmlError::Cancelled), "seed {seed}");
    }
}
