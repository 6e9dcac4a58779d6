//! What a layout's first use is made of: how long writing its plan takes by so many threads (W), uploading it
//! (U) and the kernel (K), one after the other and together.
//!
//! `cargo run --release -p gapless-dtype-cuda --example first_use [blocks in millions …]`
//!
//! Without a CUDA device, W alone is measured. Medians of a few calls, in µs, whole calls by the CPU's clock:
//!
//! - `W`: the plan written and thrown away; `ns` for each block.
//! - `U`: one copy of as many bytes from page-locked memory. `K`: the call with its plan in place.
//! - `serial`: a first use whose stages come one after the other (`Config::pipelined` is false): what
//!   preparing first and launching after costs. `prepare`: [`GpuEngine::prepare`], written and uploaded at once.
//! - `first`: a first use as it is. Then its parts of `serial`, and of the longer of `prepare` and `K`; and the
//!   part that the longest of W, U and K is of all three: no pipeline does better.

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_dtype_cuda::{Config, rehearse};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Calls of each measurement.
const TIMES: usize = 9;

/// Numbers that look random; the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Blocks of three doubles, or of one to three, with gaps about as long.
fn list(equal: bool, blocks: u64) -> Outcome<Layout> {
    let mut random = Random(blocks);
    let (mut lengths, mut places, mut at) = (Vec::new(), Vec::new(), 0u64);
    for number in 0..blocks {
        let len = if equal { 3 } else { 1 + number % 3 };
        lengths.push(len);
        places.push(at.cast_signed());
        at += len + 1 + random.below(3);
    }
    let double = Primitive::Double.into();
    let datatype = if equal {
        Datatype::indexed_block(3, &places, &double)
    } else {
        Datatype::indexed(&lengths, &places, &double)
    };
    Ok(datatype?.commit()?)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

/// A number from the environment.
fn told(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

fn config(writers: usize) -> Config {
    let mut config = Config { writers, ..Config::default() };
    // To find out which suit.
    if let Some(bytes) = told("PIECE_BYTES") {
        config.piece_bytes = bytes;
    }
    config
}

fn writing() -> Vec<usize> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2, 4, 8, 12].into_iter().filter(|&n| n == 1 || n <= processors).collect()
}

#[cfg(feature = "cuda")]
mod device {
    use super::{Config, Outcome, TIMES, config, median};
    use gapless_dtype::Layout;
    use gapless_dtype_cuda::GpuEngine;
    use gapless_engine::{Engine, Typed};
    use gapless_mem::{Device, Region};
    use gapless_mem_cuda::{CudaDevice, CudaDriver};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A device, with room for a layout and its stream.
    pub(super) struct Gpu {
        device: Arc<CudaDevice>,
        engines: Vec<(usize, [GpuEngine; 2])>,
    }

    /// µs.
    pub(super) struct Times {
        pub(super) upload: f64,
        pub(super) kernel: f64,
        pub(super) serial: f64,
        pub(super) prepare: f64,
        pub(super) first: f64,
    }

    fn timed(mut call: impl FnMut() -> Outcome<Duration>) -> Outcome<f64> {
        // The first two find memory and threads as later ones do not.
        let times: Vec<Duration> = (0..TIMES + 2).map(|_| call()).collect::<Outcome<_>>()?;
        Ok(median(times[2..].to_vec()))
    }

    impl Gpu {
        pub(super) fn open(writers: &[usize]) -> Outcome<Gpu> {
            let device = Arc::new(CudaDriver::load()?.device(0)?);
            let engine = |config| GpuEngine::cuda_with(Arc::clone(&device), config);
            let engines = writers.iter().map(|&writers| {
                let serial = Config { pipelined: false, ..config(writers) };
                Ok((writers, [engine(config(writers))?, engine(serial)?]))
            });
            let engines = engines.collect::<Outcome<_>>()?;
            Ok(Gpu { device, engines })
        }

        pub(super) fn measure(
            &self,
            layout: &Layout,
            writers: usize,
            bytes: u64,
        ) -> Outcome<Times> {
            let found = self.engines.iter().find(|(number, _)| *number == writers);
            let (_, [engine, plain]) = found.ok_or("no such engine")?;
            let span = layout.true_ub().cast_unsigned();
            let (from, to) = (self.device.allocate(span)?, self.device.allocate(layout.size())?);
            let times = self.times([engine, plain], layout, from, to, bytes);
            // SAFETY: all work on them has been waited for.
            unsafe { self.device.free(from) }?;
            // SAFETY: as above.
            unsafe { self.device.free(to) }?;
            times
        }

