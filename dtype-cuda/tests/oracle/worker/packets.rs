//! The same random packets through the worker, and through the thread that plays one: outcome for outcome, and byte for
//! byte in the buffers. Most are short tasks that are in order in all but one thing, so the way of those (`quick.h`) meets
//! each of its conditions; they come one by one and in batches, by one ring and by two.

use super::*;
use gapless_xtq::device::mock_worker::{MockTask, MockWorker, memory};
use std::sync::Mutex;

/// Bytes of each buffer.
const BUFFER: usize = 4096;
const ADDS: Accumulate = Accumulate(Combine::Sum, Element::U64);
const HALVES: Accumulate = Accumulate(Combine::Sum, Element::U32);
const LEAST: Accumulate = Accumulate(Combine::Min, Element::U64);

/// Kernels of the tables: function, bytes of arguments, longest payload. Tasks of one commute, so that queues may run them
/// side by side.
const KERNELS: [(DeviceFunction, u16, u32); 6] = [
    (DeviceFunction::Accumulate, 32, 96),
    (DeviceFunction::Copy, 24, 128),
    (DeviceFunction::Number, 16, 0),
    (DeviceFunction::Accumulate, 48, 96),
    (DeviceFunction::Accumulate, 32, 4000),
    (DeviceFunction::Combine, 32, 64),
];
/// The grids that kernels allow: the third's is less.
const GRID_MAX: [[u32; 3]; 2] = [[256, 16, 8], [64, 8, 4]];

/// What the mock does in the place of the worker's functions, in these buffers. The first argument is a buffer's number.
fn play(buffers: &Mutex<Vec<Vec<u8>>>, task: &MockTask) -> Result<(), u32> {
    const OUTSIDE: u32 = 1;
    const UNKNOWN: u32 = 2;
    let mut buffers = buffers.lock().unwrap();
    let which = usize::try_from(task.arguments[0]).unwrap();
    let buffer = &mut buffers[which];
    let inside = |offset: u64, bytes: usize| {
        offset <= BUFFER as u64 && bytes as u64 <= BUFFER as u64 - offset
    };
    let (offset, what) =
        (task.arguments.get(2).copied().unwrap_or(0), task.arguments.get(3).copied());
    match task.object {
        object if object == DeviceFunction::Number as u64 => {
            let items: u64 = task.launch.grid.iter().map(|&items| u64::from(items)).product();
            if items * 4 > BUFFER as u64 {
                return Err(OUTSIDE);
            }
            for number in buffer.as_chunks_mut::<4>().0.iter_mut().take(items.try_into().unwrap()) {
                *number = (u32::from_le_bytes(*number) + 1).to_le_bytes();
            }
        }
        object if object == DeviceFunction::Copy as u64 => {
            if !inside(offset, task.payload.len()) {
                return Err(OUTSIDE);
            }
            let at = usize::try_from(offset).unwrap();
            buffer[at..at + task.payload.len()].copy_from_slice(&task.payload);
        }
        _ => {
            let Some(what) = [ADDS, HALVES, LEAST].into_iter().find(|one| Some(one.word()) == what)
            else {
                return Err(UNKNOWN);
            };
            let items: u64 = task.launch.grid.iter().map(|&items| u64::from(items)).product();
            if task.object == DeviceFunction::Combine as u64 && items > 4096 {
                return Err(UNKNOWN);
            }
            let size = if what == HALVES { 4 } else { 8 };
            if !inside(offset, task.payload.len())
                || !(offset | task.payload.len() as u64).is_multiple_of(size as u64)
            {
                return Err(OUTSIDE);
            }
            let at = usize::try_from(offset).unwrap();
            let old = &mut buffer[at..at + task.payload.len()];
            let pairs = elements_of(old, size).into_iter().zip(elements_of(&task.payload, size));
            let new: Vec<u8> = pairs
                .flat_map(|(a, b)| combined(what, a, b).to_le_bytes()[..size].to_vec())
                .collect();
            old.copy_from_slice(&new);
        }
    }
    Ok(())
}

