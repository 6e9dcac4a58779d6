//! Times every family of kernels on CUDA device 0, against `cudaMemcpy` of the same payload in the same run.
//!
//! `cargo run --release -p gapless-kernels --example speed [WORDS]`: only rows whose names hold one of the
//! words. `GAPLESS_KERNEL_IMAGE` names an image to try instead of the committed one, and
//! `GAPLESS_THREADS` threads of a block to try. Buffers rotate over at least 256 MiB, so that no cache holds them; times are the device's, launches back to back, the best of five
//! batches. Rows marked `=` were also compared, byte for byte, with what the general kernel packs.

use gapless_kernels::args::Args;
use gapless_kernels::launch::{
    Blocks, Grid, GridDim, Launch, Launches, Move, Place, Planned, Runs, affine, contiguous,
    listed, mapped, strided,
};
use gapless_kernels::plan::Encoder;
use gapless_kernels::{Direction, IMAGE, Width};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, Function, Module, Stream};
use std::collections::HashMap;
use std::error::Error;
use std::ffi::CString;
use std::num::NonZeroU32;

type Outcome<T> = Result<T, Box<dyn Error>>;
type Shaped = Box<dyn Fn(&Move) -> Launches>;

/// Bytes that the sets of buffers of a row have together at least.
const ROTATION: u64 = 256 << 20;
const LAUNCHES: u32 = 20;
const BATCHES: usize = 5;

/// Something to pack and unpack.
struct Row {
    name: String,
    shape: Shaped,
    span: u64,
    payload: u64,
    plan: Vec<u8>,
    /// Whether to time launches of few blocks as well.
    budgets: bool,
    /// The same by the general kernel: its plan and shape.
    check: Option<(Vec<u8>, Shaped)>,
}

struct Bench {
    device: CudaDevice,
    stream: Stream,
    module: Module,
    functions: HashMap<String, Function>,
    arena: Region,
    /// Threads of a block to try instead.
    threads: Option<u32>,
}

/// Gives a launch blocks of another size, if its tiles are equal parts of the stream.
fn retile(launch: &mut Launch, threads: Option<u32>) {
    let (Some(threads), false) = (threads, launch.kernel.few) else { return };
    let span = match &mut launch.args {
        Args::Copy(args) => &mut args.span,
        Args::Strided(args) => &mut args.span,
        Args::Affine(args) => &mut args.span,
        Args::Listed(args) => &mut args.span,
        Args::Mapped(args) => &mut args.span,
        _ => return,
    };
    let items = launch.kernel.family.items(launch.kernel.width);
    span.tiles = span.words.div_ceil(threads * items) + u32::from(span.edges != 0);
    launch.threads = threads;
    launch.blocks = span.tiles;
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let device = CudaDriver::load()?.device(0)?;
    let stream = device.stream()?;
    let other = std::env::var_os("GAPLESS_KERNEL_IMAGE").map(std::fs::read).transpose()?;
    // SAFETY: the image is the one that was built with this program, or one that whoever works on the
    // kernels built in its place.
    let module = unsafe { Module::load(&device, other.as_deref().unwrap_or(IMAGE)) }?;
    let threads = std::env::var("GAPLESS_THREADS").ok().and_then(|number| number.parse().ok());
    let arena = device.allocate(24 << 30)?;
    let mut bench = Bench { device, stream, module, functions: HashMap::new(), arena, threads };
    println!("{}", bench.device.properties().name);
    println!(
        "row | kernel | blocks × threads | memcpy GB/s | pack GB/s, ratio | unpack GB/s, ratio"
    );
    for row in rows() {
        if words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str())) {
            bench.time(&row)?;
        }
    }
    Ok(())
}

