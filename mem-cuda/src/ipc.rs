//! Memory and events of other processes on this host: what travels, and what is mapped here.
//!
//! A region is exported as a key: the driver's handle for its whole allocation, and where in that it
//! lies. What `cuMemAlloc` gave travels as bytes alone; what [`allocate_shareable`] gave (VMM) needs
//! a descriptor beside. Memory of stream-ordered pools cannot be exported.
//!
//! The exporter must not free memory while others have it mapped: the driver leaves that undefined.
//! Memory that has been freed and allocated anew has another buffer id, so its key differs.
//!
//! [`allocate_shareable`]: CudaDevice::allocate_shareable
//!
//! What travels is drawn in `key.rs`.

use crate::context::lock;
use crate::driver::HANDLE;
use crate::event::CudaPending;
use crate::key::{Exported, Identity, KeyKind, MemoryKey, decode_event, this_process};
use crate::{CudaDevice, CudaError};
use gapless_mem::{Completion, DeviceError, Export, OutOfRange, Region, Space};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

/// An allocation of another process that is mapped here, or one of ours that came back.
#[derive(Debug)]
struct Import {
    identity: Identity,
    /// Regions that were imported and not released.
    users: u64,
    /// Bytes that can be reached from the first address on.
    size: u64,
    /// The allocation's length, as its owner says: the driver maps whole pages.
    allocated: u64,
    space: Space,
    how: How,
    /// Whether it lies on another device than the one that has mapped it.
    elsewhere: bool,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// This process exported it: nothing is mapped.
    Own,
    /// `cuIpcOpenMemHandle`.
    Handle,
    /// VMM.
    Descriptor,
}

/// What is mapped, by first address here.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<u64, Import>>);

impl CudaDevice {
    /// [`Device::export`](gapless_mem::Device::export), with errors of this crate.
    pub(crate) fn export_region(&self, region: Region) -> Result<Export, CudaError> {
        let context = self.context();
        if region.space() != self.own_space() {
            let device = context.name.clone();
            return Err(DeviceError::WrongSpace { device, space: region.space() }.into());
        }
        let outside = |size| {
            DeviceError::from(OutOfRange {
                offset: region.offset(),
                len: region.len(),
                region_len: size,
                space: region.space(),
            })
        };
        let first = region.address().checked_add(region.offset()).ok_or_else(|| outside(0))?;
        let _bound = context.bind()?;
        let fault = |fault| context.fault(fault);
        let (start, size, kind) = match self.vmm().range_of(first) {
            Some((start, size)) => (start, size, KeyKind::Descriptor),
            None => {
                let (start, size) = context.driver.address_range(first).map_err(fault)?;
                (start, size, KeyKind::Handle)
            }
        };
        let offset = first - start;
        if offset.checked_add(region.len()).is_none_or(|end| end > size) {
            return Err(outside(size).into());
        }
        let (handle, descriptors, buffer_id) = match kind {
            KeyKind::Handle => {
                let handle = context.driver.ipc_export(start).map_err(fault)?;
                (handle, Vec::new(), context.driver.buffer_id(start).unwrap_or(0))
            }
            KeyKind::Descriptor => {
                let (descriptor, id) = self.vmm().export(context, start)?;
                ([0; HANDLE], vec![descriptor], id)
            }
        };
        let key = MemoryKey {
            kind,
            process: this_process(),
            start,
            size,
            buffer_id,
            offset,
            len: region.len(),
            uuid: self.uuid(),
            handle,
        };
        Exported::of_this_process().remember(&key);
        Ok(Export { bytes: key.encode(), descriptors })
    }

    /// [`Device::import`](gapless_mem::Device::import), with errors of this crate.
    ///
    /// The region lies in this device's space, whichever device of the host the memory is on,
    /// because this device is the one that can reach it. What this process itself exported comes
    /// back as what it was.
    pub(crate) fn import_region(&self, export: Export) -> Result<Region, CudaError> {
        let key = MemoryKey::decode(&export.bytes, export.descriptors.len())?;
        let mut mapped = lock(&self.imports().0);
        let known = mapped.iter_mut().find(|(_, mapping)| mapping.identity == key.identity());
        if let Some((start, mapping)) = known {
            inside(&key, mapping.size)?;
            mapping.users += 1;
            return Ok(Region::new(mapping.space, *start, key.offset, key.len));
        }
        let (start, mapping) = if key.process == this_process() {
            self.own(&key)?
        } else {
            self.map(&key, export.descriptors.into_iter().next())?
        };
        let region = Region::new(mapping.space, start, key.offset, key.len);
        // Only memory of our own can lie at an address that is in the table: what was there has
        // been freed and allocated anew, and its users have yet to release it.
        let before = mapped.get(&start).map_or(0, |old| old.users);
        mapped.insert(start, Import { users: before + 1, ..mapping });
        Ok(region)
    }

