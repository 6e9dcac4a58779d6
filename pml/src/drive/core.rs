//! The state of an endpoint, and the handling of each event. Every protocol adds its part in a file of its own;
//! nothing here waits.

use crate::asks::Asks;
use crate::buffer::{self, CachedBuffers, Engines, Room};
use crate::choose::{Protocol, Recent};
use crate::comm::agree;
use crate::comm::{Comm, Comms, Lookup};
use crate::counters::Counters;
use crate::digests::Digests;
use crate::drive::inflight::InFlight;
use crate::drive::peer::Peer;
use crate::eager::unanswered::Unanswered;
use crate::eager::unmet::Unmet;
use crate::error::PmlError;
use crate::hash::FastMap;
use crate::matching::body::{Arrival, Body, Numbered, Pool};
use crate::matching::claim::Claims;
use crate::matching::reorder::Turn;
use crate::matching::{Posted, Unexpected};
use crate::request::mode::Attached;
use crate::request::recv::Matched;
use crate::request::{RequestId, Requests, Work};
use crate::rndv::direct::Refusals;
use crate::rndv::layouts::Published;
use crate::rndv::rings::Rings;
use crate::rndv::single_copy::Scratch;
use crate::rndv::staging::StagingPool;
use crate::rndv::turns::Turns;
use crate::tuning::Config;
use crate::wire::Label;
use crate::wire::SendMode;
use crate::wire::{self, CONTROL_MAX, EAGER_BYTES, Head, Message, Verdict};
use gapless_bml::{AmTag, Bml, Fragment, Handler, Placing, Rank, RankEvent, Short};
use std::collections::VecDeque;

/// The active-message tag of all messages of this crate. Tags up to 15 are reserved for it.
pub const AM_TAG: AmTag = AmTag(0);

/// Notes of parked messages that are kept; most are out of date after a while.
const PARKED_NOTES_MAX: usize = 1024;

/// Everything but the transports.
pub(crate) struct Core {
    pub(crate) me: u32,
    pub(crate) config: Config,
    pub(crate) engines: Engines,
    /// Which of them serves ordinary memory.
    pub(crate) host: Option<usize>,
    pub(crate) requests: Requests,
    pub(crate) posted: Posted,
    /// How many receives for short messages were posted, ever.
    pub(crate) briefs: u32,
    pub(crate) unexpected: Unexpected<Arrival>,
    /// Where the offers among them were put, by process and serial. One that is claimed is not there any more.
    pub(crate) offers: FastMap<(u32, u64), (u32, Label)>,
    pub(crate) claims: Claims,
    /// Messages that may still be in the transport's memory, oldest first.
    parked: VecDeque<(u32, Label)>,
    pub(crate) peers: Vec<Peer>,
    /// Peers with something to send.
    pub(crate) active: Vec<u32>,
    pub(crate) comms: Comms,
    /// Rendezvous in flight, by their number here.
    pub(crate) serials: FastMap<u64, RequestId>,
    next_serial: u64,
    pub(crate) in_flight: Vec<InFlight>,
    /// Receives whose senders have not yet said that the data is there, by process and serial.
    pub(crate) deferred: FastMap<(u32, u64), RequestId>,
    /// Offers whose data follows if nobody answers.
    pub(crate) unanswered: VecDeque<Unanswered>,
    /// Those whose data an engine packs.
    pub(crate) payloads: u32,
    pub(crate) unmet: Unmet,
    /// Requests whose rendezvous asked to be polled.
    pub(crate) again: Turns,
    pub(crate) published: Published,
    pub(crate) scratch: Scratch,
    /// Where pieces are listed that the transport reads or writes.
    pub(crate) places: Room,
    /// What adapters do not reach by themselves.
    pub(crate) refusals: Refusals,
    pub(crate) rings: Rings,
    /// The staging memory of staged messages.
    pub(crate) staging: StagingPool,
    /// Receives whose lost senders may still write to their buffers.
    pub(crate) leaving_buffers: Vec<RequestId>,
    pub(crate) counters: Counters,
    pub(crate) pool: Pool,
    pub(crate) digests: Digests,
    /// Protocols that were chosen by this configuration.
    pub(crate) recent: Recent,
    /// Buffers that the caches of this process are likely to have.
    pub(crate) cached: CachedBuffers,
    /// How many peers are lost.
    pub(crate) lost: u32,
    /// Whom the last error named that this process got because of a loss.
    pub(crate) accused: Option<u32>,
    /// Whether a message of an agreement has come that no receive was posted for.
    pub(crate) called: bool,
    /// Communicators that are being made here and are revoked already: by their identifiers, and who says so.
    pub(crate) early_revokes: Vec<(u32, u32)>,
    /// Messages without a receive are refused: this process leaves.
    pub(crate) leaving: bool,
    /// This process departs: sends that it withdraws were not received.
    pub(crate) departing: bool,
    /// Room for buffered sends.
    pub(crate) attached: Option<Attached>,
    /// What is known of who waits for whom.
    pub(crate) asks: Asks,
}

