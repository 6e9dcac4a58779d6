//! Links that send without a copy, from end to end.

use super::proxy::{Ending, behind};
use super::{End, LOOPBACK_V4, Patience, await_counts, config, exchange, introduced, seed, tcp_at};
use crate::connection::Connection;
use crate::meeting::FADING_MAX;
use crate::msg_zerocopy::{MsgZerocopy, MsgZerocopyCounts, ZerocopyManner};
use crate::outbound::Outbound;
use crate::socket::Socket;
use crate::watch::{EVENTS, Happened, Watched};
use crate::{Tcp, TcpConfig};
use gapless_btl::{AmTag, Btl, LinkError, Token};
use gapless_mem::fake::FakeDevice;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// An end that sends all messages without a copy, whatever the system says.
pub(super) fn uncopied_at(rank: u32, address: IpAddr) -> Tcp {
    let mut tcp = tcp_at(rank, address);
    tcp.msg_zerocopy = ZerocopyManner::Always;
    tcp
}

impl MsgZerocopyCounts {
    /// Calls that the system has told of.
    fn told(self) -> u64 {
        self.without_copy + self.copied
    }
}

fn counts(end: &mut End) -> MsgZerocopyCounts {
    end.tcp.links[0].up().unwrap().outbound.msg_zerocopy.counts
}

fn awaits_notices(end: &mut End) -> bool {
    end.tcp.links[0].up().unwrap().outbound.msg_zerocopy.awaits_notices()
}

/// In pieces of any size, so that the system takes a part of a message; a refusal now and then; retained or not.
#[test]
fn messages_without_a_copy_survive_any_pieces() {
    let seed = seed();
    for (round, piece) in [7, 100, 5000, 200_000, 5000].into_iter().enumerate() {
        let seed = seed.wrapping_add(round as u64);
        let (a, _to_a) = behind(uncopied_at(0, LOOPBACK_V4), seed, piece, Ending::Never);
        let (b, _to_b) = behind(uncopied_at(1, LOOPBACK_V4), seed ^ 0xff, piece, Ending::Never);
        let (mut a, mut b) = introduced(a, b);
        if round % 2 == 0 {
            for end in [&mut a, &mut b] {
                end.tcp.retain(end.peer);
            }
        }
        for _ in 0..4 {
            exchange(&mut a, &mut b, if piece < 100 { 10 } else { 100 });
            let up = a.tcp.links[0].up().unwrap();
            up.outbound.msg_zerocopy.refuse = true;
        }
        // A link that was refused goes on all the same.
        let before = counts(&mut a);
        let patience = Patience::new();
        while piece >= 100 && counts(&mut a).told() == before.told() {
            exchange(&mut a, &mut b, 100);
            patience.tick("sends without a copy after a refusal");
        }
        await_counts(&mut a, &mut b);
        while awaits_notices(&mut a) || awaits_notices(&mut b) {
            a.poll();
            b.poll();
            patience.tick("notices");
        }
        let (a, b) = (counts(&mut a), counts(&mut b));
        assert!(a.told() > 0 && b.told() > 0, "{a:?} {b:?}");
        assert!(a.refused > 0, "{a:?}");
    }
}

/// Sends messages that are worth it, one after the other; all come.
fn send_long(a: &mut End, b: &mut End, count: u64) {
    let (begin, patience) = (b.heard_long, Patience::new());
    let mut sent = 0;
    while b.heard_long < begin + count {
        if sent < count
            && let Ok(slot) = a.tcp.reserve(a.peer, 100_000)
        {
            a.tcp.send(slot, AmTag(9), Token::NONE);
            sent += 1;
        }
        a.poll();
        b.poll();
        patience.tick("long messages");
    }
}

