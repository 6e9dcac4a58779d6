//! The loopback's optional abilities. Everything is within one process, so one-sided operations are copies that have
//! ended when they return (their events come with the next poll), and a mapping is a counted reference to the
//! allocation.
//!
//! Keys, big-endian: kind (1 byte), end (4), registration or allocation, or for single-copy reads address (8), then for
//! a registration its length (8), for an allocation or a device's buffer offset (8), length (8) and the end that may
//! map it (8), for single-copy reads length (8) and the end that may read (8).

use super::devices::overlap;
use super::direct::Reach;
use super::hub::{Granted, HubEnd, SharedMemory, lock};
use super::{Loopback, gone};
use crate::memory::HeapMemory;
use crate::{
    AbilityId, Access, Allocation, Btl, Change, Ended, Event, Extent, MapError, Mapped, Mapping,
    PeerId, Rdma, RdmaError, RdmaLimits, RemoteKey, Token, check_atomic, total_of,
};
use gapless_mem::{DeviceError, Lasting, Lease, Region, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const REGISTERED: u8 = b'R';
const ALLOCATED: u8 = b'A';
const EXPORTED: u8 = b'D';
const SINGLE_COPY: u8 = b'P';
const PAGE_BYTES: usize = 4096;

fn encode(kind: u8, end: u32, numbers: &[u64]) -> RemoteKey {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&end.to_be_bytes());
    numbers.iter().for_each(|n| bytes.extend_from_slice(&n.to_be_bytes()));
    RemoteKey::new(&bytes).expect("the key is short")
}

/// The numbers of a key of `kind` made by `end`, or what is wrong with it.
fn decode<const N: usize>(key: &RemoteKey, kind: u8, end: u32) -> Result<[u64; N], &'static str> {
    let bytes = key.as_bytes();
    if bytes.len() != 5 + 8 * N {
        return Err("its length");
    }
    if bytes[0] != kind {
        return Err("its kind");
    }
    if bytes[1..5] != end.to_be_bytes() {
        return Err("another peer made it");
    }
    let mut numbers = [0; N];
    for (number, chunk) in numbers.iter_mut().zip(bytes[5..].chunks_exact(8)) {
        *number = u64::from_be_bytes(chunk.try_into().map_err(|_| "its length")?);
    }
    Ok(numbers)
}

/// Which way the bytes go.
#[derive(Clone, Copy)]
enum OneSidedKind {
    Get,
    Put,
}

/// Walks two lists of pieces of one total length in step, as pairs of equal pieces.
fn in_step(
    local: &[Reach],
    remote: &[Reach],
    mut each: impl FnMut(Reach, Reach) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let (mut i, mut j, mut i_done, mut j_done) = (0, 0, 0, 0);
    while i < local.len() && j < remote.len() {
        let (ours, theirs) = (local[i].region.len(), remote[j].region.len());
        let len = (ours - i_done).min(theirs - j_done);
        each(local[i].sub(i_done, len)?, remote[j].sub(j_done, len)?)?;
        i_done += len;
        j_done += len;
        if i_done == ours {
            (i, i_done) = (i + 1, 0);
        }
        if j < remote.len() && j_done == theirs {
            (j, j_done) = (j + 1, 0);
        }
    }
    Ok(())
}

impl Loopback {
    /// Checks everything, then copies.
    ///
    /// # Safety
    /// As [`Rdma::get`] and [`Rdma::put`].
    unsafe fn one_sided(
        &mut self,
        way: OneSidedKind,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let end = Arc::clone(&self.peer(peer)?.end);
        let max = self.rdma_limits.max_pieces;
        for pieces in [local.len(), remote.len()] {
            if pieces > max {
                return Err(RdmaError::TooManyPieces { pieces, max });
            }
        }
        let [number, key_len] = decode(key, REGISTERED, end.number())
            .map_err(|what| RdmaError::BadKey { what: what.to_owned() })?;
        let remote_len = total_of(remote, key_len)?;
        let local_len = local
            .iter()
            .try_fold(0u64, |sum, piece| sum.checked_add(piece.len()))
            .unwrap_or(u64::MAX);
        if local_len != remote_len {
            return Err(RdmaError::LengthMismatch { local: local_len, remote: remote_len });
        }
        let local: Vec<Reach> = local.iter().map(|it| self.reach(*it)).collect::<Result<_, _>>()?;
        if self.ready.len() >= self.ready_max() {
            return Err(RdmaError::Full);
        }
        // Held over the copy: the memory cannot be deregistered in between.
        let shared = lock(&end.shared);
        let (whole, access) = registered(&end, &shared, (number, key_len))?;
        if matches!(way, OneSidedKind::Put) && access == Access::Read {
            return Err(RdmaError::ReadOnly);
        }
        let pieces = remote
            .iter()
            .map(|piece| whole.sub(piece.offset, piece.len).map_err(DeviceError::from))
            .collect::<Result<Vec<_>, _>>()?;
        in_step(&local, &pieces, |ours, theirs| {
            let (to, from) = match way {
                OneSidedKind::Get => (ours, theirs),
                OneSidedKind::Put => (theirs, ours),
            };
            // SAFETY: the local side is the caller's guarantee; the remote side is registered, so
            // whoever registered it guarantees the memory until it is deregistered, which the lock
            // keeps from happening now.
            unsafe { Reach::copy(&to, &from) }
        })?;
        drop(shared);
        if matches!(way, OneSidedKind::Get) {
            let mut written = local.iter().filter_map(|it| self.reached(it.region.space()));
            written.try_for_each(|device| device.settle_writes())?;
        }
        if done != Token::NONE {
            // SAFETY: the bytes have been copied, by this call.
            let ended = unsafe { Ended::new(self.ability, done, Ok(())) };
            self.ready.push_back(Event::Completed(ended));
        }
        Ok(())
    }

