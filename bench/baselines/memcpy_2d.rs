//! `cudaMemcpy2D`: rows of one length at one distance. Its bound is the same call at its best: the row
//! width, of those tried, with which it moves the same payload fastest.

use gapless_dtype::Shape;
use gapless_kernels::Direction;

use super::Bound;
use crate::error::Failure;
use crate::gpu::lab::{Lab, Laid, Spot};
use crate::gpu::subject::Subject;
use crate::gpu::timing;

/// Its name in rows.
pub const NAME: &str = "cudaMemcpy2D";
/// Row widths that are tried for the bound.
const WIDTHS: [u64; 4] = [1 << 10, 1 << 13, 1 << 16, 1 << 19];

/// A layout that this call can move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first row is, from displacement 0.
    pub first: i64,
    /// Bytes of a row.
    pub width: u64,
    /// From row to row.
    pub pitch: u64,
    /// Rows.
    pub count: u64,
}

impl Rows {
    /// The rows of a subject, if that is what it is.
    #[must_use]
    pub fn of(subject: &Subject) -> Option<Rows> {
        match subject.layout.shape() {
            Shape::Strided { displacement, len, dims } if subject.count == 1 => match dims[..] {
                [dim] => {
                    let pitch = u64::try_from(dim.stride).ok()?;
                    Some(Rows { first: *displacement, width: *len, pitch, count: dim.count })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Enqueues the copy on the lab's stream.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn go(
        &self,
        lab: &Lab,
        direction: Direction,
        subject: &Subject,
        laid: &Laid,
        packed: &Spot,
    ) -> Result<(), Failure> {
        let at = subject.origin.wrapping_add_signed(self.first);
        let place = laid.place();
        let typed = place.sub(at, place.len() - at)?;
        let (typed, packed) = ((&typed, self.pitch), (packed, self.width));
        match direction {
            Direction::Pack => lab.copy_2d(packed, typed, self.width, self.count),
            Direction::Unpack => lab.copy_2d(typed, packed, self.width, self.count),
        }
    }
}

/// What bounds it between these memories: the best of some row widths.
///
/// # Errors
/// What the driver refuses.
pub fn bound(
    lab: &Lab,
    seconds: f64,
    direction: Direction,
    payload: u64,
    gaps: &Spot,
    packed: &Spot,
) -> Result<Bound, Failure> {
    let mut best = Bound { what: "no row width fits".to_owned(), seconds: f64::INFINITY };
    for width in WIDTHS {
        let rows = payload / width;
        if rows < 2 || rows * width * 2 > gaps.len() || payload > packed.len() {
            continue;
        }
        let time = timing::alone(lab, seconds / 4.0, false, || match direction {
            Direction::Pack => lab.copy_2d((packed, width), (gaps, 2 * width), width, rows),
            Direction::Unpack => lab.copy_2d((gaps, 2 * width), (packed, width), width, rows),
        })?;
        // The rows may be a little less than the payload.
        let all = time.median * payload as f64 / (rows * width) as f64;
        if all < best.seconds {
            best = Bound { what: format!("this call with rows of {width} bytes"), seconds: all };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::subject;

    #[test]
    fn only_rows_are_rows() {
        let rows = Rows::of(&subject::v(8).unwrap()).unwrap();
        assert_eq!(rows, Rows { first: 0, width: 64, pitch: 128, count: 8 });
        assert_eq!(Rows::of(&subject::t(8).unwrap()), None);
        assert_eq!(Rows::of(&subject::x(8, 8).unwrap()), None);
    }
}
