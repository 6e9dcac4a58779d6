//! On a pretended clock, over real sockets of this host.

use super::*;
use crate::tests::{LOOPBACK_V4, closed_place, tcp_at};
use gapless_btl::Btl;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(4);
/// How far apart looks are.
const TICK: Duration = Duration::from_millis(250);

/// A place whose host answers no calls: the queue of its listener is full. What keeps it so.
fn silent_place() -> (SocketAddr, Vec<Socket>, rustix::fd::OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let listener =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddr::new(LOOPBACK_V4, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let at = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
    let mut calls = Vec::new();
    loop {
        // The system gives none of them up.
        let call = Socket::call(at, Duration::from_secs(3600)).unwrap();
        let begin = Instant::now();
        while !call.connected().unwrap() && begin.elapsed() < Duration::from_millis(200) {
            std::thread::yield_now();
        }
        let stands = call.connected().unwrap();
        calls.push(call);
        if !stands {
            return (at, calls, listener);
        }
        assert!(calls.len() < 50, "the queue is short");
    }
}

/// What is known of a peer at a place, and the time.
struct Peer {
    silence: Silence,
    address: TcpAddress,
    watch: Watch,
    keys: Keys,
    start: Instant,
    now: Instant,
}

impl Peer {
    /// Whom we have called there.
    fn at(place: SocketAddr) -> Peer {
        Peer::new(place, true)
    }

    /// Who has called us, and listens there; we try whether we can call it.
    fn not_reached_at(place: SocketAddr) -> Peer {
        let mut peer = Peer::new(place, false);
        let Peer { silence, address, watch, keys, now, .. } = &mut peer;
        let watcher = Watcher { watch, keys, own: address, patience: PATIENCE, now: *now };
        silence.try_place(0, &watcher);
        peer
    }

    fn new(place: SocketAddr, reached: bool) -> Peer {
        let tcp = tcp_at(0, LOOPBACK_V4);
        let address = TcpAddress::read(&tcp.address()).unwrap();
        let now = Instant::now();
        let keys = Keys::new(&[1; 32], "a job");
        let watch = Watch::new(Watched::Alarm).unwrap();
        Peer { silence: Silence::new(Some(place), reached), address, watch, keys, start: now, now }
    }

    /// A tick later.
    fn look(&mut self, acknowledged: bool, silent_for: Duration) -> Result<Answer, LinkError> {
        self.look_at(Sign { acknowledged, silent_for, unanswered: 0 })
    }

    fn look_at(&mut self, sign: Sign) -> Result<Answer, LinkError> {
        self.now += TICK;
        let Peer { silence, address, watch, keys, now, .. } = self;
        let watcher = Watcher { watch, keys, own: address, patience: PATIENCE, now: *now };
        silence.look(0, address, Some(sign), &watcher)
    }

    /// Ticks in which nothing comes, until the peer is lost; how long that took.
    fn fall_silent(&mut self, already: Duration) -> Duration {
        for tick in 1..1000 {
            if let Err(error) = self.look(false, already + TICK * tick) {
                assert!(matches!(error, LinkError::Unreachable { .. }), "{error}");
                return self.now - self.start;
            }
        }
        panic!("it is waited for without a bound");
    }
}

#[test]
fn what_was_written_is_watched_until_the_system_says_that_it_is_acknowledged() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::at(place);
    peer.silence.wrote();
    // A message of the peer crosses with ours; then the way fails, and ours is never acknowledged.
    peer.silence.heard();
    assert!(peer.silence.is_timed(), "the clock is looked at");
    let took = peer.fall_silent(Duration::ZERO);
    assert!(took >= 2 * PATIENCE && took <= 2 * PATIENCE + 3 * TICK, "{took:?}");
}

#[test]
fn a_link_whose_retransmissions_are_not_answered_is_over_although_no_pulse_has_stood() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::not_reached_at(place);
    peer.silence.wrote();
    let mut lost = None;
    for tick in 1..100 {
        let silent_for = TICK * tick;
        let unanswered = u8::try_from(tick / 4).unwrap();
        if let Err(error) = peer.look_at(Sign { acknowledged: false, silent_for, unanswered }) {
            lost = Some((silent_for, error));
            break;
        }
    }
    let (after, error) = lost.expect("it is waited for without a bound");
    assert!(matches!(error, LinkError::Unreachable { .. }), "{error}");
    assert_eq!(after, 2 * PATIENCE, "{error}");
    // One that has answered since is waited for.
    let mut peer = Peer::not_reached_at(place);
    peer.silence.wrote();
    for tick in 1..100 {
        let sign = Sign { acknowledged: false, silent_for: TICK * (tick % 8), unanswered: 9 };
        assert_eq!(peer.look_at(sign), Ok(Answer::None), "tick {tick}");
    }
}

