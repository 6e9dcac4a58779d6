//! Packed bytes that are not in the GPU's own memory: page-locked host memory, staged and directly, and
//! another GPU's.

use std::num::NonZeroU32;

use gapless_kernels::Direction;
use gapless_report::Row;

use crate::error::Failure;
use crate::gpu::aims::{AimKind, judge};
use crate::gpu::lab::{Laid, Spot};
use crate::gpu::session::{BOTH, Session, launches, op, race_calls};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::{Operation, race};

/// Thread blocks that saturate the bus.
const FEW: u32 = 4;
/// Thread blocks that nearly saturate a link between GPUs.
const PEER_FEW: u32 = 8;

/// A case: its name, how it is judged when staged, and how it is made.
type Case = (String, AimKind, fn(u64) -> Result<Subject, Failure>, u64);

/// V and T.
fn subjects(quick: bool) -> Vec<Case> {
    let edges: &[u64] = if quick { &[256] } else { &[2048, 4096, 8192] };
    let mut all: Vec<Case> = Vec::new();
    for &n in edges {
        all.push((format!("V n={n}"), AimKind::StagedV, subject::v, n));
        all.push((format!("T n={n}"), AimKind::StagedT, subject::t, n));
    }
    all
}

pub(super) fn pinned(session: &mut Session<'_>) -> Result<(), Failure> {
    let quick = session.common.quick;
    let host = session.lab.pinned_memory(if quick { 8 << 20 } else { (512 << 20) + 4096 })?;
    for (name, kind, make, n) in subjects(quick) {
        session.attempt(&name, "staged", |session| {
            let subject = make(n)?;
            BOTH.into_iter().map(|direction| staged(session, &subject, kind, direction, &host)).collect()
        });
        session.attempt(&name, "zero-copy", |session| {
            let subject = make(n)?;
            let mut rows = Vec::new();
            for direction in BOTH {
                rows.extend(zero_copy(session, &subject, direction, &host)?);
            }
            Ok(rows)
        });
    }
    Ok(())
}

fn space(session: &Session<'_>, direction: Direction, other: &Spot) -> String {
    let (own, other) = (session.lab.arenas().typed.space(), other.space());
    match direction {
        Direction::Pack => format!("{own}->{other}"),
        Direction::Unpack => format!("{other}->{own}"),
    }
}

/// Through the device's memory and its copy engine, in fragments that overlap: whole calls.
fn staged(
    session: &mut Session<'_>,
    subject: &Subject,
    kind: AimKind,
    direction: Direction,
    host: &Spot,
) -> Result<Row, Failure> {
    let lab = session.lab;
    let engine = lab.engine_with(|config| config.staged_host = true)?;
    let host = host.sub(0, subject.payload)?;
    let call = |laid: &Laid, spot: &Spot| lab.call(&engine, direction, laid, spot);
    session.prove(subject, direction, Some(host), call)?;
    let mut places = session.places(subject)?;
    let mut copies = session.copies(subject.payload)?;
    let launched = launches(&engine, direction, places.first().0, &host)?;
    let mut calls: Vec<Operation<'_>> = vec![
        Box::new(|| call(places.turn().0, &host)),
        Box::new(|| {
            copies.copy_by(lab, direction, &host)?;
            lab.settle()
        }),
    ];
    let times = race_calls(session.seconds(), &mut calls)?;
    drop(calls);
    let mut row = session
        .row(subject, direction, times[0], &launched)
        .against("pinned copy", times[1])
        .with("clock", "whole calls");
    row.space = space(session, direction, &host);
    row.op = format!("{} staged", op(direction));
    Ok(judge(row, kind, false))
}

