//! Allocation, where addresses lie, page-locked and registered memory.

use crate::gpu::{
    Flag, Memory, device, finish, function, kernels, on_device, pattern, read, skip, space_at,
    wait, write,
};
use gapless_mem::{Device, DeviceError, Region, Space};
use gapless_mem_cuda::{Argument, CudaError, Grid};
use std::os::fd::OwnedFd;
use std::sync::Arc;

#[test]
fn the_device_says_what_it_is() {
    let Some(device) = device("properties") else { return };
    let properties = device.properties();
    println!("{properties:?}, {:?}, {:?}", device.capability(), device.mps());
    assert!(!properties.name.is_empty());
    assert!(properties.memory_bytes > 1 << 30);
    assert!(properties.cache_bytes > 0 && properties.compute_units > 0);
    assert!(device.capability() >= (7, 0));
    assert_ne!(device.uuid(), [0; 16]);
    let (free, total) = device.memory_now().unwrap();
    assert!(free <= total && total <= properties.memory_bytes);
}

#[test]
fn too_much_is_out_of_memory_and_harms_nothing() {
    let Some(device) = device("running out of memory") else { return };
    let len = device.properties().memory_bytes + (1 << 30);
    for error in [
        device.allocate(len).unwrap_err(),
        device.allocate_shareable(len).unwrap_err().into(),
        device.allocate(u64::MAX).unwrap_err(),
        device.allocate_shareable(u64::MAX).unwrap_err().into(),
    ] {
        assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
    }
    assert!(device.lost().is_none());
    let mut memory = Memory::on(&device, 4096);
    assert_eq!(memory.region().start() % 256, 0);
    write(&device, memory.region(), &[1; 4096]);
}

#[test]
fn addresses_are_found_in_their_memory() {
    let Some(device) = device("locating addresses") else { return };
    for mut memory in Memory::of_every_kind(&device, 10_000) {
        let region = memory.region();
        let expected = (region.space() != Space::Host).then_some(region.space());
        for _ in 0..2 {
            for offset in [0, 1, 9_999] {
                let space = space_at(&device, region.start() + offset);
                assert_eq!(space, expected, "{} + {offset}", region.space());
            }
        }
        let id = device.buffer_id(region);
        println!("{}: {:?}, id {id:?}", region.space(), device.pointer(region.start()));
        if on_device(region) {
            assert!(id.is_some());
            assert_eq!(device.buffer_id(region.sub(5_000, 8).unwrap()), id);
        }
    }
    assert_eq!(space_at(&device, 0), None);
    assert_eq!(space_at(&device, 64), None);
}

#[test]
fn an_address_that_is_used_again_has_another_id() {
    let Some(device) = device("reused addresses") else { return };
    const LEN: u64 = 48 << 20;
    for _ in 0..50 {
        let first = device.allocate(LEN).unwrap();
        let facts = device.pointer(first.start()).unwrap();
        assert_eq!(facts.len, LEN);
        let id = device.buffer_id(first).unwrap();
        assert_eq!(id, facts.buffer_id);
        // SAFETY: nothing uses it.
        unsafe { device.free(first) }.unwrap();
        assert_ne!(device.pointer(first.start()).map(|facts| facts.buffer_id), Some(id));
        // Shorter, but not so much that the driver looks for another place.
        let second = device.allocate(LEN - 4096).unwrap();
        let (again, found) = (device.buffer_id(second).unwrap(), device.pointer(second.start()));
        // SAFETY: nothing uses it.
        unsafe { device.free(second) }.unwrap();
        assert_ne!(again, id);
        if second.start() == first.start() {
            let found = found.unwrap();
            assert_eq!((found.buffer_id, found.len), (again, LEN - 4096));
            return;
        }
    }
    skip("reused addresses", "the driver gave no address a second time in 50 tries");
}

/// The same, freed behind the device's back, as a user's own `cudaFree` would be.
#[test]
fn freeing_elsewhere_is_noticed() {
    let Some(device) = device("addresses reused elsewhere") else { return };
    let driver = gapless_mem_cuda::CudaDriver::load().unwrap();
    // Another handle on the same device.
    let elsewhere = driver.device(0).unwrap();
    const LEN: u64 = 80 << 20;
    for _ in 0..50 {
        let first = elsewhere.allocate(LEN).unwrap();
        let old = device.pointer(first.start() + 17).unwrap();
        // SAFETY: nothing uses it.
        unsafe { elsewhere.free(first) }.unwrap();
        assert_ne!(device.pointer(first.start() + 17), Some(old));
        let second = elsewhere.allocate(LEN).unwrap();
        let new = device.pointer(second.start() + 17).unwrap();
        assert_ne!(new.buffer_id, old.buffer_id);
        assert_eq!(device.pointer(second.start() + 17), Some(new));
        // SAFETY: nothing uses it.
        unsafe { elsewhere.free(second) }.unwrap();
        if second.start() == first.start() {
            return;
        }
    }
    skip("addresses reused elsewhere", "the driver gave no address a second time in 50 tries");
}