#[test]
fn the_time_in_which_keep_alives_failed_counts() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::at(place);
    peer.silence.wrote();
    let took = peer.fall_silent(Duration::from_secs(7));
    assert!(took >= PATIENCE && took <= PATIENCE + 3 * TICK, "{took:?}");
}

#[test]
fn what_is_acknowledged_is_the_business_of_keep_alives() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::at(place);
    peer.silence.wrote();
    for _ in 0..100 {
        assert_eq!(peer.look(true, Duration::from_secs(60)), Ok(Answer::None));
        assert!(!peer.silence.is_timed() && peer.silence.pulse.is_none());
    }
}

#[test]
fn a_host_that_answers_is_never_given_up() {
    let listener = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let mut peer = Peer::at(listener.local_addr().unwrap());
    peer.silence.wrote();
    let mut pulses: Vec<TcpStream> = Vec::new();
    listener.set_nonblocking(true).unwrap();
    for tick in 0..200 {
        assert_eq!(peer.look(false, TICK * tick), Ok(Answer::None), "tick {tick}");
        // Its process looks now and then, and hangs up.
        if tick % 40 == 39 {
            pulses.extend(listener.accept().map(|(pulse, _)| pulse));
        } else if tick % 40 == 20 {
            pulses.clear();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let place = listener.local_addr().unwrap();
    drop(listener);
    let _bound = closed_place(place);
    pulses.clear();
    let gone = (0..100).any(|tick| {
        std::thread::sleep(Duration::from_millis(1));
        peer.look(false, PATIENCE * (50 + tick)) == Ok(Answer::ProcessGone)
    });
    assert!(gone, "a host that refuses calls has no such process any more");
}

#[test]
fn an_end_behind_messages_without_room_is_looked_for() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::at(place);
    peer.silence.starved();
    let mut looks = (0..100).map(|tick| peer.look(true, TICK * tick));
    assert!(looks.any(|look| look.is_err()), "its host does not answer");
}

/// A firewall between the two lets calls pass one way alone: it rejects ours, or drops them.
#[test]
fn a_peer_that_was_never_reached_is_not_lost_by_pulses() {
    let (refusing, _bound) = closed_place(SocketAddr::new(LOOPBACK_V4, 0));
    let (silent, _calls, _listener) = silent_place();
    for place in [refusing, silent] {
        let mut peer = Peer::not_reached_at(place);
        assert!(place != silent || peer.silence.is_timed(), "the pulse has a bound");
        peer.silence.wrote();
        for tick in 0..200 {
            assert_eq!(peer.look(false, TICK * tick), Ok(Answer::None), "tick {tick}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!peer.silence.reached);
    }
}

#[test]
fn a_peer_that_was_reached_once_is_watched_by_pulses() {
    let listener = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let mut peer = Peer::not_reached_at(listener.local_addr().unwrap());
    let patience = crate::tests::Patience::new();
    while !peer.silence.reached {
        assert_eq!(peer.look(true, Duration::ZERO), Ok(Answer::None));
        peer.now = peer.start;
        patience.tick("the pulse to be answered");
    }
    assert_eq!(peer.look(true, Duration::ZERO), Ok(Answer::None));
    assert!(!peer.silence.is_timed(), "it is not needed any more");
    let place = listener.local_addr().unwrap();
    drop(listener);
    let _bound = closed_place(place);
    peer.silence.wrote();
    let gone = (0..100).any(|tick| {
        std::thread::sleep(Duration::from_millis(1));
        peer.look(false, PATIENCE + TICK * tick) == Ok(Answer::ProcessGone)
    });
    assert!(gone, "nobody listens there any more");
}

/// Unauthenticated processes fill the queue of callers while the process computes.
#[test]
fn what_comes_over_the_link_while_a_pulse_waits_is_an_answer() {
    let (place, _calls, _listener) = silent_place();
    let mut peer = Peer::at(place);
    peer.silence.wrote();
    let mut pulses = 0;
    for tick in 1..200u32 {
        // Its host asks for room every five seconds, say.
        assert_eq!(peer.look(false, TICK * (tick % 20)), Ok(Answer::None), "tick {tick}");
        pulses += u32::from(peer.silence.pulse.is_some());
    }
    assert!(pulses > 0, "it was silent for longer than the patience");
    peer.start = peer.now;
    let took = peer.fall_silent(Duration::ZERO);
    assert!(took <= 3 * PATIENCE + 3 * TICK, "{took:?}");
}
