//! Equal blocks at listed displacements. The list lies in the plan.

use super::{Launch, Launches, Move, NONE_IDLE, Unfit, WORDS_MAX, Words, bits, flat, skipping};
use crate::args::{Args, Divide, Listed, ListedArgs};
use crate::{Direction, Family, Width};

/// Instances of equal blocks at listed displacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// To be added to every listed displacement, in bytes.
    pub displacement: i64,
    /// Bytes of a block.
    pub len: u64,
    /// Blocks of an instance.
    pub count: u64,
    /// Bytes from the plan pointer to the list.
    pub list: u64,
    /// Bytes of a list entry: 4 or 8, signed.
    pub entry_bytes: u32,
    /// Bytes that a listed displacement counts.
    pub scale: i64,
    /// Bits of all listed displacements in bytes, or-ed: what a word must divide. At least `scale`'s.
    pub bits: u64,
    /// Instances.
    pub instances: u64,
    /// Bytes from an instance to the next.
    pub extent: i64,
}

impl Blocks {
    /// Bits of everything that a word must divide.
    pub(crate) fn all_bits(&self) -> u64 {
        let extent = if self.instances > 1 { bits(self.extent) } else { 0 };
        bits(self.displacement) | self.len | self.bits | extent
    }

    /// Bytes of an instance.
    pub(crate) fn size(&self) -> Option<u64> {
        let size = self.len.checked_mul(self.count)?;
        (size > 0 && size <= i64::MAX.cast_unsigned()).then_some(size)
    }

    /// The part that holds byte `from` and, up to `to`, what can be numbered with it; and the bytes of
    /// the stream where the part begins and ends.
    pub(crate) fn part(&self, from: u64, to: u64, bytes_max: u64) -> (Blocks, u64, u64) {
        let size = self.len * self.count;
        let instance = from / size;
        let displacement =
            self.displacement.wrapping_add(instance.cast_signed().wrapping_mul(self.extent));
        if size <= bytes_max {
            // Whole instances together.
            let begin = instance * size;
            let end = to.min((instance + bytes_max / size).saturating_mul(size));
            let instances = (end - begin).div_ceil(size);
            return (Blocks { displacement, instances, ..*self }, begin, end);
        }
        // Whole blocks of one instance.
        let block = (from - instance * size) / self.len;
        let count = (bytes_max / self.len).min(self.count - block);
        let list = self.list + block * u64::from(self.entry_bytes);
        let begin = instance * size + block * self.len;
        let part = Blocks { displacement, list, count, instances: 1, ..*self };
        (part, begin, begin + count * self.len)
    }

    /// As the kernel wants them, if their words can be numbered.
    pub(crate) fn shape(&self, width: Width) -> Option<Listed> {
        let words = self.size()? >> width.log2();
        (words <= WORDS_MAX).then_some(())?;
        let len = u32::try_from(self.len >> width.log2()).ok()?;
        let blocks = u32::try_from(self.count).ok()?;
        Some(Listed {
            extent: self.extent,
            scale: self.scale,
            list: self.list,
            len,
            blocks,
            wide: u32::from(self.entry_bytes == 8),
            unused: 0,
            by_len: Divide::by(len),
            by_blocks: Divide::by(blocks),
        })
    }
}

/// Launches for equal blocks at listed displacements.
///
/// # Errors
/// [`Unfit::Range`], and [`Unfit::Numbers`] for no bytes or blocks of more than 2³¹ words.
pub fn listed(what: &Move, blocks: &Blocks) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if what.range.is_empty() {
        return Ok(launches);
    }
    let size = blocks.size().ok_or(Unfit::Numbers)?;
    let all = size.checked_mul(blocks.instances).ok_or(Unfit::Numbers)?;
    if what.range.end > all {
        return Err(Unfit::Range { end: what.range.end, size: all });
    }
    let width = what.width(blocks.all_bits());
    let bytes_max = WORDS_MAX << width.log2();
    let mut from = what.range.start;
    while from < what.range.end {
        let (part, begin, end) = blocks.part(from, what.range.end, bytes_max);
        let to = end.min(what.range.end);
        if to <= from {
            return Err(Unfit::Numbers);
        }
        let words = Words::of(&(from - begin..to - begin), width);
        let shape = part.shape(width).ok_or(Unfit::Numbers)?;
        let skipping = skipping(what.direction, words.first, shape.len, width, None);
        let geometry = flat(Family::Listed, width, words, skipping, what.budget);
        let packed = what.packed.offset + (from - what.range.start).cast_signed();
        let mut span = words.span(what.typed.offset.wrapping_add(part.displacement), packed);
        geometry.tell(&mut span);
        launches.push(Launch::new(
            Family::Listed,
            what.direction,
            width,
            geometry,
            Args::Listed(ListedArgs { span, skipping, shape }),
        ));
        from = to;
    }
    Ok(launches)
}

/// Has an unpack read a source that lies across a link in whole lines: all threads of a strip take part, though
/// some write into sectors that others write, too. The destination's memory has time for that.
pub(super) fn in_lines(launch: &mut Launch) {
    let (width, few) = (launch.kernel.width, launch.kernel.few);
    let Args::Listed(args) = &mut launch.args else { return };
    if launch.kernel.family != Family::Listed || launch.kernel.direction != Direction::Unpack || few
    {
        return;
    }
    let span = &mut args.span;
    args.skipping = NONE_IDLE;
    let strips = span.words.div_ceil(32 * Family::Listed.items(width, few));
    span.tiles = strips.div_ceil(launch.threads / 32) + u32::from(span.edges & 0xffff != 0);
    launch.blocks = span.tiles;
}
