//! What goes wrong, and that it is said in one line.

use crate::gpu::{device, function, kernels, space_at, wait};
use crate::kin::{Kin, hear, part, say};
use gapless_mem::Device;
use gapless_mem_cuda::{CudaDriver, CudaError, Grid};

#[test]
fn a_machine_without_cuda_is_told_in_one_line() {
    match CudaDriver::load() {
        Ok(driver) => {
            assert!(driver.devices() > 0);
            assert!(driver.version() >= (12, 4));
        }
        Err(why) => {
            assert!(
                matches!(why, CudaError::NoDriver { .. } | CudaError::NoDevice),
                "there is a driver and it fails: {why}"
            );
            assert!(!why.to_string().contains('\n'), "{why}");
            assert_eq!(CudaDriver::load().unwrap_err(), why, "the same every time");
        }
    }
}

#[test]
fn a_wrong_ordinal_is_told_with_the_right_ones() {
    let Some(_device) = device("wrong ordinals") else { return };
    let driver = CudaDriver::load().unwrap();
    let count = driver.devices();
    for ordinal in [count, u32::MAX] {
        let error = driver.device(ordinal).unwrap_err();
        assert_eq!(error, CudaError::WrongOrdinal { ordinal, count });
    }
}

#[test]
fn hidden_devices_are_no_devices() {
    const TEST: &str = "failing::hidden_devices_are_no_devices";
    if part().is_some() {
        say(&CudaDriver::load().unwrap_err().to_string());
        return;
    }
    let Some(_device) = device("hidden devices") else { return };
    let mut other = Kin::start(TEST, "blind", &[("CUDA_VISIBLE_DEVICES", "-1")]);
    assert_eq!(other.hear(), CudaError::NoDevice.to_string());
}

#[test]
fn an_illegal_address_loses_the_device_for_its_process_only() {
    const TEST: &str = "failing::an_illegal_address_loses_the_device_for_its_process_only";
    let Some(device) = device("sticky errors") else { return };
    let Some(module) = kernels("sticky errors", &device) else { return };
    if part().is_none() {
        let mut other = Kin::start(TEST, "wrongdoer", &[]);
        let said = other.hear();
        assert!(said.contains("is lost to this process"), "{said}");
        other.tell("end");
        assert_eq!(other.hear(), "ending");
        // This process can go on.
        let region = device.allocate(4096).unwrap();
        // SAFETY: nothing uses it.
        unsafe { device.free(region) }.unwrap();
        return;
    }
    let before = device.allocate(4096).unwrap();
    let stream = device.stream().unwrap();
    let earlier = stream.record().unwrap();
    wait(&earlier);
    let wrong = function(&module, c"wrong");
    // SAFETY: it is not: that is the test. The process ends with it.
    unsafe { wrong.launch(&stream, Grid::line(1, 1), &[]) }.unwrap();
    let work = stream.record().unwrap();
    let error = loop {
        match work.poll() {
            Ok(true) => panic!("it ended well"),
            Ok(false) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(device.lost(), Some(CudaError::Sticky { .. })));
    assert_eq!(work.poll().unwrap_err(), error, "the same when asked again");
    assert!(earlier.poll().unwrap(), "what had ended stays so");
    assert_eq!(device.allocate(64).unwrap_err(), error);
    assert_eq!(device.export(before).unwrap_err(), error);
    assert_eq!(space_at(&device, before.start()), None);
    // SAFETY: nothing uses it.
    assert_eq!(unsafe { device.free(before) }.unwrap_err(), error);
    drop((work, earlier, stream));
    say(&error.to_string());
    assert_eq!(hear(), "end");
    say("ending");
}
