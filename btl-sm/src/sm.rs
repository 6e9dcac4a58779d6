//! The transport: peers by number, the poll loop, sleeping, devices.

use crate::address::{Nonce, SmAddress, random};
use crate::arm::Reason;
use crate::config::SmConfig;
use crate::device_exports::DeviceExports;
use crate::device_imports::DeviceImports;
use crate::export_tracking::Owed;
use crate::geometry::Geometry;
use crate::imports::Imports;
use crate::link::{LinkState, SmLink};
use crate::mapped::Exports;
use crate::meeting::ConnectionManager;
use crate::segment::{self, Segment};
use crate::single_copy::{Probe, SingleCopy};
use crate::sync::Fences;
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, Mapped, POLLS_PER_LOOK, PeerId, Rdma,
    ReserveError, Short, Sink, Slot, Token,
};
use gapless_mem::{Device, DeviceError};
use gapless_sync::membarrier;
use rustix::fd::{AsRawFd, RawFd};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Messages taken from one peer in one poll: bounds the poll and is fair to the others.
const BATCH: usize = 32;
/// How often the sockets are looked at while nothing else calls for it.
const LOOK: Duration = Duration::from_millis(1);
/// Polls without a result after which a sleep that was announced is called off.
const EMPTY_POLLS: u32 = 4;
/// `Sent` events that may wait for a poll.
const UNREPORTED: usize = 8192;

/// Shared memory between the processes of one host, one user and one job.
pub struct Sm {
    pub(crate) config: SmConfig,
    limits: Limits,
    pub(crate) geometry: Geometry,
    /// `config.parked`, checked.
    pub(crate) parked: u32,
    pub(crate) address: SmAddress,
    pub(crate) asymmetric: bool,
    pub(crate) probe: Probe,
    pub(crate) cm: ConnectionManager,
    pub(crate) links: Vec<SmLink>,
    pub(crate) by_nonce: HashMap<Nonce, PeerId>,
    /// Links to receive from or to bury.
    pub(crate) active: Vec<u32>,
    /// Where in `active` the next poll starts.
    turn: usize,
    /// How many links are dying.
    pub(crate) dying: usize,
    /// Events that wait for a poll.
    pub(crate) pending_events: VecDeque<Event>,
    pub(crate) single_copy: SingleCopy,
    pub(crate) exports: Exports,
    pub(crate) imports: Imports,
    /// A socket was too full for a notice.
    pub(crate) packets_wait: bool,
    /// What peers are still to be told that are lost.
    pub(crate) owed: Arc<Owed>,
    pub(crate) device_exports: DeviceExports,
    pub(crate) device_imports: DeviceImports,
    /// All that were attached.
    pub(crate) attached: Vec<Arc<dyn Device>>,
    /// Those of them that segments are registered with.
    pub(crate) devices: Vec<Arc<dyn Device>>,
    pub(crate) ticks: u32,
    /// While a sleep is announced: polls without a result since.
    pub(crate) armed: Option<u32>,
}

impl Sm {
    /// Opens the transport; from now on peers can meet it.
    ///
    /// # Errors
    /// [`LinkError::BadAddress`] for names that are too long, [`LinkError::Incompatible`] for sizes
    /// out of bounds, [`LinkError::System`] if the system refuses a socket, calls of others or memory.
    pub fn new(config: SmConfig) -> Result<Sm, LinkError> {
        let refused = |what: String| LinkError::Incompatible { what };
        let geometry = Geometry::new(config.ring_lines, &config.classes).map_err(refused)?;
        let largest = config.classes.last().map_or(0, |class| class.bytes);
        if largest < 256 {
            let what = format!("slots of at most {largest} bytes: at least 256 are needed");
            return Err(refused(what));
        }
        let parked = u32::try_from(config.parked)
            .ok()
            .filter(|parked| (1..=1 << 20).contains(parked))
            .ok_or_else(|| refused(format!("{} parked messages: not 1 to 2²⁰", config.parked)))?;
        // A lane is made when a peer is first needed: better told now than then.
        segment::check_length(geometry.total())?;
        let address = SmAddress::own(&config.job, &config.name)?;
        let mut word = [0; 8];
        random(&mut word)?;
        let cm = ConnectionManager::open(&address.meeting_place())?;
        Ok(Sm {
            limits: Limits {
                name: "sm",
                eager_bytes: config.eager_bytes.min(largest),
                max_fragment_bytes: largest,
                ordered: true,
                latency_ns: 100,
                bandwidth_mb_s: 20_000,
                death_notice_ms: 200,
            },
            geometry,
            parked,
            address,
            asymmetric: membarrier::register(),
            probe: Probe::new(u64::from_ne_bytes(word)),
            cm,
            links: Vec::new(),
            by_nonce: HashMap::new(),
            active: Vec::new(),
            turn: 0,
            dying: 0,
            pending_events: VecDeque::with_capacity(64),
            single_copy: SingleCopy::new(),
            exports: Exports::default(),
            imports: Imports::new(config.map_cache_bytes, config.map_cache_entries),
            packets_wait: false,
            owed: Arc::default(),
            device_exports: DeviceExports::new(config.device_exports),
            device_imports: DeviceImports::new(
                config.device_map_cache_bytes,
                config.device_map_cache_entries,
            ),
            attached: Vec::new(),
            devices: Vec::new(),
            ticks: 0,
            armed: None,
            config,
        })
    }

