//! What the layers above rely on, in small cases; `tests/reduce.rs` has random ones.

use super::*;
use crate::UserOp;
use gapless_dtype::{Datatype, Pages};
use gapless_mem::fake::FakeDevice;
use gapless_mem::{Device, Region};
use std::slice::from_ref;

/// # Errors
/// As [`Reducer::reduce_into`].
fn reduce(op: &Op, srcs: &[Typed], dst: &Typed, range: Range<u64>) -> Result<(), EngineError> {
    // SAFETY: tests describe buffers of their own that live through the call, and that overlap only if they are the
    // same.
    unsafe { HostEngine.reduce_into(op, srcs, dst, range, &[]) }.map(|_| ())
}

fn bytes<const N: usize>(values: [i32; N]) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_ne_bytes).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|x| i32::from_ne_bytes(x.try_into().unwrap())).collect()
}

fn column(count: u64, primitive: Primitive) -> Layout {
    Datatype::vector(count, 1, 3, &primitive.into()).unwrap().commit().unwrap()
}

#[test]
fn a_column_is_summed_with_a_packed_piece_in_place() {
    let mut matrix = bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let piece = bytes([100, 200]);
    let column = column(4, Primitive::Int);
    let target = Typed::new(Region::of_mut(&mut matrix), 0, &column, 1).unwrap();
    let srcs = [Typed::contiguous(Region::of(&piece)), target.clone()];
    let sum = |range| reduce(&ReduceOp::Sum.into(), &srcs, &target, range);
    sum(4..12).unwrap();
    assert!(matches!(sum(3..11), Err(EngineError::SplitElement { .. })));
    assert!(matches!(sum(0..16), Err(EngineError::RangeOutside { packed_bytes: 8, .. })));
    assert_eq!(ints(&matrix), [0, 1, 2, 103, 4, 5, 206, 7, 8, 9, 10, 11]);
}

#[test]
fn what_does_not_fit_names_the_buffer() {
    let mut memory = [0u8; 48];
    let region = Region::of_mut(&mut memory);
    let typed = |primitive| Typed::new(region, 0, &column(2, primitive), 1).unwrap();
    let (int, double) = (typed(Primitive::Int), typed(Primitive::Double));
    let op = |op: ReduceOp| Op::from(op);
    let sum = op(ReduceOp::Sum);
    assert_eq!(reduce(&sum, &[], &int, 0..8), Err(EngineError::NoSource));
    let error = reduce(&sum, &[int.clone(), double.clone()], &int, 0..8).unwrap_err();
    let said = "source 1 holds MPI_DOUBLE, but the other buffers hold MPI_INT";
    assert!(matches!(error, EngineError::NotUniform { operand: Operand::Source(1), .. }));
    assert_eq!(error.to_string(), said);
    let both = [double.clone(), double.clone()];
    let error = reduce(&op(ReduceOp::Band), &both, &double, 0..8).unwrap_err();
    assert!(matches!(error, EngineError::UndefinedOp { op: "MPI_BAND", .. }));
    // Nobody says what the bytes are.
    let raw = Typed::contiguous(region);
    let error = reduce(&sum, &[raw.clone(), raw.clone()], &raw, 0..8).unwrap_err();
    assert_eq!(error, EngineError::UndefinedOp { op: "MPI_SUM", primitive: Primitive::Byte });
    reduce(&op(ReduceOp::Bor), &[raw.clone(), raw.clone()], &raw, 0..8).unwrap();
    let away = Typed::contiguous(Region::new(Space::Cuda { device: 0 }, 4096, 0, 48));
    let error = reduce(&op(ReduceOp::Bor), &[raw.clone(), away], &raw, 0..8).unwrap_err();
    assert!(matches!(error, EngineError::WrongSpace { .. }));
}

