//! Rendezvous: long messages are offered by the sender (RTS), and the receiver decides which *protocol* carries them.
//!
//! A protocol is one file: a static [`ProtocolKind`] with everything that the protocol decides, and for each end a
//! value that implements [`RndvEnd`] while a message is in flight. `protocol.rs` lists them, a line each. So a new
//! protocol is a file and a line.
//!
//! The driver (`drive/rendezvous.rs`) takes a rendezvous out of its request, calls it with a [`Cx`], puts it back, and
//! does what its [`RndvStep`] says. [`Rendezvous`] is what all of them share.
//!
//! | file | what it holds |
//! |---|---|
//! | `kinds.rs` | the table of kinds |
//! | `eager.rs`, `pipeline.rs`, `local.rs`, `mapped.rs`, `mapped_put.rs`, `single_copy.rs`, `staged.rs` | the protocols |
//! | `offered.rs`, `incoming.rs`; `in_flight.rs`, `turns.rs` | both ends; work of engines, and who asked to be polled |
//! | `layouts.rs`, `pieces.rs`; `staging.rs`, `rings.rs` | layouts that travel; staging memory, rings of it |
//! | `gpudirect.rs`, `offering.rs`, `decided.rs` | what adapters refuse; whether offers pay; what was chosen lately |
//! | `link.rs` | the link to the other end, as a protocol may use it |
//!
//! ```text
//! sender                     receiver
//!   | RTS(offer) ------------> | matched: choose (decide.rs)
//!   |                          |   mapped, single copy: read the sender's memory
//!   | <-------------- FIN ---- |
//!   |                          |   mapped put: grant the sender access to ours
//!   | <------------- GRANT ---- |
//!   |                          |   staged: agree on a ring
//!   | <------------- OPEN ---- |
//!   |                          |   pipeline: ask for fragments
//!   | <-------------- CTS ---- |
//! ```

pub(crate) mod decided;
mod eager;
pub(crate) mod gpudirect;
pub(crate) mod in_flight;
pub(crate) mod incoming;
mod kinds;
pub(crate) mod layouts;
pub(crate) mod link;
mod local;
mod mapped;
pub(crate) mod mapped_put;
pub(crate) mod offered;
pub(crate) mod offering;
pub(crate) mod pieces;
mod pipeline;
#[allow(unsafe_code, reason = "makes places of page-locked memory")]
pub(crate) mod rings;
pub(crate) mod single_copy;
pub(crate) mod staged;
#[allow(unsafe_code, reason = "leases the staging memory that it allocates, and frees it")]
pub(crate) mod staging;
pub(crate) mod turns;

use crate::buffer::{
    Buffer, CachedBuffers, Engines, HeldMemory, OneSidedRead, RegionList, StagingMemory, Transfer,
};
use crate::cost::{Excluded, Model, Situation};
use crate::counters::Counters;
use crate::error::PmlError;
use crate::hash::FastMap;
use crate::links::{FlatLayout, Outgoing, Peer, WireLayout};
use crate::protocol::{Protocol, Protocols};
use crate::rndv::decided::Decided;
use crate::rndv::gpudirect::Refusals;
use crate::rndv::in_flight::{InFlight, InFlights};
use crate::rndv::layouts::{Fetched, Published};
use crate::rndv::link::RndvLink;
use crate::rndv::mapped_put::Granting;
use crate::rndv::offering::{Offering, Unanswered};
use crate::rndv::rings::Rings;
use crate::rndv::single_copy::Scratch;
use crate::rndv::staging::StagingPool;
use crate::rndv::turns::Turns;
use crate::status::RequestId;
use crate::tuning::{Bounds, Config, Tuning};
use crate::wire::{self, Message, Rts, Verdict};
use gapless_bml::{Fragment, LinkError, RailSlot, RdmaRail, RemoteKey, ZeroCopyResult};
use gapless_engine::EngineError;
use gapless_mem::{Region, Space};
use std::fmt::Debug;
use std::sync::Arc;

