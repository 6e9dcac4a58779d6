//! One-sided operations, as `one_sided` in `peers.c`: of rank 0 on memory of rank 1, which waits in a barrier; each ended
//! there before the next, by a flush, or by an epoch of its own. With `idle`, rank 1 sleeps outside the library meanwhile.
//! Units: bytes, seconds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gapless::{Datatype, Lock, Primitive, ReduceOp, View, ViewMut, World};

use crate::Anything;

/// Operations in a sample of short ones; long ones move as many bytes as 16 KiB so often.
const TIMES: usize = 2000;
/// Rounds at least, the first of which does not count.
const ROUNDS_MIN: u32 = 4;
/// How long an idle target sleeps in a round.
const IDLE: Duration = Duration::from_millis(40);

/// What is measured.
pub(crate) struct WindowWork<'w> {
    /// `put`, `get`, `accumulate`, `fetch` or `lock`, with `idle-` before it perhaps.
    pub(crate) operation: &'w str,
    /// `contiguous`; `comb`: every other number; `rows`: eight numbers of sixteen. The same at both ends.
    pub(crate) layout: &'w str,
    pub(crate) bytes: usize,
    pub(crate) within: Duration,
}

/// Operations in a sample.
fn times(bytes: usize) -> u32 {
    u32::try_from((TIMES * 16384 / bytes.max(16384)).max(8)).unwrap_or(u32::MAX)
}

/// Seconds of an operation, a sample a round; at rank 0 alone.
pub(crate) fn measure(world: &World, work: &WindowWork<'_>) -> Result<Vec<f64>, Anything> {
    let (comm, rank) = (world.comm(), world.rank());
    let WindowWork { operation, layout, bytes, within } = *work;
    let (idle, operation) = match operation.strip_prefix("idle-") {
        Some(operation) => (true, operation),
        None => (false, operation),
    };
    let run = match layout {
        "contiguous" => None,
        "comb" => Some(1),
        "rows" => Some(8),
        other => return Err(format!("no such layout: {other}").into()),
    };
    let numbers = bytes / 8;
    let span = if run.is_some() { 2 * numbers } else { numbers };
    let double = Datatype::from(Primitive::Double);
    let laid = match run {
        Some(run) => Some(
            Datatype::vector(numbers as u64 / run, run, 2 * run.cast_signed(), &double)?
                .commit()?,
        ),
        None => None,
    };
    let mut window = comm.window_allocate::<f64>(span)?;
    let mut counter = comm.window_allocate::<i64>(1)?;
    // Written, as in `peers.c`: fresh zeros would all be one page of the system's. At a multiple of 64, as there.
    let numbers = [1.0, 0.0, -1.0].into_iter().cycle();
    let mut room: Vec<f64> = numbers.take(span + 8).collect();
    let local = room.as_ptr().align_offset(64);
    let local = room.get_mut(local..local + span).ok_or("memory that cannot be aligned")?;
    let locks = operation == "lock";
    comm.barrier()?;
    if rank == 0 && !locks {
        window.lock(1, Lock::Shared)?;
        counter.lock(1, Lock::Shared)?;
    }
    let mut samples = Vec::new();
    let (start, mut round, mut more) = (Instant::now(), 0, [1u8]);
    while more == [1] {
        comm.barrier()?;
        if idle && rank == 1 {
            std::thread::sleep(IDLE);
        }
        let began = Instant::now();
        for i in 0..if rank == 0 { times(bytes) } else { 0 } {
            local[0] = f64::from(i);
            match (operation, &laid) {
                ("lock", _) => {
                    window.lock(1, Lock::Exclusive)?;
                    window.put(&*local, 1, 0)?;
                    window.unlock(1)?;
                    continue;
                }
                ("put", None) => window.put(black_box(&*local), 1, 0)?,
                ("put", Some(laid)) => {
                    window.put(View::typed(black_box(&*local), 0, laid, 1)?, 1, 0)?;
                }
                ("get", None) => window.get(black_box(&mut *local), 1, 0)?,
                ("get", Some(laid)) => {
                    window.get(ViewMut::typed(black_box(&mut *local), 0, laid, 1)?, 1, 0)?;
                }
                ("accumulate", None) => {
                    window.accumulate(black_box(&*local), 1, 0, ReduceOp::Sum)?;
                }
                ("accumulate", Some(laid)) => {
                    let view = View::typed(black_box(&*local), 0, laid, 1)?;
                    window.accumulate(view, 1, 0, ReduceOp::Sum)?;
                }
                ("fetch", _) => {
                    black_box(counter.fetch_and_op(i64::from(i), 1, 0, ReduceOp::Sum)?);
                    counter.flush(1)?;
                    continue;
                }
                (other, _) => return Err(format!("no such operation: {other}").into()),
            }
            window.flush(1)?;
        }
        let took = began.elapsed().as_secs_f64() / f64::from(times(bytes));
        if rank == 0 && round > 0 {
            samples.push(took);
        }
        comm.barrier()?;
        round += 1;
        more = [u8::from(round < ROUNDS_MIN || start.elapsed() < within)];
        comm.bcast(&mut more, 0)?;
    }
    if rank == 0 && !locks {
        window.unlock(1)?;
        counter.unlock(1)?;
    }
    counter.free()?;
    window.free()?;
    Ok(samples)
}
