//! The transport itself: the listener, the links, and how the caller sleeps.
//!
//! One epoll descriptor covers everything that can wake the caller: the listener, the socket of each
//! link that is up, a timer for the next deadline of any link, and an eventfd for what is ready already.

use crate::address::{UdpAddress, this_host};
use crate::config::Config;
use crate::link::{Around, UdpLink};
use crate::seq::Seq;
use crate::socket::{Receive, Socket, system};
use crate::wire::{Acks, HEADER_BYTES, Header, Hello, PacketKind, Sessions};
use gapless_btl::{
    Address, AmTag, Btl, Event, Limits, LinkError, PeerId, ReserveError, Sink, Slot, Token,
    hand_out,
};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What epoll calls the listener; links go by their numbers.
const LISTENER: u64 = u64::MAX;
/// What epoll calls the timer.
const TIMER: u64 = u64::MAX - 1;
/// What epoll calls the eventfd that wakes.
const WAKEUP: u64 = u64::MAX - 2;
/// Descriptors looked at in one poll; the others come next.
const WOKEN_MAX: usize = 64;
/// Hellos read in one poll.
const HELLOS_MAX: u32 = 64;
/// How long a transport that is dropped waits until what it sent is acknowledged.
pub(crate) const LINGER: Duration = Duration::from_millis(300);

/// UDP on the loopback interface. See the [crate](crate) for what it promises.
pub struct Udp {
    pub(crate) address: UdpAddress,
    pub(crate) config: Config,
    limits: Limits,
    listener: Socket,
    pub(crate) links: Vec<UdpLink>,
    by_session: HashMap<u64, PeerId>,
    /// What the next polls report.
    ready: VecDeque<Event>,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer goes off; `None` when it is off.
    timer_at: Option<Instant>,
    wakeup: OwnedFd,
    wakeup_is_set: bool,
    /// The caller may be about to sleep.
    armed: bool,
}

fn os(operation: &'static str) -> impl Fn(rustix::io::Errno) -> LinkError {
    move |error| system(operation)(error.into())
}

fn random() -> Result<u64, LinkError> {
    let mut bytes = [0; 8];
    // Eight bytes come whole.
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(os("getrandom"))?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Udp {
    /// A transport with the default [`Config`].
    ///
    /// # Errors
    /// The system refused a socket or descriptor.
    pub fn new() -> Result<Udp, LinkError> {
        Udp::with(Config::default())
    }

    /// A transport with one's own choices.
    ///
    /// # Errors
    /// The system refused a socket or descriptor.
    pub fn with(config: Config) -> Result<Udp, LinkError> {
        let config = config.bounded();
        let listener = Socket::bind()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(os("epoll_create"))?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(os("timerfd_create"))?;
        let wakeup =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("eventfd"))?;
        let add = os("epoll_ctl");
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(&add)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(&add)?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(WAKEUP), EventFlags::IN).map_err(&add)?;
        Ok(Udp {
            address: UdpAddress {
                listener: listener.port(),
                session: random()?,
                host: this_host(),
            },
            limits: Limits {
                name: "udp",
                eager_bytes: config.eager_bytes,
                max_fragment_bytes: config.max_fragment_bytes,
                ordered: true,
                latency_ns: 10_000,
                bandwidth_mb_s: 1_000,
                death_notice_ms: 1_000,
            },
            config,
            listener,
            links: Vec::new(),
            by_session: HashMap::new(),
            ready: VecDeque::new(),
            epoll,
            timer,
            timer_at: None,
            wakeup,
            wakeup_is_set: false,
            armed: false,
        })
    }

    /// Splits into the links and what they find around them.
    fn split(&mut self, now: Instant) -> (&mut Vec<UdpLink>, Around<'_>) {
        let Udp { address, config, listener, epoll, ready, links, .. } = self;
        (links, Around { now, own: *address, config, listener, epoll, ready })
    }

    /// Waits for any descriptor, and gives the names of those that have something.
    pub(crate) fn wait(&self, timeout: Duration) -> ([u64; WOKEN_MAX], usize) {
        let mut events = [const { MaybeUninit::uninit() }; WOKEN_MAX];
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        let mut names = [TIMER; WOKEN_MAX];
        // Failure (a signal) means that the next time looks.
        let Ok((woken, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) else {
            return (names, 0);
        };
        for (name, event) in names.iter_mut().zip(woken.iter()) {
            *name = event.data.u64();
        }
        (names, woken.len())
    }

    /// Reads what has come and does what is due.
    fn progress(&mut self, now: Instant, hurry: bool) {
        let (woken, count) = self.wait(Duration::ZERO);
        let mut listener_is_empty = true;
        for &name in &woken[..count] {
            match name {
                LISTENER => listener_is_empty = self.answer_the_listener(now),
                TIMER | WAKEUP => {}
                number => {
                    let (links, mut around) = self.split(now);
                    if let Some(link) =
                        usize::try_from(number).ok().and_then(|at| links.get_mut(at))
                    {
                        link.receive(&mut around);
                    }
                }
            }
        }
        let (links, mut around) = self.split(now);
        for link in links {
            link.step(listener_is_empty, hurry, &mut around);
        }
    }

    /// Reads Hellos, up to a bound. Gives whether none is left.
    fn answer_the_listener(&mut self, now: Instant) -> bool {
        for _ in 0..HELLOS_MAX {
            let (mut bytes, mut payload) = ([0; HEADER_BYTES], [0; Hello::BYTES]);
            match self.listener.receive(&mut bytes, &mut payload) {
                Receive::Empty => return true,
                Receive::Refused | Receive::Foreign => {}
                Receive::Datagram { bytes: len, from_port, .. } => {
                    if let Ok(header) = Header::decode(&bytes[..len.min(HEADER_BYTES)], len)
                        && header.kind == PacketKind::Hello
                    {
                        self.hello(&header, &payload, from_port, now);
                    }
                }
            }
        }
        false
    }

    fn hello(
        &mut self,
        header: &Header,
        payload: &[u8; Hello::BYTES],
        from_port: u16,
        now: Instant,
    ) {
        let Sessions { to, from } = header.sessions;
        if to != self.address.session {
            // Whoever is looked for had this port before, and is dead.
            let sessions = Sessions { to: from, from: to };
            let refuse = Header {
                kind: PacketKind::Refuse,
                tag: 0,
                sessions,
                seq: Seq(0),
                acks: Acks::NONE,
                payload_bytes: 0,
            };
            return self.listener.send_to(from_port, &refuse.encode(), &[]);
        }
        // A peer that we do not know yet will say Hello again.
        let Some(&PeerId(number)) = self.by_session.get(&from) else { return };
        let Ok(hello) = Hello::decode(payload) else { return };
        let (links, mut around) = self.split(now);
        links[number as usize].greeted(header, hello, &mut around);
    }

    fn link(&self, peer: PeerId) -> Result<&UdpLink, LinkError> {
        self.links
            .get(peer.0 as usize)
            .ok_or_else(|| LinkError::Unreachable { reason: format!("{peer} was never connected") })
    }

    /// Sets the timer to the next deadline of any link.
    fn set_timer(&mut self, now: Instant) {
        let next = self.links.iter().filter_map(|link| link.deadline(now)).min();
        let went_off = self.timer_at.is_some_and(|at| at <= now);
        if next == self.timer_at && !went_off {
            return;
        }
        // Zero would turn it off.
        let left = next.map(|at| at.saturating_duration_since(now).max(Duration::from_micros(1)));
        let left = left.and_then(|left| Timespec::try_from(left).ok()).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value: left };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok() {
            self.timer_at = next;
        }
    }

    fn set_wakeup(&mut self) {
        let rings = !self.ready.is_empty();
        if rings == self.wakeup_is_set {
            return;
        }
        let done = if rings {
            rustix::io::write(&self.wakeup, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.wakeup, &mut [0; 8])
        };
        if done.is_ok() {
            self.wakeup_is_set = rings;
        }
    }
}

