//! Every operation on every basic type for which it is defined.

use super::model::combined;
use super::{PATHS, Random, ranks, window};
use gapless::{Datatype, Equivalence, Place, Primitive, ReduceOp, View, ViewMut};
use gapless_engine::PackedFold;

const ELEMENTS: usize = 5;

#[test]
fn every_type_and_operation() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut random = Random::new(u64::from(comm.rank()) + 3);
            let mut window = window::<u8>(comm, path, 2 * 32 * ELEMENTS);
            window.lock_all().unwrap();
            // A half of rank 0's memory for each rank.
            let base = 32 * ELEMENTS as u64 * u64::from(comm.rank());
            for element in Primitive::ALL {
                let extent = usize::try_from(element.extent_bytes()).unwrap();
                let layout = Datatype::from(element).commit().unwrap();
                let count = ELEMENTS as u64;
                let place = Place::typed(base, &layout, count);
                for op in ReduceOp::ALL {
                    let moves = matches!(op, ReduceOp::Replace | ReduceOp::NoOp);
                    if !moves && PackedFold::new(op, element).is_none() {
                        continue;
                    }
                    // Small numbers in any format.
                    let mut bytes = |_| {
                        let mut bytes = random.bytes(extent * ELEMENTS);
                        bytes.iter_mut().for_each(|byte| *byte &= 0x3F);
                        bytes
                    };
                    let [old, new] = [0, 1].map(&mut bytes);
                    let view = |bytes| View::typed(bytes, 0, &layout, count).unwrap();
                    window.put(view(&old[..]), 0, place.clone()).unwrap();
                    let mut fetched = vec![0u8; old.len()];
                    let into = ViewMut::typed(&mut fetched[..], 0, &layout, count).unwrap();
                    if path.by_tasks() {
                        window.get(into, 0, place.clone()).unwrap();
                        window.accumulate(view(&new[..]), 0, place.clone(), op).unwrap();
                    } else {
                        window.get_accumulate(view(&new[..]), into, 0, place.clone(), op).unwrap();
                    }
                    let mut after = vec![0u8; old.len()];
                    let into = ViewMut::typed(&mut after[..], 0, &layout, count).unwrap();
                    window.get(into, 0, place.clone()).unwrap();
                    let pack = |bytes: &[u8]| gapless::pack(bytes, 0, &layout, count).unwrap();
                    let [old, new] = [pack(&old), pack(&new)];
                    assert_eq!(pack(&fetched), old, "{path:?} {op:?} {element}");
                    let expected = combined(op, element, &old, &new);
                    assert_eq!(pack(&after), expected, "{path:?} {op:?} {element}");
                }
            }
            window.unlock_all().unwrap();
            window.free().unwrap();
        });
    }
}

/// The padding of a target stays as it is, and that of an origin is not read.
#[test]
fn structs_of_a_value_and_an_index_are_accumulated() {
    #[derive(Clone, Copy, Datatype)]
    #[repr(C)]
    struct Best(f64, i32);
    #[derive(Clone, Copy, Datatype)]
    #[repr(C)]
    struct Far(f64, i64);
    for path in PATHS {
        ranks(path, 2, |comm| {
            let me = i32::try_from(comm.rank()).unwrap();
            let mut window = window::<u8>(comm, path, 64);
            window.write(&[0x11u8; 64], 0).unwrap();
            window.fence().unwrap();
            let (best, far) = (Best::layout(), Far::layout());
            let mine = [Best(f64::from(-me), me), Best(7.0, me)];
            window.accumulate(&mine[..], 0, Place::typed(0, best, 2), ReduceOp::MinLoc).unwrap();
            let mine = [Far(f64::from(me), i64::from(me) << 40)];
            window.accumulate(&mine[..], 0, Place::typed(32, far, 1), ReduceOp::MaxLoc).unwrap();
            window.fence().unwrap();
            if me == 0 {
                // What was there is a small positive number.
                let there = f64::from_ne_bytes([0x11; 8]);
                assert!((0.0..1.0).contains(&there));
                let mut bytes = [0u8; 64];
                window.read(&mut bytes, 0).unwrap();
                let number = |at: usize| f64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!((number(0), number(16), number(32)), (-1.0, there, 1.0), "{path:?}");
                assert_eq!(bytes[8..12], 1i32.to_ne_bytes());
                assert_eq!(bytes[24..28], [0x11; 4]);
                assert_eq!(bytes[40..48], (1i64 << 40).to_ne_bytes());
                assert_eq!((&bytes[12..16], &bytes[28..32]), (&[0x11; 4][..], &[0x11; 4][..]));
            }
            window.fence().unwrap();
            window.free().unwrap();
        });
    }
}
