//! Every byte goes where it is to, wherever things lie, and none beside.

use super::*;
use crate::{Device, HostDevice};
use gapless_testkit::Random;
use std::sync::Arc;

fn memory(len: u64) -> Atomics {
    let region = HostDevice::new().allocate(len + 16).unwrap();
    // SAFETY: the memory is never freed.
    let lease = unsafe { Lease::new(region.sub(3, len).unwrap(), Arc::new(())) };
    // SAFETY: it is zeroed, and touched by this value alone.
    unsafe { Atomics::new(lease) }.unwrap()
}

#[test]
fn bytes_go_in_and_come_out_wherever_they_lie() {
    let memory = memory(64);
    for at in 0..16 {
        for len in 0..40u8 {
            let bytes: Vec<u8> = (1..=len).collect();
            memory.store(0, &[0xEE; 64]).unwrap();
            memory.store(at, &bytes).unwrap();
            let mut all = [0; 64];
            memory.load(0, &mut all).unwrap();
            let from = usize::try_from(at).unwrap();
            let to = from + usize::from(len);
            assert_eq!(all[from..to], bytes);
            assert!(all[..from].iter().chain(&all[to..]).all(|byte| *byte == 0xEE));
            let mut part = vec![0; bytes.len()];
            memory.load(at, &mut part).unwrap();
            assert_eq!(part, bytes);
        }
    }
    assert!(memory.store(60, &[0; 5]).is_err());
    assert!(memory.load(65, &mut []).is_err());
}

#[test]
fn long_copies_touch_what_they_are_to() {
    const ALL: usize = 700;
    let memory = memory(ALL as u64);
    let number = |at: usize| u8::try_from(at % 251).unwrap();
    for at in (0..40).chain([100]) {
        for len in (LONG - 2..LONG + 70).chain([500, 512, 513, ALL - at]) {
            let len = len.min(ALL - at);
            let bytes: Vec<u8> = (0..len).map(|i| number(i + at + len)).collect();
            memory.store(0, &[0xEE; ALL]).unwrap();
            memory.store(at as u64, &bytes).unwrap();
            let mut all = [0; ALL];
            memory.load(0, &mut all).unwrap();
            assert_eq!(all[at..at + len], bytes, "{at} {len}");
            assert!(all[..at].iter().chain(&all[at + len..]).all(|byte| *byte == 0xEE));
            // Where it goes to lies anywhere.
            let mut part = vec![0xDD; len + 3];
            memory.load(at as u64, &mut part[1..=len]).unwrap();
            assert_eq!(part[1..=len], bytes);
            assert_eq!((part[0], part[len + 1]), (0xDD, 0xDD));
        }
    }
}

#[test]
fn copies_by_strings_touch_what_they_are_to() {
    // Spans from 32 KiB on, whole words and others, wherever they lie; both ends at one place in their pages, or not.
    const ALL: usize = 80_000;
    let memory = memory(ALL as u64);
    let given: Vec<u8> = (0..ALL).map(|at| u8::try_from(at * at % 251).unwrap()).collect();
    for (at, skip, len) in [(5, 0, 40_000), (0, 3, 32_768), (13, 8, 65_536), (29, 29, 70_001)] {
        memory.store(0, &[0xEE; ALL]).unwrap();
        let bytes = &given[skip..skip + len];
        memory.store(at as u64, bytes).unwrap();
        let mut all = vec![0xDD; ALL + 1];
        memory.load(0, &mut all[1..]).unwrap();
        assert!(all[1..][at..at + len] == *bytes, "{at} {skip} {len}");
        assert!(all[1..][..at].iter().chain(&all[1..][at + len..]).all(|byte| *byte == 0xEE));
        assert_eq!(all[0], 0xDD);
    }
}

