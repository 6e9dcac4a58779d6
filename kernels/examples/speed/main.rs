//! Times every family of kernels on CUDA device 0, against `cudaMemcpy` of the same payload, against the
//! contiguous kernel at the same payload, and against the traffic floor, all in the same run.
//!
//! `cargo run --release -p gapless-kernels --example speed [WORDS]`: only rows whose names hold one of the
//! words. `--small` checks every kernel instead, byte for byte, on shapes small enough for a memory
//! checker. With `--peer`, what is packed, and the source of a move between equal layouts, lies in the
//! memory of device 1. `GAPLESS_KERNEL_IMAGE` names an image to try instead of the committed one, and
//! `GAPLESS_THREADS` threads of a block to try.
//!
//! Buffers rotate over at least four times the L2 cache, in what is touched; times are the device's,
//! launches back to back behind a copy that hides the time of the calls, the best of five batches. Rows
//! marked `=` were also compared, byte for byte, with what the general kernel packs.

mod floor;
mod row;
mod rows;
mod small;

use floor::Traffic;
use gapless_kernels::args::{Args, ONCE};
use gapless_kernels::launch::{KernelAddress, Launch, Move, contiguous, same};
use gapless_kernels::{Direction, Family, IMAGE};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, Function, Grid, Module, Stream};
use row::{Packed, Row};
use std::collections::HashMap;
use std::error::Error;
use std::ffi::CString;
use std::num::NonZeroU32;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes touched by the sets of buffers of a row, together, at least.
const ROTATION: u64 = 256 << 20;
/// Bytes of device memory for them.
const ARENA: u64 = 40 << 30;
const BATCHES: usize = 5;
/// Launches of a batch: many short ones, few long ones.
const LAUNCHES: std::ops::RangeInclusive<u64> = 6..=200;
/// Bytes of payload of a batch, about.
const BATCH: u64 = 1 << 30;
/// The copy behind which launches queue up, and what a call takes at most, in bytes of that copy.
const DELAY: u64 = 512 << 20;
const DELAY_A_CALL: u64 = 12 << 20;

/// The device, the kernels, and memory for both sides.
pub(crate) struct Bench {
    device: CudaDevice,
    stream: Stream,
    module: Module,
    functions: HashMap<String, Function>,
    arena: Region,
    /// The other side's memory: the arena, or as much of a peer's.
    other: Region,
    /// Threads of a block to try instead.
    threads: Option<u32>,
}

/// Gives a launch blocks of another size, if its tiles are strips.
fn retile(launch: &mut Launch, threads: Option<u32>) {
    if launch.kernel.few {
        return;
    }
    let span = match &mut launch.args {
        Args::Copy(args) => &mut args.span,
        Args::Strided(args) => &mut args.span,
        Args::Rows(args) => &mut args.span,
        Args::Affine(args) => &mut args.span,
        Args::Listed(args) => &mut args.span,
        Args::Mapped(args) => &mut args.span,
        Args::Transposed(args) => &mut args.span,
        _ => return,
    };
    if let Ok(once) = std::env::var("GAPLESS_ONCE") {
        span.edges = span.edges & !ONCE | if once == "1" { ONCE } else { 0 };
    }
    let Some(threads) = threads.filter(|_| launch.kernel.family != Family::Transposed) else {
        return;
    };
    let edges = u32::from(span.edges & 0xffff != 0);
    let strips = (span.tiles - edges) * (launch.threads / 32);
    span.tiles = strips.div_ceil(threads / 32) + edges;
    launch.threads = threads;
    launch.blocks = span.tiles;
}

fn main() -> Outcome<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut said = |option: &str| {
        words.iter().position(|word| word == option).map(|at| words.remove(at)).is_some()
    };
    let (small, far) = (said("--small"), said("--peer"));
    let driver = CudaDriver::load()?;
    let device = driver.device(0)?;
    let peer = far.then(|| driver.device(1)).transpose()?;
    if peer.is_some() {
        device.enable_peer(1)?;
    }
    let stream = device.stream()?;
    let image = std::env::var_os("GAPLESS_KERNEL_IMAGE").map(std::fs::read).transpose()?;
    // SAFETY: the image is the one that was built with this program, or one that whoever works on the
    // kernels built in its place.
    let module = unsafe { Module::load(&device, image.as_deref().unwrap_or(IMAGE)) }?;
    let threads = std::env::var("GAPLESS_THREADS").ok().and_then(|number| number.parse().ok());
    let arena = if small { Region::bottom() } else { device.allocate(ARENA)? };
    let other = peer.as_ref().map_or(Ok(arena), |peer| peer.allocate(ARENA))?;
    let functions = HashMap::new();
    let mut bench = Bench { device, stream, module, functions, arena, other, threads };
    println!("{}", bench.device.properties().name);
    if small {
        return small::check(&mut bench);
    }
    println!(
        "ratio to: memcpy of the payload (m), the contiguous kernel at that payload (c), the floor (f)"
    );
    println!(
        "row | payload MB | kernel, blocks × threads | memcpy, contiguous GB/s | pack | unpack | same"
    );
    for row in rows::rows() {
        let name = row.name.as_str();
        if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
            bench.time(&row)?;
        }
    }
    Ok(())
}

