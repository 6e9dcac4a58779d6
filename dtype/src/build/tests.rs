//! The constructors against MPI's definitions, and their refusals.

mod darray;
mod errors;

use super::*;
use crate::naive::Typemap;
use crate::testkit::{Params, Rng, random_sample, rebuild};

/// The seed of this run: `GAPLESS_SEED` if set, else a fixed one.
pub(crate) fn seed() -> u64 {
    gapless_testkit::seed(20_260)
}

/// A small random type, and its typemap.
pub(crate) fn small(rng: &mut Rng) -> (Datatype, Typemap) {
    random_sample(rng, &Params { depth_max: 3, bytes_max: 128, ..Params::default() })
}

/// Of a type's entries, in storage order.
fn displacements(t: &Datatype) -> Vec<i64> {
    Typemap::of(t).unwrap().entries().iter().map(|entry| entry.displacement).collect()
}

fn int() -> Datatype {
    Primitive::Int.into()
}

fn double() -> Datatype {
    Primitive::Double.into()
}

fn char() -> Datatype {
    Primitive::Char.into()
}

/// `(size, lb, ub, true_lb, true_ub)`.
fn facts(t: &Datatype) -> (u64, i64, i64, i64, i64) {
    (t.size(), t.lb(), t.ub(), t.true_lb(), t.true_ub())
}

/// MPI 4.1 §5.1.6 defines the extent by the typemap: `(char, 5), (double, 8), (int, 16)` has bytes 5 to 20, and 15 is
/// rounded up to 16. The padding behind the `int`, which `DOUBLE_INT` has by itself, is no entry of the typemap and
/// no marker. Open MPI and MPICH keep it, and answer 24.
#[test]
fn padding_of_a_pair_is_no_entry_of_a_typemap() {
    let pair: Datatype = Primitive::DoubleInt.into();
    assert_eq!((pair.lb(), pair.extent(), pair.size()), (0, 16, 12));
    let members = [Primitive::Char.into(), pair];
    let whole = Datatype::structure(&[1, 1], &[5, 8], &members).unwrap();
    assert_eq!((whole.lb(), whole.true_ub(), whole.extent()), (5, 20, 16));
}

#[test]
fn vector_ends_with_its_last_block() {
    let t = Datatype::vector(2, 3, 4, &double()).unwrap();
    assert_eq!(facts(&t), (48, 0, 56, 0, 56));
    let t = Datatype::vector(3, 1, -2, &int()).unwrap();
    assert_eq!(facts(&t), (12, -16, 4, -16, 4));
}

#[test]
fn struct_is_padded_like_c() {
    // MPI 4.1, Example 5.1: {(double, 0), (char, 8)} has extent 16.
    let t = Datatype::structure(&[1, 1], &[0, 8], &[double(), char()]).unwrap();
    assert_eq!(facts(&t), (9, 0, 16, 0, 9));
    // Basic types count, not the padding of the member: 10 bytes round up to 16.
    let outer = Datatype::structure(&[1, 1], &[0, 1], &[char(), t]).unwrap();
    assert_eq!(facts(&outer), (10, 0, 16, 0, 10));
}

#[test]
fn resized_bounds_replicate_as_in_the_standard() {
    // MPI 4.1 §5.1.6: int resized to [-3, 6), twice, is [-3, 15).
    let t = Datatype::resized(-3, 9, &int()).unwrap();
    assert_eq!(facts(&t), (4, -3, 6, 0, 4));
    let twice = Datatype::contiguous(2, &t).unwrap();
    assert_eq!(facts(&twice), (8, -3, 15, 0, 13));
    // Sticky: the double does not move the bounds.
    let t = Datatype::structure(&[1, 1], &[0, 100], &[t, double()]).unwrap();
    assert_eq!(facts(&t), (12, -3, 6, 0, 108));
    // Resizing again replaces them; a negative extent counts downwards.
    let t = Datatype::resized(0, -8, &double()).unwrap();
    let three = Datatype::contiguous(3, &t).unwrap();
    assert_eq!(facts(&three), (24, -16, -8, -16, 8));
}

