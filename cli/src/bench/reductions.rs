//! Reductions of any elements in any layout: what stands in the buffers, and what should afterwards.
//!
//! Elements are small whole numbers: so sums and products are the same in any order, in every type. What a rank should
//! receive is made of the ranks' packed elements, one rank after the other, and unpacked as messages are.

use crate::failure::Failure;
use crate::memory::mix;
use gapless::{Collective, ReduceOp, View, ViewMut};
use gapless_coll::Operation;
use gapless_dtype::Primitive;
use gapless_engine::{Operand, PackedFold};
use gapless_layouts::Case;

/// What combines, with rank 0 as its root.
pub(super) const OPERATIONS: [Operation; 5] = [
    Operation::Reduce,
    Operation::Allreduce,
    Operation::ReduceScatterBlock,
    Operation::Scan,
    Operation::Exscan,
];

/// One call.
pub(super) fn call<'b>(
    operation: Operation,
    send: &'b View<'_>,
    recv: &'b mut ViewMut<'_>,
    op: ReduceOp,
) -> Collective<'b> {
    match operation {
        Operation::Reduce => Collective::reduce(send, recv, op, 0),
        Operation::ReduceScatterBlock => Collective::reduce_scatter_block(send, recv, op),
        Operation::Scan => Collective::scan(send, recv, op),
        Operation::Exscan => Collective::exscan(send, recv, op),
        _ => Collective::allreduce(send, recv, op),
    }
}

/// An operation by name, MPI's or the same without its beginning.
pub(super) fn op(name: &str) -> Result<ReduceOp, String> {
    let wanted = name.to_ascii_uppercase();
    let wanted = wanted.strip_prefix("MPI_").unwrap_or(&wanted);
    let short = |op: &ReduceOp| op.name().strip_prefix("MPI_").unwrap_or(op.name());
    let combines = |op: &ReduceOp| !matches!(op, ReduceOp::Replace | ReduceOp::NoOp);
    let known = || ReduceOp::ALL.into_iter().filter(combines);
    known().find(|op| short(op) == wanted).ok_or_else(|| {
        let names: Vec<_> = known().map(|op| short(&op).to_ascii_lowercase()).collect();
        format!("it is one of {}", names.join(", "))
    })
}

/// The elements of a message, and what combines them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    op: ReduceOp,
    primitive: Primitive,
    fold: PackedFold,
}

impl Elements {
    /// Those of a case.
    ///
    /// # Errors
    /// The operation is not for them, or they cannot be checked.
    pub(super) fn of(op: ReduceOp, case: &Case) -> Result<Elements, Failure> {
        let layout = case.send.datatype.commit()?;
        let name = op.name();
        let bad =
            |why: String| Err(Failure::BadOption { option: "--op", value: name.to_owned(), why });
        let Ok(element) = op.element(&layout, Operand::Target) else {
            return bad(format!("it combines elements of one type; {} has several", case.name));
        };
        let primitive = element.unwrap_or(Primitive::Byte);
        if !op.is_defined_for(primitive) {
            let defined = Primitive::ALL.into_iter().filter(|it| op.is_defined_for(*it));
            let defined: Vec<_> = defined.map(|it| it.name()).collect();
            let why = format!("it is not defined for {primitive}, but for {}", defined.join(", "));
            return bad(why);
        }
        match (PackedFold::new(op, primitive), encoded(primitive, 0, 0)) {
            (Some(fold), Some(_)) => Ok(Elements { op, primitive, fold }),
            _ => {
                bad(format!("it is not measured for {primitive}, whose results cannot be checked"))
            }
        }
    }

    /// So many packed bytes of a rank's, from an element on.
    pub(super) fn stream(&self, rank: u32, first: u64, bytes: u64) -> Vec<u8> {
        let count = bytes / self.primitive.size_bytes();
        let all = (first..first + count).map(|at| {
            let value = value(rank, at);
            // One is the neutral element of a product.
            let value = if self.op == ReduceOp::Prod { 1 + value } else { value };
            encoded(self.primitive, value, rank).unwrap_or_default()
        });
        all.flatten().collect()
    }

    /// What a rank receives, packed, of so many bytes; nothing where nothing is received.
    pub(super) fn expected(
        &self,
        operation: Operation,
        (rank, ranks): (u32, u32),
        bytes: u64,
    ) -> Vec<u8> {
        let elements = bytes / self.primitive.size_bytes();
        let (last, first) = match operation {
            Operation::Reduce if rank != 0 => (0, 0),
            Operation::Scan => (rank + 1, 0),
            Operation::Exscan => (rank, 0),
            Operation::ReduceScatterBlock => (ranks, u64::from(rank) * elements),
            _ => (ranks, 0),
        };
        let mut all = Vec::new();
        for from in 0..last {
            let next = self.stream(from, first, bytes);
            if from == 0 {
                all = next;
                continue;
            }
            let both = [&all[..], &next[..]].concat();
            self.fold.blocks(&both, next.len(), &mut all);
        }
        all
    }
}

/// An element: 0 or 1; of ranks beyond 128 seldom 1, so that a sum fits the shortest floating-point type.
fn value(rank: u32, at: u64) -> u8 {
    let word = mix(at ^ (u64::from(rank) << 40));
    let mask = if rank < 128 { 1 } else { 7 };
    u8::from(word & mask == 0)
}

