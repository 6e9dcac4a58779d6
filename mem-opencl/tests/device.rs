//! The device contract on whatever OpenCL device there is; in CI that is PoCL, on the host's processor.
//!
//! Without one the tests are skipped, aloud; where the variable `CI` is set they fail instead.

use gapless_mem::{Completion, Device, DeviceError, HostDevice, Region, Space};
use gapless_mem_opencl::testkit::{UserBuffer, UserContext};
use gapless_mem_opencl::{Argument, Grid, OpenClDevice, OpenClError, detect};
use std::time::{Duration, Instant};

fn device() -> Option<OpenClDevice> {
    match OpenClDevice::open(0) {
        Ok(device) => Some(device),
        Err(
            error @ (OpenClError::NoLibrary { .. }
            | OpenClError::NoPlatform
            | OpenClError::NoDevice { .. }),
        ) => {
            assert!(std::env::var_os("CI").is_none(), "in CI, PoCL must run: {error}");
            gapless_testkit::skip("OpenCL memory", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn up(device: &OpenClDevice, to: Region, from: &[u8]) {
    // SAFETY: both live until the wait below ends.
    unsafe { device.copy(to, Region::of(from), &[]) }.unwrap().wait().unwrap();
}

fn down(device: &OpenClDevice, from: Region) -> Vec<u8> {
    let mut bytes = vec![0u8; usize::try_from(from.len()).unwrap()];
    // SAFETY: both live until the wait below ends.
    unsafe { device.copy(Region::of_mut(&mut bytes), from, &[]) }.unwrap().wait().unwrap();
    bytes
}

#[test]
fn devices_are_found_and_described() {
    let Some(device) = device() else { return };
    let found = detect().unwrap();
    assert_eq!(found[0].name, device.info().name);
    assert!(device.properties().memory_bytes > 0 && device.properties().compute_units > 0);
    assert!(device.info().threads_max > 0);
    let error = OpenClDevice::open(found.len()).unwrap_err();
    assert_eq!(error, OpenClError::NoSuchDevice { ordinal: found.len(), present: found.len() });
}

#[test]
fn bytes_make_the_round_trip_in_order() {
    let Some(device) = device() else { return };
    let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    let (a, b) = (device.allocate(10_000).unwrap(), device.allocate(10_000).unwrap());
    let mut back = vec![0u8; 7_000];
    // SAFETY: everything lives until the last completion, which comes after the others.
    let first = unsafe { device.copy(a, Region::of(&bytes), &[]) }.unwrap();
    let (from, to) = (a.sub(1_000, 8_000).unwrap(), b.sub(2_000, 8_000).unwrap());
    // SAFETY: as above.
    let second = unsafe { device.copy(to, from, &[first]) }.unwrap();
    let out = Region::of_mut(&mut back);
    // SAFETY: as above.
    let third = unsafe { device.copy(out, b.sub(2_500, 7_000).unwrap(), &[second]) }.unwrap();
    third.wait().unwrap();
    assert_eq!(back, bytes[1_500..8_500]);
    // SAFETY: nothing is in flight.
    unsafe { device.free(a) }.unwrap();
    // SAFETY: as above.
    unsafe { device.free(b) }.unwrap();
}

#[test]
fn rows_go_everywhere() {
    let Some(device) = device() else { return };
    let bytes: Vec<u8> = (0..4_096u32).map(|i| i.to_le_bytes()[0]).collect();
    let buffer = device.allocate(4_096).unwrap();
    let other = device.allocate(4_096).unwrap();
    // Offset, pitch, width, rows; the last ones run over a pitch, overlap, or stay in place.
    let cases = [
        (0u64, 64u64, 24u64, 10u64),
        (130, 64, 24, 10),
        (50, 64, 24, 10),
        (8, 16, 24, 5),
        (3, 0, 7, 1),
    ];
    for (offset, pitch, width, rows) in cases {
        up(&device, buffer, &bytes);
        up(&device, other, &vec![0xee; 4_096]);
        let from = buffer.sub(offset, 4_096 - offset).unwrap();
        let to = other.sub(offset / 2, 4_096 - offset / 2).unwrap();
        // SAFETY: the buffers live; rows lie inside.
        let copied = unsafe { device.copy_2d(to, 100, from, pitch, width, rows, &[]) }.unwrap();
        let mut back = vec![0u8; usize::try_from(width * rows).unwrap()];
        let out = Region::of_mut(&mut back);
        // SAFETY: as above, `back` until the wait.
        unsafe { device.copy_2d(out, width, to, 100, width, rows, &[copied]) }
            .unwrap()
            .wait()
            .unwrap();
        let all = down(&device, other);
        for row in 0..rows {
            let at = |start: u64| usize::try_from(start).unwrap();
            let want = &bytes[at(offset + row * pitch)..][..at(width)];
            assert_eq!(&back[at(row * width)..][..at(width)], want, "{offset} {pitch} row {row}");
            assert_eq!(&all[at(offset / 2 + row * 100)..][..at(width)], want);
            assert_eq!(all[at(offset / 2 + row * 100 + width)], 0xee, "the gap");
        }
        // And from host rows into the buffer.
        let source = Region::of(&bytes);
        // SAFETY: `bytes` lives until the wait.
        unsafe { device.copy_2d(to, 100, source, 200, width, rows, &[]) }.unwrap().wait().unwrap();
        let all = down(&device, other);
        for row in 0..usize::try_from(rows).unwrap() {
            let (at, len) =
                (usize::try_from(offset / 2).unwrap() + row * 100, usize::try_from(width).unwrap());
            assert_eq!(all[at..at + len], bytes[row * 200..row * 200 + len]);
        }
    }
    // SAFETY: refused before anything is touched.
    let error = unsafe { device.copy_2d(buffer, 4_000, other, 8, 8, 3, &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange(_)), "{error}");
}

#[test]
fn what_is_wrong_is_named() {
    let Some(device) = device() else { return };
    let buffer = device.allocate(64).unwrap();
    let longer = Region::new(buffer.space(), buffer.address(), 32, 33);
    let mut host = [0u8; 33];
    let out = Region::of_mut(&mut host);
    // SAFETY: refused before anything is touched.
    let error = unsafe { device.copy(out, longer, &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange(_)), "{error}");
    let foreign = Region::new(Space::Cuda { device: 0 }, 64, 0, 33);
    // SAFETY: as above.
    let error = unsafe { device.copy(out, foreign, &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::WrongSpace { .. }), "{error}");
    // SAFETY: as above.
    let error = unsafe { device.copy(out, buffer, &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::LengthMismatch { src_len: 64, dst_len: 33 }), "{error}");
    let error = device.allocate(1 << 50).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { len, .. } if len == 1 << 50), "{error}");
    // SAFETY: the same region twice is what is refused.
    unsafe { device.free(buffer) }.unwrap();
    // SAFETY: as above.
    assert!(unsafe { device.free(buffer) }.is_err());
    let error = device.program("kernel void broken(", "").unwrap_err();
    assert!(matches!(error, OpenClError::Build { .. }), "{error}");
    // SAFETY: refused before any handle is used.
    let error = unsafe { OpenClDevice::adopt(Space::Host) }.unwrap_err();
    assert_eq!(error, OpenClError::NotOpenCl { space: Space::Host });
}

#[test]
fn kernels_run_after_what_they_come_after() {
    let Some(device) = device() else { return };
    let source = "__kernel void add(__global uint *to, const ulong offset, const uint by) {
        to[offset + get_global_id(0)] += by;
    }";
    let program = device.program(source, "").unwrap();
    assert!(std::sync::Arc::ptr_eq(&program, &device.program(source, "").unwrap()));
    let buffer = device.allocate(4 * 1024).unwrap();
    let zeros = vec![0u8; 4 * 1024];
    // SAFETY: `zeros` lives until the end of the test, which waits.
    let mut last = unsafe { device.copy(buffer, Region::of(&zeros), &[]) }.unwrap();
    for round in 0..20u32 {
        let offset = u64::from(round % 2) * 512;
        let arguments = [
            Argument::Buffer(buffer),
            Argument::Value(&offset.to_ne_bytes()),
            Argument::Value(&(round + 1).to_ne_bytes()),
        ];
        // SAFETY: the kernel takes these three, and 512 numbers from the offset lie inside.
        last = unsafe { device.launch(&program, "add", Grid::line(8, 64), &arguments, &[last]) }
            .unwrap();
    }
    last.wait().unwrap();
    let all = down(&device, buffer);
    let sums: Vec<u32> =
        all.chunks_exact(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap())).collect();
    let (odd, even) = ((1..20).step_by(2).sum::<u32>(), (2..=20).step_by(2).sum::<u32>());
    assert!(
        sums[..512].iter().all(|&sum| sum == odd) && sums[512..].iter().all(|&sum| sum == even)
    );
    // SAFETY: refused: there is no such kernel.
    let error = unsafe { device.launch(&program, "none", Grid::line(1, 1), &[], &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::Failed { operation: "clCreateKernel", .. }), "{error}");
    // SAFETY: refused: what the kernel was launched with before is not used again.
    let error = unsafe { device.launch(&program, "add", Grid::line(1, 1), &[], &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::Unsupported { .. }), "{error}");
}

