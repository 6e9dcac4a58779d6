//! A pretended device that does not share.

use gapless_mem::fake::FakeDevice;
use gapless_mem::testkit::{Call, Wrapped};
use gapless_mem::{Device, DeviceError};
use std::sync::Arc;

/// A pretended device that refuses to share its memory, or to map what others share.
pub(crate) fn unwilling(
    device: &Arc<FakeDevice>,
    exports: bool,
    imports: bool,
) -> impl Device + use<> {
    Wrapped::new(Arc::clone(device) as _, move |call| match call {
        Call::Export(_) if !exports => Err(DeviceError::Unsupported { what: "sharing its memory" }),
        Call::Import if !imports => {
            Err(DeviceError::Unsupported { what: "mapping what others share" })
        }
        _ => Ok(()),
    })
}
