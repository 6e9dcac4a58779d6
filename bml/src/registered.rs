//! Memory of this process's that peers reach by one-sided operations, for as long as somebody keeps it so.

use crate::{Bml, RdmaRail, RemoteKey};
use gapless_mem::Lease;

/// Memory that is registered with a rail, until it has [ended](Registered::end). If it is dropped before, nobody can tell
/// whether peers still reach the memory: it is never freed.
#[derive(Debug)]
pub struct Registered {
    rail: RdmaRail,
    key: RemoteKey,
    memory: Option<Lease>,
}

impl Registered {
    /// What this rail has registered by this key.
    #[must_use]
    pub fn new(rail: RdmaRail, key: RemoteKey, memory: Lease) -> Registered {
        Registered { rail, key, memory: Some(memory) }
    }

    /// The rail.
    #[must_use]
    pub fn rail(&self) -> RdmaRail {
        self.rail
    }

    /// What peers reach it by.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// No peer reaches it any more. Gives what keeps the memory, which may be dropped without a lock.
    pub fn end(mut self, bml: &mut Bml) -> Option<Lease> {
        bml.deregister(self.rail, &self.key);
        self.memory.take()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "registers memory that nobody touches")]
mod tests {
    use super::*;
    use crate::Rank;
    use gapless_btl::Access;
    use gapless_btl::loopback::{Hub, Loopback};
    use gapless_mem::Region;
    use std::sync::Arc;

    #[test]
    fn memory_is_given_back_when_nobody_reaches_it_and_else_never() {
        let hub = Hub::new();
        let mut ranks = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
        ranks.iter_mut().for_each(|bml| bml.add(Box::new(Loopback::new(&hub))));
        let [here, there] = &mut ranks;
        here.connect(Rank(1), &there.addresses()).unwrap();
        there.connect(Rank(0), &here.addresses()).unwrap();
        for ends in [true, false] {
            let mut owner = Arc::new(vec![0u8; 64]);
            let memory = Arc::get_mut(&mut owner).unwrap();
            let region = Region::of_mut(memory);
            let gone = Arc::downgrade(&owner);
            // SAFETY: the list is not changed, and stays as long as its owner.
            let lease = unsafe { Lease::new(region, owner) };
            let (rail, _, rdma) = here.rdma_and_rail(Rank(1)).unwrap();
            // SAFETY: the lease keeps the memory until it is deregistered, or for good, and nobody touches it.
            let key = unsafe { rdma.register(region, Access::Write) }.unwrap();
            let registered = Registered::new(rail, key, lease);
            assert_eq!((registered.rail(), registered.key()), (rail, key));
            if ends {
                let memory = registered.end(here);
                assert!(memory.is_some() && gone.upgrade().is_some());
                drop(memory);
                assert!(gone.upgrade().is_none());
            } else {
                drop(registered);
                assert!(gone.upgrade().is_some());
            }
        }
    }
}