impl Core {
    pub(crate) fn new(me: u32, size: u32, engines: Engines, config: Config) -> Core {
        let comms = Comms::predefined([Comm::world(me, size), Comm::myself(me)]);
        Core {
            me,
            host: buffer::host_engine(&engines),
            engines,
            requests: Requests::default(),
            posted: Posted::default(),
            briefs: 0,
            unexpected: Unexpected::default(),
            offers: FastMap::default(),
            claims: Claims::default(),
            parked: VecDeque::new(),
            peers: (0..size).map(|_| Peer::default()).collect(),
            active: Vec::new(),
            comms,
            serials: FastMap::default(),
            next_serial: 1,
            in_flight: Vec::new(),
            deferred: FastMap::default(),
            unanswered: VecDeque::new(),
            payloads: 0,
            unmet: Unmet::new(),
            again: Turns::default(),
            published: Published::new(&config.bounds),
            scratch: Scratch::default(),
            refusals: Refusals::default(),
            places: Room::default(),
            rings: Rings::default(),
            staging: StagingPool::default(),
            leaving_buffers: Vec::new(),
            counters: Counters::default(),
            pool: Pool::default(),
            digests: Digests::default(),
            recent: Recent::default(),
            cached: CachedBuffers::default(),
            lost: 0,
            accused: None,
            called: false,
            early_revokes: Vec::new(),
            leaving: false,
            departing: false,
            attached: None,
            asks: Asks::default(),
            config,
        }
    }

    /// The world and myself.
    pub(crate) fn predefined(&self) -> (Comm, Comm) {
        let of = |context| self.comms.of_context(context).expect("made by `new`").clone();
        (of(0), of(2))
    }

    /// The work after the transports' events: ended work of engines, retries, waiting messages.
    pub(crate) fn pump(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        if !self.in_flight.is_empty() {
            done += self.poll_in_flight(bml);
        }
        if !self.unanswered.is_empty() {
            done += self.poll_unanswered(bml);
        }
        if !self.again.is_empty() {
            done += self.poll_again(bml);
        }
        if !self.leaving_buffers.is_empty() {
            done += self.poll_leaving(bml);
        }
        if !self.active.is_empty() {
            done += self.flush_all(bml);
            done += self.end_unmet();
        }
        done
    }

