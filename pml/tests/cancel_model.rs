//! Completion against cancel: two threads share an endpoint behind a lock, as `gapless` has it, and loom
//! tries every order in which they come to hold it. Whatever the order, a receive either took its
//! message or was cancelled, both threads are told the same, and the message is received exactly once.
//! Likewise a send that is asked for back was received or cancelled, never both and never neither.
//!
//! The endpoint has no atomics of its own; orders of the lock are all there is, and nothing here needs
//! `--cfg loom`.
//!
//! Weakened, one at a time, and then failing: a `cancel` that says `true` of a receive that has ended
//! (`cancelled_or_received`), or of one whose message is on its way (`a_long_one_…`); one that leaves the
//! receive in the matching tables (both: the message is lost in it); one that does not end the request
//! (both); a cancel of an eager message that is answered "cancelled" whatever was found, or "received" (`a_send_…`);
//! one that leaves the message in the matching tables (both of these).

use crate::common::{Buffer, bytes};
use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_engine::HostEngine;
use gapless_pml::{Config, Pml, PmlError, RequestId, RequestOutcome, Source, TagSel};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::sync::atomic::{AtomicU32, Ordering};

/// Turns in which any message of these has long arrived.
const TURNS: u32 = 40;

/// Rank 1 receives; rank 0 sends, by whichever thread's turn it is.
struct Ends {
    sender: Pml,
    receiver: Pml,
    from: Buffer,
    to: [Buffer; 2],
}

fn ends(len: u64) -> Ends {
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
    let to = [Buffer::target(&bytes(len), 1), Buffer::target(&bytes(len), 1)];
    Ends { sender, receiver, from: Buffer::source(&bytes(len), 1, 7), to }
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
fn complete(shared: &Mutex<Ends>, receive: RequestId) -> (RequestId, RequestOutcome) {
    let sent = shared.lock().unwrap().send();
    for _ in 0..TURNS {
        shared.lock().unwrap().receiver.progress();
        shared.lock().unwrap().sender.progress();
        // The other thread may come here as well: the receive has ended and nobody has been told.
        let outcome = shared.lock().unwrap().receiver.test(receive).transpose();
        if let Some(outcome) = outcome {
            return (sent, outcome);
        }
    }
    panic!("the receive does not end");
}

/// One thread completes a message of `len` bytes, the other cancels.
fn race(len: u64, seen: &[AtomicU32; 2]) {
    let mut ends = ends(len);
    let receive = ends.post(0);
    let shared = Arc::new(Mutex::new(ends));
    let other = shared.clone();
    let completer = spawn(move || complete(&other, receive));
    let cancelled = shared.lock().unwrap().receiver.cancel_recv(receive);

    let (sent, outcome) = completer.join().unwrap();
    let received = match outcome.map_err(PmlError::from) {
        Ok(status) => status.bytes == len,
        Err(PmlError::Cancelled) => false,
        Err(error) => panic!("neither cancelled nor received: {error}"),
    };
    // A request whose end was told is known no more; then it was not cancelled.
    assert_eq!(cancelled.unwrap_or(false), !received, "the two threads disagree");
    seen[usize::from(received)].fetch_add(1, Ordering::Relaxed);
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

/// Counts, over all orders, how often something was cancelled and how often the message was taken.
fn every_order(race: fn(u64, &[AtomicU32; 2]), len: u64) {
    let seen = std::sync::Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let counts = seen.clone();
    loom::model(move || {
        let counts = counts.clone();
        spawn(move || race(len, &counts)).join().unwrap();
    });
    let seen = seen.each_ref().map(|seen| seen.load(Ordering::Relaxed));
    assert!(seen.iter().all(|&seen| seen > 0), "only one thing ever happens: {seen:?}");
}

#[test]
fn cancelled_or_received() {
    every_order(race, 8);
}

/// One thread receives a message of `len` bytes, the other asks for it back.
fn race_of_sends(len: u64, seen: &[AtomicU32; 2]) {
    let mut ends = ends(len);
    let send = ends.send();
    ends.receiver.progress();
    let shared = Arc::new(Mutex::new(ends));
    let other = shared.clone();
    let receiver = spawn(move || {
        let receive = other.lock().unwrap().post(0);
        other.lock().unwrap().receiver.progress();
        receive
    });
    shared.lock().unwrap().sender.cancel_send(send).unwrap();
    shared.lock().unwrap().receiver.progress();
    shared.lock().unwrap().sender.progress();

    let receive = receiver.join().unwrap();
    let mut ends = shared.lock().unwrap();
    for _ in 0..TURNS {
        ends.sender.progress();
        ends.receiver.progress();
    }
    let received = ends.receiver.test(receive).unwrap().is_some();
    match ends.sender.test(send).map_err(PmlError::from) {
        Ok(Some(status)) => assert!(received && status.bytes == len, "completed and not received"),
        Err(PmlError::Cancelled) => assert!(!received, "cancelled and received"),
        other => panic!("neither cancelled nor received: {other:?}"),
    }
    seen[usize::from(received)].fetch_add(1, Ordering::Relaxed);
    // The receive is there for the next message, unless it took this one.
    ends.send();
    for _ in 0..TURNS {
        ends.sender.progress();
        ends.receiver.progress();
    }
    assert_eq!(ends.receiver.test(receive).is_ok(), !received);
}

#[test]
fn a_send_is_cancelled_or_received() {
    every_order(race_of_sends, 8);
}

#[test]
fn a_long_send_is_cancelled_or_received() {
    every_order(race_of_sends, 100_000);
}

/// One that takes several messages, so that it can be on its way.
#[test]
fn a_long_one_is_cancelled_or_received() {
    every_order(race, 100_000);
}
