//! The state of an endpoint, and the handling of each event. Every protocol adds its part in a file of its own;
//! nothing here waits.

use crate::arrival::{Arrival, Body, Matched, Numbered};
use crate::asks::Asks;
use crate::buffer::{self, Engines, RegionList};
use crate::choose::Recent;
use crate::comm::{Comm, Comms, Lookup};
use crate::counters::Counters;
use crate::digests::Digests;
use crate::drive::buffered::Attached;
use crate::drive::operation::Operation;
use crate::error::PmlError;
use crate::links::reorder::ArrivalOrder;
use crate::links::{AM_TAG, Links};
use crate::matching::Matching;
use crate::protocol::Protocol;
use crate::requests::Requests;
use crate::rndv::Rendezvous;
use crate::status::RequestId;
use crate::tuning::Config;
use crate::wire::{
    self, CONTROL_MAX, EAGER_BYTES, EAGER_WORDS, Head, Label, Message, SendMode, Verdict,
};
use gapless_bml::{AmTag, Bml, Fragment, Handler, Rank, RankEvent, Short, TargetAnswer};
use zerocopy::IntoBytes;

/// Everything but the transports: the four states of an endpoint, none of which knows another, and what the driver
/// needs besides.
pub(crate) struct Core {
    pub(crate) me: u32,
    pub(crate) config: Config,
    pub(crate) engines: Engines,
    /// Which of `engines` serves ordinary memory.
    pub(crate) host: Option<usize>,
    pub(crate) matching: Matching,
    pub(crate) links: Links,
    pub(crate) rndv: Rendezvous,
    pub(crate) requests: Requests<Operation>,
    pub(crate) comms: Comms,
    pub(crate) counters: Counters,
    pub(crate) digests: Digests,
    /// Protocols that were chosen by this configuration.
    pub(crate) recent: Recent,
    /// Where pieces are listed that the transport reads or writes.
    pub(crate) region_list: RegionList,
    /// Whether a message of an agreement has come that no receive was posted for.
    pub(crate) called: bool,
    /// Messages without a receive are refused: this process leaves.
    pub(crate) leaving: bool,
    /// This process departs: sends that it cancels were not received.
    pub(crate) departing: bool,
    /// Room for buffered sends.
    pub(crate) attached: Option<Attached>,
    /// What is known of who waits for whom.
    pub(crate) asks: Asks,
}

impl Core {
    pub(crate) fn new(me: u32, size: u32, engines: Engines, config: Config) -> Core {
        Core {
            me,
            host: buffer::host_engine(&engines),
            engines,
            matching: Matching::new(size),
            links: Links::new(size),
            rndv: Rendezvous::new(size, &config.bounds),
            requests: Requests::default(),
            comms: Comms::predefined([Comm::world(me, size), Comm::myself(me)]),
            counters: Counters::default(),
            digests: Digests::default(),
            recent: Recent::default(),
            region_list: RegionList::default(),
            called: false,
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
        if !self.rndv.in_flight.is_empty() {
            done += self.poll_in_flight(bml);
        }
        if !self.rndv.unanswered.is_empty() {
            done += self.poll_unanswered(bml);
        }
        if !self.rndv.again.is_empty() {
            done += self.poll_again(bml);
        }
        if self.rndv.has_unreleased() {
            done += self.poll_leaving(bml);
        }
        if !self.links.is_idle() {
            done += self.flush_all(bml);
            done += self.end_unmet();
        }
        done
    }

    /// Whether something waits that no event will announce.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !(self.rndv.is_idle() && self.links.is_idle())
    }

    /// Frees a communicator if no request and no claimed message uses it; whether it did.
    pub(crate) fn forget(&mut self, bml: &mut Bml, comm: &Comm) -> bool {
        let parts = if comm.is_inter() { vec![comm, comm.side()] } else { vec![comm] };
        let ids: Vec<u32> = parts.iter().map(|part| part.id()).collect();
        let concerns = |work: &Operation| match work {
            Operation::Send(send) => ids.contains(&send.to.comm),
            Operation::Recv(recv) => ids.contains(&(recv.context / 2)),
            _ => false,
        };
        if self.matching.has_claims_of(&ids)
            || self.requests.under_way().any(|(_, work)| concerns(work))
        {
            return false;
        }
        ids.into_iter().for_each(|id| self.disown(bml, id));
        true
    }

    /// Gives an identifier back; messages that wait for receives there are dropped.
    pub(crate) fn disown(&mut self, bml: &mut Bml, id: u32) {
        self.comms.remove(id);
        self.refuse_held(bml, Verdict::Unreceived, |label, _| label.context / 2 == id);
    }

