//! Copies between all kinds of memory.

use crate::gpu::{Memory, Random, copy, device, pattern, read, wait, write};
use gapless_mem::{Completion, Device, Region};
use std::sync::Arc;

#[test]
fn round_trips_between_all_kinds_of_memory() {
    let Some(device) = device("copies between all kinds of memory") else { return };
    const ROOM: u64 = (1 << 20) + 64;
    let mut from = Memory::of_every_kind(&device, ROOM);
    let mut to = Memory::of_every_kind(&device, ROOM);
    for (a, src) in from.iter_mut().enumerate() {
        for (b, dst) in to.iter_mut().enumerate() {
            for (len, skew) in [(0u64, 0u64), (1, 1), (3, 5), (4096, 0), (65_537, 7), (1 << 20, 1)]
            {
                let room = usize::try_from(ROOM).unwrap();
                let seed = a as u64 * 100 + b as u64 * 10 + len;
                let bytes = pattern(usize::try_from(len).unwrap(), seed);
                let source = src.region().sub(skew, len).unwrap();
                let target = dst.region().sub(2 * skew, len).unwrap();
                write(&device, dst.region(), &vec![0xAA; room]);
                write(&device, source, &bytes);
                copy(&device, target, source);
                let all = read(&device, dst.region());
                let (first, end) =
                    (usize::try_from(2 * skew).unwrap(), usize::try_from(2 * skew + len).unwrap());
                let names = format!("{} to {}, {len} bytes", source.space(), target.space());
                assert!(all[first..end] == bytes, "{names}");
                assert!(all[..first].iter().all(|byte| *byte == 0xAA), "{names}: before");
                assert!(all[end..].iter().all(|byte| *byte == 0xAA), "{names}: behind");
            }
        }
    }
}

#[test]
fn rows_between_all_kinds_of_memory() {
    let Some(device) = device("copies of rows") else { return };
    const ROOM: usize = 1 << 16;
    let mut random = Random::seeded();
    let mut from = Memory::of_every_kind(&device, ROOM as u64);
    let mut to = Memory::of_every_kind(&device, ROOM as u64);
    let source_bytes = pattern(ROOM, 5);
    for src in &mut from {
        write(&device, src.region(), &source_bytes);
        for dst in &mut to {
            for _ in 0..12 {
                let rows = random.below(40);
                let width = random.below(300);
                let dst_pitch = width + random.below(100);
                // Rows of the source may overlap.
                let src_pitch = random.below(width + 100);
                let skew = random.below(16);
                let (source, target) = (src.region(), dst.region());
                let source = source.sub(skew, ROOM as u64 - skew).unwrap();
                write(&device, target, &[0x55; ROOM]);
                // SAFETY: both memories live while this waits, and nobody else uses them.
                let done = unsafe {
                    device.copy_2d(target, dst_pitch, source, src_pitch, width, rows, &[])
                };
                wait(&done.unwrap());
                let mut expected = vec![0x55; ROOM];
                for row in 0..rows {
                    for byte in 0..width {
                        let at = usize::try_from(row * dst_pitch + byte).unwrap();
                        let of = usize::try_from(skew + row * src_pitch + byte).unwrap();
                        expected[at] = source_bytes[of];
                    }
                }
                assert!(
                    read(&device, target) == expected,
                    "{} to {}: {rows} rows of {width}, pitches {dst_pitch} and {src_pitch}",
                    source.space(),
                    target.space()
                );
            }
        }
    }
}

#[test]
fn rows_too_far_apart_for_one_call() {
    let Some(device) = device("rows more than 2 GiB apart") else { return };
    let pitch = (1u64 << 31) + 512;
    let Ok(region) = device.allocate(2 * pitch + 64) else {
        crate::gpu::skip("rows more than 2 GiB apart", "the device has not 4 GiB free");
        return;
    };
    let mut big = Memory::Own(Arc::clone(&device), region);
    let bytes = pattern(192, 9);
    // SAFETY: both live while this waits, and nobody else uses them.
    let up = unsafe { device.copy_2d(big.region(), pitch, Region::of(&bytes), 64, 64, 3, &[]) };
    let mut back = vec![0u8; 192];
    let to = Region::of_mut(&mut back);
    // SAFETY: as above; ordered after `up`.
    let down = unsafe { device.copy_2d(to, 64, big.region(), pitch, 64, 3, &[up.unwrap()]) };
    wait(&down.unwrap());
    assert_eq!(back, bytes);
}

#[test]
fn copies_from_many_threads() {
    let Some(device) = device("copies from many threads") else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                if thread % 2 == 0 {
                    device.bind_thread().unwrap();
                }
                let mut here = Memory::on(device, 1 << 16);
                let mut there = Memory::on(device, 1 << 16);
                for round in 0..50 {
                    let bytes = pattern(1 << 16, thread * 1000 + round);
                    // SAFETY: all three live until the last copy is waited for; each copy comes
                    // after the one before.
                    let up = unsafe { device.copy(here.region(), Region::of(&bytes), &[]) };
                    // SAFETY: as above.
                    let over =
                        unsafe { device.copy(there.region(), here.region(), &[up.unwrap()]) };
                    let mut back = vec![0u8; 1 << 16];
                    let (to, after) = (Region::of_mut(&mut back), [over.unwrap()]);
                    // SAFETY: as above.
                    let down = unsafe { device.copy(to, there.region(), &after) };
                    wait(&down.unwrap());
                    assert!(back == bytes, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn an_empty_copy_still_comes_after_what_it_is_told() {
    let Some(device) = device("empty copies") else { return };
    let Some(module) = crate::gpu::kernels("empty copies", &device) else { return };
    let until = crate::gpu::function(&module, c"until");
    let flag = crate::gpu::Flag::new(&device);
    let at = flag.address(&device);
    let stream = device.stream().unwrap();
    let grid = gapless_mem_cuda::Grid::line(1, 1);
    // SAFETY: the kernel reads the flag, which lives until the stream is finished.
    unsafe { until.launch(&stream, grid, &[gapless_mem_cuda::Argument::of(&at)]) }.unwrap();
    let work = stream.record().unwrap();
    let nothing = Region::of(&[]);
    // SAFETY: nothing is copied.
    let done = unsafe { device.copy(nothing, nothing, &[Completion::Ready, work]) }.unwrap();
    assert!(!done.poll().unwrap());
    flag.set(1);
    wait(&done);
    crate::gpu::finish(&stream);
}
