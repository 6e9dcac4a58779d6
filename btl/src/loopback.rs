//! The smallest complete transport: endpoints within one process, joined by a [`Hub`].
//!
//! `bml` uses it to send to its own process, and tests of the layers above use it (dozens of ranks in one thread, or
//! one per thread). It is the example to read before writing a transport. It is ordered, never copies a message (the
//! slot's buffer becomes the fragment) and is bounded: each link has [`Config::slots`] buffers, and a receiver that
//! parks them makes its sender see [`ReserveError::Full`]. Dropping one end is the death of that peer.
//!
//! Where things are: [`Hub`] and what ends know of each other in `hub.rs`; the optional abilities
//! ([`Rdma`], [`Mapped`]: plain copies within the process, each can be
//! switched off in [`Config`]) in `abilities.rs`; memory of devices in `devices.rs` (mapped) and `direct.rs` (read and
//! written as adapters do).
//!
//! The [crate's](crate) example uses it.

#[allow(unsafe_code, reason = "implements Rdma's unsafe methods, as copies")]
mod abilities;
#[allow(unsafe_code, reason = "vouches for device memory that its owner shares")]
mod devices;
#[allow(unsafe_code, reason = "copies what its callers lend")]
mod direct;
mod hub;
#[cfg(test)]
mod tests;

pub use hub::Hub;

use crate::pool::HeapPool;
use crate::{
    AbilityId, Address, AmTag, Btl, Event, Limits, LinkError, Mapped, PeerId, Rdma, RdmaLimits,
    ReserveError, Sink, Slot, Token, hand_out,
};
use gapless_mem::Device;
use hub::{HubEnd, Note};
use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// What a loopback endpoint promises and can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// [`Limits::name`].
    pub name: &'static str,
    /// [`Limits::eager_bytes`].
    pub eager_bytes: usize,
    /// [`Limits::max_fragment_bytes`].
    pub max_fragment_bytes: usize,
    /// [`Limits::latency_ns`].
    pub latency_ns: u32,
    /// [`Limits::bandwidth_mb_s`].
    pub bandwidth_mb_s: u32,
    /// [`Limits::ordered`]. It keeps order anyway; `Fault` of `gapless-btl-testkit` around it may not.
    pub ordered: bool,
    /// Messages to one peer that can be in flight, at least 1.
    pub slots: usize,
    /// Whether it has [`Rdma`].
    pub rdma: bool,
    /// Whether it has [`Mapped`].
    pub mapped: bool,
    /// Whether its [`Rdma`] has [`atomic`](Rdma::atomic): under a lock of the memory's end, by a load and a store, so not
    /// atomic against anything else, as with adapters.
    pub atomics: bool,
    /// Whether its [`Rdma`] reaches memory of devices, through their [dma-bufs](Device::dma_buf), as adapters do. Only
    /// files can be such dma-bufs here: those of the [fake device](gapless_mem::fake::FakeDevice) are.
    pub direct: bool,
    /// [`RdmaLimits::register_ns`].
    pub register_ns: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: "loopback",
            eager_bytes: 8 << 10,
            max_fragment_bytes: 32 << 10,
            latency_ns: 50,
            bandwidth_mb_s: 20_000,
            ordered: true,
            slots: 32,
            rdma: true,
            mapped: true,
            atomics: true,
            direct: false,
            register_ns: 0,
        }
    }
}

/// A link to one end of the hub.
struct Peer {
    end: Arc<HubEnd>,
    pool: HeapPool,
    lost: bool,
}

/// One end of a [`Hub`].
pub struct Loopback {
    hub: Hub,
    end: Arc<HubEnd>,
    config: Config,
    limits: Limits,
    rdma_limits: RdmaLimits,
    peers: Vec<Peer>,
    /// By the peer's number in the hub.
    names: HashMap<u32, PeerId>,
    /// Events for the next polls.
    ready: VecDeque<Event>,
    /// Messages of ends that we have not connected to yet.
    early: Vec<Note>,
    /// Emptied inboxes are exchanged, so that neither side allocates.
    spare: Vec<Note>,
    /// The end of the wake-up socket that `arm` gives out, once it has been asked for.
    wake: Option<UnixStream>,
    /// The name of its [`Rdma`] and its [`Mapped`].
    ability: AbilityId,
    /// Devices whose memory can be mapped.
    devices: Vec<Arc<dyn Device>>,
    /// Whether others' memory is read where it lies.
    has_single_copy_reads: bool,
}

impl Loopback {
    /// A new end of `hub` with the default [`Config`].
    #[must_use]
    pub fn new(hub: &Hub) -> Loopback {
        Loopback::with(hub, Config::default())
    }

    /// A new end of `hub`.
    #[must_use]
    pub fn with(hub: &Hub, config: Config) -> Loopback {
        let max_fragment_bytes = config.max_fragment_bytes.max(config.eager_bytes).max(256);
        Loopback {
            hub: hub.clone(),
            end: hub.join(),
            limits: Limits {
                name: config.name,
                eager_bytes: config.eager_bytes,
                max_fragment_bytes,
                ordered: config.ordered,
                latency_ns: config.latency_ns,
                bandwidth_mb_s: config.bandwidth_mb_s,
                death_notice_ms: 100,
            },
            rdma_limits: RdmaLimits {
                max_pieces: 1024,
                operation_ns: 50,
                piece_ns: 10,
                bandwidth_mb_s: config.bandwidth_mb_s,
                register_ns: config.register_ns,
                register_mib_ns: 0,
            },
            config,
            peers: Vec::new(),
            names: HashMap::new(),
            ready: VecDeque::new(),
            early: Vec::new(),
            spare: Vec::new(),
            wake: None,
            ability: AbilityId::new(),
            devices: Vec::new(),
            has_single_copy_reads: false,
        }
    }