#[test]
fn a_link_that_is_copied_all_the_same_goes_back_to_plain_sends() {
    let (mut a, mut b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    exchange(&mut a, &mut b, 1);
    let patience = Patience::new();
    while counts(&mut a).copied == 0 {
        if counts(&mut a).refused > 0 {
            let why = "the system has no memory for it (`ulimit -l`): going back";
            return gapless_btl_testkit::conformance::skip("gapless-btl-tcp zerocopy", why);
        }
        send_long(&mut a, &mut b, 1);
        patience.tick("the system to say that it copies");
    }
    while awaits_notices(&mut a) {
        a.poll();
        patience.tick("the last notices");
    }
    let before = counts(&mut a);
    assert!(!a.tcp.links[0].up().unwrap().outbound.msg_zerocopy.is_on());
    send_long(&mut a, &mut b, 40);
    assert!(!awaits_notices(&mut a));
    assert_eq!(counts(&mut a), before, "loopback always copies");
}

#[test]
fn whoever_does_not_want_it_copies() {
    let plain = |rank| {
        Tcp::new(TcpConfig { msg_zerocopy: false, ..config(rank, LOOPBACK_V4) }).expect("a port")
    };
    let (mut a, mut b) = introduced(plain(0), plain(1));
    send_long(&mut a, &mut b, 5);
    assert!(!awaits_notices(&mut a));
    assert_eq!(counts(&mut a), MsgZerocopyCounts::default());
}

/// The peer goes while messages are under way, more than its host takes: the loss is told, and what the system has done
/// with is free.
#[test]
fn a_peer_that_goes_in_the_middle_is_lost() {
    let (mut a, mut b) = introduced(uncopied_at(0, LOOPBACK_V4), uncopied_at(1, LOOPBACK_V4));
    exchange(&mut a, &mut b, 5);
    let up = |a: &mut End| !a.tcp.links[0].up().unwrap().outbound.is_empty();
    let patience = Patience::new();
    while !up(&mut a) {
        if let Ok(slot) = a.tcp.reserve(a.peer, 100_000) {
            a.tcp.send(slot, AmTag(9), Token::NONE);
        }
        a.poll();
        patience.tick("the socket to be full");
    }
    let pool = a.tcp.links[0].up().unwrap().outbound.long_buffers();
    let gone = std::thread::spawn(move || drop(b));
    while a.lost.is_none() {
        a.poll();
        patience.tick("the loss");
    }
    gone.join().unwrap();
    // A packet may still be on its way.
    let free = || std::iter::from_fn(|| pool.buffer(1)).collect::<Vec<_>>().len();
    while free() < a.tcp.config.buffers {
        a.poll();
        patience.tick("the system to throw away what nobody will read");
    }
    let patience = Patience::new();
    while !a.tcp.fading.is_empty() {
        a.poll();
        patience.tick("the clock");
    }
}

/// A lost link is kept until the system has told of all that it has sent.
#[test]
fn a_lost_link_is_kept_until_the_last_notice() {
    let (mut a, mut b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    exchange(&mut a, &mut b, 1);
    let up = a.tcp.links[0].up().unwrap();
    // Before anything was sent so that is worth it.
    let number = up.outbound.msg_zerocopy.pretend_sent();
    let pool = up.outbound.long_buffers();
    up.outbound.msg_zerocopy.hold(Some(number), pool.buffer(1).unwrap());
    let free = || std::iter::from_fn(|| pool.buffer(1)).collect::<Vec<_>>().len();
    let all = free();
    a.tcp.lose(0, LinkError::PeerGone { reason: "a test".to_owned() });
    for _ in 0..2 {
        assert_eq!((a.tcp.fading.len(), free()), (1, all));
        a.tcp.hear_fading();
    }
    a.tcp.fading[0].1.msg_zerocopy.pretend_told(number);
    a.tcp.hear_fading();
    assert_eq!((a.tcp.fading.len(), free()), (0, all + 1));
}

/// The system tells of the error queue for as long as something is in it: what nobody waits for is read, and is no error.
#[test]
fn what_nobody_waits_for_in_the_error_queue_is_told_once() {
    let (mut a, mut b) = introduced(uncopied_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    exchange(&mut a, &mut b, 1);
    let patience = Patience::new();
    while awaits_notices(&mut a) {
        a.poll();
        patience.tick("notices");
    }
    // A send whose notice is believed to have come already.
    let first = a.tcp.links[0].up().unwrap().outbound.msg_zerocopy.sent();
    let before = b.heard;
    assert!(a.send());
    let msg_zerocopy = &mut a.tcp.links[0].up().unwrap().outbound.msg_zerocopy;
    let sent = msg_zerocopy.sent();
    assert!(sent > first, "{:?}", msg_zerocopy.counts);
    (first..sent).for_each(|number| msg_zerocopy.pretend_told(number));
    assert!(!msg_zerocopy.awaits_notices());
    while b.heard == before {
        b.poll();
        patience.tick("the message");
    }
    // Its notice is there: nothing else is told of a link on which nobody speaks.
    let told_of = |a: &End| {
        let mut list = [Happened::default(); EVENTS];
        let count = a.tcp.watch.look(&mut list);
        list[..count].iter().any(|it| matches!(Watched::of(it.name), Some(Watched::Link(_))))
    };
    while !told_of(&a) {
        patience.tick("the notice");
    }
    while told_of(&a) {
        a.poll();
        patience.tick("the error queue to be read");
    }
    let up = a.tcp.links[0].up().expect("a link that stands");
    assert!(!up.closing && up.broken.is_none());
    exchange(&mut a, &mut b, 1);
}

/// The system may never tell: no more than a few links are kept for that, and the oldest goes first, with its memory.
#[test]
fn so_many_lost_links_are_kept_at_most() {
    let mut tcp = tcp_at(0, LOOPBACK_V4);
    let mut fade = || {
        let (here, _) = UnixStream::pair().unwrap();
        let connection = Connection::bare(Socket::of(here.into(), (LOOPBACK_V4, 1).into()));
        let msg_zerocopy = MsgZerocopy::new(&connection, ZerocopyManner::Never, 4);
        let mut outbound = Outbound::new(&tcp.config, false, msg_zerocopy);
        let fake = Arc::new(FakeDevice::new(0));
        outbound.attach(&(Arc::clone(&fake) as _)).unwrap();
        let number = outbound.msg_zerocopy.pretend_sent();
        let buffer = outbound.long_buffers().buffer(1).unwrap();
        outbound.msg_zerocopy.hold(Some(number), buffer);
        tcp.fade(connection, outbound);
        assert!(tcp.fading.len() <= FADING_MAX);
        fake
    };
    let fakes: Vec<_> = (0..FADING_MAX + 3).map(|_| fade()).collect();
    let is_kept = |fake: &Arc<FakeDevice>| fake.registered().len() == 1;
    assert!(fakes[3..].iter().all(is_kept) && !fakes[..3].iter().any(is_kept));
    // One of which it tells makes room.
    tcp.fading[5].1.msg_zerocopy.pretend_told(0);
    tcp.hear_fading();
    assert_eq!(tcp.fading.len(), FADING_MAX - 1);
    drop(tcp);
    assert!(!fakes.iter().any(is_kept), "the world has ended");
}
