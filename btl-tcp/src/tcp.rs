//! The transport: its parts, and the contract.

use crate::address::{PLACES_MAX, TcpAddress};
use crate::burst::{Burst, Next};
use crate::config::TcpConfig;
use crate::connection::Connection;
use crate::link::{LinkState, TcpLink, Up};
use crate::msg_zerocopy::ZerocopyManner;
use crate::outbound::Outbound;
use crate::proof::{Digest, Id, Keys};
use crate::socket;
use crate::unauthenticated::UnauthenticatedList;
use crate::watch::{Interest, Watch, Watched};
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, PeerId, ReserveError, Short, Sink, Slot, Token,
    Unacknowledged, ZeroCopyMessage, ZeroCopyResult,
};
use gapless_mem::{Device, DeviceError};
use rustix::fd::{OwnedFd, RawFd};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `Sent` events that may wait for a poll.
const UNREPORTED: usize = 8192;

/// One listening socket.
pub(crate) struct Listener {
    pub(crate) fd: OwnedFd,
    /// This process was out of descriptors: callers wait until the next tick.
    pub(crate) shut: bool,
}

impl Listener {
    /// As the one of this number, for epoll.
    pub(crate) fn what(&self, at: usize) -> Watched {
        Watched::Listener(u32::try_from(at).expect("there are at most eight"))
    }
}

/// TCP between the processes of a job.
pub struct Tcp {
    pub(crate) config: TcpConfig,
    limits: Limits,
    pub(crate) keys: Keys,
    pub(crate) address: TcpAddress,
    /// The address's hash.
    pub(crate) digest: Digest,
    pub(crate) watch: Watch,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) links: Vec<TcpLink>,
    pub(crate) by_id: HashMap<Id, u32>,
    /// How many links are being called.
    pub(crate) calling: usize,
    pub(crate) unauthenticated: UnauthenticatedList,
    /// Events that wait for a poll.
    pub(crate) outbox: VecDeque<Event>,
    /// Links that have more than their sockets will tell of.
    pub(crate) again: Vec<u32>,
    /// An empty list, for its memory.
    pub(crate) again_before: Vec<u32>,
    /// Links to which several messages were sent since the last poll.
    pub(crate) bursts: Vec<u32>,
    /// How links begin.
    pub(crate) burst: Burst,
    /// Who wants sends without a copy, on new links.
    pub(crate) msg_zerocopy: ZerocopyManner,
    /// Lost links with buffers that the system may still read.
    pub(crate) fading: VecDeque<(Connection, Outbound)>,
    /// Who has spoken last.
    pub(crate) hot: Option<u32>,
    /// How many polls there were.
    pub(crate) polls: u32,
    /// How many of them were of all peers.
    pub(crate) rounds: u32,
    /// The caller may block: nothing is put off.
    pub(crate) armed: bool,
    pub(crate) ticked: Instant,
    /// A third of the notice: for how long silence is normal.
    pub(crate) patience: Duration,
    /// Devices that know the buffers of long messages.
    devices: Vec<Arc<dyn Device>>,
}

impl Tcp {
    /// Most addresses of a process.
    pub const PLACES_MAX: usize = PLACES_MAX;

    /// Opens the transport, which listens from now on.
    ///
    /// # Errors
    /// [`LinkError::BadAddress`]: no place to listen at, too many, or one that others cannot call.
    /// [`LinkError::Incompatible`]: a number out of its bounds. [`LinkError::System`]: an address that is not of this
    /// host, no free port in the range, or no descriptors.
    pub fn new(config: TcpConfig) -> Result<Tcp, LinkError> {
        config.check()?;
        let bad = |what: String| Err(LinkError::BadAddress { what });
        if !(1..=PLACES_MAX).contains(&config.places.len()) {
            return bad(format!("{} places, 1 to {PLACES_MAX} expected", config.places.len()));
        }
        let watch = Watch::new(Watched::Alarm)?;
        let (mut listeners, mut places) = (Vec::new(), Vec::new());
        for (at, place) in config.places.iter().enumerate() {
            let address = place.address;
            if address.is_unspecified() || address.is_multicast() {
                return bad(format!("peers cannot call {address}"));
            }
            let (fd, place) = socket::listen(address, &config.ports, config.rank)?;
            let listener = Listener { fd, shut: false };
            watch.add(&listener.fd, listener.what(at), Interest::READING)?;
            tracing::debug!(rank = config.rank, %place, "listening");
            listeners.push(listener);
            places.push(place);
        }
        let address = TcpAddress::own(&config, places)?;
        let notice_ms = u32::try_from(config.notice.as_millis()).unwrap_or(u32::MAX);
        Ok(Tcp {
            limits: Limits {
                name: config.name,
                eager_bytes: config.eager_bytes,
                max_fragment_bytes: config.fragment_bytes,
                ordered: true,
                latency_ns: 12_000,
                bandwidth_mb_s: 2_500,
                death_notice_ms: notice_ms,
            },
            keys: Keys::new(config.secret.bytes(), &config.job),
            digest: address.digest(),
            address,
            watch,
            listeners,
            links: Vec::new(),
            by_id: HashMap::new(),
            calling: 0,
            unauthenticated: UnauthenticatedList::new(),
            outbox: VecDeque::with_capacity(64),
            again: Vec::new(),
            again_before: Vec::new(),
            bursts: Vec::new(),
            burst: Burst::new(),
            msg_zerocopy: if config.msg_zerocopy {
                ZerocopyManner::UnlessCopied
            } else {
                ZerocopyManner::Never
            },
            fading: VecDeque::new(),
            hot: None,
            polls: 0,
            rounds: 0,
            armed: false,
            ticked: Instant::now(),
            patience: config.notice / 3,
            devices: Vec::new(),
            config,
        })
    }

