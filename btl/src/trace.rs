//! A transport that tells what goes through it.
//!
//! [`Trace`] wraps any [`Btl`] and is one. Each call and each event becomes a [`Record`], which
//! goes to a function of the caller's, for instance `|r| tracing::trace!("{r}")`, or into a
//! [`Ring`] that keeps the last few. Polls that report nothing are not recorded.
//!
//! ```
//! use gapless_btl::{AmTag, Btl, Events, Token, loopback::{Hub, Loopback}, trace::{Ring, Trace}};
//! let ring = Ring::new(100);
//! let mut end = Trace::new(Loopback::new(&Hub::new()), ring.sink());
//! let own = end.address();
//! let me = end.connect(&own)?;
//! let slot = end.reserve(me, 3)?;
//! end.send(slot, AmTag(9), Token(1));
//! end.poll(&mut Events::with_capacity(8));
//! assert_eq!(ring.text(), "\
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

pub use record::{Outcome, Record, Ring};

use crate::{
    Abilities, Address, AmTag, Btl, Events, Limits, LinkError, Mapped, PeerId, Rdma, RdmaLimits,
    ReserveError, Slot, Token,
};
use gapless_mem::Device;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Where records go.
pub type Sink = Box<dyn FnMut(Record) + Send>;

/// A transport that tells what goes through it. See the [module](self).
pub struct Trace<B> {
    inner: B,
    sink: Sink,
    /// Room for what the wrapped transport reports; kept for callers that always have as much.
    scratch: Option<Events>,
    rdma_limits: Option<RdmaLimits>,
    abilities: Abilities,
    peers: u32,
    /// What the wrapped transport said of each peer when `rdma` was last asked for.
    reaches: Vec<Option<bool>>,
}

impl<B: Btl> Trace<B> {
    /// Wraps a transport; `sink` gets each record at once, on the caller's thread.
    #[must_use]
    pub fn new(mut inner: B, sink: Sink) -> Trace<B> {
        let mut abilities = Abilities::default();
        let rdma_limits = abilities.rdma(&mut inner).map(|rdma| rdma.rdma_limits().clone());
        Trace { inner, sink, scratch: None, rdma_limits, abilities, peers: 0, reaches: Vec::new() }
    }

    /// The wrapped transport.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    fn record(&mut self, record: Record) {
        (self.sink)(record);
    }
}

impl<B: Btl> Btl for Trace<B> {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn address(&self) -> Address {
        self.inner.address()
    }

    fn connect(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let result = self.inner.connect(peer);
        self.record(Record::Connect { result: result.clone() });
        let id = result?;
        self.peers = self.peers.max(id.0.saturating_add(1));
        Ok(id)
    }

    fn introduce(&mut self, peer: &Address) -> Result<PeerId, LinkError> {
        let result = self.inner.introduce(peer);
        self.record(Record::Introduce { result: result.clone() });
        let id = result?;
        self.peers = self.peers.max(id.0.saturating_add(1));
        Ok(id)
    }

    fn has_met(&self, peer: PeerId) -> bool {
        self.inner.has_met(peer)
    }

    fn reserve(&mut self, to: PeerId, len: usize) -> Result<Slot, ReserveError> {
        let result = self.inner.reserve(to, len);
        self.record(Record::Reserve { to, len, outcome: Outcome::of(&result) });
        result
    }

    fn send(&mut self, slot: Slot, tag: AmTag, done: Token) {
        self.record(Record::Send { to: slot.peer(), len: slot.len(), tag, done });
        self.inner.send(slot, tag, done);
    }

    fn poll(&mut self, events: &mut Events) -> usize {
        // No more is taken than the caller has room for: the rest stays with the wrapped transport.
        let room = events.room();
        if room == 0 {
            return 0;
        }
        let fitting = self.scratch.take().filter(|scratch| scratch.capacity() == room);
        let mut scratch = fitting.unwrap_or_else(|| Events::with_capacity(room));
        let before = events.len();
        self.inner.poll(&mut scratch);
        for event in scratch.drain() {
            self.record(Record::of(&event));
            events.push(event);
        }
        self.scratch = Some(scratch);
        events.len() - before
    }

    fn arm(&mut self) -> Option<RawFd> {
        self.record(Record::Arm);
        self.inner.arm()
    }

    fn attach(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        let result = self.inner.attach(device);
        let device = device.properties().name.clone();
        self.record(Record::Attach { device, outcome: Outcome::of(&result) });
        result
    }

    fn rdma(&mut self) -> Option<&mut dyn Rdma> {
        let inner = self.abilities.rdma(&mut self.inner)?;
        self.reaches.clear();
        self.reaches.extend((0..self.peers).map(|peer| inner.reaches(PeerId(peer))));
        Some(self)
    }

    fn mapped(&mut self) -> Option<&mut dyn Mapped> {
        self.abilities.mapped(&mut self.inner)?;
        Some(self)
    }
}

impl<B: std::fmt::Debug> std::fmt::Debug for Trace<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Trace").field(&self.inner).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{Hub, Loopback};

    #[test]
    fn the_ring_keeps_the_last_records() {
        let ring = Ring::new(2);
        let hub = Hub::new();
        let mut end = Trace::new(Loopback::new(&hub), ring.sink());
        assert!(end.connect(&Address::new(b"?").unwrap()).is_err());
        assert!(end.reserve(PeerId(0), 1).is_err());
        let own = end.address();
        end.connect(&own).unwrap();
        let records = ring.records();
        assert_eq!(records.len(), 2);
        assert!(matches!(&records[0], Record::Reserve { outcome: Outcome::Refused(_), .. }));
        assert_eq!(records[1], Record::Connect { result: Ok(PeerId(0)) });
    }

    #[test]
    fn a_small_buffer_takes_what_it_can() {
        let ring = Ring::new(100);
        let mut end = Trace::new(Loopback::new(&Hub::new()), ring.sink());
        let own = end.address();
        let me = end.connect(&own).unwrap();
        for tag in 0..5 {
            let slot = end.reserve(me, 0).unwrap();
            end.send(slot, AmTag(tag), Token::NONE);
        }
        let mut events = Events::with_capacity(2);
        assert_eq!(end.poll(&mut events), 2);
        assert_eq!(end.poll(&mut events), 0);
        drop(events.drain());
        assert_eq!(end.poll(&mut events), 2);
        let mut events = Events::with_capacity(100);
        assert_eq!(end.poll(&mut events), 1);
        let arrived = |record: &Record| matches!(record, Record::Arrived { .. });
        assert_eq!(ring.records().iter().filter(|r| arrived(r)).count(), 5);
    }
}
