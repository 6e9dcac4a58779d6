//! The transport: its parts, and the contract.

use crate::address::{IbAddress, Id, job_digest};
use crate::buffers::Arrivals;
use crate::config::{IbConfig, lockable};
use crate::connection_manager::ConnectionManager;
use crate::device::{Chosen, choose};
use crate::header::HEADER_BYTES;
use crate::link::{DrainingQp, INLINE_BYTES, IbLink, LinkState, receives, sends};
use crate::pending::PendingConnections;
use crate::proof::Keys;
use crate::qp_address::QpAddress;
use crate::rdma::OneSided;
use crate::retain::Retained;
use crate::system;
use crate::verbs::device::{Numbers, Port};
use crate::verbs::flags::Capabilities;
use crate::verbs::memory::Domain;
use crate::verbs::pair::{Here, Lengths, Qp};
use crate::verbs::queues::{Channel, Done, Poller, Srq};
use crate::wake_fd::WakeFd;
use gapless_btl::watch::{Interest, Watch};
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, PeerId, Rdma, ReserveError, SHORT_BYTES, Short,
    Sink, Slot, Token, Unacknowledged,
};
use gapless_mem::Device;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `Sent` events that may wait for a poll.
const UNREPORTED: usize = 8192;
/// Buffers of the shared receive queue, for all links.
const RECEIVES_MAX: u32 = 1 << 15;

#[cfg(test)]
thread_local! {
    /// For tests: so many buffers at most.
    pub(crate) static FEW_RECEIVES: std::cell::Cell<u32> = const { std::cell::Cell::new(RECEIVES_MAX) };
}

/// [`RECEIVES_MAX`], or what a test has put in its place.
fn receives_max() -> u32 {
    #[cfg(test)]
    return FEW_RECEIVES.get();
    #[cfg(not(test))]
    RECEIVES_MAX
}

/// Verbs between the processes of a job.
pub struct Ib {
    pub(crate) config: IbConfig,
    limits: Limits,
    pub(crate) keys: Keys,
    pub(crate) address: IbAddress,
    pub(crate) here: Here,
    pub(crate) port: Port,
    pub(crate) numbers: Numbers,
    pub(crate) lengths: Lengths,
    pub(crate) domain: Arc<Domain>,
    pub(crate) srq: Arc<Srq>,
    pub(crate) poller: Poller,
    pub(crate) arrivals: Arrivals,
    pub(crate) cm: ConnectionManager,
    pub(crate) pending: PendingConnections,
    pub(crate) watch: Watch,
    wake: Arc<WakeFd>,
    pub(crate) links: Vec<IbLink>,
    pub(crate) by_id: HashMap<Id, u32>,
    /// Links by the numbers of their queue pairs.
    pub(crate) by_number: HashMap<u32, u32>,
    /// Queue pairs, those of links that have ended included: they have completions.
    pub(crate) pairs: u32,
    /// How many links are being called.
    pub(crate) calling: usize,
    /// Links whose queue pairs are in the error state.
    pub(crate) endings: Vec<u32>,
    pub(crate) draining: Vec<DrainingQp>,
    /// Links that may have to be told of room.
    pub(crate) owing: Vec<u32>,
    /// Links that stand and retain what they send; those of them whose peers were not told of all that has come; and a list
    /// of whose messages were handed out, for its memory.
    pub(crate) retaining: Vec<u32>,
    pub(crate) untold: Vec<u32>,
    pub(crate) handed_out: Vec<(u32, u64)>,
    /// A device has refused buffers: messages of all of them are staged.
    pub(crate) staged: bool,
    /// Messages of links that have ended which callers hold still.
    pub(crate) debts: HashMap<u32, u32>,
    /// Events that wait for a poll.
    pub(crate) outbox: VecDeque<Event>,
    /// An empty list, for its memory.
    pub(crate) done: Vec<Done>,
    pub(crate) one_sided: OneSided,
    pub(crate) polls: u32,
    pub(crate) armed: bool,
    pub(crate) ticked: Instant,
}