#[test]
fn the_users_context_and_queue_are_taken() {
    let Some(owner) = device() else { return };
    let buffer = owner.allocate(256).unwrap();
    // SAFETY: the owner's handles are live.
    let guest = unsafe { OpenClDevice::adopt(owner.space()) }.unwrap();
    assert!(guest.reaches(owner.space()));
    let bytes: Vec<u8> = (0..=255).collect();
    up(&guest, buffer, &bytes);
    assert_eq!(down(&owner, buffer), bytes);
    // A completion of another device's is waited for.
    let host = HostDevice::new();
    let mut copy = vec![0u8; 256];
    let copy_region = Region::of_mut(&mut copy);
    // SAFETY: both live until the waits below.
    let filled = unsafe { host.copy(copy_region, Region::of(&bytes), &[]) }.unwrap();
    // SAFETY: as above.
    let done: Completion = unsafe { guest.copy(buffer, copy_region, &[filled]) }.unwrap();
    done.wait().unwrap();
    let stranger = OpenClDevice::open(0).unwrap();
    assert!(!stranger.reaches(owner.space()));
}

#[test]
fn host_memory_can_be_a_buffer() {
    let Some(device) = device() else { return };
    let host = HostDevice::new();
    let memory = host.allocate(4_096).unwrap();
    // SAFETY: `memory` is freed after the buffer.
    let buffer = unsafe { device.wrap(memory) }.unwrap();
    assert_ne!(device.buffer_id(buffer), None);
    let bytes = vec![7u8; 4_096];
    up(&device, buffer, &bytes);
    assert_eq!(down(&device, buffer), bytes);
    // SAFETY: nothing is in flight.
    unsafe { device.free(buffer) }.unwrap();
    assert_eq!(device.buffer_id(buffer), None);
    // SAFETY: the buffer is gone.
    unsafe { host.free(memory) }.unwrap();
}

