//! Where a process listens, or cannot.

use super::{LOOPBACK_V4, closed_place, config, exchange, introduced, tcp_at};
use crate::address::TcpAddress;
use crate::{ListenAddress, Tcp, TcpConfig};
use gapless_btl::{Btl, LinkError};
use std::time::Duration;

fn refusal(config: TcpConfig) -> LinkError {
    Tcp::new(config).expect_err("it cannot be had")
}

#[test]
fn addresses_of_others_cannot_be_listened_at() {
    // Kept for documents (RFC 5737): no host has it.
    let config = config(0, "192.0.2.1".parse().unwrap());
    let error = refusal(config);
    assert!(matches!(error, LinkError::System { operation: "bind", .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("192.0.2.1") && text.contains("os error 99"), "{text}");
}

#[test]
fn places_that_peers_cannot_call_are_refused() {
    for places in [vec![], vec!["0.0.0.0"], vec!["::"], vec!["224.0.0.1"], vec!["127.0.0.1"; 9]] {
        let places = places.iter().map(|it| ListenAddress::alone(it.parse().unwrap())).collect();
        let error = refusal(TcpConfig { places, ..config(0, LOOPBACK_V4) });
        assert!(matches!(error, LinkError::BadAddress { .. }), "{error:?}");
    }
}

#[test]
fn a_range_of_ports_may_be_exhausted_and_is_free_again() {
    // A range that is free now, as far as one can know.
    let probe = tcp_at(0, LOOPBACK_V4);
    let first = probe.address.places[0].port().min(u16::MAX - 3);
    drop(probe);
    let ports = first..=first + 2;
    let ranged = |rank| TcpConfig { ports: ports.clone(), ..config(rank, LOOPBACK_V4) };
    let mut ends: Vec<Tcp> = Vec::new();
    let error = loop {
        match Tcp::new(ranged(u32::try_from(ends.len()).unwrap())) {
            Ok(end) => ends.push(end),
            Err(error) => break error,
        }
        assert!(ends.len() <= 3, "more ends than ports");
    };
    let text = error.to_string();
    assert!(text.contains(&format!("from {first} to {}", first + 2)), "{text}");
    for end in &ends {
        assert!(ports.contains(&end.address.places[0].port()));
    }
    if ends.pop().is_some() {
        // A process that another test starts may hold the descriptor a little longer.
        let patience = super::Patience::new();
        while Tcp::new(ranged(7)).is_err() {
            patience.tick("the port to be free again");
        }
    }
    let open = TcpConfig { ports: 0..=9, ..config(0, LOOPBACK_V4) };
    assert!(refusal(open).to_string().contains("no range"));
}

#[test]
fn of_several_places_one_that_answers_is_enough() {
    for first in ["127.0.0.2", "192.0.2.1"] {
        let patient = TcpConfig { notice: Duration::from_secs(5), ..config(0, LOOPBACK_V4) };
        let (a, mut b) = (Tcp::new(patient).unwrap(), tcp_at(1, LOOPBACK_V4));
        // Nobody listens at the first, or nothing answers there.
        let place = std::net::SocketAddr::new(first.parse().unwrap(), 9);
        b.address.places.insert(0, place);
        b.digest = b.address.digest();
        let (mut a, mut b) = introduced(a, b);
        let patience = super::Patience::new();
        while !a.send() {
            a.poll();
            b.poll();
            patience.tick("a link");
        }
        exchange(&mut a, &mut b, 20);
    }
}

#[test]
fn a_place_where_nobody_listens_is_the_loss_of_the_peer_and_named() {
    let (mut a, b) = (tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    let (address, place) = (b.address(), b.address.places[0]);
    assert_eq!(TcpAddress::read(&address).unwrap().places, [place]);
    drop(b);
    let _bound = closed_place(place);
    let peer = a.connect(&address).unwrap();
    let mut a = super::End::new(a, peer);
    let patience = super::Patience::new();
    while a.lost.is_none() {
        a.poll();
        patience.tick("the loss");
    }
    let Some(LinkError::PeerGone { reason }) = a.lost else { panic!("{:?}", a.lost) };
    assert!(reason.contains(&place.to_string()) && reason.contains("os error 111"), "{reason}");
}

/// A link comes to be between `a` and `b` while the others poll, too.
fn meet(a: Tcp, b: Tcp, others: &mut [Tcp]) {
    let (mut a, mut b) = introduced(a, b);
    let mut events = gapless_btl::Queue::with_capacity(16);
    let patience = super::Patience::new();
    while !a.send() {
        a.poll();
        b.poll();
        others.iter_mut().for_each(|other| _ = other.poll(None, &mut events));
        assert_eq!((&a.lost, &b.lost), (&None, &None));
        patience.tick("a link");
    }
    exchange(&mut a, &mut b, 20);
    assert!(events.drain().next().is_none(), "the others are not concerned");
}

#[test]
fn places_where_others_say_nothing_are_not_waited_for() {
    let silent = [(); 2].map(|()| std::net::TcpListener::bind((LOOPBACK_V4, 0)).unwrap());
    let quick = TcpConfig { notice: Duration::from_secs(5), ..config(0, LOOPBACK_V4) };
    let (a, mut b) = (Tcp::new(quick).unwrap(), tcp_at(1, LOOPBACK_V4));
    let real = b.address.places[0];
    let [one, other] = silent.each_ref().map(|silent| silent.local_addr().unwrap());
    b.address.places = vec![one, other, real];
    b.digest = b.address.digest();
    meet(a, b, &mut []);
}

/// As on two hosts whose container bridges have the same address: at the peer's first places, processes of the own
/// host listen, of the same job and of others.
#[test]
fn somebody_else_at_the_same_address_is_told_from_the_peer() {
    let a = tcp_at(0, LOOPBACK_V4);
    let mut b = tcp_at(1, LOOPBACK_V4);
    let neighbour = tcp_at(2, LOOPBACK_V4);
    let unauthenticated =
        TcpConfig { secret: crate::Secret::new([9; 32]), ..config(1, LOOPBACK_V4) };
    let unauthenticated = Tcp::new(unauthenticated).unwrap();
    let real = b.address.places[0];
    let place = |tcp: &Tcp| tcp.address.places[0];
    b.address.places = vec![place(&neighbour), place(&a), place(&unauthenticated), real];
    b.digest = b.address.digest();
    meet(a, b, &mut [neighbour, unauthenticated]);
}

/// Two hosts have the same address, and the peer does not live at any other.
#[test]
fn a_peer_that_somebody_else_answers_for_is_not_said_to_be_dead() {
    let (a, mut b, neighbour) =
        (tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4), tcp_at(2, LOOPBACK_V4));
    b.address.places = neighbour.address.places.clone();
    let (mut a, _b) = introduced(a, b);
    let mut neighbour = super::End::new(neighbour, gapless_btl::PeerId(0));
    let patience = super::Patience::new();
    while a.lost.is_none() {
        a.send();
        a.poll();
        neighbour.poll();
        patience.tick("the loss");
    }
    let Some(LinkError::Unreachable { reason }) = a.lost else { panic!("{:?}", a.lost) };
    assert!(reason.contains("hangs up"), "{reason}");
}

/// Calls of `a` to these places fail; why the peer is lost.
fn lost_at(places: Vec<std::net::SocketAddr>) -> LinkError {
    let (mut a, b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    a.tcp.links[0].address.places = places;
    a.tcp.call(0);
    let patience = super::Patience::new();
    while a.lost.is_none() {
        a.poll();
        patience.tick("the loss");
    }
    drop(b);
    a.lost.unwrap()
}

#[test]
fn an_address_that_this_host_cannot_call_says_nothing_about_the_peer() {
    // Without an interface, or without IPv6, the system refuses at once.
    let error = lost_at(vec!["[fe80::1]:9".parse().unwrap()]);
    assert!(matches!(error, LinkError::Unreachable { .. }), "{error:?}");
}

#[test]
fn a_peer_with_no_address_but_ours_is_lost_by_that_reason() {
    let (mut a, mut b) = (tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    b.address.places = a.address.places.clone();
    let peer = a.connect(&b.address()).unwrap();
    let mut a = super::End::new(a, peer);
    a.poll();
    let Some(LinkError::Unreachable { reason }) = a.lost else { panic!("{:?}", a.lost) };
    assert!(reason.contains(&b.address.places[0].to_string()), "{reason}");
}
