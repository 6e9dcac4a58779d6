//! The optional ability to make a peer's memory a region of ours: memory that was allocated for it,
//! and memory of devices that both ends have [attached](crate::Btl::attach).
//!
//! # Devices
//!
//! The exporting end names its memory by a region in the space of an attached device. The whole allocation that the
//! region lies in is exported, once, and identified by the device's [buffer id](gapless_mem::Device::buffer_id).
//! Memory without a buffer id (of a device that cannot tell a buffer from a later one at its address) has no key.
//!
//! The importing end chooses which of its attached devices maps. [`Mapped::map_for`] takes the space of the device
//! that will work on the memory, and asks only that device. [`Mapped::map`] leaves the choice to the transport, which
//! asks devices of the exporter's kind in the order of attachment. The region lies in the space that the device
//! answers with, mostly its own, whichever device of the host the bytes are on.
//!
//! The layers above order the work on a mapping. Unfinished work of a device travels as the bytes of
//! [`Pending::export`](gapless_mem::Pending::export) in a message, and becomes a completion again by
//! [`Device::import_completion`](gapless_mem::Device::import_completion). The exporter keeps its completion until the
//! importer has released it.
//!
//! A mapping may be read and written. The protocol that gives a key away says what the peer may write, and when;
//! without such a rule a key is for reading.
//!
//! Device memory, unlike an [`Allocation`], is not kept alive by its mappings: with some drivers (CUDA's, for memory
//! of `cuMemAlloc`) freeing mapped memory is undefined. So an owner that made keys of it calls [`Mapped::invalidate`]
//! before freeing, until no peer has it mapped any more. If memory was freed without that, and even allocated again
//! at the same address, the next [`Mapped::key`] notices it by its buffer id: the old keys end, the new memory has
//! keys of its own.

use crate::{AbilityId, MapError, PeerId, RemoteKey};
use gapless_mem::{Lease, Region, Space};
use std::fmt;

/// Memory of ours that peers can map. It has one owner, the only one that may make references to it: it cannot be
/// cloned. The memory is freed when the owner, the last [`lease`](Allocation::lease) and the last key in use are
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

    /// The bytes, and their owner.
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

