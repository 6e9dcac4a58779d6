//! Through mappings: the owner sends keys to its memory and its pack's completion as bytes; the
//! receiver's device waits for that, and one kernel unpacks the owner's packed buffer, or moves from
//! the owner's layout to the receiver's. That it is through goes back as a message; then the owner
//! has its memory back.
//!
//! ```text
//!  offer  0 index:8 | 8 length of the first key:1 | 9 of the second:1 | 10 of the completion:1 |
//!         11 key to the packed buffer … key to the typed buffer … completion …
//! ```

use super::scene::{End, Lab, Memory, assert_bytes, expected, meet, messages, seeds, start, typed};
use gapless_btl::{AmTag, Btl, Event, Mapped, RemoteKey, Token};
use gapless_engine::Engine;
use gapless_layouts::Case;
use gapless_mem::{Completion, Lease};
use gapless_tests::actor::{listen, part, say, until};
use std::sync::Arc;

const HEAD_BYTES: usize = 11;

/// Sends some bytes.
fn send(end: &mut End, bytes: &[u8]) {
    let mut slot = end.reserve(bytes.len(), drop).expect("the peer lives");
    slot.write(0, bytes).expect("host memory");
    end.sm.send(slot, AmTag(2), Token::NONE);
}

/// Receives some bytes.
fn receive(end: &mut End) -> Vec<u8> {
    let mut bytes = None;
    until("a message is there", || {
        for event in end.poll() {
            let Event::Arrived { fragment, .. } = event else { panic!("{event:?}") };
            assert!(bytes.is_none(), "one at a time");
            bytes = Some(fragment.to_vec().expect("host memory"));
        }
        bytes.is_some()
    });
    bytes.expect("as just seen")
}

/// What the owner offers.
struct Offer {
    index: u64,
    packed: RemoteKey,
    typed: RemoteKey,
    completion: Vec<u8>,
}

impl Offer {
    fn write(&self) -> Vec<u8> {
        let mut bytes = self.index.to_le_bytes().to_vec();
        let parts = [self.packed.as_bytes(), self.typed.as_bytes(), &self.completion];
        bytes.extend(parts.iter().map(|part| u8::try_from(part.len()).expect("short")));
        bytes.extend(parts.concat());
        bytes
    }

    fn read(bytes: &[u8]) -> Offer {
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        let mut index = [0; 8];
        index.copy_from_slice(&head[..8]);
        let (packed, rest) = rest.split_at(head[8].into());
        let (typed, completion) = rest.split_at(head[9].into());
        assert_eq!(completion.len(), usize::from(head[10]));
        let key = |bytes| RemoteKey::new(bytes).expect("as long as a key");
        Offer {
            index: u64::from_le_bytes(index),
            packed: key(packed),
            typed: key(typed),
            completion: completion.to_vec(),
        }
    }
}

/// The owner's two buffers: packed, and as the layout has it. The completion is held until the peer
/// is through.
fn offer(end: &mut End, lab: &Lab, index: usize, case: &Case) -> (Memory, Memory, Completion) {
    let memory = lab.buffer(&case.send, seeds(index).0);
    let source = typed(&case.send, memory.region);
    let bytes = source.packed_bytes();
    let staging = lab.upload(&vec![0x5a; usize::try_from(bytes).expect("test sizes").max(1)]);
    let packed = staging.region.sub(0, bytes).expect("as long");
    // SAFETY: both buffers live, and nobody else writes them, until the peer has said that it is
    // through, which is after the end of this work.
    let done = unsafe { lab.engine.pack(&source, 0..bytes, packed, &[]) };
    let done = done.expect("an engine that packs");
    let completion = match &done {
        Completion::Pending(work) => work.export().expect("a completion that others can wait for"),
        Completion::Ready => Vec::new(),
    };
    // The link is up before keys are made.
    drop(end.reserve(0, drop));
    let peer = end.peer;
    let mut key = |region| {
        // SAFETY: both buffers live over this call, which keeps nothing of the lease.
        let lease = unsafe { Lease::kept_by_caller(region) };
        end.sm.key(peer, &lease).expect("device memory has keys")
    };
    let (packed, typed) = (key(packed), key(memory.region));
    send(end, &Offer { index: index as u64, packed, typed, completion }.write());
    (memory, staging, done)
}

