//! Random types against the oracle: at least 100,000 non-empty ones of two blocks or more through
//! every check, and a share of overlapping and tiny ones through what is legal for them.
//!
//! `GAPLESS_PROP_CASES` raises the number of types, `GAPLESS_SEED` repeats a run; both are printed
//! with the histograms (`--nocapture` shows them when the test passes). The test fails where a
//! kind of type occurs less often than [`FLOORS`] state.

use gapless_testkit::{fresh, rounds, seed};

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use proptest::{prop_assert, prop_assert_eq};

use gapless_dtype::naive::Typemap;
use gapless_dtype::testkit::{
    Coverage, INSTANCES_MAX, Params, Rng, any_datatype, any_disjoint_datatype, any_layout,
    check_datatype, check_strategy, children, describe, minimise, random_sample, verify,
    verify_quickly, verify_sample,
};
use gapless_dtype::{Datatype, Layout, Primitive};

const CASES: u64 = 100_000;

/// What a run of [`CASES`] types must at least have seen.
const FLOORS: &[(&str, &str, u64)] = &[
    ("depth", "1", 8_000),
    ("depth", "2", 8_000),
    ("depth", "3", 8_000),
    ("depth", "4", 8_000),
    ("depth", "5", 8_000),
    ("constructor", "contiguous", 10_000),
    ("constructor", "dup", 10_000),
    ("constructor", "vector", 10_000),
    ("constructor", "hvector", 10_000),
    ("constructor", "indexed", 10_000),
    ("constructor", "hindexed", 10_000),
    ("constructor", "indexed_block", 10_000),
    ("constructor", "hindexed_block", 10_000),
    ("constructor", "structure", 10_000),
    ("constructor", "subarray", 10_000),
    ("constructor", "darray", 5_000),
    ("constructor", "resized", 10_000),
    ("constructor", "byte", 5_000),
    ("gap", "1-7", 20_000),
    ("gap", "8-63", 20_000),
    ("gap", "64+", 10_000),
    ("gap", "backward", 10_000),
    ("blocks", "2-3", 10_000),
    ("blocks", "4-15", 10_000),
    ("blocks", "16-63", 5_000),
    ("blocks", "64+", 1_000),
    ("feature", "negative stride", 5_000),
    ("feature", "negative displacement", 5_000),
    ("feature", "negative true lb", 5_000),
    ("feature", "negative extent", 1_000),
    ("feature", "explicit bounds", 10_000),
    ("feature", "zero count", 200),
    ("feature", "zero blocklength", 2_000),
    ("feature", "pair type", 10_000),
    ("feature", "several instances", 50_000),
    ("shape", "Strided", 5_000),
    ("shape", "EqualBlocks", 2_000),
    ("shape", "Affine", 500),
    ("shape", "General", 20_000),
];

/// The same for the tenth as many types that may overlap.
const OVERLAP_FLOORS: &[(&str, &str, u64)] = &[
    ("feature", "overlap", 1_000),
    ("feature", "zero extent", 20),
    ("feature", "zero count", 100),
    ("gap", "backward", 1_000),
    ("blocks", "0", 20),
    ("blocks", "1", 500),
];

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Checks `cases` types as `params` describe on all cores; returns what they covered.
fn drive(cases: u64, seed: u64, params: &Params) -> Coverage {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = u64::try_from(threads).unwrap();
    let mut coverage = Coverage::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let mut coverage = Coverage::default();
                    for case in (worker..cases).step_by(usize::try_from(threads).unwrap()) {
                        one(seed, case, params, &mut coverage);
                    }
                    coverage
                })
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(seen) => coverage.merge(&seen),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    coverage
}

/// Case number `case`: its type, its instances and its checks depend on nothing but the seed.
fn one(seed: u64, case: u64, params: &Params, coverage: &mut Coverage) {
    let mut rng = Rng::new(seed.wrapping_add(case.wrapping_mul(0x9e37_79b9)));
    let (datatype, typemap) = random_sample(&mut rng, params);
    let count = if rng.chance(2) { 0 } else { 1 + rng.below(INSTANCES_MAX) };
    let checks = rng.next_u64();
    coverage.add(&datatype, &typemap, count);
    let Err(mismatch) = verify_sample(&datatype, &typemap, count, checks) else {
        return;
    };
    // Simplifying may panic a thousand times; only the outcome is of interest.
    std::panic::set_hook(Box::new(|_| {}));
    let simplest = minimise(&datatype, 2_000, |candidate| {
        params.admit(candidate) && verify(candidate, count, checks).is_err()
    });
    let simplest = verify(&simplest, count, checks).err();
    drop(std::panic::take_hook());
    let simplest = simplest.map_or_else(String::new, |mismatch| format!("\nsimplest: {mismatch}"));
    panic!("GAPLESS_SEED={seed}, case {case}: {mismatch}{simplest}");
}

