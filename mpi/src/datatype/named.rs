//! Datatypes that MPI has names for, and those without that it makes of parameters, which programs do not free either.

use super::contents::Call;
use super::{Type, TypeObject, insert};
use crate::arg::{HandleOut, lock};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use gapless::{Datatype, Primitive};
use gapless_dtype::TypeClass;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};

macro_rules! table {
    ($($name:ident $primitive:ident,)*) => {
        /// Handles, names, and what they are. Fortran's types are those of its compilers with no options: `INTEGER`,
        /// `REAL` and `LOGICAL` of 4 bytes.
        const NAMED: &[(RawHandle, &str, Primitive)] =
            &[$((face::$name, stringify!($name), Primitive::$primitive),)*];
    };
}

table! {
    AINT Aint,
    COUNT Count,
    OFFSET Offset,
    PACKED Packed,
    BYTE Byte,
    CHAR Char,
    SIGNED_CHAR SignedChar,
    UNSIGNED_CHAR UnsignedChar,
    WCHAR Wchar,
    SHORT Short,
    INT Int,
    LONG Long,
    LONG_LONG LongLong,
    UNSIGNED_SHORT UnsignedShort,
    UNSIGNED Unsigned,
    UNSIGNED_LONG UnsignedLong,
    UNSIGNED_LONG_LONG UnsignedLongLong,
    INT8_T Int8,
    INT16_T Int16,
    INT32_T Int32,
    INT64_T Int64,
    UINT8_T Uint8,
    UINT16_T Uint16,
    UINT32_T Uint32,
    UINT64_T Uint64,
    FLOAT Float,
    DOUBLE Double,
    LONG_DOUBLE LongDouble,
    C_FLOAT_COMPLEX FloatComplex,
    C_DOUBLE_COMPLEX DoubleComplex,
    C_LONG_DOUBLE_COMPLEX LongDoubleComplex,
    CXX_FLOAT_COMPLEX FloatComplex,
    CXX_DOUBLE_COMPLEX DoubleComplex,
    CXX_LONG_DOUBLE_COMPLEX LongDoubleComplex,
    C_BOOL Bool,
    CXX_BOOL Bool,
    FLOAT_INT FloatInt,
    DOUBLE_INT DoubleInt,
    LONG_INT LongInt,
    TWO_INT TwoInt,
    SHORT_INT ShortInt,
    LONG_DOUBLE_INT LongDoubleInt,
    CHARACTER Char,
    LOGICAL Bool32,
    INTEGER Int,
    REAL Float,
    DOUBLE_PRECISION Double,
    COMPLEX FloatComplex,
    DOUBLE_COMPLEX DoubleComplex,
    TWO_INTEGER TwoInt,
    TWO_REAL TwoFloat,
    TWO_DOUBLE_PRECISION TwoDouble,
    LOGICAL1 Bool,
    LOGICAL2 Bool16,
    LOGICAL4 Bool32,
    LOGICAL8 Bool64,
    LOGICAL16 Bool128,
    INTEGER1 Int8,
    INTEGER2 Int16,
    INTEGER4 Int32,
    INTEGER8 Int64,
    INTEGER16 Int128,
    REAL2 Float16,
    REAL4 Float,
    REAL8 Double,
    REAL16 Float128,
    COMPLEX4 Float16Complex,
    COMPLEX8 FloatComplex,
    COMPLEX16 DoubleComplex,
    COMPLEX32 Float128Complex,
}

/// The datatype at a place of the table of all.
#[inline]
pub(super) fn predefined(index: usize) -> Option<&'static TypeObject> {
    static TABLE: OnceLock<Vec<Option<TypeObject>>> = OnceLock::new();
    TABLE.get_or_init(make).get(index)?.as_ref()
}

fn make() -> Vec<Option<TypeObject>> {
    let mut table: Vec<Option<TypeObject>> = (0..super::PREDEFINED).map(|_| None).collect();
    let call = Arc::new(Call::new(face::COMBINER_NAMED, false));
    for (handle, name, primitive) in NAMED {
        let object = TypeObject::new(Datatype::from(*primitive), Arc::clone(&call));
        // It has one run or two, so it commits.
        let _ = object.commit();
        let name = name.replace("TWO_", "2");
        *lock(&object.name) = format!("MPI_{name}");
        if let Some(place) = face::type_index(*handle).and_then(|index| table.get_mut(index)) {
            *place = Some(object);
        }
    }
    table
}

/// The datatype of a combiner and its parameters: always the same handle.
fn unnamed(
    newtype: HandleOut,
    parameters: (c_int, RawHandle, RawHandle),
    primitive: Primitive,
    call: impl FnOnce() -> Call,
) -> Done {
    static MADE: Mutex<BTreeMap<(c_int, RawHandle, RawHandle), RawHandle>> =
        Mutex::new(BTreeMap::new());
    let mut made = lock(&MADE);
    let handle = match made.get(&parameters) {
        Some(handle) => *handle,
        None => {
            let object = TypeObject::new(primitive.into(), Arc::new(call()));
            object.commit()?;
            let handle = insert(object)?;
            made.insert(parameters, handle);
            handle
        }
    };
    newtype.set(handle);
    Ok(())
}

