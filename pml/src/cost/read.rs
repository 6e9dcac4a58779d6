//! The cost model's formulas for messages that the receiver's adapter reads: out of the sender's buffer, or out of staging
//! memory of the sender's device.

use super::{Model, copy_ns, real};
use crate::cost::{DeviceEnds, SingleCopyCosts, Situation};
use crate::tuning::Tuning;
use crate::wire::FRAGMENT_MIN;
use crate::wire::cut::FragmentShape;

const MIB: f64 = (1u64 << 20) as f64;
/// Fragments of a staged read begin at multiples of this, so that kernels move whole vectors.
const GRAIN: u64 = 16 << 10;
/// Fragments that a staged read is cut into if their lengths allow it: while one is read, others are packed and unpacked.
const FRAGMENTS: u64 = 8;

/// How a staged read is cut, if the sender wishes for no longer fragments than `most`.
pub(crate) fn read_shape(s: &Situation, most: u32, t: &Tuning) -> FragmentShape {
    let most = most.min(t.staged_fragment_bytes);
    let even = (s.bytes / FRAGMENTS).next_multiple_of(GRAIN);
    let even = u32::try_from(even).unwrap_or(u32::MAX);
    FragmentShape::even(even.max(t.staged_least_bytes).min(most).max(FRAGMENT_MIN))
}

impl Model<'_> {
    /// The kernel, or the adapter, reads the sender's memory. Out of caches the kernel reads as quickly as it can; out of
    /// memory one processor waits alone, where in the pipeline two do. On a Xeon, in one piece, 128 KiB take 12 us out of
    /// caches and 42 out of memory, by the pipeline 22 and 26; 512 KiB 35 and 164, 70 and 88.
    pub(crate) fn single_copy(&self) -> f64 {
        let is_adapter = self.s.single_copy.is_some_and(|costs| costs.registers());
        // Memory that is mapped is read out of caches as quickly, without the kernel.
        let cached = self.s.cached && !self.s.mapped;
        let mb_s = if is_adapter || cached { f64::MAX } else { self.t.single_copy_mb_s };
        self.read_ns(mb_s, self.registering_ns([self.s.sender_span, self.s.bytes]))
    }

    /// The adapter reads the sender's memory and writes the receiver's, piece by piece (GPUDirect). A device's memory is
    /// registered for each message if it is the sender's, because whoever has its key could read it as long as it is; an
    /// allocation of the receiver's once.
    pub(crate) fn direct_read(&self, ends: &DeviceEnds) -> f64 {
        let (s, t) = (self.s, self.t);
        let host = |device: bool, bytes| if device { 0 } else { bytes };
        let sides = [host(ends.sender, s.sender_span), host(ends.receiver, s.bytes)];
        let device = if ends.sender { t.device_register_ns } else { 0.0 };
        self.read_ns(t.device_direct_mb_s, device + self.registering_ns(sides))
    }

    /// Memory of so many bytes is registered at either end; 0: none.
    fn registering_ns(&self, sides: [u64; 2]) -> f64 {
        let [always, mib] = self.s.single_copy.map_or([0.0; 2], |costs| costs.register_ns);
        let registered = sides.into_iter().filter(|bytes| *bytes > 0);
        registered.map(|bytes| always + real(bytes) / MIB * mib).sum()
    }

    /// The receiver reads the sender's memory piece by piece, at `mb_s` or the rail's own bandwidth.
    fn read_ns(&self, mb_s: f64, registering_ns: f64) -> f64 {
        let (s, t) = (self.s, self.t);
        let costs = s.single_copy.unwrap_or(SingleCopyCosts {
            operation_ns: 0.0,
            piece_ns: 0.0,
            bandwidth_mb_s: mb_s,
            pieces_max: 1,
            devices: false,
            register_ns: [0.0; 2],
        });
        let blocks = s.sender_blocks.max(s.receiver_blocks);
        let operations = blocks
            .div_ceil(costs.pieces_max.max(1))
            .max(s.bytes.div_ceil(t.single_copy_batch_bytes.max(1)));
        let mb_s = mb_s.min(costs.bandwidth_mb_s.max(1.0));
        let before = s.latency_ns + self.rendezvous_ns() + self.fetch_ns() + registering_ns;
        before
            + real(operations) * costs.operation_ns
            + real(blocks) * costs.piece_ns
            + copy_ns(s.bytes, mb_s)
    }

    /// The sender's device packs, the adapter reads one fragment after the other, the receiver's device unpacks. Staging
    /// memory is registered once, for all messages.
    pub(crate) fn staged_read(&self) -> f64 {
        /// Ways of messages before the first fragment is packed: OPEN, RING, a short read and its answer, FREE.
        const BEFORE: f64 = 5.0;
        let (s, t) = (self.s, self.t);
        let Some(costs) = s.staged_read else { return f64::MAX };
        let fragment = u64::from(read_shape(s, u32::MAX, t).fragment);
        let fragments = real(s.bytes.div_ceil(fragment).max(1));
        let mb_s = t.device_direct_mb_s.min(costs.bandwidth_mb_s.max(1.0));
        let side = |blocks| self.blocks_ns(blocks) + copy_ns(s.bytes, t.device_mb_s);
        let (packed, unpacked) = (
            side(s.sender_blocks),
            match s.receiver_blocks {
                0 | 1 => 0.0,
                blocks => side(blocks),
            },
        );
        let read = copy_ns(s.bytes, mb_s) + fragments * (costs.operation_ns + 2.0 * s.latency_ns);
        let launched = if s.receiver_blocks > 1 { 2.0 } else { 1.0 };
        s.latency_ns * (1.0 + BEFORE)
            // Three answers more than others have.
            + 4.0 * self.rendezvous_ns()
            + costs.operation_ns
            + launched * t.launch_wait_ns
            + self.turns_ns(launched)
            + (packed + unpacked) / fragments
            + read.max(packed).max(unpacked)
    }
}
