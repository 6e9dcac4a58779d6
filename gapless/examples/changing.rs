//! What it costs that each message differs from the one before: round trips of 16 kinds, each repeated, and all in turn.
//! The same of operations on windows. With `--device` the layouts are of memory of the first GPU.
//!
//! ```sh
//! cargo build --release -p gapless --example changing
//! cargo run --release -- run -n 2 target/release/examples/changing
//! ```
//!
//! A ratio of 1.00 says that nothing depends on what came before. Each process needs a processor of its own.

use gapless::prelude::*;
use gapless::{AnyBits, DeviceBuf, Equivalence, ReduceOp, Space, View, ViewMut};
use std::hint::black_box;
use std::time::Instant;

const SAMPLES: usize = 31;
const CALLS: usize = 400;
const KINDS: usize = 16;
/// Elements of an array that layouts lie in.
const ELEMENTS: usize = 8192 * 20;

type Done = Result<(), gapless::Error>;
type Call<'a> = Box<dyn FnMut() -> Done + 'a>;

fn main() -> Done {
    let world = World::init()?;
    assert_eq!(world.size(), 2, "run it with -n 2");
    if std::env::args().any(|argument| argument == "--device") {
        device_layouts(&world)?;
    } else {
        messages(&world)?;
        layouts(&world)?;
        windows(&world)?;
    }
    world.finalize()
}

/// A message to the other process, and one back.
fn round_trip<T: AnyBits + Equivalence>(
    comm: &Communicator,
    out: &[T],
    into: &mut [T],
    tag: i32,
) -> Done {
    if comm.rank() == 0 {
        comm.send(out, 1, tag)?;
        comm.recv(into, 1, tag)?;
    } else {
        comm.recv(into, 0, tag)?;
        comm.send(out, 0, tag)?;
    }
    Ok(())
}

fn messages(world: &World) -> Done {
    let comm = world.comm();
    let bytes = |comm, len, tag| -> Call<'_> {
        let (out, mut into) = (vec![1u8; len], vec![0u8; len]);
        Box::new(move || round_trip(comm, &out, &mut into, tag))
    };
    show(world, "8 B, 16 tags", (0..16).map(|tag| bytes(comm, 8, tag)))?;
    let lengths = (0..KINDS).map(|at| bytes(comm, 8 + 128 * at, 0));
    show(world, "16 lengths, 8 B to 2 KiB", lengths)?;
    let lengths = (0..KINDS).map(|at| bytes(comm, 4096 * (1 + at), 0));
    show(world, "16 lengths, 4 to 64 KiB", lengths)?;
    let others = [comm.clone(), comm.dup()?, comm.dup()?];
    show(world, "8 B, 3 communicators", others.iter().map(|comm| bytes(comm, 8, 0)))?;
    let types: [Call<'_>; 4] =
        [of(comm, [1u8; 64]), of(comm, [1u32; 16]), of(comm, [1f64; 8]), of(comm, [1i16; 32])];
    show(world, "64 B, 4 types", types)
}

fn of<T: AnyBits + Equivalence + Copy, const N: usize>(
    comm: &Communicator,
    out: [T; N],
) -> Call<'_> {
    let mut into = out;
    Box::new(move || round_trip(comm, &out, &mut into, 0))
}

/// Every third element, every fourth and so on.
fn strided(blocks: u64) -> Result<Vec<Layout>, gapless::Error> {
    let double = Datatype::from(Primitive::Double);
    let one = |stride| Ok(Datatype::vector(blocks, 1, stride, &double)?.commit()?);
    (3..3 + KINDS as i64).map(one).collect()
}

fn layouts(world: &World) -> Done {
    let (comm, out) = (world.comm(), vec![1f64; ELEMENTS]);
    for blocks in [16, 512, 8192] {
        let layouts = strided(blocks)?;
        let calls = layouts.iter().map(|layout| -> Call<'_> {
            let (out, mut into) = (&out, vec![0f64; ELEMENTS]);
            Box::new(move || {
                let data = View::typed(out, 0, layout, 1)?;
                exchange(comm, data, ViewMut::typed(&mut into, 0, layout, 1)?)
            })
        });
        show(world, &format!("{blocks} blocks of 8 B, 16 strides"), calls)?;
    }
    Ok(())
}

