//! Order across streams, devices' and others' work, and the user's streams.

use crate::gpu::{Flag, Memory, device, finish, function, kernels, read, wait, write};
use gapless_mem::{Completion, Device, Region, fake::FakeDevice};
use gapless_mem_cuda::{Argument, Grid};

#[test]
fn later_work_waits_for_earlier_work_on_other_streams() {
    let Some(device) = device("order across streams") else { return };
    let Some(module) = kernels("order across streams", &device) else { return };
    let (add, until) = (function(&module, c"add"), function(&module, c"until"));
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let mut numbers = Memory::on(&device, 4 * 256);
    write(&device, numbers.region(), &[0; 1024]);
    let at = numbers.region().start();
    let streams: Vec<_> = (0..5).map(|_| device.stream().unwrap()).collect();
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&streams[0], Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let mut last = streams[0].record().unwrap();
    for round in 0..60usize {
        let stream = &streams[round % streams.len()];
        stream.wait_for(&[last]).unwrap();
        let arguments = [Argument::of(&at), Argument::of(&256u32), Argument::of(&1u32)];
        // SAFETY: the kernel changes `numbers`, in order with all others that do.
        unsafe { add.launch(stream, Grid::line(2, 128), &arguments) }.unwrap();
        last = stream.record().unwrap();
    }
    let mut back = vec![0u8; 1024];
    let to = Region::of_mut(&mut back);
    // SAFETY: both live until the copy is waited for.
    let down = unsafe { device.copy(to, numbers.region(), &[]) };
    // A copy that is told nothing need not see anything; one that comes after `last` sees all.
    wait(&down.unwrap());
    assert!(!last.poll().unwrap(), "the first kernel still waits for the flag");
    flag.set(1);
    wait(&last);
    // SAFETY: as above.
    let down = unsafe { device.copy(to, numbers.region(), &[last]) };
    wait(&down.unwrap());
    assert!(back.chunks(4).all(|number| number == 60u32.to_ne_bytes()), "{:?}", &back[..16]);
}

#[test]
fn copies_wait_for_kernels_and_kernels_for_copies() {
    let Some(device) = device("copies between kernels") else { return };
    let Some(module) = kernels("copies between kernels", &device) else { return };
    let (add, until) = (function(&module, c"add"), function(&module, c"until"));
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let stream = device.stream().unwrap();
    let (mut a, mut b) = (Memory::on(&device, 4096), Memory::on(&device, 4096));
    write(&device, a.region(), &[0; 4096]);
    write(&device, b.region(), &[9; 4096]);
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let launch = |at: u64, value: u32| {
        let arguments = [Argument::of(&at), Argument::of(&1024u32), Argument::of(&value)];
        // SAFETY: the kernel changes 4096 bytes at `at`, in order with all others that do.
        unsafe { add.launch(&stream, Grid::line(4, 256), &arguments) }.unwrap();
        stream.record().unwrap()
    };
    let first = launch(a.region().start(), 5);
    // SAFETY: both live until everything is finished.
    let over = unsafe { device.copy(b.region(), a.region(), &[first]) }.unwrap();
    stream.wait_for(std::slice::from_ref(&over)).unwrap();
    let second = launch(b.region().start(), 7);
    assert!(!over.poll().unwrap() && !second.poll().unwrap());
    flag.set(1);
    wait(&second);
    assert!(over.poll().unwrap(), "what came before has ended too");
    let numbers = read(&device, b.region());
    assert!(numbers.chunks(4).all(|number| number == 12u32.to_ne_bytes()));
}

