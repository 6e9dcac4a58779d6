//! The optional ability to make a peer's memory a region of ours: memory that was allocated for it,
//! and memory of devices that both ends have [attached](crate::Btl::attach).
//!
//! # Devices
//!
//! The exporting end names its memory by a region in the space of an attached device; what is
//! exported is the whole allocation that the region lies in, once, found again by the device's
//! [buffer id](gapless_mem::Device::buffer_id). Memory without one (of a device that cannot tell a
//! buffer from another that took its address) has no key.
//!
//! The importing end chooses which of its attached devices maps: [`Mapped::map_for`] takes the space
//! of the device that will work on the memory, and only that device is asked; [`Mapped::map`] leaves
//! it to the transport, which asks those of the exporter's kind in the order of attachment. The
//! region lies in the space that the device answers with, mostly its own, whichever device of the
//! host the bytes are on.
//!
//! Work on a mapping is ordered by the layers above: what a device has yet to finish travels as the
//! bytes of [`Pending::export`](gapless_mem::Pending::export) in a message, and becomes a completion
//! again by [`Device::import_completion`](gapless_mem::Device::import_completion). The exporter holds
//! its completion until the importer says that it is through.
//!
//! A mapping may be read and written: whoever gives a key away says in its own protocol what the peer
//! may write, and when; without a word a key is for reading.
//!
//! Device memory, unlike an [`Allocation`], is not kept alive by those who map it: some drivers
//! (CUDA's, of what `cuMemAlloc` gave) leave it undefined to free what others have mapped. So whoever
//! made keys of it calls [`Mapped::withdraw`] before freeing, until nobody has it any more. Memory
//! that was freed without that, and even allocated anew at the same address, is noticed by its buffer
//! id at the next [`Mapped::key`]: the old keys end, the new memory has keys of its own.

use crate::{AbilityId, MapError, PeerId, RemoteKey};
use gapless_mem::{Lease, Region, Space};
use std::fmt;

/// Memory of ours that peers can map. It has one owner, which alone may make references to it: it cannot be
/// cloned. The memory is freed when that, the last [`lease`](Allocation::lease) and the last key in use are
/// gone.
///
/// ```compile_fail,E0599
/// # fn two(memory: gapless_btl::Allocation) -> [gapless_btl::Allocation; 2] {
/// [memory.clone(), memory] // each could be made into a `&mut [u8]`
/// # }
/// ```
pub struct Allocation {
    lease: Lease,
}

impl Allocation {
    /// For the implementation of a transport.
    ///
    /// # Safety
    /// While the lease's owner lives, its region describes initialised memory that is valid for reads and
    /// writes, and that this process reaches through this allocation alone.
    #[must_use]
    pub unsafe fn new(lease: Lease) -> Allocation {
        Allocation { lease }
    }

    /// The bytes.
    #[must_use]
    pub fn region(&self) -> Region {
        self.lease.region()
    }

    /// The bytes, and what keeps them.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation of {} bytes", self.region().len())
    }
}

/// A peer's memory, mapped here. Counted: whatever uses it, completions included, holds a clone.
#[derive(Clone)]
pub struct Mapping {
    lease: Lease,
}

impl Mapping {
    /// For the implementation of a transport.
    ///
    /// # Safety
    /// While the lease's owner lives, its region describes memory that is valid for reads and writes,
    /// whatever the peer does (with memory of a device: unless it frees it without
    /// [`Mapped::withdraw`], where the device's driver minds), and that no reference of this process
    /// covers.
    #[must_use]
    pub unsafe fn new(lease: Lease) -> Mapping {
        Mapping { lease }
    }

    /// The bytes that the key stood for. The peer may write them at any time; so may the mapper, where
    /// the peer's protocol lets it.
    #[must_use]
    pub fn region(&self) -> Region {
        self.lease.region()
    }

    /// The bytes, and what keeps them mapped.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping of {} bytes", self.region().len())
    }
}

