//! What is held of OpenCL is counted right. The counts are a process's, so this is its only test.

use gapless_mem::{Device, Region, Space};
use gapless_mem_opencl::{OpenClDevice, counts, detect};

#[test]
fn what_is_freed_is_not_held() {
    if let Err(why) = detect() {
        assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {why}");
        return gapless_testkit::skip("OpenCL counts", &why.to_string());
    }
    let device = OpenClDevice::open(0).unwrap();
    let held = || counts().buffers.held;
    let before = held();
    let whole = device.allocate(16_384).unwrap();
    let half = whole.sub(8_192, 8_192).unwrap();
    // SAFETY: the part is freed first.
    let part = unsafe { device.sub_buffer(half) }.unwrap();
    assert_eq!(held(), before + 2);
    // An address of the host's is no handle, though it is as large as one.
    let host = Region::new(Space::Host, whole.address(), 0, 64);
    // SAFETY: refused before anything is touched.
    assert!(unsafe { device.sub_buffer(host) }.is_err());
    // SAFETY: no work was begun.
    unsafe { device.free(part) }.unwrap();
    // SAFETY: as above.
    unsafe { device.free(whole) }.unwrap();
    assert_eq!(held(), before);
    // Nothing lies at an address that no memory has.
    let nothing = Region::new(Space::Host, 4_096, 0, 0);
    // SAFETY: no byte of memory is promised.
    unsafe { device.register(nothing) }.unwrap();
    // SAFETY: as above.
    unsafe { device.unregister(nothing) }.unwrap();
    assert_eq!(held(), before);
    // SAFETY: as above.
    let empty = unsafe { device.wrap(nothing) }.unwrap();
    assert!(empty.is_empty() && device.alignment_bits(&empty) == 0);
    // SAFETY: no work was begun.
    unsafe { device.free(empty) }.unwrap();
    assert_eq!(held(), before);
}
