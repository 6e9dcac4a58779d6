//! `wu7`: Figure 7 of Wu et al. 2016: packing and unpacking V and T over the matrix's size, where plans are
//! not kept and not pipelined, pipelined, or cached; within the device (`d2d`), through it to the host and
//! back (`d2d2h`), and straight to host memory and back (`0cpy`). Times are of whole calls, pack and unpack
//! together.
//!
//! Our V and T have closed forms: nothing is prepared, and one line says all. So that there is something
//! to prepare, both are also measured with one column perturbed: those go by a plan, as all of Wu's do.

use std::time::Instant;

use gapless_dtype_cuda::GpuEngine;
use gapless_kernels::Direction;
use gapless_report::{PlotError, Report, Row, curves};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, NoOptions, gathered, gpu};
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::session::{Session, launches};
use crate::gpu::subject::{self, Subject};
use crate::gpu::timing::timed_calls;

/// The experiment.
pub struct Wu7;

const EDGES: [u64; 6] = [512, 1024, 2048, 3072, 4096, 6144];
const QUICK_EDGES: [u64; 2] = [64, 128];

/// Where packed bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Device,
    ThroughHost,
    ZeroCopy,
}

impl Route {
    const ALL: [Route; 3] = [Route::Device, Route::ThroughHost, Route::ZeroCopy];

    fn name(self) -> &'static str {
        match self {
            Route::Device => "d2d",
            Route::ThroughHost => "d2d2h",
            Route::ZeroCopy => "0cpy",
        }
    }
}

/// What happens to plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plans {
    /// There is none: a closed form.
    Closed,
    /// Made for each call, all of it before the kernel.
    Neither,
    /// Made for each call, overlapping the kernel.
    Pipelined,
    /// Kept.
    Cached,
}

impl Plans {
    fn name(self) -> &'static str {
        match self {
            Plans::Closed => "closed form",
            Plans::Neither => "not cached, not pipelined",
            Plans::Pipelined => "pipelined",
            Plans::Cached => "cached",
        }
    }
}

/// A layout: its name, how it is made, and how its plans are treated by which engine.
type Layout<'a> = (&'a str, fn(u64) -> Result<Subject, Failure>, &'a [(Plans, &'a GpuEngine)]);

impl Experiment for Wu7 {
    type Options = NoOptions;

    const NAME: &'static str = "wu7";
    const ABOUT: &'static str = "pack and unpack of V and T by size: plans made, pipelined, cached";

    fn run(_: &NoOptions, common: &Common) -> Result<Findings, Failure> {
        let lab = Lab::open(common.quick)?;
        let mut session = Session::new(&lab, common)?;
        let edges = if common.quick { &QUICK_EDGES[..] } else { &EDGES[..] };
        let host = lab.pinned_memory(8 * edges[edges.len() - 1].pow(2) + 4096)?;
        let pipelined = lab.engine_with(|_| ())?;
        let plain = lab.engine_with(|config| config.pipelined = false)?;
        let general = [
            (Plans::Neither, &plain),
            (Plans::Pipelined, &pipelined),
            (Plans::Cached, &pipelined),
        ];
        let closed = [(Plans::Closed, &pipelined)];
        let layouts: [Layout<'_>; 4] = [
            ("V", subject::v, &closed),
            ("T", subject::t, &closed),
            ("V perturbed", subject::v_perturbed, &general),
            ("T perturbed", subject::t_perturbed, &general),
        ];
        let progress = common.progress(layouts.len() * edges.len());
        for (name, make, plans) in layouts {
            for &n in edges {
                progress.set_message(format!("{name} n={n}"));
                for &(plans, engine) in plans {
                    for route in Route::ALL {
                        let case = format!("{name} n={n}");
                        session.attempt(&case, route.name(), |session| {
                            one(session, &make(n)?, plans, engine, route, &host).map(|row| vec![row])
                        });
                    }
                }
                progress.inc(1);
            }
        }
        progress.finish_and_clear();
        let notes = "whole calls, pack and unpack together; payload is counted once. Wu et al.: \
                     pipelining nearly halves what preparing costs,\ncaching removes it. V and T have \
                     closed forms here; perturbed, they go by a plan\n";
        Ok(session.findings(notes.to_owned()))
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let pictures = ["V", "T"].into_iter().flat_map(|it| Route::ALL.map(|route| (it, route)));
        let picture = |(layout, route): (&str, Route)| {
            let all = report.rows.iter().filter(|row| row.op == route.name()).filter_map(|row| {
                let (name, n) = row.case.split_once(" n=")?;
                let n = n.parse().ok().filter(|_| name.starts_with(layout))?;
                Some((row.protocol.clone(), (n, row.seconds)))
            });
            let title = format!("{layout}: pack and unpack, {} ({})", route.name(), gpu(report));
            (format!("-{}-{}", layout.to_lowercase(), route.name()), title, gathered(all))
        };
        Drawing::some(pictures.map(picture), |title, all| curves(title, "N", all))
    }

