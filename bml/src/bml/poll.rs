//! The one loop that polls transports, and the path from there to the handlers.

use super::directory::CALLERS_EVERY;
use super::{Bml, RESERVED};
use crate::bundle::{BundleOrder, number_of, split_short};
use crate::endpoint::{Ending, Endpoint};
use crate::waiter::{WaitStep, Waiter};
use crate::{Handler, Next, Rank, RankEvent, TokenSpace};
use gapless_btl::{
    AmTag, Fragment, LinkError, POLLS_PER_LOOK, PeerId, Queue, Short, Sink, TargetAnswer,
};

/// Takes what one rail says: offers messages to the handlers of their tags, and keeps events for later.
struct Inlet<'p, H> {
    /// The rail.
    at: usize,
    ranks: &'p [Rank],
    endpoints: &'p mut [Endpoint],
    by_tag: &'p [u8; 256],
    handlers: &'p mut [Option<Box<dyn Handler + Send>>],
    rest: &'p mut H,
    events: &'p mut Queue,
    ripe: &'p mut Vec<Rank>,
    /// Messages that were taken when they were offered.
    taken: usize,
}

impl<H: Handler> Inlet<'_, H> {
    /// Who sends. Messages of unknown peers are refused here and dropped as events.
    #[inline]
    fn rank(&mut self, from: PeerId) -> Option<Rank> {
        let rank = *self.ranks.get(from.0 as usize)?;
        self.endpoints[rank.0 as usize].heard(self.at).then_some(rank)
    }

    /// A message of a peer that no ordinary path leads to, by value. One that has been here before is taken.
    #[cold]
    #[inline(never)]
    fn short_in_bundle(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Some((number, message)) = split_short(message) else { return false };
        self.offer_in_bundle(from, number, |inlet, rank| match inlet.by_tag[usize::from(tag.0)] {
            0 => inlet.rest.short(rank, tag, message),
            number => {
                inlet.registered(number).is_some_and(|handler| handler.short(rank, tag, message))
            }
        })
    }

    /// The same in the transport's memory.
    #[cold]
    #[inline(never)]
    fn fragment_in_bundle(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let Some((number, len)) = number_of(fragment) else { return false };
        let fragment = fragment.trimmed(len);
        self.offer_in_bundle(from, number, |inlet, rank| match inlet.by_tag[usize::from(tag.0)] {
            0 => inlet.rest.fragment(rank, tag, &fragment),
            number => inlet
                .registered(number)
                .is_some_and(|handler| handler.fragment(rank, tag, &fragment)),
        })
    }

    fn offer_in_bundle(
        &mut self,
        from: PeerId,
        number: u64,
        offer: impl FnOnce(&mut Self, Rank) -> bool,
    ) -> bool {
        let Some(&rank) = self.ranks.get(from.0 as usize) else { return false };
        let (at, rail) = (rank.0 as usize, self.at);
        let Some(bundle) = self.endpoints[at].bundle.as_deref_mut() else { return false };
        let taken = match bundle.order_of(number) {
            _ if !bundle.has(rail) => false,
            BundleOrder::Double => true,
            BundleOrder::Later => false,
            BundleOrder::Now => {
                let taken = offer(self, rank);
                if taken
                    && let Some(bundle) = self.endpoints[at].bundle.as_deref_mut()
                    && bundle.took(number)
                {
                    self.ripe.push(rank);
                }
                taken
            }
        };
        self.taken += usize::from(taken);
        taken
    }

    /// The handler that registered this tag; for bml's own there is none.
    fn registered(&mut self, number: u8) -> Option<&mut (dyn Handler + Send + 'static)> {
        self.handlers.get_mut(usize::from(number) - 1)?.as_deref_mut()
    }
}

