//! The oracle: what a datatype means, written out literally.
//!
//! A datatype *is* its typemap: the sequence of (basic type, displacement) pairs of MPI 4.1 §5.1,
//! in packed order. [`Typemap`] is that sequence as a plain list, built from
//! [`Datatype::contents`] alone by following each constructor's definition one index at a time:
//! no merging, no closed forms, nothing shared with the committed program or with the bounds kept
//! by the constructors. It is slow and obvious on purpose; the fast code is tested against it.
//!
//! Units: displacements and extents are bytes relative to the buffer's origin, sizes are bytes.
//! Work and memory are bounded: a type that would need more than [`STEPS_MAX`] steps (placed
//! entries and loop iterations together) or [`BYTES_MAX`] listed bytes is refused with
//! [`NaiveError::TooLarge`].
//!
//! Read first: MPI 4.1 §5.1.1 (typemaps), §5.1.2 (constructors), §5.1.3 (subarray), §5.1.4
//! (darray), §5.1.7 (lower and upper bounds).

mod arrays;
pub mod bytes;
mod expand;

use crate::{Datatype, Primitive};
use std::fmt;

/// Most steps that building one typemap may take: entries placed plus loop iterations.
pub const STEPS_MAX: u64 = 1 << 24;

/// Most packed bytes the oracle lists one by one (it spends eight bytes of memory on each).
pub const BYTES_MAX: u64 = 1 << 24;

/// Why the oracle does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NaiveError {
    /// Writing the type out would take more than the stated number of steps or bytes.
    TooLarge {
        /// The bound that was hit.
        limit: u64,
        /// What it counts: `"steps"` or `"bytes"`.
        what: &'static str,
    },
    /// A displacement or bound leaves the 64-bit range.
    Overflow,
    /// A buffer does not hold a byte that the typemap names.
    OutOfBuffer {
        /// The byte's displacement.
        displacement: i64,
        /// The index displacement 0 refers to.
        origin: usize,
        /// The buffer's length in bytes.
        len: usize,
    },
    /// The packed bytes handed to [`Typemap::unpack`] are not as many as the typemap has.
    PackedLength {
        /// Bytes the instances have.
        expected: usize,
        /// Bytes that were given.
        got: usize,
    },
}

impl fmt::Display for NaiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { limit, what } => {
                write!(f, "the type is too large to write out: more than {limit} {what}")
            }
            Self::Overflow => f.write_str("a displacement or bound leaves the 64-bit range"),
            Self::OutOfBuffer { displacement, origin, len } => write!(
                f,
                "the buffer of {len} bytes has no byte at displacement {displacement} from {origin}"
            ),
            Self::PackedLength { expected, got } => {
                write!(f, "expected {expected} packed bytes, got {got}")
            }
        }
    }
}

impl std::error::Error for NaiveError {}

/// One pair of a typemap: a basic type and where its first byte lies.
///
/// MPI's pair types (`MPI_DOUBLE_INT`, …) are two entries, value and index, so every entry is
/// gapless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypemapEntry {
    /// The basic type; never a pair type.
    pub primitive: Primitive,
    /// Bytes from the buffer's origin.
    pub displacement: i64,
}

impl TypemapEntry {
    fn len(&self) -> i64 {
        i64::try_from(self.primitive.size_bytes()).expect("basic types are a few bytes")
    }
}

/// A datatype's typemap written out, with the bounds MPI derives from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typemap {
    entries: Vec<TypemapEntry>,
    /// Least explicit lower-bound marker, if the typemap has one (MPI 4.1 §5.1.6).
    lb_marker: Option<i64>,
    /// Greatest explicit upper-bound marker.
    ub_marker: Option<i64>,
    lb: i64,
    ub: i64,
    true_lb: i64,
    true_ub: i64,
    size: u64,
}

impl Typemap {
    /// Writes out `datatype`.
    ///
    /// # Errors
    /// [`NaiveError::TooLarge`] past [`STEPS_MAX`], [`NaiveError::Overflow`] where a displacement
    /// or bound does not fit 64 bits.
    pub fn of(datatype: &Datatype) -> Result<Typemap, NaiveError> {
        Self::with_steps(datatype, STEPS_MAX)
    }

    /// Writes out `datatype` in at most `steps_max` steps.
    ///
    /// # Errors
    /// As [`Typemap::of`].
    pub fn with_steps(datatype: &Datatype, steps_max: u64) -> Result<Typemap, NaiveError> {
        expand::expand(datatype, &mut expand::Steps::new(steps_max))
    }

    /// The entries in packed order.
    pub fn entries(&self) -> &[TypemapEntry] {
        &self.entries
    }

    /// The type signature: the basic types in packed order (MPI 4.1 §5.1.1).
    pub fn signature(&self) -> impl ExactSizeIterator<Item = Primitive> + '_ {
        self.entries.iter().map(|entry| entry.primitive)
    }

    /// Payload bytes of one instance.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Lower bound (MPI 4.1 §5.1.7): the least marker where there is one, else the least
    /// displacement; 0 for an empty typemap.
    pub fn lb(&self) -> i64 {
        self.lb
    }

    /// Upper bound: the greatest marker where there is one, else the greatest end of an entry,
    /// with the alignment padding ε.
    pub fn ub(&self) -> i64 {
        self.ub
    }

    /// `ub - lb`: the step from one instance to the next.
    pub fn extent(&self) -> i64 {
        self.ub - self.lb
    }

    /// Least displacement of an entry, markers and padding left out; 0 for an empty typemap.
    pub fn true_lb(&self) -> i64 {
        self.true_lb
    }

    /// Greatest end of an entry; 0 for an empty typemap.
    pub fn true_ub(&self) -> i64 {
        self.true_ub
    }

    /// `true_ub - true_lb`.
    pub fn true_extent(&self) -> i64 {
        self.true_ub - self.true_lb
    }

    /// Whether no byte occurs twice in `count` instances, so that unpacking them is legal.
    pub fn is_disjoint(&self, count: u64) -> bool {
        let Ok(mut runs) = self.runs(count) else {
            return false;
        };
        runs.sort_unstable_by_key(|run| run.displacement);
        runs.windows(2).all(|pair| {
            let end = i128::from(pair[0].displacement) + i128::from(pair[0].len);
            end <= i128::from(pair[1].displacement)
        })
    }
}

#[cfg(test)]
mod tests;
