//! The driver and its devices, and [`Device`] on them.

use crate::CudaError;
use crate::context::Context;
use crate::copies::Lanes;
use crate::direct::Seen;
use crate::driver::{self, Driver};
use crate::ipc::Imports;
use crate::mps::{self, Mps};
use crate::peer::{self, Peers};
use crate::pinned::PinnedPool;
use crate::reach::Reached;
use crate::vmm::Vmm;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
use gapless_mem::{
    Abilities, Completion, Device, DeviceError, DeviceProperties, DmaBuf, Export, PciAddress,
    Region, Space,
};
use std::ffi::c_int;
use std::num::NonZeroU8;
use std::sync::{Arc, OnceLock};

/// The CUDA driver of this machine, open.
#[derive(Clone, Copy)]
pub struct CudaDriver {
    driver: &'static Driver,
    devices: u32,
}

impl CudaDriver {
    /// Opens the driver library, if there is one. Later calls give what the first one found.
    ///
    /// # Errors
    /// No driver, one that is too old, or no device: a machine without CUDA, which is no reason not
    /// to start. The error's text is one line for the user.
    ///
    /// ```
    /// match gapless_mem_cuda::CudaDriver::load() {
    ///     Ok(driver) => println!("{} CUDA devices", driver.devices()),
    ///     Err(why) => println!("{why}"),
    /// }
    /// ```
    pub fn load() -> Result<CudaDriver, CudaError> {
        CudaDriver::of(driver::open()?)
    }

    pub(crate) fn of(driver: &'static Driver) -> Result<CudaDriver, CudaError> {
        let devices = driver.device_count().map_err(|fault| driver.refusal(fault))?;
        if devices == 0 {
            return Err(CudaError::NoDevice);
        }
        Ok(CudaDriver { driver, devices })
    }

    /// How many devices it shows. They are numbered from 0; `CUDA_VISIBLE_DEVICES` can hide some.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// The CUDA version that the driver is for: major and minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        (self.driver.version / 1000, self.driver.version % 1000 / 10)
    }

    /// Opens a device: retains its primary context, which the CUDA runtime uses as well.
    ///
    /// # Errors
    /// No device of that number, or the driver refuses (no memory left for a context, exclusive
    /// use by another process, …).
    pub fn device(&self, ordinal: u32) -> Result<CudaDevice, CudaError> {
        CudaDevice::new(Context::open(self.driver, ordinal)?, self.devices)
    }
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.version();
        write!(f, "CUDA {major}.{minor}, {} devices", self.devices)
    }
}

/// A CUDA device, as this process sees it.
///
/// Methods may be called from any thread. What was the thread's current context before a call is so
/// after it; a thread that does little else should call [`bind_thread`](CudaDevice::bind_thread) once.
pub struct CudaDevice {
    properties: DeviceProperties,
    uuid: [u8; 16],
    capability: (u32, u32),
    pitch_max: u64,
    host_pointers_serve: bool,
    devices: u32,
    accessors: OnceLock<Vec<c_int>>,
    lanes: Lanes,
    vmm: Vmm,
    imports: Imports,
    peers: Peers,
    reached: Reached,
    mps: OnceLock<Mps>,
    pub(crate) direct: OnceLock<Seen>,
    pinned: Arc<PinnedPool>,
    context: Arc<Context>,
}

impl CudaDevice {
    /// What all of them can do.
    pub const ABILITIES: Abilities =
        Abilities { shares: NonZeroU8::new(1), kernels_reach_host: true };