impl<H: Handler> Sink for Inlet<'_, H> {
    #[inline]
    fn short(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Some(rank) = self.rank(from) else { return self.short_in_bundle(from, tag, message) };
        let taken = match self.by_tag[usize::from(tag.0)] {
            0 => self.rest.short(rank, tag, message),
            number => {
                self.registered(number).is_some_and(|handler| handler.short(rank, tag, message))
            }
        };
        self.taken += usize::from(taken);
        taken
    }

    #[inline]
    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let Some(rank) = self.rank(from) else {
            return self.fragment_in_bundle(from, tag, fragment);
        };
        let taken = match self.by_tag[usize::from(tag.0)] {
            0 => self.rest.fragment(rank, tag, fragment),
            number => {
                self.registered(number).is_some_and(|handler| handler.fragment(rank, tag, fragment))
            }
        };
        self.taken += usize::from(taken);
        taken
    }

    /// Numbered messages have no receive target: which of them is the next is known when they have come.
    fn receive_target(
        &mut self,
        from: PeerId,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        let Some(rank) = self.rank(from) else { return TargetAnswer::Nowhere };
        match self.by_tag[usize::from(tag.0)] {
            0 => self.rest.receive_target(rank, tag, head, len),
            number => match self.registered(number) {
                Some(handler) => handler.receive_target(rank, tag, head, len),
                None => TargetAnswer::Nowhere,
            },
        }
    }

    fn target_filled(&mut self, from: PeerId, tag: AmTag, head: &[u8], len: usize) {
        let Some(rank) = self.rank(from) else { return };
        self.taken += 1;
        match self.by_tag[usize::from(tag.0)] {
            0 => self.rest.target_filled(rank, tag, head, len),
            number => {
                if let Some(handler) = self.registered(number) {
                    handler.target_filled(rank, tag, head, len);
                }
            }
        }
    }

    #[inline]
    fn event(&mut self, event: gapless_btl::Event) {
        self.events.event(event);
    }

    #[inline]
    fn room(&self) -> usize {
        self.events.room()
    }
}

/// Takes one message of one tag; there is no room for anything else.
struct One<F> {
    tag: AmTag,
    take: F,
    next: Next,
}

impl<F: FnMut(Short<'_>) -> bool> Sink for One<F> {
    #[inline]
    fn short(&mut self, _: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let taken = tag == self.tag && (self.take)(message);
        self.next = if taken { Next::Taken } else { Next::Kept };
        taken
    }

    fn fragment(&mut self, _: PeerId, _: AmTag, _: &Fragment) -> bool {
        self.next = Next::Kept;
        false
    }

    fn receive_target(&mut self, _: PeerId, _: AmTag, _: &[u8], _: usize) -> TargetAnswer<'_> {
        self.next = Next::Kept;
        TargetAnswer::Later
    }

    fn event(&mut self, event: gapless_btl::Event) {
        tracing::error!(?event, "an event that there is no room for");
    }

    fn room(&self) -> usize {
        0
    }
}

impl Bml {
    /// Gives `take` the next message of `from`, if it has come, is a short one, and has this tag, whoever registered
    /// it. Unless it is taken, nothing changes. For whoever waits for just that message: it looks at one link and
    /// makes no progress with anything else.
    ///
    /// Called from a handler it does nothing.
    #[inline]
    pub fn take_next(
        &mut self,
        from: Rank,
        tag: AmTag,
        take: impl FnMut(Short<'_>) -> bool,
    ) -> Next {
        let endpoint = self.endpoints.get_mut(from.0 as usize);
        let Some(path) = endpoint.and_then(Endpoint::carrier_mut) else { return Next::Kept };
        if self.by_tag[usize::from(tag.0)] == RESERVED || self.events.is_none() {
            return Next::Kept;
        }
        let mut one = One { tag, take, next: Next::Nothing };
        self.rails[path.rail].btl.poll(Some(path.peer), &mut one);
        path.used |= one.next == Next::Taken;
        one.next
    }

    /// Lets every transport make progress, and hands over what happened: arrivals to the handler of their tag, endings
    /// to the handler of their token, the loss of a peer to all; what belongs to no registered handler to `rest`. An
    /// arrival is offered first ([`Handler::short`], [`Handler::fragment`]), and is an event only if it is refused.
    /// Never blocks, bounded work. Gives how many messages and events there were.
    ///
    /// Called from a handler it does nothing.
    #[inline]
    pub fn poll(&mut self, mut rest: &mut dyn Handler) -> usize {
        self.poll_for(&mut rest)
    }

    /// As [`poll`](Bml::poll), for a handler whose type is known: messages that it takes at once cost one call less.
    #[inline]
    pub fn poll_for<H: Handler>(&mut self, rest: &mut H) -> usize {
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        self.poll_where(rest, |rail| rail.due(round))
    }

    /// Polls every transport so often that each has looked at everything ([`POLLS_PER_LOOK`]): for a caller that has not
    /// polled for long. Gives how many messages and events there were.
    ///
    /// Called from a handler it does nothing.
    pub fn poll_thoroughly<H: Handler>(&mut self, rest: &mut H) -> usize {
        let look = |_| {
            self.round = self.round.wrapping_add(1);
            self.poll_where(rest, |_| true)
        };
        (0..POLLS_PER_LOOK).map(look).sum()
    }

    /// Whether a [`poll`](Bml::poll) would find nothing, if transports can tell by a quick check.
    #[inline]
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        !self.owing
            && self.given_up.is_empty()
            && self.rails.iter().all(crate::rail::Rail::is_quiet)
    }