    /// Memory of this process, found again by what was remembered when it was exported; and it must still
    /// be there.
    fn own(&self, key: &MemoryKey) -> Result<(u64, Import), CudaError> {
        if !Exported::of_this_process().has(key) {
            let reason = "this process has not exported such memory";
            return Err(CudaError::Malformed { object: "memory key", reason });
        }
        let gone =
            || CudaError::Malformed { object: "memory key", reason: "its memory has been freed" };
        let space = match key.kind {
            KeyKind::Descriptor => {
                let (range, id) = self.vmm().identity_of(key.start).ok_or_else(gone)?;
                if (range, id) != (key.size, key.buffer_id) {
                    return Err(gone());
                }
                self.own_space()
            }
            KeyKind::Handle => {
                let facts = self.pointer(key.start).ok_or_else(gone)?;
                if (facts.start, facts.len, facts.buffer_id) != (key.start, key.size, key.buffer_id)
                {
                    return Err(gone());
                }
                facts.space
            }
        };
        let mapping = Import {
            identity: key.identity(),
            users: 1,
            size: key.size,
            allocated: key.size,
            space,
            how: How::Own,
            elsewhere: space != self.own_space(),
        };
        Ok((key.start, mapping))
    }

    /// Memory of another process, mapped.
    fn map(
        &self,
        key: &MemoryKey,
        descriptor: Option<OwnedFd>,
    ) -> Result<(u64, Import), CudaError> {
        let context = self.context();
        let _bound = context.bind()?;
        let fault = |fault| context.fault(fault);
        let mapping = |size, how| Import {
            identity: key.identity(),
            users: 1,
            size,
            allocated: key.size,
            space: self.own_space(),
            how,
            // Whoever exported it says so: what is at stake is how fast it is copied.
            elsewhere: key.uuid != self.uuid(),
        };
        match descriptor {
            Some(descriptor) => {
                let start = self.vmm().import(context, descriptor.as_fd(), key.size)?;
                Ok((start, mapping(key.size, How::Descriptor)))
            }
            None => {
                let start = context.driver.ipc_open(key.handle).map_err(fault)?;
                // The driver knows what was really mapped; the key only claims it.
                let reached =
                    context.driver.address_range(start).map_err(fault).and_then(|(from, size)| {
                        let reached = size.saturating_sub(start.saturating_sub(from));
                        inside(key, reached).map(|()| reached)
                    });
                match reached {
                    Ok(reached) => Ok((start, mapping(reached, How::Handle))),
                    Err(error) => {
                        // SAFETY: opened above, and nobody has learnt the address.
                        if let Err(fault) = unsafe { context.driver.ipc_close(start) } {
                            context.grumble(fault);
                        }
                        Err(error)
                    }
                }
            }
        }
    }

