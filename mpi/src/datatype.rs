//! Datatypes (MPI 4.1 chapter 5).

use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::slots::{Object, Slots};
use gapless::raw::Typed;
use gapless::{Datatype, Layout, Primitive, Region, Space};
use gapless_dtype::Convertor;
use std::ffi::c_void;
use std::sync::OnceLock;

/// How many places the table of predefined datatypes has, in any ABI.
pub(crate) const PREDEFINED: usize = 0x110;

/// A datatype, and what programs hang on it.
#[derive(Debug)]
pub(crate) struct TypeObject {
    pub(crate) datatype: Datatype,
    /// Once it is committed.
    pub(crate) layout: OnceLock<Layout>,
}

pub(crate) type Type = Object<TypeObject>;

pub(crate) static TYPES: Slots<TypeObject> = Slots::new();

/// Basic datatypes. Matching goes by kind and size, whatever names a language has for a type: so `long` and `int64_t` are
/// one.
const BASIC: &[(RawHandle, Primitive)] = &[
    (face::BYTE, Primitive::Byte),
    (face::PACKED, Primitive::Packed),
    (face::CHAR, Primitive::Char),
    (face::SIGNED_CHAR, Primitive::Int8),
    (face::UNSIGNED_CHAR, Primitive::Uint8),
    (face::SHORT, Primitive::Int16),
    (face::UNSIGNED_SHORT, Primitive::Uint16),
    (face::INT, Primitive::Int32),
    (face::UNSIGNED, Primitive::Uint32),
    (face::LONG, Primitive::Int64),
    (face::LONG_LONG, Primitive::Int64),
    (face::UNSIGNED_LONG, Primitive::Uint64),
    (face::UNSIGNED_LONG_LONG, Primitive::Uint64),
    (face::FLOAT, Primitive::Float),
    (face::DOUBLE, Primitive::Double),
];

fn predefined(index: usize) -> Option<&'static TypeObject> {
    static TABLE: OnceLock<Vec<Option<TypeObject>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table: Vec<Option<TypeObject>> = (0..PREDEFINED).map(|_| None).collect();
        for (handle, primitive) in BASIC {
            let datatype = Datatype::from(*primitive);
            let layout = OnceLock::new();
            if let Ok(committed) = datatype.commit() {
                let _ = layout.set(committed);
            }
            if let Some(place) = face::type_index(*handle).and_then(|index| table.get_mut(index)) {
                *place = Some(TypeObject { datatype, layout });
            }
        }
        table
    });
    table.get(index)?.as_ref()
}

/// The datatype of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Type> {
    match face::type_index(handle) {
        Some(index) => Some(Object::Predefined(predefined(index)?, handle)),
        None => TYPES.get(handle).map(Object::Made),
    }
}

/// What a count of instances of a datatype at an address is.
///
/// # Safety
/// The memory is as MPI says of such an argument.
#[inline]
pub(crate) unsafe fn typed(buf: *const c_void, count: u64, datatype: &Type) -> Done<Typed> {
    let address = buf.expose_provenance() as u64;
    let uncommitted = || Fail::new(face::ERR_TYPE, "the datatype was not committed");
    let layout = datatype.layout.get().ok_or_else(uncommitted)?;
    if address == 0 && count > 0 && layout.size() > 0 && layout.true_lb() == 0 {
        return Err(Fail::new(face::ERR_BUFFER, "the buffer is a null pointer"));
    }
    let typed = match datatype {
        Object::Predefined(it, _) if it.layout.get().is_some_and(Layout::is_contiguous) => {
            let bytes = layout.size().checked_mul(count);
            let too_long = || Fail::new(face::ERR_COUNT, "the buffer is longer than memory can be");
            let region = Region::new(Space::Host, address, 0, bytes.ok_or_else(too_long)?);
            match it.layout.get() {
                Some(layout) => Typed::elements(region, layout, count),
                None => Typed::at(Space::Host, address, layout, count),
            }
        }
        _ => Typed::at(Space::Host, address, layout, count),
    };
    typed.map_err(|error| Fail::new(face::ERR_BUFFER, error.to_string()))
}

/// The bytes of a message, packed.
///
/// # Safety
/// The memory is valid for reads.
pub(crate) unsafe fn packed(typed: &Typed) -> Done<Vec<u8>> {
    let too_long = || Fail::new(face::ERR_NO_MEM, "the message is longer than memory");
    let bytes = usize::try_from(typed.packed_bytes()).map_err(|_| too_long())?;
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes).map_err(|_| too_long())?;
    copy.resize(bytes, 0u8);
    let mut convertor = Convertor::new(typed.layout(), typed.count())
        .map_err(|error| Fail::new(face::ERR_TYPE, error.to_string()))?;
    let origin = typed.region().start() + typed.origin();
    let origin = std::ptr::with_exposed_provenance::<u8>(usize::try_from(origin).unwrap_or(0));
    // SAFETY: the caller's promise; the copy is as long as the packed bytes.
    unsafe { convertor.pack_raw(origin, copy.as_mut_ptr(), bytes as u64) };
    Ok(copy)
}
