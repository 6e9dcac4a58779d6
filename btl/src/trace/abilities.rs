//! The wrapped transport's abilities, recorded.

use super::{Outcome, Record, Trace};
use crate::{
    AbilityId, Access, Allocation, Btl, Change, Extent, MapError, Mapped, Mapping, PeerId, Rdma,
    RdmaError, RdmaLimits, RemoteKey, Token,
};
use gapless_mem::{Export, Lasting, Lease, Mapper, ProcessorMapping, Region, Space};
use std::sync::Arc;

impl<B: Btl> Trace<B> {
    fn ability<T, E: std::fmt::Display>(
        &mut self,
        call: &'static str,
        peer: Option<PeerId>,
        len: u64,
        result: Result<T, E>,
    ) -> Result<T, E> {
        let outcome = Outcome::of(&result);
        self.record(Record::Ability { call, peer, len, outcome });
        result
    }

    /// As [`ability`](Trace::ability), of an operation that has begun if `result` is `Ok`: a listener that panics
    /// must not unwind past it.
    fn operation(
        &mut self,
        call: &'static str,
        peer: PeerId,
        len: u64,
        result: Result<(), RdmaError>,
    ) -> Result<(), RdmaError> {
        let why = "a listener panicked while a one-sided operation was in flight";
        gapless_mem::abort_on_unwind(why, || self.ability(call, Some(peer), len, result))
    }

    fn inner_rdma(&mut self) -> Result<&mut dyn Rdma, RdmaError> {
        let reason = "the transport has no one-sided operations".to_owned();
        self.abilities.rdma(&mut self.inner).ok_or(RdmaError::Unavailable { reason })
    }

    fn inner_mapped(&mut self) -> Result<&mut dyn Mapped, MapError> {
        let reason = "the transport does not map memory".to_owned();
        self.abilities.mapped(&mut self.inner).ok_or(MapError::Unavailable { reason })
    }
}

fn total(remote: &[Extent]) -> u64 {
    remote.iter().fold(0, |sum, piece| sum.saturating_add(piece.len))
}

// SAFETY: the numbers are those of the contract.
// 1. to 3. Everything is handed on, events too, to the ability that the wrapped transport has shown first; the id is
//    that one's.
// 4. If the wrapped call panics, it leaves no operation in flight, by its own rule 4. If the listener panics after an
//    operation has begun, the process aborts.
// 5. and 6. As 1. to 3.
unsafe impl<B: Btl> Rdma for Trace<B> {
    fn id(&self) -> AbilityId {
        self.abilities.rdma_id().expect("`rdma` gives out only what the transport has")
    }

    fn rdma_limits(&self) -> &RdmaLimits {
        self.rdma_limits.as_ref().expect("`rdma` gives out only what the transport has")
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.reaches.get(peer.0 as usize).copied().flatten()
    }

    fn takes(&mut self, space: Space) -> bool {
        self.inner_rdma().is_ok_and(|rdma| rdma.takes(space))
    }