    /// Whether something waits that no event will announce.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !(self.in_flight.is_empty()
            && self.again.is_empty()
            && self.unanswered.is_empty()
            && self.active.is_empty()
            && self.leaving_buffers.is_empty())
    }

    /// Frees a communicator if no request and no claimed message uses it; whether it did.
    pub(crate) fn forget(&mut self, bml: &mut Bml, comm: &Comm) -> bool {
        let parts = if comm.is_inter() { vec![comm, comm.side()] } else { vec![comm] };
        let ids: Vec<u32> = parts.iter().map(|part| part.id()).collect();
        let concerns = |work: &Work| match work {
            Work::Send(send) => ids.contains(&send.to.comm),
            Work::Recv(recv) => ids.contains(&(recv.context / 2)),
            _ => false,
        };
        if self.claims.are_of(&ids) || self.requests.under_way().any(|(_, work)| concerns(work)) {
            return false;
        }
        ids.into_iter().for_each(|id| self.disown(bml, id));
        true
    }

    /// Gives an identifier back; messages that wait for receives there are dropped.
    pub(crate) fn disown(&mut self, bml: &mut Bml, id: u32) {
        self.comms.remove(id);
        self.early_revokes.retain(|(early, _)| *early != id);
        self.refuse_held(bml, Verdict::Unreceived, |label, _| label.context / 2 == id);
    }

    /// Makes a communicator known. Its messages may have come before; only its members' are kept.
    pub(crate) fn adopt(&mut self, bml: &mut Bml, comm: &Comm) {
        self.comms.insert(comm);
        let strangers = self.unexpected.remove_if(|label, _| {
            label.context / 2 == comm.id() && comm.rank_of(label.source).is_none()
        });
        for (label, arrival) in strangers {
            self.unkeep(label, arrival);
            let what = format!("a message in context {}, whose group it is not in", label.context);
            self.give_up(bml, label.source, what);
        }
        self.look_for_early_revokes(bml, comm.id());
    }

    /// A name for a rendezvous here; never the same twice.
    pub(crate) fn new_serial(&mut self, id: RequestId) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.serials.insert(serial, id);
        serial
    }

    fn arrived(&mut self, bml: &mut Bml, from: u32, fragment: Fragment) {
        if self.peers[from as usize].lost.is_some() {
            return;
        }
        if let Err(what) = self.dispatch(bml, from, fragment) {
            tracing::warn!(peer = from, what, "a peer broke the protocol");
            self.give_up(bml, from, what);
        }
    }

    /// Reads the header and hands the message on. An error is the sender's fault.
    fn dispatch(&mut self, bml: &mut Bml, from: u32, fragment: Fragment) -> Result<(), String> {
        let len = fragment.len();
        if self.take_fragment(from, &fragment) {
            return Ok(());
        }
        let mut first = [0; EAGER_BYTES];
        read(&fragment, &mut first[..len.min(EAGER_BYTES)])?;
        match Head::parse(&first, len)? {
            Head::Eager(envelope) => {
                self.check_member(from, envelope.context)?;
                let body = Body::Parked(fragment);
                let reorder = &mut self.peers[from as usize].reorder;
                if !reorder.is_next(envelope.sequence) {
                    let message = Arrival::Eager(envelope, body);
                    return self.in_order(bml, from, Numbered::Message(message));
                }
                // The fast path: it is the next message, and its receive is waiting.
                let label = envelope.label(from);
                let id = self.posted.take(label).and_then(|index| self.requests.id_at(index));
                match id {
                    Some(id) => {
                        if envelope.mode == SendMode::Synchronous {
                            self.answer(bml, from, &body)?;
                        }
                        self.receive_eager(id, from, &envelope, body, false);
                    }
                    None => self.keep(bml, label, Arrival::Eager(envelope, body))?,
                }
                self.release_held(bml, from)
            }
            Head::Data { reply, offset } => {
                let message = Message::Data { reply, offset };
                self.heard(bml, from, message, &first, fragment)
            }
            Head::Other => self.control(bml, from, fragment),
        }
    }

    fn control(&mut self, bml: &mut Bml, from: u32, fragment: Fragment) -> Result<(), String> {
        let mut bytes = [0; CONTROL_MAX];
        let message = &mut bytes[..fragment.len().min(CONTROL_MAX)];
        read(&fragment, message)?;
        let parsed = Message::parse(message)?;
        let with_data = matches!(parsed, Message::LayoutData { .. } | Message::Payload { .. });
        if fragment.len() > CONTROL_MAX && !with_data {
            return Err(format!("a control message of {} bytes", fragment.len()));
        }
        match parsed {
            Message::Rts(rts) => {
                self.check_member(from, rts.envelope.context)?;
                let known = self.peers[from as usize].layouts.knows(rts.layout_id);
                let inline = if known { Vec::new() } else { message[rts.inline.clone()].to_vec() };
                self.in_order(bml, from, Numbered::Message(Arrival::Rts(rts, inline)))
            }
            Message::Note(note) => self.in_order(bml, from, Numbered::Note(note)),
            Message::Payload { serial } => self.payload(bml, from, serial, fragment),
            Message::Asking { is_question, doing } => self.asked(bml, from, is_question, doing),
            of_rendezvous => self.heard(bml, from, of_rendezvous, message, fragment),
        }
    }

    /// Refuses messages whose sender is not in the communicator's group.
    fn check_member(&self, from: u32, context: u32) -> Result<(), String> {
        match self.comms.of_context(context) {
            Some(comm) if comm.rank_of(from).is_none() => {
                Err(format!("a message in context {context}, whose group it is not in"))
            }
            _ => Ok(()),
        }
    }

    /// Lets matched messages pass in the order of sending.
    fn in_order(&mut self, bml: &mut Bml, from: u32, mut arrival: Numbered) -> Result<(), String> {
        let sequence = arrival.sequence();
        let reorder = &mut self.peers[from as usize].reorder;
        match reorder.turn(sequence).map_err(|error| error.to_string())? {
            Turn::Early => {
                // In the transport's memory it might prevent the due message from arriving.
                arrival.copy_out(&mut self.pool).map_err(|error| error.to_string())?;
                reorder.hold(sequence, arrival);
                Ok(())
            }
            Turn::Now => {
                self.deliver(bml, from, arrival)?;
                self.release_held(bml, from)
            }
        }
    }

    /// Delivers early messages that are due now.
    fn release_held(&mut self, bml: &mut Bml, from: u32) -> Result<(), String> {
        while let Some(next) = self.peers[from as usize].reorder.next_held() {
            self.deliver(bml, from, next)?;
        }
        Ok(())
    }

    /// Finds the receive of a message, or keeps the message for it; carries out a note.
    fn deliver(&mut self, bml: &mut Bml, from: u32, next: Numbered) -> Result<(), String> {
        let arrival = match next {
            Numbered::Message(arrival) => arrival,
            Numbered::Note(note) => return self.noted(bml, from, note.what),
        };
        let label = arrival.envelope().label(from);
        if let Some(index) = self.posted.take(label) {
            let id = self.requests.id_at(index).ok_or("a posted receive is a request")?;
            return self.receive(bml, id, from, arrival);
        }
        if let Arrival::Rts(rts, _) = &arrival
            && rts.envelope.mode == SendMode::Ready
        {
            self.send_control(bml, from, &wire::fin(rts.serial, Verdict::NotReady));
        }
        self.keep(bml, label, arrival)
    }

    /// Gives a message to the receive that was waiting for it.
    fn receive(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        from: u32,
        arrival: Arrival,
    ) -> Result<(), String> {
        match arrival {
            Arrival::Eager(envelope, body) => {
                if envelope.mode == SendMode::Synchronous {
                    self.answer(bml, from, &body)?;
                }
                self.receive_eager(id, from, &envelope, body, false);
                Ok(())
            }
            Arrival::Rts(rts, layout) => self.receive_offer(bml, id, from, *rts, &layout),
        }
    }

    /// Gives a message that was waiting to a receive; an error is the sender's, which is lost.
    pub(crate) fn receive_held(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        label: Label,
        arrival: Arrival,
    ) {
        let from = label.source;
        let received = match arrival {
            Arrival::Eager(envelope, body) if envelope.mode == SendMode::Ready => {
                self.receive_eager(id, from, &envelope, body, true);
                Ok(())
            }
            Arrival::Rts(rts, _) if rts.envelope.mode == SendMode::Ready => {
                // Its sender was told already, and has released it.
                let (tag, sent) = (label.tag, rts.envelope.digest.bytes);
                let rank = self.rank_in(label.context, from);
                let failure = Some(PmlError::NotReady { rank, tag });
                let protocol = Protocol::Pipeline;
                self.finish_recv(id, Matched { from, tag, sent, protocol, failure });
                Ok(())
            }
            arrival => self.receive(bml, id, from, arrival),
        };
        if let Err(what) = received {
            self.give_up(bml, from, what);
        }
    }

    /// Tells the sender of a synchronous message that a receive has taken it.
    fn answer(&mut self, bml: &mut Bml, from: u32, body: &Body) -> Result<(), String> {
        let received = Verdict::Received(Protocol::Eager);
        let message = wire::fin(body.serial()?, received);
        self.send_control(bml, from, &message);
        Ok(())
    }

    /// Keeps a message until a receive takes it.
    fn keep(&mut self, bml: &mut Bml, label: Label, mut arrival: Arrival) -> Result<(), String> {
        let known = self.comms.of_context(label.context);
        if known.is_some_and(Comm::is_revoked) && !agree::is_survey(label) {
            self.refuse_message(bml, label.source, arrival, Verdict::Revoked);
            return Ok(());
        }
        if known.is_none() {
            match self.comms.lookup(label.context) {
                Lookup::Here => {}
                Lookup::Gone => {
                    self.refuse_message(bml, label.source, arrival, Verdict::Unreceived);
                    return Ok(());
                }
                Lookup::Never => {
                    return Err(format!("a message in context {}, which never was", label.context));
                }
            }
        }
        if self.leaving {
            self.refuse_message(bml, label.source, arrival, Verdict::Unreceived);
            return Ok(());
        }
        let peer = &mut self.peers[label.source as usize];
        let mut parked = matches!(arrival, Arrival::Eager(_, Body::Parked(_)));
        if parked && peer.parked >= self.config.bounds.parked_messages {
            arrival.copy_out(&mut self.pool).map_err(|error| error.to_string())?;
            parked = false;
        }
        peer.parked += u32::from(parked);
        self.called |= agree::is_agreement(label);
        let offer = arrival.offer();
        let number = self.unexpected.hold(label, arrival);
        if let Some(serial) = offer
            && self.offers.insert((label.source, serial), (number, label)).is_some()
        {
            return Err(format!("rendezvous {serial} is offered twice"));
        }
        if parked {
            self.parked.push_back((number, label));
            if self.parked.len() > PARKED_NOTES_MAX {
                self.spill();
            }
        }
        Ok(())
    }

    /// Removes the records of a message that was taken from the unexpected ones.
    pub(crate) fn unkeep(&mut self, label: Label, held: Arrival) -> Arrival {
        if matches!(held, Arrival::Eager(_, Body::Parked(_))) {
            self.peers[label.source as usize].parked -= 1;
        }
        if let Some(serial) = held.offer() {
            self.offers.remove(&(label.source, serial));
        }
        held
    }

    /// An offer that waits for a receive, claimed or not, by what its sender calls it; with the memory for copies.
    pub(crate) fn held_offer(
        &mut self,
        from: u32,
        serial: u64,
    ) -> Option<(&mut Arrival, &mut Pool)> {
        let &(number, label) = self.offers.get(&(from, serial))?;
        let is_it = |held: &&mut Arrival| held.offer() == Some(serial);
        let held = self.unexpected.get_mut(number, label).filter(is_it);
        let held = held.or_else(|| self.claims.find_mut(from, serial))?;
        Some((held, &mut self.pool))
    }

    /// Copies unexpected messages out of the transport's memory and returns it. Called when nothing else happens,
    /// because the messages that their receives wait for may need that memory to arrive.
    pub(crate) fn spill(&mut self) {
        if self.claims.has_parked() {
            self.spill_claims();
        }
        while let Some((number, label)) = self.parked.pop_front() {
            // The number may name another message by now. Then there is nothing to do, or that message is copied a
            // little early.
            let Some(held) = self.unexpected.get_mut(number, label) else { continue };
            if matches!(held, Arrival::Eager(_, Body::Parked(_))) {
                match held.copy_out(&mut self.pool) {
                    Ok(()) => self.peers[label.source as usize].parked -= 1,
                    Err(error) => tracing::error!(%error, "a message cannot be copied out"),
                }
            }
        }
    }

    #[inline]
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty() || self.claims.has_parked()
    }
}

