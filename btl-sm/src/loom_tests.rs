//! Every interleaving (and every reordering that the memory model allows) of the ring and of the
//! sleeping handshake, explored by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p gapless-btl-sm --lib --release --target-dir target/loom
//! ```
//!
//! Under loom a line has one word of payload, so that a message of 16 bytes takes two.

use crate::doze::{Reason, Sleeper, must_ring};
use crate::ring::{Consumer, Kind, Line, Mark, Producer, View, lines_for};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Fences, Ordering};
use loom::sync::Arc;
use loom::thread;

struct Ring {
    lines: Vec<Line>,
    head: AtomicUsize,
    sleep: AtomicU32,
    rung: AtomicU32,
    bell: AtomicU32,
}

impl Ring {
    fn new(lines: usize) -> Arc<Ring> {
        Arc::new(Ring {
            lines: (0..lines).map(|_| Line::new()).collect(),
            head: AtomicUsize::new(0),
            sleep: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            bell: AtomicU32::new(0),
        })
    }

    fn view(&self) -> View<'_> {
        View { lines: &self.lines, head: &self.head }
    }

    /// What a sender does when somebody may sleep: the bell stands for the socket.
    fn ring_if_asleep(&self, reason: Reason) {
        if must_ring(&self.sleep, &self.rung, Fences::Symmetric, reason) {
            self.bell.store(1, Ordering::Release);
        }
    }
}

fn push(ring: &Ring, producer: &mut Producer, tag: u8, payload: &[u64]) {
    let words: Vec<_> = payload.iter().map(|&word| AtomicU64::new(word)).collect();
    let len = u16::try_from(8 * payload.len()).unwrap();
    while !producer.fits(ring.view(), lines_for(len.into())).unwrap() {
        thread::yield_now();
    }
    producer.push(ring.view(), Kind::Inline, tag, len, &words);
}

fn pop(ring: &Ring, consumer: &mut Consumer) -> Option<(u8, Vec<u64>)> {
    let Mark { tag, len, .. } = consumer.peek(ring.view()).unwrap()?;
    let into: Vec<_> = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
    consumer.take(ring.view(), len, &into);
    consumer.give_back(ring.view());
    Some((tag, into.iter().map(|word| word.load(Ordering::Relaxed)).collect()))
}

/// Messages of one and two lines through a ring of two: each arrives whole, once, in order, around
/// the end of the ring and over lines whose earlier lap is still in them.
#[test]
fn messages_arrive_whole_and_in_order_around_the_ring() {
    const MESSAGES: [&[u64]; 3] = [&[11], &[21, 22], &[31]];
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::default();
            for (tag, payload) in (1..).zip(MESSAGES) {
                push(&sender, &mut producer, tag, payload);
            }
        });
        let mut consumer = Consumer::default();
        for (tag, payload) in (1..).zip(MESSAGES) {
            let message = loop {
                match pop(&ring, &mut consumer) {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message, (tag, payload.to_vec()));
        }
        assert_eq!(pop(&ring, &mut consumer), None);
        producer.join().unwrap();
    });
}

/// A sleeper that looked a last time and saw nothing is rung.
#[test]
fn no_message_is_slept_through() {
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            push(&sender, &mut Producer::default(), 1, &[7]);
            sender.ring_if_asleep(Reason::Message);
        });
        let mut consumer = Consumer::default();
        Sleeper::default().lie_down(&ring.sleep, false);
        Fences::Symmetric.patient();
        let seen = pop(&ring, &mut consumer).is_some();
        producer.join().unwrap();
        assert!(seen || ring.bell.load(Ordering::Acquire) == 1, "slept through a message");
    });
}

/// Two sleeps in a row: the ring for the first does not use up that for the second.
#[test]
fn every_sleep_is_rung_for_by_itself() {
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::default();
            for tag in 1..=2 {
                push(&sender, &mut producer, tag, &[]);
                sender.ring_if_asleep(Reason::Message);
            }
        });
        let mut consumer = Consumer::default();
        let mut sleeper = Sleeper::default();
        let mut got = 0;
        for _ in 0..2 {
            sleeper.lie_down(&ring.sleep, false);
            Fences::Symmetric.patient();
            got += u32::from(pop(&ring, &mut consumer).is_some());
            sleeper.get_up(&ring.sleep);
            ring.bell.store(0, Ordering::Release);
        }
        sleeper.lie_down(&ring.sleep, false);
        Fences::Symmetric.patient();
        while pop(&ring, &mut consumer).is_some() {
            got += 1;
        }
        producer.join().unwrap();
        assert!(got == 2 || ring.bell.load(Ordering::Acquire) == 1, "slept through a message");
    });
}

/// A sender that is out of room and sleeps is rung when lines come back.
#[test]
fn no_room_is_slept_through() {
    loom::model(|| {
        let ring = Ring::new(2);
        let mut producer = Producer::default();
        push(&ring, &mut producer, 1, &[1, 2]);
        let receiver = ring.clone();
        let consumer = thread::spawn(move || {
            assert!(pop(&receiver, &mut Consumer::default()).is_some());
            receiver.ring_if_asleep(Reason::Room);
        });
        Sleeper::default().lie_down(&ring.sleep, true);
        Fences::Symmetric.patient();
        let room = producer.fits(ring.view(), 1).unwrap();
        consumer.join().unwrap();
        assert!(room || ring.bell.load(Ordering::Acquire) == 1, "slept through room");
    });
}
