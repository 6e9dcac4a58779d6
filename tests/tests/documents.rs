//! The code of the guides compiles: each piece stands here in a function, and is compared with the page.
#![allow(dead_code, reason = "what a GPU would do is compiled, not run")]
#![allow(unsafe_code, reason = "views of memory of devices")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the pages say what must hold")]

use gapless::coll::reshard::{Placement, Reshard, Sharding};
use gapless::{
    Collective, Communicator, CudaDriver, CudaStream, Equivalence, GpuEngine, InPlace, Layout,
    Primitive, ReduceOp, Region, Registered, Scope, Space, StreamBlock, StreamComm,
    StreamPartitions, Subarray, View, ViewMut, Workers, World, in_space,
};
use gapless_engine::{Engine, Typed};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

#[path = "documents/tasks.rs"]
mod tasks;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn gpu_packing(memory: Region, packed: Region, layout: &Layout) -> Outcome {
    let layout = layout.clone();
    let device = Arc::new(CudaDriver::load()?.device(0)?); // or OpenClDevice::open(0)?
    let engine = GpuEngine::cuda(Arc::clone(&device))?; // or GpuEngine::opencl(device)?
    let source = Typed::new(memory, 0, &layout, 1)?; // any committed layout in a Region
    let done = unsafe { engine.pack(&source, 0..source.packed_bytes(), packed, &[]) }?;
    done.wait()?; // or hand `done` to what comes after it
    Ok(())
}

fn gpu_messages(comm: &Communicator, memory: Region, layout: &Layout) -> Outcome {
    let layout = layout.clone();
    comm.send(unsafe { View::of_region(memory, 0, &layout, 1) }?, 1, 0)?; // on rank 0
    comm.recv(unsafe { ViewMut::of_region(memory, 0, &layout, 1) }?, 0, 0)?; // on rank 1, which may use host memory
    Ok(())
}

fn gpu_short_copies() -> Outcome {
    let world = World::builder().workers(Workers::Idle(Duration::from_micros(100))).init()?;
    Ok(world.finalize()?)
}

fn gpu_pointers(comm: &Communicator, pointer: *const c_void, doubles: &Layout) -> Outcome {
    let doubles = doubles.clone();
    let region = Region::new(Space::Cuda { device: 0 }, pointer.addr() as u64, 0, 64 * 8);
    comm.send(unsafe { View::of_region(region, 0, &doubles, 64) }?, 1, 0)?; // explicit

    let double = in_space(&Primitive::Double.into(), Space::Cuda { device: 0 })?; // an accelerator variant
    comm.send(unsafe { View::of_pointer(pointer, &double.commit()?, 64) }?, 1, 0)?; // attribute

    comm.send(unsafe { View::detect(pointer, &doubles, 64) }?, 1, 0)?; // detection
    Ok(())
}

fn gpu_registered(world: &World) -> Outcome {
    let comm = world.comm();
    world.open_device(Space::Cuda { device: 0 })?; // unless messages of this process lie in its memory anyway
    let mut field = world.register(vec![0.0f64; 1 << 20])?; // a slice, page-locked until it is dropped
    comm.send(&field[..], 1, 0)?; // rank 1 receives into its GPU's memory
    comm.recv(&mut field[..], 1, 0)?; // and sends back out of it
    Ok(())
}

fn gpu_streams<'s>(
    s: &'s Scope<'s, '_>,
    stream: &CudaStream,
    view: View<'s>,
    into: ViewMut<'s>,
) -> Outcome {
    let written = stream.record().map_err(|e| gapless::Error::Memory(e.into()))?; // after your kernel
    let _ = s.isend_after(view, 1, 0, &[written])?; // matched now, read when the kernel has ended; nothing behind it waits

    let received = s.irecv(into, 0, 0)?;
    // What you launch now waits on the GPU; no thread does.
    let gate = stream.gate().map_err(|e| gapless::Error::Memory(e.into()))?;
    s.when_done(&received, move || gate.open())?;
    Ok(())
}

mod collectives {
    use gapless::{InPlace, ReduceOp, World};

