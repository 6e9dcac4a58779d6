//! `acc2`: what it costs to learn in which memory a buffer lies (Aji et al. 2012, MPI-ACC, Figure 2), host to host.
//!
//! Two processes exchange messages in host memory. Each makes a view of its buffer for every message: of a slice
//! (`plain`), of a region in a named space (`explicit`), of a pointer whose datatype names the space (`attribute`), of
//! a pointer for which the driver is asked (`detection`), and with a question to the driver beside that nothing
//! remembers (`query`). Where there is a GPU its driver is opened first: otherwise detection asks nobody.
#![allow(unsafe_code, reason = "views of pointers")]

use std::hint::black_box;
use std::time::Instant;

use gapless::{
    Communicator, Datatype, Error, Primitive, Region, Space, View, ViewMut, World, in_space,
};
use gapless_dtype::Layout;
use gapless_mem_cuda::{CudaDevice, CudaDriver};
use gapless_report::{PlotError, Report, Row, Samples, Series, lines};

use crate::error::Failure;
use crate::experiment::{Common, Drawing, Experiment, Findings, NoOptions, gathered, rate_at};
use crate::processes::{Processes, RankOf};
use crate::table::{CASE, Column, OP, PAYLOAD, SPREAD, TIME, called, ratio, table};

/// The experiment.
pub struct Acc2;

/// Ways to learn it.
const WAYS: [&str; 5] = ["plain", "explicit", "attribute", "detection", "query"];
/// Turns in which each way is timed once.
const ROUNDS: usize = 31;
/// Rows of views alone, without a message, have this case.
const VIEWS: &str = "a view alone";

/// One end.
struct End<'w> {
    comm: &'w Communicator,
    peer: u32,
    /// Bytes; bytes whose datatype names the host's memory.
    layouts: [Layout; 2],
    driver: Option<CudaDevice>,
}

impl End<'_> {
    fn ask(&self, pointer: *const u8) {
        if let Some(driver) = &self.driver {
            black_box(driver.pointer(pointer.addr() as u64));
        }
    }

    fn view<'b>(&self, way: &str, bytes: &'b [u8]) -> Result<View<'b>, Error> {
        let (pointer, count) = (bytes.as_ptr().cast(), bytes.len() as u64);
        let [plain, named] = &self.layouts;
        match way {
            // SAFETY: `bytes` is borrowed for as long as the view lives, and `count` long.
            "explicit" => unsafe { View::of_region(Region::of(bytes), 0, plain, count) },
            // SAFETY: as above.
            "attribute" => unsafe { View::of_pointer(pointer, named, count) },
            // SAFETY: as above.
            "detection" => unsafe { View::detect(pointer, plain, count) },
            _ => Ok(View::of(bytes)),
        }
    }

    fn view_mut<'b>(&self, way: &str, bytes: &'b mut [u8]) -> Result<ViewMut<'b>, Error> {
        let (pointer, count) = (bytes.as_mut_ptr().cast(), bytes.len() as u64);
        let [plain, named] = &self.layouts;
        match way {
            // SAFETY: `bytes` is borrowed exclusively for as long as the view lives, and `count` long.
            "explicit" => unsafe { ViewMut::of_region(Region::of_mut(bytes), 0, plain, count) },
            // SAFETY: as above.
            "attribute" => unsafe { ViewMut::of_pointer(pointer, named, count) },
            // SAFETY: as above.
            "detection" => unsafe { ViewMut::detect(pointer, plain, count) },
            _ => Ok(ViewMut::of(bytes)),
        }
    }

    fn send(&self, way: &str, bytes: &[u8]) -> Result<(), Error> {
        if way == "query" {
            self.ask(bytes.as_ptr());
        }
        self.comm.send(&self.view(way, bytes)?, self.peer, 0).map(drop)
    }

    fn receive(&self, way: &str, bytes: &mut [u8]) -> Result<(), Error> {
        if way == "query" {
            self.ask(bytes.as_ptr());
        }
        self.comm.recv(&mut self.view_mut(way, bytes)?, self.peer, 0).map(drop)
    }

    /// Seconds of half a round trip.
    fn trips(&self, way: &str, out: &[u8], into: &mut [u8], times: u32) -> Result<f64, Error> {
        self.comm.barrier()?;
        let began = Instant::now();
        for _ in 0..times {
            if self.peer == 1 {
                self.send(way, out)?;
                self.receive(way, into)?;
            } else {
                self.receive(way, into)?;
                self.send(way, out)?;
            }
        }
        Ok(began.elapsed().as_secs_f64() / f64::from(2 * times))
    }

    /// Seconds of a view.
    fn views(&self, way: &str, bytes: &[u8], times: u32) -> Result<f64, Error> {
        let began = Instant::now();
        for _ in 0..times {
            match way {
                "query" => self.ask(black_box(bytes).as_ptr()),
                _ => drop(black_box(self.view(way, black_box(bytes))?)),
            }
        }
        Ok(began.elapsed().as_secs_f64() / f64::from(times))
    }
}

