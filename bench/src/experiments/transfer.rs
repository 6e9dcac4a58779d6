//! `transfer`: from layout to layout with one copy and no staging buffer, against `memcpy` of the
//! same payload and against packing and unpacking through a staging buffer.

use std::cell::RefCell;

use gapless_cli::pingpong::Pinned;
use gapless_dtype::transfer;
use gapless_layouts::{Case, Side};
use gapless_report::{BarGroup, PlotError, Report, Row, bars};

use super::pack::notes;
use crate::check::{Pieces, same};
use crate::clock::{alone, race};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::rotation::{Arena, Memcpy, Rotating, Rotation, contiguous};
use crate::subjects::{Selection, list, named};
use crate::table::{CASE, Column, OVER_MEMCPY, PAYLOAD, RATE, RESIDENT, SPREAD, called, ratio, table};

/// The experiment.
pub struct Transfer;

impl Experiment for Transfer {
    type Options = Selection;

    const NAME: &'static str = "transfer";
    const ABOUT: &'static str = "layout to layout with one copy, against memcpy of the payload";

    fn run(options: &Selection, common: &Common) -> Result<Findings, Failure> {
        let cases = options.cases(|| usual(common.quick))?;
        let pinned = Pinned::to(0);
        let mut bench = Bench::new(&cases, common)?;
        let progress = common.progress(cases.len());
        let mut rows = Vec::new();
        for case in &cases {
            progress.set_message(case.name.clone());
            rows.push(bench.measure(case)?);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let notes = notes(&bench.rotation, &pinned)
            + "÷ pack+unpack: speed relative to packing into a staging buffer that stays in cache \
               where it fits, and\nunpacking from there.\n";
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let theirs = |row: &Row, name: &str| row.ratio_to(name).map_or(0.0, |r| row.gbps / r);
        let groups: Vec<BarGroup> = report
            .rows
            .iter()
            .map(|row| BarGroup {
                label: row.case.clone(),
                gbps: vec![row.gbps, theirs(row, STAGED), theirs(row, "memcpy")],
            })
            .collect();
        let title = format!("layout to layout ({})", report.machine.cpu);
        let pages = bars(&title, &["one copy", STAGED, "memcpy"], &groups)?;
        Ok(Drawing::pages("", pages))
    }

    fn summary(report: &Report) -> String {
        let staged: Column = ("÷ pack+unpack", |row| ratio(row, STAGED));
        let columns = [called("layouts", CASE), PAYLOAD, RATE, SPREAD, RESIDENT, OVER_MEMCPY, staged];
        table(&columns, &report.rows)
    }
}

const STAGED: &str = "pack+unpack";

/// Pairs of layouts that carry as much: equal ones, and one into the other.
fn usual(quick: bool) -> Result<Vec<Case>, Failure> {
    let edges: &[u64] = if quick { &[24] } else { &[96, 360, 1020, 2880] };
    let mut all = Vec::new();
    for &n in edges {
        // Triples of doubles that carry a matrix exactly: the edges are multiples of 3.
        let (v, t, x) = (one("v", n)?, one("t", n)?, one("x", n)?);
        let (list3, shuffled) = (list(n * n / 3, 3, false)?, list(n * n / 3, 3, true)?);
        all.push(between(&v.send, &x.send, format!("V to X n={n}")));
        all.push(between(&v.send, &list3.send, format!("V to list3 n={n}")));
        all.push(between(&list3.send, &shuffled.send, format!("list3 to shuffled n={n}")));
        all.push(between(&v.send, &contiguous(v.payload_bytes), format!("V to bytes n={n}")));
        all.extend([v, t, list3]);
        all.push(between(&x.send, &x.send, format!("X to X n={n}")));
    }
    for name in if quick { &["face-x"][..] } else { &["face-x", "face-y", "halo26", "milc"] } {
        all.extend(named(name, quick.then_some(12).filter(|_| *name == "face-x"))?);
    }
    all.sort_by_key(|case| case.payload_bytes);
    Ok(all)
}

fn one(name: &str, n: u64) -> Result<Case, Failure> {
    Ok(named(name, Some(n))?.remove(0))
}

fn between(from: &Side, to: &Side, name: String) -> Case {
    debug_assert_eq!(from.payload_bytes(), to.payload_bytes());
    let bytes = from.payload_bytes();
    Case { name, send: from.clone(), recv: to.clone(), ..crate::subjects::contiguous_case(bytes) }
}

/// The memory that all cases share.
struct Bench<'a> {
    common: &'a Common,
    rotation: Rotation,
    from: Arena,
    to: Arena,
    memcpy: Memcpy,
    staging: Vec<u8>,
}