    fn summary(report: &Report) -> String {
        crate::table::brief(report)
    }
}

fn one(
    session: &mut Session<'_>,
    subject: &Subject,
    plans: Plans,
    engine: &GpuEngine,
    route: Route,
    host: &Spot,
) -> Result<Row, Failure> {
    let lab = session.lab;
    let host = host.sub(0, subject.payload)?;
    let cold = matches!(plans, Plans::Neither | Plans::Pipelined);
    let pack = |laid: &Laid, packed: &Spot| match route {
        Route::Device => lab.pack(engine, laid, packed),
        Route::ZeroCopy => lab.pack(engine, laid, &host),
        Route::ThroughHost => {
            lab.pack(engine, laid, packed)?;
            lab.copy(lab.stream(), &host, packed)?;
            lab.settle()
        }
    };
    let unpack = |packed: &Spot, laid: &Laid| match route {
        Route::Device => lab.unpack(engine, packed, laid),
        Route::ZeroCopy => lab.unpack(engine, &host, laid),
        Route::ThroughHost => {
            lab.copy(lab.stream(), packed, &host)?;
            lab.settle()?;
            lab.unpack(engine, packed, laid)
        }
    };
    // What is looked at lies in host memory wherever the bytes go there.
    let seen = (route != Route::Device).then_some(host);
    let staging = lab.arenas().packed.sub(0, subject.payload)?;
    engine.forget(&subject.layout);
    session.proof.pack(subject, seen, &mut |laid, spot| {
        pack(laid, if route == Route::Device { spot } else { &staging })
    })?;
    session.proof.unpack(subject, seen, &mut |spot, laid| {
        unpack(if route == Route::Device { spot } else { &staging }, laid)
    })?;
    let mut places = session.places(subject)?;
    let time = timed_calls(session.seconds() / 2.0, || {
        let (laid, packed) = places.turn();
        let mut spent = 0.0;
        for direction in [Direction::Pack, Direction::Unpack] {
            if cold {
                engine.forget(&subject.layout);
            }
            let begin = Instant::now();
            match direction {
                Direction::Pack => pack(laid, packed)?,
                Direction::Unpack => unpack(packed, laid)?,
            }
            spent += begin.elapsed().as_secs_f64();
        }
        Ok(spent)
    })?;
    let (laid, packed) = places.first();
    let target = if route == Route::ZeroCopy { &host } else { packed };
    let launched = launches(engine, Direction::Pack, laid, target)?;
    let row = session.row(subject, Direction::Pack, time, &launched);
    let kernel = row.protocol.clone();
    let mut row = row.with("kernel", kernel).with("clock", "whole calls");
    route.name().clone_into(&mut row.op);
    plans.name().clone_into(&mut row.protocol);
    Ok(row)
}
