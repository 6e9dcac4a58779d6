//! The driver: the only code that calls a protocol. It takes a rendezvous out of its request, calls it, puts it back,
//! and carries out its step.

use crate::buffer::{Buffer, HeldMemory, OneSidedRead};
use crate::cost::Situation;
use crate::drive::core::Core;
use crate::drive::operation::{Operation, Recv, RecvStage, Send, SendStage};
use crate::error::{Failure, PmlError};
use crate::protocol::Protocol;
use crate::rndv::incoming::{Incoming, IncomingStage};
use crate::rndv::link::RndvLink;
use crate::rndv::offered::Offered;
use crate::rndv::turns::POLLED_MAX;
use crate::rndv::{AtReceiver, Cx, Effects, Heard, RndvEnd, RndvStep};
use crate::rndv::{Rendezvous, SendTurn};
use crate::status::RequestId;
use crate::wire::Message;
use gapless_bml::{Bml, Fragment, LinkError, Rank};
use gapless_engine::EngineError;
use gapless_mem::DeviceError;

impl Core {
    /// A message of a rendezvous: given to the end that is here. An error is its sender's fault.
    pub(crate) fn heard(
        &mut self,
        bml: &mut Bml,
        from: u32,
        message: Message,
        bytes: &[u8],
        fragment: Fragment,
    ) -> Result<(), String> {
        let unknown = || format!("{message:?} for a rendezvous that is not in flight");
        let name = message.name().ok_or_else(unknown)?;
        let id = self.requests.named(name).ok_or_else(unknown)?;
        if let Message::Fin { verdict, .. } = message
            && self.answered_eager(from, id, verdict)?
        {
            return Ok(());
        }
        let is_send = match self.requests.operation(id) {
            Some(Operation::Send(send)) if send.to.peer == from => true,
            Some(Operation::Recv(recv)) if recv.receiving_from() == Some(from) => false,
            _ => return Err(unknown()),
        };
        let heard = Heard { message, bytes, fragment };
        match is_send {
            true => self.heard_by_sender(bml, id, heard),
            false => self.heard_by_receiver(bml, id, heard),
        }
    }

    fn heard_by_receiver(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        heard: Heard<'_>,
    ) -> Result<(), String> {
        let what = || format!("{:?}, which is not due", heard.message);
        let (incoming, _) = self.requests.incoming(id).ok_or_else(what)?;
        match (&mut incoming.stage, &heard.message) {
            (IncomingStage::Going(_), _) => self.call(bml, id, |going, cx| going.heard(cx, heard)),
            (IncomingStage::Fetching(_), Message::LayoutData { offset, length, .. }) => {
                self.layout_fetched(bml, id, (*offset, *length), &heard.fragment)
            }
            _ => Err(what()),
        }
    }

    /// A one-sided read of the transport has ended.
    pub(crate) fn read_completed(
        &mut self,
        bml: &mut Bml,
        reply: u64,
        result: Result<(), LinkError>,
    ) {
        let Some(id) = self.requests.named(reply) else { return };
        let Some((incoming, _)) = self.requests.incoming(id) else { return };
        incoming.read.end();
        let failed = |error: LinkError| DeviceError::Failed {
            device: "the transport".to_owned(),
            operation: "get",
            reason: error.to_string(),
        };
        let result = result.map(|()| HeldMemory::Nothing);
        let result = result.map_err(|error| EngineError::from(failed(error)));
        self.landed(bml, id, 0, result);
    }

    /// A part of a rendezvous has landed.
    pub(crate) fn landed(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        part: u64,
        result: Result<HeldMemory, EngineError>,
    ) {
        let landed = self.call(bml, id, |going, cx| going.landed(cx, part, result));
        self.blame(bml, id, landed);
    }

    /// Polls rendezvous that asked to be polled; returns how many of them no longer ask.
    pub(crate) fn poll_again(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        for _ in 0..self.rndv.again.len().min(POLLED_MAX) {
            let Some(id) = self.rndv.again.pop() else { break };
            if !self.is_lost(id) {
                let polled = self.call(bml, id, |going, cx| going.again(cx));
                self.blame(bml, id, polled);
            }
            done += usize::from(!self.rndv.again.contains(id));
        }
        done
    }

    /// Has a send take its turn to send a fragment.
    pub(crate) fn take_turn(&mut self, bml: &mut Bml, id: RequestId) -> SendTurn {
        let Some((Some(turn), called)) =
            self.enter(bml, id, |going, cx| going.as_mut().map(|going| going.turn(cx)))
        else {
            return SendTurn::Over;
        };
        if let SendTurn::Done(by) = turn {
            self.end_going(bml, id, by);
        }
        self.carry_out(bml, called);
        turn
    }

