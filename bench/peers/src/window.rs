//! One-sided operations, as `window` in `peers.c`: of rank 0 on memory of rank 1, which waits in a barrier; each ended
//! there before the next, by a flush, or by an epoch of its own. Units: bytes, seconds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gapless::{Lock, ReduceOp, World};

use crate::Anything;

/// Operations in a sample.
const TIMES: u32 = 2000;
/// Rounds at least, the first of which does not count.
const ROUNDS_MIN: u32 = 4;

/// Seconds of an operation, a sample a round; at rank 0 alone.
pub(crate) fn measure(
    world: &World,
    operation: &str,
    bytes: usize,
    within: Duration,
) -> Result<Vec<f64>, Anything> {
    let (comm, rank) = (world.comm(), world.rank());
    let mut window = comm.window_allocate::<f64>(bytes / 8)?;
    let mut local = vec![0.0f64; bytes / 8];
    let locks = operation == "lock";
    comm.barrier()?;
    if rank == 0 && !locks {
        window.lock(1, Lock::Shared)?;
    }
    let mut samples = Vec::new();
    let (start, mut round, mut more) = (Instant::now(), 0, [1u8]);
    while more == [1] {
        comm.barrier()?;
        let began = Instant::now();
        for i in 0..if rank == 0 { TIMES } else { 0 } {
            local[0] = f64::from(i);
            match operation {
                "lock" => {
                    window.lock(1, Lock::Exclusive)?;
                    window.put(&local, 1, 0)?;
                    window.unlock(1)?;
                    continue;
                }
                "put" => window.put(black_box(&local), 1, 0)?,
                "get" => window.get(black_box(&mut local), 1, 0)?,
                "accumulate" => window.accumulate(black_box(&local), 1, 0, ReduceOp::Sum)?,
                "fetch" => {
                    black_box(window.fetch_and_op(i64::from(i), 1, 0, ReduceOp::Sum)?);
                }
                other => return Err(format!("no such operation: {other}").into()),
            }
            window.flush(1)?;
        }
        let took = began.elapsed().as_secs_f64() / f64::from(TIMES);
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
    }
    window.free()?;
    Ok(samples)
}
