//! Every small type against the oracle: the set of [`gapless_dtype::testkit::exhaustive`], which
//! documents its alphabet.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gapless_dtype::testkit::{Coverage, exhaustive, verify_quickly};

/// Types in the set. A change of the alphabet changes it; it must stay above a million.
const TYPES: u64 = 1_460_868;
const _: () = assert!(TYPES >= 1_000_000);

#[test]
fn every_small_type() {
    let units = exhaustive::units();
    let (next, visited) = (AtomicUsize::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut seed = 0;
                    let types = exhaustive::visit_unit(unit, |datatype| {
                        seed += 1;
                        let count = 1 + seed % 3;
                        if let Err(mismatch) = verify_quickly(datatype, count, seed) {
                            panic!("{mismatch}");
                        }
                    });
                    visited.fetch_add(types, Ordering::Relaxed);
                }
            });
        }
    });
    let visited = visited.into_inner();
    println!(
        "{visited} types: {} of depth 1, all over them of depth 2, and 12 over each",
        units.len()
    );
    assert_eq!(visited, TYPES);
}

#[test]
fn the_alphabet_has_every_constructor() {
    let mut coverage = Coverage::default();
    for datatype in exhaustive::units() {
        let typemap = gapless_dtype::naive::Typemap::of(&datatype).unwrap();
        coverage.add(&datatype, &typemap, 1);
    }
    let floors: Vec<_> = [
        "contiguous",
        "dup",
        "vector",
        "hvector",
        "indexed",
        "hindexed",
        "indexed_block",
        "hindexed_block",
        "structure",
        "subarray",
        "darray",
        "resized",
        "primitive",
    ]
    .map(|constructor| ("constructor", constructor, 2))
    .to_vec();
    let short = coverage.shortfalls(&floors);
    assert!(short.is_empty(), "{short:?}");
}
