//! Through slots: the sender's engine packs fragments into them, the receiver's unpacks fragments out
//! of its arrivals, in whatever order their work ends.
//!
//! ```text
//!  fragment  0 message:8 | 8 offset in the packed stream:8 | 16 packed bytes …
//! ```

use super::scene::{End, Lab, Memory, assert_bytes, expected, meet, messages, seeds, start, typed};
use gapless_btl::{AmTag, Btl, Event, Fragment, Token};
use gapless_engine::{Engine, Typed};
use gapless_layouts::Case;
use gapless_mem::{Completion, Space};
use gapless_tests::actor::{listen, part, say, until};

const HEAD_BYTES: usize = 16;
/// Lengths of fragments, in turns: odd ones, and the longest.
const FRAGMENTS: [usize; 4] = [65_792 - HEAD_BYTES, 4093, 32_768, 1001];
/// Fragments that an engine unpacks at a time.
const DEPTH: usize = 4;

/// Packs and sends the first `bytes` of a message; false when the receiver is lost.
fn send(end: &mut End, lab: &Lab, number: u64, source: &Typed, bytes: u64) -> bool {
    let (mut at, mut turn) = (0, 0);
    while at < bytes {
        let room = FRAGMENTS[(turn + usize::try_from(number).expect("few")) % FRAGMENTS.len()];
        let len = room.min(usize::try_from(bytes - at).expect("test sizes"));
        let Some(mut slot) = end.reserve(HEAD_BYTES + len, drop) else { return false };
        if lab.registers {
            assert_eq!(slot.region().space(), Space::Pinned, "slots are registered");
        }
        slot.write(0, &[number.to_le_bytes(), at.to_le_bytes()].concat()).expect("host memory");
        let target = slot.region().sub(HEAD_BYTES as u64, len as u64).expect("inside the slot");
        let range = at..at + len as u64;
        // SAFETY: the slot is ours until it is sent, after the wait; the source lives as long, and
        // nothing writes it.
        let packed = unsafe { lab.engine.pack(source, range, target, &[]) };
        packed.expect("an engine that packs").wait().expect("a kernel that runs");
        end.sm.send(slot, AmTag(1), Token::NONE);
        at += len as u64;
        turn += 1;
    }
    true
}

/// A message that is being put together.
struct Incoming {
    number: u64,
    target: Typed,
    /// Its memory.
    memory: Memory,
    arrived: u64,
    /// Work in flight, with the arrivals that it reads.
    work: Vec<(Completion, Fragment)>,
}

impl Incoming {
    fn new(lab: &Lab, index: usize, case: &Case) -> Incoming {
        let memory = lab.buffer(&case.recv, seeds(index).1);
        let target = typed(&case.recv, memory.region);
        Incoming { number: index as u64, target, memory, arrived: 0, work: Vec::new() }
    }

    fn take(&mut self, lab: &Lab, event: Event) {
        let Event::Arrived { fragment, .. } = event else { panic!("{event:?}") };
        let mut head = [0; HEAD_BYTES];
        fragment.read(0, &mut head).expect("host memory");
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        assert_eq!(word(0), self.number, "messages come in order");
        let len = (fragment.len() - HEAD_BYTES) as u64;
        let source = fragment.region().sub(HEAD_BYTES as u64, len).expect("inside");
        let range = word(8)..word(8) + len;
        // SAFETY: the fragment is held, and the target lives, until the completion has ended; the
        // sender left the bytes alone when it sent them, and nothing else touches the target.
        let unpacked = unsafe { lab.engine.unpack(source, &self.target, range, &[]) };
        self.work.push((unpacked.expect("an engine that unpacks"), fragment));
        self.arrived += len;
        while self.work.len() > DEPTH {
            self.retire();
        }
    }

    /// Lets go of arrivals that have been read.
    fn retire(&mut self) {
        self.work.retain(|(completion, _)| !completion.poll().expect("a kernel that runs"));
    }

    fn finish(&mut self) {
        until("the engine is through", || {
            self.retire();
            self.work.is_empty()
        });
    }

    fn is_whole(&self) -> bool {
        self.arrived == self.target.packed_bytes()
    }
}

fn receive(end: &mut End, lab: &Lab, incoming: &mut Incoming) {
    until("the message is there", || {
        for event in end.poll() {
            incoming.take(lab, event);
            if incoming.is_whole() {
                // The next message is asked for when this one has been looked at.
                break;
            }
        }
        incoming.is_whole()
    });
    incoming.finish();
}

