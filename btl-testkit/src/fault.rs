//! A transport that misbehaves as far as the contract allows, from a seed.
//!
//! [`Fault`] wraps any [`Btl`] and is one. All that it does ([`Plan`]) is permitted: `Full` at any time, late
//! reports, refused one-sided operations and mappings, a link that dies, messages out of order if
//! [`Limits::ordered`](gapless_btl::Limits::ordered) is false. In that case it can also repeat messages, which no transport may: for layers that number them and do not
//! rely on it. What the transport retains ([`Btl::retain`]) is given back also if the link is cut here. Code that works
//! over `Fault` with many seeds does not rely on luck.
//!
//! ```
//! use gapless_btl::{Btl, loopback::{Hub, Loopback}};
//! use gapless_btl_testkit::fault::{Fault, Plan};
//! let plan = Plan { seed: 7, full_per_mille: 1000, full_calls_max: 4, ..Plan::default() };
//! let mut end = Fault::new(Loopback::new(&Hub::new()), plan);
//! let own = end.address();
//! let me = end.connect(&own)?;
//! assert!(end.reserve(me, 8).is_err()); // the storm begins, and does not end
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[allow(unsafe_code, reason = "passes Rdma's unsafe methods through")]
mod abilities;
mod kept;
#[cfg(test)]
mod tests;

use crate::wrapped::Wrapped;
use gapless_btl::pool::HeapPool;
use gapless_btl::{
    AbilityId, Address, AmTag, Btl, Event, Fragment, LinkError, Mapped, PeerId, Queue, Rdma,
    ReserveError, Sink, Slot, Token, Unacknowledged, delegate, hand_out,
};
use gapless_testkit::Random;
use kept::KeptFragments;
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;

/// Reports held back at most; while there are more, the wrapped transport is not polled.
const HELD_MAX: usize = 4096;
/// Copies of duplicated messages at a time, at most.
const COPIES_MAX: usize = 64;

/// What goes wrong, and how often. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Equal seeds and equal calls give equal faults.
    pub seed: u64,
    /// How many in 1000 `reserve`s start a storm of [`ReserveError::Full`] (and one-sided operations of
    /// [`RdmaError::Full`](gapless_btl::RdmaError::Full)).
    pub full_per_mille: u16,
    /// The longest storm, in calls of `reserve`, `get`, `put` and `poll`.
    pub full_calls_max: u32,
    /// Reports come up to this many polls late, in their order.
    pub delay_polls_max: u32,
    /// How many in 1000 registrations and one-sided operations are refused as unavailable.
    pub rdma_refused_per_mille: u16,
    /// How many in 1000 keys, mappings and allocations are refused as unavailable.
    pub mapped_refused_per_mille: u16,
    /// The link to a peer dies after this many messages to it, in `send`. The peer sees silence, as
    /// when a cable is pulled.
    pub lose_after_messages: Option<u64>,
    /// How many in 1000 arrivals overtake the one before; only if the transport is not ordered.
    pub reorder_per_mille: u16,
    /// How many in 1000 arrivals come twice; only if the transport is not ordered.
    pub duplicate_per_mille: u16,
}

/// An operation that the wrapped transport has not reported the end of.
#[derive(Clone, Copy, Debug)]
struct PendingOperation {
    peer: PeerId,
    token: Token,
}

#[derive(Clone, Debug, Default)]
struct FaultyLink {
    sent: u64,
    pending: usize,
    /// Why this end was cut, if it was.
    cut: Option<LinkError>,
    lost: bool,
    /// What is retained, if messages are.
    kept: Option<KeptFragments>,
}

/// A transport that misbehaves. See the [module](self).
#[derive(Debug)]
pub struct Fault<B> {
    inner: Wrapped<B>,
    plan: Plan,
    random: Random,
    /// Calls that the present storm still answers with `Full`.
    storm: u32,
    polls: u64,
    /// Reports, each with the poll from which on it may be made.
    held: VecDeque<(u64, Event)>,
    /// Those whose poll has come.
    ready: VecDeque<Event>,
    /// Room for what the wrapped transport reports; absent while it does.
    scratch: Option<Queue>,
    links: Vec<FaultyLink>,
    /// By the token that the wrapped transport was given instead.
    operations: HashMap<u64, PendingOperation>,
    next_operation: u64,
    copies: HeapPool,
    /// The name of its own [`Rdma`] and [`Mapped`].
    ability: AbilityId,
}

