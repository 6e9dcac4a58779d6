//! What the engine asks of a vendor: where kernels find memory, and lanes to put work on.
//!
//! The engine is written once, over these traits; `cuda` and `opencl` implement them. A *lane* is work in
//! order: a CUDA stream, ours or the caller's, or an OpenCL queue. Units: bytes.

use crate::staging::HostMemory;
use gapless_engine::{EngineError, Typed};
use gapless_kernels::Kernel;
use gapless_kernels::launch::{KernelAddress, Launch, ReduceLaunch, Unfit};
use gapless_kernels::persistent::Command;
use gapless_kernels::reduce::Combine;
use gapless_mem::{Completion, Device, DeviceError, Region, Space};
use std::sync::Arc;

/// Where a kernel finds one side of a move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    /// What the kernel's pointer gets: on CUDA the address, on OpenCL the buffer.
    pub(crate) base: Region,
    /// How the pointer is aligned, and where from it the bytes begin.
    pub(crate) place: KernelAddress,
}

impl Spot {
    /// The place as counted from address 0, where pointers are numbers.
    pub(crate) fn absolute(self) -> KernelAddress {
        let offset = self.base.start().cast_signed().wrapping_add(self.place.offset);
        KernelAddress { address: 0, offset }
    }

    /// The same memory, `bytes` further on.
    pub(crate) fn advanced(mut self, bytes: u64) -> Spot {
        self.place.offset = self.place.offset.wrapping_add(bytes.cast_signed());
        self
    }
}

/// A vendor's device.
pub(crate) trait Accelerator: Send + Sync {
    /// The engine's name.
    fn name(&self) -> &'static str;

    /// The device.
    fn device(&self) -> Arc<dyn Device>;

    /// Whether memory of this space is the device's to work on.
    fn serves(&self, space: Space) -> bool;

    /// Learns what it must know of memory that a program made, before places in it are asked for.
    ///
    /// # Safety
    /// The region describes memory that exists.
    unsafe fn learn_alignment(&self, _: Region) {}

    /// Where kernels find displacement 0 of a typed side.
    ///
    /// # Errors
    /// Memory that kernels do not reach.
    fn typed(&self, typed: &Typed) -> Result<Spot, EngineError>;

    /// Where kernels find a packed region; `None` if only copies reach it.
    ///
    /// # Errors
    /// Memory that not even copies reach.
    fn packed(&self, region: Region) -> Result<Option<Spot>, EngineError>;

    /// Host memory that uploads are fast from.
    ///
    /// # Errors
    /// There is none left.
    fn staging(&self, len: usize) -> Result<HostMemory, EngineError>;

    /// Whether the device orders its work after this by itself, so that enqueueing does not wait.
    fn orders(&self, completion: &Completion) -> bool;

    /// Threads of a block at most, where few blocks do all the work; at least 256.
    fn threads_max(&self) -> u32 {
        1024
    }

    /// Whether pointers are numbers of one address space, so that one launch may work on any memory;
    /// otherwise a kernel gets buffers, and reaches no others.
    fn one_address_space(&self) -> bool;

    /// Whether the regions lie on two GPUs with a link between them, so that [`Lane::copy_rows`] is as fast
    /// as the link. Never said of memory of one GPU.
    fn apart(&self, _: Region, _: Region) -> bool {
        false
    }

    /// Whether [`Lane::copy_rows`] is slower than kernels with one of these, though they lie [apart](Accelerator::apart).
    fn copies_rows_slowly(&self, _: Region, _: Region) -> bool {
        false
    }

    /// Whether a kernel of this device that moves `src` to `dst` reads it across a link, and writes memory
    /// of its own device.
    fn reads_afar(&self, _src: Region, _dst: Region) -> bool {
        false
    }

    /// Whether the device has the arithmetic of these kernels of reductions.
    fn combines(&self, combine: Combine) -> bool;

    /// The engine's own lanes. Two calls at a time must not use one; the engine holds a lock for each.
    fn lanes(&self) -> &[Box<dyn Lane>];

    /// A lane beside those for uploads of plans, which then need not wait for what came before on the
    /// lane that uses them; any number of calls may use it. `None` where there is but one queue.
    fn uploads(&self) -> Option<&dyn Lane>;

    /// Whether there is a copy worker, which runs short copies without a launch; it may be away.
    fn has_copy_worker(&self) -> bool {
        false
    }

    /// How many copies it was given.
    fn copies_by_worker(&self) -> u64 {
        0
    }