    /// Makes a communicator known. Its messages may have come before; only its members' are kept.
    pub(crate) fn adopt(&mut self, bml: &mut Bml, comm: &Comm) {
        self.comms.insert(comm);
        let non_members = self.matching.remove_if(|label, _| {
            label.context / 2 == comm.id() && comm.rank_of(label.source).is_none()
        });
        for (label, _) in non_members {
            let what = format!("a message in context {}, whose group it is not in", label.context);
            self.give_up(bml, label.source, what);
        }
        self.look_for_early_revokes(bml, comm.id());
    }

    fn arrived(&mut self, bml: &mut Bml, from: u32, fragment: Fragment) {
        if self.links[from].lost.is_some() {
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
        // Its sender may still write there: the header is read once.
        let mut header = [0; EAGER_WORDS];
        read(&fragment, 0, &mut header.as_mut_bytes()[..len.min(EAGER_BYTES)])?;
        if self.take_with_header(from, &header, &fragment) {
            return Ok(());
        }
        let first: [u8; EAGER_BYTES] = zerocopy::transmute!(header);
        match Head::parse(&first, len)? {
            Head::Eager(envelope) => {
                self.check_member(from, envelope.context)?;
                let body = Body::Parked(fragment);
                let reorder = &mut self.links[from].reorder;
                if !reorder.is_next(envelope.sequence) {
                    let message = Arrival::Eager(envelope, body);
                    return self.in_order(bml, from, Numbered::Message(message));
                }
                // The fast path: it is the next message, and its receive is waiting.
                let label = envelope.label(from);
                let id =
                    self.matching.posted.take(label).and_then(|index| self.requests.id_at(index));
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
            Head::Other => self.control(bml, from, &first, fragment),
        }
    }

    fn control(
        &mut self,
        bml: &mut Bml,
        from: u32,
        first: &[u8; EAGER_BYTES],
        fragment: Fragment,
    ) -> Result<(), String> {
        let mut bytes = [0; CONTROL_MAX];
        bytes[..EAGER_BYTES].copy_from_slice(first);
        let message = &mut bytes[..fragment.len().min(CONTROL_MAX)];
        if let Some(rest) = message.get_mut(EAGER_BYTES..) {
            read(&fragment, EAGER_BYTES, rest)?;
        }
        let parsed = Message::parse(message)?;
        let with_data = matches!(parsed, Message::LayoutData { .. } | Message::Payload { .. });
        if fragment.len() > CONTROL_MAX && !with_data {
            return Err(format!("a control message of {} bytes", fragment.len()));
        }
        match parsed {
            Message::Rts(rts) => {
                self.check_member(from, rts.envelope.context)?;
                let known = self.rndv.facts(from).layouts.knows(rts.layout_id);
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
        let reorder = &mut self.links[from].reorder;
        match reorder.order_of(sequence).map_err(|error| error.to_string())? {
            ArrivalOrder::Early => {
                // In the transport's memory it might prevent the due message from arriving.
                arrival.copy_out(&mut self.matching.pool).map_err(|error| error.to_string())?;
                reorder.hold(sequence, arrival);
                Ok(())
            }
            ArrivalOrder::Now => {
                self.deliver(bml, from, arrival)?;
                self.release_held(bml, from)
            }
        }
    }

    /// Delivers early messages that are due now.
    fn release_held(&mut self, bml: &mut Bml, from: u32) -> Result<(), String> {
        while let Some(next) = self.links[from].reorder.next_held() {
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
        if let Some(index) = self.matching.posted.take(label) {
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
                let rank = self.comms.rank_in(label.context, from);
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
    fn keep(&mut self, bml: &mut Bml, label: Label, arrival: Arrival) -> Result<(), String> {
        let known = self.comms.of_context(label.context);
        if known.is_some_and(Comm::is_revoked) && !label.is_survey() {
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
        self.called |= label.is_agreement();
        self.matching.keep(label, arrival, self.config.bounds.parked_messages)
    }
}

/// Copies bytes of a fragment out.
fn read(fragment: &Fragment, from: usize, into: &mut [u8]) -> Result<(), String> {
    fragment.read(from, into).map_err(|error| error.to_string())
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
            RankEvent::Completed { token, result } => self.read_completed(bml, token.0, result),
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

    fn receive_target(
        &mut self,
        from: Rank,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        match tag {
            AM_TAG => self.target_of(from.0, head, len),
            _ => TargetAnswer::Nowhere,
        }
    }

    fn target_filled(&mut self, from: Rank, _: AmTag, head: &[u8], len: usize) {
        self.message_in_target(from.0, head, len);
    }
}
