//! Meeting: connecting, early arrivals, oneself, being woken, living in threads.

use super::bench::{Watch, looking_at_most, looks_max};
use super::duo::{A, B, Duo, Seen, message, poll, tag_of};
use super::{Fixture, Suite};
use gapless_btl::{Address, Btl, Event, LinkError, PeerId, Queue, ReserveError, Token};
use gapless_testkit::Random;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// The numbers a transport promises fit together, and stay.
pub fn limits_make_sense(_: &Suite, mut fixture: impl Fixture) {
    let (a, b) = fixture.pair();
    let limits = a.limits();
    assert!(!limits.name.is_empty());
    assert!(limits.max_fragment_bytes >= limits.eager_bytes.max(256), "{limits:?}");
    assert!(limits.bandwidth_mb_s > 0 && limits.death_notice_ms > 0, "{limits:?}");
    assert_eq!(limits.name, b.limits().name);
    assert_ne!(a.address(), b.address(), "two ends, two addresses");
    assert_eq!(a.address(), a.address());
}

/// Connecting again with the same address gives the same name, and names are dense.
pub fn connecting_twice(_: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    assert_eq!(duo.peer, [PeerId(0), PeerId(0)]);
    let address = duo.ends[B].address();
    for _ in 0..3 {
        assert_eq!(duo.ends[A].connect(&address), Ok(duo.peer[A]));
        duo.expect_health();
    }
}

/// Damaged addresses and unknown peers are refused, and do no harm.
pub fn bad_addresses(suite: &Suite, mut fixture: impl Fixture) {
    let mut random = Random::new(suite.seed());
    let mut duo = Duo::new(&mut fixture);
    let right = duo.ends[B].address();
    let right = right.as_bytes();
    let mut bad = vec![vec![], vec![0], right[..right.len() - 1].to_vec(), vec![0xff; 480]];
    bad.push([right, &[0]].concat());
    bad.extend(
        (0..50).map(|_| (0..random.below(100)).map(|_| random.next().to_le_bytes()[0]).collect()),
    );
    for bytes in bad {
        let address = Address::new(&bytes).expect("it is short");
        let error = duo.ends[A].connect(&address).expect_err("a damaged address");
        assert!(
            matches!(error, LinkError::BadAddress { .. } | LinkError::Unreachable { .. }),
            "{error:?} for {bytes:x?}"
        );
    }
    for peer in [1, 1000, u32::MAX] {
        let error = duo.ends[A].reserve(PeerId(peer), 1).expect_err("nobody is called that");
        assert!(matches!(error, ReserveError::Link(_)), "{error:?}");
    }
    duo.expect_health();
}

/// Nothing is delivered before `connect`, and nothing that came earlier is lost.
pub fn early_arrivals(_: &Suite, mut fixture: impl Fixture) {
    let (mut a, mut b) = fixture.pair();
    let mut events = Queue::with_capacity(16);
    let to_b = a.connect(&b.address()).expect("the ends of a pair reach each other");
    let mut sent = 0;
    // The link may stand before the other side connects, or not.
    for _ in 0..500 {
        if sent < 50
            && let Ok(mut slot) = a.reserve(to_b, 30)
        {
            slot.write(0, &message(sent, 30)).expect("it fits");
            a.send(slot, tag_of(sent), Token::NONE);
            sent += 1;
        }
        assert!(poll(&mut a, &mut events).is_empty());
        assert!(poll(&mut b, &mut events).is_empty(), "delivered before `connect`");
        std::thread::yield_now();
    }
    let to_a = b.connect(&a.address()).expect("the ends of a pair reach each other");
    let watch = Watch::new("early messages");
    let mut got = 0;
    while got < 60 {
        if sent < 60
            && let Ok(mut slot) = a.reserve(to_b, 30)
        {
            slot.write(0, &message(sent, 30)).expect("it fits");
            a.send(slot, tag_of(sent), Token::NONE);
            sent += 1;
        }
        assert!(poll(&mut a, &mut events).is_empty());
        for event in poll(&mut b, &mut events) {
            let Event::Arrived { from, tag, fragment } = event else { panic!("{event:?}") };
            assert_eq!((from, tag), (to_a, tag_of(got)));
            assert_eq!(fragment.to_vec().expect("host memory"), message(got, 30));
            got += 1;
        }
        watch.tick();
    }
}

