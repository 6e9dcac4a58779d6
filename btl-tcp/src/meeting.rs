//! How links come to be: calls of ours, calls of others, and what happens when both ends call at once.
//!
//! A link is one connection. If two processes call each other at the same time, the call of the one with the
//! **smaller id** stays. Each of the two can tell by itself:
//!
//! - The larger drops its own call as soon as the other's is proved, and welcomes it.
//! - The smaller, too, welcomes the other's call as soon as it is proved, unless the proof of its own has left: then
//!   the larger may have welcomed that. So it keeps the other's as a spare. When its own has been welcomed, it hangs up
//!   on the spare; if its own fails, it welcomes the spare.
//! - If a call fails (a firewall that lets calls pass one way) while the other's has come and is not proved yet, the
//!   failure waits for that, for one patience.
//!
//! Only the listener's welcome makes a connection the link, and a process welcomes no second one.

use crate::address::TcpAddress;
use crate::attempt::Caller;
use crate::burst::Next;
use crate::call::{CallState, OutgoingCall};
use crate::connection::Connection;
use crate::link::{LinkState, TcpLink, Up};
use crate::outbound::Outbound;
use crate::proof::{ANSWER_BYTES, PROOF_BYTES, Purpose, Talk};
use crate::silence::Silence;
use crate::socket::{self, Accepted, Socket};
use crate::tcp::Tcp;
use crate::tls::{Handshake, Progress, Refused};
use crate::unauthenticated::{Unauthenticated, UnauthenticatedStage};
use crate::watch::{Interest, Watched};
use gapless_btl::{Address, Event, LinkError, PeerId};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Instant;

/// Callers taken from a listener in one poll.
const CALLERS: usize = 64;
/// Lost links that are kept because the system may still read their buffers.
pub(crate) const FADING_MAX: usize = 16;

impl Tcp {
    /// Lost links whose buffers the system has done with are gone.
    pub(crate) fn hear_fading(&mut self) {
        self.fading.retain_mut(|(connection, outbound)| outbound.end(connection));
    }

    /// The number of the peer with this address.
    ///
    /// # Errors
    /// It is no address, or that of a process which ours does not talk to.
    pub(crate) fn know(&mut self, address: &Address) -> Result<u32, LinkError> {
        let address = TcpAddress::read(address)?;
        if let Some(&known) = self.by_id.get(&address.id) {
            let same = self.links[known as usize].address == address;
            let what = "two addresses with the same id".to_owned();
            return if same { Ok(known) } else { Err(LinkError::BadAddress { what }) };
        }
        let unreachable = |reason: String| Err(LinkError::Unreachable { reason });
        if address.id == self.address.id {
            return unreachable("TCP does not reach the own process".to_owned());
        }
        if address.job != self.address.job {
            return unreachable("it belongs to another job".to_owned());
        }
        if address.encrypts != self.address.encrypts {
            let at =
                address.places.first().map_or_else(String::new, |place| format!(" at {place}"));
            let [theirs, ours] = match address.encrypts {
                true => ["encrypts", "does not"],
                false => ["does not encrypt", "does"],
            };
            let what = format!("rank {}{at} {theirs}, and this process {ours}", address.rank);
            return Err(LinkError::Incompatible { what });
        }
        let refused = |_| LinkError::Unreachable { reason: "2³² peers are known".to_owned() };
        let id = u32::try_from(self.links.len()).map_err(refused)?;
        self.by_id.insert(address.id, id);
        self.links.push(TcpLink::new(address));
        let caller = self.links[id as usize].address.id;
        let calls = |it: &Unauthenticated| matches!(&it.stage, UnauthenticatedStage::Pending { hello, .. } if hello.caller == caller);
        for at in self.unauthenticated.which(calls) {
            self.hear_unauthenticated(at);
        }
        Ok(id)
    }

    /// Calls a peer, unless somebody has called already.
    pub(crate) fn call(&mut self, id: u32) {
        if !matches!(self.links[id as usize].state, LinkState::Known) {
            return;
        }
        let places = self.in_reach(&self.links[id as usize].address.places);
        self.links[id as usize].state = LinkState::Calling(Box::new(OutgoingCall::new(places)));
        self.calling += 1;
        self.go_on_calling(id);
    }

    /// A peer's places, those in a network of ours first, and those of a family that we have none of last.
    fn in_reach(&self, places: &[SocketAddr]) -> Vec<SocketAddr> {
        let distance = |place: &SocketAddr| {
            let ours = &self.config.places;
            let near = ours.iter().any(|own| own.is_near(place.ip()));
            let family = ours.iter().any(|own| own.address.is_ipv4() == place.is_ipv4());
            (!near, !family)
        };
        let mut places: Vec<SocketAddr> = places.to_vec();
        // Another host may have the same private address as this one: there we would call ourselves.
        places.retain(|place| !self.address.places.contains(place));
        places.sort_by_key(distance);
        places
    }

