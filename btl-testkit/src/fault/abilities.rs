//! The wrapped transport's abilities, refused now and then.

use super::Fault;
use gapless_btl::{
    AbilityId, Access, Allocation, Btl, Change, Ended, Event, Extent, LinkError, MapError, Mapped,
    Mapping, PeerId, Rdma, RdmaError, RemoteKey, Token, delegate,
};
use gapless_mem::{Lease, Region, Space};

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

    /// The checks before a one-sided operation; returns the token to use.
    fn begin(&mut self, peer: PeerId, done: Token) -> Result<Token, RdmaError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(RdmaError::Link(error.clone()));
        }
        self.inner.rdma()?;
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
// 5. `single_copy_read` is handed on.
// 6. As 2.
unsafe impl<B: Btl> Rdma for Fault<B> {
    delegate!(self => self.inner; rdma_limits reaches takes remember has_atomics has_single_copy_reads);

    fn id(&self) -> AbilityId {
        self.ability
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        self.allow_rdma()?;
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner.rdma()?.register(local, access) }
    }

    fn deregister(&mut self, key: &RemoteKey) {
        self.inner.abilities.deregister(&mut self.inner.btl, key);
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
        let result = unsafe { self.inner.rdma()?.get(peer, local, key, remote, done) };
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
        let result = unsafe { self.inner.rdma()?.put(peer, local, key, remote, done) };
        result.map_err(|error| self.refuse(done, error))
    }

    fn own(&mut self) -> Option<PeerId> {
        let own = self.inner.own()?;
        self.name(own);
        Some(own)
    }

    fn changes(&mut self, peer: PeerId, key: &RemoteKey) -> Option<bool> {
        if self.cut_of(peer).is_some() {
            return Some(false);
        }
        self.inner.changes(peer, key)
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
        let result = unsafe { self.inner.rdma()?.atomic(peer, key, offset, change, found, done) };
        result.map_err(|error| self.refuse(done, error))
    }

    fn single_copy_key(&mut self, peer: PeerId, memory: Region) -> Option<RemoteKey> {
        self.allow_rdma().ok()?;
        self.inner.rdma().ok()?.single_copy_key(peer, memory)
    }

    unsafe fn single_copy_read(
        &mut self,
        peer: PeerId,
        key: &RemoteKey,
        offset: u64,
        into: Region,
    ) -> Result<(), RdmaError> {
        // Whoever has a key was allowed.
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner.rdma()?.single_copy_read(peer, key, offset, into) }
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
        self.inner.mapped()?.allocate(len)
    }

    fn key(&mut self, peer: PeerId, memory: &Lease) -> Option<RemoteKey> {
        self.allow_mapped().ok()?;
        if self.cut_of(peer).is_some() {
            return None;
        }
        self.inner.mapped().ok()?.key(peer, memory)
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(MapError::Link(error.clone()));
        }
        self.allow_mapped()?;
        self.inner.mapped()?.map_for(peer, key, user)
    }

    fn invalidate(&mut self, region: Region) -> bool {
        self.inner.abilities.invalidate(&mut self.inner.btl, region)
    }

    fn revoke_access(&mut self, peer: PeerId, region: Region) -> bool {
        self.inner.abilities.revoke_access(&mut self.inner.btl, peer, region)
    }

    fn make_private(&mut self, region: Region) -> bool {
        self.inner.abilities.make_private(&mut self.inner.btl, region)
    }
}