#[test]
fn types_of_two_blocks_or_more() {
    let (cases, seed) = (number("GAPLESS_PROP_CASES").unwrap_or(CASES).max(CASES), seed(fresh()));
    println!("GAPLESS_PROP_CASES={cases} GAPLESS_SEED={seed}");
    let params = Params { blocks_min: 2, ..Params::disjoint() };
    let coverage = drive(cases, seed, &params);
    println!("{coverage}");
    assert_eq!(coverage.types(), cases);
    assert_eq!(coverage.count("blocks", "0") + coverage.count("blocks", "1"), 0);
    assert_eq!(coverage.count("feature", "overlap"), 0);
    let short = coverage.shortfalls(FLOORS);
    assert!(short.is_empty(), "GAPLESS_SEED={seed}: too few\n{}", short.join("\n"));
}

#[test]
fn types_that_may_overlap_or_be_empty() {
    let (cases, seed) =
        (number("GAPLESS_PROP_CASES").unwrap_or(CASES).max(CASES) / 10, seed(fresh()));
    println!("GAPLESS_SEED={seed}");
    let coverage = drive(cases, seed ^ 0x5555, &Params::default());
    println!("{coverage}");
    let short = coverage.shortfalls(OVERLAP_FLOORS);
    assert!(short.is_empty(), "GAPLESS_SEED={seed}: too few\n{}", short.join("\n"));
}

/// Fewer and larger types: blocks of hundreds of bytes and hundreds of blocks, where the copy loops
/// change their methods.
#[test]
fn large_types() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let params = Params {
        depth_max: 3,
        bytes_max: 1 << 16,
        span_max: 1 << 20,
        blocks_min: 2,
        copies_max: 300,
        ..Params::disjoint()
    };
    let cases = rounds(3_000);
    let coverage = drive(cases, seed ^ 0x7777, &params);
    println!("{coverage}");
    let short = coverage.shortfalls(&[("blocks", "64+", cases / 6), ("blocks", "2-3", cases / 60)]);
    assert!(short.is_empty(), "GAPLESS_SEED={seed}: too few\n{}", short.join("\n"));
}

/// Long index lists that are regular but for one place: a step, a length, a zero or a merge there
/// must not be lost in whatever recognises the rest.
#[test]
fn long_lists() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed ^ 0x1157);
    for case in 0..rounds(10_000) {
        let blocks = 20 + rng.below(60);
        let (step, length) = (rng.between(-6, 9), 1 + rng.below(4));
        let grow = if rng.chance(50) { rng.below(3) } else { 0 };
        let shuffled = rng.chance(30);
        let mut lengths: Vec<u64> = (0..blocks).map(|at| length + at * grow).collect();
        let mut places: Vec<i64> = (0..).take(lengths.len()).map(|at: i64| at * step).collect();
        if shuffled {
            rng.shuffle(&mut places);
        }
        let at = 1 + rng.index(places.len() - 1);
        match rng.below(5) {
            0 => places[at] += rng.between(-3, 3),
            1 => lengths[at] = rng.below(6),
            2 => places[at] = places[at - 1] + i64::try_from(lengths[at - 1]).unwrap(),
            3 => lengths[at] = 0,
            _ => {}
        }
        let old = match rng.below(4) {
            0 => Primitive::Byte.into(),
            1 => Primitive::Int.into(),
            2 => Datatype::hindexed_block(1, &[rng.between(-9, 9)], &Primitive::Short.into())
                .unwrap(),
            _ => Datatype::resized(0, rng.between(-5, 12), &Primitive::Int.into()).unwrap(),
        };
        let datatype = match rng.below(4) {
            0 => Datatype::indexed(&lengths, &places, &old),
            1 => Datatype::hindexed(&lengths, &places, &old),
            2 => Datatype::indexed_block(length, &places, &old),
            _ => Datatype::hindexed_block(length, &places, &old),
        };
        if let Err(mismatch) = verify_quickly(&datatype.unwrap(), 1 + case % 2, rng.next_u64()) {
            panic!("GAPLESS_SEED={seed}, case {case}: {mismatch}");
        }
    }
}

