//! Staging memory: the memory of fragments between two engines.
//!
//! A slab of a device or of the host is allocated once and kept. Transports export it whole and peers map it once, so
//! that later messages find keys and mappings cached. Slabs are bounded in bytes, per device and for the host. Nobody
//! waits for a slab: a message that finds none uses another protocol.
//!
//! A slab whose message is over may still be written by a lost peer. It is *leaving* until the transport says that
//! nobody has it mapped. Lengths are in bytes.
//!
//! A slab is a lease, and so are its blocks and the places in them. So the memory of one that is freed here is there
//! until the last work on it has ended.

use crate::buffer::StagingMemory;
use crate::rndv::Cx;
use gapless_bml::{Access, Bml, Rank, RdmaRail, RemoteKey};
use gapless_mem::{Device, Lease, Region, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slabs are multiples of this, the drivers' unit of allocation, so that nothing else is exported with them.
const GRAIN: u64 = 2 << 20;

/// Part of a slab that one message uses. [`StagingPool::give`] takes it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct StagingBlock {
    slab: usize,
    place: StagingMemory,
}

impl StagingBlock {
    pub(crate) fn place(&self) -> &StagingMemory {
        &self.place
    }
}

/// What a slab is a lease of, if it is a device's memory.
struct DeviceMemory {
    device: Arc<dyn Device>,
    region: Region,
    /// No peer has it mapped, nor can map it any more. Without that, it is left to the end of the process: some
    /// drivers mind.
    unshared: AtomicBool,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.unshared.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: `add` got it from this device for this value, which is dropped once. Whatever of this process uses
        // it has a lease that this value is the owner of. Peers do not: so `Slab::free` was told, which sets the flag.
        let freed = unsafe { self.device.free(self.region) };
        if let Err(error) = freed {
            tracing::warn!(%error, "staging memory that cannot be freed");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlabState {
    Idle,
    Busy,
    /// A peer may still write to it.
    Leaving,
}

/// Memory that was allocated once.
struct Slab {
    /// All of it; `None` if it was freed.
    place: Option<StagingMemory>,
    /// `None` if it is the host's.
    device: Option<Arc<DeviceMemory>>,
    state: SlabState,
    /// Its device was detached: it is freed, and not used again.
    detached: bool,
    /// The registrations by which peers read it: one for each rail, kept until it is freed.
    keys: Vec<(RdmaRail, RemoteKey)>,
}

/// The staging memory of an endpoint.
#[derive(Default)]
pub(crate) struct StagingPool {
    slabs: Vec<Slab>,
}

/// The attached device that a buffer in `space` belongs to.
pub(crate) fn device_of(bml: &Bml, space: Space) -> Option<Arc<dyn Device>> {
    if space.cpu_accessible() {
        return None;
    }
    bml.devices().iter().find(|device| device.space().is_of_same_device(space)).cloned()
}

impl StagingPool {
    /// `len` bytes of the memory of `device`, or of host memory that peers and devices reach; `None` if that would
    /// exceed `bound`, or if the memory is not available.
    pub(crate) fn take(
        &mut self,
        bml: &mut Bml,
        device: Option<&Arc<dyn Device>>,
        len: u64,
        bound: u64,
    ) -> Option<StagingBlock> {
        self.look_back(bml);
        let idle = (0..self.slabs.len()).filter(|&at| {
            let slab = &self.slabs[at];
            slab.state == SlabState::Idle && slab.len() >= len && slab.is_of(device)
        });
        let best = idle.min_by_key(|&at| self.slabs[at].len());
        let slab = best.or_else(|| self.add(bml, device, len, bound))?;
        let place = self.slabs[slab].place.as_ref()?.sub(0, len).ok()?;
        self.slabs[slab].state = SlabState::Busy;
        Some(StagingBlock { slab, place })
    }

    /// A key by which `peer` may read a block, from its start on; `None` if the transport refuses. All of its slab is
    /// registered, once.
    pub(crate) fn read_key(
        &mut self,
        bml: &mut Bml,
        peer: Rank,
        block: &StagingBlock,
    ) -> Option<RemoteKey> {
        let rail = bml.rdma_rail(peer)?;
        let slab = &mut self.slabs[block.slab];
        if let Some((_, key)) = slab.keys.iter().find(|(known, _)| *known == rail) {
            return Some(*key);
        }
        let region = slab.place.as_ref()?.region();
        let (_, rdma) = bml.rdma(peer)?;
        // SAFETY: the slab keeps its memory until `free`, which gives the key back before that. A peer reads what it was told
        // is ready, which nobody writes then; one that reads at other times gets arbitrary bytes, and these reads are the
        // adapter's, not this program's.
        match unsafe { rdma.register(region, Access::Read) } {
            Ok(key) => {
                slab.keys.push((rail, key));
                Some(key)
            }
            Err(error) => {
                tracing::debug!(%error, "staging memory that peers cannot read");
                None
            }
        }
    }

    fn add(
        &mut self,
        bml: &mut Bml,
        device: Option<&Arc<dyn Device>>,
        len: u64,
        bound: u64,
    ) -> Option<usize> {
        let whole = len.checked_next_multiple_of(GRAIN).filter(|whole| *whole <= bound)?;
        // Idle slabs that nobody has mapped are freed at once; if that is not enough, all of them stay.
        let kept =
            self.slabs.iter().filter(|slab| slab.state != SlabState::Idle && slab.is_of(device));
        let kept: u64 = kept.map(Slab::len).sum();
        if kept.saturating_add(whole) > bound {
            return None;
        }
        while self.bytes_of(device).saturating_add(whole) > bound {
            self.drop_idle(bml, device)?;
        }
        let (lease, device) = match device {
            Some(device) => match device.allocate(whole) {
                Ok(region) => {
                    let (device, unshared) = (Arc::clone(device), AtomicBool::new(false));
                    let memory = Arc::new(DeviceMemory { device, region, unshared });
                    // SAFETY: the device has just given this memory, which `memory` alone frees, when it is dropped.
                    let lease = unsafe { Lease::new(region, Arc::clone(&memory) as _) };
                    (lease, Some(memory))
                }
                Err(error) => {
                    tracing::debug!(%error, "no staging memory");
                    return None;
                }
            },
            None => match bml.allocate(whole)? {
                // The allocation, which could make references to it, is dropped.
                Ok(memory) => (memory.lease().clone(), None),
                Err(error) => {
                    tracing::debug!(%error, "no staging memory of the host");
                    return None;
                }
            },
        };
        // SAFETY: a device, or `Allocation::new`, vouches that memory of these leases is valid for reads and writes;
        // it is new, and nobody has made a reference to it.
        let place = unsafe { StagingMemory::new(lease) };
        let (state, detached, keys) = (SlabState::Idle, false, Vec::new());
        let slab = Slab { place: Some(place), device, state, detached, keys };
        let vacant = self.slabs.iter().position(|slab| slab.place.is_none());
        let at = vacant.unwrap_or(self.slabs.len());
        match vacant {
            Some(at) => self.slabs[at] = slab,
            None => self.slabs.push(slab),
        }
        Some(at)
    }

    /// Bytes that there are of a device, or of the host.
    fn bytes_of(&self, device: Option<&Arc<dyn Device>>) -> u64 {
        self.slabs.iter().filter(|slab| slab.is_of(device)).map(Slab::len).sum()
    }

    /// Frees the longest slab that nobody uses; `None` if there is none.
    fn drop_idle(&mut self, bml: &mut Bml, device: Option<&Arc<dyn Device>>) -> Option<()> {
        let idle = self.slabs.iter_mut().filter(|slab| slab.state == SlabState::Idle);
        let mut idle: Vec<_> = idle.filter(|slab| slab.is_of(device)).collect();
        idle.sort_by_key(|slab| slab.len());
        let slab = idle.pop()?;
        if slab.is_mapped(bml) {
            // Its peers are asked to release it; until then it counts, and no message gets it.
            slab.state = SlabState::Leaving;
        } else {
            slab.free(bml);
        }
        Some(())
    }

    /// Checks which slabs peers have released.
    pub(crate) fn look_back(&mut self, bml: &mut Bml) {
        let due = |slab: &&mut Slab| slab.state == SlabState::Leaving || slab.detached;
        for slab in self.slabs.iter_mut().filter(due) {
            if slab.state == SlabState::Busy || slab.is_mapped(bml) {
                continue;
            }
            slab.state = SlabState::Idle;
            if slab.detached {
                slab.free(bml);
            }
        }
    }

    /// Frees what is kept of a device that is being detached; what messages have of it, once they have ended.
    pub(crate) fn forget(&mut self, bml: &mut Bml, device: &Arc<dyn Device>) {
        for slab in self.slabs.iter_mut().filter(|slab| slab.is_of(Some(device))) {
            if slab.state == SlabState::Idle && !slab.is_mapped(bml) {
                slab.free(bml);
            } else {
                slab.detached = true;
            }
        }
    }

    /// Takes back memory that no engine and no peer uses any more.
    pub(crate) fn give(&mut self, block: StagingBlock) {
        self.slabs[block.slab].state = SlabState::Idle;
    }

    /// Takes back memory that a peer may still write.
    pub(crate) fn give_late(&mut self, block: StagingBlock) {
        let slab = &mut self.slabs[block.slab];
        debug_assert!(
            slab.device.is_some(),
            "transports say of memory of devices only that peers have let go of it"
        );
        slab.state = SlabState::Leaving;
    }

    /// This process leaves: peers are asked to release memory that no message uses.
    pub(crate) fn leave(&mut self, bml: &mut Bml) {
        let idle = self.slabs.iter_mut().filter(|slab| slab.state == SlabState::Idle);
        for slab in idle.filter(|slab| slab.place.is_some()) {
            if slab.is_mapped(bml) {
                slab.state = SlabState::Leaving;
            }
        }
    }

    /// Frees everything, once no engine works any more. What a peer still has mapped is left to the
    /// end of the process: some drivers mind.
    pub(crate) fn close(&mut self, bml: &mut Bml) {
        for slab in &mut self.slabs {
            if slab.is_mapped(bml) {
                tracing::debug!(bytes = slab.len(), "staging memory that a peer has mapped");
            } else {
                slab.free(bml);
            }
        }
        self.slabs.clear();
    }

    /// Bytes kept, and how many of them messages have.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let sum = |pass: fn(&Slab) -> bool| {
            self.slabs.iter().filter(|slab| pass(slab)).map(Slab::len).sum()
        };
        (sum(|_| true), sum(|slab| slab.state != SlabState::Idle))
    }
}

