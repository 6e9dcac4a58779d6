//! Memory of devices that the adapter reads and writes by itself (GPUDirect): registered by dma-buf.
//!
//! For **local pieces** of operations an allocation is registered as a whole, without rights for peers, and remembered with
//! the number that its device gives it. Memory that was freed and allocated anew at the same addresses has another number,
//! so it is registered anew. At most [`KEPT_MAX`] allocations are remembered. Before another one is registered, those that
//! were freed are let go; a registration that operations work through counts until they have ended.
//!
//! For **peers** each region is registered by itself, and for reading only: nobody would tell the device of what they write.
//!
//! Nothing of a device has relaxed ordering. After a read into its memory the device is asked to settle what was written
//! ([`Device::settle_writes`]) before the end is told.

use super::{OneSided, Registration, not_the_cpus};
use crate::ib::Ib;
use crate::key::Key;
use crate::link::IbLink;
use crate::verbs::flags::MemoryAccess;
use crate::verbs::memory::Mr;
use gapless_btl::{Access, LinkError, RdmaError, RemoteKey};
use gapless_mem::{Device, DeviceError, Region, Space};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Allocations of devices that are remembered.
const KEPT_MAX: usize = 16;

/// A registration of an allocation.
struct KeptDirect<R> {
    whole: Region,
    /// What its device calls it.
    id: u64,
    registration: Arc<R>,
}

/// Devices that are attached, and registrations of their memory.
pub(crate) struct Devices<R = Mr> {
    all: Vec<Arc<dyn Device>>,
    /// The last used is the last.
    kept: VecDeque<KeptDirect<R>>,
    /// Those that are remembered no more, while operations work through them.
    retired: Vec<KeptDirect<R>>,
}

impl<R> Default for Devices<R> {
    fn default() -> Devices<R> {
        Devices { all: Vec::new(), kept: VecDeque::new(), retired: Vec::new() }
    }
}

fn contains(whole: &Region, region: &Region) -> bool {
    whole.space() == region.space()
        && region
            .start()
            .checked_sub(whole.start())
            .is_some_and(|at| at.checked_add(region.len()).is_some_and(|end| end <= whole.len()))
}

impl<R> Devices<R> {
    /// Knows a device from now on. Gives whether it is new.
    pub(crate) fn attach(&mut self, device: &Arc<dyn Device>) -> bool {
        let new = !self.all.iter().any(|known| Arc::ptr_eq(known, device));
        if new {
            self.all.push(Arc::clone(device));
        }
        new
    }

    /// Forgets a device, and the registrations of its memory that no operation works through.
    fn detach(&mut self, device: &Arc<dyn Device>) -> (usize, u64) {
        self.all.retain(|known| !Arc::ptr_eq(known, device));
        self.sweep()
    }

    pub(crate) fn all(&self) -> &[Arc<dyn Device>] {
        &self.all
    }

    /// The device whose memory this space is.
    pub(super) fn of(&self, space: Space) -> Option<&Arc<dyn Device>> {
        self.all.iter().find(|device| device.space() == space && !space.cpu_accessible())
    }

    /// The devices whose memory these regions are, each once.
    pub(super) fn of_all(&self, regions: &[Region]) -> Vec<Arc<dyn Device>> {
        let mut found: Vec<Arc<dyn Device>> = Vec::new();
        for device in regions.iter().filter_map(|region| self.of(region.space())) {
            if !found.iter().any(|known| Arc::ptr_eq(known, device)) {
                found.push(Arc::clone(device));
            }
        }
        found
    }

    /// Forgets all memory that was freed. Gives how many registrations have ended, and their bytes.
    fn sweep(&mut self) -> (usize, u64) {
        let all = std::mem::take(&mut self.kept);
        for kept in all {
            let first = kept.whole.sub(0, kept.whole.len().min(1)).unwrap_or(kept.whole);
            let id = self.of(first.space()).and_then(|device| device.buffer_id(first));
            if id == Some(kept.id) {
                self.kept.push_back(kept);
            } else {
                self.retired.push(kept);
            }
        }
        self.let_go()
    }

