//! Operations on memory that is attached in several pieces; accumulations of nothing, and with nothing at the origin.

use super::net::Net;
use super::{Memory, lease, numbers};
use crate::window::Flavor;
use crate::{AccessKind, Lock, Place, WindowError};
use gapless_btl::loopback::Config;
use gapless_dtype::{Datatype, Primitive};
use gapless_engine::ReduceOp;
use gapless_mem::Atomics;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[test]
fn operations_go_across_pieces_that_meet() {
    let net = Net::new(2, &Config::default());
    let memory: Memory = Arc::new((0..16).map(AtomicU64::new).collect());
    let target = net.window_with(0, &[], Flavor::Dynamic, &[]);
    let all = lease(&memory, 0..16);
    // Two that meet in the middle of a number, one behind a gap of a word.
    for (start, len) in [(44, 36), (0, 44), (88, 40)] {
        // SAFETY: it is initialised, and touched by atomics only.
        let piece = unsafe { Atomics::new(all.sub(start, len).unwrap()) }.unwrap();
        assert_eq!(target.attach(piece).unwrap(), all.region().start() + start);
    }
    let window = net.window_with(1, &[], Flavor::Dynamic, &[]);
    let driver = net.driver(1, 1000, &|| ());
    window.lock(&driver, 0, Lock::Shared).unwrap();
    let at = |word: u64| Place::at(all.region().start() + 8 * word);
    let bytes = |numbers: &[u64]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    };
    let put = |place: &Place, given: &[u64]| {
        let typed = numbers(Primitive::Uint64, given.len() as u64);
        let access = window.access("put", (0, place), &typed, AccessKind::Write).unwrap();
        let given = bytes(given);
        window.put(&driver, &access, 0..given.len() as u64, &given).unwrap();
    };
    let get = |place: &Place, count: u64| {
        let typed = numbers(Primitive::Uint64, count);
        let access = window.access("get", (0, place), &typed, AccessKind::Read).unwrap();
        let mut found = bytes(&vec![0; usize::try_from(count).unwrap()]);
        window.get(&driver, &access, 0..8 * count, &mut found)?;
        let number = |word: &[u8]| u64::from_ne_bytes(word.try_into().unwrap());
        Ok::<Vec<u64>, WindowError>(found.chunks(8).map(number).collect())
    };
    put(&at(4), &[40, 50, 60]);
    assert_eq!(get(&at(3), 5).unwrap(), [3, 40, 50, 60, 7]);
    let change = |place: &Place, op, given: &[u64], count: u64| {
        let typed = numbers(Primitive::Uint64, count);
        let access =
            window.access("get_accumulate", (0, place), &typed, AccessKind::Change).unwrap();
        let (what, given) = ((&access, op), bytes(given));
        let reading = window.start_get_accumulate(&driver, what, (&typed, place), &given).unwrap();
        reading.wait(&driver).unwrap()
    };
    assert_eq!(change(&at(4), ReduceOp::Sum, &[1, 2, 3], 3), bytes(&[40, 50, 60]));
    // An atomic get gives nothing.
    assert_eq!(change(&at(4), ReduceOp::NoOp, &[], 3), bytes(&[41, 52, 63]));
    // Every third word, over the gap.
    let apart = Datatype::vector(4, 1, 4, &Primitive::Uint64.into()).unwrap().commit().unwrap();
    let address = all.region().start();
    put(&Place::typed(address, &apart, 1), &[100, 104, 108, 112]);
    assert_eq!(get(&at(8), 2).unwrap(), [108, 9]);
    assert_eq!(get(&at(11), 5).unwrap(), [11, 112, 13, 14, 15]);
    // Words that nobody has attached: nothing of a put is done.
    for (place, count) in [(at(9), 2), (at(10), 1), (at(15), 2)] {
        assert!(matches!(get(&place, count), Err(WindowError::Refused { .. })));
    }
    put(&at(9), &[1, 1]);
    assert!(window.flush(&driver, 0).is_err());
    assert_eq!(get(&at(9), 1).unwrap(), [9]);
    window.unlock(&driver, 0).unwrap();
}

#[test]
fn nothing_has_no_type() {
    let double = Datatype::from(Primitive::Double).commit().unwrap();
    for maps in [&[0][..], &[]] {
        let net = Net::new(2, &Config::default());
        let _target = net.window(0, &[]);
        let window = net.window(1, maps);
        let driver = net.driver(1, 1000, &|| ());
        window.lock(&driver, 0, Lock::Shared).unwrap();
        let (origin, place) = (numbers(Primitive::Int32, 0), Place::typed(8, &double, 0));
        let access = window.access("accumulate", (0, &place), &origin, AccessKind::Change).unwrap();
        for op in ReduceOp::ALL {
            let (what, where_to) = ((&access, op), (&origin, &place));
            window.accumulate(&driver, what, where_to, &[]).unwrap();
            let reading = window.start_get_accumulate(&driver, what, where_to, &[]).unwrap();
            assert_eq!(reading.wait(&driver).unwrap(), []);
            // SAFETY: no bytes are touched.
            assert!(unsafe { window.accumulate_runs(&driver, what, where_to) }.unwrap());
        }
        window.unlock(&driver, 0).unwrap();
    }
}
