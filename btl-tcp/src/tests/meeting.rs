//! Both ends call at once, or one of them cannot.

use super::{
    End, LOOPBACK_V4, Patience, Random, closed_place, exchange, introduced, keys, seed, tcp_at,
};
use crate::address::TcpAddress;
use crate::connection::Connection;
use crate::proof::{HELLO_BYTES, PROOF_BYTES, Talk};
use crate::socket::Socket;
use crate::wire::HEADER_BYTES;
use crate::{Secret, Tcp, TcpConfig};
use gapless_btl::{Btl, LinkError};
use gapless_testkit::rounds;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

#[test]
fn calls_that_cross_leave_one_connection() {
    let mut random = Random::new(seed());
    for _ in 0..rounds(100) {
        let (mut a, mut b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
        let (a_address, b_address) = (a.tcp.address(), b.tcp.address());
        a.tcp.connect(&b_address).unwrap();
        (0..random.below(4)).for_each(|_| if random.below(2) == 0 { a.poll() } else { b.poll() });
        b.tcp.connect(&a_address).unwrap();
        let patience = Patience::new();
        while !a.stands() || !b.stands() {
            if random.below(2) == 0 {
                a.poll()
            } else {
                b.poll()
            }
            patience.tick("the link");
        }
        exchange(&mut a, &mut b, 5);
        // A process that another test starts may hold dropped connections a little longer.
        while [&a, &b].iter().any(|end| !end.tcp.unauthenticated.is_empty()) {
            a.poll();
            b.poll();
            patience.tick("the last unauthenticated socket to go");
        }
        for end in [&a, &b] {
            assert!(end.tcp.links[0].spare.is_none());
            assert_eq!(end.tcp.calling, 0);
        }
    }
}

/// Whose call stays when calls cross: the end with the smaller id, and the other.
fn by_id() -> (End, End) {
    // However long the machine stops this process, nobody's patience ends.
    let patient = |rank| {
        let notice = std::time::Duration::from_secs(3600);
        Tcp::new(TcpConfig { notice, ..super::config(rank, LOOPBACK_V4) }).unwrap()
    };
    let (one, other) = introduced(patient(0), patient(1));
    if one.tcp.address.id < other.tcp.address.id { (one, other) } else { (other, one) }
}

#[test]
fn a_call_that_should_stay_and_is_not_answered_gives_way_to_the_other() {
    let (mut small, mut large) = by_id();
    // Where the smaller one calls, somebody listens and says nothing, ever.
    let silent = TcpListener::bind("127.0.0.3:0").unwrap();
    small.tcp.links[0].address.places = vec![silent.local_addr().unwrap()];
    small.tcp.call(0);
    large.tcp.call(0);
    link(&mut small, &mut large);
    exchange(&mut small, &mut large, 20);
}

/// Both poll until the link stands.
fn link(one: &mut End, other: &mut End) {
    let patience = Patience::new();
    while !one.send() {
        one.poll();
        other.poll();
        assert_eq!((&one.lost, &other.lost), (&None, &None));
        patience.tick("the link");
    }
}

/// What pulses have told of the way to the peer, once they have.
fn reached(end: &mut End, other: &mut End) -> bool {
    let patience = Patience::new();
    loop {
        end.poll();
        other.poll();
        patience.tick("a pulse");
        if let Some(reached) = end.tcp.links[0].up().unwrap().silence.is_reached() {
            return reached;
        }
    }
}

#[test]
fn whoever_was_called_tries_whether_the_caller_can_be_called() {
    let (mut a, mut b) = by_id();
    a.tcp.call(0);
    link(&mut a, &mut b);
    assert!(reached(&mut a, &mut b), "we have called it");
    assert!(reached(&mut b, &mut a), "there is nothing in the way");
    // As behind a firewall that rejects calls one way.
    let (mut a, mut b) = by_id();
    let (place, _bound) = closed_place(SocketAddr::new(LOOPBACK_V4, 0));
    b.tcp.links[0].address.places = vec![place];
    a.tcp.call(0);
    link(&mut a, &mut b);
    assert!(!reached(&mut b, &mut a));
    exchange(&mut a, &mut b, 20);
    assert!(!b.tcp.links[0].up().unwrap().closing, "the peer's process has not ended");
}

#[test]
fn a_connection_that_the_system_refuses_is_lost_once() {
    let (mut end, other) = by_id();
    end.tcp.call(0);
    assert_eq!(end.tcp.calling, 1);
    // No TCP: what is asked for cannot be set.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (here, _there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let here = Connection::bare(Socket::of(here, other.tcp.address.places[0]));
    end.tcp.take_up(0, here, false);
    assert_eq!(end.tcp.calling, 0);
    end.poll();
    assert!(end.lost.is_some());
}

/// A firewall rejects calls one way, while both call.
#[test]
fn a_call_that_is_rejected_waits_for_the_other_that_has_come() {
    for smaller_is_rejected in [true, false] {
        let (mut small, mut large) = by_id();
        let (rejected, other) =
            if smaller_is_rejected { (&mut small, &mut large) } else { (&mut large, &mut small) };
        let (place, _bound) = closed_place(SocketAddr::new(LOOPBACK_V4, 0));
        rejected.tcp.links[0].address.places = vec![place];
        // It has come, and says nothing before its process polls.
        other.tcp.call(0);
        rejected.tcp.call(0);
        (0..10).for_each(|_| rejected.poll());
        assert_eq!(rejected.lost, None, "the peer has called");
        link(rejected, other);
        exchange(rejected, other, 20);
        let told = rejected.tcp.links[0].up().unwrap().silence.is_reached();
        assert_eq!(told, Some(false), "where all calls have failed, no pulse goes");
    }
}

#[test]
fn a_caller_that_came_while_nobody_polled_is_heard_before_a_failed_call_is_given_up() {
    let notice = Duration::from_secs(5);
    let quick = Tcp::new(TcpConfig { notice, ..super::config(0, LOOPBACK_V4) }).unwrap();
    let (mut rejected, mut other) = introduced(quick, tcp_at(1, LOOPBACK_V4));
    let (place, _bound) = closed_place(SocketAddr::new(LOOPBACK_V4, 0));
    rejected.tcp.links[0].address.places = vec![place];
    other.tcp.call(0);
    rejected.tcp.call(0);
    (0..10).for_each(|_| rejected.poll());
    assert_eq!(rejected.lost, None, "the peer has called");
    std::thread::sleep(rejected.tcp.patience + Duration::from_millis(100));
    rejected.tcp.go_on_calling(0);
    link(&mut rejected, &mut other);
}

/// A listener in the place of `b` that has the secret, and says this to `a` where a welcome is due.
pub(super) fn pretender(
    a: &Tcp,
    b: &Tcp,
    says: [u8; HEADER_BYTES],
) -> (TcpAddress, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
    let address = TcpAddress { places: vec![listener.local_addr().unwrap()], ..b.address.clone() };
    let addresses = [a.address.digest(), address.digest()];
    let pretender = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&keys().answer(&Talk { hello, addresses }, &[7; 32])).unwrap();
        stream.read_exact(&mut [0; PROOF_BYTES]).unwrap();
        stream.write_all(&says).unwrap();
        stream
    });
    (address, pretender)
}

