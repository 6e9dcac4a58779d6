//! What waits at a target is bounded, whatever its peers do. Each of these would take memory without end otherwise.

use super::{LOCK, LOCK_WORDS, Nobody, WORDS, addition, atomics, connected, header, memory};
use crate::core::{AM_TAG, Offered};
use crate::header::Stripes;
use crate::layouts::{LAYOUT_BYTES, LAYOUTS};
use crate::peer::{ANSWERS, CREDIT, SLACK};
use crate::wire::{HEADER, Head, READ_MAX, WindowMessage};
use crate::{Exposure, Header, Osc, WindowHandle};
use gapless_bml::{Bml, PeerState, Rank, ReserveError, Token};
use gapless_btl::loopback::Config;
use gapless_dtype::Primitive;

/// More than anything may take.
const TOO_MUCH: u64 = 16 << 20;

/// A target, rank 0, and a peer that sends what it likes.
struct Scene {
    target: Bml,
    osc: Osc,
    handle: WindowHandle,
    header: Header,
    peer: Bml,
    sequence: u32,
}

impl Scene {
    fn new() -> Scene {
        let [mut target, peer] = connected(2, &Config::default()).try_into().expect("two");
        let memory = memory(WORDS, 0);
        let header = header(&memory, LOCK..LOCK + LOCK_WORDS, 2);
        let osc = Osc::register(&mut target).unwrap();
        let exposure = Exposure::new(atomics(&memory, 0..LOCK), header.clone());
        let handle = osc.host(exposure, &[0, 1], 0);
        Scene { target, osc, handle, header, peer, sequence: 0 }
    }

    fn head(&self, kind: WindowMessage) -> Head {
        Head::new(kind, self.handle.id(), 1)
    }

