//! The code of `docs/xtq.md`, and of `docs/worker.md`.

use super::Outcome;
use gapless::xtq::{
    CudaWorker, Function, Lease, Put, QueueOptions, Rank, Signal, TargetBuffer, Tasks,
};
use gapless::{CudaDevice, Datatype, Primitive, World};
use gapless_xtq::packet::Packet;
use std::sync::Arc;

#[derive(Datatype)]
#[repr(C)]
struct Rectangle {
    w: f64,
    h: f64,
}

#[gapless::task]
fn area(shape: Rectangle, scale: f64) -> f64 {
    shape.w * shape.h * scale
}

#[rustfmt::skip] // as on the page
fn calls(world: &World) -> Result<f64, gapless::Error> {
    let tasks = world.xtq();
    tasks.register_task::<area>()?;
    world.comm().barrier()?; // nobody calls before all have registered
    let next = Rank((world.rank() + 1) % world.size());
    let answer = tasks.call(next, area(Rectangle { w: 3.0, h: 2.0 }, 2.0))?; // begins; never waits
    let value: f64 = answer.wait()?; // or `.await`
    Ok(value)
}

fn functions(world: &World) -> Outcome {
    let tasks = world.xtq();
    // Everybody lets the others add to a sum here.
    let sum = TargetBuffer::new(vec![0; 4]);
    let add = Function::new(4, |task| {
        let (payload, sum) = task.parts();
        sum.iter_mut().zip(payload).for_each(|(sum, more)| *sum += more);
        Ok(())
    });
    tasks.register_function(42, add.buffer(&sum))?;
    tasks.register_queue(42, QueueOptions::default())?;
    tasks.post(vec![0; 4]);
    world.comm().barrier()?; // nobody puts before all have registered
    let done = tasks.signal(1);
    let next = Rank((world.rank() + 1) % world.size());
    tasks.put(Put::function(next, 42, 42, [0, 0]).payload(vec![1, 2, 3, 4]).signal(&done))?;
    tasks.wait(&done)?; // the task has run there

    assert_eq!(sum.with(|sum| sum.to_vec()), [1, 2, 3, 4]);
    Ok(())
}

/// Puts a column of a matrix behind four bytes, and gives what the task of the function finds.
fn pieces(world: &World) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let tasks = world.xtq();
    let found = TargetBuffer::new(vec![0; 16]);
    let keep = Function::new(16, |task| {
        let (payload, found) = task.parts();
        found[..payload.len()].copy_from_slice(payload);
        Ok(())
    });
    tasks.register_function(42, keep.buffer(&found))?;
    tasks.register_queue(42, QueueOptions::default())?;
    tasks.post(vec![0; 16]);
    let (next, done) = (Rank(0), tasks.signal(1));

    use gapless::xtq::{Payload, by_layout};
    let matrix: Arc<[f32]> = (0..12u8).map(f32::from).collect(); // 3 × 4
    let column = Datatype::vector(3, 1, 4, &Primitive::of::<f32>().into())?.commit()?;
    let head = vec![1, 2, 3, 4];
    let payload = Payload::pieces([head.into(), by_layout(&matrix, 1, &column, 1)?]);
    tasks.put(Put::function(next, 42, 42, [0, 0]).payload(payload).signal(&done))?;

    tasks.wait(&done)?;
    Ok(found.with(|found| found.to_vec()))
}

#[test]
fn the_examples_of_tasks_run() {
    let world = World::init().unwrap();
    assert_eq!(calls(&world), Ok(12.0));
    functions(&world).unwrap();
    let column = [1.0f32, 5.0, 9.0].map(f32::to_ne_bytes).concat();
    assert_eq!(pieces(&world).unwrap(), [&[1, 2, 3, 4], &column[..]].concat());
    world.finalize().unwrap();
}

fn rings(
    device: Arc<CudaDevice>,
    [shared_memory, receive_buffer, sums]: [Lease; 3],
    packet: Packet,
    [arguments, payload]: [Vec<u8>; 2],
) -> Outcome {
    use gapless_xtq::device::{DeviceFunction, DeviceKernel, Lane, Life, RingShape, WorkerTarget};
    // The target.
    let worker = Arc::new(gapless_dtype_cuda::CudaWorker::new(device)?);
    let mut target = WorkerTarget::new(worker, Life::default())?;
    unsafe { target.add_ring(shared_memory.clone(), RingShape::default()) }?;
    unsafe { target.post(receive_buffer) }?;
    let accumulate = DeviceKernel::new(DeviceFunction::Accumulate, 4096).buffer(sums);
    unsafe { target.register_kernel(7, Some(accumulate)) }?;
    target.register_queue(0, 1)?;
    // The initiator, with the same memory.
    let mut lane = unsafe { Lane::new(shared_memory, RingShape::default()) }?;
    lane.put(&packet, [&arguments, &payload])?;
    lane.announce();
    while lane.next().is_none() {}
    Ok(())
}

fn blocks(device: Arc<CudaDevice>) -> Result<Arc<CudaWorker>, gapless_dtype_cuda::WorkerError> {
    let worker = Arc::new(CudaWorker::with_blocks(device, 8)?); // CudaWorker::new: one
    Ok(worker)
}

#[rustfmt::skip] // as on the page
fn code(tasks: &Tasks, ptx: Vec<u8>, floats: Lease) -> Outcome {
    use gapless::xtq::{Kernel, WorkerCode};
    let code = unsafe { WorkerCode::new(ptx) }; // whoever makes this vouches for the code
    unsafe { tasks.register_kernel(7, Kernel::of_worker_from(&code, "scale", 16, 0).buffer(floats)) }?;
    Ok(())
}

#[rustfmt::skip] // as on the page
fn worker(
    world: &World,
    device: Arc<CudaDevice>,
    target: Rank,
    [sums, receive_buffer]: [Lease; 2],
    [arguments, payload]: [Vec<u8>; 2],
    done: Signal,
) -> Outcome {
    use gapless::xtq::{CudaWorker, DeviceFunction, Kernel, Launch, Life, Put, QueueOptions};
    let tasks = world.xtq();
    // The target.
    tasks.attach_worker(Arc::new(CudaWorker::new(device)?), Life::default())?;
    let accumulate = Kernel::of_worker(DeviceFunction::Accumulate, 4096).buffer(sums);
    unsafe { tasks.register_kernel(7, accumulate) }?;
    tasks.register_queue(0, QueueOptions::default())?;
    unsafe { tasks.post_to_worker(receive_buffer) }?;
    world.comm().barrier()?;
    // The initiator.
    tasks.put(Put::kernel(target, 7, 0, Launch::linear(1, 16, 32), arguments).payload(payload).signal(&done))?;
    tasks.wait(&done)?;
    Ok(())
}
