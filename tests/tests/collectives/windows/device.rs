//! Buffers of the origin that lie in memory of a device, which the CPU cannot touch: they go through memory of the host.

use super::{Lock, ReduceOp};
use gapless::btl::loopback::{Config as LoopbackConfig, Hub, Loopback};
use gapless::{Datatype, Device, Owned, Place, Primitive, Region, View, ViewMut, World};
use gapless_engine::testkit::FakeEngine;
use gapless_mem::fake::FakeDevice;
use gapless_tests::job_of;
use std::sync::Arc;

const NUMBERS: usize = 6000;

/// Numbers on a device.
fn on(device: &FakeDevice, numbers: &[i32]) -> Region {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let region = device.allocate(bytes.len() as u64).unwrap();
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(region, Region::of(&bytes), &[]) }.unwrap().wait().unwrap();
    region
}

fn off(device: &FakeDevice, region: Region) -> Vec<i32> {
    let mut bytes = vec![0u8; usize::try_from(region.len()).unwrap()];
    // SAFETY: as in `on`.
    unsafe { device.copy(Region::of_mut(&mut bytes), region, &[]) }.unwrap().wait().unwrap();
    bytes.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect()
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
            World::builder()
                .only(["loopback"])
                .transport(Box::new(Loopback::with(&hub, config)))
                .engine(engine)
        };
        job_of(2, builder, |world| {
            let (comm, device) = (world.comm(), &devices[world.rank() as usize]);
            let other = 1 - comm.rank();
            let mut window = comm.window_allocate::<i32>(NUMBERS).unwrap();
            let int = Datatype::from(Primitive::Int32);
            let every = Datatype::resized(0, 8, &int).unwrap().commit().unwrap();
            let int = int.commit().unwrap();
            let half = NUMBERS as u64 / 2;
            let given: Vec<i32> = (0..).take(NUMBERS).collect();
            let (source, sink) = (on(device, &given), on(device, &vec![-7; NUMBERS]));
            // SAFETY: both are this rank's alone, and are never freed.
            let (from, mut into) = unsafe {
                (
                    View::of_region(source, 0, &every, half),
                    ViewMut::of_region(sink, 0, &every, half),
                )
            };
            let (from, into) = (from.unwrap(), into.as_mut().unwrap());
            window.fence().unwrap();
            window.put(&from, other, Place::typed(0, &int, half)).unwrap();
            window.accumulate(&from, other, Place::typed(half, &int, half), ReduceOp::Sum).unwrap();
            window.fence_last().unwrap();
            let mut found = vec![0; NUMBERS];
            window.read(&mut found, 0).unwrap();
            let right = |at: usize| given[2 * (at % (NUMBERS / 2))];
            assert!((0..NUMBERS).all(|at| found[at] == right(at)), "{mapped}");
            window.lock(other, Lock::Shared).unwrap();
            window.get(&mut *into, other, Place::typed(half, &int, half)).unwrap();
            let again = (&from, &mut *into);
            window
                .get_accumulate(again.0, again.1, other, Place::typed(0, &int, half), ReduceOp::Sum)
                .unwrap();
            window.unlock(other).unwrap();
            let came = off(device, sink);
            assert!((0..NUMBERS).all(|at| came[at] == if at % 2 == 0 { given[at] } else { -7 }));
            comm.barrier().unwrap();
            window.lock(other, Lock::Shared).unwrap();
            let (doubled, result) =
                window.rget(Owned::from(vec![0i32; 9]), other, 0).unwrap().wait();
            result.unwrap();
            assert!((0..9).all(|at| doubled[at] == 2 * given[2 * at]));
            window.unlock(other).unwrap();
            window.free().unwrap();
        });
    }
}
