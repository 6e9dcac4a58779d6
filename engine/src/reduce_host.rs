//! The reducer of host memory: gathers a batch of elements, combines, scatters them back.

use crate::combine::combine;
use crate::{Engine, EngineError, HostEngine, ReduceOp, Reducer, Typed};
use gapless_dtype::{Datatype, Primitive};
use gapless_mem::{Completion, Region, Space};
use std::ops::Range;

/// Bytes combined at a time: small enough for the first-level cache, twice.
const BATCH_BYTES: u64 = 8 << 10;

/// Whether every element of `typed` is a `primitive`.
fn is_uniform(typed: &Typed, primitive: Primitive) -> bool {
    let size = primitive.size_bytes();
    let Ok(one) = Datatype::from(primitive).commit() else { return false };
    typed.packed_bytes().is_multiple_of(size)
        && one.signature().digest(typed.packed_bytes() / size)
            == typed.layout().signature().digest(typed.count())
}

// SAFETY: the numbers are those of the contract.
// 1. Elements pass through vectors of this call: out of `src` by `read`, which checks bounds, out of and into
//    `dst` by the engine.
// 2. All is done by this thread once `after` has ended, before it returns.
// 3. Operation, range, length and elements are looked at first; the first read or pack refuses a space that is not
//    the host's.
unsafe impl Reducer for HostEngine {
    fn supports(&self, op: ReduceOp, primitive: Primitive) -> bool {
        combine(op, primitive).is_some()
    }

    fn serves(&self, space: Space) -> bool {
        space.cpu_accessible()
    }

    unsafe fn reduce(
        &self,
        op: ReduceOp,
        primitive: Primitive,
        src: Region,
        dst: &Typed,
        range: Range<u64>,
        after: &[Completion],
    ) -> Result<Completion, EngineError> {
        let function =
            combine(op, primitive).ok_or(EngineError::UndefinedOp { op: op.name(), primitive })?;
        dst.check_range(&range)?;
        let size = primitive.size_bytes();
        if !range.start.is_multiple_of(size) || !range.end.is_multiple_of(size) {
            let Range { start, end } = range;
            return Err(EngineError::SplitElement { start, end, element_bytes: size });
        }
        if src.len() != range.end - range.start {
            let bytes = range.end - range.start;
            return Err(EngineError::LengthMismatch { region: src.len(), range: bytes });
        }
        if !is_uniform(dst, primitive) {
            return Err(EngineError::NotUniform { primitive });
        }
        for earlier in after {
            earlier.wait()?;
        }
        let batch = (BATCH_BYTES / size * size).max(size);
        let capacity = usize::try_from(batch.min(src.len())).unwrap_or(0);
        let (mut theirs, mut ours) = (vec![0u8; capacity], vec![0u8; capacity]);
        let mut at = range.start;
        while at < range.end {
            let next = range.end.min(at + batch);
            let len = usize::try_from(next - at).unwrap_or(0);
            let (theirs, ours) = (&mut theirs[..len], &mut ours[..len]);
            // SAFETY: the caller keeps `src` readable; `theirs` is this call's own.
            unsafe { gapless_mem::read(&src, at - range.start, theirs) }?;
            let scratch = Region::of_mut(ours);
            // SAFETY: the caller keeps `dst` readable and writable; `scratch` is this call's own.
            unsafe { self.pack(dst, at..next, scratch, &[]) }?;
            function(theirs, ours);
            // SAFETY: as above.
            unsafe { self.unpack(Region::of(ours), dst, at..next, &[]) }?;
            at = next;
        }
        Ok(Completion::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_summed_in_place() {
        let column = Datatype::vector(4, 1, 3, &Primitive::Int.into()).unwrap().commit().unwrap();
        let mut matrix: Vec<u8> = (0..12i32).flat_map(i32::to_ne_bytes).collect();
        let packed: Vec<u8> = [100i32, 200].into_iter().flat_map(i32::to_ne_bytes).collect();
        let target = Typed::new(Region::of_mut(&mut matrix), 0, &column, 1).unwrap();
        let sum = |range| {
            // SAFETY: both buffers live through the call and do not overlap.
            unsafe {
                HostEngine.reduce(
                    ReduceOp::Sum,
                    Primitive::Int,
                    Region::of(&packed),
                    &target,
                    range,
                    &[],
                )
            }
        };
        sum(4..12).unwrap();
        assert!(matches!(sum(3..11), Err(EngineError::SplitElement { .. })));
        assert!(matches!(sum(0..16), Err(EngineError::LengthMismatch { .. })));
        let values: Vec<i32> =
            matrix.chunks(4).map(|c| i32::from_ne_bytes(c.try_into().unwrap())).collect();
        assert_eq!(values, [0, 1, 2, 103, 4, 5, 206, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn other_types_are_refused() {
        let doubles = Datatype::contiguous(2, &Primitive::Double.into()).unwrap().commit().unwrap();
        let mut memory = [0u8; 16];
        let src = [0u8; 16];
        let target = Typed::new(Region::of_mut(&mut memory), 0, &doubles, 1).unwrap();
        let attempt = |op, primitive| {
            // SAFETY: both buffers live through the call and do not overlap.
            unsafe { HostEngine.reduce(op, primitive, Region::of(&src), &target, 0..16, &[]) }
        };
        let error = attempt(ReduceOp::Sum, Primitive::Int).unwrap_err();
        assert_eq!(error, EngineError::NotUniform { primitive: Primitive::Int });
        let error = attempt(ReduceOp::Band, Primitive::Double).unwrap_err();
        assert!(matches!(error, EngineError::UndefinedOp { .. }));
    }

    #[test]
    fn many_batches_with_gapped_pairs() {
        let pair = Datatype::from(Primitive::DoubleInt);
        let many = Datatype::contiguous(3000, &pair).unwrap().commit().unwrap();
        let mut memory = vec![0u8; 3000 * 16];
        let mut src = Vec::new();
        for i in 0..3000i32 {
            src.extend(f64::from(i % 7 - 3).to_ne_bytes());
            src.extend(i.to_ne_bytes());
        }
        let target = Typed::new(Region::of_mut(&mut memory), 0, &many, 1).unwrap();
        let (op, primitive) = (ReduceOp::MaxLoc, Primitive::DoubleInt);
        // SAFETY: both buffers live through the call and do not overlap.
        unsafe { HostEngine.reduce(op, primitive, Region::of(&src), &target, 0..36000, &[]) }
            .unwrap();
        for (i, element) in memory.chunks(16).enumerate() {
            let i = i32::try_from(i).unwrap();
            let value = f64::from_ne_bytes(element[..8].try_into().unwrap());
            let index = i32::from_ne_bytes(element[8..12].try_into().unwrap());
            let theirs = f64::from(i % 7 - 3);
            let expected = if theirs > 0.0 { (theirs, i) } else { (0.0, 0) };
            assert_eq!((value, index), expected, "element {i}");
        }
    }
}
