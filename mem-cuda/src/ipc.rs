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
//! ```text
//!  memory key, 136 bytes, little-endian        event key, 80 bytes
//!  0  "GCM1"                                   0  "GCE1"
//!  4  kind: 1 handle, 2 descriptor; 3 zeros    4  4 zeros
//!  8  exporting process, by a random number    8  exporting process
//! 16  first address in the exporter            16 driver's handle, 64
//! 24  allocation's length
//! 32  allocation's buffer id
//! 40  region's offset in the allocation
//! 48  region's length
//! 56  device's UUID, 16
//! 72  driver's handle, 64; zeros for kind 2
//! ```

use crate::context::lock;
use crate::driver::HANDLE;
use crate::event::CudaPending;
use crate::{CudaDevice, CudaError};
use gapless_mem::{Completion, DeviceError, Export, OutOfRange, Region, Space};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

const MEMORY_MAGIC: [u8; 4] = *b"GCM1";
const EVENT_MAGIC: [u8; 4] = *b"GCE1";
const MEMORY_KEY: usize = 72 + HANDLE;
const EVENT_KEY: usize = 16 + HANDLE;
const _: () = assert!(MEMORY_KEY == 136 && EVENT_KEY == 80);

/// How an allocation travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Handle = 1,
    Descriptor = 2,
}

/// What stands in a memory key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryKey {
    kind: Kind,
    process: u64,
    start: u64,
    size: u64,
    buffer_id: u64,
    offset: u64,
    len: u64,
    uuid: [u8; 16],
    handle: [u8; HANDLE],
}

/// A number that no other process has, but by a chance of one in 2⁶⁴.
fn this_process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// The `N` bytes at `at`, which the caller has checked to be there.
fn piece<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut piece = [0; N];
    piece.copy_from_slice(&bytes[at..at + N]);
    piece
}

impl MemoryKey {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MEMORY_KEY);
        bytes.extend(MEMORY_MAGIC);
        bytes.extend([self.kind as u8, 0, 0, 0]);
        for number in [self.process, self.start, self.size, self.buffer_id, self.offset, self.len] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.uuid);
        bytes.extend(self.handle);
        bytes
    }

    /// Believes nothing: what passes lies inside its allocation and comes with what its kind needs.
    fn decode(bytes: &[u8], descriptors: usize) -> Result<MemoryKey, CudaError> {
        let malformed = |reason| CudaError::Malformed { object: "memory key", reason };
        if bytes.len() != MEMORY_KEY {
            return Err(malformed("it has not the length of one"));
        }
        if piece(bytes, 0) != MEMORY_MAGIC {
            return Err(malformed("it does not begin as one"));
        }
        let kind = match piece(bytes, 4) {
            [1, 0, 0, 0] => Kind::Handle,
            [2, 0, 0, 0] => Kind::Descriptor,
            _ => return Err(malformed("of a kind that does not exist")),
        };
        if descriptors != usize::from(kind == Kind::Descriptor) {
            return Err(malformed("the number of descriptors is not its kind's"));
        }
        let number = |at| u64::from_le_bytes(piece(bytes, at));
        let key = MemoryKey {
            kind,
            process: number(8),
            start: number(16),
            size: number(24),
            buffer_id: number(32),
            offset: number(40),
            len: number(48),
            uuid: piece(bytes, 56),
            handle: piece(bytes, 72),
        };
        if key.size == 0 || key.start.checked_add(key.size).is_none() {
            return Err(malformed("the allocation's length is impossible"));
        }
        match key.offset.checked_add(key.len) {
            Some(end) if end <= key.size => Ok(key),
            _ => Err(malformed("the region leaves its allocation")),
        }
    }

    fn identity(&self) -> Identity {
        (self.kind, self.process, self.start, self.buffer_id, self.handle)
    }
}

/// Which allocation of which process.
type Identity = (Kind, u64, u64, u64, [u8; HANDLE]);

