//! Both ends call at once, or one of them cannot.

use super::{End, LOOPBACK_V4, Patience, Random, exchange, introduced, seed, tcp_at};
use crate::link::State;
use crate::{Secret, Tcp, TcpConfig};
use gapless_btl::{Btl, LinkError};

#[test]
fn calls_that_cross_leave_one_connection() {
    let mut random = Random::new(seed());
    for _ in 0..100 {
        let (mut a, mut b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
        let (a_address, b_address) = (a.tcp.address(), b.tcp.address());
        a.tcp.connect(&b_address).unwrap();
        (0..random.below(4)).for_each(|_| if random.below(2) == 0 { a.poll() } else { b.poll() });
        b.tcp.connect(&a_address).unwrap();
        let patience = Patience::new();
        let stands = |end: &End| matches!(end.tcp.links[0].state, State::Up(_));
        while !stands(&a) || !stands(&b) {
            if random.below(2) == 0 {
                a.poll()
            } else {
                b.poll()
            }
            patience.tick("the link");
        }
        exchange(&mut a, &mut b, 5);
        for end in [&mut a, &mut b] {
            (0..50).for_each(|_| end.poll());
            assert!(end.tcp.links[0].spare.is_none() && end.tcp.strangers.is_empty());
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
    if one.tcp.card.id < other.tcp.card.id { (one, other) } else { (other, one) }
}

#[test]
fn a_call_that_should_stay_and_cannot_be_made_gives_way_to_the_other() {
    let (mut small, mut large) = by_id();
    // As behind a firewall: where the smaller one calls, nobody answers.
    let silent = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
    small.tcp.links[0].card.places = vec![silent.local_addr().unwrap()];
    small.tcp.call(0);
    large.tcp.call(0);
    let patience = Patience::new();
    let mut silent = Some(silent);
    while !small.send() {
        small.poll();
        large.poll();
        assert_eq!((&small.lost, &large.lost), (&None, &None));
        // The other's call waits, and then nobody listens there any more.
        if small.tcp.links[0].spare.is_some() {
            silent.take();
        }
        patience.tick("the link");
    }
    exchange(&mut small, &mut large, 20);
}

/// A firewall rejects calls one way, while both call.
#[test]
fn a_call_that_is_rejected_waits_for_the_other_that_has_come() {
    for smaller_is_rejected in [true, false] {
        let (mut small, mut large) = by_id();
        let (rejected, other) =
            if smaller_is_rejected { (&mut small, &mut large) } else { (&mut large, &mut small) };
        let closed = std::net::TcpListener::bind((LOOPBACK_V4, 0)).unwrap();
        rejected.tcp.links[0].card.places = vec![closed.local_addr().unwrap()];
        drop(closed);
        // It has come, and says nothing before its process polls.
        other.tcp.call(0);
        rejected.tcp.call(0);
        (0..10).for_each(|_| rejected.poll());
        assert_eq!(rejected.lost, None, "the peer has called");
        let patience = Patience::new();
        while !rejected.send() {
            rejected.poll();
            other.poll();
            assert_eq!((&rejected.lost, &other.lost), (&None, &None));
            patience.tick("the link");
        }
        exchange(rejected, other, 20);
    }
}

#[test]
fn processes_of_other_secrets_or_jobs_never_meet() {
    for other in [
        TcpConfig { secret: Secret::new([1; 32]), ..super::config(1, LOOPBACK_V4) },
        TcpConfig { job: "tests of btl-tcq".to_owned(), ..super::config(1, LOOPBACK_V4) },
    ] {
        let mut a = tcp_at(0, LOOPBACK_V4);
        let mut b = Tcp::new(other).unwrap();
        if a.card.job != b.card.job {
            let error = a.introduce(&b.address()).unwrap_err();
            assert!(matches!(error, LinkError::Unreachable { .. }), "{error:?}");
            // If it pretends, proofs are still made with another key.
            b.card.job = a.card.job;
            b.digest = b.card.digest();
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
        assert!(b.tcp.strangers.nuisance.count() > 0);
    }
}
