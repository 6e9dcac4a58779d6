//! Many copies by one call: `cuMemcpyBatchAsync`, which drivers from CUDA 12.8 on have.

use super::symbols::{COPY_BATCH_VERSION, CopyBatch};
use super::{Driver, Fault, RawStream, check};
use crate::CudaError;
use cudarc::driver::sys::{
    CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
};
use std::ffi::{c_int, c_uint, c_void};

/// Copies that are enqueued together, without an order among them. The lists are equally long.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) to: Vec<u64>,
    pub(crate) from: Vec<u64>,
    pub(crate) bytes: Vec<usize>,
}

impl Driver {
    /// The function, in the form that CUDA 12.8 gave it; asked for once.
    ///
    /// # Errors
    /// An older driver.
    fn copy_batch_function(&self) -> Result<CopyBatch, CudaError> {
        let found = *self.batch.get_or_init(|| {
            let mut address: *mut c_void = std::ptr::null_mut();
            let mut status: c_uint = 0;
            let name = c"cuMemcpyBatchAsync".as_ptr();
            // SAFETY: the name ends in NUL, `address` and `status` are writable for the call, and 0
            // asks for the usual stream semantics.
            let answer = unsafe {
                let (address, status) = (&raw mut address, &raw mut status);
                (self.api.proc_address)(name, address, COPY_BATCH_VERSION, 0, status)
            };
            if answer != 0 || status != 0 || address.is_null() {
                return None;
            }
            // SAFETY: the driver found its function of this name as release 12.8 declares it, which
            // is the type written out.
            Some(unsafe { std::mem::transmute::<*mut c_void, CopyBatch>(address) })
        });
        found.ok_or(CudaError::MissingSymbol { name: "cuMemcpyBatchAsync" })
    }

    /// Enqueues copies by one call.
    ///
    /// # Safety
    /// As for [`memcpy`](Driver::memcpy), for every copy; the current context is the stream's.
    ///
    /// # Errors
    /// The outer: a driver without this call. The inner: its refusal.
    pub(crate) unsafe fn copy_batch(
        &self,
        batch: &mut Batch,
        device: c_int,
        stream: &RawStream,
    ) -> Result<Result<(), Fault>, CudaError> {
        let function = self.copy_batch_function()?;
        let count = batch.to.len().min(batch.from.len()).min(batch.bytes.len());
        // Hints matter to managed memory only.
        let here =
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device };
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: here,
            dstLocHint: here,
            flags: 0,
        };
        let (mut first, mut failed) = (0usize, usize::MAX);
        let (to, from) = (batch.to.as_mut_ptr(), batch.from.as_mut_ptr());
        let bytes = batch.bytes.as_mut_ptr();
        // SAFETY: the three lists hold `count` entries; one set of attributes serves from copy 0 on;
        // all are read during the call. The caller vouches for the bytes; the stream lives.
        let answer = unsafe {
            let (attributes, first) = (&raw mut attributes, &raw mut first);
            let failed = &raw mut failed;
            function(to, from, bytes, count, attributes, first, 1, failed, stream.pointer())
        };
        Ok(check("cuMemcpyBatchAsync", answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::fake::{self, State};

    #[test]
    fn an_older_driver_lacks_it() {
        fake::set(State::default());
        let driver = fake::driver();
        let error = driver.copy_batch_function().err().unwrap();
        assert_eq!(error, CudaError::MissingSymbol { name: "cuMemcpyBatchAsync" });
    }
}
