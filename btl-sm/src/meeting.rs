//! Meeting and parting: who calls, who is let in, and how an end is noticed.
//!
//! All sockets hang on one epoll descriptor, level-triggered, which also serves to block on. It is
//! looked at about once a millisecond while messages flow, at every poll while blocked, and often
//! while greetings are outstanding.
//!
//! **Pending connections.** Whoever greets as a process of the job, before the link is called from here, is a pending connection.
//! These are kept by the name that they give (a nonce) and by the number of their process, which the kernel tells. An
//! impostor, a process that greets in another's name, so has an entry of its own: it does not take the one of the process
//! that it plays, and never becomes the link, because a link welcomes only the process that answered its own call. At
//! most [`pending_max`](unauthenticated::pending_max) processes greet in names that are not known here yet. Known names
//! have no such bound: an impostor that knows one, which takes a secret of the job, has one entry for each such name and
//! process of its own. Those entries are free again when the link is up or lost, and it is called as soon as anybody
//! greets in its name.

use crate::address::{Hello, Nonce, SmAddress};
use crate::credentials::check_peer;
use crate::inbound::Inbound;
use crate::lane::Lane;
use crate::link::{LinkState, SmLink};
use crate::sm::Sm;
use crate::socket::{self, Accepted, Received, Socket};
use crate::suspect;
use crate::sync::Fences;
use crate::unauthenticated::{self, RepeatedWarning};
use crate::waker::Waker;
use crate::watched::Watched;
use crate::wire::PACKET_BYTES;
use crate::{single_copy, system};
use gapless_btl::{Callers, Event, LinkError, PeerId};
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sockets served in one look; the kernel hands out the others first next time.
pub(crate) const EVENTS: usize = 64;
/// Callers accepted at a time: bounds one look.
const CALLERS: u32 = 64;
/// Descriptors that a pending connection holds: its socket, and its lane.
const PENDING_FILES: usize = 2;
/// Connections that may wait to be accepted.
const QUEUE: u32 = 4096;
/// How long to leave the listener alone when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(10);

/// Somebody who has greeted.
struct PendingConnection {
    socket: Socket,
    pid: i32,
    hello: Hello,
    lane: OwnedFd,
}

/// The listener, the epoll descriptor and those who are not links yet.
pub(crate) struct ConnectionManager {
    pub(crate) epoll: OwnedFd,
    /// Or why nobody can be met any more.
    listener: Result<OwnedFd, LinkError>,
    /// Since when the listener is left alone.
    pub(crate) paused: Option<Instant>,
    /// Callers that have not greeted yet, by serial number.
    callers: BTreeMap<u32, (Socket, i32)>,
    next_caller: u32,
    /// Those that have greeted before we were given their address: as whom, and the number of the process.
    pending: HashMap<(Nonce, i32), PendingConnection>,
    /// The numbers of those among them who are new.
    pub(crate) called: Callers,
    turned_away: RepeatedWarning,
    waiting: RepeatedWarning,
    /// When the sockets were last looked at.
    pub(crate) looked: Instant,
    /// Links that are not up yet and must be tried again.
    pub(crate) meeting: usize,
}

