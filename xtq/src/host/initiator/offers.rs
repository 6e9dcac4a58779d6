//! Rings that targets have offered, until this process has mapped or tried them.

use super::far::Far;
use super::rings::{InitiatorRing, PutPath, RingEnd, Rings};
use super::{Initiator, QueuedMessage};
use crate::device::{Lane, RingShape};
use crate::wire::{Head, Ring};
use gapless_bml::{Bml, Rank, RemoteKey};
use std::collections::VecDeque;

/// A ring that a target has offered.
#[derive(Debug)]
pub(super) enum Offer {
    /// To be mapped.
    Mapped(RemoteKey),
    /// To be reached by operations.
    Reached(RemoteKey),
}

impl Offer {
    /// What a target's words say; `None`: they are no offer. An error: they break the rules.
    pub(super) fn read(what: Ring, text: &[u8]) -> Result<Option<Offer>, ()> {
        let key = |bytes: &[u8]| RemoteKey::new(bytes).filter(|_| !bytes.is_empty()).ok_or(());
        Ok(Some(match what {
            Ring::Offer => Offer::Mapped(key(text)?),
            Ring::Reach => Offer::Reached(key(text)?),
            _ => return Ok(None),
        }))
    }
}

/// The ring of this key.
fn map(bml: &mut Bml, target: Rank, key: &RemoteKey) -> Option<Lane> {
    let said = |error: &dyn std::fmt::Display| tracing::debug!(%target, %error, "no ring");
    let (peer, mapped) = bml.mapped(target)?;
    let mapping = mapped.map(peer, key).inspect_err(|error| said(error)).ok()?;
    // SAFETY: a mapping is memory that is valid for reads and writes while its lease lives, and that no reference of this
    // process covers. Its owner has zeroed it, gives it to a worker as a ring, and has told its key to this process alone,
    // which maps one ring of a target.
    let lane = unsafe { Lane::new(mapping.lease().clone(), RingShape::default()) };
    lane.inspect_err(|error| said(error)).ok()
}

impl Initiator {
    /// Maps the rings that were offered, and says so. From then on puts of their kernels are held back until the target lets
    /// them go.
    pub(in crate::host) fn map_rings(&mut self, bml: &mut Bml) {
        if !self.has_rings {
            return;
        }
        // Others put meanwhile: the rings are not locked while one is mapped.
        let offers = self.rings.lock().take_offers();
        for (rank, offer) in offers {
            let target = Rank(rank);
            let end = match offer {
                Offer::Mapped(key) => {
                    map(bml, target, &key).map(|lane| RingEnd { lane, far: None })
                }
                Offer::Reached(key) => {
                    if let Some((lane, far)) = Far::new(bml, target, key) {
                        let end = RingEnd { lane, far: Some(Box::new(far)) };
                        self.rings.lock().set(rank, PutPath::Tried(end));
                        continue;
                    }
                    None
                }
            };
            self.hold(rank, end);
        }
    }

    /// A ring can be used, or not: its target is told.
    pub(super) fn hold(&mut self, rank: u32, end: Option<RingEnd>) {
        let mut rings = self.rings.lock();
        let Some(ring) = rings.of.get_mut(&rank) else { return };
        let what = if end.is_some() { Ring::Ready } else { Ring::Declined };
        ring.way = end.map_or(PutPath::Without, PutPath::Held);
        if let Some(open) = self.open.get_mut(&rank) {
            let goes = |id: &u64| self.puts.get(id).is_some_and(|put| ring.takes(put));
            let waiting = std::mem::take(&mut open.waiting).into_iter();
            let (gone, kept): (VecDeque<u64>, VecDeque<u64>) = waiting.partition(goes);
            open.waiting = kept;
            ring.waiting.extend(gone);
        }
        let head = Head::Ring { what, kernels: 0 };
        self.outbox.entry(rank).or_default().push(QueuedMessage::Say(head, Vec::new()));
    }
}

impl Rings {
    /// The offers that something is to be done about. Until that is done, there is no way there.
    fn take_offers(&mut self) -> Vec<(u32, Offer)> {
        let offered = |(&rank, ring): (&u32, &mut InitiatorRing)| {
            ring.way.take_offer().map(|offer| (rank, offer))
        };
        self.of.iter_mut().filter_map(offered).collect()
    }

    fn set(&mut self, rank: u32, way: PutPath) {
        if let Some(ring) = self.of.get_mut(&rank) {
            ring.way = way;
        }
    }
}