impl<B: Btl> Fault<B> {
    /// Wraps a transport.
    #[must_use]
    pub fn new(inner: B, plan: Plan) -> Fault<B> {
        Fault {
            ability: AbilityId::new(),
            random: Random::new(plan.seed),
            copies: HeapPool::new(COPIES_MAX, inner.limits().max_fragment_bytes),
            inner: Wrapped::new(inner),
            plan,
            storm: 0,
            polls: 0,
            held: VecDeque::new(),
            ready: VecDeque::new(),
            scratch: None,
            links: Vec::new(),
            operations: HashMap::new(),
            next_operation: 0,
        }
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner.btl
    }

    /// Changes the faults from now on; the new seed is ignored.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
        self.storm = 0;
    }

    /// Ends the link to `peer` as seen from here: pending operations end with an error, then the
    /// loss is reported. Messages that are retained do not end, but are given back. The other end goes on, and what it
    /// is given meanwhile it is taken to have had: so where messages are retained, cut both ends at once.
    pub fn cut(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer)
            && link.cut.is_none()
        {
            link.cut =
                Some(LinkError::PeerGone { reason: "the link was cut on purpose".to_owned() });
            self.keep_at_cut(peer);
            self.report_cut(peer);
        }
    }

    fn link(&mut self, peer: PeerId) -> Option<&mut FaultyLink> {
        self.links.get_mut(peer.0 as usize)
    }

    fn cut_of(&self, peer: PeerId) -> Option<&LinkError> {
        self.links.get(peer.0 as usize)?.cut.as_ref()
    }

    /// Reports the loss of a cut link once nothing is pending on it.
    fn report_cut(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer)
            && let Some(error) = &link.cut
            && link.pending == 0
            && !link.lost
        {
            let error = error.clone();
            link.lost = true;
            self.hold(Event::Lost { peer, error });
        }
    }

    /// Whether a storm answers this call.
    fn full(&mut self) -> bool {
        if self.storm == 0 && self.random.chance(self.plan.full_per_mille) {
            let longest = usize::try_from(self.plan.full_calls_max).unwrap_or(usize::MAX);
            self.storm = 1 + u32::try_from(self.random.below(longest)).unwrap_or(0);
        }
        let full = self.storm > 0;
        self.storm = self.storm.saturating_sub(1);
        full
    }

    /// Replaces the caller's token, so that ends can be told apart by peer.
    fn stand_in(&mut self, peer: PeerId, token: Token) -> Token {
        let number = self.next_operation;
        self.next_operation += 1;
        self.operations.insert(number, PendingOperation { peer, token });
        if let Some(link) = self.link(peer) {
            link.pending += 1;
        }
        Token(number)
    }

    /// The caller's token, and the result as this end sees it.
    fn ended(
        &mut self,
        stand_in: Token,
        result: Result<(), LinkError>,
    ) -> Option<(PendingOperation, Result<(), LinkError>)> {
        let operation = self.operations.remove(&stand_in.0)?;
        let link = self.link(operation.peer)?;
        link.pending = link.pending.saturating_sub(1);
        let result = match &link.cut {
            Some(error) => Err(error.clone()),
            None => result,
        };
        Some((operation, result))
    }

    /// Keeps a report until its time has come.
    fn hold(&mut self, event: Event) {
        let latest = usize::try_from(self.plan.delay_polls_max).unwrap_or(0);
        let own = self.polls + self.random.below(latest + 1) as u64;
        // Never before earlier reports.
        let earlier = self.held.back().map_or(0, |(due, _)| *due);
        self.held.push_back((own.max(earlier), event));
    }

    /// Keeps an arrival; without a promise of order, perhaps out of order and twice.
    fn hold_arrival(&mut self, from: PeerId, tag: AmTag, fragment: Fragment) {
        if self.inner.btl.limits().ordered {
            return self.hold(Event::Arrived { from, tag, fragment });
        }
        if self.random.chance(self.plan.duplicate_per_mille)
            && let Some(mut copy) = self.copies.buffer(fragment.len())
            && fragment.read(0, &mut copy).is_ok()
        {
            self.hold(Event::Arrived { from, tag, fragment: copy.into_fragment() });
        }
        self.hold(Event::Arrived { from, tag, fragment });
        let last = self.held.len() - 1;
        if last > 0
            && matches!(self.held[last - 1].1, Event::Arrived { .. })
            && self.random.chance(self.plan.reorder_per_mille)
        {
            self.held.swap(last - 1, last);
        }
    }

    /// Sorts in what the wrapped transport reported.
    fn take_in(&mut self, event: Event) {
        match event {
            Event::Arrived { from, tag, fragment } => {
                if self.cut_of(from).is_none() {
                    self.hold_arrival(from, tag, fragment);
                }
            }
            Event::Sent { token, result } => {
                if let Some((PendingOperation { peer, token }, result)) = self.ended(token, result)
                {
                    if token != Token::NONE {
                        self.hold(Event::Sent { token, result });
                    }
                    self.report_cut(peer);
                }
            }
            Event::Completed(ended) => {
                // Of another ability than the one that operations were passed to.
                let Some((token, result)) = self.inner.abilities.ended(ended) else { return };
                if let Some((PendingOperation { peer, token }, result)) = self.ended(token, result)
                {
                    if token != Token::NONE {
                        self.hold(self.over(token, result));
                    }
                    self.report_cut(peer);
                }
            }
            Event::Lost { peer, error } => {
                self.keep_at_loss(peer, &error);
                if let Some(link) = self.link(peer)
                    && !std::mem::replace(&mut link.lost, true)
                {
                    let error = link.cut.get_or_insert(error).clone();
                    self.hold(Event::Lost { peer, error });
                }
            }
        }
    }

    /// Keeps books for a peer that has a name.
    fn name(&mut self, id: PeerId) {
        self.inner.name(id);
        let count = id.0 as usize + 1;
        if self.links.len() < count {
            self.links.resize_with(count, FaultyLink::default);
        }
    }
}