    /// A call of ours may go on.
    pub(crate) fn go_on_calling(&mut self, id: u32) {
        let Tcp { links, watch, keys, address: own, patience, .. } = self;
        let link = &mut links[id as usize];
        let LinkState::Calling(call) = &mut link.state else { return };
        let (patience, now) = (*patience, Instant::now());
        let caller = Caller { watch, keys, own, peer: &link.address, id, patience, now };
        match call.go_on(&caller) {
            CallState::Going if call.is_proving() => {}
            CallState::Going => {
                if let Some(spare) = link.spare.take() {
                    self.take_up(id, spare, true);
                }
            }
            CallState::Made(connection) => self.take_up(id, connection, false),
            CallState::Failed(error, waited) => match link.spare.take() {
                Some(spare) => self.take_up(id, spare, true),
                None if waited < patience && self.may_be_calling(id) => {}
                None => self.lose(id, error),
            },
        }
    }

    /// Whether somebody who may be this peer has called, and is not proved yet. If so, that is looked at again with the
    /// next tick.
    fn may_be_calling(&mut self, id: u32) -> bool {
        for at in 0..self.listeners.len() {
            self.accept_callers(at);
        }
        for at in self.perhaps(id) {
            self.hear_unauthenticated(at);
        }
        // It may even have proved itself just now.
        !matches!(self.links[id as usize].state, LinkState::Calling(_))
            || !self.perhaps(id).is_empty()
    }

    /// Unauthenticated sockets that may be this peer.
    fn perhaps(&self, id: u32) -> Vec<u32> {
        let places = &self.links[id as usize].address.places;
        self.unauthenticated.which(|it| match it.stage {
            UnauthenticatedStage::Silent { .. } => {
                places.iter().any(|place| place.ip() == it.socket.at.ip())
            }
            ref stage => stage.peer() == Some(id),
        })
    }

    /// From now on this connection is the link; a listener says so.
    pub(crate) fn take_up(&mut self, id: u32, connection: Connection, welcome: bool) {
        let at = connection.socket().at;
        if let Err(error) = connection.socket().unlimit() {
            return self.lose(id, connection.socket().ended(error));
        }
        let link = &mut self.links[id as usize];
        let mut failed = false;
        if let LinkState::Calling(call) = &link.state {
            self.calling -= 1;
            failed = call.has_failed();
        }
        (link.spare, link.met) = (None, true);
        self.watch.change(&connection, Watched::Link(id), Interest::READING);
        tracing::debug!(peer = link.address.rank, %at, called = !welcome, "a link stands");
        let listener = |place: &&SocketAddr| **place == at || welcome && place.ip() == at.ip();
        let place = link.address.places.iter().find(listener).copied();
        // Where all our calls have failed, no pulse finds the peer.
        let place = place.filter(|_| !failed);
        let silence = Silence::new(place, !welcome);
        let burst = self.burst.clone();
        let (config, manner) = (&self.config, self.msg_zerocopy);
        let mut up = Box::new(Up::new(connection, silence, config, link.retains, burst, manner));
        if welcome {
            up.outbound.welcome();
        }
        self.make_known(&up);
        let link = &mut self.links[id as usize];
        link.state = LinkState::Up(up);
        // Its other calls are of no use.
        for at in self.unauthenticated.which(|it| it.stage.peer() == Some(id)) {
            drop(self.unauthenticated.take(at));
        }
        self.flush(id, Next::Leaves);
        self.try_place(id);
        self.look_again(id);
    }

    /// A peer has proved itself over a call of its own.
    fn adopt(&mut self, id: u32, connection: Connection) {
        let link = &mut self.links[id as usize];
        match link.state {
            LinkState::Calling(ref call)
                if self.address.id < link.address.id && call.is_proving() =>
            {
                if link.spare.is_none() {
                    self.watch.change(&connection, Watched::Spare(id), Interest::READING);
                    link.spare = Some(connection);
                }
            }
            LinkState::Known | LinkState::Calling(_) => self.take_up(id, connection, true),
            LinkState::Up(_) | LinkState::Lost(_) => {}
        }
    }

    /// Something has happened to a spare: its caller hung up, or broke the rules by speaking before it was welcomed.
    pub(crate) fn hear_spare(&mut self, id: u32) {
        let spare = &mut self.links[id as usize].spare;
        let over =
            |spare: &mut Connection| !matches!(spare.socket().read_exact(&mut [0; 1]), Ok(None));
        drop(spare.take_if(over));
    }