#[test]
fn host_memory_is_registered_once_it_is_used_by_address() {
    let Some(device) = device() else { return };
    // Not aligned, and registered twice: each is undone by itself.
    let mut memory = vec![0u8; 10_001];
    let all = Region::of_mut(&mut memory[1..]);
    let part = all.sub(100, 5_000).unwrap();
    for region in [all, part, all] {
        // SAFETY: `memory` lives until the device is dropped.
        unsafe { device.register(region) }.unwrap();
    }
    let buffer = device.allocate(10_000).unwrap();
    let bytes: Vec<u8> = (0..10_000u32).map(|i| i.to_le_bytes()[0]).collect();
    up(&device, buffer, &bytes);
    // SAFETY: both live until the wait ends.
    unsafe { device.copy(all, buffer, &[]) }.unwrap().wait().unwrap();
    for region in [part, all] {
        // SAFETY: nothing is in flight.
        unsafe { device.unregister(region) }.unwrap();
    }
    // SAFETY: as above: there is no such registration.
    let error = unsafe { device.unregister(part) }.unwrap_err();
    assert!(error.to_string().contains("not registered"), "{error}");
    // SAFETY: nothing is in flight.
    unsafe { device.free(buffer) }.unwrap();
    // One registration is left to the drop.
    drop(device);
    assert_eq!(memory[1..], bytes);
}

