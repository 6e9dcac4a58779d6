//! Puts and gets of pages, with a list at each end, against the same bytes moved one by one.

use super::{PATHS, Random, ranks, why, window};
use gapless::{Datatype, Layout, Pages, Place, Primitive, ReduceOp, View, ViewMut, WindowError};

/// Bytes of a window, and of a buffer.
const BYTES: u64 = 6000;

fn below(random: &mut Random, bound: u64) -> u64 {
    random.below(usize::try_from(bound).unwrap()) as u64
}

/// Pages of one kind: without gaps, or rows of a larger one.
fn page(random: &mut Random) -> Layout {
    let byte = Datatype::from(Primitive::Byte);
    let page = match below(random, 3) {
        0 => Datatype::contiguous(1 + below(random, 40), &byte),
        1 => Datatype::vector(1 + below(random, 5), 3, 8, &byte),
        _ => Datatype::subarray(&[2, 4, 6], &[2, 2, 3], &[0, 1, 2], gapless::Order::C, &byte),
    };
    page.unwrap().commit().unwrap()
}

/// Some pages in a buffer of so many bytes from `start` on; no index twice.
fn some(random: &mut Random, page: &Layout, count: u64, start: u64) -> Pages {
    let least = u64::try_from(page.true_ub()).unwrap();
    let stride = least + below(random, 9);
    let most = (BYTES - start - least) / stride;
    let mut all: Vec<u64> = (0..=most).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, usize::try_from(below(random, at as u64 + 1)).unwrap());
    }
    all.truncate(usize::try_from(count).unwrap());
    let short: Vec<u32> = all.iter().map(|index| u32::try_from(*index).unwrap()).collect();
    match below(random, 2) {
        0 => Pages::new(page, stride, all).unwrap(),
        _ => Pages::new(page, stride, short).unwrap(),
    }
}

/// Moves pages from one model to another.
fn moved(source: &[u8], (from, at): (&Pages, u64), target: &mut [u8], (to, start): (&Pages, u64)) {
    let mut packed = vec![0; usize::try_from(from.packed_size()).unwrap()];
    let origin = |at| usize::try_from(at).unwrap();
    gapless_dtype::Convertor::of_pages(from).pack(source, origin(at), &mut packed).unwrap();
    gapless_dtype::Convertor::of_pages(to).unpack(&packed, target, origin(start)).unwrap();
}

#[test]
fn pages_go_into_windows_and_out_of_them() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let seed = 41;
            let mut random = Random::new(seed);
            let bytes = usize::try_from(BYTES).unwrap();
            let mut window = window::<u8>(comm, path, bytes);
            let mut there = vec![0; bytes];
            window.write(&there, 0).unwrap();
            window.fence().unwrap();
            if comm.rank() == 0 {
                let mut mine = random.bytes(bytes);
                for round in 0..60 {
                    let kind = page(&mut random);
                    let (at, start) = (below(&mut random, 50), below(&mut random, 50));
                    let count = 1 + below(&mut random, 30);
                    let (here, far) = (
                        some(&mut random, &kind, count, at),
                        some(&mut random, &kind, count, start),
                    );
                    let place = Place::pages(start, &far);
                    if below(&mut random, 2) == 0 {
                        let view = View::pages(&mine[..], at, &here).unwrap();
                        window.put(view, 1, place).unwrap();
                        moved(&mine, (&here, at), &mut there, (&far, start));
                    } else {
                        let mut expected = mine.clone();
                        moved(&there, (&far, start), &mut expected, (&here, at));
                        let view = ViewMut::pages(&mut mine[..], at, &here).unwrap();
                        window.get(view, 1, place).unwrap();
                        assert!(mine == expected, "{path:?}, seed {seed}, round {round}");
                    }
                }
            }
            window.fence_last().unwrap();
            if comm.rank() == 0 {
                comm.send(&there, 1, 0).unwrap();
            } else {
                let mut found = vec![0; bytes];
                window.read(&mut found, 0).unwrap();
                comm.recv(&mut there, 0, 0).unwrap();
                assert!(found == there, "{path:?}, seed {seed}");
            }
            window.free().unwrap();
        });
    }
}

#[test]
fn wrong_pages_are_refused() {
    for path in PATHS {
        ranks(path, 2, |comm| {
            let mut window = window::<u8>(comm, path, 64);
            window.lock_all().unwrap();
            let page = Datatype::contiguous(8, &Primitive::Byte.into()).unwrap().commit().unwrap();
            let pages = |list: &[u32]| Place::pages(0, &Pages::new(&page, 8, list).unwrap());
            let outside = window.put(&[1u8; 24], 1, pages(&[0, 8, 1])).unwrap_err();
            assert!(outside.to_string().contains("index 8 at position 1"), "{outside}");
            let other = why(window.put(&[1u8; 24], 1, pages(&[0, 1])));
            assert!(matches!(other, WindowError::Mismatch { .. }), "{other}");
            window.put(&[1u8; 0], 1, pages(&[])).unwrap();
            // Of elements that are named twice, only one would count.
            let twice = why(window.accumulate(&[1u8; 24], 1, pages(&[3, 5, 3]), ReduceOp::Sum));
            assert!(matches!(twice, WindowError::Overlapping { .. }), "{twice}");
            // What is put twice at a page is undefined there, and there alone.
            if comm.rank() == 0 {
                window.put(&[7u8; 24], 1, pages(&[3, 5, 3])).unwrap();
                window.flush(1).unwrap();
                let mut found = [9u8; 64];
                window.get(&mut found, 1, 0).unwrap();
                let expected = |at: usize| if matches!(at / 8, 3 | 5) { 7 } else { 0 };
                assert!((0..64).all(|at| found[at] == expected(at)), "{found:?}");
            }
            window.unlock_all().unwrap();
            window.free().unwrap();
        });
    }
}