/// Fresh randomness.
///
/// # Errors
/// The system has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    let mut got = 0;
    while got < N {
        match getrandom(&mut bytes[got..], GetRandomFlags::empty()) {
            Ok(count) => got += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("getrandom", error)),
        }
    }
    Ok(bytes)
}

/// Whether a device can do what the configuration wants: peers' numbers must be the same, so none is lowered.
///
/// # Errors
/// It cannot.
fn check_device(
    config: &IbConfig,
    entries: u32,
    numbers: &Numbers,
    port: &Port,
) -> Result<(), LinkError> {
    let (buffers, bytes) = (config.buffers, config.fragment_bytes);
    let (sends, receives) = (sends(buffers), receives(buffers));
    let longest = port.longest_message;
    if receives > entries || sends > numbers.sends_max || bytes + HEADER_BYTES > longest as usize {
        let what = format!(
            "{buffers} buffers of {bytes} bytes need {sends} sends and {receives} receives; the device has {}, \
             {entries} and messages of {longest} bytes",
            numbers.sends_max
        );
        return Err(LinkError::Incompatible { what });
    }
    Ok(())
}

impl Ib {
    /// Opens the transport on a port, as the configuration says. Peers can call it from now on.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`]: no such device or port, or it has no link. [`LinkError::Incompatible`]: a number out of
    /// its bounds. [`LinkError::System`]: no library, or the system or the device has no more of something, mostly of
    /// memory that may be locked.
    pub fn new(mut config: IbConfig) -> Result<Ib, LinkError> {
        config.check()?;
        if config.registered_bytes_max == u64::MAX {
            config.registered_bytes_max = lockable() / 4;
        }
        let Chosen { context, numbers, port, gid } = choose(&config)?;
        let domain = Domain::new(&context)?;
        let per_link = receives(config.buffers);
        let entries = receives_max().min(numbers.shared_receives_max);
        check_device(&config, entries, &numbers, &port)?;
        let srq = Srq::new(&domain, entries)?;
        let channel = Channel::new(&context)?;
        let poller = Poller::new(&channel, 4 * (per_link + sends(config.buffers)))?;
        let mut lengths = Lengths {
            sends: sends(config.buffers),
            receives: 0,
            inline_bytes: u32::try_from(INLINE_BYTES).unwrap_or(0),
            atomics: numbers.capabilities.contains(Capabilities::ATOMICS),
        };
        // Where the library does not know them, links would fail for their sake.
        if lengths.atomics
            && let Err(error) = Qp::new(&poller.cq, &srq, &Lengths { inline_bytes: 0, ..lengths })
        {
            tracing::debug!(%error, "no atomic operations");
            lengths.atomics = false;
        }
        let here = Here {
            port: port.number,
            gid_index: gid.index,
            pkey_index: config.pkey_index,
            traffic_class: config.traffic_class,
            service_level: config.service_level,
        };
        let keys = Keys::new(&config.secret, &config.job);
        let id = random()?;
        let lid = port.lid;
        let cm = ConnectionManager::new(&domain, here, &keys, (id, config.rank), (gid.bytes, lid))?;
        crate::dont_block(context.events_fd())?;
        // Nobody asks which of them it is.
        let (watch, wake) = (Watch::new(0u64)?, Arc::new(WakeFd::new()?));
        for fd in [channel.fd(), cm.inbox_fd(), context.events_fd(), wake.fd()] {
            watch.add(fd, 0u64, Interest::READING)?;
        }
        let place = QpAddress { gid: gid.bytes, lid, number: cm.number() };
        let address = IbAddress {
            kind: port.kind,
            rank: config.rank,
            id,
            job: job_digest(&config.job),
            cm: place,
        };
        tracing::debug!(device = context.name, port = port.number, gid = %place, "verbs port opened");
        let mb_s = if port.mbit_s == 0 { 1_000 } else { port.mbit_s / 8 };
        let fragment = config.fragment_bytes;
        let notice_ms = u32::try_from(config.notice.as_millis()).unwrap_or(u32::MAX);
        Ok(Ib {
            limits: Limits {
                name: config.name,
                eager_bytes: config.eager_bytes,
                max_fragment_bytes: fragment,
                ordered: true,
                latency_ns: 1_500,
                bandwidth_mb_s: mb_s,
                death_notice_ms: notice_ms,
            },
            one_sided: OneSided::new(&config, &domain, mb_s)?,
            arrivals: Arrivals::new(Arc::clone(&srq), &wake, (entries, per_link), fragment),
            wake,
            lengths,
            config,
            keys,
            address,
            here,
            port,
            numbers,
            domain,
            srq,
            poller,
            cm,
            pending: PendingConnections::default(),
            watch,
            links: Vec::new(),
            by_id: HashMap::new(),
            by_number: HashMap::new(),
            pairs: 0,
            calling: 0,
            endings: Vec::new(),
            draining: Vec::new(),
            owing: Vec::new(),
            retaining: Vec::new(),
            untold: Vec::new(),
            handed_out: Vec::new(),
            staged: false,
            debts: HashMap::new(),
            outbox: VecDeque::with_capacity(64),
            done: Vec::with_capacity(crate::verbs::queues::BATCH),
            polls: 0,
            armed: false,
            ticked: Instant::now(),
        })
    }

