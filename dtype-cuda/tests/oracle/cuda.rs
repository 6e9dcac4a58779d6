//! The suite on CUDA devices, and what only they have: other memories on either side, the user's
//! streams, layouts beyond 4 GiB. Skipped aloud where there is no device.

use crate::bench::{Bench, alignments, noise, packed, same, side};
use crate::gpu::Gpu;
use crate::huge;
use crate::memory::{Buffer, Own, Provider, index, wait, wide};
use crate::sample::{Sample, range};
use crate::seed::{cases, fail, rng, skip};
use crate::suite::{stamp_every_engines, stamp_gpus};
use crate::turn;
use gapless_dtype::testkit::Rng;
use gapless_dtype::{Datatype, Primitive};
use gapless_dtype_cuda::{BatchItem, GpuEngine};
use gapless_engine::{Engine as _, EngineError, Typed};
use gapless_kernels::Direction;
use gapless_mem::{Device, HostDevice, Region, Space};
use gapless_mem_cuda::{CudaDevice, CudaDriver, CudaError, PinnedBuffer};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Every device, for a test that keeps no kernel there: others use them too.
pub(crate) fn devices(test: &str) -> &'static [Arc<CudaDevice>] {
    turn::share();
    opened(test)
}

/// Every device, for a test that keeps kernels there: it has them alone.
pub(crate) fn devices_alone(test: &str) -> &'static [Arc<CudaDevice>] {
    turn::be_alone();
    opened(test)
}

/// Every device, opened once. Only for those whose turn it is.
fn opened(test: &str) -> &'static [Arc<CudaDevice>] {
    static DEVICES: OnceLock<Result<Vec<Arc<CudaDevice>>, CudaError>> = OnceLock::new();
    let open = || {
        let driver = CudaDriver::load()?;
        (0..driver.devices()).map(|ordinal| driver.device(ordinal).map(Arc::new)).collect()
    };
    match DEVICES.get_or_init(open) {
        Ok(devices) => devices,
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            skip(&format!("CUDA engine, {test}"), &why.to_string());
            &[]
        }
        Err(error) => panic!("there is a driver and it fails: {error}"),
    }
}

fn gpu_of(device: &Arc<CudaDevice>) -> Gpu {
    let engine = GpuEngine::cuda(Arc::clone(device)).unwrap();
    let memory = Arc::new(Own(Arc::clone(device) as Arc<dyn Device>));
    let device = Arc::clone(device);
    let make = move |config| GpuEngine::cuda_with(Arc::clone(&device), config).unwrap();
    Gpu { engine, memory, make: Box::new(make) }
}

fn gpu(test: &str) -> Option<Gpu> {
    devices(test).first().map(gpu_of)
}

fn bench(test: &str) -> Option<Bench> {
    Some(gpu(test)?.bench())
}

stamp_every_engines!(bench);

stamp_gpus!(gpu);

/// The other devices of the machine do the same as the first.
#[test]
fn every_other_device_works() {
    let devices = devices("every device");
    if devices.len() == 1 {
        skip("CUDA engine, every other device", "only one device");
    }
    for device in devices.iter().skip(1) {
        let gpu = gpu_of(device);
        crate::suite::random_types_pack_and_unpack(&gpu.bench());
        crate::kernels::every_kernel_runs(&gpu);
    }
}

/// Memory that needs more than an address to be given back.
enum Other {
    /// Page-locked by the pool.
    Pinned,
    /// Ordinary host memory, registered.
    Registered,
    /// Managed memory.
    Managed,
}

/// A kind of memory that kernels of a device reach.
struct Reached {
    device: Arc<CudaDevice>,
    kind: Other,
    pinned: Mutex<HashMap<u64, PinnedBuffer>>,
}

impl Reached {
    fn of(device: &Arc<CudaDevice>, kind: Other) -> Arc<dyn Provider> {
        Arc::new(Reached { device: Arc::clone(device), kind, pinned: Mutex::default() })
    }
}

/// Pages of their own for `len` bytes: the driver registers pages.
fn pages(len: u64) -> std::alloc::Layout {
    let bytes = index(len).max(1).next_multiple_of(4_096);
    std::alloc::Layout::from_size_align(bytes, 4_096).unwrap()
}

/// What is registered of them.
fn registered(start: u64, len: u64) -> Region {
    Region::new(Space::Host, start, 0, wide(pages(len).size()))
}

impl Provider for Reached {
    fn name(&self) -> String {
        match self.kind {
            Other::Pinned => "pinned memory",
            Other::Registered => "registered memory",
            Other::Managed => "managed memory",
        }
        .to_owned()
    }

