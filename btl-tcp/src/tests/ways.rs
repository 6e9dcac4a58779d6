//! Messages over ways that cut them into pieces, and that break.

use super::proxy::{Ending, behind};
use super::{
    End, LOOPBACK_V4, Patience, Random, await_counts, config, exchange, introduced, seed, tcp_at,
};
use crate::{Tcp, TcpConfig};
use gapless_btl::{Btl, LinkError, PeerId};
use std::time::Duration;

#[test]
fn messages_survive_any_pieces() {
    let seed = seed();
    for (round, piece) in [1, 7, 100, 5000, 200_000].into_iter().enumerate() {
        let seed = seed.wrapping_add(round as u64);
        let (a, _to_a) = behind(tcp_at(0, LOOPBACK_V4), seed, piece, Ending::Never);
        let (b, _to_b) = behind(tcp_at(1, LOOPBACK_V4), seed ^ 0xff, piece, Ending::Never);
        let (mut a, mut b) = introduced(a, b);
        let retained = round % 2 == 0;
        if retained {
            for end in [&mut a, &mut b] {
                end.tcp.retain(end.peer);
            }
        }
        exchange(&mut a, &mut b, if piece < 100 { 30 } else { 200 });
        // The links are up now.
        assert!([&a, &b].iter().all(|end| end.tcp.has_zero_copy(end.peer) != retained));
        assert!(retained || [&a, &b].iter().all(|end| end.tcp.outstanding(end.peer) == 0));
        await_counts(&mut a, &mut b);
    }
}

/// However few buffers there are, messages that are retained flow one way, without any look at the clock.
#[test]
fn few_buffers_do_not_wait_for_the_clock() {
    let notice = Duration::from_secs(3600);
    let few = |rank, buffers| TcpConfig { buffers, notice, ..config(rank, LOOPBACK_V4) };
    for buffers in [2, 3] {
        let ends = [0, 1].map(|rank| Tcp::new(few(rank, buffers)).unwrap());
        let [a, b] = ends;
        let (mut a, mut b) = introduced(a, b);
        for end in [&mut a, &mut b] {
            end.tcp.retain(end.peer);
            // As if the clock had just been looked at, for longer than this test may take.
            end.tcp.ticked += Duration::from_secs(1800);
        }
        let mut sent = 0;
        let patience = Patience::new();
        while b.heard_long < 40 {
            if sent < 40
                && let Ok(slot) = a.tcp.reserve(PeerId(0), 100_000)
            {
                a.tcp.send(slot, gapless_btl::AmTag(9), gapless_btl::Token::NONE);
                sent += 1;
            }
            a.poll();
            b.poll();
            patience.tick("long messages through few buffers");
        }
    }
}

#[test]
fn a_way_that_breaks_is_a_loss_after_an_intact_beginning() {
    let seed = seed();
    let mut random = Random::new(seed);
    for round in 0..15 {
        // Some break while the link is made: then it is made once more.
        let after = [random.below(300), random.below(5000), random.below(2_000_000)][round % 3];
        let ending = Ending::After(after);
        let (a, _to_a) = behind(tcp_at(0, LOOPBACK_V4), seed + round as u64, 3000, ending);
        let (b, _to_b) = behind(tcp_at(1, LOOPBACK_V4), seed ^ round as u64, 3000, ending);
        let (mut a, mut b) = introduced(a, b);
        let retained = round % 2 == 0;
        if retained {
            for end in [&mut a, &mut b] {
                end.tcp.retain(end.peer);
            }
        }
        let patience = Patience::new();
        while a.lost.is_none() || b.lost.is_none() {
            for end in [&mut a, &mut b] {
                if end.lost.is_none() {
                    end.send();
                }
                end.poll();
            }
            patience.tick("the loss");
        }
        let heard = [b.heard, a.heard];
        for (end, heard) in [&mut a, &mut b].into_iter().zip(heard) {
            let outstanding = end.tcp.outstanding(end.peer);
            let left = end.tcp.unacknowledged(end.peer);
            let bytes: usize = left.iter().map(|it| it.message.len()).sum();
            assert_eq!(outstanding, bytes as u64, "what a link did not deliver is not there");
            let first = end.sent - left.len() as u64;
            for (number, message) in (first..).zip(&left) {
                assert!(message.message == End::bytes(number, End::len(number)), "{number}");
            }
            // All that was not heard is there, and nothing twice.
            assert!(if retained { first <= heard } else { left.is_empty() }, "{first}, {heard}");
            assert!(end.tcp.unacknowledged(end.peer).is_empty());
        }
        for End { lost, .. } in [a, b] {
            let lost = lost.unwrap();
            let told = matches!(lost, LinkError::PeerGone { .. } | LinkError::Unreachable { .. });
            assert!(told, "round {round}: {lost:?}");
        }
    }
}
