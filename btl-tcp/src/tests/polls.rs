//! What the clock tells whoever polls seldom, and what is told of a link that can no longer be written to.

use super::suite::trusted_at;
use super::{End, LOOPBACK_V4, Patience, config, exchange, introduced, tcp_at};
use crate::burst::Burst;
use crate::proof::Purpose;
use crate::unauthenticated::UnauthenticatedStage;
use crate::{Tcp, TcpConfig};
use gapless_btl::{AmTag, Btl, LinkError, PeerId, Queue, Short};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// An end that waits for nobody longer than [`LONG`].
fn quick() -> Tcp {
    Tcp::new(TcpConfig { notice: Duration::from_secs(5), ..config(0, LOOPBACK_V4) }).unwrap()
}

/// More than all patience with unauthenticated processes.
const LONG: Duration = Duration::from_secs(10);

/// As if nobody had polled for long.
fn pause(tcp: &mut Tcp) {
    tcp.unauthenticated.age(LONG);
    tcp.ticked = tcp.ticked.checked_sub(LONG).expect("the system is up for longer");
}

/// Polls until there is an unauthenticated socket that passes.
fn poll_until(tcp: &mut Tcp, others: &mut [Tcp], pass: impl Fn(&UnauthenticatedStage) -> bool) {
    let mut events = Queue::with_capacity(4);
    let patience = Patience::new();
    while tcp.unauthenticated.which(|it| pass(&it.stage)).is_empty() {
        tcp.poll(None, &mut events);
        others.iter_mut().for_each(|it| _ = it.poll(None, &mut events));
        patience.tick("an unauthenticated socket");
    }
}

#[test]
fn whoever_polls_seldom_looks_at_the_clock_nevertheless() {
    let mut tcp = quick();
    let _silent = TcpStream::connect(tcp.address.places[0]).unwrap();
    poll_until(&mut tcp, &mut [], |stage| matches!(stage, UnauthenticatedStage::Silent { .. }));
    pause(&mut tcp);
    let mut events = Queue::with_capacity(4);
    tcp.polls = 1;
    for _ in 0..3 {
        // Polls of one peer are none of all.
        tcp.poll(Some(PeerId(0)), &mut events);
        tcp.poll(None, &mut events);
    }
    assert!(tcp.unauthenticated.is_empty(), "it was silent for too long");
}

#[test]
fn what_was_said_in_a_pause_is_heard_before_sockets_are_closed() {
    let mut tcp = quick();
    let caller = tcp_at(1, LOOPBACK_V4);
    tcp.introduce(&caller.address()).unwrap();
    let hello = crate::attempt::hello(Purpose::Call, &caller.address, &tcp.address).unwrap();
    let mut stream = TcpStream::connect(tcp.address.places[0]).unwrap();
    poll_until(&mut tcp, &mut [], |stage| matches!(stage, UnauthenticatedStage::Silent { .. }));
    stream.write_all(&caller.keys.say(&hello)).unwrap();
    pause(&mut tcp);
    tcp.tick();
    let answered = |stage: &UnauthenticatedStage| {
        matches!(stage, UnauthenticatedStage::Answered { peer: 0, .. })
    };
    assert_eq!(tcp.unauthenticated.which(|it| answered(&it.stage)).len(), 1);
}

#[test]
fn a_pending_connection_waits_until_it_is_introduced_and_its_greeting_serves_nobody_else() {
    let mut tcp = quick();
    let mut caller = tcp_at(1, LOOPBACK_V4);
    let to_tcp = caller.connect(&tcp.address()).unwrap();
    let pending =
        |stage: &UnauthenticatedStage| matches!(stage, UnauthenticatedStage::Pending { .. });
    let mut caller = [caller];
    poll_until(&mut tcp, &mut caller, pending);
    let at = tcp.unauthenticated.which(|it| pending(&it.stage))[0];
    let UnauthenticatedStage::Pending { talk, .. } = tcp.unauthenticated.get(at).unwrap().stage
    else {
        unreachable!()
    };
    let mut replay = TcpStream::connect(tcp.address.places[0]).unwrap();
    replay.write_all(&talk).unwrap();
    let (mut events, patience) = (Queue::with_capacity(4), Patience::new());
    pause(&mut tcp);
    while tcp.unauthenticated.warning.count() == 0 {
        tcp.poll(None, &mut events);
        patience.tick("the replay to be turned away");
    }
    assert_eq!(tcp.unauthenticated.which(|_| true), [at], "the pending connection alone");
    let [caller] = caller;
    let to_caller = tcp.introduce(&caller.address()).unwrap();
    let (mut a, mut b) = (End::new(tcp, to_caller), End::new(caller, to_tcp));
    exchange(&mut a, &mut b, 5);
}

#[test]
fn what_was_wrong_with_writing_is_the_reason_of_the_loss() {
    for ends in [true, false] {
        let (mut a, mut b) = introduced(tcp_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
        exchange(&mut a, &mut b, 5);
        // As if keep-alives had failed while the process computed: the system tells that once.
        let error = LinkError::Unreachable { reason: "its host does not answer".to_owned() };
        a.tcp.links[0].up().unwrap().broken = Some(error.clone());
        a.tcp.look_again(0);
        let b = (!ends).then_some(b);
        let patience = Patience::new();
        while a.lost.is_none() {
            a.poll();
            patience.tick("the loss");
        }
        assert_eq!(a.lost, Some(error), "whether the stream has ended: {ends}");
        drop(b);
    }
}

#[test]
fn short_messages_wait_for_each_other_and_arrive_in_any_case() {
    let (mut a, mut b) = introduced(trusted_at(0, LOOPBACK_V4), tcp_at(1, LOOPBACK_V4));
    exchange(&mut a, &mut b, 5);
    a.poll();
    let mut sent = 0;
    // How many of them wait.
    let mut burst = |a: &mut End, count: u64| {
        a.tcp.links[0].up().unwrap().burst = Burst::trusted();
        for _ in 0..count {
            assert!(a.tcp.send_short(a.peer, AmTag(9), Short::new(&[7], 8)));
            sent += 1;
        }
        (a.tcp.links[0].up().unwrap().waiting, sent)
    };
    let patience = Patience::new();
    let arrive = |b: &mut End, sent: u64| {
        while b.heard_long < sent {
            b.poll();
            patience.tick("messages that wait");
        }
    };
    // If this thread is held up between them, they do not wait.
    let waiting = |a: &mut End, burst: &mut dyn FnMut(&mut End, u64) -> (u32, u64), count| loop {
        let (waiting, sent) = burst(a, count);
        if waiting > 0 {
            return (waiting, sent);
        }
        a.poll();
        patience.tick("messages to wait");
    };
    let (count, sent) = waiting(&mut a, &mut burst, 3);
    assert!(count <= 2, "the first has left");
    // The system does not hold them for ever.
    arrive(&mut b, sent);
    a.poll();
    assert_eq!(a.tcp.links[0].up().unwrap().waiting, 0);
    assert!(waiting(&mut a, &mut burst, 100).0 <= 16);
    a.poll();
    // Whoever may block leaves nothing behind.
    assert!(a.tcp.arm().is_some());
    a.poll();
    let (count, sent) = burst(&mut a, 10);
    assert_eq!(count, 0);
    arrive(&mut b, sent);
    // Nor does whoever leaves.
    a.tcp.armed = false;
    let (_, sent) = burst(&mut a, 10);
    let leaving = std::thread::spawn(move || drop(a));
    arrive(&mut b, sent);
    leaving.join().unwrap();
}
