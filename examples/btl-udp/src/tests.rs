//! The conformance suite on a clean and on bad wires, and what it does not ask: unauthenticated callers, slow
//! peers, ports that change hands, last words.

use crate::address::UdpAddress;
use crate::seq::Seq;
use crate::socket::Socket;
use crate::udp::LINGER;
use crate::wire::{Acks, HEADER_BYTES, Header, PacketKind, Sessions};
use crate::{Config, Faults, Udp};
use gapless_btl::{AmTag, Btl, Event, LinkError, PeerId, Queue, ReserveError, Token};
use gapless_btl_testkit::conformance::Fixture;
use std::time::{Duration, Instant};

/// Ends with a configuration.
struct Ends(Config);

impl Fixture for Ends {
    type Btl = Udp;

    fn pair(&mut self) -> (Udp, Udp) {
        (end(&self.0), end(&self.0))
    }

    fn process_end(&mut self) -> Option<Udp> {
        Some(end(&self.0))
    }

    fn garbage(&mut self, from: &mut Udp, to: PeerId, variant: u32) -> bool {
        let Some(bytes) = garbage(from, to, variant) else { return false };
        let (header, payload) = bytes.split_at(bytes.len().min(HEADER_BYTES));
        let socket = from.links[to.0 as usize].socket().expect("the link is up");
        let parts = [std::io::IoSlice::new(header), std::io::IoSlice::new(payload)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(socket, &parts, &mut control, flags).expect("the peer lives");
        true
    }
}

/// A datagram that no well-behaved peer sends, from the peer's own port.
fn garbage(from: &Udp, to: PeerId, variant: u32) -> Option<Vec<u8>> {
    let link = &from.links[to.0 as usize];
    // What the two healthy messages before this left: one sent and one received in each direction.
    let (sent, heard) = (link.numbers().0, link.numbers().1);
    let room = Acks { ack: heard, sack: 0, edge: heard.plus(8) };
    let good = Header {
        kind: PacketKind::Data,
        tag: 9,
        sessions: Sessions { to: link.address().session, from: from.address.session },
        seq: sent,
        acks: room,
        payload_bytes: 0,
    };
    let with = |edit: &dyn Fn(&mut Header)| {
        let mut header = good;
        edit(&mut header);
        Some(header.encode().to_vec())
    };
    let damaged = |at: usize, value: u8| {
        let mut bytes = good.encode().to_vec();
        bytes[at] = value;
        Some(bytes)
    };
    let max = from.config.max_fragment_bytes;
    match variant {
        0 => Some(vec![]),
        1 => Some(vec![0xff; 2000]),
        // Cut anywhere.
        2..50 => Some(good.encode()[..variant as usize - 2].to_vec()),
        50 => damaged(0, 0),
        51 => damaged(2, 99),
        52 => damaged(3, 0),
        53 => damaged(3, 6),
        54 => damaged(5, 1),
        55 => damaged(7, 0x80),
        // A length that is not that of the datagram.
        56 => with(&|h| h.payload_bytes = 1),
        57 => with(&|h| h.payload_bytes = u32::MAX),
        58 => Some([&good.encode()[..], &[1, 2, 3]].concat()),
        // Longer than a message can be.
        59 => {
            let len = max + 1;
            let header = Header { payload_bytes: u32::try_from(len).ok()?, ..good };
            Some([&header.encode()[..], &vec![7; len]].concat())
        }
        // Beyond the room that was given.
        60 => with(&|h| h.seq = sent.plus(64)),
        61 => with(&|h| h.seq = sent.plus(65)),
        62 => with(&|h| h.seq = sent.plus(0x7fff_ffff)),
        // Long past: a repetition.
        63 => with(&|h| h.seq = sent.plus(u32::MAX)),
        64 => with(&|h| h.seq = sent.plus(0x8000_0000)),
        // Acknowledging what was never sent; room that cannot be.
        65 => with(&|h| h.acks.ack = heard.plus(1)),
        66 => with(&|h| h.acks.ack = heard.plus(0x7fff_ffff)),
        67 => with(&|h| h.acks.sack = 1),
        68 => with(&|h| h.acks.sack = 1 << 63),
        69 => with(&|h| h.acks.edge = heard.plus(65)),
        70 => with(&|h| h.acks.edge = heard.plus(u32::MAX)),
        // The wrong kind for this socket.
        71 => with(&|h| h.kind = PacketKind::Hello),
        72 => with(&|h| h.kind = PacketKind::Refuse),
        // Another session.
        73 => with(&|h| h.sessions.from ^= 1),
        74 => with(&|h| h.sessions.to ^= 1),
        _ => None,
    }
}

fn end(config: &Config) -> Udp {
    Udp::with(config.clone()).expect("sockets")
}

fn bad_wire(seed: u64, dropped: u32, doubled: u32, delayed: u32) -> Config {
    let faults = Faults { seed, per: 100, dropped, doubled, delayed };
    Config { faults: Some(faults), ..Config::default() }
}

gapless_btl_testkit::conformance!(clean, Ends(Config::default()));
// The suite parks eleven fragments.
gapless_btl_testkit::conformance!(
    tight,
    Ends(Config { max_fragment_bytes: 0, eager_bytes: 0, window: 11, ..Config::default() })
);
gapless_btl_testkit::conformance!(
    largest,
    Ends(Config { max_fragment_bytes: 1 << 20, window: 64, ..Config::default() })
);
gapless_btl_testkit::conformance!(lossy, Ends(bad_wire(1, 5, 0, 0)));
gapless_btl_testkit::conformance!(bad, Ends(bad_wire(2, 3, 5, 10)));

/// Two ends whose links stand.
fn duo(config: &Config) -> (Udp, Udp, PeerId, PeerId) {
    let (mut a, mut b) = (end(config), end(config));
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.connect(&a.address()).unwrap();
    let patience = Patience::new();
    while !(a.links[0].is_up() && b.links[0].is_up()) {
        assert!(poll(&mut a).is_empty() && poll(&mut b).is_empty());
        patience.tick();
    }
    (a, b, to_b, to_a)
}

struct Patience(Instant);

impl Patience {
    fn new() -> Patience {
        Patience(Instant::now() + Duration::from_secs(60))
    }

