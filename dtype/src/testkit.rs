//! Property tests for layouts: random datatypes, the checks against the oracle, and a way to hold
//! your own types against it.
//!
//! Any type that a program builds can be checked in one line, and a whole family of them in two:
//!
//! ```
//! use gapless_dtype::testkit::proptest::prelude::*;
//! use gapless_dtype::{Datatype, Primitive, testkit};
//!
//! // A layout of one's own: the interior of an n × m grid of doubles.
//! fn interior(n: u64, m: u64) -> Datatype {
//!     let row = Datatype::vector(n - 2, m - 2, i64::try_from(m).unwrap(), &Primitive::Double.into());
//!     row.unwrap()
//! }
//!
//! // One member of the family, with 3 instances and a fixed seed …
//! testkit::check_datatype(&interior(5, 7), 3, 42);
//!
//! // … and random ones.
//! let family = (3_u64..12, 3_u64..12).prop_map(|(n, m)| interior(n, m));
//! testkit::check_strategy(family, 32);
//! ```
//!
//! The checks compare size and bounds, packing (whole, in pieces, from anywhere), unpacking
//! (whole, fragments in any order, gaps untouched), runs, blocks, shape, flattening (and flattened
//! bytes broken on purpose), moves from layout to layout, contents and signature with
//! [`naive`](crate::naive). Everything random follows from a seed that every failure names.
//!
//! [`any_datatype`], [`any_disjoint_datatype`] and [`any_layout`] are proptest strategies over
//! every constructor; [`exhaustive`] enumerates all small types; [`Coverage`] says what a run has
//! seen.

mod check;
mod coverage;
pub mod exhaustive;
mod generate;
mod rng;
mod shrink;
mod strategy;
mod tree;

/// The release of `proptest` that the strategies here are made for.
pub use proptest;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

pub use self::check::hostile::{mutate, survive};
pub use self::check::{Mismatch, verify, verify_quickly, verify_sample};
pub use self::coverage::{Coverage, depth};
pub use self::generate::{INSTANCES_MAX, Params, random_datatype, random_sample};
pub use self::rng::Rng;
pub use self::shrink::{minimise, simpler};
pub use self::strategy::{
    AnyDatatype, DatatypeTree, any_datatype, any_disjoint_datatype, any_layout, datatypes,
};
pub use self::tree::{children, constructor, describe, rebuild, with_children};

use crate::Datatype;

/// Runs every check on `count` instances of `datatype`; cuts, orders and buffer contents follow
/// from `seed`.
///
/// # Panics
/// If the library and the oracle differ, naming the difference, the type and the seed; also if the
/// type is too large for the oracle (see [`naive`](crate::naive)).
#[track_caller]
pub fn check_datatype(datatype: &Datatype, count: u64, seed: u64) {
    if let Err(mismatch) = verify(datatype, count, seed) {
        panic!("{mismatch}");
    }
}

/// Runs every check on `cases` random types of `strategy`, each with up to [`INSTANCES_MAX`]
/// instances. A type that fails is simplified as far as the strategy can.
///
/// # Panics
/// If the library and the oracle differ for the simplest type found, as [`check_datatype`]; also
/// if the strategy gives up.
#[track_caller]
pub fn check_strategy(strategy: impl Strategy<Value = Datatype>, cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let inputs = (strategy, 0..=INSTANCES_MAX, proptest::num::u64::ANY);
    let outcome = TestRunner::new(config).run(&inputs, |(datatype, count, seed)| {
        verify(&datatype, count, seed).map_err(|mismatch| TestCaseError::fail(mismatch.to_string()))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(TestError::Abort(reason)) => panic!("the strategy gives no types: {reason}"),
    }
}

/// Whether this processor is to be taken for one without AVX-512: if `GAPLESS_TEST_WITHOUT_AVX512` is set, so that tests
/// can run as on another machine. The first call reads the variable, which allocates.
#[cfg(target_arch = "x86_64")]
pub fn without_avx512() -> bool {
    use std::sync::LazyLock;
    static WANTED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("GAPLESS_TEST_WITHOUT_AVX512").is_some());
    *WANTED
}
