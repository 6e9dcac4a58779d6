//! Illegal arguments: each is refused, and the culprit is named.

use super::*;
use crate::error::Problem;
use crate::limits::MAX_DEPTH;

fn message(made: Result<Datatype, TypeError>) -> String {
    made.unwrap_err().to_string()
}

#[test]
fn lists_must_go_together() {
    let t = &int();
    assert_eq!(
        message(Datatype::indexed(&[1, 2], &[0], t)),
        "indexed: displacements has 1 entries, but blocklengths has 2"
    );
    assert!(Datatype::hindexed(&[1], &[0, 1], t).is_err());
    assert!(Datatype::structure(&[1], &[0, 1], &[int()]).is_err());
    assert_eq!(
        message(Datatype::structure(&[1, 1], &[0, 1], &[int()])),
        "structure: types has 1 entries, but blocklengths has 2"
    );
    assert!(Datatype::subarray(&[1, 1], &[1], &[0, 0], Order::C, t).is_err());
    assert!(Datatype::subarray(&[1], &[1], &[0, 0], Order::C, t).is_err());
}

#[test]
fn subarrays_stay_inside() {
    let sub = |sizes: &[u64], subsizes: &[u64], starts: &[u64]| {
        message(Datatype::subarray(sizes, subsizes, starts, Order::C, &int()))
    };
    assert_eq!(sub(&[], &[], &[]), "subarray: sizes is empty");
    assert_eq!(sub(&[4, 0], &[1, 1], &[0, 0]), "subarray: sizes[1] is 0, less than 1");
    assert_eq!(sub(&[4], &[0], &[0]), "subarray: subsizes[0] is 0, less than 1");
    assert_eq!(sub(&[4], &[5], &[0]), "subarray: subsizes[0] is 5, more than 4");
    assert_eq!(sub(&[9, 4], &[9, 3], &[0, 2]), "subarray: starts[1] is 2, more than 1");
    assert_eq!(
        sub(&[4], &[1], &[u64::MAX]),
        format!("subarray: starts[0] is {}, more than 3", u64::MAX)
    );
    let huge = u64::MAX;
    assert_eq!(
        sub(&[huge, 2], &[1, 1], &[0, 0]),
        "subarray: the extent or a bound overflows 64 bits because of sizes"
    );
}

#[test]
fn grids_must_fit() {
    use Distribution::{Block, Cyclic, None as Whole};
    let message = |size, rank, gsize, distrib, darg, psize| {
        let made = Datatype::darray(
            size,
            rank,
            &[gsize, 2],
            &[distrib, Block],
            &[darg, None],
            &[psize, 1],
            Order::C,
            &int(),
        );
        made.map_or_else(|error| error.to_string(), |_| "legal".into())
    };
    assert_eq!(message(4, 3, 10, Block, None, 4), "legal");
    assert_eq!(message(0, 0, 10, Block, None, 4), "darray: size is 0, less than 1");
    assert_eq!(message(4, 4, 10, Block, None, 4), "darray: rank is 4, more than 3");
    assert_eq!(message(4, 0, 0, Block, None, 4), "darray: gsizes[0] is 0, less than 1");
    assert_eq!(message(4, 0, 10, Block, None, 0), "darray: psizes[0] is 0, less than 1");
    assert_eq!(message(4, 0, 10, Block, None, 5), "darray: psizes multiplies to 5, but must to 4");
    assert_eq!(message(4, 0, 10, Block, Some(2), 4), "darray: dargs[0] is 2, less than 3");
    assert_eq!(message(4, 0, 10, Cyclic, Some(0), 4), "darray: dargs[0] is 0, less than 1");
    assert_eq!(message(4, 0, 10, Whole, None, 4), "darray: psizes[0] is 4, but must be 1");
    assert_eq!(message(1, 0, 10, Whole, Some(0), 1), "legal");
    assert_eq!(
        message(1, 0, u64::MAX, Block, None, 1),
        "darray: a displacement overflows 64 bits because of gsizes"
    );
    let none = Datatype::darray(1, 0, &[], &[], &[], &[], Order::C, &int());
    let empty = TypeError::argument(Combiner::Darray, Argument::whole("gsizes"), Problem::Empty);
    assert_eq!(none.unwrap_err(), empty);
    // A product that overflows must not pass for the largest size.
    let (huge, half) = (u64::MAX, 1 << 33);
    let grid = [half, half];
    let blocks = [Block; 2];
    let made = Datatype::darray(huge, 0, &grid, &blocks, &[None; 2], &grid, Order::C, &char());
    let product = Problem::Product { product: 1 << 66, required: huge };
    let psizes = Argument::whole("psizes");
    assert_eq!(made.unwrap_err(), TypeError::argument(Combiner::Darray, psizes, product));
    let short = Datatype::darray(1, 0, &[2, 2], &[Block], &[None; 2], &[1, 1], Order::C, &int());
    assert!(matches!(short, Err(TypeError::Length { argument: "distribs", .. })));
}