    fn state(&self, peer: PeerId) -> Result<&LinkState, LinkError> {
        let link = self.links.get(peer.0 as usize);
        link.map(|link| &link.state).ok_or_else(|| LinkError::Unreachable {
            reason: format!("{peer} was never connected to"),
        })
    }
}

impl Btl for Tcp {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.address.to_bytes()
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let id = self.know(peer)?;
        self.call(id);
        Ok(PeerId(id))
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        self.know(peer).map(PeerId)
    }

    fn has_met(&self, peer: PeerId) -> bool {
        let link = self.links.get(peer.0 as usize);
        link.is_some_and(|link| link.met || !matches!(link.state, LinkState::Known))
    }

    fn callers(&mut self) -> Option<Vec<u32>> {
        Some(self.unauthenticated.take_called())
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let max = self.config.fragment_bytes;
        match self.state(to)? {
            LinkState::Lost(error) => return Err(error.clone().into()),
            _ if len > max => return Err(ReserveError::TooLong { len, max }),
            _ if self.outbox.len() >= UNREPORTED => {}
            LinkState::Up(up) if up.broken.is_none() => return up.outbound.reserve(to, len),
            LinkState::Known => self.call(to.0),
            LinkState::Calling(_) | LinkState::Up(_) => {}
        }
        Err(ReserveError::Full)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let next = self.next_of_burst(slot.peer().0, slot.len());
        self.send_next(slot, tag, done, next);
    }

    fn send_short(&mut self, to: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Some(up) = self.links.get_mut(to.0 as usize).and_then(TcpLink::up) else {
            // The call, if it is due.
            let _ = self.reserve(to, message.len());
            return false;
        };
        if up.broken.is_some() || message.len() > self.config.fragment_bytes {
            return false;
        }
        let next = self.next_of_burst(to.0, message.len());
        let Some(up) = self.links[to.0 as usize].up() else { return false };
        if !up.outbound.takes_short() {
            return self.send_with_slot(to, tag, message, next);
        }
        match up.outbound.short(&mut up.connection, tag, message, next) {
            Ok(true) => {
                up.silence.wrote();
                if !up.outbound.is_empty() {
                    self.rewatch(to.0);
                }
                self.sent_in_burst(to.0, next);
                true
            }
            // There is no room in the socket: with a slot it can wait.
            Ok(false) => self.send_with_slot(to, tag, message, next),
            Err(error) => {
                up.broken = Some(error);
                self.look_again(to.0);
                false
            }
        }
    }

    fn send_zero_copy(
        &mut self,
        to: PeerId,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        let len = message.len();
        let stands = |up: &&mut Up| up.broken.is_none();
        let up = self.links.get_mut(to.0 as usize).and_then(TcpLink::up).filter(stands);
        let Some(up) = up.filter(|_| len <= self.config.fragment_bytes) else {
            // `reserve` says what there is to say.
            return ZeroCopyResult::Never;
        };
        // Only what is sent here counts as a part of a burst.
        let result = up.outbound.may_zero_copy(&up.connection, message.body().len());
        if result != ZeroCopyResult::Sent {
            return result;
        }
        let next = self.next_of_burst(to.0, len);
        let Some(up) = self.links[to.0 as usize].up() else { return ZeroCopyResult::Never };
        match up.outbound.send_zero_copy(&mut up.connection, tag, message, next) {
            Ok(ZeroCopyResult::Sent) => {
                up.silence.wrote();
                if !up.outbound.is_empty() {
                    self.rewatch(to.0);
                }
                self.sent_in_burst(to.0, next);
                ZeroCopyResult::Sent
            }
            Ok(other) => other,
            Err(error) => {
                up.broken = Some(error);
                self.look_again(to.0);
                ZeroCopyResult::Full
            }
        }
    }

    fn has_zero_copy(&self, to: PeerId) -> bool {
        match self.links.get(to.0 as usize).map(|link| &link.state) {
            Some(LinkState::Up(up)) => up.connection.is_plain() && !up.outbound.retains(),
            _ => false,
        }
    }

    fn retains(&self) -> bool {
        true
    }

    fn retain(&mut self, peer: PeerId) {
        let Some(link) = self.links.get_mut(peer.0 as usize) else { return };
        link.retains = true;
        if let Some(up) = link.up() {
            up.outbound.retain();
        }
    }

    fn unacknowledged(&mut self, peer: PeerId) -> Vec<Unacknowledged> {
        let link = self.links.get_mut(peer.0 as usize);
        link.map(|link| std::mem::take(&mut link.unacknowledged)).unwrap_or_default()
    }

    fn outstanding(&self, peer: PeerId) -> u64 {
        let Some(link) = self.links.get(peer.0 as usize) else { return 0 };
        match &link.state {
            LinkState::Up(up) => up.outbound.outstanding(),
            _ => link.unacknowledged.iter().map(|it| it.message.len() as u64).sum(),
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        if !self.bursts.is_empty() {
            self.end_bursts();
        }
        self.polls = self.polls.wrapping_add(1);
        match only {
            Some(peer) => self.receive(peer.0, sink, 1),
            None => self.poll_all(sink),
        }
    }

    fn arm(&mut self) -> Option<RawFd> {
        self.armed = true;
        self.set_alarm();
        Some(self.watch.raw())
    }

    /// Registers the buffers of long messages, those of later links too: engines pack straight into what is written to
    /// the socket, and unpack straight out of what was read from it. Those of short messages stay ordinary memory.
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        if self.devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            return Ok(());
        }
        for up in self.links.iter_mut().filter_map(TcpLink::up) {
            up.attach(device).map_err(refused)?;
        }
        self.devices.push(Arc::clone(device));
        Ok(())
    }

    #[allow(unsafe_code, reason = "has found out that a device has finished")]
    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        if !device.finish() {
            return false;
        }
        self.devices.retain(|known| !Arc::ptr_eq(known, device));
        for up in self.links.iter_mut().filter_map(TcpLink::up) {
            // SAFETY: the device has finished. Work on buffers is begun by unsafe calls, whose callers answer for it: users
            // of this transport with its slots and fragments. They begin none during this call, which has it alone.
            unsafe { up.detach(device) };
        }
        true
    }
}

