//! The suite on an OpenCL device; in CI that is PoCL, on the host's processor. All tests share the
//! device, because every context compiles the kernels anew.

use crate::bench::{Bench, noise, same};
use crate::gpu::Gpu;
use crate::memory::{Buffer, Own, Provider, index, wait};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng, skip};
use crate::suite::{stamp_every_engines, stamp_gpus};
use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::{Config, GpuEngine};
use gapless_engine::{Engine as _, EngineError, Typed};
use gapless_mem::{Device, HostDevice, Region};
use gapless_mem_opencl::{OpenClDevice, OpenClError};
use std::sync::{Arc, OnceLock};

/// The device, one for the process.
fn device(test: &str) -> Option<Arc<OpenClDevice>> {
    static DEVICE: OnceLock<Result<Arc<OpenClDevice>, OpenClError>> = OnceLock::new();
    match DEVICE.get_or_init(|| OpenClDevice::open(0).map(Arc::new)) {
        Ok(device) => Some(Arc::clone(device)),
        Err(
            error @ (OpenClError::NoLibrary { .. }
            | OpenClError::NoPlatform
            | OpenClError::NoDevice { .. }),
        ) => {
            assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {error}");
            skip(&format!("OpenCL engine, {test}"), &error.to_string());
            None
        }
        Err(error) => panic!("there is OpenCL and it fails: {error}"),
    }
}

fn gpu(test: &str) -> Option<Gpu> {
    let device = device(test)?;
    let engine = GpuEngine::opencl(Arc::clone(&device)).unwrap();
    let memory = Arc::new(Own(Arc::clone(&device) as Arc<dyn Device>));
    let make = move |config| GpuEngine::opencl_with(Arc::clone(&device), config).unwrap();
    Some(Gpu { engine, memory, make: Box::new(make) })
}

fn bench(test: &str) -> Option<Bench> {
    Some(gpu(test)?.bench())
}

stamp_every_engines!(bench);

stamp_gpus!(gpu);

/// As on GPUs, whose engines have two queues unless they are told otherwise: calls take turns over them, and each comes
/// after what it was given to wait for.
#[test]
fn two_queues_do_what_one_does() {
    let Some(gpu) = gpu("two queues") else { return };
    let config = Config { queues: Some(2), ..Config::default() };
    let bench = gpu.bench_of(&(gpu.make)(config));
    crate::suite::fragments_in_any_order(&bench);
    crate::suite::completions_chain(&bench);
}

/// Pages of the host, zeroed, which nobody frees: a few MiB that end with the process.
fn host_pages(len: u64) -> Region {
    let layout = std::alloc::Layout::from_size_align(index(len.max(1)), 4_096).unwrap();
    // SAFETY: at least one byte is asked for.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!memory.is_null());
    Region::new(gapless_mem::Space::Host, memory.expose_provenance() as u64, 0, len)
}

/// Host memory that is a buffer of the device's.
struct Wrapped(Arc<OpenClDevice>);

impl Provider for Wrapped {
    fn name(&self) -> String {
        "wrapped host memory".to_owned()
    }

    fn take(&self, len: u64) -> Region {
        let host = host_pages(len);
        // SAFETY: the memory stays.
        unsafe { self.0.wrap(host) }.unwrap()
    }

    fn give_back(&self, region: Region) {
        // SAFETY: `take` gave it, and the tests wait for their work.
        unsafe { self.0.free(region) }.unwrap();
    }

    fn copier(&self) -> &dyn Device {
        &*self.0
    }
}

/// What a program makes by itself in the context that the engine works in: the engine's device has not made it. Buffers
/// of host memory at odd addresses, or parts of buffers.
struct Programs {
    /// Another device of this process in that context, which plays the program.
    program: OpenClDevice,
    parts: bool,
}

/// Parts of buffers begin at multiples of this: no device asks for more.
const PART: u64 = 4_096;

impl Programs {
    fn of(device: &OpenClDevice, parts: bool) -> Arc<dyn Provider> {
        // SAFETY: the context is live: `device` holds it.
        let program = unsafe { OpenClDevice::adopt(device.space()) }.unwrap();
        Arc::new(Programs { program, parts })
    }
}

impl Provider for Programs {
    fn name(&self) -> String {
        if self.parts { "parts of a program's buffers" } else { "host memory at odd addresses" }
            .to_owned()
    }