fn exchange(comm: &Communicator, data: View<'_>, into: ViewMut<'_>) -> Done {
    if comm.rank() == 0 {
        comm.send(data, 1, 0)?;
        comm.recv(into, 1, 0)?;
    } else {
        comm.recv(into, 0, 0)?;
        comm.send(data, 0, 0)?;
    }
    Ok(())
}

fn device_layouts(world: &World) -> Done {
    let comm = world.comm();
    let bytes = 8 * ELEMENTS as u64;
    let memory = || -> Result<DeviceBuf, gapless::Error> {
        world.alloc_device(Space::Cuda { device: 0 }, bytes)
    };
    let out = memory()?;
    for blocks in [16, 512, 8192] {
        let layouts = strided(blocks)?;
        let buffers = layouts.iter().map(|_| memory()).collect::<Result<Vec<_>, _>>()?;
        let calls = layouts.iter().zip(buffers).map(|(layout, mut into)| -> Call<'_> {
            let out = &out;
            Box::new(move || exchange(comm, out.view(0, layout, 1)?, into.view_mut(0, layout, 1)?))
        });
        show(world, &format!("GPU: {blocks} blocks of 8 B, 16 strides"), calls)?;
    }
    Ok(())
}

fn windows(world: &World) -> Done {
    let comm = world.comm();
    let (to, data) = (1 - comm.rank(), vec![1f64; 256]);
    let make = || {
        let mut window = comm.window_allocate::<f64>(8192)?;
        window.lock_all()?;
        Ok::<_, gapless::Error>(window)
    };
    let mut windows = [make()?, make()?, make()?];
    let put = |at: usize, len: usize| -> Call<'_> {
        let (window, data) = (&windows[at], &data[..len]);
        Box::new(move || {
            window.put(data, to, 0usize)?;
            window.flush(to)
        })
    };
    show(world, "put of 8 B, 3 windows", (0..3).map(|at| put(at, 1)))?;
    show(world, "put, 16 lengths to 2 KiB", (0..KINDS).map(|at| put(0, 1 + 16 * at)))?;
    let (window, one) = (&windows[0], &data[..1]);
    let kinds: [Call<'_>; 4] = [
        put(0, 1),
        Box::new(move || window.get(&mut [0f64; 1], to, 0usize)),
        Box::new(move || {
            window.accumulate(one, to, 0usize, ReduceOp::Sum)?;
            window.flush(to)
        }),
        Box::new(move || window.fetch_and_op(1f64, to, 0usize, ReduceOp::Sum).map(|_| ())),
    ];
    show(world, "put, get, accumulate, fetch_and_op", kinds)?;
    windows.iter_mut().try_for_each(|window| window.unlock_all())?;
    windows.into_iter().try_for_each(|window| window.free().map(drop))
}

/// Each of these calls repeated, then all of them in turn.
fn show<'a>(world: &World, what: &str, calls: impl IntoIterator<Item = Call<'a>>) -> Done {
    let comm = world.comm();
    let mut calls: Vec<_> = calls.into_iter().collect();
    let count = (CALLS * calls.len()) as f64;
    let (mut repeated, mut in_turn, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        let mut alone = 0.0;
        for call in &mut calls {
            call()?;
            comm.barrier()?;
            let start = Instant::now();
            (0..CALLS).try_for_each(|_| black_box(&mut *call)())?;
            alone += start.elapsed().as_secs_f64();
        }
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            calls.iter_mut().try_for_each(|call| call())?;
        }
        let turns = start.elapsed().as_secs_f64();
        repeated.push(alone * 1e6 / count);
        in_turn.push(turns * 1e6 / count);
        ratios.push(turns / alone);
    }
    if comm.rank() == 0 {
        let [alone, turns, ratio] = [repeated, in_turn, ratios].map(median);
        println!("{what:36} {alone:8.3} us repeated, {turns:8.3} us in turn: {ratio:.2}");
    }
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
