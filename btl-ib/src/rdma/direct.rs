//! Memory of devices that the adapter reads and writes by itself (GPUDirect): registered by dma-buf.
//!
//! For **local pieces** of operations an allocation is registered as a whole, without rights for peers, and remembered with
//! the number that its device gives it. Memory that was freed and allocated anew at the same addresses has another number,
//! so it is registered anew, and the old registration ends. At most [`KEPT_MAX`] allocations are remembered; a registration
//! that operations work through outlives its place here.
//!
//! For **peers** each region is registered by itself, and for reading only: nobody would tell the device of what they write.
//!
//! Nothing of a device has relaxed ordering. After a read into its memory the device is asked to settle what was written
//! ([`Device::settle_writes`]) before the end is told.

use super::{Registration, not_the_cpus};
use crate::ib::Ib;
use crate::key::Key;
use crate::verbs::flags::MemoryAccess;
use crate::verbs::memory::Mr;
use gapless_btl::{Access, LinkError, RdmaError, RemoteKey};
use gapless_mem::{Device, DeviceError, Region, Space};
use std::collections::VecDeque;
use std::sync::Arc;

/// Allocations of devices that are remembered.
const KEPT_MAX: usize = 16;

/// A registration of an allocation.
struct Kept<R> {
    whole: Region,
    /// What its device calls it.
    id: u64,
    registration: R,
}

/// Devices that are attached, and registrations of their memory.
pub(crate) struct Devices<R = Arc<Mr>> {
    all: Vec<Arc<dyn Device>>,
    /// The last used is the last.
    kept: VecDeque<Kept<R>>,
}

impl<R> Default for Devices<R> {
    fn default() -> Devices<R> {
        Devices { all: Vec::new(), kept: VecDeque::new() }
    }
}

fn contains(whole: &Region, region: &Region) -> bool {
    whole.space() == region.space()
        && region
            .start()
            .checked_sub(whole.start())
            .is_some_and(|at| at.checked_add(region.len()).is_some_and(|end| end <= whole.len()))
}

impl<R: Clone> Devices<R> {
    /// Knows a device from now on. Gives whether it is new.
    pub(crate) fn attach(&mut self, device: &Arc<dyn Device>) -> bool {
        let new = !self.all.iter().any(|known| Arc::ptr_eq(known, device));
        if new {
            self.all.push(Arc::clone(device));
        }
        new
    }

    pub(crate) fn all(&self) -> &[Arc<dyn Device>] {
        &self.all
    }

    /// The device whose memory this space is.
    pub(super) fn of(&self, space: Space) -> Option<&Arc<dyn Device>> {
        self.all.iter().find(|device| device.space() == space && !space.cpu_accessible())
    }

    /// A registration that all of `region` lies in. Those that have become stale end: their lengths are given to `ended`.
    fn find(&mut self, region: &Region, mut ended: impl FnMut(u64)) -> Option<R> {
        if region.is_empty() {
            return None;
        }
        let id = self.of(region.space())?.buffer_id(*region);
        self.kept.retain(|kept| {
            let first = region.sub(0, region.len().min(1)).unwrap_or(*region);
            let stale = contains(&kept.whole, &first) && Some(kept.id) != id;
            if stale {
                ended(kept.whole.len());
            }
            !stale
        });
        let at = self.kept.iter().position(|kept| contains(&kept.whole, region))?;
        let kept = self.kept.remove(at)?;
        let registration = kept.registration.clone();
        self.kept.push_back(kept);
        Some(registration)
    }

    /// The allocation that the region lies in, and its number; `None` if the device does not know.
    fn whole(&self, region: &Region) -> Option<(Region, u64)> {
        let device = self.of(region.space())?;
        let (whole, id) = (device.allocation(*region)?, device.buffer_id(*region)?);
        contains(&whole, region).then_some((whole, id))
    }

    /// Remembers a registration. Gives the length of the one that it takes the place of, if there is one.
    fn keep(&mut self, whole: Region, id: u64, registration: R) -> Option<u64> {
        self.kept.push_back(Kept { whole, id, registration });
        let first = (self.kept.len() > KEPT_MAX).then(|| self.kept.pop_front());
        first.flatten().map(|kept| kept.whole.len())
    }
}

