//! Open MPI's datatype test corpus, beyond what it ports of the applications.
//!
//! Small types that once broke an optimisation: gaps that merge across instances, types described
//! twice, extents that are larger than, smaller than and opposite to the data.

use gapless_dtype::{Datatype, Primitive};

use crate::{
    case::{Case, MAX_BUFFER_BYTES, Side, signed},
    error::LayoutError,
    families::Family,
};

const LAYOUT: &str = "openmpi";

/// A type of the corpus.
struct CorpusType {
    name: &'static str,
    build: fn() -> Result<Datatype, LayoutError>,
    size: u64,
    blocks: u64,
    /// What each instance is received as: the same, or contiguous where instances overlap (a
    /// receive must not write a byte twice, MPI 4.1 §5.1.11).
    overlaps: bool,
}

const fn entry(
    name: &'static str,
    build: fn() -> Result<Datatype, LayoutError>,
    size: u64,
    blocks: u64,
) -> CorpusType {
    CorpusType { name, build, size, blocks, overlaps: false }
}

const CORPUS: [CorpusType; 13] = [
    entry("contig", || Ok(int()), 4, 1),
    entry("indexed_gap", indexed_gap, 400, 11),
    entry("optimized_indexed_gap", optimized_indexed_gap, 400, 11),
    entry("constant_gap", constant_gap, 64000, 80),
    entry("optimized_constant_gap", optimized_constant_gap, 64000, 80),
    entry("struct_constant_gap", struct_constant_gap, 64000, 80),
    entry("struct_constant_gap_resized", struct_constant_gap_resized, 16, 1),
    entry("struct_merged_with_gap_resized", struct_merged_with_gap_resized, 17, 1),
    entry("complex_hvector", complex_hvector, 49152, 2048),
    entry("adv_single_iter_gap", || ints_of_extent(3, 24), 12, 1),
    CorpusType {
        overlaps: true,
        ..entry("adv_zero_extent_overlap", || ints_of_extent(2, 0), 8, 1)
    },
    entry("adv_neg_extent", || ints_of_extent(2, -8), 8, 1),
    entry("adv_mixed_promote", adv_mixed_promote, 32, 1),
];

/// The names of the corpus, in its order.
pub fn names() -> impl Iterator<Item = &'static str> {
    CORPUS.iter().map(|entry| entry.name)
}

/// `instances` of the type called `name`. The receiver takes the same, except where instances
/// overlap: there it takes as many contiguous integers.
///
/// # Errors
/// [`LayoutError::Unknown`] for a name that is not in [`names`]; [`LayoutError::Size`] for 0
/// instances, [`LayoutError::TooLarge`] for too many.
pub fn case(name: &str, instances: u64) -> Result<Case, LayoutError> {
    let entry =
        CORPUS.iter().find(|entry| entry.name == name).ok_or_else(|| LayoutError::Unknown {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })?;
    if instances == 0 {
        let meaning = "number of instances, 1 or more";
        return Err(LayoutError::Size { layout: LAYOUT, n: instances, rule: None, meaning });
    }
    let datatype = (entry.build)()?;
    let send = span(datatype, instances)?;
    let payload_bytes = instances
        .checked_mul(entry.size)
        .filter(|&bytes| bytes <= MAX_BUFFER_BYTES)
        .ok_or(LayoutError::TooLarge { layout: LAYOUT })?;
    let (recv, recv_blocks) = if entry.overlaps && instances > 1 {
        (span(Datatype::contiguous(payload_bytes / 4, &int())?, 1)?, 1)
    } else {
        (send.clone(), entry.blocks)
    };
    let times = if instances == 1 { String::new() } else { format!(" x{instances}") };
    Ok(Case {
        name: format!("openmpi {name}{times}"),
        family: Family::OpenMpi,
        send,
        recv,
        payload_bytes,
        expected_send_blocks: Some(entry.blocks),
        expected_recv_blocks: Some(recv_blocks),
    })
}

