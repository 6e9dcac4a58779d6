//! One device reaching the memory of another.

use crate::context::{Context, lock};
use crate::{CudaDevice, CudaError};
use gapless_mem::DeviceError;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// What is known of other devices, by ordinal: the peer's context, held while access is on, or
/// `None` if there is none.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<u32, Option<Arc<Context>>>>);

impl CudaDevice {
    /// Whether kernels and copies of this device can reach the memory of device `other` directly.
    ///
    /// # Errors
    /// No such device, or the driver refuses.
    pub fn can_access(&self, other: u32) -> Result<bool, CudaError> {
        let context = self.context();
        if other == context.ordinal {
            return Ok(true);
        }
        if other >= self.device_count() {
            return Err(CudaError::WrongOrdinal { ordinal: other, count: self.device_count() });
        }
        let fault = |fault| context.fault(fault);
        let peer = context.driver.device_get(other).map_err(fault)?;
        context.driver.can_access_peer(context.device, peer).map_err(fault)
    }

    /// Lets kernels and copies of this device reach the memory of device `other`. Doing so again
    /// costs nothing; it stays so until the process ends.
    ///
    /// # Errors
    /// No such device, no link between them, or the driver refuses.
    pub fn enable_peer(&self, other: u32) -> Result<(), CudaError> {
        let context = self.context();
        if other == context.ordinal {
            return Ok(());
        }
        let mut peers = lock(&self.peers().0);
        let unreachable =
            || CudaError::from(DeviceError::Unsupported { what: "reaching that device's memory" });
        match peers.get(&other) {
            Some(Some(_)) => return Ok(()),
            Some(None) => return Err(unreachable()),
            None => {}
        }
        if !self.can_access(other)? {
            peers.insert(other, None);
            return Err(unreachable());
        }
        let peer = Context::open(context.driver, other)?;
        let _bound = context.bind()?;
        context.driver.enable_peer(peer.raw()).map_err(|fault| context.fault(fault))?;
        peers.insert(other, Some(peer));
        Ok(())
    }

    /// For copies, which go through the host where there is no link.
    pub(crate) fn enable_peer_if_possible(&self, other: u32) {
        if other != self.context().ordinal
            && let Err(error) = self.enable_peer(other)
        {
            tracing::trace!(%error, other, "copies between the devices go through the host");
        }
    }
}

/// The devices, by the driver's names, that may use memory of this one.
pub(crate) fn accessors(context: &Context, count: u32) -> Vec<c_int> {
    let reaching = (0..count)
        .filter(|other| *other != context.ordinal)
        .filter_map(|other| context.driver.device_get(other).ok())
        .filter(|peer| context.driver.can_access_peer(*peer, context.device) == Ok(true));
    std::iter::once(context.device).chain(reaching).collect()
}
