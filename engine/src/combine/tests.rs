//! Every loop, at every level, against the oracle.

use super::*;
use crate::testkit::oracle;
use gapless_dtype::testkit::Rng;

fn levels() -> Vec<Level> {
    let mut levels = vec![Level::Baseline];
    if Level::best() != Level::Baseline {
        levels.push(Level::best());
    }
    levels
}

fn everything() -> impl Iterator<Item = (ReduceOp, Primitive)> {
    ReduceOp::ALL.into_iter().flat_map(|op| Primitive::ALL.map(|primitive| (op, primitive)))
}

/// Elements whose comparisons, ties, carries and special values matter: small numbers, and any bytes.
fn fill(rng: &mut Rng, primitive: Primitive, bytes: &mut [u8]) {
    rng.fill(bytes);
    let size = usize::try_from(primitive.size_bytes()).unwrap();
    for element in bytes.chunks_mut(size) {
        let small = rng.between(-2, 2);
        if rng.chance(30) {
            continue;
        }
        let number = i32::try_from(small).unwrap();
        let real = number as f32;
        // A pair's value; its index stays as it is, or is that of others.
        let (value, _) = primitive.parts().next().unwrap();
        let width = usize::try_from(value.size_bytes()).unwrap();
        if primitive.is_pair() && rng.chance(50) {
            element[width..].fill(0);
        }
        match value {
            Primitive::Float16 => element.copy_from_slice(&half::f16::from_f32(real).to_ne_bytes()),
            Primitive::BFloat16 => {
                element.copy_from_slice(&half::bf16::from_f32(real).to_ne_bytes())
            }
            Primitive::Float => {
                element[..4].copy_from_slice(&real.to_ne_bytes());
            }
            Primitive::Double => {
                element[..8].copy_from_slice(&f64::from(real).to_ne_bytes());
            }
            Primitive::Bool => element[0] = u8::from(small > 0),
            _ => {
                let width = width.min(8);
                element[..width].copy_from_slice(&small.to_ne_bytes()[..width]);
            }
        }
    }
}

#[test]
fn every_loop_means_what_the_oracle_says() {
    let mut rng = Rng::new(14);
    let mut loops = 0;
    for (op, primitive) in everything() {
        if op.only_moves() || !oracle::knows(op, primitive) {
            continue;
        }
        let size = usize::try_from(primitive.size_bytes()).unwrap();
        for level in levels() {
            let fold = combine(level, op, primitive).expect("defined, so there is a loop");
            loops += 1;
            for case in 0..24 {
                let (n, count) = (2 + case % 3, rng.index(150));
                let mut sources = vec![vec![0; count * size]; n];
                sources.iter_mut().for_each(|source| fill(&mut rng, primitive, source));
                let wanted = oracle::folded(op, primitive, &sources).unwrap();
                // Anywhere in memory, and into one of the sources or apart from all.
                let mut memory = vec![vec![0xEE; count * size + 16]; n + 1];
                let starts: Vec<usize> = (0..=n).map(|_| rng.index(16)).collect();
                for ((memory, source), start) in memory.iter_mut().zip(&sources).zip(&starts) {
                    memory[*start..][..source.len()].copy_from_slice(source);
                }
                let into = rng.index(n + 1);
                let places: Vec<*mut u8> = memory
                    .iter_mut()
                    .zip(&starts)
                    .map(|(memory, start)| memory.as_mut_ptr().wrapping_add(*start))
                    .collect();
                let from: Vec<*const u8> = places[..n].iter().map(|at| at.cast_const()).collect();
                // SAFETY: each vector has room for `count` elements where it is told; the target is one of them.
                #[allow(unsafe_code, reason = "loops take addresses")]
                unsafe {
                    fold(&from, places[into], count)
                };
                let (before, rest) = memory[into].split_at(starts[into]);
                let (result, after) = rest.split_at(count * size);
                assert!(
                    oracle::agree(primitive, result, &wanted),
                    "{op:?} of {n} times {count} {primitive} by {level:?} into {into}: {result:?}, not {wanted:?}"
                );
                let untouched = before.iter().chain(after).all(|byte| *byte == 0xEE);
                assert!(untouched, "{op:?} of {count} {primitive} wrote elsewhere");
            }
        }
    }
    assert!(loops >= 240, "only {loops} loops");
}