impl ConnectionManager {
    /// Opens it under the abstract name `place`.
    ///
    /// # Errors
    /// The system refused, also if it is only to accept calls that it refuses.
    pub(crate) fn open(place: &str) -> Result<ConnectionManager, LinkError> {
        let listener = socket::listen(place)?;
        // Nobody knows the name yet; but a process that can accept nobody should not let its peers wait.
        if let Accepted::Refused(error) = socket::accept(&listener) {
            return Err(error);
        }
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| system("epoll_create", e))?;
        let cm = ConnectionManager {
            epoll,
            listener: Ok(listener),
            paused: None,
            callers: BTreeMap::new(),
            next_caller: 0,
            pending: HashMap::new(),
            called: Callers::default(),
            turned_away: RepeatedWarning::new("a caller was turned away"),
            waiting: RepeatedWarning::new("callers have to wait"),
            looked: Instant::now(),
            meeting: 0,
        };
        cm.watch_listener()?;
        Ok(cm)
    }

    fn watch_listener(&self) -> Result<(), LinkError> {
        self.watch(self.listener.as_ref().map_err(LinkError::clone)?, Watched::Listener)
    }

    /// Descriptors that callers and pending connections hold.
    fn descriptors(&self) -> usize {
        self.callers.len() + PENDING_FILES * self.pending.len()
    }

    /// Whether new callers have to wait: as many connections are pending as may be, and some are about to be
    /// introduced.
    fn is_full(&self) -> bool {
        self.called.are_awaited() && self.pending.len() >= unauthenticated::pending_max()
    }

    /// Whoever was here longest without a greeting makes room, until only `most` descriptors are held; or
    /// until there are only pending connections.
    fn make_room(&mut self, most: usize) {
        while self.descriptors() > most
            && let Some((_, (oldest, _))) = self.callers.pop_first()
        {
            self.forget(&oldest);
        }
    }

    /// Whether blocking on the epoll descriptor would miss something.
    pub(crate) fn needs_polling(&self) -> bool {
        self.paused.is_some()
    }

    fn watch(&self, socket: &OwnedFd, what: Watched) -> Result<(), LinkError> {
        let flags = match what {
            // Nothing is ever read from these; ends are always reported.
            Watched::Outgoing(_) => EventFlags::RDHUP,
            _ => EventFlags::IN | EventFlags::RDHUP,
        };
        epoll::add(&self.epoll, socket, what.data(), flags).map_err(|e| system("epoll_ctl", e))
    }

    fn forget(&self, socket: &OwnedFd) {
        // Fails only for what is not watched.
        let _ = epoll::delete(&self.epoll, socket);
    }
}

impl Sm {
    /// Takes up a peer that is new, and does not call it.
    ///
    /// # Errors
    /// There are too many peers.
    pub(crate) fn know(&mut self, address: SmAddress) -> Result<u32, LinkError> {
        let id = u32::try_from(self.links.len())
            .map_err(|_| system("connecting", "more than 2³² peers"))?;
        self.by_nonce.insert(address.nonce, PeerId(id));
        self.links.push(SmLink::new(address, &self.owed));
        Ok(id)
    }

    /// Whether somebody waits who greeted in the name of a peer.
    pub(crate) fn is_called_by(&self, id: u32) -> bool {
        let nonce = self.links[id as usize].address.nonce;
        self.cm.pending.keys().any(|(from, _)| *from == nonce)
    }

    /// Calls a peer that nobody has needed so far, and welcomes it if it was faster.
    ///
    /// # Errors
    /// It is gone, or the system refused: the link is still what it was, but for what is to be dropped with it.
    pub(crate) fn call(&mut self, id: u32) -> Result<(), LinkError> {
        // It could not answer.
        self.cm.listener.as_ref().map_err(LinkError::clone)?;
        let link = &mut self.links[id as usize];
        link.open(self.geometry.clone())?;
        let hello = self.hello(&self.links[id as usize]);
        if self.links[id as usize].dial(&self.address, &hello)? {
            self.watch_outgoing(id, &self.links[id as usize])?;
        }
        self.links[id as usize].state = LinkState::Meeting;
        self.cm.meeting += 1;
        self.introduce_to_devices(id);
        self.call_in(id);
        Ok(())
    }

    /// Calls a peer if nobody has so far. One that cannot be called is lost, and sees an end if it waits to be
    /// accepted.
    #[cold]
    pub(crate) fn need(&mut self, id: u32) {
        if self.links[id as usize].state == LinkState::Known
            && let Err(error) = self.call(id)
        {
            self.die(id, error);
        }
    }

    pub(crate) fn hello(&self, link: &SmLink) -> Hello {
        Hello {
            from: self.address.nonce,
            to: link.address.nonce,
            geometry: self.geometry.clone(),
            asymmetric: self.asymmetric,
            probe: self.probe.hello(self.config.single_copy),
            number: self.config.number,
        }
    }

    fn watch_outgoing(&self, id: u32, link: &SmLink) -> Result<(), LinkError> {
        match &link.outgoing {
            Some(socket) => self.cm.watch(socket, Watched::Outgoing(id)),
            None => Ok(()),
        }
    }