#[test]
fn a_queue_is_finished_once_what_was_on_it_has_ended() {
    let Some(idle) = device() else { return };
    let context = UserContext::new(&detect().unwrap()[0]).unwrap();
    let queue = context.queue(false).unwrap();
    // SAFETY: the handles are live until the end of the test.
    let device = unsafe { OpenClDevice::adopt(context.space(Some(&queue))) }.unwrap();
    let until_finished = |device: &OpenClDevice| {
        let until = Instant::now() + Duration::from_secs(300);
        while !device.finish() && Instant::now() < until {
            std::thread::yield_now();
        }
        Instant::now() < until
    };
    assert!(until_finished(&idle) && until_finished(&device));
    for _ in 0..3 {
        let gate = context.gate(&queue).unwrap();
        assert!((0..100).all(|_| !device.finish()));
        drop(gate);
        assert!(until_finished(&device));
    }
}

#[test]
fn devices_are_made_of_handles_that_another_one_has_and_of_no_others() {
    let Some(first) = device() else { return };
    let space = first.space();
    let second = OpenClDevice::known(space).unwrap();
    assert_eq!(second.space(), space);
    // One context: either works on the other's buffers.
    let there = first.allocate(3).unwrap();
    up(&second, there, &[1, 2, 3]);
    assert_eq!(down(&first, there), [1, 2, 3]);
    // SAFETY: nothing is in flight.
    unsafe { first.free(there) }.unwrap();
    drop(first);
    let third = OpenClDevice::known(space).unwrap();
    assert!(OpenClDevice::known(third.space()).is_ok());
    drop((second, third));
    assert_eq!(OpenClDevice::known(space).unwrap_err(), OpenClError::Unknown { space });
    let error = OpenClDevice::known(Space::Host).unwrap_err();
    assert_eq!(error, OpenClError::NotOpenCl { space: Space::Host });
}

/// Several devices of a process, as ranks that are threads have, launch the same kernel at once, in growing grids: PoCL
/// aborts the process if it takes their programs for one.
#[test]
fn devices_launch_the_same_kernel_at_once() {
    const ROUNDS: u32 = 100;
    let Some(first) = device() else { return };
    let source = "__kernel void count(__global uint *n) {
        uint x = get_global_id(0);
        for (uint i = 0; i < 100; i++) x = x * 1664525u + 1013904223u;
        n[get_global_id(0)] = x | 1u;
    }";
    let others = (0..3).map(|_| device().expect("there is one"));
    let devices: Vec<_> = [first].into_iter().chain(others).collect();
    let barrier = std::sync::Barrier::new(devices.len());
    std::thread::scope(|scope| {
        for (turn, device) in (1..).zip(&devices) {
            let barrier = &barrier;
            scope.spawn(move || {
                let program = device.program(source, "").unwrap();
                let words = device.allocate(u64::from(4 * 64 * 4 * ROUNDS)).unwrap();
                barrier.wait();
                for round in 0..ROUNDS {
                    let grid = Grid::line(4 * round + turn, 64);
                    let arguments = [Argument::Buffer(words)];
                    // SAFETY: the kernel takes one buffer, which has a word for each of its items.
                    let end = unsafe { device.launch(&program, "count", grid, &arguments, &[]) };
                    end.unwrap().wait().unwrap();
                }
                let all = down(device, words);
                let items = 64 * (4 * (ROUNDS - 1) + turn) as usize;
                assert!(all.chunks_exact(4).take(items).all(|word| word[0] & 1 == 1));
                // SAFETY: all work on it has ended.
                unsafe { device.free(words) }.unwrap();
            });
        }
    });
}

