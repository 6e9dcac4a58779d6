//! What a layout without a closed form needs in device memory: its plan.
//!
//! A plan describes one instance by displacements relative to the lowest, so any buffer and any number of
//! instances can use it; a layout that is itself equal parts at one stride (an array of structures) has a
//! plan of one part. There are two kinds:
//!
//! - *listed*: where each of equal blocks begins, 4 bytes each in units of the layout's granularity, or 8
//!   where the data spans too much;
//! - *mapped*: 8 bytes for each 32 words of the stream and a shift for each block, 4 bytes or 8
//!   ([`gapless_kernels::plan`]). Words are the widest, up to 16 bytes, that divide everything: the units
//!   are 1.6 % of the payload in words of 16 bytes, 3.1 % of 8, 6.3 % of 4, 12.5 % of 2, 25 % of 1.
//!
//! [`PlanSpec`] is known before any of it is written, from facts that the layout has since its commit: so
//! device memory is allocated at once, and filled in pieces, each of which lets a part of the stream be moved
//! while the next is written. Several threads may write them ([`Pieces`]); where a plan is short, or its pieces
//! would be nearly empty, one does ([`MapWriter`]).
//!
//! Units: bytes where a name does not say words.

mod map;
mod pieces;
mod shift;

use std::ops::Range;

use gapless_dtype::{Layout, Shape};
use gapless_kernels::Width;
use gapless_kernels::launch::{Blocks, Planned, TransferSide};
use gapless_kernels::plan::UNIT_WORDS;
use smallvec::SmallVec;

pub(crate) use map::MapWriter;
pub(crate) use pieces::{Pieces, Wrote};

/// Bytes of a unit.
const UNIT_BYTES: u64 = 8;

/// Bytes of staging memory for a piece at least.
pub(crate) const STAGING_MIN: usize = 1024;

/// Longer blocks may have more words than a kernel numbers; they are mapped, which cuts anywhere.
const LISTED_LEN_MAX: u64 = i32::MAX as u64;

/// A plan's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanSpec {
    /// Bytes in device memory. `u64::MAX`, which no device has, of more than 2³² blocks.
    pub(crate) bytes: u64,
    /// Bytes of one instance's stream.
    pub(crate) size: u64,
    /// What the plan holds.
    pub(crate) kind: PlanKind,
    /// The plan is of one part of an instance; parts in an instance.
    parts: u64,
    /// Bytes from a part to the next, across instances too.
    step: i64,
    /// Bytes of a part's stream.
    part_size: u64,
    /// Lowest byte of the first part: what displacements are relative to.
    base: i64,
}

/// What a plan holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanKind {
    /// Displacements of equal blocks.
    Listed(ListSpec),
    /// Units and shifts.
    Mapped(MapSpec),
}

/// A list of displacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListSpec {
    /// Bytes of an entry: 4 or 8.
    pub(crate) entry_bytes: u32,
    /// Bytes that an entry counts; a power of two that divides every block's place and length.
    pub(crate) scale: i64,
    /// Bytes of a block.
    pub(crate) len: u64,
    /// Entries.
    pub(crate) count: u64,
}

/// Units and shifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapSpec {
    /// Words that the plan counts in.
    pub(crate) width: Width,
    /// Bytes of a shift: 4 or 8.
    pub(crate) shift_bytes: u32,
    /// Where in the plan the units begin.
    pub(crate) units_at: u64,
    /// Where in the plan the shifts begin.
    pub(crate) shifts_at: u64,
    /// Units.
    pub(crate) units: u64,
    /// Shifts.
    pub(crate) blocks: u64,
}

/// What a plan is made of: an instance, or one of the equal parts that any number of instances are.
struct PlanPart {
    shape: Shape,
    parts: u64,
    step: i64,
    size: u64,
    blocks: u64,
    true_lb: i64,
    true_ub: i64,
}

impl PlanPart {
    fn of(layout: &Layout) -> PlanPart {
        let extent = layout.extent();
        if let Some(period) = layout.period()
            && follow(period.count, period.stride, extent)
        {
            return PlanPart {
                shape: period.shape,
                parts: period.count,
                step: period.stride,
                size: period.size,
                blocks: period.blocks,
                true_lb: period.true_lb,
                true_ub: period.true_ub,
            };
        }
        PlanPart {
            shape: layout.shape().clone(),
            parts: 1,
            step: extent,
            size: layout.size(),
            blocks: layout.blocks(),
            true_lb: layout.true_lb(),
            true_ub: layout.true_ub(),
        }
    }

