//! A rank's way into a job that measures, and out of it.

use crate::Worlds;
use crate::failure::Failure;
use crate::memory::{Budget, Devices, Where};
use gapless::wireup;
use gapless::{Error, World};
use std::process::ExitCode;
use std::time::Duration;

/// How long rank 0 waits for the launcher to end it for another's failure if it cannot begin; the others wait twice as
/// long, so that it speaks for all.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Joins the job. `places` says, for this rank of so many, where its messages lie: devices are opened before. `blocks`
/// bounds rank 0's kernels.
pub(crate) fn join(
    worlds: Worlds<'_>,
    places: impl FnOnce(u32, u32) -> Vec<Where>,
    budget: Budget,
) -> Result<(World, Devices), Failure> {
    let mut rank = 0;
    let joined = || -> Result<(World, Devices), Failure> {
        let wireup = wireup::detect().map_err(Error::from)?;
        rank = wireup.rank();
        let mut devices = Devices::default();
        for place in places(rank, wireup.size()) {
            let blocks = budget.blocks.filter(|_| rank == 0);
            devices.open(place, Budget { blocks, ..budget })?;
        }
        let builder = worlds.builder()?.wireup(wireup);
        #[cfg(any(feature = "cuda", feature = "opencl"))]
        let builder = devices
            .all()
            .iter()
            .fold(builder, |builder, opened| builder.gpu(opened.engine().clone()));
        #[cfg(feature = "cuda")]
        let builder = match budget.workers {
            true => builder.workers(gapless::Workers::Idle(crate::memory::IDLE)),
            false => builder,
        };
        Ok((builder.init()?, devices))
    };
    let result = joined();
    if result.is_err() {
        // If another process has failed, it says why, and the launcher ends this one now.
        std::thread::sleep(if rank == 0 { LAST_WORDS } else { 2 * LAST_WORDS });
    }
    result
}

/// Leaves the job together with the others, which all know that it cannot be done; rank 0 says why.
pub(crate) fn refuse(world: World, why: Failure) -> Result<ExitCode, Failure> {
    let says = world.rank() == 0;
    world.finalize()?;
    if says { Err(why) } else { Ok(ExitCode::SUCCESS) }
}

/// Leaves the job with what this rank came to; `None` if rank 0 has left before, which says why.
pub(crate) fn leave<T>(world: World, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Ok(found) => {
            world.finalize()?;
            Ok(Some(found))
        }
        Err(Failure::World(error)) if world.rank() != 0 && error.lost_rank() == Some(0) => {
            tracing::info!(%error, "rank 0 is gone");
            std::mem::forget(world);
            Ok(None)
        }
        Err(failure) => {
            // The others cannot go on without us: leave at once, and say why.
            std::mem::forget(world);
            Err(failure)
        }
    }
}