/// A peer's memory, mapped here. Counted: every user, completions included, keeps a clone.
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
    /// [`Mapped::invalidate`], where the device's driver minds), and that no reference of this process
    /// covers while the mapping is used. If the peer is of this process, whoever gave the key keeps the last of
    /// that.
    #[must_use]
    pub unsafe fn new(lease: Lease) -> Mapping {
        Mapping { lease }
    }

    /// The bytes of the key. The peer may write them at any time; so may the mapper, if the peer's protocol allows
    /// it.
    #[must_use]
    pub fn region(&self) -> Region {
        self.lease.region()
    }

    /// The bytes, and the owner of the mapping.
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
/// Callers free memory that peers had keys of, or give it back to its user, because an implementation says that they
/// may. So it keeps these rules:
///
/// 1. [`id`](Mapped::id) is the same at every call, and no other ability's. (A wrapper that passes everything on may
///    answer with what it wraps.)
/// 2. A [`key`](Mapped::key) stands for the bytes of its lease and no others, and lets `peer` alone map
///    them. Nothing keeps a clone of the lease once the call has returned.
/// 3. [`invalidate`](Mapped::invalidate) answers `false` only if no peer has device memory that the region
///    touches mapped, nor can map it by a key that was made before.
/// 4. [`revoke_access`](Mapped::revoke_access) answers `false` only if nothing of `peer`, its process or a device at
///    work for it, touches the memory through a mapping from then on, nor can it map the memory by a key that was made
///    before.
/// 5. [`make_private`](Mapped::make_private) answers `true` only if nothing of any peer touches the memory through a
///    mapping from then on, and no byte of it changes.
///
/// Rules 4 and 5 say nothing of one-sided operations: registrations end by
/// [`Rdma::deregister`](crate::Rdma::deregister).
///
/// An implementation without `unsafe` is refused:
///
/// ```compile_fail,E0200
/// # use gapless_btl::{AbilityId, Allocation, MapError, Mapped, Mapping, PeerId, RemoteKey};
/// # use gapless_mem::{Lease, Region, Space};
/// struct Nothing(AbilityId);
/// impl Mapped for Nothing {
/// #   fn id(&self) -> AbilityId { self.0 }
/// #   fn allocate(&mut self, _: u64) -> Result<Allocation, MapError> {
/// #       Err(MapError::Unavailable { reason: String::new() })
/// #   }
/// #   fn key(&mut self, _: PeerId, _: &Lease) -> Option<RemoteKey> { None }
/// #   fn map_for(&mut self, _: PeerId, _: &RemoteKey, _: Space) -> Result<Mapping, MapError> {
/// #       Err(MapError::Unavailable { reason: String::new() })
/// #   }
///     fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
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

    /// A key with which `peer` can map `memory`. The memory must lie inside one live [`Allocation`] of this
    /// transport, or inside one allocation of an attached device that can export it, and the peer must be able to
    /// map. Otherwise `None`: use another protocol. Sends the peer what it needs first, so a message that carries the
    /// key may follow at once.
    ///
    /// *How long the memory stays.* The lease shows that the memory is there, for the time of this call; nothing keeps
    /// a clone of it. A key keeps no memory, and needs none to stay. What a peer has mapped of an [`Allocation`] stays
    /// until its mapping is gone, by the transport's own means, and keys of one that was freed map nothing. Whoever
    /// frees memory of a device [invalidates](Mapped::invalidate) it before, whether or not it has asked for keys.
    ///
    /// *What is granted.* Nothing yet: a key only says where. The message that carries it grants the bytes of the key,
    /// for reading or for writing, until the peer says that it is done, or [`revoke_access`](Mapped::revoke_access)
    /// does. While they are granted for reading, nobody here writes them; while they are granted for writing, nobody
    /// here touches them, and no reference of this process covers them.
    ///
    /// Exports of device memory are cached, within bounds: after many others were shared, a buffer's key may be void
    /// ([`Unavailable`](crate::MapError::Unavailable)).
    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey>;

    /// Maps the memory of `peer`'s key, by any attached device that can if it is a device's:
    /// [`map_for`](Mapped::map_for) with [`Space::Host`].
    ///
    /// # Errors
    /// As there.
    fn map(&mut self, peer: PeerId, key: &RemoteKey) -> Result<Mapping, MapError> {
        self.map_for(peer, key, Space::Host)
    }

    /// Maps the memory of `peer`'s key, so that the attached device with the space `user` can work on it. If `user`
    /// or the memory is the host's, any device that can maps it. Cached: asking again is cheap.
    ///
    /// # Errors
    /// The key is damaged, the memory cannot be mapped (any more), no attached device is of its
    /// kind, or the device refuses.
    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError>;

    /// Ends all keys of the device memory that `region` touches: from now on no peer can map it, and peers release it
    /// as soon as they do not use it. Returns whether a peer may still have it mapped: then poll and ask again before
    /// freeing it. That ends when the peers' work on it does, or with the peers. A new [`key`](Mapped::key) shares
    /// the memory again.
    ///
    /// False at once for an [`Allocation`], which lives until the last mapping is gone.
    fn invalidate(&mut self, region: Region) -> bool {
        let _ = region;
        false
    }

    /// Makes `peer`, which is lost, release the memory that `region` touches, of an [`Allocation`] or of a device.
    /// Its keys to the memory end for good when it receives this, and it releases its mappings as soon as it does not
    /// use them. Returns whether the peer, or a device that works for it, may still read or write the memory: then
    /// poll and ask again. That ends when its work does, or with its process; not with the link, which a living peer
    /// may outlast. Memory that was granted for writing must not be given back to its user before.
    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool;

    /// Takes the memory that `region` touches, of an [`Allocation`], back from all peers at once, whatever they
    /// are doing: it gets pages of its own, with the same bytes at the same addresses, that no device knows;
    /// peers keep the old pages. The allocation has no keys any more. For a process that gives its messages up,
    /// and cannot wait until peers that live have let go ([`revoke_access`](Mapped::revoke_access)). Meanwhile nothing
    /// of this process works on the memory, and no device works on any byte of the allocation; other threads may use
    /// the rest of the allocation.
    ///
    /// Gives whether the memory is this process's alone now. `false` is always right.
    fn make_private(&mut self, region: Region) -> bool {
        let _ = region;
        false
    }
}