/// A device does not register buffers.
fn refused(error: DeviceError) -> LinkError {
    LinkError::System { operation: "registering buffers with a device", reason: error.to_string() }
}

impl Tcp {
    /// Has the attached devices know the buffers of a link that has come to stand.
    pub(crate) fn make_known(&self, up: &Up) {
        for device in &self.devices {
            if let Err(error) = up.attach(device) {
                tracing::info!(%error, "messages of a device are staged");
            }
        }
    }

    fn send_next(&mut self, slot: Slot, tag: AmTag, done: Token, next: Next) {
        let to = slot.peer();
        let link = self.links.get_mut(to.0 as usize);
        let link = link.expect("a slot of this transport");
        let error = match &mut link.state {
            LinkState::Up(up) => {
                let first = up.outbound.is_empty();
                let buffer = up.outbound.open(slot);
                let count = if up.outbound.retains() { up.inbound.tell() } else { 0 };
                up.outbound.push(tag, buffer, done, count);
                if first {
                    self.flush(to.0, next);
                    self.sent_in_burst(to.0, next);
                }
                return;
            }
            LinkState::Lost(_) if link.retains => {
                let message = slot.to_vec().expect("host memory");
                link.unacknowledged.push(Unacknowledged { tag, message, done });
                return;
            }
            LinkState::Lost(error) => error.clone(),
            LinkState::Known | LinkState::Calling(_) => {
                unreachable!("slots are made of links that stand")
            }
        };
        if done != Token::NONE {
            self.outbox.push_back(Event::Sent { token: done, result: Err(error) });
        }
    }

    fn send_with_slot(&mut self, to: PeerId, tag: AmTag, message: Short<'_>, next: Next) -> bool {
        let Ok(mut slot) = self.reserve(to, message.len()) else { return false };
        for (at, word) in message.words()[..message.len().div_ceil(8)].iter().enumerate() {
            let bytes = word.to_ne_bytes();
            let count = (message.len() - 8 * at).min(8);
            slot.write(8 * at, &bytes[..count]).expect("host memory, as long as the message");
        }
        self.send_next(slot, tag, Token::NONE, next);
        true
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TcpAddress { rank, places, .. } = &self.address;
        write!(f, "Tcp of rank {rank} at {places:?}, {} peers", self.links.len())
    }
}