#[test]
fn what_is_undefined_has_no_loop() {
    for (op, primitive) in everything() {
        let found = combine(Level::best(), op, primitive).is_some();
        let wanted = op.is_defined_for(primitive) && !op.only_moves();
        let lacks_arithmetic =
            matches!(primitive, Primitive::Float128 | Primitive::Float128Complex)
                || cfg!(not(target_arch = "x86_64")) && primitive.name().contains("LONG_DOUBLE");
        assert_eq!(found, wanted && !lacks_arithmetic, "{op:?} of {primitive}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn long_doubles_are_summed_and_located() {
    use super::long_double::LongDouble;
    let level = Level::best();
    let values = |list: [f64; 3]| list.map(LongDouble::of);
    let (a, mut b) = (values([1.0, 2.0, 3.0]), values([0.5, 0.25, -3.0]));
    let sum = combine(level, ReduceOp::Sum, Primitive::LongDouble).unwrap();
    let from = [(&raw const a).cast::<u8>(), (&raw const b).cast::<u8>()];
    // SAFETY: two arrays of three elements; the target is the second.
    #[allow(unsafe_code, reason = "loops take addresses")]
    unsafe {
        sum(&from, (&raw mut b).cast(), 3)
    };
    assert!(b == values([1.5, 2.25, 0.0]));
    let pair = |value, index| LocPair { value: LongDouble::of(value), index };
    let (a, mut b) = ([pair(2.0, 7), pair(1.0, 1)], [pair(2.0, 3), pair(1.5, 9)]);
    let most = combine(level, ReduceOp::MaxLoc, Primitive::LongDoubleInt).unwrap();
    let from = [(&raw const a).cast::<u8>(), (&raw const b).cast::<u8>()];
    // SAFETY: two arrays of two elements; the target is the second.
    #[allow(unsafe_code, reason = "loops take addresses")]
    unsafe {
        most(&from, (&raw mut b).cast(), 2)
    };
    let [first, second] = b;
    assert_eq!([{ first.index }, { second.index }], [3, 9]);
}

/// What the standard says in words, on numbers that a reader can check.
#[test]
fn each_operation_means_what_mpi_says() {
    let int = |op, left: i32, right: i32| {
        let (left, mut right) = (left.to_ne_bytes(), right.to_ne_bytes());
        let fold = combine(Level::best(), op, Primitive::Int).unwrap();
        // SAFETY: one element each; the target is the right one.
        #[allow(unsafe_code, reason = "loops take addresses")]
        unsafe {
            fold(&[left.as_ptr(), right.as_ptr()], right.as_mut_ptr(), 1)
        };
        i32::from_ne_bytes(right)
    };
    assert_eq!(int(ReduceOp::Max, -3, 2), 2);
    assert_eq!(int(ReduceOp::Min, -3, 2), -3);
    assert_eq!(int(ReduceOp::Sum, i32::MAX, 1), i32::MIN);
    assert_eq!(int(ReduceOp::Prod, -3, 2), -6);
    assert_eq!(int(ReduceOp::Land, 4, 2), 1);
    assert_eq!(int(ReduceOp::Lor, 0, 0), 0);
    assert_eq!(int(ReduceOp::Lxor, 4, 2), 0);
    assert_eq!(int(ReduceOp::Band, 6, 3), 2);
    assert_eq!(int(ReduceOp::Bor, 6, 3), 7);
    assert_eq!(int(ReduceOp::Bxor, 6, 3), 5);
}
