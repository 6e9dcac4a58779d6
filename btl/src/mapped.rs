//! The optional ability to make a peer's memory a region of ours.

use crate::{MapError, PeerId, RemoteKey};
use gapless_mem::Region;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory of ours that peers can map. Counted: it is freed when the last clone is gone and no key
/// of it is in use any more.
#[derive(Clone)]
pub struct Allocation {
    region: Region,
    hold: Arc<dyn Any + Send + Sync>,
}

impl Allocation {
    /// For the implementation of a transport.
    ///
    /// # Safety
    /// While `hold` lives, `region` describes initialised memory that is valid for reads and
    /// writes, and that this process reaches through this allocation alone.
    #[must_use]
    pub unsafe fn new(region: Region, hold: Arc<dyn Any + Send + Sync>) -> Allocation {
        Allocation { region, hold }
    }

    /// The bytes.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// What keeps them.
    #[must_use]
    pub fn hold(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.hold
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation of {} bytes", self.region.len())
    }
}

/// A peer's memory, mapped here. Counted: whatever uses it, completions included, holds a clone.
#[derive(Clone)]
pub struct Mapping {
    region: Region,
    hold: Arc<dyn Any + Send + Sync>,
}

impl Mapping {
    /// For the implementation of a transport.
    ///
    /// # Safety
    /// While `hold` lives, `region` describes memory that is valid for reads, whatever the peer
    /// does, and that no reference of this process covers.
    #[must_use]
    pub unsafe fn new(region: Region, hold: Arc<dyn Any + Send + Sync>) -> Mapping {
        Mapping { region, hold }
    }

    /// The bytes that the key stood for. The peer may write them at any time.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// What keeps them mapped.
    #[must_use]
    pub fn hold(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.hold
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping of {} bytes", self.region.len())
    }
}

/// Makes a peer's memory a region of ours.
pub trait Mapped {
    /// Memory of ours, zeroed and page-aligned, that peers can map later. Memory from elsewhere
    /// cannot be shared after the fact.
    ///
    /// # Errors
    /// The operating system refused.
    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError>;

    /// A key with which `peer` can map `region`, if it lies inside one live [`Allocation`] of this
    /// transport and the peer can map at all; else `None`: use another protocol. Sends the peer
    /// what it needs first, so a message that carries the key may follow at once.
    fn key(&mut self, peer: PeerId, region: Region) -> Option<RemoteKey>;

    /// Maps what `peer` gave the key for. Cached: asking again is cheap.
    ///
    /// # Errors
    /// The key is damaged, or the memory cannot be mapped (any more).
    fn map(&mut self, peer: PeerId, key: &RemoteKey) -> Result<Mapping, MapError>;
}
