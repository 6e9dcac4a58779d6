//! Rings that targets have offered, until this process has mapped or tried them.

use super::direct::{Direct, End, Rings, Way};
use super::far::Far;
use super::{Initiator, Item};
use crate::device::{Lane, RingShape};
use crate::host::grant::of_two_keys;
use crate::signal::Bell;
use crate::wire::{Head, Ring};
use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_mem::{Lease, Mapper, ProcessorMapping};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A ring that a target has offered.
#[derive(Debug)]
pub(super) enum Offer {
    /// To be mapped.
    Mapped(RemoteKey),
    /// To be reached by operations.
    Reached(RemoteKey),
    /// To be mapped, and so are its slots, if this processor can.
    Near(RemoteKey, RemoteKey),
    /// To be mapped, when it is known whether its slots are, which another thread finds out.
    Coming(RemoteKey, ProcessorMapping),
}

impl Offer {
    /// Whether there is something to do. A bell tells when there is again.
    pub(super) fn is_due(&self) -> bool {
        !matches!(self, Offer::Coming(_, slots) if !slots.is_known())
    }

    /// What a target's words say; `None`: they are no offer. An error: they break the rules.
    pub(super) fn read(what: Ring, text: &[u8]) -> Result<Option<Offer>, ()> {
        let key = |bytes: &[u8]| RemoteKey::new(bytes).filter(|_| !bytes.is_empty()).ok_or(());
        Ok(Some(match what {
            Ring::Offer => Offer::Mapped(key(text)?),
            Ring::Reach => Offer::Reached(key(text)?),
            Ring::Near => {
                let [whole, slots] = of_two_keys(text).ok_or(())?;
                Offer::Near(key(whole)?, key(slots)?)
            }
            _ => return Ok(None),
        }))
    }
}

/// The ring of this key, with slots in memory of the worker's if that is mapped.
fn map(bml: &mut Bml, target: Rank, key: &RemoteKey, near: Option<Lease>) -> Option<Lane> {
    let said = |error: &dyn std::fmt::Display| tracing::debug!(%target, %error, "no ring");
    let (peer, mapped) = bml.mapped(target)?;
    let mapping = mapped.map(peer, key).inspect_err(|error| said(error)).ok()?;
    let (whole, shape) = (mapping.lease().clone(), RingShape::default());
    // A mapping is memory that is valid for reads and writes while its lease lives, and that no reference of this process
    // covers. Its owner has zeroed it, gives it to a worker as a ring, and has told its key to this process alone, which maps
    // one ring of a target.
    let lane = match near {
        // SAFETY: so it is with both.
        Some(slots) => unsafe { Lane::near(whole, shape, slots) },
        // SAFETY: likewise.
        None => unsafe { Lane::new(whole, shape) },
    };
    lane.inspect_err(|error| said(error)).ok()
}

/// What maps memory of accelerators for this processor, and what it rings then.
pub(in crate::host) struct SlotMapper<'n> {
    pub(in crate::host) mapper: Option<&'n Arc<dyn Mapper>>,
    pub(in crate::host) bell: &'n Bell,
}

impl SlotMapper<'_> {
    /// Has the slots mapped that this key is of. `None`: that is not possible.
    fn begin(&self, bml: &mut Bml, target: Rank, key: &RemoteKey) -> Option<ProcessorMapping> {
        let ((peer, mapped), mapper) = bml.mapped(target).zip(self.mapper)?;
        // The caller holds the state's lock, under which no bell rings. An answer from within this call needs none: the
        // caller looks next whether it is known.
        let begun = Arc::new(AtomicBool::new(false));
        let (rings, bell) = (Arc::clone(&begun), Arc::clone(self.bell));
        let bell = move || {
            if rings.load(Ordering::Acquire) {
                bell(false);
            }
        };
        let slots = mapped.map_for_processor(peer, key, mapper, Arc::new(bell));
        // Whoever looks from here on finds the answer, or the bell rings when it comes.
        begun.store(true, Ordering::Release);
        slots.inspect_err(|error| not_near(target, error)).ok()
    }
}

fn not_near(target: Rank, error: &dyn std::fmt::Display) {
    tracing::debug!(%target, %error, "slots in memory of the host");
}

impl Initiator {
    /// Maps the rings that were offered, and says so. From then on puts of their kernels are held back until the target lets
    /// them go.
    pub(in crate::host) fn map_rings(&mut self, bml: &mut Bml, near: &SlotMapper<'_>) {
        if !self.has_rings {
            return;
        }
        // Others put meanwhile: the rings are not locked while one is mapped.
        let offers = self.rings.lock().take_offers();
        for (rank, offer) in offers {
            let (target, end) = (Rank(rank), |lane| End { lane, far: None });
            let (what, end) = match offer {
                Offer::Mapped(key) => (Ring::Ready, map(bml, target, &key, None).map(end)),
                Offer::Near(key, slots) => match near.begin(bml, target, &slots) {
                    Some(slots) => {
                        self.rings.lock().set(rank, Way::Offered(Offer::Coming(key, slots)));
                        continue;
                    }
                    None => (Ring::Ready, map(bml, target, &key, None).map(end)),
                },
                Offer::Coming(key, mut slots) => {
                    let known = slots
                        .take()
                        .and_then(|slots| slots.inspect_err(|error| not_near(target, error)).ok());
                    let what = if known.is_some() { Ring::ReadyNear } else { Ring::Ready };
                    (what, map(bml, target, &key, known).map(end))
                }
                Offer::Reached(key) => {
                    if let Some((lane, far)) = Far::new(bml, target, key) {
                        let end = End { lane, far: Some(Box::new(far)) };
                        self.rings.lock().set(rank, Way::Tried(end));
                        continue;
                    }
                    (Ring::Ready, None)
                }
            };
            self.hold(rank, what, end);
        }
    }

    /// A ring can be used, as `what` says, or not: its target is told.
    pub(super) fn hold(&mut self, rank: u32, what: Ring, end: Option<End>) {
        let mut rings = self.rings.lock();
        let Some(ring) = rings.of.get_mut(&rank) else { return };
        let what = if end.is_some() { what } else { Ring::Declined };
        ring.way = end.map_or(Way::Without, Way::Held);
        if let Some(open) = self.open.get_mut(&rank) {
            let goes = |id: &u64| self.puts.get(id).is_some_and(|put| ring.takes(put));
            let waiting = std::mem::take(&mut open.waiting).into_iter();
            let (gone, kept): (VecDeque<u64>, VecDeque<u64>) = waiting.partition(goes);
            open.waiting = kept;
            ring.waiting.extend(gone);
        }
        let head = Head::Ring { what, kernels: 0 };
        self.outbox.entry(rank).or_default().push(Item::Say(head, Vec::new()));
    }
}

impl Rings {
    /// The offers that something is to be done about. Until that is done, there is no way there.
    fn take_offers(&mut self) -> Vec<(u32, Offer)> {
        let due = |(&rank, ring): (&u32, &mut Direct)| match &mut ring.way {
            Way::Offered(offer) if offer.is_due() => {
                match std::mem::replace(&mut ring.way, Way::Without) {
                    Way::Offered(offer) => Some((rank, offer)),
                    _ => None,
                }
            }
            _ => None,
        };
        self.of.iter_mut().filter_map(due).collect()
    }

    fn set(&mut self, rank: u32, way: Way) {
        if let Some(ring) = self.of.get_mut(&rank) {
            ring.way = way;
        }
    }
}
