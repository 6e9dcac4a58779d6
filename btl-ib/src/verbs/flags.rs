//! Access and capabilities as sets.

use bitflags::bitflags;
use rdma_sys::{ibv_access_flags as raw, ibv_device_cap_flags as caps};

bitflags! {
    /// What may be done with a memory region, or through a queue pair.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct MemoryAccess: u32 {
        const LOCAL_WRITE = super::library::LOCAL_WRITE;
        const REMOTE_WRITE = raw::IBV_ACCESS_REMOTE_WRITE.0;
        const REMOTE_READ = raw::IBV_ACCESS_REMOTE_READ.0;
        const REMOTE_ATOMIC = raw::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// The adapter may write the region's bytes in any order: for bulk memory, never for what carries flags.
        const RELAXED_ORDERING = raw::IBV_ACCESS_RELAXED_ORDERING.0;
    }
}

bitflags! {
    /// What a device can do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// It tells when a port's link goes.
        const PORT_EVENTS = caps::IBV_DEVICE_PORT_ACTIVE_EVENT.0;
        /// It tells senders that a receiver has no buffer.
        const NOT_READY = caps::IBV_DEVICE_RC_RNR_NAK_GEN.0;
        /// Windows on memory regions.
        const MEMORY_WINDOWS = caps::IBV_DEVICE_MEM_WINDOW.0;
        /// Remote fetch-and-add and compare-and-swap. (Not a flag of the device's own.)
        const ATOMICS = 1 << 31;
        const _ = !0;
    }
}
