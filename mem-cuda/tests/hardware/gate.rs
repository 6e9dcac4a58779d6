//! Streams that wait for the host at gates.

use crate::gpu::{
    Memory, Random, Turn, device, finish, function, kernels, read, skip, wait, write,
};
use gapless_mem::{Completion, Device};
use gapless_mem_cuda::{Argument, Function, Grid, Stream};
use std::time::{Duration, Instant};

/// Device 0, if its streams can wait; or the test is skipped.
fn gated(test: &str) -> Option<Turn> {
    let device = device(test)?;
    if !device.has_gates() {
        skip(test, "the driver has no streams that wait for a word in memory");
        return None;
    }
    Some(device)
}

/// Adds a number to 256 others, in order with what is on the stream.
fn launch(add: &Function, stream: &Stream, at: u64, value: u32) -> Completion {
    let arguments = [Argument::of(&at), Argument::of(&256u32), Argument::of(&value)];
    // SAFETY: the kernel changes 1024 bytes at `at`, which the tests keep until it has ended.
    unsafe { add.launch(stream, Grid::line(2, 128), &arguments) }.unwrap();
    stream.record().unwrap()
}

#[test]
fn a_stream_waits_until_its_gate_is_opened_and_sees_what_was_written_before() {
    const TEST: &str = "a gate that is opened";
    let Some(device) = gated(TEST) else { return };
    let Some(module) = kernels(TEST, &device) else { return };
    let add = function(&module, c"add");
    let stream = device.stream().unwrap();
    let pinned = device.pinned(1024).unwrap();
    let words = pinned.region().as_ptr().unwrap().cast::<u32>();
    let mut numbers = Memory::on(&device, 1024);
    for round in 1..50u32 {
        write(&device, numbers.region(), &[0; 1024]);
        let gate = stream.gate().unwrap();
        // SAFETY: both live until the copy is waited for, and nobody writes the source after the gate
        // was opened.
        let copied = unsafe { stream_copy(&device, &stream, &numbers.region(), &pinned) };
        let added = launch(&add, &stream, numbers.region().start(), 1);
        for _ in 0..100 {
            assert!(!copied.poll().unwrap() && !added.poll().unwrap(), "the gate is closed");
        }
        for index in 0..256 {
            // SAFETY: inside the buffer; the device reads it after the gate was opened.
            unsafe { words.wrapping_add(index).write_volatile(round * 1000) };
        }
        if round % 2 == 0 {
            gate.open();
            assert!(gate.is_open());
        } else {
            // Dropped, it is open as well.
            drop(gate);
        }
        wait(&added);
        let sum = (round * 1000 + 1).to_ne_bytes();
        assert!(read(&device, numbers.region()).chunks(4).all(|number| number == sum));
    }
}

/// A copy on the test's own stream: one that comes after what is on it.
///
/// # Safety
/// As for [`Device::copy`].
unsafe fn stream_copy(
    device: &Turn,
    stream: &Stream,
    to: &gapless_mem::Region,
    from: &gapless_mem_cuda::PinnedBuffer,
) -> Completion {
    let before = stream.record().unwrap();
    // SAFETY: the caller's promise.
    let copied = unsafe { device.copy(*to, from.region(), &[before]) }.unwrap();
    stream.wait_for(std::slice::from_ref(&copied)).unwrap();
    copied
}

#[test]
fn gates_on_many_streams_are_opened_in_any_order() {
    const TEST: &str = "many gates";
    let Some(device) = gated(TEST) else { return };
    let Some(module) = kernels(TEST, &device) else { return };
    let add = function(&module, c"add");
    let mut random = Random::seeded();
    let streams: Vec<Stream> = (0..6).map(|_| device.stream().unwrap()).collect();
    let mut memories: Vec<Memory> = streams.iter().map(|_| Memory::on(&device, 1024)).collect();
    memories.iter_mut().for_each(|memory| write(&device, memory.region(), &[0; 1024]));
    let mut expected = vec![0u32; streams.len()];
    for _ in 0..40 {
        let mut closed = Vec::new();
        for _ in 0..random.below(100) {
            let at = usize::try_from(random.below(streams.len() as u64)).unwrap();
            let gate = streams[at].gate().unwrap();
            launch(&add, &streams[at], memories[at].region().start(), 1);
            expected[at] += 1;
            closed.push(gate);
        }
        while !closed.is_empty() {
            let next = usize::try_from(random.below(closed.len() as u64)).unwrap();
            closed.swap_remove(next).open();
        }
    }
    streams.iter().for_each(finish);
    for (memory, right) in memories.iter_mut().zip(expected) {
        let right = right.to_ne_bytes();
        assert!(read(&device, memory.region()).chunks(4).all(|number| number == right));
    }
}

/// What a closed gate holds up besides its own stream: with few streams nothing may be. With more than the
/// hardware has queues some are, which is said and not judged.
#[test]
fn a_closed_gate_holds_up_no_stream_but_its_own() {
    const TEST: &str = "what a gate holds up";
    let Some(device) = gated(TEST) else { return };
    let Some(module) = kernels(TEST, &device) else { return };
    let add = function(&module, c"add");
    for count in [2, 4, 8, 16, 32, 64] {
        let streams: Vec<Stream> = (0..count).map(|_| device.stream().unwrap()).collect();
        let mut memory = Memory::on(&device, 1024 * count);
        let at = memory.region().start();
        let use_all = |from: usize| -> Vec<Completion> {
            let each = (0u64..).zip(&streams).skip(from);
            each.map(|(index, stream)| launch(&add, stream, at + 1024 * index, 1)).collect()
        };
        use_all(0).iter().for_each(wait);
        let gate = streams[0].gate().unwrap();
        let behind = launch(&add, &streams[0], at, 1);
        let others = use_all(1);
        // Where streams must not be held up, they have all the time that a busy machine may need.
        let patience = if count > 4 { Duration::from_millis(500) } else { Duration::from_secs(30) };
        let until = Instant::now() + patience;
        let held = || others.iter().filter(|work| !work.poll().unwrap()).count();
        while held() > 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        println!("a closed gate on one of {count} streams holds up {} others", held());
        assert!(!behind.poll().unwrap());
        assert!(count > 4 || held() == 0, "{} of {count} streams", held());
        gate.open();
        wait(&behind);
        others.iter().for_each(wait);
    }
}

/// More streams than the device has queues: with few queues, some would be behind the one that waits.
#[test]
fn other_streams_go_on_beside_one_that_waits() {
    const TEST: &str = "streams beside a gate";
    const STREAMS: usize = 40;
    let Some(device) = gated(TEST) else { return };
    let Some(module) = kernels(TEST, &device) else { return };
    let add = function(&module, c"add");
    let mut numbers = Memory::on(&device, 1024);
    write(&device, numbers.region(), &[0; 1024]);
    let at = numbers.region().start();
    let (stream, others) = (device.stream().unwrap(), [(); STREAMS].map(|()| device.stream()));
    let others = others.map(Result::unwrap);
    // Kernels are loaded before anything waits.
    wait(&launch(&add, &stream, at, 1));
    let gate = stream.gate().unwrap();
    let behind = launch(&add, &stream, at, 1);
    for other in &others {
        wait(&launch(&add, other, at, 1));
    }
    assert!(!behind.poll().unwrap(), "the gate is closed");
    gate.open();
    wait(&behind);
}
