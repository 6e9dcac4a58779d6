//! What goes wrong on real wires: no buffer at the receiver, a link that goes down, unauthenticated processes.

use super::{End, Patience, config, device, expect_health, joined, open};
use crate::proof::{DATAGRAM_BYTES, Datagram, Keys, Refusal, Word};
use crate::{IbConfig, Secret};
use gapless_btl::{Btl, LinkError, ReserveError};
use std::process::Command;

/// Polls both until the first has lost the second.
fn expect_loss([a, b]: &mut [End; 2]) -> LinkError {
    let patience = Patience::new();
    while a.lost.is_none() {
        a.poll();
        b.poll();
        patience.tick("the loss");
    }
    a.lost.clone().unwrap()
}

#[test]
fn a_receiver_without_buffers_is_named() {
    let mut hasty = config(0);
    hasty.not_ready_retries = 1;
    let mut ends = joined(hasty, config(1));
    let [a, b] = &mut ends;
    // It sends more than it was given room for: the receiver polls nothing.
    let up = a.ib.links[a.peer.0 as usize].up().unwrap();
    for _ in 0..40 {
        up.send_raw(a.peer.0, &[0; 16], &[]);
    }
    let patience = Patience::new();
    while a.lost.is_none() {
        a.poll();
        patience.tick("the loss");
    }
    let LinkError::Unreachable { reason } = a.lost.clone().unwrap() else { panic!("{:?}", a.lost) };
    assert!(reason.contains("receiver not ready") && reason.contains("port 1"), "{reason}");
    assert!(reason.contains(&device(0)) && reason.contains("rank 1"), "{reason}");
    // The receiver sees what was sent, which breaks the rules.
    while b.lost.is_none() {
        b.poll();
        patience.tick("the loss");
    }
    assert!(matches!(b.lost, Some(LinkError::Corrupt { .. })), "{:?}", b.lost);
    // Their queue pairs follow when buffers have come back.
    while a.ib.pairs + b.ib.pairs > 0 {
        a.poll();
        b.poll();
        patience.tick("the queue pairs");
    }
}

/// Takes the network below a port up or down; `None` where this is not the tests' own machine.
fn set_link(state: &str) -> Option<()> {
    let below = std::env::var("GAPLESS_IB_NETDEV").ok()?;
    let status = Command::new("ip").args(["link", "set", &below, state]).status().unwrap();
    assert!(status.success(), "ip link set {below} {state}");
    Some(())
}

/// Takes the network up again, whatever happens to the test.
struct Up;

impl Drop for Up {
    fn drop(&mut self) {
        set_link("up");
    }
}

#[test]
fn a_link_that_goes_down_is_noticed_and_comes_back() {
    let mut ends = joined(config(0), config(1));
    expect_health(&mut ends);
    if set_link("down").is_none() {
        gapless_btl_testkit::conformance::skip(
            "gapless-btl-ib link down",
            "GAPLESS_IB_NETDEV is not set",
        );
        return;
    }
    let up = Up;
    ends[0].send(b"into the void");
    let error = expect_loss(&mut ends);
    let LinkError::Unreachable { reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("link is down") && reason.contains(&device(0)), "{reason}");
    assert!(ends[0].sent.iter().any(|result| result == &Err(error.clone())), "{:?}", ends[0].sent);
    drop((ends, up));
    // The address comes back a moment later.
    let patience = Patience::new();
    while crate::Ib::new(config(0)).is_err() {
        patience.tick("the port");
    }
    expect_health(&mut joined(config(0), config(1)));
}

#[test]
fn unauthenticated_processes_get_nowhere() {
    let mut ends = joined(config(0), config(1));
    let other = IbConfig { secret: Secret::new([1; 32]), ..config(1) };
    let mut unauthenticated = open(other);
    let victim = ends[0].ib.address();
    let to_victim = unauthenticated.connect(&victim).unwrap();
    // It knows all but the secret, and calls; and somebody sends garbage to the connection manager. Adapters drop
    // datagrams with a wrong queue key, so it has found that out.
    unauthenticated.cm.pretend(ends[0].ib.keys.queue_key());
    let keys = Keys::new(&Secret::new([1; 32]), "tests of btl-ib");
    let datagram = Datagram {
        from: unauthenticated.address.id,
        rank: 1,
        to: ends[0].ib.address.id,
        cm: unauthenticated.address.cm,
        word: Word::Alive(1),
    };
    for round in 0..200u8 {
        let cm = ends[0].ib.address.cm;
        unauthenticated.cm.send(cm, datagram.seal(&keys));
        unauthenticated.cm.send(cm, [round; DATAGRAM_BYTES]);
    }
    let mut unauthenticated = End::new(unauthenticated, to_victim);
    let patience = Patience::new();
    while unauthenticated.lost.is_none() {
        unauthenticated.poll();
        ends.iter_mut().for_each(End::poll);
        patience.tick("the unauthenticated process to give up");
    }
    assert!(unauthenticated.lost.as_ref().unwrap().to_string().contains("answers no call"));
    // Datagrams for one connection manager that wait replace each other, so not all were sent.
    let seen = ends[0].ib.cm.unauthenticated();
    assert!(seen > 0, "no datagram came through, so nothing is shown");
    expect_health(&mut ends);
}

