//! The cost model's formulas for messages between buffers that a CPU may touch.

use super::{Model, copy_ns, real};
use crate::tuning::Tuning;

/// Bytes in a cache line.
const LINE: u64 = 64;
/// The cost of a line that is wanted only in part, in runs of a loop over runs: in the pipeline, whose two ends each
/// read or write it, and from layout to layout, where one processor does both.
const PIPELINE_LINE: f64 = 1.0;
const MAPPED_LINE: f64 = 6.5;
/// The cost of a run from layout to layout, in the same unit.
const MAPPED_BLOCK: f64 = 0.17;
/// Between two unlike layouts, runs of fewer bytes than this pass a buffer in the cache (`dtype/src/transfer.rs`).
const SHORT_RUN: u64 = 512;

/// A rail of this latency leads to another host: each fragment is a call of the system at both ends, and those take long.
const FAR_NS: f64 = 5_000.0;

/// The longest fragments that an end may wish for.
///
/// Over a network they are what fills the fewest packets. TCP hands on up to 64 KiB at once, in whole segments: 65,160 bytes
/// of Ethernet's usual 1,448, 62,636 of jumbo frames' 8,948. A fragment of 64 KiB with its header goes as two: the second
/// has a few hundred bytes, and costs as much as the first. 120 KiB are two full ones. Between two namespaces on a Xeon,
/// without gaps, 16 MiB take 4.6 to 7.8 ms in fragments of 64 KiB, 4.1 to 4.6 of 32, 2.6 to 3.5 of 60, and 2.7 to 3.0 of
/// 120; 8 MiB 1.9 to 2.3, 1.8 to 2.0, 1.3 to 1.7 and 1.3 ms. Rows of 8 MiB take 2.1 to 2.2 ms in fragments of 32 KiB and
/// 1.6 of 120, a triangle 1.1 and 0.8, a transposed matrix 4.0 and 2.7.
pub(crate) fn longest_fragment(tuning: &Tuning, latency_ns: f64) -> u32 {
    if latency_ns >= FAR_NS { tuning.network_fragment_bytes } else { tuning.fragment_bytes }
}

/// The fragments that a receiver wishes for, of a message between buffers that CPUs may touch.
pub(crate) fn wished_fragment(tuning: &Tuning, bytes: u64, gapless: bool, latency_ns: f64) -> u32 {
    let longest = longest_fragment(tuning, latency_ns);
    if latency_ns >= FAR_NS { longest } else { longest.min(host_fragment(bytes, gapless)) }
}

/// Longest fragments of a message between processes of a host. Short fragments let both ends work sooner; long ones need fewer waits
/// for each other, and cut fewer rows.
///
/// Without gaps, on a Zen 4, 64 KiB take 6.8 us in fragments of 16 KiB, 6.5 of 32; 96 KiB 8.0 and 7.4; 128 KiB 9.9 and
/// 9.2. On an idle Xeon 64 KiB take 17.3 us in fragments of 16 KiB, 17.0 of 32, 16.7 of 64, and from 256 KiB on 32 are
/// as good as 64. With gaps, 64 KiB take 8.9 us in fragments of 16 KiB, 8.5 of 32, 10.3 of 64 (rows); 9.9, 9.3, 10.6 (a
/// triangle); 21.9, 19.4, 21.1 (a list of doubles); 96 and 128 KiB take longer in fragments of 32 KiB.
fn host_fragment(bytes: u64, gapless: bool) -> u32 {
    match (bytes, gapless) {
        (0..0x1_0000, true) => 16 << 10,
        (0x1_0000..0x20_0001, true) | (0..0x1_0001, false) => 32 << 10,
        _ => u32::MAX,
    }
}

