//! Two devices of one machine.

use crate::gpu::{
    Memory, Turn, copy, device, finish, function, kernels, pattern, read, skip, space_at, write,
};
use crate::kin::{Kin, hear, hex, part, say, unhex};
use gapless_mem::{Device, DeviceError, Export, Region, Space};
use gapless_mem_cuda::{Argument, CudaDevice, CudaDriver, CudaError, Grid, Stream};
use std::sync::Arc;

/// Devices 0 and 1, or the test is skipped.
fn pair(test: &str) -> Option<(Turn, Arc<CudaDevice>)> {
    let first = device(test)?;
    let driver = CudaDriver::load().unwrap();
    if driver.devices() < 2 {
        skip(test, "only one device");
        return None;
    }
    Some((first, Arc::new(driver.device(1).unwrap())))
}

#[test]
fn one_device_is_no_pair() {
    let Some(device) = device("peer access to nobody") else { return };
    assert!(device.can_access(0).unwrap());
    device.enable_peer(0).unwrap();
    let count = CudaDriver::load().unwrap().devices();
    let wrong = CudaError::WrongOrdinal { ordinal: count, count };
    assert_eq!(device.can_access(count).unwrap_err(), wrong);
    assert_eq!(device.enable_peer(count).unwrap_err(), wrong);
    assert!(!device.reaches(Space::Cuda { device: count }));
}

#[test]
fn copies_between_devices() {
    let Some((first, second)) = pair("copies between devices") else { return };
    const LEN: usize = 5 << 20;
    let mut here = Memory::on(&first, LEN as u64);
    let mut there = Memory::on(&second, LEN as u64);
    assert_eq!(space_at(&first, there.region().start()), Some(Space::Cuda { device: 1 }));
    assert_ne!(first.uuid(), second.uuid());
    for (seed, device) in [(1u64, &*first), (2, &second)] {
        let bytes = pattern(LEN, seed);
        write(&first, here.region(), &bytes);
        copy(device, there.region(), here.region());
        assert!(read(&second, there.region()) == bytes, "through {device:?}");
        let bytes = pattern(LEN, seed + 10);
        write(&second, there.region(), &bytes);
        copy(device, here.region(), there.region());
        assert!(read(&first, here.region()) == bytes, "back through {device:?}");
    }
    // SAFETY: refused.
    let error = unsafe { first.free(there.region()) }.unwrap_err();
    assert!(matches!(error, DeviceError::WrongSpace { .. }));
}

#[test]
fn kernels_work_on_the_other_devices_memory() {
    let Some((first, second)) = pair("kernels on another device's memory") else { return };
    let Some(module) = kernels("kernels on another device's memory", &first) else { return };
    if !first.can_access(1).unwrap() {
        skip("kernels on another device's memory", "no link between devices 0 and 1");
        return;
    }
    first.enable_peer(1).unwrap();
    first.enable_peer(1).unwrap();
    let add = function(&module, c"add");
    let stream = first.stream().unwrap();
    let shareable = second.allocate_shareable(4096).unwrap();
    for mut memory in [Memory::on(&second, 4096), Memory::Own(Arc::clone(&second), shareable)] {
        write(&second, memory.region(), &[1; 4096]);
        let at = first.device_address(memory.region()).unwrap();
        let arguments = [Argument::of(&at), Argument::of(&1024u32), Argument::of(&0x0101_0101u32)];
        // SAFETY: the kernel changes the memory, which lives until the stream is finished.
        unsafe { add.launch(&stream, Grid::line(4, 256), &arguments) }.unwrap();
        finish(&stream);
        assert_eq!(read(&second, memory.region()), vec![2; 4096]);
    }
    // A kernel of one device is not launched on the other's stream.
    let wrong = second.stream().unwrap();
    // SAFETY: refused.
    let error = unsafe { add.launch(&wrong, Grid::line(1, 1), &[]) }.unwrap_err();
    assert!(matches!(error, CudaError::Malformed { .. }), "{error}");
}

/// Memory of the second device that the first one was not given: of its pool, and mapped for it alone.
fn not_given(second: &Arc<CudaDevice>, stream: &Stream) -> [Region; 2] {
    let pool = stream.allocate(LEN as u64).unwrap();
    finish(stream);
    [pool, second.allocate_shareable_for(LEN as u64, &[1]).unwrap()]
}

const LEN: usize = 4 << 20;

