//! Descriptors that hold up whoever closes them: sockets that linger, which need no rights and no file system.
//! Nobody is held up by them, however they come.

use super::{Pair, job};
use crate::link::LinkState;
use crate::segment::Segment;
use crate::wire::{device_packet, share_packet};
use crate::{Sm, SmConfig, socket, wire};
use gapless_btl::{Btl, LinkError, Mapped, Queue};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Whose last close waits until the other end has taken everything, which it never does, or for longer than a test
/// waits: and that end.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&near, Some(Duration::from_secs(100))).unwrap();
    (near.into(), far)
}

/// Sends a packet with these, and keeps no copy of them.
fn send(to: &OwnedFd, packet: &[u8], files: Vec<OwnedFd>) {
    let attached: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(attached.is_empty() || control.push(SendAncillaryMessage::ScmRights(&attached)));
    rustix::net::sendmsg(to, &[IoSlice::new(packet)], &mut control, SendFlags::empty()).unwrap();
}

/// Gives what `look` gives, unless it is held up.
fn soon<T: Send + 'static>(what: &str, look: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(look()));
    result
        .recv_timeout(Duration::from_secs(60))
        .unwrap_or_else(|_| panic!("{what} holds the receiver up"))
}

#[test]
fn an_unauthenticated_process_holds_nobody_up_by_what_it_sends() {
    // How long each packet is, and how many descriptors come with it. Empty ones look like an end.
    for packets in [
        &[(5, 1)][..],
        &[(96, 5)],
        &[(5, 0), (5, 1)],
        &[(5, 0), (5, 3), (5, 1)],
        &[(0, 1)],
        &[(0, 0), (0, 0), (5, 1)],
    ] {
        let mut sm = Sm::new(SmConfig::new(job(), "victim")).unwrap();
        let to_sm = socket::call(&sm.address.meeting_place()).unwrap().unwrap();
        let mut far_ends = Vec::new();
        for &(bytes, count) in packets {
            let (near, far): (Vec<OwnedFd>, Vec<TcpStream>) =
                (0..count).map(|_| lingering()).unzip();
            send(&to_sm, &[1; 96][..bytes], near);
            far_ends.push(far);
        }
        soon("an unauthenticated process", move || {
            sm.look_around();
            sm.look_around();
            drop(sm);
        });
        drop(far_ends);
    }
}

/// What becomes of a link whose other end sends this, and then these.
fn sent(packet: &[u8], files: Vec<OwnedFd>, more: Vec<OwnedFd>) -> LinkState {
    let pair = Pair::new();
    let wire = pair.a.links[0].outgoing.clone().unwrap();
    send(&wire, packet, files);
    for file in more {
        send(&wire, &[wire::WAKE], vec![file]);
    }
    let mut b = pair.b;
    soon("a peer", move || {
        for _ in 0..8 {
            b.look_around();
        }
        let state = b.links[0].state.clone();
        drop(b);
        state
    })
}

#[test]
fn a_peer_holds_nobody_up_by_what_it_sends() {
    let corrupt = |state: LinkState, what: &str| {
        assert!(
            matches!(&state, LinkState::Dying(LinkError::Corrupt { what: why }) if why.contains(what)),
            "{what}: {state:?}"
        );
    };
    let device = device_packet(3, 1, 7, 64, b"nothing a device made").unwrap();
    let mut far_ends = Vec::new();
    let mut some = |count| -> Vec<OwnedFd> {
        (0..count)
            .map(|_| {
                let (near, far) = lingering();
                far_ends.push(far);
                near
            })
            .collect()
    };
    let share = share_packet(1, 4096);
    corrupt(sent(&share, some(1), some(0)), "no shared memory");
    corrupt(sent(&share, some(1), some(2)), "no shared memory");
    corrupt(sent(&share, some(2), some(0)), "2 descriptors");
    corrupt(sent(&device, some(1), some(0)), "no device");
    corrupt(sent(&[wire::WAKE], some(1), some(1)), "with a descriptor");
    // What is memory, or may be a device's, is taken.
    let (_segment, memory) = Segment::create(4096, false).unwrap();
    assert_eq!(sent(&share, vec![memory.try_clone().unwrap()], some(0)), LinkState::Up);
    assert_eq!(sent(&device, vec![memory], some(0)), LinkState::Up);
    let open = |path| vec![OwnedFd::from(std::fs::File::open(path).unwrap())];
    assert_eq!(sent(&device, open("/dev/null"), some(0)), LinkState::Up);
    corrupt(sent(&device, open("/proc/self/exe"), some(0)), "no device");
}

/// Also one whose link is over, because it broke the rules, and that knows memory of ours.
#[test]
fn a_lost_peer_holds_nobody_up_by_what_it_sends() {
    let mut pair = Pair::new();
    let memory = pair.b.allocate(4096).unwrap();
    assert!(pair.b.key(pair.to_a, memory.lease()).is_some());
    let wire = pair.a.links[0].outgoing.clone().unwrap();
    send(&wire, &[99], Vec::new());
    let (near, far): (Vec<OwnedFd>, Vec<TcpStream>) = (0..6).map(|_| lingering()).unzip();
    let mut near = near.into_iter();
    let mut b = pair.b;
    for _ in 0..3 {
        // Two packets more, after it departed.
        near.by_ref().take(2).for_each(|file| send(&wire, &[wire::WAKE], vec![file]));
        b = soon("a lost peer", move || {
            let mut events = Queue::with_capacity(8);
            for _ in 0..100 {
                b.poll(None, &mut events);
                b.look_around();
            }
            b
        });
        let departed = b.links[0].departed.as_ref();
        let departed = departed.expect("it lives, and has not said that it uses nothing");
        assert!(departed.deaf, "one is enough: the others stay where they are");
    }
    soon("a lost peer", move || drop(b));
    drop(far);
}
