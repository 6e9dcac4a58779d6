//! Device memory of ours that peers can map: what a device exported, and who knows of it.
//!
//! A buffer is exported whole and once, found again by the id that its device gives it, and told to
//! each peer before the first key that names it. When it leaves (invalidated by its owner, freed and
//! noticed, or for want of room, least recently used first), peers are told, and each answers when
//! nothing there uses it any more: until then it is *leaving*, and its owner waits with freeing it.

use crate::link::SmLink;
use crate::sm::Sm;
use crate::socket;
use crate::wire::{SHARED, device_packet, freed_packet, make_key};
use gapless_btl::{PeerId, RemoteKey};
use gapless_mem::{Device, DeviceError, Region, Space};
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Where `part` starts in `whole`, if it lies inside.
fn offset_in(whole: Region, part: Region) -> Option<u64> {
    let offset = part.start().checked_sub(whole.start())?;
    let inside = whole.space() == part.space() && whole.sub(offset, part.len()).is_ok();
    inside.then_some(offset)
}

/// Whether two regions of one space share a byte, or the same start.
fn overlap(a: Region, b: Region) -> bool {
    let end = |region: Region| region.start().saturating_add(region.len().max(1));
    a.space() == b.space() && a.start() < end(b) && b.start() < end(a)
}

/// One buffer.
struct Buffer {
    number: u64,
    whole: Region,
    /// What peers are told.
    packet: Vec<u8>,
    file: Option<OwnedFd>,
    /// When a key was last asked for, by the cache's own count.
    used: u64,
}

/// The device memory that one transport shares.
pub(crate) struct DeviceExports {
    /// By space and the device's id.
    live: BTreeMap<(Space, u64), Buffer>,
    /// By number: what peers may still have mapped.
    leaving: BTreeMap<u64, Region>,
    clock: u64,
    max: usize,
    /// Spaces of which it was said that some memory cannot be shared.
    said: HashSet<Space>,
}

impl DeviceExports {
    pub(crate) fn new(max: usize) -> DeviceExports {
        let max = max.clamp(1, SHARED);
        let (live, leaving, said) = (BTreeMap::new(), BTreeMap::new(), HashSet::new());
        DeviceExports { live, leaving, clock: 0, max, said }
    }

    /// A device does not export some memory. The warning comes once for each space, not with every message.
    fn refused(&mut self, space: Space, error: &DeviceError) {
        if self.said.insert(space) {
            tracing::warn!(%space, %error, "this memory cannot be shared with other processes: messages in it use slower protocols");
        } else {
            tracing::debug!(%space, %error, "device memory is not shared");
        }
    }

    fn find(&mut self, region: Region, id: u64) -> Option<(&Buffer, u64)> {
        self.clock += 1;
        let clock = self.clock;
        let buffer = self.live.get_mut(&(region.space(), id))?;
        let offset = offset_in(buffer.whole, region)?;
        buffer.used = clock;
        Some((buffer, offset))
    }

    /// The buffers that `pass`.
    fn select(&self, pass: impl Fn(&(Space, u64), &Buffer) -> bool) -> Vec<(Space, u64)> {
        self.live.iter().filter(|(key, buffer)| pass(key, buffer)).map(|(key, _)| *key).collect()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.live.len(), self.leaving.len())
    }
}

/// Tells a peer of a buffer, if it does not know it.
fn share(link: &mut SmLink, number: u64, packet: &[u8], file: Option<&OwnedFd>) -> Option<()> {
    if link.shared.contains(&number) {
        return Some(());
    }
    // Notices of what has left go first: the peer counts.
    let known = link.shared.len() + link.leaving.len();
    if known >= SHARED || !link.unsent.is_empty() || link.leaving.contains(&number) {
        return None;
    }
    if !link.know_process() {
        return None;
    }
    let socket = link.outgoing.as_ref()?;
    if socket::send(socket, packet, file) != Ok(true) {
        return None;
    }
    link.shared.insert(number);
    Some(())
}

