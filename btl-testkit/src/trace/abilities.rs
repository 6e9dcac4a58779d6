//! The wrapped transport's abilities, recorded.

use super::{CallOutcome, Record, Trace};
use gapless_btl::{
    AbilityId, Access, Allocation, Btl, Change, Extent, MapError, Mapped, Mapping, PeerId, Rdma,
    RdmaError, RemoteKey, Token, delegate,
};
use gapless_mem::{Lease, Region, Space};

impl<B: Btl> Trace<B> {
    fn ability<T, E: std::fmt::Display>(
        &mut self,
        call: &'static str,
        peer: Option<PeerId>,
        len: u64,
        result: Result<T, E>,
    ) -> Result<T, E> {
        let outcome = CallOutcome::of(&result);
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
    delegate!(self => self.inner; rdma_limits reaches takes remember has_atomics has_single_copy_reads own changes);

    fn id(&self) -> AbilityId {
        self.inner.abilities.rdma_id().expect("`rdma` gives out only what the transport has")
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        // SAFETY: the caller's guarantee, passed on.
        let result = self.inner.rdma().and_then(|rdma| unsafe { rdma.register(local, access) });
        self.ability("register", None, local.len(), result)
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.inner.abilities.deregister(&mut self.inner.btl, key);
        let outcome = CallOutcome::Ok;
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
        let rdma = self.inner.rdma();
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
        let rdma = self.inner.rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result = rdma.and_then(|rdma| unsafe { rdma.put(peer, local, key, remote, done) });
        self.operation("put", peer, total(remote), result)
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
        let rdma = self.inner.rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result =
            rdma.and_then(|rdma| unsafe { rdma.atomic(peer, key, offset, change, found, done) });
        self.operation("atomic", peer, 8, result)
    }

    fn single_copy_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        self.inner.rdma().ok()?.single_copy_key(peer, memory)
    }

    unsafe fn single_copy_read(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        let rdma = self.inner.rdma();
        // SAFETY: the caller's guarantee, passed on.
        let result =
            rdma.and_then(|rdma| unsafe { rdma.single_copy_read(peer, key, offset, into) });
        self.ability("single_copy_read", Some(peer), into.len(), result)
    }
}

// SAFETY: everything is handed on to the ability that the wrapped transport has shown first, whose id it has; if that is
// shown no more, memory is taken to be in use.
unsafe impl<B: Btl> Mapped for Trace<B> {
    fn id(&self) -> AbilityId {
        self.inner.abilities.mapped_id().expect("`mapped` gives out only what the transport has")
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        let result = self.inner.mapped().and_then(|mapped| mapped.allocate(len));
        self.ability("allocate", None, len, result)
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        let key = self.inner.mapped().ok()?.key(peer, memory);
        self.ability("key", Some(peer), memory.region().len(), key.ok_or("no key")).ok()
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        let result = self.inner.mapped().and_then(|mapped| mapped.map_for(peer, key, user));
        let len = result.as_ref().map_or(0, |mapping| mapping.region().len());
        self.ability("map", Some(peer), len, result)
    }

    fn invalidate(&mut self, region: Region) -> bool {
        let mapped = self.inner.abilities.invalidate(&mut self.inner.btl, region);
        let outcome = CallOutcome::Ok;
        let len = region.len();
        self.record(Record::Ability { call: "invalidate", peer: None, len, outcome });
        mapped
    }

    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        let used = self.inner.abilities.revoke_access(&mut self.inner.btl, peer, region);
        let (len, outcome) = (region.len(), CallOutcome::Ok);
        self.record(Record::Ability { call: "revoke_access", peer: Some(peer), len, outcome });
        used
    }

    fn make_private(&mut self, region: Region) -> bool {
        let done = self.inner.abilities.make_private(&mut self.inner.btl, region);
        let result = done.then_some(()).ok_or("peers may touch the memory");
        self.ability("make_private", None, region.len(), result).is_ok()
    }
}
