//! Arrays of `ndarray` as buffers: random shapes, orders, slices and axes, against the crate's own order of elements.

use gapless::{AnyBits, Blocks, BlocksMut, Communicator, Datatype, InPlace, ReduceOp, World};
use gapless_btl_testkit::Random;
use ndarray::{
    ArcArray, Array2, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder,
    Slice, arr1, s,
};
use std::fmt::Debug;

/// How a view is made of an array: the same for one that is read and one that is written.
enum Change {
    Slice(usize, Slice),
    Invert(usize),
    Swap(usize, usize),
    Index(usize, usize),
}

/// Some changes for an array of this shape.
fn changes(random: &mut Random, shape: &[usize]) -> Vec<Change> {
    let mut shape = shape.to_vec();
    let mut list = Vec::new();
    for _ in 0..random.below(5) {
        if shape.is_empty() {
            break;
        }
        let axis = random.below(shape.len());
        let len = shape[axis];
        match random.below(5) {
            0 => list.push(Change::Invert(axis)),
            1 => {
                let other = random.below(shape.len());
                shape.swap(axis, other);
                list.push(Change::Swap(axis, other));
            }
            2 if len > 0 => {
                list.push(Change::Index(axis, random.below(len)));
                shape.remove(axis);
            }
            _ => {
                let start = random.below(len + 1);
                let end = start + random.below(len - start + 1);
                let step: isize = [1, 2, 3, -1, -2][random.below(5)];
                shape[axis] = (end - start).div_ceil(step.unsigned_abs());
                let [start, end] = [start, end].map(|at| isize::try_from(at).unwrap());
                list.push(Change::Slice(axis, Slice::new(start, Some(end), step)));
            }
        }
    }
    list
}

fn read<'a, T>(array: &'a ArrayD<T>, changes: &[Change]) -> ArrayViewD<'a, T> {
    changes.iter().fold(array.view(), |mut view, change| {
        match *change {
            Change::Slice(axis, slice) => view.slice_axis_inplace(Axis(axis), slice),
            Change::Invert(axis) => view.invert_axis(Axis(axis)),
            Change::Swap(one, other) => view.swap_axes(one, other),
            Change::Index(axis, index) => return view.index_axis_move(Axis(axis), index),
        }
        view
    })
}

fn written<'a, T>(array: &'a mut ArrayD<T>, changes: &[Change]) -> ArrayViewMutD<'a, T> {
    changes.iter().fold(array.view_mut(), |mut view, change| {
        match *change {
            Change::Slice(axis, slice) => view.slice_axis_inplace(Axis(axis), slice),
            Change::Invert(axis) => view.invert_axis(Axis(axis)),
            Change::Swap(one, other) => view.swap_axes(one, other),
            Change::Index(axis, index) => return view.index_axis_move(Axis(axis), index),
        }
        view
    })
}

/// Random arrays of elements that `make` numbers: what is sent, and what is received, is in the order of `iter`.
fn check<T: AnyBits + Clone + PartialEq + Debug>(
    comm: &Communicator,
    seed: u64,
    make: impl Fn(usize) -> T,
) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..400 {
        let shape: Vec<usize> = (0..random.below(5)).map(|_| random.below(6)).collect();
        let order = IxDyn(&shape).set_f(random.below(2) == 0);
        let size: usize = shape.iter().product();
        let array = ArrayD::from_shape_vec(order, (0..size).map(&make).collect()).unwrap();
        let changes = changes(&mut random, &shape);
        let view = read(&array, &changes);
        let expected: Vec<T> = view.iter().cloned().collect();
        let case = format!("round {round}: {:?} with strides {:?}", view.shape(), view.strides());

        let mut list = vec![make(0); expected.len()];
        comm.sendrecv(&view, (0, 0), &mut list, (0, 0)).unwrap();
        assert_eq!(list, expected, "{case}");

        // Other numbers into the same elements, and into no others.
        let numbers: Vec<T> = (0..list.len()).map(|at| make(1000 + at)).collect();
        let (mut into, mut filled) = (array.clone(), array.clone());
        let status = match random.below(2) {
            0 => comm.sendrecv(&numbers, (0, 0), written(&mut into, &changes), (0, 0)),
            _ => {
                let mut view = written(&mut into, &changes);
                comm.sendrecv(&numbers, (0, 0), &mut view, (0, 0))
            }
        };
        assert_eq!(status.unwrap().count::<T>(), Some(numbers.len() as u64), "{case}");
        let pairs = written(&mut filled, &changes);
        pairs.into_iter().zip(&numbers).for_each(|(to, number)| *to = number.clone());
        assert_eq!(into, filled, "{case}");

        // From view to view.
        let mut again = ArrayD::from_elem(IxDyn(view.shape()), make(0)).reversed_axes();
        comm.sendrecv(view.clone(), (0, 0), again.view_mut().reversed_axes(), (0, 0)).unwrap();
        assert_eq!(again.reversed_axes(), view, "{case}");
    }
}