#[test]
fn handles_that_do_not_belong_together_are_refused_by_name() {
    let Some(_) = device() else { return };
    let info = &detect().unwrap()[0];
    let (one, other) = (UserContext::new(info).unwrap(), UserContext::new(info).unwrap());
    let theirs = other.queue(false).unwrap();
    // SAFETY: all handles here are live until the end of the test.
    let error = unsafe { OpenClDevice::adopt(one.space(Some(&theirs))) }.unwrap_err();
    let reason = "it belongs to another context";
    assert!(matches!(error, OpenClError::WrongQueue { reason: why, .. } if why == reason));
    // Not every driver has such queues.
    if let Ok(unordered) = one.queue(true) {
        // SAFETY: as above.
        let error = unsafe { OpenClDevice::adopt(one.space(Some(&unordered))) }.unwrap_err();
        assert!(
            matches!(error, OpenClError::WrongQueue { reason, .. } if reason.contains("order"))
        );
    }
    // SAFETY: as above.
    let device = unsafe { OpenClDevice::adopt(one.space(None)) }.unwrap();
    let (mine, foreign) = (one.buffer(64).unwrap(), other.buffer(64).unwrap());
    let of = |buffer: &UserBuffer, offset, len| {
        Region::new(device.space(), buffer.region().address(), offset, len)
    };
    let null = Region::new(device.space(), 0, 0, 64);
    let bytes: Vec<u8> = (0..64).collect();
    up(&device, of(&mine, 0, 64), &bytes);
    assert_eq!(down(&device, of(&mine, 16, 48)), bytes[16..]);
    let mut back = vec![0u8; 64];
    let out = Region::of_mut(&mut back);
    for (region, want) in
        [(of(&foreign, 0, 64), "another context"), (null, "no handle"), (of(&mine, 1, 64), "64")]
    {
        // SAFETY: refused before anything is touched.
        let error = unsafe { device.copy(out, region, &[]) }.unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
    assert_eq!(back, [0; 64]);
    // Of nothing, nothing is asked: such a copy ends when what it comes after has.
    let nothing = null.sub(0, 0).unwrap();
    // SAFETY: no byte is touched.
    unsafe { device.copy(nothing, nothing, &[]) }.unwrap().wait().unwrap();
    // A part of a buffer is a buffer; one that is mapped is the program's.
    let part = mine.part(0, 32).unwrap();
    assert_eq!(down(&device, of(&part, 8, 24)), bytes[8..32]);
    // SAFETY: refused before anything is touched.
    let error = unsafe { device.copy(out, of(&part, 0, 64), &[]) }.unwrap_err();
    assert!(matches!(error, DeviceError::OutOfRange(_)), "{error}");
    let own = one.queue(false).unwrap();
    let mapped = mine.map(&own).unwrap();
    // SAFETY: as above.
    let error = unsafe { device.copy(out, of(&mine, 0, 64), &[]) }.unwrap_err();
    assert!(error.to_string().contains("it is mapped"), "{error}");
    mine.unmap(&own, mapped).unwrap();
    assert_eq!(down(&device, of(&mine, 0, 64)), bytes);
}

/// What was asked of a buffer is not taken for an answer about the next one at its place.
#[test]
fn buffers_that_come_and_go_are_told_apart() {
    let Some(_) = device() else { return };
    let info = &detect().unwrap()[0];
    let contexts = [(); 2].map(|()| UserContext::new(info).unwrap());
    // SAFETY: the handles are live until the end of the test.
    let device = unsafe { OpenClDevice::adopt(contexts[0].space(None)) }.unwrap();
    let (mut numbers, mut again) = (std::collections::BTreeSet::new(), 0);
    for turn in 0..300usize {
        let len = 1024 * (1 + turn % 7);
        let buffer = contexts[usize::from(turn % 3 == 2)].buffer(len).unwrap();
        let address = buffer.region().address();
        again += u32::from(!numbers.insert(address));
        let of = |len: usize| Region::new(device.space(), address, 0, len as u64);
        let mut host = vec![0u8; len + 1];
        let mut copy = |len: usize| {
            let out = Region::of_mut(&mut host[..len]);
            // SAFETY: both live until the wait ends; what leaves the buffer is refused.
            unsafe { device.copy(out, of(len), &[]) }.and_then(|copied| copied.wait())
        };
        if turn % 3 == 2 {
            let error = copy(len).unwrap_err();
            assert!(error.to_string().contains("another context"), "turn {turn}: {error}");
            continue;
        }
        for _ in 0..2 {
            copy(len).unwrap();
            let error = copy(len + 1).unwrap_err();
            assert!(matches!(error, DeviceError::OutOfRange(_)), "turn {turn}: {error}");
        }
    }
    println!("{again} of 300 buffers lay where one had been before");
}
