//! Messages from one end to another in the same thread.
#![allow(unsafe_code, reason = "posts buffers that outlive the ends")]

use gapless_bml::{Bml, Rank};
use gapless_btl::Btl;
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{HostEngine, Typed};
use gapless_mem::{Completion, DeviceError, Pending, Region};
use gapless_pml::{Config, Pml, RequestId, Source, TagSel};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tag that nothing outstanding has.
const TAG: i32 = 1_000_000;
/// Messages or receives that are outstanding beside the counted one.
const OUTSTANDING: i32 = 1000;

/// Messages in a window.
const WINDOW: usize = 64;

/// Two ends, and a buffer for each.
struct Duo {
    ends: [Pml; 2],
    typed: [Typed; 2],
    /// What `typed` describes: dropped after the ends.
    _memory: [Vec<u8>; 2],
}

impl Duo {
    /// Buffers of `count` instances of `layout`, which is not longer than its extent.
    fn new(layout: &Layout, count: u64) -> Duo {
        let hub = Hub::new();
        Duo::over(|_| Box::new(Loopback::new(&hub)), layout, count)
    }

    /// As [`new`](Duo::new), over the transport of each end.
    fn over(transport: impl Fn(usize) -> Box<dyn Btl>, layout: &Layout, count: u64) -> Duo {
        let mut bmls = [Bml::new(Rank(0), 2), Bml::new(Rank(1), 2)];
        for (end, bml) in bmls.iter_mut().enumerate() {
            bml.add(transport(end));
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        let [a, b] = &mut bmls;
        a.connect(Rank(1), &addresses[1]).expect("both are there");
        b.connect(Rank(0), &addresses[0]).expect("both are there");
        let pml = |bml| Pml::new(bml, vec![Arc::new(HostEngine)], Config::default());
        let mut memory = [vec![1u8; 1 << 16], vec![0u8; 1 << 16]];
        let typed = memory.each_mut().map(|memory| {
            Typed::new(Region::of_mut(memory), 0, layout, count).expect("it fits 64 KiB")
        });
        Duo { ends: bmls.map(pml), typed, _memory: memory }
    }

    fn send(&mut self, tag: i32) -> RequestId {
        let world = self.ends[0].world();
        // SAFETY: the memory lives as long as the ends, and nobody else touches it.
        unsafe { self.ends[0].isend(&world, &self.typed[0], 1, tag) }.expect("it starts")
    }

    fn receive(&mut self, tag: i32) -> RequestId {
        let world = self.ends[1].world();
        let (from, tag) = (Source::Rank(0), TagSel::Is(tag));
        // SAFETY: as above.
        unsafe { self.ends[1].irecv(&world, &self.typed[1], from, tag) }.expect("it starts")
    }

    fn finish(&mut self, which: usize, id: RequestId) {
        while self.ends[which].test(id).expect("a message that arrives").is_none() {
            self.ends.iter_mut().for_each(|end| {
                end.progress();
            });
        }
    }

    /// A message that is expected.
    fn one(&mut self) {
        let received = self.receive(TAG);
        let sent = self.send(TAG);
        self.finish(1, received);
        self.finish(0, sent);
    }

    /// Many messages in flight at once.
    fn many(&mut self, ids: &mut Vec<RequestId>) {
        ids.extend((0..WINDOW).map(|_| self.receive(TAG)));
        for _ in 0..WINDOW {
            let sent = self.send(TAG);
            self.finish(0, sent);
        }
        for id in ids.drain(..) {
            self.finish(1, id);
        }
    }

    /// A message that is not.
    fn early(&mut self) {
        let sent = self.send(TAG);
        self.finish(0, sent);
        self.ends[1].progress();
        let received = self.receive(TAG);
        self.finish(1, received);
    }
}

fn bytes() -> Layout {
    Datatype::from(Primitive::UnsignedChar).commit().expect("bytes commit")
}

/// Plain bytes whose receive is posted.
pub(crate) fn eager(len: u64, count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = Duo::new(&bytes(), len);
    count(&mut || duo.one());
}

/// Both ends over shared memory. How long a message takes to be noticed is no part of the count.
fn shared_memory(len: u64) -> Duo {
    let job = format!("counts {}", std::process::id());
    let transport = |end: usize| -> Box<dyn Btl> {
        Box::new(Sm::new(SmConfig::new(job.as_str(), format!("end {end}"))).expect("memory"))
    };
    Duo::over(transport, &bytes(), len)
}

/// Plain bytes through the memory that two processes share.
pub(crate) fn between_processes(len: u64, count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = shared_memory(len);
    count(&mut || duo.one());
}

/// A window of messages of 8 bytes, likewise.
pub(crate) fn window(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = shared_memory(8);
    let mut ids = Vec::with_capacity(WINDOW);
    count(&mut || duo.many(&mut ids));
}

/// 64 blocks of 8 bytes with gaps, both ends.
pub(crate) fn eager_vector(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let column = Datatype::vector(64, 1, 3, &Primitive::Double.into()).expect("a plain vector");
    let mut duo = Duo::new(&column.commit().expect("it commits"), 1);
    count(&mut || duo.one());
}

/// A message that comes before its receive.
pub(crate) fn unexpected(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = Duo::new(&bytes(), 8);
    count(&mut || duo.early());
}

/// A message past receives that wait for others.
pub(crate) fn among_posted(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = Duo::new(&bytes(), 8);
    for tag in 0..OUTSTANDING {
        duo.receive(tag);
    }
    count(&mut || duo.one());
}

/// A receive past messages that wait for others.
pub(crate) fn among_unexpected(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = Duo::new(&bytes(), 8);
    for tag in 0..OUTSTANDING {
        let sent = duo.send(tag);
        duo.finish(0, sent);
    }
    count(&mut || duo.early());
}

/// Work that ends when it is told to.
struct PendingWork(AtomicBool);

// SAFETY: it was granted no memory; it ends once.
unsafe impl Pending for PendingWork {
    fn poll(&self) -> Result<bool, DeviceError> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A send after such work, which its receiver hears of before its receive, while offers wait there for others.
pub(crate) fn after_work(count: &mut dyn FnMut(&mut dyn FnMut())) {
    let mut duo = Duo::new(&bytes(), 8);
    duo.ends[0].config_mut().tuning.eager_bytes_max = 0;
    for tag in 0..OUTSTANDING {
        duo.send(tag);
        duo.ends[1].progress();
    }
    count(&mut || {
        let work = Arc::new(PendingWork(AtomicBool::new(false)));
        let after = [Completion::Pending(work.clone())];
        let (world, typed) = (duo.ends[0].world(), &duo.typed[0]);
        // SAFETY: the memory lives as long as the ends, and nobody else touches it.
        let sent = unsafe { duo.ends[0].isend_after(&world, typed, 1, TAG, &after) };
        let sent = sent.expect("it starts");
        duo.ends[1].progress();
        work.0.store(true, Ordering::Relaxed);
        duo.ends[0].progress();
        duo.ends[1].progress();
        let received = duo.receive(TAG);
        duo.finish(1, received);
        duo.finish(0, sent);
    });
}