    /// Lets every protocol add to a situation what it depends on.
    pub(super) fn consider(&mut self, bml: &mut Bml, id: RequestId, s: &mut Situation) {
        let _ = self.enter(bml, id, |_, cx| {
            for protocol in Protocol::ALL {
                (protocol.kind().consider)(cx, s);
            }
        });
    }

    /// Starts a protocol at the receiver.
    pub(super) fn open_recv(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        protocol: Protocol,
        situation: &Situation,
    ) -> RndvStep {
        let opened = self.enter(bml, id, |going, cx| {
            let (value, step) = (protocol.kind().open_recv)(cx, protocol, situation).into_parts();
            *going = value;
            step
        });
        let Some((step, called)) = opened else { return RndvStep::Going };
        match &step {
            RndvStep::Again => self.rndv.again.push(id),
            // First: what it has sent may find the link gone, and this receive is complete.
            RndvStep::Done(by) => self.end_incoming(id, *by),
            RndvStep::Going | RndvStep::Refused(_) | RndvStep::Broken(_) => {}
        }
        self.carry_out(bml, called);
        step
    }

    /// Starts a protocol at the sender.
    pub(super) fn open_send(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        protocol: Protocol,
        heard: &Heard<'_>,
    ) -> Result<(), String> {
        let opened = self.enter(bml, id, |going, cx| {
            let (value, step) = (protocol.kind().open_send)(cx, heard).into_parts();
            *going = value;
            step
        });
        let Some((step, called)) = opened else { return Ok(()) };
        let mut broken = None;
        match step {
            RndvStep::Again => self.rndv.again.push(id),
            RndvStep::Done(by) => self.end_going(bml, id, by),
            RndvStep::Broken(what) => broken = Some(what),
            // The receiver was told, and the offer stays valid.
            RndvStep::Going | RndvStep::Refused(_) => {}
        }
        self.carry_out(bml, called);
        broken.map_or(Ok(()), Err)
    }

    /// Stops a tentative rendezvous of a sender, if there is one.
    pub(super) fn stop(&mut self, bml: &mut Bml, id: RequestId) {
        let stopped = self.enter(bml, id, |going, cx| {
            if let Some(mut tentative) = going.take() {
                tentative.stop(cx);
            }
        });
        if let Some(((), called)) = stopped {
            self.carry_out(bml, called);
        }
    }