/// Who does not know the secret cannot speak for a peer, although it knows all else.
#[test]
fn an_unauthenticated_process_does_not_speak_for_a_peer() {
    let (mut a, mut b) = (open(config(0)), open(config(1)));
    let to_b = a.introduce(&b.address()).unwrap();
    let to_a = b.introduce(&a.address()).unwrap();
    assert!(matches!(a.reserve(to_b, 1), Err(ReserveError::Full)));
    let secret = Secret::new([1; 32]);
    let unauthenticated = open(IbConfig { secret: secret.clone(), ..config(1) });
    unauthenticated.cm.pretend(a.keys.queue_key());
    let word = Word::Refused(Refusal::Lost);
    let (from, to, cm) = (b.address.id, a.address.id, b.address.cm);
    let forged = Datagram { from, rank: 1, to, cm, word };
    let forged = forged.seal(&Keys::new(&secret, "tests of btl-ib"));
    let (mut a, patience) = (End::new(a, to_b), Patience::new());
    while a.ib.cm.unauthenticated() < 10 {
        unauthenticated.cm.send(a.ib.address.cm, forged);
        a.poll();
        assert_eq!(a.lost, None);
        patience.tick("datagrams");
    }
    expect_health(&mut [a, End::new(b, to_a)]);
}

/// A call during which the port goes down ends: datagrams that cannot leave take the connection manager's queue pair to
/// the error state. The connection manager works afterwards, and the transport can be dropped.
#[test]
fn a_call_into_a_port_that_is_down_ends() {
    let (mut a, mut b) = (open(config(0)), open(config(1)));
    let to_b = a.introduce(&b.address()).unwrap();
    let to_a = b.introduce(&a.address()).unwrap();
    // The peer's connection manager hears it, so the way is known. The peer does not poll.
    assert!(matches!(a.reserve(to_b, 1), Err(ReserveError::Full)));
    let patience = Patience::new();
    while b.cm.next().is_none() {
        patience.tick("a hello");
    }
    if set_link("down").is_none() {
        gapless_btl_testkit::conformance::skip(
            "gapless-btl-ib call down",
            "GAPLESS_IB_NETDEV is not set",
        );
        return;
    }
    let up = Up;
    let mut a = End::new(a, to_b);
    while a.lost.is_none() {
        a.poll();
        patience.tick("the call's end");
    }
    let lost = a.lost.clone().unwrap().to_string();
    assert!(lost.contains("answers no call"), "{lost}");
    drop(up);
    // The address comes back a moment later.
    while crate::Ib::new(config(0)).is_err() {
        patience.tick("the port");
    }
    // Its connection manager hears again, and refuses what it has lost.
    assert!(matches!(b.reserve(to_a, 1), Err(ReserveError::Full)));
    let error = expect_loss(&mut [End::new(b, to_a), a]);
    assert!(error.to_string().contains("refuses the link"), "{error}");
}

/// Whoever calls an end that has lost it is told so, although the end's connection manager says that the process lives.
#[test]
fn a_caller_that_was_lost_is_refused() {
    let (mut a, mut b) = (open(config(0)), open(config(1)));
    let to_b = a.introduce(&b.address()).unwrap();
    let to_a = b.introduce(&a.address()).unwrap();
    b.lose(to_a.0, LinkError::Unreachable { reason: "for a test".to_owned() });
    assert!(matches!(a.reserve(to_b, 1), Err(ReserveError::Full)));
    let error = expect_loss(&mut [End::new(a, to_b), End::new(b, to_a)]);
    let LinkError::Unreachable { reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("refuses the link"), "{reason}");
}

#[test]
fn ends_that_do_not_fit_say_so() {
    let mut other = config(1);
    other.fragment_bytes = 4096;
    other.eager_bytes = 4096;
    let (mut a, mut b) = (open(config(0)), open(other));
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.connect(&a.address()).unwrap();
    let mut ends = [End::new(a, to_b), End::new(b, to_a)];
    let error = expect_loss(&mut ends);
    // The end that sees it first gives the other up, which may hear of that before it sees it itself.
    let told = error.to_string().contains("does not fit");
    assert!(told || matches!(error, LinkError::Incompatible { .. }), "{error:?}");
}

#[test]
fn a_peer_that_does_not_poll_is_not_lost() {
    let mut ends = joined(config(0), config(1));
    let notice = config(0).notice;
    let until = std::time::Instant::now() + notice * 2;
    while std::time::Instant::now() < until {
        ends[0].poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    expect_health(&mut ends);
    // Nor one that is called and does not poll.
    let (mut a, mut b) = (open(config(0)), open(config(1)));
    let to_b = a.connect(&b.address()).unwrap();
    let to_a = b.introduce(&a.address()).unwrap();
    let mut a = End::new(a, to_b);
    let until = std::time::Instant::now() + notice * 2;
    while std::time::Instant::now() < until {
        a.poll();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(a.lost, None);
    expect_health(&mut [a, End::new(b, to_a)]);
}
