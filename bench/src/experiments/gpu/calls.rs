//! What a call costs the caller, and what the engine costs, or loses to, an application that uses the GPU
//! meanwhile (Wu et al. 2016, §5.4).

use std::time::Instant;

use gapless_kernels::Direction;
use gapless_report::{Mark, Row, Samples};

use crate::error::Failure;
use crate::gpu::session::{Session, launches};
use crate::gpu::subject;
use crate::p2p::occupier::Occupier;

/// Enqueues in a sample: the driver queues about a thousand launches before it makes the caller wait.
const BATCH: u32 = 128;
/// What enqueueing a pack may cost above a bare launch, in µs.
const ABOVE_LAUNCH: f64 = 1.5;
/// Shares of the GPU that the application occupies, in hundredths.
const SHARES: [u32; 3] = [25, 50, 100];
/// What may be lost while the GPU is not fully occupied (§5.4).
const KEPT: f64 = 0.9;
/// How many of the application's kernels wait, and how long each runs, in ns.
const SLICE: (u32, u64) = (500, 200_000);

/// Enqueueing 4 KiB of eight columns on the caller's stream, beside a launch of a kernel that does
/// nothing: the CPU's time.
pub(super) fn enqueue(session: &mut Session<'_>) -> Result<(), Failure> {
    session.attempt("4 KiB enqueued", "pack", |session| {
        let lab = session.lab;
        let subject = subject::rows(8, 512)?;
        session.prepare(lab.engine(), &subject)?;
        let queue = lab.on(lab.engine())?;
        session.proof.both(&subject, &queue)?;
        let mut places = session.places(&subject)?;
        let mut samples = [Samples::default(), Samples::default()];
        let rounds = if session.common.quick { 5 } else { 100 };
        for _ in 0..rounds {
            for (which, samples) in samples.iter_mut().enumerate() {
                lab.settle()?;
                let begin = Instant::now();
                for _ in 0..BATCH {
                    if which == 0 {
                        let (laid, packed) = places.turn();
                        queue.go(Direction::Pack, laid, packed)?;
                    } else {
                        lab.launch_nothing()?;
                    }
                }
                samples.push(begin.elapsed().as_secs_f64() / f64::from(BATCH));
            }
        }
        lab.settle()?;
        let times = samples.each_ref().map(Samples::summary);
        let [ours, bare] = times.map(|time| time.map_err(Failure::samples("enqueueing")));
        let (ours, bare) = (ours?, bare?);
        let (laid, packed) = places.first();
        let launched = launches(lab.engine(), Direction::Pack, laid, packed)?;
        let above = (ours.median - bare.median) * 1e6;
        let mut row = session
            .row(&subject, Direction::Pack, ours, &launched)
            .against("bare launch", bare)
            .with("clock", "the enqueueing thread's")
            .mark(Mark::at_most("µs above a launch", ABOVE_LAUNCH, above));
        row.case = "4 KiB enqueued".to_owned();
        Ok(vec![row])
    });
    Ok(())
}

/// Packs while an application's kernel computes on a share of the multiprocessors: on the device, and to
/// page-locked host memory as Wu's messages go.
pub(super) fn occupied(session: &mut Session<'_>) -> Result<(), Failure> {
    let edges: &[u64] = if session.common.quick { &[128] } else { &[1000, 2000, 4096] };
    for &n in edges {
        for staged in [false, true] {
            let way = if staged { "pack staged" } else { "pack" };
            session.attempt(&format!("V n={n}, GPU occupied"), way, |session| {
                share_the_gpu(session, n, staged)
            });
        }
    }
    Ok(())
}

fn share_the_gpu(session: &mut Session<'_>, n: u64, staged: bool) -> Result<Vec<Row>, Failure> {
    let lab = session.lab;
    let no_tools = |failure: Failure| Failure::NoTools { why: failure.to_string() };
    let mut occupier = Occupier::new(0).map_err(no_tools)?;
    let (units, blocks) = occupier.occupancy()?;
    let subject = subject::v(n)?;
    let engine = lab.engine_with(|config| config.staged_host = staged)?;
    let host = if staged { Some(lab.pinned_memory(subject.payload)?) } else { None };
    session.proof.pack(&subject, host, &mut |laid, spot| lab.pack(&engine, laid, spot))?;
    let mut places = session.places(&subject)?;
    let seconds = session.seconds();
    let mut measure = |share: u32| -> Result<_, Failure> {
        let mut samples = Samples::default();
        if share > 0 {
            occupier.occupy((units * share / 100).max(1), SLICE)?;
        }
        let begin = Instant::now();
        // Well before the application's last kernel ends.
        let most = (SLICE.1 * u64::from(SLICE.0)) as f64 * 0.6e-9;
        let mut outcome = Ok(());
        while samples.seconds().len() < 5 || begin.elapsed().as_secs_f64() < seconds.min(most) {
            let (laid, packed) = places.turn();
            let call = Instant::now();
            outcome = lab.pack(&engine, laid, host.as_ref().unwrap_or(packed));
            if outcome.is_err() {
                break;
            }
            samples.push(call.elapsed().as_secs_f64());
        }
        let running = share == 0 || occupier.stop()?;
        outcome?;
        if !running {
            let why = "the application's kernels ended before the measurement".to_owned();
            return Err(Failure::Option { option: "occupied", why });
        }
        samples.summary().map_err(Failure::samples("an occupied GPU"))
    };
    // Once to warm up.
    measure(0)?;
    let free = measure(0)?;
    let shares = SHARES.map(measure);
    let mut rows = Vec::new();
    let target = host.as_ref().unwrap_or(places.first().1);
    let launched = launches(&engine, Direction::Pack, places.first().0, target)?;
    for (share, time) in SHARES.into_iter().zip(shares) {
        let time = time?;
        let mut row = session
            .row(&subject, Direction::Pack, time, &launched)
            .against("GPU free", free)
            .with("occupied_hundredths", share)
            .with("application_blocks_per_unit", blocks)
            .with("clock", "whole calls");
        row.case = format!("V n={n}, {share} % occupied");
        if staged {
            row.op = "pack staged".to_owned();
            row.space = format!("{}->pinned", row.space);
        }
        // What the paper's messages do is what its bound is about: they cross the bus.
        if share < 100 && staged {
            let kept = free.median / time.median;
            row = row.mark(Mark::at_least("GPU free", KEPT, kept));
        }
        rows.push(row);
    }
    Ok(rows)
}
