//! The baselines: what users do without a datatype engine, each with its own bound, on the same layouts and
//! in the same run as ours.

use gapless_kernels::Direction;
use gapless_report::Row;

use crate::baselines::{Bound, Reading, batch, memcpy, memcpy_2d, pairs, per_block, whole_span};
use crate::error::Failure;
use crate::gpu::lab::Spot;
use crate::gpu::session::{BOTH, Session, op};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::{alone, calls};

/// Places that block-by-block copies are listed for.
const PLACES: usize = 4;

pub(super) fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let quick = session.common.quick;
    plain(session);
    let edges: &[u64] = if quick { &[64] } else { &[1024, 4096] };
    let most = if quick { 4 << 20 } else { (256 << 20) + 4096 };
    let host = whole_span::Host {
        span: session.lab.pinned_memory(most)?,
        packed: session.lab.pinned_memory(most / 2)?,
    };
    for &n in edges {
        for (name, make) in
            [("V", subject::v as fn(u64) -> Result<Subject, Failure>), ("T", subject::t)]
        {
            let case = format!("{name} n={n}");
            let Ok(subject) = make(n) else { continue };
            for direction in BOTH {
                by_rows(session, &case, &subject, direction);
                by_blocks(session, &case, &subject, direction, &host.packed);
                by_batch(session, &case, &subject, direction);
            }
            session.attempt(&case, whole_span::NAME, |session| {
                whole(session, &subject, &host).map(|row| vec![row])
            });
        }
    }
    let blocks = if quick { 500 } else { 1 << 17 };
    if let Ok(list) = subject::list(subject::Listed::Triples, blocks, false) {
        let case = list.name.clone();
        BOTH.into_iter().for_each(|direction| by_batch(session, &case, &list, direction));
    }
    Ok(())
}

/// `cudaMemcpy` of the sizes that ratios are most often of.
fn plain(session: &mut Session<'_>) {
    let sizes: &[u64] = if session.common.quick { &[1] } else { &[8, 64, 256, 1024] };
    for mib in sizes {
        session.attempt(&format!("contiguous bytes={}", mib << 20), memcpy::NAME, |session| {
            let (lab, payload) = (session.lab, mib << 20);
            let queue = lab.on(lab.engine())?;
            let contiguous = Subject::contiguous(payload)?;
            session.proof.pack(&contiguous, None, &mut |laid, spot| {
                lab.copy(lab.stream(), spot, &laid.place())
            })?;
            let mut copied = session.copies(payload)?;
            let mut moved = session.copies(payload)?.opposite();
            let mut operations: Vec<crate::gpu::timing::Operation<'_>> = vec![
                Box::new(|| copied.copy(lab)),
                Box::new(|| moved.pack(lab, &queue)),
            ];
            let times =
                crate::gpu::timing::race(lab, session.seconds(), true, &mut operations)?;
            let space = lab.arenas().from.space().to_string();
            Ok(vec![memcpy::reading(&space, payload, times[0], times[1]).row()])
        });
    }
}

/// The row of a baseline, with the number of its blocks.
fn row(
    session: &Session<'_>,
    subject: &Subject,
    baseline: &'static str,
    direction: Direction,
    seconds: gapless_report::Summary,
    bound: Bound,
) -> Row {
    let reading = Reading {
        baseline,
        case: subject.name.clone(),
        op: op(direction),
        space: session.lab.arenas().typed.space().to_string(),
        payload: subject.payload,
        seconds,
        bound,
    };
    reading.row().blocks(subject.blocks)
}

fn by_rows(session: &mut Session<'_>, case: &str, subject: &Subject, direction: Direction) {
    let Some(rows) = memcpy_2d::Rows::of(subject) else { return };
    session.attempt(case, memcpy_2d::NAME, |session| {
        let lab = session.lab;
        session.prove(subject, direction, None, |laid, packed| {
            rows.go(lab, direction, subject, laid, packed)
        })?;
        let (arenas, seconds) = (lab.arenas(), session.seconds());
        let (gaps, packed) = (arenas.typed, arenas.packed);
        let bound = memcpy_2d::bound(lab, seconds, direction, subject.payload, &gaps, &packed)?;
        let mut places = session.places(subject)?;
        let time = alone(lab, seconds, true, || {
            let (laid, packed) = places.turn();
            rows.go(lab, direction, subject, laid, packed)
        })?;
        // Where these rows are better than any that was tried, they are the best.
        let bound = Bound { seconds: bound.seconds.min(time.median), ..bound };
        Ok(vec![row(session, subject, memcpy_2d::NAME, direction, time, bound)])
    });
}