    fn take(&self, len: u64) -> Region {
        match self.kind {
            Other::Pinned => {
                let buffer = self.device.pinned(len.max(1)).unwrap();
                let region = buffer.region().sub(0, len).unwrap();
                let mut live = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
                live.insert(region.start(), buffer);
                region
            }
            Other::Registered => {
                // SAFETY: the layout has at least a page.
                let memory = unsafe { std::alloc::alloc_zeroed(pages(len)) };
                assert!(!memory.is_null());
                let whole = registered(memory.expose_provenance() as u64, len);
                // SAFETY: it stays allocated until it has been unregistered.
                unsafe { self.device.register(whole) }.unwrap();
                whole.sub(0, len).unwrap()
            }
            Other::Managed => self.device.allocate_managed(len).unwrap(),
        }
    }

    fn give_back(&self, region: Region) {
        match self.kind {
            Other::Pinned => {
                let mut live = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
                live.remove(&region.start());
            }
            Other::Registered => {
                let whole = registered(region.start(), region.len());
                // SAFETY: the tests wait for their work.
                unsafe { self.device.unregister(whole) }.unwrap();
                let memory = whole.as_ptr().unwrap();
                // SAFETY: `take` allocated it with this layout, and nothing uses it any more.
                unsafe { std::alloc::dealloc(memory, pages(region.len())) };
            }
            Other::Managed => {
                // SAFETY: `take` allocated it, and the tests wait for their work.
                unsafe { self.device.free(region) }.unwrap();
            }
        }
    }

    fn copier(&self) -> &dyn Device {
        &*self.device
    }
}

/// Moves of any kind with typed sides in `typed` and `other`, packed ones in `packed`.
fn moves(test: &str, bench: &Bench, amount: u64, rng: &mut Rng) {
    for case in 0..amount {
        let (sample, target) = (crate::bench::any(rng), crate::bench::any(rng));
        let (part, align) = (range(rng, sample.size()), alignments(rng));
        let verdict = bench.pack(&sample, &part, align, rng);
        let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, align, rng));
        let part = range(rng, sample.size().min(target.size()));
        let verdict = verdict.and_then(|()| bench.transfer(&sample, &target, &part, align, rng));
        verdict.unwrap_or_else(|what| fail(test, &format!("case {case}: {what}")));
    }
}

/// Typed and packed sides in every kind of memory that kernels reach, and packed ones in ordinary host
/// memory.
#[test]
fn every_memory_is_packed_into_and_unpacked_from() {
    const TEST: &str = "every memory";
    let Some(device) = devices(TEST).first() else { return };
    let gpu = gpu_of(device);
    let mut rng = rng(TEST);
    let mut reached = vec![
        Arc::clone(&gpu.memory),
        Reached::of(device, Other::Pinned),
        Reached::of(device, Other::Registered),
        Reached::of(device, Other::Managed),
    ];
    match devices(TEST).get(1) {
        Some(peer) if device.can_access(peer.ordinal()).unwrap() => {
            reached.push(Arc::new(Own(Arc::clone(peer) as Arc<dyn Device>)));
        }
        _ => skip("CUDA engine, a peer's memory", "no second device that the first one reaches"),
    }
    let host: Arc<dyn Provider> = Arc::new(Own(Arc::new(HostDevice::new())));
    for typed in &reached {
        for packed in reached.iter().chain([&host]) {
            let other = &reached[rng.index(reached.len())];
            let (typed, packed, other) = (Arc::clone(typed), Arc::clone(packed), Arc::clone(other));
            let bench = Bench { typed, packed, other, ..gpu.bench() };
            moves(TEST, &bench, cases(6), &mut rng);
        }
    }
}

/// Streams longer than staging buffers, from and to ordinary and page-locked host memory.
#[test]
fn long_streams_are_staged() {
    const TEST: &str = "staging";
    let Some(device) = devices(TEST).first() else { return };
    let gpu = gpu_of(device);
    let mut rng = rng(TEST);
    let vector = Datatype::vector(4_000_000, 3, 4, &Primitive::Float.into()).unwrap();
    let places: Vec<i64> = (0..2_000_000).map(|at| (at * 7_919 % 2_000_000) * 5).collect();
    let list = Datatype::indexed_block(4, &places, &Primitive::Float.into()).unwrap();
    let host: Arc<dyn Provider> = Arc::new(Own(Arc::new(HostDevice::new())));
    for datatype in [vector, list] {
        let sample = Sample::large(&datatype, 2).unwrap();
        let pinned = Reached::of(device, Other::Pinned);
        for (packed, staged) in [(&host, false), (&pinned, false), (&pinned, true)] {
            let engine = gpu.engine_with(|config| config.staged_host = staged);
            let bench = Bench { packed: Arc::clone(packed), ..gpu.bench_of(&engine) };
            for part in [0..sample.size(), 12_345_671..sample.size() - 5] {
                let verdict = bench.pack(&sample, &part, (0, 0), &mut rng);
                let verdict = verdict.and_then(|()| bench.unpack(&sample, &part, (4, 0), &mut rng));
                verdict.unwrap_or_else(|what| fail(TEST, &what));
            }
        }
    }
}

