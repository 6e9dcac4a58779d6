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

#[test]
fn weak_references_tell_whether_the_layout_lives() {
    let make = || Datatype::vector(3, 1, 2, &int()).unwrap().commit().unwrap();
    let (a, b) = (make(), make());
    assert_eq!(a, b);
    assert_ne!(a.id(), b.id());
    let (clone, weak) = (a.clone(), a.downgrade());
    assert_eq!((clone.id(), weak.id()), (a.id(), a.id()));
    drop(a);
    assert!(weak.is_alive() && weak.upgrade().is_some_and(|layout| layout.id() == clone.id()));
    let id = clone.id();
    drop(clone);
    assert!(!weak.is_alive() && weak.upgrade().is_none());
    // The weak reference keeps the identity from being given away.
    let others: Vec<Layout> = (0..100).map(|_| make()).collect();
    assert!(others.iter().all(|other| other.id() != id));
}

#[test]
fn granularity_is_what_words_may_be_as_wide_as() {
    let granularity = |datatype: &Datatype| datatype.commit().unwrap().granularity();
    let long = Datatype::contiguous(6, &float()).unwrap();
    assert_eq!(granularity(&long), 8);
    let shuffled: Vec<i64> = (0..64).map(|i| i * 37 % 64 * 96).collect();
    assert_eq!(granularity(&Datatype::hindexed_block(4, &shuffled, &int()).unwrap()), 16);
    let lengths: Vec<u64> = (0..64).map(|i| 2 + i * 7 % 3 * 2).collect();
    assert_eq!(granularity(&Datatype::hindexed(&lengths, &shuffled, &int()).unwrap()), 8);
    assert_eq!(granularity(&Datatype::contiguous(0, &int()).unwrap()), 0);
    // A gap that no run's place shows does not count; a stride that moves runs does.
    assert_eq!(granularity(&Datatype::resized(0, 9, &long).unwrap()), 8);
    let spread = Datatype::hvector(2, 1, 33, &long).unwrap();
    assert_eq!(granularity(&spread), 1);
}

#[test]
fn an_array_of_structures_has_a_period() {
    let mixed = Datatype::structure(&[2, 1, 3], &[0, 12, 20], &[int(), float(), int()]).unwrap();
    let one = Datatype::resized(0, 40, &mixed).unwrap();
    let many = Datatype::contiguous(1000, &one).unwrap().commit().unwrap();
    let period = many.period().unwrap();
    assert_eq!((period.count, period.stride, period.size, period.blocks), (1000, 40, 24, 3));
    assert_eq!((period.true_lb, period.true_ub), (0, 32));
    assert_eq!(one.commit().unwrap().period(), None);
}