        fn times(
            &self,
            [engine, plain]: [&GpuEngine; 2],
            layout: &Layout,
            from: Region,
            to: Region,
            bytes: u64,
        ) -> Outcome<Times> {
            let typed = Typed::new(from, 0, layout, 1)?;
            let call = |engine: &GpuEngine| -> Outcome<Duration> {
                let begin = Instant::now();
                // SAFETY: both live until the work has ended, which is waited for; nothing else uses them.
                unsafe { engine.pack(&typed, 0..layout.size(), to, &[]) }?.wait()?;
                Ok(begin.elapsed())
            };
            let first = |engine: &GpuEngine| {
                engine.forget(layout);
                call(engine)
            };
            let (serial, first) = (timed(|| first(plain))?, timed(|| first(engine))?);
            let prepare = timed(|| {
                engine.forget(layout);
                let begin = Instant::now();
                engine.prepare(layout)?.wait()?;
                Ok(begin.elapsed())
            })?;
            let kernel = timed(|| call(engine))?;
            let staged = self.device.pinned(bytes)?;
            let plan = self.device.allocate(bytes)?;
            let upload = timed(|| {
                let begin = Instant::now();
                // SAFETY: both live until the copy has ended, which is waited for.
                unsafe { self.device.copy(plan, staged.region(), &[]) }?.wait()?;
                Ok(begin.elapsed())
            });
            // SAFETY: no copy uses it any more.
            unsafe { self.device.free(plan) }?;
            Ok(Times { upload: upload?, kernel, serial, prepare, first })
        }
    }
}

#[cfg(not(feature = "cuda"))]
mod device {
    use super::Outcome;
    use gapless_dtype::Layout;

    /// There is none.
    pub(super) enum Gpu {}

    /// µs.
    pub(super) struct Times {
        pub(super) upload: f64,
        pub(super) kernel: f64,
        pub(super) serial: f64,
        pub(super) prepare: f64,
        pub(super) first: f64,
    }

    impl Gpu {
        pub(super) fn open(_: &[usize]) -> Outcome<Gpu> {
            Err("built without CUDA".into())
        }

        pub(super) fn measure(&self, _: &Layout, _: usize, _: u64) -> Outcome<Times> {
            match *self {}
        }
    }
}

fn run() -> Outcome<()> {
    let millions =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<u64>, _>>()?;
    let millions = if millions.is_empty() { vec![1, 4] } else { millions };
    let writers = writing();
    let gpu = device::Gpu::open(&writers);
    if let Err(why) = &gpu {
        println!("W alone: {why}");
    }
    println!(
        "{:>6} {:>4} {:>3} {:>7} {:>6} {:>6} {:>7} {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}",
        "blocks",
        "lens",
        "thr",
        "plan",
        "pieces",
        "W",
        "ns",
        "U",
        "K",
        "serial",
        "prepare",
        "first",
        "÷serial",
        "÷longer",
        "ideal"
    );
    for million in millions {
        for equal in [true, false] {
            let blocks = million << 20;
            let layout = list(equal, blocks)?;
            for &writers in &writers {
                let written = rehearse(&layout, &config(writers), TIMES + 2);
                let w = median(written.times[2..].to_vec());
                #[expect(clippy::cast_precision_loss, reason = "for printing")]
                let ns = w * 1e3 / blocks as f64;
                print!(
                    "{:>5}M {:>4} {writers:>3} {:>6}K {:>6} {w:>6.0} {ns:>7.3}",
                    million,
                    if equal { "3" } else { "1-3" },
                    written.plan_bytes >> 10,
                    written.pieces,
                );
                let Ok(gpu) = &gpu else {
                    println!();
                    continue;
                };
                let t = gpu.measure(&layout, writers, written.plan_bytes)?;
                let longer = t.prepare.max(t.kernel);
                let ideal = w.max(t.upload).max(t.kernel) / (w + t.upload + t.kernel);
                println!(
                    " {:>6.0} {:>6.0} {:>7.0} {:>7.0} {:>7.0} {:>7.2} {:>7.2} {ideal:>6.2}",
                    t.upload,
                    t.kernel,
                    t.serial,
                    t.prepare,
                    t.first,
                    t.first / t.serial,
                    t.first / longer
                );
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("first_use: {why}");
            ExitCode::FAILURE
        }
    }
}
