//! A contiguous span of bytes in a space. A region is a description: it owns nothing, keeps nothing alive
//! and may be copied freely; what uses one (an `unsafe fn`) states what must hold.

use crate::Space;
use thiserror::Error;

/// `len` bytes that start `offset` bytes into the object at `address` of `space`.
///
/// For memory that has addresses, `address` is one (exposed provenance) and `offset` is usually 0.
/// For OpenCL buffers `address` is the `cl_mem` handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    space: Space,
    address: u64,
    offset: u64,
    len: u64,
}

/// A piece of a region was asked for that does not lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "{len} bytes at offset {offset} do not lie inside a region of {region_len} bytes in {space}"
)]
pub struct OutOfRange {
    /// Where the piece was to start.
    pub offset: u64,
    /// The piece's length in bytes.
    pub len: u64,
    /// The region's length in bytes.
    pub region_len: u64,
    /// The region's space.
    pub space: Space,
}

impl Region {
    /// Describes `len` bytes at `offset` into the object at `address` (or handle) of `space`.
    ///
    /// Nothing is checked: describing memory is safe, using the description is not.
    #[must_use]
    #[inline]
    pub fn new(space: Space, address: u64, offset: u64, len: u64) -> Region {
        Region { space, address, offset, len }
    }

    /// Describes host memory for reading.
    #[must_use]
    #[inline]
    pub fn of(bytes: &[u8]) -> Region {
        Region::new(Space::Host, bytes.as_ptr().expose_provenance() as u64, 0, bytes.len() as u64)
    }

    /// Describes host memory for reading and writing.
    #[must_use]
    #[inline]
    pub fn of_mut(bytes: &mut [u8]) -> Region {
        let len = bytes.len() as u64;
        Region::new(Space::Host, bytes.as_mut_ptr().expose_provenance() as u64, 0, len)
    }

    /// Host memory from a null base without an end: for datatypes of absolute addresses
    /// (`MPI_BOTTOM`).
    #[must_use]
    pub fn bottom() -> Region {
        Region::new(Space::Host, 0, 0, u64::MAX)
    }

    /// The space the bytes lie in.
    #[must_use]
    #[inline]
    pub fn space(&self) -> Space {
        self.space
    }

    /// The address or handle of the object, without the offset.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Where the region starts within the object, in bytes.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte, for spaces that have addresses.
    #[must_use]
    #[inline]
    pub fn start(&self) -> u64 {
        self.address.wrapping_add(self.offset)
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`] if they do not lie inside.
    #[inline]
    pub fn sub(&self, offset: u64, len: u64) -> Result<Region, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Region { offset: self.offset.wrapping_add(offset), len, ..*self })
            }
            _ => Err(OutOfRange { offset, len, region_len: self.len, space: self.space }),
        }
    }

    /// A pointer to its first byte, for the CPU.
    ///
    /// Dereferencing it is as unsafe as the description is unproven; `None` where the CPU must not
    /// touch the space.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> Option<*mut u8> {
        if !self.space.cpu_accessible() {
            return None;
        }
        let address = usize::try_from(self.start()).ok()?;
        Some(std::ptr::with_exposed_provenance_mut(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_inside() {
        let bytes = [0u8; 16];
        let whole = Region::of(&bytes);
        let piece = whole.sub(4, 8).unwrap();
        assert_eq!(piece.start(), whole.start() + 4);
        assert_eq!(piece.len(), 8);
        assert!(piece.sub(8, 0).is_ok());
        assert!(piece.sub(8, 1).is_err());
        let error = piece.sub(u64::MAX, 2).unwrap_err();
        assert_eq!(error.region_len, 8);
    }

    #[test]
    fn device_memory_has_no_cpu_pointer() {
        let region = Region::new(Space::Cuda { device: 0 }, 0x7000, 0, 64);
        assert!(region.as_ptr().is_none());
    }
}