    /// Checks everything, then changes a number.
    ///
    /// # Safety
    /// As [`Rdma::atomic`].
    unsafe fn change(
        &mut self,
        (peer, key, offset): (PeerId, &RemoteKey, u64),
        change: Change,
        found: Region,
        done: Token,
    ) -> Result<(), RdmaError> {
        if !self.config.atomics {
            return Err(RdmaError::NotAtomic);
        }
        let end = Arc::clone(&self.peer(peer)?.end);
        let [number, key_len] = decode(key, REGISTERED, end.number())
            .map_err(|what| RdmaError::BadKey { what: what.to_owned() })?;
        accessible(&found)?;
        if self.ready.len() >= self.ready_max() {
            return Err(RdmaError::Full);
        }
        // Held over the change: it makes changes atomic, and the memory cannot be deregistered in between.
        let shared = lock(&end.shared);
        let (whole, access) = registered(&end, &shared, (number, key_len))?;
        if access != Access::Atomic {
            return Err(RdmaError::NotAtomic);
        }
        check_atomic(&found, offset, (whole.region.start(), key_len))?;
        let place = whole.region.sub(offset, 8).map_err(DeviceError::from)?;
        let place = place.as_ptr().ok_or(RdmaError::NotAtomic)?.cast::<u64>();
        // SAFETY: eight bytes of what is registered, aligned as `check_atomic` says; whoever registered them guarantees
        // them until they are deregistered, which the lock keeps from happening now, and that no reference covers them.
        let place = unsafe { AtomicU64::from_ptr(place) };
        let old = place.load(Ordering::Acquire);
        place.store(change.of(old), Ordering::Release);
        drop(shared);
        // SAFETY: the caller's guarantee.
        let written = unsafe { gapless_mem::write(&found, 0, &old.to_ne_bytes()) };
        debug_assert!(written.is_ok(), "{written:?}");
        if done != Token::NONE {
            // SAFETY: `found` has been written, by this call.
            let ended = unsafe { Ended::new(self.ability, done, Ok(())) };
            self.ready.push_back(Event::Completed(ended));
        }
        Ok(())
    }
}

/// What an end has registered under this number, with so many bytes.
fn registered(
    end: &HubEnd,
    shared: &SharedMemory,
    (number, len): (u64, u64),
) -> Result<(Reach, Access), RdmaError> {
    let whole = shared.registered.get(&number).filter(|(it, _)| it.region.len() == len);
    whole.cloned().ok_or_else(|| {
        if end.is_gone() {
            return RdmaError::Link(gone());
        }
        RdmaError::BadKey { what: "its memory is not registered".to_owned() }
    })
}

fn accessible(region: &Region) -> Result<(), RdmaError> {
    if region.space().cpu_accessible() {
        return Ok(());
    }
    let device = "loopback".to_owned();
    Err(RdmaError::Device(DeviceError::WrongSpace { device, space: region.space() }))
}

// SAFETY: the numbers are those of the contract.
// 1. The id is made with the end.
// 2. `one_sided` copies between the pieces, at once, after all checks; it makes the `Ended` then.
// 3. A key is looked up in the list of what is registered, with its length and its kind, under the lock that
//    `deregister` takes.
// 4. `one_sided` copies before it returns or unwinds, so no operation is ever in flight between calls.
// 5. `single_copy_read` copies to `into` before it returns.
// 6. `change` writes `found` before it makes the `Ended`, and after all checks.
unsafe impl Rdma for Loopback {
    fn id(&self) -> AbilityId {
        self.ability
    }

    fn rdma_limits(&self) -> &RdmaLimits {
        &self.rdma_limits
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.peers.get(peer.0 as usize).map(|peer| !peer.end.is_gone())
    }

