//! The target's side of rings for ranks on other hosts, who write and read them by one-sided operations: memory of this
//! process's, registered with the transport for as long as this process is in its job, and given to the worker.

use super::{Inner, Served};
use crate::device::RingShape;
use crate::host::Xtq;
use gapless_bml::{Access, Bml, Rank, Registered, RemoteKey};
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// How long the link to a rank may take to come up so far that its operations reach memory here, in nanoseconds.
const LINK_NS: u64 = 200_000_000;

/// How a ring can be offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingReach {
    /// Its rank maps memory of this process's, or there is no way at all.
    Known,
    /// Its rank reaches it by one-sided operations.
    Reaches,
    /// That is not known yet.
    Coming,
}

/// When ranks have asked whose links are not known yet.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<u32, u64>);

impl Waiting {
    /// What is known of the link to a rank that has asked.
    pub(super) fn link(&mut self, bml: &mut Bml, to: Rank, now_ns: u64) -> RingReach {
        let link = if bml.mapped(to).is_some() {
            RingReach::Known
        } else if bml.rdma_rail(to).is_some() {
            RingReach::Reaches
        } else if now_ns < self.0.entry(to.0).or_insert(now_ns).saturating_add(LINK_NS) {
            return RingReach::Coming;
        } else {
            RingReach::Known
        };
        self.0.remove(&to.0);
        link
    }
}

impl Served {
    /// Makes a ring for an initiator on another host; gives the key.
    pub(super) fn offer_far(
        &mut self,
        bml: &mut Bml,
        inner: &Inner,
        to: Rank,
    ) -> Option<RemoteKey> {
        let shape = RingShape::default();
        let said = |error: &dyn std::fmt::Display| tracing::debug!(%to, %error, "no ring");
        let (rail, _, rdma) = bml.rdma_and_rail(to)?;
        let memory = self.target.stocked()?.clone();
        // SAFETY: the memory is new, zeroed, and kept until it is deregistered, or for good. This process touches it as
        // words alone; its key goes to one initiator, which writes what a ring's initiator writes.
        let key = unsafe { rdma.register(memory.region(), Access::Write) };
        let key = key.inspect_err(|error| said(error)).ok()?;
        let reached = Registered::new(rail, key, memory.clone());
        // SAFETY: the ring's memory, which this process does not touch otherwise.
        let added = unsafe { self.target.add_ring(memory, shape) };
        if let Err(error) = added {
            said(&error);
            drop(reached.end(bml));
            return None;
        }
        inner.reached.lock().unwrap_or_else(PoisonError::into_inner).push(reached);
        self.initiators.push(Some(to));
        Some(key)
    }
}

impl Xtq {
    /// Ranks on other hosts do not reach memory of this process's any more: before [`abandon`](Xtq::abandon), or after it.
    /// Without this, what they have reached is never freed.
    pub fn end_reach(&self, bml: &mut Bml) {
        let reached =
            std::mem::take(&mut *self.inner.reached.lock().unwrap_or_else(PoisonError::into_inner));
        reached.into_iter().for_each(|one| drop(one.end(bml)));
    }
}