/// What a launch passes after its pointers.
fn argument(args: &Args) -> Argument<'_> {
    match args {
        Args::Copy(args) => Argument::of(args),
        Args::Strided(args) => Argument::of(args),
        Args::Rows(args) => Argument::of(args),
        Args::Affine(args) => Argument::of(args),
        Args::Listed(args) => Argument::of(args),
        Args::Mapped(args) => Argument::of(args),
        Args::Transposed(args) => Argument::of(args),
        Args::Transfer(args) => Argument::of(&**args),
        Args::Fused(args) => Argument::of(&**args),
    }
}

/// A whole payload from the pointers on.
fn whole(direction: Direction, payload: u64, budget: Option<NonZeroU32>) -> Move {
    let place = KernelAddress { address: 0, offset: 0 };
    Move { direction, range: 0..payload, typed: place, packed: place, budget }
}

impl Bench {
    /// Enqueues a launch; its plans follow the two sides.
    pub(crate) fn launch(&mut self, launch: &Launch, pointers: &[u64]) -> Outcome<()> {
        let name = launch.kernel.to_string();
        if !self.functions.contains_key(&name) {
            let function = self.module.function(&CString::new(name.as_str())?)?;
            self.functions.insert(name.clone(), function);
        }
        let count = 2 + launch.kernel.family.plans();
        let mut arguments: Vec<_> = pointers.iter().take(count).map(Argument::of).collect();
        arguments.push(argument(&launch.args));
        let grid = Grid::line(launch.blocks, launch.threads);
        // SAFETY: pointers and structure are what the kernel takes; the arena holds what it moves.
        unsafe { self.functions[&name].launch(&self.stream, grid, &arguments) }?;
        Ok(())
    }

    /// Microseconds of one call on the device, the best batch's mean.
    fn best(
        &mut self,
        calls: u64,
        mut call: impl FnMut(&mut Bench, u64) -> Outcome<()>,
    ) -> Outcome<f64> {
        let mut best = f64::INFINITY;
        let (from, to) = (self.arena.sub(0, DELAY)?, self.arena.sub(DELAY, DELAY)?);
        for batch in 0..=BATCHES {
            for _ in 0..(calls * DELAY_A_CALL).div_ceil(DELAY) {
                // SAFETY: two disjoint parts of the arena, kept for this.
                unsafe { self.device.copy_on(&self.stream, to, from) }?;
            }
            let begin = self.stream.mark()?;
            for number in 0..calls {
                call(self, number)?;
            }
            let end = self.stream.mark()?;
            self.stream.record()?.wait()?;
            let time = begin.until(&end)?.ok_or("the stream has passed both")?;
            if batch > 0 {
                best = best.min(time * 1000.0 / calls as f64);
            }
        }
        Ok(best)
    }

