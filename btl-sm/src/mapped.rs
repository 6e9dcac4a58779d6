//! Our allocations that peers can map: sealed memfds, and who knows of them; and the ability itself,
//! whose other half, memory of devices, is in `device_exports.rs` and `device_imports.rs`.

use crate::imports::refused;
use crate::segment::{Segment, whole_pages};
use crate::sm::Sm;
use crate::socket;
use crate::wire::{SHARED, freed_packet, make_key, read_key, released_packet, share_packet};
use gapless_btl::{AbilityId, Allocation, MapError, Mapped, Mapping, PeerId, RemoteKey};
use gapless_mem::{Lease, Region, Space};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Allocations whose last holder is gone: their numbers and addresses, reported from any thread.
#[derive(Debug, Default)]
struct Freed {
    list: Mutex<Vec<(u64, u64)>>,
    any: AtomicBool,
}

/// One allocation: what an [`Allocation`] holds.
#[derive(Debug)]
struct AllocationSegment {
    number: u64,
    /// Bytes that were asked for; the segment goes on to the end of its page.
    len: u64,
    segment: Segment,
    file: OwnedFd,
    freed: Arc<Freed>,
}

impl Drop for AllocationSegment {
    fn drop(&mut self) {
        let mut list = self.freed.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push((self.number, self.segment.start()));
        self.freed.any.store(true, Ordering::Release);
    }
}

/// All allocations of one transport.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// By the address of the first byte.
    live: BTreeMap<u64, Weak<AllocationSegment>>,
    next: u64,
    freed: Arc<Freed>,
}

impl Exports {
    /// The live allocation that `region` lies in, and where. What follows it in its last page is nobody's.
    fn find(&self, region: Region) -> Option<(Arc<AllocationSegment>, u64)> {
        if !region.space().cpu_accessible() {
            return None;
        }
        let (&start, block) = self.live.range(..=region.start()).next_back()?;
        // What was made private is not what a peer would map.
        let block = block.upgrade().filter(|block| !block.segment.is_private())?;
        let offset = region.start() - start;
        let end = offset.checked_add(region.len())?;
        (end <= block.len).then_some((block, offset))
    }

    /// The numbers of the live allocations that `region` touches.
    pub(crate) fn touched(&self, region: Region) -> Vec<u64> {
        let end = region.start().saturating_add(region.len().max(1));
        let before = self.live.range(..end).rev();
        // They do not overlap: the first that ends before the region is behind all others that do.
        let blocks = before.map_while(|(&start, block)| {
            let block = block.upgrade();
            let over =
                block.as_ref().is_some_and(|it| start.saturating_add(it.len) <= region.start());
            (!over).then_some(block)
        });
        blocks.flatten().map(|block| block.number).collect()
    }

    /// The live allocations that `region` touches, with the bytes of each that it does: where they start, and how
    /// many.
    fn parts(&self, region: Region) -> Vec<(Arc<AllocationSegment>, usize, usize)> {
        let (from, to) = (region.start(), region.start().saturating_add(region.len()));
        let live =
            self.live.range(..to).filter_map(|(&start, block)| Some((start, block.upgrade()?)));
        let parts = live.filter_map(|(start, block)| {
            let end = to.min(start.saturating_add(block.len));
            let at = from.max(start);
            let len = end.checked_sub(at).filter(|len| *len > 0)?;
            Some((block, usize::try_from(at - start).ok()?, usize::try_from(len).ok()?))
        });
        parts.collect()
    }

    /// The next number, of an allocation or a device's buffer: they have one sequence.
    pub(crate) fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Whether allocations have been freed that peers have not been told of.
    #[inline]
    pub(crate) fn has_freed(&self) -> bool {
        self.freed.any.load(Ordering::Relaxed)
    }

    /// The allocations that exist.
    pub(crate) fn for_each_segment(&self, mut visit: impl FnMut(&Segment)) {
        for block in self.live.values().filter_map(Weak::upgrade) {
            visit(&block.segment);
        }
    }
}

impl Sm {
    /// Tells peers of allocations that are no more.
    #[inline(never)]
    pub(crate) fn announce_freed(&mut self) {
        if !self.exports.has_freed() {
            return;
        }
        self.exports.freed.any.store(false, Ordering::Relaxed);
        let mut list = self.exports.freed.list.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = std::mem::take(&mut *list);
        drop(list);
        for (number, start) in freed {
            // The address may have been given to another allocation since.
            if self.exports.live.get(&start).is_some_and(|block| block.strong_count() == 0) {
                self.exports.live.remove(&start);
            }
            for link in &mut self.links {
                if link.shared.remove(&number) {
                    link.tell(&freed_packet(number));
                }
            }
        }
        self.flush_packets();
    }

    /// Tells peers of memory that nothing uses here any more and that they want back.
    #[inline(never)]
    pub(crate) fn announce_released(&mut self) {
        let mut awaited = self.device_imports.take_awaited();
        awaited.extend(self.imports.take_released());
        for (peer, number) in awaited {
            self.imports.count_out(peer);
            if let Some(link) = self.links.get_mut(peer.0 as usize) {
                link.tell(&released_packet(number));
            }
        }
        self.flush_packets();
    }