/// The bytes by which another process finds an event.
pub(crate) fn event_key(handle: [u8; HANDLE]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(EVENT_KEY);
    bytes.extend(EVENT_MAGIC);
    bytes.extend([0; 4]);
    bytes.extend(this_process().to_le_bytes());
    bytes.extend(handle);
    bytes
}

/// An allocation of another process that is mapped here, or one of ours that came back.
#[derive(Debug)]
struct Mapping {
    identity: Identity,
    /// Regions that were imported and not released.
    users: u64,
    /// Bytes that can be reached from the first address on.
    size: u64,
    space: Space,
    how: How,
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

/// Exports that this process remembers. Beyond that it forgets them all: their keys are not its own any more
/// when they come back, until they are made again.
const EXPORTS_MAX: usize = 1 << 16;

/// What this process has exported, of all its devices: the newest key to each allocation.
///
/// A key that names this process came from a peer, and a peer may write what it likes. Only what is in here is
/// found again: an allocation whose key was given away.
#[derive(Debug, Default)]
struct Exported(HashMap<(Kind, u64), MemoryKey>);

impl Exported {
    fn of_this_process() -> MutexGuard<'static, Exported> {
        static EXPORTED: OnceLock<Mutex<Exported>> = OnceLock::new();
        lock(EXPORTED.get_or_init(Mutex::default))
    }

    fn remember(&mut self, key: &MemoryKey) {
        if self.0.len() >= EXPORTS_MAX && !self.0.contains_key(&(key.kind, key.start)) {
            self.0.clear();
        }
        self.0.insert((key.kind, key.start), *key);
    }

    /// Whether the allocation that `key` names was exported, as the very one that it names.
    fn has(&self, key: &MemoryKey) -> bool {
        let facts = |key: &MemoryKey| (key.process, key.size, key.buffer_id, key.uuid);
        self.0.get(&(key.kind, key.start)).is_some_and(|made| facts(made) == facts(key))
    }
}