/// A buffer that spans all instances, gaps included: from the lowest lower bound or byte touched
/// to the highest upper one.
fn span(datatype: Datatype, count: u64) -> Result<Side, LayoutError> {
    let too_large = || LayoutError::TooLarge { layout: LAYOUT };
    let last = signed(LAYOUT, count - 1)?.checked_mul(datatype.extent()).ok_or_else(too_large)?;
    let lo =
        datatype.true_lb().min(datatype.lb()).checked_add(last.min(0)).ok_or_else(too_large)?;
    let hi =
        datatype.true_ub().max(datatype.ub()).checked_add(last.max(0)).ok_or_else(too_large)?;
    let origin = lo.min(0).unsigned_abs();
    let buffer_bytes = hi
        .checked_sub(lo.min(0))
        .and_then(|bytes| u64::try_from(bytes).ok())
        .filter(|&bytes| bytes <= MAX_BUFFER_BYTES)
        .ok_or_else(too_large)?;
    Ok(Side { datatype, count, origin, buffer_bytes })
}

fn int() -> Datatype {
    Datatype::from(Primitive::Int)
}

fn float() -> Datatype {
    Datatype::from(Primitive::Float)
}

fn double() -> Datatype {
    Datatype::from(Primitive::Double)
}

fn indexed_gap() -> Result<Datatype, LayoutError> {
    let inner = Datatype::structure(&[2, 1], &[0, 8], &[int(), float()])?;
    let inner = Datatype::contiguous(3, &inner)?;
    let element = Datatype::structure(&[1, 1], &[0, 8], &[int(), inner])?;
    Ok(Datatype::contiguous(10, &element)?)
}

/// `indexed_gap` after merging, written by hand: a head, nine merged runs, a tail.
fn optimized_indexed_gap() -> Result<Datatype, LayoutError> {
    let run = Datatype::resized(0, 44, &Datatype::contiguous(10, &float())?)?;
    let runs = Datatype::structure(&[1, 9, 9], &[0, 8, 404], &[float(), run, float()])?;
    Ok(Datatype::resized(0, 440, &runs)?)
}

const GAP_ROWS: usize = 80;

fn gap_displacements() -> Vec<i64> {
    (0..).step_by(808).take(GAP_ROWS).collect()
}

fn constant_gap() -> Result<Datatype, LayoutError> {
    let types = vec![double(); GAP_ROWS];
    Ok(Datatype::structure(&[100; GAP_ROWS], &gap_displacements(), &types)?)
}

fn optimized_constant_gap() -> Result<Datatype, LayoutError> {
    Ok(Datatype::vector(80, 100, 101, &double())?)
}

fn struct_constant_gap() -> Result<Datatype, LayoutError> {
    let row = Datatype::structure(&[100], &[0], &[double()])?;
    Ok(Datatype::structure(&[1; GAP_ROWS], &gap_displacements(), &vec![row; GAP_ROWS])?)
}

fn struct_constant_gap_resized() -> Result<Datatype, LayoutError> {
    let types = [double(), Datatype::from(Primitive::Long)];
    Ok(Datatype::resized(0, 24, &Datatype::structure(&[1, 1], &[8, 16], &types)?)?)
}

fn struct_merged_with_gap_resized() -> Result<Datatype, LayoutError> {
    let types = [double(), Datatype::from(Primitive::Long), Datatype::from(Primitive::Char)];
    Ok(Datatype::resized(0, 24, &Datatype::structure(&[1, 1, 1], &[0, 8, 16], &types)?)?)
}

fn complex_hvector() -> Result<Datatype, LayoutError> {
    let complex = Datatype::contiguous(2, &float())?;
    Ok(Datatype::hvector(2048, 3, 28, &complex)?)
}

fn ints_of_extent(ints: u64, extent: i64) -> Result<Datatype, LayoutError> {
    Ok(Datatype::resized(0, extent, &Datatype::contiguous(ints, &int())?)?)
}

fn adv_mixed_promote() -> Result<Datatype, LayoutError> {
    let pair = Datatype::structure(&[1, 1], &[0, 4], &[int(), float()])?;
    Ok(Datatype::contiguous(4, &Datatype::resized(0, 8, &pair)?)?)
}