/// The rendezvous of an endpoint: what is in flight, what waits, and the memory and the knowledge that messages share.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub(crate) in_flight: InFlights,
    /// Receives whose senders have not yet said that the data is there, by process and serial.
    deferred: FastMap<(u32, u64), RequestId>,
    pub(crate) unanswered: Unanswered,
    /// Requests whose rendezvous asked to be polled.
    pub(crate) again: Turns,
    /// Receives whose lost senders may still write to their buffers.
    unreleased: Vec<RequestId>,
    pub(crate) published: Published,
    pub(crate) scratch: Scratch,
    /// What adapters do not reach by themselves.
    pub(crate) refusals: Refusals,
    pub(crate) rings: Rings,
    /// The staging memory of staged messages.
    pub(crate) staging: StagingPool,
    /// Buffers that the caches of this process are likely to have.
    pub(crate) cached: CachedBuffers,
    /// By peer.
    pub(crate) facts: Vec<PeerFacts>,
}

/// What messages with one peer have found out.
#[derive(Debug, Default)]
pub(crate) struct PeerFacts {
    /// Layouts that were fetched from it.
    pub(crate) layouts: Fetched,
    /// Protocols that are impossible with it, by their place among all.
    pub(crate) closed: [bool; Protocol::ALL.len()],
    /// How often in a row a staged protocol found no key, likewise.
    pub(crate) unkeyed: [u8; Protocol::ALL.len()],
    /// What is known of offering it short messages out of device memory.
    pub(crate) offering: Offering,
    /// What is known of granting it buffers.
    pub(crate) granting: Granting,
    /// Whether a message with it had an end in a device's memory there.
    pub(crate) has_devices: bool,
    /// What was chosen for its offers.
    pub(crate) decided: Decided,
}

impl Rendezvous {
    pub(crate) fn new(size: u32, bounds: &Bounds) -> Rendezvous {
        Rendezvous {
            in_flight: InFlights::default(),
            deferred: FastMap::default(),
            unanswered: Unanswered::default(),
            again: Turns::default(),
            unreleased: Vec::new(),
            published: Published::new(bounds),
            scratch: Scratch::default(),
            refusals: Refusals::default(),
            rings: Rings::default(),
            staging: StagingPool::default(),
            cached: CachedBuffers::default(),
            facts: (0..size).map(|_| PeerFacts::default()).collect(),
        }
    }

    /// Whether nothing waits that no event will announce.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
            && self.again.is_empty()
            && self.unanswered.is_empty()
            && self.unreleased.is_empty()
    }

    /// A receive waits for its sender's word that the data is there. An error is the sender's fault.
    pub(crate) fn defer(&mut self, from: u32, serial: u64, id: RequestId) -> Result<(), String> {
        match self.deferred.insert((from, serial), id) {
            None => Ok(()),
            Some(first) => {
                self.deferred.insert((from, serial), first);
                Err(format!("rendezvous {serial} is offered twice"))
            }
        }
    }

    /// The receive that waits for a sender's word, which has come.
    pub(crate) fn undefer(&mut self, from: u32, serial: u64) -> Option<RequestId> {
        self.deferred.remove(&(from, serial))
    }

    /// A peer is lost: its words will not come.
    pub(crate) fn lose(&mut self, peer: u32) {
        self.deferred.retain(|(from, _), _| *from != peer);
    }

    /// A receive has failed whose lost sender may still write to its buffer.
    pub(crate) fn await_release(&mut self, id: RequestId) {
        if !self.unreleased.contains(&id) {
            self.unreleased.push(id);
        }
    }

    /// Those receives, to be looked at; the others are to be given [back](Rendezvous::await_release).
    pub(crate) fn take_unreleased(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.unreleased)
    }

    /// Whether there are any.
    pub(crate) fn has_unreleased(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// What messages with a peer have found out.
    pub(crate) fn facts(&mut self, peer: u32) -> &mut PeerFacts {
        &mut self.facts[peer as usize]
    }
}

