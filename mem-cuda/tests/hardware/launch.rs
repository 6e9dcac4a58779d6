//! Kernels: loading, properties, launching, and what is refused.

use crate::gpu::{Memory, PTX, device, finish, function, kernels, read, write};
use gapless_mem_cuda::{Argument, CudaError, Grid, Module, PARAMETERS_MAX};

#[test]
fn a_kernel_does_what_it_is_for() {
    let Some(device) = device("launches") else { return };
    let Some(module) = kernels("launches", &device) else { return };
    let add = function(&module, c"add");
    let stream = device.stream().unwrap();
    let count = 100_000u32;
    let mut numbers = Memory::on(&device, 4 * u64::from(count) + 4);
    let before: Vec<u8> = (0..=count).flat_map(u32::to_ne_bytes).collect();
    write(&device, numbers.region(), &before);
    let at = numbers.region().start();
    let arguments = [Argument::of(&at), Argument::of(&count), Argument::of(&7u32)];
    // SAFETY: the kernel changes `count` numbers of `numbers`, which live until it is finished.
    unsafe { add.launch(&stream, Grid::line(count.div_ceil(256), 256), &arguments) }.unwrap();
    finish(&stream);
    let expected: Vec<u8> =
        (0..count).map(|n| n + 7).chain([count]).flat_map(u32::to_ne_bytes).collect();
    assert!(read(&device, numbers.region()) == expected);
}

#[test]
fn what_a_kernel_needs() {
    let Some(device) = device("kernel properties") else { return };
    let Some(module) = kernels("kernel properties", &device) else { return };
    let add = function(&module, c"add");
    let properties = add.properties().unwrap();
    let (major, minor) = device.capability();
    assert_eq!(properties.architecture, 10 * major + minor);
    assert!(properties.registers > 0 && properties.threads_max >= 256, "{properties:?}");
    assert_eq!((properties.spilled_bytes, properties.shared_bytes), (0, 0));
    assert_eq!(add.parameters().unwrap(), [8, 4, 4]);
    let small = add.blocks_per_unit(256, 0).unwrap();
    let hungry = add.blocks_per_unit(256, 40 << 10).unwrap();
    assert!(small > hungry && hungry > 0, "{small} and {hungry}");
    add.allow_shared(64 << 10).unwrap();
    assert!(add.allow_shared(64 << 20).is_err());
}

#[test]
fn wrong_launches_are_refused_and_harm_nothing() {
    let Some(device) = device("wrong launches") else { return };
    let Some(module) = kernels("wrong launches", &device) else { return };
    let error = module.function(c"absent").unwrap_err();
    assert!(matches!(error, CudaError::Failed { operation: "cuModuleGetFunction", .. }), "{error}");
    let add = function(&module, c"add");
    let stream = device.stream().unwrap();
    let number = 0u32;
    let many = [Argument::of(&number); PARAMETERS_MAX + 1];
    // SAFETY: refused before anything is launched.
    let error = unsafe { add.launch(&stream, Grid::line(1, 1), &many) }.unwrap_err();
    assert!(matches!(error, CudaError::Malformed { .. }), "{error}");
    let (at, count, value) = (0u64, 0u32, 0u32);
    let arguments = [Argument::of(&at), Argument::of(&count), Argument::of(&value)];
    for (blocks, threads) in [(0, 32), (1, 0), (1, 4096)] {
        // SAFETY: refused by the driver; it would touch nothing either.
        let refused = unsafe { add.launch(&stream, Grid::line(blocks, threads), &arguments) };
        assert!(refused.is_err(), "{blocks} blocks of {threads} threads");
    }
    // SAFETY: the kernel touches nothing.
    unsafe { add.launch(&stream, Grid::line(1, 1), &arguments) }.unwrap();
    finish(&stream);
}

#[test]
fn wrong_images_are_refused() {
    let Some(device) = device("wrong kernel images") else { return };
    // SAFETY: none of these is loaded.
    let error = unsafe { Module::load(&device, b"\x7fELF but not really") }.unwrap_err();
    assert!(matches!(error, CudaError::Image { .. }), "{error}");
    let broken = PTX.replace("ret;", "rat;");
    // SAFETY: the driver's compiler refuses it.
    let error = unsafe { Module::load(&device, broken.as_bytes()) }.unwrap_err();
    assert!(matches!(error, CudaError::Failed { operation: "cuModuleLoadData", .. }), "{error}");
}
