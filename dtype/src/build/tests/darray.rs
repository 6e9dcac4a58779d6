//! Distributed arrays: the shares of all ranks make up the array.

use super::*;

/// Displacements of every rank's share of an array of chars.
fn shares(
    gsizes: &[u64],
    distribs: &[Distribution],
    dargs: &[Option<u64>],
    psizes: &[u64],
    order: Order,
) -> Vec<Vec<i64>> {
    let size = psizes.iter().product();
    let share = |rank| {
        let t = Datatype::darray(size, rank, gsizes, distribs, dargs, psizes, order, &char());
        let t = t.unwrap();
        assert_eq!(t.extent(), gsizes.iter().product::<u64>() as i64);
        // The tree it stands for, written out, not the definition it is tested against.
        displacements(&t.lower().unwrap())
    };
    (0..size).map(share).collect()
}

#[test]
fn shares_partition_the_array() {
    use Distribution::{Block, Cyclic, None as Whole};
    type Case = (&'static [u64], &'static [Distribution], &'static [Option<u64>], &'static [u64]);
    let cases: [Case; 6] = [
        (&[10], &[Block], &[None], &[4]),
        (&[10], &[Cyclic], &[Some(3)], &[2]),
        (&[7, 9], &[Cyclic, Block], &[Some(2), None], &[3, 2]),
        (&[5, 4, 6], &[Block, Whole, Cyclic], &[None; 3], &[2, 1, 3]),
        (&[3], &[Cyclic], &[None], &[5]),
        (&[4], &[Cyclic], &[Some(u64::MAX)], &[2]),
    ];
    for (gsizes, distribs, dargs, psizes) in cases {
        for order in [Order::C, Order::Fortran] {
            let shares = shares(gsizes, distribs, dargs, psizes, order);
            for share in &shares {
                assert!(share.is_sorted(), "storage order");
            }
            let mut all = shares.concat();
            all.sort_unstable();
            let total = gsizes.iter().product::<u64>() as i64;
            assert!(all.into_iter().eq(0..total), "{gsizes:?} {distribs:?}");
        }
    }
}

#[test]
fn ranks_are_row_major_in_either_order() {
    let block = [Distribution::Block; 2];
    let shares = |order| shares(&[2, 3], &block, &[None; 2], &[2, 3], order);
    assert_eq!(shares(Order::C).concat(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(shares(Order::Fortran).concat(), [0, 2, 4, 1, 3, 5]);
}

#[test]
fn lowered_trees_have_the_typemap_of_the_definition() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let mut compared = 0;
    while compared < 2000 {
        let (t, wanted) = small(&mut rng);
        if let Some(lowered) = t.lower() {
            let made = Typemap::of(&lowered).unwrap();
            assert_eq!(made.entries(), wanted.entries(), "seed {seed}: {t:?}");
            compared += 1;
        }
    }
}

#[test]
fn a_share_is_small_however_large_the_array() {
    let cyclic = [Distribution::Cyclic; 3];
    let n = 1 << 20;
    let (gsizes, dargs) = ([n, n, n], [Some(3), None, Some(7)]);
    let t = Datatype::darray(8, 5, &gsizes, &cyclic, &dargs, &[2; 3], Order::C, &char()).unwrap();
    assert!(t.lower().unwrap().depth() <= 3 * 3 + 1);
}
