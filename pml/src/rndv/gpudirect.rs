//! GPUDirect: which devices' memory adapters read and write by themselves, as far as messages have found out.
//!
//! A transport says whose memory it takes, but may refuse a piece of it all the same: the kernel, the adapter or the driver
//! may lack support, for this memory or for now. Such a message goes another way, and the refusal is remembered for the
//! device: the next sixteen messages do not ask. Each further refusal doubles that number, up to 16,384. An acceptance
//! forgets it.

use crate::cost::SingleCopyCosts;
use gapless_bml::{Bml, Rank, RdmaError};
use gapless_mem::Space;

/// Messages that do not ask after the first refusal.
const FIRST: u32 = 16;
/// Those after any refusal, at most.
const MOST: u32 = 1 << 14;
/// Devices of which something is remembered.
const DEVICES: usize = 64;

/// What was refused of one device.
#[derive(Debug)]
struct Refused {
    space: Space,
    /// Messages that do not ask, still and after the next refusal.
    left: u32,
    next: u32,
}

/// What was refused.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Refused>);

impl Refusals {
    /// Whether a message with memory in `space` asks for it to be taken.
    pub(crate) fn asks(&mut self, space: Space) -> bool {
        let Some(known) = self.0.iter_mut().find(|known| known.space == space) else { return true };
        let asks = known.left == 0;
        known.left = known.left.saturating_sub(1);
        asks
    }

    /// An operation on memory in `space` could not be started: a refusal of a device's memory is remembered.
    pub(crate) fn not_started(&mut self, space: Space, error: &RdmaError) {
        if is_refusal(error) && !space.cpu_accessible() {
            self.refused(space);
        }
    }

    /// Memory in `space` was refused.
    pub(crate) fn refused(&mut self, space: Space) {
        if let Some(known) = self.0.iter_mut().find(|known| known.space == space) {
            known.left = known.next;
            known.next = known.next.saturating_mul(2).min(MOST);
            return;
        }
        if self.0.len() == DEVICES {
            self.0.remove(0);
        }
        self.0.push(Refused { space, left: FIRST, next: 2 * FIRST });
    }

    /// Memory in `space` was taken.
    pub(crate) fn taken(&mut self, space: Space) {
        self.0.retain(|known| known.space != space);
    }
}

/// Whether a transport refuses this end's memory, now or ever.
pub(crate) fn is_refusal(error: &RdmaError) -> bool {
    matches!(error, RdmaError::Unavailable { .. } | RdmaError::Device(_))
}

/// What single copy to or from `peer` costs for a buffer in `space`, if the link can do it.
pub(crate) fn single_copy_costs(bml: &mut Bml, peer: u32, space: Space) -> Option<SingleCopyCosts> {
    let (_, rdma) = bml.rdma(Rank(peer))?;
    let devices = rdma.takes(space);
    let limits = rdma.rdma_limits();
    let register_ns = [limits.register_ns, limits.register_mib_ns].map(f64::from);
    Some(SingleCopyCosts {
        register_ns,
        operation_ns: f64::from(limits.operation_ns),
        piece_ns: f64::from(limits.piece_ns),
        bandwidth_mb_s: f64::from(limits.bandwidth_mb_s),
        pieces_max: limits.max_pieces as u64,
        devices,
    })
}

/// Whether adapters reach a device's memory by themselves on the way to `peer`.
pub(crate) fn is_taken(bml: &mut Bml, peer: u32, space: Space) -> bool {
    single_copy_costs(bml, peer, space).is_some_and(|costs| costs.devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Space = Space::Device { kind: "fake", device: 1 };

    #[test]
    fn after_a_refusal_fewer_and_fewer_messages_ask() {
        let mut refusals = Refusals::default();
        assert!(refusals.asks(DEVICE) && refusals.asks(DEVICE), "nothing is known");
        let mut between = Vec::new();
        for _ in 0..12 {
            refusals.refused(DEVICE);
            between.push((0..).take_while(|_| !refusals.asks(DEVICE)).count());
            assert!(refusals.asks(Space::Device { kind: "fake", device: 2 }), "another one");
        }
        let expected: Vec<usize> = (0..12).map(|at| (16usize << at).min(1 << 14)).collect();
        assert_eq!(between, expected);
        refusals.taken(DEVICE);
        assert!(refusals.asks(DEVICE) && refusals.0.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut refusals = Refusals::default();
        for device in 0..200 {
            refusals.refused(Space::Device { kind: "fake", device });
        }
        assert_eq!(refusals.0.len(), DEVICES);
        assert!(
            refusals.asks(DEVICE) && !refusals.asks(Space::Device { kind: "fake", device: 199 })
        );
    }
}
