//! `pack`: gathering a layout into contiguous memory and scattering it back, against `memcpy` of the
//! same payload.
//!
//! Ours and `memcpy` take turns, sample by sample, each with memory of its own.

use std::cell::RefCell;

use gapless_cli::pingpong::Pinned;
use gapless_layouts::{Case, Side, default_set};
use gapless_report::{BarGroup, PlotError, Report, Row, bars};

use crate::check::{Pieces, same};
use crate::clock::{alone, race};
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings};
use crate::rotation::{Arena, Memcpy, Rotating, Rotation, contiguous};
use crate::subjects::{Selection, named};
use crate::table::{OVER_MEMCPY, PAYLOAD, RATE, SPREAD, head, line};

/// The experiment.
pub struct Pack;

impl Experiment for Pack {
    type Options = Selection;

    const NAME: &'static str = "pack";
    const ABOUT: &'static str = "pack and unpack on the host, against memcpy of the payload";

    fn run(options: &Selection, common: &Common) -> Result<Findings, Failure> {
        let cases = options.cases(|| usual(common.quick))?;
        let pinned = Pinned::to(0);
        let mut bench = Bench::new(&cases, common)?;
        let progress = common.progress(2 * cases.len());
        let mut rows = Vec::new();
        for case in &cases {
            for op in [Op::Pack, Op::Unpack] {
                progress.set_message(case.name.clone());
                rows.push(bench.measure(case, op)?);
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = notes(&bench.rotation, &pinned);
        Ok(Findings::new(rows, notes))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let rate = |case: &str, op: &str, of: fn(&Row) -> f64| {
            let row = report.rows.iter().find(|row| row.case == case && row.op == op);
            row.map_or(0.0, of)
        };
        let memcpy = |row: &Row| row.ratio.map_or(0.0, |ratio| row.gbps / ratio);
        let cases = report.rows.iter().filter(|row| row.op == Op::Pack.name());
        let groups: Vec<BarGroup> = cases
            .map(|row| BarGroup {
                label: row.case.clone(),
                gbps: vec![
                    rate(&row.case, Op::Pack.name(), |row| row.gbps),
                    rate(&row.case, Op::Unpack.name(), |row| row.gbps),
                    memcpy(row),
                ],
            })
            .collect();
        let title = format!("pack and unpack ({})", report.machine.cpu);
        let pages = bars(&title, &["pack", "unpack", "memcpy"], &groups)?;
        Ok(Drawing::pages("", pages))
    }

    fn summary(report: &Report) -> String {
        let mut text = head(&[
            "layout", "payload", "blocks", "pack GB/s", "spread", "÷ memcpy", "unpack GB/s", "spread", "÷ memcpy",
        ]);
        let large = report.rows.iter().filter(|row| row.payload_bytes >= SHOWN_BYTES_MIN);
        for row in large.filter(|row| row.op == "pack") {
            let mut cells = vec![row.case.clone(), (PAYLOAD.1)(row)];
            cells.push(row.blocks.map_or("-".to_owned(), |blocks| blocks.to_string()));
            let unpack = report.rows.iter().find(|other| other.case == row.case && other.op == "unpack");
            for row in [Some(row), unpack].into_iter().flatten() {
                cells.extend([RATE, SPREAD, OVER_MEMCPY].map(|column| (column.1)(row)));
            }
            text += &line(&cells);
        }
        text + "\nSmaller layouts are in the report.\n"
    }
}

/// Payloads below this are in the reports only.
const SHOWN_BYTES_MIN: u64 = 1 << 20;

/// The catalogue's default set, and what peers are known by: 8 and 64 MiB of V, T, transpose, index
/// lists and records.
fn usual(quick: bool) -> Result<Vec<Case>, Failure> {
    if quick {
        let small = [("v", 24), ("t", 24), ("x", 24), ("face-x", 12), ("list3", 64), ("struct", 9)];
        let all = small.into_iter().map(|(name, n)| named(name, Some(n)));
        return Ok(all.collect::<Result<Vec<_>, _>>()?.concat());
    }
    let mut all = default_set();
    for bytes in [8_u64 << 20, 64 << 20] {
        let doubles = bytes / 8;
        for (name, n) in [
            ("v", doubles.isqrt()),
            ("t", (2 * doubles).isqrt()),
            ("x", doubles.isqrt()),
            ("list1", doubles),
            ("list3", doubles / 3),
            ("list3-shuffled", doubles / 3),
            ("struct", bytes / 28),
            ("list-varied", bytes / 260),
            ("darray", if bytes < 16 << 20 { 1024 } else { 3072 }),
        ] {
            for case in named(name, Some(n))? {
                if !all.iter().any(|known| known.name == case.name) {
                    all.push(case);
                }
            }
        }
    }
    Ok(all)
}

/// Below the table: how it came to be.
pub(super) fn notes(rotation: &Rotation, pinned: &Pinned) -> String {
    let Rotation { cache_bytes, assumed, wanted_bytes } = rotation;
    let [cache, wanted] = [cache_bytes, wanted_bytes].map(|bytes| gapless_report::Bytes(*bytes));
    let guess = if *assumed { " (assumed: the kernel does not tell)" } else { "" };
    let pinned = match pinned.processor() {
        Some(processor) => format!("processor {processor}"),
        None => "no processor in particular".to_owned(),
    };
    format!(
        "time: median of samples; buffers rotate in shuffled order until each of the two sides has \
         touched\n{wanted} (last-level cache: {cache}{guess}), or as much as {} of memory hold; \
         resident: GB/s on the\nsame buffers every time; ÷ memcpy: speed relative to memcpy of the \
         same payload, rotating alike and measured in\nturn; on {pinned}.\n",
        gapless_report::Bytes(crate::rotation::ARENA_BYTES_MAX),
    )
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Pack,
    Unpack,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Pack => "pack",
            Op::Unpack => "unpack",
        }
    }
}