impl Sm {
    /// A key to memory of an attached device.
    pub(crate) fn device_key(&mut self, peer: PeerId, region: Region) -> Option<RemoteKey> {
        let at = peer.0 as usize;
        if self.links.get(at)?.is_up() != Ok(true) {
            return None;
        }
        let device = self.attached.iter().find(|device| device.space() == region.space())?.clone();
        let id = device.buffer_id(region)?;
        if self.device_exports.find(region, id).is_none() {
            self.export(&device, region, id)?;
        }
        let owner = self.address.nonce;
        let (buffer, offset) = self.device_exports.find(region, id)?;
        share(&mut self.links[at], buffer.number, &buffer.packet, buffer.file.as_ref())?;
        Some(make_key(owner, buffer.number, offset, region.len()))
    }

    /// Has a device export the buffer that `region` lies in.
    #[cold]
    fn export(&mut self, device: &Arc<dyn Device>, region: Region, id: u64) -> Option<()> {
        let kind = device.abilities().shares?.get();
        let whole = device.allocation(region)?;
        offset_in(whole, region)?;
        // What was there before has been freed; and so may others have been.
        let attached = &self.attached;
        let gone = self.device_exports.select(|(space, id), buffer| {
            let owner = attached.iter().find(|device| device.space() == *space);
            let now = owner.and_then(|device| device.buffer_id(buffer.whole));
            overlap(buffer.whole, whole) || now != Some(*id)
        });
        gone.into_iter().for_each(|key| self.unshare(key));
        let export = match device.export(whole) {
            Ok(export) => export,
            Err(error) => {
                self.device_exports.refused(region.space(), &error);
                return None;
            }
        };
        let descriptors = u8::try_from(export.descriptors.len()).ok().filter(|count| *count < 2)?;
        let file = export.descriptors.into_iter().next();
        if file.as_ref().is_some_and(|file| !socket::can_be_spared(file)) {
            tracing::debug!("device memory is not shared: open files are running out");
            return None;
        }
        let number = self.exports.next_number();
        let packet = device_packet(kind, descriptors, number, whole.len(), &export.bytes)?;
        while self.device_exports.live.len() >= self.device_exports.max {
            let live = self.device_exports.live.iter();
            let Some((&oldest, _)) = live.min_by_key(|(_, buffer)| buffer.used) else { break };
            self.unshare(oldest);
        }
        let used = self.device_exports.clock;
        let buffer = Buffer { number, whole, packet, file, used };
        self.device_exports.live.insert((region.space(), id), buffer);
        Some(())
    }

    /// Ends a buffer's keys.
    fn unshare(&mut self, key: (Space, u64)) {
        let Some(buffer) = self.device_exports.live.remove(&key) else { return };
        self.forget_released();
        for link in &mut self.links {
            if link.shared.remove(&buffer.number) {
                link.tell(&freed_packet(buffer.number));
                link.leaving.insert(buffer.number);
                self.device_exports.leaving.insert(buffer.number, buffer.whole);
            }
        }
        self.flush_packets();
    }

    /// Ends the keys of the device memory that `region` touches; whether peers may still use it.
    pub(crate) fn invalidate_device(&mut self, region: Region) -> bool {
        let touched = self.device_exports.select(|_, buffer| overlap(buffer.whole, region));
        touched.into_iter().for_each(|key| self.unshare(key));
        self.forget_released();
        self.device_exports.leaving.values().any(|whole| overlap(*whole, region))
    }

    /// Has one peer let go of the device memory that `region` touches; whether it may still use it.
    pub(crate) fn revoke_device_access(&mut self, peer: PeerId, region: Region) -> bool {
        let DeviceExports { live, leaving, .. } = &mut self.device_exports;
        let link = &mut self.links[peer.0 as usize];
        for buffer in live.values().filter(|buffer| overlap(buffer.whole, region)) {
            if link.shared.remove(&buffer.number) {
                link.tell(&freed_packet(buffer.number));
                link.leaving.insert(buffer.number);
                leaving.insert(buffer.number, buffer.whole);
            }
        }
        let known = |number: &u64| link.leaving.contains(number);
        let used = leaving.iter().any(|(it, whole)| known(it) && overlap(*whole, region));
        self.flush_packets();
        used
    }

    /// Forgets what no peer has any more; those that are lost have taken theirs with them. So no more is
    /// remembered than peers may have, whether or not anybody asks.
    pub(crate) fn forget_released(&mut self) {
        let links = &self.links;
        let leaving = &mut self.device_exports.leaving;
        leaving.retain(|number, _| links.iter().any(|link| link.leaving.contains(number)));
    }
}
