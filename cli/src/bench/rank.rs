//! What the ranks of all tests do alike, beside measuring.

use super::messages::Series;
use super::processors;
use crate::failure::Failure;
use crate::job;
use crate::memory::{Devices, Ends, Pinned, Source, available};
use crate::pingpong::Setting;
use gapless::{Error, World};
use gapless_layouts::Case;
use gapless_pml::Protocol;
use std::process::ExitCode;

/// Does the work and leaves the job. On a processor of its own, so that no figure contains a migration; devices' drivers
/// have threads of their own.
pub(super) fn run(
    world: World,
    ends: Ends,
    work: impl FnOnce(&World) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let alone = !ends.involve_device() && world.size() <= processors();
    let _pinned = alone.then(|| Pinned::to(usize::try_from(world.rank()).unwrap_or(0)));
    let result = work(&world);
    Ok(match job::leave(world, result)? {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

/// An error if a case needs more memory than there is. All ranks know the same of the case; rank 0 says so.
pub(super) fn has_room(
    world: &World,
    devices: &mut Devices,
    ends: Ends,
    (case, needed): (&str, u64),
) -> Result<(), Failure> {
    let free = if world.rank() == 0 { available(ends.0, devices)? } else { u64::MAX };
    if needed > free { Err(Failure::too_big(case, needed, free)) } else { Ok(()) }
}

/// Bytes of the arenas, two for each rank, that hold any case, of which each needs `len`; an error if there is no room.
pub(super) fn arena(
    world: &World,
    devices: &mut Devices,
    ends: Ends,
    series: &[Series],
    len: impl Fn(&Case) -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    let mut arena = 0;
    for case in series.iter().flat_map(|series| &series.cases) {
        let len = len(case)?;
        let needed = len.saturating_mul(2).saturating_mul(u64::from(world.size()));
        has_room(world, devices, ends, (&case.name, needed))?;
        arena = arena.max(len);
    }
    Ok(arena)
}

/// From now on messages go by this protocol, wherever it is possible.
pub(super) fn force(world: &World, protocol: Option<Protocol>) -> Result<(), Error> {
    let setting = Setting { force: protocol, ..Setting::default() };
    world.set_config(setting.over(world.config()?))
}

/// The memory, as it is shown.
pub(super) fn memory(ends: Ends, source: Source) -> String {
    match ends.0.iter().all(|place| place.is_device()) {
        true => ends.to_string(),
        false => format!("{ends} ({})", source.name()),
    }
}

/// Ends a test in which bytes were wrong, as all ranks know. Rank 0 says so.
pub(super) fn wrong(world: &World, first: String) -> Result<(), Failure> {
    match world.rank() {
        0 => Err(Failure::WrongBytes { cases: 1, all: 1, first }),
        _ => Ok(()),
    }
}