    /// The link is over: pending operations end, then the loss is told.
    pub(crate) fn lose(&mut self, id: u32, error: LinkError) {
        let mut faded = None;
        let link = &mut self.links[id as usize];
        match std::mem::replace(&mut link.state, LinkState::Lost(error.clone())) {
            // Once is enough.
            LinkState::Lost(first) => {
                link.state = LinkState::Lost(first);
                return;
            }
            LinkState::Up(up) => {
                let Up { connection, mut outbound, .. } = *up;
                link.unacknowledged = outbound.give_up(&error, &mut self.outbox);
                if outbound.end(&connection) {
                    self.watch.remove(&connection);
                    faded = Some((connection, outbound));
                }
            }
            LinkState::Calling(_) => self.calling -= 1,
            LinkState::Known => {}
        }
        link.spare = None;
        tracing::debug!(peer = link.address.rank, %error, "a link is lost");
        self.outbox.push_back(Event::Lost { peer: PeerId(id), error });
        if let Some((connection, outbound)) = faded {
            self.fade(connection, outbound);
        }
    }

    /// Keeps what the system may still read of a lost link; in the place of the oldest one, if there are many.
    pub(crate) fn fade(&mut self, connection: Connection, outbound: Outbound) {
        self.fading.push_back((connection, outbound));
        if self.fading.len() > FADING_MAX {
            self.hear_fading();
        }
        if self.fading.len() > FADING_MAX {
            // Its buffers are never used again.
            self.fading.pop_front();
        }
    }

    /// Takes the callers that wait at a listener, as unauthenticated.
    pub(crate) fn accept_callers(&mut self, at: usize) {
        let now = Instant::now();
        for _ in 0..CALLERS {
            if self.unauthenticated.is_full() {
                return;
            }
            let Some(listener) = self.listeners.get(at) else { return };
            match socket::accept(&listener.fd) {
                Accepted::Nobody => return,
                Accepted::Skipped => {}
                Accepted::Exhausted(error) => {
                    tracing::warn!(%error, "callers have to wait");
                    // At the next tick.
                    self.watch.change(&listener.fd, listener.what(at), Interest::default());
                    self.listeners[at].shut = true;
                    return;
                }
                Accepted::Caller(socket) => {
                    if socket.be_watchful(self.patience).is_err() {
                        continue;
                    }
                    let number = self.unauthenticated.add(socket, now);
                    let unauthenticated =
                        self.unauthenticated.get(number).expect("it was just added");
                    let watched = self.watch.add(
                        &unauthenticated.socket,
                        Watched::Unauthenticated(number),
                        Interest::READING,
                    );
                    match watched {
                        Ok(()) => self.hear_unauthenticated(number),
                        Err(_) => drop(self.unauthenticated.take(number)),
                    }
                }
            }
        }
    }

