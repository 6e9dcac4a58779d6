//! The receiver's side of a message of a device over a transport that [sends without a
//! copy](gapless_bml::Bml::has_zero_copy): fragments are read straight into a ring, and one launch unpacks several of
//! them.
//!
//! A *run* is what lies in a packet of the ring without a gap and is not unpacked yet. Fragments come in order, so each
//! mostly makes the run longer. A fragment for which there was no target comes in a buffer of the transport, and is
//! unpacked from there. The last runs of a message are short, so that little is left to do when its last fragment has
//! come.

use crate::buffer::{StagingMemory, after};
use crate::protocol::Protocol;
use crate::rndv::rings::Ring;
use crate::rndv::{Cx, RndvTarget};
use gapless_engine::EngineError;
use gapless_mem::Completion;
use smallvec::SmallVec;
use std::ops::Range;

/// Where fragments land.
#[derive(Debug)]
pub(super) struct Landing {
    ring: Ring,
    fragment: u64,
    /// The end of the message.
    end: u64,
    /// The packet that fragments are read into, and how much of it is used.
    packet: u64,
    used: u64,
    /// Bytes of the message that lie there, up to `used`, and are not unpacked.
    run: Range<u64>,
    /// What the transport got as the target of the fragment that begins there; it may have written there.
    target: Option<(u64, StagingMemory)>,
    /// Launches that go on: their names, and the packets that they read.
    launches: SmallVec<[(u64, u64); 8]>,
    /// The last of them.
    last: Completion,
}

impl Landing {
    /// For a message that ends there, in fragments of so many bytes.
    pub(super) fn new(ring: Ring, fragment: u64, end: u64) -> Landing {
        Landing {
            ring,
            fragment,
            end,
            packet: 0,
            used: 0,
            run: 0..0,
            target: None,
            launches: SmallVec::new(),
            last: Completion::Ready,
        }
    }

    /// Whether the run is long enough to be unpacked: half of what is missing, within bounds.
    pub(super) fn is_due(&self) -> bool {
        let len = self.run.end - self.run.start;
        let half = (self.end - self.run.start) / 2;
        let most = self.ring.whole(self.fragment);
        len > 0 && (self.run.end == self.end || len >= half.clamp(self.fragment, most))
    }

    /// Whether all that has landed is unpacked, or is being unpacked.
    pub(super) fn is_empty(&self) -> bool {
        self.run.is_empty()
    }

    /// The target of a fragment that is due.
    pub(super) fn receive_target(&mut self, offset: u64, len: u64) -> RndvTarget<'_> {
        if self.target.is_some() {
            // Some of that may be there already.
            return match &self.target {
                Some((start, staging)) if *start == offset => RndvTarget::Staging(staging),
                _ => RndvTarget::Nowhere,
            };
        }
        if self.is_due() {
            return RndvTarget::Later;
        }
        if !self.run.is_empty() && self.run.end != offset {
            return RndvTarget::Nowhere;
        }
        if self.used + len > self.ring.packet_bytes {
            if !self.run.is_empty() {
                return RndvTarget::Nowhere;
            }
            let next = (self.packet + 1) % self.ring.packets();
            // It is still being unpacked: the transport's buffers have room meanwhile, and the link goes on.
            if self.launches.iter().any(|(_, packet)| *packet == next) {
                return RndvTarget::Nowhere;
            }
            (self.packet, self.used) = (next, 0);
        }
        match self.ring.slice(self.packet, self.used, len) {
            Ok(staging) => RndvTarget::Staging(&self.target.insert((offset, staging)).1),
            Err(_) => RndvTarget::Nowhere,
        }
    }

    /// A fragment is in its target.
    pub(super) fn landed(&mut self, offset: u64, len: u64) -> Result<(), String> {
        match self.target.take() {
            Some((start, staging)) if start == offset && staging.region().len() == len => {}
            _ => return Err(format!("{len} bytes at {offset} in a target that was not theirs")),
        }
        self.used += len;
        if self.run.is_empty() {
            self.run = offset..offset;
        }
        self.run.end = offset + len;
        Ok(())
    }

    /// A fragment has come in a buffer: it needs no target.
    pub(super) fn passed(&mut self, offset: u64) {
        self.target.take_if(|(start, _)| *start == offset);
    }

    /// Has an engine unpack the run; whether its work goes on.
    pub(super) fn unpack(&mut self, cx: &mut Cx<'_>) -> Result<bool, EngineError> {
        let run = std::mem::replace(&mut self.run, 0..0);
        let len = run.end - run.start;
        if len == 0 {
            return Ok(false);
        }
        let staging = self.ring.slice(self.packet, self.used - len, len)?;
        let name = run.start;
        let unpacking = cx.buffer.scatter(cx.engines, staging, run, after(&self.last))?;
        cx.counters.counts_of(Protocol::Pipeline).unpacks += 1;
        self.last = unpacking.work().clone();
        match unpacking.now() {
            Ok(_) => Ok(false),
            Err(unpacking) => {
                cx.follow(name, unpacking);
                self.launches.push((name, self.packet));
                Ok(true)
            }
        }
    }

    /// Drops what is not unpacked.
    pub(super) fn forget(&mut self) {
        self.run = 0..0;
    }

    /// A launch has ended; or other work of this name, which is not of this ring.
    pub(super) fn ended(&mut self, name: u64) {
        self.launches.retain(|(launch, _)| *launch != name);
    }
}