/// Lists of one page's layout are the same bytes only if they have the same indices.
#[test]
fn pages_are_replaced_and_summed_by_their_indices() {
    let page = Datatype::from(Primitive::Int).commit().unwrap();
    let mut pool = bytes([1, 2, 3, 4, 5, 6]);
    let region = Region::of_mut(&mut pool);
    let pages = |list: [u32; 2]| {
        Typed::pages(region, 0, &Pages::new(&page, 4, &list[..]).unwrap()).unwrap()
    };
    let (from, to) = (pages([5, 0]), pages([1, 3]));
    reduce(&ReduceOp::Sum.into(), &[from.clone(), to.clone()], &to, 0..8).unwrap();
    reduce(&ReduceOp::Replace.into(), from_ref(&from), &pages([2, 4]), 0..8).unwrap();
    reduce(&ReduceOp::Replace.into(), from_ref(&from), &from, 0..8).unwrap();
    assert_eq!(ints(&pool), [1, 8, 6, 5, 1, 6]);
}

#[test]
fn replace_takes_the_last_and_no_op_the_first() {
    let sources = [bytes([1, 2]), bytes([3, 4]), bytes([5, 6])];
    let srcs: Vec<Typed> =
        sources.iter().map(|source| Typed::contiguous(Region::of(source))).collect();
    for (op, wanted) in [(ReduceOp::Replace, [5, 6]), (ReduceOp::NoOp, [1, 2])] {
        let mut result = bytes([9, 9]);
        let dst = Typed::contiguous(Region::of_mut(&mut result));
        reduce(&op.into(), &srcs, &dst, 0..8).unwrap();
        assert_eq!(ints(&result), wanted);
        // Onto itself.
        reduce(&op.into(), std::slice::from_ref(&dst), &dst, 0..8).unwrap();
        // Accumulation (MPI 4.1 §12.3.4): the target, then what comes from the origin.
        let mut target = bytes([7, 8]);
        let dst = Typed::contiguous(Region::of_mut(&mut target));
        reduce(&op.into(), &[dst.clone(), srcs[1].clone()], &dst, 0..8).unwrap();
        let wanted = if op == ReduceOp::Replace { [3, 4] } else { [7, 8] };
        assert_eq!(ints(&target), wanted, "{op:?}");
    }
}

/// A copy between such would be one of overlapping memory.
#[test]
fn a_longer_source_at_the_targets_place_is_the_same() {
    let int = Datatype::from(Primitive::Int).commit().unwrap();
    let mut memory = bytes([4, 5, 6]);
    let region = Region::of_mut(&mut memory);
    let typed = |origin, count| Typed::new(region, origin, &int, count).unwrap();
    assert_eq!(is_same(&typed(0, 3), &typed(0, 2), &(0..8)), Ok(true));
    assert_eq!(is_same(&typed(0, 3), &typed(0, 2), &(0..4)), Ok(true));
    assert_eq!(is_same(&typed(0, 2), &typed(4, 2), &(0..8)), Ok(false));
    reduce(&ReduceOp::Sum.into(), &[typed(0, 3)], &typed(0, 2), 0..8).unwrap();
    assert_eq!(ints(&memory), [4, 5, 6]);
}

#[test]
fn nothing_is_read_before_what_it_comes_after() {
    let device = FakeDevice::with_delay(0, 3);
    let (fresh, mut late, mut result) = (bytes([1, 2, 3]), bytes([0; 3]), bytes([0; 3]));
    let (late, dst) = (Region::of_mut(&mut late), Region::of_mut(&mut result));
    // SAFETY: both buffers live until the calls below have waited for this.
    let copied = unsafe { device.copy(late, Region::of(&fresh), &[]) }.unwrap();
    let int = Datatype::from(Primitive::Int).commit().unwrap();
    let typed = |region| Typed::new(region, 0, &int, 3).unwrap();
    let srcs = [typed(late), typed(Region::of(&fresh))];
    let op = ReduceOp::Sum.into();
    // SAFETY: all buffers live through the call and do not overlap.
    unsafe { HostEngine.reduce_into(&op, &srcs, &typed(dst), 0..12, &[copied]) }.unwrap();
    assert_eq!(ints(&result), [2, 4, 6]);
}

