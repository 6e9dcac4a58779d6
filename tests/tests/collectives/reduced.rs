//! Operations that combine elements.

use crate::collectives::{Case, everywhere, ranks};
use gapless::{
    Collective, Datatype, Equivalence, InPlace, Op, Primitive, ReduceOp, UserOp, View, ViewMut,
};
use half::{bf16, f16};
use num_complex::Complex;

/// Compositions of functions `x -> a x + b` modulo 65536, each in one number: they do not commute.
fn compose(left: i32, right: i32) -> i32 {
    let parts = |number: i32| (number.cast_unsigned() >> 16, number.cast_unsigned() & 0xFFFF);
    let ((a, b), (c, d)) = (parts(left), parts(right));
    let (slope, offset) = (a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b));
    (slope << 16 | offset & 0xFFFF).cast_signed()
}

fn composition() -> Op {
    let number = Datatype::from(Primitive::Int32).commit().unwrap();
    let composed = |left: &[u8], right: &mut [u8]| {
        let number = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().unwrap());
        let result = compose(number(left), number(right));
        right.copy_from_slice(&result.to_ne_bytes());
    };
    let op = UserOp::packed("composition", false, &number, move |vectors| {
        let pairs = vectors.invec.chunks_exact(4).zip(vectors.inoutvec.chunks_exact_mut(4));
        pairs.for_each(|(left, right)| composed(left, right));
    });
    op.into()
}

type Plain = fn(i32, i32) -> i32;

/// Operations, and what they do to two numbers.
fn ops() -> [(Op, Plain); 3] {
    [
        (ReduceOp::Sum.into(), i32::wrapping_add),
        (ReduceOp::Max.into(), i32::max),
        (composition(), compose),
    ]
}

/// What these ranks' vectors become.
fn fold(case: &Case<'_>, ranks: std::ops::Range<usize>, count: usize, plain: Plain) -> Vec<i32> {
    let vectors: Vec<Vec<i32>> = ranks.map(|from| case.given(from, count)).collect();
    let one = |at: usize| vectors.iter().map(|vector| vector[at]).reduce(plain).unwrap();
    (0..count).map(one).collect()
}

/// All-reductions and reductions to each rank, in place and not, by each operation.
pub(crate) fn reductions(case: &Case<'_>) {
    let (me, size, len) = (case.me(), case.size(), case.len);
    for (op, plain) in ops() {
        let right = fold(case, 0..size, len, plain);
        let send = case.field(&case.given(me, len));
        let mut into = case.room(len);
        case.call(Collective::allreduce(send.view(), into.view_mut(), op.clone())).unwrap();
        into.assert_has(&right, "allreduce");
        let mut both = send.clone();
        case.call(Collective::allreduce(InPlace, both.view_mut(), op.clone())).unwrap();
        both.assert_has(&right, "allreduce in place");
        for root in 0..case.comm.size() {
            let mut into = case.room(len);
            let mut both = send.clone();
            if case.comm.rank() == root {
                let call = Collective::reduce(send.view(), into.view_mut(), op.clone(), root);
                case.call(call).unwrap();
                into.assert_has(&right, "reduce");
                let call = Collective::reduce(InPlace, both.view_mut(), op.clone(), root);
                case.call(call).unwrap();
                both.assert_has(&right, "reduce in place");
            } else {
                for _ in 0..2 {
                    case.call(Collective::reduce(send.view(), (), op.clone(), root)).unwrap();
                }
            }
        }
    }
}

#[test]
fn reduce_and_allreduce() {
    everywhere(reductions);
}

