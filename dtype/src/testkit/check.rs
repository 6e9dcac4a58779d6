//! Holding a committed layout against the oracle.
//!
//! [`verify`] runs every check on one type; [`verify_quickly`] is the part of them that suits
//! millions of tiny types. Both are deterministic in their seed: cuts, orders and buffer contents
//! come from it.

mod flat;
pub(super) mod hostile;
mod meaning;
mod methods;
mod pack;
mod runs;
mod shapes;
mod transfers;
mod unpack;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::rng::Rng;
use super::tree::describe;
use crate::naive::{NaiveError, Typemap, bytes::merge};
use crate::{Convertor, Datatype, Layout, Run};

/// A difference between the production code and the oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was compared, and how the two differ.
    pub what: String,
    /// The type as the calls that make it.
    pub datatype: String,
    /// Instances that were packed or unpacked.
    pub count: u64,
    /// The seed of cuts, orders and buffer contents.
    pub seed: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, datatype, count, seed } = self;
        write!(f, "{what}\n  type: {datatype}\n  instances: {count}\n  seed: {seed}")
    }
}

impl std::error::Error for Mismatch {}

/// What one check says: nothing, or how the two differ.
type Verdict = Result<(), String>;

/// Returns the formatted difference unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
use ensure;

/// A type under test with everything the oracle says of it.
struct Case<'a> {
    datatype: &'a Datatype,
    count: u64,
    layout: Layout,
    typemap: &'a Typemap,
    /// Where each packed byte of all instances lies.
    bytes: Vec<i64>,
    /// The same as maximal runs.
    runs: Vec<Run>,
    /// A buffer that holds all instances, with room around them.
    source: Vec<u8>,
    /// The index in `source` of displacement 0.
    origin: usize,
    /// `source` packed by the oracle.
    packed: Vec<u8>,
    /// Whether no byte occurs twice, so that unpacking is legal.
    disjoint: bool,
}

/// Bytes of room on either side of the touched ones.
const ROOM: i64 = 40;
/// Most bytes between the first and last touched byte that a check allocates.
const SPAN_MAX: i64 = 1 << 28;

impl<'a> Case<'a> {
    fn new(
        datatype: &'a Datatype,
        typemap: &'a Typemap,
        count: u64,
        rng: &mut Rng,
    ) -> Result<Case<'a>, String> {
        let layout = datatype.commit().map_err(|error| format!("commit: {error}"))?;
        let refused = |error: NaiveError| format!("the oracle cannot check this type: {error}");
        let bytes = typemap.displacements(count).map_err(refused)?;
        let low = bytes.iter().copied().min().unwrap_or(0).min(0);
        let high = bytes.iter().copied().max().map_or(0, |last| last + 1).max(0);
        let span = high.checked_sub(low).filter(|span| *span <= SPAN_MAX);
        let span = span.ok_or_else(|| format!("spans more than {SPAN_MAX} bytes"))?;
        let in_memory = |bytes: i64| usize::try_from(bytes).expect("a few MiB");
        let mut source = vec![0; in_memory(span + 2 * ROOM)];
        rng.fill(&mut source);
        let origin = in_memory(ROOM - low);
        let packed = crate::naive::bytes::gather(&bytes, &source, origin).map_err(refused)?;
        let runs = merge(&bytes);
        let disjoint = is_disjoint(&runs);
        Ok(Case { datatype, count, layout, typemap, bytes, runs, source, origin, packed, disjoint })
    }

    fn convertor(&self) -> Result<Convertor, String> {
        convertor(&self.layout, self.count)
    }

    /// A random place in the packed stream, its end included.
    fn cut(&self, rng: &mut Rng) -> usize {
        rng.index(self.packed.len() + 1)
    }

    /// The packed stream as consecutive random fragments, empty ones among them.
    fn fragments(&self, rng: &mut Rng) -> Vec<std::ops::Range<usize>> {
        let most = match rng.below(3) {
            0 => 8,
            1 => 64,
            _ => self.packed.len().max(1),
        };
        let (mut fragments, mut start) = (Vec::new(), 0);
        while start < self.packed.len() {
            let end = (start + rng.index(most + 1)).min(self.packed.len());
            fragments.push(start..end);
            start = end;
        }
        fragments
    }
}

