//! Packing (MPI 4.1 §5.2), and the portable representation (§5.3).

use super::{Type, signed, space_of};
use crate::arg::{self, CountOut};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use gapless::Layout;
use gapless_dtype::{Convertor, ExternalError, external_size};
use std::ffi::{CStr, c_void};

/// A buffer of packed bytes: where the next ones are, and how many there may be.
fn rest(buffer: *mut c_void, size: u64, position: CountOut) -> Done<(*mut u8, usize)> {
    let at = position.get();
    let left = u64::try_from(at).ok().and_then(|at| size.checked_sub(at));
    let outside =
        || Fail::new(face::ERR_ARG, format!("position is {at} in a buffer of {size} bytes"));
    let left = usize::try_from(left.ok_or_else(outside)?).map_err(|_| outside())?;
    if left > 0 {
        arg::pointer(buffer, "the buffer of packed bytes")?;
    }
    let at = usize::try_from(at).map_err(|_| outside())?;
    Ok((buffer.cast::<u8>().wrapping_add(at), left))
}

fn too_short(needed: u64, left: usize) -> Fail {
    Fail::new(face::ERR_TRUNCATE, format!("{needed} bytes are packed, and there are {left}"))
}

/// The instances, if their packed bytes are no more than are left.
fn instances(layout: &Layout, count: u64, left: usize) -> Done<Convertor> {
    let convertor = Convertor::new(layout, count)?;
    match convertor.packed_size() <= left as u64 {
        true => Ok(convertor),
        false => Err(too_short(convertor.packed_size(), left)),
    }
}

/// The address of displacement 0, if there is something to touch.
fn origin(buf: *const c_void, count: u64, layout: &Layout) -> Done<*mut u8> {
    if buf.is_null() && count > 0 && layout.size() > 0 && layout.true_lb() == 0 {
        return Err(Fail::new(face::ERR_BUFFER, "the buffer is a null pointer"));
    }
    if !space_of(buf, layout, count)?.cpu_accessible() {
        return Err(Fail::new(face::ERR_UNSUPPORTED_OPERATION, "packing memory of a device"));
    }
    // A datatype may have absolute addresses, from `MPI_BOTTOM` on.
    Ok(std::ptr::with_exposed_provenance_mut(buf.expose_provenance()))
}

fn advance(position: CountOut, bytes: usize) -> Done {
    let after = i64::try_from(bytes).ok().and_then(|bytes| position.get().checked_add(bytes));
    let too_far = || Fail::new(face::ERR_COUNT, "the position is too large a number");
    position.set(after.ok_or_else(too_far)?);
    Ok(())
}

pub(crate) unsafe fn pack(
    inbuf: *const c_void,
    incount: u64,
    datatype: Type,
    outbuf: *mut c_void,
    outsize: u64,
    position: CountOut,
    _comm: Comm,
) -> Done {
    let layout = datatype.committed()?;
    let (out, left) = rest(outbuf, outsize, position)?;
    let mut convertor = instances(layout, incount, left)?;
    let (from, size) = (origin(inbuf, incount, layout)?, convertor.packed_size());
    // SAFETY: as the first page of the crate says; there is room for so many bytes.
    let bytes = unsafe { convertor.pack_raw(from, out, size) };
    advance(position, usize::try_from(bytes).unwrap_or(left))
}

pub(crate) unsafe fn unpack(
    inbuf: *const c_void,
    insize: u64,
    position: CountOut,
    outbuf: *mut c_void,
    outcount: u64,
    datatype: Type,
    _comm: Comm,
) -> Done {
    let layout = datatype.committed()?;
    let (from, left) = rest(inbuf.cast_mut(), insize, position)?;
    let mut convertor = instances(layout, outcount, left)?;
    let (into, size) = (origin(outbuf, outcount, layout)?, convertor.packed_size());
    // SAFETY: as the first page of the crate says; there are so many bytes.
    let bytes = unsafe { convertor.unpack_raw(from, into, size) };
    advance(position, usize::try_from(bytes).unwrap_or(left))
}

pub(crate) fn pack_size(incount: u64, datatype: Type, _comm: Comm, size: CountOut) -> Done {
    size.set(signed(datatype.datatype.size().saturating_mul(incount)));
    Ok(())
}

fn external32(datarep: &CStr) -> Done {
    match datarep.to_bytes() {
        b"external32" => Ok(()),
        other => {
            let why = format!("there is no representation {:?}", String::from_utf8_lossy(other));
            Err(Fail::new(face::ERR_UNSUPPORTED_DATAREP, why))
        }
    }
}

fn refused(error: ExternalError) -> Fail {
    match error {
        ExternalError::Room { needed, found } => {
            too_short(needed, usize::try_from(found).unwrap_or(usize::MAX))
        }
        ExternalError::Instances(error) => error.into(),
    }
}

pub(crate) unsafe fn pack_external(
    datarep: &CStr,
    inbuf: *const c_void,
    incount: u64,
    datatype: Type,
    outbuf: *mut c_void,
    outsize: i64,
    position: CountOut,
) -> Done {
    external32(datarep)?;
    datatype.committed()?;
    let (out, left) = rest(outbuf, arg::count(outsize, "outsize")?, position)?;
    // Sizes depend on what a language calls a type.
    let layout = datatype.datatype.commit()?;
    let from = origin(inbuf, incount, &layout)?;
    let bytes = match left {
        0 => {
            // SAFETY: as the first page of the crate says.
            unsafe { gapless_dtype::pack_external(&layout, incount, from, &mut []) }
        }
        left => {
            // SAFETY: as the first page of the crate says; `rest` found that it is not null.
            let out = unsafe { std::slice::from_raw_parts_mut(out, left) };
            // SAFETY: as above.
            unsafe { gapless_dtype::pack_external(&layout, incount, from, out) }
        }
    };
    advance(position, bytes.map_err(refused)?)
}

pub(crate) unsafe fn unpack_external(
    datarep: &CStr,
    inbuf: *const c_void,
    insize: i64,
    position: CountOut,
    outbuf: *mut c_void,
    outcount: u64,
    datatype: Type,
) -> Done {
    external32(datarep)?;
    datatype.committed()?;
    let (from, left) = rest(inbuf.cast_mut(), arg::count(insize, "insize")?, position)?;
    let layout = datatype.datatype.commit()?;
    let into = origin(outbuf, outcount, &layout)?;
    let packed = match left {
        0 => &[][..],
        // SAFETY: as the first page of the crate says; `rest` found that it is not null.
        left => unsafe { std::slice::from_raw_parts(from, left) },
    };
    // SAFETY: as above.
    let bytes = unsafe { gapless_dtype::unpack_external(packed, &layout, outcount, into) };
    advance(position, bytes.map_err(refused)?)
}

pub(crate) fn pack_external_size(
    datarep: &CStr,
    incount: u64,
    datatype: Type,
    size: CountOut,
) -> Done {
    external32(datarep)?;
    size.set(signed(external_size(datatype.datatype.signature(), incount)));
    Ok(())
}