/// Peers that were introduced are called by the first who needs the link, and then known to have met: also where
/// one end connects, or knows nobody yet when it is called.
pub fn introductions(_: &Suite, mut fixture: impl Fixture) {
    for late in [false, true] {
        for connects in [false, true] {
            let (mut a, mut b) = fixture.pair();
            let (a_address, b_address) = (a.address(), b.address());
            let mut events = Queue::with_capacity(16);
            let to_b = a.introduce(&b_address).expect("the ends of a pair reach each other");
            assert_eq!(a.introduce(&b_address), Ok(to_b), "once more");
            let mut to_a = (!late).then(|| b.introduce(&a_address).expect("as above"));
            // By itself nobody calls.
            let met = a.has_met(to_b);
            for _ in 0..50 {
                assert!(
                    poll(&mut a, &mut events).is_empty() && poll(&mut b, &mut events).is_empty()
                );
                assert_eq!(a.has_met(to_b), met, "nobody needed it");
            }
            if connects {
                assert_eq!(a.connect(&b_address), Ok(to_b), "the name stays");
                assert!(a.has_met(to_b), "it has just called");
            }
            let watch = Watch::new("room for a message");
            let mut polls = 0;
            let mut slot = loop {
                match a.reserve(to_b, 30) {
                    Err(ReserveError::Full) => {}
                    slot => break slot.expect("the peer is there"),
                }
                assert!(poll(&mut a, &mut events).is_empty());
                assert!(poll(&mut b, &mut events).is_empty());
                polls += 1;
                // It has called, and nobody answered yet.
                if to_a.is_none() && polls == 50 {
                    to_a = Some(b.introduce(&a_address).expect("as above"));
                }
                watch.tick();
            };
            let to_a = *to_a.get_or_insert_with(|| b.introduce(&a_address).expect("as above"));
            assert!(a.has_met(to_b) && b.has_met(to_a), "there is room to send");
            slot.write(0, &message(7, 30)).expect("it fits");
            a.send(slot, tag_of(7), Token::NONE);
            let mut duo = Duo::joined([a, b], [to_b, to_a]);
            duo.hear_number(B, 7, 30);
            duo.expect_health();
        }
    }
}

/// The own address is a peer like any other, or refused as unreachable.
pub fn oneself(suite: &Suite, mut fixture: impl Fixture) {
    let (mut a, _b) = fixture.pair();
    let mut events = Queue::with_capacity(16);
    let me = match a.connect(&a.address()) {
        Ok(me) => me,
        Err(LinkError::Unreachable { reason }) => {
            return suite.skip(&format!("the transport does not reach its own process: {reason}"));
        }
        Err(error) => panic!("{error}"),
    };
    let watch = Watch::new("messages to oneself");
    let (mut sent, mut got, mut tokens) = (0, 0, 0);
    while got < 300 || tokens < 300 {
        if sent < 300
            && let Ok(mut slot) = a.reserve(me, 50)
        {
            slot.write(0, &message(sent, 50)).expect("it fits");
            a.send(slot, tag_of(sent), Token(sent));
            sent += 1;
        }
        for event in poll(&mut a, &mut events) {
            match event {
                Event::Arrived { from, tag, fragment } => {
                    assert_eq!((from, tag), (me, tag_of(got)));
                    assert_eq!(fragment.to_vec().expect("host memory"), message(got, 50));
                    got += 1;
                }
                Event::Sent { result: Ok(()), .. } => tokens += 1,
                other => panic!("{other:?}"),
            }
        }
        watch.tick();
    }
}

/// Whether a descriptor is readable within `ms` milliseconds.
#[allow(unsafe_code, reason = "poll(2) on a plain descriptor number")]
pub(super) fn readable(fd: RawFd, ms: i32) -> bool {
    let mut descriptor = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer describes one initialised element that lives through the call.
    let count = unsafe { libc::poll(&raw mut descriptor, 1, ms) };
    assert!(descriptor.revents & libc::POLLNVAL == 0, "`arm` gave a closed descriptor");
    count > 0
}