fn convertor(layout: &Layout, count: u64) -> Result<Convertor, String> {
    Convertor::new(layout, count).map_err(|error| format!("Convertor::new: {error}"))
}

fn is_disjoint(runs: &[Run]) -> bool {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by_key(|run| run.displacement);
    sorted.windows(2).all(|pair| pair[0].end() <= pair[1].displacement)
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits 64 bits")
}

/// The first place where two byte strings differ, for messages.
fn difference(got: &[u8], expected: &[u8]) -> String {
    if got.len() != expected.len() {
        return format!("{} bytes instead of {}", got.len(), expected.len());
    }
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        Some(at) => format!("byte {at} is {:#04x}, not {:#04x}", got[at], expected[at]),
        None => "no difference".to_owned(),
    }
}

/// Runs every check on `count` instances of `datatype`.
///
/// # Errors
/// The first [`Mismatch`]; a panic inside the code under test is one too, as is a type too large
/// for the oracle.
pub fn verify(datatype: &Datatype, count: u64, seed: u64) -> Result<(), Mismatch> {
    verify_all(datatype, None, count, seed)
}

/// [`verify`] for a caller that has the typemap already.
///
/// # Errors
/// As [`verify`].
pub fn verify_sample(
    datatype: &Datatype,
    typemap: &Typemap,
    count: u64,
    seed: u64,
) -> Result<(), Mismatch> {
    verify_all(datatype, Some(typemap), count, seed)
}

fn verify_all(
    datatype: &Datatype,
    typemap: Option<&Typemap>,
    count: u64,
    seed: u64,
) -> Result<(), Mismatch> {
    guarded(datatype, typemap, count, seed, |case, rng| {
        meaning::bounds(case)?;
        meaning::overlap(case)?;
        meaning::contents(case)?;
        meaning::signature(case, rng)?;
        meaning::items(case, rng)?;
        pack::whole(case)?;
        pack::in_pieces(case, rng)?;
        pack::from_anywhere(case, rng)?;
        unpack::whole(case, rng)?;
        unpack::in_any_order(case, rng)?;
        methods::packed(case, rng)?;
        methods::unpacked(case, rng)?;
        methods::mirrored(case, rng)?;
        runs::listed(case)?;
        runs::in_pieces(case, rng)?;
        runs::blocks(case)?;
        shapes::shape(case)?;
        transfers::to_contiguous(case, rng)?;
        transfers::to_scattered(case, rng)?;
        transfers::to_itself(case, rng)?;
        flat::round_trip(case, rng)?;
        hostile::mutated(case, rng)
    })
}

/// The cheap checks: bounds, pack (whole, and in two pieces), unpack (fragments in any order), runs,
/// blocks, shape, flatten.
///
/// # Errors
/// As [`verify`].
pub fn verify_quickly(datatype: &Datatype, count: u64, seed: u64) -> Result<(), Mismatch> {
    guarded(datatype, None, count, seed, |case, rng| {
        meaning::bounds(case)?;
        meaning::overlap(case)?;
        pack::whole(case)?;
        pack::split_once(case, rng)?;
        unpack::in_any_order(case, rng)?;
        runs::listed(case)?;
        runs::in_pieces(case, rng)?;
        runs::blocks(case)?;
        shapes::shape(case)?;
        flat::same_again(case)
    })
}

fn guarded(
    datatype: &Datatype,
    typemap: Option<&Typemap>,
    count: u64,
    seed: u64,
    checks: impl FnOnce(&Case<'_>, &mut Rng) -> Verdict,
) -> Result<(), Mismatch> {
    let run = || {
        let rng = &mut Rng::new(seed);
        let written;
        let typemap = match typemap {
            Some(typemap) => typemap,
            None => {
                written = Typemap::of(datatype).map_err(|error| format!("the oracle: {error}"))?;
                &written
            }
        };
        checks(&Case::new(datatype, typemap, count, rng)?, rng)
    };
    let verdict = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("(no message)")))
    });
    verdict.map_err(|what| Mismatch { what, datatype: describe(datatype), count, seed })
}
