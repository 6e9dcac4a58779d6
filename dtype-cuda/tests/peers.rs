//! Moves between two GPUs, by the copy engine and by kernels: every byte of the destination is compared with
//! what the host's engine makes of it, gaps included; whole streams and ragged ranges, to the other GPU and
//! from it, with a budget and without.
//!
//! Skipped aloud where there are no two devices with a link between them.
#![cfg(feature = "cuda")]

use gapless_dtype::{Datatype, Layout, Order, Primitive};
use gapless_dtype_cuda::{Config, GpuEngine};
use gapless_engine::{Engine as _, HostEngine, Typed};
use gapless_kernels::Direction;
use gapless_mem::{Device, Region};
use gapless_mem_cuda::{CudaDevice, CudaDriver, CudaError};
use gapless_testkit::skip;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

fn devices(test: &str) -> Option<[Arc<CudaDevice>; 2]> {
    let driver = match CudaDriver::load() {
        Ok(driver) => driver,
        Err(why @ (CudaError::NoDriver { .. } | CudaError::NoDevice)) => {
            skip(test, &why.to_string());
            return None;
        }
        Err(error) => panic!("there is a driver and it fails: {error}"),
    };
    let one = Arc::new(driver.device(0).unwrap());
    match driver.device(1) {
        Ok(other) if one.can_access(1).unwrap() => Some([one, Arc::new(other)]),
        Ok(_) => {
            skip(test, "no link between the devices");
            None
        }
        Err(why) => {
            skip(test, &why.to_string());
            None
        }
    }
}

/// Device memory that is given back.
struct Memory {
    device: Arc<CudaDevice>,
    region: Region,
}

impl Memory {
    fn of(device: &Arc<CudaDevice>, len: usize) -> Memory {
        Memory { device: Arc::clone(device), region: device.allocate(len as u64).unwrap() }
    }

    fn write(&self, bytes: &[u8]) {
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(self.region, Region::of(bytes), &[]) }.unwrap().wait().unwrap();
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.region.len()).unwrap()];
        let to = Region::of_mut(&mut bytes);
        // SAFETY: both live until the wait ends.
        unsafe { self.device.copy(to, self.region, &[]) }.unwrap().wait().unwrap();
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the tests wait for their work.
        unsafe { self.device.free(self.region) }.unwrap();
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// A layout, and how many copies move all of it to itself and to packed memory; 0 where kernels do.
struct Case {
    name: &'static str,
    layout: Layout,
    to_itself: Range<usize>,
    packed: Range<usize>,
}

/// Doubles of a side of the matrices.
const N: u64 = 1024;

const ORIGIN: u64 = 64;

fn cases() -> Vec<Case> {
    let double = || Datatype::from(Primitive::Double);
    let (n, side) = (N, N.cast_signed());
    let column = Datatype::vector(n, 1, side, &double()).unwrap();
    let column = Datatype::resized(0, 8, &column).unwrap();
    let lengths: Vec<u64> = (0..n).map(|j| n - j).collect();
    let places: Vec<i64> = (0..side).map(|j| j * (side + 1)).collect();
    let cube = |sizes: [u64; 3], starts: [u64; 3]| {
        Datatype::subarray(&[64, 128, 128], &sizes, &starts, Order::C, &double()).unwrap()
    };
    let case = |name, datatype: Datatype, to_itself, packed| Case {
        name,
        layout: datatype.commit().unwrap(),
        to_itself,
        packed,
    };
    let vector = |blocks, len, stride| Datatype::vector(blocks, len, stride, &double()).unwrap();
    vec![
        case("one contiguous span", Datatype::contiguous(n * n, &double()).unwrap(), 1..2, 1..2),
        case("V", vector(n, n / 2, side), 1..2, 1..2),
        case("V of odd rows", vector(n - 3, 331, side - 5), 1..2, 1..2),
        case("X", Datatype::contiguous(n, &column).unwrap(), 1..2, 0..1),
        case("FFT", cube([64, 64, 128], [0, 32, 0]), 1..2, 1..2),
        case("planes", cube([6, 64, 64], [9, 3, 64]), 6..7, 6..7),
        case("a face of columns", cube([64, 128, 1], [0, 0, 5]), 0..1, 0..1),
        case("T", Datatype::indexed(&lengths, &places, &double()).unwrap(), 3..4, 0..1),
    ]
}

