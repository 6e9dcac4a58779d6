//! The worker of XTQ on a CUDA device: its rewrite against the host's, its tasks against what the host computes, the order
//! in which memory is seen, its lives. Skipped aloud where there is no device.
//!
//! Registered buffers are page-locked, so that the host sees what tasks have written as soon as they have ended. Each of
//! these tests has the GPUs alone (`turn.rs`): it wants a worker that lives, and registers memory.

mod helpers;
mod layouts;
mod litmus;
mod order;
mod packets;
mod rings;
mod users;

use crate::cuda::devices_alone;
use crate::seed::{cases, rng, skip};
use gapless_dtype::testkit::Rng;
use gapless_dtype_cuda::CudaWorker;
use gapless_kernels::worker::{IMAGE, REWRITE};
use gapless_mem::{Device, Lease, Region, Words};
use gapless_mem_cuda::{Argument, CudaDevice, Grid, Module};
use gapless_xtq::Refusal;
use gapless_xtq::device::{
    Accumulate, Combine, DeviceFunction, DeviceKernel, Element, Failure, Lane, Life, PutOutcome,
    RingShape, WorkerTarget,
};
use gapless_xtq::packet::{Command, ENTRIES, Flags, Launch, Packet, TaskWork};
use gapless_xtq::rewrite::{RewriteError, Rewritten};
use gapless_xtq::sample;
use gapless_xtq::tables::QueueEntry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const PATIENCE: Duration = Duration::from_secs(10);
const SHAPE: RingShape = RingShape { arena_bytes: 1 << 20 };
/// It leaves soon, so that nothing else waits long for the device.
const LIFE: Life = Life { idle: Some(Duration::from_millis(20)), longest: PATIENCE };

/// Zeroed page-locked memory.
fn pinned(device: &CudaDevice, len: u64) -> Lease {
    let buffer = device.pinned(len).unwrap();
    let region = buffer.region();
    // SAFETY: it is new.
    unsafe { gapless_mem::fill(&region, 0) }.unwrap();
    // SAFETY: the buffer keeps it.
    unsafe { Lease::new(region, Arc::new(buffer)) }
}

fn words(lease: &Lease) -> Words {
    // SAFETY: page-locked memory that is touched as words alone.
    unsafe { Words::new(lease.clone()) }.unwrap()
}

struct Bench {
    device: Arc<CudaDevice>,
    target: WorkerTarget,
    lanes: Vec<Lane>,
}

impl Bench {
    fn new(device: &Arc<CudaDevice>, life: Life, rings: usize) -> Bench {
        Bench::with_blocks(device, life, rings, 1)
    }

    fn with_blocks(device: &Arc<CudaDevice>, life: Life, rings: usize, blocks: u32) -> Bench {
        let worker = Arc::new(CudaWorker::with_blocks(Arc::clone(device), blocks).unwrap());
        let mut target = WorkerTarget::new(worker, life).unwrap();
        let lanes = (0..rings).map(|_| {
            let ring = pinned(device, SHAPE.bytes());
            // SAFETY: the memory is new, and the ring's.
            unsafe { target.add_ring(ring.clone(), SHAPE) }.unwrap();
            // SAFETY: likewise.
            unsafe { Lane::new(ring, SHAPE) }.unwrap()
        });
        let lanes = lanes.collect();
        for (queue, width) in [(0, 1), (1, 32)] {
            target.register_queue(queue, width).unwrap();
        }
        Bench { device: Arc::clone(device), target, lanes }
    }

    /// Registers a function over a new buffer of so many bytes, of which it gives the words.
    fn register(
        &mut self,
        index: u8,
        function: DeviceFunction,
        buffer: u64,
        payload_max: u32,
    ) -> Words {
        let lease = pinned(&self.device, buffer);
        let kernel = DeviceKernel::new(function, payload_max).buffer(lease.clone()).signal(index);
        // SAFETY: the buffer is new, and looked at as words alone.
        unsafe { self.target.register_kernel(index, Some(kernel)) }.unwrap();
        words(&lease)
    }

    fn post(&mut self, buffer: Lease) {
        // SAFETY: nobody else has it.
        unsafe { self.target.post(buffer) }.unwrap();
    }