    /// The device's name and the port's number, for messages to people.
    #[must_use]
    pub fn port_name(&self) -> String {
        format!("{} port {}", self.domain.context.name, self.here.port)
    }

    /// For how long silence is normal.
    pub(crate) fn patience(&self) -> Duration {
        self.config.notice / 4
    }

    fn known(&self, peer: PeerId) -> Result<&IbLink, LinkError> {
        self.links.get(peer.0 as usize).ok_or_else(|| LinkError::Unreachable {
            reason: format!("{peer} was never connected to"),
        })
    }

    /// What a message of a link that has ended comes to.
    pub(crate) fn unsent(&mut self, token: Token, error: LinkError) {
        if token != Token::NONE {
            self.outbox.push_back(Event::Sent { token, result: Err(error) });
        }
    }
}

impl Btl for Ib {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.address.to_bytes()
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let id = self.know(peer)?;
        self.call(id)?;
        Ok(PeerId(id))
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        self.know(peer).map(PeerId)
    }

    fn has_met(&self, peer: PeerId) -> bool {
        self.links.get(peer.0 as usize).is_some_and(|link| link.met)
    }

    fn callers(&mut self) -> Option<Vec<u32>> {
        Some(self.pending.take_called())
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let max = self.config.fragment_bytes;
        self.known(to)?;
        let waiting = self.outbox.len() >= UNREPORTED;
        match &mut self.links[to.0 as usize].state {
            LinkState::Lost(error) => return Err(error.clone().into()),
            _ if len > max => return Err(ReserveError::TooLong { len, max }),
            LinkState::Up(up) if !waiting => {
                if up.has_room() {
                    return up.slots.take(to, len).ok_or(ReserveError::Full);
                }
            }
            LinkState::Known => {
                if let Err(error) = self.call(to.0) {
                    self.lose(to.0, error.clone());
                    return Err(error.into());
                }
            }
            LinkState::Calling(_) | LinkState::Up(_) => {}
        }
        Err(ReserveError::Full)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let to = slot.peer().0;
        let Some(link) = self.links.get_mut(to as usize) else {
            let reason = "the slot is of another transport".to_owned();
            return self.unsent(done, LinkError::Unreachable { reason });
        };
        let error = match &mut link.state {
            LinkState::Up(up) => match (up.slots.open(slot), &up.ending) {
                (Ok(filled), None) => {
                    if let Err(error) = up.send(to, tag.0, filled, done) {
                        self.end(to, error);
                    }
                    return;
                }
                (Ok(filled), Some(ending)) => {
                    let error = ending.error.clone();
                    if up.keep(tag, filled, done) {
                        return;
                    }
                    error
                }
                (Err(_), _) => {
                    LinkError::Unreachable { reason: "the slot is of another link".to_owned() }
                }
            },
            LinkState::Lost(_) if link.retains => {
                let message = slot.to_vec().expect("slots are memory that the CPU may touch");
                link.unacknowledged.push(Unacknowledged { tag, message, done });
                return;
            }
            LinkState::Lost(error) => error.clone(),
            LinkState::Known | LinkState::Calling(_) => {
                LinkError::Unreachable { reason: "the slot is of another transport".to_owned() }
            }
        };
        self.unsent(done, error);
    }

    fn send_short(&mut self, to: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let mut bytes = [0; SHORT_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(message.words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let bytes = &bytes[..message.len()];
        let inline = HEADER_BYTES + bytes.len() <= self.lengths.inline_bytes as usize;
        let fits = inline && bytes.len() <= self.config.fragment_bytes;
        let up = self.links.get_mut(to.0 as usize).and_then(IbLink::up);
        // What is retained needs a buffer.
        if fits && let Some(up) = up.filter(|up| !up.retains()) {
            if !up.has_room() {
                return false;
            }
            let Err(error) = up.send_inline(to.0, tag.0, bytes) else { return true };
            self.end(to.0, error);
            return false;
        }
        let Ok(mut slot) = self.reserve(to, bytes.len()) else { return false };
        let written = slot.write(0, bytes).is_ok();
        if written {
            self.send(slot, tag, Token::NONE);
        }
        written
    }

    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        self.attach_device(device)
    }

    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        let finished = device.finish();
        if finished {
            self.detach_device(device);
        }
        finished
    }

    fn retains(&self) -> bool {
        true
    }

    fn retain(&mut self, peer: PeerId) {
        self.retain_for(peer.0);
    }

    fn unacknowledged(&mut self, peer: PeerId) -> Vec<Unacknowledged> {
        let link = self.links.get_mut(peer.0 as usize);
        link.map(|link| std::mem::take(&mut link.unacknowledged)).unwrap_or_default()
    }

    fn outstanding(&self, peer: PeerId) -> u64 {
        let Some(link) = self.links.get(peer.0 as usize) else { return 0 };
        match &link.state {
            LinkState::Up(up) => up.retained.as_ref().map_or(0, Retained::outstanding),
            _ => link.unacknowledged.iter().map(|it| it.message.len() as u64).sum(),
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.poll_for(only, sink)
    }

    fn arm(&mut self) -> Option<RawFd> {
        self.armed = true;
        self.wake.listen();
        self.poller.cq.channel.hush();
        self.poller.arm();
        self.set_alarm();
        Some(self.watch.raw())
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        Some(self)
    }
}

