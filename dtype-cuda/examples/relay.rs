//! Hands messages on from one GPU to another by two kernels and nothing else, and says how fast:
//! `cargo run --release -p gapless-dtype-cuda --example relay`. With one GPU, from one stream to another on
//! it. Each of the words below may be given with a list of its own, `lanes=32,64 rest=0,32,500`; all
//! combinations are run.
//!
//! | word | what | unless given |
//! |---|---|---|
//! | `mib` | MiB of a message | 256 |
//! | `layouts` | `c` contiguous, `V` half of a matrix, `T` a triangle, `list3` blocks of 24 bytes in any order; two: `V-c` | `c,V-c,V` |
//! | `lanes` | blocks of either kernel | 8,32,64,120 |
//! | `fragment` | KiB of a fragment | 64,256 |
//! | `depth` | fragments of a lane's part of the ring | 4 |
//! | `rest` | nanoseconds from one look at a flag to the next | 32 |
//!
//! Both ends are in one process here; between processes the ring, the flags of the receiver and the credit
//! of the sender are mapped (CUDA IPC), and both agree on ring and turn beforehand. What `Relay` says of
//! residency holds: kernels of two processes on one GPU run at the same time only under MPS.

use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_dtype_cuda::{GpuEngine, Relay, RelayOutcome};
use gapless_engine::Typed;
use gapless_kernels::Direction;
use gapless_kernels::launch::{RelayRing, RelayTurn};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDevice, CudaDriver, Stream};
use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Messages that are timed.
const TIMES: u32 = 5;
const DIRECTIONS: [Direction; 2] = [Direction::Pack, Direction::Unpack];

/// The list that a word was given, or another.
fn list(word: &str, unless: &str) -> Vec<String> {
    let given = std::env::args().skip(1).find_map(|arg| {
        let (name, values) = arg.split_once('=')?;
        (name == word).then(|| values.to_owned())
    });
    given.unwrap_or_else(|| unless.to_owned()).split(',').map(str::to_owned).collect()
}

fn numbers(word: &str, unless: &str) -> Outcome<Vec<u32>> {
    list(word, unless).iter().map(|value| Ok(value.parse()?)).collect()
}

/// `doubles` numbers (about: whole rows) in `2 * doubles` of memory.
fn layout(name: &str, doubles: u64) -> Outcome<Layout> {
    let double: Datatype = Primitive::Double.into();
    let datatype = match name {
        "c" => Datatype::contiguous(doubles, &double)?,
        "V" => {
            let n = doubles.isqrt();
            let whole = Datatype::vector(n, n, 2 * n.cast_signed(), &double)?;
            return Ok(rest_of(whole, doubles - n * n, 2 * n * n)?.commit()?);
        }
        "T" => {
            // Rows of n, n - 1, … doubles, below each other in a square.
            let n = (2 * doubles).isqrt().saturating_sub(1);
            let lengths: Vec<u64> = (1..=n).rev().collect();
            let starts: Vec<i64> = (0..n).map(|j| (j * (n + 1)).cast_signed()).collect();
            let whole = Datatype::indexed(&lengths, &starts, &double)?;
            return Ok(rest_of(whole, doubles - n * (n + 1) / 2, n * n)?.commit()?);
        }
        "list3" => {
            let blocks = doubles / 3;
            // Every place once, in an order that jumps: a step that has no factor in common with them.
            let step = (blocks / 2 + 1..).find(|step| coprime(*step, blocks)).unwrap_or(1);
            let places: Vec<i64> =
                (0..blocks).map(|at| (at * step % blocks * 5).cast_signed()).collect();
            let whole = Datatype::indexed_block(3, &places, &double)?;
            return Ok(rest_of(whole, doubles - blocks * 3, blocks * 5)?.commit()?);
        }
        other => return Err(format!("no layout {other}").into()),
    };
    Ok(datatype.commit()?)
}

/// A layout with the doubles behind it that make it as long as the others.
fn rest_of(whole: Datatype, doubles: u64, from: u64) -> Outcome<Datatype> {
    let double: Datatype = Primitive::Double.into();
    let bytes = i64::try_from(from * 8)?;
    Ok(Datatype::structure(&[1, doubles], &[0, bytes], &[whole, double])?)
}

fn coprime(a: u64, b: u64) -> bool {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

fn zeros(device: &CudaDevice, len: u64) -> Outcome<Region> {
    let region = device.allocate(len)?;
    let zeros = vec![0u8; usize::try_from(len)?];
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }?.wait()?;
    Ok(region)
}

/// Two devices, or one twice, and what works on them.
struct Stage {
    devices: [Arc<CudaDevice>; 2],
    engines: [GpuEngine; 2],
    streams: [Stream; 2],
}

