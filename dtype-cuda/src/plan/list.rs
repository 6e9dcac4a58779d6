//! Writing a list of displacements.

use gapless_dtype::{Displacements, Layout, Shape};

use super::{ListSpec, Part, Patch, Patches, PlanSpec};

/// Entries of a piece come in multiples of this, so that the next part of the stream begins aligned.
const TOGETHER: usize = 32;

/// Writes where the blocks begin, counted from the base in units of the scale.
pub(super) struct ListWriter {
    /// `None` of a layout without blocks.
    displacements: Option<Displacements>,
    done: usize,
    /// What to take off a displacement.
    base: i64,
    shift: u32,
    list: ListSpec,
    size: u64,
}

impl ListWriter {
    pub(super) fn new(layout: &Layout, spec: &PlanSpec, list: ListSpec) -> ListWriter {
        let (displacements, from) = match Part::of(layout).shape {
            Shape::EqualBlocks { displacements, displacement, .. } => {
                (Some(displacements), displacement)
            }
            _ => (None, 0),
        };
        ListWriter {
            displacements,
            done: 0,
            base: spec.base.wrapping_sub(from),
            shift: list.scale.trailing_zeros(),
            list,
            size: spec.size,
        }
    }

    pub(super) fn next(&mut self, staging: &mut [u8], patches: &mut Patches) -> Option<u64> {
        let left = self.displacements.as_deref()?.get(self.done..)?;
        if left.is_empty() {
            return None;
        }
        let entry_bytes = self.list.entry_bytes as usize;
        let room = staging.len() / entry_bytes;
        let n = if left.len() <= room { left.len() } else { room - room % TOGETHER };
        if entry_bytes == 4 {
            short(&left[..n], self.base, self.shift, staging);
        } else {
            wide(&left[..n], self.base, self.shift, staging);
        }
        patches.push(Patch { staged: 0..n * entry_bytes, at: (self.done * entry_bytes) as u64 });
        let all = left.len() == n;
        self.done += n;
        Some(if all { self.size } else { self.done as u64 * self.list.len })
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
