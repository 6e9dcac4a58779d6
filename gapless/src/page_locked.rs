//! Memory with its owner, which devices of this process may have registered: until it is taken out or dropped.
//!
//! A driver knows registered memory by its addresses. If it were freed while it is registered, and other memory came to
//! lie at these addresses, then a message there would move the bytes of the old pages. So what is forgotten here keeps
//! both, the memory and the registration, and so does what a device does not let go of.

use crate::error::Error;
use crate::shared::WorldState;
use gapless_engine::REACHED_BYTES_MIN;
use gapless_mem::{Device, DeviceError, Region};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The owner of some memory, and who has registered that.
pub(crate) struct PageLocked<M> {
    /// `None` while a device is called, and for ever if that panics: what it has registered then, nobody knows.
    owner: Option<M>,
    region: Region,
    /// Those that it is registered with.
    devices: Vec<Arc<dyn Device>>,
}

/// The devices that registering memory of so many bytes is of use with: those that are open, and whose kernels reach
/// memory of the host.
pub(crate) fn devices_for(
    state: &mut WorldState,
    bytes: u64,
) -> Result<Vec<Arc<dyn Device>>, Error> {
    // Nobody would ask for shorter memory. And no two of this length share all their pages, which a driver takes for one.
    if bytes < REACHED_BYTES_MIN {
        return Ok(Vec::new());
    }
    let devices = state.open()?.bml_mut().devices().iter();
    Ok(devices.filter(|device| device.abilities().kernels_reach_host).cloned().collect())
}

impl<M> PageLocked<M> {
    /// Memory that nobody has registered yet.
    ///
    /// # Safety
    /// `region` is memory of the host that `owner` keeps where it is until it is dropped, or asked to give it away.
    pub(crate) unsafe fn new(owner: M, region: Region) -> PageLocked<M> {
        PageLocked { owner: Some(owner), region, devices: Vec::new() }
    }

    /// Registers it, with all that do not say that they register none. After an error it is registered with those that
    /// come before who refused.
    pub(crate) fn register(&mut self, devices: Vec<Arc<dyn Device>>) -> Result<(), DeviceError> {
        let owner = self.take();
        let registered = devices.into_iter().try_for_each(|device| {
            // SAFETY: the owner keeps the memory. It is dropped or given away in `undo` alone, once the device has
            // unregistered the memory; if this call panics, never.
            match unsafe { device.register(self.region) } {
                Ok(()) => self.devices.push(device),
                Err(DeviceError::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        });
        self.owner = Some(ManuallyDrop::into_inner(owner));
        registered
    }

    /// The owner, who is not dropped by a panic, for the time of calls of devices.
    fn take(&mut self) -> ManuallyDrop<M> {
        ManuallyDrop::new(self.owner.take().expect("no device has panicked"))
    }

    pub(crate) fn is_registered(&self) -> bool {
        !self.devices.is_empty()
    }

    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// With how many devices it is registered.
    pub(crate) fn devices(&self) -> usize {
        self.devices.len()
    }

    pub(crate) fn owner(&self) -> &M {
        self.owner.as_ref().expect("no device has panicked")
    }

    pub(crate) fn owner_mut(&mut self) -> &mut M {
        self.owner.as_mut().expect("no device has panicked")
    }

    /// The owner, whose memory no device knows any more. After an error or a panic of a device it is never dropped.
    ///
    /// No work in flight uses the memory: a message borrows this value, or owns it, until it has ended.
    pub(crate) fn into_owner(mut self) -> Result<M, DeviceError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<M, DeviceError> {
        let (owner, region) = (self.take(), self.region);
        let undone = self.devices.drain(..).map(|device| {
            // SAFETY: `register` registered the region with this device once. No work in flight uses it, as
            // `into_owner` says; nor when this value is dropped.
            unsafe { device.unregister(region) }
        });
        // After an error, too, nobody else may get these addresses.
        undone.fold(Ok(()), Result::and).map(|()| ManuallyDrop::into_inner(owner))
    }
}

impl<M> Drop for PageLocked<M> {
    fn drop(&mut self) {
        if self.owner.is_some()
            && let Err(error) = self.undo()
        {
            tracing::warn!(%error, "memory stays page-locked, and is not freed");
        }
    }
}
