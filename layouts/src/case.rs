//! One message of an application: both datatypes, where they lie, and what is known about them.
//!
//! Owner: whoever asked for the case; it holds datatypes (shared, immutable) and numbers, never
//! buffers. Units: bytes.

use std::fmt;

use gapless_dtype::{Datatype, Primitive};

use crate::{error::LayoutError, families::Family};

/// The largest buffer any case may need, in bytes (1 TiB).
///
/// It keeps every product of a layout's parameters far from overflow and index lists in bounds
/// (a triangle of this size lists 370,727 columns). Whether so much memory exists is the
/// caller's question.
pub const MAX_BUFFER_BYTES: u64 = 1 << 40;

pub(crate) const FLOAT: u64 = 4;
pub(crate) const DOUBLE: u64 = 8;

/// A message: sent as one layout, received as another one (often the same).
#[derive(Clone, Debug)]
pub struct Case {
    /// What a table shows, for example `V n=4096` or `NAS MG x 130,66,66`; unique in the catalogue.
    pub name: String,
    /// The family that it belongs to.
    pub family: Family,
    /// The sender's side.
    pub send: Side,
    /// The receiver's side.
    pub recv: Side,
    /// Bytes that travel: the size of all instances, the same on both sides.
    pub payload_bytes: u64,
    /// Maximal contiguous runs, in packed order, of *one* instance of the sent datatype; from the
    /// layout's definition, not from the datatype layer.
    pub expected_send_blocks: Option<u64>,
    /// The same for one instance of the datatype received.
    pub expected_recv_blocks: Option<u64>,
}

/// One side of a message.
#[derive(Clone)]
pub struct Side {
    /// The datatype of one instance.
    pub datatype: Datatype,
    /// Instances sent or received.
    pub count: u64,
    /// Index in the buffer, in bytes, that displacement 0 of the first instance refers to.
    pub origin: u64,
    /// Bytes of the application's array or arrays, touched or not.
    pub buffer_bytes: u64,
}

impl fmt::Debug for Side {
    /// The numbers only: a datatype of a million indices is no help in a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Side")
            .field("size_bytes", &self.datatype.size())
            .field("count", &self.count)
            .field("origin", &self.origin)
            .field("buffer_bytes", &self.buffer_bytes)
            .finish_non_exhaustive()
    }
}

impl Side {
    /// One instance of `datatype` whose displacement 0 is byte `origin` of `buffer_bytes`.
    #[must_use]
    pub fn one(datatype: Datatype, origin: u64, buffer_bytes: u64) -> Side {
        Side { datatype, count: 1, origin, buffer_bytes }
    }

    /// Bytes that `count` instances carry.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.datatype.size().saturating_mul(self.count)
    }

    /// First byte of the buffer that is touched and the first after the last one; `None` if none
    /// is, or if the numbers do not fit.
    #[must_use]
    pub fn touched(&self) -> Option<(i64, i64)> {
        if self.payload_bytes() == 0 {
            return None;
        }
        let last = i64::try_from(self.count - 1).ok()?.checked_mul(self.datatype.extent())?;
        let origin = i64::try_from(self.origin).ok()?;
        let lo = self.datatype.true_lb().checked_add(last.min(0))?.checked_add(origin)?;
        let hi = self.datatype.true_ub().checked_add(last.max(0))?.checked_add(origin)?;
        Some((lo, hi))
    }
}

/// An axis of an array; `X` is the fastest in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Neighbours are adjacent in memory.
    X,
    /// Neighbours are a row apart.
    Y,
    /// Neighbours are a plane apart.
    Z,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Axis::X => "x",
            Axis::Y => "y",
            Axis::Z => "z",
        })
    }
}

/// The product of an array's dimensions and element size, all at least 1 and at most
/// [`MAX_BUFFER_BYTES`]. Constructors ask for it first: whatever they compute afterwards is an
/// offset into this array or at most a few times its size, so plain arithmetic is safe.
pub(crate) fn array_bytes(layout: &'static str, factors: &[u64]) -> Result<u64, LayoutError> {
    if factors.contains(&0) {
        return Err(LayoutError::Parameters { layout, rule: "every dimension must be at least 1" });
    }
    factors
        .iter()
        .try_fold(1_u64, |product, &factor| product.checked_mul(factor))
        .filter(|&bytes| bytes <= MAX_BUFFER_BYTES)
        .ok_or(LayoutError::TooLarge { layout })
}

/// A stride or displacement inside an array of [`array_bytes`].
pub(crate) fn signed(layout: &'static str, value: u64) -> Result<i64, LayoutError> {
    i64::try_from(value).map_err(|_| LayoutError::TooLarge { layout })
}

pub(crate) fn float() -> Datatype {
    Datatype::from(Primitive::Float)
}

pub(crate) fn double() -> Datatype {
    Datatype::from(Primitive::Double)
}