impl Experiment for Acc2 {
    type Options = NoOptions;

    const NAME: &'static str = "acc2";
    const ABOUT: &'static str = "messages by how the kind of their memory is learnt (MPI-ACC)";

    fn run(_: &NoOptions, _: &Common) -> Result<Findings, Failure> {
        let rows: Vec<Row> = Processes::new(Self::NAME, 2).found(Self::NAME, ())?;
        let asks = rows.iter().any(|row| row.op == "query");
        let notes = format!(
            "time: median of half a round trip in host memory, a view made for each send and receive; {VIEWS}: without a \
             message;\n÷ plain: speed relative to a view of a slice; query: the driver is asked beside, and nothing \
             remembered; {}.\nThe paper's figure: attribute at most 3 % longer, detection 23 to 235 %.\n",
            if asks { "a GPU's driver is open" } else { "no GPU here: detection asks nobody" },
        );
        Ok(Findings::new(rows, notes))
    }

    fn rank(_: &NoOptions, common: &Common, rank: &RankOf) -> Result<(), Failure> {
        let byte = Datatype::from(Primitive::Byte);
        let layouts = [byte.commit()?, in_space(&byte, Space::Host)?.commit()?];
        let world = World::init()?;
        let driver = CudaDriver::load().ok().and_then(|driver| driver.device(0).ok());
        let end = End { comm: world.comm(), peer: 1 - world.rank(), layouts, driver };
        let ways = if end.driver.is_some() { &WAYS[..] } else { &WAYS[..4] };
        let sizes = (0..12).map(|power| 1usize << (2 * power));
        let sizes: Vec<usize> = sizes.filter(|size| !common.quick || *size <= 1 << 10).collect();
        let rounds = if common.quick { 3 } else { ROUNDS };
        let each = common.seconds() / rounds as f64;
        let mut rows = Vec::new();
        let mut add = |case: &str, bytes: usize, samples: &[Samples]| -> Result<(), Failure> {
            let plain = samples[0].summary().map_err(Failure::samples(case))?;
            for (way, samples) in ways.iter().zip(samples) {
                let time = samples.summary().map_err(Failure::samples(case))?;
                let row = Row::new(case, *way, "host", "messages", bytes as u64, time);
                rows.push(row.against("plain", plain).verified(true));
            }
            Ok(())
        };
        for bytes in sizes {
            let out: Vec<u8> = (0..bytes).map(|at| (at % 251).to_le_bytes()[0]).collect();
            let mut into = vec![0; bytes];
            let first = end.trips(ways[0], &out, &mut into, 4)?;
            let enough = |times: &u32| f64::from(2 * times) * first > each;
            let mut times = [(0..17).map(|power| 1u32 << power).find(enough).unwrap_or(1 << 17)];
            end.comm.bcast(&mut times, 0)?;
            let mut samples = vec![Samples::default(); ways.len()];
            for _ in 0..rounds {
                for (way, samples) in ways.iter().zip(&mut samples) {
                    into.fill(0);
                    samples.push(end.trips(way, &out, &mut into, times[0])?);
                    crate::check::same(&into, &out).map_err(|wrong| Failure::Wrong {
                        case: format!("{bytes} B"),
                        op: "message",
                        wrong,
                    })?;
                }
            }
            add(&format!("{bytes} B"), bytes, &samples)?;
        }
        let bytes = [0u8; 64];
        let mut samples = vec![Samples::default(); ways.len()];
        for _ in 0..rounds {
            for (way, samples) in ways.iter().zip(&mut samples) {
                samples.push(end.views(way, &bytes, if common.quick { 100 } else { 20_000 })?);
            }
        }
        add(VIEWS, bytes.len(), &samples)?;
        rank.finalize(world, &rows)
    }

    fn draw(report: &Report) -> Result<Vec<Drawing>, PlotError> {
        let messages = report.rows.iter().filter(|row| row.case != VIEWS);
        let series: Vec<Series> =
            gathered(messages.map(|row| (row.op.clone(), rate_at(row, row.payload_bytes))));
        let title = format!("messages by how their memory is known ({})", report.machine.cpu);
        Drawing::alone(lines(&title, &series))
    }

    fn summary(report: &Report) -> String {
        const OVER_PLAIN: Column = ("÷ plain", |row| ratio(row, "plain"));
        table(&[CASE, PAYLOAD, called("view", OP), TIME, SPREAD, OVER_PLAIN], &report.rows)
    }
}