#[test]
fn pieces_of_count_zero_do_nothing() {
    let far = Datatype::hindexed(&[1, 0, 2], &[8, i64::MAX, 16], &int()).unwrap();
    assert_eq!(facts(&far), (12, 8, 24, 8, 24));
    let t = Datatype::structure(&[0, 1], &[-100, 4], &[double(), int()]).unwrap();
    assert_eq!(facts(&t), (4, 4, 8, 4, 8));
    assert_eq!(t.alignment(), 4);
    for empty in [
        Datatype::contiguous(0, &int()).unwrap(),
        Datatype::vector(0, 5, i64::MIN, &int()).unwrap(),
        Datatype::vector(7, 0, i64::MAX, &int()).unwrap(),
        Datatype::indexed(&[], &[], &int()).unwrap(),
        Datatype::structure(&[], &[], &[]).unwrap(),
        Datatype::contiguous(u64::MAX, &Datatype::contiguous(0, &int()).unwrap()).unwrap(),
    ] {
        assert_eq!(facts(&empty), (0, 0, 0, 0, 0));
    }
    // Markers without data are bounds all the same.
    let marks = Datatype::resized(2, 10, &Datatype::contiguous(0, &int()).unwrap()).unwrap();
    assert_eq!(facts(&Datatype::contiguous(3, &marks).unwrap()), (0, 2, 32, 0, 0));
}

#[test]
fn a_single_block_may_have_any_stride() {
    let t = Datatype::vector(1, 2, i64::MAX, &double()).unwrap();
    assert_eq!(facts(&t), (16, 0, 16, 0, 16));
}

#[test]
fn absolute_addresses_are_plain_displacements() {
    let base = 0x7fff_1234_5678_i64;
    let t = Datatype::hindexed(&[2, 1], &[base + 64, base], &double()).unwrap();
    assert_eq!(facts(&t), (24, base, base + 80, base, base + 80));
}

#[test]
fn subarray_has_the_bounds_of_the_full_array() {
    for (order, first) in [(Order::C, 12 + 2), (Order::Fortran, 1 + 2 * 3)] {
        let t = Datatype::subarray(&[3, 12], &[2, 4], &[1, 2], order, &int()).unwrap();
        assert_eq!((t.size(), t.lb(), t.ub()), (32, 0, 144));
        assert_eq!(t.true_lb(), 4 * first);
    }
}

#[test]
fn subarray_lists_elements_in_storage_order() {
    let (sizes, subsizes, starts) = ([4, 5, 3], [2, 3, 2], [1, 1, 0]);
    let spot = |i: u64, j: u64, k: u64| i64::try_from(((i * 5) + j) * 3 + k).unwrap();
    let mut wanted = Vec::new();
    for i in 1..3 {
        for j in 1..4 {
            wanted.extend((0..2).map(|k| spot(i, j, k)));
        }
    }
    let c = Datatype::subarray(&sizes, &subsizes, &starts, Order::C, &char()).unwrap();
    assert_eq!(displacements(&c), wanted);
    let reversed = |mut list: [u64; 3]| {
        list.reverse();
        list
    };
    let f = Datatype::subarray(
        &reversed(sizes),
        &reversed(subsizes),
        &reversed(starts),
        Order::Fortran,
        &char(),
    );
    assert_eq!(displacements(&f.unwrap()), wanted);
}

#[test]
fn types_cross_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Datatype>();
    shared::<crate::signature::Signature>();
    shared::<crate::layout::Layout>();
    let types: Vec<Datatype> = (0..4)
        .map(|_| std::thread::spawn(|| Datatype::from(Primitive::Aint)))
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(types.windows(2).all(|pair| pair[0] == pair[1]), "one object of each");
}

#[test]
fn depth_counts_constructors() {
    assert_eq!(int().depth(), 0);
    let t = Datatype::subarray(&[3, 3], &[2, 2], &[1, 1], Order::C, &int()).unwrap();
    assert_eq!(t.depth(), 1);
    assert!(t.lower().unwrap().depth() > 1);
    assert_eq!(Datatype::structure(&[1, 1], &[0, 99], &[int(), t]).unwrap().depth(), 2);
}

