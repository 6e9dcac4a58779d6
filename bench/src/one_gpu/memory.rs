//! Memory of one process: a buffer on the GPU, and page-locked memory of the host.

use std::sync::Arc;

use gapless::{Device, DeviceBuf, Engine, Layout, Region, Space, View, ViewMut, World};
use gapless_engine::testkit::FakeEngine;
use gapless_mem::Completion;
use gapless_mem::fake::FakeDevice;

use super::Gpu;
use crate::error::Failure;

/// A device that pretends, and its engine; all processes' are one.
#[must_use]
pub fn fake() -> (Arc<dyn Device>, Arc<dyn Engine>) {
    let device = Arc::new(FakeDevice::with_delay(0, 1).identified(1, false));
    let engine = FakeEngine::new(&device, 1);
    (device, Arc::new(engine))
}

/// Memory on the GPU that all processes share.
///
/// # Errors
/// There is none.
pub fn on_gpu(world: &World, gpu: Gpu, bytes: u64) -> Result<DeviceBuf, Failure> {
    let space = match gpu {
        Gpu::Cuda(device) => Space::Cuda { device },
        Gpu::Fake => Space::Device { kind: "fake", device: 0 },
    };
    Ok(world.alloc_device(space, bytes)?)
}

/// Bytes between two rows: without them, the copy would be one of one row.
pub const GAP: u64 = 256;

/// Numbers of the host that a device reaches.
pub struct Pinned {
    numbers: Vec<f32>,
    device: Arc<dyn Device>,
    /// Whether the device refused to page-lock them.
    plain: bool,
}

impl Pinned {
    /// So many.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, count: usize) -> Pinned {
        let mut numbers = vec![1.0; count.max(1)];
        let region = region_of(&mut numbers);
        // SAFETY: they stay where they are until `drop` unregisters them.
        let plain = unsafe { device.register(region) }.is_err();
        Pinned { numbers, device, plain }
    }

    /// The first ones.
    pub fn first(&mut self, count: usize) -> &mut [f32] {
        &mut self.numbers[..count]
    }

    /// The bytes of the first ones, as the device sees them.
    fn region(&mut self, bytes: u64) -> Result<Region, Failure> {
        let whole = region_of(&mut self.numbers);
        let space = if self.plain { Space::Host } else { Space::Pinned };
        let whole = Region::new(space, whole.start(), 0, whole.len());
        Ok(whole.sub(0, bytes).map_err(gapless_mem::DeviceError::from)?)
    }

    /// Copies from the beginning of memory of the device, and waits.
    ///
    /// # Errors
    /// The device's failure.
    pub fn fetch(&mut self, from: &DeviceBuf, bytes: u64) -> Result<(), Failure> {
        let into = self.region(bytes)?;
        copy(&*Arc::clone(&self.device), into, part(from, 0, bytes)?)
    }

    /// Copies to the beginning of memory of the device, and waits.
    ///
    /// # Errors
    /// The device's failure.
    pub fn store(&mut self, into: &mut DeviceBuf, bytes: u64) -> Result<(), Failure> {
        let from = self.region(bytes)?;
        copy(&*Arc::clone(&self.device), part(into, 0, bytes)?, from)
    }

    /// As [`store`](Pinned::store), as two rows with a gap of [`GAP`] bytes between them.
    ///
    /// # Errors
    /// The device's failure; fewer numbers than that.
    pub fn store_rows(&mut self, into: &mut DeviceBuf, bytes: u64) -> Result<(), Failure> {
        let from = self.region(bytes + GAP)?;
        let (device, into, row) = (Arc::clone(&self.device), part(into, 0, bytes)?, bytes / 2);
        // SAFETY: as in `copy`.
        let work = unsafe { device.copy_2d(into, row, from, row + GAP, row, 2, &[]) }?;
        finish(&work)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.plain {
            let region = region_of(&mut self.numbers);
            // SAFETY: `new` has registered them; every copy was waited for.
            let _ = unsafe { self.device.unregister(region) };
        }
    }
}

fn region_of(numbers: &mut [f32]) -> Region {
    let bytes = size_of_val(numbers) as u64;
    Region::new(Space::Host, numbers.as_mut_ptr().expose_provenance() as u64, 0, bytes)
}

fn part(memory: &DeviceBuf, at: u64, bytes: u64) -> Result<Region, Failure> {
    Ok(memory.region().sub(at, bytes).map_err(gapless_mem::DeviceError::from)?)
}

fn finish(work: &Completion) -> Result<(), Failure> {
    loop {
        if work.poll()? {
            return Ok(());
        }
        std::hint::spin_loop();
    }
}

fn copy(device: &dyn Device, into: Region, from: Region) -> Result<(), Failure> {
    // SAFETY: both are memory of this process that the caller has borrowed, the target exclusively, until the copy has
    // been waited for; they are different allocations.
    let work = unsafe { device.copy(into, from, &[]) }?;
    finish(&work)
}

/// Copies within the device, and waits.
///
/// # Errors
/// The device's failure.
pub fn copy_within(into: &mut DeviceBuf, from: &DeviceBuf, bytes: u64) -> Result<(), Failure> {
    copy(&*into.device(), part(into, 0, bytes)?, part(from, 0, bytes)?)
}

/// So many numbers of it, to be sent.
///
/// # Errors
/// It is too short.
pub fn view<'b>(memory: &'b DeviceBuf, layout: &Layout, count: u64) -> Result<View<'b>, Failure> {
    Ok(memory.view(0, layout, count)?)
}

/// So many numbers of it, to be received into.
///
/// # Errors
/// It is too short.
pub fn view_mut<'b>(
    memory: &'b mut DeviceBuf,
    layout: &Layout,
    count: u64,
) -> Result<ViewMut<'b>, Failure> {
    Ok(memory.view_mut(0, layout, count)?)
}