/// What `poll` would report makes the descriptor of `arm` readable, round after round.
pub fn arming_wakes(suite: &Suite, mut fixture: impl Fixture) {
    let mut duo = Duo::new(&mut fixture);
    if duo.ends[B].arm().is_none() {
        return suite.skip("the transport is polled by the clock: `arm` gives no descriptor");
    }
    duo.expect_silence();
    for round in 0..200 {
        let fd = duo.ends[B].arm().expect("it gave one before");
        if round % 2 == 0 {
            // The usual way: nothing has come in between.
            assert_eq!(duo.poll(B), 0);
        }
        if round % 5 == 0 {
            assert_eq!(duo.ends[B].arm(), Some(fd), "arming again");
        }
        duo.say_number_from_alone(A, round, 64);
        let watch = Watch::new("the descriptor to become readable");
        while !readable(fd, 1) {
            duo.poll(A);
            watch.tick();
        }
        duo.hear_number(B, round, 64);
    }
    // What came before arming wakes, or the poll after arming reports it.
    duo.say_number_from_alone(A, 7, 64);
    for _ in 0..100 {
        duo.poll(A);
        std::thread::yield_now();
    }
    let fd = duo.ends[B].arm().expect("it gave one before");
    let watch = Watch::new("what came before arming");
    while duo.poll(B) == 0 && !readable(fd, 1) {
        duo.poll(A);
        watch.tick();
    }
    duo.hear_number(B, 7, 64);
}

impl<T: Btl> Duo<T> {
    /// Sends without polling the other end.
    fn say_number_from_alone(&mut self, side: usize, number: u64, len: usize) {
        let watch = Watch::new("room for a message");
        loop {
            match self.ends[side].reserve(self.peer[side], len) {
                Ok(mut slot) => {
                    slot.write(0, &message(number, len)).expect("it fits");
                    return self.ends[side].send(slot, tag_of(number), Token::NONE);
                }
                Err(ReserveError::Full) => _ = self.poll(side),
                Err(error) => panic!("{error}"),
            }
            watch.tick();
        }
    }
}

/// A poll returns although nothing comes.
pub fn poll_never_blocks(_: &Suite, mut fixture: impl Fixture) {
    let (mut a, b) = fixture.pair();
    a.connect(&b.address()).expect("the ends of a pair reach each other");
    let polling = std::thread::spawn(move || {
        let mut events = Queue::with_capacity(4);
        (0..100).for_each(|_| assert!(poll(&mut a, &mut events).is_empty(), "nothing was sent"));
        a
    });
    let watch = Watch::new("a hundred polls of an end that nobody talks to");
    while !polling.is_finished() {
        watch.tick();
    }
    drop(polling.join().expect("polling does not panic"));
}

/// Ends live in threads of their own: they play ball.
pub fn two_threads(_: &Suite, mut fixture: impl Fixture) {
    let Duo { ends: [a, b], peer: [to_b, to_a], .. } = Duo::new(&mut fixture);
    let finished = AtomicU32::new(0);
    let looks = looks_max();
    std::thread::scope(|scope| {
        scope.spawn(|| looking_at_most(looks, || play(a, to_b, true, &finished)));
        scope.spawn(|| looking_at_most(looks, || play(b, to_a, false, &finished)));
    });
    assert_eq!(finished.into_inner(), 2);
}

/// Plays: the first throws, the second throws back. Both stay on the field until both have done, for
/// what their ends may still have to do for the other.
fn play<T: Btl>(mut end: T, peer: PeerId, first: bool, finished: &AtomicU32) {
    const ROUNDS: u64 = 2000;
    let mut events = Queue::with_capacity(4);
    let (mut thrown, mut caught) = (0, 0);
    let mut watch = Watch::new("the ball");
    while thrown < ROUNDS || caught < ROUNDS {
        let mine = if first { caught == thrown } else { caught > thrown };
        if mine && thrown < ROUNDS {
            match end.reserve(peer, 100) {
                Ok(mut slot) => {
                    slot.write(0, &message(thrown, 100)).expect("it fits");
                    end.send(slot, tag_of(thrown), Token::NONE);
                    thrown += 1;
                }
                Err(ReserveError::Full) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for event in poll(&mut end, &mut events) {
            let Seen::Message { bytes, .. } = Seen::of(event) else { panic!("not a message") };
            assert_eq!(bytes, message(caught, 100));
            caught += 1;
            watch = Watch::new("the ball");
        }
        watch.tick();
    }
    finished.fetch_add(1, Ordering::SeqCst);
    while finished.load(Ordering::SeqCst) < 2 {
        let quiet = poll(&mut end, &mut events).is_empty();
        // The other may have done and left meanwhile.
        assert!(quiet || finished.load(Ordering::SeqCst) == 2);
        watch.tick();
    }
}
