//! Peers that several network rails reach: the part of a `Bml` that acts on a [`Bundle`].

use super::deaths::LEFT;
use super::trials::{MEASURED_FROM, copies_for_trials, measure};
use super::{Bml, RESERVED};
use crate::bundle::{
    Bundle, BundleOrder, NUMBER_BYTES, OUT_OF_TURN, Strand, number_of, sent_number,
};
use crate::endpoint::{Ending, Path};
use crate::near::Near;
use crate::rail::Rail;
use crate::stripe;
use crate::waiter::now_ns;
use crate::{Handler, PeerState, RailSlot, Rank, RankEvent, TokenSpace};
use gapless_btl::{
    Address, AmTag, Fragment, LinkError, ReserveError, SHORT_BYTES, Short, Slot, Token,
    Unacknowledged,
};
use gapless_mem::Space;

impl Bml {
    /// Makes a bundle of the rails to a peer, if there are several and all retain what they send: the peer sees that
    /// alike, by the names of rails alone. Whoever was used otherwise already stays so.
    pub(super) fn bundle(&mut self, peer: Rank, addresses: &[(String, Address)], paths: &[Path]) {
        let common = |rail: &&Rail| {
            !rail.is_own() && addresses.iter().any(|(theirs, _)| theirs == rail.name())
        };
        let several = self.rails.iter().filter(common).count() >= 2;
        let retain = self.rails.iter().filter(common).all(|rail| rail.btl.retains());
        let used = self.endpoints[peer.0 as usize].paths().iter().any(|path| path.used);
        if peer == self.me || !several || !retain || used {
            return;
        }
        for path in paths {
            self.rails[path.rail].btl.retain(path.peer);
        }
        // The two ends may call a rail differently, but its two addresses are the same at both.
        let ends = |rail: &Rail| {
            let theirs = addresses.iter().find(|(theirs, _)| theirs == rail.name());
            let theirs = theirs.map_or(Vec::new(), |(_, it)| it.as_bytes().to_vec());
            let own = rail.btl.address().as_bytes().to_vec();
            if own < theirs { (own, theirs) } else { (theirs, own) }
        };
        let mut one_sided: Vec<usize> = paths.iter().map(|path| path.rail).collect();
        one_sided.retain(|&at| self.rails[at].rdma().is_some());
        let one_sided = one_sided.into_iter().min_by_key(|&at| ends(&self.rails[at]));
        let rails: Vec<_> = paths
            .iter()
            .map(|path| (path.rail, path.peer, self.rails[path.rail].btl.limits()))
            .collect();
        let bundle = Bundle::new(&rails, one_sided);
        tracing::debug!(%peer, rails = rails.len(), "several rails are used together");
        self.endpoints[peer.0 as usize].set_bundle(bundle);
        self.bundled.push(peer);
    }

    /// Room in the rail of a bundle by which a message of `whole` bytes, number included, would be there first. Rails that
    /// are near to the space that it comes from are preferred.
    fn room(
        bundle: &mut Bundle,
        rails: &mut [Rail],
        whole: usize,
        near: (&Near, Option<Space>),
    ) -> Result<(usize, Slot), ReserveError> {
        let is_measured = whole >= MEASURED_FROM;
        if is_measured {
            measure(bundle, rails);
        }
        let mut tried = 0u64;
        loop {
            let outstanding = |it: &Strand| rails[it.rail].btl.outstanding(it.peer);
            let weigh = |it: &Strand, ns| near.0.weighed(it.rail, near.1, ns);
            let message = (whole as u64, is_measured);
            let best = stripe::best(&bundle.strands, tried, message, outstanding, weigh);
            let Some(at) = best else { return Err(ReserveError::Full) };
            let strand = &mut bundle.strands[at];
            let rail = &mut rails[strand.rail];
            rail.mark_active();
            match rail.btl.reserve(strand.peer, whole) {
                Ok(slot) => {
                    strand.stood = true;
                    return Ok((strand.rail, slot));
                }
                // Even so it is there first.
                Err(ReserveError::Full) if strand.stood => return Err(ReserveError::Full),
                // Its link is not up, or its end is told by a poll.
                Err(_) => tried |= 1 << (at % 64),
            }
        }
    }

