use super::*;
use crate::{Distribution, Order, Run};

fn int() -> Datatype {
    Primitive::Int.into()
}

fn displacements(typemap: &Typemap) -> Vec<i64> {
    typemap.entries().iter().map(|entry| entry.displacement).collect()
}

/// MPI 4.1 §5.1.2, Example 5.1's kind of type: {(double, 0), (char, 8)}, extent 16.
fn double_char() -> Datatype {
    let types = [Primitive::Double.into(), Primitive::Char.into()];
    Datatype::structure(&[1, 1], &[0, 8], &types).unwrap()
}

#[test]
fn contiguous_pads_to_the_alignment() {
    let typemap = Typemap::of(&Datatype::contiguous(3, &double_char()).unwrap()).unwrap();
    assert_eq!(displacements(&typemap), [0, 8, 16, 24, 32, 40]);
    assert_eq!((typemap.size(), typemap.extent(), typemap.true_extent()), (27, 48, 41));
}

#[test]
fn vector_counts_strides_in_extents() {
    let typemap = Typemap::of(&Datatype::vector(2, 3, 4, &double_char()).unwrap()).unwrap();
    let expected = [0, 8, 16, 24, 32, 40, 64, 72, 80, 88, 96, 104];
    assert_eq!(displacements(&typemap), expected);
    let back = Typemap::of(&Datatype::vector(3, 1, -2, &double_char()).unwrap()).unwrap();
    assert_eq!(displacements(&back), [0, 8, -32, -24, -64, -56]);
    assert_eq!((back.lb(), back.ub()), (-64, 16));
}

#[test]
fn markers_stick_and_add_up() {
    let type1 = Datatype::resized(-3, 9, &int()).unwrap();
    let typemap = Typemap::of(&Datatype::contiguous(2, &type1).unwrap()).unwrap();
    assert_eq!(displacements(&typemap), [0, 9]);
    assert_eq!((typemap.lb(), typemap.ub()), (-3, 15));
}

#[test]
fn subarray_has_the_full_arrays_bounds() {
    let (sizes, subsizes, starts) = ([2, 3], [2, 1], [0, 1]);
    let c = Datatype::subarray(&sizes, &subsizes, &starts, Order::C, &int()).unwrap();
    let typemap = Typemap::of(&c).unwrap();
    assert_eq!(displacements(&typemap), [4, 16]);
    assert_eq!((typemap.lb(), typemap.ub()), (0, 24));
    let fortran = Datatype::subarray(&sizes, &subsizes, &starts, Order::Fortran, &int()).unwrap();
    assert_eq!(displacements(&Typemap::of(&fortran).unwrap()), [8, 12]);
}

#[test]
fn darray_deals_blocks_in_turn() {
    let cyclic = [Distribution::Cyclic];
    let type_of = |rank| {
        Datatype::darray(2, rank, &[7], &cyclic, &[Some(2)], &[2], Order::C, &int()).unwrap()
    };
    assert_eq!(displacements(&Typemap::of(&type_of(0)).unwrap()), [0, 4, 16, 20]);
    let typemap = Typemap::of(&type_of(1)).unwrap();
    assert_eq!(displacements(&typemap), [8, 12, 24]);
    assert_eq!((typemap.lb(), typemap.ub()), (0, 28));
}

#[test]
fn pair_types_are_value_and_index() {
    let typemap = Typemap::of(&Primitive::ShortInt.into()).unwrap();
    assert_eq!(displacements(&typemap), [0, 4]);
    assert!(typemap.signature().eq([Primitive::Short, Primitive::Int]));
    assert_eq!((typemap.size(), typemap.extent()), (6, 8));
}

#[test]
fn runs_merge_in_packed_order_only() {
    let typemap = Typemap::of(&Datatype::indexed_block(1, &[1, 2, 0], &int()).unwrap()).unwrap();
    let expected = [Run { displacement: 4, len: 8 }, Run { displacement: 0, len: 4 }];
    assert_eq!(typemap.runs(1).unwrap(), expected);
    assert!(typemap.is_disjoint(4));
    let overlapping = Datatype::hvector(2, 1, 3, &int()).unwrap();
    assert!(!Typemap::of(&overlapping).unwrap().is_disjoint(1));
}

#[test]
fn packs_and_unpacks_byte_by_byte() {
    let column = Datatype::hvector(3, 1, 2, &Primitive::Byte.into()).unwrap();
    let typemap = Typemap::of(&column).unwrap();
    assert_eq!(typemap.pack(1, &[1, 2, 3, 4, 5, 6], 1).unwrap(), [2, 4, 6]);
    let mut dst = [0; 6];
    typemap.unpack(1, &[7, 8, 9], &mut dst, 0).unwrap();
    assert_eq!(dst, [7, 0, 8, 0, 9, 0]);
    let outside = NaiveError::OutOfBuffer { displacement: 4, origin: 2, len: 6 };
    assert_eq!(typemap.pack(1, &[0; 6], 2), Err(outside));
    let wrong = NaiveError::PackedLength { expected: 3, got: 2 };
    assert_eq!(typemap.unpack(1, &[0; 2], &mut dst, 0), Err(wrong));
}

#[test]
fn refuses_what_is_too_large_to_write_out() {
    let huge = Datatype::contiguous(1 << 40, &int()).unwrap();
    assert!(matches!(Typemap::of(&huge), Err(NaiveError::TooLarge { what: "steps", .. })));
    // Empty blocks cost steps too.
    let hollow = Datatype::vector(1 << 40, 0, 1, &int()).unwrap();
    assert!(matches!(Typemap::of(&hollow), Err(NaiveError::TooLarge { what: "steps", .. })));
    let one = Typemap::of(&int()).unwrap();
    assert!(matches!(one.runs(1 << 40), Err(NaiveError::TooLarge { what: "bytes", .. })));
}