#[test]
fn elements_change_once() {
    let memory = memory(64);
    for (at, width) in [(5, 8), (13, 4), (17, 2), (19, 1)] {
        assert_eq!(memory.update(at, width, |old| Some(old.wrapping_sub(1))), Ok(0));
        let all = u64::MAX >> (64 - 8 * width);
        assert_eq!(memory.update(at, width, |_| None), Ok(all));
        assert_eq!(memory.update(at, width, |old| (old == 0).then_some(7)), Ok(all));
        assert_eq!(memory.update(at, width, |old| Some(old & 7)), Ok(all));
        assert_eq!(memory.update(at, width, |_| None), Ok(7));
    }
    assert!(memory.update(6, 8, Some).is_err());
    assert!(memory.update(5, 3, Some).is_err());
    assert!(memory.update(61, 4, Some).is_err());
}

#[test]
fn device_memory_is_refused() {
    let region = Region::new(crate::Space::Cuda { device: 0 }, 64, 0, 8);
    // SAFETY: nobody uses the memory.
    let lease = unsafe { Lease::kept_by_caller(region) };
    // SAFETY: refused before anything is touched.
    assert!(matches!(unsafe { Atomics::new(lease) }, Err(DeviceError::WrongSpace { .. })));
}

const NUMBERS: [Number; 6] =
    [Number::F64, Number::F32, Number::I64, Number::I32, Number::I16, Number::I8];

/// What becomes of the bytes of numbers, one by one.
fn sum(number: Number, old: &[u8], new: &[u8]) -> Vec<u8> {
    macro_rules! sums {
        ($type:ty, $add:expr) => {
            old.chunks(size_of::<$type>())
                .zip(new.chunks(size_of::<$type>()))
                .flat_map(|(old, new)| {
                    let [old, new] =
                        [old, new].map(|one| <$type>::from_ne_bytes(one.try_into().unwrap()));
                    $add(old, new).to_ne_bytes()
                })
                .collect()
        };
    }
    match number {
        Number::F64 => sums!(f64, |old: f64, new: f64| old + new),
        Number::F32 => sums!(f32, |old: f32, new: f32| old + new),
        Number::I64 => sums!(i64, i64::wrapping_add),
        Number::I32 => sums!(i32, i32::wrapping_add),
        Number::I16 => sums!(i16, i16::wrapping_add),
        Number::I8 => sums!(i8, i8::wrapping_add),
    }
}

/// Bytes that are ordinary numbers of each type: no floating-point one is a NaN, of which sums may differ.
fn ordinary(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| u8::try_from(random.below(0x60)).unwrap_or(0)).collect()
}

/// Runs go where they are to, added or copied, as one by one; nothing beside changes, and all or nothing is done.
#[test]
fn runs_are_as_if_each_were_copied_alone() {
    const ALL: usize = 2000;
    let (memory, mut random) = (memory(ALL as u64), Random::new(0x5EED));
    for round in 0..3000 {
        let number = NUMBERS[round % 6];
        let width = number.bytes();
        let adds = random.below(2) == 0;
        let grain = if adds || random.below(2) == 0 { width } else { 1 };
        let most = if random.below(4) == 0 { 400 / grain } else { 12 };
        let len = grain * (1 + random.below(most));
        let count = 1 + random.below(9);
        // Numbers lie at multiples of their length: the memory begins 3 bytes behind one.
        let first = random.below(250) * 8 + 5 + if grain == 1 { random.below(8) } else { 0 };
        let stride = (random.below(40) * 8 + len.next_multiple_of(8)).cast_signed();
        let stride = if random.below(2) == 0 { stride } else { -stride };
        let places: Vec<i64> = (0..count)
            .map(|run| (first.cast_signed() + stride * run.cast_signed()) as i64)
            .collect();
        let runs = Runs { offset: first as u64, stride: stride as i64, len, count };
        let inside = places.iter().all(|at| *at >= 0 && *at + len as i64 <= ALL as i64);
        let (before, given) = (ordinary(&mut random, ALL), ordinary(&mut random, 40 * len));
        memory.store(0, &before).unwrap();
        let ours = len + random.below(3);
        let start = given.as_ptr();
        let stride = ours.cast_signed();
        let done = if adds {
            // SAFETY: `given` holds nine runs, three bytes longer each.
            unsafe { memory.add_runs(&runs, number, start, stride) }
        } else {
            // SAFETY: as above.
            unsafe { memory.store_runs(&runs, start, stride) }
        };
        assert_eq!(done.is_ok(), inside, "{runs:?}");
        let mut expected = before;
        for (run, at) in places.iter().enumerate().filter(|_| inside) {
            let (at, new) = (usize::try_from(*at).unwrap(), &given[run * ours..run * ours + len]);
            let new = if adds { sum(number, &expected[at..at + len], new) } else { new.to_vec() };
            expected[at..at + len].copy_from_slice(&new);
        }
        let mut found = vec![0; ALL];
        memory.load(0, &mut found).unwrap();
        assert_eq!(found, expected, "{runs:?}, {number:?}, added: {adds}");
        let mut back = vec![0xEE; 40 * len];
        // SAFETY: as above.
        let done = unsafe { memory.load_runs(&runs, back.as_mut_ptr(), stride) };
        assert_eq!(done.is_ok(), inside);
        for (run, at) in places.iter().enumerate().filter(|_| inside) {
            let at = usize::try_from(*at).unwrap();
            assert_eq!(back[run * ours..run * ours + len], expected[at..at + len], "{runs:?}");
            assert!(back[run * ours + len..(run + 1) * ours].iter().all(|byte| *byte == 0xEE));
        }
    }
}