impl Stage {
    /// GB/s of `TIMES` messages over a ring of their own.
    fn run(&self, typed: &[Typed; 2], ring: RelayRing, rest_ns: u32) -> Outcome<f64> {
        let payload = typed[0].packed_bytes();
        let fragments = zeros(&self.devices[1], ring.bytes().ok_or("no such ring")?)?;
        let ready = zeros(&self.devices[1], ring.flag_bytes())?;
        let credit = zeros(&self.devices[0], ring.flag_bytes())?;
        let relay = Relay::new(ring, fragments, ready, credit)?;
        let watches = [self.engines[0].relay_watch(&ring)?, self.engines[1].relay_watch(&ring)?];
        let mut turn = 0;
        let mut send = |times: u32| -> Outcome<f64> {
            let begin = self.streams[1].mark()?;
            for _ in 0..times {
                let this = RelayTurn { turn, patience: Duration::from_secs(1), rest_ns };
                for at in [1, 0] {
                    let on = self.engines[at].on(&self.streams[at])?;
                    let (direction, typed, watch) = (DIRECTIONS[at], &typed[at], &watches[at]);
                    // SAFETY: both ends are given the same ring and turn, in order; everything
                    // lives until both streams have been waited for.
                    turn = unsafe { on.relay(direction, typed, 0..payload, &relay, watch, this) }?;
                }
                for stream in &self.streams {
                    stream.record()?.wait()?;
                }
                if watches.iter().any(|watch| watch.outcome() != RelayOutcome::Done) {
                    return Err(format!("{watches:?}").into());
                }
            }
            let end = self.streams[1].mark()?;
            self.streams[1].record()?.wait()?;
            let time = begin.until(&end)?.ok_or("the stream has passed both")?;
            Ok(f64::from(times) * payload as f64 / time / 1e6)
        };
        let rate = send(1).and_then(|_| send(TIMES));
        for stream in &self.streams {
            stream.record()?.wait()?;
        }
        for (device, region) in [(1, fragments), (1, ready), (0, credit)] {
            // SAFETY: both streams have been waited for.
            unsafe { self.devices[device].free(region) }?;
        }
        rate
    }

    /// GB/s of copies without gaps.
    fn copy(&self, sides: [Region; 2], payload: u64) -> Outcome<f64> {
        let (from, to) = (sides[0].sub(0, payload)?, sides[1].sub(0, payload)?);
        let begin = self.streams[0].mark()?;
        for _ in 0..TIMES {
            // SAFETY: two disjoint regions, in no other use.
            unsafe { self.devices[0].copy_on(&self.streams[0], to, from) }?;
        }
        let end = self.streams[0].mark()?;
        self.streams[0].record()?.wait()?;
        let time = begin.until(&end)?.ok_or("the stream has passed both")?;
        Ok(f64::from(TIMES) * payload as f64 / time / 1e6)
    }
}

fn main() -> Outcome<()> {
    let driver = CudaDriver::load()?;
    let ordinals = if driver.devices() > 1 { [0, 1] } else { [0, 0] };
    let devices = [Arc::new(driver.device(ordinals[0])?), Arc::new(driver.device(ordinals[1])?)];
    let engines =
        [GpuEngine::cuda(Arc::clone(&devices[0]))?, GpuEngine::cuda(Arc::clone(&devices[1]))?];
    let streams = [devices[0].stream()?, devices[1].stream()?];
    for (engine, direction) in engines.iter().zip(DIRECTIONS) {
        let lanes = engine.relay_lanes_max(direction)?;
        println!("{direction:?}: at most {lanes} lanes");
    }
    let stage = Stage { devices, engines, streams };
    let place = if ordinals[0] == ordinals[1] { "on one GPU" } else { "between two GPUs" };
    for mib in numbers("mib", "256")? {
        let doubles = u64::from(mib) << 17;
        let payload = doubles * 8;
        // Twice as much and a little, for layouts with gaps.
        let len = 2 * payload + (1 << 20);
        let sides = [stage.devices[0].allocate(len)?, stage.devices[1].allocate(len)?];
        stage.copy(sides, payload)?;
        println!(
            "{place}, {mib} MiB a message; cudaMemcpy {:.0} GB/s",
            stage.copy(sides, payload)?
        );
        println!("layouts | lanes | depth | fragment KiB | rest ns | GB/s");
        for name in list("layouts", "c,V-c,V") {
            let (from, to) = name.split_once('-').unwrap_or((&name, &name));
            let layouts = [layout(from, doubles)?, layout(to, doubles)?];
            for (engine, layout) in stage.engines.iter().zip(&layouts) {
                engine.prepare(layout)?.wait()?;
            }
            let typed = [
                Typed::new(sides[0], 0, &layouts[0], 1)?,
                Typed::new(sides[1], 0, &layouts[1], 1)?,
            ];
            for lanes in numbers("lanes", "8,32,64,120")? {
                for depth in numbers("depth", "4")? {
                    for kib in numbers("fragment", "64,256")? {
                        for rest in numbers("rest", "32")? {
                            let number = |n| NonZeroU32::new(n).ok_or("0 lanes, places or bytes");
                            let ring = RelayRing {
                                lanes: number(lanes)?,
                                depth: number(depth)?,
                                fragment: number(kib << 10)?,
                            };
                            let row = format!("{name} | {lanes} | {depth} | {kib} | {rest}");
                            match stage.run(&typed, ring, rest) {
                                Ok(rate) => println!("{row} | {rate:.0}"),
                                Err(error) => println!("{row} | {error}"),
                            }
                        }
                    }
                }
            }
        }
        for (device, region) in stage.devices.iter().zip(sides) {
            // SAFETY: all streams have been waited for.
            unsafe { device.free(region) }?;
        }
    }
    Ok(())
}