fn f90(
    newtype: HandleOut,
    combiner: c_int,
    parameters: &[c_int],
    primitive: Option<Primitive>,
) -> Done {
    let none = || Fail::new(face::ERR_ARG, "Fortran has no type of such a precision and range");
    let key = |at: usize| {
        let parameter = parameters.get(at).copied().unwrap_or(0);
        face::handle(parameter.cast_unsigned())
    };
    let call = || Call::new(combiner, false).integers(parameters);
    unnamed(newtype, (combiner, key(0), key(1)), primitive.ok_or_else(none)?, call)
}

/// A precision or a range; `None`: it does not matter.
fn digits(parameter: c_int, name: &str) -> Done<Option<u32>> {
    let wrong = |_| Fail::new(face::ERR_ARG, format!("{name} is {parameter}"));
    match parameter {
        face::UNDEFINED => Ok(None),
        digits => u32::try_from(digits).map(Some).map_err(wrong),
    }
}

fn precision_and_range(p: c_int, r: c_int) -> Done<(Option<u32>, Option<u32>)> {
    match (digits(p, "p")?, digits(r, "r")?) {
        (None, None) => {
            Err(Fail::new(face::ERR_ARG, "one of p and r at least must not be MPI_UNDEFINED"))
        }
        both => Ok(both),
    }
}

pub(crate) fn type_create_f90_real(p: c_int, r: c_int, newtype: HandleOut) -> Done {
    let (precision, range) = precision_and_range(p, r)?;
    f90(newtype, face::COMBINER_F90_REAL, &[p, r], Primitive::f90_real(precision, range))
}

pub(crate) fn type_create_f90_complex(p: c_int, r: c_int, newtype: HandleOut) -> Done {
    let (precision, range) = precision_and_range(p, r)?;
    f90(newtype, face::COMBINER_F90_COMPLEX, &[p, r], Primitive::f90_complex(precision, range))
}

pub(crate) fn type_create_f90_integer(r: c_int, newtype: HandleOut) -> Done {
    let range = digits(r, "r")?;
    f90(newtype, face::COMBINER_F90_INTEGER, &[r], range.and_then(Primitive::f90_integer))
}

/// Value, index, and the pair that MPI has a name for (MPI 4.1 §6.9.4).
const PAIRS: &[(RawHandle, RawHandle, RawHandle)] = &[
    (face::FLOAT, face::INT, face::FLOAT_INT),
    (face::DOUBLE, face::INT, face::DOUBLE_INT),
    (face::LONG, face::INT, face::LONG_INT),
    (face::INT, face::INT, face::TWO_INT),
    (face::SHORT, face::INT, face::SHORT_INT),
    (face::LONG_DOUBLE, face::INT, face::LONG_DOUBLE_INT),
    (face::REAL, face::REAL, face::TWO_REAL),
    (face::DOUBLE_PRECISION, face::DOUBLE_PRECISION, face::TWO_DOUBLE_PRECISION),
    (face::INTEGER, face::INTEGER, face::TWO_INTEGER),
];

pub(crate) fn type_get_value_index(value: Type, index: Type, pair_type: HandleOut) -> Done {
    let (v, i) = (value.handle(), index.handle());
    if let Some((.., pair)) = PAIRS.iter().find(|(value, index, _)| (*value, *index) == (v, i)) {
        pair_type.set(*pair);
        return Ok(());
    }
    let basic = |datatype: &Type| match datatype.datatype.contents() {
        gapless_dtype::Contents::Primitive(it) if datatype.call.is_named() => Some(it),
        _ => None,
    };
    // Pairs of two real numbers are Fortran's, and found by name alone.
    let is_index = |it: &Primitive| matches!(it.by_kind(), Primitive::Int32 | Primitive::Int64);
    let pair = basic(&value).zip(basic(&index).filter(is_index));
    let pair = pair.and_then(|(v, i)| Primitive::pair_like(v, i));
    match pair {
        Some(pair) => {
            let combiner = face::COMBINER_VALUE_INDEX;
            let call = || Call::new(combiner, false).of(&value).of(&index);
            unnamed(pair_type, (combiner, v, i), pair, call)
        }
        None => {
            pair_type.set(face::DATATYPE_NULL);
            Ok(())
        }
    }
}

pub(crate) fn type_match_size(typeclass: c_int, size: c_int, datatype: HandleOut) -> Done {
    let class = match typeclass {
        face::TYPECLASS_INTEGER => TypeClass::Integer,
        face::TYPECLASS_REAL => TypeClass::Real,
        face::TYPECLASS_COMPLEX => TypeClass::Complex,
        _ => return Err(Fail::new(face::ERR_ARG, format!("typeclass is {typeclass}"))),
    };
    let found = u64::try_from(size).ok().and_then(|size| Primitive::match_size(class, size));
    // Fortran's types with a size in their names are the last of the table.
    let named = |wanted: Primitive| NAMED.iter().rev().find(|(.., primitive)| *primitive == wanted);
    let none = || Fail::new(face::ERR_ARG, format!("no type of that class has {size} bytes"));
    datatype.set(found.and_then(named).ok_or_else(none)?.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_place_of_its_own() {
        let mut places = std::collections::BTreeSet::new();
        for (handle, name, primitive) in NAMED {
            let index = face::type_index(*handle).unwrap();
            assert!(places.insert(index), "{name} has the place of another");
            let object = predefined(index).unwrap();
            assert_eq!(object.datatype, Datatype::from(*primitive), "{name}");
            let layout = object.committed().unwrap();
            assert_eq!(layout.signature(), &layout.signature().by_kind(), "{name}");
        }
        assert_eq!(places.len(), 70);
    }
}
