//! Memory of accelerators at addresses of the processor.

use crate::{DeviceError, Export, Region};

/// Maps memory that other processes have exported from accelerators, so that the processor of this one stores there: a few
/// words that the accelerator is to find near. Stores go over the bus, several at once and in any order, until
/// [`settle_stores`](crate::settle_stores); loads take a microsecond each, and whether they see what the accelerator has
/// just written is not said.
///
/// # Safety
/// Transports hand the memory out on the strength of what this answers. So an implementation keeps these rules:
///
/// 1. [`map`](Mapper::map) gives memory that lies at its address for reads and writes, overlaps nothing else of this
///    process's, and covers no more than was exported, until it is unmapped, whatever the exporting process does.
/// 2. If a call panics, nobody has what it has mapped.
pub unsafe trait Mapper: Send + Sync {
    /// Maps what another process exported. `None`: whether that is possible is being found out, which begins with the first
    /// call; ask again.
    ///
    /// # Errors
    /// It is not possible here; bytes that no accelerator of this kind made.
    fn map(&self, export: Export) -> Result<Option<Region>, DeviceError>;

    /// Unmaps what [`map`](Mapper::map) gave.
    ///
    /// # Safety
    /// `region` came from this mapper's `map`, and nothing uses it any more.
    ///
    /// # Errors
    /// The driver's failure.
    unsafe fn unmap(&self, region: Region) -> Result<(), DeviceError>;
}