    /// Bytes from the lowest to past the highest; may need all 64 bits.
    fn span(&self) -> u64 {
        self.true_ub.wrapping_sub(self.true_lb).cast_unsigned()
    }
}

/// Whether `count` steps lead to the next instance, so that its parts continue this one's.
pub(crate) fn follow(count: u64, step: i64, extent: i64) -> bool {
    i128::from(count) * i128::from(step) == i128::from(extent)
}

impl PlanSpec {
    /// The plan of any layout, those with closed forms included; takes constant time.
    pub(crate) fn of(layout: &Layout) -> PlanSpec {
        let part = PlanPart::of(layout);
        let (kind, bytes) = match &part.shape {
            Shape::EqualBlocks { len, displacements, .. } if *len <= LISTED_LEN_MAX => {
                let list = ListSpec::of(&part, layout.granularity(), *len, displacements.len());
                (PlanKind::Listed(list), list.count.saturating_mul(u64::from(list.entry_bytes)))
            }
            _ => {
                let map = MapSpec::of(&part, Width::dividing(layout.granularity()));
                (PlanKind::Mapped(map), map.bytes())
            }
        };
        PlanSpec {
            bytes,
            size: layout.size(),
            kind,
            parts: part.parts,
            step: part.step,
            part_size: part.size,
            base: part.true_lb,
        }
    }

    /// How often the plan repeats in `count` instances of the layout.
    pub(crate) fn instances(&self, count: u64) -> u64 {
        self.parts.saturating_mul(count)
    }

    /// What the launch functions take for `count` instances of `layout`, whose plan this is; it lies `at`
    /// bytes from the plan pointer, a multiple of 8.
    pub(crate) fn side(&self, layout: &Layout, count: u64, at: u64) -> TransferSide {
        debug_assert_eq!(self.size, layout.size(), "the plan of another layout");
        debug_assert!(at.is_multiple_of(8), "a plan at {at}");
        let instances = self.instances(count);
        match self.kind {
            PlanKind::Listed(list) => TransferSide::Listed(Blocks {
                displacement: self.base,
                len: list.len,
                count: list.count,
                list: at,
                entry_bytes: list.entry_bytes,
                scale: list.scale,
                bits: list.scale.cast_unsigned(),
                instances,
                extent: self.step,
            }),
            PlanKind::Mapped(map) => TransferSide::Mapped(Planned {
                displacement: self.base,
                size: self.part_size,
                width: map.width,
                units: at + map.units_at,
                shifts: at + map.shifts_at,
                shift_bytes: map.shift_bytes,
                instances,
                extent: self.step,
            }),
        }
    }
}

impl ListSpec {
    fn of(part: &PlanPart, granularity: u64, len: u64, count: usize) -> ListSpec {
        // A block's length is at most 63 bits, so its largest power of two fits.
        let scale = granularity.max(1).cast_signed();
        let highest = part.span().saturating_sub(len) / granularity.max(1);
        let entry_bytes = if i32::try_from(highest).is_ok() { 4 } else { 8 };
        ListSpec { entry_bytes, scale, len, count: count as u64 }
    }
}

impl MapSpec {
    fn of(part: &PlanPart, width: Width) -> MapSpec {
        let words = part.size >> width.log2();
        // Places are 0 … span - 1 words from the base, and up to the whole stream is taken off.
        let fits = |words: u64| i32::try_from(words).is_ok();
        let short = fits(part.span() >> width.log2()) && fits(words);
        let units = words.div_ceil(u64::from(UNIT_WORDS));
        MapSpec {
            width,
            shift_bytes: if short { 4 } else { 8 },
            units_at: 0,
            // Fewer than 2⁵⁸ units: sizes fit 63 bits.
            shifts_at: units * UNIT_BYTES,
            units,
            blocks: part.blocks,
        }
    }

    fn bytes(&self) -> u64 {
        if self.blocks > u64::from(u32::MAX) {
            return u64::MAX;
        }
        self.shifts_at + self.blocks * u64::from(self.shift_bytes)
    }
}

/// A part of a plan that lies in staging memory and belongs into device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Patch {
    /// Which bytes of the staging memory.
    pub(crate) staged: Range<usize>,
    /// Where in the plan they go.
    pub(crate) at: u64,
}

/// The patches of a piece.
pub(crate) type Patches = SmallVec<[Patch; 2]>;

#[cfg(test)]
mod tests;
