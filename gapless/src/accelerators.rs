//! The devices of a world in a build that has none: those of others are in `gapless-gpu`.

use gapless_mem::{Device, Space};
use std::sync::Arc;

pub(crate) fn space_at(_: u64) -> Option<Space> {
    None
}

#[derive(Debug)]
pub(crate) struct Accelerators;

pub(crate) struct DeviceChanges {
    pub(crate) gone: Vec<Arc<dyn Device>>,
    pub(crate) fresh: Vec<Arc<dyn Device>>,
}

impl Accelerators {
    pub(crate) fn new(_: bool, _: usize) -> Accelerators {
        Accelerators
    }

    pub(crate) fn give_up_context(&self, _: Space) -> bool {
        false
    }

    pub(crate) fn open(&self, _: Space) -> Result<(), String> {
        Err("this build has no devices".to_owned())
    }

    pub(crate) fn has_changes(&self) -> bool {
        false
    }

    pub(crate) fn try_later(&self, _: Vec<Arc<dyn Device>>) {}

    pub(crate) fn take_changes(&self) -> DeviceChanges {
        DeviceChanges { gone: Vec::new(), fresh: Vec::new() }
    }
}