/// Makes a peer's memory a region of ours.
///
/// # Safety
/// Memory that peers were given keys of is freed, or handed back to its user, on the word of an
/// implementation. So it keeps these rules:
///
/// 1. [`id`](Mapped::id) is the same at every call, and no other ability's. (A wrapper that hands everything
///    on may answer with what it wraps.)
/// 2. A [`key`](Mapped::key) stands for the bytes of its region and no others, and lets `peer` alone map
///    them.
/// 3. [`withdraw`](Mapped::withdraw) answers `false` only if no peer has device memory that the region
///    touches mapped, nor can map it by a key that was made before.
/// 4. [`recall`](Mapped::recall) answers `false` only if nothing of `peer`, its process or a device at work
///    for it, touches the memory from then on, nor can it map the memory by a key that was made before.
/// 5. [`make_private`](Mapped::make_private) answers `true` only if nothing of any peer touches the memory from
///    then on, and no byte of it changes.
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_btl::{AbilityId, Allocation, MapError, Mapped, Mapping, PeerId, RemoteKey};
/// # use gapless_mem::{Region, Space};
/// struct Nothing(AbilityId);
/// impl Mapped for Nothing {
/// #   fn id(&self) -> AbilityId { self.0 }
/// #   fn allocate(&mut self, _: u64) -> Result<Allocation, MapError> {
/// #       Err(MapError::Unavailable { reason: String::new() })
/// #   }
/// #   fn key(&mut self, _: PeerId, _: Region) -> Option<RemoteKey> { None }
/// #   fn map_for(&mut self, _: PeerId, _: &RemoteKey, _: Space) -> Result<Mapping, MapError> {
/// #       Err(MapError::Unavailable { reason: String::new() })
/// #   }
///     fn recall(&mut self, peer: PeerId, region: Region) -> bool {
///         false // although the peer writes on
///     }
/// }
/// ```
pub unsafe trait Mapped {
    /// Its name in this process.
    fn id(&self) -> AbilityId;

    /// Memory of ours, zeroed and page-aligned, that peers can map later. Memory from elsewhere
    /// cannot be shared after the fact.
    ///
    /// # Errors
    /// The operating system refused.
    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError>;

    /// A key with which `peer` can map `region`, if it lies inside one live [`Allocation`] of this
    /// transport, or inside one allocation of an attached device that can export it, and the peer
    /// can map at all; else `None`: use another protocol. Sends the peer what it needs first, so a
    /// message that carries the key may follow at once.
    ///
    /// Exports of device memory are cached, within bounds: the key of a buffer that many others
    /// were shared after may find nothing any more
    /// ([`Unavailable`](crate::MapError::Unavailable)). While the key is in use the memory must not
    /// be freed; see [`withdraw`](Mapped::withdraw).
    fn key(&mut self, peer: PeerId, region: Region) -> Option<RemoteKey>;

    /// Maps what `peer` gave the key for, by whichever attached device can if it is a device's:
    /// [`map_for`](Mapped::map_for) with [`Space::Host`].
    ///
    /// # Errors
    /// As there.
    fn map(&mut self, peer: PeerId, key: &RemoteKey) -> Result<Mapping, MapError> {
        self.map_for(peer, key, Space::Host)
    }

    /// Maps what `peer` gave the key for, so that the attached device whose space `user` is can
    /// work on it. Where `user` is the host's, or the memory is, any that can maps. Cached: asking
    /// again is cheap.
    ///
    /// # Errors
    /// The key is damaged, the memory cannot be mapped (any more), no attached device is of its
    /// kind, or the device refuses.
    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError>;

    /// Ends all keys of the device memory that `region` touches: from now on nobody maps it anew,
    /// and peers let go of it as soon as nothing there uses it. Gives whether a peer may still have
    /// it mapped: then poll and ask again before freeing it. That ends when the peers' work on it
    /// does, or with the peers. A new [`key`](Mapped::key) shares the memory anew.
    ///
    /// False at once for an [`Allocation`], which lives until the last mapping is gone.
    fn withdraw(&mut self, region: Region) -> bool {
        let _ = region;
        false
    }

    /// Has `peer`, which was given up, let go of the memory that `region` touches, of an [`Allocation`] or
    /// of a device: its keys to it end for good when it hears of this, and what it has mapped is let go
    /// of there as soon as nothing uses it. Gives whether the peer, or a device at work for it, may still read or write
    /// the memory: then poll and ask again. That ends when its work does, or with its process; not
    /// when the link does, which a peer that lives may outlast. Who granted memory to be written gives it
    /// back to its user no sooner.
    fn recall(&mut self, peer: PeerId, region: Region) -> bool;

    /// Takes the memory that `region` touches, of an [`Allocation`], back from all peers at once, whatever they
    /// are doing: it gets pages of its own, with the same bytes at the same addresses, that no device knows;
    /// peers keep the old pages. The allocation has no keys any more. For a process that gives its messages up,
    /// and cannot wait until peers that live have let go ([`recall`](Mapped::recall)). Nothing of this process,
    /// a device included, works on the memory meanwhile; the rest of the allocation may be in use.
    ///
    /// Gives whether the memory is this process's alone now. `false` is always right.
    fn make_private(&mut self, region: Region) -> bool {
        let _ = region;
        false
    }
}
