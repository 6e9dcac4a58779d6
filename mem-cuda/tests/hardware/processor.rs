//! Memory of a GPU, mapped for the processor by Vulkan. Where Vulkan does not know the GPU, that is said, and skipped.

use crate::gpu::{Flag, device, finish, function, kernels, read, skip};
use gapless_mem::{Device, DeviceError, Export, Lease, Mapper, ProcessorMapping, settle_stores};
use gapless_mem_cuda::{Argument, CudaDevice, Grid, ProcessorMapper};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: u64 = 4 << 20;

/// A mapper that knows the device.
fn mapper(device: &CudaDevice, what: &str) -> Option<Arc<dyn Mapper>> {
    let mapper = ProcessorMapper::new();
    match mapper.probe(device.uuid()) {
        Ok(library) => println!("by {library}"),
        Err(why) => {
            skip(what, &why);
            return None;
        }
    }
    Some(Arc::new(mapper))
}

/// Maps so many bytes, and waits for that.
fn mapped(mapper: &Arc<dyn Mapper>, export: Export, len: u64) -> Result<Lease, DeviceError> {
    let thread = std::thread::current();
    let bell = Arc::new(move || thread.unpark());
    let mut mapping = ProcessorMapping::begin(mapper, export, len, bell);
    let start = Instant::now();
    loop {
        match mapping.take() {
            Some(known) => return known,
            None => assert!(start.elapsed() < Duration::from_secs(60), "it is not known"),
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn what_the_processor_stores_is_what_the_device_reads() {
    let what = "memory of a GPU, mapped for the processor";
    let Some(device) = device(what) else { return };
    let Some(mapper) = mapper(&device, what) else { return };
    let memory = device.allocate_shareable(BYTES).unwrap();
    let part = memory.sub(BYTES / 2 + 4096, 8192).unwrap();
    let lease = mapped(&mapper, device.export(part).unwrap(), 8192).unwrap();
    let place = lease.region();
    assert_eq!((place.len(), place.space().cpu_accessible()), (8192, true));
    for round in 0..200u8 {
        let bytes: Vec<u8> = (0..8192u32).map(|at| round ^ at.to_le_bytes()[0]).collect();
        // SAFETY: the mapping is this test's, and nothing else touches the memory.
        unsafe { gapless_mem::write(&place, 0, &bytes) }.unwrap();
        settle_stores();
        assert!(read(&device, part) == bytes, "round {round}");
    }
    // It outlives its owner's.
    // SAFETY: no work is under way.
    unsafe { device.free(memory) }.unwrap();
    // SAFETY: as above.
    unsafe { gapless_mem::write(&place, 0, &[7; 64]) }.unwrap();
    let mut back = [0; 64];
    // SAFETY: likewise.
    unsafe { gapless_mem::read(&place, 0, &mut back) }.unwrap();
    assert_eq!(back, [7; 64]);
    drop(lease);
    // SAFETY: it is not mapped.
    assert!(unsafe { mapper.unmap(place) }.is_err());
}

/// A peer that says another length than its descriptor's, another GPU, or nonsense, gets an error.
#[test]
fn what_peers_make_up_is_refused() {
    let what = "lies about memory of a GPU for the processor";
    let Some(device) = device(what) else { return };
    let Some(mapper) = mapper(&device, what) else { return };
    let memory = device.allocate_shareable(BYTES).unwrap();
    let export = device.export(memory).unwrap();
    let with = |bytes: Vec<u8>, len: u64| {
        let descriptors = export.descriptors.iter().map(|file| file.try_clone().unwrap()).collect();
        mapped(&mapper, Export { bytes, descriptors }, len)
    };
    let of_size = |size: u64| {
        let mut bytes = export.bytes.clone();
        bytes[24..32].copy_from_slice(&size.to_le_bytes());
        bytes[48..56].copy_from_slice(&4096u64.to_le_bytes());
        with(bytes, 4096)
    };
    for size in [BYTES + (2 << 20), 2 * BYTES, 1 << 40] {
        let refused = of_size(size);
        assert!(refused.is_err(), "{size} bytes of {BYTES}: {refused:?}");
    }
    // Less is there, whatever the driver says to that.
    drop(of_size(BYTES / 2));
    let mut other = export.bytes.clone();
    other[60] ^= 1;
    let refused = with(other, BYTES);
    assert!(refused.is_err(), "another GPU: {refused:?}");
    assert!(with(vec![1; 136], BYTES).is_err());
    // What the owner has exported, and another length than it says.
    assert!(with(export.bytes.clone(), BYTES / 2).is_err());
    let null = std::fs::File::open("/dev/null").unwrap().into();
    let export = Export { bytes: export.bytes.clone(), descriptors: vec![null] };
    let refused = mapped(&mapper, export, BYTES);
    assert!(refused.is_err(), "{refused:?}");
    // What cuMemAlloc gave has no descriptor.
    let plain = device.allocate(4096).unwrap();
    assert!(mapped(&mapper, device.export(plain).unwrap(), 4096).is_err());
    // SAFETY: no work is under way.
    unsafe { device.free(plain) }.unwrap();
    // It still works.
    drop(mapped(&mapper, device.export(memory).unwrap(), BYTES).unwrap());
    // SAFETY: no work is under way.
    unsafe { device.free(memory) }.unwrap();
}

/// Mapping waits for nothing that runs on the GPU.
#[test]
fn it_is_mapped_beside_a_kernel_that_stays() {
    let what = "mapping memory for the processor beside a kernel that stays";
    let Some(device) = device(what) else { return };
    let Some(first) = mapper(&device, what) else { return };
    let memory = device.allocate_shareable(BYTES).unwrap();
    let Some(module) = kernels(what, &device) else { return };
    let until = function(&module, c"until");
    let (flag, stream) = (Flag::new(&device), device.stream().unwrap());
    // SAFETY: the kernel reads the flag, which lives until it has ended.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag.address(&device))]) }
        .unwrap();
    let begun = Instant::now();
    let lease = mapped(&first, device.export(memory).unwrap(), BYTES).unwrap();
    ProcessorMapper::new().probe(device.uuid()).unwrap();
    drop((lease, first));
    // The kernel gives up after 20 s.
    assert!(!stream.is_idle().unwrap(), "{:?}", begun.elapsed());
    flag.set(1);
    finish(&stream);
    // SAFETY: no work is under way.
    unsafe { device.free(memory) }.unwrap();
}