#[test]
fn memory_that_was_not_given_is_refused_and_nothing_breaks() {
    let Some((first, second)) = pair("memory that was not given") else { return };
    let stream = second.stream().unwrap();
    let [pool, mapped] = not_given(&second, &stream);
    first.enable_peer(1).unwrap();
    for region in [pool, mapped] {
        for part in [region, region.sub(LEN as u64 - 1, 1).unwrap()] {
            assert_eq!(second.device_address(part).unwrap(), part.start());
            let error = first.device_address(part).unwrap_err();
            let refused = CudaError::Refused(DeviceError::OutOfReach {
                device: "cuda:0".to_owned(),
                address: part.start(),
                space: Space::Cuda { device: 1 },
            });
            assert_eq!(error, refused);
        }
    }
    // What others may use too, and what each has by itself.
    let given = second.allocate_shareable_for(4096, &[0, 1]).unwrap();
    let plain = second.allocate(4096).unwrap();
    for region in [given, plain] {
        assert_eq!(first.device_address(region).unwrap(), region.start());
    }
    for region in [mapped, given, plain] {
        // SAFETY: nothing uses it.
        unsafe { second.free(region) }.unwrap();
    }
    // SAFETY: as above.
    unsafe { stream.free(pool) }.unwrap();
    finish(&stream);
    assert!(first.lost().is_none() && second.lost().is_none());
}

#[test]
fn copies_of_memory_that_was_not_given_are_right_or_refused() {
    let Some((first, second)) = pair("copies of memory that was not given") else { return };
    let stream = second.stream().unwrap();
    let both = not_given(&second, &stream);
    let mut here = Memory::on(&first, LEN as u64);
    for (seed, region) in (40..).zip(both) {
        let bytes = pattern(LEN, seed);
        write(&second, region, &bytes);
        write(&first, here.region(), &bytes);
        for (into, from) in [(here.region(), region), (region, here.region())] {
            // SAFETY: both live until the copy has ended, and nothing else touches them.
            match unsafe { first.copy(into, from, &[]) } {
                Ok(done) => crate::gpu::wait(&done),
                Err(error) => assert!(matches!(error, DeviceError::Failed { .. }), "{error}"),
            }
            assert!(read(&first, here.region()) == bytes && read(&second, region) == bytes);
        }
    }
    let [pool, mapped] = both;
    // SAFETY: nothing uses them.
    unsafe { second.free(mapped) }.unwrap();
    // SAFETY: as above.
    unsafe { stream.free(pool) }.unwrap();
    finish(&stream);
    assert!(first.lost().is_none() && second.lost().is_none());
}

#[test]
fn order_across_devices() {
    let Some((first, second)) = pair("order across devices") else { return };
    let Some(module) = kernels("order across devices", &first) else { return };
    let until = function(&module, c"until");
    let flag = crate::gpu::Flag::new(&first);
    let flag_at = flag.address(&first);
    let stream = first.stream().unwrap();
    let mut memory = Memory::on(&second, 4096);
    let source = second.pinned(4096).unwrap();
    write(&second, source.region(), &[7; 4096]);
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let work = stream.record().unwrap();
    // SAFETY: both live until the copy is waited for.
    let done = unsafe { second.copy(memory.region(), source.region(), &[work]) }.unwrap();
    assert!(!done.poll().unwrap());
    flag.set(1);
    crate::gpu::wait(&done);
    assert_eq!(read(&second, memory.region()), vec![7; 4096]);
    finish(&stream);
}

#[test]
fn memory_is_mapped_by_a_process_on_another_device() {
    const TEST: &str = "peers::memory_is_mapped_by_a_process_on_another_device";
    const LEN: usize = 1 << 20;
    let Some((first, second)) = pair("another device's memory in another process") else { return };
    if part().is_some() {
        let export = Export { bytes: unhex(&hear()), descriptors: Vec::new() };
        let region = second.import(export).unwrap();
        assert_eq!(region.space(), second.space(), "the device that can reach it");
        assert!(read(&second, region) == pattern(LEN, 31));
        let mut local = Memory::on(&second, LEN as u64);
        write(&second, local.region(), &pattern(LEN, 32));
        copy(&second, region, local.region());
        // SAFETY: nothing uses it any more.
        unsafe { second.release(region) }.unwrap();
        say("done");
        return;
    }
    let mut memory = Memory::on(&first, LEN as u64);
    write(&first, memory.region(), &pattern(LEN, 31));
    let mut other = Kin::start(TEST, "importer", &[]);
    other.tell(&hex(&first.export(memory.region()).unwrap().bytes));
    assert_eq!(other.hear(), "done");
    assert!(read(&first, memory.region()) == pattern(LEN, 32));
}