    #[inline]
    fn poll_where<H: Handler>(
        &mut self,
        rest: &mut H,
        due: impl Fn(&crate::rail::Rail) -> bool,
    ) -> usize {
        let Some(mut events) = self.events.take() else { return 0 };
        let mut handled = 0;
        if self.owing {
            self.settle();
            handled += self.tell_orphans(rest);
        }
        if !self.given_up.is_empty() {
            for (peer, error) in std::mem::take(&mut self.given_up) {
                handled += 1;
                self.tell_loss(peer, &error, rest);
            }
        }
        let mut at = 0;
        // By index: handlers may add rails meanwhile.
        while at < self.rails.len() {
            if due(&self.rails[at]) {
                let rail = &mut self.rails[at];
                let mut inlet = Inlet {
                    at,
                    ranks: &rail.ranks,
                    endpoints: &mut self.endpoints,
                    by_tag: &self.by_tag,
                    handlers: &mut self.handlers,
                    rest,
                    events: &mut events,
                    ripe: &mut self.ripe,
                    taken: 0,
                };
                rail.btl.poll(None, &mut inlet);
                let taken = inlet.taken;
                handled += taken;
                if events.is_empty() && taken == 0 {
                    rail.was_quiet();
                } else {
                    rail.mark_active();
                    for event in events.drain() {
                        handled += 1;
                        self.dispatch(at, event, rest);
                    }
                    if !self.ripe.is_empty() {
                        handled += self.ripen_all(rest);
                    }
                }
            }
            at += 1;
        }
        self.events = Some(events);
        if !self.measured.is_empty() {
            self.measure_rails();
        }
        // Who leaves tells those who have just called, too.
        if self.owing || self.round.is_multiple_of(CALLERS_EVERY) {
            if self.hear_callers() {
                self.settle();
            }
            handled += self.end_unexplained(rest);
        }
        handled
    }

    fn dispatch(&mut self, rail: usize, event: gapless_btl::Event, rest: &mut dyn Handler) {
        match event {
            gapless_btl::Event::Arrived { from, tag, fragment } => {
                self.arrived(rail, from, tag, fragment, rest);
            }
            gapless_btl::Event::Sent { token, result } => {
                let (number, token) = TokenSpace::unstamp(token);
                self.hand(number, RankEvent::Sent { token, result }, rest);
            }
            gapless_btl::Event::Completed(ended) => {
                let rail = &self.rails[rail];
                let Some((token, result)) = rail.ended(ended) else {
                    tracing::error!(rail = rail.name(), "the end of another transport's operation");
                    return;
                };
                let (number, token) = TokenSpace::unstamp(token);
                self.hand(number, RankEvent::Completed { token, result }, rest);
            }
            gapless_btl::Event::Lost { peer, error } => {
                let rank = self.rails[rail].rank(peer);
                match rank.is_some_and(|rank| self.may_be_explained(rank, &error)) {
                    true => self.await_explanation((rail, peer), error),
                    false => self.lost(rail, peer, &error, rest),
                }
            }
        }
    }

    fn arrived(
        &mut self,
        rail: usize,
        from: PeerId,
        tag: AmTag,
        fragment: Fragment,
        rest: &mut dyn Handler,
    ) {
        // A transport that invents peers, or still delivers from a lost one: the message is dropped, and its credit
        // returns.
        let Some(rank) = self.rails[rail].rank(from) else { return };
        if !self.endpoints[rank.0 as usize].heard(rail) {
            return self.arrived_in_bundle((rail, rank), tag, fragment, rest);
        }
        match self.by_tag[usize::from(tag.0)] {
            RESERVED => self.control(rank, &fragment, rest),
            number => self.hand(number, RankEvent::Arrived { from: rank, tag, fragment }, rest),
        }
    }