    /// The link behind a peer's number.
    ///
    /// # Errors
    /// There never was one.
    pub(crate) fn link(&self, peer: PeerId) -> Result<&SmLink, LinkError> {
        self.links.get(peer.0 as usize).ok_or_else(|| LinkError::Unreachable {
            reason: format!("{peer} was never connected to"),
        })
    }

    /// The peer with this address, and whether it is new.
    ///
    /// # Errors
    /// It is no address, or that of a process which ours cannot reach.
    fn find(&mut self, address: &Address) -> Result<(u32, bool), LinkError> {
        let address = SmAddress::read(address)?;
        if let Some(&known) = self.by_nonce.get(&address.nonce) {
            return Ok((known.0, false));
        }
        address.check_reachable(&self.address)?;
        self.know(address).map(|id| (id, true))
    }

    /// Whether a look at the sockets is due.
    pub(crate) fn tick(&mut self) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        if self.armed.is_some() {
            return true;
        }
        self.ticks.is_multiple_of(POLLS_PER_LOOK)
            && (self.cm.meeting > 0 || self.cm.looked.elapsed() >= LOOK)
    }

    /// Gives what waits for a poll, as far as there is room; how many events that is.
    #[inline]
    fn report(&mut self, sink: &mut dyn Sink) -> usize {
        if self.pending_events.is_empty() { 0 } else { self.report_some(sink) }
    }

    fn report_some(&mut self, sink: &mut dyn Sink) -> usize {
        let count = sink.room().min(self.pending_events.len());
        self.pending_events.drain(..count).for_each(|event| sink.event(event));
        count
    }

    /// Takes messages from every peer, beginning with another one each time.
    #[inline]
    fn receive(&mut self, sink: &mut dyn Sink) -> usize {
        let peers = self.active.len();
        self.turn = if self.turn + 1 < peers { self.turn + 1 } else { 0 };
        let mut at = self.turn;
        let mut taken = 0;
        for _ in 0..peers {
            let id = self.active[at];
            at = if at + 1 < peers { at + 1 } else { 0 };
            let Some(inbound) = &mut self.links[id as usize].inbound else { continue };
            match inbound.receive(PeerId(id), sink, BATCH) {
                Ok(messages) => taken += messages,
                Err(error) => self.disbelieve(id, error),
            }
        }
        taken
    }

    /// A peer has broken the rules, perhaps one that is dying already: nothing more of it is believed.
    #[cold]
    fn disbelieve(&mut self, id: u32, error: LinkError) {
        self.die(id, error);
        self.links[id as usize].inbound = None;
    }

    /// Takes the next message of one peer.
    #[inline]
    fn receive_next(&mut self, from: PeerId, sink: &mut dyn Sink) -> usize {
        let link = self.links.get_mut(from.0 as usize);
        let Some(inbound) = link.and_then(|link| link.inbound.as_mut()) else { return 0 };
        match inbound.receive_next(from, sink) {
            Ok(taken) => usize::from(taken),
            Err(error) => {
                self.disbelieve(from.0, error);
                0
            }
        }
    }

    /// Ends what is dying and has delivered everything.
    fn bury_dead(&mut self) {
        let mut at = 0;
        while at < self.active.len() {
            let id = self.active[at];
            let link = &self.links[id as usize];
            let drained = link.inbound.as_ref().is_none_or(|inbound| !inbound.is_due());
            if drained && matches!(link.state, LinkState::Dying(_)) {
                self.bury(id);
                self.active.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Calls off an announced sleep.
    #[cold]
    fn disarm(&mut self) {
        self.armed = None;
        for link in &self.links {
            if let Some(outbound) = &link.outbound {
                link.sleeper.disarm(outbound.lane().sleep());
            }
        }
    }

    /// A link that comes up while we are about to sleep sleeps as well.
    pub(crate) fn arm_link(&mut self, id: u32) {
        let link = &mut self.links[id as usize];
        if let (Some(_), Some(outbound)) = (self.armed, &link.outbound) {
            link.sleeper.arm(outbound.lane().sleep(), link.lacks_room);
            // The last look follows in this very poll.
            if !link.fences().patient() {
                self.die(
                    id,
                    crate::system(
                        "membarrier",
                        "it worked before; the peer could be slept through",
                    ),
                );
            }
        }
    }

    /// Polls for all that there is.
    #[inline]
    fn poll_all(&mut self, sink: &mut dyn Sink) -> usize {
        if self.tick() {
            self.look_around();
        }
        if self.exports.has_freed() {
            self.announce_freed();
        }
        if self.device_imports.has_released() || self.imports.has_released() {
            self.announce_released();
        }
        let mut found = self.report(sink) + self.receive(sink);
        if self.dying > 0 {
            self.bury_dead();
        }
        if !self.single_copy.is_idle() {
            self.single_copy.step(&mut self.pending_events);
        }
        found += self.report(sink);
        if let Some(empty) = self.armed {
            if found > 0 || empty + 1 >= EMPTY_POLLS {
                self.disarm();
            } else {
                self.armed = Some(empty + 1);
            }
        }
        found
    }

    /// Makes a new link's memory known to the devices we were told of.
    pub(crate) fn introduce_to_devices(&self, id: u32) {
        for device in &self.devices {
            for segment in self.links[id as usize].segments() {
                if let Err(error) = segment.register(device) {
                    tracing::debug!(%error, "a segment is not known to a device");
                }
            }
        }
    }

    fn visit_segments(&self, mut visit: impl FnMut(&Segment)) {
        self.links.iter().flat_map(SmLink::segments).for_each(&mut visit);
        self.imports.for_each_segment(&mut visit);
        self.exports.for_each_segment(visit);
    }
}

impl Btl for Sm {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.address.to_bytes()
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let (id, new) = self.find(peer)?;
        if !new {
            self.need(id);
        } else if let Err(error) = self.call(id) {
            // As if it had never been asked for.
            let link = self.links.pop();
            link.map(|link| self.by_nonce.remove(&link.address.nonce));
            return Err(error);
        }
        Ok(PeerId(id))
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let (id, new) = self.find(peer)?;
        if new && self.is_called_by(id) {
            self.need(id);
        }
        Ok(PeerId(id))
    }

    fn has_met(&self, peer: PeerId) -> bool {
        self.links.get(peer.0 as usize).is_some_and(|link| link.state != LinkState::Known)
    }

    fn callers(&mut self) -> Option<Vec<u32>> {
        self.config.number?;
        Some(self.cm.called.take())
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let Some(link) = self.links.get_mut(to.0 as usize) else {
            return Err(self.link(to).err().map_or(ReserveError::Full, ReserveError::Link));
        };
        let max = self.limits.max_fragment_bytes;
        if len > max {
            return Err(ReserveError::TooLong { len, max });
        }
        if link.state != LinkState::Up {
            self.need(to.0);
            self.links[to.0 as usize].is_up()?;
            return Err(ReserveError::Full);
        }
        if self.pending_events.len() >= UNREPORTED {
            return Err(ReserveError::Full);
        }
        let Some(outbound) = &mut link.outbound else { return Err(ReserveError::Full) };
        let error = match outbound.claim(len) {
            Ok(index) => {
                link.lacks_room = false;
                return Ok(outbound.slot(to, len, index));
            }
            Err(error) => error,
        };
        if let ReserveError::Link(error) = &error {
            self.die(to.0, error.clone());
        } else {
            link.lacks_room = true;
        }
        Err(error)
    }

    /// Publishes the message. On a link that has ended in the meantime the slot is dropped, and
    /// `done` completes with the link's error.
    ///
    /// # Panics
    /// If the slot came from another transport.
    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let peer = slot.peer();
        let link = self.links.get_mut(peer.0 as usize).expect("a slot of this transport");
        let mut result = Ok(());
        if let (LinkState::Up, Some(outbound)) = (&link.state, &mut link.outbound) {
            assert!(outbound.owns(&slot), "a slot of this transport");
            outbound.send(slot, tag.0);
            if let Some(waker) = &link.waker {
                waker.wake(Reason::Message);
            }
        } else {
            result = link.is_up().map(|_| ());
        }
        if done != Token::NONE {
            self.pending_events.push_back(Event::Sent { token: done, result });
        }
    }

    fn send_short(&mut self, to: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let Some(link) = self.links.get_mut(to.0 as usize) else { return false };
        let (LinkState::Up, Some(outbound)) = (&link.state, &mut link.outbound) else {
            return false;
        };
        match outbound.send_short(tag.0, message.words(), message.len()) {
            Ok(true) => {
                link.lacks_room = false;
                if let Some(waker) = &link.waker {
                    waker.wake(Reason::Message);
                }
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.die(to.0, error);
                false
            }
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        match only {
            None => self.poll_all(sink),
            Some(from) => self.receive_next(from, sink),
        }
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        let nothing_due = |&id: &u32| {
            let inbound = &self.links[id as usize].inbound;
            inbound.as_ref().is_none_or(|inbound| !inbound.is_due())
        };
        self.active.iter().all(nothing_due)
            && self.pending_events.is_empty()
            && self.dying == 0
            && self.armed.is_none()
            && self.single_copy.is_idle()
            && !self.exports.has_freed()
            && !self.device_imports.has_released()
            && !self.imports.has_released()
    }

    /// Announces sleep to all peers and gives the epoll descriptor of our sockets.
    ///
    /// The announcement holds until a poll reports something, or for four polls that do not: the
    /// poll before blocking does not call it off. `None` while something is in flight that no
    /// descriptor reports (a single-copy transfer in steps, a full socket, parked messages that
    /// have taken all buffers), and if the system's barrier fails.
    fn arm(&mut self) -> Option<RawFd> {
        let starved = |link: &SmLink| link.inbound.as_ref().is_some_and(|half| half.is_starved());
        let unanswered = |link: &SmLink| link.state == LinkState::Meeting && !link.has_greeted();
        if !self.single_copy.is_idle()
            || self.packets_wait
            || self.dying > 0
            || self.cm.needs_polling()
            || self.links.iter().any(|link| starved(link) || unanswered(link))
        {
            return None;
        }
        let mut fences = Fences::Symmetric;
        for link in &mut self.links {
            if let Some(outbound) = &link.outbound {
                link.sleeper.arm(outbound.lane().sleep(), link.lacks_room);
            }
            if link.fences() == Fences::Asymmetric {
                fences = Fences::Asymmetric;
            }
        }
        self.armed = Some(0);
        fences.patient().then(|| self.cm.epoll.as_raw_fd())
    }

    /// Registers all segments, and those to come as far as the device takes them. Whether it does or
    /// not, its memory can be shared with peers, and theirs with it.
    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        if !self.attached.iter().any(|known| Arc::ptr_eq(known, device)) {
            self.attached.push(Arc::clone(device));
        }
        if self.devices.iter().any(|known| Arc::ptr_eq(known, device)) {
            return Ok(());
        }
        let mut result = Ok(());
        self.visit_segments(|segment| {
            if result.is_ok() {
                result = segment.register(device);
            }
        });
        match result {
            Ok(()) => {
                self.devices.push(Arc::clone(device));
                Ok(())
            }
            Err(DeviceError::Unsupported { .. }) => Ok(()),
            Err(error) => {
                self.visit_segments(|segment| segment.unregister(device));
                Err(crate::system("registering shared memory with a device", error))
            }
        }
    }

    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        if !device.finish() {
            return false;
        }
        self.visit_segments(|segment| segment.unregister(device));
        self.devices.retain(|known| !Arc::ptr_eq(known, device));
        self.attached.retain(|known| !Arc::ptr_eq(known, device));
        true
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        if self.config.single_copy { Some(self) } else { None }
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        Some(self)
    }
}

impl Drop for Sm {
    fn drop(&mut self) {
        // Fragments that are still parked hold sockets; the peers learn of the end all the same.
        self.links.iter().for_each(SmLink::hang_up);
        self.owed.close();
    }
}

impl std::fmt::Debug for Sm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let peers = self.links.len();
        write!(f, "Sm {:?} of job {:?} with {peers} peers", self.address.name, self.address.job)
    }
}