    /// The peer sends a message, whatever it has credit for. Whether the target still talks to it.
    fn send(&mut self, head: Head, bytes: &[u8]) -> bool {
        let head = Head { sequence: self.sequence, ..head };
        let message = [&head.write()[..], bytes].concat();
        loop {
            if matches!(self.target.state(Rank(1)), PeerState::Lost(_)) {
                return false;
            }
            match self.peer.reserve(Rank(0), message.len()) {
                Ok(mut slot) => {
                    slot.write(0, &message).unwrap();
                    self.peer.send(slot, AM_TAG, Token::NONE);
                    self.sequence = self.sequence.wrapping_add(1);
                    self.target.poll(&mut Nobody);
                    self.osc.advance(&mut self.target);
                    return true;
                }
                Err(ReserveError::Full) => {
                    self.target.poll(&mut Nobody);
                    self.osc.advance(&mut self.target);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// The same until the target has enough of it; checks meanwhile what the target keeps. Gives how many bytes that took.
    fn flood(&mut self, mut next: impl FnMut(&Scene, u64) -> (Head, Vec<u8>)) -> u64 {
        let (mut sent, mut number) = (0, 0);
        loop {
            let (head, bytes) = next(self, number);
            number += 1;
            sent += (HEADER + bytes.len()) as u64;
            if !self.send(head, &bytes) {
                // What it had left is gone with it.
                self.target.poll(&mut Nobody);
                let mut core = self.osc.core();
                assert!(core.peer(1).held.is_empty() && core.peer(1).early.is_empty());
                return sent;
            }
            let mut core = self.osc.core();
            let peer = core.peer(1);
            let early: usize = peer.early.values().map(Vec::len).sum();
            let kept = (peer.held.bytes() + early) as u64;
            assert!(kept <= (CREDIT + SLACK).max(5 << 20), "{kept}");
            assert!((peer.outbox.bytes() as u64) <= ANSWERS as u64 + READ_MAX + 4096);
            assert!(sent < TOO_MUCH, "the target takes everything");
        }
    }
}

fn operand(scene: &Scene) -> Head {
    addition(Primitive::Double, scene.handle.id(), 1)
}

#[test]
fn requests_that_wait_for_a_mutex() {
    let mut scene = Scene::new();
    assert!(scene.header.try_stripes(0, Stripes::default().with(0, 8), |_| false));
    let sent = scene.flood(|scene, _| (operand(scene), vec![0; 8]));
    assert!(sent > CREDIT, "that much it may");
}

#[test]
fn answers_that_nobody_takes() {
    let mut scene = Scene::new();
    let bytes = 8 * LOCK as u64;
    scene.flood(|scene, _| {
        let head = Head { token: 1, count: bytes, length: bytes, ..scene.head(WindowMessage::Get) };
        (head, Vec::new())
    });
    let mut scene = Scene::new();
    scene.flood(|scene, number| {
        (Head { token: number + 1, ..scene.head(WindowMessage::Flush) }, Vec::new())
    });
    // Neither for a window that is not there.
    let mut scene = Scene::new();
    scene.flood(|scene, _| {
        (Head { token: 7, window: 99, ..scene.head(WindowMessage::Flush) }, Vec::new())
    });
}

#[test]
fn layouts_that_nobody_needs() {
    let mut scene = Scene::new();
    let part = |scene: &Scene, layout: u64, count: u64, length: u64| Head {
        layout: u32::try_from(layout).unwrap(),
        count,
        length,
        ..scene.head(WindowMessage::Layout)
    };
    let sent = scene.flood(|scene, number| (part(scene, number + 1, 1000, 100), vec![1; 100]));
    assert_eq!(
        sent,
        (LAYOUTS as u64 + 2) * (HEADER as u64 + 100),
        "one more than it may, and one to hear of it"
    );
    let mut scene = Scene::new();
    let sent = scene.flood(|scene, _| (part(scene, 1, LAYOUT_BYTES + 1, 1), vec![1]));
    assert!(sent <= 3 * HEADER as u64);
    let mut scene = Scene::new();
    let half = LAYOUT_BYTES / 2 + 1;
    let sent = scene.flood(|scene, number| (part(scene, number + 1, half, 1), vec![1]));
    assert!(sent <= 4 * HEADER as u64);
}

#[test]
fn messages_that_overtake_others() {
    let mut scene = Scene::new();
    scene.sequence = 1;
    scene.flood(|scene, _| (scene.head(WindowMessage::Put), vec![0; 2000]));
}

/// Who keeps to its credit is not given up, however long the target takes.
#[test]
fn who_has_no_credit_waits() {
    let mut scene = Scene::new();
    let ours = Osc::register(&mut scene.peer).unwrap();
    let stripe = Stripes::default().with(0, 8);
    assert!(scene.header.try_stripes(0, stripe, |_| false));
    let head = operand(&scene);
    let offer = |scene: &mut Scene| {
        let mut sent = 0u64;
        let mut full = 0;
        while full < 100 {
            match ours.offer(&mut scene.peer, 0, (head, &1.0f64.to_ne_bytes()), false) {
                Offered::Sent => (sent, full) = (sent + 1, 0),
                Offered::Full => full += 1,
                Offered::Failed(error) => panic!("{error}"),
            }
            scene.target.poll(&mut Nobody);
            scene.osc.advance(&mut scene.target);
            scene.peer.poll(&mut Nobody);
            ours.advance(&mut scene.peer);
        }
        sent
    };
    let first = offer(&mut scene);
    assert_eq!(first, CREDIT / (HEADER as u64 + 8));
    assert_eq!(scene.osc.core().peer(1).held.bytes() as u64, first * (HEADER as u64 + 8));
    scene.header.release_stripes(0, stripe);
    scene.osc.advance(&mut scene.target);
    assert!(scene.osc.core().peer(1).held.is_empty());
    scene.peer.poll(&mut Nobody);
    assert!(scene.header.try_stripes(0, stripe, |_| false));
    let second = offer(&mut scene);
    assert!(second >= first * 3 / 4, "{second} of {first}");
    scene.header.release_stripes(0, stripe);
    scene.osc.advance(&mut scene.target);
    assert_eq!(scene.target.state(Rank(1)), &PeerState::Up);
}