#[test]
fn whoever_proves_itself_and_says_no_welcome_breaks_the_rules() {
    let (mut a, b) = (tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    let (address, pretender) = pretender(&a, &b, [0xff; HEADER_BYTES]);
    let peer = a.connect(&address.to_bytes()).unwrap();
    let mut a = End::new(a, peer);
    let patience = Patience::new();
    while a.lost.is_none() {
        a.poll();
        patience.tick("the loss");
    }
    drop(pretender.join().unwrap());
    assert!(matches!(a.lost, Some(LinkError::Corrupt { .. })), "{:?}", a.lost);
}

#[test]
fn processes_of_other_secrets_or_jobs_never_meet() {
    for other in [
        TcpConfig { secret: Secret::new([1; 32]), ..super::config(1, LOOPBACK_V4) },
        TcpConfig { job: "tests of btl-tcq".to_owned(), ..super::config(1, LOOPBACK_V4) },
    ] {
        let mut a = tcp_at(0, LOOPBACK_V4);
        let mut b = Tcp::new(other).unwrap();
        if a.address.job != b.address.job {
            let error = a.introduce(&b.address()).unwrap_err();
            assert!(matches!(error, LinkError::Unreachable { .. }), "{error:?}");
            // If it pretends, proofs are still made with another key.
            b.address.job = a.address.job;
            b.digest = b.address.digest();
        }
        let (mut a, mut b) = introduced(a, b);
        a.tcp.call(0);
        let patience = Patience::new();
        while a.lost.is_none() {
            assert!(!a.send() && !b.send());
            a.poll();
            b.poll();
            patience.tick("the refusal");
        }
        let error = a.lost.unwrap();
        assert!(error.to_string().contains("hangs up before the link stands"), "{error}");
        assert!(b.tcp.unauthenticated.warning.count() > 0);
    }
}
