//! A transport that records its calls and events.
//!
//! [`Trace`] wraps any [`Btl`] and is one. Each call and each event becomes a [`Record`], which
//! goes to a function of the caller's, for instance `|r| tracing::trace!("{r}")`, or into a
//! [`Recorder`] that keeps the last few. Polls that report nothing are not recorded.
//!
//! ```
//! use gapless_btl::{AmTag, Btl, Queue, Token, loopback::{Hub, Loopback}};
//! use gapless_btl_testkit::trace::{Recorder, Trace};
//! let recorder = Recorder::new(100);
//! let mut end = Trace::new(Loopback::new(&Hub::new()), recorder.listener());
//! let own = end.address();
//! let me = end.connect(&own)?;
//! let slot = end.reserve(me, 3)?;
//! end.send(slot, AmTag(9), Token(1));
//! end.poll(None, &mut Queue::with_capacity(8));
//! assert_eq!(recorder.text(), "\
//! connect -> peer 0
//! reserve 3 bytes for peer 0 -> ok
//! send 3 bytes to peer 0, tag 9, token 1
//! arrived 3 bytes from peer 0, tag 9
//! sent token 1 -> ok
//! ");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[allow(unsafe_code, reason = "passes Rdma's unsafe methods through")]
mod abilities;
mod record;

pub use record::{CallOutcome, Record, Recorder};

use crate::wrapped::Wrapped;
use gapless_btl::{
    Address, AmTag, Btl, Event, Fragment, LinkError, Mapped, PeerId, Rdma, ReserveError, Short,
    Sink, Slot, TargetAnswer, Token, ZeroCopyMessage, ZeroCopyResult, delegate,
};
use gapless_mem::Device;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Who gets the records.
pub type Listener = Box<dyn FnMut(Record) + Send>;

/// A transport that records its calls and events. See the [module](self).
pub struct Trace<B> {
    inner: Wrapped<B>,
    listener: Listener,
}

impl<B: Btl> Trace<B> {
    /// Wraps a transport; `listener` gets each record at once, on the caller's thread.
    #[must_use]
    pub fn new(inner: B, listener: Listener) -> Trace<B> {
        Trace { inner: Wrapped::new(inner), listener }
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner.btl
    }

    fn record(&mut self, record: Record) {
        (self.listener)(record);
    }
}

impl<B: Btl> Btl for Trace<B> {
    delegate!(self => self.inner.btl;
        limits address has_met callers has_zero_copy retains retain unacknowledged outstanding
    );

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let result = self.inner.btl.connect(peer);
        self.record(Record::Connect { result: result.clone() });
        let id = result?;
        self.inner.name(id);
        Ok(id)
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let result = self.inner.btl.introduce(peer);
        self.record(Record::Introduce { result: result.clone() });
        let id = result?;
        self.inner.name(id);
        Ok(id)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let result = self.inner.btl.reserve(to, len);
        self.record(Record::Reserve { to, len, outcome: CallOutcome::of(&result) });
        result
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        self.record(Record::Send { to: slot.peer(), len: slot.len(), tag, done });
        self.inner.btl.send(slot, tag, done);
    }

    fn send_zero_copy(
        &mut self,
        to: PeerId,
        tag: AmTag,
        message: &ZeroCopyMessage<'_>,
    ) -> ZeroCopyResult {
        let result = self.inner.btl.send_zero_copy(to, tag, message);
        if result == ZeroCopyResult::Sent {
            self.record(Record::Send { to, len: message.len(), tag, done: Token::NONE });
        }
        result
    }

    fn poll(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        self.inner.btl.poll(only, &mut Recorded { sink, listener: &mut self.listener })
    }

    fn arm(&mut self) -> Option<RawFd> {
        self.record(Record::Arm);
        self.inner.btl.arm()
    }

    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        let result = self.inner.btl.attach(device);
        let device = device.properties().name.clone();
        self.record(Record::Attach { device, outcome: CallOutcome::of(&result) });
        result
    }

    fn detach(&mut self, device: &Arc<dyn Device>) -> bool {
        self.inner.btl.detach(device)
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        if self.inner.shows_rdma() { Some(self) } else { None }
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        if self.inner.shows_mapped() { Some(self) } else { None }
    }
}

/// The caller's sink; what it takes is recorded.
struct Recorded<'p> {
    sink: &'p mut dyn Sink,
    listener: &'p mut Listener,
}

impl Recorded<'_> {
    /// Records a message if it was taken.
    fn arrived(&mut self, taken: bool, from: PeerId, tag: AmTag, len: usize) -> bool {
        if taken {
            (self.listener)(Record::Arrived { from, len, tag });
        }
        taken
    }
}

