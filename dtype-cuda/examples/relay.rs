//! Hands messages on from one GPU to another by two kernels and nothing else, and says how fast:
//! `cargo run --release -p gapless-dtype-cuda --example relay [MIB]`. With one GPU, from one stream to
//! another on it.
//!
//! Both ends are in one process here; between processes the ring, the flags of the receiver and the credit
//! of the sender are mapped (CUDA IPC), and both agree on ring and turn beforehand. What `Relay` says of
//! residency holds: kernels of two processes on one GPU run at the same time only under MPS.

use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::{GpuEngine, Relay, RelayOutcome};
use gapless_engine::Typed;
use gapless_kernels::Direction;
use gapless_kernels::launch::{RelayRing, RelayTurn};
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDevice, CudaDriver};
use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Messages that are timed.
const TIMES: u32 = 5;

fn zeros(device: &CudaDevice, len: u64) -> Outcome<Region> {
    let region = device.allocate(len)?;
    let zeros = vec![0u8; usize::try_from(len)?];
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(region, Region::of(&zeros), &[]) }?.wait()?;
    Ok(region)
}

fn main() -> Outcome<()> {
    let mib: u64 = std::env::args().nth(1).map_or(Ok(256), |word| word.parse())?;
    let driver = CudaDriver::load()?;
    let ordinals = if driver.devices() > 1 { [0, 1] } else { [0, 0] };
    let devices = [Arc::new(driver.device(ordinals[0])?), Arc::new(driver.device(ordinals[1])?)];
    let engines =
        [GpuEngine::cuda(Arc::clone(&devices[0]))?, GpuEngine::cuda(Arc::clone(&devices[1]))?];
    let n = ((mib << 20) / 8).isqrt() / 64 * 64;
    let double: Datatype = Primitive::Double.into();
    let signed = |n: u64| n.cast_signed();
    let matrix = Datatype::vector(n, n, 2 * signed(n), &double)?.commit()?;
    let stretch = Datatype::contiguous(n * n, &double)?.commit()?;
    let payload = n * n * 8;
    let sides = [devices[0].allocate(2 * payload)?, devices[1].allocate(2 * payload)?];
    let ends = [devices[0].stream()?, devices[1].stream()?];
    let place = if ordinals[0] == ordinals[1] { "on one GPU" } else { "between two GPUs" };
    let copy = |copies: u32| -> Outcome<f64> {
        let (from, to) = (sides[0].sub(0, payload)?, sides[1].sub(payload, payload)?);
        let begin = ends[0].mark()?;
        for _ in 0..copies {
            // SAFETY: two disjoint regions, in no other use.
            unsafe { devices[0].copy_on(&ends[0], to, from) }?;
        }
        let end = ends[0].mark()?;
        ends[0].record()?.wait()?;
        let time = begin.until(&end)?.ok_or("the stream has passed both")?;
        Ok(f64::from(copies) * payload as f64 / time / 1e6)
    };
    copy(2)?;
    println!("{place}, {} MiB a message; cudaMemcpy {:.0} GB/s", payload >> 20, copy(TIMES)?);
    println!("layouts | lanes | depth | fragment KiB | GB/s");
    for (name, from, to) in [
        ("contiguous to contiguous", &stretch, &stretch),
        ("V to contiguous", &matrix, &stretch),
        ("V to V", &matrix, &matrix),
    ] {
        let typed = [Typed::new(sides[0], 0, from, 1)?, Typed::new(sides[1], 0, to, 1)?];
        for (lanes, depth, kib) in
            [(8, 4, 64), (32, 4, 64), (64, 4, 64), (64, 4, 256), (120, 4, 64), (120, 8, 32)]
        {
            let number = |n| NonZeroU32::new(n).ok_or("not zero");
            let ring = RelayRing {
                lanes: number(lanes)?,
                depth: number(depth)?,
                fragment: number(kib << 10)?,
            };
            let fragments = zeros(&devices[1], ring.bytes().ok_or("a ring")?)?;
            let ready = zeros(&devices[1], ring.flag_bytes())?;
            let credit = zeros(&devices[0], ring.flag_bytes())?;
            let relay = Relay::new(ring, fragments, ready, credit)?;
            let watches = [engines[0].relay_watch(&ring)?, engines[1].relay_watch(&ring)?];
            let directions = [Direction::Pack, Direction::Unpack];
            for (engine, direction) in engines.iter().zip(directions) {
                engine.relay_lanes_max(direction)?;
            }
            let mut turn = 0;
            let mut send = |times: u32| -> Outcome<f64> {
                let begin = ends[1].mark()?;
                let patience = Duration::from_secs(1);
                for _ in 0..times {
                    let this = RelayTurn { turn, patience };
                    for at in [1, 0] {
                        let (engine, stream, watch) = (&engines[at], &ends[at], &watches[at]);
                        let on = engine.on(stream)?;
                        let (direction, typed) = (directions[at], &typed[at]);
                        // SAFETY: both ends are given the same ring and turn, in order; everything
                        // lives until both streams have been waited for.
                        let next =
                            unsafe { on.relay(direction, typed, 0..payload, &relay, watch, this) };
                        turn = next?;
                    }
                    for stream in &ends {
                        stream.record()?.wait()?;
                    }
                    if watches.iter().any(|watch| watch.outcome() != RelayOutcome::Done) {
                        return Err(format!("{watches:?}").into());
                    }
                }
                let end = ends[1].mark()?;
                ends[1].record()?.wait()?;
                let time = begin.until(&end)?.ok_or("the stream has passed both")?;
                Ok(f64::from(times) * payload as f64 / time / 1e6)
            };
            let rate = send(1).and_then(|_| send(TIMES));
            match rate {
                Ok(rate) => println!("{name} | {lanes} | {depth} | {kib} | {rate:.0}"),
                Err(error) => println!("{name} | {lanes} | {depth} | {kib} | {error}"),
            }
            for (device, region) in [(1, fragments), (1, ready), (0, credit)] {
                // SAFETY: both streams have been waited for.
                unsafe { devices[device].free(region) }?;
            }
        }
    }
    Ok(())
}
