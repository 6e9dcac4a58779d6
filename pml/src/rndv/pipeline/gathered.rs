//! The sender's side of a message of a device over a transport that [lends](gapless_bml::Bml::has_zero_copy): one
//! launch packs several fragments into a packet of a ring, and they leave from there.
//!
//! ```text
//! buffer ──pack──► packet 0 │ packet 1 │ …      one launch a packet, the next begins when the last has ended
//!                  └ fragment, fragment, … ──► socket     no copy of ours
//! ```
//!
//! A launch costs the processor as much as it takes to send tens of kilobytes, so few launches are better than many.
//! The first packet has one fragment, each further one twice as many, so that the first fragment leaves soon.

use crate::buffer::{Packed, StagingMemory, after};
use crate::protocol::Protocol;
use crate::rndv::Cx;
use crate::rndv::rings::{NoRing, Ring};
use gapless_engine::EngineError;
use gapless_mem::Completion;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;

/// Shorter messages have too few fragments for that.
pub(super) const LEAST_BYTES: u64 = 512 << 10;

/// What is packed.
#[derive(Debug)]
pub(super) struct Gathered {
    ring: Ring,
    fragment: u64,
    /// Bytes of the message that no engine has begun to pack.
    left: Range<u64>,
    /// Packets that hold bytes, in their order.
    packets: VecDeque<GatheredPacket>,
    /// How many packets were ever begun.
    begun: u64,
    /// The last launch.
    last: Completion,
}

#[derive(Debug)]
struct GatheredPacket {
    /// Bytes of the message.
    range: Range<u64>,
    /// Once the launch is over.
    packed: Option<Packed>,
}

impl Gathered {
    /// For these bytes of a message in fragments of so many; `None` if it goes through slots.
    pub(super) fn new(cx: &mut Cx<'_>, range: Range<u64>, fragment: u32) -> Option<Gathered> {
        let fragment = u64::from(fragment);
        let ring = ring(cx, range.end - range.start, fragment)?;
        let (packets, last) = (VecDeque::new(), Completion::Ready);
        Some(Gathered { ring, fragment, left: range, packets, begun: 0, last })
    }

    /// Has engines pack what there is room for; how many launches go on.
    pub(super) fn pack(&mut self, cx: &mut Cx<'_>) -> Result<u32, EngineError> {
        let mut going = 0;
        while !self.left.is_empty() && (self.packets.len() as u64) < self.ring.packets() {
            let longest = self.ring.whole(self.fragment);
            let doubled = self.fragment << self.begun.min(16);
            let len = doubled.min(longest).min(self.left.end - self.left.start);
            let range = self.left.start..self.left.start + len;
            let staging = self.ring.slice(self.begun % self.ring.packets(), 0, len)?;
            let last = after(&self.last);
            let packing = cx.buffer.gather(cx.engines, range.clone(), staging, last)?;
            cx.counters.counts_of(Protocol::Pipeline).packs += 1;
            self.last = packing.work().clone();
            (self.left.start, self.begun) = (range.end, self.begun + 1);
            let name = range.start;
            let packed = match packing.now() {
                Ok(staging) => Packed::of(staging),
                Err(packing) => {
                    cx.follow(name, packing);
                    going += 1;
                    None
                }
            };
            self.packets.push_back(GatheredPacket { range, packed });
        }
        Ok(going)
    }

    /// The launch for the packet that begins there has ended.
    pub(super) fn packed(&mut self, start: u64, staging: SmallVec<[StagingMemory; 2]>) {
        let mut packets = self.packets.iter_mut();
        if let Some(packet) = packets.find(|packet| packet.range.start == start) {
            packet.packed = Packed::of(staging);
        }
    }

    /// The packet of the next fragment, once that is packed; the fragment's offset there, and its length.
    pub(super) fn next(&self, range: &Range<u64>) -> Option<(&Packed, (u64, u64))> {
        let packet = self.packets.front()?;
        let at = range.start.saturating_sub(packet.range.start);
        Some((packet.packed.as_ref()?, (at, range.end - range.start)))
    }

    /// All up to there has left.
    pub(super) fn left(&mut self, end: u64) {
        if self.packets.front().is_some_and(|packet| packet.range.end <= end) {
            self.packets.pop_front();
        }
    }
}

/// A ring for one end of a message of so many bytes, if it is of use. Packets are as long as a fragment at least.
pub(super) fn ring(cx: &mut Cx<'_>, len: u64, fragment: u64) -> Option<Ring> {
    if len < LEAST_BYTES || fragment == 0 || !cx.link.has_zero_copy() {
        return None;
    }
    let device = cx.link.device(cx.buffer.typed().space())?;
    let tuning = &cx.config.tuning;
    let near: u64 = tuning.device_packet_bytes.into();
    let far = near.min(tuning.device_far_packet_bytes.into());
    let taken = cx.rings.take(&device, cx.config.bounds.staging_bytes, near, fragment);
    if taken.as_ref().is_err_and(|why| *why == NoRing::NoneLeft) {
        cx.count_without_staging();
    }
    let packet_bytes = if cx.link.is_far(&*device) { far } else { near };
    Some(taken.ok()?.in_packets(packet_bytes.max(fragment)))
}
