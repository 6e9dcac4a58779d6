//! Constructors (MPI 4.1 §5.1.2 to §5.1.4, §5.1.6). Each remembers its arguments, as it got them.

use super::contents::Call;
use super::{Type, TypeObject, insert};
use crate::arg::{self, HandleOut, Numbers};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use gapless::{Datatype, Distribution, Order};
use gapless_dtype::TypeError;
use std::ffi::c_int;
use std::sync::Arc;

fn give(newtype: HandleOut, made: Result<Datatype, TypeError>, call: Call) -> Done {
    newtype.set(insert(TypeObject::new(made?, Arc::new(call)))?);
    Ok(())
}

/// A count as the length of an array.
fn len(count: u64) -> Done<usize> {
    let too_many = |_| Fail::new(face::ERR_COUNT, "no array is so long");
    usize::try_from(count).map_err(too_many)
}

pub(crate) fn type_contiguous(count: u64, oldtype: Type, newtype: HandleOut, large: bool) -> Done {
    let call = Call::new(face::COMBINER_CONTIGUOUS, large).counts(&[count]).of(&oldtype);
    give(newtype, Datatype::contiguous(count, &oldtype.datatype), call)
}

pub(crate) fn type_vector(
    count: u64,
    blocklength: u64,
    stride: i64,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let call = Call::new(face::COMBINER_VECTOR, large).counts(&[count, blocklength]);
    let call = call.numbers(&[stride]).of(&oldtype);
    give(newtype, Datatype::vector(count, blocklength, stride, &oldtype.datatype), call)
}

pub(crate) fn type_create_hvector(
    count: u64,
    blocklength: u64,
    stride: i64,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let call = Call::new(face::COMBINER_HVECTOR, large).counts(&[count, blocklength]);
    let call = call.addresses(&[stride]).of(&oldtype);
    give(newtype, Datatype::hvector(count, blocklength, stride, &oldtype.datatype), call)
}

pub(crate) fn type_hvector(
    count: u64,
    blocklength: u64,
    stride: i64,
    oldtype: Type,
    newtype: HandleOut,
) -> Done {
    type_create_hvector(count, blocklength, stride, oldtype, newtype, false)
}

pub(crate) unsafe fn type_indexed(
    count: u64,
    blocklengths: Numbers,
    displacements: Numbers,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let n = len(count)?;
    // SAFETY: as the first page of the crate says.
    let blocklengths = unsafe { blocklengths.counts(n, "array_of_blocklengths") }?;
    // SAFETY: as above.
    let displacements = unsafe { displacements.read(n, "array_of_displacements") }?;
    let call = Call::new(face::COMBINER_INDEXED, large).counts(&[count]).counts(&blocklengths);
    let call = call.numbers(&displacements).of(&oldtype);
    give(newtype, Datatype::indexed(&blocklengths, &displacements, &oldtype.datatype), call)
}

pub(crate) unsafe fn type_create_hindexed(
    count: u64,
    blocklengths: Numbers,
    displacements: Numbers,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let n = len(count)?;
    // SAFETY: as the first page of the crate says.
    let blocklengths = unsafe { blocklengths.counts(n, "array_of_blocklengths") }?;
    // SAFETY: as above.
    let displacements = unsafe { displacements.read(n, "array_of_displacements") }?;
    let call = Call::new(face::COMBINER_HINDEXED, large).counts(&[count]).counts(&blocklengths);
    let call = call.addresses(&displacements).of(&oldtype);
    give(newtype, Datatype::hindexed(&blocklengths, &displacements, &oldtype.datatype), call)
}

pub(crate) unsafe fn type_hindexed(
    count: u64,
    blocklengths: *const c_int,
    displacements: Numbers,
    oldtype: Type,
    newtype: HandleOut,
) -> Done {
    let blocklengths = Numbers::small(blocklengths);
    // SAFETY: as the first page of the crate says.
    unsafe { type_create_hindexed(count, blocklengths, displacements, oldtype, newtype, false) }
}

pub(crate) unsafe fn type_create_indexed_block(
    count: u64,
    blocklength: u64,
    displacements: Numbers,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    // SAFETY: as the first page of the crate says.
    let displacements = unsafe { displacements.read(len(count)?, "array_of_displacements") }?;
    let call = Call::new(face::COMBINER_INDEXED_BLOCK, large).counts(&[count, blocklength]);
    let call = call.numbers(&displacements).of(&oldtype);
    give(newtype, Datatype::indexed_block(blocklength, &displacements, &oldtype.datatype), call)
}

pub(crate) unsafe fn type_create_hindexed_block(
    count: u64,
    blocklength: u64,
    displacements: Numbers,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    // SAFETY: as the first page of the crate says.
    let displacements = unsafe { displacements.read(len(count)?, "array_of_displacements") }?;
    let call = Call::new(face::COMBINER_HINDEXED_BLOCK, large).counts(&[count, blocklength]);
    let call = call.addresses(&displacements).of(&oldtype);
    give(newtype, Datatype::hindexed_block(blocklength, &displacements, &oldtype.datatype), call)
}