/// How the adapter reaches a local piece of a device's memory.
pub(super) struct Direct {
    pub(super) mr: Arc<Mr>,
    /// It was registered for this operation.
    pub(super) lent: bool,
}

impl Ib {
    /// Has the adapter reach a local piece of a device's memory.
    ///
    /// # Safety
    /// The device's contract: the region may be read, and written, until the operation has ended.
    ///
    /// # Errors
    /// It cannot: whoever asks goes another way.
    pub(super) unsafe fn reach_device(&mut self, region: &Region) -> Result<Direct, RdmaError> {
        let devices = &mut self.one_sided.devices;
        let (mut ended, mut bytes) = (0, 0);
        let found = devices.find(region, |len| {
            ended += 1;
            bytes += len;
        });
        self.one_sided.give_back((ended, bytes));
        if let Some(mr) = found {
            return Ok(Direct { mr, lent: false });
        }
        let mut last = None;
        // A device may refuse what is longer than its window on the bus.
        let whole = self.one_sided.devices.whole(region);
        for (region, id) in
            whole.map(|(whole, id)| (whole, Some(id))).into_iter().chain([(*region, None)])
        {
            // SAFETY: peers get no right to it; own work writes it by the caller's promise alone.
            match unsafe { self.register_memory(&region, MemoryAccess::LOCAL_WRITE) } {
                Err(error) => last = Some(error),
                Ok(mr) => {
                    let mr = Arc::new(mr);
                    self.one_sided.lend(1, region.len());
                    let Some(id) = id else { return Ok(Direct { mr, lent: true }) };
                    let before = self.one_sided.devices.keep(region, id, Arc::clone(&mr));
                    self.one_sided.give_back((usize::from(before.is_some()), before.unwrap_or(0)));
                    return Ok(Direct { mr, lent: false });
                }
            }
        }
        Err(last.unwrap_or_else(|| not_the_cpus(region).into()))
    }

    /// Registers a region of a device's memory.
    ///
    /// # Safety
    /// As [`Mr::of_dma_buf`].
    unsafe fn register_memory(
        &mut self,
        region: &Region,
        access: MemoryAccess,
    ) -> Result<Mr, RdmaError> {
        let devices = &self.one_sided.devices;
        let device = devices.of(region.space()).ok_or_else(|| not_the_cpus(region))?;
        let unavailable = |reason: String| RdmaError::Unavailable { reason };
        self.may_register(region.len())?;
        let buffer = device.dma_buf(*region).map_err(|error| unavailable(error.to_string()))?;
        // SAFETY: the caller's promise; the device says that the region lies in the buffer.
        let mr = unsafe { Mr::of_dma_buf(&self.domain, &buffer, *region, access) };
        mr.map_err(|error| {
            tracing::debug!(%error, "a device's memory is not registered");
            unavailable(error.to_string())
        })
    }