    /// Calls a rendezvous, and carries out its step. An error is the peer's fault.
    pub(super) fn call(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        act: impl FnOnce(&mut dyn RndvEnd, &mut Cx<'_>) -> RndvStep,
    ) -> Result<(), String> {
        let Some((Some(step), called)) =
            self.enter(bml, id, |going, cx| going.as_mut().map(|going| act(&mut **going, cx)))
        else {
            return Ok(());
        };
        let done = if called.lost {
            // Its step is ignored: it ends when nobody works on it any more.
            self.settle(bml, id);
            Ok(())
        } else {
            self.follow_step(bml, id, step)
        };
        self.carry_out(bml, called);
        done
    }

    fn follow_step(&mut self, bml: &mut Bml, id: RequestId, step: RndvStep) -> Result<(), String> {
        match step {
            RndvStep::Going => {}
            RndvStep::Again => self.rndv.again.push(id),
            RndvStep::Done(by) => self.end_going(bml, id, by),
            RndvStep::Broken(what) => return Err(what),
            RndvStep::Refused(why) => {
                let Some((incoming, _)) = self.requests.incoming(id) else {
                    self.forget_going(id);
                    return Ok(());
                };
                let (protocol, from) = (incoming.protocol, incoming.from);
                self.rule_out(id, protocol, &why);
                match self.links.fault(from) {
                    // It could have done without its sender, and now it cannot.
                    Some(fault) => self.fail_incoming(id, fault),
                    None => return self.proceed(bml, id),
                }
            }
        }
        Ok(())
    }

    /// A rendezvous at the sender has failed: the offer stays valid.
    fn forget_going(&mut self, id: RequestId) {
        if let Some(offered) = self.requests.offered(id) {
            offered.going = None;
        }
    }

    /// A rendezvous is done at this end.
    fn end_going(&mut self, bml: &mut Bml, id: RequestId, by: Protocol) {
        let Some(send) = self.requests.send_mut(id) else { return self.end_incoming(id, by) };
        let status = send.status(by);
        let SendStage::Rendezvous(offered) = &mut send.stage else { return };
        let failed = offered.failed.take().map(Failure::of_offer);
        let result = failed.map_or(Ok(status), Err);
        self.end_offer(bml, id, result);
    }

    fn fail_incoming(&mut self, id: RequestId, error: PmlError) {
        if let Some((incoming, _)) = self.requests.incoming(id) {
            incoming.failure = Some(error);
            self.finish_incoming(id);
        }
    }

    /// Whether a rendezvous has failed because its peer was lost: it only waits for work on its buffer.
    fn is_lost(&self, id: RequestId) -> bool {
        match self.requests.operation(id) {
            Some(Operation::Send(send)) => self.links[send.to.peer].lost.is_some(),
            Some(Operation::Recv(Recv { stage: RecvStage::Incoming(incoming), .. })) => {
                matches!(incoming.failure, Some(PmlError::PeerLost { .. }))
            }
            _ => false,
        }
    }

    /// A fault of a peer's that is found outside of the handling of its messages.
    fn blame(&mut self, bml: &mut Bml, id: RequestId, done: Result<(), String>) {
        let Err(what) = done else { return };
        let peer = match self.requests.operation(id) {
            Some(Operation::Send(send)) => Some(send.to.peer),
            Some(Operation::Recv(recv)) => recv.receiving_from(),
            _ => None,
        };
        if let Some(peer) = peer {
            self.give_up(bml, peer, what);
        }
    }

    /// The peer of a request that is in a rendezvous is lost.
    pub(crate) fn lose_rendezvous(&mut self, bml: &mut Bml, id: RequestId, fault: &PmlError) {
        let lost = self.enter(bml, id, |going, cx| match going {
            Some(going) => going.lost(cx),
            None => RndvStep::Refused("undecided".to_owned()),
        });
        if let Some((RndvStep::Going, _)) = lost {
            return;
        }
        match self.requests.operation_mut(id) {
            Some(Operation::Send(send)) => {
                let SendStage::Rendezvous(offered) = &mut send.stage else { return };
                offered.failed.get_or_insert_with(|| fault.clone());
            }
            Some(Operation::Recv(recv)) => {
                let RecvStage::Incoming(incoming) = &mut recv.stage else { return };
                incoming.failure = Some(fault.clone());
            }
            _ => return,
        }
        self.settle(bml, id);
    }

    /// Ends a request that has failed because its peer was lost, once nobody works on its buffer any more.
    fn settle(&mut self, bml: &mut Bml, id: RequestId) {
        if self.rndv.in_flight.has_part_of(id) {
            return;
        }
        if self.requests.send_mut(id).is_some() {
            return self.end_going(bml, id, Protocol::Pipeline);
        }
        let Some((incoming, _)) = self.requests.incoming(id) else { return };
        if incoming.read.is_under_way() {
            return;
        }
        let granted = match &incoming.stage {
            IncomingStage::Going(going) => going.granted(),
            _ => None,
        };
        if granted.is_none() {
            self.finish_incoming(id);
        } else {
            self.rndv.await_release(id);
        }
    }

    /// Ends receives whose lost senders have released their buffers; returns how many.
    pub(crate) fn poll_leaving(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        for id in self.rndv.take_unreleased() {
            let Some((incoming, _)) = self.requests.incoming(id) else { continue };
            let IncomingStage::Going(going) = &incoming.stage else { continue };
            match going.granted() {
                Some(region) if bml.revoke_access(Rank(incoming.from), region) => {
                    self.rndv.await_release(id);
                }
                _ => {
                    self.finish_incoming(id);
                    done += 1;
                }
            }
        }
        done
    }

    /// Carries out what is left after a call.
    fn carry_out(&mut self, bml: &mut Bml, called: Called) {
        let Called { peer, id, effects, .. } = called;
        if effects.streams {
            self.links[peer].streams.push_back(id);
        }
        if effects.active {
            self.links.activate(peer);
        }
        if let Some((error, stands)) = effects.broken {
            self.lose(bml, peer, error.clone());
            if stands {
                // The peer would wait for us.
                bml.give_up(Rank(peer), error);
            }
        } else if effects.wrote {
            self.flush_peer(bml, peer);
        }
    }

    /// The send that a message to this process itself comes from.
    fn source_of(&mut self, id: RequestId) -> Option<Buffer> {
        let me = self.me;
        let (incoming, _) =
            self.requests.incoming(id).filter(|(incoming, _)| incoming.from == me)?;
        let serial = incoming.rts.serial;
        let send = self.requests.named(serial)?;
        self.requests.send_mut(send).map(|send| send.buffer.clone())
    }

    /// Opens a request's context, with what carries it taken out of it; `None` if it is in no rendezvous.
    fn enter<R>(
        &mut self,
        bml: &mut Bml,
        id: RequestId,
        act: impl FnOnce(&mut Option<Box<dyn RndvEnd>>, &mut Cx<'_>) -> R,
    ) -> Option<(R, Called)> {
        let source = self.source_of(id);
        let (end, buffer, peer) = match self.requests.operation_mut(id)? {
            Operation::Send(send) => {
                let Send { buffer, to, stage, .. } = &mut **send;
                let SendStage::Rendezvous(offered) = stage else { return None };
                (RndvSide::Sender(offered), &*buffer, to.peer)
            }
            Operation::Recv(Recv { buffer, stage: RecvStage::Incoming(incoming), .. }) => {
                let peer = incoming.from;
                (RndvSide::Receiver(incoming), &*buffer, peer)
            }
            _ => return None,
        };
        let state = &mut self.links[peer];
        let Rendezvous { in_flight, published, scratch, refusals, rings, staging, facts, .. } =
            &mut self.rndv;
        let mut no_read = OneSidedRead::default();
        let (going, place, rts, at_receiver, registered, failure, without_staging, read) = match end
        {
            RndvSide::Sender(offered) => {
                let Offered { rts, registered, failed, going, without_staging, .. } = offered;
                let (taken, place) = (going.take(), EndSlot::Sender(going));
                let read = &mut no_read;
                (taken, place, &*rts, None, Some(registered), failed, without_staging, read)
            }
            RndvSide::Receiver(incoming) => {
                let Incoming { rts, reply, room, failure, layout, protocols, stage, .. } = incoming;
                let Incoming { without_staging, read, .. } = incoming;
                let going = match std::mem::replace(stage, IncomingStage::Choosing) {
                    IncomingStage::Going(going) => Some(going),
                    other => {
                        *stage = other;
                        None
                    }
                };
                let (reply, room, layout) = (*reply, *room, layout.as_ref());
                let at = AtReceiver { reply, room, layout, source: source.as_ref(), protocols };
                let place = EndSlot::Receiver(stage);
                (going, place, &*rts, Some(at), None, failure, without_staging, read)
            }
        };
        let lost = match &at_receiver {
            Some(_) => matches!(failure, Some(PmlError::PeerLost { .. })),
            None => state.lost.is_some(),
        };
        let mut cx = Cx {
            link: RndvLink::new(bml, peer),
            engines: &self.engines,
            config: &self.config,
            counters: &mut self.counters,
            staging,
            rings,
            published,
            scratch,
            refusals,
            region_list: &mut self.region_list,
            peer,
            state,
            facts: &mut facts[peer as usize],
            buffer,
            rts,
            at_receiver,
            registered,
            failure,
            without_staging,
            read,
            in_flight,
            id,
            effects: Effects::default(),
        };
        let mut taken = TakenEnd { going, place };
        let result = act(&mut taken.going, &mut cx);
        let effects = cx.effects;
        drop(taken);
        Some((result, Called { peer, id, lost, effects }))
    }
}

/// An end of a rendezvous.
enum RndvSide<'a> {
    Sender(&'a mut Offered),
    Receiver(&'a mut Incoming),
}

/// Where what carries a rendezvous is kept.
enum EndSlot<'a> {
    Sender(&'a mut Option<Box<dyn RndvEnd>>),
    Receiver(&'a mut IncomingStage),
}

/// What carries a rendezvous while it is called. It is put back also if the call unwinds: it holds what engines still
/// work on.
struct TakenEnd<'a> {
    going: Option<Box<dyn RndvEnd>>,
    place: EndSlot<'a>,
}

impl Drop for TakenEnd<'_> {
    fn drop(&mut self) {
        match (&mut self.place, self.going.take()) {
            (EndSlot::Sender(place), going) => **place = going,
            (EndSlot::Receiver(place), Some(going)) => **place = IncomingStage::Going(going),
            (EndSlot::Receiver(_), None) => {}
        }
    }
}

/// A call that is over.
struct Called {
    peer: u32,
    id: RequestId,
    /// The request has failed for the loss of its peer, or will.
    lost: bool,
    effects: Effects,
}