impl Sink for Recorded<'_> {
    fn short(&mut self, from: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        let taken = self.sink.short(from, tag, message);
        self.arrived(taken, from, tag, message.len())
    }

    fn fragment(&mut self, from: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        let taken = self.sink.fragment(from, tag, fragment);
        self.arrived(taken, from, tag, fragment.len())
    }

    fn receive_target(
        &mut self,
        from: PeerId,
        tag: AmTag,
        head: &[u8],
        len: usize,
    ) -> TargetAnswer<'_> {
        self.sink.receive_target(from, tag, head, len)
    }

    fn target_filled(&mut self, from: PeerId, tag: AmTag, head: &[u8], len: usize) {
        self.arrived(true, from, tag, len);
        self.sink.target_filled(from, tag, head, len);
    }

    fn event(&mut self, event: Event) {
        (self.listener)(Record::of(&event));
        self.sink.event(event);
    }

    fn room(&self) -> usize {
        self.sink.room()
    }
}

impl<B: std::fmt::Debug> std::fmt::Debug for Trace<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Trace").field(&self.inner.btl).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl::Queue;
    use gapless_btl::loopback::{Hub, Loopback};

    #[test]
    fn the_ring_keeps_the_last_records() {
        let recorder = Recorder::new(2);
        let hub = Hub::new();
        let mut end = Trace::new(Loopback::new(&hub), recorder.listener());
        assert!(end.connect(&Address::new(b"?").unwrap()).is_err());
        assert!(end.reserve(PeerId(0), 1).is_err());
        let own = end.address();
        end.connect(&own).unwrap();
        let records = recorder.records();
        assert_eq!(records.len(), 2);
        assert!(matches!(&records[0], Record::Reserve { outcome: CallOutcome::Refused(_), .. }));
        assert_eq!(records[1], Record::Connect { result: Ok(PeerId(0)) });
    }

    #[test]
    fn a_message_that_is_taken_at_once_is_recorded_like_others() {
        /// Takes the first message and refuses the others.
        struct One(usize, Queue);
        impl Sink for One {
            fn fragment(&mut self, _: PeerId, _: AmTag, _: &Fragment) -> bool {
                self.0 += 1;
                self.0 == 1
            }
            fn event(&mut self, event: Event) {
                self.1.event(event);
            }
            fn room(&self) -> usize {
                self.1.room()
            }
        }
        let recorder = Recorder::new(100);
        let mut end = Trace::new(Loopback::new(&Hub::new()), recorder.listener());
        let own = end.address();
        let me = end.connect(&own).unwrap();
        for len in [3, 4] {
            let slot = end.reserve(me, len).unwrap();
            end.send(slot, AmTag(9), Token::NONE);
        }
        let mut one = One(0, Queue::with_capacity(8));
        assert_eq!(end.poll(None, &mut one), 2);
        assert_eq!((one.0, one.1.len()), (2, 1));
        let records = recorder.records();
        let arrived = |len| Record::Arrived { from: me, len, tag: AmTag(9) };
        assert_eq!(records[records.len() - 2..], [arrived(3), arrived(4)]);
    }

    #[test]
    fn memory_that_is_not_made_private_is_recorded_as_refused() {
        let recorder = Recorder::new(100);
        let mut end = Trace::new(Loopback::new(&Hub::new()), recorder.listener());
        let own = end.address();
        let me = end.connect(&own).unwrap();
        let mapped = end.mapped().unwrap();
        let memory = mapped.allocate(64).unwrap();
        let key = mapped.key(me, memory.lease()).unwrap();
        let mapping = mapped.map(me, &key).unwrap();
        for (mapping, private) in [(Some(mapping), false), (None, true)] {
            assert_eq!(end.mapped().unwrap().make_private(memory.region()), private);
            let records = recorder.records();
            let Some(Record::Ability { call: "make_private", len: 64, outcome, .. }) =
                records.last()
            else {
                panic!("{records:?}")
            };
            assert_eq!(*outcome == CallOutcome::Ok, private, "{outcome}");
            drop(mapping);
        }
    }

    #[test]
    fn a_small_buffer_takes_what_it_can() {
        let recorder = Recorder::new(100);
        let mut end = Trace::new(Loopback::new(&Hub::new()), recorder.listener());
        let own = end.address();
        let me = end.connect(&own).unwrap();
        for tag in 0..5 {
            let slot = end.reserve(me, 0).unwrap();
            end.send(slot, AmTag(tag), Token::NONE);
        }
        let mut events = Queue::with_capacity(2);
        assert_eq!(end.poll(None, &mut events), 2);
        assert_eq!(end.poll(None, &mut events), 0);
        drop(events.drain());
        assert_eq!(end.poll(None, &mut events), 2);
        let mut events = Queue::with_capacity(100);
        assert_eq!(end.poll(None, &mut events), 1);
        let arrived = |record: &Record| matches!(record, Record::Arrived { .. });
        assert_eq!(recorder.records().iter().filter(|r| arrived(r)).count(), 5);
    }
}