    /// [`Device::release`](gapless_mem::Device::release), with errors of this crate.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn release_region(&self, region: Region) -> Result<(), CudaError> {
        let context = self.context();
        let mut mapped = lock(&self.imports().0);
        let Some(mapping) = mapped.get_mut(&region.address()) else {
            let device = context.name.clone();
            return Err(DeviceError::WrongSpace { device, space: region.space() }.into());
        };
        mapping.users -= 1;
        if mapping.users > 0 {
            return Ok(());
        }
        let how = mapping.how;
        mapped.remove(&region.address());
        let _bound = context.bind()?;
        match how {
            How::Own => Ok(()),
            How::Handle => {
                // SAFETY: `map` opened it, its last user has released it, and says that nothing
                // uses it.
                let closed = unsafe { context.driver.ipc_close(region.address()) };
                closed.map_err(|fault| context.fault(fault))
            }
            // SAFETY: as above.
            How::Descriptor => unsafe { self.vmm().free(context, region.address()) },
        }
    }

    /// Whether memory that this device reaches lies on another GPU: a peer's, or what another process
    /// exported from one. Imported memory is in this device's space wherever it lies, so its space does
    /// not tell. Costs a lock and a look into a table of what is imported.
    #[must_use]
    pub fn lies_elsewhere(&self, region: Region) -> bool {
        match region.space() {
            Space::Cuda { .. } if region.space() != self.own_space() => true,
            Space::Cuda { .. } => self.imported_at(region, |found| found.elsewhere),
            _ => false,
        }
    }

    /// Whether the driver copies rows to or from this memory slower than kernels do: it is another process's, of an
    /// allocation whose length is no multiple of 1 MiB. (Driver 580, between two H200s: 300 to 328 instead of 358 to
    /// 387 GB/s. Within a process, and in one contiguous span, it is as fast as ever.)
    #[must_use]
    pub fn copies_rows_slowly(&self, region: Region) -> bool {
        const STEP: u64 = 1 << 20;
        let odd = |found: &Import| {
            matches!(found.how, How::Handle) && !found.allocated.is_multiple_of(STEP)
        };
        region.space() == self.own_space() && self.imported_at(region, odd)
    }

    /// Whether an address lies in memory of another process that is mapped for this device.
    pub(crate) fn is_imported(&self, address: u64) -> bool {
        let region = Region::new(self.own_space(), address, 0, 1);
        self.imported_at(region, |found| !matches!(found.how, How::Own))
    }

    /// Whether a region begins in imported memory of which `is` is true.
    fn imported_at(&self, region: Region, is: impl Fn(&Import) -> bool) -> bool {
        let start = region.start();
        let mapped = lock(&self.imports().0);
        let covers = |at: u64, mapping: &Import| {
            start.checked_sub(at).is_some_and(|offset| offset < mapping.size)
        };
        match mapped.get(&region.address()).filter(|found| covers(region.address(), found)) {
            Some(found) => is(found),
            None => mapped.iter().any(|(at, found)| covers(*at, found) && is(found)),
        }
    }

    /// How many allocations of other processes, or of ours that came back, are in use here.
    #[must_use]
    pub fn imported(&self) -> usize {
        lock(&self.imports().0).len()
    }

    /// The completion that another process on this host exported
    /// ([`Pending::export`](gapless_mem::Pending::export)).
    ///
    /// It ends when that work ends; if that process dies it may never end, which is for whoever
    /// watches the process to notice.
    ///
    /// # Errors
    /// Bytes that are no event's, an event of this very process (the driver cannot open those: use
    /// the completion itself), or the driver's refusal.
    pub fn open_completion(&self, bytes: &[u8]) -> Result<Completion, CudaError> {
        let handle = decode_event(bytes)?;
        let context = self.context();
        let _bound = context.bind()?;
        let event = context.driver.ipc_open_event(handle).map_err(|fault| context.fault(fault))?;
        Ok(CudaPending::completion(context, event, true, None))
    }

    /// A dma-buf for device memory, for network adapters that read and write it directly.
    ///
    /// # Errors
    /// Memory that is not this device's, start or length that are no multiples of the host's page,
    /// or a device or kernel that cannot.
    pub fn dma_buf(&self, region: Region) -> Result<OwnedFd, CudaError> {
        let context = self.context();
        if region.space() != self.own_space() {
            let device = context.name.clone();
            return Err(DeviceError::WrongSpace { device, space: region.space() }.into());
        }
        let _bound = context.bind()?;
        let made = context.driver.dma_buf(region.start(), region.len());
        made.map_err(|fault| context.fault(fault))
    }
}

impl Drop for Imports {
    fn drop(&mut self) {
        let left = self.0.get_mut().map_or(0, |mapped| mapped.len());
        if left > 0 {
            tracing::debug!(left, "imported memory was not released; it ends with the context");
        }
    }
}

