//! GPUDirect: memory of a device that adapters of networks read and write by themselves.
//!
//! What an adapter has written is in the device's memory when the driver says so: on some systems whenever the CPU was told
//! that the write has ended, on others only after a flush. On systems where neither holds, no memory is given to adapters.

use crate::{CudaDevice, CudaError};
use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering_enum as Ordering, CUdevice_attribute_enum as Attribute,
    CUflushGPUDirectRDMAWritesOptions_enum as Flush,
};
use gapless_mem::{DeviceError, DmaBuf, Region};

/// The host's pages; the longest there are, where they differ.
const PAGE: u64 = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };

/// When an adapter's writes are seen by work of the device that owns the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Once the CPU was told that they have ended.
    Anyway,
    /// Once they were flushed after that.
    AfterFlush,
    Never,
}

impl Seen {
    /// By the device's two numbers.
    fn of(ordering: i32, flushes: i32) -> Seen {
        let owner = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        let host = Flush::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32;
        match (ordering >= owner, flushes & host != 0) {
            (true, _) => Seen::Anyway,
            (false, true) => Seen::AfterFlush,
            (false, false) => Seen::Never,
        }
    }
}

impl CudaDevice {
    fn seen(&self) -> Result<Seen, CudaError> {
        if let Some(seen) = self.direct.get() {
            return Ok(*seen);
        }
        let context = self.context();
        let number = |which: Attribute| {
            let value = context.driver.device_attribute(context.device, which as u32);
            value.map_err(|fault| context.fault(fault))
        };
        let ordering = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        let flushes = number(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        let seen = Seen::of(ordering, flushes);
        tracing::debug!(device = context.name, ordering, flushes, ?seen, "writes of adapters");
        Ok(*self.direct.get_or_init(|| seen))
    }

    /// [`Device::dma_buf`](gapless_mem::Device::dma_buf): of the pages that the region lies in.
    pub(crate) fn direct_memory(&self, region: Region) -> Result<DmaBuf, CudaError> {
        if self.seen()? == Seen::Never {
            let what = "telling when adapters' writes into its memory are seen";
            return Err(DeviceError::Unsupported { what }.into());
        }
        let offset = region.start() % PAGE;
        let len = (offset + region.len()).max(1).next_multiple_of(PAGE);
        let pages = Region::new(region.space(), region.start() - offset, 0, len);
        Ok(DmaBuf { descriptor: self.dma_buf(pages)?, offset })
    }

    /// [`Device::settle_writes`](gapless_mem::Device::settle_writes).
    pub(crate) fn settle(&self) -> Result<(), CudaError> {
        if self.seen()? == Seen::Anyway {
            return Ok(());
        }
        let context = self.context();
        let _bound = context.bind()?;
        context.driver.flush_direct_writes().map_err(|fault| context.fault(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;
    use crate::CudaDriver;
    use crate::driver::tests::fake;
    use gapless_mem::{Device, DeviceError, Region};

    #[test]
    fn two_numbers_say_when_writes_are_seen() {
        for (ordering, flushes, seen) in [
            (0, 0, Seen::Never),
            (0, 2, Seen::Never),
            (0, 1, Seen::AfterFlush),
            (0, 3, Seen::AfterFlush),
            (100, 0, Seen::Anyway),
            (200, 3, Seen::Anyway),
        ] {
            assert_eq!(Seen::of(ordering, flushes), seen, "{ordering}, {flushes}");
        }
    }

    #[test]
    fn memory_is_given_by_whole_pages_and_flushed_where_that_is_asked_for() {
        for (ordering, flushes, given, flushed) in
            [(100, 1, true, 0), (0, 1, true, 1), (0, 2, false, 0)]
        {
            fake::set(fake::State { ordering, flushes, ..fake::State::default() });
            let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
            let region = Region::new(device.space(), 0x7000_0000, 5000, 100);
            let buffer = Device::dma_buf(&device, region);
            match &buffer {
                Ok(buffer) => assert_eq!(buffer.offset, 904),
                Err(error) => assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}"),
            }
            assert_eq!(buffer.is_ok(), given);
            let asked = fake::with(|state| state.ranges.clone());
            assert_eq!(asked, if given { vec![(0x7000_1000, 4096)] } else { vec![] });
            if given {
                device.settle_writes().unwrap();
            }
            assert_eq!(fake::with(|state| state.flushed), flushed);
            let across = Region::new(device.space(), 0x7000_0000, 4095, 2);
            assert_eq!(
                Device::dma_buf(&device, across).map(|it| it.offset).ok(),
                given.then_some(4095)
            );
        }
    }
}
