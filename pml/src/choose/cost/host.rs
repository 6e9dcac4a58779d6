//! The cost model's formulas for messages between buffers that a CPU may touch.

use super::{Model, copy_ns, real};
use crate::choose::SingleCopyCosts;

/// Bytes in a cache line.
const LINE: u64 = 64;
/// The cost of a line that is wanted only in part, in runs of a loop over runs: in the pipeline, whose two ends each
/// read or write it, and from layout to layout, where one processor does both.
const PIPELINE_LINE: f64 = 1.0;
const MAPPED_LINE: f64 = 6.5;
/// The cost of a run from layout to layout, in the same unit.
const MAPPED_BLOCK: f64 = 0.17;

impl Model<'_> {
    /// Packing and unpacking follow each other.
    pub(crate) fn eager(&self) -> f64 {
        let blocks = real(self.s.sender_blocks) + real(self.s.receiver_blocks);
        self.s.latency_ns + blocks * self.t.block_ns + copy_ns(self.s.bytes, self.ring_mb_s())
    }

    /// Packing and unpacking overlap, but for the first fragment; the last fragment pays another latency.
    pub(crate) fn pipeline(&self) -> f64 {
        let fragments = self.s.bytes.div_ceil(u64::from(self.t.fragment_bytes.max(1))).max(1);
        let fewer = real(self.s.sender_blocks.min(self.s.receiver_blocks));
        let blocks_ns = (self.blocks() + fewer / real(fragments)) * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.ring_mb_s());
        let lines_ns = self.wasted_lines() * PIPELINE_LINE * self.t.block_ns;
        self.handshake_ns() + self.s.latency_ns + copy_ns.max(blocks_ns) + lines_ns
    }

    /// From layout to layout. One processor does the work that two share in the pipeline, but it walks both sides at
    /// once, in the order of memory if they are alike. So runs cost little, and lines that are touched only in part
    /// cost most.
    fn moved_ns(&self) -> f64 {
        let blocks_ns = self.blocks() * MAPPED_BLOCK * self.t.block_ns;
        let lines_ns = self.wasted_lines() * MAPPED_LINE * self.t.block_ns;
        copy_ns(self.s.bytes, self.t.mapped_mb_s) + blocks_ns + lines_ns
    }

    /// Cache lines that the sender's buffer touches beyond those that its data would fill.
    fn wasted_lines(&self) -> f64 {
        let filled = self.s.bytes / LINE;
        let touched = (self.s.sender_span / LINE).min(self.s.sender_blocks.saturating_add(filled));
        real(touched.saturating_sub(filled))
    }

    pub(crate) fn mapped(&self) -> f64 {
        let before = self.s.latency_ns + self.t.rendezvous_ns + self.t.map_ns;
        before + self.fetch_ns() + self.moved_ns()
    }

    /// The same work, done by the sender, which first receives a GRANT and reports the end.
    pub(crate) fn mapped_put(&self) -> f64 {
        let before = self.handshake_ns() + self.s.latency_ns + self.t.map_ns;
        before + self.granted_fetch_ns() + self.moved_ns()
    }

    pub(crate) fn single_copy(&self) -> f64 {
        let (s, t) = (self.s, self.t);
        let costs = s.single_copy.unwrap_or(SingleCopyCosts {
            operation_ns: 0.0,
            piece_ns: 0.0,
            bandwidth_mb_s: t.single_copy_mb_s,
            pieces_max: 1,
        });
        let blocks = s.sender_blocks.max(s.receiver_blocks);
        let operations = blocks
            .div_ceil(costs.pieces_max.max(1))
            .max(s.bytes.div_ceil(t.single_copy_batch_bytes.max(1)));
        let mb_s = t.single_copy_mb_s.min(costs.bandwidth_mb_s.max(1.0));
        let before = s.latency_ns + t.rendezvous_ns + self.fetch_ns();
        before
            + real(operations) * costs.operation_ns
            + real(blocks) * costs.piece_ns
            + copy_ns(s.bytes, mb_s)
    }

    pub(crate) fn local(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns + copy_ns(self.s.bytes, self.t.mapped_mb_s);
        self.handshake_ns() + engine_ns
    }
}