/// Matrices of small elements, transposed: both directions of every element size and odd sides.
#[test]
fn transposes() {
    for bytes in [1, 2, 3, 4, 8, 12, 16, 24] {
        for (rows, columns) in [(2, 2), (3, 40), (40, 3), (17, 33), (64, 64), (70, 9)] {
            let element = Datatype::contiguous(bytes, &Primitive::Byte.into()).unwrap();
            let column = Datatype::vector(rows, 1, i64::try_from(columns).unwrap(), &element);
            let step = i64::try_from(bytes).unwrap();
            let column = Datatype::resized(0, step, &column.unwrap()).unwrap();
            let transpose = Datatype::contiguous(columns, &column).unwrap();
            check_datatype(&transpose, 1, bytes);
            let matrix = step * i64::try_from(rows * columns).unwrap();
            let whole = Datatype::resized(0, matrix, &transpose).unwrap();
            check_datatype(&whole, 3, bytes + 1);
        }
    }
}

/// Runs about as long as a few lines and longer, at every alignment, in all regular and irregular shapes: where
/// large copies change their methods.
#[test]
fn long_runs() {
    let seed = seed(fresh());
    println!("GAPLESS_SEED={seed}");
    let mut rng = Rng::new(seed ^ 0x10e6);
    let byte = Datatype::from(Primitive::Byte);
    for case in 0..rounds(400) {
        let near = [60, 500, 512, 1024, 1100, 4096, 5000];
        let len = near[rng.index(near.len())] + rng.below(3) * rng.below(70);
        let gap = 1 + rng.below(3) * rng.below(80);
        let count = 2 + rng.below(20);
        let step = i64::try_from(len + gap).unwrap();
        let at = |i: u64| i64::try_from(i).unwrap() * step;
        let lengths: Vec<u64> = match rng.below(3) {
            0 => (0..count).map(|i| len - (len / 20).min(i)).collect(),
            1 => (0..count).map(|_| 1 + rng.below(len)).collect(),
            _ => vec![len; 20],
        };
        let mut places: Vec<i64> = (0..lengths.len() as u64).map(at).collect();
        if rng.chance(50) {
            rng.shuffle(&mut places);
        }
        let datatype = match rng.below(3) {
            0 => Datatype::hvector(count, len, if rng.chance(30) { -step } else { step }, &byte),
            1 => Datatype::hindexed(&lengths, &places, &byte),
            _ => Datatype::hindexed_block(len, &places, &byte),
        };
        check_datatype(&datatype.unwrap(), 1 + case % 2, rng.next_u64());
    }
}

#[test]
fn strategies_reach_proptest() {
    check_strategy(any_disjoint_datatype(), 200);
    check_strategy(any_datatype(), 200);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&any_layout(), |layout| {
        let decoded = Layout::unflatten(&layout.flatten()).map_err(|e| e.to_string());
        prop_assert_eq!(decoded, Ok(layout));
        Ok(())
    });
    outcome.unwrap();
}

/// proptest finds the least type for which a claim is false.
#[test]
fn strategies_shrink() {
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    // Always the same types: shrinking ends at the first type that nothing simpler replaces, and how deep
    // that lies depends on where it began.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&any_disjoint_datatype(), |datatype| {
        prop_assert!(datatype.size() < 24, "as large as that");
        Ok(())
    });
    let Err(TestError::Fail(_, least)) = outcome else {
        panic!("500 types, and none of 24 bytes: {outcome:?}");
    };
    let least = (describe(&least), least.size(), least.depth());
    assert!((24..48).contains(&least.1) && least.2 <= 3, "{least:?}");
}

/// The shrinker finds the core of a failure: here, any type with a double inside and two blocks.
#[test]
fn failures_shrink_to_their_core() {
    fn has_double(datatype: &Datatype) -> bool {
        children(datatype).iter().any(has_double) || *datatype == Primitive::Double.into()
    }
    let params = Params { blocks_min: 2, ..Params::disjoint() };
    let mut rng = Rng::new(7);
    let mut shrunk = 0;
    for _ in 0..200 {
        let (datatype, _) = random_sample(&mut rng, &params);
        if !has_double(&datatype) {
            continue;
        }
        let simplest = minimise(&datatype, 5_000, |candidate| {
            let blocks = Typemap::of(candidate).and_then(|map| map.runs(1));
            has_double(candidate) && blocks.is_ok_and(|runs| runs.len() > 1)
        });
        let blocks = Typemap::of(&simplest).and_then(|map| map.runs(1)).unwrap();
        assert_eq!(blocks.len(), 2, "{} blocks are left", blocks.len());
        assert!(simplest.depth() <= 2, "{}", describe(&simplest));
        shrunk += 1;
    }
    assert!(shrunk >= 20, "only {shrunk} types had a double");
}
