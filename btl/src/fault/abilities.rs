//! The wrapped transport's abilities, refused now and then.

use super::Fault;
use crate::{
    AbilityId, Access, Allocation, Btl, Change, Ended, Event, Extent, LinkError, MapError, Mapped,
    Mapping, PeerId, Rdma, RdmaError, RdmaLimits, RemoteKey, Token,
};
use gapless_mem::{Export, Lasting, Lease, Mapper, ProcessorMapping, Region, Space};
use std::sync::Arc;

const REFUSED: &str = "refused on purpose";

impl<B: Btl> Fault<B> {
    fn allow_rdma(&mut self) -> Result<(), RdmaError> {
        if self.random.chance(self.plan.rdma_refused_per_mille) {
            return Err(RdmaError::Unavailable { reason: REFUSED.to_owned() });
        }
        Ok(())
    }

    fn allow_mapped(&mut self) -> Result<(), MapError> {
        if self.random.chance(self.plan.mapped_refused_per_mille) {
            return Err(MapError::Unavailable { reason: REFUSED.to_owned() });
        }
        Ok(())
    }

    fn inner_rdma(&mut self) -> Result<&mut dyn Rdma, RdmaError> {
        let reason = "the transport has no one-sided operations".to_owned();
        self.abilities.rdma(&mut self.inner).ok_or(RdmaError::Unavailable { reason })
    }

    fn inner_mapped(&mut self) -> Result<&mut dyn Mapped, MapError> {
        let reason = "the transport does not map memory".to_owned();
        self.abilities.mapped(&mut self.inner).ok_or(MapError::Unavailable { reason })
    }

    /// The checks before a one-sided operation; returns the token to use.
    fn begin(&mut self, peer: PeerId, done: Token) -> Result<Token, RdmaError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(RdmaError::Link(error.clone()));
        }
        self.inner_rdma()?;
        self.allow_rdma()?;
        if self.full() {
            return Err(RdmaError::Full);
        }
        // Followed even if the caller does not want the end: a cut waits for it.
        Ok(self.stand_in(peer, done))
    }

    /// The end of an operation of which the wrapped transport's is at hand: `abilities.ended` gave it.
    pub(super) fn over(&self, token: Token, result: Result<(), LinkError>) -> Event {
        // SAFETY: the wrapped ability's end of what it was handed on as says that nothing touches its memory, and
        // was taken out of the table with the token; so there is no other one.
        Event::Completed(unsafe { Ended::new(self.ability, token, result) })
    }

    /// Forgets an operation that the wrapped transport refused.
    fn refuse(&mut self, stand_in: Token, error: RdmaError) -> RdmaError {
        self.ended(stand_in, Ok(()));
        error
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is its own.
// 2., 3. What is not refused before is handed on to the ability that the wrapped transport has shown first, with a
//    stand-in for the token, which no other operation has; it ends when that one's end has come.
// 4. The wrapped call is the last thing that may panic: it leaves no operation in flight then, by its own rule 4. What
//    comes after it forgets an operation that was refused.
// 5. `peek` is handed on.
// 6. As 2.
unsafe impl<B: Btl> Rdma for Fault<B> {
    fn id(&self) -> AbilityId {
        self.ability
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
        self.allow_rdma()?;
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner_rdma()?.register(local, access) }
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.abilities.deregister(&mut self.inner, key);
    }

    unsafe fn get(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let done = self.begin(peer, done)?;
        // SAFETY: the caller's guarantee, passed on: the event that ends it is reported no earlier
        // than the wrapped transport's.
        let result = unsafe { self.inner_rdma()?.get(peer, local, key, remote, done) };
        result.map_err(|error| self.refuse(done, error))
    }

    unsafe fn put(
        &mut self,
        peer: PeerId,
        local: &[Region],
        key: &RemoteKey,
        remote: &[Extent],
        done: Token,
    ) -> Result<(), RdmaError> {
        let done = self.begin(peer, done)?;
        // SAFETY: as in `get`.
        let result = unsafe { self.inner_rdma()?.put(peer, local, key, remote, done) };
        result.map_err(|error| self.refuse(done, error))
    }

    fn has_atomics(&mut self) -> bool {
        self.inner_rdma().is_ok_and(|rdma| rdma.has_atomics())
    }

    fn own(&mut self) -> Option<PeerId> {
        let own = self.inner_rdma().ok()?.own()?;
        self.name(own);
        Some(own)
    }

    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        if self.cut_of(peer).is_some() {
            return Some(false);
        }
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
        let done = self.begin(peer, done)?;
        // SAFETY: as in `get`.
        let result = unsafe { self.inner_rdma()?.atomic(peer, key, offset, change, found, done) };
        result.map_err(|error| self.refuse(done, error))
    }

    fn peeks(&mut self, peer: PeerId) -> bool {
        self.inner_rdma().is_ok_and(|rdma| rdma.peeks(peer))
    }

    fn peek_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        self.allow_rdma().ok()?;
        self.inner_rdma().ok()?.peek_key(peer, memory)
    }

    unsafe fn peek(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        // Whoever has a key was allowed.
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner_rdma()?.peek(peer, key, offset, into) }
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The id is its own.
// 2. to 5. What is not refused is answered by the ability that the wrapped transport has shown first; if that is
//    shown no more, memory is taken to be in use.
unsafe impl<B: Btl> Mapped for Fault<B> {
    fn id(&self) -> AbilityId {
        self.ability
    }

    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        self.allow_mapped()?;
        self.inner_mapped()?.allocate(len)
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        self.allow_mapped().ok()?;
        if self.cut_of(peer).is_some() {
            return None;
        }
        self.abilities.mapped(&mut self.inner)?.key(peer, memory)
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(MapError::Link(error.clone()));
        }
        self.allow_mapped()?;
        self.inner_mapped()?.map_for(peer, key, user)
    }

    fn key_for_processor(&mut self, peer: PeerId, export: Export, len: u64) -> Option<RemoteKey> {
        self.allow_mapped().ok()?;
        if self.cut_of(peer).is_some() {
            return None;
        }
        self.abilities.mapped(&mut self.inner)?.key_for_processor(peer, export, len)
    }

    fn end_key_for_processor(&mut self, peer: PeerId, key: &RemoteKey) {
        if let Some(mapped) = self.abilities.mapped(&mut self.inner) {
            mapped.end_key_for_processor(peer, key);
        }
    }

    fn map_for_processor(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        by: &Arc<dyn Mapper>,
        bell: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<ProcessorMapping, MapError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(MapError::Link(error.clone()));
        }
        self.allow_mapped()?;
        self.inner_mapped()?.map_for_processor(peer, key, by, bell)
    }

    fn withdraw(&mut self, region: Region) -> bool {
        self.abilities.withdraw(&mut self.inner, region)
    }

    fn recall(&mut self, peer: PeerId, region: Region) -> bool {
        self.abilities.recall(&mut self.inner, peer, region)
    }

    fn make_private(&mut self, region: Region) -> bool {
        self.abilities.make_private(&mut self.inner, region)
    }
}