    /// Ends registrations that are remembered no more, and that no operation works through. Gives how many, and their bytes.
    fn let_go(&mut self) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        // Operations hold it, too.
        self.retired.retain(|kept| {
            let idle = Arc::strong_count(&kept.registration) == 1;
            if idle {
                (count, bytes) = (count + 1, bytes + kept.whole.len());
            }
            !idle
        });
        (count, bytes)
    }

    /// A registration that all of `region` lies in, which is not empty.
    fn find(&mut self, region: &Region) -> Option<Arc<R>> {
        let id = self.of(region.space())?.buffer_id(*region);
        let first = region.sub(0, region.len().min(1)).unwrap_or(*region);
        let is_stale = |kept: &KeptDirect<R>| contains(&kept.whole, &first) && Some(kept.id) != id;
        while let Some(at) = self.kept.iter().position(is_stale) {
            self.retired.extend(self.kept.remove(at));
        }
        let at = self.kept.iter().position(|kept| contains(&kept.whole, region))?;
        let kept = self.kept.remove(at)?;
        let registration = Arc::clone(&kept.registration);
        self.kept.push_back(kept);
        Some(registration)
    }

    /// The allocation that the region lies in, and its number; `None` if the device does not know.
    fn whole(&self, region: &Region) -> Option<(Region, u64)> {
        let device = self.of(region.space())?;
        let (whole, id) = (device.allocation(*region)?, device.buffer_id(*region)?);
        contains(&whole, region).then_some((whole, id))
    }

    /// Remembers a registration, in the place of the oldest one if there are too many.
    fn keep(&mut self, whole: Region, id: u64, registration: Arc<R>) {
        self.kept.push_back(KeptDirect { whole, id, registration });
        if self.kept.len() > KEPT_MAX {
            self.retired.extend(self.kept.pop_front());
        }
    }
}

impl OneSided {
    /// Ends registrations of devices' memory that are remembered no more, and that no operation works through.
    pub(super) fn let_go(&mut self) {
        let ended = self.devices.let_go();
        self.give_back(ended);
    }
}