    fn take(&self, len: u64) -> Region {
        if self.parts {
            let whole = self.program.allocate(len + 3 * PART).unwrap();
            let part = whole.sub(PART, len.max(1)).unwrap();
            // SAFETY: nobody frees `whole` before the device, which is dropped after the parts were given back.
            let part = unsafe { self.program.sub_buffer(part) }.unwrap();
            return part.sub(0, len).unwrap();
        }
        let odd = 1 + 2 * (len % 97);
        let layout = std::alloc::Layout::from_size_align(index(len + odd + 1), 4_096).unwrap();
        // SAFETY: at least one byte is asked for.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!memory.is_null());
        let start = memory.expose_provenance() as u64 + odd;
        let host = Region::new(gapless_mem::Space::Host, start, 0, len.max(1));
        // SAFETY: the memory stays.
        unsafe { self.program.wrap(host) }.unwrap().sub(0, len).unwrap()
    }

    fn give_back(&self, region: Region) {
        // SAFETY: `take` gave it, and the tests wait for their work.
        unsafe { self.program.free(region) }.unwrap();
    }

    fn copier(&self) -> &dyn Device {
        &self.program
    }
}

/// Both sides in memory that a program made, and packed sides in host memory that another runtime has page-locked,
/// which another context plays.
#[test]
fn memory_of_programs_is_like_any_other() {
    const TEST: &str = "memory of programs";
    let Some(device) = device(TEST) else { return };
    let gpu = gpu(TEST).unwrap();
    let [odd, parts] = [false, true].map(|parts| Programs::of(&device, parts));
    let locked: Arc<dyn Provider> = Arc::new(Locked(OpenClDevice::open(0).unwrap()));
    let short = gpu.engine_with(|config| config.chunk_bytes = 4_096);
    let benches = [
        Bench { typed: Arc::clone(&odd), ..gpu.bench() },
        Bench { packed: Arc::clone(&odd), ..gpu.bench() },
        Bench { typed: Arc::clone(&odd), packed: Arc::clone(&parts), ..gpu.bench() },
        Bench { typed: parts, packed: Arc::clone(&locked), ..gpu.bench() },
        Bench { typed: odd, packed: locked, ..gpu.bench_of(&short) },
    ];
    let mut rng = rng(TEST);
    for case in 0..cases(60) {
        let bench = &benches[usize::try_from(case % 5).unwrap()];
        let sample = crate::bench::any(&mut rng);
        let align = crate::bench::alignments(&mut rng);
        let part = range(&mut rng, sample.size());
        let verdict = bench.pack(&sample, &part, align, &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, &mut rng));
        let verdict =
            verdict.and_then(|()| bench.transfer(&sample, &sample, &part, align, &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
}

/// Host memory that a device of another context has page-locked.
struct Locked(OpenClDevice);

impl Provider for Locked {
    fn name(&self) -> String {
        "memory that another runtime has page-locked".to_owned()
    }

    fn take(&self, len: u64) -> Region {
        let host = host_pages(len);
        // SAFETY: the memory stays.
        unsafe { self.0.register(host) }.unwrap();
        host
    }

    fn give_back(&self, region: Region) {
        // SAFETY: `take` registered it, and the tests wait for their work.
        unsafe { self.0.unregister(region) }.unwrap();
    }

    fn copier(&self) -> &dyn Device {
        &self.0
    }
}

/// Packed sides in ordinary host memory, and both sides in host memory that was made a buffer.
#[test]
fn host_memory_is_packed_into_and_unpacked_from() {
    const TEST: &str = "host memory";
    let Some(device) = device(TEST) else { return };
    let gpu = gpu(TEST).unwrap();
    let host: Arc<dyn Provider> = Arc::new(Own(Arc::new(HostDevice::new())));
    let wrapped: Arc<dyn Provider> = Arc::new(Wrapped(device));
    let mut rng = rng(TEST);
    let short = gpu.engine_with(|config| config.chunk_bytes = 4_096);
    let benches = [
        Bench { packed: Arc::clone(&host), ..gpu.bench() },
        // Chunks that even small streams are longer than.
        Bench { packed: Arc::clone(&host), ..gpu.bench_of(&short) },
        Bench { packed: Arc::clone(&wrapped), ..gpu.bench() },
        Bench { typed: Arc::clone(&wrapped), packed: host, ..gpu.bench() },
    ];
    for case in 0..cases(60) {
        let bench = &benches[usize::try_from(case % 4).unwrap()];
        let sample = crate::bench::any(&mut rng);
        let align = crate::bench::alignments(&mut rng);
        let part = range(&mut rng, sample.size());
        let verdict = bench.pack(&sample, &part, align, &mut rng);
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, &mut rng));
        let verdict =
            verdict.and_then(|()| bench.transfer(&sample, &sample, &part, align, &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
    // Longer than staging buffers.
    let vector = Datatype::vector(600_000, 3, 4, &Primitive::Float.into()).unwrap();
    let sample = Sample::large(&vector, 3).unwrap();
    for part in [0..sample.size(), 1_234_567..sample.size() - 3] {
        let verdict = benches[0].pack(&sample, &part, (0, 0), &mut rng);
        let verdict = verdict.and_then(|()| benches[0].unpack(&sample, &part, (0, 0), &mut rng));
        verdict.unwrap_or_else(|what| fail(TEST, &what));
    }
}

/// Typed sides in ordinary host memory, and buffers of another context.
#[test]
fn memory_of_others_is_refused() {
    const TEST: &str = "memory of others";
    let Some(gpu) = gpu(TEST) else { return };
    let stranger = OpenClDevice::open(0).unwrap();
    let foreign = stranger.allocate(256).unwrap();
    let mut rng = rng(TEST);
    let mut host = noise(&mut rng, 256);
    let before = host.clone();
    let region = Region::of_mut(&mut host);
    let own = Buffer::holding(&*gpu.memory, &before);
    let vector = Datatype::vector(16, 1, 3, &Primitive::Int.into()).unwrap().commit().unwrap();
    let near = Typed::new(own.region(), 0, &vector, 1).unwrap();
    for place in [region, foreign] {
        let far = Typed::new(place, 0, &vector, 1).unwrap();
        let (engine, here) = (&gpu.engine, own.part(192, 64));
        let outcomes = [
            // SAFETY: refused; everything lives all the same.
            unsafe { engine.pack(&far, 0..64, here, &[]) },
            // SAFETY: as above.
            unsafe { engine.unpack(here, &far, 0..64, &[]) },
            // SAFETY: as above.
            unsafe { engine.transfer(&far, &near, 0..64, &[]) },
            // SAFETY: as above.
            unsafe { engine.transfer(&near, &far, 0..64, &[]) },
        ];
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            let named = matches!(error, EngineError::WrongSpace { .. } | EngineError::Device(_));
            assert!(named, "{error}");
        }
    }
    // SAFETY: as above.
    let error = unsafe { gpu.engine.pack(&near, 0..64, foreign.sub(0, 64).unwrap(), &[]) };
    assert!(error.is_err(), "a packed side in another context");
    same("own memory", &own.bytes(), &before, 0).unwrap_or_else(|what| fail(TEST, &what));
    assert_eq!(host, before);
}

/// Engines of two contexts, and work of one after work of the other.
#[test]
fn contexts_are_ordered_by_completions() {
    const TEST: &str = "two contexts";
    let Some(gpu) = gpu(TEST) else { return };
    let other = Arc::new(OpenClDevice::open(0).unwrap());
    let engine = GpuEngine::opencl(Arc::clone(&other)).unwrap();
    let mut rng = rng(TEST);
    let vector = Datatype::vector(500, 1, 2, &Primitive::Byte.into()).unwrap().commit().unwrap();
    let bytes = noise(&mut rng, 1_000);
    let there: Arc<dyn Provider> = Arc::new(Own(other as Arc<dyn Device>));
    let (from, to) = (Buffer::holding(&*gpu.memory, &bytes), Buffer::holding(&*there, &bytes));
    let mut wire = vec![0_u8; 500];
    let region = Region::of_mut(&mut wire);
    let source = Typed::new(from.region(), 0, &vector, 1).unwrap();
    let target = Typed::new(to.region(), 1, &vector, 1).unwrap();
    // SAFETY: everything lives until the last completion, which comes after the first.
    let packed = unsafe { gpu.engine.pack(&source, 0..500, region, &[]) }.unwrap();
    // SAFETY: as above.
    wait(&unsafe { engine.unpack(region, &target, 0..500, &[packed]) }.unwrap());
    let want: Vec<u8> = (0..1_000).map(|at| bytes[at & !1]).collect();
    same("the other context's", &to.bytes(), &want, 0).unwrap_or_else(|what| fail(TEST, &what));
}