/// What is mapped, by first address here.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<u64, Mapping>>);

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
            Some((start, size)) => (start, size, Kind::Descriptor),
            None => {
                let (start, size) = context.driver.address_range(first).map_err(fault)?;
                (start, size, Kind::Handle)
            }
        };
        let offset = first - start;
        if offset.checked_add(region.len()).is_none_or(|end| end > size) {
            return Err(outside(size).into());
        }
        let (handle, descriptors, buffer_id) = match kind {
            Kind::Handle => {
                let handle = context.driver.ipc_export(start).map_err(fault)?;
                (handle, Vec::new(), context.driver.buffer_id(start).unwrap_or(0))
            }
            Kind::Descriptor => {
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
        // Only memory of our own can stand at an address that is in the table: what was there has
        // been freed and allocated anew, and its users have yet to release it.
        let before = mapped.get(&start).map_or(0, |old| old.users);
        mapped.insert(start, Mapping { users: before + 1, ..mapping });
        Ok(region)
    }

    /// Memory of this process, found again by what was remembered when it was exported; and it must still
    /// be there.
    fn own(&self, key: &MemoryKey) -> Result<(u64, Mapping), CudaError> {
        if !Exported::of_this_process().has(key) {
            let reason = "this process has not exported such memory";
            return Err(CudaError::Malformed { object: "memory key", reason });
        }
        let gone =
            || CudaError::Malformed { object: "memory key", reason: "its memory has been freed" };
        let space = match key.kind {
            Kind::Descriptor => {
                let (range, id) = self.vmm().identity_of(key.start).ok_or_else(gone)?;
                if (range, id) != (key.size, key.buffer_id) {
                    return Err(gone());
                }
                self.own_space()
            }
            Kind::Handle => {
                let facts = self.pointer_uncached(key.start).ok_or_else(gone)?;
                if (facts.start, facts.len, facts.buffer_id) != (key.start, key.size, key.buffer_id)
                {
                    return Err(gone());
                }
                facts.space
            }
        };
        let mapping =
            Mapping { identity: key.identity(), users: 1, size: key.size, space, how: How::Own };
        Ok((key.start, mapping))
    }

    /// Memory of another process, mapped.
    fn map(
        &self,
        key: &MemoryKey,
        descriptor: Option<OwnedFd>,
    ) -> Result<(u64, Mapping), CudaError> {
        let context = self.context();
        let _bound = context.bind()?;
        let fault = |fault| context.fault(fault);
        let mapping = |size, how| Mapping {
            identity: key.identity(),
            users: 1,
            size,
            space: self.own_space(),
            how,
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
        self.pointers().forget(region.address());
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
        Ok(CudaPending::completion(context, event, true))
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

fn decode_event(bytes: &[u8]) -> Result<[u8; HANDLE], CudaError> {
    let malformed = |reason| CudaError::Malformed { object: "event key", reason };
    if bytes.len() != EVENT_KEY {
        return Err(malformed("it has not the length of one"));
    }
    if piece(bytes, 0) != EVENT_MAGIC || piece(bytes, 4) != [0u8; 4] {
        return Err(malformed("it does not begin as one"));
    }
    if u64::from_le_bytes(piece(bytes, 8)) == this_process() {
        return Err(malformed("this process made it, and has the completion itself"));
    }
    Ok(piece(bytes, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> MemoryKey {
        MemoryKey {
            kind: Kind::Handle,
            process: 5,
            start: 0x7000_0000,
            size: 4096,
            buffer_id: 12,
            offset: 256,
            len: 1024,
            uuid: [3; 16],
            handle: [4; HANDLE],
        }
    }

    #[test]
    fn memory_of_our_own_is_found_only_if_it_was_exported() {
        use crate::CudaDriver;
        use crate::driver::fake::{self, State};
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
    fn the_number_of_exports_is_bounded() {
        let mut exported = Exported::default();
        for start in 0..=EXPORTS_MAX as u64 {
            exported.remember(&MemoryKey { start, ..key() });
            exported.remember(&MemoryKey { start, ..key() });
        }
        assert_eq!(exported.0.len(), 1);
        assert!(exported.has(&MemoryKey { start: EXPORTS_MAX as u64, ..key() }));
        assert!(!exported.has(&MemoryKey { start: 1, ..key() }));
    }

    #[test]
    fn keys_survive_the_way() {
        for kind in [Kind::Handle, Kind::Descriptor] {
            let key = MemoryKey { kind, ..key() };
            let bytes = key.encode();
            assert_eq!(bytes.len(), MEMORY_KEY);
            let descriptors = usize::from(kind == Kind::Descriptor);
            assert_eq!(MemoryKey::decode(&bytes, descriptors).unwrap(), key);
            assert!(MemoryKey::decode(&bytes, 1 - descriptors).is_err());
        }
    }

    #[test]
    fn keys_that_lie_are_refused() {
        let good = key().encode();
        for len in 0..good.len() {
            assert!(MemoryKey::decode(&good[..len], 0).is_err(), "{len} bytes");
        }
        let with = |at: usize, new: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + new.len()].copy_from_slice(new);
            MemoryKey::decode(&bytes, 0)
        };
        assert!(with(0, b"GCM2").is_err());
        assert!(with(4, &[3]).is_err());
        assert!(with(7, &[1]).is_err());
        assert!(with(24, &0u64.to_le_bytes()).is_err(), "no size");
        assert!(with(24, &u64::MAX.to_le_bytes()).is_err(), "a size beyond the address space");
        assert!(with(40, &3073u64.to_le_bytes()).is_err(), "a region that leaves by a byte");
        assert!(with(40, &u64::MAX.to_le_bytes()).is_err(), "an offset that wraps");
        assert!(with(40, &3072u64.to_le_bytes()).is_ok(), "the last bytes");
    }

    #[test]
    fn events_of_others_only() {
        let mut bytes = event_key([6; HANDLE]);
        assert!(matches!(
            decode_event(&bytes),
            Err(CudaError::Malformed { reason, .. }) if reason.contains("this process")
        ));
        bytes[8] ^= 1;
        assert_eq!(decode_event(&bytes).unwrap(), [6; HANDLE]);
        assert!(decode_event(&bytes[1..]).is_err());
        bytes[0] = b'X';
        assert!(decode_event(&bytes).is_err());
    }
}
