//! Faces of a cube, and the halo of 26 neighbours fused into one launch.

use std::cell::RefCell;

use gapless_kernels::Direction;
use gapless_layouts::{Axis, cube};
use gapless_report::{Mark, Row};

use super::shapes::one;
use crate::error::Failure;
use crate::gpu::aims::{AimKind, judge};
use crate::gpu::lab::{Lab, Laid, Parts, Spot};
use crate::gpu::session::{BOTH, Session};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::Operation;

pub(super) fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let edge = if session.common.quick { 32 } else { 512 };
    let begin = session.rows.len();
    for axis in [Axis::X, Axis::Y, Axis::Z] {
        for depth in cube::DEPTHS {
            let layout = format!("face {axis}");
            let case = format!("{layout} n={edge} h={depth}");
            one(session, AimKind::Face, &case, Some((&layout, depth)), || {
                let case = cube::face(axis, edge, depth)?;
                Subject::of(case.name, &case.send)
            });
        }
    }
    for depth in cube::DEPTHS {
        // The same message as one type of the user's: it has no closed form.
        one(session, AimKind::Face, &format!("halo26 n={edge} h={depth}"), None, || {
            let case = cube::halo26(edge, depth)?;
            Subject::of(case.name, &case.send)
        });
    }
    for row in &mut session.rows[begin..] {
        let launches = row.extra.get("launches").and_then(|it| it.as_f64()).unwrap_or(f64::MAX);
        row.marks.push(Mark::at_most("launches", 1.0, launches));
    }
    for depth in cube::DEPTHS {
        let case = format!("halo fused n={edge} h={depth}");
        session.attempt(&case, "pack, unpack", |session| fused(session, &case, edge, depth));
    }
    Ok(())
}

/// All boxes at one place, their packed bytes one after the other.
fn parts(lab: &Lab, boxes: &[Subject], place: &Spot, packed: &Spot) -> Result<Parts, Failure> {
    let mut at = 0;
    let part = boxes.iter().map(|subject| {
        let laid: Laid = lab.lay(subject, place)?;
        let piece = packed.sub(at, subject.payload)?;
        at += subject.payload;
        Ok((laid, piece))
    });
    Ok(Parts::of(part.collect::<Result<Vec<_>, Failure>>()?))
}

fn fused(
    session: &mut Session<'_>,
    name: &str,
    edge: u64,
    depth: u64,
) -> Result<Vec<Row>, Failure> {
    let lab = session.lab;
    let boxes = subject::halo_boxes(edge, depth)?;
    // The boxes in their order are the catalogue's halo, byte for byte.
    let whole = Subject::of(name, &cube::halo26(edge, depth)?.send)?;
    let queue = lab.on(lab.engine())?;
    session.proof.pack(&whole, None, &mut |laid, spot| {
        queue.batch(Direction::Pack, &parts(lab, &boxes, &laid.place(), spot)?)
    })?;
    session.proof.unpack(&whole, None, &mut |spot, laid| {
        queue.batch(Direction::Unpack, &parts(lab, &boxes, &laid.place(), spot)?)
    })?;
    let mut places = session.places(&whole)?;
    // A batch is described once and launched often, as a solver does.
    let mut batches = Vec::new();
    for _ in 0..places.len() {
        let (laid, packed) = places.turn();
        batches.push(parts(lab, &boxes, &laid.place(), packed)?);
    }
    let turn = RefCell::new(0);
    let go = |direction| -> Operation<'_> {
        let (turn, batches, queue) = (&turn, &batches, &queue);
        Box::new(move || {
            let at = (*turn.borrow() + 1) % batches.len();
            *turn.borrow_mut() = at;
            queue.batch(direction, &batches[at])
        })
    };
    let times = session.race_both(whole.payload, BOTH.map(go))?;
    let mut rows = Vec::new();
    for (direction, time) in BOTH.into_iter().zip(&times) {
        let launched = lab.engine().batch_launches(direction, batches[0].requests())?;
        let row = session.compared(&whole, direction, (*time, &times[2..]), &launched);
        let row = row
            .with("requests", boxes.len())
            .with("rotation_bytes", places.rotation_bytes)
            .mark(Mark::at_most("launches", 1.0, launched.len() as f64));
        rows.push(judge(row, AimKind::Face, session.cached(&whole)));
    }
    Ok(rows)
}
