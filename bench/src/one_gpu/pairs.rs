//! Four pairs of processes on one GPU, each sending one message at the same time, some by IPC and some through the host.

use gapless::{Communicator, DeviceBuf, Equivalence, ReduceOp, World};
use gapless_pml::Protocol;
use gapless_report::{Bytes, Row};

use super::memory::{Pinned, on_gpu, view, view_mut};
use super::timing::together;
use super::{Gpu, Options, Save};
use crate::error::Failure;
use crate::experiment::Common;
use crate::p2p::item::protocol;

/// Pairs.
const PAIRS: u32 = 4;
/// Processes.
pub const PROCESSES: u32 = 2 * PAIRS;

/// The paper's sizes.
const SIZES: [u64; 10] = [
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];

/// The name of a mix: so many pairs of each kind.
#[must_use]
pub fn mix(ipc: u32) -> String {
    format!("{} host-staged + {ipc} IPC", PAIRS - ipc)
}

/// Measures all mixes.
///
/// # Errors
/// A device's or a peer's failure.
pub fn measure(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    let sizes = options.sizes(common, &[16 << 10, 300_000], &SIZES);
    let most = sizes.iter().copied().max().unwrap_or(4);
    let mut memory = on_gpu(world, gpu, most)?;
    let mut host = Pinned::new(memory.device(), usize::try_from(most / 4).unwrap_or(0));
    let (control, comm) = (world.comm().dup()?, world.comm());
    let (me, layout) = (world.rank(), u8::layout().clone());
    let (pair, peer) = (me / 2, me ^ 1);
    let protocols: [Option<Protocol>; 2] = ["copy-in-out", "mapped"].map(protocol);
    for bytes in sizes {
        let count = usize::try_from(bytes / 4).unwrap_or(0);
        let mut rows = Vec::new();
        for ipc in 0..=PAIRS {
            let mut config = world.config()?;
            config.force = protocols[usize::from(pair < ipc)];
            // So that short messages go as they are told.
            config.tuning.eager_bytes_max = 0;
            config.tuning.eager_bytes_sure = 0;
            world.set_config(config)?;
            // A sender's numbers, and others at its receiver.
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            host.first(count).iter_mut().enumerate().for_each(|(at, number)| {
                *number = ((at + 7 * ipc as usize) % 999) as f32
                    + if me.is_multiple_of(2) { 0.0 } else { 0.5 };
            });
            host.store(&mut memory, bytes)?;
            let summary = together(&control, (common.seconds(), 5), || {
                if me.is_multiple_of(2) {
                    comm.send(view(&memory, &layout, bytes)?, peer, 5)?;
                } else {
                    comm.recv(view_mut(&mut memory, &layout, bytes)?, peer, 5)?;
                }
                Ok(())
            })?;
            let right = is_right(&control, &mut host, &memory, bytes)?;
            let case = Bytes(bytes).to_string();
            let row = Row::new(case, "4 pairs", &options.space, mix(ipc), bytes, summary);
            rows.push(row.verified(right).with("ipc", ipc));
        }
        save.rows(rows)?;
    }
    Ok(())
}

/// Whether all ranks have the senders' numbers.
fn is_right(
    control: &Communicator,
    host: &mut Pinned,
    memory: &DeviceBuf,
    bytes: u64,
) -> Result<bool, Failure> {
    host.fetch(memory, bytes)?;
    let numbers = host.first(usize::try_from(bytes / 4).unwrap_or(0));
    let mine = [u8::from(numbers.iter().all(|number| number.fract() == 0.0))];
    let mut all = [0u8];
    control.allreduce(&mine, &mut all, ReduceOp::Min)?;
    Ok(all == [1])
}