#[test]
fn scan_and_exscan() {
    everywhere(|case| {
        let (me, len) = (case.me(), case.len);
        for (op, plain) in ops() {
            let send = case.field(&case.given(me, len));
            let (mut into, mut both) = (case.room(len), send.clone());
            let right = fold(case, 0..me + 1, len, plain);
            case.call(Collective::scan(send.view(), into.view_mut(), op.clone())).unwrap();
            into.assert_has(&right, "scan");
            case.call(Collective::scan(InPlace, both.view_mut(), op.clone())).unwrap();
            both.assert_has(&right, "scan in place");
            let (mut into, mut both) = (case.room(len), send.clone());
            case.call(Collective::exscan(send.view(), into.view_mut(), op.clone())).unwrap();
            case.call(Collective::exscan(InPlace, both.view_mut(), op.clone())).unwrap();
            if me > 0 {
                let right = fold(case, 0..me, len, plain);
                into.assert_has(&right, "exscan");
                both.assert_has(&right, "exscan in place");
            } else {
                into.assert_has(&vec![-5; len], "exscan at rank 0");
                both.assert_has(&case.given(0, len), "exscan in place at rank 0");
            }
        }
    });
}

#[test]
fn reduce_scatter() {
    everywhere(|case| {
        let (me, size) = (case.me(), case.size());
        let block = case.len.min(900);
        let counts: Vec<usize> = (0..size).map(|at| (at + 1) % 3 * block).collect();
        let total = counts.iter().sum();
        let start: usize = counts[..me].iter().sum();
        let lens: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
        for (op, plain) in ops() {
            let right = fold(case, 0..size, total, plain);
            let own = &right[start..start + counts[me]];
            let send = case.field(&case.given(me, total));
            let (mut into, mut both) = (case.room(own.len()), send.clone());
            let call = Collective::reduce_scatter(send.view(), into.view_mut(), &lens, op.clone());
            case.call(call).unwrap();
            into.assert_has(own, "reduce_scatter");
            let call = Collective::reduce_scatter(InPlace, both.view_mut(), &lens, op.clone());
            case.call(call).unwrap();
            assert_eq!(both.numbers()[..own.len()], *own, "reduce_scatter in place");

            let right = fold(case, 0..size, size * block, plain);
            let own = &right[me * block..(me + 1) * block];
            let send = case.field(&case.given(me, size * block));
            let (mut into, mut both) = (case.room(block), send.clone());
            let call = Collective::reduce_scatter_block(send.view(), into.view_mut(), op.clone());
            case.call(call).unwrap();
            into.assert_has(own, "reduce_scatter_block");
            case.call(Collective::reduce_scatter_block(InPlace, both.view_mut(), op)).unwrap();
            assert_eq!(both.numbers()[..block], *own, "reduce_scatter_block in place");
        }
    });
}

/// Slices of `u8` have numbers where elements are combined, and ranks may describe the same elements differently.
#[test]
fn elements_of_other_types() {
    crate::collectives::ranks(3, |comm| {
        let me = comm.rank();
        let mut bytes = [0u8; 2];
        comm.allreduce(&[1u8, 200], &mut bytes, ReduceOp::Sum).unwrap();
        assert_eq!(bytes, [3, 88], "numbers that wrap");
        let mut least = [0.0f64; 1];
        comm.allreduce(&[2.5 - f64::from(me)], &mut least, ReduceOp::Min).unwrap();
        assert_eq!(least, [0.5]);
        // Two numbers in one instance here, one there.
        let pair = Datatype::vector(2, 1, 2, &Primitive::Int32.into()).unwrap().commit().unwrap();
        let (mut sparse, mut plain) = ([7i32; 3], [7i32; 2]);
        let mine = [i32::try_from(me).unwrap(), 0, 10];
        let send = View::typed(&mine, 0, &pair, 1).unwrap();
        if me == 1 {
            let into = ViewMut::typed(&mut sparse, 0, &pair, 1).unwrap();
            comm.allreduce(send, into, ReduceOp::Sum).unwrap();
            assert_eq!(sparse, [3, 7, 30]);
        } else {
            comm.allreduce(send, &mut plain, ReduceOp::Sum).unwrap();
            assert_eq!(plain, [3, 30]);
        }
        // A value and where it is.
        let mut place = [0i32; 2];
        let pairs = Datatype::from(Primitive::TwoInt).commit().unwrap();
        let mine = [i32::try_from(me).unwrap() * 5 % 7, i32::try_from(me).unwrap()];
        let send = View::typed(&mine, 0, &pairs, 1).unwrap();
        let into = ViewMut::typed(&mut place, 0, &pairs, 1).unwrap();
        comm.allreduce(send, into, ReduceOp::MaxLoc).unwrap();
        assert_eq!(place, [5, 1]);
        let mut most = [3, 1, 4];
        comm.reduce_local(&[2, 7, 1], &mut most, ReduceOp::Max).unwrap();
        assert_eq!(most, [3, 7, 4]);
    });
}