#[test]
fn predefined_types_are_single_objects() {
    assert_eq!(int(), int());
    assert_ne!(int(), double());
    for primitive in Primitive::ALL {
        let t = Datatype::from(primitive);
        assert_eq!(t.size(), primitive.size_bytes());
        assert_eq!(u64::try_from(t.extent()), Ok(primitive.extent_bytes()));
    }
}

#[test]
fn a_long_list_is_copied_once_and_shared_by_clones() {
    let displacements: Vec<i64> = (0..1_000_000).map(|i| 2 * i).collect();
    let t = Datatype::indexed_block(1, &displacements, &int()).unwrap();
    let list = |t: &Datatype| match t.contents() {
        Contents::IndexedBlock { displacements, .. } => displacements.as_ptr(),
        _ => unreachable!("made by indexed_block"),
    };
    assert_eq!(list(&t), list(&t.clone()));
    assert_eq!(t.signature().elements(), 1_000_000);
}

#[test]
fn random_types_have_the_bounds_of_their_typemaps() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    for nth in 0..4000 {
        let (t, map) = small(&mut rng);
        let wanted = (map.size(), map.lb(), map.ub(), map.true_lb(), map.true_ub());
        assert_eq!(facts(&t), wanted, "seed {seed}, type {nth}: {t:?}");
        if let Some(lowered) = t.lower() {
            assert_eq!(facts(&lowered), facts(&t), "seed {seed}, type {nth}: {t:?}");
        }
    }
}

#[test]
fn random_types_can_be_taken_apart_and_rebuilt() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut previous = small(&mut rng);
    for nth in 0..2000 {
        let (t, map) = small(&mut rng);
        let again = rebuild(&t).unwrap();
        assert!(again.same_structure(&t), "seed {seed}, type {nth}: {t:?}");
        assert_eq!((again.envelope(), facts(&again)), (t.envelope(), facts(&t)));
        // Differing typemaps mean differing structures.
        let differs = map != previous.1;
        assert!(!differs || !t.same_structure(&previous.0), "seed {seed}, type {nth}");
        previous = (t, map);
    }
}

#[test]
fn envelopes_count_as_mpi_does() {
    let counted = |t: Result<Datatype, TypeError>| {
        let e = t.unwrap().envelope();
        (e.integers, e.addresses, e.datatypes)
    };
    let old = &int();
    assert_eq!(counted(Ok(int())), (0, 0, 0));
    assert_eq!(counted(old.dup()), (0, 0, 1));
    assert_eq!(counted(Datatype::contiguous(3, old)), (1, 0, 1));
    assert_eq!(counted(Datatype::vector(3, 1, 2, old)), (3, 0, 1));
    assert_eq!(counted(Datatype::hvector(3, 1, 2, old)), (2, 1, 1));
    assert_eq!(counted(Datatype::indexed(&[1, 2], &[0, 4], old)), (5, 0, 1));
    assert_eq!(counted(Datatype::hindexed(&[1, 2], &[0, 4], old)), (3, 2, 1));
    assert_eq!(counted(Datatype::indexed_block(1, &[0, 4], old)), (4, 0, 1));
    assert_eq!(counted(Datatype::hindexed_block(1, &[0, 4], old)), (2, 2, 1));
    let pair = [int(), double()];
    assert_eq!(counted(Datatype::structure(&[1, 1], &[0, 8], &pair)), (3, 2, 2));
    let sub = Datatype::subarray(&[4, 4], &[2, 2], &[0, 0], Order::C, old);
    assert_eq!(counted(sub), (8, 0, 1));
    let block = [Distribution::Block; 2];
    let share = Datatype::darray(4, 0, &[4, 4], &block, &[None; 2], &[2, 2], Order::C, old);
    assert_eq!(counted(share), (12, 0, 1));
    assert_eq!(counted(Datatype::resized(0, 8, old)), (0, 2, 1));
}

#[test]
fn shared_types_are_compared_once() {
    let tower = || {
        let mut t = Datatype::contiguous(1, &char()).unwrap();
        for _ in 0..50 {
            t = Datatype::structure(&[1, 1], &[0, 0], &[t.clone(), t]).unwrap();
        }
        t
    };
    assert!(tower().same_structure(&tower()));
    assert_eq!(tower().signature().elements(), 1 << 50);
}