/// One end of a message in flight by one protocol.
pub(crate) trait RndvEnd: Debug + Send {
    /// The other end has sent a message of this rendezvous. [`RndvStep::Broken`]: it must not.
    fn heard(&mut self, cx: &mut Cx<'_>, heard: Heard<'_>) -> RndvStep;

    /// An engine's or the transport's work on `part` has ended; without an error, this is the memory that it touched.
    fn landed(
        &mut self,
        cx: &mut Cx<'_>,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) -> RndvStep;

    /// Polled at the next steps of progress, after [`RndvStep::Again`]: at each, or in turns if many ask for it.
    fn again(&mut self, cx: &mut Cx<'_>) -> RndvStep {
        let _ = cx;
        RndvStep::Going
    }

    /// At the receiver: where a transport may put `len` bytes of data, which belong to the buffer from `offset` on.
    fn receive_target(&mut self, offset: u64, len: u64) -> RndvTarget<'_> {
        let _ = (offset, len);
        RndvTarget::Nowhere
    }

    /// Data is in the [target](RndvEnd::receive_target) that was given for it. [`RndvStep::Again`]: it wants to be
    /// polled.
    fn target_filled(&mut self, offset: u64, len: u64) -> RndvStep {
        RndvStep::Broken(format!("{len} bytes at {offset} that are not due"))
    }

    /// The transport may have room for a fragment; only after [`Cx::stream`].
    fn turn(&mut self, cx: &mut Cx<'_>) -> SendTurn {
        let _ = cx;
        SendTurn::Over
    }

    /// The peer is gone. [`RndvStep::Going`]: it is not needed any more. Otherwise the request fails. After this call
    /// only [`landed`](RndvEnd::landed) is called, and its steps are ignored. The request ends when every part has
    /// landed and no peer has [`granted`](RndvEnd::granted) memory any more.
    fn lost(&mut self, cx: &mut Cx<'_>) -> RndvStep;

    /// Memory of the request's buffer that the peer may write now, also after it was lost.
    fn granted(&self) -> Option<Region> {
        None
    }

    /// At the sender: whether the receiver may still choose another protocol. The offer then stays valid, and another
    /// decision [stops](RndvEnd::stop) this one.
    fn is_tentative(&self) -> bool {
        false
    }

    /// The receiver has chosen another protocol.
    fn stop(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }
}

/// Where a transport may put data that arrives.
#[derive(Debug)]
pub(crate) enum RndvTarget<'a> {
    /// It is not due, or comes as other messages do.
    Nowhere,
    /// To the buffer itself, if its runs are long.
    Buffer,
    /// To this staging memory.
    Staging(&'a StagingMemory),
    /// There will be a target soon.
    Later,
}

/// The state of a rendezvous after a call.
#[derive(Debug)]
pub(crate) enum RndvStep {
    /// It goes on.
    Going,
    /// It goes on, and wants to be polled.
    Again,
    /// This end is done, by this protocol. If [`Cx::fail`] was called, the request fails.
    Done(Protocol),
    /// The protocol has failed, and nobody works on the buffer. The receiver chooses another protocol, which restarts
    /// from byte 0; at the sender the offer is valid again.
    Refused(String),
    /// The peer has broken the protocol: it is lost.
    Broken(String),
}

/// What a send made of its turn to send a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendTurn {
    /// One was sent, or is being packed.
    Sent,
    /// The maximum of fragments is being packed.
    Busy,
    /// The transport has no room.
    Full,
    /// No turn is wanted any more.
    Over,
    /// The last one was sent: all is done.
    Done(Protocol),
}

/// A message of a rendezvous.
pub(crate) struct Heard<'m> {
    pub(crate) message: Message,
    /// A copy of it: all of a control message, the header of others.
    pub(crate) bytes: &'m [u8],
    pub(crate) fragment: Fragment,
}