    /// [`reserve`](Bml::reserve) for a peer without an ordinary path.
    #[cold]
    #[inline(never)]
    pub(super) fn reserve_in_bundle(
        &mut self,
        to: Rank,
        len: usize,
        space: Option<Space>,
    ) -> Result<RailSlot, ReserveError> {
        if self.is_listed(to) {
            return self.reserve_in_directory(to, len);
        }
        let endpoint = self.endpoints.get_mut(to.0 as usize);
        let Some(bundle) = endpoint.and_then(|it| it.bundle.as_deref_mut()) else {
            return Err(self.unreachable(to));
        };
        let max = bundle.limits.max_fragment_bytes;
        if len > max {
            return Err(ReserveError::TooLong { len, max });
        }
        if !send_again(bundle, &mut self.rails) {
            return Err(ReserveError::Full);
        }
        if !fits(bundle, &self.rails, len + NUMBER_BYTES) {
            return Err(ReserveError::Full);
        }
        let (rail, mut slot) =
            Bml::room(bundle, &mut self.rails, len + NUMBER_BYTES, (&self.near, space))?;
        slot.resize(len).map_err(|_| ReserveError::TooLong { len, max })?;
        Ok(RailSlot { slot, rail: !rail })
    }

    /// Sends what was reserved there, with its number.
    #[cold]
    #[inline(never)]
    pub(super) fn send_in_bundle(&mut self, slot: RailSlot, tag: AmTag, done: Token) {
        let RailSlot { mut slot, rail } = slot;
        let (at, peer) = (!rail, slot.peer());
        let to = self.rails.get(at).and_then(|rail| rail.rank(peer)).expect("a slot of this `Bml`");
        let Some(bundle) = self.endpoints[to.0 as usize].bundle.as_deref_mut() else {
            // The peer is lost; its loss is told, or will be.
            let reason = format!("{to} was lost before the message was sent");
            self.orphan(done, LinkError::Unreachable { reason });
            return;
        };
        let (number, len) = (bundle.number(), slot.len());
        let written = slot.resize(len + NUMBER_BYTES).is_ok()
            && slot.write(len, &number.to_le_bytes()).is_ok();
        assert!(written, "a slot has room for the number");
        let whole = slot.len() as u64;
        // Slots that were reserved together may be more than the window has room for.
        let lives = bundle.has(at) && bundle.window.admit(number, whole);
        match bundle.strand(at).filter(|_| lives) {
            Some(strand) => {
                strand.rate.sent(whole);
                strand.under_way.sent(number, whole);
                let copies = copies_for_trials(bundle, &mut self.rails, at, &slot);
                self.rails[at].mark_active();
                self.rails[at].btl.send(slot, tag, done);
                if whole >= MEASURED_FROM as u64 {
                    self.measure_soon(to);
                }
                self.send_copies(to, copies, tag, number);
            }
            // The rail has ended since, or the message has to wait.
            None => {
                let message = slot.to_vec().expect("slots are memory that the CPU may touch");
                bundle.again.push_back(Unacknowledged { tag, message, done });
                self.owing = true;
            }
        }
    }

