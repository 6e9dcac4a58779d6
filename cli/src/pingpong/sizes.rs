//! How large the arenas are: as the messages need, and so that what rotates leaves every cache.

use crate::failure::Failure;
use crate::memory::{Budget, Devices, Ends, LINE, available};
use gapless_layouts::Case;
use gapless_report::last_level_cache_bytes;

/// What the host's last-level cache is taken to be where the kernel does not tell.
const CACHE_BYTES_ASSUMED: u64 = 32 << 20;
/// What a device's is taken to be where the driver does not tell, or another process asks it.
const DEVICE_CACHE_BYTES_ASSUMED: u64 = 64 << 20;
/// Arenas of both processes: two each.
const ARENAS: u64 = 4;
/// Arenas are multiples of a huge page.
const ARENA_STEP: u64 = 2 << 20;

/// Sizes that both processes use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of the largest cache that a message passes.
    pub(super) cache_bytes: u64,
    /// Whether that is a guess.
    pub(super) assumed: bool,
    pub(super) arena_bytes: u64,
}

impl Sizes {
    /// Bytes that the places of each side of a process touch together, at least: with both sides,
    /// more than four times the cache.
    pub(super) fn wanted_bytes(&self) -> u64 {
        2 * self.cache_bytes
    }

    /// Chooses arenas that hold the largest message and, as far as memory allows, let all rotate. Also tells which
    /// cases no arena can hold, by their place; an error if that is all of them.
    pub(super) fn choose(
        cases: &[Case],
        ends: Ends,
        devices: &mut Devices,
        arena_bytes_max: u64,
    ) -> Result<(Sizes, Vec<(usize, Failure)>), Failure> {
        let (cache_bytes, assumed) = caches(ends, devices)?;
        let wanted = |case: &Case| {
            let places = 2 * cache_bytes / case.payload_bytes.max(1) + 2;
            // Places of a device begin at multiples of so much.
            let span = span(case).next_multiple_of(4 * LINE);
            span.saturating_mul(places).min(arena_bytes_max)
        };
        let available = available(ends.0, devices)?;
        let needed = |case: &Case| span(case).next_multiple_of(ARENA_STEP).saturating_mul(ARENAS);
        let (possible, too_big): (Vec<_>, Vec<_>) =
            cases.iter().enumerate().partition(|(_, case)| needed(case) <= available);
        let refused = too_big
            .into_iter()
            .map(|(index, case)| (index, Failure::too_big(&case.name, needed(case), available)));
        let mut refused: Vec<(usize, Failure)> = refused.collect();
        if possible.is_empty() && !refused.is_empty() {
            return Err(refused.swap_remove(0).1);
        }
        let most = |of: &dyn Fn(&Case) -> u64| possible.iter().map(|(_, case)| of(case)).max();
        let rotating = most(&wanted).unwrap_or(0).min(available / (2 * ARENAS));
        let arena_bytes = rotating.max(most(&span).unwrap_or(0)).next_multiple_of(ARENA_STEP);
        Ok((Sizes { cache_bytes, assumed, arena_bytes }, refused))
    }

    /// For no case.
    pub(super) const NOTHING: Sizes = Sizes { cache_bytes: 0, assumed: false, arena_bytes: LINE };

    /// One place for one case, in memory of no other length.
    pub(super) fn to_size(case: &Case) -> Sizes {
        Sizes { cache_bytes: 0, assumed: false, arena_bytes: span(case) }
    }

    /// The same for all cases; an error if any is too large.
    pub(super) fn for_all(
        cases: &[Case],
        ends: Ends,
        devices: &mut Devices,
        arena_bytes_max: u64,
    ) -> Result<Sizes, Failure> {
        let (sizes, refused) = Sizes::choose(cases, ends, devices, arena_bytes_max)?;
        refused.into_iter().next().map_or(Ok(sizes), |(_, why)| Err(why))
    }
}

/// Bytes of a case's longest buffer, with room to begin at a cache line.
fn span(case: &Case) -> u64 {
    let sides = [&case.send, &case.recv].map(|side| {
        let (low, high) = side.touched().unwrap_or((0, 0));
        (high - low).cast_unsigned()
    });
    sides[0].max(sides[1]).max(case.payload_bytes) + 2 * LINE
}

/// The largest cache, and whether it is a guess.
fn caches(ends: Ends, devices: &mut Devices) -> Result<(u64, bool), Failure> {
    let mut known = Vec::new();
    for place in ends.0 {
        known.push(match devices.open(place, Budget::default())? {
            // Work of OpenCL devices that are the host's processors leaves the host's cache.
            Some(opened) if opened.cache_bytes() > 0 => (opened.cache_bytes(), false),
            Some(_) => (DEVICE_CACHE_BYTES_ASSUMED, true),
            None => match last_level_cache_bytes() {
                Some(bytes) => (bytes, false),
                None => (CACHE_BYTES_ASSUMED, true),
            },
        });
    }
    Ok(known.into_iter().max().unwrap_or((CACHE_BYTES_ASSUMED, true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Where;

    #[test]
    fn one_case_that_is_too_large_refuses_all_where_all_are_wanted() {
        // 4 TiB for both processes, beside some that fit any machine.
        let named = |name, n| gapless_layouts::cases(name, Some(n)).unwrap();
        let cases: Vec<Case> = [named("v", 64), named("v", 262_000)].concat();
        let mut devices = Devices::default();
        let ends = Ends([Where::Host; 2]);
        let (_, refused) = Sizes::choose(&cases, ends, &mut devices, 2 << 20).unwrap();
        assert_eq!(refused.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
        let of = |cases: &[Case]| Sizes::for_all(cases, ends, &mut Devices::default(), 2 << 20);
        assert!(of(&cases[..1]).is_ok());
        assert!(matches!(of(&cases), Err(Failure::TooBig { case, .. }) if case == cases[1].name));
    }
}
