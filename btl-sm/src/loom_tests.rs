//! Every interleaving (and every reordering that the memory model allows) of the ring, of credit
//! return and of the sleeping handshake, explored by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p gapless-btl-sm --lib --release --target-dir target/loom
//! ```
//!
//! Under loom a line has two words of payload, so that a message of 24 bytes takes two, and fills the second in part.
//! Memory that is not atomic (slots, private buffers) is a cell in which loom sees every race.
//!
//! There is no fast box beside the ring: its lines carry tiny messages themselves. The models of the
//! ring are the models of that.
//!
//! # What each model is for
//!
//! Each weakening was made in the sources, one at a time, and the models named with it then failed; what
//! is weaker already was found not to be needed:
//!
//! | weakened | fails |
//! |---|---|
//! | `ring`: the first header stored relaxed; `peek` relaxed | `messages_arrive_…`, `a_slot_…`, `a_fragment_…` |
//! | `ring`: `head` stored relaxed; read relaxed | `messages_arrive_…`, `messages_by_value_…` |
//! | `ring`: the first header of a message by value stored relaxed, of one line or of more; `inline` relaxed | `messages_by_value_…` |
//! | `arm`: the flag stored relaxed; read relaxed | `every_sleep_…` |
//! | `arm`: one signal for all sleeps instead of one each | `every_sleep_…` |
//! | `gapless_sync::Fences`: the hurried fence left out, or acquire-release; the patient fence left out | `no_message_…`, `no_room_…`, `every_sleep_…` |
//! | `credit`: a slot's generation stored relaxed; read relaxed | `a_slot_…`, `a_fragment_…` |
//! | `credit`: the generation stored before the slot is let go | `a_fragment_…` |
//! | `credit`: a buffer's flag set relaxed; read relaxed | `a_private_buffer_…` |
//! | `credit`: `any` set by a plain store, or relaxed; taken by a load and a store, or relaxed | `every_dropped_slot_…` |
//!
use crate::arm::{Reason, Sleeper, must_signal};
use crate::credit::{Dropped, Flags, SlotsInUse, is_back};
use crate::recycle::Recycler;
use crate::ring::{Consumer, LineHeader, MessageKind, Producer, RingLine, View, WORDS, lines_for};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Fences, Ordering};
use loom::cell::Cell;
use loom::sync::Arc;
use loom::thread;

struct Ring {
    lines: Vec<RingLine>,
    head: AtomicUsize,
    sleep: AtomicU32,
    signalled: AtomicU32,
    wake: AtomicU32,
}

impl Ring {
    fn new(lines: usize) -> Arc<Ring> {
        Arc::new(Ring {
            lines: (0..lines).map(|_| RingLine::new()).collect(),
            head: AtomicUsize::new(0),
            sleep: AtomicU32::new(0),
            signalled: AtomicU32::new(0),
            wake: AtomicU32::new(0),
        })
    }

    fn view(&self) -> View<'_> {
        View { lines: &self.lines, head: &self.head }
    }

    /// What a sender does when somebody may sleep: the flag plays the socket.
    fn signal_if_asleep(&self, reason: Reason) {
        if must_signal(&self.sleep, &self.signalled, Fences::Symmetric, reason) {
            self.wake.store(1, Ordering::Release);
        }
    }
}

fn push(ring: &Ring, producer: &mut Producer, tag: u8, payload: &[u64]) {
    let words: Vec<_> = payload.iter().map(|&word| AtomicU64::new(word)).collect();
    let len = u16::try_from(8 * payload.len()).unwrap();
    while !producer.fits(ring.view(), lines_for(len.into())).unwrap() {
        thread::yield_now();
    }
    producer.push(ring.view(), MessageKind::Inline, tag, len, &words);
}

fn pop(ring: &Ring, consumer: &mut Consumer) -> Option<(u8, Vec<u64>)> {
    let LineHeader { tag, len, .. } = consumer.peek(ring.view()).unwrap()?;
    let into: Vec<_> = (0..len / 8).map(|_| AtomicU64::new(0)).collect();
    consumer.take(ring.view(), len, &into);
    consumer.give_back(ring.view());
    Some((tag, into.iter().map(|word| word.load(Ordering::Relaxed)).collect()))
}

