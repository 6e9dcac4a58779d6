//! Any blocks, by a plan (see [`crate::plan`]).

use super::{Launch, Launches, Move, NONE_IDLE, Unfit, WORDS_MAX, Words, bits, flat, narrowed};
use crate::args::{Args, Divide, Mapped, MappedArgs};
use crate::plan::UNIT_WORDS;
use crate::{Family, Width};

/// Instances of what a plan describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// To be added to every displacement that the plan was made of, in bytes.
    pub displacement: i64,
    /// Bytes of an instance's stream.
    pub size: u64,
    /// Words that the plan counts in; words of a launch may be narrower.
    pub width: Width,
    /// Bytes from the plan pointer to the units.
    pub units: u64,
    /// Bytes from the plan pointer to the shifts.
    pub shifts: u64,
    /// Bytes of a shift: 4 or 8, signed.
    pub shift_bytes: u32,
    /// Instances.
    pub instances: u64,
    /// Bytes from an instance to the next.
    pub extent: i64,
}

impl Planned {
    /// Bits of everything that a word must divide.
    pub(crate) fn all_bits(&self) -> u64 {
        let extent = if self.instances > 1 { bits(self.extent) } else { 0 };
        u64::from(self.width.bytes()) | bits(self.displacement) | extent
    }

    /// The part that holds byte `from` and, up to `to`, what can be numbered with it; and the bytes of
    /// the stream where the part begins and ends.
    pub(crate) fn part(&self, from: u64, to: u64, bytes_max: u64) -> (Planned, u64, u64) {
        let instance = from / self.size;
        let displacement =
            self.displacement.wrapping_add(instance.cast_signed().wrapping_mul(self.extent));
        let first = instance * self.size;
        if self.size <= bytes_max {
            let end = to.min((instance + bytes_max / self.size).saturating_mul(self.size));
            let instances = (end - first).div_ceil(self.size);
            return (Planned { displacement, instances, ..*self }, first, end);
        }
        // Shifts relate memory to the instance's stream, whatever unit the launch begins with.
        let unit = u64::from(self.width.bytes()) * u64::from(UNIT_WORDS);
        let units = (from - first) / unit;
        let begin = first + units * unit;
        let end = begin.saturating_add(bytes_max / unit * unit).min(first + self.size);
        let part = Planned {
            displacement: displacement.wrapping_add((units * unit).cast_signed()),
            units: self.units + units * 8,
            size: end - begin,
            instances: 1,
            ..*self
        };
        (part, begin, end)
    }

    /// As the kernel wants it, if its words can be numbered.
    pub(crate) fn shape(&self, width: Width) -> Option<Mapped> {
        let size = self.size >> width.log2();
        (size <= WORDS_MAX).then_some(())?;
        let size = u32::try_from(size).ok()?;
        Some(Mapped {
            extent: self.extent,
            scale: i64::from(self.width.bytes()),
            units: self.units,
            shifts: self.shifts,
            size,
            wide: u32::from(self.shift_bytes == 8),
            finer: self.width.log2() - width.log2(),
            unused: 0,
            by_size: Divide::by(size),
        })
    }
}

/// Launches for what a plan describes.
///
/// # Errors
/// [`Unfit::Range`], and [`Unfit::Numbers`] for no bytes.
pub fn mapped(what: &Move, plan: &Planned) -> Result<Launches, Unfit> {
    let mut launches = Launches::new();
    if what.range.is_empty() {
        return Ok(launches);
    }
    let size = plan.size;
    let all = size.checked_mul(plan.instances).ok_or(Unfit::Numbers)?;
    if size == 0 {
        return Err(Unfit::Numbers);
    }
    if what.range.end > all {
        return Err(Unfit::Range { end: what.range.end, size: all });
    }
    let width = narrowed(Width::dividing(what.bits() | plan.all_bits()), &what.range);
    let bytes_max = WORDS_MAX << width.log2();
    let mut from = what.range.start;
    while from < what.range.end {
        let (part, begin, end) = plan.part(from, what.range.end, bytes_max);
        let to = end.min(what.range.end);
        let words = Words::of(&(from - begin..to - begin), width);
        let geometry = flat(Family::Mapped, width, words, NONE_IDLE, what.budget);
        let packed = what.packed.offset + (from - what.range.start).cast_signed();
        let mut span = words.span(what.typed.offset.wrapping_add(part.displacement), packed);
        geometry.tell(&mut span);
        let shape = part.shape(width).ok_or(Unfit::Numbers)?;
        launches.push(Launch::new(
            Family::Mapped,
            what.direction,
            width,
            geometry,
            Args::Mapped(MappedArgs { span, shape }),
        ));
        from = to;
    }
    Ok(launches)
}