/// Whether the key's region lies in what was mapped.
fn inside(key: &MemoryKey, size: u64) -> Result<(), CudaError> {
    match key.offset.checked_add(key.len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(CudaError::Malformed {
            object: "memory key",
            reason: "the allocation is shorter than it says",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_our_own_is_found_only_if_it_was_exported() {
        use crate::CudaDriver;
        use crate::driver::tests::fake::{self, State};
        use gapless_mem::Device;
        fake::set(State::default());
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        let memory = device.allocate(4096).unwrap();
        let made = device.export(memory.sub(64, 100).unwrap()).unwrap();
        let import = |key: &MemoryKey| {
            let bytes = key.encode();
            let region = device.import_region(Export { bytes, descriptors: Vec::new() })?;
            // SAFETY: nothing uses it.
            unsafe { device.release_region(region) }?;
            Ok::<_, CudaError>(region)
        };
        let key = MemoryKey::decode(&made.bytes, 0).unwrap();
        assert_eq!(import(&key).unwrap(), Region::new(memory.space(), memory.start(), 64, 100));
        // The same allocation, whole: that is what whoever has the key has anyway.
        assert!(import(&MemoryKey { offset: 0, len: 4096, ..key }).is_ok());
        // What a peer might make up from a key that it was given.
        for forged in [
            MemoryKey { start: key.start + 4096, ..key },
            MemoryKey { start: key.start - 64, size: 8192, ..key },
            MemoryKey { size: 1 << 40, len: 1 << 30, ..key },
            MemoryKey { buffer_id: key.buffer_id + 1, ..key },
            MemoryKey { uuid: [8; 16], ..key },
        ] {
            let error = import(&forged).unwrap_err();
            assert!(error.to_string().contains("has not exported"), "{error}");
        }
        // Freed and allocated anew: what was exported is gone, under its own number and under the new one.
        fake::with(|state| state.buffer_id += 1);
        let error = import(&key).unwrap_err();
        assert!(error.to_string().contains("has been freed"), "{error}");
        assert!(import(&MemoryKey { buffer_id: key.buffer_id + 1, ..key }).is_err());
        assert!(device.export(memory).is_ok());
        assert!(import(&MemoryKey { buffer_id: key.buffer_id + 1, ..key }).is_ok());
        assert_eq!(device.imported(), 0);
    }

    #[test]
    fn what_lies_on_another_device_is_known_wherever_it_is_mapped() {
        use crate::CudaDriver;
        use crate::driver::tests::fake::{self, State};
        fake::set(State::default());
        let device = CudaDriver::of(fake::driver()).unwrap().device(0).unwrap();
        let identity = |start, uuid| {
            let kind = KeyKind::Handle;
            let key = MemoryKey {
                kind,
                process: 5,
                start,
                size: 100,
                buffer_id: 1,
                offset: 0,
                len: 100,
                uuid,
                handle: [0; HANDLE],
            };
            key.identity()
        };
        let whole = 1 << 20;
        for (start, size, elsewhere, how) in [
            (1000, 100, true, How::Own),
            (1100, 100, false, How::Own),
            (5000, 100, true, How::Handle),
            (whole, whole, true, How::Handle),
        ] {
            let mapping = Import {
                identity: identity(start, [u8::from(elsewhere); 16]),
                users: 1,
                size,
                allocated: size,
                space: device.own_space(),
                how,
                elsewhere,
            };
            lock(&device.imports().0).insert(start, mapping);
        }
        let at = |address, offset| Region::new(device.own_space(), address, offset, 4);
        // By the first address, as it was imported, and by any other.
        assert!(device.lies_elsewhere(at(1000, 50)) && device.lies_elsewhere(at(1099, 0)));
        assert!(!device.lies_elsewhere(at(1100, 50)) && !device.lies_elsewhere(at(1000, 150)));
        assert!(!device.lies_elsewhere(at(999, 0)) && !device.lies_elsewhere(at(5000, 100)));
        // Rows of a mapping whose length is odd, and of no other memory.
        assert!(
            device.copies_rows_slowly(at(5000, 50)) && !device.copies_rows_slowly(at(whole, 50))
        );
        assert!(
            !device.copies_rows_slowly(at(1000, 50)) && !device.copies_rows_slowly(at(9000, 0))
        );
        assert!(device.is_imported(5050) && device.is_imported(whole));
        assert!(!device.is_imported(1000) && !device.is_imported(9000));
        let space = |space| Region::new(space, 1000, 0, 4);
        assert!(device.lies_elsewhere(space(Space::Cuda { device: 1 })));
        assert!(!device.lies_elsewhere(space(Space::Pinned)));
    }
}