    fn try_put(&mut self, lane: usize, put: &Put<'_>) -> bool {
        let put = self.lanes[lane].put(&put.packet(), [&put.arguments(), put.payload]).is_ok();
        self.lanes[lane].announce();
        put
    }

    fn outcome(&mut self, lane: usize) -> PutOutcome {
        let start = Instant::now();
        loop {
            if let Some((_, outcome)) = self.lanes[lane].next() {
                return outcome;
            }
            if start.elapsed() > Duration::from_micros(50) {
                self.lanes[lane].is_served();
                self.target.advance().unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "it never came: {:?}", self.target.why_gone());
            std::hint::spin_loop();
        }
    }

    /// Waits for a count of the worker's: it comes behind the statuses.
    fn comes_to(&self, count: impl Fn(&WorkerTarget) -> u64, number: u64) {
        let start = Instant::now();
        while count(&self.target) != number {
            assert!(start.elapsed() < PATIENCE, "{} of {number}", count(&self.target));
            std::hint::spin_loop();
        }
    }

    fn run(&mut self, put: &Put<'_>) -> PutOutcome {
        assert!(self.try_put(0, put));
        self.outcome(0)
    }

    /// Puts a task that never ends by itself, and aborts the worker some time after it has begun.
    fn abort_in(&mut self, put: &Put<'_>) -> PutOutcome {
        assert!(self.try_put(0, put));
        let begun = Instant::now();
        while !self.target.is_running() {
            self.target.advance().unwrap();
            assert!(begun.elapsed() < PATIENCE);
        }
        std::thread::sleep(Duration::from_millis(5));
        self.target.abort().unwrap();
        self.outcome(0)
    }
}

#[derive(Clone, Copy)]
struct Put<'p> {
    index: u8,
    queue: u8,
    launch: Launch,
    words: &'p [u64],
    payload: &'p [u8],
}

impl Put<'_> {
    fn packet(&self) -> Packet {
        let argument_bytes = u16::try_from(16 + 8 * self.words.len()).unwrap();
        let command = Command {
            index: self.index,
            queue: self.queue,
            flags: Flags::empty(),
            object: 0,
            signal: 0,
            payload_bytes: u32::try_from(self.payload.len()).unwrap(),
            work: TaskWork::Kernel(Launch { argument_bytes, ..self.launch }),
        };
        Packet::new(&command).unwrap()
    }

    fn arguments(&self) -> Vec<u8> {
        [u64::MAX, u64::MAX].iter().chain(self.words).flat_map(|word| word.to_le_bytes()).collect()
    }
}

fn device(test: &str) -> Option<Arc<CudaDevice>> {
    devices_alone(test).first().cloned()
}

