//! Measuring how quick the rails to a peer are: the part of a `Bml` that looks at the clock, and sends copies to rails on
//! trial. [`stripe`] decides.

use super::Bml;
use crate::Rank;
use crate::bundle::{Bundle, sent_number};
use crate::rail::Rail;
use crate::stripe;
use crate::waiter::now_ns;
use gapless_btl::{AmTag, Slot, Token};

/// Messages from so many bytes on are measured.
pub(super) const MEASURED_FROM: usize = 4096;

impl Bml {
    /// Polls look at what is confirmed to this peer, until that is all.
    pub(super) fn measure_soon(&mut self, to: Rank) {
        let bundle = self.endpoints[to.0 as usize].bundle.as_deref_mut();
        if bundle.is_some_and(|bundle| !std::mem::replace(&mut bundle.is_measured, true)) {
            self.measured.push(to);
        }
    }

    /// The end of a poll: looks at all rails over which much is on its way.
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

    /// Sends copies of a message that went over rail `carrier` over those on trial, as far as they have room. Nobody is
    /// told of their end. A copy whose number the peer has had is dropped there.
    pub(super) fn send_to_trials(&mut self, to: Rank, carrier: usize, tag: AmTag, message: &[u8]) {
        let Bml { endpoints, rails, .. } = self;
        let Some(bundle) = endpoints[to.0 as usize].bundle.as_deref_mut() else { return };
        let whole = message.len() as u64;
        for strand in bundle.strands.iter_mut().filter(|it| it.rail != carrier) {
            let rail = &mut rails[strand.rail];
            if !strand.rate.wants_copy(rail.btl.outstanding(strand.peer), whole) {
                continue;
            }
            rail.stir();
            let Ok(mut slot) = rail.btl.reserve(strand.peer, message.len()) else { continue };
            strand.stood = true;
            if slot.write(0, message).is_ok() {
                strand.rate.sent(whole);
                strand.under_way.sent(sent_number(message), whole);
                rail.btl.send(slot, tag, Token::NONE);
            }
        }
    }
}

/// Looks at what the rails of a bundle have confirmed by now. Gives whether anything is under way.
pub(super) fn measure(bundle: &mut Bundle, rails: &[Rail]) -> bool {
    let Bundle { strands, looks, .. } = bundle;
    looks.look(strands, now_ns(), |it| rails[it.rail].btl.outstanding(it.peer))
}

/// A copy of a message that is about to go over `carrier`, if a rail on trial wants one.
pub(super) fn copy_for_trials(
    bundle: &Bundle,
    rails: &[Rail],
    carrier: usize,
    slot: &Slot,
) -> Option<Vec<u8>> {
    if slot.len() < MEASURED_FROM {
        return None;
    }
    let whole = slot.len() as u64;
    let outstanding = |rail: usize, peer| rails[rail].btl.outstanding(peer);
    let mut others = bundle.strands.iter().filter(|it| it.rail != carrier);
    let wanted = others.any(|it| it.rate.wants_copy(outstanding(it.rail, it.peer), whole));
    let is_much = wanted && stripe::copies(outstanding(carrier, slot.peer()) + whole);
    is_much.then(|| slot.to_vec().ok()).flatten()
}