    fn new(context: Arc<Context>, devices: u32) -> Result<CudaDevice, CudaError> {
        let (driver, device) = (context.driver, context.device);
        let fault = |fault| context.fault(fault);
        let number = |which: Attribute| {
            let value = driver.device_attribute(device, which as u32).map_err(fault)?;
            Ok::<_, CudaError>(u32::try_from(value).unwrap_or(0))
        };
        let properties = DeviceProperties {
            name: driver.device_name(device).map_err(fault)?,
            memory_bytes: driver.device_memory(device).map_err(fault)?,
            cache_bytes: u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            compute_units: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        };
        let registered = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        Ok(CudaDevice {
            properties,
            uuid: driver.device_uuid(device).map_err(fault)?,
            capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            pitch_max: u64::from(number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH)?),
            host_pointers_serve: number(registered)? != 0,
            devices,
            accessors: OnceLock::new(),
            lanes: Lanes::default(),
            vmm: Vmm::default(),
            imports: Imports::default(),
            peers: Peers::default(),
            reached: Reached::default(),
            mps: OnceLock::new(),
            direct: OnceLock::new(),
            pinned: Arc::new(PinnedPool::new(Arc::clone(&context))),
            context,
        })
    }

    /// Its number in this process.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.context.ordinal
    }

    /// The physical device's name in all processes.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Its compute capability: (9, 0) for sm_90.
    #[must_use]
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// One of the numbers that the driver knows of the device, by its number in the driver's
    /// `CUdevice_attribute`.
    ///
    /// # Errors
    /// The driver does not know the attribute.
    pub fn attribute(&self, which: u32) -> Result<i32, CudaError> {
        let value = self.context.driver.device_attribute(self.context.device, which);
        value.map_err(|fault| self.context.fault(fault))
    }

    /// Free and total memory in bytes, now.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory_now(&self) -> Result<(u64, u64), CudaError> {
        let _bound = self.context.bind()?;
        self.context.driver.mem_info().map_err(|fault| self.context.fault(fault))
    }

    /// Whether processes use this device at the same time or in turns. Found out once: a process that has
    /// opened the device stays what it was then.
    #[must_use]
    pub fn mps(&self) -> Mps {
        *self.mps.get_or_init(|| {
            let asked = Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED as u32;
            let answer = self.context.driver.device_attribute(self.context.device, asked);
            Mps::of(answer.ok().map(|value| value != 0), mps::pipe_is_there())
        })
    }

    /// Why this process has lost the device, if it has: every call gives this error then.
    #[must_use]
    pub fn lost(&self) -> Option<CudaError> {
        self.context.lost().cloned()
    }

    /// Makes the device's context current on this thread for good, so that later calls need not
    /// change and restore it: for threads that poll.
    ///
    /// # Errors
    /// The device is lost, or the driver refuses.
    pub fn bind_thread(&self) -> Result<(), CudaError> {
        self.context.bind_for_good()
    }

    /// Allocates managed memory, which the driver migrates between host and devices.
    /// [`Device::free`] frees it. Asking for more than the devices have free can hang them.
    ///
    /// # Errors
    /// Out of memory, or a device that cannot.
    pub fn allocate_managed(&self, len: u64) -> Result<Region, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        let address = context
            .driver
            .mem_alloc_managed(len.max(1))
            .map_err(|fault| context.fault_of(len, fault))?;
        Ok(Region::new(Space::Managed, address, 0, len))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn own_space(&self) -> Space {
        Space::Cuda { device: self.context.ordinal }
    }

    pub(crate) fn reaches_space(&self, space: Space) -> bool {
        match space {
            Space::Host | Space::Pinned | Space::Managed => true,
            Space::Cuda { device } => device < self.devices,
            _ => false,
        }
    }

    pub(crate) fn device_count(&self) -> u32 {
        self.devices
    }

    pub(crate) fn accessors(&self) -> &[c_int] {
        self.accessors.get_or_init(|| peer::accessors(&self.context, self.devices))
    }

    pub(crate) fn pitch_max(&self) -> u64 {
        self.pitch_max
    }

    /// Whether kernels find registered host memory at its own address.
    pub(crate) fn host_pointers_serve(&self) -> bool {
        self.host_pointers_serve
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn vmm(&self) -> &Vmm {
        &self.vmm
    }

    pub(crate) fn imports(&self) -> &Imports {
        &self.imports
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn reached(&self) -> &Reached {
        &self.reached
    }

    pub(crate) fn pinned_pool(&self) -> &Arc<PinnedPool> {
        &self.pinned
    }

    fn allocate_bytes(&self, len: u64) -> Result<Region, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        let address =
            context.driver.mem_alloc(len.max(1)).map_err(|fault| context.fault_of(len, fault))?;
        Ok(Region::new(self.own_space(), address, 0, len))
    }

    unsafe fn free_bytes(&self, region: Region) -> Result<(), CudaError> {
        let context = &self.context;
        if region.space() != self.own_space() && region.space() != Space::Managed {
            let device = context.name.clone();
            return Err(DeviceError::WrongSpace { device, space: region.space() }.into());
        }
        let _bound = context.bind()?;
        let start = region.start();
        if self.vmm.identity_of(start).is_some() {
            // SAFETY: the caller vouches that nothing uses it any more.
            return unsafe { self.vmm.free(context, start) };
        }
        // SAFETY: the caller vouches that `allocate` gave it and that nothing uses it any more.
        let freed = unsafe { context.driver.mem_free(start) };
        freed.map_err(|fault| context.fault(fault))
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The driver's allocator gives memory to one owner until it is freed or the context ends, which the device
//    holds.
// 2. Copies are enqueued behind waits for `after`; places and rows are checked first. `end_of` waits for the
//    device where it gives an error.
// 3. What was freed, unregistered or released is unknown to the driver; no stream of ours has work on it, because
//    the caller says so.
// 4. The driver maps whole allocations, and a key's range is checked against what it mapped (`ipc.rs`). Memory
//    that was exported is kept by its owner: that is what `Mapped::invalidate` is for.
// 5. The space is the ordinal, which never changes. Ranges, numbers and the UUID are the driver's answers; it
//    counts buffers up, as `vmm.rs` does. `locate` says nothing.
// 6. An imported event ends with what it was recorded behind, or with later work.
// 7. Only work of others panics, which `wait_for` asks before the copy is enqueued.
// 8. The driver gives a dma-buf of the pages that were asked for, which the region lies in.
unsafe impl Device for CudaDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        self.own_space()
    }

    fn abilities(&self) -> Abilities {
        CudaDevice::ABILITIES
    }

    fn reaches(&self, space: Space) -> bool {
        self.reaches_space(space)
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        Ok(self.allocate_bytes(len)?)
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's own promise.
        Ok(unsafe { self.free_bytes(region) }?)
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: the caller's own promise.
        Ok(unsafe { self.copy_after(dst, src, after) }?)
    }

    unsafe fn copy_2d(
        &self,
        dst: Region,
        dst_pitch: u64,
        src: Region,
        src_pitch: u64,
        width: u64,
        rows: u64,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: the caller's own promise.
        let copied =
            unsafe { self.copy_2d_after(dst, dst_pitch, src, src_pitch, width, rows, after) };
        Ok(copied?)
    }

    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's own promise.
        Ok(unsafe { self.register_host(host) }?)
    }

    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's own promise.
        Ok(unsafe { self.unregister_host(host) }?)
    }

    fn export(&self, region: Region) -> Result<Export, DeviceError> {
        Ok(self.export_region(region)?)
    }

    fn import(&self, export: Export) -> Result<Region, DeviceError> {
        Ok(self.import_region(export)?)
    }

    unsafe fn release(&self, region: Region) -> Result<(), DeviceError> {
        // SAFETY: the caller's own promise.
        Ok(unsafe { self.release_region(region) }?)
    }

    fn dma_buf(&self, region: Region) -> Result<DmaBuf, DeviceError> {
        Ok(self.direct_memory(region)?)
    }

    fn settle_writes(&self) -> Result<(), DeviceError> {
        Ok(self.settle()?)
    }

    fn import_completion(&self, bytes: &[u8]) -> Result<Completion, DeviceError> {
        Ok(self.open_completion(bytes)?)
    }

    fn identity(&self) -> Option<u128> {
        Some(u128::from_le_bytes(self.uuid))
    }

    fn pci_address(&self) -> Option<PciAddress> {
        let Context { driver, device, .. } = &*self.context;
        let number = |which: Attribute| {
            let value = driver.device_attribute(*device, which as u32).ok()?;
            u32::try_from(value).ok()
        };
        let domain = number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let [bus, device] = [
            Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
            Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        ]
        .map(|which| number(which).and_then(|it| u8::try_from(it).ok()));
        // A GPU's memory is its first function's.
        Some(PciAddress { domain, bus: bus?, device: device?, function: 0 })
    }

    fn takes_turns(&self) -> bool {
        self.mps() == Mps::Off
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        if let Some((start, _)) = self.vmm.range_of(region.start()) {
            return self.vmm.identity_of(start).map(|(_, id)| id);
        }
        let _bound = self.context.bind().ok()?;
        self.context.driver.buffer_id(region.start())
    }

    fn allocation(&self, region: Region) -> Option<Region> {
        if region.space() != self.own_space() {
            return None;
        }
        let (start, len) = match self.vmm.range_of(region.start()) {
            Some(range) => range,
            None => {
                let _bound = self.context.bind().ok()?;
                self.context.driver.address_range(region.start()).ok()?
            }
        };
        Some(Region::new(self.own_space(), start, 0, len))
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            self.vmm.free_all(&self.context);
        }
    }
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.context.name, self.properties.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::fake::{self, State};
    use crate::error::code;

    #[test]
    fn a_device_is_what_the_driver_says() {
        fake::set(State::default());
        let driver = CudaDriver::of(fake::driver()).unwrap();
        assert_eq!((driver.devices(), driver.version()), (1, (13, 0)));
        let device = driver.device(0).unwrap();
        assert_eq!(device.properties().name, "Pretend");
        assert_eq!(device.properties().memory_bytes, 1 << 30);
        assert_eq!(device.space(), Space::Cuda { device: 0 });
        assert!(device.reaches(Space::Managed) && device.reaches(Space::Host));
        assert!(!device.reaches(Space::Cuda { device: 1 }));
        assert!(!device.reaches(Space::Device { kind: "fake", device: 0 }));
        let wrong = driver.device(3).unwrap_err();
        assert_eq!(wrong, CudaError::WrongOrdinal { ordinal: 3, count: 1 });
    }

    #[test]
    fn a_driver_without_devices_is_not_one() {
        fake::set(State { devices: 0, ..State::default() });
        assert_eq!(CudaDriver::of(fake::driver()).unwrap_err(), CudaError::NoDevice);
    }

    #[test]
    fn out_of_memory_says_how_much_was_asked_for() {
        fake::set(State { alloc: code::OUT_OF_MEMORY, ..State::default() });
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        let error = device.allocate(1 << 40).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfMemory { len, .. } if len == 1 << 40));
    }

    #[test]
    fn a_lost_device_refuses_everything_with_the_first_reason() {
        fake::set(State { alloc: 700, ..State::default() });
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        let first = device.allocate(64).unwrap_err();
        assert!(device.lost().is_some());
        fake::with(|state| state.alloc = 0);
        assert_eq!(device.allocate(64).unwrap_err(), first);
        assert_eq!(device.pointer(0x7000_0000), None);
    }

    #[test]
    fn host_memory_is_not_freed_here() {
        fake::set(State::default());
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        // SAFETY: refused before anything is freed.
        let error = unsafe { device.free(Region::new(Space::Host, 64, 0, 8)) }.unwrap_err();
        assert!(matches!(error, DeviceError::WrongSpace { .. }));
    }
}