/// Every message arrives in both directions, byte for byte, and nothing beside it changes; then the owner
/// gets its memory back and frees it, so that the next buffers take the same addresses.
pub(crate) fn arrive(test: &str, lab: &Lab) {
    let cases = messages();
    if part().is_some() {
        let mut end = meet(lab);
        for (index, case) in cases.iter().enumerate() {
            let (memory, staging, done) = offer(&mut end, lab, index, case);
            assert_eq!(receive(&mut end), b"through");
            done.wait().expect("a kernel that ran");
            for memory in [memory, staging] {
                until("the peer has let go of it", || {
                    assert!(end.poll().is_empty());
                    !end.sm.invalidate(memory.region)
                });
            }
        }
        say("all sent");
        let _ = listen();
        return;
    }
    let (mut end, mut actor) = start(test, "owner", lab);
    for (index, case) in cases.iter().enumerate() {
        let offer = Offer::read(&receive(&mut end));
        assert_eq!(offer.index, index as u64);
        let packed_there = match &offer.completion[..] {
            [] => Completion::Ready,
            bytes => lab.device.import_completion(bytes).expect("the owner's completion"),
        };
        let (peer, own) = (end.peer, lab.device.space());
        let staging = end.sm.map_for(peer, &offer.packed, own).expect("the packed buffer");
        let buffer = end.sm.map_for(peer, &offer.typed, own).expect("the typed buffer");
        assert_eq!(staging.region().space(), own, "for our own kernels");
        let right = expected(index, case);
        let bytes = case.payload_bytes;

        let memory = lab.buffer(&case.recv, seeds(index).1);
        let target = typed(&case.recv, memory.region);
        let after = [packed_there.clone()];
        // SAFETY: the mapping is held and the target lives until the wait below; the owner writes
        // nothing until it is told that we are through, but what `after` waits for.
        let moved = unsafe { lab.engine.unpack(staging.region(), &target, 0..bytes, &after) };
        moved.expect("an engine that unpacks").wait().expect("a kernel that runs");
        assert_bytes(&lab.download(&memory), &right, &format!("{}, unpacked", case.name));

        let memory = lab.buffer(&case.recv, seeds(index).1);
        let target = typed(&case.recv, memory.region);
        let source = typed(&case.send, buffer.region());
        // SAFETY: as above; the owner never writes the typed buffer.
        let moved = unsafe { lab.engine.transfer(&source, &target, 0..bytes, &[]) };
        moved.expect("an engine that moves").wait().expect("a kernel that runs");
        assert_bytes(&lab.download(&memory), &right, &format!("{}, layout to layout", case.name));
        drop((staging, buffer));
        send(&mut end, b"through");
    }
    // It says so only when it has its memory back, for which it needs us.
    let done = std::thread::scope(|threads| {
        let heard = threads.spawn(|| actor.hear());
        until("the owner is content", || {
            assert!(end.poll().is_empty());
            heard.is_finished()
        });
        heard.join().expect("it said something")
    });
    assert_eq!(done, "all sent");
    let cuda = lab.cuda.as_ref().expect("a CUDA test");
    assert_eq!(cuda.imported(), 0, "nothing of the owner's is mapped any more");
}

/// An owner that is killed while its memory is mapped here: the loss is told, what nobody uses is let
/// go of, the rest when its last user is, and the device goes on.
pub(crate) fn owner_killed(test: &str, lab: &Lab) {
    let cases = messages();
    let index = 2;
    let case = &cases[index];
    if part().is_some() {
        let mut end = meet(lab);
        let _held = offer(&mut end, lab, index, case);
        let _ = listen();
        return;
    }
    let cuda = Arc::clone(lab.cuda.as_ref().expect("a CUDA test"));
    for _ in 0..2 {
        let (mut end, actor) = start(test, "owner", lab);
        let offer = Offer::read(&receive(&mut end));
        let peer = end.peer;
        let staging = end.sm.map(peer, &offer.packed).expect("the packed buffer");
        let buffer = end.sm.map(peer, &offer.typed).expect("the typed buffer");
        drop(buffer);
        assert_eq!(cuda.imported(), 2, "one is kept");
        actor.kill();
        end.expect_loss(|event| panic!("{event:?}"));
        assert_eq!(cuda.imported(), 1, "one is still held");
        assert!(end.sm.map(peer, &offer.typed).is_err(), "nothing is mapped of the dead");
        drop(staging);
        assert_eq!(cuda.imported(), 0);
        let memory = lab.buffer(&case.send, 1);
        assert_eq!(lab.download(&memory).len() as u64, case.send.buffer_bytes);
    }
}