    /// Times a row and prints it.
    fn time(&mut self, row: &Row) -> Outcome<()> {
        let round = |bytes: u64| bytes.next_multiple_of(4096);
        let traffic: Traffic = (row.traffic)();
        let host = row.packed == Packed::Pinned;
        let pinned = host.then(|| self.device.pinned(round(row.payload))).transpose()?;
        let (span, payload) = (round(row.span), round(row.payload));
        let set_bytes = span + payload;
        let room = ARENA - 2 * DELAY - round(row.plan.len() as u64);
        let wanted = ROTATION.div_ceil(traffic.units * 64 + payload);
        // Two, so that one can move to the other.
        let sets = wanted.min(room / set_bytes).max(2);
        let calls = (BATCH / payload).clamp(*LAUNCHES.start(), *LAUNCHES.end()).max(sets);
        let start = self.arena.start() + 2 * DELAY;
        let typed = |number: u64| start + number % sets * set_bytes;
        let (near, beside) = (self.arena.start(), self.other.start());
        let far = |number: u64| typed(number).wrapping_sub(near).wrapping_add(beside);
        let packed = |number: u64| match &pinned {
            Some(pinned) => pinned.region().start(),
            None => far(number) + span,
        };
        let plan_at = start + sets * set_bytes;
        let plan = self.arena.sub(plan_at - self.arena.start(), row.plan.len() as u64)?;
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(plan, Region::of(&row.plan), &[]) }?.wait()?;
        let here = self.arena.space();
        let beside = self.other.space();
        let there = pinned.as_ref().map_or(beside, |pinned| pinned.region().space());
        let ends = |number| {
            let typed = Region::new(here, typed(number), 0, row.payload);
            (typed, Region::new(there, packed(number), 0, row.payload))
        };
        let mut copied = [0.0; 2];
        for (direction, copied) in [Direction::Pack, Direction::Unpack].into_iter().zip(&mut copied)
        {
            if !host && direction == Direction::Unpack {
                continue;
            }
            let sides: Vec<_> = (0..calls).map(ends).collect();
            *copied = self.best(calls, |bench, number| {
                let (typed, packed) = sides[usize::try_from(number)?];
                let (to, from) =
                    if direction == Direction::Pack { (packed, typed) } else { (typed, packed) };
                // SAFETY: two disjoint stretches (a payload is no longer than its span).
                unsafe { bench.device.copy_on(&bench.stream, to, from) }?;
                Ok(())
            })?;
        }
        if !host {
            copied[1] = copied[0];
        }
        let mut name = format!("{}{}", row.name, if row.check.is_some() { " =" } else { "" });
        for &blocks in row.budgets {
            let budget = NonZeroU32::new(blocks);
            let (mut told, mut used, mut flat) = (String::new(), String::new(), [0.0; 2]);
            for (at, direction) in [Direction::Pack, Direction::Unpack].into_iter().enumerate() {
                let what = whole(direction, row.payload, budget);
                let mut straight = contiguous(&what, 0)?;
                straight.iter_mut().for_each(|launch| retile(launch, None));
                flat[at] = self.best(calls, |bench, number| {
                    let pointers = [typed(number), packed(number)];
                    straight.iter().try_for_each(|launch| bench.launch(launch, &pointers))
                })?;
                let mut launches = (row.shape)(&what);
                launches.iter_mut().for_each(|launch| retile(launch, self.threads));
                let took = self.best(calls, |bench, number| {
                    let pointers = [typed(number), packed(number), plan_at];
                    launches.iter().try_for_each(|launch| bench.launch(launch, &pointers))
                })?;
                let floor = traffic.bytes(direction, row.payload, row.plan.len() as u64) as f64
                    / (2 * row.payload) as f64;
                told += &format!(
                    " | {:.0} m {:.3} c {:.3} f {:.3}",
                    row.payload as f64 / took / 1000.0,
                    copied[at] / took,
                    flat[at] / took,
                    floor * copied[at] / took
                );
                if direction == Direction::Pack {
                    let first = &launches[0];
                    let number = if launches.len() > 1 {
                        format!("{} of ", launches.len())
                    } else {
                        String::new()
                    };
                    used =
                        format!("{number}{}, {} × {}", first.kernel, first.blocks, first.threads);
                }
            }
            if let Some(side) = row.side.as_ref().filter(|_| !host) {
                let place = KernelAddress { address: 0, offset: 0 };
                let launches = same(&(0..row.payload), side, place, place, budget)?;
                let took = self.best(calls, |bench, number| {
                    let pointers = [far(number), typed(number + 1), plan_at];
                    launches.iter().try_for_each(|launch| bench.launch(launch, &pointers))
                })?;
                let rate = row.payload as f64 / took / 1000.0;
                told += &format!(" | {rate:.0} m {:.3} c {:.3}", copied[0] / took, flat[0] / took);
            }
            let rate = |micros: f64| row.payload as f64 / micros / 1000.0;
            println!(
                "{name} | {:.2} | {used} | {:.0}, {:.0}{told}",
                row.payload as f64 / 1e6,
                rate(copied[0]),
                rate(flat[0])
            );
            name = "  with a budget".to_owned();
        }
        self.check(row, start, span, plan_at)
    }

    /// Packs by the row's kernel and by the general one, moves to an equal layout and packs from there, and
    /// compares.
    fn check(&mut self, row: &Row, start: u64, span: u64, plan_at: u64) -> Outcome<()> {
        let Some((plan, shape)) = &row.check else { return Ok(()) };
        let noise: Vec<u8> =
            (0..row.span).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()[0]).collect();
        let typed = Region::new(self.arena.space(), start, 0, row.span);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(typed, Region::of(&noise), &[]) }?.wait()?;
        let mut outcomes = Vec::new();
        let moved = start + span + row.payload.next_multiple_of(4096);
        let by_row = (&row.plan, &row.shape);
        for (plan, shape, start) in
            [(by_row.0, by_row.1, start), (plan, shape, start), (by_row.0, by_row.1, moved)]
        {
            let to = Region::new(self.arena.space(), plan_at, 0, plan.len() as u64);
            // SAFETY: both live until the wait ends.
            unsafe { self.device.copy(to, Region::of(plan), &[]) }?.wait()?;
            let packed_at = typed.start() - self.arena.start() + self.other.start() + span;
            if start == moved
                && let Some(side) = &row.side
            {
                let place = KernelAddress { address: 0, offset: 0 };
                for launch in &same(&(0..row.payload), side, place, place, None)? {
                    self.launch(launch, &[typed.start(), moved, plan_at])?;
                }
            }
            for launch in &shape(&whole(Direction::Pack, row.payload, None)) {
                self.launch(launch, &[start, packed_at, plan_at])?;
            }
            self.stream.record()?.wait()?;
            let mut bytes = vec![0u8; usize::try_from(row.payload)?];
            let packed = Region::new(self.other.space(), packed_at, 0, row.payload);
            let into = Region::of_mut(&mut bytes);
            // SAFETY: both live until the wait ends.
            unsafe { self.device.copy(into, packed, &[]) }?.wait()?;
            outcomes.push(bytes);
        }
        let differs = row.side.is_some() && outcomes[0] != outcomes[2];
        if differs || outcomes[0] != outcomes[1] {
            return Err(format!("{}: the kernels disagree", row.name).into());
        }
        Ok(())
    }
}
