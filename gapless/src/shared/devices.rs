//! Devices of a world: those that were opened or given up are told to the transports before the next call.

use super::WorldState;
use crate::error::{Error, not_built};
use crate::world::attach;
use gapless_mem::{Device, Space};
use gapless_pml::Pml;
use std::sync::Arc;

impl WorldState {
    #[cold]
    pub(super) fn tell_of_devices(&mut self) {
        let mut changes = self.accelerators.take_changes();
        changes.gone.retain(|device| {
            self.tools.forget(device);
            !self.pml.detach(device)
        });
        if !changes.gone.is_empty() {
            self.accelerators.try_later(changes.gone);
        }
        changes.fresh.iter().for_each(|device| attach(&mut self.pml, device));
    }

    /// Gives up what is kept of the OpenCL context of a space; whether there was anything.
    pub(crate) fn release_context(&mut self, space: Space) -> Result<bool, Error> {
        self.open()?;
        if !matches!(space, Space::OpenCl { .. }) {
            let reason = "it is memory of no OpenCL context".to_owned();
            return Err(Error::NoDevice { space, reason });
        }
        let had = self.accelerators.give_up_context(space);
        // This detaches its devices.
        self.open()?;
        Ok(had)
    }

    /// The device of the memory `space`, opened now if necessary. Nobody has vouched for the space.
    pub(crate) fn device(&mut self, space: Space) -> Result<Arc<dyn Device>, Error> {
        let find = |pml: &mut Pml| {
            let devices = pml.bml_mut().devices();
            devices.iter().find(|device| device.space() == space).cloned()
        };
        if let Some(known) = find(self.open()?) {
            return Ok(known);
        }
        let nowhere = |reason| Error::NoDevice { space, reason };
        let opened = self.accelerators.open(space);
        opened.map_err(|why| nowhere(not_built(space).unwrap_or(why)))?;
        // This attaches a device that was just opened.
        let found = find(self.open()?);
        found.ok_or_else(|| nowhere("another kind of memory is its device's own".to_owned()))
    }
}
