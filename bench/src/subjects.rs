//! Which layouts an experiment measures: the catalogue's by name, and three that peers are known by
//! and the catalogue does not have.

use gapless_dtype::{Datatype, Distribution, Order, Primitive};
use gapless_layouts::{Case, Family, LayoutError, Side, cases, layout_names};

use crate::error::Failure;
use crate::random::Random;
use crate::rotation::contiguous;

const DOUBLE: u64 = 8;
/// Doubles of a list, or records, at most.
const BLOCKS_MAX: u64 = 1 << 26;

/// Options that choose layouts.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Selection {
    /// Layouts or groups of them, as `gapless layout` names them, and contiguous (n bytes),
    /// list1, list3, list3-shuffled (n blocks of 1 or 3 doubles at irregular distances), list-varied (n blocks of 1 to
    /// 64 doubles), struct (n of 3 doubles and an int), darray (a process's part of a block-cyclic matrix of n × n
    /// doubles, 64 × 64 at a time, on 2 × 2 processes); repeatable, or separated by commas
    #[arg(short, long = "layout", value_name = "NAME", value_delimiter = ',')]
    pub layouts: Vec<String>,
    /// The size, as each layout understands it
    #[arg(long, value_name = "N", requires = "layouts")]
    pub n: Option<u64>,
}

impl Selection {
    /// The cases chosen, or `default` if no layout was named.
    ///
    /// # Errors
    /// A name that does not exist, or a size that makes no sense to it.
    pub fn cases(
        &self,
        default: impl FnOnce() -> Result<Vec<Case>, Failure>,
    ) -> Result<Vec<Case>, Failure> {
        if self.layouts.is_empty() {
            return default();
        }
        let mut all: Vec<Case> = Vec::new();
        for name in &self.layouts {
            for case in named(name, self.n)? {
                if !all.iter().any(|known| known.name == case.name) {
                    all.push(case);
                }
            }
        }
        Ok(all)
    }
}

/// The cases of one name.
///
/// # Errors
/// A name that does not exist, or a size that makes no sense to it.
pub fn named(name: &str, n: Option<u64>) -> Result<Vec<Case>, Failure> {
    let blocks = n.unwrap_or(1 << 18);
    let own = match name {
        "contiguous" => contiguous_case(n.unwrap_or(8 << 20)),
        "list1" => list(blocks, 1, false)?,
        "list3" => list(blocks, 3, false)?,
        "list3-shuffled" => list(blocks, 3, true)?,
        "list-varied" => varied(n.unwrap_or(1 << 14))?,
        "struct" => structs(blocks)?,
        "darray" => darray(n.unwrap_or(1024))?,
        _ => return Ok(cases(name, n).map_err(with_own_names)?),
    };
    Ok(vec![own])
}

fn with_own_names(error: LayoutError) -> LayoutError {
    match error {
        LayoutError::Unknown { name, .. } => {
            let own = "contiguous, list1, list3, list3-shuffled, list-varied, struct, darray";
            LayoutError::Unknown { name, known: format!("{own}, {}", layout_names().join(", ")) }
        }
        other => other,
    }
}

/// `bytes` bytes without gaps.
#[must_use]
pub fn contiguous_case(bytes: u64) -> Case {
    both(format!("contiguous bytes={bytes}"), contiguous(bytes), Some(1))
}

/// `blocks` blocks of `doubles` doubles with gaps of 1 to 2 `doubles` doubles between them, drawn
/// from a fixed seed, so about half of the memory is touched; in memory order, or shuffled.
///
/// # Errors
/// No block, or more than 2²⁶ of them.
pub fn list(blocks: u64, doubles: u64, shuffled: bool) -> Result<Case, Failure> {
    if blocks == 0 || doubles == 0 || blocks.saturating_mul(doubles) > BLOCKS_MAX {
        let rule = "a list has 1 to 2^26 doubles";
        return Err(LayoutError::Parameters { layout: "list", rule }.into());
    }
    let mut random = Random::new(blocks ^ (doubles << 32));
    let mut next = 0;
    let mut displacements: Vec<i64> = (0..blocks)
        .map(|_| {
            let here = next;
            next += doubles + 1 + random.below(2 * doubles);
            here.cast_signed()
        })
        .collect();
    if shuffled {
        random.shuffle(&mut displacements);
    }
    let datatype = Datatype::indexed_block(doubles, &displacements, &Primitive::Double.into())?;
    let order = if shuffled { "-shuffled" } else { "" };
    let side = Side::one(datatype, 0, DOUBLE * next);
    // Gaps never vanish, so no two blocks merge.
    Ok(both(format!("list{doubles}{order} blocks={blocks}"), side, Some(blocks)))
}

