//! Memory for rings that the worker reaches before anybody asks for one: registering it may wait until the worker has
//! left. Each ring has an allocation of its own, so that who maps one reaches no other.

use super::super::Xtq;
use super::super::heap::heap;
use super::Served;
use crate::device::RingShape;
use gapless_bml::Bml;
use gapless_mem::Lease;
use std::sync::PoisonError;

/// Rings for which there is memory before the worker first starts, at most: 9 MiB.
const STOCK: usize = 8;

/// Rings for which memory is made at a time later on, at most: an initiator that has asked waits meanwhile.
const REFILL: usize = 2;

/// Zeroed memory for so many rings, or for fewer if there is no more. If any process can map this one's memory, it can
/// map this.
fn memory_of_rings(bml: &mut Bml, rings: usize) -> Vec<Lease> {
    let bytes = RingShape::default().bytes();
    let mut one = || match bml.allocate(bytes) {
        Some(Ok(memory)) => Ok(memory.lease().clone()),
        Some(Err(error)) => Err(error.to_string()),
        None => heap(bytes).map_err(|error| error.to_string()),
    };
    let said = |error: &String| tracing::debug!(%error, "no memory for a ring");
    (0..rings).map_while(|_| one().inspect_err(said).ok()).collect()
}

impl Served {
    /// Has the worker reach memory of which rings are made later. A worker that runs leaves for that.
    pub(super) fn stock(&mut self, memory: Vec<Lease>) {
        for one in memory {
            if let Err(error) = self.target.stock(one) {
                tracing::debug!(%error, "memory for a ring that its worker cannot reach");
            }
        }
    }

    /// The same, of new memory: for a rank that asks now, and for another one if that can get a ring.
    pub(super) fn fill_stock(&mut self, bml: &mut Bml) {
        let others = usize::try_from(bml.size()).unwrap_or(usize::MAX).saturating_sub(1);
        let known = self.initiators.iter().flatten().count();
        let rings = others.saturating_sub(known).min(self.target.rings_left());
        self.stock(memory_of_rings(bml, rings.clamp(1, REFILL)));
    }
}

impl Xtq {
    /// Makes memory for the rings of the worker that is [attached](Xtq::attach_worker) next, which then need not leave
    /// when the first initiators ask for theirs. It does nothing if there is a worker.
    pub fn prepare_rings(&self, bml: &mut Bml) {
        let others = usize::try_from(bml.size()).unwrap_or(usize::MAX).saturating_sub(1);
        if self.inner.config.rings && !self.has_worker() {
            let memory = memory_of_rings(bml, others.min(STOCK));
            *self.inner.prepared.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        }
    }

    /// What was made so.
    pub(super) fn take_prepared(&self) -> Vec<Lease> {
        std::mem::take(&mut *self.inner.prepared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