impl<B: Btl> Btl for Fault<B> {
    delegate!(self => self.inner.btl; limits address has_met callers attach detach retains);

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let id = self.inner.btl.connect(peer)?;
        self.name(id);
        Ok(id)
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let id = self.inner.btl.introduce(peer)?;
        self.name(id);
        Ok(id)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        if let Some(error) = self.cut_of(to) {
            return Err(ReserveError::Link(error.clone()));
        }
        let max = self.limits().max_fragment_bytes;
        if len <= max && self.full() {
            return Err(ReserveError::Full);
        }
        self.inner.btl.reserve(to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let peer = slot.peer();
        if let Some(error) = self.cut_of(peer).cloned() {
            if let Some(kept) = self.link(peer).and_then(|link| link.kept.as_mut()) {
                return kept.push(tag, &slot, done);
            }
            drop(slot);
            if done != Token::NONE {
                self.hold(Event::Sent { token: done, result: Err(error) });
            }
            return;
        }
        let stand_in = if done == Token::NONE { done } else { self.stand_in(peer, done) };
        self.keep(peer, tag, &slot, stand_in);
        self.inner.btl.send(slot, tag, stand_in);
        let limit = self.plan.lose_after_messages;
        if let Some(link) = self.link(peer) {
            link.sent += 1;
            if limit.is_some_and(|limit| link.sent >= limit) {
                self.cut(peer);
            }
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.polls += 1;
        self.storm = self.storm.saturating_sub(1);
        if self.held.len() + self.ready.len() < HELD_MAX {
            let mut scratch = self.scratch.take().unwrap_or_else(|| Queue::with_capacity(64));
            self.inner.btl.poll(None, &mut scratch);
            scratch.drain().for_each(|event| self.take_in(event));
            self.scratch = Some(scratch);
        }
        while self.held.front().is_some_and(|(due, _)| *due <= self.polls) {
            self.ready.extend(self.held.pop_front().map(|(_, event)| event));
        }
        hand_out(&mut self.ready, only, sink)
    }

    fn arm(&mut self) -> Option<RawFd> {
        // What is held back is due by the count of polls: no descriptor tells.
        let quiet = self.held.is_empty() && self.ready.is_empty();
        if self.plan.delay_polls_max > 0 || !quiet { None } else { self.inner.btl.arm() }
    }

    fn retain(&mut self, peer: PeerId) {
        self.inner.btl.retain(peer);
        if self.inner.btl.retains()
            && let Some(link) = self.link(peer)
        {
            link.kept.get_or_insert_default();
        }
    }

    fn unacknowledged(&mut self, peer: PeerId) -> Vec<Unacknowledged> {
        let link = self.link(peer).filter(|link| link.cut.is_some());
        let kept = link.and_then(|link| link.kept.as_mut());
        kept.map(KeptFragments::take).unwrap_or_default()
    }

    fn outstanding(&self, peer: PeerId) -> u64 {
        match self.links.get(peer.0 as usize) {
            Some(FaultyLink { cut: Some(_), kept, .. }) => {
                kept.as_ref().map_or(0, KeptFragments::bytes)
            }
            _ => self.inner.btl.outstanding(peer),
        }
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        if self.inner.shows_rdma() { Some(self) } else { None }
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        if self.inner.shows_mapped() { Some(self) } else { None }
    }
}
