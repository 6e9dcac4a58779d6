//! Encrypted links: what whoever is on the way can do, and ends that do not hold the right key, or none.

use super::meeting::pretender;
use super::proxy::{Ending, behind};
use super::{
    End, JOB, LOOPBACK_V4, Patience, Random, await_counts, config, exchange, introduced, keys,
    sealed_at, secret, seed, tcp_at,
};
use crate::address::TcpAddress;
use crate::burst::Next;
use crate::connection::Connection;
use crate::link::LinkState;
use crate::proof::{ANSWER_BYTES, HELLO_BYTES, Keys, PROOF_BYTES, Purpose, Talk};
use crate::socket::Socket;
use crate::tls::{Handshake, Progress};
use crate::wire::Header;
use crate::{Secret, Tcp, TcpConfig};
use gapless_btl::{AmTag, Btl, LinkError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Links that do not stand after so long are no longer waited for.
const STALLED: Duration = Duration::from_millis(500);

/// Both poll until the link stands.
fn link(one: &mut End, other: &mut End) {
    let patience = Patience::new();
    one.tcp.call(0);
    while !one.stands() || !other.stands() {
        one.poll();
        other.poll();
        assert_eq!((&one.lost, &other.lost), (&None, &None));
        patience.tick("the link");
    }
}

#[test]
fn messages_survive_any_pieces_and_changes_of_keys() {
    let seed = seed();
    for (round, piece) in [1, 7, 5000, 200_000].into_iter().enumerate() {
        let seed = seed.wrapping_add(round as u64);
        let (a, _to_a) = behind(sealed_at(0, LOOPBACK_V4), seed, piece, Ending::Never);
        let (b, _to_b) = behind(sealed_at(1, LOOPBACK_V4), seed ^ 0xff, piece, Ending::Never);
        let (mut a, mut b) = introduced(a, b);
        link(&mut a, &mut b);
        for end in [&mut a, &mut b] {
            if round % 2 == 0 {
                end.tcp.retain(end.peer);
            }
            end.tcp.links[0].up().unwrap().connection.renew_after([3, 1][round / 2]);
        }
        exchange(&mut a, &mut b, if piece < 100 { 30 } else { 200 });
        await_counts(&mut a, &mut b);
    }
}

/// Changes a bit anywhere after the proofs (for those, see `proof`). The link ends, with an error that blames nobody
/// innocent, and what was heard before was right. During the handshake, a changed length may have an end wait for bytes
/// that never come: then no link stands. Bits that TLS ignores change nothing: then all messages are right.
#[test]
fn every_change_on_the_way_is_noticed() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut noticed = [0; 2];
    let given = std::env::var("GAPLESS_FLIPS").ok().and_then(|text| text.parse().ok());
    for round in 0..given.unwrap_or(60) {
        let of_caller = round % 2 == 0;
        let proofs = if of_caller { HELLO_BYTES + PROOF_BYTES } else { ANSWER_BYTES };
        // In the handshake, or in a record after it.
        let stands_before = round / 2 % 2 == 1;
        let at =
            proofs + if stands_before { 1000 + random.below(60_000) } else { random.below(800) };
        let (b, _to_b) = behind(
            sealed_at(1, LOOPBACK_V4),
            random.below(8) as u64,
            3000,
            Ending::Flipped { at, of_caller },
        );
        let (mut a, mut b) = introduced(sealed_at(0, LOOPBACK_V4), b);
        let begun = Instant::now();
        let what = format!("seed {seed}, round {round}: byte {at}, of the caller: {of_caller}");
        let patience = Patience::new();
        a.tcp.call(0);
        while a.lost.is_none() {
            for end in [&mut a, &mut b] {
                // Nobody but the first calls.
                if end.stands() {
                    end.send();
                }
                end.poll();
            }
            patience.tick(&what);
            if !stands_before && !a.stands() && !b.stands() && begun.elapsed() > STALLED {
                break;
            }
            // TLS ignores some bits of the handshake, as in the version of the first record.
            if !stands_before && a.heard > 20 && b.heard > 20 {
                break;
            }
        }
        let Some(lost) = a.lost else {
            let none = (a.heard, b.heard) == (0, 0);
            assert!(none || a.stands() && b.stands(), "{what}");
            continue;
        };
        let told = matches!(lost, LinkError::Unreachable { .. } | LinkError::PeerGone { .. });
        assert!(told, "{what}: {lost:?}");
        noticed[usize::from(stands_before)] += 1;
    }
    assert!(noticed.iter().all(|&count| count > 0), "seed {seed}: {noticed:?}");
}