impl Slab {
    fn len(&self) -> u64 {
        self.place.as_ref().map_or(0, |place| place.region().len())
    }

    fn is_of(&self, device: Option<&Arc<dyn Device>>) -> bool {
        match (&self.device, device) {
            (Some(own), Some(device)) => Arc::ptr_eq(&own.device, device),
            (None, None) => self.place.is_some(),
            _ => false,
        }
    }

    /// Whether a peer may have it mapped; ends its keys.
    fn is_mapped(&self, bml: &mut Bml) -> bool {
        self.device.as_ref().is_some_and(|memory| bml.invalidate(memory.region))
    }

    /// Frees it, as soon as nothing of this process works on it any more. No peer has it mapped.
    fn free(&mut self, bml: &mut Bml) {
        for (rail, key) in self.keys.drain(..) {
            bml.deregister(rail, &key);
        }
        if let Some(memory) = self.device.take() {
            memory.unshared.store(true, Ordering::Relaxed);
        }
        (self.place, self.detached) = (None, false);
    }
}

impl Cx<'_> {
    /// A block of staging memory, as [`StagingPool::take`] gives it within the bound.
    pub(crate) fn stage(
        &mut self,
        device: Option<&Arc<dyn Device>>,
        len: u64,
    ) -> Option<StagingBlock> {
        let bound = self.config.bounds.staging_bytes;
        let block = self.link.stage(self.staging, device, len, bound);
        if block.is_none() {
            self.count_without_staging();
        }
        block
    }

    /// Counts the message, once, among those that find no staging memory.
    pub(crate) fn count_without_staging(&mut self) {
        if !std::mem::replace(self.without_staging, true) {
            self.counters.went_without_staging();
        }
    }
}

