//! Where an operation's data lies at the target, and whether that fits what the origin has.

use crate::error::WindowError;
use gapless_dtype::Layout;
use gapless_engine::{EngineError, Typed};
use std::ops::Range;

/// A checked access to a target.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) rank: u32,
    pub(crate) target: Typed,
}

impl Access {
    /// Length of the packed stream.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.target.packed_bytes()
    }
}

/// Where in the target's window, and how what is accessed lies there.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) displacement: u64,
    pub(crate) shape: Option<(Layout, u64)>,
}

impl Place {
    /// At a displacement, in units of the target, laid out as at the origin.
    #[must_use]
    #[inline]
    pub fn at(displacement: u64) -> Place {
        Place { displacement, shape: None }
    }

    /// The displacement, if what is accessed lies there as at the origin.
    #[must_use]
    #[inline]
    pub fn plain(&self) -> Option<u64> {
        self.shape.is_none().then_some(self.displacement)
    }

    /// In units of the target.
    #[must_use]
    #[inline]
    pub fn displacement(&self) -> u64 {
        self.displacement
    }

    /// The layout of the target, and how many instances, unless what is accessed lies there as at the origin.
    #[must_use]
    #[inline]
    pub fn shape(&self) -> Option<(&Layout, u64)> {
        self.shape.as_ref().map(|(layout, count)| (layout, *count))
    }

    /// `count` instances of a layout, whose displacement 0 is at a displacement in units of the target.
    #[must_use]
    pub fn typed(displacement: u64, layout: &Layout, count: u64) -> Place {
        Place { displacement, shape: Some((layout.clone(), count)) }
    }
}

impl From<u64> for Place {
    #[inline]
    fn from(displacement: u64) -> Place {
        Place::at(displacement)
    }
}

impl From<u32> for Place {
    #[inline]
    fn from(displacement: u32) -> Place {
        Place::at(u64::from(displacement))
    }
}

impl From<usize> for Place {
    #[inline]
    fn from(displacement: usize) -> Place {
        Place::at(displacement as u64)
    }
}

/// For literals. What is negative lies in no window.
impl From<i32> for Place {
    #[inline]
    fn from(displacement: i32) -> Place {
        Place::at(u64::try_from(displacement).unwrap_or(u64::MAX))
    }
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It is read and written by elements.
    Change,
}

/// Whether the target has the elements that the origin has. Bytes stand for anything.
pub(crate) fn check_types(origin: &Typed, layout: &Layout, count: u64) -> Result<(), WindowError> {
    let bytes = layout.size().checked_mul(count);
    if bytes != Some(origin.packed_bytes()) {
        let bytes = bytes.map_or_else(|| "too many".to_owned(), |bytes| bytes.to_string());
        let why = format!("{} bytes at the origin, {bytes} at the target", origin.packed_bytes());
        return Err(WindowError::Mismatch { why });
    }
    if origin.layout().id() == layout.id() {
        return Ok(());
    }
    let sent = origin.layout().signature().digest(origin.count());
    let fits = layout.signature().accepts_prefix(count, &sent);
    fits.map_err(|error| WindowError::Mismatch { why: error.to_string() })
}

/// The part of a buffer that a range of a packed stream is, which begins with the buffer.
pub(crate) fn index(range: &Range<u64>) -> Result<Range<usize>, WindowError> {
    let end = length(&(0..range.end))?;
    Ok(end - length(range)?..end)
}

pub(crate) fn length(range: &Range<u64>) -> Result<usize, WindowError> {
    let len = range.end - range.start;
    let region_len = len;
    usize::try_from(len).map_err(|_| {
        let space = gapless_mem::Space::Host;
        let error = gapless_mem::OutOfRange { offset: range.start, len, region_len, space };
        EngineError::from(error).into()
    })
}