    /// Looks at the sockets: callers, greetings, rings, ends.
    #[inline(never)]
    pub(crate) fn look_around(&mut self) {
        self.cm.looked = Instant::now();
        if self.cm.paused.is_some_and(|since| since.elapsed() >= PAUSE)
            && self.cm.watch_listener().is_ok()
        {
            self.cm.paused = None;
        }
        if self.cm.meeting > 0 {
            self.redial();
        }
        self.flush_packets();
        self.owed.settle();
        self.forget_departed();
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        if let Ok((events, _)) = epoll::wait(&self.cm.epoll, &mut space, Some(&now)) {
            for event in events {
                // Packed on some machines, hence copies.
                let (data, flags) = (event.data, event.flags);
                match Watched::of(data.u64()) {
                    Watched::Listener => {
                        self.accept();
                    }
                    Watched::Caller(serial) => self.hear(serial),
                    Watched::Incoming(peer) => _ = self.read_packets(peer),
                    Watched::Outgoing(peer) => {
                        if flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR) {
                            self.hear_end(peer);
                        }
                    }
                }
            }
        }
    }

    /// Calls again where the queue was full, and greets where the socket was.
    fn redial(&mut self) {
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if link.state != LinkState::Meeting || link.has_greeted() {
                continue;
            }
            let id = u32::try_from(at).expect("checked when it was made");
            let hello = self.hello(link);
            let dialled = self.links[at].dial(&self.address, &hello).and_then(|opened| {
                if opened { self.watch_outgoing(id, &self.links[at]) } else { Ok(()) }
            });
            match dialled {
                Ok(()) => self.check_up(id),
                Err(error) => self.die(id, error),
            }
        }
    }

    /// Takes in a peer that has greeted, if it still is pending here: once it has both greetings its end of the link is
    /// up, and it may have said so on other ways than this.
    #[cold]
    pub(crate) fn admit(&mut self, id: u32) {
        self.look_around();
        self.let_all_in_until(id);
    }

    /// Takes callers in until this peer is among them. It may be in already, and have greeted since: one look hears few.
    fn let_all_in_until(&mut self, id: u32) {
        let inside: Vec<u32> = self.cm.callers.keys().copied().collect();
        for serial in inside {
            if self.links[id as usize].inbound.is_some() {
                return;
            }
            self.hear(serial);
        }
        for _ in 0..QUEUE / CALLERS {
            if self.links[id as usize].inbound.is_some() || !self.accept() {
                break;
            }
        }
    }

    /// The peer has closed the socket that we called it on.
    fn hear_end(&mut self, id: u32) {
        // Its greeting may still be pending here, and behind it messages: a peer that had both
        // greetings was up, and what it sent before it died has arrived.
        self.let_all_in_until(id);
        // If it had both greetings, this link is up by now. If not, it never sent anything.
        self.die(id, gone());
    }

    /// Takes callers in. Gives whether there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..CALLERS {
            if self.cm.is_full() {
                return false;
            }
            if suspect::too_many() {
                self.pause(
                    &"descriptors that unauthenticated processes have sent are not closed yet",
                );
                return false;
            }
            let Ok(listener) = &self.cm.listener else { return false };
            match socket::accept(listener) {
                Accepted::Caller(socket) => self.let_in(socket),
                Accepted::Nobody => return false,
                Accepted::Skipped => {}
                Accepted::Exhausted(error) => {
                    self.pause(&error);
                    return false;
                }
                Accepted::Refused(error) => {
                    self.stop_listening(&error);
                    return false;
                }
            }
        }
        true
    }

    /// The system has begun to refuse calls: nobody is met any more. Whoever waits to be accepted sees an end, and
    /// so do links that wait for a greeting; those that are up go on.
    #[cold]
    fn stop_listening(&mut self, error: &LinkError) {
        tracing::warn!(%error, "no more peers can be met");
        self.cm.listener = Err(error.clone());
        self.cm.paused = None;
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if link.state == LinkState::Meeting && link.inbound.is_none() {
                self.die(u32::try_from(at).expect("checked when it was made"), error.clone());
            }
        }
    }

    /// Leaves the listener alone for a while.
    fn pause(&mut self, why: &dyn Display) {
        let Ok(listener) = &self.cm.listener else { return };
        self.cm.forget(listener);
        self.cm.waiting.again(0, why);
        self.cm.paused = Some(Instant::now());
    }

    fn let_in(&mut self, socket: Socket) {
        let pid = match check_peer(&socket) {
            Ok(pid) => pid,
            Err(error) => {
                self.cm.turned_away.again(0, &error);
                return;
            }
        };
        let serial = self.cm.next_caller;
        self.cm.next_caller = serial.wrapping_add(1);
        self.cm.make_room(unauthenticated::descriptors_max() - 1);
        if self.cm.watch(&socket, Watched::Caller(serial)).is_ok() {
            self.cm.callers.insert(serial, (socket, pid));
            self.hear(serial);
        }
    }

    /// Reads a caller's greeting, if it is there.
    fn hear(&mut self, serial: u32) {
        // What it says may come with more descriptors.
        if suspect::too_many() || self.cm.is_full() {
            return;
        }
        let Some((socket, pid)) = self.cm.callers.remove(&serial) else { return };
        let mut packet = [0; PACKET_BYTES];
        let refused = match socket::receive(&socket, &mut packet) {
            Ok(Received::Nothing) => {
                self.cm.callers.insert(serial, (socket, pid));
                return;
            }
            Ok(Received::Packet(len, Some(lane))) => {
                match Hello::read(&packet[..len]).and_then(|hello| Ok((hello, lane.memory()?))) {
                    Ok((hello, lane)) if hello.to == self.address.nonce => {
                        // While it waits for us to learn of it, its end must not keep the epoll descriptor
                        // readable.
                        self.cm.forget(&socket);
                        self.hold_pending(PendingConnection { socket, pid, hello, lane });
                        return;
                    }
                    Ok(_) => {
                        LinkError::Unreachable { reason: "it looks for someone else".to_owned() }
                    }
                    Err(error) => error,
                }
            }
            Ok(Received::Packet(..)) => {
                LinkError::Corrupt { what: "a greeting without a segment".to_owned() }
            }
            Ok(Received::Robbed(_)) => LinkError::System {
                operation: "recvmsg",
                reason: "its segment was lost: the limit on open files is reached".to_owned(),
            },
            Ok(Received::End) => return,
            Err(error) => error,
        };
        self.cm.forget(&socket);
        self.cm.turned_away.again(pid, &refused);
    }

    /// A pending connection becomes a link's other half, or waits until it has been named and we have called it: until
    /// then nobody knows which process it should be. The call of a peer that is known is answered with one: it leaves
    /// the table with that, so it has an entry however many unauthenticated processes wait.
    fn hold_pending(&mut self, caller: PendingConnection) {
        let name = (caller.hello.from, caller.pid);
        let link = self.by_nonce.get(&name.0).map(|peer| (peer.0, &self.links[peer.0 as usize]));
        match link {
            Some((id, link)) if link.outgoing.is_some() || link.is_over() => {
                self.welcome(id, caller);
            }
            known if known.is_some() || self.cm.pending.len() < unauthenticated::pending_max() => {
                let known = known.map(|(id, _)| id);
                if known.is_none()
                    && self.config.number.is_some()
                    && let Some(number) = caller.hello.number
                {
                    self.cm.called.note(number, unauthenticated::pending_max());
                }
                self.cm.pending.entry(name).or_insert(caller);
                self.cm.make_room(unauthenticated::descriptors_max());
                // It needs the link: whether it is who it says shows when we call back.
                if let Some(id) = known {
                    self.need(id);
                }
            }
            _ => {
                self.cm.turned_away.again(caller.pid, &"too many wait to be met");
            }
        }
    }

    /// The pending connection that a link that has just been called waits for, if it is here.
    fn call_in(&mut self, id: u32) {
        let link = &self.links[id as usize];
        let name = (link.address.nonce, link.answers);
        if link.outgoing.is_some()
            && let Some(caller) = self.cm.pending.remove(&name)
        {
            self.welcome(id, caller);
        }
    }

    /// Takes up what a pending connection brought.
    fn welcome(&mut self, id: u32, caller: PendingConnection) {
        let link = &self.links[id as usize];
        if link.is_over() {
            // A peer that leaves at once may be lost before its greeting is heard. It sees the end.
            tracing::debug!(peer = id, pid = caller.pid, "a greeting of a link that is over");
            return;
        }
        if link.incoming.is_some() {
            self.cm.turned_away.again(caller.pid, &"it has greeted before");
            return;
        }
        // Both sockets of a pair are one process's: whoever greets must be who answers.
        if caller.pid != link.answers {
            let why = format!("it greets in the name of process {}", link.answers);
            self.cm.turned_away.again(caller.pid, &why);
            return;
        }
        if let Err(error) = self.take_up(id, caller) {
            self.die(id, error);
        }
    }

    fn take_up(&mut self, id: u32, caller: PendingConnection) -> Result<(), LinkError> {
        let PendingConnection { socket, pid, hello, lane } = caller;
        let link = &self.links[id as usize];
        let Some(outgoing) = link.outgoing.clone() else { return Err(gone()) };
        let both = self.asymmetric && hello.asymmetric;
        let fences = if both { Fences::Asymmetric } else { Fences::Symmetric };
        let lane = Arc::new(Lane::adopt(hello.geometry, &lane)?);
        let waker = Arc::new(Waker::new(lane, outgoing, fences));
        let inbound = Inbound::new(Arc::clone(&waker), self.parked)?;
        self.cm.watch(&socket, Watched::Incoming(id))?;
        let reaches = self.config.single_copy && single_copy::probe(pid, hello.probe);
        let link = &mut self.links[id as usize];
        link.waker = Some(waker);
        link.inbound = Some(inbound);
        link.incoming = Some(socket);
        link.pid = pid;
        link.reaches = Some(reaches);
        self.introduce_to_devices(id);
        self.check_up(id);
        Ok(())
    }

    /// Notes a link that has come up.
    fn check_up(&mut self, id: u32) {
        if self.links[id as usize].incoming.is_none() {
            self.call_in(id);
        }
        if self.links[id as usize].try_up() {
            self.cm.meeting -= 1;
            self.active.push(id);
            self.arm_link(id);
            let address = &self.links[id as usize].address;
            // Others that came in its name.
            self.cm.pending.retain(|(nonce, _), _| *nonce != address.nonce);
            tracing::debug!(peer = id, name = address.name, pid = address.pid, "link up");
        }
    }

    /// The beginning of the end: no more sends; what has arrived is delivered by `poll`.
    #[cold]
    pub(crate) fn die(&mut self, id: u32, error: LinkError) {
        let link = &mut self.links[id as usize];
        if link.is_over() {
            return;
        }
        tracing::debug!(peer = id, name = link.address.name, %error, "link down");
        if link.state == LinkState::Meeting {
            self.cm.meeting -= 1;
        }
        if matches!(link.state, LinkState::Known | LinkState::Meeting) {
            self.active.push(id);
        }
        for socket in link.outgoing.as_deref().into_iter().chain(&link.incoming) {
            self.cm.forget(socket);
        }
        // Who waits to be it sees an end.
        let nonce = link.address.nonce;
        self.cm.pending.retain(|(from, _), _| *from != nonce);
        // A peer that broke the rules is alive and must learn that it is over.
        if matches!(error, LinkError::Corrupt { .. }) {
            link.hang_up();
            // Nothing more of it is believed.
            link.inbound = None;
        }
        link.state = LinkState::Dying(error);
        self.dying += 1;
    }

    /// The end: everything that concerned the peer completes, then its loss is reported.
    pub(crate) fn bury(&mut self, id: u32) {
        let link = &mut self.links[id as usize];
        let LinkState::Dying(error) = link.state.clone() else { return };
        link.bury(error.clone());
        self.dying -= 1;
        self.imports.forget(PeerId(id));
        self.device_imports.forget(PeerId(id));
        self.single_copy.abandon(PeerId(id), &error, &mut self.pending_events);
        self.pending_events.push_back(Event::Lost { peer: PeerId(id), error });
    }
}

pub(crate) fn gone() -> LinkError {
    LinkError::PeerGone { reason: "its end of the socket was closed".to_owned() }
}

#[cfg(test)]
mod tests;