/// The start of a rendezvous: it goes on if, and only if, there is a value that carries it.
pub(crate) enum Opened {
    /// It goes on.
    Going(Box<dyn RndvEnd>),
    /// It goes on, and wants to be polled.
    Again(Box<dyn RndvEnd>),
    /// It has ended already, as [`RndvStep::Done`].
    Done(Protocol),
    /// As [`RndvStep::Refused`].
    Refused(String),
    /// As [`RndvStep::Broken`].
    Broken(String),
}

impl Opened {
    /// It goes on, by this value.
    pub(crate) fn going(value: impl RndvEnd + 'static) -> Opened {
        Opened::Going(Box::new(value))
    }

    /// The state after the value's first step. It is dropped if that ended the rendezvous.
    pub(crate) fn after(step: RndvStep, value: impl RndvEnd + 'static) -> Opened {
        match step {
            RndvStep::Going => Opened::Going(Box::new(value)),
            RndvStep::Again => Opened::Again(Box::new(value)),
            RndvStep::Done(by) => Opened::Done(by),
            RndvStep::Refused(why) => Opened::Refused(why),
            RndvStep::Broken(what) => Opened::Broken(what),
        }
    }

    /// For the driver: what goes on, and the step.
    pub(crate) fn into_parts(self) -> (Option<Box<dyn RndvEnd>>, RndvStep) {
        match self {
            Opened::Going(value) => (Some(value), RndvStep::Going),
            Opened::Again(value) => (Some(value), RndvStep::Again),
            Opened::Done(by) => (None, RndvStep::Done(by)),
            Opened::Refused(why) => (None, RndvStep::Refused(why)),
            Opened::Broken(what) => (None, RndvStep::Broken(what)),
        }
    }
}

/// A protocol: everything that depends on which one it is.
pub(crate) struct ProtocolKind {
    /// Whether the receiver must know the sender's layout, if that has gaps.
    pub(crate) wants_layout: bool,
    /// What excludes it.
    pub(crate) exclude: fn(&Situation, &Tuning) -> Option<Excluded>,
    /// Predicted one-way time in nanoseconds. Several protocols may have one kind.
    pub(crate) cost: fn(&Model<'_>, Protocol) -> f64,
    /// Whether it stays excluded for a peer, once it was [closed](Cx::close), for a message like this.
    pub(crate) stays_closed: fn(&Situation) -> bool,
    /// At the receiver, before the choice: adds what this protocol depends on.
    pub(crate) consider: fn(&mut Cx<'_>, &mut Situation),
    /// At the receiver: starts. The context's situation is the one of the choice.
    pub(crate) open_recv: fn(&mut Cx<'_>, Protocol, &Situation) -> Opened,
    /// At the sender: whether a message starts this protocol, and its start.
    pub(crate) opens: fn(&Message) -> bool,
    pub(crate) open_send: fn(&mut Cx<'_>, &Heard<'_>) -> Opened,
}

impl ProtocolKind {
    /// Defaults of every kind: nothing excludes it, it costs the most, and neither end can start it.
    pub(crate) const NONE: ProtocolKind = ProtocolKind {
        wants_layout: false,
        exclude: |_, _| None,
        cost: |_, _| f64::MAX,
        stays_closed: |_| true,
        consider: |_, _| {},
        open_recv: |_, _, _| Opened::Refused("a protocol without a receiver".to_owned()),
        opens: |_| false,
        open_send: |_, _| Opened::Broken("a protocol without a sender".to_owned()),
    };
}

/// A request, as a protocol sees it from inside: its link, buffer, engines, staging memory. It knows no other request.
pub(crate) struct Cx<'a> {
    pub(crate) link: RndvLink<'a>,
    pub(crate) engines: &'a Engines,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) staging: &'a mut StagingPool,
    pub(crate) rings: &'a mut Rings,
    pub(crate) published: &'a mut Published,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) refusals: &'a mut Refusals,
    pub(crate) region_list: &'a mut RegionList,
    /// The other end, what is kept for it, and what is known of it.
    pub(crate) peer: u32,
    pub(crate) state: &'a mut Peer,
    pub(crate) facts: &'a mut PeerFacts,
    pub(crate) buffer: &'a Buffer,
    /// The offer: the other end's at the receiver, our own at the sender.
    pub(crate) rts: &'a Rts,
    /// The receiver's own part; `None` at the sender.
    pub(crate) at_receiver: Option<AtReceiver<'a>>,
    /// Where the sender's buffer is registered.
    pub(crate) registered: Option<&'a mut Option<(RdmaRail, RemoteKey)>>,
    /// The result of the request, although the rendezvous goes on.
    pub(crate) failure: &'a mut Option<PmlError>,
    /// Whether the message is among those that were counted as without staging memory.
    pub(crate) without_staging: &'a mut bool,
    /// The one-sided read of a receiver.
    pub(crate) read: &'a mut OneSidedRead,
    pub(crate) in_flight: &'a mut InFlights,
    pub(crate) id: RequestId,
    pub(crate) effects: Effects,
}

/// What a receiver knows besides.
pub(crate) struct AtReceiver<'a> {
    /// The rendezvous' name here.
    pub(crate) reply: u64,
    /// Bytes that are received.
    pub(crate) room: u64,
    /// The sender's layout, if it is known and has gaps.
    pub(crate) layout: Option<&'a WireLayout>,
    /// The sender's buffer, if sender and receiver are this process.
    pub(crate) source: Option<&'a Buffer>,
    pub(crate) protocols: &'a mut Protocols,
}

/// What the driver does once the call is over.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Something waits in the peer's outbox.
    pub(crate) wrote: bool,
    /// The peer's queues must be checked.
    pub(crate) active: bool,
    /// The request takes turns to send fragments.
    pub(crate) streams: bool,
    /// The link broke, or (`true`) is up but cannot be used.
    pub(crate) broken: Option<(LinkError, bool)>,
}