/// The memory that all cases share.
struct Bench<'a> {
    common: &'a Common,
    rotation: Rotation,
    /// Where layouts lie.
    user: Arena,
    /// Where packed bytes lie.
    wire: Arena,
    memcpy: Memcpy,
}

impl<'a> Bench<'a> {
    fn new(cases: &[Case], common: &'a Common) -> Result<Bench<'a>, Failure> {
        let rotation = common.rotation();
        let sides = || {
            cases.iter().flat_map(|case| {
                [(case.name.as_str(), &case.send), (case.name.as_str(), &case.recv)]
            })
        };
        let user = Arena::new(rotation.arena_bytes(sides())?, common.seed);
        let payloads: Vec<Side> =
            cases.iter().map(|case| contiguous(case.payload_bytes)).collect();
        let payloads = payloads.iter().map(|side| ("the payload", side));
        let wire_bytes = rotation.arena_bytes(payloads)?;
        let wire = Arena::new(wire_bytes, !common.seed);
        let memcpy = Memcpy::new(cases.iter().map(|case| case.payload_bytes), rotation, common.seed)?;
        Ok(Bench { common, rotation, user, wire, memcpy })
    }

    fn measure(&mut self, case: &Case, op: Op) -> Result<Row, Failure> {
        let side = if op == Op::Pack { &case.send } else { &case.recv };
        let payload = contiguous(case.payload_bytes);
        let (seed, rotation) = (self.common.seed, self.rotation);
        let mut laid = Rotating::new(side, &self.user, &rotation, seed ^ 1)?;
        let mut packed = Rotating::new(&payload, &self.wire, &rotation, seed ^ 2)?;
        let judge = self.verify(case, side, op, &mut laid, &packed)?;
        let blocks = laid.blocks;

        let mut memcpy = self.memcpy.of(case.payload_bytes)?;
        let seconds = self.common.seconds();
        let runs = Pieces::of(side)?.runs();
        let memory = RefCell::new((&mut self.user, &mut self.wire, &mut laid, &mut packed));
        // What a careful program would do by hand.
        let plainly = || {
            let (user, wire, laid, packed) = &mut *memory.borrow_mut();
            let (place, slot, origin) = (laid.turn(false), packed.turn(false), laid.origin);
            let mut next = slot.start;
            for &(displacement, len) in &runs {
                let at = place.start.wrapping_add(origin).wrapping_add_signed(displacement);
                match op {
                    Op::Pack => wire.bytes_mut()[next..next + len]
                        .copy_from_slice(&user.bytes()[at..at + len]),
                    Op::Unpack => user.bytes_mut()[at..at + len]
                        .copy_from_slice(&wire.bytes()[next..next + len]),
                }
                next += len;
            }
        };
        let ours = |resident: bool| {
            let (user, wire, laid, packed) = &mut *memory.borrow_mut();
            let (place, slot) = (laid.turn(resident), packed.turn(resident));
            let origin = laid.origin;
            let moved = match op {
                Op::Pack => {
                    let to = &mut wire.bytes_mut()[slot];
                    laid.convertor.pack(&user.bytes()[place], origin, to)
                }
                Op::Unpack => {
                    let to = &mut user.bytes_mut()[place];
                    laid.convertor.unpack(&wire.bytes()[slot], to, origin)
                }
            };
            std::hint::black_box(moved.expect("it has worked once, when it was verified"));
        };
        let samples = |error| Failure::samples(&*case.name)(error);
        let [rotating, reference, by_hand] =
            race(seconds, [&mut || ours(false), &mut || memcpy.copy(false), &mut || plainly()])
                .map_err(samples)?;
        let resident = alone(seconds / 4.0, || ours(true)).map_err(samples)?;
        let resident_memcpy = alone(seconds / 4.0, || memcpy.copy(true)).map_err(samples)?;
        let (_, _, laid, packed) = memory.into_inner();
        let reached = laid.reached_bytes() + packed.reached_bytes();
        let row = Row::new(&*case.name, op.name(), "host", "none", case.payload_bytes, rotating)
            .against("memcpy", reference)
            .against("plain loop", by_hand)
            .blocks(blocks)
            .resident_gbps(resident.gbps(case.payload_bytes))
            .verified(true)
            .with("resident_memcpy_gbps", resident_memcpy.gbps(case.payload_bytes))
            .with("rotation_bytes", reached)
            .with("verified_by", judge);
        Ok(row)
    }

    /// Does the operation once and compares every byte, gaps included.
    fn verify(
        &mut self,
        case: &Case,
        side: &Side,
        op: Op,
        laid: &mut Rotating,
        packed: &Rotating,
    ) -> Result<&'static str, Failure> {
        let pieces = Pieces::of(side)?;
        let (place, slot, origin) = (laid.first(), packed.first(), laid.origin);
        let wrong = |wrong| Failure::Wrong { case: case.name.clone(), op: op.name(), wrong };
        laid.convertor.seek(0)?;
        match op {
            Op::Pack => {
                let from = &self.user.bytes()[place];
                let to = &mut self.wire.bytes_mut()[slot];
                to.fill(0);
                laid.convertor.pack(from, origin, to)?;
                same(to, &pieces.gather(from, origin)).map_err(wrong)?;
            }
            Op::Unpack => {
                let from = &self.wire.bytes()[slot];
                let to = &mut self.user.bytes_mut()[place];
                let mut expected = to.to_vec();
                pieces.scatter(from, &mut expected, origin);
                laid.convertor.unpack(from, to, origin)?;
                same(to, &expected).map_err(wrong)?;
            }
        }
        Ok(pieces.judge())
    }
}
