//! How much memory is left for measuring.

use super::devices::{Budget, Devices};
use super::ends::Where;
use crate::failure::Failure;

/// Memory that the arenas of all processes can have in these places: the host's, or half of a device's.
pub(crate) fn available(
    places: impl IntoIterator<Item = Where>,
    devices: &mut Devices,
) -> Result<u64, Failure> {
    let mut least = u64::MAX;
    for place in places {
        let here = match devices.open(place, Budget::default())? {
            Some(opened) if matches!(place, Where::Cuda(_)) => {
                opened.device.properties().memory_bytes / 2
            }
            _ => available_bytes(),
        };
        least = least.min(here);
    }
    Ok(least)
}

/// Host memory that could be had now, by the kernel's own estimate.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(4 << 30, |kib| kib.saturating_mul(1024))
}