impl Bench {
    fn launch(&mut self, launch: &Launch, pointers: [u64; 3]) -> Outcome<()> {
        let name = launch.kernel.to_string();
        if !self.functions.contains_key(&name) {
            let function = self.module.function(&CString::new(name.as_str())?)?;
            self.functions.insert(name.clone(), function);
        }
        let args = match &launch.args {
            Args::Copy(args) => Argument::of(args),
            Args::Strided(args) => Argument::of(args),
            Args::Rows(args) => Argument::of(args),
            Args::Affine(args) => Argument::of(args),
            Args::Listed(args) => Argument::of(args),
            Args::Mapped(args) => Argument::of(args),
            Args::Transposed(args) => Argument::of(args),
            Args::Transfer(args) => Argument::of(&**args),
            Args::Fused(args) => Argument::of(&**args),
        };
        let [typed, packed, plan] = &pointers;
        let all = [Argument::of(typed), Argument::of(packed), Argument::of(plan), args];
        let some = [all[0], all[1], args];
        let arguments = if launch.kernel.family.plans() == 1 { &all[..] } else { &some[..] };
        let grid = gapless_mem_cuda::Grid::line(launch.blocks, launch.threads);
        // SAFETY: pointers and structure are what the kernel takes; the arena holds what it moves.
        unsafe { self.functions[&name].launch(&self.stream, grid, arguments) }?;
        Ok(())
    }

    /// Microseconds of one call, the best batch's mean.
    fn best(&mut self, mut call: impl FnMut(&mut Bench, u32) -> Outcome<()>) -> Outcome<f64> {
        let mut best = f64::INFINITY;
        for batch in 0..=BATCHES {
            let begin = self.stream.mark()?;
            for number in 0..LAUNCHES {
                call(self, number)?;
            }
            let end = self.stream.mark()?;
            self.stream.record()?.wait()?;
            let time = begin.until(&end)?.ok_or("the stream has passed both")?;
            if batch > 0 {
                best = best.min(time * 1000.0 / f64::from(LAUNCHES));
            }
        }
        Ok(best)
    }

    fn time(&mut self, row: &Row) -> Outcome<()> {
        let round = |bytes: u64| bytes.next_multiple_of(4096);
        let (span, payload) = (round(row.span), round(row.payload));
        let sets = ROTATION.div_ceil(span + payload).min(u64::from(LAUNCHES)).max(1);
        let start = self.arena.start();
        let set = |number: u32| start + u64::from(number) % sets * (span + payload);
        let plan_at = start + sets * (span + payload);
        let plan = self.arena.sub(plan_at - start, row.plan.len() as u64)?;
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(plan, Region::of(&row.plan), &[]) }?.wait()?;
        let gigabytes = |micros: f64| row.payload as f64 / micros / 1000.0;
        let piece = |at: u64| Region::new(self.arena.space(), at, 0, row.payload);
        let pieces: Vec<_> =
            (0..LAUNCHES).map(|number| (piece(set(number) + span), piece(set(number)))).collect();
        let copied = self.best(|bench, number| {
            let (to, from) = pieces[number as usize];
            // SAFETY: two disjoint parts of the arena (a payload is no longer than its span).
            unsafe { bench.device.copy_on(&bench.stream, to, from) }?;
            Ok(())
        })?;
        let mut line = format!("{}{}", row.name, if row.check.is_some() { " =" } else { "" });
        let budgets = [None, NonZeroU32::new(8), NonZeroU32::new(64)];
        for budget in &budgets[..if row.budgets { 3 } else { 1 }] {
            let mut told = String::new();
            let mut used = String::new();
            for direction in [Direction::Pack, Direction::Unpack] {
                let what = Move {
                    direction,
                    range: 0..row.payload,
                    typed: Place { address: 0, offset: 0 },
                    packed: Place { address: 0, offset: 0 },
                    budget: *budget,
                };
                let mut launches = (row.shape)(&what);
                launches.iter_mut().for_each(|launch| retile(launch, self.threads));
                let took = self.best(|bench, number| {
                    let pointers = [set(number), set(number) + span, plan_at];
                    launches.iter().try_for_each(|launch| bench.launch(launch, pointers))
                })?;
                let rate = gigabytes(took);
                told += &format!(" | {rate:.0}, {:.3}", copied / took);
                if direction == Direction::Pack {
                    let first = &launches[0];
                    used = format!("{} | {} × {}", first.kernel, first.blocks, first.threads);
                }
            }
            println!("{line} | {used} | {:.0}{told}", gigabytes(copied));
            "  with a budget".clone_into(&mut line);
        }
        self.check(row, start, span, plan_at)
    }

    /// Packs by the row's kernel and by the general one, and compares.
    fn check(&mut self, row: &Row, start: u64, span: u64, plan_at: u64) -> Outcome<()> {
        let Some((plan, shape)) = &row.check else { return Ok(()) };
        let noise: Vec<u8> =
            (0..row.span).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()[0]).collect();
        let typed = Region::new(self.arena.space(), start, 0, row.span);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(typed, Region::of(&noise), &[]) }?.wait()?;
        let mut outcomes = Vec::new();
        for (plan, shape) in [(&row.plan, &row.shape), (plan, shape)] {
            let to = Region::new(self.arena.space(), plan_at, 0, plan.len() as u64);
            // SAFETY: both live until the wait ends.
            unsafe { self.device.copy(to, Region::of(plan), &[]) }?.wait()?;
            let what = Move {
                direction: Direction::Pack,
                range: 0..row.payload,
                typed: Place { address: 0, offset: 0 },
                packed: Place { address: 0, offset: 0 },
                budget: None,
            };
            for launch in &shape(&what) {
                self.launch(launch, [start, start + span, plan_at])?;
            }
            self.stream.record()?.wait()?;
            let mut bytes = vec![0u8; usize::try_from(row.payload)?];
            let packed = Region::new(self.arena.space(), start + span, 0, row.payload);
            let into = Region::of_mut(&mut bytes);
            // SAFETY: both live until the wait ends.
            unsafe { self.device.copy(into, packed, &[]) }?.wait()?;
            outcomes.push(bytes);
        }
        if outcomes[0] != outcomes[1] {
            return Err(format!("{}: the kernels disagree", row.name).into());
        }
        Ok(())
    }
}

