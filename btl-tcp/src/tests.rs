//! The conformance suite over loopback addresses, and what is this transport's own: unauthenticated processes, broken
//! ways, both ends calling at once, places that cannot be had, and the clock.

#[cfg(feature = "encryption")]
mod encrypted;
mod meeting;
mod msg_zerocopy;
mod places;
mod polls;
mod proxy;
mod suite;
mod unauthenticated;
mod ways;

use crate::link::LinkState;
use crate::proof::Keys;
use crate::{ListenAddress, Secret, Tcp, TcpConfig};
use gapless_btl::{AmTag, Btl, Event, LinkError, PeerId, Queue, ReserveError, Token};
pub(crate) use gapless_btl_testkit::Random;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// A place of this host at which nobody listens: the one given, or any if its port is 0; and what keeps it so: as long as
/// it is bound, no other program is given it.
pub(crate) fn closed_place(place: SocketAddr) -> (SocketAddr, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &place).unwrap();
    let place = rustix::net::getsockname(&socket).unwrap();
    (SocketAddr::try_from(place).unwrap(), socket)
}

pub(crate) const LOOPBACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// The job of these tests.
pub(crate) const JOB: &str = "tests of btl-tcp";

/// What the processes of these tests share.
pub(crate) fn secret() -> Secret {
    Secret::new([0x5a; 32])
}

pub(crate) fn keys() -> Keys {
    Keys::new(secret().bytes(), JOB)
}

pub(crate) fn config(rank: u32, address: IpAddr) -> TcpConfig {
    TcpConfig::new(JOB, rank, secret(), [ListenAddress::alone(address)])
}

/// The same, encrypted.
#[cfg(feature = "encryption")]
pub(crate) fn sealed_at(rank: u32, address: IpAddr) -> Tcp {
    let config = TcpConfig { encrypt: true, ..config(rank, address) };
    Tcp::new(config).expect("a loopback address has free ports")
}

pub(crate) fn tcp_at(rank: u32, address: IpAddr) -> Tcp {
    Tcp::new(config(rank, address)).expect("a loopback address has free ports")
}

/// A bound on a wait that is far beyond anything that is right.
pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(Instant::now() + Duration::from_secs(120))
    }

    pub(crate) fn tick(&self, what: &str) {
        assert!(Instant::now() < self.0, "waiting for {what} takes too long");
        std::thread::yield_now();
    }
}

/// The seed of a test: given, or another one each time. It is printed.
pub(crate) fn seed() -> u64 {
    gapless_testkit::seed(gapless_testkit::fresh())
}

/// An end and what it has heard of one peer: numbered messages.
pub(crate) struct End {
    pub(crate) tcp: Tcp,
    pub(crate) peer: PeerId,
    events: Queue,
    sent: u64,
    pub(crate) heard: u64,
    /// Messages of another tag, which are not compared.
    pub(crate) heard_long: u64,
    pub(crate) lost: Option<LinkError>,
}

impl End {
    pub(crate) fn new(tcp: Tcp, peer: PeerId) -> End {
        End {
            tcp,
            peer,
            events: Queue::with_capacity(16),
            sent: 0,
            heard: 0,
            heard_long: 0,
            lost: None,
        }
    }

    fn bytes(number: u64, len: usize) -> Vec<u8> {
        let mut random = Random::new(number);
        let body = (0..len).map(|_| random.below(256).to_le_bytes()[0]);
        number.to_le_bytes().into_iter().chain(body).collect()
    }

    /// The length of a message depends on its number: mostly short, some long. The first is always short, so that it
    /// is copied.
    fn len(number: u64) -> usize {
        if number == 0 {
            return 8;
        }
        let mut random = Random::new(!number);
        let bound = [120_000, 3_000, 1_500, 60][random.below(16).min(3)];
        random.below(bound)
    }

    /// Sends the next message if there is room; whether there was.
    pub(crate) fn send(&mut self) -> bool {
        let bytes = End::bytes(self.sent, End::len(self.sent));
        match self.tcp.reserve(self.peer, bytes.len()) {
            Ok(mut slot) => {
                slot.write(0, &bytes).unwrap();
                self.tcp.send(slot, AmTag(3), Token::NONE);
                self.sent += 1;
                true
            }
            Err(ReserveError::Full | ReserveError::Link(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether the link stands.
    pub(crate) fn stands(&self) -> bool {
        matches!(self.tcp.links[0].state, LinkState::Up(_))
    }

    /// Polls: messages come once each, intact and in order, and nothing after the loss.
    pub(crate) fn poll(&mut self) {
        self.tcp.poll(None, &mut self.events);
        for event in self.events.drain() {
            assert_eq!(self.lost, None, "after the loss there is nothing more: {event:?}");
            match event {
                Event::Arrived { from, tag: AmTag(3), fragment } => {
                    assert_eq!(from, self.peer);
                    let right = End::bytes(self.heard, End::len(self.heard));
                    assert!(fragment.to_vec().unwrap() == right, "message {}", self.heard);
                    self.heard += 1;
                }
                Event::Arrived { tag: AmTag(9), .. } => self.heard_long += 1,
                Event::Lost { peer, error } => {
                    assert_eq!(peer, self.peer);
                    self.lost = Some(error);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Both ends exchange so many messages each way.
pub(crate) fn exchange(a: &mut End, b: &mut End, count: u64) {
    let patience = Patience::new();
    let (to_b, to_a) = (a.sent + count, b.sent + count);
    while a.heard < to_a || b.heard < to_b {
        for (end, most) in [(&mut *a, to_b), (&mut *b, to_a)] {
            if end.sent < most {
                end.send();
            }
            end.poll();
            assert_eq!(end.lost, None);
        }
        patience.tick("messages");
    }
}

/// Both ends poll until each knows that what it has sent has come.
pub(crate) fn await_counts(a: &mut End, b: &mut End) {
    // The last ones are counted in a frame of their own, after a while.
    let patience = Patience::new();
    while [&*a, &*b].iter().any(|end| end.tcp.outstanding(end.peer) > 0) {
        a.poll();
        b.poll();
        patience.tick("the counts");
    }
}

/// Two ends that know each other and have not called.
pub(crate) fn introduced(mut a: Tcp, mut b: Tcp) -> (End, End) {
    let to_b = a.introduce(&b.address()).unwrap();
    let to_a = b.introduce(&a.address()).unwrap();
    (End::new(a, to_b), End::new(b, to_a))
}