    fn remember(&mut self, memory: &Arc<Lasting>) {
        if let Ok(rdma) = self.inner_rdma() {
            rdma.remember(memory);
        }
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        // SAFETY: the caller's guarantee, passed on.
        let result = self.inner_rdma().and_then(|rdma| unsafe { rdma.register(local, access) });
        self.ability("register", None, local.len(), result)
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.abilities.deregister(&mut self.inner, key);
        let outcome = Outcome::Ok;
        self.record(Record::Ability { call: "deregister", peer: None, len: 0, outcome });
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let rdma = self.inner_rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result = rdma.and_then(|rdma| unsafe { rdma.get(peer, local, key, remote, done) });
        self.operation("get", peer, total(remote), result)
    }

    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let rdma = self.inner_rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result = rdma.and_then(|rdma| unsafe { rdma.put(peer, local, key, remote, done) });
        self.operation("put", peer, total(remote), result)
    }

    fn has_atomics(&mut self) -> bool {
        self.inner_rdma().is_ok_and(|rdma| rdma.has_atomics())
    }

    fn own(&mut self) -> Option<PeerId> {
        self.inner_rdma().ok()?.own()
    }

    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        self.inner_rdma().map_or(Some(false), |rdma| rdma.changes(peer, key))
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
        let rdma = self.inner_rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result =
            rdma.and_then(|rdma| unsafe { rdma.atomic(peer, key, offset, change, found, done) });
        self.operation("atomic", peer, 8, result)
    }

    fn peeks(&mut self, peer: PeerId) -> bool {
        self.inner_rdma().is_ok_and(|rdma| rdma.peeks(peer))
    }

    fn peek_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        self.inner_rdma().ok()?.peek_key(peer, memory)
    }

    unsafe fn peek(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        let rdma = self.inner_rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result = rdma.and_then(|rdma| unsafe { rdma.peek(peer, key, offset, into) });
        self.ability("peek", Some(peer), into.len(), result)
    }
}

// SAFETY: everything is handed on to the ability that the wrapped transport has shown first, whose id it has; if that is
// shown no more, memory is taken to be in use.
unsafe impl<B: Btl> Mapped for Trace<B> {
    fn id(&self) -> AbilityId {
        self.abilities.mapped_id().expect("`mapped` gives out only what the transport has")
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        let result = self.inner_mapped().and_then(|mapped| mapped.allocate(len));
        self.ability("allocate", None, len, result)
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let key = self.abilities.mapped(&mut self.inner)?.key(peer, memory);
        self.ability("key", Some(peer), memory.region().len(), key.ok_or("no key")).ok()
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let result = self.inner_mapped().and_then(|mapped| mapped.map_for(peer, key, user));
        let len = result.as_ref().map_or(0, |mapping| mapping.region().len());
        self.ability("map", Some(peer), len, result)
    }

    fn key_for_processor(&mut self, peer: PeerId, export: Export, len: u64) -> Option<RemoteKey> {
        let key = self.abilities.mapped(&mut self.inner)?.key_for_processor(peer, export, len);
        self.ability("key for the processor", Some(peer), len, key.ok_or("no key")).ok()
    }

    fn end_key_for_processor(&mut self, peer: PeerId, key: &RemoteKey) {
        if let Some(mapped) = self.abilities.mapped(&mut self.inner) {
            mapped.end_key_for_processor(peer, key);
        }
        let outcome = Outcome::Ok;
        let call = "end of a key for the processor";
        self.record(Record::Ability { call, peer: Some(peer), len: 0, outcome });
    }

    fn map_for_processor(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        by: &Arc<dyn Mapper>,
        bell: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<ProcessorMapping, MapError> {
        let mapped = self.inner_mapped();
        let result = mapped.and_then(|mapped| mapped.map_for_processor(peer, key, by, bell));
        let len = result.as_ref().map_or(0, ProcessorMapping::bytes);
        self.ability("map for the processor", Some(peer), len, result)
    }

    fn withdraw(&mut self, region: Region) -> bool {
        let mapped = self.abilities.withdraw(&mut self.inner, region);
        let outcome = Outcome::Ok;
        let len = region.len();
        self.record(Record::Ability { call: "withdraw", peer: None, len, outcome });
        mapped
    }

    fn recall(&mut self, peer: PeerId, region: Region) -> bool {
        let used = self.abilities.recall(&mut self.inner, peer, region);
        let (len, outcome) = (region.len(), Outcome::Ok);
        self.record(Record::Ability { call: "recall", peer: Some(peer), len, outcome });
        used
    }

    fn make_private(&mut self, region: Region) -> bool {
        let done = self.abilities.make_private(&mut self.inner, region);
        let result = done.then_some(()).ok_or("peers may touch the memory");
        self.ability("make_private", None, region.len(), result).is_ok()
    }
}