#[derive(Datatype, Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Padded {
    kind: u8,
    number: f64,
    last: u16,
}

#[test]
fn elements_travel_in_logical_order() {
    let world = World::init().unwrap();
    let comm = world.comm();
    check(comm, 1, |at| at as f64);
    check(comm, 2, |at| at.to_le_bytes()[0]);
    check(comm, 3, |at| u16::try_from(at).unwrap());
    check(comm, 4, |at| [at as f32, -1.0, 0.5]);
    check(comm, 5, |at| Padded { kind: at.to_le_bytes()[0], number: at as f64, last: 7 });
    world.finalize().unwrap();
}

#[test]
fn every_kind_of_array_is_a_buffer() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let numbers = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as f64);
    let mut list = [0.0; 3];
    comm.sendrecv(numbers.slice(s![.., 3]), (0, 0), &mut list, (0, 0)).unwrap();
    assert_eq!(list, [3.0, 13.0, 23.0]);
    // A shared array that is received into becomes one of its own.
    let shared = ArcArray::from(numbers.clone());
    let mut other = shared.clone();
    comm.sendrecv(numbers.t(), (0, 0), other.view_mut().into_dyn(), (0, 0)).unwrap();
    assert_eq!((shared, other.shape()), (numbers.to_shared(), &[3, 4][..]));
    let mut other = numbers.to_shared();
    comm.sendrecv(&(&numbers + 0.5), (0, 0), &mut other, (0, 0)).unwrap();
    assert_eq!(other[[2, 3]], 23.5);
    // Repeated elements are sent, and the same address is never received into twice.
    let one = arr1(&[7.0]);
    let mut six = [0.0; 6];
    comm.sendrecv(one.broadcast((2, 3)).unwrap(), (0, 0), &mut six, (0, 0)).unwrap();
    assert_eq!(six, [7.0; 6]);
    let mut thin = Array2::from_shape_vec((3, 1).strides((1, 0)), vec![0.0; 3]).unwrap();
    comm.sendrecv(&list, (0, 0), &mut thin, (0, 0)).unwrap();
    assert_eq!(thin, numbers.slice(s![.., 3..]));
    // Bits that are no value are refused by the compiler; what is sent need not be received.
    comm.sendrecv(ArrayView::from(&[true, false]), (0, 0), &mut [0u8; 2], (0, 0)).unwrap();
    world.finalize().unwrap();
}

#[test]
fn collectives_take_arrays() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let numbers = Array2::from_shape_fn((4, 5), |(row, column)| (5 * row + column) as f64);
    let mut sums = Array2::<f64>::zeros((2, 4));
    comm.allreduce(numbers.slice(s![..;2, ..4]), sums.slice_mut(s![..;-1, ..]), ReduceOp::Sum)
        .unwrap();
    assert_eq!(sums, numbers.slice(s![..;2, ..4]).slice(s![..;-1, ..]));
    let mut column = numbers.clone();
    comm.allreduce(InPlace, column.column_mut(1), ReduceOp::Sum).unwrap();
    comm.bcast(column.slice_mut(s![1.., ..;2]), 0).unwrap();
    assert_eq!(column, numbers);
    let mut gathered = Array2::<f64>::zeros((5, 4));
    comm.gather(numbers.t(), &mut gathered, 0).unwrap();
    assert_eq!(gathered, numbers.t());
    // A block is so many slices along the first axis, in whatever order the elements lie.
    let turned = numbers.t().as_standard_layout().into_owned().reversed_axes();
    assert_eq!((&turned, turned.is_standard_layout()), (&numbers, false));
    for array in [numbers.view(), turned.view(), numbers.slice(s![.., ..])] {
        let mut row = [0.0; 5];
        let blocks = Blocks::new(array, &[1], &[2]).unwrap();
        comm.alltoallv(blocks, BlocksMut::packed(&mut row, &[5]).unwrap()).unwrap();
        assert_eq!(row, [10.0, 11.0, 12.0, 13.0, 14.0]);
    }
    let mut rows = Array2::<f64>::zeros((1, 5));
    let blocks = Blocks::packed(turned.slice(s![3.., ..]), &[1]).unwrap();
    comm.alltoallv(blocks, BlocksMut::packed(&mut rows, &[1]).unwrap()).unwrap();
    assert_eq!(rows, numbers.slice(s![3.., ..]));
    let error = comm.recv(gathered.slice_mut(s![.., 0]), 7, 0).unwrap_err();
    assert!(error.to_string().contains('7'), "{error}");
    world.finalize().unwrap();
}
