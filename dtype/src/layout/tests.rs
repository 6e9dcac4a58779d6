use super::*;
use crate::primitive::Primitive;

fn int() -> Datatype {
    Primitive::Int.into()
}

fn float() -> Datatype {
    Primitive::Float.into()
}

#[test]
fn indexed_gap_merges_across_its_instances() {
    let inner = Datatype::structure(&[2, 1], &[0, 8], &[int(), float()]).unwrap();
    let three = Datatype::contiguous(3, &inner).unwrap();
    let pair = Datatype::structure(&[1, 1], &[0, 8], &[int(), three]).unwrap();
    let layout = Datatype::contiguous(10, &pair).unwrap().commit().unwrap();
    assert_eq!((layout.size(), layout.blocks(), layout.extent()), (400, 11, 440));
    assert_eq!(layout.block_lengths(), BlockLengths { min: 4, mean: 400.0 / 11.0, max: 40 });
    assert_eq!(layout.blocks_of(2), Some(21));
    assert_eq!(layout.blocks_of(0), Some(0));
    assert_eq!(layout.blocks_of(u64::MAX), None);
}

#[test]
fn odd_extents_alias_and_reverse() {
    let pair = Datatype::contiguous(2, &int()).unwrap();
    let layout = Datatype::resized(0, -8, &pair).unwrap().commit().unwrap();
    assert_eq!((layout.size(), layout.blocks(), layout.extent()), (8, 1, -8));
    assert!(!layout.is_contiguous());
    assert!(Datatype::resized(0, 8, &pair).unwrap().commit().unwrap().is_contiguous());
}

#[test]
fn commits_once() {
    let datatype = Datatype::vector(3, 1, 2, &int()).unwrap();
    let (a, b) = (datatype.commit().unwrap(), datatype.commit().unwrap());
    assert!(Arc::ptr_eq(&a.0, &b.0));
    assert_eq!(a, Layout::build(&datatype).unwrap());
    assert_eq!(a.gap_bytes(), 8);
}

#[test]
fn nothing_is_a_layout_too() {
    let empty = Datatype::contiguous(0, &int()).unwrap().commit().unwrap();
    assert_eq!((empty.size(), empty.blocks(), empty.shape()), (0, 0, &Shape::Empty));
    assert_eq!(empty.block_lengths(), BlockLengths::default());
    assert_eq!(empty.program().to_string(), "empty");
}

#[test]
fn more_bytes_than_63_bits_count_is_an_error() {
    let line = Datatype::contiguous(1 << 60, &int()).unwrap();
    let again = Datatype::hvector(3, 1, 0, &line).unwrap();
    assert!(matches!(again.commit(), Err(TypeError::Overflow { .. })));
}