impl<'a> Bench<'a> {
    fn new(cases: &[Case], common: &'a Common) -> Result<Bench<'a>, Failure> {
        let rotation = common.rotation();
        let senders = cases.iter().map(|case| (case.name.as_str(), &case.send));
        let receivers = cases.iter().map(|case| (case.name.as_str(), &case.recv));
        let from = Arena::new(rotation.arena_bytes(senders)?, common.seed);
        let to = Arena::new(rotation.arena_bytes(receivers)?, !common.seed);
        let memcpy = Memcpy::new(cases.iter().map(|case| case.payload_bytes), rotation, common.seed)?;
        Ok(Bench { common, rotation, from, to, memcpy, staging: Vec::new() })
    }

    fn measure(&mut self, case: &Case) -> Result<Row, Failure> {
        let (seed, rotation) = (self.common.seed, self.rotation);
        let payload_bytes = case.payload_bytes;
        let mut from = Rotating::new(&case.send, &self.from, &rotation, seed ^ 1)?;
        let mut to = Rotating::new(&case.recv, &self.to, &rotation, seed ^ 2)?;
        let judge = self.verify(case, &mut from, &mut to)?;
        self.staging.resize(usize::try_from(payload_bytes).unwrap_or(usize::MAX), 0);
        let mut memcpy = self.memcpy.of(payload_bytes)?;

        let blocks = from.blocks.max(to.blocks);
        let reached = from.reached_bytes() + to.reached_bytes();
        let (source, staging) = (self.from.bytes(), RefCell::new(&mut self.staging));
        let (target, sides) = (RefCell::new(&mut self.to), RefCell::new((&mut from, &mut to)));
        let ours = |resident: bool| {
            let (mut sides, mut target) = (sides.borrow_mut(), target.borrow_mut());
            let (from, to) = &mut *sides;
            let (here, there) = (from.turn(resident), to.turn(resident));
            let (here, there) = (&source[here], &mut target.bytes_mut()[there]);
            let (from_origin, to_origin) = (from.origin, to.origin);
            let moved = transfer(
                &mut from.convertor,
                here,
                from_origin,
                &mut to.convertor,
                there,
                to_origin,
                u64::MAX,
            );
            std::hint::black_box(moved.expect("it has worked once, when it was verified"));
        };
        let mut staged = || {
            let (mut sides, mut target) = (sides.borrow_mut(), target.borrow_mut());
            let (from, to) = &mut *sides;
            let (here, there) = (from.turn(false), to.turn(false));
            let (here, there) = (&source[here], &mut target.bytes_mut()[there]);
            let (from_origin, to_origin) = (from.origin, to.origin);
            let mut staging = staging.borrow_mut();
            let packed = from.convertor.pack(here, from_origin, &mut staging[..]);
            let unpacked = to.convertor.unpack(&staging[..], there, to_origin);
            let both = (packed.expect("the same side"), unpacked.expect("the same side"));
            std::hint::black_box(both);
        };
        let (seconds, samples) =
            (self.common.seconds(), |error| Failure::samples(&*case.name)(error));
        let [rotating, through, reference] =
            race(seconds, [&mut || ours(false), &mut staged, &mut || memcpy.copy(false)]).map_err(samples)?;
        let resident = alone(seconds / 4.0, || ours(true)).map_err(samples)?;
        let row = Row::new(&*case.name, "transfer", "host", "none", payload_bytes, rotating)
            .against("memcpy", reference)
            .against(STAGED, through)
            .blocks(blocks)
            .resident_gbps(resident.gbps(payload_bytes))
            .verified(true)
            .with("rotation_bytes", reached)
            .with("verified_by", judge);
        Ok(row)
    }

    /// Does it once and compares every byte, gaps included.
    fn verify(
        &mut self,
        case: &Case,
        from: &mut Rotating,
        to: &mut Rotating,
    ) -> Result<&'static str, Failure> {
        let (sent, received) = (Pieces::of(&case.send)?, Pieces::of(&case.recv)?);
        let (here, there) =
            (&self.from.bytes()[from.first()], &mut self.to.bytes_mut()[to.first()]);
        let mut expected = there.to_vec();
        received.scatter(&sent.gather(here, from.origin), &mut expected, to.origin);
        from.convertor.seek(0)?;
        to.convertor.seek(0)?;
        let (from_origin, to_origin) = (from.origin, to.origin);
        let (from, to) = (&mut from.convertor, &mut to.convertor);
        transfer(from, here, from_origin, to, there, to_origin, u64::MAX)?;
        let judged = same(there, &expected);
        judged.map_err(|wrong| Failure::Wrong { case: case.name.clone(), op: "transfer", wrong })?;
        let both = [sent.judge(), received.judge()];
        Ok(both.into_iter().find(|judge| *judge == "runs").unwrap_or("oracle"))
    }
}
