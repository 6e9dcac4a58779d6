//! Messages in device memory between two processes, byte for byte, gaps included: packed by a kernel
//! into the slots of a transport and unpacked by a kernel out of its arrivals; and mapped by the
//! receiver, whose kernel reads the sender's packed buffer, or moves from the sender's layout to its
//! own.
//!
//! Whatever the engines of this machine are is tested: OpenCL (PoCL, in CI) over slots, CUDA over
//! slots and mappings. What cannot run says so.

mod mapped;
mod scene;
mod slots;

use scene::Lab;

/// Runs a test on a device, or says why not; in a child process, where the device is known to be there.
fn with(test: &str, lab: Result<Lab, String>, run: impl FnOnce(Lab)) {
    match lab {
        Ok(lab) => run(lab),
        Err(why) => gapless_btl_testkit::conformance::skip(test, &why),
    }
}

#[test]
fn opencl_messages_through_slots() {
    const TEST: &str = "opencl_messages_through_slots";
    with(TEST, Lab::opencl(), |lab| slots::arrive(TEST, &lab));
}

#[test]
fn opencl_sender_killed_in_between() {
    const TEST: &str = "opencl_sender_killed_in_between";
    with(TEST, Lab::opencl(), |lab| slots::sender_killed(TEST, &lab));
}

#[test]
fn opencl_receiver_killed_in_between() {
    const TEST: &str = "opencl_receiver_killed_in_between";
    with(TEST, Lab::opencl(), |lab| slots::receiver_killed(TEST, &lab));
}

#[test]
fn cuda_messages_through_slots() {
    const TEST: &str = "cuda_messages_through_slots";
    with(TEST, Lab::cuda(), |lab| slots::arrive(TEST, &lab));
}

#[test]
fn cuda_sender_killed_in_between() {
    const TEST: &str = "cuda_sender_killed_in_between";
    with(TEST, Lab::cuda(), |lab| slots::sender_killed(TEST, &lab));
}

#[test]
fn cuda_receiver_killed_in_between() {
    const TEST: &str = "cuda_receiver_killed_in_between";
    with(TEST, Lab::cuda(), |lab| slots::receiver_killed(TEST, &lab));
}

#[test]
fn cuda_messages_through_mappings() {
    const TEST: &str = "cuda_messages_through_mappings";
    with(TEST, Lab::cuda(), |lab| mapped::arrive(TEST, &lab));
}

#[test]
fn cuda_owner_killed_while_mapped() {
    const TEST: &str = "cuda_owner_killed_while_mapped";
    with(TEST, Lab::cuda(), |lab| mapped::owner_killed(TEST, &lab));
}