/// A packet with its body: one of the kernels, in order, but for what chance changes.
fn random(rng: &mut Rng) -> (Packet, Vec<u8>, Vec<u8>) {
    let index = u8::try_from(rng.below(6)).unwrap();
    let (_, own_bytes, own_max) = KERNELS[usize::from(index)];
    let one_in = |rng: &mut Rng, chances: u64| rng.below(chances) == 0;
    let argument_bytes = if one_in(rng, 20) {
        [16, 24, 32, 40, 48, 160][usize::try_from(rng.below(6)).unwrap()]
    } else {
        own_bytes
    };
    let element = if index == 4 { 4 } else { 8 };
    let most = own_max.min(120) / element;
    let mut payload_bytes = u32::try_from(rng.below(u64::from(most) + 1)).unwrap() * element;
    if one_in(rng, 15) {
        payload_bytes = [1, 7, 12, 100, 128, 136, 200, 500][usize::try_from(rng.below(8)).unwrap()];
    }
    let sides = [1u32, 1, 1, 2, 3, 4, 8, 16, 32];
    let side = |rng: &mut Rng| sides[usize::try_from(rng.below(9)).unwrap()];
    let group = [
        side(rng),
        if one_in(rng, 3) { side(rng) } else { 1 },
        if one_in(rng, 6) { side(rng) } else { 1 },
    ];
    let grid = group.map(|side| side * u32::try_from(1 + rng.below(3)).unwrap());
    let launch = Launch {
        grid,
        group: group.map(|side| u16::try_from(side).unwrap()),
        argument_bytes,
        ..Launch::linear(1, 1, argument_bytes)
    };
    let command = Command {
        index: if one_in(rng, 60) { 6 + u8::try_from(rng.below(58)).unwrap() } else { index },
        queue: match (one_in(rng, 60), index) {
            (true, _) => 2 + u8::try_from(rng.below(62)).unwrap(),
            // Its tasks are not to meet others on the same elements.
            (false, 5) => 0,
            _ => u8::try_from(rng.below(2)).unwrap(),
        },
        flags: if one_in(rng, 4) { Flags::BARRIER } else { Flags::empty() },
        object: 0,
        signal: 0,
        payload_bytes,
        work: TaskWork::Kernel(launch),
    };
    let mut packet = Packet::new(&command).unwrap();
    if one_in(rng, 12) {
        // A bit of anything but index and queue, sequences, and what the body's lengths follow from, which its ring checks.
        let mut bytes: [u8; 64] = packet.as_bytes().try_into().unwrap();
        let at = usize::try_from(rng.below(64)).unwrap();
        if ![0, 1, 2, 4, 5, 16, 17, 32, 33, 44, 45, 48, 49, 52, 53, 54, 55].contains(&at) {
            bytes[at] ^= 1 << rng.below(8);
        }
        packet = Packet::read(&bytes).unwrap();
    }
    let offset = match rng.below(20) {
        0 => rng.below(5000),
        1 => u64::MAX - rng.below(64),
        _ => rng.below((BUFFER as u64 - 128) / 8) * 8,
    };
    let what = match (index, one_in(rng, 20)) {
        (_, true) => 9 + rng.below(3),
        (4, _) => HALVES.word(),
        (5, _) => LEAST.word(),
        _ => ADDS.word(),
    };
    let words = [u64::MAX, u64::MAX, offset, what, rng.below(u64::MAX), 0];
    let mut arguments: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    arguments.resize(argument_bytes.into(), 0);
    let payload = (0..u64::from(payload_bytes))
        .map(|at| {
            // Copies agree on what a byte is, so that their order does not matter.
            let place = offset.wrapping_add(at);
            let byte = if index == 1 { place.wrapping_mul(7) >> 1 } else { rng.below(256) };
            byte.to_le_bytes()[0]
        })
        .collect();
    (packet, arguments, payload)
}

/// A target over a worker, with the kernels, and the initiators' ends.
struct End {
    target: WorkerTarget,
    lanes: Vec<Lane>,
}

impl End {
    fn new(
        mut target: WorkerTarget,
        rings: usize,
        ring: impl Fn() -> Lease,
        buffers: &[Lease],
        receive: Lease,
    ) -> End {
        let lanes = (0..rings).map(|_| {
            let ring = ring();
            // SAFETY: the memory is new, and the ring's.
            unsafe { target.add_ring(ring.clone(), SHAPE) }.unwrap();
            // SAFETY: likewise.
            unsafe { Lane::new(ring, SHAPE) }.unwrap()
        });
        let lanes = lanes.collect();
        target.register_queue(0, 1).unwrap();
        target.register_queue(1, 32).unwrap();
        for (index, (function, argument_bytes, payload_max)) in (0u8..).zip(KERNELS) {
            let mut kernel = DeviceKernel::new(function, payload_max)
                .argument_bytes(argument_bytes)
                .grid_max(GRID_MAX[usize::from(index == 2)])
                .buffer(buffers[usize::from(index)].clone());
            if index % 2 == 0 {
                kernel = kernel.signal(index);
            }
            // SAFETY: the buffer is looked at when its tasks have ended.
            unsafe { target.register_kernel(index, Some(kernel)) }.unwrap();
        }
        // SAFETY: nobody else has it.
        unsafe { target.post(receive) }.unwrap();
        End { target, lanes }
    }