/// Copies the start of a fragment out.
fn read(fragment: &Fragment, into: &mut [u8]) -> Result<(), String> {
    fragment.read(0, into).map_err(|error| error.to_string())
}

impl Handler for Core {
    fn handle(&mut self, bml: &mut Bml, event: RankEvent) {
        match event {
            RankEvent::Arrived { from: Rank(from), tag: AM_TAG, fragment } => {
                self.arrived(bml, from, fragment);
            }
            RankEvent::Arrived { from: Rank(from), tag, .. } => {
                let what =
                    format!("a message with active-message tag {}, which has no handler", tag.0);
                self.give_up(bml, from, what);
            }
            RankEvent::Completed { token, result } => self.got(bml, token.0, result),
            // Nothing is sent with a token.
            RankEvent::Sent { .. } => {}
            RankEvent::Lost { peer: Rank(peer), error } => self.lose(bml, peer, error),
        }
    }

    #[inline]
    fn short(&mut self, from: Rank, tag: AmTag, message: Short<'_>) -> bool {
        tag == AM_TAG && self.take_short(from.0, message.words(), message.len())
    }

    #[inline]
    fn fragment(&mut self, from: Rank, tag: AmTag, fragment: &Fragment) -> bool {
        tag == AM_TAG && self.take_fragment(from.0, fragment)
    }

    fn place(&mut self, from: Rank, tag: AmTag, head: &[u8], len: usize) -> Placing<'_> {
        match tag {
            AM_TAG => self.place_of(from.0, head, len),
            _ => Placing::Nowhere,
        }
    }

    fn placed(&mut self, from: Rank, _: AmTag, head: &[u8], len: usize) {
        self.is_placed(from.0, head, len);
    }
}