    fn takes(&mut self, space: Space) -> bool {
        space.cpu_accessible() || self.reached(space).is_some()
    }

    fn remember(&mut self, memory: &Arc<Lasting>) {
        let mut shared = lock(&self.end.shared);
        shared.remembered.retain(|memory| memory.strong_count() > 0);
        shared.remembered.push(Arc::downgrade(memory));
    }

    /// Of a device's memory for reading only: nobody would tell the device of what peers write.
    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        if access != Access::Read {
            accessible(&local)?;
        }
        let reach = self.reach(local)?;
        let mut shared = lock(&self.end.shared);
        let number = shared.next;
        shared.next += 1;
        shared.registered.insert(number, (reach, access));
        Ok(encode(REGISTERED, self.end.number(), &[number, local.len()]))
    }

    fn deregister(&mut self, key: &RemoteKey) {
        if let Ok([number, _]) = decode(key, REGISTERED, self.end.number()) {
            lock(&self.end.shared).registered.remove(&number);
        }
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.one_sided(OneSidedKind::Get, peer, local, key, remote, done) }
    }

    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.one_sided(OneSidedKind::Put, peer, local, key, remote, done) }
    }

    fn has_atomics(&mut self) -> bool {
        self.config.atomics
    }

    fn own(&mut self) -> Option<PeerId> {
        if !self.config.atomics {
            return None;
        }
        let own = self.address();
        self.connect(&own).ok()
    }

    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        let end = self.peer(peer).ok().map(|peer| Arc::clone(&peer.end));
        let known = end.and_then(|end| {
            let [number, len] = decode(key, REGISTERED, end.number()).ok()?;
            let (_, access) = registered(&end, &lock(&end.shared), (number, len)).ok()?;
            Some(access == Access::Atomic)
        });
        Some(self.config.atomics && known == Some(true))
    }

    unsafe fn atomic(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        change: Change,
        found: Region,
        done: Token,
    ) -> Result<(), RdmaError> {
        // SAFETY: the caller's guarantee.
        unsafe { self.change((peer, key, offset), change, found, done) }
    }

    fn has_single_copy_reads(&mut self, _: PeerId) -> bool {
        self.has_single_copy_reads
    }

    fn single_copy_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        if !self.has_single_copy_reads {
            return None;
        }
        let whom = u64::from(self.peer(peer).ok()?.end.number());
        accessible(&memory).ok()?;
        Some(encode(SINGLE_COPY, self.end.number(), &[memory.start(), memory.len(), whom]))
    }

    unsafe fn single_copy_read(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        if !self.has_single_copy_reads {
            let reason = "this loopback has no such reads".to_owned();
            return Err(RdmaError::Unavailable { reason });
        }
        let end = Arc::clone(&self.peer(peer)?.end);
        let bad = |what: &str| RdmaError::BadKey { what: what.to_owned() };
        let [start, len, whom] = decode(key, SINGLE_COPY, end.number()).map_err(bad)?;
        if whom != u64::from(self.end.number()) {
            return Err(bad("it was made for another peer"));
        }
        accessible(&into)?;
        total_of(&[Extent { offset, len: into.len() }], len)?;
        if end.is_gone() {
            return Err(RdmaError::Link(gone()));
        }
        let from = Region::new(Space::Host, start, offset, into.len());
        // SAFETY: the caller's guarantee, of both.
        Ok(unsafe { gapless_mem::copy(&into, &from) }?)
    }
}

impl Loopback {
    /// This end with [single-copy reads](Rdma::single_copy_read): of its peers' memory, and by them of its own.
    ///
    /// # Safety
    /// What [`single_copy_key`](Rdma::single_copy_key) is asked for is valid for reads, and nothing writes it, as long
    /// as an end has the key. Collectives whose ranks give up or die do not keep to that.
    #[must_use]
    pub unsafe fn with_single_copy_reads(mut self) -> Loopback {
        self.has_single_copy_reads = true;
        self
    }
}

/// Finds the live allocation of `end` that `region` lies in: its number and the offset.
fn allocation_of(end: &HubEnd, region: &Region) -> Option<(u64, u64)> {
    let shared = lock(&end.shared);
    let (_, (number, memory)) = shared.allocated.range(..=region.start()).next_back()?;
    let whole = memory.upgrade()?.region();
    let offset = region.start().checked_sub(whole.start())?;
    whole.sub(offset, region.len()).ok()?;
    Some((*number, offset))
}

