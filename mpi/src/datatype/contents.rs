//! The call that made a datatype, given back (MPI 4.1 §5.1.13).
//!
//! What came as an ordinary count is an integer, what came as `MPI_Aint` an address; of a call with large counts, both are
//! large counts. Predefined datatypes come back as their handles, derived ones as new handles.

use super::{Type, TypeObject, insert};
use crate::arg::{self, Out, Room};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use gapless::Datatype;
use std::ffi::c_int;
use std::sync::Arc;

/// A call of a constructor, as its arguments were.
#[derive(Debug)]
pub(super) struct Call {
    combiner: c_int,
    large: bool,
    integers: Vec<c_int>,
    addresses: Vec<i64>,
    counts: Vec<i64>,
    types: Vec<Old>,
}

/// A datatype that another was made of.
#[derive(Debug)]
enum Old {
    Predefined(RawHandle),
    Derived(Datatype, Arc<Call>),
}

impl Call {
    pub(super) fn new(combiner: c_int, large: bool) -> Call {
        let (integers, addresses, counts, types) = Default::default();
        Call { combiner, large, integers, addresses, counts, types }
    }

    /// Whether programs cannot free such a datatype.
    pub(super) fn is_predefined(&self) -> bool {
        matches!(
            self.combiner,
            face::COMBINER_NAMED
                | face::COMBINER_F90_REAL
                | face::COMBINER_F90_COMPLEX
                | face::COMBINER_F90_INTEGER
                | face::COMBINER_VALUE_INDEX
        )
    }

    /// Whether the datatype has a name in MPI.
    pub(super) fn is_named(&self) -> bool {
        self.combiner == face::COMBINER_NAMED
    }

    /// Arguments that are `int` in any form.
    pub(super) fn integers(mut self, integers: &[c_int]) -> Call {
        self.integers.extend(integers);
        self
    }

    /// Arguments that are `int` in the form for ordinary counts.
    pub(super) fn numbers(mut self, numbers: &[i64]) -> Call {
        match self.large {
            true => self.counts.extend(numbers),
            // They came as such.
            false => {
                self.integers.extend(numbers.iter().map(|it| c_int::try_from(*it).unwrap_or(0)));
            }
        }
        self
    }

    /// The same, not negative.
    pub(super) fn counts(self, counts: &[u64]) -> Call {
        let numbers: Vec<i64> = counts.iter().map(|count| count.cast_signed()).collect();
        self.numbers(&numbers)
    }

    /// Arguments that are `MPI_Aint` in the form for ordinary counts.
    pub(super) fn addresses(mut self, addresses: &[i64]) -> Call {
        match self.large {
            true => self.counts.extend(addresses),
            false => self.addresses.extend(addresses),
        }
        self
    }

    pub(super) fn of(mut self, old: &Type) -> Call {
        self.types.push(match old.call.is_predefined() {
            true => Old::Predefined(old.handle()),
            false => Old::Derived(old.datatype.clone(), Arc::clone(&old.call)),
        });
        self
    }
}

impl Old {
    fn handle(&self) -> Done<RawHandle> {
        match self {
            Old::Predefined(handle) => Ok(*handle),
            Old::Derived(datatype, call) => {
                insert(TypeObject::new(datatype.clone(), Arc::clone(call)))
            }
        }
    }
}

/// Calls with large counts have no place in functions without.
fn small(datatype: &Type) -> Done<&Call> {
    match datatype.call.counts.is_empty() {
        true => Ok(&datatype.call),
        false => {
            let why =
                "the datatype was made with large counts, which only the function with _c gives";
            Err(Fail::new(face::ERR_TYPE, why))
        }
    }
}

fn number(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

pub(crate) fn type_get_envelope(
    datatype: Type,
    num_integers: Out<c_int>,
    num_addresses: Out<c_int>,
    num_datatypes: Out<c_int>,
    combiner: Out<c_int>,
) -> Done {
    let call = small(&datatype)?;
    num_integers.set(arg::int(call.integers.len()));
    num_addresses.set(arg::int(call.addresses.len()));
    num_datatypes.set(arg::int(call.types.len()));
    combiner.set(call.combiner);
    Ok(())
}

pub(crate) fn type_get_envelope_c(
    datatype: Type,
    num_integers: Out<i64>,
    num_addresses: Out<i64>,
    num_large_counts: Out<i64>,
    num_datatypes: Out<i64>,
    combiner: Out<c_int>,
) -> Done {
    let call = &datatype.call;
    num_integers.set(number(call.integers.len()));
    num_addresses.set(number(call.addresses.len()));
    num_large_counts.set(number(call.counts.len()));
    num_datatypes.set(number(call.types.len()));
    combiner.set(call.combiner);
    Ok(())
}

/// Gives the arguments of a call. Of handles, none is made unless all have room.
fn give(
    call: &Call,
    integers: Room<c_int>,
    addresses: Room<i64>,
    counts: Option<Room<i64>>,
    datatypes: Room<RawHandle>,
) -> Done {
    if call.is_named() {
        let why = "the datatype is a predefined one, which has no contents";
        return Err(Fail::new(face::ERR_TYPE, why));
    }
    datatypes.holds(call.types.len())?;
    integers.give(&call.integers)?;
    addresses.give(&call.addresses)?;
    counts.map_or(Ok(()), |room| room.give(&call.counts))?;
    datatypes.give(&call.types.iter().map(Old::handle).collect::<Done<Vec<_>>>()?)
}

pub(crate) fn type_get_contents(
    datatype: Type,
    integers: Room<c_int>,
    addresses: Room<i64>,
    datatypes: Room<RawHandle>,
) -> Done {
    give(small(&datatype)?, integers, addresses, None, datatypes)
}

pub(crate) fn type_get_contents_c(
    datatype: Type,
    integers: Room<c_int>,
    addresses: Room<i64>,
    counts: Room<i64>,
    datatypes: Room<RawHandle>,
) -> Done {
    give(&datatype.call, integers, addresses, Some(counts), datatypes)
}
