//! The receiver's side of a message of a device over a transport that [lends](gapless_bml::Bml::has_zero_copy):
//! fragments are read straight into a ring, and one launch unpacks several of them.
//!
//! A *run* is what lies in a part of the ring without a gap and is not unpacked yet. Fragments come in order, so each
//! mostly makes the run longer. A fragment that did not find its place comes in a buffer of the transport, and is
//! unpacked from there. The last runs of a message are short, so that little is left to do when its last fragment has
//! come.

use crate::buffer::{StagingMemory, after};
use crate::protocol::Protocol;
use crate::rndv::rings::{PART_BYTES, PARTS};
use crate::rndv::{Cx, Expected};
use gapless_engine::EngineError;
use gapless_mem::Completion;
use smallvec::SmallVec;
use std::ops::Range;

/// Where fragments land.
#[derive(Debug)]
pub(super) struct Landing {
    ring: StagingMemory,
    fragment: u64,
    /// The end of the message.
    end: u64,
    /// The part that fragments are read into, and how much of it is used.
    part: u64,
    used: u64,
    /// Bytes of the message that lie there, up to `used`, and are not unpacked.
    run: Range<u64>,
    /// The transport was told of a place for the fragment that begins there, and may have written to it.
    told: Option<(u64, StagingMemory)>,
    /// Launches that go on: their names, and the parts that they read.
    launches: SmallVec<[(u64, u64); 8]>,
    /// The last of them.
    last: Completion,
}

impl Landing {
    /// For a message that ends there, in fragments of so many bytes.
    pub(super) fn new(ring: StagingMemory, fragment: u64, end: u64) -> Landing {
        Landing {
            ring,
            fragment,
            end,
            part: 0,
            used: 0,
            run: 0..0,
            told: None,
            launches: SmallVec::new(),
            last: Completion::Ready,
        }
    }

    /// Whether the run is long enough to be unpacked: half of what is missing, within bounds.
    pub(super) fn is_due(&self) -> bool {
        let len = self.run.end - self.run.start;
        let half = (self.end - self.run.start) / 2;
        let most = PART_BYTES / self.fragment * self.fragment;
        len > 0 && (self.run.end == self.end || len >= half.clamp(self.fragment, most))
    }

    /// Whether all that has landed is unpacked, or is being unpacked.
    pub(super) fn is_empty(&self) -> bool {
        self.run.is_empty()
    }

    /// Where a fragment goes that is due.
    pub(super) fn place(&mut self, offset: u64, len: u64) -> Expected<'_> {
        if self.told.is_some() {
            // Parts of that may be there already.
            return match &self.told {
                Some((told, place)) if *told == offset => Expected::There(place),
                _ => Expected::Not,
            };
        }
        if self.is_due() {
            return Expected::Later;
        }
        if !self.run.is_empty() && self.run.end != offset {
            return Expected::Not;
        }
        if self.used + len > PART_BYTES {
            if !self.run.is_empty() {
                return Expected::Not;
            }
            let next = (self.part + 1) % PARTS;
            // It is still being unpacked: the transport's buffers have room meanwhile, and the link goes on.
            if self.launches.iter().any(|(_, part)| *part == next) {
                return Expected::Not;
            }
            (self.part, self.used) = (next, 0);
        }
        match self.ring.sub(self.part * PART_BYTES + self.used, len) {
            Ok(place) => Expected::There(&self.told.insert((offset, place)).1),
            Err(_) => Expected::Not,
        }
    }

    /// A fragment is in the place that the transport was told of.
    pub(super) fn landed(&mut self, offset: u64, len: u64) -> Result<(), String> {
        match self.told.take() {
            Some((told, place)) if told == offset && place.region().len() == len => {}
            _ => return Err(format!("{len} bytes at {offset} in a place that was not theirs")),
        }
        self.used += len;
        if self.run.is_empty() {
            self.run = offset..offset;
        }
        self.run.end = offset + len;
        Ok(())
    }

    /// A fragment has come in a buffer: it needs no place.
    pub(super) fn passed(&mut self, offset: u64) {
        self.told.take_if(|(told, _)| *told == offset);
    }

    /// Has an engine unpack the run; whether its work goes on.
    pub(super) fn unpack(&mut self, cx: &mut Cx<'_>) -> Result<bool, EngineError> {
        let run = std::mem::replace(&mut self.run, 0..0);
        let len = run.end - run.start;
        if len == 0 {
            return Ok(false);
        }
        let place = self.ring.sub(self.part * PART_BYTES + self.used - len, len)?;
        let name = run.start;
        let unpacking = cx.buffer.scatter(cx.engines, place, run, after(&self.last))?;
        cx.counters.counts_of(Protocol::Pipeline).unpacks += 1;
        self.last = unpacking.work().clone();
        match unpacking.now() {
            Ok(_) => Ok(false),
            Err(unpacking) => {
                cx.follow(name, unpacking);
                self.launches.push((name, self.part));
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