    /// What a peer's key names: a buffer's number, and where in it. Its descriptor has been read, if it has come.
    fn known_key(&mut self, peer: PeerId, key: &RemoteKey) -> Result<[u64; 3], MapError> {
        let link = self.link(peer)?;
        let owner = link.address.nonce;
        if let Err(error) = link.is_up() {
            // While the rest is being delivered its memory can still be mapped.
            if link.incoming.is_none() {
                return Err(error.into());
            }
        }
        let named = read_key(owner, key)?;
        let number = named[0];
        if !self.imports.knows(peer, number) && !self.device_imports.knows(peer, number) {
            // The peer sent the descriptor before the key: it is in the socket, if need be behind a greeting.
            if self.links[peer.0 as usize].incoming.is_none() {
                self.admit(peer.0);
            }
            self.read_until_known(peer.0, number);
        }
        Ok(named)
    }

    /// Sends packets that found a socket full.
    pub(crate) fn flush_packets(&mut self) {
        self.packets_wait = false;
        for link in &mut self.links {
            if !link.unsent.is_empty() && !link.flush() {
                self.packets_wait = true;
            }
        }
    }
}

#[expect(unsafe_code, reason = "vouches for what it says of memory that peers have mapped")]
// SAFETY: the numbers are those of the contract.
// 1. The id is made with the transport, and the same for single copy.
// 2. A key names an allocation or a buffer whose descriptor is sent to the peer alone, and a range in it that `find`,
//    or the device, found inside; the peer maps no more than the descriptor's memory. Of the lease only the region is
//    used. 3., 4. `invalidate_device` and `revoke_all_access` count who was sent what until its transport says that it
//    has let go (RELEASED), or its process has ended.
// 5. What a region touches lies in live allocations, which `parts` finds, or is not known to any peer; `make_private`
//    gives their pages up for others.
unsafe impl Mapped for Sm {
    fn id(&self) -> AbilityId {
        self.single_copy.ability
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        let bytes = whole_pages(len).ok_or_else(|| MapError::System {
            operation: "mmap",
            reason: format!("{len} bytes are more than the address space"),
        })?;
        let (segment, file) = Segment::create(bytes, true).map_err(refused)?;
        if !socket::can_be_spared(&file) {
            return Err(MapError::System {
                operation: "memfd_create",
                reason: "what is left of this process's open files is for peers".to_owned(),
            });
        }
        for device in &self.devices {
            if let Err(error) = segment.register(device) {
                tracing::debug!(%error, "an allocation is not known to a device");
            }
        }
        let number = self.exports.next_number();
        let start = segment.start();
        let length = usize::try_from(len).unwrap_or(bytes);
        let region = segment.region(0, length);
        let freed = Arc::clone(&self.exports.freed);
        let block = Arc::new(AllocationSegment { number, len, segment, file, freed });
        self.exports.live.insert(start, Arc::downgrade(&block));
        // SAFETY: `region` lies in the block's segment, which is sealed against shrinking and stays mapped
        // while the block lives.
        let lease = unsafe { Lease::new(region, block) };
        // SAFETY: the segment was just made, zeroed, and is mapped here once.
        Ok(unsafe { Allocation::new(lease) })
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let region = memory.region();
        self.announce_freed();
        if !region.space().cpu_accessible() {
            return self.device_key(peer, region);
        }
        let (block, offset) = self.exports.find(region)?;
        let owner = self.address.nonce;
        let link = self.links.get_mut(peer.0 as usize)?;
        if link.is_up() != Ok(true) {
            return None;
        }
        if !link.shared.contains(&block.number) {
            // Notices of freed memory go first: the peer counts.
            let known = link.shared.len() + link.leaving.len();
            if known >= SHARED || !link.unsent.is_empty() || link.leaving.contains(&block.number) {
                return None;
            }
            if !link.know_process() {
                return None;
            }
            let socket = link.outgoing.as_ref()?;
            let packet = share_packet(block.number, block.segment.len() as u64);
            if socket::send(socket, &packet, Some(&block.file)) != Ok(true) {
                return None;
            }
            link.shared.insert(block.number);
        }
        Some(make_key(owner, block.number, offset, region.len()))
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let [number, offset, len] = self.known_key(peer, key)?;
        let result = if self.device_imports.knows(peer, number) {
            let guard = self.links[peer.0 as usize].guard.as_ref();
            self.device_imports.map((peer, number), offset, len, user, (&self.attached, guard))
        } else {
            let guard = self.links[peer.0 as usize].guard.as_ref();
            self.imports.map((peer, number), offset, len, (&self.devices, guard))
        };
        if let Err(MapError::Link(error)) = &result {
            self.die(peer.0, error.clone());
        }
        result
    }

    fn invalidate(&mut self, region: Region) -> bool {
        !region.space().cpu_accessible() && self.invalidate_device(region)
    }

    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        self.revoke_all_access(peer, region)
    }

    fn make_private(&mut self, region: Region) -> bool {
        let parts = self.exports.parts(region);
        region.space().cpu_accessible()
            && parts.into_iter().all(|(block, at, len)| {
                let made = block.segment.make_private(&block.file, at, len);
                if let Err(error) = &made {
                    tracing::error!(%error, "an allocation that cannot be made private");
                }
                made.is_ok()
            })
    }
}
