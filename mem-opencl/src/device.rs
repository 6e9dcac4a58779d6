//! The device: a context, a queue, and the buffers that were allocated here.

use crate::apart::Number;
use crate::detect::{DeviceInfo, detect};
use crate::finish::Marker;
use crate::foreign;
use crate::known::{self, Handles};
use crate::launch::Programs;
use crate::sys::{self, Context, Queue};
use crate::{OpenClError, copy};
use gapless_mem::{
    Abilities, Completion, Device, DeviceError, DeviceProperties, OutOfRange, Region, Space,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer of ours.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    len: u64,
    id: u64,
    /// The address of wrapped host memory; 0 of the device's own, which is aligned to any word.
    address: u64,
}

#[derive(Debug, Default)]
struct Buffers {
    live: HashMap<u64, Buffer>,
    /// How buffers of programs are aligned, as they were when they were last used.
    others: HashMap<u64, u64>,
    next_id: u64,
}

/// Buffers of programs of which that is remembered, at most.
const OTHERS: usize = 1024;

/// Host memory that a buffer was made of, so that the driver page-locks it.
#[derive(Clone, Copy, Debug)]
struct Registered {
    start: u64,
    len: u64,
    buffer: u64,
}

/// An OpenCL device with a context and an in-order queue.
#[derive(Debug)]
pub struct OpenClDevice {
    info: DeviceInfo,
    properties: DeviceProperties,
    name: Arc<str>,
    space: Space,
    buffers: Mutex<Buffers>,
    registered: Mutex<Vec<Registered>>,
    pub(crate) programs: Programs,
    marker: Marker,
    queue: Queue,
    context: Context,
    /// Of a driver of the host's processor.
    number: Option<Number>,
}

impl OpenClDevice {
    /// What all of them can do: OpenCL shares no memory with other processes, and its kernels work on buffers alone.
    pub const ABILITIES: Abilities = Abilities { shares: None, kernels_reach_host: false };

    /// Opens device `ordinal` of [`detect`]'s list, with a context and a queue of its own.
    ///
    /// # Errors
    /// As [`detect`]; [`OpenClError::NoSuchDevice`]; what the driver answers.
    pub fn open(ordinal: usize) -> Result<OpenClDevice, OpenClError> {
        let found = detect()?;
        let present = found.len();
        let info =
            found.into_iter().nth(ordinal).ok_or(OpenClError::NoSuchDevice { ordinal, present })?;
        let context = Context::create(info.raw())?;
        let queue = Queue::create(&context, info.raw())?;
        Ok(OpenClDevice::with(info, context, queue, None))
    }

    /// Works in the user's context, on the user's queue if the space names one (which must then be in
    /// order), else on one of its own.
    ///
    /// # Safety
    /// The handles in `space` are live; the device keeps references of its own.
    ///
    /// # Errors
    /// [`OpenClError::NotOpenCl`]; [`OpenClError::WrongDevice`], [`OpenClError::WrongQueue`] for handles that do not
    /// belong together, and for a queue that is out of order; what the driver answers.
    pub unsafe fn adopt(space: Space) -> Result<OpenClDevice, OpenClError> {
        let Space::OpenCl { context, device, queue } = space else {
            return Err(OpenClError::NotOpenCl { space });
        };
        let info = DeviceInfo::of(0, String::new(), sys::pointer(device))?;
        // SAFETY: the caller guarantees a live context.
        let context = unsafe { Context::retain(sys::pointer(context)) }?;
        // SAFETY: the caller guarantees a live queue.
        let own = queue.map(|queue| unsafe { Queue::retain(sys::pointer(queue)) }).transpose()?;
        OpenClDevice::of_handles(info, context, own)
    }

    /// As [`adopt`](OpenClDevice::adopt), of handles that are known to be live, because another device of
    /// this process was opened or made with them: safe for a space from anywhere.
    ///
    /// # Errors
    /// As [`adopt`](OpenClDevice::adopt); [`OpenClError::Unknown`] for all other handles.
    pub fn known(space: Space) -> Result<OpenClDevice, OpenClError> {
        let (context, own) = known::retain(space)?;
        let Space::OpenCl { device, .. } = space else {
            return Err(OpenClError::NotOpenCl { space });
        };
        let info = DeviceInfo::of(0, String::new(), sys::pointer(device))?;
        OpenClDevice::of_handles(info, context, own)
    }