/// How the adapter reaches a local piece of a device's memory.
pub(super) struct Direct {
    pub(super) mr: Arc<Mr>,
    /// It was registered for this operation.
    pub(super) in_use: bool,
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
        if let Some(mr) = self.one_sided.devices.find(region) {
            return Ok(Direct { mr, in_use: false });
        }
        // What was freed meanwhile, wherever it was, is the device's again before more is taken.
        let ended = self.one_sided.devices.sweep();
        self.one_sided.give_back(ended);
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
                    self.one_sided.count_in_use(1, region.len());
                    let Some(id) = id else { return Ok(Direct { mr, in_use: true }) };
                    self.one_sided.devices.keep(region, id, Arc::clone(&mr));
                    return Ok(Direct { mr, in_use: false });
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
        self.make_room(region.len())?;
        let devices = &self.one_sided.devices;
        let device = devices.of(region.space()).ok_or_else(|| not_the_cpus(region))?;
        let unavailable = |reason: String| RdmaError::Unavailable { reason };
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
        let key = Key { owner: self.address.id, address, len, rkey: 0, access };
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
        if !self.one_sided.devices.attach(device) {
            return Ok(());
        }
        self.tell_devices(0..self.links.len()).map_err(|error| LinkError::System {
            operation: "registering buffers with a device",
            reason: error.to_string(),
        })
    }

    /// Has them know the buffers of a link that has come to stand, and those for its arrivals.
    pub(crate) fn make_known(&mut self, id: u32) {
        let at = id as usize;
        // If one refuses, messages are staged.
        let _ = self.tell_devices(at..at + 1);
    }

    /// Has a device that has finished forget them.
    pub(crate) fn detach_device(&mut self, device: &Arc<dyn Device>) {
        let ended = self.one_sided.devices.detach(device);
        self.one_sided.give_back(ended);
        let slots = self.links.iter_mut().filter_map(IbLink::up).map(|up| up.slots.memory());
        self.arrivals.memories().chain(slots).for_each(|memory| memory.unregister(device));
    }

    fn tell_devices(&mut self, links: Range<usize>) -> Result<(), DeviceError> {
        let all = self.one_sided.devices.all();
        if all.is_empty() || self.staged {
            return Ok(());
        }
        let slots = self.links[links].iter_mut().filter_map(IbLink::up).map(|up| up.slots.memory());
        let known = self.arrivals.memories().chain(slots).try_for_each(|it| it.make_known(all));
        if let Err(error) = &known {
            self.give_devices_up(error);
        }
        known
    }

    /// A device has refused buffers: from now on all are ordinary memory to every device, since this one works on them as
    /// well.
    fn give_devices_up(&mut self, error: &DeviceError) {
        tracing::info!(%error, "messages of devices are staged");
        self.staged = true;
        self.arrivals.memories().for_each(|memory| memory.unpin());
        for up in self.links.iter_mut().filter_map(IbLink::up) {
            up.slots.memory().unpin();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    fn devices(fakes: &[&Arc<FakeDevice>]) -> Devices<u32> {
        let mut devices = Devices::default();
        for &fake in fakes {
            let device: Arc<dyn Device> = Arc::clone(fake) as Arc<dyn Device>;
            assert!(devices.attach(&device) && !devices.attach(&device));
        }
        devices
    }

    fn find(devices: &mut Devices<u32>, region: &Region) -> Option<u32> {
        devices.find(region).map(|found| *found)
    }

    #[test]
    fn an_allocation_is_registered_once_whichever_part_is_asked_for() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&[&fake]);
        let memory = fake.allocate(10_000).unwrap();
        let part = memory.sub(5_000, 100).unwrap();
        assert_eq!(find(&mut devices, &part), None);
        let (whole, id) = devices.whole(&part).unwrap();
        assert_eq!((whole.start(), whole.len()), (memory.start(), 10_000));
        devices.keep(whole, id, Arc::new(7));
        for region in [part, memory, memory.sub(9_999, 1).unwrap()] {
            assert_eq!(find(&mut devices, &region), Some(7));
        }
        let beyond = Region::new(memory.space(), memory.start(), 9_999, 2);
        assert_eq!(find(&mut devices, &beyond), None);
        let host = Region::new(Space::Host, memory.start(), 0, 10);
        assert_eq!((find(&mut devices, &host), devices.whole(&host)), (None, None));
        assert_eq!(devices.sweep(), (0, 0));
    }

    /// Memory is freed, and other memory lies at its addresses.
    #[test]
    fn stale_registrations_are_not_used() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&[&fake]);
        let memory = fake.allocate(4096).unwrap();
        let (whole, id) = devices.whole(&memory).unwrap();
        devices.keep(whole, id + 1, Arc::new(7));
        assert_eq!(find(&mut devices, &memory), None, "it had another number");
        assert_eq!(devices.sweep(), (1, 4096));
        devices.keep(whole, id, Arc::new(8));
        assert_eq!(find(&mut devices, &memory), Some(8));
    }

    /// Whatever is asked for next, memory that was freed is the device's again, once no operation works through it.
    #[test]
    fn freed_memory_is_let_go() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&[&fake]);
        let [one, other] = [4096, 8192].map(|len| fake.allocate(len).unwrap());
        for memory in [one, other] {
            let (whole, id) = devices.whole(&memory).unwrap();
            devices.keep(whole, id, Arc::new(1));
        }
        let used = devices.find(&one).unwrap();
        // SAFETY: the device's own, and nothing uses it.
        unsafe { fake.free(one) }.unwrap();
        assert_eq!((find(&mut devices, &one), devices.sweep()), (None, (0, 0)), "it is in use");
        drop(used);
        assert_eq!(devices.sweep(), (1, 4096));
        // SAFETY: as above.
        unsafe { fake.free(other) }.unwrap();
        assert_eq!(devices.sweep(), (1, 8192));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        let fake = Arc::new(FakeDevice::new(0));
        let mut devices = devices(&[&fake]);
        let all: Vec<Region> = (0..40u64).map(|at| fake.allocate(100 + at).unwrap()).collect();
        for (at, memory) in (0u32..).zip(&all) {
            let (whole, id) = devices.whole(memory).unwrap();
            devices.keep(whole, id, Arc::new(at));
            assert_eq!(devices.sweep().0, usize::from(at as usize >= KEPT_MAX), "{at}");
            assert_eq!(find(&mut devices, &all[0]), Some(0));
        }
        assert_eq!(devices.kept.len(), KEPT_MAX);
        assert_eq!(find(&mut devices, &all[1]), None);
        assert_eq!(find(&mut devices, &all[39]), Some(39));
    }

    /// What is read into the memory of several devices is settled by each of them.
    #[test]
    fn all_devices_of_an_operation_are_found() {
        let fakes = [0, 1].map(|number| Arc::new(FakeDevice::new(number)));
        let devices = devices(&[&fakes[0], &fakes[1]]);
        let [one, other] = [0, 1].map(|at: usize| fakes[at].allocate(10).unwrap());
        let host = Region::new(Space::Host, 4096, 0, 10);
        assert_eq!(devices.of_all(&[one, other, host, one]).len(), 2);
        assert_eq!(devices.of_all(&[other]).len(), 1);
        assert!(devices.of_all(&[host]).is_empty());
    }
}