/// The handshake of two ends, each with its idea of itself and of the other. Gives the connection of each, or why it has
/// none.
fn shake(
    caller: (&Keys, &TcpAddress, &TcpAddress),
    listener: (&Keys, &TcpAddress, &TcpAddress),
) -> [Result<Connection, String>; 2] {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let ends = [
        (Handshake::call(caller.0, caller.1, caller.2), one),
        (Handshake::listen(listener.0, listener.1, listener.2), other),
    ];
    let mut ends = ends.map(|(end, fd)| {
        let socket = Socket::of(fd, "10.0.0.1:7".parse().unwrap());
        (Some((Box::new(end.unwrap()), socket)), None)
    });
    let patience = Patience::new();
    while ends.iter().any(|(_, told)| told.is_none()) {
        for (end, told) in &mut ends {
            let Some((handshake, socket)) = end.take() else { continue };
            match handshake.go_on(&socket) {
                Ok(Progress::Going(handshake)) => *end = Some((handshake, socket)),
                Ok(Progress::Done(it)) => *told = Some(Ok(Connection::of_records(socket, it))),
                Err(refused) => *told = Some(Err(refused.why)),
            }
        }
        patience.tick("both");
    }
    ends.map(|(_, told)| told.unwrap())
}

/// What the other end has read counts as left, because counts of messages are compared with that.
#[test]
fn what_has_left_is_what_can_be_read() {
    let seed = seed();
    let mut random = Random::new(seed);
    let addresses = [0, 1].map(|rank| sealed_at(rank, LOOPBACK_V4).address.clone());
    let keys = keys();
    let [one, other] =
        shake((&keys, &addresses[0], &addresses[1]), (&keys, &addresses[1], &addresses[0]));
    let (mut one, mut other) = (one.unwrap(), other.unwrap());
    let bytes: Vec<u8> = (0..2_000_000).map(|_| random.below(256).to_le_bytes()[0]).collect();
    let (mut left, mut read, mut into) = (0, 0, vec![0; 300_000]);
    let patience = Patience::new();
    while read < bytes.len() {
        let pieces: Vec<IoSlice<'_>> = bytes[left..].chunks(70_000).map(IoSlice::new).collect();
        left += one.write(&pieces, Next::Leaves).unwrap();
        let most = 1 + random.below(into.len());
        let got = other.read(&mut [IoSliceMut::new(&mut into[..most])]).unwrap().unwrap_or(0);
        assert!(into[..got] == bytes[read..read + got], "seed {seed}: {got} bytes from {read}");
        read += got;
        assert!(read <= left, "seed {seed}: {read} bytes were read, {left} of which have left");
        patience.tick("the last byte");
    }
}

#[test]
fn only_the_key_of_the_rank_that_is_expected_is_taken() {
    let addresses = [0, 1, 2].map(|rank| sealed_at(rank, LOOPBACK_V4).address.clone());
    let [a, b, c] = &addresses;
    let (right, other) = (keys(), Keys::new(&[1; 32], JOB));
    assert!(shake((&right, a, b), (&right, b, a)).iter().all(Result::is_ok));
    let reborn = TcpAddress { id: [9; 16], ..b.clone() };
    for (caller, listener) in [
        // Another rank, another life of the same rank, and another secret; at the listener, and at the caller.
        ((&right, a, b), (&right, c, a)),
        ((&right, a, b), (&right, &reborn, a)),
        ((&right, a, b), (&other, b, a)),
    ] {
        let [caller, listener] = shake(caller, listener);
        assert!(caller.unwrap_err().contains("does not hold the key of its rank"));
        assert!(listener.is_err());
    }
    for (caller, listener) in [((&right, c, b), (&right, b, a)), ((&other, a, b), (&right, b, a))] {
        let [_, listener] = shake(caller, listener);
        assert!(listener.is_err(), "it never believes a byte of whoever has another key");
    }
}

#[test]
fn ends_that_do_not_agree_never_meet_and_say_so() {
    let (mut sealed, mut plain) = (sealed_at(3, LOOPBACK_V4), tcp_at(4, LOOPBACK_V4));
    let (sealed_address, plain_address) = (sealed.address(), plain.address());
    let place = |tcp: &Tcp| tcp.address.places[0];
    for (tcp, address, says) in [
        (&mut sealed, plain_address, format!("rank 4 at {} does not encrypt", place(&plain))),
        (&mut plain, sealed_address, String::from("rank 3 at ")),
    ] {
        let error = tcp.connect(&address).unwrap_err();
        assert!(
            matches!(&error, LinkError::Incompatible { what } if what.contains(&says)),
            "{error:?}"
        );
        assert!(!error.to_string().contains('\n') && tcp.links.is_empty());
    }
}

