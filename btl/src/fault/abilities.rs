//! The wrapped transport's abilities, refused now and then.

use super::Fault;
use crate::{
    Access, Allocation, Btl, Extent, MapError, Mapped, Mapping, PeerId, Rdma, RdmaError,
    RdmaLimits, RemoteKey, Token,
};
use gapless_mem::{Region, Space};

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
        self.inner.rdma().ok_or(RdmaError::Unavailable { reason })
    }

    fn inner_mapped(&mut self) -> Result<&mut dyn Mapped, MapError> {
        let reason = "the transport does not map memory".to_owned();
        self.inner.mapped().ok_or(MapError::Unavailable { reason })
    }

    /// Everything that comes before a one-sided operation: gives the token to use.
    fn begin(&mut self, peer: PeerId, done: Token) -> Result<Token, RdmaError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(RdmaError::Link(error.clone()));
        }
        self.inner_rdma()?;
        self.allow_rdma()?;
        if self.full() {
            return Err(RdmaError::Full);
        }
        // Followed even if the caller does not ask: a cut waits for it.
        Ok(self.stand_in(peer, done))
    }

    /// Forgets an operation that the wrapped transport refused.
    fn refuse(&mut self, stand_in: Token, error: RdmaError) -> RdmaError {
        self.ended(stand_in, Ok(()));
        error
    }
}

impl<B: Btl> Rdma for Fault<B> {
    fn rdma_limits(&self) -> &RdmaLimits {
        self.rdma_limits.as_ref().expect("`rdma` gives out only what the transport has")
    }

    fn reaches(&self, peer: PeerId) -> Option<bool> {
        self.reaches.get(peer.0 as usize).copied().flatten()
    }

    unsafe fn register(&mut self, local: Region, access: Access) -> Result<RemoteKey, RdmaError> {
        self.allow_rdma()?;
        // SAFETY: the caller's guarantee, passed on.
        unsafe { self.inner_rdma()?.register(local, access) }
    }

    fn deregister(&mut self, key: &RemoteKey) {
        if let Some(rdma) = self.inner.rdma() {
            rdma.deregister(key);
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
}

impl<B: Btl> Mapped for Fault<B> {
    fn allocate(&mut self, len: u64) -> Result<Allocation, MapError> {
        self.allow_mapped()?;
        self.inner_mapped()?.allocate(len)
    }

    fn key(&mut self, peer: PeerId, region: Region) -> Option<RemoteKey> {
        self.allow_mapped().ok()?;
        if self.cut_of(peer).is_some() {
            return None;
        }
        self.inner.mapped()?.key(peer, region)
    }

    fn map_for(&mut self, peer: PeerId, key: &RemoteKey, user: Space) -> Result<Mapping, MapError> {
        if let Some(error) = self.cut_of(peer) {
            return Err(MapError::Link(error.clone()));
        }
        self.allow_mapped()?;
        self.inner_mapped()?.map_for(peer, key, user)
    }

    fn withdraw(&mut self, region: Region) -> bool {
        self.inner.mapped().is_some_and(|mapped| mapped.withdraw(region))
    }

    fn recall(&mut self, peer: PeerId, region: Region) -> bool {
        self.inner.mapped().is_some_and(|mapped| mapped.recall(peer, region))
    }
}