/// By notes, through slots, and by messages.
#[test]
fn halves_and_complex_numbers_are_added_and_multiplied() {
    for size in [2, 3] {
        ranks(size, |comm| {
            let n = f32::from(u8::try_from(size).unwrap());
            for len in [3, 5000] {
                let mut sums = vec![f16::ZERO; len];
                comm.allreduce(&vec![f16::from_f32(1.5); len], &mut sums, ReduceOp::Sum).unwrap();
                assert!(sums.iter().all(|sum| sum.to_f32() == 1.5 * n), "{sums:?}");
                let mut most = vec![bf16::ZERO; len];
                let ours = bf16::from_f32(f32::from(u8::try_from(comm.rank()).unwrap()));
                comm.allreduce(&vec![ours; len], &mut most, ReduceOp::Max).unwrap();
                assert!(most.iter().all(|most| most.to_f32() == n - 1.0), "{most:?}");
                let mut products = vec![Complex::new(0.0f64, 0.0); len];
                let turn = vec![Complex::new(0.0, 2.0); len];
                comm.allreduce(&turn, &mut products, ReduceOp::Prod).unwrap();
                let due = if size == 2 { Complex::new(-4.0, 0.0) } else { Complex::new(0.0, -8.0) };
                assert!(products.iter().all(|product| *product == due), "{products:?}");
            }
        });
    }
}

/// A value of 8 bytes, an index of 4, and 4 bytes that are nobody's.
#[derive(Clone, Copy, Debug, Datatype, PartialEq)]
#[repr(C)]
struct Best {
    value: f64,
    rank: i32,
}

/// The padding lies in front.
#[derive(Clone, Copy, Debug, Datatype, PartialEq)]
#[repr(C)]
struct Counted {
    value: f32,
    place: u64,
}

/// By notes, through slots, and by messages.
#[test]
fn a_value_and_its_index_are_a_struct_of_numbers() {
    for size in [2, 3] {
        ranks(size, |comm| {
            let me = comm.rank();
            let last = i32::try_from(size - 1).unwrap();
            for len in [1, 7, 3000] {
                let rank = i32::try_from(me).unwrap();
                let mine = |at: usize| Best { value: [f64::from(rank), 4.0][at % 2], rank };
                let mine: Vec<Best> = (0..len).map(mine).collect();
                let mut most = mine.clone();
                comm.allreduce(InPlace, &mut most, ReduceOp::MaxLoc).unwrap();
                for (at, most) in most.iter().enumerate() {
                    let due = [(f64::from(last), last), (4.0, 0)][at % 2];
                    assert_eq!((most.value, most.rank), due);
                }
                // Among bytes, one sees that nobody's bytes stay as they were.
                let mut bytes = vec![0xEE; 16 * len];
                let into = ViewMut::typed(&mut bytes, 0, Best::layout(), len as u64).unwrap();
                comm.allreduce(&mine[..], into, ReduceOp::MinLoc).unwrap();
                for (at, best) in bytes.chunks(16).enumerate() {
                    let value = [0.0f64, 4.0][at % 2].to_ne_bytes();
                    assert_eq!(best, [&value[..], &[0; 4], &[0xEE; 4]].concat());
                }
                // The larger index is so as a number without a sign.
                let place = if me == 0 { u64::MAX } else { 1 << 40 };
                let mut least = vec![Counted { value: 0.0, place: 0 }; len];
                let counted = vec![Counted { value: 2.5, place }; len];
                comm.allreduce(&counted[..], &mut least[..], ReduceOp::MinLoc).unwrap();
                assert_eq!(least, vec![Counted { value: 2.5, place: 1 << 40 }; len]);
            }
            let error = comm.allreduce(&[2i16], &mut [0], ReduceOp::MinLoc).unwrap_err();
            assert!(error.to_string().contains("MPI_MINLOC"), "{error}");
        });
    }
}
