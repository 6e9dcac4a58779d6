//! Rings that targets have offered, until this process has mapped or tried them.

use super::direct::{End, Way};
use super::far::Far;
use super::{Initiator, Item};
use crate::device::{Lane, RingShape};
use crate::host::grant::of_two_keys;
use crate::wire::{Head, Ring};
use gapless_bml::{Bml, MapError, Mapping, Rank, RemoteKey};
use gapless_mem::Mapper;
use std::collections::VecDeque;
use std::sync::Arc;

/// A ring that a target has offered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offer {
    /// To be mapped.
    Mapped(RemoteKey),
    /// To be reached by operations.
    Reached(RemoteKey),
    /// To be mapped, and so are its slots, if this processor can.
    Near(RemoteKey, RemoteKey),
}

impl Offer {
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
fn map(bml: &mut Bml, target: Rank, key: &RemoteKey, near: Option<&Mapping>) -> Option<Lane> {
    let said = |error: &dyn std::fmt::Display| tracing::debug!(%target, %error, "no ring");
    let (peer, mapped) = bml.mapped(target)?;
    let mapping = mapped.map(peer, key).inspect_err(|error| said(error)).ok()?;
    let (whole, shape) = (mapping.lease().clone(), RingShape::default());
    // A mapping is memory that is valid for reads and writes while its lease lives, and that no reference of this process
    // covers. Its owner has zeroed it, gives it to a worker as a ring, and has told its key to this process alone, which maps
    // one ring of a target.
    let lane = match near {
        // SAFETY: so it is with both.
        Some(slots) => unsafe { Lane::near(whole, shape, slots.lease().clone()) },
        // SAFETY: likewise.
        None => unsafe { Lane::new(whole, shape) },
    };
    lane.inspect_err(|error| said(error)).ok()
}

/// Slots in memory of a worker's, mapped for this processor. An error: that is not possible; `None`: it is not known yet.
fn map_slots(
    bml: &mut Bml,
    target: Rank,
    key: &RemoteKey,
    mapper: Option<&Arc<dyn Mapper>>,
) -> Result<Option<Mapping>, ()> {
    let ((peer, mapped), mapper) = bml.mapped(target).zip(mapper).ok_or(())?;
    let said = |error: &MapError| tracing::debug!(%target, %error, "slots in memory of the host");
    mapped.map_for_processor(peer, key, mapper).inspect_err(said).map_err(drop)
}

impl Initiator {
    /// Maps the rings that were offered, and says so. From then on puts of their kernels are held back until the target lets
    /// them go.
    pub(in crate::host) fn map_rings(&mut self, bml: &mut Bml, mapper: Option<&Arc<dyn Mapper>>) {
        if !self.has_rings {
            return;
        }
        let mut answers = Vec::new();
        for (&rank, ring) in &mut self.rings.lock().of {
            let (target, end) = (Rank(rank), |lane| End { lane, far: None });
            let Way::Offered(offer) = ring.way else { continue };
            let (what, end) = match offer {
                Offer::Mapped(key) => (Ring::Ready, map(bml, target, &key, None).map(end)),
                Offer::Near(key, slots) => match map_slots(bml, target, &slots, mapper) {
                    Ok(None) => continue,
                    Ok(Some(slots)) => {
                        (Ring::ReadyNear, map(bml, target, &key, Some(&slots)).map(end))
                    }
                    Err(()) => (Ring::Ready, map(bml, target, &key, None).map(end)),
                },
                Offer::Reached(key) => {
                    if let Some((lane, far)) = Far::new(bml, target, key) {
                        ring.way = Way::Tried(End { lane, far: Some(Box::new(far)) });
                        continue;
                    }
                    (Ring::Ready, None)
                }
            };
            answers.push((rank, what, end));
        }
        answers.into_iter().for_each(|(rank, what, end)| self.hold(rank, what, end));
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
