//! Why an engine refused or failed.

use gapless_dtype::{ConvertorError, Primitive, TypeError};
use gapless_mem::{DeviceError, OutOfRange, Region, Space};
use std::fmt;
use thiserror::Error;

/// Why an engine refused or failed; the message names the culprit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The instances of the layout reach outside the buffer.
    #[error(
        "the layout touches bytes {low}..{high} from its origin, but the buffer has bytes \
         {first}..{last} there"
    )]
    OutsideBuffer {
        /// First byte touched, relative to the origin.
        low: i128,
        /// Byte after the last one touched, relative to the origin.
        high: i128,
        /// First byte of the buffer, relative to the origin.
        first: i128,
        /// Byte after the buffer's last, relative to the origin.
        last: i128,
    },
    /// A page reaches outside the buffer.
    #[error(
        "index {index} at position {position} leads outside the memory, whose last page is {last}"
    )]
    PageOutside {
        /// Where in the list the index is.
        position: u64,
        /// The index.
        index: u64,
        /// The largest index inside.
        last: u64,
    },
    /// Indices of pages, said to lie in memory of a device, that do not, or that are not aligned, or of odd length.
    #[error(
        "indices of {width} bytes cannot lie in the {} bytes at {:#x} in {}",
        indices.len(), indices.start(), indices.space()
    )]
    IndexMemory {
        /// Where they were to lie.
        indices: Box<Region>,
        /// Bytes of an index.
        width: u64,
    },
    /// Pages whose indices lie in memory of a device, for work that reads them on the host.
    #[error("the indices of the pages lie in memory of a device, where this work cannot read them")]
    DeviceIndices,
    /// Pages as an ordinary layout were refused.
    #[error(transparent)]
    Pages(#[from] TypeError),
    /// Another region than instances were checked for.
    #[error(
        "the instances were checked for {} bytes in {}, not for {} bytes in {}",
        expected.len(), expected.space(), region.len(), region.space()
    )]
    OtherRegion {
        /// The region.
        region: Box<Region>,
        /// One that is like those they were checked for.
        expected: Box<Region>,
    },
    /// A range that leaves the packed stream.
    #[error("bytes {start}..{end} leave a packed stream of {packed_bytes} bytes")]
    RangeOutside {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
        /// Length of the packed stream.
        packed_bytes: u64,
    },
    /// A packed region whose length is not that of the range.
    #[error("a packed region of {region} bytes for a range of {range} bytes")]
    LengthMismatch {
        /// Bytes of the region.
        region: u64,
        /// Bytes of the range.
        range: u64,
    },
    /// Memory this engine cannot work on.
    #[error("the {engine} engine cannot work on memory in {space}")]
    WrongSpace {
        /// The engine's name.
        engine: &'static str,
        /// The space of the region.
        space: Space,
    },
    /// The operation is not defined for the type (MPI 4.1 §6.9.2).
    #[error("{op} is not defined for {primitive}")]
    UndefinedOp {
        /// The operation.
        op: &'static str,
        /// The basic type.
        primitive: Primitive,
    },
    /// Elements that the machine has no arithmetic for: `long double`, other than on x86-64.
    #[error("this machine has no arithmetic for {primitive}")]
    NoArithmetic {
        /// The basic type.
        primitive: Primitive,
    },
    /// A reduction without a source.
    #[error("nothing to reduce: there is no source")]
    NoSource,
    /// A buffer of elements of several basic types, which no predefined operation combines.
    #[error("{operand} has elements of several basic types, but {op} combines one type")]
    MixedElements {
        /// Which buffer.
        operand: Operand,
        /// The operation.
        op: &'static str,
    },
    /// A buffer whose elements are of another basic type than those of the other buffers.
    #[error("{operand} holds {found}, but the other buffers hold {primitive}")]
    NotUniform {
        /// Which buffer.
        operand: Operand,
        /// The type of its elements.
        found: Primitive,
        /// The type of the others.
        primitive: Primitive,
    },
    /// A buffer whose elements are not those that a user's operation combines.
    #[error(
        "{operand} does not hold whole elements of the datatype that the operation {op} is for"
    )]
    OtherElements {
        /// Which buffer.
        operand: Operand,
        /// The operation's name.
        op: String,
    },
    /// A user's function panicked. Elements before the one that it was called for may have been written.
    #[error("the function of the operation {op} panicked: {message}")]
    Panicked {
        /// The operation's name.
        op: String,
        /// What it panicked with, if that is text.
        message: String,
    },
    /// A reduction over a range that cuts an element in two.
    #[error("bytes {start}..{end} cut an element of {element_bytes} bytes")]
    SplitElement {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
        /// Bytes of one element.
        element_bytes: u64,
    },
    /// The convertor refused.
    #[error(transparent)]
    Convertor(#[from] ConvertorError),
    /// A piece of a region that does not lie inside it.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl EngineError {
    /// Whether it is memory that the engine cannot work on, and another engine may.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        use DeviceError::{OutOfReach, Unsupported, WrongSpace};
        matches!(
            self,
            EngineError::WrongSpace { .. }
                | EngineError::Device(OutOfReach { .. } | Unsupported { .. } | WrongSpace { .. })
        )
    }
}

/// Which buffer of a reduction is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The source of this number, counted from 0.
    Source(usize),
    /// The buffer that the result goes to.
    Target,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Source(number) => write!(f, "source {number}"),
            Operand::Target => f.write_str("the target"),
        }
    }
}