impl Btl for Udp {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> Address {
        self.address.encode()
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let address = UdpAddress::decode(peer)?;
        if address.host != self.address.host {
            let reason = "it is on another host, or in another network namespace".to_owned();
            return Err(LinkError::Unreachable { reason });
        }
        if let Some(&id) = self.by_session.get(&address.session) {
            if self.link(id)?.address() != &address {
                let what = "another port of a known session".to_owned();
                return Err(LinkError::BadAddress { what });
            }
            return Ok(id);
        }
        let number = u32::try_from(self.links.len()).map_err(|_| LinkError::Unreachable {
            reason: "there are 2³² peers already".to_owned(),
        })?;
        let first =
            Seq(u32::from_ne_bytes(random()?.to_ne_bytes()[..4].try_into().expect("4 of 8")));
        let (links, mut around) = self.split(Instant::now());
        let mut link = UdpLink::new(PeerId(number), address, first, &around)?;
        link.step(false, false, &mut around);
        links.push(link);
        self.by_session.insert(address.session, PeerId(number));
        Ok(PeerId(number))
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        self.link(to)?.reserve(len)
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        let number = slot.peer().0 as usize;
        let now = Instant::now();
        let (links, mut around) = self.split(now);
        let link = links.get_mut(number).expect("a slot of this transport");
        link.send(slot, tag, done, &mut around);
        if self.armed {
            self.set_timer(now);
            self.set_wakeup();
        }
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        let now = Instant::now();
        self.progress(now, false);
        let found = hand_out(&mut self.ready, only, sink);
        self.armed &= found == 0;
        if self.armed {
            self.set_timer(now);
        }
        found
    }

    fn arm(&mut self) -> Option<RawFd> {
        let now = Instant::now();
        self.progress(now, true);
        self.set_timer(now);
        self.set_wakeup();
        self.armed = true;
        Some(self.epoll.as_raw_fd())
    }
}

impl Drop for Udp {
    /// Waits a moment for what was sent to be acknowledged: it may be queued here for want of room
    /// there.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let until = Instant::now() + LINGER;
        loop {
            let now = Instant::now();
            self.progress(now, true);
            if now >= until || !self.links.iter().any(UdpLink::owes) {
                return;
            }
            self.set_timer(now);
            self.wait(until - now);
        }
    }
}

impl std::fmt::Debug for Udp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Udp at port {} with {} peers", self.address.listener, self.links.len())
    }
}