    /// A device in the same context, with a queue of its own. Each orders its work after the other's completions.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn with_another_queue(&self) -> Result<OpenClDevice, OpenClError> {
        // SAFETY: the context is live, as `self` holds a reference to it.
        let context = unsafe { Context::retain(self.context.raw()) }?;
        OpenClDevice::of_handles(self.info.clone(), context, None)
    }

    /// Works with a program's context, and on its queue if there is one, once they are known to belong together.
    fn of_handles(
        info: DeviceInfo,
        context: Context,
        queue: Option<Queue>,
    ) -> Result<OpenClDevice, OpenClError> {
        foreign::check_device(&context, info.raw())?;
        let user = queue.as_ref().map(|queue| sys::number(queue.raw()));
        let queue = match queue {
            Some(queue) => foreign::check_queue(&queue, &context, info.raw()).map(|()| queue)?,
            None => Queue::create(&context, info.raw())?,
        };
        Ok(OpenClDevice::with(info, context, queue, user))
    }

    fn with(info: DeviceInfo, context: Context, queue: Queue, user: Option<u64>) -> OpenClDevice {
        let space = Space::OpenCl {
            context: sys::number(context.raw()),
            device: sys::number(info.raw()),
            queue: user,
        };
        let properties = DeviceProperties {
            name: info.name.clone(),
            memory_bytes: info.memory_bytes,
            cache_bytes: info.cache_bytes,
            compute_units: info.compute_units,
        };
        let device = OpenClDevice {
            name: info.name.as_str().into(),
            properties,
            space,
            buffers: Mutex::default(),
            registered: Mutex::default(),
            programs: Programs::default(),
            marker: Marker::default(),
            number: info.cpu.then(Number::take),
            info,
            queue,
            context,
        };
        known::add(device.handles());
        device
    }

    fn handles(&self) -> Handles {
        Handles {
            context: sys::number(self.context.raw()),
            device: sys::number(self.info.raw()),
            queue: sys::number(self.queue.raw()),
        }
    }

    /// With which options its programs are built, if a user wants these.
    pub(crate) fn options(&self, options: &str) -> String {
        match &self.number {
            Some(number) => number.options(options),
            None => options.to_owned(),
        }
    }

    /// What was found out about it.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes a buffer out of host memory: the device works on it in place where it can (PoCL does).
    /// [`Device::free`] releases the buffer, not the memory. Other devices than the host's processor show
    /// what they wrote only to copies of theirs.
    ///
    /// # Safety
    /// `host` stays valid until the buffer is freed and work on it has ended.
    ///
    /// # Errors
    /// A space that has no addresses for the CPU, or the driver's refusal.
    pub unsafe fn wrap(&self, host: Region) -> Result<Region, DeviceError> {
        let pointer = host.as_ptr().ok_or_else(|| self.wrong_space(host.space()))?;
        if host.is_empty() {
            // A buffer has a byte at least, and there may be none at this address.
            return self.allocate(0);
        }
        let len = self.length(host.len())?;
        // SAFETY: the caller guarantees the memory for the buffer's life.
        let buffer = unsafe { sys::wrap_buffer(&self.context, len, pointer.cast()) }
            .map_err(|error| error.on(&self.name, host.len()))?;
        Ok(self.remember(sys::number(buffer), host.len(), host.start()))
    }

    fn registered(&self) -> MutexGuard<'_, Vec<Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the buffer that a region lies in is aligned, told by the low bits of a number: the address of the host
    /// memory that it was made of, 0 of the device's own memory (drivers align what they allocate to 128 bytes). 1 if
    /// that is not known: of a program's own buffer of which nobody has [asked](OpenClDevice::learn_alignment).
    #[must_use]
    pub fn alignment_bits(&self, region: &Region) -> u64 {
        let buffers = self.buffers();
        let own = buffers.live.get(&region.address()).map(|buffer| buffer.address);
        let other = || buffers.others.get(&region.address()).copied();
        own.or_else(other).unwrap_or(1)
    }

    /// Asks how a program's own buffer is aligned, for [`alignment_bits`](OpenClDevice::alignment_bits).
    ///
    /// # Safety
    /// The region's handle is that of a live buffer, or null, unless the region has no bytes.
    pub unsafe fn learn_alignment(&self, region: &Region) {
        let own = || self.buffers().live.contains_key(&region.address());
        if region.space().cpu_accessible() || region.is_empty() || own() {
            return;
        }
        let address = foreign::host_address(region);
        let mut buffers = self.buffers();
        if buffers.others.len() >= OTHERS {
            buffers.others.clear();
        }
        buffers.others.insert(region.address(), address);
    }

    /// Makes a buffer of a part of one (`clCreateSubBuffer`); it is aligned as the device asks for
    /// (`CL_DEVICE_MEM_BASE_ADDR_ALIGN`). [`Device::free`] releases it.
    ///
    /// # Safety
    /// The buffer lives until the part is freed, and nobody frees it meanwhile.
    ///
    /// # Errors
    /// What is no buffer of this device's; what the driver refuses.
    pub unsafe fn sub_buffer(&self, part: Region) -> Result<Region, DeviceError> {
        let buffers = self.buffers();
        let whole = buffers.live.get(&part.address()).copied();
        let whole = whole
            .filter(|_| self.reaches(part.space()) && !part.space().cpu_accessible())
            .ok_or_else(|| self.wrong_space(part.space()))?;
        inside(&part, whole.len)?;
        let address = match whole.address {
            0 => 0,
            address => address.wrapping_add(part.offset()),
        };
        // It lies in a buffer.
        let origin = usize::try_from(part.offset()).unwrap_or(usize::MAX);
        let len = self.length(part.len())?;
        // SAFETY: the handle is in our table, so it is live: `free` takes it out, by the lock that is held here, before
        // it releases the buffer.
        let buffer = unsafe { sys::sub_buffer(sys::pointer(part.address()), origin, len) };
        drop(buffers);
        let buffer = buffer.map_err(|error| error.on(&self.name, part.len()))?;
        Ok(self.remember(sys::number(buffer), part.len(), address))
    }

    fn remember(&self, handle: u64, len: u64, address: u64) -> Region {
        let mut buffers = self.buffers();
        buffers.next_id += 1;
        let id = buffers.next_id;
        buffers.live.insert(handle, Buffer { len, id, address });
        Region::new(self.space, handle, 0, len)
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn length(&self, len: u64) -> Result<usize, DeviceError> {
        usize::try_from(len.max(1)).map_err(|_| DeviceError::OutOfMemory {
            device: self.properties.name.clone(),
            len,
            reason: "more than the address space holds".to_owned(),
        })
    }

    pub(crate) fn wrong_space(&self, space: Space) -> DeviceError {
        DeviceError::WrongSpace { device: self.properties.name.clone(), space }
    }

    /// Refuses buffers of other contexts, and parts that leave a buffer.
    pub(crate) fn check(&self, region: &Region) -> Result<(), DeviceError> {
        if !self.reaches(region.space()) {
            return Err(self.wrong_space(region.space()));
        }
        if region.space().cpu_accessible() {
            return Ok(());
        }
        let ours = self.buffers().live.get(&region.address()).map(|buffer| buffer.len);
        let len = match ours {
            Some(len) => len,
            // No byte of it is touched: it need not be anything.
            None if region.is_empty() => return Ok(()),
            None => foreign::buffer_len(region, &self.context)
                .map_err(|error| error.on(&self.name, region.len()))?,
        };
        inside(region, len)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn context_number(&self) -> u64 {
        sys::number(self.context.raw())
    }

    pub(crate) fn marker(&self) -> &Marker {
        &self.marker
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

/// Refuses a part that leaves a buffer of `len` bytes.
fn inside(part: &Region, len: u64) -> Result<(), DeviceError> {
    match part.offset().checked_add(part.len()) {
        Some(end) if end <= len => Ok(()),
        _ => Err(DeviceError::OutOfRange(OutOfRange {
            offset: part.offset(),
            len: part.len(),
            region_len: len,
            space: part.space(),
        })),
    }
}

// SAFETY: the numbers are those of the contract.
// 1. `clCreateBuffer` gives memory of the buffer's own, until it is released, here or with the device.
// 2. Copies are enqueued with the events of `after` as what they wait for; other work is waited for before. OpenCL
//    refuses what leaves a buffer, rows are checked first, and `started` and `rows` wait where they give an error.
// 3. `free` releases the buffer; commands that still use it hold references. `register` makes a buffer of the memory
//    that no command ever names, and `unregister` releases it.
// 4., 6. `import` and `import_completion` are the defaults, which refuse.
// 5. The space is the context, device and queue that it was made with; `buffer_id` counts up, and is of buffers in
//    the table only. `allocation`, `locate` and `identity` say nothing.
// 7. Only work of others panics, which `WaitList::of` asks before the first command is enqueued.
// 9. The queue is in order, and a marker that was enqueued by the call, behind all commands, has ended.
unsafe impl Device for OpenClDevice {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn space(&self) -> Space {
        self.space
    }

    fn abilities(&self) -> Abilities {
        OpenClDevice::ABILITIES
    }

    fn reaches(&self, space: Space) -> bool {
        match space {
            Space::OpenCl { context, .. } => context == self.context_number(),
            other => other.cpu_accessible(),
        }
    }

    fn allocate(&self, len: u64) -> Result<Region, DeviceError> {
        let bytes = self.length(len)?;
        let buffer =
            sys::create_buffer(&self.context, bytes).map_err(|error| error.on(&self.name, len))?;
        Ok(self.remember(sys::number(buffer), len, 0))
    }

    unsafe fn free(&self, region: Region) -> Result<(), DeviceError> {
        let known = self.buffers().live.remove(&region.address());
        if known.is_none() || region.space() != self.space {
            return Err(self.wrong_space(region.space()));
        }
        // SAFETY: the handle was in our table, hence ours, and is out of it now.
        unsafe { sys::release_buffer(sys::pointer(region.address())) }
            .map_err(|error| error.on(&self.name, region.len()))
    }

    /// OpenCL has no call for this. A buffer is made of the memory, which NVIDIA's driver page-locks for it; commands
    /// that name the memory by its address then run as quickly as those on memory of the driver's own
    /// (`CL_MEM_ALLOC_HOST_PTR`). It may be shared with other processes, and page-locked by other runtimes.
    unsafe fn register(&self, host: Region) -> Result<(), DeviceError> {
        let pointer = host.as_ptr().ok_or_else(|| self.wrong_space(host.space()))?;
        if host.is_empty() {
            return Ok(());
        }
        let len = self.length(host.len())?;
        // SAFETY: the caller keeps the memory until `unregister`, which releases the buffer. The driver alone touches
        // the memory through the buffer, and only for commands on it, of which there are none.
        let buffer = unsafe { sys::wrap_buffer(&self.context, len, pointer.cast()) }
            .map_err(|error| error.on(&self.name, host.len()))?;
        let (start, len) = (host.start(), host.len());
        self.registered().push(Registered { start, len, buffer: sys::number(buffer) });
        Ok(())
    }

    unsafe fn unregister(&self, host: Region) -> Result<(), DeviceError> {
        if host.is_empty() {
            return Ok(());
        }
        let mut registered = self.registered();
        let same = |one: &Registered| (one.start, one.len) == (host.start(), host.len());
        let at = registered.iter().position(same).ok_or_else(|| DeviceError::Failed {
            device: self.name.to_string(),
            operation: "unregistering host memory",
            reason: format!("{} bytes at {:#x} are not registered", host.len(), host.start()),
        })?;
        let buffer = registered.swap_remove(at).buffer;
        // SAFETY: `register` made it, no command names it, and it is out of the list.
        unsafe { sys::release_buffer(sys::pointer(buffer)) }
            .map_err(|error| error.on(&self.name, host.len()))
    }

    fn finish(&self) -> bool {
        self.finished()
    }

    unsafe fn copy(
        &self,
        dst: Region,
        src: Region,
        after: &[Completion],
    ) -> Result<Completion, DeviceError> {
        // SAFETY: passed on: the caller's guarantees are the same.
        unsafe { copy::linear(self, dst, src, after) }
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
        let (dst, src) = (copy::Rows::new(dst, dst_pitch), copy::Rows::new(src, src_pitch));
        // SAFETY: passed on: the caller's guarantees are the same.
        unsafe { copy::rows(self, dst, src, width, rows, after) }
    }

    fn buffer_id(&self, region: Region) -> Option<u64> {
        if region.space() != self.space {
            return None;
        }
        self.buffers().live.get(&region.address()).map(|buffer| buffer.id)
    }
}

impl Drop for OpenClDevice {
    fn drop(&mut self) {
        known::remove(self.handles());
        let live = std::mem::take(&mut self.buffers().live);
        let registered = std::mem::take(&mut *self.registered());
        for handle in live.into_keys().chain(registered.into_iter().map(|one| one.buffer)) {
            // SAFETY: a buffer of ours that was not released; commands in flight keep references.
            let _ = unsafe { sys::release_buffer(sys::pointer(handle)) };
        }
    }
}
