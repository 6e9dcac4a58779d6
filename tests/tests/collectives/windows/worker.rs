//! Accumulations that the worker of each rank's accelerator does, which a thread plays: random programs against the model,
//! by rings and by messages; what such windows refuse; and what ranks have to agree on.

use super::model::{Shape, combined};
use super::{Path, Random, ranks, why, worlds};
use gapless::xtq::{DeviceFunction, Life};
use gapless::{
    Accumulations, AnyBits, Equivalence, Error, Lock, Place, Primitive, ReduceOp, View,
    WindowError, World,
};
use gapless_xtq::device::mock_worker::{MockTask, MockWorker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a window that a rank has for itself in a round.
const STRETCH: usize = 512;
/// Of all ranks, in front of those: numbers to which all add.
const COMMON: usize = 256;
const ELEMENTS: usize = 16;
const ROUNDS: usize = 8;
const OPERATIONS: usize = 8;
const TYPES: [Primitive; 6] = [
    Primitive::Int,
    Primitive::Unsigned,
    Primitive::Int64,
    Primitive::Uint64,
    Primitive::Float,
    Primitive::Double,
];
const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max];

/// What `kernels/cuda/tasks.h` does.
pub(super) fn play(task: &MockTask) -> Result<(), u32> {
    let does = [DeviceFunction::Accumulate, DeviceFunction::Combine].map(|it| it as u64);
    assert!(does.contains(&task.object), "{task:?}");
    let [buffer, _, offset, word] = task.arguments[..] else { return Err(2) };
    let (op, element) = (word.to_le_bytes()[0], word.to_le_bytes()[1]);
    let op = OPS.get(usize::from(op)).ok_or(2u32)?;
    let element = *TYPES.get(usize::from(element)).ok_or(2u32)?;
    let bytes = task.payload.len() as u64;
    if offset + bytes > task.buffer_bytes || !bytes.is_multiple_of(element.size_bytes()) {
        return Err(1);
    }
    let place = |at: usize| {
        let address = usize::try_from(buffer + offset).unwrap() + at;
        // SAFETY: the buffer is the window's, of which these bytes lie inside; all touch it by atomic accesses.
        unsafe { AtomicU8::from_ptr(std::ptr::with_exposed_provenance_mut(address)) }
    };
    let all = 0..task.payload.len();
    let old: Vec<u8> = all.clone().map(|at| place(at).load(Ordering::Relaxed)).collect();
    let new = combined(*op, element, &old, &task.payload);
    all.zip(new).for_each(|(at, byte)| place(at).store(byte, Ordering::Relaxed));
    Ok(())
}

fn attach(world: &World, ran: &Arc<AtomicU64>) {
    let ran = Arc::clone(ran);
    let mock = MockWorker::new(move |task| {
        ran.fetch_add(1, Ordering::Relaxed);
        play(task)
    });
    // It leaves often.
    let life = Life { idle: Some(Duration::from_micros(200)), ..Life::default() };
    world.attach_window_worker(mock, life).unwrap();
}

struct Operation {
    /// An accumulation, or a put.
    op: Option<ReduceOp>,
    target: usize,
    at: usize,
    here: Shape,
    there: Shape,
    data: Vec<u8>,
}

fn operation(random: &mut Random, size: usize, base: usize) -> Operation {
    let element = TYPES[random.below(TYPES.len())];
    let elements = 1 + random.below(ELEMENTS);
    let [here, there] = [(); 2].map(|()| Shape::random(random, element, elements));
    let mut data = random.bytes(4 * ELEMENTS * 8);
    // Floats may be anything but NaN.
    data.iter_mut().for_each(|byte| *byte &= 0x3F);
    let op = random.below(5);
    let target = random.below(size);
    Operation { op: OPS.get(op).copied(), target, at: base, here, there, data }
}

