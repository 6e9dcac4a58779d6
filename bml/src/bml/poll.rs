//! The one loop that asks transports what happened, and the way from there to the handlers.

use super::{Bml, RESERVED};
use crate::endpoint::{Ending, Endpoint};
use crate::waiter::{Step, Waiter};
use crate::{Event, Handler, Rank, TokenSpace};
use gapless_btl::{AmTag, Fragment, LinkError, Next, PeerId, Short, Shorts};

/// Hands short messages to whoever polls, if nobody registered their tag.
struct Direct<'p, H> {
    /// The rail that they come from.
    at: usize,
    ranks: &'p [Rank],
    endpoints: &'p mut [Endpoint],
    by_tag: &'p [u8; 256],
    rest: &'p mut H,
    taken: usize,
}

impl<H: Handler> Direct<'_, H> {
    /// Who sends, if the message is for whoever polls. What is wrong with others is found again when they
    /// come as events.
    #[inline]
    fn rank(&mut self, from: PeerId, tag: AmTag) -> Option<Rank> {
        let rank = *self.ranks.get(from.0 as usize)?;
        let ours = self.by_tag[usize::from(tag.0)] == 0;
        (ours && self.endpoints[rank.0 as usize].heard(self.at)).then_some(rank)
    }
}

impl<H: Handler> Shorts for Direct<'_, H> {
    #[inline]
    fn take(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Some(rank) = self.rank(from, tag) else { return false };
        let taken = self.rest.take(rank, tag, message);
        self.taken += usize::from(taken);
        taken
    }

    #[inline]
    fn take_fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let Some(rank) = self.rank(from, tag) else { return false };
        let taken = self.rest.take_fragment(rank, tag, fragment);
        self.taken += usize::from(taken);
        taken
    }
}

/// Takes one message of one tag.
struct One<F> {
    tag: AmTag,
    take: F,
}

impl<F: FnMut(Short<'_>) -> bool> Shorts for One<F> {
    #[inline]
    fn take(&mut self, _: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        tag == self.tag && (self.take)(message)
    }
}