    /// Has it started, for copies that come, if it is away.
    fn wake_copy_worker(&self) {}

    /// Gives it a copy, which goes now, behind nothing. `None`: it is away, and nothing was done.
    ///
    /// # Safety
    /// As for [`Lane::launch`] of what the command was made of, until the completion.
    unsafe fn copy_by_worker(&self, _: &Command) -> Option<Completion> {
        None
    }
}

/// Rows of one width, for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRows {
    /// From the first row's begin to the last one's end.
    pub(crate) dst: Region,
    /// From one row to the next; at least a row.
    pub(crate) dst_pitch: u64,
    /// As `dst`.
    pub(crate) src: Region,
    /// As `dst_pitch`.
    pub(crate) src_pitch: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    /// How many.
    pub(crate) rows: u64,
}

/// Work in order.
pub(crate) trait Lane: Send + Sync {
    /// A call begins: what came before is no part of what it records.
    fn begin(&self) {}

    /// Whether it is the engine's own, and not a caller's for a while: nobody knows what that one waits for.
    fn is_ours(&self) -> bool {
        true
    }

    /// What is enqueued later starts after all of `after` have ended.
    ///
    /// # Errors
    /// Some of that failed, or the device refuses.
    fn wait_for(&self, after: &[Completion]) -> Result<(), EngineError>;

    /// Enqueues a kernel; its pointers in the kernel's order.
    ///
    /// # Safety
    /// `pointers` are what the launch was made for: with them, its kernel touches only memory that stays
    /// valid until the lane has passed it, and that nothing else uses in a way that races.
    ///
    /// # Errors
    /// The device refuses; nothing was enqueued.
    unsafe fn launch(&self, launch: &Launch, pointers: &[Region]) -> Result<(), EngineError>;

    /// Enqueues a kernel of a reduction; its pointers are the target's and the sources', as many as it has.
    ///
    /// # Safety
    /// As for [`launch`](Lane::launch).
    ///
    /// # Errors
    /// The device refuses; nothing was enqueued.
    unsafe fn reduce(&self, launch: &ReduceLaunch, pointers: &[Region]) -> Result<(), EngineError>;

    /// Enqueues a copy; both regions have one length.
    ///
    /// # Safety
    /// Both are valid until the lane has passed the copy, do not overlap, and nothing else writes `src`
    /// or touches `dst` until then.
    ///
    /// # Errors
    /// The device refuses; nothing was enqueued.
    unsafe fn copy(&self, dst: Region, src: Region) -> Result<(), EngineError>;

    /// Enqueues a copy of rows between two devices. Asked for only where [`Accelerator::apart`].
    ///
    /// # Safety
    /// As for [`copy`](Lane::copy), for every row.
    ///
    /// # Errors
    /// Not on this vendor's lanes, or the device refuses; nothing was enqueued.
    unsafe fn copy_rows(&self, _: &CopyRows) -> Result<(), EngineError> {
        Err(EngineError::Device(DeviceError::Unsupported {
            what: "copies of rows between devices",
        }))
    }

    /// Whether this is the completion of earlier work on this lane, which later work comes after anyway.
    fn recorded(&self, completion: &Completion) -> bool {
        let _ = completion;
        false
    }

    /// The completion of everything enqueued so far.
    ///
    /// # Errors
    /// The device refuses.
    fn record(&self) -> Result<Completion, EngineError>;

    /// Waits until the lane has passed everything, or the device is lost.
    fn drain(&self);
}

/// How many kernels there are, at most: the length of tables by [`number`].
pub(crate) const KERNELS: usize = gapless_kernels::Family::ALL.len() * 20;

/// A kernel's place in a table.
pub(crate) fn number(kernel: Kernel) -> usize {
    let family = kernel.family as usize * 2 + kernel.direction as usize;
    (family * 5 + kernel.width as usize) * 2 + usize::from(kernel.few)
}

/// A shape that no kernel takes. Layouts have none such: what closed forms do not fit, plans do.
pub(crate) fn unfit(device: &Arc<dyn Device>, reason: Unfit) -> EngineError {
    EngineError::Device(DeviceError::Failed {
        device: device.properties().name.clone(),
        operation: "laying out a launch",
        reason: reason.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_has_a_place_of_its_own() {
        let places: BTreeSet<usize> = Kernel::all().map(number).collect();
        assert_eq!(places.len(), Kernel::all().count());
        assert!(places.iter().all(|&place| place < KERNELS));
    }
}
