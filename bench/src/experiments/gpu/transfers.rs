//! From layout to layout by one kernel, without packed bytes in between. No mark is set for it.

use std::cell::RefCell;

use gapless_report::Row;

use crate::error::Failure;
use crate::gpu::session::{BOTH, Session, told};
use crate::gpu::subject::{self, Listed, Subject};
use crate::gpu::timing::{Operation, race};

pub(super) fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let (n, blocks) = if session.common.quick { (96, 96 * 96 / 3) } else { (3072, 3072 * 3072 / 3) };
    type Make = fn(u64, u64) -> Result<Subject, Failure>;
    let v: Make = |n, _| subject::v(n);
    let x: Make = |n, _| subject::x(n, n);
    let list: Make = |_, blocks| subject::list(Listed::Triples, blocks, false);
    let shuffled: Make = |_, blocks| subject::list(Listed::Triples, blocks, true);
    let pairs =
        [("V to V", v, v), ("V to X", v, x), ("V to list", v, list), ("list to shuffled", list, shuffled)];
    for (name, from, to) in pairs {
        let case = format!("{name} n={n}");
        session.attempt(&case, "transfer", |session| {
            let (from, to) = (from(n, blocks)?, to(n, blocks)?);
            one(session, &case, &from, &to).map(|row| vec![row])
        });
    }
    Ok(())
}

fn one(
    session: &mut Session<'_>,
    case: &str,
    from: &Subject,
    to: &Subject,
) -> Result<Row, Failure> {
    let (lab, engine) = (session.lab, session.lab.engine());
    session.prepare(engine, from)?;
    session.prepare(engine, to)?;
    let queue = lab.on(engine)?;
    session.proof.transfer(from, to, &mut |source, target| queue.transfer(source, target))?;
    // Each side in an arena of its own; packed bytes pass through a third.
    let sources = RefCell::new(session.places(from)?);
    let targets = RefCell::new(session.places_in(to, &lab.arenas().to)?);
    let mut copies = session.copies(from.payload)?;
    let mut operations: Vec<Operation<'_>> = vec![
        Box::new(|| {
            let (mut sources, mut targets) = (sources.borrow_mut(), targets.borrow_mut());
            queue.transfer(sources.turn().0, targets.turn().0)
        }),
        Box::new(|| {
            let (mut sources, mut targets) = (sources.borrow_mut(), targets.borrow_mut());
            let (source, packed) = sources.turn();
            queue.go(BOTH[0], source, packed)?;
            queue.go(BOTH[1], targets.turn().0, packed)
        }),
        Box::new(|| copies.copy(lab)),
    ];
    let times = race(lab, session.seconds(), true, &mut operations)?;
    drop(operations);
    let (sources, targets) = (sources.into_inner(), targets.into_inner());
    let (source, target) = (sources.first().0.typed(), targets.first().0.typed());
    let launched = engine.transfer_launches(source, target, 0..from.payload)?;
    let plan = launched.iter().map(|it| it.plan_bytes).max().unwrap_or(0);
    // Two sides with gaps: what packing one and unpacking the other cost, without packed bytes.
    let (read, written) = (from.traffic.pack_bytes(0, plan), to.traffic.unpack_bytes(0, 0));
    let floor = session.rate().seconds(read + written);
    let space = lab.arenas().typed.space().to_string();
    Ok(Row::new(case, "transfer", space, told(&launched), from.payload, times[0])
        .against("pack and unpack", times[1])
        .against("memcpy", times[2])
        .against_gbps("floor", from.payload as f64 / floor / 1e9)
        .blocks(from.blocks.max(to.blocks))
        .verified(true)
        .with("verified_by", "host engine")
        .with("launches", launched.len())
        .with("plan_bytes", plan)
        .with("traffic_bytes", read + written)
        .with("rotation_bytes", sources.rotation_bytes + targets.rotation_bytes))
}