impl Bml {
    /// Gives `take` the next message of `from`, if it has come, is a short one, and has this tag, which nobody
    /// registered. Unless it is taken, nothing changes. For whoever waits for just that message: it looks at
    /// one link and makes no progress with anything else.
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
        if self.by_tag[usize::from(tag.0)] != 0 || self.events.is_none() {
            return Next::Kept;
        }
        let rail = &mut self.rails[path.rail];
        let next = rail.btl.take_next(path.peer, &mut One { tag, take });
        path.used |= next == Next::Taken;
        next
    }

    /// Lets every transport make progress, and hands over what happened: arrivals to the handler of
    /// their tag, endings to the handler of their token, the loss of a peer to all; what belongs to
    /// no registered handler to `rest`. Never blocks, bounded work. Gives how many events there
    /// were.
    ///
    /// Called from a handler it does nothing.
    #[inline]
    pub fn poll(&mut self, mut rest: &mut dyn Handler) -> usize {
        self.poll_for(&mut rest)
    }

    /// As [`poll`](Bml::poll), for a handler whose type is known: what it takes at once costs one call less.
    #[inline]
    pub fn poll_for<H: Handler>(&mut self, rest: &mut H) -> usize {
        self.round = self.round.wrapping_add(1);
        let round = self.round;
        self.poll_where(rest, |rail| rail.due(round))
    }

    /// Whether a [`poll`](Bml::poll) would find nothing, where transports can tell by a look.
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
        if self.owing {
            self.settle();
        }
        let mut handled = 0;
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
                let (ranks, endpoints, by_tag) = (&rail.ranks, &mut self.endpoints, &self.by_tag);
                let mut shorts = Direct { at, ranks, endpoints, by_tag, rest, taken: 0 };
                rail.btl.poll_short(&mut events, &mut shorts);
                let taken = shorts.taken;
                handled += taken;
                if events.is_empty() && taken == 0 {
                    rail.was_quiet();
                } else {
                    rail.stir();
                    for event in events.drain() {
                        handled += 1;
                        self.dispatch(at, event, rest);
                    }
                }
            }
            at += 1;
        }
        self.events = Some(events);
        handled
    }

    fn dispatch(&mut self, rail: usize, event: gapless_btl::Event, rest: &mut dyn Handler) {
        match event {
            gapless_btl::Event::Arrived { from, tag, fragment } => {
                self.arrived(rail, from, tag, fragment, rest);
            }
            gapless_btl::Event::Sent { token, result } => {
                let (number, token) = TokenSpace::unstamp(token);
                self.hand(number, Event::Sent { token, result }, rest);
            }
            gapless_btl::Event::Completed(ended) => {
                let rail = &self.rails[rail];
                let Some((token, result)) = rail.ended(ended) else {
                    tracing::error!(rail = rail.name(), "the end of another transport's operation");
                    return;
                };
                let (number, token) = TokenSpace::unstamp(token);
                self.hand(number, Event::Completed { token, result }, rest);
            }
            gapless_btl::Event::Lost { peer, error } => self.lost(rail, peer, &error, rest),
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
        // A transport that invents peers, or still delivers from one that is lost: nobody can use
        // the message, and its credit goes back.
        let Some(rank) = self.rails[rail].rank(from) else { return };
        if !self.endpoints[rank.0 as usize].heard(rail) {
            return;
        }
        match self.by_tag[usize::from(tag.0)] {
            RESERVED => self.control(rank, &fragment, rest),
            number => self.hand(number, Event::Arrived { from: rank, tag, fragment }, rest),
        }
    }

    /// Gives an event to handler `number`.
    fn hand(&mut self, number: u8, event: Event, rest: &mut dyn Handler) {
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

    fn lost(&mut self, rail: usize, peer: PeerId, error: &LinkError, rest: &mut dyn Handler) {
        let Some(rank) = self.rails[rail].rank(peer) else { return };
        let name = self.rails[rail].name();
        match self.endpoints[rank.0 as usize].end_path(rail, error) {
            Ending::Nothing => {}
            Ending::Survived => {
                tracing::info!(peer = %rank, rail = name, %error, "a rail died; another carries on");
                self.reach(rank);
            }
            Ending::Lost(left) => {
                tracing::info!(peer = %rank, rail = name, %error, "the peer is lost");
                self.say_farewells(&left);
                self.note_loss(rank, error);
                if self.owing {
                    self.settle();
                }
                self.tell_loss(rank, error, rest);
            }
        }
    }

    pub(super) fn tell_loss(&mut self, peer: Rank, error: &LinkError, rest: &mut dyn Handler) {
        self.count_loss(peer);
        let handlers = u8::try_from(self.handlers.len()).unwrap_or(RESERVED);
        for number in 0..=handlers {
            self.hand(number, Event::Lost { peer, error: error.clone() }, rest);
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
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Block => handled = self.block(waiter, rest),
            }
        }
        if handled > 0 {
            waiter.stir();
        }
        handled
    }

    /// The first half of blocking, for callers that share this `Bml` behind a lock and must not hold
    /// it while they sleep: arms every transport and looks once more. If that finds nothing (0),
    /// the caller lets go of the lock and calls [`Waiter::block`].
    pub fn arm(&mut self, waiter: &mut Waiter, mut rest: &mut dyn Handler) -> usize {
        waiter.disarm();
        for rail in self.rails.iter_mut().filter(|rail| !rail.is_own()) {
            waiter.arm(rail.btl.arm());
        }
        if self.owing {
            waiter.arm(None);
        }
        self.poll_where(&mut rest, |_| true)
    }

    /// Arms every transport, looks once more, and blocks until one of them has something.
    fn block(&mut self, waiter: &mut Waiter, mut rest: &mut dyn Handler) -> usize {
        let handled = self.arm(waiter, rest);
        if handled > 0 {
            return handled;
        }
        waiter.block();
        self.poll_where(&mut rest, |_| true)
    }
}