/// Kernels do not get at ordinary host memory: as a typed side it is refused.
#[test]
fn ordinary_host_memory_has_no_layout() {
    const TEST: &str = "ordinary host memory";
    let Some(gpu) = gpu(TEST) else { return };
    let mut rng = rng(TEST);
    // In pages that no other test registers.
    let mut host = noise(&mut rng, 1 << 16);
    let before = host.clone();
    let own = Buffer::holding(&*gpu.memory, &before[..256]);
    let vector = Datatype::vector(16, 1, 3, &Primitive::Int.into()).unwrap().commit().unwrap();
    let near = Typed::new(own.region(), 0, &vector, 1).unwrap();
    let region = Region::of_mut(&mut host).sub(1 << 15, 256).unwrap();
    // What says that it is page-locked and is not.
    let pretended = Region::new(Space::Pinned, region.start(), 0, 256);
    for place in [region, pretended] {
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
    same("own memory", &own.bytes(), &before[..256], 0).unwrap_or_else(|what| fail(TEST, &what));
    assert_eq!(host, before);
}

/// On the user's stream: in its order, between copies, without anything else waited for.
#[test]
fn the_users_stream_orders_everything() {
    const TEST: &str = "the user's stream";
    let Some(device) = devices(TEST).first() else { return };
    let gpu = gpu_of(device);
    let mut rng = rng(TEST);
    let stream = device.stream().unwrap();
    let on = gpu.engine.on(&stream).unwrap();
    for case in 0..cases(60) {
        let sample = crate::bench::any(&mut rng);
        let part = range(&mut rng, sample.size());
        let from = side(&*gpu.memory, &sample, rng.below(16), &mut rng).unwrap();
        let middle = side(&*gpu.memory, &sample, rng.below(16), &mut rng).unwrap();
        let to = side(&*gpu.memory, &sample, rng.below(16), &mut rng).unwrap();
        let wire = packed(&*gpu.memory, &part, rng.below(16), &mut rng);
        let second = packed(&*gpu.memory, &part, rng.below(16), &mut rng);
        let mut out = vec![0; index(part.end - part.start)];
        let out_at = Region::of_mut(&mut out);
        // SAFETY: all memory lives until the stream's completion is waited for; so for what follows.
        unsafe { on.transfer(&from.typed, &middle.typed, part.clone()) }.unwrap();
        // SAFETY: as above.
        unsafe { on.pack(&middle.typed, part.clone(), wire.region) }.unwrap();
        // SAFETY: as above.
        unsafe { device.copy_on(&stream, second.region, wire.region) }.unwrap();
        if case % 2 == 0 {
            // SAFETY: as above.
            unsafe { on.unpack(second.region, &to.typed, part.clone()) }.unwrap();
        } else {
            let typed = to.typed.clone();
            let request = BatchItem { typed, range: part.clone(), packed: second.region };
            // SAFETY: as above.
            unsafe { on.batch(Direction::Unpack, &[request]) }.unwrap();
        }
        // SAFETY: as above.
        unsafe { device.copy_on(&stream, out_at, second.region) }.unwrap();
        wait(&on.completion().unwrap());
        let message = sample.gather(&part, &from.noise, from.origin);
        let mut want = to.noise.clone();
        sample.scatter(&part, &message, &mut want, to.origin);
        let verdict = same("the last side", &to.buffer.bytes(), &want, to.origin);
        let verdict = verdict.and_then(|()| same("the copy", &out, &message, 0));
        verdict.unwrap_or_else(|what| {
            fail(TEST, &format!("case {case}, {part:?} of {}: {what}", sample.describe()));
        });
    }
}

/// Whether the device has so much memory free; else a test is skipped.
fn room(device: &CudaDevice, test: &str, bytes: u64) -> bool {
    let (free, _) = device.memory_now().unwrap();
    if free < bytes + (1 << 30) {
        skip(&format!("CUDA engine, {test}"), &format!("{free} bytes free of {bytes}"));
    }
    free >= bytes + (1 << 30)
}

/// One at a time: they take much memory, and the host's.
static LARGE: Mutex<()> = Mutex::new(());

#[test]
fn layouts_reach_beyond_four_gib() {
    const TEST: &str = "layouts beyond 4 GiB";
    let Some(device) = devices(TEST).first() else { return };
    let _alone = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    if room(device, TEST, huge::SPARSE_BYTES) {
        huge::beyond_four_gib_of_memory(&gpu_of(device).bench());
    }
}

#[test]
fn streams_are_longer_than_four_gib() {
    const TEST: &str = "streams beyond 4 GiB";
    let Some(device) = devices(TEST).first() else { return };
    let _alone = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    if room(device, TEST, huge::DENSE_BYTES) {
        huge::beyond_four_gib_of_stream(&gpu_of(device).bench());
    }
}