    /// [`send_short`](Bml::send_short) to a peer without an ordinary path.
    #[cold]
    #[inline(never)]
    pub(super) fn send_short_in_bundle(
        &mut self,
        to: Rank,
        tag: AmTag,
        message: Short<'_>,
    ) -> bool {
        if self.is_listed(to) {
            return self.look_up(to) && self.send_short(to, tag, message);
        }
        let endpoint = self.endpoints.get(to.0 as usize);
        let Some(bundle) = endpoint.and_then(|it| it.bundle.as_deref()) else { return false };
        if message.len() > bundle.short_max || self.by_tag[usize::from(tag.0)] == RESERVED {
            return false;
        }
        let Ok(mut slot) = self.reserve_in_bundle(to, message.len(), None) else { return false };
        let mut bytes = [0; SHORT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(message.words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let written = slot.write(0, &bytes[..message.len()]).is_ok();
        if written {
            self.send_in_bundle(slot, tag, Token::NONE);
        }
        written
    }

    /// Sends what rails that have ended did not deliver, as far as there is room. Gives whether nothing is left.
    pub(super) fn send_all_again(&mut self) -> bool {
        let mut all = true;
        for at in 0..self.bundled.len() {
            let endpoint = &mut self.endpoints[self.bundled[at].0 as usize];
            if let Some(bundle) = endpoint.bundle.as_deref_mut() {
                all &= send_again(bundle, &mut self.rails);
            }
        }
        all
    }

    /// Has a peer told, in its turn, that this process leaves in good order.
    pub(super) fn leave_in_bundle(&mut self, to: Rank) {
        let Some(bundle) = self.endpoints[to.0 as usize].bundle.as_deref_mut() else { return };
        let mut message = vec![LEFT];
        message.extend(bundle.number().to_le_bytes());
        let (tag, done) = (Bml::CONTROL_TAG, Token::NONE);
        bundle.again.push_back(Unacknowledged { tag, message, done });
        self.owing = true;
    }

    /// Sends a control message in its turn; `false` if there is no room. Whoever is gone needs none.
    pub(super) fn say_in_bundle(&mut self, to: Rank, message: &[u8]) -> bool {
        match self.reserve_in_bundle(to, message.len(), None) {
            Ok(mut slot) => {
                if slot.write(0, message).is_ok() {
                    self.send_in_bundle(slot, Bml::CONTROL_TAG, Token::NONE);
                }
                true
            }
            Err(ReserveError::Full) => false,
            Err(_) => true,
        }
    }

    /// A message of a peer that no ordinary path leads to.
    #[cold]
    #[inline(never)]
    pub(super) fn arrived_in_bundle(
        &mut self,
        (rail, rank): (usize, Rank),
        tag: AmTag,
        mut fragment: Fragment,
        rest: &mut dyn Handler,
    ) {
        let bundle = self.endpoints[rank.0 as usize].bundle.as_deref_mut();
        let Some(bundle) = bundle.filter(|bundle| bundle.has(rail)) else { return };
        let Some((number, len)) = number_of(&fragment) else {
            let what = format!("a message of {} bytes has no number", fragment.len());
            return self.give_up(rank, LinkError::Corrupt { what });
        };
        fragment.truncate(len);
        match bundle.order_of(number) {
            BundleOrder::Double => {}
            BundleOrder::Later => match bundle.park(number, tag, fragment) {
                Ok(()) => {}
                Err(error) => self.give_up(rank, error),
            },
            BundleOrder::Now => {
                let ripe = bundle.took(number);
                self.hand_arrived(rank, tag, fragment, rest);
                if ripe {
                    self.ripen(rank, rest);
                }
            }
        }
    }

    fn hand_arrived(&mut self, from: Rank, tag: AmTag, fragment: Fragment, rest: &mut dyn Handler) {
        match self.by_tag[usize::from(tag.0)] {
            RESERVED => self.control(from, &fragment, rest),
            number => self.hand(number, RankEvent::Arrived { from, tag, fragment }, rest),
        }
    }

    /// Hands over what waited for earlier messages of a peer, as far as these have come.
    pub(super) fn ripen(&mut self, from: Rank, rest: &mut dyn Handler) -> usize {
        let mut handled = 0;
        // A handler may give the peer up.
        while let Some(bundle) = self.endpoints[from.0 as usize].bundle.as_deref_mut()
            && let Some((tag, fragment)) = bundle.ripe()
        {
            handled += 1;
            self.hand_arrived(from, tag, fragment, rest);
        }
        handled
    }

    /// The same for those peers whose messages were taken while a rail was polled.
    #[cold]
    #[inline(never)]
    pub(super) fn ripen_all(&mut self, rest: &mut dyn Handler) -> usize {
        let mut handled = 0;
        while let Some(rank) = self.ripe.pop() {
            handled += self.ripen(rank, rest);
        }
        handled
    }

    /// A rail of a bundle has ended, and nothing that it brought waits any more. No handler has run since `left` was
    /// taken: it might have sent more. Unless the peer has ended with it, others deliver what this one did not. Gives that,
    /// and why the peer has ended if it has.
    pub(super) fn end_strand(
        &mut self,
        (rail, rank): (usize, Rank),
        error: &LinkError,
        left: Vec<Unacknowledged>,
        rest: &mut dyn Handler,
    ) -> (Ending, LinkError) {
        let Some(bundle) = self.endpoints[rank.0 as usize].bundle.as_deref_mut() else {
            return (Ending::Nothing, error.clone());
        };
        bundle.end(rail, error, left, now_ns());
        if matches!(error, LinkError::Corrupt { .. }) {
            return (Ending::Lost(self.lose_endpoint(rank, error)), error.clone());
        }
        // Who has left ends its rails one after the other, and is not called over those that never stood.
        let met = bundle.strands.iter().any(|it| self.rails[it.rail].btl.has_met(it.peer));
        if self.gossip.has_left(rank) && !met {
            let error = bundle.cause(error, now_ns());
            self.lose_endpoint(rank, &error);
            return (Ending::Lost(Vec::new()), error);
        }
        if bundle.strands.is_empty() {
            let error = bundle.cause(error, now_ns());
            self.hear_parked(rank, rest);
            // It has said itself why it leaves, and its loss is told.
            if !matches!(self.endpoints[rank.0 as usize].state(), PeerState::Up) {
                return (Ending::Nothing, error);
            }
            return (Ending::Lost(self.lose_endpoint(rank, &error)), error);
        }
        if !bundle.let_go() {
            let reason = "messages that had come early could not be kept".to_owned();
            self.give_up(rank, LinkError::System { operation: "malloc", reason });
            return (Ending::Survived, error.clone());
        }
        self.owing = true;
        (Ending::Survived, error.clone())
    }

    /// Nothing comes from a peer any more: what it has said of deaths is heard, although messages before it are missing.
    /// A farewell is not: whoever leaves messages out does not leave in good order.
    fn hear_parked(&mut self, from: Rank, rest: &mut dyn Handler) {
        let bundle = self.endpoints[from.0 as usize].bundle.as_deref_mut();
        let parked = bundle.map_or(Vec::new(), |bundle| bundle.take_parked(Bml::CONTROL_TAG));
        for word in parked {
            let mut kind = [0];
            if word.read(0, &mut kind).is_ok() && kind != [LEFT] {
                self.control(from, &word, rest);
            }
        }
    }

    /// Gives a peer up; the paths that are left.
    pub(super) fn lose_endpoint(&mut self, rank: Rank, error: &LinkError) -> Vec<Path> {
        let endpoint = &mut self.endpoints[rank.0 as usize];
        let mut left = endpoint.lose(error.clone());
        // Nobody is called to be told.
        left.retain(|path| !path.numbered || self.rails[path.rail].btl.has_met(path.peer));
        if let Some(bundle) = endpoint.bundle.take() {
            bundle.again.into_iter().for_each(|it| self.orphan(it.done, error.clone()));
        }
        left
    }

    /// A message with this token will not leave.
    pub(super) fn orphan(&mut self, token: Token, error: LinkError) {
        if token != Token::NONE {
            self.orphans.push((token, error));
            self.owing = true;
        }
    }

    /// Tells of such messages.
    pub(super) fn tell_orphans(&mut self, rest: &mut dyn Handler) -> usize {
        let orphans = std::mem::take(&mut self.orphans);
        let count = orphans.len();
        for (token, error) in orphans {
            let (number, token) = TokenSpace::unstamp(token);
            self.hand(number, RankEvent::Sent { token, result: Err(error) }, rest);
        }
        count
    }

    /// How the messages to `peer` are spread, if several network rails are used together: the name of each, and its rate
    /// as it was last measured, or else as the transport promises it, in bytes per microsecond. Empty for all others.
    #[must_use]
    pub fn rails_to(&self, peer: Rank) -> Vec<(&'static str, u64)> {
        let bundle = self.endpoints.get(peer.0 as usize).and_then(|it| it.bundle.as_deref());
        let strands = bundle.map_or(&[][..], |bundle| bundle.strands.as_slice());
        strands.iter().map(|it| (self.rails[it.rail].name(), it.rate.measured())).collect()
    }
}

/// Whether a new message of `whole` bytes, number included, is near enough to what the peer is known to have had.
fn fits(bundle: &mut Bundle, rails: &[Rail], whole: usize) -> bool {
    bundle.window.fits(whole as u64) || {
        look(bundle, rails);
        bundle.window.fits(whole as u64)
    }
}

/// Learns from the rails what the peer has had.
fn look(bundle: &mut Bundle, rails: &[Rail]) {
    let Bundle { strands, window, .. } = bundle;
    for strand in strands {
        let outstanding = rails[strand.rail].btl.outstanding(strand.peer);
        strand.under_way.look(outstanding, window);
    }
}

/// Sends what a peer may not have had, as far as there is room. Gives whether nothing is left.
fn send_again(bundle: &mut Bundle, rails: &mut [Rail]) -> bool {
    while let Some(next) = bundle.again.pop_front() {
        if !send_numbered(bundle, rails, &next) {
            bundle.again.push_front(next);
            return false;
        }
    }
    true
}

/// Sends a message that has its number, if the window and a rail have room for it.
fn send_numbered(bundle: &mut Bundle, rails: &mut [Rail], next: &Unacknowledged) -> bool {
    let (number, whole) = (sent_number(&next.message), next.message.len() as u64);
    if !bundle.window.admit(number, whole) {
        look(bundle, rails);
        if !bundle.window.admit(number, whole) {
            return false;
        }
    }
    let is_last_word = next.tag == Bml::CONTROL_TAG && next.message[0] == LEFT;
    let strands = bundle.strands.iter().filter(|_| is_last_word).map(|it| (it.rail, it.peer));
    let standing: Vec<_> = strands.filter(|&(rail, peer)| rails[rail].btl.has_met(peer)).collect();
    if standing.is_empty() {
        let anywhere = (&Near::default(), None);
        let room = Bml::room(bundle, rails, next.message.len(), anywhere);
        return room.is_ok_and(|(rail, slot)| give(bundle, rails, rail, slot, next));
    }
    // The last word goes over all rails that stand, because one may have died unnoticed. One is enough.
    let mut sent = false;
    for (rail, peer) in standing {
        if let Ok(slot) = rails[rail].btl.reserve(peer, next.message.len()) {
            sent |= give(bundle, rails, rail, slot, next);
        }
    }
    sent
}

/// Gives a message with its number to a rail.
fn give(
    bundle: &mut Bundle,
    rails: &mut [Rail],
    rail: usize,
    mut slot: Slot,
    Unacknowledged { tag, message, done }: &Unacknowledged,
) -> bool {
    if slot.write(0, message).is_err() {
        return false;
    }
    let whole = message.len() as u64;
    if let Some(strand) = bundle.strand(rail) {
        strand.rate.sent(whole);
        strand.under_way.sent(sent_number(message), whole);
    }
    rails[rail].mark_active();
    rails[rail].btl.send(slot, *tag, *done);
    true
}

/// A message out of turn, as a bundle has it on the wire.
pub(super) fn out_of_turn(kind: u8) -> [u8; 1 + NUMBER_BYTES] {
    let mut message = [kind; 1 + NUMBER_BYTES];
    message[1..].copy_from_slice(&OUT_OF_TURN.to_le_bytes());
    message
}
