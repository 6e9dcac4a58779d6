//! What an endpoint has done, by protocol, so that an experiment can check which protocol carried a message.

use crate::protocol::Protocol;

/// What one protocol has done at this end. All numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolCounts {
    /// Messages that ended well at this end, sent or received. Eager ones that leave within `isend`
    /// are not counted.
    pub messages: u64,
    /// Packed bytes of these.
    pub bytes: u64,
    /// Fragments that this end has started to put into, or to take out of, staging memory or slots.
    pub fragments: u64,
    /// Calls of an engine that pack: on a device, launches of kernels.
    pub packs: u64,
    /// Calls of an engine that unpack.
    pub unpacks: u64,
    /// Copies by a device's copy engine.
    pub copies: u64,
    /// Bytes that passed staging memory of either end.
    pub staged_bytes: u64,
    /// Most fragments of one message in flight at a time: started and not known to have been taken out (at the
    /// sender), or arrived and not taken out (at the receiver).
    pub depth_max: u32,
}

/// What an endpoint has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    counts: [ProtocolCounts; Protocol::ALL.len()],
    without_staging: u64,
}

impl Counters {
    /// What one protocol has done.
    #[must_use]
    pub fn of(&self, protocol: Protocol) -> ProtocolCounts {
        self.counts[protocol.index()]
    }

    /// The protocols that have done anything.
    pub fn used(&self) -> impl Iterator<Item = (Protocol, ProtocolCounts)> {
        let all = Protocol::ALL.into_iter().zip(self.counts);
        all.filter(|(_, counts)| *counts != ProtocolCounts::default())
    }

    /// The most fragments of one staged message that were in flight at a time.
    #[must_use]
    pub fn depth_max(&self) -> u32 {
        Protocol::STAGED.into_iter().map(|protocol| self.of(protocol).depth_max).max().unwrap_or(0)
    }

    /// Messages that this end found no staging memory for, or no ring of page-locked memory, left within
    /// [`Bounds::staging_bytes`](crate::Bounds::staging_bytes): they use another protocol, or go through the transport's
    /// memory in shorter pieces. A message counts once, however many protocols it tries.
    #[must_use]
    pub fn without_staging(&self) -> u64 {
        self.without_staging
    }

    pub(crate) fn counts_of(&mut self, protocol: Protocol) -> &mut ProtocolCounts {
        &mut self.counts[protocol.index()]
    }

    pub(crate) fn ended(&mut self, protocol: Protocol, bytes: u64) {
        let counts = self.counts_of(protocol);
        counts.messages += 1;
        counts.bytes = counts.bytes.saturating_add(bytes);
    }

    pub(crate) fn went_without_staging(&mut self) {
        self.without_staging += 1;
    }

    /// These, and how many messages have ended well.
    pub(crate) fn with(mut self, ended: &Counters) -> Counters {
        for (counts, ended) in self.counts.iter_mut().zip(ended.counts) {
            (counts.messages, counts.bytes) = (ended.messages, ended.bytes);
        }
        self
    }

    pub(crate) fn saw_depth(&mut self, protocol: Protocol, depth: u64) {
        let counts = self.counts_of(protocol);
        counts.depth_max = counts.depth_max.max(u32::try_from(depth).unwrap_or(u32::MAX));
    }
}
