//! Units and shifts of a part of a layout that has no table: read from a convertor that begins there.
//!
//! How many blocks begin before is not known where a part is written. Blocks are numbered from the part's
//! beginning, 0 being the one that reaches into it; whoever puts the pieces together, in order, adds what was
//! before.

use gapless_dtype::Layout;
use gapless_kernels::plan::UNIT_WORDS;

use super::super::map::MapWriter;
use super::super::{MapSpec, Patch, Patches, PlanSpec, UNIT_BYTES};
use super::{Pieces, Wrote};

/// A part's units, and how many there may be more of it than of bytes.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) spec: PlanSpec,
    pub(super) map: MapSpec,
    /// Units of a piece.
    units: u64,
}

/// More pieces than this many times as many as would do are not worth it: where a few blocks are short and
/// most are long, pieces that have room for the short ones are nearly empty.
const THIN: u64 = 4;

impl Walk {
    /// Pieces of `piece_bytes` bytes at most, and how many; `None` if one thread had better write the plan.
    pub(super) fn of(
        layout: &Layout,
        spec: &PlanSpec,
        map: MapSpec,
        piece_bytes: usize,
    ) -> Option<(Walk, usize)> {
        // Blocks that begin in a unit at most. Those of a part may be cut where parts meet.
        let shortest = match spec.parts {
            1 => (layout.block_lengths().min >> map.width.log2()).max(1),
            _ => 1,
        };
        let begin = u64::from(UNIT_WORDS) / shortest + 1;
        let piece_bytes = piece_bytes as u64;
        let units = piece_bytes / (UNIT_BYTES + begin * u64::from(map.shift_bytes));
        let count = map.units.div_ceil(units.max(1));
        let worth = (2..=THIN * (spec.bytes / piece_bytes + 1)).contains(&count);
        let walk = Walk { spec: *spec, map, units };
        worth.then(|| Some((walk, usize::try_from(count).ok()?)))?
    }
}

impl Pieces {
    /// Writes piece `number`.
    pub(super) fn walk(
        &self,
        walk: &Walk,
        number: usize,
        staging: &mut [u8],
        patches: &mut Patches,
    ) -> Wrote {
        let Walk { spec, map, units } = walk;
        let from = number as u64 * units;
        let to = map.units.min(from + units);
        let split = usize::try_from((to - from) * UNIT_BYTES).expect("less than the piece");
        let (room, shifts) = staging.split_at_mut(split);
        let blocks = MapWriter::part(&self.layout, spec, *map, from..to, room, shifts);
        patches.push(Patch { staged: 0..split, at: map.units_at + from * UNIT_BYTES });
        if blocks > 0 {
            let len = usize::try_from(blocks * u64::from(map.shift_bytes));
            let len = len.expect("less than the piece");
            patches.push(Patch { staged: split..split + len, at: map.shifts_at });
        }
        let ready = (to * u64::from(UNIT_WORDS)) << map.width.log2();
        Wrote { ready, blocks }
    }
}

/// Numbers the blocks of a piece, before which `before` begin.
///
/// # Panics
/// If there are more than were counted.
pub(super) fn settle(
    map: &MapSpec,
    before: u64,
    blocks: u64,
    staging: &mut [u8],
    patches: &mut Patches,
) {
    // What is written lies inside the plan, whatever the layout's statistics say.
    assert!(before + blocks <= map.blocks, "more blocks than were counted");
    let number = u32::try_from(before).expect("plans have at most 2³² blocks").wrapping_sub(1);
    if let [units, shifts @ ..] = &mut patches[..] {
        for unit in staging[units.staged.clone()].as_chunks_mut::<8>().0 {
            let [a, b, c, d, ..] = *unit;
            let block = u32::from_ne_bytes([a, b, c, d]).wrapping_add(number);
            unit[..4].copy_from_slice(&block.to_ne_bytes());
        }
        for patch in shifts {
            patch.at += before * u64::from(map.shift_bytes);
        }
    }
}