/// A caller that has the secret and all addresses, and speaks as if nothing were to be encrypted.
#[test]
fn nothing_that_is_not_sealed_is_believed() {
    let (mut a, b) = introduced(sealed_at(0, LOOPBACK_V4), sealed_at(1, LOOPBACK_V4));
    let mut stream = TcpStream::connect(a.tcp.address.places[0]).unwrap();
    let keys = keys();
    let hello = crate::attempt::hello(Purpose::Call, &b.tcp.address, &a.tcp.address).unwrap();
    let hello = keys.say(&hello);
    stream.write_all(&hello).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (mut answer, mut got) = ([0; ANSWER_BYTES], 0);
    let patience = Patience::new();
    while got < answer.len() {
        a.poll();
        got += stream.read(&mut answer[got..]).unwrap_or(0);
        patience.tick("an answer");
    }
    let talk = Talk { hello, addresses: [b.tcp.digest, a.tcp.digest] };
    let message = Header::Message { tag: AmTag(3), len: 8 }.write();
    let said = [&keys.prove(&talk, &answer)[..], &message, &[0; 8], &[0; 64]].concat();
    stream.write_all(&said).unwrap();
    while !a.tcp.unauthenticated.is_empty() || a.tcp.unauthenticated.warning.count() == 0 {
        a.poll();
        patience.tick("the caller to be turned away");
    }
    assert_eq!((a.heard, &a.lost), (0, &None));
    assert!(matches!(a.tcp.links[0].state, LinkState::Known));
}

/// A listener that has the secret, and welcomes as if nothing were to be encrypted.
#[test]
fn no_message_leaves_before_the_other_end_has_shown_its_key() {
    let (mut a, b) = (sealed_at(0, LOOPBACK_V4), sealed_at(1, LOOPBACK_V4));
    let (address, pretender) = pretender(&a, &b, Header::Welcome.write());
    let peer = a.connect(&address.to_bytes()).unwrap();
    let mut a = End::new(a, peer);
    let patience = Patience::new();
    while a.lost.is_none() {
        assert!(!a.send(), "no link stands");
        a.poll();
        patience.tick("the loss");
    }
    drop(pretender.join().unwrap());
    let lost = a.lost.unwrap();
    let told = matches!(&lost, LinkError::Unreachable { reason } if reason.contains("the key of its rank"));
    assert!(told, "{lost:?}");
}

/// Messages cannot be seen on the way if they are encrypted, and can if they are not.
#[test]
fn what_is_said_cannot_be_read_on_the_way() {
    for encrypt in [true, false] {
        let at = |rank| Tcp::new(TcpConfig { encrypt, ..config(rank, LOOPBACK_V4) }).unwrap();
        let (b, proxy) = behind(at(1), 1, 3000, Ending::Never);
        let (mut a, mut b) = introduced(at(0), b);
        link(&mut a, &mut b);
        exchange(&mut a, &mut b, 50);
        let said = proxy.said.lock().unwrap();
        let is_there = |bytes: &[u8]| said.windows(bytes.len()).any(|window| window == bytes);
        let messages = (0..a.sent).map(|number| End::bytes(number, End::len(number)));
        let long: Vec<_> = messages.filter(|message| message.len() >= 40).collect();
        assert!(!long.is_empty());
        for message in long {
            assert_eq!(is_there(&message[8..40]), !encrypt);
        }
        assert!(!is_there(secret().bytes()));
    }
}

#[test]
fn ends_of_other_secrets_never_meet() {
    let other = TcpConfig { encrypt: true, secret: Secret::new([1; 32]), ..config(1, LOOPBACK_V4) };
    let (mut a, mut b) = introduced(sealed_at(0, LOOPBACK_V4), Tcp::new(other).unwrap());
    a.tcp.call(0);
    // At the first try: there are more, with pauses.
    let patience = Patience::new();
    while b.tcp.unauthenticated.warning.count() == 0 {
        assert!(!a.send());
        a.poll();
        b.poll();
        patience.tick("the refusal");
    }
    assert!(matches!(b.tcp.links[0].state, LinkState::Known));
}