fn run(path: Path, world: &World, seed: u64) {
    let (comm, ran) = (world.comm(), Arc::new(AtomicU64::new(0)));
    attach(world, &ran);
    let (size, me) = (comm.size() as usize, comm.rank() as usize);
    let bytes = COMMON + STRETCH * size;
    let mut window = path.builder(comm).accumulate_by_worker().allocate::<u8>(bytes).unwrap();
    assert_eq!(window.accumulations(), Accumulations::Worker);
    let mut windows = vec![vec![0u8; bytes]; size];
    let mut random = Random::new(seed);
    for round in 0..ROUNDS {
        window.fence().unwrap();
        for rank in 0..size {
            let base = COMMON + (rank + round) % size * STRETCH;
            for number in 0..OPERATIONS {
                let Operation { op, target, at, here, there, data } =
                    operation(&mut random, size, base);
                let memory = &mut windows[target][at..];
                let given = here.pack(&data);
                let old = there.pack(memory);
                let new = op.map_or(given.clone(), |op| combined(op, there.element, &old, &given));
                there.unpack(&new, memory);
                let common = &mut windows[target][8 * number..8 * number + 8];
                let sum = u64::from_ne_bytes(common.try_into().unwrap()) + round as u64;
                common.copy_from_slice(&sum.to_ne_bytes());
                if rank != me {
                    continue;
                }
                let target = u32::try_from(target).unwrap();
                let place = Place::typed(at as u64, &there.layout, there.count);
                let view = View::typed(&data[..], 0, &here.layout, here.count).unwrap();
                match op {
                    Some(op) => window.accumulate(view, target, place, op).unwrap(),
                    None => window.put(view, target, place).unwrap(),
                }
                let place = 8 * number as u64;
                window.accumulate(&[round as u64], target, place, ReduceOp::Sum).unwrap();
            }
        }
        window.fence_last().unwrap();
        let mut memory = vec![0u8; bytes];
        window.read(&mut memory, 0).unwrap();
        let wrong = memory.iter().zip(&windows[me]).position(|(found, model)| found != model);
        assert_eq!(wrong, None, "seed {seed} {path:?} round {round}");
        comm.barrier().unwrap();
    }
    // Longer than a task, and than a ring has room for.
    let long = vec![3u32; 100_000];
    let builder = path.builder(comm).accumulate_by_worker();
    let mut second = builder.allocate::<u32>(long.len()).unwrap();
    second.lock_all().unwrap();
    second.accumulate(&long, 0, 0, ReduceOp::Sum).unwrap();
    second.unlock_all().unwrap();
    comm.barrier().unwrap();
    if me == 0 {
        let mut found = vec![0u32; long.len()];
        second.read(&mut found, 0).unwrap();
        assert!(found.iter().all(|found| *found == 3 * comm.size()));
        assert!(ran.load(Ordering::Relaxed) > 8);
    }
    second.free().unwrap();
    window.free().unwrap();
}

#[test]
fn random_programs_do_what_the_model_does() {
    for path in [Path::Mapped, Path::Messages, Path::Narrow] {
        for size in 1..=3 {
            worlds(path, size, |world| run(path, world, size.into()));
        }
    }
}

#[test]
fn what_the_worker_does_not_do_is_refused() {
    worlds(Path::Mapped, 2, |world| {
        attach(world, &Arc::default());
        let comm = world.comm();
        let mut window = comm.window().accumulate_by_worker().allocate::<u64>(4).unwrap();
        window.lock(1, Lock::Shared).unwrap();
        let refused = |error| matches!(error, WindowError::NotByWorker { .. });
        assert!(refused(why(window.fetch_and_op(1u64, 1, 0, ReduceOp::Sum))));
        assert!(refused(why(window.compare_and_swap(1u64, 2, 1, 0))));
        assert!(refused(why(window.get_accumulate(&[1u64], &mut [0u64], 1, 0, ReduceOp::Sum))));
        assert!(refused(why(window.accumulate(&[1u64], 1, 0, ReduceOp::Bor))));
        assert!(refused(why(window.accumulate(&[1u64], 1, 0, ReduceOp::Replace))));
        let short = Place::typed(0, i16::layout(), 1);
        assert!(refused(why(window.accumulate(&[1i16], 1, short, ReduceOp::Sum))));
        window.accumulate(&[1u64], 1, 0, ReduceOp::Max).unwrap();
        window.unlock(1).unwrap();
        window.free().unwrap();
    });
}

/// What one rank has not, or does otherwise, all learn; nobody has the window then.
#[test]
fn ranks_agree_on_the_way_of_accumulations() {
    fn make<T: AnyBits>(world: &World, way: Accumulations) -> Result<gapless::Window<T>, Error> {
        let builder = world.comm().window();
        match way {
            Accumulations::Ordinary => builder.allocate(3),
            Accumulations::Tasks => builder.accumulate_by_tasks().allocate(3),
            _ => builder.accumulate_by_worker().allocate(3),
        }
    }
    worlds(Path::Mapped, 3, |world| {
        let me = world.rank();
        let ways = [Accumulations::Ordinary, Accumulations::Tasks, Accumulations::Ordinary];
        let error = why(make::<u32>(world, ways[me as usize]));
        assert!(matches!(error, WindowError::Differs { .. }), "{error}");
        if me != 1 {
            attach(world, &Arc::default());
        }
        let error = why(make::<u32>(world, Accumulations::Worker));
        match me {
            1 => assert!(matches!(error, WindowError::Transport { .. }), "{error}"),
            _ => assert!(matches!(error, WindowError::Unable { rank: 1, .. }), "{error}"),
        }
        if me == 1 {
            attach(world, &Arc::default());
        }
        let window = make::<u32>(world, Accumulations::Worker).unwrap();
        window.free().unwrap();
    });
    ranks(Path::Mapped, 2, |comm| {
        let error = why(comm.window().accumulate_by_tasks().dynamic());
        assert!(matches!(error, WindowError::Flavor { .. }), "{error}");
    });
}
