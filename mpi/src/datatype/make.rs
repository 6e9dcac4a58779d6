//! Constructors (MPI 4.1 §5.1.2 to §5.1.4, §5.1.6). Each remembers its arguments, as it got them.

use super::contents::Call;
use super::{Type, TypeObject, insert};
use crate::arg::HandleOut;
use crate::call::{Done, Fail};
use crate::face;
use gapless::{Datatype, Distribution, Order};
use gapless_dtype::TypeError;
use std::ffi::c_int;
use std::sync::Arc;

/// Where the handle of a new datatype goes, and whether a form for large counts makes it.
#[derive(Clone, Copy)]
pub(crate) struct NewType {
    at: HandleOut,
    large: bool,
}

impl NewType {
    pub(crate) fn new(at: HandleOut, large: bool) -> NewType {
        NewType { at, large }
    }

    /// The call that makes it.
    fn call(self, combiner: c_int) -> Call {
        Call::new(combiner, self.large)
    }

    fn give(self, made: Result<Datatype, TypeError>, call: Call) -> Done {
        self.at.set(insert(TypeObject::new(made?, Arc::new(call)))?);
        Ok(())
    }
}

pub(crate) fn type_contiguous(count: u64, old: Type, new: NewType) -> Done {
    let call = new.call(face::COMBINER_CONTIGUOUS).counts(&[count]).of(&old);
    new.give(Datatype::contiguous(count, &old.datatype), call)
}

pub(crate) fn type_vector(count: u64, len: u64, stride: i64, old: Type, new: NewType) -> Done {
    let call = new.call(face::COMBINER_VECTOR).counts(&[count, len]).numbers(&[stride]).of(&old);
    new.give(Datatype::vector(count, len, stride, &old.datatype), call)
}

pub(crate) fn type_create_hvector(
    count: u64,
    len: u64,
    stride: i64,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_HVECTOR).counts(&[count, len]).addresses(&[stride]);
    new.give(Datatype::hvector(count, len, stride, &old.datatype), call.of(&old))
}

/// How many entries an array has, as the count that it came with.
fn count<T>(array: &[T]) -> u64 {
    array.len() as u64
}

pub(crate) fn type_indexed(
    lens: Vec<u64>,
    displacements: Vec<i64>,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_INDEXED).counts(&[count(&lens)]).counts(&lens);
    let made = Datatype::indexed(&lens, &displacements, &old.datatype);
    new.give(made, call.numbers(&displacements).of(&old))
}

pub(crate) fn type_create_hindexed(
    lens: Vec<u64>,
    displacements: Vec<i64>,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_HINDEXED).counts(&[count(&lens)]).counts(&lens);
    let made = Datatype::hindexed(&lens, &displacements, &old.datatype);
    new.give(made, call.addresses(&displacements).of(&old))
}

pub(crate) fn type_create_indexed_block(
    len: u64,
    displacements: Vec<i64>,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_INDEXED_BLOCK).counts(&[count(&displacements), len]);
    let made = Datatype::indexed_block(len, &displacements, &old.datatype);
    new.give(made, call.numbers(&displacements).of(&old))
}

pub(crate) fn type_create_hindexed_block(
    len: u64,
    displacements: Vec<i64>,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_HINDEXED_BLOCK).counts(&[count(&displacements), len]);
    let made = Datatype::hindexed_block(len, &displacements, &old.datatype);
    new.give(made, call.addresses(&displacements).of(&old))
}

pub(crate) fn type_create_struct(
    lens: Vec<u64>,
    displacements: Vec<i64>,
    olds: Vec<Type>,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_STRUCT).counts(&[count(&lens)]).counts(&lens);
    let call = olds.iter().fold(call.addresses(&displacements), Call::of);
    let datatypes: Vec<Datatype> = olds.iter().map(|old| old.datatype.clone()).collect();
    new.give(Datatype::structure(&lens, &displacements, &datatypes), call)
}

pub(crate) fn type_create_resized(old: Type, lb: i64, extent: i64, new: NewType) -> Done {
    let call = new.call(face::COMBINER_RESIZED).addresses(&[lb, extent]).of(&old);
    new.give(Datatype::resized(lb, extent, &old.datatype), call)
}

fn order_of(order: c_int) -> Done<Order> {
    match order {
        face::ORDER_C => Ok(Order::C),
        face::ORDER_FORTRAN => Ok(Order::Fortran),
        _ => Err(Fail::new(face::ERR_ARG, format!("order is {order}"))),
    }
}

/// A number of dimensions, as C has it.
fn dimensions<T>(array: &[T]) -> Done<c_int> {
    match crate::arg::int(array.len()) {
        0 => Err(Fail::new(face::ERR_ARG, "ndims is 0")),
        dimensions => Ok(dimensions),
    }
}

pub(crate) fn type_create_subarray(
    sizes: Vec<u64>,
    subsizes: Vec<u64>,
    starts: Vec<u64>,
    order: c_int,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_SUBARRAY).integers(&[dimensions(&sizes)?]);
    let call = call.counts(&sizes).counts(&subsizes).counts(&starts).integers(&[order]);
    let made = Datatype::subarray(&sizes, &subsizes, &starts, order_of(order)?, &old.datatype);
    new.give(made, call.of(&old))
}

pub(crate) fn type_create_darray(
    size: c_int,
    rank: c_int,
    gsizes: Vec<u64>,
    distribs: &[c_int],
    dargs: &[c_int],
    psizes: &[c_int],
    order: c_int,
    old: Type,
    new: NewType,
) -> Done {
    let call = new.call(face::COMBINER_DARRAY).integers(&[size, rank, dimensions(&gsizes)?]);
    let call = call.counts(&gsizes).integers(distribs).integers(dargs);
    let call = call.integers(psizes).integers(&[order]).of(&old);
    let wrong = |name: &str, value: c_int| Fail::new(face::ERR_ARG, format!("{name} is {value}"));
    let natural = |name, value| u64::try_from(value).map_err(|_| wrong(name, value));
    let way = |way: &c_int| match *way {
        face::DISTRIBUTE_BLOCK => Ok(Distribution::Block),
        face::DISTRIBUTE_CYCLIC => Ok(Distribution::Cyclic),
        face::DISTRIBUTE_NONE => Ok(Distribution::None),
        other => Err(wrong("array_of_distribs", other)),
    };
    let ways = distribs.iter().map(way).collect::<Done<Vec<_>>>()?;
    let darg = |(way, darg): (&Distribution, &c_int)| match (way, *darg) {
        (Distribution::None, _) | (_, face::DISTRIBUTE_DFLT_DARG) => Ok(None),
        (_, darg) => natural("array_of_dargs", darg).map(Some),
    };
    let dargs = ways.iter().zip(dargs).map(darg).collect::<Done<Vec<_>>>()?;
    let psizes = psizes.iter().map(|size| natural("array_of_psizes", *size));
    let psizes = psizes.collect::<Done<Vec<_>>>()?;
    let (size, rank) = (natural("size", size)?, natural("rank", rank)?);
    let (order, old) = (order_of(order)?, &old.datatype);
    let made = Datatype::darray(size, rank, &gsizes, &ways, &dargs, &psizes, order, old);
    new.give(made, call)
}