#[test]
fn the_worker_rewrites_as_the_host_does() {
    let Some(device) = device("worker, rewrite") else { return };
    // SAFETY: CUDA's tools made the image, and it is compiled into this program.
    let function = unsafe { Module::load(&device, IMAGE) }.unwrap().function(REWRITE).unwrap();
    let tables = sample::tables();
    let (mut rows, mut packets, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for table in 0..2 {
        for index in 0..u8::try_from(ENTRIES).unwrap() {
            let entry = if table == 0 { tables.function(index) } else { tables.kernel(index) }
                .unwrap_or_default();
            let limits = u64::from(entry.payload_max) | u64::from(entry.argument_bytes) << 32;
            rows.extend([
                0,
                entry.object,
                entry.buffer,
                entry.buffer_bytes,
                entry.signal,
                limits,
                0,
                0,
            ]);
        }
    }
    for index in 0..u8::try_from(ENTRIES).unwrap() {
        let queue = tables.queue(index).unwrap_or_default();
        rows.extend([0, queue.base, queue.capacity.into(), 0, 0, 0, 0, 0]);
    }
    for (packet, place) in sample::packets(sample::PACKETS) {
        packets.extend_from_slice(packet.as_bytes());
        places.extend([place.arguments, place.payload]);
    }
    let to_device = |bytes: &[u8]| {
        let region = device.allocate(bytes.len() as u64).unwrap();
        // SAFETY: both live until the wait ends.
        unsafe { device.copy(region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
        region
    };
    let inputs = [packets, places.as_bytes().to_vec(), rows.as_bytes().to_vec()]
        .map(|bytes| to_device(&bytes));
    let mut out = vec![0u8; 96 * sample::PACKETS];
    let results = device.allocate(out.len() as u64).unwrap();
    let arguments = [
        inputs[0].start(),
        inputs[1].start(),
        inputs[2].start(),
        results.start(),
        sample::PACKETS as u64,
    ];
    let stream = device.stream().unwrap();
    // SAFETY: five parameters of 8 bytes; memory as `worker::REWRITE` says, which lives until the copy has ended.
    unsafe {
        function.launch(&stream, Grid::line(128, 256), &arguments.each_ref().map(Argument::of))
    }
    .unwrap();
    let done = stream.record().unwrap();
    // SAFETY: as above.
    unsafe { device.copy(Region::of_mut(&mut out), results, &[done]) }.unwrap().wait().unwrap();
    let (mut digest, mut tasks) = (sample::Digest::new(), 0);
    for (at, bytes) in out.as_chunks::<96>().0.iter().enumerate() {
        let word = |word: usize| u64::from_le_bytes(bytes[8 * word..][..8].try_into().unwrap());
        // Of a refusal the digest has its code alone.
        let rewritten: Result<Rewritten, RewriteError> = match word(11) {
            255 => Ok(Rewritten {
                packet: Packet::read(&bytes[..64]).unwrap(),
                first: [word(8), word(9)],
                queue: QueueEntry { base: word(10), capacity: 0 },
            }),
            0 => Packet::read(&[0; 64])
                .unwrap()
                .sent()
                .map(|_| unreachable!())
                .map_err(RewriteError::from),
            1 => Err(RewriteError::NotRegistered { index: 0, kernel: true }),
            2 => Err(RewriteError::NoQueue { index: 0 }),
            3 => Err(RewriteError::PayloadTooLong { bytes: 0, max: 0 }),
            4 => Err(RewriteError::Arguments { bytes: 0, registered: 0 }),
            code => panic!("packet {at}: code {code}"),
        };
        tasks += usize::from(rewritten.is_ok());
        digest.add(&rewritten);
    }
    assert_eq!((tasks, digest.value()), sample::KNOWN);
    for region in inputs.into_iter().chain([results]) {
        // SAFETY: all work has ended.
        unsafe { device.free(region) }.unwrap();
    }
}

/// What the host makes of an element, as bits.
fn combined(what: Accumulate, a: u64, b: u64) -> u64 {
    fn low(word: u64) -> u32 {
        u32::try_from(word & u64::from(u32::MAX)).unwrap()
    }
    macro_rules! of {
        ($type:ty, $from:expr, $to:expr, $add:expr, $mul:expr) => {{
            let (from, to): (fn(u64) -> $type, fn($type) -> u64) = ($from, $to);
            let (add, mul): (fn($type, $type) -> $type, fn($type, $type) -> $type) = ($add, $mul);
            let (a, b) = (from(a), from(b));
            to(match what.0 {
                Combine::Sum => add(a, b),
                Combine::Prod => mul(a, b),
                Combine::Min => {
                    if b < a {
                        b
                    } else {
                        a
                    }
                }
                Combine::Max => {
                    if b > a {
                        b
                    } else {
                        a
                    }
                }
            })
        }};
    }
    match what.1 {
        Element::I32 => of!(
            i32,
            |w| low(w).cast_signed(),
            |v: i32| u64::from(v.cast_unsigned()),
            i32::wrapping_add,
            i32::wrapping_mul
        ),
        Element::U32 => of!(u32, low, u64::from, u32::wrapping_add, u32::wrapping_mul),
        Element::I64 => {
            of!(i64, u64::cast_signed, i64::cast_unsigned, i64::wrapping_add, i64::wrapping_mul)
        }
        Element::U64 => of!(u64, |w| w, |v| v, u64::wrapping_add, u64::wrapping_mul),
        Element::F32 => of!(
            f32,
            |w| f32::from_bits(low(w)),
            |v: f32| u64::from(v.to_bits()),
            |a, b| a + b,
            |a, b| a * b
        ),
        Element::F64 => of!(f64, f64::from_bits, f64::to_bits, |a, b| a + b, |a, b| a * b),
    }
}

const OPERATIONS: [Combine; 4] = [Combine::Sum, Combine::Prod, Combine::Min, Combine::Max];
const ELEMENTS: [(Element, usize); 6] = [
    (Element::I32, 4),
    (Element::U32, 4),
    (Element::I64, 8),
    (Element::U64, 8),
    (Element::F32, 4),
    (Element::F64, 8),
];

/// Elements as bits: of floats, small numbers.
fn element(rng: &mut Rng, what: Element) -> u64 {
    let number = i32::try_from(rng.below(200)).unwrap() - 100;
    match what {
        Element::F32 => u64::from((number as f32).to_bits()),
        Element::F64 => f64::from(number).to_bits(),
        Element::I32 | Element::U32 => rng.below(1 << 32),
        _ => rng.below(u64::MAX),
    }
}

fn elements_of(bytes: &[u8], size: usize) -> Vec<u64> {
    let of = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks_exact(size).map(of).collect()
}

/// So many elements of so many bytes each.
fn random(rng: &mut Rng, kind: Element, size: usize, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| element(rng, kind).to_le_bytes()[..size].to_vec()).collect()
}

/// As [`combined`], of all elements.
fn combined_bytes(what: Accumulate, size: usize, old: &[u8], new: &[u8]) -> Vec<u8> {
    let pairs = elements_of(old, size).into_iter().zip(elements_of(new, size));
    pairs.flat_map(|(a, b)| combined(what, a, b).to_le_bytes()[..size].to_vec()).collect()
}

fn bytes_of(words: &Words) -> Vec<u8> {
    words.all().iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect()
}

fn set(words: &Words, bytes: &[u8]) {
    for (word, bytes) in words.all().iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Release);
    }
}