/// The copies of the first places.
fn listed(
    session: &Session<'_>,
    subject: &Subject,
    direction: Direction,
    host: Option<&Spot>,
) -> Result<Vec<Vec<(Spot, Spot)>>, Failure> {
    let mut places = session.places(subject)?;
    (0..places.len().min(PLACES))
        .map(|_| {
            let (laid, packed) = places.turn();
            pairs(subject, direction, laid, host.unwrap_or(packed))
        })
        .collect()
}

/// What a plain copy of a payload reaches between these memories, in GB/s.
fn plain_gbps(
    session: &Session<'_>,
    payload: u64,
    direction: Direction,
    host: Option<&Spot>,
) -> Result<f64, Failure> {
    let lab = session.lab;
    let mut copies = session.copies(payload)?;
    let host = host.map(|host| host.sub(0, payload)).transpose()?;
    let time = alone(lab, session.seconds() / 4.0, true, || match &host {
        None => copies.copy(lab),
        Some(host) => copies.copy_by(lab, direction, host),
    })?;
    Ok(time.gbps(payload))
}

/// One copy a block: on the device, and to or from page-locked host memory.
fn by_blocks(
    session: &mut Session<'_>,
    case: &str,
    subject: &Subject,
    direction: Direction,
    host: &Spot,
) {
    if subject.blocks > per_block::BLOCKS_MAX {
        return;
    }
    for (host, place) in [(None, ""), (Some(host), ", host")] {
        let what = format!("{}{place}", per_block::NAME);
        session.attempt(case, &what, |session| {
            let (lab, seconds) = (session.lab, session.seconds());
            session.prove(subject, direction, host.copied(), |laid, packed| {
                per_block::go(lab, &pairs(subject, direction, laid, packed)?)
            })?;
            let lists = listed(session, subject, direction, host)?;
            let gbps = plain_gbps(session, subject.payload, direction, host)?;
            let device = &lab.arenas().typed;
            let packed = host.unwrap_or(&lab.arenas().packed);
            let ways = match direction {
                Direction::Pack => (packed, device),
                Direction::Unpack => (device, packed),
            };
            let copies = lists[0].len();
            let bound = per_block::bound(lab, seconds, ways, copies, subject.payload, gbps)?;
            let mut at = 0;
            let time = alone(lab, seconds, false, || {
                at = (at + 1) % lists.len();
                per_block::go(lab, &lists[at])
            })?;
            let mut row = row(session, subject, per_block::NAME, direction, time, bound);
            if host.is_some() {
                row.op += ", host";
            }
            Ok(vec![row])
        });
    }
}

fn by_batch(session: &mut Session<'_>, case: &str, subject: &Subject, direction: Direction) {
    if subject.blocks > batch::BLOCKS_MAX {
        return;
    }
    session.attempt(case, batch::NAME, |session| {
        let (lab, seconds) = (session.lab, session.seconds());
        let proved = session.prove(subject, direction, None, |laid, packed| {
            batch::go(lab, &pairs(subject, direction, laid, packed)?)
        });
        if let Err(Failure::Cuda(gapless_mem_cuda::CudaError::MissingSymbol { name })) = proved {
            let why = format!("this driver has no {name}: it is older than CUDA 12.8");
            session.skip(&subject.name, batch::NAME, &why);
            return Ok(Vec::new());
        }
        proved?;
        let lists = listed(session, subject, direction, None)?;
        let gbps = plain_gbps(session, subject.payload, direction, None)?;
        let (to, from) = (&lab.arenas().packed, &lab.arenas().typed);
        let copies = lists[0].len();
        let bound = batch::bound(lab, seconds, (to, from), copies, subject.payload, gbps)?;
        let mut at = 0;
        let time = alone(lab, seconds, false, || {
            at = (at + 1) % lists.len();
            batch::go(lab, &lists[at])
        })?;
        Ok(vec![row(session, subject, batch::NAME, direction, time, bound)])
    });
}

/// Everything to the host and a pack there; whole calls.
fn whole(
    session: &mut Session<'_>,
    subject: &Subject,
    host: &whole_span::Host,
) -> Result<Row, Failure> {
    let (lab, seconds) = (session.lab, session.seconds());
    let packed = host.packed.sub(0, subject.payload)?;
    session.prove(subject, Direction::Pack, Some(packed), |laid, _| {
        whole_span::go(lab, subject, laid, host)
    })?;
    let mut places = session.places(subject)?;
    let bound = whole_span::bound(lab, seconds, subject, places.first().0, host)?;
    let time = calls(seconds, || whole_span::go(lab, subject, places.turn().0, host))?;
    let mut row = row(session, subject, whole_span::NAME, Direction::Pack, time, bound);
    row.op = "pack, host".to_owned();
    Ok(row.with("clock", "whole calls"))
}