    /// What became of the next `count` puts of a lane.
    fn outcomes(&mut self, lane: usize, count: usize) -> Vec<PutOutcome> {
        let start = Instant::now();
        let mut found = Vec::new();
        while found.len() < count {
            match self.lanes[lane].next() {
                Some((_, outcome)) => found.push(outcome),
                None => {
                    self.lanes[lane].is_served();
                    self.target.advance().unwrap();
                    assert!(
                        start.elapsed() < PATIENCE,
                        "it never came: {:?}",
                        self.target.why_gone()
                    );
                    std::thread::yield_now();
                }
            }
        }
        found
    }
}

fn compare(device: &Arc<CudaDevice>, rings: usize, packets: u64, rng: &mut Rng) {
    let worker = Arc::new(CudaWorker::new(Arc::clone(device)).unwrap());
    let buffers: Vec<Lease> = KERNELS.map(|_| pinned(device, BUFFER as u64)).into();
    let found: Vec<Words> = buffers.iter().map(words).collect();
    let mut real = End::new(
        WorkerTarget::new(worker, LIFE).unwrap(),
        rings,
        || pinned(device, SHAPE.bytes()),
        &buffers,
        pinned(device, 256),
    );
    let played = Arc::new(Mutex::new(vec![vec![0u8; BUFFER]; KERNELS.len()]));
    let plays = Arc::clone(&played);
    // The mock's buffers have addresses alone.
    let all = memory((KERNELS.len() * BUFFER) as u64).unwrap();
    let first = all.region().start();
    let mock = MockWorker::new(move |task| {
        let mut task = task.clone();
        task.arguments[0] = (task.arguments[0] - first) / BUFFER as u64;
        play(&plays, &task)
    });
    let own: Vec<Lease> = (0..KERNELS.len())
        .map(|at| all.sub((at * BUFFER) as u64, BUFFER as u64).unwrap())
        .collect();
    let mut model = End::new(
        WorkerTarget::new(mock, LIFE).unwrap(),
        rings,
        || memory(SHAPE.bytes()).unwrap(),
        &own,
        memory(256).unwrap(),
    );
    let (mut put, mut kinds) = (0u64, [0u64; 3]);
    while put < packets {
        let lane = usize::try_from(rng.below(rings as u64)).unwrap();
        // Mostly one; else a batch.
        let count = if rng.below(3) == 0 { 1 + rng.below(60) } else { 1 };
        let batch: Vec<_> = (0..count).map(|_| random(rng)).collect();
        for (packet, arguments, payload) in &batch {
            for end in [&mut real, &mut model] {
                end.lanes[lane].put(packet, [arguments, payload]).unwrap();
            }
        }
        for end in [&mut real, &mut model] {
            end.lanes[lane].announce();
        }
        let (real, model) = (real.outcomes(lane, batch.len()), model.outcomes(lane, batch.len()));
        for ((at, packet), (real, model)) in batch.iter().enumerate().zip(real.iter().zip(&model)) {
            assert_eq!(real, model, "put {} of {packets}: {packet:?}", put + at as u64);
            let kind = match real {
                PutOutcome::Ended => 0,
                PutOutcome::Failed(_) => 1,
                _ => 2,
            };
            kinds[kind] += 1;
        }
        put += count;
    }
    let played = played.lock().unwrap();
    for (index, (found, played)) in found.iter().zip(&*played).enumerate() {
        assert!(bytes_of(found) == *played, "the buffer of kernel {index}");
    }
    for signal in [0, 2, 4] {
        let model = model.target.counted(signal);
        let start = Instant::now();
        while real.target.counted(signal) != model {
            assert!(start.elapsed() < PATIENCE, "signal {signal} of {model}");
        }
    }
    println!("{rings} rings: {} ended, {} failed, {} refused", kinds[0], kinds[1], kinds[2]);
    assert!(kinds.iter().all(|kind| *kind > put / 100), "{kinds:?}");
}

#[test]
fn random_packets_fare_as_with_the_thread_that_plays_the_worker() {
    let Some(device) = device("worker, packets") else { return };
    let mut rng = rng("worker, packets");
    compare(&device, 1, cases(60_000), &mut rng);
    compare(&device, 2, cases(40_000), &mut rng);
}