/// A small number as an element of a type: its packed bytes. A pair's index is the rank. `None` for types with bytes that
/// no operation defines, and those that hold no numbers.
fn encoded(primitive: Primitive, value: u8, rank: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for (at, (part, _)) in primitive.parts().enumerate() {
        let number = if at == 0 { u64::from(value) } else { u64::from(rank) };
        match part {
            Primitive::LongDouble | Primitive::LongDoubleComplex => return None,
            Primitive::Float128 | Primitive::Float128Complex => return None,
            Primitive::Float16Complex | Primitive::Int128 | Primitive::Bool128 => return None,
            Primitive::Float => bytes.extend(f32::from(value).to_ne_bytes()),
            Primitive::Double => bytes.extend(f64::from(value).to_ne_bytes()),
            Primitive::FloatComplex => {
                bytes.extend([f32::from(value), 0.0].map(f32::to_ne_bytes).concat())
            }
            Primitive::DoubleComplex => {
                bytes.extend([f64::from(value), 0.0].map(f64::to_ne_bytes).concat())
            }
            // The upper half of a float.
            Primitive::BFloat16 => bytes.extend((upper(f32::from(value))).to_ne_bytes()),
            // 0, 1 and 2 have no fraction: an exponent of 5 bits, biased by 15.
            Primitive::Float16 => {
                let exponent = value.checked_ilog2().map_or(0, |log| 15 + log);
                bytes.extend(u16::try_from(exponent << 10).unwrap_or(0).to_ne_bytes());
            }
            // Integers.
            _ => match part.size_bytes() {
                1 => bytes.push(value),
                2 => bytes.extend(u16::try_from(number).unwrap_or(0).to_ne_bytes()),
                4 => bytes.extend(u32::try_from(number).unwrap_or(0).to_ne_bytes()),
                _ => bytes.extend(number.to_ne_bytes()),
            },
        }
    }
    Some(bytes)
}

fn upper(value: f32) -> u16 {
    u16::try_from(value.to_bits() >> 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::messages::elements;

    fn of(op: ReduceOp, name: &str) -> Result<Elements, Failure> {
        Elements::of(op, &elements(gapless_layouts::text::primitive(name).unwrap()))
    }

    #[test]
    fn every_type_that_an_operation_is_for_has_elements_as_long_as_it() {
        let mut measured = 0;
        for op in ReduceOp::ALL {
            for primitive in Primitive::ALL.into_iter().filter(|it| op.is_defined_for(*it)) {
                let Ok(known) = Elements::of(op, &elements(primitive)) else { continue };
                let size = primitive.size_bytes();
                assert_eq!(known.stream(3, 5, 7 * size).len() as u64, 7 * size, "{primitive}");
                measured += 1;
            }
        }
        assert!(measured > 150, "{measured}");
    }

    #[test]
    fn sums_are_those_of_numbers() {
        let double = of(ReduceOp::Sum, "double").unwrap();
        let number = |bytes: &[u8]| f64::from_ne_bytes(bytes[..8].try_into().unwrap());
        let each: Vec<f64> = (0..5).map(|rank| number(&double.stream(rank, 9, 8))).collect();
        assert!(each.contains(&0.0) && each.contains(&1.0), "{each:?}");
        let sum = |operation, rank, first: usize| {
            let all = double.expected(operation, (rank, 5), 80);
            all.chunks(8).nth(first).map(number)
        };
        let of = |ranks: &[f64]| Some(ranks.iter().sum::<f64>());
        assert_eq!(sum(Operation::Allreduce, 3, 9), of(&each));
        assert_eq!(sum(Operation::Scan, 2, 9), of(&each[..3]));
        assert_eq!(sum(Operation::Exscan, 2, 9), of(&each[..2]));
        assert_eq!(sum(Operation::Exscan, 0, 9), None);
        assert_eq!(sum(Operation::Reduce, 1, 9), None);
        let block = double.expected(Operation::ReduceScatterBlock, (4, 5), 16);
        let whole = double.expected(Operation::Allreduce, (0, 5), 80);
        assert_eq!(block, whole[64..]);
        // The least type that counts the ranks of a job.
        let half = super::tests::of(ReduceOp::Sum, "bf16").unwrap();
        let all = half.expected(Operation::Allreduce, (0, 1024), 200);
        let exact = (0..1024).map(|rank| u32::from(value(rank, 7))).sum::<u32>();
        let found = u16::from_ne_bytes(all[14..16].try_into().unwrap());
        assert_eq!(f64::from(f32::from_bits(u32::from(found) << 16)), f64::from(exact));
    }

    #[test]
    fn what_does_not_go_is_named() {
        for (operation, name, complaint) in [
            (ReduceOp::Sum, "byte", "--op MPI_SUM: it is not defined for MPI_BYTE, but for "),
            (ReduceOp::Band, "float", "--op MPI_BAND: it is not defined for MPI_FLOAT"),
            (ReduceOp::Sum, "long_double", "MPI_LONG_DOUBLE, whose results cannot be checked"),
        ] {
            let error = of(operation, name).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        assert_eq!(op("mpi_maxloc"), Ok(ReduceOp::MaxLoc));
        assert!(op("replace").unwrap_err().starts_with("it is one of max, min, sum, "));
    }
}
