//! Plans in pieces that any thread may write, in any order: those of layouts that keep their blocks as a list
//! or a table, where the beginning of a piece is found by looking it up.
//!
//! A piece of a list is so many entries. A piece of units and shifts is whole units, with the shifts of the
//! blocks that begin in them (`table.rs`); where it is cut follows from its number alone.

#[allow(unsafe_code, reason = "calls what the processor has, once that is known")]
mod table;

use gapless_dtype::{Displacements, Layout, Shape};

use super::{ListSpec, MapSpec, Part, Patch, Patches, PlanKind, PlanSpec};

/// Entries of a piece come in multiples of this, so that the next part of the stream begins aligned.
const TOGETHER: usize = 32;

/// What a piece of units may have more than its share: it ends with a unit.
const SLACK: usize = 512;

/// So little is no piece: the one before may have it already, being cut behind a unit and a shift.
const REST: u64 = 16;

/// Writes any piece of a plan.
pub(crate) struct Pieces {
    layout: Layout,
    kind: Kind,
    /// Bytes of an instance's stream.
    size: u64,
    /// What to take off a displacement.
    base: i64,
    /// How many there are.
    count: usize,
}

enum Kind {
    List { displacements: Displacements, list: ListSpec, entries: usize },
    Table { map: MapSpec, step: u64 },
}

impl Pieces {
    /// The pieces of at most `piece_bytes` bytes, which are at least [`STAGING_MIN`](super::STAGING_MIN), of
    /// the plan of `layout`; `None` if it can only be written from its beginning to its end.
    ///
    /// # Panics
    /// If pieces are to be shorter.
    pub(crate) fn of(layout: &Layout, spec: &PlanSpec, piece_bytes: usize) -> Option<Pieces> {
        assert!(piece_bytes >= super::STAGING_MIN, "{piece_bytes} bytes to stage in");
        let (kind, base, count) = match spec.kind {
            PlanKind::Listed(list) => {
                let Shape::EqualBlocks { displacement, displacements, .. } = Part::of(layout).shape
                else {
                    return None;
                };
                let room = piece_bytes / list.entry_bytes as usize;
                let entries = room - room % TOGETHER;
                let count = displacements.len().div_ceil(entries);
                let base = spec.base.wrapping_sub(displacement);
                (Kind::List { displacements, list, entries }, base, count)
            }
            PlanKind::Mapped(map) => {
                let table = layout.run_table().filter(|table| {
                    // Runs that merge have no shift each.
                    spec.parts == 1 && table.displacements.len() as u64 == map.blocks
                })?;
                // There is no plan with block numbers of more than 32 bits.
                if map.units == 0 || spec.bytes == u64::MAX {
                    return None;
                }
                let step = (piece_bytes - SLACK) as u64;
                let count = spec.bytes.saturating_sub(REST).div_ceil(step).max(1);
                let count = usize::try_from(count).ok()?;
                let base = spec.base.wrapping_sub(table.displacement);
                (Kind::Table { map, step }, base, count)
            }
        };
        Some(Pieces { layout: layout.clone(), kind, size: spec.size, base, count })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Writes a piece into `staging` and appends to `patches` which bytes of it go where. Returns how many
    /// bytes of an instance's stream can be moved once this and all earlier pieces are in place: all with
    /// the last one.
    pub(crate) fn write(&self, number: usize, staging: &mut [u8], patches: &mut Patches) -> u64 {
        let ready = match &self.kind {
            Kind::List { displacements, list, entries } => {
                let from = number.saturating_mul(*entries).min(displacements.len());
                let to = from.saturating_add(*entries).min(displacements.len());
                self.list(list, &displacements[from..to], staging);
                let each = list.entry_bytes as usize;
                if to > from {
                    let staged = 0..(to - from) * each;
                    patches.push(Patch { staged, at: (from * each) as u64 });
                }
                to as u64 * list.len
            }
            Kind::Table { map, step } => self.table(map, *step, number, staging, patches),
        };
        if number + 1 >= self.count { self.size } else { ready }
    }

    fn list(&self, list: &ListSpec, displacements: &[i64], staging: &mut [u8]) {
        let shift = list.scale.trailing_zeros();
        if list.entry_bytes == 4 {
            short(displacements, self.base, shift, staging);
        } else {
            wide(displacements, self.base, shift, staging);
        }
    }
}

/// How far up from the base, in units of the scale. Unsigned: data may span more than 63 bits.
#[inline]
fn entry(displacement: i64, base: i64, shift: u32) -> u64 {
    displacement.wrapping_sub(base).cast_unsigned() >> shift
}

#[expect(clippy::cast_possible_truncation, reason = "entries of 4 bytes are chosen if all fit")]
fn short(displacements: &[i64], base: i64, shift: u32, staging: &mut [u8]) {
    let (entries, _) = staging.as_chunks_mut::<4>();
    for (to, &displacement) in entries.iter_mut().zip(displacements) {
        *to = (entry(displacement, base, shift) as u32).to_ne_bytes();
    }
}

fn wide(displacements: &[i64], base: i64, shift: u32, staging: &mut [u8]) {
    let (entries, _) = staging.as_chunks_mut::<8>();
    for (to, &displacement) in entries.iter_mut().zip(displacements) {
        *to = entry(displacement, base, shift).to_ne_bytes();
    }
}
