//! One link to one peer: how it meets, talks and ends.
//!
//! ```text
//!   Meeting ── a Hello from the peer ──► Up ── refused, or corrupt ──► Ended
//!      └──── refused: nobody is there any more ───────────────────────►┘
//! ```
//!
//! *Meeting* is told in `meeting.rs`.
//!
//! *Dying.* Silence proves nothing: a peer that computes or is stopped does not answer. What counts
//! is the kernel's word that nobody has the peer's port (ICMP port unreachable, seen as
//! `ECONNREFUSED` on a connected socket), twice; a probe goes out whenever nothing else has for
//! [`PROBE_EVERY`]. Whatever lies in the socket by then is delivered first.

mod meeting;

use crate::address::UdpAddress;
use crate::channel::Channel;
use crate::config::Config;
use crate::faults::Wire;
use crate::receiver::{Arrival, Receiver};
use crate::sender::Sender;
use crate::seq::Seq;
use crate::socket::{Receive, Send, Socket};
use crate::wire::{HEADER_BYTES, Header, PacketKind, Sessions};
use gapless_btl::pool::HeapPool;
use gapless_btl::{AmTag, Event, LinkError, PeerId, ReserveError, Slot, Token};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a link may be without a datagram to the peer.
pub(crate) const PROBE_EVERY: Duration = Duration::from_millis(200);
/// How long an acknowledgement waits for a message to travel with.
const ACK_DELAY: Duration = Duration::from_millis(1);
/// The first pause between questions for room that the peer may have announced in vain.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
/// When to try again after the system could not take a datagram.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// How often the kernel must say that nobody has the peer's port.
const REFUSALS: u32 = 2;
/// Datagrams taken from a socket at a time.
const RECEIVE_MAX: u32 = 64;

/// What a link finds around it.
pub(crate) struct Around<'a> {
    pub(crate) now: Instant,
    pub(crate) own: UdpAddress,
    pub(crate) config: &'a Config,
    pub(crate) listener: &'a Socket,
    /// Wakes for each link that is up, by its number.
    pub(crate) epoll: &'a OwnedFd,
    pub(crate) ready: &'a mut VecDeque<Event>,
}

enum LinkStage {
    /// The dialer is connected to the peer's listener.
    Meeting {
        dialer: Socket,
        hello_at: Instant,
        pause: Duration,
    },
    /// The peer's port of this pair, and its first number.
    Up {
        port: u16,
        first: Seq,
    },
    Ended(LinkError),
}

pub(crate) struct UdpLink {
    id: PeerId,
    address: UdpAddress,
    stage: LinkStage,
    /// `None` once the link has ended.
    channel: Option<Channel>,
    sender: Sender,
    /// Our first number.
    first: Seq,
    receiver: Receiver,
    send_pool: HeapPool,
    receive_pool: HeapPool,
    refusals: u32,
    /// Messages that arrived since the last acknowledgement.
    unacknowledged: u32,
    ack_now: bool,
    ack_at: Option<Instant>,
    probe_at: Instant,
    /// When to ask for room, and the pause after that.
    ask_at: Option<(Instant, Duration)>,
    retry_at: Option<Instant>,
}

impl UdpLink {
    pub(crate) fn new(
        id: PeerId,
        address: UdpAddress,
        first: Seq,
        around: &Around<'_>,
    ) -> Result<UdpLink, LinkError> {
        let Config { max_fragment_bytes, window, flying_bytes, faults, .. } = *around.config;
        let (dialer, own) = (Socket::bind()?, Socket::bind()?);
        if [dialer.port(), own.port()].contains(&address.listener) {
            // We were given the peer's port, and would talk to ourselves.
            return Err(gone("nobody has its port any more"));
        }
        dialer.connect(address.listener)?;
        let wire = faults.map(|faults| Wire::new(faults, id.0));
        let receive_pool = HeapPool::new(window as usize, max_fragment_bytes);
        let mut receiver = Receiver::new(window);
        receiver.make_room(&receive_pool);
        Ok(UdpLink {
            id,
            address,
            stage: LinkStage::Meeting { dialer, hello_at: around.now, pause: meeting::PAUSE_MIN },
            channel: Some(Channel::new(own, wire)),
            sender: Sender::new(first, flying_bytes),
            first,
            receiver,
            send_pool: HeapPool::new(window as usize, max_fragment_bytes),
            receive_pool,
            refusals: 0,
            unacknowledged: 0,
            ack_now: false,
            ack_at: None,
            probe_at: around.now,
            ask_at: None,
            retry_at: None,
        })
    }