impl Cx<'_> {
    /// The rendezvous' name at the receiver, and the bytes that are received.
    pub(crate) fn receipt(&self) -> (u64, u64) {
        self.at_receiver.as_ref().map_or((0, 0), |at| (at.reply, at.room))
    }

    /// Sends a control message as soon as there is room.
    pub(crate) fn control(&mut self, message: &[u8]) {
        if self.state.lost.is_none() {
            self.state.outbox.push_back(Outgoing::control(message));
            self.effects.wrote = true;
        }
    }

    /// Sends a flattened layout, in pieces, to the rendezvous that its peer calls `reply`.
    pub(crate) fn layout(&mut self, reply: u64, piece: usize, flat: Arc<FlatLayout>) {
        self.state.outbox.push_back(Outgoing::Layout { reply, next: 0, piece, flat });
        self.effects.active = true;
    }

    /// Tells the sender that its buffer is no longer needed: all was received by this protocol.
    pub(crate) fn received(&mut self, by: Protocol) {
        let message = wire::fin(self.rts.serial, Verdict::Received(by));
        self.control(&message);
    }

    /// The engine that moves between the buffer and the other end's memory, and the space of its device. For
    /// page-locked memory of the host, and a device's at the other end, it is a device's.
    pub(crate) fn moving_engine(&self) -> (usize, Space) {
        let across = match &self.at_receiver {
            Some(_) => !self.rts.host,
            None => self.rts.staged.locked,
        };
        let reaching = if across { self.buffer.reached_by(self.engines) } else { None };
        match reaching {
            Some((engine, device)) => (engine, device.space()),
            None => (self.buffer.engine(), self.buffer.typed().space()),
        }
    }

    /// Room for a fragment; `None` if there is none now.
    pub(crate) fn reserve(&mut self, len: usize) -> Option<RailSlot> {
        let space = self.buffer.typed().space();
        self.link.reserve(len, space).unwrap_or_else(|broken| {
            self.effects.broken = Some(broken);
            None
        })
    }

    /// Sends `head` and `range` of the buffer straight out of it, if the transport and the buffer are made for that.
    pub(crate) fn send_zero_copy(
        &mut self,
        head: &[u8],
        range: std::ops::Range<u64>,
    ) -> ZeroCopyResult {
        self.link.send_zero_copy(self.buffer, self.region_list, head, range)
    }

    /// Makes the request take turns with others to send fragments.
    pub(crate) fn stream(&mut self) {
        self.effects.streams = true;
        self.effects.active = true;
    }

    /// Makes the driver check again those that take turns.
    pub(crate) fn activate(&mut self) {
        self.effects.active = true;
    }

    /// Makes the driver call [`RndvEnd::landed`] for `part` when `transfer` has ended. Of the parts of a request
    /// only the oldest is checked: asking a device costs a microsecond.
    pub(crate) fn follow(&mut self, part: u64, transfer: Transfer<impl Into<HeldMemory>>) {
        let (id, transfer) = (self.id, transfer.part());
        self.in_flight.push(InFlight::Part { id, part, transfer });
    }

    /// The request will fail with this, unless it fails already.
    pub(crate) fn fail(&mut self, error: impl Into<PmlError>) {
        match self.failure {
            // Truncation is the lesser error.
            Some(PmlError::Truncated { .. }) | None => *self.failure = Some(error.into()),
            Some(_) => {}
        }
    }

    /// Whether the request fails for another reason than truncation: data that still arrives is dropped.
    pub(crate) fn is_failed(&self) -> bool {
        incoming::is_failure(self.failure.as_ref())
    }

    /// At the sender: the offer is taken, and its keys are no longer needed.
    pub(crate) fn take_keys(&mut self) {
        if let Some((rail, key)) = self.registered.as_mut().and_then(|registered| registered.take())
        {
            self.link.deregister(rail, &key);
        }
    }

    /// A protocol cannot carry messages with this peer, as far as is known.
    pub(crate) fn close(&mut self, protocol: Protocol, why: &str) {
        let closed = &mut self.facts.closed;
        if !std::mem::replace(&mut closed[protocol.index()], true) {
            tracing::info!(peer = self.peer, %protocol, why, "messages to this peer use other protocols");
        }
    }

    /// At the receiver: this protocol is not tried again for this message.
    pub(crate) fn rule_out(&mut self, protocol: Protocol) {
        if let Some(at) = &mut self.at_receiver {
            *at.protocols = at.protocols.without(protocol);
        }
    }
}