/// Left operand, then right operand, as digits: not commutative. The `int` of an element lies at `place` if elements
/// are typed.
fn digits(element: &Layout, place: Option<isize>) -> Op {
    let step = match place {
        Some(_) => usize::try_from(element.extent()).unwrap(),
        None => 4,
    };
    let join = move |vectors: crate::Vectors<'_>| {
        assert!(vectors.len > 0);
        assert!(vectors.invec[vectors.origin..].as_ptr().addr().is_multiple_of(64));
        assert!(vectors.inoutvec[vectors.origin..].as_ptr().addr().is_multiple_of(64));
        for element in 0..vectors.len {
            let at =
                (vectors.origin + element * step).checked_add_signed(place.unwrap_or(0)).unwrap();
            let number = |vector: &[u8]| i32::from_ne_bytes(vector[at..][..4].try_into().unwrap());
            let joined = number(vectors.invec) * 10 + number(vectors.inoutvec);
            vectors.inoutvec[at..][..4].copy_from_slice(&joined.to_ne_bytes());
        }
    };
    match place {
        Some(_) => UserOp::typed("digits", false, element, join).into(),
        None => UserOp::packed("digits", false, element, join).into(),
    }
}

#[test]
fn a_users_function_sees_operands_in_order_and_elements_as_it_wants_them() {
    // An element with gaps before and behind, in an order of its own.
    let int = Datatype::from(Primitive::Int);
    let gapped = Datatype::hindexed(&[1], &[-12], &int).unwrap();
    let gapped = Datatype::resized(-20, 28, &gapped).unwrap().commit().unwrap();
    let plain = int.commit().unwrap();
    let count = 5000;
    for (element, place) in
        [(&plain, None), (&plain, Some(0)), (&gapped, None), (&gapped, Some(-12))]
    {
        let op = digits(element, place);
        assert!(!op.is_commutative());
        let mut memory: Vec<Vec<u8>> = (0..4).map(|_| vec![0xEE; 28 * count]).collect();
        let buffers: Vec<Typed> = memory
            .iter_mut()
            .enumerate()
            .map(|(number, memory)| {
                let region = Region::of_mut(memory);
                let layout = if number == 1 { &gapped } else { &plain };
                let origin = if number == 1 { 20 } else { 0 };
                let typed = Typed::new(region, origin, layout, count as u64).unwrap();
                let packed = i32::try_from(number + 1).unwrap().to_ne_bytes().repeat(count);
                // SAFETY: both buffers are this test's own.
                unsafe {
                    crate::Engine::unpack(
                        &HostEngine,
                        Region::of(&packed),
                        &typed,
                        0..packed.len() as u64,
                        &[],
                    )
                }
                .unwrap();
                typed
            })
            .collect();
        // In place of the second source, whose layout has gaps.
        reduce(&op, &buffers[..3], &buffers[1], 4..4 * (count as u64 - 1)).unwrap();
        let mut packed = vec![0; 4 * count];
        let dst = Region::of_mut(&mut packed);
        // SAFETY: both buffers are this test's own.
        unsafe { crate::Engine::pack(&HostEngine, &buffers[1], 0..4 * count as u64, dst, &[]) }
            .unwrap();
        let values = ints(&packed);
        assert_eq!((values[0], values[count - 1]), (2, 2), "outside the range");
        assert!(values[1..count - 1].iter().all(|value| *value == 123), "{values:?}");
        assert!(memory[1].chunks(28).all(|one| one[..8] == [0xEE; 8] && one[12..] == [0xEE; 16]));
    }
}

