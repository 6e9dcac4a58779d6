//! The lower triangle of a matrix in GPU memory: packed by a kernel, and unpacked into another matrix by
//! one that may use four blocks only. On CUDA both go on a stream of the program's own; otherwise on
//! OpenCL, where the second comes after the first by its completion. Every byte is compared.
//!
//! `cargo run --release -p gapless-dtype-cuda --example gpu_pack [cuda|opencl]`
//!
//! Prints one line. Ends with 2 where there is no GPU (PoCL's processor counts as one), with 1 if a
//! byte is wrong.

use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::GpuEngine;
use gapless_engine::{Engine, Typed};
use gapless_kernels::Direction;
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDriver, Stream};
use gapless_mem_opencl::OpenClDevice;
use std::error::Error;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rows and columns of the matrix, which lies row by row.
const N: usize = 1024;

/// An engine and, on CUDA, the stream that the program works on.
struct Gpu {
    engine: GpuEngine,
    stream: Option<Stream>,
}

fn cuda() -> Outcome<Gpu> {
    let device = Arc::new(CudaDriver::load()?.device(0)?);
    // A program that has a `cudaStream_t` already: `unsafe { device.adopt_stream(handle) }`.
    let stream = Some(device.stream()?);
    Ok(Gpu { engine: GpuEngine::cuda(device)?, stream })
}

fn opencl() -> Outcome<Gpu> {
    // A program that has a context and a queue already: `unsafe { OpenClDevice::adopt(space) }`.
    let device = Arc::new(OpenClDevice::open(0)?);
    Ok(Gpu { engine: GpuEngine::opencl(device)?, stream: None })
}

fn main() -> ExitCode {
    let gpu = match std::env::args().nth(1).as_deref() {
        None => {
            cuda().or_else(|no_cuda| opencl().map_err(|none| format!("{no_cuda}; {none}").into()))
        }
        Some("cuda") => cuda(),
        Some("opencl") => opencl(),
        Some(other) => Err(format!("{other} is neither cuda nor opencl").into()),
    };
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(why) => {
            eprintln!("gpu_pack: {why}");
            return ExitCode::from(2);
        }
    };
    match there_and_back(&gpu) {
        Ok(line) => println!("{line}"),
        Err(why) => {
            eprintln!("gpu_pack: {why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn there_and_back(gpu: &Gpu) -> Outcome<String> {
    // In row i, i + 1 elements from column 0 on.
    let lengths: Vec<u64> = (1..=N as u64).collect();
    let places: Vec<i64> = (0..N).map(|row| i64::try_from(row * N)).collect::<Result<_, _>>()?;
    let triangle = Datatype::indexed(&lengths, &places, &Primitive::Double.into())?.commit()?;
    let bytes = triangle.size();

    let device = gpu.engine.device();
    let matrix: Vec<u8> = (0..N * N).flat_map(|at| (at as u64).to_ne_bytes()).collect();
    let from = upload(&*device, &matrix)?;
    let packed = upload(&*device, &vec![0; usize::try_from(bytes)?])?;
    let into = upload(&*device, &vec![0; matrix.len()])?;

    // Checked once: the triangle lies inside the matrix.
    let source = Typed::new(from, 0, &triangle, 1)?;
    let target = Typed::new(into, 0, &triangle, 1)?;
    let few = gpu.engine.with_budget(NonZeroU32::new(4));
    let launched = gpu.engine.launches(Direction::Pack, &source, 0..bytes, packed)?;
    let done = match &gpu.stream {
        Some(stream) => {
            // SAFETY: the three allocations live until the stream has passed this, which is waited for
            // below, and nothing else touches them.
            unsafe { gpu.engine.on(stream)?.pack(&source, 0..bytes, packed) }?;
            let few = few.on(stream)?;
            // SAFETY: as above; the stream's order keeps the two apart.
            unsafe { few.unpack(packed, &target, 0..bytes) }?;
            few.completion()?
        }
        None => {
            // SAFETY: the three allocations live until the completion, which is waited for below, and
            // nothing else touches them.
            let full = unsafe { gpu.engine.pack(&source, 0..bytes, packed, &[]) }?;
            // SAFETY: as above; the unpacking comes after the packing.
            unsafe { few.unpack(packed, &target, 0..bytes, &[full]) }?
        }
    };
    done.wait()?;

    // What it should have become, by a loop of the host.
    let (mut stream, mut other) = (Vec::new(), vec![0; matrix.len()]);
    for row in 0..N {
        let part = row * N * 8..(row * N + row + 1) * 8;
        stream.extend_from_slice(&matrix[part.clone()]);
        other[part.clone()].copy_from_slice(&matrix[part]);
    }
    compare("packed", &download(&*device, packed)?, &stream)?;
    compare("unpacked", &download(&*device, into)?, &other)?;
    compare("the source", &download(&*device, from)?, &matrix)?;
    let kernels: Vec<String> = launched
        .iter()
        .map(|one| {
            format!("{} ({} × {} threads)", one.kernel.family.name(), one.blocks, one.threads)
        })
        .collect();
    Ok(format!(
        "{}, {}: the lower triangle of {N} × {N} doubles, {bytes} bytes, packed by {}, unpacked by 4 blocks: every byte is right",
        gpu.engine.name(),
        device.properties().name,
        kernels.join(", "),
    ))
}

fn compare(what: &str, got: &[u8], right: &[u8]) -> Outcome<()> {
    match got.iter().zip(right).position(|(got, right)| got != right) {
        None if got.len() == right.len() => Ok(()),
        None => Err(format!("{what}: {} bytes instead of {}", got.len(), right.len()).into()),
        Some(at) => Err(format!("{what}: byte {at} is {}, not {}", got[at], right[at]).into()),
    }
}

/// New memory of the device, with these bytes.
fn upload(device: &dyn Device, bytes: &[u8]) -> Outcome<Region> {
    let region = device.allocate(bytes.len() as u64)?;
    // SAFETY: both live until the wait has ended, and nothing else touches them.
    unsafe { device.copy(region, Region::of(bytes), &[]) }?.wait()?;
    Ok(region)
}

/// Gives memory back, and what was in it.
fn download(device: &dyn Device, region: Region) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(region.len())?];
    // SAFETY: as in `upload`.
    unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }?.wait()?;
    // SAFETY: from `upload`; all work on it has ended.
    unsafe { device.free(region) }?;
    Ok(bytes)
}