// SAFETY: the numbers are those of the contract.
// 1. The id is made with the end.
// 2. A key names the peer's end, which `map_for` compares with its own, and a range, which it cuts out of what is
//    allocated or exported.
// 3. `invalidate` removes what the region touches from the list that `import` looks in, and counts the holds of its
//    mappings.
// 4. `revoke_access` notes that the peer maps the allocation no more, and counts the holds of its mappings; of device
//    memory it is `invalidate`.
// 5. Keys were made for the ends that are known here; `revoke_access` has answered for each.
unsafe impl Mapped for Loopback {
    fn id(&self) -> AbilityId {
        self.ability
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        let memory = usize::try_from(len)
            .ok()
            .and_then(|len| HeapMemory::new(len, PAGE_BYTES))
            .ok_or_else(|| MapError::System {
                operation: "allocating",
                reason: format!("no {len} bytes of memory"),
            })?;
        let memory = Arc::new(memory);
        let mut shared = lock(&self.end.shared);
        let shared = &mut *shared;
        shared.allocated.retain(|_, (_, memory)| memory.strong_count() > 0);
        let lives = |number| shared.allocated.values().any(|(it, _)| *it == number);
        shared.revoked.retain(|(_, number)| lives(*number));
        let number = shared.next;
        shared.next += 1;
        let region = memory.region();
        shared.allocated.insert(region.start(), (number, Arc::downgrade(&memory)));
        // SAFETY: `region` is all of `memory`, which is freed when it is dropped.
        let lease = unsafe { Lease::new(region, memory) };
        // SAFETY: the memory was just allocated, zeroed, and nobody else has it.
        Ok(unsafe { Allocation::new(lease) })
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let region = memory.region();
        let whom = u64::from(self.peer(peer).ok()?.end.number());
        if !region.space().cpu_accessible() {
            let (number, offset) = self.export(region)?;
            let numbers = [number, offset, region.len(), whom];
            return Some(encode(EXPORTED, self.end.number(), &numbers));
        }
        let (number, offset) = allocation_of(&self.end, &region)?;
        Some(encode(ALLOCATED, self.end.number(), &[number, offset, region.len(), whom]))
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let end = &self.peer(peer)?.end;
        let bad = |what: &str| MapError::BadKey { what: what.to_owned() };
        let mine = |whom: u64| match whom == u64::from(self.end.number()) {
            true => Ok(()),
            false => Err(bad("it was made for another peer")),
        };
        if let Ok([number, offset, len, whom]) = decode(key, EXPORTED, end.number()) {
            mine(whom)?;
            return self.import(end, number, offset, len, user);
        }
        let [number, offset, len, whom] = decode(key, ALLOCATED, end.number()).map_err(bad)?;
        mine(whom)?;
        let mut shared = lock(&end.shared);
        let memory = shared.allocated.values().find(|(n, _)| *n == number);
        let memory = memory.and_then(|(_, memory)| memory.upgrade());
        let memory = memory.filter(|_| !shared.revoked.contains(&(self.end.number(), number)));
        let memory = memory.ok_or_else(|| MapError::Unavailable {
            reason: "the allocation was freed, or revoked".to_owned(),
        })?;
        let whole = memory.region();
        let region = whole.sub(offset, len);
        let region = region.map_err(|error| MapError::BadKey { what: error.to_string() })?;
        let hold = Arc::new(Granted { _memory: memory });
        shared.granted.retain(|(_, _, hold)| hold.strong_count() > 0);
        shared.granted.push((self.end.number(), whole, Arc::downgrade(&hold)));
        // SAFETY: `sub` found `region` inside the memory, which the hold keeps.
        let lease = unsafe { Lease::new(region, hold) };
        // SAFETY: the hold keeps it valid for reads and writes. "No reference of this process covers it while the
        // mapping is used": the peer is of this process, so "whoever gave the key keeps" that.
        Ok(unsafe { Mapping::new(lease) })
    }

    fn invalidate(&mut self, region: Region) -> bool {
        lock(&self.end.shared).exported.invalidate(region)
    }

    /// For a device's memory, the keys of all ends are ended.
    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        // One that is gone may have left an engine at work.
        let peer = self.peers.get(peer.0 as usize).map(|peer| peer.end.number());
        let Some(peer) = peer else { return false };
        let mut shared = lock(&self.end.shared);
        if !region.space().cpu_accessible() {
            return shared.exported.invalidate(region);
        }
        let shared = &mut *shared;
        for (number, memory) in shared.allocated.values() {
            if memory.upgrade().is_some_and(|memory| overlap(memory.region(), region)) {
                shared.revoked.insert((peer, *number));
            }
        }
        shared.granted.retain(|(_, _, hold)| hold.strong_count() > 0);
        shared.granted.iter().any(|(whom, whole, _)| *whom == peer && overlap(*whole, region))
    }

    /// There are no other pages: it is so once nobody holds a mapping.
    fn make_private(&mut self, region: Region) -> bool {
        let peers = u32::try_from(self.peers.len()).expect("peers are named by 32 bits");
        // All of them are asked.
        (0..peers).filter(|&peer| self.revoke_access(PeerId(peer), region)).count() == 0
    }
}