    pub(crate) fn address(&self) -> &UdpAddress {
        &self.address
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.stage, LinkStage::Up { .. })
    }

    /// The socket of the pair.
    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.channel.as_ref().map(|channel| &channel.socket)
    }

    /// Whether something was sent that the peer may not have.
    pub(crate) fn owes(&self) -> bool {
        self.is_up() && !self.sender.is_empty()
    }

    fn sessions(&self, around: &Around<'_>) -> Sessions {
        Sessions { to: self.address.session, from: around.own.session }
    }

    // Talking

    pub(crate) fn reserve(&self, len: usize) -> Result<Slot, ReserveError> {
        let max = self.send_pool.buffer_bytes();
        match &self.stage {
            LinkStage::Ended(error) => Err(ReserveError::Link(error.clone())),
            LinkStage::Meeting { .. } if len <= max => Err(ReserveError::Full),
            _ => self.send_pool.slot(self.id, len),
        }
    }

    pub(crate) fn send(&mut self, slot: Slot, tag: AmTag, done: Token, around: &mut Around<'_>) {
        let buffer = self.send_pool.open(slot).expect("a slot of this transport");
        if let LinkStage::Ended(error) = &self.stage {
            if done != Token::NONE {
                let result = Err(error.clone());
                around.ready.push_back(Event::Sent { token: done, result });
            }
            return;
        }
        self.sender.push(buffer, tag, done);
        self.pump(around);
    }

    /// Sends one datagram with what the peer is to know.
    fn say(&mut self, kind: PacketKind, around: &Around<'_>) {
        let sessions = self.sessions(around);
        let acks = self.receiver.acks();
        let header = Header { kind, tag: 0, sessions, seq: Seq(0), acks, payload_bytes: 0 };
        let outcome = self.channel.as_mut().map(|channel| channel.send(&header, &[]));
        self.went(outcome, around.now);
    }

    /// Takes note of what became of a datagram that told the peer all there was to tell.
    fn went(&mut self, outcome: Option<Send>, now: Instant) {
        match outcome {
            Some(Send::Gone) => {
                (self.unacknowledged, self.ack_now, self.ack_at) = (0, false, None);
                self.probe_at = now + PROBE_EVERY;
            }
            Some(Send::Busy) => self.retry_at = Some(now + BUSY_PAUSE),
            Some(Send::Refused) => self.refused(now),
            None => {}
        }
    }

    /// Sends what may go.
    fn pump(&mut self, around: &mut Around<'_>) {
        let sessions = self.sessions(around);
        self.retry_at = None;
        while self.refusals < REFUSALS
            && let Some(channel) = &mut self.channel
            && let Some(message) = self.sender.peek()
        {
            let header = Header {
                kind: PacketKind::Data,
                tag: message.tag.0,
                sessions,
                seq: message.seq,
                acks: self.receiver.acks(),
                payload_bytes: u32::try_from(message.bytes.len()).unwrap_or(u32::MAX),
            };
            let outcome = channel.send(&header, message.bytes);
            if outcome == Send::Gone {
                let token = self.sender.gone(around.now);
                if token != Token::NONE {
                    around.ready.push_back(Event::Sent { token, result: Ok(()) });
                }
            }
            self.went(Some(outcome), around.now);
            if outcome == Send::Busy {
                return;
            }
        }
    }

    /// Takes in what has come, up to a bound. Gives whether nothing is left.
    pub(crate) fn receive(&mut self, around: &mut Around<'_>) -> bool {
        for _ in 0..RECEIVE_MAX {
            let Some(channel) = &mut self.channel else { return true };
            let mut header = [0; HEADER_BYTES];
            let payload: &mut [u8] = match self.receiver.spare() {
                Some(buffer) => &mut buffer[..],
                None => &mut [],
            };
            match channel.socket.receive(&mut header, payload) {
                Receive::Empty => return true,
                Receive::Foreign => {}
                Receive::Refused => self.refused(around.now),
                Receive::Datagram { bytes, .. } => {
                    let start = &header[..bytes.min(HEADER_BYTES)];
                    if let Err(what) = self.heard(start, bytes, around) {
                        self.end(LinkError::Corrupt { what }, around);
                    }
                }
            }
        }
        false
    }

    /// Takes in one datagram from the peer's port.
    fn heard(&mut self, start: &[u8], bytes: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Sessions { to: theirs, from: own } = self.sessions(around);
        if Header::sessions(start) != Some(Sessions { to: own, from: theirs }) {
            // Came before the socket was connected, from who knows where.
            return Ok(());
        }
        let header = Header::decode(start, bytes)?;
        if self.refusals < REFUSALS {
            self.refusals = 0;
        }
        if matches!(header.kind, PacketKind::Hello | PacketKind::Refuse) {
            return Err(format!("a {:?} where messages are expected", header.kind));
        }
        let Around { now, ready, .. } = around;
        self.sender.acknowledged(&header.acks, *now)?;
        match header.kind {
            PacketKind::Data => {
                let from = self.id;
                let len = header.payload_bytes as usize;
                let arrival =
                    self.receiver.arrived(header.seq, AmTag(header.tag), len, |tag, buffer| {
                        let fragment = buffer.into_fragment();
                        ready.push_back(Event::Arrived { from, tag, fragment });
                    })?;
                self.unacknowledged += 1;
                self.ack_now |= arrival != Arrival::New;
            }
            PacketKind::Probe => self.ack_now = true,
            _ => {}
        }
        Ok(())
    }

    // Going on

    /// Does what is due. `listener_is_empty`: no Hello of the peer waits to be read. `hurry`: the caller
    /// is about to sleep, so acknowledgements do not wait for company.
    pub(crate) fn step(&mut self, listener_is_empty: bool, hurry: bool, around: &mut Around<'_>) {
        match self.stage {
            LinkStage::Ended(_) => return,
            LinkStage::Meeting { .. } => return self.say_hello(listener_is_empty, around),
            LinkStage::Up { .. } => {}
        }
        let now = around.now;
        self.receiver.make_room(&self.receive_pool);
        self.sender.tick(now);
        if self.sender.peek().is_some() {
            self.pump(around);
        }
        self.acknowledge(hurry, around);
        if self.sender.waits_for_room() {
            let (at, pause) = *self.ask_at.get_or_insert((now + ROOM_PAUSE, ROOM_PAUSE));
            if at <= now {
                let pause = (pause * 2).min(PROBE_EVERY);
                self.ask_at = Some((now + pause, pause));
                self.say(PacketKind::Probe, around);
            }
        } else {
            self.ask_at = None;
        }
        if self.probe_at <= now {
            self.say(PacketKind::Probe, around);
        }
        if self.refusals >= REFUSALS && self.receive(around) {
            self.end(gone("nobody has its port any more"), around);
        }
    }

    fn acknowledge(&mut self, hurry: bool, around: &Around<'_>) {
        let window = around.config.window;
        let untold = self.receiver.untold();
        if self.unacknowledged == 0 && untold == 0 && !self.ack_now {
            return;
        }
        let due = *self.ack_at.get_or_insert(around.now + ACK_DELAY);
        if hurry
            || self.ack_now
            || due <= around.now
            || self.unacknowledged >= window.div_ceil(4)
            || untold > 0 && self.receiver.seems_full()
        {
            self.say(PacketKind::Ack, around);
        }
    }

    /// When [`step`](UdpLink::step) has something to do, if nothing comes before.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        match &self.stage {
            LinkStage::Ended(_) => None,
            LinkStage::Meeting { hello_at, .. } => Some(*hello_at),
            LinkStage::Up { .. } if self.refusals >= REFUSALS => Some(now),
            LinkStage::Up { .. } => {
                let ask_at = self.ask_at.map(|(at, _)| at);
                let others = [self.sender.deadline(), self.ack_at, ask_at, self.retry_at];
                others.into_iter().flatten().chain([self.probe_at]).min()
            }
        }
    }

    // Ending

    /// The kernel says that nobody has the peer's port; asks again at once.
    fn refused(&mut self, now: Instant) {
        self.refusals += 1;
        self.probe_at = now;
    }

    /// Everything pending ends with an error, and the peer is reported lost.
    fn end(&mut self, error: LinkError, around: &mut Around<'_>) {
        if matches!(self.stage, LinkStage::Ended(_)) {
            return;
        }
        for token in self.sender.fail() {
            let result = Err(error.clone());
            around.ready.push_back(Event::Sent { token, result });
        }
        around.ready.push_back(Event::Lost { peer: self.id, error: error.clone() });
        // Closing the socket tells the peer, if it lives.
        self.channel = None;
        self.receiver = Receiver::new(1);
        self.stage = LinkStage::Ended(error);
    }
}

fn gone(reason: &str) -> LinkError {
    LinkError::PeerGone { reason: reason.to_owned() }
}

#[cfg(test)]
impl UdpLink {
    /// The numbers of the next message to the peer and of the next from it.
    pub(crate) fn numbers(&self) -> (Seq, Seq) {
        (self.sender.end(), self.receiver.next())
    }

    /// Before the link is up: other numbers than random ones.
    pub(crate) fn number_from(&mut self, first: Seq) {
        assert!(!self.is_up() && self.sender.is_empty());
        self.first = first;
        self.sender = Sender::new(first, 1 << 20);
    }
}
