//! A message that comes before its turn, and a receive that waits right there for the one before it: neither is
//! overtaken or lost.

use crate::common::ahead::offer_next;
use crate::common::{Buffer, Job, bytes, link};
use gapless_btl::loopback::{self, Loopback};
use gapless_btl::{Btl, Event, PeerId, Queue, Sink, delegate, hand_out};
use gapless_pml::{Config, Next, Source, TagSel};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const TAG: i32 = 5;

/// A transport without order: the first message stays on the wire until it is let go. It can look for the next
/// message of one peer.
struct Late {
    inner: Loopback,
    let_go: Arc<AtomicBool>,
    any: bool,
    first: Option<Event>,
    come: VecDeque<Event>,
}

impl Late {
    fn collect(&mut self) {
        let mut events = Queue::with_capacity(64);
        self.inner.poll(None, &mut events);
        for event in events.drain() {
            if matches!(event, Event::Arrived { .. }) && !std::mem::replace(&mut self.any, true) {
                self.first = Some(event);
            } else {
                self.come.push_back(event);
            }
        }
        if self.let_go.load(Ordering::Relaxed) {
            self.come.extend(self.first.take());
        }
    }
}

impl Btl for Late {
    delegate!(self => self.inner; limits address connect reserve send);

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.collect();
        match only {
            Some(peer) => offer_next(&mut self.come, peer, sink),
            None => hand_out(&mut self.come, None, sink),
        }
    }
}

/// As a blocking receive does it: looks whether just the message it waits for is there, and posts a receive if not.
/// Whether it was.
fn receive(job: &mut Job, to: &Buffer) -> bool {
    let world = job.pml(1).world();
    let (from, tag) = (Source::Rank(0), TagSel::Is(TAG));
    if let Some(awaited) = job.pml(1).awaited(&world, &to.typed(), from, tag) {
        for _ in 0..10 {
            // SAFETY: the buffer lives, and nothing was done with the endpoint since.
            if unsafe { job.pml(1).take_awaited(&awaited) } == Next::Taken {
                return true;
            }
        }
    }
    let recv = job.irecv(1, to, from, tag);
    job.finish(1, recv).unwrap();
    false
}

#[test]
fn what_came_early_is_received_after_what_is_waited_for() {
    for len in [0, 8, 100, 300, 2000] {
        for early in 0..4 {
            let let_go = Arc::new(AtomicBool::new(early == 0));
            let link = loopback::Config { ordered: false, ..link() };
            let mut job = Job::build(2, Config::default(), &mut |rank, hub| {
                let inner = Loopback::with(hub, link.clone());
                if rank == 0 {
                    return Box::new(inner);
                }
                let let_go = Arc::clone(&let_go);
                Box::new(Late { inner, let_go, any: false, first: None, come: VecDeque::new() })
            });
            let sources: Vec<Buffer> =
                (0..early + 2).map(|seed| Buffer::source(&bytes(len), 1, seed)).collect();
            let (now, later) = sources.split_at(sources.len() - 1);
            let mut sends: Vec<_> = now.iter().map(|from| job.isend(0, from, 1, TAG)).collect();
            if early > 0 {
                // All but the first are there.
                job.settle();
            }
            let_go.store(true, Ordering::Relaxed);
            let mut straight = 0;
            for (at, from) in sources.iter().enumerate() {
                if at == now.len() {
                    sends.push(job.isend(0, &later[0], 1, TAG));
                }
                let to = Buffer::target(&bytes(len), 1);
                straight += u32::from(receive(&mut job, &to));
                to.assert_received(&from.packed(), &format!("{len} bytes, {early} early, {at}"));
            }
            // Where nothing came early, and once all that did is received, short messages take the fast path.
            assert_eq!(straight > 0, len < 2000, "{len} bytes, {early} early");
            for send in sends {
                job.finish(0, send).unwrap();
            }
            let world = job.pml(1).world();
            assert_eq!(job.pml(1).iprobe(&world, Source::Any, TagSel::Any), Ok(None));
        }
    }
}
