//! Buffers of the origin that lie in memory of a device, which the CPU cannot touch: they go through memory of the host.

use super::{Lock, ReduceOp};
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::{Datatype, Device, Layout, Place, Primitive, Region, View, ViewMut, World};
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::job_of;
use std::sync::Arc;

/// As many numbers, and as many gaps between them: more than is packed at once.
const NUMBERS: usize = 6000;
const GAP: i32 = -7;

/// These numbers on a device, a gap behind each.
fn on(device: &FakeDevice, numbers: &[i32]) -> Region {
    let spread = numbers.iter().flat_map(|number| [*number, GAP]);
    let bytes: Vec<u8> = spread.flat_map(i32::to_ne_bytes).collect();
    let region = device.allocate(bytes.len() as u64).unwrap();
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(region, Region::of(&bytes), &[]) }.unwrap().wait().unwrap();
    region
}

/// The numbers there; the gaps must be as they were.
fn off(device: &FakeDevice, region: Region) -> Vec<i32> {
    let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
    // SAFETY: as in `on`.
    unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }.unwrap().wait().unwrap();
    let number = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().unwrap());
    assert!(bytes.chunks_exact(8).all(|pair| number(&pair[4..]) == GAP));
    bytes.chunks_exact(8).map(|pair| number(&pair[..4])).collect()
}

fn view(region: Region, layout: &Layout) -> View<'static> {
    // SAFETY: the memory is never freed, and nothing writes it after `on`.
    unsafe { View::of_region(region, 0, layout, NUMBERS as u64) }.unwrap()
}

/// To be dropped before anything else touches the memory.
fn view_mut<'a>(region: Region, layout: &Layout) -> ViewMut<'a> {
    // SAFETY: the memory is never freed; the view is the only one, and ends with the operation that it is given to.
    unsafe { ViewMut::of_region(region, 0, layout, NUMBERS as u64) }.unwrap()
}

#[test]
fn device_memory_goes_into_windows_and_out_of_them() {
    for mapped in [true, false] {
        let hub = Hub::new();
        let devices = [0, 1].map(|rank| Arc::new(FakeDevice::new(rank)));
        let builder = |rank: u32| {
            let config = LoopbackConfig { mapped, ..LoopbackConfig::default() };
            let engine = FakeEngine::new(&devices[rank as usize], 2);
            let engine = Arc::new(FakeEngine { attaches: false, ..engine });
            let transport = Box::new(Loopback::with(&hub, config));
            World::builder().only(["loopback"]).transport(transport).engine(engine)
        };
        job_of(2, builder, |world| {
            let (comm, device) = (world.comm(), &devices[world.rank() as usize]);
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let mut window = comm.window_allocate::<i32>(2 * NUMBERS).unwrap();
            assert_eq!(window.is_mapped(other).unwrap(), mapped);
            let int = Datatype::from(Primitive::Int32);
            let spread = Datatype::resized(0, 8, &int).unwrap().commit().unwrap();
            let int = int.commit().unwrap();
            let count = NUMBERS as u64;
            let (front, back) = (Place::typed(0, &int, count), Place::typed(count, &int, count));
            let numbers = |rank: u32, times: i32| -> Vec<i32> {
                let start = 1 + 10_000 * i32::try_from(rank).unwrap();
                (start..).take(NUMBERS).map(|number| times * number).collect()
            };
            let (once, twice) = (numbers(me, 1), numbers(me, 2));
            let once_there = view(on(device, &once), &spread);
            let twice_there = view(on(device, &twice), &spread);
            let (got, before) = (on(device, &[0; NUMBERS]), on(device, &[0; NUMBERS]));

            window.fence().unwrap();
            window.put(&once_there, other, front.clone()).unwrap();
            window.accumulate(&twice_there, other, back.clone(), ReduceOp::Sum).unwrap();
            window.fence_last().unwrap();
            let mut found = vec![0; 2 * NUMBERS];
            window.read(&mut found, 0).unwrap();
            assert!(found[..NUMBERS] == numbers(other, 1), "put, {mapped}");
            assert!(found[NUMBERS..] == numbers(other, 2), "accumulated, {mapped}");
            // The other rank changes this window only when it has been read.
            comm.barrier().unwrap();

            window.lock(other, Lock::Shared).unwrap();
            window.get(view_mut(got, &spread), other, back.clone()).unwrap();
            window
                .get_accumulate(
                    &twice_there,
                    view_mut(before, &spread),
                    other,
                    front.clone(),
                    ReduceOp::Sum,
                )
                .unwrap();
            window.unlock(other).unwrap();
            assert!(off(device, got) == twice, "got, {mapped}");
            assert!(off(device, before) == once, "was there before, {mapped}");
            comm.barrier().unwrap();
            window.read(&mut found, 0).unwrap();
            assert!(found[..NUMBERS] == numbers(other, 3), "added, {mapped}");
            assert!(found[NUMBERS..] == numbers(other, 2), "left alone, {mapped}");
            window.free().unwrap();
        });
    }
}