#[test]
fn bytes_arrive_between_two_gpus_and_gaps_stay() {
    let Some([near, far]) = devices("bytes and gaps") else { return };
    let config = Config { copy_bytes_min: 1 << 10, ..Config::default() };
    let engine = GpuEngine::cuda_with(Arc::clone(&near), config).unwrap();
    let span = usize::try_from(N * N * 8 + 2 * ORIGIN).unwrap();
    let memories = [Memory::of(&near, span), Memory::of(&far, span)];
    let (source, target) = (noise(span, 1), noise(span, 2));
    for case in cases() {
        let (layout, size) = (&case.layout, case.layout.size());
        for (from, to) in [(0, 1), (1, 0)] {
            let typed = |at: usize| Typed::new(memories[at].region, ORIGIN, layout, 1).unwrap();
            for range in [0..size, 13..size - 5, 4096..size / 2 + 24, 40..41] {
                for budget in [None, NonZeroU32::new(8)] {
                    let engine = engine.with_budget(budget);
                    let say = format!("{}, {from} to {to}, {range:?}, {budget:?}", case.name);
                    let whole = range == (0..size) && budget.is_some();
                    let host = Typed::new(Region::of(&source), ORIGIN, layout, 1).unwrap();
                    let len = range.end - range.start;
                    let part = |memory: &Memory| memory.region.sub(24, len).unwrap();

                    let start = |expected: &mut Vec<u8>| {
                        memories[from].write(&source);
                        memories[to].write(&target);
                        expected.clone_from(&target);
                    };
                    let mut expected = Vec::new();
                    start(&mut expected);
                    let into = Region::of_mut(&mut expected);
                    let into = Typed::new(into, ORIGIN, layout, 1).unwrap();
                    // SAFETY: both live, and do not overlap; here and below.
                    unsafe { HostEngine.transfer(&host, &into, range.clone(), &[]) }.unwrap();
                    let sides = (typed(from), typed(to));
                    // SAFETY: all live until the wait ends; here and below.
                    let done =
                        unsafe { engine.transfer(&sides.0, &sides.1, range.clone(), &[]) }.unwrap();
                    done.wait().unwrap();
                    assert!(memories[to].read() == expected, "layout to layout: {say}");
                    let told = engine.transfer_copies(&sides.0, &sides.1, range.clone()).unwrap();
                    assert!(!whole || case.to_itself.contains(&told.len()), "{say}: {told:?}");

                    start(&mut expected);
                    let into = Region::of_mut(&mut expected).sub(24, len).unwrap();
                    // SAFETY: as above.
                    unsafe { HostEngine.pack(&host, range.clone(), into, &[]) }.unwrap();
                    let packed = part(&memories[to]);
                    // SAFETY: as above.
                    let done =
                        unsafe { engine.pack(&typed(from), range.clone(), packed, &[]) }.unwrap();
                    done.wait().unwrap();
                    assert!(memories[to].read() == expected, "packing: {say}");
                    let told = engine.copies(Direction::Pack, &typed(from), range.clone(), packed);
                    let told = told.unwrap();
                    assert!(!whole || case.packed.contains(&told.len()), "{say}: {told:?}");

                    start(&mut expected);
                    let into = Region::of_mut(&mut expected);
                    let into = Typed::new(into, ORIGIN, layout, 1).unwrap();
                    let out = Region::of(&source).sub(24, len).unwrap();
                    // SAFETY: as above.
                    unsafe { HostEngine.unpack(out, &into, range.clone(), &[]) }.unwrap();
                    let packed = part(&memories[from]);
                    // SAFETY: as above.
                    let done =
                        unsafe { engine.unpack(packed, &typed(to), range.clone(), &[]) }.unwrap();
                    done.wait().unwrap();
                    assert!(memories[to].read() == expected, "unpacking: {say}");
                    assert!(memories[from].read() == source, "the source: {say}");
                }
            }
        }
    }
}

#[test]
fn memory_of_one_gpu_is_left_to_kernels() {
    let Some([near, _]) = devices("one GPU") else { return };
    let config = Config { copy_bytes_min: 1 << 10, ..Config::default() };
    let engine = GpuEngine::cuda_with(Arc::clone(&near), config).unwrap();
    let span = usize::try_from(N * N * 8 + 2 * ORIGIN).unwrap();
    let memories = [Memory::of(&near, span), Memory::of(&near, span)];
    for case in cases() {
        let typed = |at: usize| Typed::new(memories[at].region, ORIGIN, &case.layout, 1).unwrap();
        let told = engine.transfer_copies(&typed(0), &typed(1), 0..case.layout.size()).unwrap();
        assert!(told.is_empty(), "{}: {told:?}", case.name);
    }
}
