//! Of one rank, and what is refused. `tests/tests/reshards.rs` has more ranks.

use crate::{Error, PmlError, Region, Space, World};
use gapless_coll::reshard::{Placement, Reshard, Sharding};
use gapless_dtype::{Datatype, Equivalence, Primitive};

fn whole(axes: &[usize]) -> Sharding {
    Sharding::new(&[1], [0], &[Placement::Replicate]).unwrap().in_order(axes)
}

fn transpose(element: &Datatype) -> Reshard {
    Reshard::new(&[3, 4], element, &whole(&[0, 1]), &whole(&[1, 0])).unwrap()
}

#[test]
fn one_rank_transposes_and_leaves_the_rest() {
    let world = World::init().unwrap();
    let rows: Vec<f64> = (0..12).map(f64::from).collect();
    let mut columns = vec![-1.0; 13];
    let reshard = transpose(&f64::datatype());
    let mut plan = world.comm().reshard_plan(&reshard, &rows, &columns, 7).unwrap();
    assert_eq!((plan.len(), plan.is_empty(), plan.sent_bytes()), (2, false, 96));
    for turn in 0..3 {
        // Other arrays of the same kind.
        let rows: Vec<f64> = rows.iter().map(|it| it + f64::from(turn)).collect();
        match turn {
            0 => plan.exchange(&rows, &mut columns).unwrap(),
            1 => plan.exchange_while(&rows[..], &mut columns[..], || ()).unwrap(),
            _ => {
                let mut boxed = columns.clone().into_boxed_slice();
                plan.exchange(&rows, &mut boxed[..]).unwrap();
                columns.copy_from_slice(&boxed);
            }
        }
        let due = |at: usize| rows[at % 3 * 4 + at / 3];
        assert!((0..12).all(|at| columns[at] == due(at)) && columns[12] == -1.0, "{columns:?}");
    }
    let other = plan.exchange(&rows[1..], &mut columns).unwrap_err();
    assert!(matches!(other, Error::OtherArray { .. }), "{other}");
    let other = plan.exchange(&rows, &mut columns[1..]).unwrap_err();
    assert!(matches!(other, Error::OtherArray { .. }), "{other}");
    world.finalize().unwrap();
    assert!(matches!(plan.exchange(&rows, &mut columns), Err(Error::Finalized)));
}

#[test]
fn regions_are_arrays_too() {
    let world = World::init().unwrap();
    let (rows, mut columns) = ((0..12u8).collect::<Vec<_>>(), [99u8; 12]);
    let region = |at: *const u8| Region::new(Space::Host, at.expose_provenance() as u64, 0, 12);
    let (source, target) = (region(rows.as_ptr()), region(columns.as_mut_ptr()));
    let comm = world.comm();
    let mut plan =
        comm.reshard_plan_regions(&transpose(&u8::datatype()), source, target, 0).unwrap();
    // SAFETY: both arrays live, and nothing else touches them meanwhile.
    unsafe { plan.exchange_regions(source, target) }.unwrap();
    assert_eq!(columns, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
    world.finalize().unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let world = World::init().unwrap();
    let comm = world.comm();
    let array = [0f64; 12];
    let reshard = transpose(&f64::datatype());
    let refused = |result: Result<super::ReshardPlan, Error>| result.unwrap_err();
    let short = refused(comm.reshard_plan(&reshard, &array[1..], &array, 0));
    assert!(matches!(short, Error::Buffer(_)), "{short}");
    let short = refused(comm.reshard_plan(&reshard, &array, &array[1..], 0));
    assert!(matches!(short, Error::Buffer(_)), "{short}");
    let ints = transpose(&Datatype::from(Primitive::Int64));
    assert!(matches!(refused(comm.reshard_plan(&ints, &array, &array, 0)), Error::Fit(_)));
    let message = |error: Error| match error {
        Error::Message(failure) => failure.error,
        other => panic!("{other}"),
    };
    let tag = message(refused(comm.reshard_plan(&reshard, &array, &array, -1)));
    assert_eq!(tag, PmlError::InvalidTag { tag: -1 });
    let far = Sharding::new(&[1], [5], &[Placement::Replicate]).unwrap();
    let far = Reshard::new(&[12], &f64::datatype(), &whole(&[0]), &far).unwrap();
    let rank = message(refused(comm.reshard_plan(&far, &array, &[0f64; 0], 0)));
    assert!(matches!(rank, PmlError::InvalidRank { rank: 5, size: 1, .. }), "{rank}");
    let nowhere = Region::new(Space::Device { kind: "fake", device: 9 }, 64, 0, 96);
    let engine = message(refused(comm.reshard_plan_regions(&reshard, nowhere, nowhere, 0)));
    assert!(matches!(engine, PmlError::NoEngine { .. }), "{engine}");
    world.finalize().unwrap();
}
