//! Plans in pieces that any thread may write, in any order.
//!
//! A piece of a list is so many entries. A piece of units and shifts is whole units, with the shifts of the
//! blocks that begin in them: where the layout keeps its blocks as a table, they are looked up (`table.rs`), and
//! else read from a convertor (`walk.rs`). Where a piece is cut follows from its number alone.

#[allow(unsafe_code, reason = "stores past the caches by address")]
mod stream;
#[allow(unsafe_code, reason = "calls what the processor has, once that is known")]
mod table;
mod walk;

use gapless_dtype::{Displacements, Layout, Shape};

use stream::{Aligned, settled, stream};
use walk::{Walk, settle};

use super::{ListSpec, MapSpec, Patch, Patches, PlanKind, PlanPart, PlanSpec};

/// Entries of a piece come in multiples of this, so that the next part of the stream begins aligned.
const TOGETHER: usize = 32;

/// Blocks looked at together: what is worked out of them stays in the first-level cache, and few enough that
/// the processor fetches the next meanwhile. Their entries, or shifts, are whole lines.
const BATCH: usize = 64;

/// What a piece of units may have more than its share: it ends with a unit.
const SLACK: usize = 512;

/// So little is no piece: the one before may have it already, being cut behind a unit and a shift.
const REST: u64 = 16;

/// Writes any piece of a plan.
pub(crate) struct Pieces {
    layout: Layout,
    kind: PieceKind,
    /// Bytes of an instance's stream.
    size: u64,
    /// What to take off a displacement.
    base: i64,
    /// How many there are.
    count: usize,
}

enum PieceKind {
    List { displacements: Displacements, list: ListSpec, entries: usize },
    Table { map: MapSpec, step: u64 },
    Walk(Walk),
}

/// What a piece that is written completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrote {
    /// Bytes of an instance's stream that can be moved once this and all earlier pieces are in place: all with
    /// the last one.
    pub(crate) ready: u64,
    /// Blocks that were numbered without knowing how many there are before: [`Pieces::settle`] them.
    pub(crate) blocks: u64,
}

impl Pieces {
    /// The pieces of at most `piece_bytes` bytes, which are at least [`STAGING_MIN`](super::STAGING_MIN), of
    /// the plan of `layout`; `None` if it had better be written from its beginning to its end.
    ///
    /// # Panics
    /// If pieces are to be shorter.
    pub(crate) fn of(layout: &Layout, spec: &PlanSpec, piece_bytes: usize) -> Option<Pieces> {
        assert!(piece_bytes >= super::STAGING_MIN, "{piece_bytes} bytes to stage in");
        let (kind, base, count) = match spec.kind {
            PlanKind::Listed(list) => {
                let Shape::EqualBlocks { displacement, displacements, .. } =
                    PlanPart::of(layout).shape
                else {
                    return None;
                };
                let room = piece_bytes / list.entry_bytes as usize;
                let entries = room - room % TOGETHER;
                let count = displacements.len().div_ceil(entries);
                let base = spec.base.wrapping_sub(displacement);
                (PieceKind::List { displacements, list, entries }, base, count)
            }
            PlanKind::Mapped(map) => {
                // There is no plan with block numbers of more than 32 bits.
                if map.units == 0 || spec.bytes == u64::MAX {
                    return None;
                }
                let table = layout.run_table().filter(|table| {
                    // Runs that merge have no shift each.
                    spec.parts == 1 && table.displacements.len() as u64 == map.blocks
                });
                let Some(table) = table else {
                    let (walk, count) = Walk::of(layout, spec, map, piece_bytes)?;
                    let (layout, size, base) = (layout.clone(), spec.size, spec.base);
                    return Some(Pieces { layout, kind: PieceKind::Walk(walk), size, base, count });
                };
                let step = (piece_bytes - SLACK) as u64;
                let count = spec.bytes.saturating_sub(REST).div_ceil(step).max(1);
                let count = usize::try_from(count).ok()?;
                let base = spec.base.wrapping_sub(table.displacement);
                (PieceKind::Table { map, step }, base, count)
            }
        };
        Some(Pieces { layout: layout.clone(), kind, size: spec.size, base, count })
    }

    /// Whether they are read from a convertor.
    pub(crate) fn are_walks(&self) -> bool {
        matches!(self.kind, PieceKind::Walk(_))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Writes a piece into `staging` and appends to `patches` which bytes of it go where.
    pub(crate) fn write(&self, number: usize, staging: &mut [u8], patches: &mut Patches) -> Wrote {
        let mut wrote = match &self.kind {
            PieceKind::List { displacements, list, entries } => {
                let from = number.saturating_mul(*entries).min(displacements.len());
                let to = from.saturating_add(*entries).min(displacements.len());
                self.list(list, &displacements[from..to], staging);
                let each = list.entry_bytes as usize;
                if to > from {
                    let staged = 0..(to - from) * each;
                    patches.push(Patch { staged, at: (from * each) as u64 });
                }
                Wrote { ready: to as u64 * list.len, blocks: 0 }
            }
            PieceKind::Table { map, step } => {
                let ready = self.table(map, *step, number, staging, patches);
                Wrote { ready, blocks: 0 }
            }
            PieceKind::Walk(walk) => self.walk(walk, number, staging, patches),
        };
        settled();
        if number + 1 >= self.count {
            wrote.ready = self.size;
        }
        wrote
    }

    /// Ends the writing of a piece that numbered `blocks` blocks for itself, if any: `before` are those of all
    /// pieces before it, together.
    pub(crate) fn settle(
        &self,
        before: u64,
        blocks: u64,
        staging: &mut [u8],
        patches: &mut Patches,
    ) {
        if let PieceKind::Walk(walk) = &self.kind {
            settle(&walk.map, before, blocks, staging, patches);
        }
    }

    fn list(&self, list: &ListSpec, displacements: &[i64], staging: &mut [u8]) {
        let shift = list.scale.trailing_zeros();
        if list.entry_bytes == 4 {
            let entries = staging.as_chunks_mut::<4>().0;
            #[expect(clippy::cast_possible_truncation, reason = "chosen if all fit")]
            entries_of(displacements, entries, |at| {
                (entry(at, self.base, shift) as u32).to_ne_bytes()
            });
        } else {
            let entries = staging.as_chunks_mut::<8>().0;
            entries_of(displacements, entries, |at| entry(at, self.base, shift).to_ne_bytes());
        }
    }
}

/// How far up from the base, in units of the scale. Unsigned: data may span more than 63 bits.
#[inline]
fn entry(displacement: i64, base: i64, shift: u32) -> u64 {
    displacement.wrapping_sub(base).cast_unsigned() >> shift
}

/// Writes entries, past the caches.
#[inline]
fn entries_of<const N: usize>(
    displacements: &[i64],
    entries: &mut [[u8; N]],
    entry: impl Fn(i64) -> [u8; N],
) {
    let mut batch = Aligned([[0; N]; BATCH]);
    let entries = &mut entries[..displacements.len()];
    for (displacements, to) in displacements.chunks(BATCH).zip(entries.chunks_mut(BATCH)) {
        let batch = &mut batch.0[..displacements.len()];
        for (to, &at) in batch.iter_mut().zip(displacements) {
            *to = entry(at);
        }
        stream(to.as_flattened_mut(), batch.as_flattened());
    }
}
