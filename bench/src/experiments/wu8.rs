//! `wu8`: Figure 8 of Wu et al. 2016: our vector kernel against `cudaMemcpy2D`, 1000 and 8000 blocks, over
//! the block's length: multiples of 64 bytes, and others. Within the device (`d2d`), through it to the
//! host (`d2d2h`), and straight to the host (`d2h`). Times are of whole calls.

use gapless_kernels::Direction;
use gapless_report::{Axis, PlotError, Point, Report, Row, lines_by};

use crate::baselines::memcpy_2d::Rows;
use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, NoOptions, gathered, gpu};
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::session::{Session, launches, race_calls};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::Operation;

/// The experiment.
pub struct Wu8;

const BLOCKS: [u64; 2] = [1000, 8000];
/// Multiples of 64, and 8 bytes more.
const LENGTHS: [u64; 8] = [64, 192, 512, 1024, 2048, 4096, 8192, 16384];
const QUICK_LENGTHS: [u64; 2] = [64, 512];

/// From the device to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Device,
    ThroughDevice,
    Host,
}

impl Target {
    const ALL: [Target; 3] = [Target::Device, Target::ThroughDevice, Target::Host];

    fn name(self) -> &'static str {
        match self {
            Target::Device => "d2d",
            Target::ThroughDevice => "d2d2h",
            Target::Host => "d2h",
        }
    }
}

impl Experiment for Wu8 {
    type Options = NoOptions;

    const NAME: &'static str = "wu8";
    const ABOUT: &'static str = "vector kernel against cudaMemcpy2D, by block length";

    fn run(_: &NoOptions, common: &Common) -> Result<Findings, Failure> {
        let lab = Lab::open(common.quick)?;
        let mut session = Session::new(&lab, common)?;
        let lengths = if common.quick { &QUICK_LENGTHS[..] } else { &LENGTHS[..] };
        let lengths: Vec<u64> = lengths.iter().flat_map(|&len| [len, len + 8]).collect();
        let longest = lengths[lengths.len() - 1];
        let host = lab.pinned_memory(BLOCKS[1] * longest + 4096)?;
        let progress = common.progress(BLOCKS.len() * lengths.len());
        for count in BLOCKS {
            for &len in &lengths {
                progress.set_message(format!("{count} × {len}"));
                for target in Target::ALL {
                    let case = format!("{count} blocks len={len}");
                    session.attempt(&case, target.name(), |session| {
                        let subject = subject::rows(count, len)?;
                        one(session, &subject, target, &host).map(|row| vec![row])
                    });
                }
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = "whole calls; blocks at twice their length. Wu et al.: as fast as cudaMemcpy2D \
                     within the GPU, and far faster to the\nhost where a block is no multiple of 64 \
                     bytes\n";
        Ok(session.findings(notes.to_owned()))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let picture = |count: u64| {
            let placed = report.rows.iter().filter_map(|row| {
                let (blocks, len) = row.case.split_once(" blocks len=")?;
                let at = len.parse().ok().filter(|_| blocks.parse() == Ok(count))?;
                let line = |kind: &str, gbps| {
                    (format!("{kind} {}", row.op), Point { payload_bytes: at, gbps, spread: None })
                };
                let other = row.ratio_to("cudaMemcpy2D").map(|it| line("mcp2d", row.gbps / it));
                Some([Some(line("kernel", row.gbps)), other])
            });
            let title = format!("{count} blocks ({})", gpu(report));
            (format!("-{count}"), title, gathered(placed.flatten().flatten()))
        };
        Drawing::some(BLOCKS.map(picture), |title, series| lines_by(title, Axis::Bytes("block"), series))
    }

    fn summary(report: &Report) -> String {
        crate::table::brief(report)
    }
}

fn one(
    session: &mut Session<'_>,
    subject: &Subject,
    target: Target,
    host: &Spot,
) -> Result<Row, Failure> {
    let lab = session.lab;
    let engine = lab.engine();
    let rows = Rows::of(subject).ok_or_else(|| Failure::Option {
        option: "wu8",
        why: format!("{} is no vector", subject.name),
    })?;
    let host = host.sub(0, subject.payload)?;
    let bring = |packed: &Spot| {
        lab.copy(lab.stream(), &host, packed)?;
        lab.settle()
    };
    let ours = |laid: &Laid, packed: &Spot| match target {
        Target::Device => lab.pack(engine, laid, packed),
        Target::Host => lab.pack(engine, laid, &host),
        Target::ThroughDevice => {
            lab.pack(engine, laid, packed)?;
            bring(packed)
        }
    };
    let theirs = |laid: &Laid, packed: &Spot| {
        let to = if target == Target::Host { &host } else { packed };
        rows.go(lab, Direction::Pack, subject, laid, to)?;
        match target {
            Target::ThroughDevice => bring(packed),
            _ => lab.settle(),
        }
    };
    let staging = lab.arenas().packed.sub(0, subject.payload)?;
    let seen = (target != Target::Device).then_some(host);
    for go in [&ours as &dyn Fn(&Laid, &Spot) -> Result<(), Failure>, &theirs] {
        session.proof.pack(subject, seen, &mut |laid, spot| {
            go(laid, if target == Target::Device { spot } else { &staging })
        })?;
    }
    let mut mine = session.places(subject)?;
    let mut other = session.places(subject)?.opposite();
    let written = if target == Target::Host { host } else { staging };
    let launched = launches(engine, Direction::Pack, mine.first().0, &written)?;
    let mut calls: Vec<Operation<'_>> = vec![
        Box::new(|| {
            let (laid, packed) = mine.turn();
            ours(laid, packed)
        }),
        Box::new(|| {
            let (laid, packed) = other.turn();
            theirs(laid, packed)
        }),
    ];
    let times = race_calls(session.seconds() / 2.0, &mut calls)?;
    drop(calls);
    let row = session.row(subject, Direction::Pack, times[0], &launched);
    let mut row = row.against("cudaMemcpy2D", times[1]).with("clock", "whole calls");
    target.name().clone_into(&mut row.op);
    Ok(row)
}