    /// More waiting reports than this make `reserve`, `get` and `put` say `Full`, so that a sender that never polls
    /// stays bounded.
    fn ready_max(&self) -> usize {
        4 * self.config.slots.max(16)
    }

    fn peer(&self, id: PeerId) -> Result<&Peer, LinkError> {
        let peer = self.peers.get(id.0 as usize).ok_or_else(|| LinkError::Unreachable {
            reason: format!("{id} was never connected"),
        })?;
        if peer.lost || peer.end.is_gone() { Err(gone()) } else { Ok(peer) }
    }

    /// Turns the notes of the inbox into reports.
    fn collect(&mut self) {
        if !self.end.take_notes(&mut self.spare) {
            return;
        }
        let mut notes = std::mem::take(&mut self.spare);
        for note in notes.drain(..) {
            match self.names.get(&note.from()) {
                Some(&id) => self.report(id, note),
                None => self.early.push(note),
            }
        }
        self.spare = notes;
    }

    fn report(&mut self, id: PeerId, note: Note) {
        match note {
            Note::Message { tag, fragment, .. } => {
                self.ready.push_back(Event::Arrived { from: id, tag, fragment });
            }
            Note::Gone { .. } => self.lose(id),
        }
    }

    fn lose(&mut self, id: PeerId) {
        let peer = &mut self.peers[id.0 as usize];
        if !std::mem::replace(&mut peer.lost, true) {
            self.ready.push_back(Event::Lost { peer: id, error: gone() });
        }
    }

    fn deliver(&mut self, slot: Slot, tag: AmTag) -> Result<(), LinkError> {
        let id = slot.peer();
        let pool = &self.peers.get(id.0 as usize).expect("a slot of this transport").pool;
        let buffer = pool.open(slot).expect("a slot of this transport");
        let peer = self.peer(id)?;
        let fragment = buffer.into_fragment();
        if Arc::ptr_eq(&peer.end, &self.end) {
            self.ready.push_back(Event::Arrived { from: id, tag, fragment });
            return Ok(());
        }
        let note = Note::Message { from: self.end.number(), tag, fragment };
        if peer.end.give(note) { Ok(()) } else { Err(gone()) }
    }
}

fn gone() -> LinkError {
    LinkError::PeerGone { reason: "its loopback endpoint was dropped".to_owned() }
}

impl Btl for Loopback {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.hub.address_of(&self.end)
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let end = self.hub.find(peer)?;
        if let Some(&id) = self.names.get(&end.number()) {
            return Ok(id);
        }
        let next = u32::try_from(self.peers.len()).map_err(|_| LinkError::Unreachable {
            reason: "there are 2³² peers already".to_owned(),
        })?;
        let id = PeerId(next);
        let was_gone = end.is_gone();
        let number = end.number();
        let pool = HeapPool::new(self.config.slots.max(1), self.limits.max_fragment_bytes);
        self.peers.push(Peer { end, pool, lost: false });
        // Everything that it had sent before its end is in the inbox now, and comes first.
        self.collect();
        self.names.insert(number, id);
        for note in std::mem::take(&mut self.early) {
            if note.from() == number {
                self.report(id, note);
            } else {
                self.early.push(note);
            }
        }
        if was_gone {
            self.lose(id);
        }
        Ok(id)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let peer = self.peer(to)?;
        if self.ready.len() >= self.ready_max() && len <= self.limits.max_fragment_bytes {
            return Err(ReserveError::Full);
        }
        peer.pool.slot(to, len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let result = self.deliver(slot, tag);
        if done != Token::NONE {
            self.ready.push_back(Event::Sent { token: done, result });
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.collect();
        hand_out(&mut self.ready, only, sink)
    }

    fn arm(&mut self) -> Option<RawFd> {
        if self.wake.is_none() {
            let (ours, theirs) = UnixStream::pair().ok()?;
            ours.set_nonblocking(true).ok()?;
            theirs.set_nonblocking(true).ok()?;
            self.end.hang(theirs);
            self.wake = Some(ours);
        }
        let wake = self.wake.as_mut()?;
        // Old rings are cleared before it is armed again; later notes ring it.
        let mut rings = [0u8; 64];
        while matches!(wake.read(&mut rings), Ok(1..)) {}
        let waiting = !self.ready.is_empty();
        self.end.arm(waiting);
        Some(wake.as_raw_fd())
    }

    /// Slots are ordinary memory, which comes and goes with messages: not registered.
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        if !self.devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            self.devices.push(Arc::clone(device));
        }
        Ok(())
    }

    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        self.devices.retain(|known| !Arc::ptr_eq(known, device));
        true
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        if self.config.rdma { Some(self) } else { None }
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        if self.config.mapped { Some(self) } else { None }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.end.close();
        self.hub.announce_death(&self.end);
    }
}

impl std::fmt::Debug for Loopback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loopback {} of {:?}", self.end.number(), self.hub)
    }
}
