//! What is known of the devices of both ends, for offers and for the choice of a protocol.

use crate::buffer::Buffer;
use crate::cost::{DeviceEnds, Staging};
use crate::drive::core::Core;
use crate::rndv::staging::device_of;
use crate::wire::{DEPTH_MAX, FRAGMENT_MIN, StagedOffer};
use gapless_bml::{Bml, Rank};
use gapless_mem::{Device, Space};
use std::num::NonZeroU8;
use std::sync::Arc;

/// The number that processes of this host know a device by; 0 if it has none.
fn device_id(device: &Arc<dyn Device>) -> u64 {
    let fold = |id: u128| {
        let bytes = id.to_le_bytes();
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        (word(0) ^ word(8)).max(1)
    };
    device.identity().map_or(0, fold)
}

impl Core {
    /// Sees that the device of a buffer is attached to the transports.
    #[cold]
    pub(crate) fn know_device(&mut self, bml: &mut Bml, engine: usize, space: Space) {
        if device_of(bml, space).is_some() {
            return;
        }
        let Some(device) = self.engines[engine].device(space) else { return };
        if let Err(error) = bml.attach(&device) {
            let name = &device.properties().name;
            tracing::info!(name, %error, "a transport does not know this device");
        }
    }

    /// Whether a device of this process reaches a buffer of the host by itself; then the transports know that device.
    pub(crate) fn know_reaching(&mut self, bml: &mut Bml, buffer: &Buffer) -> bool {
        let Some((engine, device)) = buffer.reached_by(&self.engines) else { return false };
        self.know_device(bml, engine, device.space());
        device_of(bml, device.space()).is_some()
    }

    /// What a sender of a buffer in `space` says about staging.
    pub(crate) fn staged_offer(&self, bml: &mut Bml, peer: u32, space: Space) -> StagedOffer {
        let device = device_of(bml, space);
        let host = space.cpu_accessible();
        if peer == self.me || !(host || device.is_some()) {
            return StagedOffer::default();
        }
        // Nothing is staged between two host buffers, and such a sender mostly knows no device.
        if bml.mapped(Rank(peer)).is_none() {
            return StagedOffer::default();
        }
        let abilities = device.as_ref().map(|device| device.abilities()).unwrap_or_default();
        StagedOffer {
            device: device.is_some(),
            through_host: true,
            readable: false,
            locked: false,
            copies_only: device.is_some() && !abilities.kernels_reach_host,
            shares: abilities.shares.filter(|_| self.config.device_ipc).map_or(0, NonZeroU8::get),
            fragment: self.config.tuning.staged_fragment_bytes.max(FRAGMENT_MIN),
            depth: self.config.tuning.staged_depth.clamp(1, DEPTH_MAX),
            device_id: device.as_ref().map_or(0, device_id),
        }
    }

    /// Which staged protocols are possible between a sender and a buffer of ours in `space`.
    pub(crate) fn staging(
        &self,
        bml: &mut Bml,
        from: u32,
        theirs: &StagedOffer,
        space: Space,
    ) -> Option<Staging> {
        // Their messages are not numbered.
        if !bml.limits(Rank(from)).is_some_and(|limits| limits.ordered) {
            return None;
        }
        let ours = self.staged_offer(bml, from, space);
        if !(theirs.through_host && ours.through_host && (theirs.device || ours.device)) {
            return None;
        }
        Some(Staging {
            sender_device: theirs.device,
            receiver_device: ours.device,
            shared: ours.shares != 0 && ours.shares == theirs.shares,
            one_device: ours.device_id != 0 && ours.device_id == theirs.device_id,
            direct: false,
            fragment_bytes: theirs.fragment.min(ours.fragment),
            depth: theirs.depth.min(ours.depth),
        })
    }

    /// What a sender expects [`staging`](Core::staging) to be: it assumes that the receiver's device is another one
    /// like its own.
    pub(crate) fn expected_staging(
        &self,
        bml: &mut Bml,
        peer: u32,
        space: Space,
    ) -> Option<Staging> {
        if space.cpu_accessible() {
            return None;
        }
        let ours = self.staged_offer(bml, peer, space);
        self.staging(bml, peer, &StagedOffer { device_id: 0, ..ours }, space)
    }

    /// What is known of the devices of a sender, whose device has the id `sender_id` (0: none), and of a
    /// buffer of ours in `space`.
    pub(crate) fn device_ends(
        &self,
        bml: &Bml,
        sender: bool,
        sender_id: u64,
        space: Space,
    ) -> Option<DeviceEnds> {
        let receiver = !space.cpu_accessible();
        if !sender && !receiver {
            return None;
        }
        let device = device_of(bml, space);
        let copies_only = device.as_ref().is_some_and(|it| !it.abilities().kernels_reach_host);
        let same = device.filter(|device| sender_id != 0 && device_id(device) == sender_id);
        let turns = same.as_ref().is_some_and(|device| device.takes_turns());
        Some(DeviceEnds {
            sender,
            receiver,
            one_device: same.is_some(),
            turns,
            sender_keeps: false,
            locked: false,
            copies_only,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn a_device_id_is_made_of_all_of_a_device_s_identity() {
        let id = |device: FakeDevice| device_id(&(Arc::new(device) as Arc<dyn Device>));
        assert_eq!(id(FakeDevice::new(0)), 0, "it has none");
        let known = |identity| id(FakeDevice::new(0).identified(identity, false));
        assert_eq!(known(0x0102_0304_0506_0708), 0x0102_0304_0506_0708);
        assert_eq!(known(0x0102_0304_0506_0708 << 64), 0x0102_0304_0506_0708);
        assert_eq!(known(0x00F0 << 64 | 0xFF00), 0xFFF0);
        assert_eq!(known(0x00F0 << 64 | 0x00FF), 0x000F, "what both have is gone");
        assert_eq!(known(7 << 64 | 7), 1, "a device with an identity has an id");
    }
}