    fn main() -> Result<(), gapless::Error> {
        let world = World::init()?;
        let comm = world.comm();
        let mine = vec![f64::from(comm.rank()); 1000];
        let mut sum = vec![0.0; 1000];
        comm.allreduce(&mine, &mut sum, ReduceOp::Sum)?;

        let mut all = vec![0u32; comm.size() as usize];
        comm.allgather(&[comm.rank()], &mut all)?;

        comm.allreduce(InPlace, &mut sum, ReduceOp::Max)?;
        world.finalize()
    }

    #[test]
    fn the_first_example_runs() {
        main().unwrap();
    }
}

fn persistent(comm: &Communicator) -> Outcome {
    let mut sum = comm.collective_init(vec![1.0; 100], vec![0.0; 100], |send, recv| {
        Collective::allreduce(send, recv, ReduceOp::Sum)
    })?;
    let mut most = comm.collective_init((), vec![1.0; 100], |_, recv| {
        Collective::allreduce(InPlace, recv, ReduceOp::Max)
    })?;
    sum.start()?;
    most.start()?;
    most.wait()?;
    sum.wait()?;
    Ok(())
}

#[rustfmt::skip] // as on the page, where the longest line fits
fn on_a_stream(world: &World, ordinal: u32, bytes: u64, count: u64) -> Outcome {
    let stream = CudaDriver::load()?.device(ordinal)?.stream()?; // or unsafe { device.adopt_stream(handle) }
    let memory = world.alloc_device(Space::Cuda { device: ordinal }, bytes)?;
    let mut on = world.comm().on(&stream)?; // collective; may block
    let numbers = unsafe { on.register(memory.region()) }?; // collective; once a buffer
    unsafe { on.allreduce(numbers, numbers, count, Primitive::Float, ReduceOp::Sum) }?; // queued
    let graph = stream.capture(|_| unsafe { on.allreduce(numbers, numbers, count, Primitive::Float, ReduceOp::Sum) })?;
    unsafe { graph.launch(&stream) }?;
    on.wait()?; // or on.check(), which waits for nothing

    unsafe { on.blocking().allreduce(numbers, numbers, 1, Primitive::Double, ReduceOp::Sum) }?;
    on.blocking().barrier()?;
    Ok(())
}

#[rustfmt::skip] // as on the page
fn layouts_on_a_stream(on: &mut StreamComm<'_>, planes: Registered, slabs: Registered, [m, n]: [u64; 2]) -> Outcome {
    let ranks = u64::from(on.size());
    // Planes of an n³ cube to slabs: what rank r gets is a box of mine, and becomes a box of its own.
    let double = f64::datatype();
    let part = |of: [u64; 3]| Subarray::of(&double).sizes(of).subsizes([m, m, n]).starts([0; 3]).build()?.commit();
    let (from, to) = (part([m, n, n])?, part([n, m, n])?); // m = n / ranks
    let block = |layout, displacement| StreamBlock { displacement, layout, count: 1 }; // in bytes, as MPI's
    let sends: Vec<_> = (0..ranks).map(|rank| block(&from, rank * m * n * 8)).collect();
    let recvs: Vec<_> = (0..ranks).map(|rank| block(&to, rank * m * m * n * 8)).collect();
    let transpose = unsafe { on.plan_alltoallw(planes, &sends, slabs, &recvs) }?; // collective; both are registered
    unsafe { on.start(&transpose) }?; // queued
    Ok(())
}

#[rustfmt::skip] // as on the page
fn partitions_on_a_stream(
    on: &mut StreamComm<'_>, field: Registered, [rows, line]: [u64; 2], [previous, next, partitions]: [u32; 3],
) -> Result<(u64, u64), gapless::Error> {
    // The last of `rows` rows goes to the next rank, before its first row; `line` bytes each.
    let bytes = line / u64::from(partitions);
    let part = |rank, row| StreamPartitions { rank, buffer: field.at(row * line), partitions, bytes };
    let planned = unsafe { on.plan_partitioned(&[part(next, rows)], &[part(previous, 0)]) }?; // collective; registered
    let (send, recv) = (planned.sends()[0], planned.recvs()[0]); // addresses of handles, for your kernels
    Ok((send, recv))
}