impl std::fmt::Debug for Ib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, cm) = (self.address.rank, self.address.cm);
        write!(f, "Ib of rank {rank} on {} at {cm}, {} peers", self.port_name(), self.links.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkKind, Secret};

    #[test]
    fn a_device_that_is_too_small_is_refused() {
        let config = IbConfig::new("job", 0, Secret::new([1; 32]));
        let (sends, receives) = (sends(config.buffers), receives(config.buffers));
        let longest = u32::try_from(config.fragment_bytes + HEADER_BYTES).unwrap();
        let check = |entries, sends_max, longest_message| {
            let capabilities = Capabilities::empty();
            let (reads_max, reads_served_max, ports) = (1, 1, 1);
            let shared_receives_max = entries;
            let numbers = Numbers {
                capabilities,
                shared_receives_max,
                sends_max,
                reads_max,
                reads_served_max,
                ports,
                even_pieces: false,
            };
            let (kind, mtu, mbit_s) = (LinkKind::Ethernet, 3, 0);
            let port = Port {
                number: 1,
                active: true,
                kind,
                lid: 0,
                mtu,
                mbit_s,
                longest_message,
                partitions: 1,
            };
            check_device(&config, entries, &numbers, &port)
        };
        assert_eq!(check(receives, sends, longest), Ok(()));
        for (entries, sends, longest) in [
            (receives - 1, sends, longest),
            (receives, sends - 1, longest),
            (receives, sends, longest - 1),
            (receives, sends, 0),
        ] {
            let refused = check(entries, sends, longest);
            assert!(matches!(refused, Err(LinkError::Incompatible { .. })), "{refused:?}");
        }
    }
}