fn grid_row(name: String, grid: Grid, check: bool) -> Row {
    let payload = grid.len * grid.dims.iter().map(|dim| dim.count).product::<u64>();
    let span = grid.len
        + grid.dims.iter().map(|dim| (dim.count - 1) * dim.stride.unsigned_abs()).sum::<u64>();
    let blocks = || {
        let mut starts = vec![0i64];
        for dim in &grid.dims {
            let along = |&start: &i64| {
                let stride = dim.stride;
                (0..dim.count.cast_signed()).map(move |i| start + i * stride)
            };
            starts = starts.iter().flat_map(along).collect();
        }
        starts.into_iter().map(|start| (start, grid.len)).collect::<Vec<_>>()
    };
    let check = check.then(|| general(&blocks()));
    let shape: Shaped = Box::new(move |what| strided(what, &grid).expect("it fits"));
    let budgets = name == "V 4096";
    Row { name, shape, span, payload, plan: Vec::new(), budgets, check }
}

/// The plan of any blocks, and the shape that reads it.
fn general(blocks: &[(i64, u64)]) -> (Vec<u8>, Shaped) {
    let mut encoder = Encoder::new(Width::W8);
    for &(at, len) in blocks {
        encoder.push(at, len).expect("multiples of 8");
    }
    let (plan, shifts) = encoder.to_bytes().expect("they fit");
    let planned = Planned {
        displacement: 0,
        size: encoder.size(),
        width: Width::W8,
        units: 0,
        shifts,
        shift_bytes: encoder.shift_bytes(),
        instances: 1,
        extent: 0,
    };
    (plan, Box::new(move |what| mapped(what, &planned).expect("it fits")))
}

