//! Which transport owns an ability. [`Btl`] is a safe trait: a transport could show another's ability, or none, after
//! memory was granted to its own. A caller that grants memory through a transport asks here, and gets the ability
//! that the memory was granted to, or none.

use crate::{Btl, Ended, LinkError, Mapped, Rdma, RemoteKey, Token};
use gapless_mem::Region;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a [`Rdma`] or [`Mapped`] in this process; each new one is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AbilityId(u64);

impl AbilityId {
    /// A new name.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> AbilityId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        AbilityId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The first abilities that one transport has shown: only these are used from then on.
#[derive(Debug, Default)]
pub struct Abilities {
    rdma: Option<AbilityId>,
    mapped: Option<AbilityId>,
}

impl Abilities {
    /// The transport's [`Rdma`]; `None` if it shows none, or another than before.
    pub fn rdma<'b>(&mut self, btl: &'b mut (impl Btl + ?Sized)) -> Option<&'b mut dyn Rdma> {
        let rdma = btl.rdma()?;
        let known = *self.rdma.get_or_insert_with(|| rdma.id());
        (rdma.id() == known).then_some(rdma)
    }

    /// The transport's [`Mapped`]; `None` if it shows none, or another than before.
    pub fn mapped<'b>(&mut self, btl: &'b mut (impl Btl + ?Sized)) -> Option<&'b mut dyn Mapped> {
        let mapped = btl.mapped()?;
        let known = *self.mapped.get_or_insert_with(|| mapped.id());
        (mapped.id() == known).then_some(mapped)
    }

    /// The name of the transport's [`Rdma`], if it has shown one.
    #[must_use]
    pub fn rdma_id(&self) -> Option<AbilityId> {
        self.rdma
    }

    /// The name of the transport's [`Mapped`], if it has shown one.
    #[must_use]
    pub fn mapped_id(&self) -> Option<AbilityId> {
        self.mapped
    }

    /// The token and the result of an operation of the transport's [`Rdma`]; `None` for another ability, which says
    /// nothing about memory that was granted here.
    #[must_use]
    pub fn ended(&self, ended: Ended) -> Option<(Token, Result<(), LinkError>)> {
        (self.rdma == Some(ended.by())).then(|| ended.into_parts())
    }

    /// [`Rdma::deregister`]. If the transport does not show the ability any more, the memory cannot be taken back
    /// from peers: the process aborts.
    pub fn deregister(&mut self, btl: &mut (impl Btl + ?Sized), key: &RemoteKey) {
        match self.rdma(btl) {
            Some(rdma) => rdma.deregister(key),
            None if self.rdma.is_none() => {}
            None => {
                let name = btl.limits().name;
                gapless_mem::abort(&format!(
                    "transport {name} hides the ability that memory is registered with"
                ));
            }
        }
    }

    /// [`Mapped::invalidate`]. If the transport does not show the ability any more, peers may still have the memory.
    pub fn invalidate(&mut self, btl: &mut (impl Btl + ?Sized), region: Region) -> bool {
        match self.mapped(btl) {
            Some(mapped) => mapped.invalidate(region),
            None => self.mapped.is_some(),
        }
    }

    /// [`Mapped::revoke_access`], likewise.
    pub fn revoke_access(
        &mut self,
        btl: &mut (impl Btl + ?Sized),
        peer: crate::PeerId,
        region: Region,
    ) -> bool {
        match self.mapped(btl) {
            Some(mapped) => mapped.revoke_access(peer, region),
            None => self.mapped.is_some(),
        }
    }

    /// [`Mapped::make_private`], likewise.
    pub fn make_private(&mut self, btl: &mut (impl Btl + ?Sized), region: Region) -> bool {
        match self.mapped(btl) {
            Some(mapped) => mapped.make_private(region),
            None => self.mapped.is_none(),
        }
    }
}
