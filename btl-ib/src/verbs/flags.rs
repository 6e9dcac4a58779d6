//! Access and capabilities as sets.

use super::pair::RdmaKind;
use bitflags::bitflags;
use gapless_btl::Access;
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

/// From this length on, memory of callers counts as bulk.
const BULK_BYTES: u64 = 64 << 10;

impl MemoryAccess {
    /// Buffers of messages, rings and staging memory: written in order, since parts of them say that others are there.
    pub(crate) const OWN: MemoryAccess = MemoryAccess::LOCAL_WRITE;

    /// Pages of ours that peers write into: in order, likewise.
    pub(crate) const ACK_WORDS: MemoryAccess =
        MemoryAccess::LOCAL_WRITE.union(MemoryAccess::REMOTE_WRITE);

    /// Memory of a caller that peers may use: only bulk memory may be written in any order. Numbers that are changed
    /// are looked at while others are written.
    pub(crate) fn of_caller(len: u64, access: Access) -> MemoryAccess {
        let mut rights = MemoryAccess::REMOTE_READ;
        rights.set(MemoryAccess::REMOTE_WRITE | MemoryAccess::LOCAL_WRITE, access != Access::Read);
        rights.set(MemoryAccess::REMOTE_ATOMIC, access == Access::Atomic);
        let is_bulk = len >= BULK_BYTES && access != Access::Atomic;
        rights.set(MemoryAccess::RELAXED_ORDERING, is_bulk);
        rights
    }

    /// Memory that lives long: peers may read it, and own operations may do either.
    pub(crate) fn lasting(len: u64) -> MemoryAccess {
        MemoryAccess::of_caller(len, Access::Read) | MemoryAccess::LOCAL_WRITE
    }

    /// Memory of a caller that one operation of this end works through. Nobody looks at it before the operation's end.
    pub(crate) fn of_operation(way: RdmaKind) -> MemoryAccess {
        match way {
            RdmaKind::Read => MemoryAccess::LOCAL_WRITE | MemoryAccess::RELAXED_ORDERING,
            RdmaKind::Write => MemoryAccess::empty(),
            // What the number was is written there.
            RdmaKind::Change(_) => MemoryAccess::LOCAL_WRITE,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_btl::Change;

    /// Relaxed ordering is for bulk memory alone: never for what carries flags, numbers or messages.
    #[test]
    fn only_bulk_memory_is_written_in_any_order() {
        use MemoryAccess as M;
        let (read, write) = (M::REMOTE_READ, M::REMOTE_WRITE | M::LOCAL_WRITE);
        let table = [
            (0, Access::Read, read),
            (8, Access::Write, read | write),
            (BULK_BYTES - 1, Access::Read, read),
            (BULK_BYTES - 1, Access::Write, read | write),
            (BULK_BYTES, Access::Read, read | M::RELAXED_ORDERING),
            (BULK_BYTES, Access::Write, read | write | M::RELAXED_ORDERING),
            (u64::MAX, Access::Write, read | write | M::RELAXED_ORDERING),
            (8, Access::Atomic, read | write | M::REMOTE_ATOMIC),
            (BULK_BYTES, Access::Atomic, read | write | M::REMOTE_ATOMIC),
            (u64::MAX, Access::Atomic, read | write | M::REMOTE_ATOMIC),
        ];
        for (len, access, due) in table {
            assert_eq!(M::of_caller(len, access), due, "{len} bytes, {access:?}");
        }
        assert_eq!(M::lasting(8), read | M::LOCAL_WRITE);
        assert_eq!(M::lasting(BULK_BYTES), read | M::LOCAL_WRITE | M::RELAXED_ORDERING);
        assert_eq!(M::of_operation(RdmaKind::Read), M::LOCAL_WRITE | M::RELAXED_ORDERING);
        assert_eq!(M::of_operation(RdmaKind::Write), M::empty());
        assert_eq!(M::of_operation(RdmaKind::Change(Change::Add(1))), M::LOCAL_WRITE);
        assert_eq!((M::OWN, M::ACK_WORDS), (M::LOCAL_WRITE, write));
    }
}