/// Datatypes of an array.
///
/// # Safety
/// The array is null, or has so many.
unsafe fn types(at: *const RawHandle, len: usize) -> Done<Vec<Type>> {
    const NAME: &str = "array_of_types";
    if len == 0 {
        return Ok(Vec::new());
    }
    arg::pointer(at.cast_mut(), NAME)?;
    // SAFETY: the caller's promise.
    let handles = unsafe { std::slice::from_raw_parts(at, len) };
    handles.iter().map(|handle| arg::datatype(*handle, NAME)).collect()
}

pub(crate) unsafe fn type_create_struct(
    count: u64,
    blocklengths: Numbers,
    displacements: Numbers,
    array_of_types: *const RawHandle,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let n = len(count)?;
    // SAFETY: as the first page of the crate says.
    let blocklengths = unsafe { blocklengths.counts(n, "array_of_blocklengths") }?;
    // SAFETY: as above.
    let displacements = unsafe { displacements.read(n, "array_of_displacements") }?;
    // SAFETY: as above.
    let olds = unsafe { types(array_of_types, n) }?;
    let call = Call::new(face::COMBINER_STRUCT, large).counts(&[count]).counts(&blocklengths);
    let call = olds.iter().fold(call.addresses(&displacements), Call::of);
    let datatypes: Vec<Datatype> = olds.iter().map(|old| old.datatype.clone()).collect();
    give(newtype, Datatype::structure(&blocklengths, &displacements, &datatypes), call)
}

pub(crate) unsafe fn type_struct(
    count: u64,
    blocklengths: *const c_int,
    displacements: Numbers,
    array_of_types: *const RawHandle,
    newtype: HandleOut,
) -> Done {
    let blocklengths = Numbers::small(blocklengths);
    // SAFETY: as the first page of the crate says.
    unsafe {
        type_create_struct(count, blocklengths, displacements, array_of_types, newtype, false)
    }
}

pub(crate) fn type_create_resized(
    oldtype: Type,
    lb: i64,
    extent: i64,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let call = Call::new(face::COMBINER_RESIZED, large).addresses(&[lb, extent]).of(&oldtype);
    give(newtype, Datatype::resized(lb, extent, &oldtype.datatype), call)
}

fn order_of(order: c_int) -> Done<Order> {
    match order {
        face::ORDER_C => Ok(Order::C),
        face::ORDER_FORTRAN => Ok(Order::Fortran),
        _ => Err(Fail::new(face::ERR_ARG, format!("order is {order}"))),
    }
}

fn dimensions(ndims: c_int) -> Done<usize> {
    let none = || Fail::new(face::ERR_ARG, format!("ndims is {ndims}"));
    usize::try_from(ndims).ok().filter(|n| *n > 0).ok_or_else(none)
}

pub(crate) unsafe fn type_create_subarray(
    ndims: c_int,
    sizes: Numbers,
    subsizes: Numbers,
    starts: Numbers,
    order: c_int,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let n = dimensions(ndims)?;
    // SAFETY: as the first page of the crate says.
    let sizes = unsafe { sizes.counts(n, "array_of_sizes") }?;
    // SAFETY: as above.
    let subsizes = unsafe { subsizes.counts(n, "array_of_subsizes") }?;
    // SAFETY: as above.
    let starts = unsafe { starts.counts(n, "array_of_starts") }?;
    let call = Call::new(face::COMBINER_SUBARRAY, large).integers(&[ndims]);
    let call = call.counts(&sizes).counts(&subsizes).counts(&starts).integers(&[order]);
    let order = order_of(order)?;
    let made = Datatype::subarray(&sizes, &subsizes, &starts, order, &oldtype.datatype);
    give(newtype, made, call.of(&oldtype))
}

pub(crate) unsafe fn type_create_darray(
    size: c_int,
    rank: c_int,
    ndims: c_int,
    gsizes: Numbers,
    distribs: *const c_int,
    dargs: *const c_int,
    psizes: *const c_int,
    order: c_int,
    oldtype: Type,
    newtype: HandleOut,
    large: bool,
) -> Done {
    let n = dimensions(ndims)?;
    let small = |numbers: *const c_int, name| {
        // SAFETY: as the first page of the crate says.
        let numbers = unsafe { Numbers::small(numbers).read(n, name) }?;
        let number = |number| c_int::try_from(number).unwrap_or(c_int::MAX);
        Ok::<Vec<c_int>, Fail>(numbers.into_iter().map(number).collect())
    };
    let distribs = small(distribs, "array_of_distribs")?;
    let dargs = small(dargs, "array_of_dargs")?;
    let psizes = small(psizes, "array_of_psizes")?;
    // SAFETY: as above.
    let gsizes = unsafe { gsizes.counts(n, "array_of_gsizes") }?;
    let call = Call::new(face::COMBINER_DARRAY, large).integers(&[size, rank, ndims]);
    let call = call.counts(&gsizes).integers(&distribs).integers(&dargs);
    let call = call.integers(&psizes).integers(&[order]).of(&oldtype);
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
    let dargs = ways.iter().zip(&dargs).map(darg).collect::<Done<Vec<_>>>()?;
    let psizes = psizes.iter().map(|size| natural("array_of_psizes", *size));
    let psizes = psizes.collect::<Done<Vec<_>>>()?;
    let (size, rank) = (natural("size", size)?, natural("rank", rank)?);
    let (order, old) = (order_of(order)?, &oldtype.datatype);
    let made = Datatype::darray(size, rank, &gsizes, &ways, &dargs, &psizes, order, old);
    give(newtype, made, call)
}