#[test]
fn elements_larger_than_a_vector_and_out_of_order_reach_the_function_as_their_datatype_says() {
    // 3000 ints, the last first, as one element; its extent is negative.
    let int = Datatype::from(Primitive::Int);
    let reversed = Datatype::vector(3000, 1, -1, &int).unwrap();
    let element = Datatype::resized(0, -12000, &reversed).unwrap().commit().unwrap();
    let op = UserOp::typed("sum of the first", true, &element, |vectors| {
        for element in 0..vectors.len {
            let first = vectors.origin - element * 12000;
            let number =
                |vector: &[u8]| i32::from_ne_bytes(vector[first..][..4].try_into().unwrap());
            let sum = number(vectors.invec) + number(vectors.inoutvec);
            vectors.inoutvec[first..][..4].copy_from_slice(&sum.to_ne_bytes());
        }
    });
    let sources: Vec<Vec<u8>> =
        (0..2).map(|number| (number..9000 + number).flat_map(i32::to_ne_bytes).collect()).collect();
    let mut result = vec![0; 36000];
    let ints_layout = int.commit().unwrap();
    let srcs: Vec<Typed> =
        sources.iter().map(|s| Typed::new(Region::of(s), 0, &ints_layout, 9000).unwrap()).collect();
    let dst = Typed::new(Region::of_mut(&mut result), 0, &ints_layout, 9000).unwrap();
    reduce(&op.into(), &srcs, &dst, 0..36000).unwrap();
    let result = ints(&result);
    for (place, value) in result.into_iter().enumerate() {
        let place = i32::try_from(place).unwrap();
        let right = place + 1;
        assert_eq!(value, if place % 3000 == 0 { place + right } else { right }, "{place}");
    }
}

#[test]
fn a_panic_of_a_users_function_is_an_error_that_carries_its_message() {
    let int = Datatype::from(Primitive::Int).commit().unwrap();
    let op = UserOp::packed("fussy", true, &int, |vectors| {
        assert!(vectors.invec[0] == 0, "I want zeros");
    });
    let (one, mut two) = (bytes([1; 3]), bytes([2; 3]));
    let srcs = [
        Typed::new(Region::of(&one), 0, &int, 3).unwrap(),
        Typed::new(Region::of_mut(&mut two), 0, &int, 3).unwrap(),
    ];
    let error = reduce(&op.into(), &srcs, &srcs[1], 0..12).unwrap_err();
    let wanted =
        EngineError::Panicked { op: "fussy".to_owned(), message: "I want zeros".to_owned() };
    assert_eq!(error, wanted);
    assert_eq!(ints(&two), [2; 3]);
}

#[test]
fn a_users_operation_takes_only_its_elements() {
    let pair =
        Datatype::structure(&[1, 1], &[0, 8], &[Primitive::Int.into(), Primitive::Double.into()])
            .unwrap()
            .commit()
            .unwrap();
    let op = Op::from(UserOp::packed("none", true, &pair, |_| {}));
    let mut memory = [0u8; 96];
    let region = Region::of_mut(&mut memory);
    let pairs = Typed::new(region, 0, &pair, 6).unwrap();
    let ints = Typed::new(region, 0, &column(3, Primitive::Int), 1).unwrap();
    assert_eq!(op.element_bytes(&pair), Ok(12));
    reduce(&op, &[pairs.clone(), pairs.clone()], &pairs, 12..24).unwrap();
    let error = reduce(&op, &[pairs.clone(), ints], &pairs, 0..12).unwrap_err();
    let wanted = EngineError::OtherElements { operand: Operand::Source(1), op: "none".to_owned() };
    assert_eq!(error, wanted);
    let error = reduce(&op, &[pairs.clone(), pairs.clone()], &pairs, 0..8).unwrap_err();
    assert!(matches!(error, EngineError::SplitElement { element_bytes: 12, .. }));
}

#[test]
fn support_is_known_beforehand() {
    let supports = |op: ReduceOp, primitive| HostEngine.supports(&op.into(), &column(2, primitive));
    assert!(supports(ReduceOp::Sum, Primitive::BFloat16));
    assert!(!supports(ReduceOp::Sum, Primitive::Bool) && !supports(ReduceOp::Sum, Primitive::Byte));
    assert!(supports(ReduceOp::Replace, Primitive::Char));
    assert_eq!(supports(ReduceOp::Sum, Primitive::LongDouble), cfg!(target_arch = "x86_64"));
}