/// Messages of one and two lines through a ring of two: each arrives whole, once, in order, around
/// the end of the ring and over lines whose earlier lap is still in them.
#[test]
fn messages_arrive_whole_and_in_order_around_the_ring() {
    const MESSAGES: [&[u64]; 3] = [&[11], &[21, 22, 23], &[31, 32]];
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

/// As [`push`], of the first `len` words of `words`, by value; as many lines are written, or as few.
fn push_words(
    ring: &Ring,
    producer: &mut Producer,
    tag: u8,
    (len, words, many): (usize, &[u64], bool),
) {
    let len = u16::try_from(8 * len).unwrap();
    while !producer.fits(ring.view(), lines_for(len.into())).unwrap() {
        thread::yield_now();
    }
    if many {
        producer.push_many(ring.view(), tag, len, words);
    } else {
        producer.push_few(ring.view(), tag, len, words);
    }
}

/// Looks at the next message and moves on, as messages are handed over.
fn hand_over(ring: &Ring, consumer: &mut Consumer) -> Option<(u8, Vec<u64>)> {
    if !consumer.is_due(ring.view()) {
        return None;
    }
    let (tag, len) = consumer.inline(ring.view()).expect("it is due, and of this kind");
    let mut lines = vec![[0; WORDS - 1]; lines_for(len.into())];
    consumer.look_at_lines(ring.view(), &mut lines);
    consumer.pass(len);
    consumer.give_back(ring.view());
    Some((tag, lines.as_flattened()[..usize::from(len / 8)].to_vec()))
}

/// The same of messages by value that are handed over out of the ring: of one line and of two; written and read as few
/// lines are, and as many.
#[test]
fn messages_by_value_arrive_whole_and_in_order_around_the_ring() {
    const MESSAGES: [(usize, &[u64], bool); 3] =
        [(1, &[11], true), (3, &[21, 22, 23], false), (3, &[31, 32, 33], true)];
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::default();
            for (tag, message) in (1..).zip(MESSAGES) {
                push_words(&sender, &mut producer, tag, message);
            }
        });
        let mut consumer = Consumer::default();
        for (tag, (len, words, _)) in (1..).zip(MESSAGES) {
            let message = loop {
                match hand_over(&ring, &mut consumer) {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message, (tag, words[..len].to_vec()));
        }
        assert_eq!(hand_over(&ring, &mut consumer), None);
        producer.join().unwrap();
    });
}

/// A sleeper that looked a last time and saw nothing is signalled.
#[test]
fn no_message_is_slept_through() {
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            push(&sender, &mut Producer::default(), 1, &[7]);
            sender.signal_if_asleep(Reason::Message);
        });
        let mut consumer = Consumer::default();
        Sleeper::default().arm(&ring.sleep, false);
        assert!(Fences::Symmetric.patient());
        let seen = pop(&ring, &mut consumer).is_some();
        producer.join().unwrap();
        assert!(seen || ring.wake.load(Ordering::Acquire) == 1, "slept through a message");
    });
}

/// Two sleeps in a row: the signal for the first does not use up the one for the second.
#[test]
fn every_sleep_is_signalled_by_itself() {
    loom::model(|| {
        let ring = Ring::new(2);
        let sender = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::default();
            for tag in 1..=2 {
                push(&sender, &mut producer, tag, &[]);
                sender.signal_if_asleep(Reason::Message);
            }
        });
        let mut consumer = Consumer::default();
        let mut sleeper = Sleeper::default();
        let mut got = 0;
        for _ in 0..2 {
            sleeper.arm(&ring.sleep, false);
            assert!(Fences::Symmetric.patient());
            got += u32::from(pop(&ring, &mut consumer).is_some());
            sleeper.disarm(&ring.sleep);
            ring.wake.store(0, Ordering::Release);
        }
        sleeper.arm(&ring.sleep, false);
        assert!(Fences::Symmetric.patient());
        while pop(&ring, &mut consumer).is_some() {
            got += 1;
        }
        producer.join().unwrap();
        assert!(got == 2 || ring.wake.load(Ordering::Acquire) == 1, "slept through a message");
    });
}

/// A sender that is out of room and sleeps is signalled when lines come back.
#[test]
fn no_room_is_slept_through() {
    loom::model(|| {
        let ring = Ring::new(2);
        let mut producer = Producer::default();
        push(&ring, &mut producer, 1, &[1, 2, 3]);
        let receiver = ring.clone();
        let consumer = thread::spawn(move || {
            assert!(pop(&receiver, &mut Consumer::default()).is_some());
            receiver.signal_if_asleep(Reason::Room);
        });
        Sleeper::default().arm(&ring.sleep, true);
        assert!(Fences::Symmetric.patient());
        let room = producer.fits(ring.view(), 1).unwrap();
        consumer.join().unwrap();
        assert!(room || ring.wake.load(Ordering::Acquire) == 1, "slept through room");
    });
}

