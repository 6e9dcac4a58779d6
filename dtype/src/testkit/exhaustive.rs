//! Every small datatype: all constructors with all arguments from a small alphabet, nested twice,
//! and a third time with one canonical choice of arguments per constructor.
//!
//! The alphabet ([`over`] lists it in code, one function per constructor):
//!
//! | constructor | arguments |
//! |---|---|
//! | leaves | `MPI_SHORT`, `MPI_DOUBLE_INT` (12 bytes of data in 16) |
//! | contiguous | count 0, 1, 2 |
//! | dup | – |
//! | vector | count 0, 1, 2 × blocklength 0, 1, 2 × stride −2, 1, 3 |
//! | hvector | count 0, 2 × blocklength 1, 2 × stride −5, 0, 24 bytes |
//! | indexed | no block; one of length 0, 1, 2 at −2, 0, 1; two of lengths 0, 1, 2 each at (0, 2), (2, 0), (−1, 1), (0, 0) |
//! | hindexed | no block; one of length 1, 2 at −7, 32; two of lengths 1, 2 each at (0, 32), (32, 0), (−7, 9) |
//! | indexed_block | blocklength 0, 1, 2 × displacements `[]`, `[1]`, `[0, 2]`, `[2, 0]`, `[−1, 1]` |
//! | hindexed_block | blocklength 1, 2 × displacements `[]`, `[3]`, `[0, 40]`, `[40, 0]` |
//! | structure | no field; one of length 0, 1, 2 at −4, 8; two of lengths (1, 1), (2, 1), (0, 2) at (0, 64), (64, 0), (−8, 8), of types (old, old), (old, int), (int, old) |
//! | subarray | one axis: all places in sizes 1, 2, 3; two axes: all places in 2 × 2, both orders |
//! | darray | one axis of 3 and 4 over 1 and 2 processes, every rank: block, block(4), cyclic, cyclic(2); none; two axes 3 × 2 over 2 × 1 and 1 × 2, every rank: block and cyclic, both orders |
//! | resized | lb −4, 0, 3 × extent −8, 0, 5, 40 |
//!
//! Canonical arguments ([`canonical`]): two copies or blocks, one gap, ascending.

use crate::{Datatype, Distribution, Order, Primitive, TypeError};

type Types<'a> = &'a mut Vec<Datatype>;

/// The leaves of the set.
pub fn leaves() -> [Datatype; 2] {
    [Primitive::Short.into(), Primitive::DoubleInt.into()]
}

/// Every constructor with every choice of arguments from the alphabet, over `old`.
///
/// # Panics
/// If a constructor refuses arguments that MPI allows.
pub fn over(old: &Datatype) -> Vec<Datatype> {
    let mut types = Vec::new();
    let result = regular(old, &mut types)
        .and_then(|()| lists(old, &mut types))
        .and_then(|()| structures(old, &mut types))
        .and_then(|()| subarrays(old, &mut types))
        .and_then(|()| darrays(old, &mut types));
    result.expect("the alphabet is legal over every type of the set");
    types
}

/// One canonical type per constructor, over `old`.
///
/// # Panics
/// As [`over`].
pub fn canonical(old: &Datatype) -> Vec<Datatype> {
    let int = Primitive::Int.into();
    let dealt = [Distribution::Cyclic];
    let types: Result<Vec<_>, TypeError> = [
        Datatype::contiguous(2, old),
        old.dup(),
        Datatype::vector(2, 1, 2, old),
        Datatype::hvector(2, 1, 72, old),
        Datatype::indexed(&[1, 2], &[0, 2], old),
        Datatype::hindexed(&[1, 1], &[0, 80], old),
        Datatype::indexed_block(1, &[0, 3], old),
        Datatype::hindexed_block(1, &[0, 88], old),
        Datatype::structure(&[1, 1], &[0, 96], &[old.clone(), int]),
        Datatype::subarray(&[2, 2], &[2, 1], &[0, 1], Order::C, old),
        Datatype::darray(2, 1, &[4], &dealt, &[None], &[2], Order::C, old),
        Datatype::resized(0, 104, old),
    ]
    .into_iter()
    .collect();
    types.expect("the canonical arguments are legal over every type of the set")
}

/// The types of depth 1, each the root of one unit of work for [`visit_unit`].
pub fn units() -> Vec<Datatype> {
    leaves().iter().flat_map(over).collect()
}

/// Visits a type of depth 1, everything over it of depth 2, and over each of those the canonical
/// types of depth 3. Returns how many it visited.
pub fn visit_unit(unit: &Datatype, mut visit: impl FnMut(&Datatype)) -> u64 {
    let mut visited = 1;
    visit(unit);
    for second in over(unit) {
        visit(&second);
        visited += 1;
        for third in canonical(&second) {
            visit(&third);
            visited += 1;
        }
    }
    visited
}

