//! Eager is no rendezvous, so no offer starts it: it only takes part in the choice. `drive/eager.rs` does it.

use super::ProtocolKind;
use crate::cost::{Excluded, Model};

/// The longest message from or to a device that goes eagerly. Its kernels wait neither for an offer nor for a receive, but
/// longer ones gain more by direct paths.
const DEVICE_BYTES_MAX: u64 = 8 << 10;

pub(super) const KIND: ProtocolKind = ProtocolKind {
    exclude: |s, tuning| {
        let device = if s.devices.is_some() { DEVICE_BYTES_MAX } else { u64::MAX };
        let most = s.link_eager_bytes.min(tuning.eager_bytes_max).min(device);
        (s.bytes > most).then_some(Excluded::TooLong)
    },
    cost: |model, _| model.by_ends(Model::eager, Model::device_eager),
    ..ProtocolKind::NONE
};