    /// Gives an event to handler `number`.
    pub(super) fn hand(&mut self, number: u8, event: RankEvent, rest: &mut dyn Handler) {
        if number == 0 {
            return rest.handle(self, event);
        }
        let at = usize::from(number) - 1;
        let Some(mut handler) = self.handlers.get_mut(at).and_then(Option::take) else {
            tracing::error!(number, ?event, "a token that no handler can have stamped");
            return;
        };
        handler.handle(self, event);
        self.handlers[at] = Some(handler);
    }

    pub(super) fn lost(
        &mut self,
        rail: usize,
        peer: PeerId,
        error: &LinkError,
        rest: &mut dyn Handler,
    ) {
        let Some(rank) = self.rails[rail].rank(peer) else { return };
        let name = self.rails[rail].name();
        let bundled = |bml: &Bml| {
            let bundle = bml.endpoints[rank.0 as usize].bundle.as_deref();
            bundle.is_some_and(|bundle| bundle.has_link(rail, peer))
        };
        if bundled(self) {
            // What the rail brought last may have been waited for. What handlers send then is among what is taken below.
            self.ripen(rank, rest);
        }
        let unacknowledged = self.rails[rail].btl.unacknowledged(peer);
        let (ending, cause) = if bundled(self) {
            self.end_strand((rail, rank), error, unacknowledged, rest)
        } else {
            unacknowledged.into_iter().for_each(|it| self.orphan(it.done, error.clone()));
            (self.endpoints[rank.0 as usize].end_path((rail, peer), error), error.clone())
        };
        match ending {
            Ending::Nothing => {}
            Ending::Survived => {
                tracing::info!(peer = %rank, rail = name, %error, "a rail died; another carries on");
                if !self.gossip.has_left(rank) {
                    self.reach(rank);
                }
            }
            Ending::Lost(left) => {
                tracing::info!(peer = %rank, rail = name, %error, "the peer is lost");
                self.say_farewells(&left);
                self.note_loss(rank, &cause);
                if self.owing {
                    self.settle();
                }
                self.tell_loss(rank, &cause, rest);
            }
        }
    }

    pub(super) fn tell_loss(&mut self, peer: Rank, error: &LinkError, rest: &mut dyn Handler) {
        self.count_loss(peer);
        self.tell_orphans(rest);
        let handlers = u8::try_from(self.handlers.len()).unwrap_or(RESERVED);
        for number in 0..=handlers {
            self.hand(number, RankEvent::Lost { peer, error: error.clone() }, rest);
        }
    }

    /// One step of waiting: polls; if nothing happened, spins, yields or blocks, according to how
    /// long nothing has happened. Gives how many events there were. Callers loop until what they
    /// wait for has come; no step takes longer than [`Patience::block_ms`](crate::Patience).
    ///
    /// Called from a handler it does nothing.
    pub fn wait(&mut self, waiter: &mut Waiter, rest: &mut dyn Handler) -> usize {
        let mut handled = self.poll(rest);
        if handled == 0 && self.events.is_some() {
            match waiter.step() {
                WaitStep::Spin => std::hint::spin_loop(),
                WaitStep::Yield => std::thread::yield_now(),
                WaitStep::Block => handled = self.block(waiter, rest),
            }
        }
        if handled > 0 {
            waiter.restart();
        }
        handled
    }

    /// The first half of blocking, for callers that share this `Bml` behind a lock and must not hold it while they
    /// sleep: arms every transport and polls once more. If that finds nothing (0), the caller releases the lock and
    /// calls [`Waiter::block`].
    pub fn arm(&mut self, waiter: &mut Waiter, mut rest: &mut dyn Handler) -> usize {
        waiter.disarm();
        for rail in self.rails.iter_mut().filter(|rail| !rail.is_own()) {
            waiter.arm(rail.btl.arm());
        }
        if self.owing {
            waiter.arm(None);
        }
        let handled = self.poll_where(&mut rest, |_| true);
        // Who called during that is answered before anybody sleeps.
        if self.hear_callers() { handled.max(1) } else { handled }
    }

    /// Arms every transport, polls once more, and blocks until one of them has something.
    fn block(&mut self, waiter: &mut Waiter, mut rest: &mut dyn Handler) -> usize {
        let handled = self.arm(waiter, rest);
        if handled > 0 {
            return handled;
        }
        waiter.block();
        self.poll_where(&mut rest, |_| true)
    }
}