#[test]
fn overflow_names_quantity_and_argument() {
    let culprit = |made: Result<Datatype, TypeError>| match made.unwrap_err() {
        TypeError::Overflow { quantity, argument, .. } => (quantity, argument.to_string()),
        other => panic!("{other}"),
    };
    let wide = |quantity, name: &str| (quantity, name.to_owned());
    let t = &double();
    let zero = &Datatype::resized(0, 0, t).unwrap();
    assert_eq!(culprit(Datatype::contiguous(1 << 60, t)), wide(Quantity::Bounds, "count"));
    assert_eq!(culprit(Datatype::contiguous(1 << 61, zero)), wide(Quantity::Size, "count"));
    assert_eq!(culprit(Datatype::contiguous(u64::MAX, t)), wide(Quantity::Displacement, "count"));
    assert_eq!(
        culprit(Datatype::vector(3, 1, i64::MAX, t)),
        wide(Quantity::Displacement, "stride")
    );
    assert_eq!(
        culprit(Datatype::vector(u64::MAX, u64::MAX, i64::MIN, t)),
        wide(Quantity::Displacement, "stride")
    );
    assert_eq!(
        culprit(Datatype::hvector(2, 1, i64::MAX, t)),
        wide(Quantity::Bounds, "stride_bytes")
    );
    assert_eq!(
        culprit(Datatype::indexed(&[1, 1], &[0, 1 << 60], t)),
        wide(Quantity::Displacement, "displacements[1]")
    );
    assert_eq!(
        culprit(Datatype::hindexed(&[1, 1], &[i64::MIN, i64::MAX - 8], t)),
        wide(Quantity::Bounds, "displacements_bytes")
    );
    assert_eq!(
        culprit(Datatype::hindexed_block(u64::MAX, &[0], zero)),
        wide(Quantity::Size, "blocklength")
    );
    assert_eq!(
        culprit(Datatype::structure(&[1, 1], &[i64::MIN, i64::MAX - 8], &[double(), double()])),
        wide(Quantity::Bounds, "displacements_bytes")
    );
    let half = Datatype::contiguous(1 << 60, zero).unwrap();
    assert_eq!(
        culprit(Datatype::structure(&[1, 1], &[0, 0], &[half.clone(), half])),
        wide(Quantity::Size, "blocklengths[1]")
    );
    assert_eq!(culprit(Datatype::resized(i64::MAX, 1, t)), wide(Quantity::Bounds, "extent"));
}

#[test]
fn depth_is_bounded_and_drops_safely() {
    let mut t = int();
    for _ in 0..MAX_DEPTH {
        t = Datatype::contiguous(1, &t).unwrap();
    }
    assert_eq!(t.depth(), MAX_DEPTH);
    assert_eq!(t.signature().elements(), 1);
    let deeper =
        TypeError::TooDeep { constructor: Combiner::Dup, depth: MAX_DEPTH + 1, limit: MAX_DEPTH };
    assert_eq!(t.dup().unwrap_err(), deeper);
    // A subarray counts as the tree that it stands for.
    let many = vec![1; MAX_DEPTH + 1];
    let corner = vec![0; MAX_DEPTH + 1];
    let made = Datatype::subarray(&many, &many, &corner, Order::C, &int());
    assert!(matches!(
        made.unwrap_err(),
        TypeError::TooDeep { constructor: Combiner::Subarray, .. }
    ));
}
