//! Every operation on every basic type for which it is defined.

use super::model::combined;
use super::{PATHS, Random, ranks, window};
use gapless::{Datatype, Place, Primitive, ReduceOp, View, ViewMut};
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