/// Every message arrives, byte for byte, and nothing beside it changes.
pub(crate) fn arrive(test: &str, lab: &Lab) {
    let cases = messages();
    if part().is_some() {
        let mut end = meet(lab);
        for (index, case) in cases.iter().enumerate() {
            let memory = lab.buffer(&case.send, seeds(index).0);
            let source = typed(&case.send, memory.region);
            assert!(send(&mut end, lab, index as u64, &source, case.payload_bytes));
            // One at a time.
            let _ = listen();
        }
        say("all sent");
        let _ = listen();
        return;
    }
    let (mut end, mut actor) = start(test, "sender", lab);
    for (index, case) in cases.iter().enumerate() {
        let mut incoming = Incoming::new(lab, index, case);
        receive(&mut end, lab, &mut incoming);
        assert_bytes(&lab.download(&incoming.memory), &expected(index, case), &case.name);
        actor.tell("next");
    }
    assert_eq!(actor.hear(), "all sent");
}

/// The case of the tests that break off: some megabytes.
fn long() -> (usize, Case) {
    let cases = messages();
    let longest = (0..cases.len()).max_by_key(|&index| cases[index].payload_bytes);
    let index = longest.expect("there are some");
    let case = cases.into_iter().nth(index).expect("as found");
    assert!(case.payload_bytes > 1 << 20, "longer than all slots");
    (index, case)
}

/// A sender that is killed in the middle: what came is unpacked, the loss is told, and the next
/// sender is served by the same device.
pub(crate) fn sender_killed(test: &str, lab: &Lab) {
    let (index, case) = long();
    if part().is_some() {
        let mut end = meet(lab);
        let memory = lab.buffer(&case.send, seeds(index).0);
        let source = typed(&case.send, memory.region);
        assert!(send(&mut end, lab, index as u64, &source, case.payload_bytes / 2));
        // With a slot in hand, into which the next fragment is being packed.
        let slot = end.reserve(1001, drop).expect("the receiver lives");
        // SAFETY: slot and source live until this process is killed.
        let packing = unsafe { lab.engine.pack(&source, 0..1001, slot.region(), &[]) };
        let _ = listen();
        drop((packing, slot));
        return;
    }
    for _ in 0..2 {
        let (mut end, actor) = start(test, "sender", lab);
        let mut incoming = Incoming::new(lab, index, &case);
        until("something has come", || {
            let events = end.poll();
            events.into_iter().for_each(|event| incoming.take(lab, event));
            incoming.arrived > 0
        });
        actor.kill();
        // Whatever was in the slots is still read in peace.
        end.expect_loss(|event| incoming.take(lab, event));
        incoming.finish();
        drop(end);
        let got = lab.download(&incoming.memory);
        let right = expected(index, &case);
        assert!(!incoming.is_whole(), "half of it was never sent");
        let before = lab.download(&lab.buffer(&case.recv, seeds(index).1));
        let either = |at: usize| got[at] == right[at] || got[at] == before[at];
        assert!((0..got.len()).all(either), "a byte that was in neither");
    }
}

/// A receiver that is killed in the middle: the sender is told, its kernels have ended, and the next
/// receiver is served by the same device.
pub(crate) fn receiver_killed(test: &str, lab: &Lab) {
    let (index, case) = long();
    if part().is_some() {
        let mut end = meet(lab);
        let mut incoming = Incoming::new(lab, index, &case);
        until("something has come", || {
            let events = end.poll();
            events.into_iter().for_each(|event| incoming.take(lab, event));
            incoming.arrived > 0
        });
        say("some");
        let _ = listen();
        return;
    }
    let memory = lab.buffer(&case.send, seeds(index).0);
    let source = typed(&case.send, memory.region);
    for _ in 0..2 {
        let (mut end, mut actor) = start(test, "receiver", lab);
        let sender = std::thread::scope(|threads| {
            let sending = threads.spawn(|| {
                while send(&mut end, lab, index as u64, &source, case.payload_bytes) {}
                end
            });
            assert_eq!(actor.hear(), "some");
            actor.kill();
            sending.join().expect("it is told of the loss")
        });
        drop(sender);
    }
    assert_eq!(lab.download(&memory).len() as u64, case.send.buffer_bytes, "the device goes on");
}
