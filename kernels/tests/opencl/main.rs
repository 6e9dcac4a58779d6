//! Every kernel, run through OpenCL against a byte-by-byte reference; in CI that is PoCL, on the host's
//! processor. Gaps and surroundings are canaries: what should not be touched is looked at as well.
//!
//! Without an OpenCL device the tests are skipped, aloud; where the variable `CI` is set they fail instead.

mod bench;
mod layouts;
mod shapes;

use bench::{Bench, Case, Random};
use gapless_kernels::launch::{TransferSide, transfer};
use gapless_kernels::{Direction, Family, Kernel, Width};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// Cases of each family, width and direction.
const ROUNDS: u64 = 6;
/// Families that have tests of their own.
const FREE: [Family; 2] = [Family::Transfer, Family::Fused];

#[test]
fn every_kernel_moves_every_byte_to_its_place() {
    let Some(mut bench) = Bench::open() else { return };
    let mut ran = BTreeSet::new();
    for width in Width::ALL {
        for family in Family::ALL.into_iter().filter(|&family| !FREE.contains(&family)) {
            for round in 0..ROUNDS {
                let seed = (round << 16) | (family as u64) << 8 | width as u64;
                let mut random = Random::new(seed);
                let case = shapes::case(family, width, &mut random);
                for direction in [Direction::Pack, Direction::Unpack] {
                    let range = case.range(&mut random, round % 3 == 0);
                    let budget = if round % 2 == 1 { NonZeroU32::new(1) } else { None };
                    let skew = if round == 2 { random.below(16) } else { 0 };
                    let used =
                        bench.pack_or_unpack(&case, direction, range, budget, skew, width, seed);
                    ran.extend(used.iter().map(Kernel::to_string));
                }
            }
        }
    }
    for kernel in Kernel::all().filter(|kernel| !FREE.contains(&kernel.family)) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}

#[test]
fn layouts_move_into_layouts() {
    let Some(mut bench) = Bench::open() else { return };
    let sides = [
        Family::Copy,
        Family::Strided,
        Family::Strided1,
        Family::Affine,
        Family::Listed,
        Family::Mapped,
        Family::Transposed,
    ];
    let mut ran = BTreeSet::new();
    for (number, from) in (0u64..).zip(sides) {
        for (other, to) in (0u64..).zip(sides) {
            let width = Width::ALL[usize::try_from((number + other) % 5).unwrap()];
            let seed = 1 << 32 | number << 8 | other;
            let mut random = Random::new(seed);
            let source = shapes::case(from, width, &mut random);
            let target = shapes::case(to, width, &mut random);
            let size = source.size().min(target.size());
            let (a, b) = (random.below(size), random.below(size));
            let part = a.min(b)..a.max(b) + 1;
            for (range, budget) in [(0..size, None), (part, None), (0..size, NonZeroU32::new(1))] {
                let used = bench.transfer(&source, &target, range, budget, seed);
                ran.extend(used.iter().map(Kernel::to_string));
            }
        }
    }
    for width in Width::ALL {
        for few in [false, true] {
            let (family, direction) = (Family::Transfer, Direction::Pack);
            let kernel = Kernel { family, direction, width, few };
            assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
        }
    }
}

#[test]
fn many_requests_move_at_once() {
    let Some(mut bench) = Bench::open() else { return };
    let sides: Vec<Family> =
        Family::ALL.into_iter().filter(|family| !FREE.contains(family)).collect();
    let mut ran = BTreeSet::new();
    for round in 0u64..30 {
        let mut random = Random::new(5 << 32 | round);
        let width = Width::ALL[usize::try_from(round % 5).unwrap()];
        // Words of one width, or of any; up to more requests than a launch takes.
        let mixed = round >= 20;
        let count = random.between(1, if round % 4 == 3 { 40 } else { 9 });
        let cases: Vec<Case> = (0..count)
            .map(|_| {
                let family = sides[usize::try_from(random.below(sides.len() as u64)).unwrap()];
                let width = if mixed {
                    Width::ALL[usize::try_from(random.below(5)).unwrap()]
                } else {
                    width
                };
                shapes::case(family, width, &mut random)
            })
            .collect();
        let budget = if round % 2 == 1 { NonZeroU32::new(1) } else { None };
        for direction in [Direction::Pack, Direction::Unpack] {
            let width = (!mixed).then_some(width);
            let used = bench.fused(&cases, direction, budget, width, &mut random, round);
            ran.extend(used.iter().map(Kernel::to_string));
        }
    }
    for kernel in Kernel::all().filter(|kernel| kernel.family == Family::Fused) {
        assert!(ran.contains(&kernel.to_string()), "{kernel} did not run");
    }
}

#[test]
fn a_range_may_lie_inside_a_word() {
    let Some(mut bench) = Bench::open() else { return };
    let mut random = Random::new(99);
    let case: Case = shapes::case(Family::Strided1, Width::W8, &mut random);
    for range in [0..0, 3..4, 3..8, 8..9, 5..12, 1..case.size() - 1] {
        for direction in [Direction::Pack, Direction::Unpack] {
            bench.pack_or_unpack(&case, direction, range.clone(), None, 0, Width::W8, 99);
        }
    }
    let whole = transfer(
        &(0..0),
        (&TransferSide::Contiguous(0), bench::place(0)),
        (&TransferSide::Contiguous(0), bench::place(0)),
        None,
    );
    assert!(whole.unwrap().is_empty());
}