#[test]
fn numbers_that_are_not_aligned_are_not_added() {
    let memory = memory(256);
    memory.add(5, Number::F64, &1.5f64.to_ne_bytes()).unwrap();
    assert!(memory.add(6, Number::F64, &1.5f64.to_ne_bytes()).is_err());
    assert!(memory.add(5, Number::I32, &[0; 6]).is_err());
    assert!(memory.add(253, Number::I32, &[0; 4]).is_err());
    let runs = Runs { offset: 5, stride: 12, len: 8, count: 2 };
    // SAFETY: refused before anything is read.
    assert!(unsafe { memory.add_runs(&runs, Number::I64, [0; 16].as_ptr(), 8) }.is_err());
    for stride in [i64::MIN, i64::MAX] {
        let far = Runs { stride, count: usize::MAX, ..runs };
        // SAFETY: as above.
        assert!(unsafe { memory.load_runs(&far, [0u8; 8].as_mut_ptr(), 8) }.is_err());
    }
    let mut found = [0; 8];
    memory.load(5, &mut found).unwrap();
    assert_eq!(f64::from_ne_bytes(found), 1.5);
}

/// Nobody sees a number half written, however long the span is that is copied, wherever it begins, and whether it is
/// looked at as a whole or number by number; nor one to which others are added.
#[test]
fn numbers_stay_whole_in_long_copies() {
    numbers_stay_whole(100, 600);
    // Long enough for strings.
    numbers_stay_whole(5000, 60);
}

fn numbers_stay_whole(count: usize, rounds: u32) {
    let memory = memory(8 * count as u64 + 5 + 32);
    let numbers = |byte: u8| vec![byte; 8 * count];
    let is_whole = |number: &[u8]| number.iter().all(|byte| *byte == number[0]);
    for (phase, adds) in (0..8).map(|round| (round / 2, round % 2 == 1)) {
        // The memory begins 3 bytes behind a multiple of 16.
        let start = 5 + 8 * phase;
        memory.store(start, &numbers(1)).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for round in 1..rounds {
                    // Now and then the sums begin anew: their bytes are alike, and at most 120.
                    let byte = u8::try_from(1 + round % 120).unwrap();
                    if adds && byte > 1 {
                        memory.add(start, Number::I64, &numbers(1)).unwrap();
                    } else {
                        memory.store(start, &numbers(byte)).unwrap();
                    }
                }
                done.store(true, Ordering::Release);
            });
            let mut room = vec![0; 8 * count + 3];
            loop {
                let last = done.load(Ordering::Acquire);
                // Where it goes to is a multiple of 8 away, or not.
                for shift in [0, 3] {
                    let found = &mut room[shift..shift + 8 * count];
                    memory.load(start, found).unwrap();
                    assert!(found.chunks(8).all(is_whole), "phase {phase}");
                }
                for at in 0..count as u64 {
                    let mut number = [0; 8];
                    memory.load(start + 8 * at, &mut number).unwrap();
                    assert!(is_whole(&number), "phase {phase}");
                }
                if last {
                    break;
                }
            }
        });
    }
}