/// One slot of a lane, and the ring that tells of it.
struct Lane {
    ring: Arc<Ring>,
    slot: Cell<u64>,
    returned: [AtomicU32; 1],
    held: SlotsInUse,
}

impl Lane {
    fn new() -> Arc<Lane> {
        Arc::new(Lane {
            ring: Ring::new(2),
            slot: Cell::new(0),
            returned: [AtomicU32::new(0)],
            held: SlotsInUse::new(1),
        })
    }

    /// Sends the slot for the `generation`th time if it is back, as the sending half does.
    fn send(&self, producer: &mut Producer, books: &mut Recycler, generation: u32) -> bool {
        let back = |_| is_back(&self.returned[0], generation - 1);
        let Some(slot) = books.take(back) else { return false };
        self.slot.set(u64::from(generation));
        push(&self.ring, producer, 0, &[u64::from(generation) << 32 | u64::from(slot)]);
        books.mark_in_flight(slot);
        true
    }

    /// Takes a message if there is one, claims its slot, gives its generation.
    fn receive(&self, consumer: &mut Consumer) -> Option<u32> {
        let (_, name) = pop(&self.ring, consumer)?;
        assert!(self.held.claim(0), "an honest sender is called a liar");
        Some(u32::try_from(name[0] >> 32).unwrap())
    }

    /// What the fragment is for, and its end.
    fn read_and_drop(&self, generation: u32) {
        assert_eq!(self.slot.get(), u64::from(generation), "overwritten, or not there yet");
        assert!(self.held.release(0, &self.returned, generation));
    }
}

/// A slot is written again only after its fragment was dropped, and what it holds is there when the
/// ring says so.
#[test]
fn a_slot_is_written_again_only_after_it_was_read() {
    loom::model(|| {
        let lane = Lane::new();
        let sender = lane.clone();
        let sender = thread::spawn(move || {
            let (mut producer, mut books) = (Producer::default(), Recycler::new(0, 1, 0));
            for generation in 1..=2 {
                while !sender.send(&mut producer, &mut books, generation) {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::default();
        for expected in 1..=2 {
            let generation = loop {
                match lane.receive(&mut consumer) {
                    Some(generation) => break generation,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(generation, expected);
            lane.read_and_drop(generation);
        }
        sender.join().unwrap();
    });
}

/// The same with the first fragment dropped on another thread: when the slot comes again, the
/// receiver knows that it was let go.
#[test]
fn a_fragment_may_be_dropped_on_another_thread() {
    loom::model(|| {
        let lane = Lane::new();
        let (mut producer, mut books) = (Producer::default(), Recycler::new(0, 1, 0));
        let mut consumer = Consumer::default();
        assert!(lane.send(&mut producer, &mut books, 1));
        let generation = lane.receive(&mut consumer).unwrap();
        let keeper = lane.clone();
        let keeper = thread::spawn(move || keeper.read_and_drop(generation));
        let sender = lane.clone();
        let sender = thread::spawn(move || sender.send(&mut producer, &mut books, 2));
        let early = lane.receive(&mut consumer);
        let sent = sender.join().unwrap();
        let again = early.or_else(|| lane.receive(&mut consumer));
        assert_eq!(again, sent.then_some(2));
        if let Some(generation) = again {
            lane.read_and_drop(generation);
        }
        keeper.join().unwrap();
    });
}

/// A private buffer that a tiny message was copied into is used again only after its fragment was
/// dropped, wherever that happens.
#[test]
fn a_private_buffer_is_used_again_only_after_its_fragment() {
    loom::model(|| {
        let shared = Arc::new((Flags::new(1), Cell::new(1u64)));
        let fragment = shared.clone();
        let keeper = thread::spawn(move || {
            let (back, buffer) = &*fragment;
            assert_eq!(buffer.get(), 1);
            back.set(0);
        });
        let (back, buffer) = &*shared;
        while !back.is_set(0) {
            thread::yield_now();
        }
        back.clear(0);
        buffer.set(2);
        assert!(!back.is_set(0), "let go of what was sent just now");
        keeper.join().unwrap();
    });
}

/// Slots that two threads drop unsent while the sender gathers such: each comes back, once.
#[test]
fn every_dropped_slot_comes_back_once() {
    loom::model(|| {
        let dropped = Arc::new(Dropped::new(2));
        let threads = [0, 1].map(|buffer| {
            let dropped = dropped.clone();
            thread::spawn(move || dropped.set(buffer))
        });
        let mut back = [0; 2];
        dropped.collect(|buffer| back[buffer] += 1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        dropped.collect(|buffer| back[buffer] += 1);
        assert_eq!(back, [1, 1]);
    });
}
