//! The cost model's formulas for messages between buffers that a CPU may touch.

use super::{Model, copy_ns, real};
use crate::choose::SingleCopyCosts;

impl Model<'_> {
    /// Packing and unpacking follow each other.
    pub(super) fn eager(&self) -> f64 {
        let blocks = real(self.s.sender_blocks) + real(self.s.receiver_blocks);
        self.s.latency_ns + blocks * self.t.block_ns + copy_ns(self.s.bytes, self.ring_mb_s())
    }

    /// Packing and unpacking overlap; the last fragment pays another latency.
    pub(super) fn pipeline(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.ring_mb_s());
        self.handshake_ns() + self.s.latency_ns + copy_ns.max(engine_ns) + engine_ns / 2.0
    }

    pub(super) fn mapped(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.t.mapped_mb_s);
        let before = self.s.latency_ns + self.t.rendezvous_ns + self.t.map_ns;
        before + self.fetch_ns() + copy_ns + engine_ns
    }

    /// The same work, done by the sender, which hears of the buffer first and tells when it is done.
    pub(super) fn mapped_put(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns;
        let copy_ns = copy_ns(self.s.bytes, self.t.mapped_mb_s);
        let before = self.handshake_ns() + self.s.latency_ns + self.t.map_ns;
        before + self.layout_ns(self.s.lent_layout_bytes) + copy_ns + engine_ns
    }

    pub(super) fn single_copy(&self) -> f64 {
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

    pub(super) fn local(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns + copy_ns(self.s.bytes, self.t.mapped_mb_s);
        self.handshake_ns() + engine_ns
    }
}