impl std::fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kept, used) = self.bytes();
        write!(f, "Staging of {kept} bytes, {used} in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn a_slab_that_is_freed_stays_until_the_last_work_on_it_has_ended() {
        let device: Arc<dyn Device> = Arc::new(FakeDevice::new(0));
        let (mut bml, mut pool) = (Bml::new(Rank(0), 1), StagingPool::default());
        let block = pool.take(&mut bml, Some(&device), 100, 4 * GRAIN).unwrap();
        let place = block.place().sub(10, 20).unwrap();
        let region = place.region();
        pool.give(block);
        pool.close(&mut bml);
        assert!(device.allocation(region).is_some(), "work on it may go on");
        drop(place);
        assert!(device.allocation(region).is_none(), "it was freed");
    }

    #[test]
    fn a_buffer_is_of_the_device_whose_memory_it_is() {
        let mut bml = Bml::new(Rank(0), 1);
        let devices = [0, 1].map(|number| Arc::new(FakeDevice::new(number)) as Arc<dyn Device>);
        devices.iter().for_each(|device| bml.attach(device).unwrap());
        for device in &devices {
            let found = device_of(&bml, device.space()).unwrap();
            assert!(Arc::ptr_eq(&found, device));
        }
        assert!(device_of(&bml, Space::Device { kind: "fake", device: 2 }).is_none());
        assert!(device_of(&bml, Space::Host).is_none());
    }
}