/// `blocks` blocks of 1 to 64 doubles with gaps of 1 to 64 between them, drawn from a fixed seed.
///
/// # Errors
/// No block, or more than 2²⁰ of them.
pub fn varied(blocks: u64) -> Result<Case, Failure> {
    if blocks == 0 || blocks > 1 << 20 {
        let rule = "a list of varying lengths has 1 to 2^20 blocks";
        return Err(LayoutError::Parameters { layout: "list-varied", rule }.into());
    }
    let mut random = Random::new(blocks);
    let mut next = 0u64;
    let (mut lengths, mut displacements) = (Vec::new(), Vec::new());
    for _ in 0..blocks {
        let length = 1 + random.below(64);
        lengths.push(length);
        displacements.push(next.cast_signed());
        next += length + 1 + random.below(64);
    }
    let datatype = Datatype::indexed(&lengths, &displacements, &Primitive::Double.into())?;
    Ok(both(
        format!("list-varied blocks={blocks}"),
        Side::one(datatype, 0, DOUBLE * next),
        Some(blocks),
    ))
}

/// The first process's part of a matrix of `n` × `n` doubles that is dealt out in squares of 64 × 64 to 2 × 2
/// processes, as ScaLAPACK does.
///
/// # Errors
/// An `n` that is no multiple of 128, or above 16384.
pub fn darray(n: u64) -> Result<Case, Failure> {
    if n == 0 || n > 1 << 14 || !n.is_multiple_of(128) {
        let rule = "the edge is a multiple of 128, 16384 at most";
        return Err(LayoutError::Parameters { layout: "darray", rule }.into());
    }
    let (cyclic, block) = ([Distribution::Cyclic; 2], [Some(64); 2]);
    let element = Primitive::Double.into();
    let datatype = Datatype::darray(4, 0, &[n, n], &cyclic, &block, &[2, 2], Order::C, &element)?;
    let side = Side::one(datatype, 0, DOUBLE * n * n);
    Ok(both(format!("darray n={n}"), side, Some(n / 2 * (n / 128))))
}

/// `count` records of three doubles and an int, as a C compiler lays them out: 28 bytes of 32.
///
/// # Errors
/// None, or more than 2²⁶ of them.
pub fn structs(count: u64) -> Result<Case, Failure> {
    if count == 0 || count > BLOCKS_MAX {
        let rule = "there are 1 to 2^26 records";
        return Err(LayoutError::Parameters { layout: "struct", rule }.into());
    }
    let types = [Primitive::Double.into(), Primitive::Int.into()];
    let datatype = Datatype::structure(&[3, 1], &[0, 24], &types)?;
    let buffer_bytes = count * datatype.extent().cast_unsigned();
    let side = Side { datatype, count, origin: 0, buffer_bytes };
    Ok(both(format!("struct count={count}"), side, Some(1)))
}

fn both(name: String, side: Side, blocks: Option<u64>) -> Case {
    Case {
        name,
        // The nearest of the catalogue's: attributes of particles by index.
        family: Family::LammpsAtomic,
        payload_bytes: side.payload_bytes(),
        recv: side.clone(),
        send: side,
        expected_send_blocks: blocks,
        expected_recv_blocks: blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_layouts_are_what_they_say() {
        for (name, n, payload, blocks) in [
            ("contiguous", 100, 100, 1),
            ("list1", 50, 400, 50),
            ("list3", 50, 1200, 50),
            ("list3-shuffled", 50, 1200, 50),
            ("struct", 50, 1400, 50),
            ("darray", 256, 128 * 128 * 8, 256),
        ] {
            let case = named(name, Some(n)).unwrap().remove(0);
            assert_eq!(case.payload_bytes, payload, "{name}");
            let layout = case.send.datatype.commit().unwrap();
            assert_eq!(layout.blocks_of(case.send.count), Some(blocks), "{name}");
            let (low, high) = case.send.touched().unwrap();
            assert!(low >= 0 && high.cast_unsigned() <= case.send.buffer_bytes, "{name}");
        }
    }

    #[test]
    fn a_selection_names_each_case_once() {
        let layouts = ["v", "V", "list1"].map(str::to_owned).to_vec();
        let chosen = Selection { layouts, n: Some(32) }.cases(|| unreachable!()).unwrap();
        let names: Vec<&str> = chosen.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["V n=32", "list1 blocks=32"]);
        let default = Selection::default().cases(|| Ok(vec![contiguous_case(1)])).unwrap();
        assert_eq!(default.len(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(named("no-such-layout", None).unwrap_err().to_string().contains("list3-shuffled"));
        for (name, n) in [("list1", 0), ("list3", u64::MAX), ("struct", 0), ("struct", 1 << 40)] {
            assert!(named(name, Some(n)).is_err(), "{name} {n}");
        }
    }
}