    fn tick(&self) {
        assert!(Instant::now() < self.0, "this takes too long");
        std::thread::yield_now();
    }
}

fn poll(end: &mut Udp) -> Vec<Event> {
    let mut events = Queue::with_capacity(64);
    end.poll(None, &mut events);
    events.drain().collect()
}

fn say(end: &mut Udp, to: PeerId, number: u32) -> bool {
    match end.reserve(to, 4) {
        Ok(mut slot) => {
            slot.write(0, &number.to_be_bytes()).unwrap();
            end.send(slot, AmTag(3), Token::NONE);
            true
        }
        Err(ReserveError::Full) => false,
        Err(error) => panic!("{error}"),
    }
}

fn number(event: &Event) -> u32 {
    let Event::Arrived { fragment, tag: AmTag(3), .. } = event else { panic!("{event:?}") };
    u32::from_be_bytes(fragment.to_vec().unwrap().try_into().unwrap())
}

#[test]
fn a_very_bad_wire_delivers_everything_once_in_order() {
    // A window of two has nothing to overtake what is lost: it waits for a timeout every time.
    for (seed, window, messages) in [(0, 32, 2_000), (1, 64, 2_000), (2, 0, 100)] {
        let config = Config { window, ..bad_wire(seed, 20, 20, 20) };
        let (mut a, mut b, to_b, _) = duo(&config);
        let (mut sent, mut got) = (0, 0);
        let patience = Patience::new();
        while got < messages {
            while sent < messages && say(&mut a, to_b, sent) {
                sent += 1;
            }
            assert!(poll(&mut a).is_empty());
            for event in poll(&mut b) {
                assert_eq!(number(&event), got, "seed {seed}");
                got += 1;
            }
            patience.tick();
        }
    }
}

#[test]
fn a_peer_that_does_not_poll_is_slow_and_not_dead() {
    let (mut a, mut b, to_b, _) = duo(&Config::default());
    let mut sent = 0;
    while say(&mut a, to_b, sent) {
        sent += 1;
    }
    // Longer than a death would take to be noticed.
    let until = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < until {
        assert!(poll(&mut a).is_empty());
        std::thread::sleep(Duration::from_millis(1));
    }
    let patience = Patience::new();
    let mut got = 0;
    while got < sent {
        for event in poll(&mut b) {
            assert_eq!(number(&event), got);
            got += 1;
        }
        assert!(poll(&mut a).is_empty());
        patience.tick();
    }
}

#[test]
fn unauthenticated_callers_are_not_heard() {
    let (mut a, mut b, to_b, _) = duo(&Config::default());
    let unauthenticated = Socket::bind().unwrap();
    let pair_port = b.links[0].socket().unwrap().port();
    let forged = Header {
        kind: PacketKind::Data,
        tag: 3,
        sessions: Sessions { to: b.address.session, from: a.address.session },
        seq: a.links[0].numbers().0,
        acks: Acks { ack: a.links[0].numbers().1, sack: 0, edge: a.links[0].numbers().1 },
        payload_bytes: 4,
    };
    for port in [pair_port, b.address.listener] {
        // The right words, from the wrong port.
        unauthenticated.send_to(port, &forged.encode(), &[9; 4]);
        unauthenticated.send_to(port, &[0; HEADER_BYTES], &[]);
        unauthenticated.send_to(
            port,
            &Header { kind: PacketKind::Hello, ..forged }.encode(),
            &[0xff; 4],
        );
    }
    for _ in 0..100 {
        assert!(poll(&mut b).is_empty() && poll(&mut a).is_empty());
    }
    assert!(say(&mut a, to_b, 77));
    let patience = Patience::new();
    loop {
        if let Some(event) = poll(&mut b).first() {
            assert_eq!(number(event), 77);
            break;
        }
        patience.tick();
    }
}

#[test]
fn a_listener_that_changed_hands_refuses() {
    let (mut a, mut b) = (end(&Config::default()), end(&Config::default()));
    let stale = UdpAddress { session: b.address.session ^ 1, ..b.address }.encode();
    let dead = a.connect(&stale).unwrap();
    let patience = Patience::new();
    loop {
        poll(&mut b);
        match poll(&mut a).first() {
            None => patience.tick(),
            Some(Event::Lost { peer, error: LinkError::PeerGone { reason } }) => {
                assert_eq!(*peer, dead);
                assert!(reason.contains("another process"), "{reason}");
                break;
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    // The one that lives there now can still be met.
    let alive = a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    while !say(&mut a, alive, 1) {
        poll(&mut a);
        poll(&mut b);
        patience.tick();
    }
    let elsewhere = UdpAddress { host: !b.address.host, session: 5, ..b.address }.encode();
    assert!(matches!(a.connect(&elsewhere), Err(LinkError::Unreachable { .. })));
    // One session has one listener.
    let moved = UdpAddress { listener: b.address.listener ^ 1, ..b.address }.encode();
    assert!(matches!(a.connect(&moved), Err(LinkError::BadAddress { .. })));
}

#[test]
fn what_was_sent_is_delivered_before_a_dropped_end_is_gone() {
    // Most of it is still here when the end is dropped: two messages fill the wire.
    for config in [Config { flying_bytes: 2_100, ..Config::default() }, bad_wire(5, 10, 0, 0)] {
        let (mut a, mut b, to_b, _) = duo(&config);
        let mut sent = 0;
        while say(&mut a, to_b, sent) {
            sent += 1;
        }
        let dropper = std::thread::spawn(move || {
            let start = Instant::now();
            drop(a);
            start.elapsed()
        });
        let patience = Patience::new();
        let mut got = 0;
        'alive: loop {
            for event in poll(&mut b) {
                if matches!(event, Event::Lost { .. }) {
                    break 'alive;
                }
                assert_eq!(number(&event), got);
                got += 1;
            }
            patience.tick();
        }
        // It waits only so long; if it did not, all was acknowledged.
        if dropper.join().unwrap() < LINGER {
            assert_eq!(got, sent);
        }
    }
}

#[test]
fn a_death_wakes_whoever_sleeps() {
    let (mut a, b, to_b, _) = duo(&Config::default());
    drop(b);
    loop {
        a.arm().unwrap();
        match poll(&mut a).pop() {
            Some(Event::Lost { peer, .. }) => break assert_eq!(peer, to_b),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let notice = Duration::from_millis(a.limits().death_notice_ms.into());
        assert!(a.wait(notice * 10).1 > 0, "nothing woke it");
    }
}

#[test]
fn ends_of_different_sizes_refuse_each_other() {
    let mut a = end(&Config::default());
    let mut b = end(&Config { max_fragment_bytes: 1 << 10, ..Config::default() });
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    let patience = Patience::new();
    loop {
        poll(&mut b);
        match poll(&mut a).first() {
            None => patience.tick(),
            Some(Event::Lost { error: LinkError::Incompatible { what }, .. }) => {
                assert!(what.contains("1024") && what.contains("32768"), "{what}");
                break;
            }
            // The other was quicker and has closed its port.
            Some(Event::Lost { error: LinkError::PeerGone { .. }, .. }) => break,
            Some(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn numbers_wrap_on_a_real_wire() {
    let config = Config::default();
    let (mut a, mut b) = (end(&config), end(&config));
    let to_b = a.connect(&b.address()).unwrap();
    // The first Hello is not understood yet, and gone.
    assert!(poll(&mut b).is_empty());
    a.links[0].number_from(Seq(u32::MAX - 5));
    b.connect(&a.address()).unwrap();
    let patience = Patience::new();
    let (mut sent, mut got) = (0, 0);
    while got < 500 {
        if sent < 500 && say(&mut a, to_b, sent) {
            sent += 1;
        }
        poll(&mut a);
        for event in poll(&mut b) {
            assert_eq!(number(&event), got);
            got += 1;
        }
        patience.tick();
    }
    assert!(a.links[0].numbers().0.0 < 1000);
}