fn regular(old: &Datatype, types: Types<'_>) -> Result<(), TypeError> {
    types.push(old.dup()?);
    for count in [0, 1, 2] {
        types.push(Datatype::contiguous(count, old)?);
        for length in [0, 1, 2] {
            for stride in [-2, 1, 3] {
                types.push(Datatype::vector(count, length, stride, old)?);
            }
        }
    }
    for count in [0, 2] {
        for length in [1, 2] {
            for stride in [-5, 0, 24] {
                types.push(Datatype::hvector(count, length, stride, old)?);
            }
        }
    }
    for lb in [-4, 0, 3] {
        for extent in [-8, 0, 5, 40] {
            types.push(Datatype::resized(lb, extent, old)?);
        }
    }
    Ok(())
}

fn lists(old: &Datatype, types: Types<'_>) -> Result<(), TypeError> {
    types.push(Datatype::indexed(&[], &[], old)?);
    types.push(Datatype::hindexed(&[], &[], old)?);
    for first in [0, 1, 2] {
        for at in [-2, 0, 1] {
            types.push(Datatype::indexed(&[first], &[at], old)?);
        }
        for second in [0, 1, 2] {
            for at in [[0, 2], [2, 0], [-1, 1], [0, 0]] {
                types.push(Datatype::indexed(&[first, second], &at, old)?);
            }
        }
        for at in [&[][..], &[1], &[0, 2], &[2, 0], &[-1, 1]] {
            types.push(Datatype::indexed_block(first, at, old)?);
        }
    }
    for first in [1, 2] {
        for at in [-7, 32] {
            types.push(Datatype::hindexed(&[first], &[at], old)?);
        }
        for second in [1, 2] {
            for at in [[0, 32], [32, 0], [-7, 9]] {
                types.push(Datatype::hindexed(&[first, second], &at, old)?);
            }
        }
        for at in [&[][..], &[3], &[0, 40], &[40, 0]] {
            types.push(Datatype::hindexed_block(first, at, old)?);
        }
    }
    Ok(())
}

fn structures(old: &Datatype, types: Types<'_>) -> Result<(), TypeError> {
    let (one, int) = (|| old.clone(), || Datatype::from(Primitive::Int));
    types.push(Datatype::structure(&[], &[], &[])?);
    for length in [0, 1, 2] {
        for at in [-4, 8] {
            types.push(Datatype::structure(&[length], &[at], &[one()])?);
        }
    }
    for lengths in [[1, 1], [2, 1], [0, 2]] {
        for at in [[0, 64], [64, 0], [-8, 8]] {
            for fields in [[one(), one()], [one(), int()], [int(), one()]] {
                types.push(Datatype::structure(&lengths, &at, &fields)?);
            }
        }
    }
    Ok(())
}

/// All (size, subsize, start) of one axis.
fn places(size: u64) -> Vec<(u64, u64, u64)> {
    let starts = |subsize| (0..=size - subsize).map(move |start| (size, subsize, start));
    (1..=size).flat_map(starts).collect()
}

fn subarrays(old: &Datatype, types: Types<'_>) -> Result<(), TypeError> {
    for (size, subsize, start) in (1..=3).flat_map(places) {
        types.push(Datatype::subarray(&[size], &[subsize], &[start], Order::C, old)?);
    }
    for (size, subsize, start) in places(2) {
        for (size2, subsize2, start2) in places(2) {
            for order in [Order::C, Order::Fortran] {
                let (sizes, starts) = ([size, size2], [start, start2]);
                types.push(Datatype::subarray(&sizes, &[subsize, subsize2], &starts, order, old)?);
            }
        }
    }
    Ok(())
}

fn darrays(old: &Datatype, types: Types<'_>) -> Result<(), TypeError> {
    use Distribution::{Block, Cyclic, None as Whole};
    let order = Order::C;
    for gsize in [3, 4] {
        for procs in [1, 2] {
            for rank in 0..procs {
                for (distrib, darg) in
                    [(Block, None), (Block, Some(4)), (Cyclic, None), (Cyclic, Some(2))]
                {
                    types.push(Datatype::darray(
                        procs,
                        rank,
                        &[gsize],
                        &[distrib],
                        &[darg],
                        &[procs],
                        order,
                        old,
                    )?);
                }
            }
        }
        types.push(Datatype::darray(1, 0, &[gsize], &[Whole], &[None], &[1], order, old)?);
    }
    for psizes in [[2, 1], [1, 2]] {
        for rank in [0, 1] {
            for order in [Order::C, Order::Fortran] {
                let dealt = [Block, Cyclic];
                types.push(Datatype::darray(
                    2,
                    rank,
                    &[3, 2],
                    &dealt,
                    &[None; 2],
                    &psizes,
                    order,
                    old,
                )?);
            }
        }
    }
    Ok(())
}
