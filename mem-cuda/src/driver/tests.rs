pub(crate) mod fake;

use super::*;
use fake::State;

#[test]
fn an_old_driver_is_refused_before_it_is_started() {
    fake::set(State { version: 11080, init: 3, ..State::default() });
    let error = Driver::start(fake::api()).err().unwrap();
    assert_eq!(error, CudaError::DriverTooOld { found: 11080, needed: OLDEST });
}

#[test]
fn a_driver_without_devices_says_so() {
    fake::set(State { init: code::NO_DEVICE, ..State::default() });
    assert_eq!(Driver::start(fake::api()).err().unwrap(), CudaError::NoDevice);
}

#[test]
fn a_stub_counts_as_no_driver() {
    fake::set(State { init: code::STUB_LIBRARY, ..State::default() });
    assert!(matches!(Driver::start(fake::api()), Err(CudaError::NoDriver { .. })));
}

#[test]
fn other_refusals_carry_the_drivers_words_or_the_number() {
    fake::set(State { init: 999, ..State::default() });
    let error = Driver::start(fake::api()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the CUDA driver: cuInit failed: the text of 999 (CUDA_ERROR_NAMED, 999)"
    );
    let mute = Driver::of(Api::refusing());
    assert_eq!(mute.describe(12345), "CUDA error 12345");
}
