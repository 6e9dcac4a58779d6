//! Lists of short blocks: with their plan in place, and at their first use.

use std::time::Instant;

use gapless_dtype_cuda::GpuEngine;
use gapless_kernels::Direction;
use gapless_report::{Mark, Row};

use super::shapes::one;
use crate::error::Failure;
use crate::gpu::aims::AimKind;
use crate::gpu::lab::{Laid, Spot};
use crate::gpu::session::{BOTH, Session, launches};
use crate::gpu::subject::{self, Listed, Subject};
use crate::gpu::timing::timed_calls;

/// What the first use is to be against preparing first and launching after, at most.
const PREPARED_FIRST: f64 = 0.6;
/// And against the longer of the two by itself.
const LONGER: f64 = 1.2;

/// Kinds, blocks, and whether shuffled.
fn all(quick: bool) -> Vec<(Listed, u64, bool)> {
    let mega = 1 << 20;
    let wanted: &[(Listed, u64)] = match quick {
        true => &[(Listed::Triples, 5000), (Listed::OneToThree, 5000), (Listed::Floats, 5000)],
        false => &[
            (Listed::Triples, mega),
            (Listed::Triples, 4 * mega),
            (Listed::OneToThree, mega),
            (Listed::OneToThree, 4 * mega),
            (Listed::Floats, mega),
        ],
    };
    wanted.iter().flat_map(|&(kind, n)| [(kind, n, false), (kind, n, true)]).collect()
}

fn name(kind: Listed, shuffled: bool) -> String {
    format!("{}{}", kind.name(), if shuffled { " shuffled" } else { "" })
}

pub(super) fn warm(session: &mut Session<'_>) -> Result<(), Failure> {
    for (listed, blocks, shuffled) in all(session.common.quick) {
        let kind = if shuffled { AimKind::Shuffled } else { AimKind::Ascending };
        let layout = name(listed, shuffled);
        let case = format!("{layout} blocks={blocks}");
        one(session, kind, &case, Some((&layout, blocks)), || {
            subject::list(listed, blocks, shuffled)
        });
    }
    Ok(())
}

pub(super) fn first_use(session: &mut Session<'_>) -> Result<(), Failure> {
    let pipelined = session.lab.engine_with(|_| ())?;
    let plain = session.lab.engine_with(|config| config.pipelined = false)?;
    for (kind, blocks, shuffled) in all(session.common.quick) {
        let case = format!("first use, {} blocks={blocks}", name(kind, shuffled));
        session.attempt(&case, "pack, unpack", |session| {
            let subject = subject::list(kind, blocks, shuffled)?;
            let subject = Subject { name: case.clone(), ..subject };
            let engines = [&pipelined, &plain];
            BOTH.into_iter().map(|direction| cold(session, &subject, direction, engines)).collect()
        });
    }
    Ok(())
}

/// The first use of a layout that is committed and has no plan: whole calls, by the CPU's clock.
fn cold(
    session: &mut Session<'_>,
    subject: &Subject,
    direction: Direction,
    [pipelined, plain]: [&GpuEngine; 2],
) -> Result<Row, Failure> {
    let lab = session.lab;
    let call = |engine: &GpuEngine, laid: &Laid, packed: &Spot| lab.call(engine, direction, laid, packed);
    // What is verified is a first use.
    for engine in [pipelined, plain] {
        engine.forget(&subject.layout);
        session.prove(subject, direction, None, |laid, spot| call(engine, laid, spot))?;
    }
    let mut places = session.places(subject)?;
    let seconds = session.seconds();
    let mut first = |engine: &GpuEngine| {
        timed_calls(seconds, || {
            engine.forget(&subject.layout);
            let (laid, packed) = places.turn();
            let begin = Instant::now();
            call(engine, laid, packed)?;
            Ok(begin.elapsed().as_secs_f64())
        })
    };
    let ours = first(pipelined)?;
    let prepared_first = first(plain)?;
    let preparation = timed_calls(seconds, || {
        plain.forget(&subject.layout);
        let begin = Instant::now();
        session.prepare(plain, subject)?;
        Ok(begin.elapsed().as_secs_f64())
    })?;
    let warm = timed_calls(seconds, || {
        let (laid, packed) = places.turn();
        let begin = Instant::now();
        call(plain, laid, packed)?;
        Ok(begin.elapsed().as_secs_f64())
    })?;
    let (laid, packed) = places.first();
    let launched = launches(pipelined, direction, laid, packed)?;
    let longer = preparation.median.max(warm.median);
    let (part, over) = (ours.median / prepared_first.median, ours.median / longer);
    Ok(session
        .row(subject, direction, ours, &launched)
        .against("prepared first", prepared_first)
        .against("preparation alone", preparation)
        .against("kernel alone", warm)
        .with("commit_seconds", subject.commit_seconds)
        .with("clock", "whole calls")
        .mark(Mark::at_most("time ÷ prepared first", PREPARED_FIRST, part))
        .mark(Mark::at_most("time ÷ longer of both", LONGER, over)))
}
