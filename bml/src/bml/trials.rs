//! Measuring how quick the rails to a peer are: the part of a `Bml` that looks at the clock, and sends copies to rails on
//! trial. [`stripe`] decides.

use super::Bml;
use crate::Rank;
use crate::bundle::Bundle;
use crate::rail::Rail;
use crate::stripe;
use crate::waiter::now_ns;
use gapless_btl::{AmTag, Slot, Token};

/// Messages from so many bytes on are measured.
pub(super) const MEASURED_FROM: usize = 4096;

impl Bml {
    /// Has polls measure the rails to this peer, until all that was sent to it is confirmed.
    pub(super) fn measure_soon(&mut self, to: Rank) {
        let bundle = self.endpoints[to.0 as usize].bundle.as_deref_mut();
        if bundle.is_some_and(|bundle| !std::mem::replace(&mut bundle.is_measured, true)) {
            self.measured.push(to);
        }
    }

    /// Measures those rails. For the end of a poll.
    #[cold]
    #[inline(never)]
    pub(super) fn measure_rails(&mut self) {
        let Bml { measured, endpoints, rails, .. } = self;
        measured.retain(|rank| {
            let Some(bundle) = endpoints[rank.0 as usize].bundle.as_deref_mut() else {
                return false;
            };
            bundle.is_measured = measure(bundle, rails);
            bundle.is_measured
        });
    }

    /// Sends copies of a message that went over another rail. Nobody is told of their end. One whose number the peer has had
    /// is dropped there.
    pub(super) fn send_copies(
        &mut self,
        to: Rank,
        copies: Vec<(usize, Slot)>,
        tag: AmTag,
        number: u64,
    ) {
        let Bml { endpoints, rails, .. } = self;
        let Some(bundle) = endpoints[to.0 as usize].bundle.as_deref_mut() else { return };
        for (rail, slot) in copies {
            let Some(strand) = bundle.strand(rail) else { continue };
            strand.stood = true;
            strand.rate.sent(slot.len() as u64);
            strand.under_way.sent(number, slot.len() as u64);
            rails[rail].mark_active();
            rails[rail].btl.send(slot, tag, Token::NONE);
        }
    }
}

/// Looks at what the rails of a bundle have confirmed by now. Gives whether anything is under way.
pub(super) fn measure(bundle: &mut Bundle, rails: &[Rail]) -> bool {
    let Bundle { strands, looks, .. } = bundle;
    looks.look(strands, now_ns(), |it| rails[it.rail].btl.outstanding(it.peer))
}

/// Copies of a message that is about to go over `carrier`, in slots of the rails on trial that have room. What is sent again
/// after a rail has ended is not copied.
pub(super) fn copies_for_trials(
    bundle: &Bundle,
    rails: &mut [Rail],
    carrier: usize,
    slot: &Slot,
) -> Vec<(usize, Slot)> {
    let whole = slot.len() as u64;
    let mut copies = Vec::new();
    let under_way = |rails: &[Rail], rail: usize, peer| rails[rail].btl.outstanding(peer);
    if slot.len() < MEASURED_FROM || !stripe::copies(under_way(rails, carrier, slot.peer()) + whole)
    {
        return copies;
    }
    for strand in bundle.strands.iter().filter(|it| it.rail != carrier) {
        let outstanding = under_way(rails, strand.rail, strand.peer);
        if strand.rate.wants_copy(outstanding, whole)
            && let Ok(room) = rails[strand.rail].btl.reserve(strand.peer, slot.len())
        {
            copies.push((strand.rail, room));
        }
    }
    if copies.is_empty() {
        return copies;
    }
    let Ok(message) = slot.to_vec() else { return Vec::new() };
    copies.retain_mut(|(_, room)| room.write(0, &message).is_ok());
    copies
}