    /// [`Rdma::register`](gapless_btl::Rdma::register) of a device's memory.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub(super) unsafe fn register_for_peers(
        &mut self,
        local: Region,
        access: Access,
    ) -> Result<RemoteKey, RdmaError> {
        if self.one_sided.devices.of(local.space()).is_none() {
            return Err(not_the_cpus(&local).into());
        }
        if access != Access::Read {
            let reason = "nobody would tell a device of what peers write".to_owned();
            return Err(RdmaError::Unavailable { reason });
        }
        let (address, len) = (local.start(), local.len());
        let key = Key { owner: self.card.id, address, len, rkey: 0, access };
        if local.is_empty() {
            return Ok(key.seal(&self.keys));
        }
        // SAFETY: the caller's promise holds until `deregister`, which ends the registration.
        let mr = unsafe { self.register_memory(&local, MemoryAccess::REMOTE_READ) }?;
        let (rkey, space) = (mr.rkey(), local.space());
        let registration = Registration { len, writable: false, space, mr: Arc::new(mr) };
        self.one_sided.registrations.insert((address, rkey), registration);
        self.one_sided.registered_bytes += len;
        Ok(Key { rkey, ..key }.seal(&self.keys))
    }

    /// Has devices know the buffers of messages, so that they work on them without staging.
    pub(crate) fn attach_device(&mut self, device: &Arc<dyn Device>) -> Result<(), LinkError> {
        if !self.one_sided.devices.attach(device) || self.staged {
            return Ok(());
        }
        let all = self.one_sided.devices.all();
        let slots =
            self.links.iter_mut().filter_map(crate::link::Link::up).map(|up| up.slots.memory());
        let known = self.arrivals.memories().chain(slots).try_for_each(|it| it.make_known(all));
        known.map_err(|error| {
            self.give_devices_up(&error);
            LinkError::System {
                operation: "registering buffers with a device",
                reason: error.to_string(),
            }
        })
    }

    /// Has them know the buffers of a link that has come to stand, and those for its arrivals.
    pub(crate) fn make_known(&mut self, id: u32) {
        let all = self.one_sided.devices.all();
        if all.is_empty() || self.staged {
            return;
        }
        let slots = self.links[id as usize].up().map(|up| up.slots.memory());
        let known = self.arrivals.memories().chain(slots).try_for_each(|it| it.make_known(all));
        if let Err(error) = known {
            self.give_devices_up(&error);
        }
    }

    /// A device has refused buffers: from now on all are ordinary memory to every device, since this one works on them as
    /// well.
    fn give_devices_up(&mut self, error: &DeviceError) {
        tracing::info!(%error, "messages of devices are staged");
        self.staged = true;
        self.arrivals.memories().for_each(|memory| memory.unpin());
        for up in self.links.iter_mut().filter_map(crate::link::Link::up) {
            up.slots.memory().unpin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    fn devices(fake: &Arc<FakeDevice>) -> Devices<u32> {
        let mut devices = Devices::default();
        let device: Arc<dyn Device> = Arc::clone(fake) as Arc<dyn Device>;
        assert!(devices.attach(&device) && !devices.attach(&device));
        devices
    }

    #[test]
    fn an_allocation_is_registered_once_whichever_part_is_asked_for() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&fake);
        let memory = fake.allocate(10_000).unwrap();
        let part = memory.sub(5_000, 100).unwrap();
        assert_eq!(devices.find(&part, |_| panic!("nothing is kept")), None);
        let (whole, id) = devices.whole(&part).unwrap();
        assert_eq!((whole.start(), whole.len()), (memory.start(), 10_000));
        assert_eq!(devices.keep(whole, id, 7), None);
        for region in [part, memory, memory.sub(9_999, 1).unwrap()] {
            assert_eq!(devices.find(&region, |_| panic!("it is not stale")), Some(7));
        }
        let beyond = Region::new(memory.space(), memory.start(), 9_999, 2);
        assert_eq!(devices.find(&beyond, |_| ()), None);
        let host = Region::new(Space::Host, memory.start(), 0, 10);
        assert_eq!((devices.find(&host, |_| ()), devices.whole(&host)), (None, None));
    }

    /// Memory is freed, and other memory lies at its addresses.
    #[test]
    fn stale_registrations_are_not_used() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&fake);
        let memory = fake.allocate(4096).unwrap();
        let (whole, id) = devices.whole(&memory).unwrap();
        devices.keep(whole, id + 1, 7);
        let mut ended = Vec::new();
        assert_eq!(devices.find(&memory, |len| ended.push(len)), None);
        assert_eq!(ended, [4096], "it had another number");
        devices.keep(whole, id, 8);
        assert_eq!(devices.find(&memory, |len| ended.push(len)), Some(8));
        // SAFETY: the device's own, and nothing uses it.
        unsafe { fake.free(memory) }.unwrap();
        assert_eq!(devices.find(&memory, |len| ended.push(len)), None);
        assert_eq!(ended, [4096, 4096], "the device does not know it");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&fake);
        let all: Vec<Region> = (0..40u64).map(|at| fake.allocate(100 + at).unwrap()).collect();
        for (at, memory) in (0u32..).zip(&all) {
            let (whole, id) = devices.whole(memory).unwrap();
            let before = devices.keep(whole, id, at);
            assert_eq!(before.is_some(), at as usize >= KEPT_MAX, "{at}");
            assert_eq!(devices.find(&all[0], |_| panic!("it is not stale")), Some(0));
        }
        assert_eq!(devices.kept.len(), KEPT_MAX);
        assert_eq!(devices.find(&all[1], |_| ()), None);
        assert_eq!(devices.find(&all[39], |_| ()), Some(39));
    }
}