fn rows() -> Vec<Row> {
    let dim = |count, stride| GridDim { count, stride };
    let mut rows = Vec::new();
    for mib in [1u64, 8, 64, 256, 1024] {
        let payload = mib << 20;
        let shape: Shaped = Box::new(|what| contiguous(what, 0).expect("it fits"));
        let name = format!("contiguous {mib} MiB");
        rows.push(Row {
            name,
            shape,
            span: payload,
            payload,
            plan: Vec::new(),
            budgets: mib == 256,
            check: None,
        });
    }
    for n in [512u64, 1024, 2048, 4096, 8192] {
        let column = i64::try_from(n * 8).expect("small");
        let dims = [dim(n, 2 * column)].into_iter().collect();
        let grid = Grid { displacement: 0, len: n * 8, dims };
        let blocks: Vec<_> = (0..n.cast_signed()).map(|j| (j * 2 * column, n * 8)).collect();
        rows.push(grid_row(format!("V {n}"), grid, n == 1024));
        let (plan, shape) = general(&blocks);
        rows.push(Row {
            name: format!("V {n} general"),
            shape,
            span: n * n * 16,
            payload: n * n * 8,
            plan,
            budgets: false,
            check: None,
        });
    }
    for n in [1024u64, 2048, 4096, 5001, 8192, 16384] {
        let step = i64::try_from((n + 1) * 8).expect("small");
        let runs =
            Runs { count: n, displacement: 0, step, len: n * 8, grow: -8, instances: 1, extent: 0 };
        let payload = n * (n + 1) / 2 * 8;
        let blocks: Vec<_> = (0..n).map(|j| (j.cast_signed() * step, (n - j) * 8)).collect();
        let check = (n == 4096).then(|| general(&blocks));
        let shape: Shaped = Box::new(move |what| affine(what, &runs).expect("it fits"));
        rows.push(Row {
            name: format!("T {n}"),
            shape,
            span: n * n * 8,
            payload,
            plan: Vec::new(),
            budgets: n == 8192,
            check,
        });
        let (plan, shape) = general(&blocks);
        rows.push(Row {
            name: format!("T {n} general"),
            shape,
            span: n * n * 8,
            payload,
            plan,
            budgets: false,
            check: None,
        });
    }
    for n in [512u64, 1024, 2048, 4096, 8192] {
        let column = i64::try_from(n * 8).expect("small");
        let dims = [dim(n, 8), dim(n, column)].into_iter().collect();
        rows.push(grid_row(format!("X {n}"), Grid { displacement: 0, len: 8, dims }, n == 1024));
    }
    for (len, stride) in
        [(4u64, 8i64), (8, 16), (8, 24), (12, 24), (16, 32), (24, 48), (32, 64), (64, 128)]
    {
        let count = (256 << 20) / len;
        let dims = [dim(count, stride)].into_iter().collect();
        rows.push(grid_row(
            format!("blocks {len} at {stride}"),
            Grid { displacement: 0, len, dims },
            false,
        ));
    }
    for (name, len, strides) in [
        ("x", 8u64, [4096i64 * 512, 4096]),
        ("x3", 24, [4096 * 512, 4096]),
        ("y3", 12288, [4096 * 512, 0]),
    ] {
        let dims =
            strides.iter().filter(|&&stride| stride != 0).map(|&stride| dim(512, stride)).collect();
        rows.push(grid_row(
            format!("face {name} of 512³"),
            Grid { displacement: 0, len, dims },
            false,
        ));
    }
    for shuffled in [false, true] {
        let count = 4u64 << 20;
        let mut list: Vec<i32> = (0..i32::try_from(count).expect("small")).map(|i| i * 5).collect();
        if shuffled {
            let mut state = 1u64;
            for at in (1..list.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let other = usize::try_from((state >> 20) % (at as u64 + 1)).expect("small");
                list.swap(at, other);
            }
        }
        let order = if shuffled { "shuffled" } else { "ascending" };
        let plan: Vec<u8> = list.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
        let blocks = Blocks {
            displacement: 0,
            len: 24,
            count,
            list: 0,
            entry_bytes: 4,
            scale: 8,
            bits: 8,
            instances: 1,
            extent: 0,
        };
        let shape: Shaped = Box::new(move |what| listed(what, &blocks).expect("it fits"));
        let (span, payload) = (count * 40, count * 24);
        let check = (!shuffled)
            .then(|| general(&list.iter().map(|&at| (i64::from(at) * 8, 24)).collect::<Vec<_>>()));
        rows.push(Row {
            name: format!("list 4M × 24 {order}"),
            shape,
            span,
            payload,
            plan,
            budgets: false,
            check,
        });
        let lengths: Vec<_> = list
            .iter()
            .enumerate()
            .map(|(i, &at)| (i64::from(at) * 8, 8 * (1 + i as u64 % 3)))
            .collect();
        let payload = lengths.iter().map(|block| block.1).sum();
        let (plan, shape) = general(&lengths);
        rows.push(Row {
            name: format!("list 4M × 8 to 24 {order}"),
            shape,
            span,
            payload,
            plan,
            budgets: false,
            check: None,
        });
    }
    rows
}