impl Model<'_> {
    fn ring_mb_s(&self) -> f64 {
        self.t.pipeline_mb_s.min(self.s.bandwidth_mb_s.max(1.0))
    }

    /// Packing and unpacking follow each other: the one at the rail's pace, the other at that of memory. Who waits for a
    /// message without gaps has its buffer brought near meanwhile (`gapless/src/shared/prefetch.rs`), and so copies it as
    /// quickly as if there were no ring.
    pub(crate) fn eager(&self) -> f64 {
        let blocks = real(self.s.sender_blocks) + real(self.s.receiver_blocks);
        let packed_ns = copy_ns(self.s.bytes, self.ring_mb_s());
        let near = self.s.receiver_blocks <= 1;
        let unpacked_mb_s =
            if near { self.t.mapped_mb_s.max(self.t.pipeline_mb_s) } else { self.t.pipeline_mb_s };
        let unpacked_ns = copy_ns(self.s.bytes, unpacked_mb_s);
        let lines_ns = self.wasted_lines() * PIPELINE_LINE * self.t.block_ns;
        self.s.latency_ns + blocks * self.t.block_ns + packed_ns + unpacked_ns + lines_ns
    }

    /// Packing and unpacking overlap, but for the first fragment: nothing is unpacked before that is packed. Where they
    /// overlap, bytes and runs cost whichever takes longer; of a message in one fragment they add up, as in an eager one.
    /// The last fragment pays another latency. A process that sends to itself does both in turn.
    ///
    /// Memory that can be mapped is offered all the same, as if they overlapped: the receiver may be a device, which its
    /// sender does not know, and reads short runs there sooner than they are packed (32 KiB of doubles apart 23 and 39
    /// us, between a host and an H100, to and fro).
    pub(crate) fn pipeline(&self) -> f64 {
        let gapless = self.s.blocks() <= 1;
        let fragment = wished_fragment(self.t, self.s.bytes, gapless, self.s.latency_ns);
        let first = self.s.bytes.min(u64::from(fragment));
        let part = real(first) / real(self.s.bytes.max(1));
        let alone = match (self.s.local, self.s.mapped) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            (false, false) => part,
        };
        let fewer = real(self.s.sender_blocks.min(self.s.receiver_blocks));
        let bytes_ns = copy_ns(self.s.bytes.saturating_add(first), self.ring_mb_s());
        let blocks_ns = (self.blocks() + fewer * part) * self.t.block_ns;
        let (longer, shorter) = (bytes_ns.max(blocks_ns), bytes_ns.min(blocks_ns));
        let lines_ns = self.wasted_lines() * PIPELINE_LINE * self.t.block_ns;
        self.handshake_ns() + self.s.latency_ns + longer + shorter * alone + lines_ns
    }

    /// From layout to layout. One processor does the work that two share in the pipeline, but it walks both sides at
    /// once, in the order of memory if they are alike. So runs cost little, and lines that are touched only in part
    /// cost most. Short runs of two unlike layouts are packed into the cache and unpacked from there: two copies.
    fn moved_ns(&self) -> f64 {
        let copies = if self.passes_cache() { 2.0 } else { 1.0 };
        let blocks_ns = self.blocks() * MAPPED_BLOCK * self.t.block_ns;
        let lines_ns = self.wasted_lines() * MAPPED_LINE * self.t.block_ns;
        copies * copy_ns(self.s.bytes, self.t.mapped_mb_s) + blocks_ns + lines_ns
    }

    /// Whether both sides have gaps, are not alike, and either has short runs. Layouts with as many runs may be unlike,
    /// too; that is not known here.
    fn passes_cache(&self) -> bool {
        let (sent, received) = (self.s.sender_blocks, self.s.receiver_blocks);
        let (fewer, more) = (sent.min(received), sent.max(received));
        fewer > 1 && fewer != more && self.s.bytes / more < SHORT_RUN
    }

    /// Cache lines that the sender's buffer touches beyond those that its data would fill.
    fn wasted_lines(&self) -> f64 {
        let filled = self.s.bytes / LINE;
        let touched = (self.s.sender_span / LINE).min(self.s.sender_blocks.saturating_add(filled));
        real(touched.saturating_sub(filled))
    }

    pub(crate) fn mapped(&self) -> f64 {
        let before = self.s.latency_ns + self.rendezvous_ns() + self.map_ns();
        before + self.fetch_ns() + self.moved_ns()
    }

    /// The same work, done by the sender, which first receives a GRANT and reports the end.
    pub(crate) fn mapped_put(&self) -> f64 {
        let before = self.handshake_ns() + self.s.latency_ns + self.map_ns();
        before + self.moved_ns()
    }

    pub(crate) fn local(&self) -> f64 {
        let engine_ns = self.blocks() * self.t.block_ns + copy_ns(self.s.bytes, self.t.mapped_mb_s);
        self.handshake_ns() + engine_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_over_a_network_are_as_long_as_the_tuning_says() {
        let usual = Tuning::default();
        let short = Tuning::default().in_fragments(1000);
        let wished = |tuning, gapless, ns| wished_fragment(tuning, 256 << 10, gapless, ns);
        assert_eq!([100.0, 12_000.0].map(|ns| wished(&usual, true, ns)), [32 << 10, 120 << 10]);
        assert_eq!([100.0, 12_000.0].map(|ns| wished(&usual, false, ns)), [64 << 10, 120 << 10]);
        assert_eq!([100.0, 12_000.0].map(|ns| wished(&short, true, ns)), [1000; 2]);
        let longest = [100.0, 12_000.0].map(|ns| longest_fragment(&usual, ns));
        assert_eq!(longest, [64 << 10, 120 << 10], "what the sender offers is no shorter");
    }
}