#[test]
fn page_locked_memory_is_used_again() {
    let Some(device) = device("the page-locked pool") else { return };
    let Some(module) = kernels("the page-locked pool", &device) else { return };
    // A length that no other test asks for.
    const LEN: u64 = 37 << 20;
    let (first, spare) = (device.pinned(LEN).unwrap(), device.pinned(LEN).unwrap());
    let region = first.region();
    assert_eq!((region.space(), region.len()), (Space::Pinned, LEN));
    assert_eq!(space_at(&device, region.start()), Some(Space::Pinned));
    drop(first);
    let second = device.pinned(LEN - 5000).unwrap();
    assert_eq!(second.region().start(), region.start());
    // While work uses it, it is nobody's.
    let until = function(&module, c"until");
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let stream = device.stream().unwrap();
    // SAFETY: the kernel reads the flag, which lives until the stream is finished.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let work = stream.record().unwrap();
    second.give_back_after(work.clone());
    let spare_at = spare.region().start();
    drop(spare);
    let third = device.pinned(LEN).unwrap();
    assert_eq!(third.region().start(), spare_at);
    flag.set(1);
    wait(&work);
    let fourth = device.pinned(LEN).unwrap();
    assert_eq!(fourth.region().start(), region.start());
}

/// A shared mapping of a memfd, and the descriptor for mapping it again.
struct Shared {
    file: OwnedFd,
    at: *mut std::ffi::c_void,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Shared {
        let file =
            rustix::fs::memfd_create("gapless-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, len as u64).unwrap();
        Shared::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> Shared {
        use rustix::mm::{MapFlags, ProtFlags};
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping wherever the kernel likes.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, &file, 0)
        };
        Shared { at: at.unwrap(), file, len }
    }

    fn region(&self) -> Region {
        Region::new(Space::Host, self.at.expose_provenance() as u64, 0, self.len as u64)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0u8; self.len];
        // SAFETY: the mapping lives, and nothing writes it now.
        unsafe { gapless_mem::read(&self.region(), 0, &mut bytes) }.unwrap();
        bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nothing uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

#[test]
fn a_shared_segment_is_registered_and_reached() {
    let Some(device) = device("registered segments") else { return };
    let Some(module) = kernels("registered segments", &device) else { return };
    let segment = Shared::new(1 << 20);
    let whole = segment.region();
    let again = Shared::map(segment.file.try_clone().unwrap(), segment.len);
    assert!(device.device_address(whole).is_err(), "not registered yet");
    assert_eq!(space_at(&device, whole.start()), None);
    // SAFETY: it stays mapped until it is unregistered, twice.
    unsafe { device.register(whole) }.unwrap();
    // SAFETY: as above.
    unsafe { device.register(whole) }.unwrap();
    assert_eq!(space_at(&device, whole.start() + 4096), Some(Space::Pinned));
    let bytes = pattern(1 << 20, 77);
    let mut memory = Memory::on(&device, 1 << 20);
    write(&device, memory.region(), &bytes);
    crate::gpu::copy(&device, whole, memory.region());
    assert!(again.bytes() == bytes, "seen through another mapping");
    // A kernel works on it in place.
    let add = function(&module, c"add");
    let stream = device.stream().unwrap();
    let at = device.device_address(whole.sub(8192, 4096).unwrap()).unwrap();
    let arguments = [Argument::of(&at), Argument::of(&1024u32), Argument::of(&1u32)];
    // SAFETY: the kernel changes 4096 bytes of the segment, which stays registered until it ends.
    unsafe { add.launch(&stream, Grid::line(4, 256), &arguments) }.unwrap();
    finish(&stream);
    let now = again.bytes();
    for number in 0..(1 << 18) {
        let at = 4 * number..4 * number + 4;
        let old = u32::from_ne_bytes(bytes[at.clone()].try_into().unwrap());
        let changed = u32::from((2048..3072).contains(&number));
        assert_eq!(now[at], old.wrapping_add(changed).to_ne_bytes(), "number {number}");
    }
    // SAFETY: nothing uses it.
    unsafe { device.unregister(whole) }.unwrap();
    assert!(device.device_address(whole).is_ok(), "registered once more than unregistered");
    // SAFETY: as above.
    unsafe { device.unregister(whole) }.unwrap();
    assert!(device.device_address(whole).is_err());
    assert_eq!(space_at(&device, whole.start() + 4096), None);
    // SAFETY: refused.
    assert!(unsafe { device.unregister(whole) }.is_err());
}

#[test]
fn memory_that_cannot_be_registered_is_refused() {
    let Some(device) = device("registering device memory") else { return };
    let mut memory = Memory::on(&device, 4096);
    // SAFETY: refused.
    let error = unsafe { device.register(memory.region()) }.unwrap_err();
    assert!(matches!(error, DeviceError::WrongSpace { .. }));
    let nowhere = Region::new(Space::Host, 4096, 0, 4096);
    // SAFETY: nothing is mapped there, which the driver notices.
    let error = unsafe { device.register(nowhere) }.unwrap_err();
    assert!(matches!(error, DeviceError::Failed { .. } | DeviceError::OutOfMemory { .. }));
    let ordinary = vec![0u8; 64];
    let error = device.device_address(Region::of(&ordinary)).unwrap_err();
    assert!(matches!(error, CudaError::Refused(DeviceError::WrongSpace { .. })), "{error}");
}

#[test]
fn filling() {
    let Some(device) = device("filling") else { return };
    let stream = device.stream().unwrap();
    let mut memory = Memory::on(&device, 4096);
    write(&device, memory.region(), &[1; 4096]);
    // SAFETY: the memory lives until the stream is finished.
    unsafe { device.fill_on(&stream, memory.region().sub(5, 100).unwrap(), 0xEE) }.unwrap();
    finish(&stream);
    let bytes = read(&device, memory.region());
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| { *byte == if (5..105).contains(&at) { 0xEE } else { 1 } })
    );
    let second = Arc::clone(&device);
    drop(memory);
    assert!(second.lost().is_none());
}
