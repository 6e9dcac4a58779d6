//! All operations that stay on GPUs, by each way there is: by GPU leaders, by copies of either kind, by the best mix of
//! them, and through the host's memory. On one GPU, or spread over several.

use gapless::tuning::coll::Mode;
use gapless::{Communicator, World};
use gapless_report::{Bytes, Row, Summary};

use super::allreduce::{BEST, HOST, IPC, MAPPED, STAGED};
use super::bench::{Bench, Operation, settings};
use super::mapped::Mapped;
use super::timing::together;
use super::{Gpu, Options, Save, mapped};
use crate::error::Failure;
use crate::experiment::Common;
use crate::p2p::occupier::Occupier;

/// One process on each GPU works on the buffers of all.
pub const LED: &str = "leader-driven";
/// The same, while kernels of all other processes are on the GPU.
pub const BUSY: &str = "leader-driven, others busy";

/// Bytes of a rank's copy.
const SIZES: [u64; 7] = [4, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// The same, of operations other than the first.
const FEW: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The part of the multiprocessors that a busy process takes.
const BUSY_PERCENT: u32 = 25;
/// Processes of which the others are busy.
const BUSY_PROCESSES: u32 = 4;

/// Measures all ways, operation by operation, size by size.
///
/// # Errors
/// A wrong number; a device's or a peer's failure.
pub fn measure(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    let (n, gpus) = (world.size(), options.gpus.first().copied().unwrap_or(1));
    let gpus = gpus.clamp(1, n);
    let all = |operation: Operation| {
        let usual = if operation == Operation::Allreduce { &SIZES[..] } else { &FEW };
        options.sizes(common, &[4, 4096], usual)
    };
    let most = all(Operation::Allreduce).into_iter().max().unwrap_or(4);
    let few = all(Operation::Bcast).into_iter().max().unwrap_or(4);
    let most = most.max(few * u64::from(n));
    let mut bench = Bench::new(world, gpu, most, common.seconds())?;
    let (mps, others) = (bench.device().1, n as usize - 1);
    let by = |mode| settings(mode, Vec::new());
    let mut modes = vec![(LED, by(Mode::Led)), (HOST, by(Mode::Off))];
    if gpus == 1 {
        modes.extend([(STAGED, bench.fixed([others; 2], 1)), (IPC, bench.fixed([0; 2], 1))]);
    }
    let comms: Vec<(&str, Communicator)> = modes
        .into_iter()
        .map(|(name, settings)| Ok((name, bench.comm(settings)?)))
        .collect::<Result<_, Failure>>()?;
    // Mixes between the two kinds.
    let mut tries = Vec::new();
    if gpus == 1 {
        let mut counts: Vec<usize> = (0..=4).map(|part| others * part / 4).collect();
        counts.dedup();
        for staged in counts {
            tries.push((staged, bench.comm(bench.fixed([staged; 2], 1))?));
        }
    }
    // Processes that have a GPU each need no service.
    let stream = mapped::stream(gpu, mps || gpus == n)?;
    let buffers = [&bench.send, &bench.recv];
    let all_mapped = stream.as_ref().map(|it| Mapped::new(world, it, buffers, n / gpus));
    let mut all_mapped = all_mapped.transpose()?;
    for operation in Operation::ALL {
        for bytes in all(operation) {
            if !bytes.is_multiple_of(4 * u64::from(n)) && operation.is_cut() {
                continue;
            }
            let call = (operation, bytes);
            let mut rows = Vec::new();
            for (name, comm) in &comms {
                rows.push((*name, bench.time(comm, call, 3, |_| ())?, None));
            }
            let mut best: Option<(usize, Summary)> = None;
            for (staged, comm) in &tries {
                let took = bench.time(comm, call, 3, |_| ())?;
                if best.is_none_or(|(_, least)| took.median < least.median) {
                    best = Some((*staged, took));
                }
            }
            // All ranks have the same times. What was best is measured again.
            if let Some((staged, _)) = best {
                let comm = tries.iter().find(|(known, _)| *known == staged);
                let took = comm.map(|(_, comm)| bench.time(comm, call, 3, |_| ())).transpose()?;
                rows.extend(took.map(|took| (BEST, took, Some(staged))));
            }
            if let Some(mapped) = &mut all_mapped
                && operation == Operation::Allreduce
            {
                rows.push((MAPPED, bench.all_mapped(mapped, bytes)?, None));
            }
            save.rows(made(operation, bytes, (n, gpus), &options.space, &rows))?;
        }
    }
    drop(all_mapped);
    let led = &comms[0].1;
    if let Gpu::Cuda(number) = gpu
        && (gpus, mps, n, common.quick) == (1, false, BUSY_PROCESSES, false)
    {
        for bytes in FEW {
            let rows = [(BUSY, beside_busy_ones(&mut bench, led, number, bytes)?, None)];
            save.rows(made(Operation::Allreduce, bytes, (n, gpus), &options.space, &rows))?;
        }
    }
    for comm in comms.into_iter().map(|it| it.1).chain(tries.into_iter().map(|it| it.1)) {
        comm.free()?;
    }
    Ok(())
}

fn made(
    operation: Operation,
    bytes: u64,
    (processes, gpus): (u32, u32),
    space: &str,
    rows: &[(&str, Summary, Option<usize>)],
) -> Vec<Row> {
    let case = match gpus {
        1 => format!("{} n={processes}", Bytes(bytes)),
        _ => format!("{} n={processes} on {gpus} GPUs", Bytes(bytes)),
    };
    let row = |(name, summary, staged): &(&str, Summary, Option<usize>)| {
        // A wrong number is an error.
        let row = Row::new(&case, operation.name(), space, *name, bytes, *summary).verified(true);
        match staged {
            Some(staged) => row.with("staged", *staged),
            None => row,
        }
    };
    rows.iter().map(row).collect()
}

/// While a kernel of each other process is on the GPU.
fn beside_busy_ones(
    bench: &mut Bench<'_>,
    comm: &Communicator,
    gpu: u32,
    bytes: u64,
) -> Result<Summary, Failure> {
    let mut occupier = Occupier::new(gpu)?;
    if bench.world.rank() > 0 {
        occupier.set(BUSY_PERCENT)?;
    }
    // Copies of those that are busy would wait for their kernels, so nothing is checked.
    bench.control.barrier()?;
    let (control, seconds) = (bench.control.clone(), bench.seconds);
    let work = || bench.call(comm, Operation::Allreduce, bytes);
    let summary = together(&control, (seconds, 1), work);
    occupier.set(0)?;
    bench.control.barrier()?;
    summary
}