/// Accumulates, copies and reduces of every element and operation, of lengths inside slots and beyond, over grids of all
/// kinds.
#[test]
fn tasks_do_what_the_host_does() {
    let Some(device) = device("worker, tasks") else { return };
    let mut rng = rng("worker, tasks");
    let mut bench = Bench::new(&device, LIFE, 1);
    let accumulated = bench.register(0, DeviceFunction::Accumulate, 65536, 65536);
    let copied = bench.register(1, DeviceFunction::Copy, 65536, 65536);
    let reduced = bench.register(2, DeviceFunction::Reduce, 65536, 0);
    bench.post(pinned(&device, 65536));
    let on_device = device.allocate(4096).unwrap();
    // SAFETY: it is never freed: the device is the process's last to go.
    let on_device = unsafe { Lease::kept_by_caller(on_device) };
    bench.post(on_device);
    for round in 0..cases(300) {
        let lengths = [1, 2, 9, 16, 17, 64, 500, 4000];
        let (kind, size) = ELEMENTS[usize::try_from(rng.below(6)).unwrap()];
        let what = Accumulate(OPERATIONS[usize::try_from(rng.below(4)).unwrap()], kind);
        let count = lengths[usize::try_from(rng.below(8)).unwrap()];
        let groups = u32::try_from(1 + rng.below(5)).unwrap();
        let items =
            u16::try_from([1, 16, 64, 100, 512][usize::try_from(rng.below(5)).unwrap()]).unwrap();
        let launch = Launch::linear(groups, items, 0);
        let offset = rng.below(1000) * 8;
        let mut random = |len| random(&mut rng, kind, size, len);
        let (before, more) = (random(65536 / size), random(count));
        let name =
            format!("round {round}: {what:?} of {count}, {groups} groups of {items}, at {offset}");
        let from = usize::try_from(offset).unwrap();
        let sum = |old: &[u8], new: &[u8]| combined_bytes(what, size, old, new);
        set(&accumulated, &before);
        let put = Put { index: 0, queue: 1, launch, words: &[offset, what.word()], payload: &more };
        assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
        let mut expected = before.clone();
        expected[from..from + more.len()]
            .copy_from_slice(&sum(&before[from..from + more.len()], &more));
        assert!(bytes_of(&accumulated) == expected, "accumulate, {name}");
        set(&copied, &before);
        let odd = &more[..more.len() - 1];
        let put = Put { index: 1, queue: 0, launch, words: &[offset + 3], payload: odd };
        assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
        let mut expected = before.clone();
        expected[from + 3..from + 3 + odd.len()].copy_from_slice(odd);
        assert!(bytes_of(&copied) == expected, "copy, {name}");
        set(&reduced, &before);
        let words = [offset, 32768, count as u64, what.word()];
        let put = Put { index: 2, queue: 1, launch, words: &words, payload: &[] };
        // They overlap where the offset is large: then elements are combined in any order.
        if from + more.len() <= 32768 && 32768 + more.len() <= 65536 {
            assert_eq!(bench.run(&put), PutOutcome::Ended, "{name}");
            let mut expected = before.clone();
            let new = sum(&before[from..from + more.len()], &before[32768..32768 + more.len()]);
            expected[from..from + more.len()].copy_from_slice(&new);
            assert!(bytes_of(&reduced) == expected, "reduce, {name}");
        }
    }
    bench.comes_to(|target| target.counted(0), cases(300));
    // A grid of three dimensions: each work-item once.
    let numbered = bench.register(3, DeviceFunction::Number, 65536, 0);
    for (grid, group) in [
        ([8, 4, 6], [4, 2, 3]),
        ([1, 1, 1], [1, 1, 1]),
        ([4096, 4, 1], [512, 1, 1]),
        ([7, 5, 3], [7, 5, 3]),
    ] {
        set(&numbered, &[0; 65536]);
        let launch = Launch { grid, group, ..Launch::linear(1, 1, 0) };
        let put = Put { index: 3, queue: 0, launch, words: &[], payload: &[] };
        assert_eq!(bench.run(&put), PutOutcome::Ended);
        let items: u32 = grid.iter().product();
        let seen = elements_of(&bytes_of(&numbered), 4);
        assert!(
            seen.iter().enumerate().all(|(at, &seen)| seen == u64::from(at < items as usize)),
            "{grid:?}"
        );
    }
    // What leaves the buffer, or says nothing.
    let one = Launch::linear(1, 16, 0);
    let word = Accumulate(Combine::Sum, Element::U64).word();
    let fails = [
        (0, vec![65536 - 8, word], Failure::Outside),
        (0, vec![4, word], Failure::Outside),
        (0, vec![u64::MAX - 7, word], Failure::Outside),
        (0, vec![0, 9], Failure::Unknown),
        (1, vec![65536 - 15], Failure::Outside),
        (2, vec![0, 65536 - 8, 2, word], Failure::Outside),
        (2, vec![0, 0, 1 << 60, word], Failure::Unknown),
    ];
    for (index, words, why) in fails {
        let payload: &[u8] = if index == 2 { &[] } else { &[1; 16] };
        let put = Put { index, queue: 0, launch: one, words: &words, payload };
        assert_eq!(bench.run(&put), PutOutcome::Failed(why), "{index} {words:?}");
    }
    let wide = Put {
        index: 3,
        queue: 0,
        launch: Launch { grid: [1 << 31, 1 << 31, 4], ..one },
        words: &[],
        payload: &[],
    };
    let wide = Put { launch: Launch { group: [1, 1, 1], ..wide.launch }, ..wide };
    assert_eq!(bench.run(&wide), PutOutcome::Refused(Refusal::Grid));
    let large =
        Put { index: 1, queue: 0, launch: Launch::linear(1, 513, 0), words: &[0], payload: &[] };
    assert_eq!(bench.run(&large), PutOutcome::Refused(Refusal::Group { items_max: 512 }));
    let long = vec![0; 65537];
    let long = Put { index: 1, queue: 0, launch: one, words: &[0], payload: &long };
    assert_eq!(bench.run(&long), PutOutcome::Refused(Refusal::PayloadTooLong { max: 65536 }));
    drop(bench.target.take_posted().unwrap());
    let put = Put { index: 1, queue: 0, launch: one, words: &[0], payload: &[1] };
    assert_eq!(bench.run(&put), PutOutcome::Refused(Refusal::NoReceiveBuffer));
}