#[test]
fn our_streams_do_not_wait_for_the_default_stream() {
    let Some(device) = device("the default stream") else { return };
    let Some(module) = kernels("the default stream", &device) else { return };
    let until = function(&module, c"until");
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let mut memory = Memory::on(&device, 64);
    let bytes = [3u8; 64];
    // SAFETY: the null handle is the default stream, which lives as long as the context.
    let default = unsafe { device.adopt_stream(std::ptr::null_mut()) };
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&default, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    // SAFETY: both live until the copy is waited for.
    let up = unsafe { device.copy(memory.region(), Region::of(&bytes), &[]) }.unwrap();
    wait(&up);
    assert!(!default.is_idle().unwrap(), "the default stream still waits for the flag");
    flag.set(1);
    finish(&default);
    assert_eq!(read(&device, memory.region()), bytes);
}

#[test]
fn the_users_streams_are_ordered_like_ours() {
    let Some(device) = device("the user's streams") else { return };
    let Some(module) = kernels("the user's streams", &device) else { return };
    let (add, until) = (function(&module, c"add"), function(&module, c"until"));
    let owner = device.stream().unwrap();
    // SAFETY: `owner` outlives it.
    let users = unsafe { device.adopt_stream(owner.handle()) };
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let mut numbers = Memory::on(&device, 4096);
    let bytes = vec![1u8; 4096];
    // SAFETY: `numbers` and `bytes` live until everything is finished.
    let up = unsafe { device.copy(numbers.region(), Region::of(&bytes), &[]) }.unwrap();
    // SAFETY: the kernel reads the flag, which lives until everything is finished.
    unsafe { until.launch(&users, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    users.wait_for(&[up]).unwrap();
    let at = numbers.region().start();
    let arguments = [Argument::of(&at), Argument::of(&1024u32), Argument::of(&0x0202_0202u32)];
    // SAFETY: the kernel changes `numbers`, after the copy.
    unsafe { add.launch(&users, Grid::line(4, 256), &arguments) }.unwrap();
    let done = users.record().unwrap();
    drop(users);
    assert!(!done.poll().unwrap());
    flag.set(1);
    wait(&done);
    assert!(owner.is_idle().unwrap(), "the user's stream lives on");
    assert_eq!(read(&device, numbers.region()), vec![3u8; 4096]);
}

#[test]
fn other_vendors_work_is_waited_for() {
    let Some(device) = device("other vendors' work") else { return };
    let other = FakeDevice::with_delay(0, 50);
    let theirs = other.allocate(4096).unwrap();
    let (bytes, mut middle) = (vec![0x3Cu8; 4096], vec![0u8; 4096]);
    let between = Region::of_mut(&mut middle);
    // SAFETY: everything lives until the last copy is waited for.
    let first = unsafe { other.copy(theirs, Region::of(&bytes), &[]) }.unwrap();
    // SAFETY: as above.
    let second = unsafe { other.copy(between, theirs, &[first]) }.unwrap();
    let mut memory = Memory::on(&device, 4096);
    // SAFETY: as above.
    let third = unsafe { device.copy(memory.region(), between, &[Completion::Ready, second]) };
    wait(&third.unwrap());
    assert_eq!(read(&device, memory.region()), bytes);
    // SAFETY: nothing uses it any more.
    unsafe { other.free(theirs) }.unwrap();
}

#[test]
fn marks_measure_the_devices_time() {
    let Some(device) = device("marks") else { return };
    let Some(module) = kernels("marks", &device) else { return };
    let until = function(&module, c"until");
    let flag = Flag::new(&device);
    let flag_at = flag.address(&device);
    let stream = device.stream().unwrap();
    let before = stream.mark().unwrap();
    // SAFETY: the kernel reads the flag, which lives until the stream is finished.
    unsafe { until.launch(&stream, Grid::line(1, 1), &[Argument::of(&flag_at)]) }.unwrap();
    let after = stream.mark().unwrap();
    assert_eq!(before.until(&after).unwrap(), None);
    flag.set(1);
    finish(&stream);
    let time = before.until(&after).unwrap().unwrap();
    assert!(time > 0.0, "{time} ms");
    assert!(after.until(&before).unwrap().unwrap() < 0.0);
}