/// By kernels that reach host memory themselves: as many blocks as they like, and a few.
fn zero_copy(
    session: &mut Session<'_>,
    subject: &Subject,
    direction: Direction,
    host: &Spot,
) -> Result<Vec<Row>, Failure> {
    let lab = session.lab;
    let host = host.sub(0, subject.payload)?;
    let mut rows = Vec::new();
    for (budget, kind) in [(NonZeroU32::new(FEW), AimKind::ZeroCopy), (None, AimKind::General)] {
        let engine = lab.engine().with_budget(budget);
        let queue = lab.on(&engine)?;
        session.prove(subject, direction, Some(host), |laid, spot| queue.go(direction, laid, spot))?;
        let mut places = session.places(subject)?;
        let mut copies = session.copies(subject.payload)?;
        let mut plain = session.copies(subject.payload)?.opposite();
        let launched = launches(&engine, direction, places.first().0, &host)?;
        let mut operations: Vec<Operation<'_>> = vec![
            Box::new(|| queue.go(direction, places.turn().0, &host)),
            Box::new(|| copies.pack_by((lab, &queue), direction, &host)),
            Box::new(|| plain.copy_by(lab, direction, &host)),
        ];
        let times = race(lab, session.seconds(), true, &mut operations)?;
        drop(operations);
        let mut row = session
            .row(subject, direction, times[0], &launched)
            .against("contiguous zero-copy", times[1])
            .against("pinned copy", times[2]);
        row.space = space(session, direction, &host);
        let blocks = budget.map_or(String::new(), |blocks| format!(", {blocks} blocks"));
        row.op = format!("{} zero-copy{blocks}", op(direction));
        rows.push(judge(row, kind, false));
    }
    Ok(rows)
}

pub(super) fn peer(session: &mut Session<'_>) -> Result<(), Failure> {
    let quick = session.common.quick;
    let len = if quick { 8 << 20 } else { (1 << 30) + 4096 };
    let Some(there) = session.lab.peer_memory(len)? else {
        session.skip("packed into a peer GPU", "pack, unpack", "there is no second GPU in reach");
        return Ok(());
    };
    for (name, _, make, n) in subjects(quick) {
        session.attempt(&name, "peer", |session| {
            let subject = make(n)?;
            let mut rows = Vec::new();
            for direction in BOTH {
                rows.extend(to_peer(session, &subject, direction, &there)?);
            }
            Ok(rows)
        });
    }
    Ok(())
}

fn to_peer(
    session: &mut Session<'_>,
    subject: &Subject,
    direction: Direction,
    there: &Spot,
) -> Result<Vec<Row>, Failure> {
    let lab = session.lab;
    let there = there.sub(0, subject.payload)?;
    let few = lab.engine().with_budget(NonZeroU32::new(PEER_FEW));
    let engines = [lab.engine().clone(), few];
    let queues = [lab.on(&engines[0])?, lab.on(&engines[1])?];
    for queue in &queues {
        session.prove(subject, direction, Some(there), |laid, spot| queue.go(direction, laid, spot))?;
    }
    let mut places = [session.places(subject)?, session.places(subject)?.opposite()];
    let mut copies =
        [session.copies(subject.payload)?, session.copies(subject.payload)?.opposite()];
    let [unbounded, bounded] = &mut places;
    let [kernel, plain] = &mut copies;
    let launched = [
        launches(&engines[0], direction, unbounded.first().0, &there)?,
        launches(&engines[1], direction, bounded.first().0, &there)?,
    ];
    let mut operations: Vec<Operation<'_>> = vec![
        Box::new(|| queues[0].go(direction, unbounded.turn().0, &there)),
        Box::new(|| queues[1].go(direction, bounded.turn().0, &there)),
        Box::new(|| kernel.pack_by((lab, &queues[0]), direction, &there)),
        Box::new(|| plain.copy_by(lab, direction, &there)),
    ];
    let times = race(lab, session.seconds(), true, &mut operations)?;
    drop(operations);
    let kinds = [(AimKind::Peer, String::new()), (AimKind::PeerFew, format!(", {PEER_FEW} blocks"))];
    let rows = kinds.into_iter().zip(launched).zip(&times).map(|(((kind, blocks), launched), time)| {
        let mut row = session
            .row(subject, direction, *time, &launched)
            .against("contiguous to peer", times[2])
            .against("peer memcpy", times[3]);
        row.space = space(session, direction, &there);
        row.op = format!("{} peer{blocks}", op(direction));
        judge(row, kind, false)
    });
    Ok(rows.collect())
}
