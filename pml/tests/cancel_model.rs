//! Completion against cancel: two threads share an endpoint behind a lock, as `gapless` has it, and loom
//! tries every order in which they come to hold it. Whatever the order, a receive either took its
//! message or was cancelled, both threads are told the same, and the message is received exactly once.
//!
//! The endpoint has no atomics of its own; orders of the lock are all there is, and nothing here needs
//! `--cfg loom`.
//!
//! Weakened, one at a time, and then failing: `cancel` that answers `true` whether it found the receive
//! or not (`cancelled_or_received`); one that leaves the receive in the matching tables
//! (`cancelled_or_received`: the message is lost in it); one that does not end the request (`cancelled_or_received`: it does not end).

mod common;

use common::{Buffer, bytes};
use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::HostEngine;
use gapless_pml::{Config, Outcome, Pml, PmlError, RequestId, Source, TagSel};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::sync::atomic::{AtomicU32, Ordering};

/// Turns in which a message of 8 bytes has long arrived.
const TURNS: u32 = 4;

/// How often the receive was cancelled, and how often it took the message: loom's own have no memory from
/// one order to the next.
static SEEN: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// Rank 1 receives; rank 0 sends, by whichever thread's turn it is.
struct Ends {
    sender: Pml,
    receiver: Pml,
    from: Buffer,
    to: [Buffer; 2],
}

fn ends() -> Ends {
    let hub = Hub::new();
    let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
    for bml in &mut bmls {
        bml.add(Box::new(Loopback::new(&hub)));
    }
    let addresses = bmls.each_ref().map(Bml::addresses);
    let [a, b] = &mut bmls;
    a.connect(Rank(1), &addresses[1]).unwrap();
    b.connect(Rank(0), &addresses[0]).unwrap();
    let pml = |bml| Pml::new(bml, vec![std::sync::Arc::new(HostEngine)], Config::default());
    let [sender, receiver] = bmls.map(pml);
    let to = [Buffer::target(&bytes(8), 1), Buffer::target(&bytes(8), 1)];
    Ends { sender, receiver, from: Buffer::source(&bytes(8), 1, 7), to }
}

impl Ends {
    fn post(&mut self, which: usize) -> RequestId {
        let world = self.receiver.world();
        // SAFETY: the buffers live beside the endpoints, and nobody else touches them meanwhile.
        let posted = unsafe {
            self.receiver.irecv(&world, &self.to[which].typed(), Source::Rank(0), TagSel::Any)
        };
        posted.unwrap()
    }

    fn send(&mut self) -> RequestId {
        let world = self.sender.world();
        // SAFETY: as above.
        unsafe { self.sender.isend(&world, &self.from.typed(), 1, 3) }.unwrap()
    }
}

/// A thread of the model with room for an endpoint: loom's have a stack of some pages.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap()
}

/// Sends, and makes progress until the receive has ended.
fn complete(shared: &Mutex<Ends>, receive: RequestId) -> (RequestId, Outcome) {
    let sent = shared.lock().unwrap().send();
    for _ in 0..TURNS {
        let mut ends = shared.lock().unwrap();
        ends.sender.progress();
        ends.receiver.progress();
        if let Some(outcome) = ends.receiver.test(receive).transpose() {
            return (sent, outcome);
        }
    }
    panic!("the receive does not end");
}

/// One thread completes, the other cancels.
fn race() {
    let mut ends = ends();
    let receive = ends.post(0);
    let shared = Arc::new(Mutex::new(ends));
    let other = shared.clone();
    let completer = spawn(move || complete(&other, receive));
    let cancelled = shared.lock().unwrap().receiver.cancel_recv(receive);

    let (sent, outcome) = completer.join().unwrap();
    let received = match outcome {
        Ok(status) => status.bytes == 8,
        Err(PmlError::Cancelled) => false,
        Err(error) => panic!("neither cancelled nor received: {error}"),
    };
    // A request whose end was told is known no more; then it was not cancelled.
    assert_eq!(cancelled.unwrap_or(false), !received, "the two threads disagree");
    SEEN[usize::from(received)].fetch_add(1, Ordering::Relaxed);
    // The message is there for the next receive, unless this one took it.
    let mut ends = shared.lock().unwrap();
    let next = ends.post(1);
    for _ in 0..TURNS {
        ends.sender.progress();
        ends.receiver.progress();
    }
    let next = ends.receiver.test(next).unwrap();
    assert_eq!(next.is_some(), !received, "received twice, or never");
    assert!(ends.sender.test(sent).unwrap().is_some(), "the send has not ended");
}

#[test]
fn cancelled_or_received() {
    loom::model(|| spawn(race).join().unwrap());
    let seen = SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed));
    assert!(seen.iter().all(|&seen| seen > 0), "only one thing ever happens: {seen:?}");
}