    /// An unauthenticated process may have said something.
    pub(crate) fn hear_unauthenticated(&mut self, at: u32) {
        let Some(Unauthenticated { socket, mut since, mut stage }) = self.unauthenticated.take(at)
        else {
            return;
        };
        loop {
            let next = match stage {
                UnauthenticatedStage::Silent { mut bytes, mut got } => {
                    match socket.read_exact(&mut bytes[got..]) {
                        Ok(Some(count @ 1..)) => got += count,
                        Ok(None) => {
                            stage = UnauthenticatedStage::Silent { bytes, got };
                            return self
                                .unauthenticated
                                .put(at, Unauthenticated { socket, since, stage });
                        }
                        Ok(Some(_)) | Err(_) => {
                            return self.turn_away(&socket, &"it hung up before it had greeted");
                        }
                    }
                    if got < bytes.len() {
                        stage = UnauthenticatedStage::Silent { bytes, got };
                        continue;
                    }
                    self.greeted(&socket, &bytes)
                }
                UnauthenticatedStage::Pending { hello, talk } => {
                    match self.by_id.get(&hello.caller) {
                        None => {
                            if !matches!(socket.read_exact(&mut [0; 1]), Ok(None)) {
                                return self.turn_away(&socket, &"it did not wait for an answer");
                            }
                            // What it may say meanwhile stays in the socket.
                            self.watch.change(
                                &socket,
                                Watched::Unauthenticated(at),
                                Interest::READING,
                            );
                            stage = UnauthenticatedStage::Pending { hello, talk };
                            return self
                                .unauthenticated
                                .put(at, Unauthenticated { socket, since, stage });
                        }
                        Some(&peer) => {
                            since = Instant::now();
                            self.answer(&socket, peer, hello.caller_rank, talk)
                        }
                    }
                }
                UnauthenticatedStage::Answered { peer, talk, answer, mut proof, mut got } => {
                    match socket.read_exact(&mut proof[got..]) {
                        Ok(Some(count @ 1..)) => got += count,
                        Ok(None) => {
                            stage =
                                UnauthenticatedStage::Answered { peer, talk, answer, proof, got };
                            return self
                                .unauthenticated
                                .put(at, Unauthenticated { socket, since, stage });
                        }
                        // It may have taken our own call instead.
                        Ok(Some(_)) | Err(_) => return,
                    }
                    if got == proof.len() {
                        if !self.keys.is_proved(&talk, &answer, &proof) {
                            return self.turn_away(&socket, &"it does not know the job's secret");
                        }
                        if !self.address.encrypts {
                            return self.adopt(peer, Connection::bare(socket));
                        }
                        let address = &self.links[peer as usize].address;
                        match Handshake::listen(&self.keys, &self.address, address).map(Box::new) {
                            Ok(handshake) => {
                                stage = UnauthenticatedStage::Securing { peer, talk, handshake }
                            }
                            Err(why) => return self.turn_away(&socket, &why),
                        }
                        continue;
                    }
                    Some(UnauthenticatedStage::Answered { peer, talk, answer, proof, got })
                }
                UnauthenticatedStage::Securing { peer, talk, handshake } => {
                    match handshake.go_on(&socket) {
                        Ok(Progress::Going(handshake)) => {
                            stage = UnauthenticatedStage::Securing { peer, talk, handshake };
                            return self
                                .unauthenticated
                                .put(at, Unauthenticated { socket, since, stage });
                        }
                        Ok(Progress::Done(records)) => {
                            return self.adopt(peer, Connection::of_records(socket, records));
                        }
                        // It may have taken our own call instead.
                        Err(Refused { hung_up: true, .. }) => return,
                        Err(refused) => return self.turn_away(&socket, &refused.why),
                    }
                }
            };
            match next {
                Some(next) => stage = next,
                None => return,
            }
        }
    }

    /// A hello is here in full: what its sender is, unless it is turned away.
    fn greeted(
        &mut self,
        socket: &Socket,
        bytes: &[u8; crate::proof::HELLO_BYTES],
    ) -> Option<UnauthenticatedStage> {
        let hello = match self.keys.hear(bytes) {
            Ok(hello) => hello,
            Err(why) => {
                self.turn_away(socket, &why);
                return None;
            }
        };
        if (hello.callee, hello.callee_rank) != (self.address.id, self.address.rank) {
            self.turn_away(socket, &format_args!("it looks for rank {}", hello.callee_rank));
            return None;
        }
        if self.unauthenticated.have_said(bytes) {
            self.turn_away(socket, &"it repeats the greeting of another caller");
            return None;
        }
        if hello.purpose == Purpose::Call && !self.by_id.contains_key(&hello.caller) {
            self.unauthenticated.note_caller(hello.caller_rank);
        }
        // A pulse has its answer: the connection itself.
        (hello.purpose == Purpose::Call)
            .then_some(UnauthenticatedStage::Pending { hello, talk: *bytes })
    }

    /// Answers the hello of a peer that was introduced.
    fn answer(
        &mut self,
        socket: &Socket,
        peer: u32,
        rank: u32,
        hello: [u8; crate::proof::HELLO_BYTES],
    ) -> Option<UnauthenticatedStage> {
        let link = &self.links[peer as usize];
        if link.address.rank != rank {
            let ranks = format_args!("it says that it is rank {rank}, not {}", link.address.rank);
            self.unauthenticated.warning.again(socket.at, &ranks);
            return None;
        }
        // A second connection of a peer that has a link is of no use.
        if matches!(link.state, LinkState::Up(_) | LinkState::Lost(_)) {
            return None;
        }
        let talk = Box::new(Talk { hello, addresses: [link.digest, self.digest] });
        let nonce = crate::proof::random().ok()?;
        let answer: [u8; ANSWER_BYTES] = self.keys.answer(&talk, &nonce);
        // There is room for it in a fresh connection.
        let written = socket.write(&[IoSlice::new(&answer)]);
        if written != Ok(answer.len()) {
            return None;
        }
        Some(UnauthenticatedStage::Answered { peer, talk, answer, proof: [0; PROOF_BYTES], got: 0 })
    }

    /// Hangs up on an unauthenticated process.
    fn turn_away(&mut self, socket: &Socket, why: &dyn std::fmt::Display) {
        self.unauthenticated.warning.again(socket.at, why);
    }
}
