//! Tests of the fake device.

use super::*;

#[test]
fn bytes_make_the_round_trip_only_when_polled() {
    let device = FakeDevice::with_delay(1, 3);
    let region = device.allocate(64).unwrap();
    let source = [9u8; 64];
    let mut back = [0u8; 64];
    // SAFETY: all three memories live until both completions below are ready.
    let up = unsafe { device.copy(region, Region::of(&source), &[]) }.unwrap();
    let to = Region::of_mut(&mut back);
    // SAFETY: as above; ordered after `up`.
    let down = unsafe { device.copy(to, region, &[up]) }.unwrap();
    assert!(!down.poll().unwrap());
    down.wait().unwrap();
    assert_eq!(back, source);
    // SAFETY: nothing is in flight.
    unsafe { device.free(region) }.unwrap();
}

#[test]
fn the_cpu_faults_on_it() {
    let device = FakeDevice::new(0);
    let region = device.allocate(4096).unwrap();
    assert!(region.as_ptr().is_none());
    // The kernel refuses to read it on our behalf as well, without killing us.
    let address = usize::try_from(region.start()).unwrap();
    let remote =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    let mut pipe = [0i32; 2];
    // SAFETY: `pipe` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: `writev` reads through the kernel, which answers EFAULT for PROT_NONE.
    let written = unsafe { libc::writev(pipe[1], &raw const remote, 1) };
    assert_eq!(written, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    for descriptor in pipe {
        // SAFETY: both were just opened here.
        unsafe { libc::close(descriptor) };
    }
}

#[test]
fn a_reused_address_has_another_buffer_id() {
    let device = FakeDevice::new(0);
    let first = device.allocate(4096).unwrap();
    let id = device.buffer_id(first).unwrap();
    // SAFETY: nothing uses it.
    unsafe { device.free(first) }.unwrap();
    assert_eq!(device.buffer_id(first), None);
    let second = device.allocate(4096).unwrap();
    assert_ne!(device.buffer_id(second).unwrap(), id);
    assert_eq!(device.locate(second.start()), Some(Space::Device { kind: "fake", device: 0 }));
}

#[test]
fn foreign_and_stray_regions_are_refused() {
    let device = FakeDevice::new(0);
    let region = device.allocate(16).unwrap();
    let longer = Region::new(region.space(), region.address(), 0, 17);
    assert!(matches!(device.alias(longer), Err(DeviceError::OutOfRange(_))));
    let other = Region::new(Space::Cuda { device: 0 }, region.address(), 0, 1);
    assert!(matches!(device.alias(other), Err(DeviceError::WrongSpace { .. })));
}

#[test]
fn another_device_sees_what_was_exported() {
    let (ours, theirs) = (FakeDevice::new(0), FakeDevice::new(7));
    let region = ours.allocate(5000).unwrap();
    let id = ours.buffer_id(region).unwrap();
    assert_eq!(ours.allocation(region.sub(4096, 10).unwrap()), Some(region));
    let export = ours.export(region.sub(100, 64).unwrap()).unwrap();
    let mapped = theirs.import(export).unwrap();
    assert_eq!((mapped.space(), mapped.len()), (theirs.space(), 64));
    assert_eq!(theirs.imported(), 1);
    let source = [3u8; 64];
    let mut back = [0u8; 64];
    // SAFETY: the memories live until the waits below, and nothing else touches them.
    let put = unsafe { theirs.copy(mapped, Region::of(&source), &[]) }.unwrap();
    put.wait().unwrap();
    let part = region.sub(100, 64).unwrap();
    // SAFETY: as above.
    let get = unsafe { ours.copy(Region::of_mut(&mut back), part, &[]) }.unwrap();
    get.wait().unwrap();
    assert_eq!(back, source);
    assert!(theirs.export(mapped).is_err(), "what was imported is not exported again");
    // SAFETY: refused: it is not this device's to free.
    assert!(unsafe { theirs.free(mapped) }.is_err());
    // SAFETY: refused: it was not imported.
    assert!(unsafe { ours.release(region) }.is_err());
    // SAFETY: nothing uses it any more.
    unsafe { theirs.release(mapped) }.unwrap();
    assert_eq!(theirs.imported(), 0);
    assert_eq!(ours.buffer_id(region), Some(id));
}

#[test]
fn exports_that_lie_are_refused() {
    let device = FakeDevice::new(0);
    let region = device.allocate(64).unwrap();
    let good = || device.export(region).unwrap();
    for at in 0..good().bytes.len() {
        let mut export = good();
        export.bytes.truncate(at);
        assert!(device.import(export).is_err(), "{at} bytes");
    }
    for (at, byte) in [(0, b'?'), (15, 0xff), (23, 0xff), (31, 0xff), (8, 63)] {
        let mut export = good();
        export.bytes[at] = byte;
        assert!(device.import(export).is_err(), "byte {at}");
    }
    let bare = Export { descriptors: Vec::new(), ..good() };
    assert!(device.import(bare).is_err());
    assert_eq!(device.imported(), 0);
    assert!(device.export(Region::new(region.space(), region.address(), 0, 65)).is_err());
    assert!(device.export(Region::new(Space::Host, region.address(), 0, 1)).is_err());
}

#[test]
fn pinned_memory_must_be_registered() {
    let device = FakeDevice::new(0);
    let region = device.allocate(8).unwrap();
    let page = vec![1u8; 8192];
    let whole = Region::of(&page);
    let pinned = Region::new(Space::Pinned, whole.address(), 16, 8);
    assert!(device.alias(pinned).is_err());
    // SAFETY: `page` outlives the registration.
    unsafe { device.register(whole) }.unwrap();
    assert_eq!(device.registered(), [(whole.start(), 8192)]);
    // SAFETY: both live until the copy has ended, below.
    unsafe { device.copy(region, pinned, &[]) }.unwrap().wait().unwrap();
    // SAFETY: nothing is under way.
    unsafe { device.unregister(whole) }.unwrap();
    assert!(device.registered().is_empty() && device.alias(pinned).is_err());
    // SAFETY: refused.
    assert!(unsafe { device.unregister(whole) }.is_err());
}
