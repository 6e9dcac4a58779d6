//! Memory of devices over the loopback. Both ends are in one process, so a mapping is the memory
//! itself, counted: nothing is exported or imported but numbers.

use super::Loopback;
use super::hub::{HubEnd, lock};
use crate::{MapError, Mapping};
use gapless_mem::{Device, Lease, Region, Space};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Buffers that one end shares at a time; the oldest leaves first.
const BUFFERS: usize = 64;

/// What mappings hold.
struct Granted {
    _device: Arc<dyn Device>,
}

/// A buffer that others may map.
struct Buffer {
    whole: Region,
    id: u64,
    device: Arc<dyn Device>,
    granted: Arc<Granted>,
}

/// The buffers of one end.
#[derive(Default)]
pub(super) struct Exports {
    next: u64,
    /// By number: the oldest first.
    live: BTreeMap<u64, Buffer>,
    /// Invalidated ones.
    leaving: Vec<(Region, Weak<Granted>)>,
}

impl Exports {
    fn remove(&mut self, number: u64) {
        if let Some(buffer) = self.live.remove(&number) {
            self.leaving.push((buffer.whole, Arc::downgrade(&buffer.granted)));
        }
        self.leaving.retain(|(_, granted)| granted.strong_count() > 0);
    }

    /// Ends the keys of what `region` touches; whether any of it is still mapped.
    pub(super) fn invalidate(&mut self, region: Region) -> bool {
        let touched = |buffer: &Buffer| overlap(buffer.whole, region);
        let numbers = self.live.iter().filter(|(_, buffer)| touched(buffer));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.remove(number));
        self.leaving.retain(|(_, granted)| granted.strong_count() > 0);
        self.leaving.iter().any(|(whole, _)| overlap(*whole, region))
    }

    /// The number of the buffer that `region` lies in, and where.
    fn find(&self, region: Region, id: u64) -> Option<(u64, u64)> {
        self.live.iter().find_map(|(number, buffer)| {
            let offset = offset_in(buffer.whole, region)?;
            (buffer.id == id).then_some((*number, offset))
        })
    }
}

/// Whether two regions of one space share a byte, or the same start.
pub(super) fn overlap(a: Region, b: Region) -> bool {
    let end = |region: Region| region.start().saturating_add(region.len().max(1));
    a.space() == b.space() && a.start() < end(b) && b.start() < end(a)
}

/// Where `part` starts in `whole`, if it lies inside.
fn offset_in(whole: Region, part: Region) -> Option<u64> {
    let offset = part.start().checked_sub(whole.start())?;
    let inside = whole.space() == part.space() && whole.sub(offset, part.len()).is_ok();
    inside.then_some(offset)
}

impl Loopback {
    /// Shares the buffer that `region` lies in: its number, and where in it.
    pub(super) fn export(&self, region: Region) -> Option<(u64, u64)> {
        let device = self.devices.iter().find(|device| device.space() == region.space())?;
        let id = device.buffer_id(region)?;
        let exports = &mut lock(&self.end.shared).exported;
        if let Some(found) = exports.find(region, id) {
            return Some(found);
        }
        let whole = device.allocation(region)?;
        let offset = offset_in(whole, region)?;
        // The buffer that was at these addresses before has been freed.
        exports.invalidate(whole);
        if exports.live.len() >= BUFFERS
            && let Some((&oldest, _)) = exports.live.first_key_value()
        {
            exports.remove(oldest);
        }
        let number = exports.next;
        exports.next += 1;
        let granted = Arc::new(Granted { _device: Arc::clone(device) });
        let device = Arc::clone(device);
        exports.live.insert(number, Buffer { whole, id, device, granted });
        Some((number, offset))
    }

    /// Maps a buffer of `end`.
    pub(super) fn import(
        &self,
        end: &HubEnd,
        number: u64,
        offset: u64,
        len: u64,
        user: Space,
    ) -> Result<Mapping, MapError> {
        let unavailable = |reason: &str| MapError::Unavailable { reason: reason.to_owned() };
        let serves = |device: &Arc<dyn Device>| user.cpu_accessible() || device.space() == user;
        if !self.devices.iter().any(serves) {
            return Err(unavailable("no such device is attached here"));
        }
        let shared = lock(&end.shared);
        let buffer = shared.exported.live.get(&number);
        let buffer =
            buffer.filter(|buffer| buffer.device.buffer_id(buffer.whole) == Some(buffer.id));
        let buffer = buffer.ok_or_else(|| unavailable("the buffer was freed or invalidated"))?;
        let region = buffer.whole.sub(offset, len);
        let region = region.map_err(|error| MapError::BadKey { what: error.to_string() })?;
        let hold = Arc::clone(&buffer.granted) as Arc<_>;
        // SAFETY: the device knows the buffer by the id it was exported with, so it lives, and its
        // owner keeps it until `invalidate`, which counts the hold, says that nobody has it.
        let lease = unsafe { Lease::new(region, hold) };
        // SAFETY: as above; references to memory of a device are made nowhere.
        Ok(unsafe { Mapping::new(lease) })
    }
}