/// An error for a message that a rendezvous does not expect.
pub(crate) fn unexpected(message: &Message) -> RndvStep {
    RndvStep::Broken(undue(message))
}

/// Likewise, for [`Opened::Broken`].
pub(crate) fn undue(message: &Message) -> String {
    format!("{message:?}, which is not due")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendezvous() -> Rendezvous {
        Rendezvous::new(3, &Bounds::default())
    }

    #[test]
    fn a_receive_waits_for_its_senders_word_until_that_comes_or_the_sender_is_lost() {
        let mut rndv = rendezvous();
        let ids = [0, 1, 2].map(|index| RequestId::new(index, 7));
        assert_eq!(rndv.defer(1, 5, ids[0]), Ok(()));
        assert!(rndv.defer(1, 5, ids[1]).is_err(), "one name for two");
        assert_eq!(rndv.defer(2, 5, ids[2]), Ok(()));
        assert_eq!((rndv.undefer(1, 5), rndv.undefer(1, 5)), (Some(ids[0]), None));
        rndv.lose(2);
        assert_eq!(rndv.undefer(2, 5), None);
    }

    #[test]
    fn a_failed_receive_keeps_its_endpoint_busy_until_its_buffer_is_released() {
        let mut rndv = rendezvous();
        let id = RequestId::new(0, 7);
        assert!(rndv.is_idle());
        rndv.await_release(id);
        rndv.await_release(id);
        assert!(!rndv.is_idle() && rndv.has_unreleased());
        assert_eq!(rndv.take_unreleased(), [id]);
        assert!(rndv.is_idle());
    }
}
