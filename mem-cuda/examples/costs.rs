//! What the calls of this crate cost the thread that makes them:
//! `cargo run --release -p gapless-mem-cuda --example costs`.
//!
//! Prints medians in nanoseconds, on device 0. What a *message* pays for learning where its buffer
//! lies are the first lines: with the driver asked for everything, with the cache, and for memory that
//! the driver does not know.

use gapless_mem::{Completion, Device, Region};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, CudaError, Grid, Module, Stream};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Calls that are timed together, so that reading the clock does not count.
const TOGETHER: u32 = 50;

/// Timings of which the median is taken.
const TIMES: usize = 101;

const PTX: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .u64 at) { ret; }
";

/// Times `act`, and after each timing does `tidy` untimed.
fn cost(what: &str, mut act: impl FnMut(), mut tidy: impl FnMut()) {
    let mut times: Vec<f64> = (0..TIMES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..TOGETHER {
                act();
            }
            let took = start.elapsed().as_secs_f64();
            tidy();
            took * 1e9 / f64::from(TOGETHER)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{:>9.0} ns  {what}", times[TIMES / 2]);
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = match CudaDriver::load() {
        Ok(driver) => driver.device(0)?,
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            println!("{why}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    println!("{device:?}, medians");
    measure(&device, "the thread has no context of its own: bound and restored at every call")?;
    device.bind_thread()?;
    measure(&device, "bound for good")
}

fn measure(device: &CudaDevice, how: &str) -> Result<(), Box<dyn Error>> {
    println!("-- {how}");
    let memory = device.allocate(1 << 20)?;
    let target = device.allocate(1 << 20)?;
    let pinned = device.pinned(4096)?;
    let ordinary = vec![0u8; 4096];
    let stream = device.stream()?;
    let at = memory.start() + 100;
    locating(device, at, &ordinary, pinned.region());
    ordering(device, &stream)?;
    launching(device, &stream, at)?;
    let (small, to) = (memory.sub(0, 4096)?, target.sub(0, 4096)?);
    copying(device, &stream, to, small)?;
    let release = |region| {
        // SAFETY: everything above was waited for.
        unsafe { device.free(region) }
    };
    release(memory)?;
    release(target)?;
    Ok(())
}

fn locating(device: &CudaDevice, at: u64, ordinary: &[u8], pinned: Region) {
    let host = Region::of(ordinary).start();
    cost("pointer of a device", || _ = black_box(device.pointer(at)), || ());
    cost("pointer of ordinary host memory", || _ = black_box(device.pointer(host)), || ());
    cost(
        "device address of page-locked memory",
        || _ = black_box(device.device_address(pinned)),
        || (),
    );
    cost("page-locked memory, taken and given back", || _ = black_box(device.pinned(4096)), || ());
}

fn drain(stream: &Stream) {
    let drained = stream.record().and_then(|done| Ok(done.wait()?));
    drained.expect("the device works");
}

fn ordering(device: &CudaDevice, stream: &Stream) -> Result<(), CudaError> {
    let other = device.stream()?;
    cost("record", || _ = black_box(stream.record()), || drain(stream));
    let done = stream.record()?;
    let again = || _ = black_box(other.wait_for(std::slice::from_ref(&done)));
    cost("a stream waits for a completion", again, || drain(&other));
    done.wait()?;
    cost("poll, seen to end before", || _ = black_box(done.poll()), || ());
    cost(
        "record, then poll until it has ended",
        || {
            let done = stream.record().expect("the device works");
            while !done.poll().expect("the device works") {}
        },
        || (),
    );
    Ok(())
}

fn launching(device: &CudaDevice, stream: &Stream, at: u64) -> Result<(), CudaError> {
    // SAFETY: a kernel that does nothing.
    let module = unsafe { Module::load(device, PTX.as_bytes()) }?;
    let nothing = module.function(c"nothing")?;
    let arguments = [Argument::of(&at)];
    let launch = || {
        // SAFETY: the kernel touches nothing.
        unsafe { nothing.launch(stream, Grid::line(1, 32), &arguments) }.expect("the device works");
    };
    cost("launch", launch, || drain(stream));
    let and_record = || {
        launch();
        _ = black_box(stream.record());
    };
    cost("launch and record", and_record, || drain(stream));
    let and_wait = || {
        launch();
        drain(stream);
    };
    cost("launch, record and wait", and_wait, || ());
    Ok(())
}

fn copying(
    device: &CudaDevice,
    stream: &Stream,
    to: Region,
    from: Region,
) -> Result<(), CudaError> {
    let on = || {
        // SAFETY: both live until the stream is drained, and hold nothing of interest.
        unsafe { device.copy_on(stream, to, from) }.expect("the device works");
    };
    cost("4 KiB copy on a stream", on, || drain(stream));
    let mut last = Completion::Ready;
    cost(
        "4 KiB copy after the one before, as a completion",
        || {
            let after = std::slice::from_ref(&last);
            // SAFETY: both live until the last copy is waited for, and hold nothing of interest.
            last = unsafe { device.copy(to, from, after) }.expect("the device works");
        },
        || (),
    );
    last.wait()?;
    Ok(())
}