fn revoking(comm: Communicator, ours: Vec<f64>, mut sum: Vec<f64>) -> Result<u32, gapless::Error> {
    let comm = match comm.allreduce(&ours, &mut sum, ReduceOp::Sum) {
        Ok(()) => comm,
        Err(_) => {
            comm.revoke()?; // others may wait for this rank
            comm.shrink()?
        }
    };
    Ok(comm.size())
}

fn reshard(comm: &Communicator, old: Vec<f32>, mut new: Vec<f32>) -> Outcome {
    let (rows, columns) = (Placement::Block { axis: 0 }, Placement::Block { axis: 1 });
    let source = Sharding::new(&[4], 0..4, &[rows])?; // four ranks have rows
    let target = Sharding::new(&[2, 2], 4..8, &[Placement::Replicate, columns])?; // two pairs get columns
    let reshard = Reshard::new(&[4096, 4096], &f32::datatype(), &source, &target)?;
    let mut plan = comm.reshard_plan(&reshard, &old, &new, 0)?; // in host or device memory
    plan.exchange(&old, &mut new)?; // as often as you like
    Ok(())
}

mod readme {
    use super::Outcome;
    use gapless::Communicator;
    use gapless::{Datatype, Primitive, View, ViewMut, World};

    fn main() -> Result<(), gapless::Error> {
        let world = World::init()?; // the job that a launcher started us in, or a job of one
        let comm = world.comm();
        // The first column of a row-major 4 × 4 matrix becomes the last one of the neighbour's.
        let matrix: Vec<f64> = (0..16).map(f64::from).collect();
        let mut other = vec![0.0f64; 16];
        let column = Datatype::vector(4, 1, 4, &Primitive::Double.into())?.commit()?;
        let (right, left) =
            ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
        comm.scope(|s| {
            let _ = s.irecv(ViewMut::typed(&mut other, 3, &column, 1)?, left, 0)?; // from element 3 on: column 3
            let _ = s.isend(View::typed(&matrix, 0, &column, 1)?, right, 0)?;
            Ok(())
        })?; // both have ended here, whatever happened
        assert_eq!([other[3], other[7], other[11], other[15]], [0.0, 4.0, 8.0, 12.0]);
        world.finalize()
    }

    #[test]
    fn the_message_runs() {
        main().unwrap();
    }

    fn particles(comm: &Communicator, left: u32, right: u32, leaving: Vec<Particle>) -> Outcome {
        let mut arriving = vec![Particle::default(); 10];
        comm.sendrecv(&leaving, (right, 0), &mut arriving, (left, 0))?;
        Ok(())
    }

    #[derive(Datatype, Clone, Default)]
    #[repr(C)]
    struct Particle {
        kind: u8, // the padding behind it is never read
        position: [f64; 3],
        mass: f32,
    }
}

#[test]
fn the_pages_show_what_is_compiled_here() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let here = [
        include_str!("documents.rs"),
        include_str!("documents/tasks.rs"),
        include_str!("../../gapless/examples/launched_opencl.rs"),
    ];
    let here = here.map(words).join(" ");
    for (page, pieces) in [
        (include_str!("../../docs/gpu.md"), 6),
        (include_str!("../../docs/collectives.md"), 4),
        (include_str!("../../docs/streams.md"), 4),
        (include_str!("../../README.md"), 2),
        (include_str!("../../docs/xtq.md"), 4),
        (include_str!("../../docs/worker.md"), 4),
    ] {
        let shown: Vec<&str> = page.split("```rust\n").skip(1).collect();
        assert_eq!(shown.len(), pieces);
        for piece in shown {
            // A paragraph may stand elsewhere than the one before it.
            for part in piece.split("```").next().unwrap_or_default().split("\n\n") {
                assert!(here.contains(&words(part)), "a page shows, and these files lack:\n{part}");
            }
        }
    }
}
