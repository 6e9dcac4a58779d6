//! Packing (MPI 4.1 §5.2), and the portable representation (§5.3).

use super::{Elements, Type, signed, space_of, typed};
use crate::arg::{self, CountOut};
use crate::call::{Done, Fail};
use crate::comm::Comm;
use crate::face;
use crate::process;
use gapless::Layout;
use gapless::raw::{self, Typed};
use gapless_dtype::{Convertor, ExternalError, external_size};
use std::ffi::{CStr, c_void};

/// A buffer of packed bytes, and where the next ones are.
pub(crate) struct Packed {
    buffer: *mut c_void,
    size: u64,
    position: CountOut,
}

impl Packed {
    pub(crate) fn new(buffer: *const c_void, size: u64, position: CountOut) -> Packed {
        Packed { buffer: buffer.cast_mut(), size, position }
    }

    /// Where the next bytes are, and how many there may be.
    fn rest(&self) -> Done<(*mut u8, usize)> {
        let (at, size) = (self.position.get(), self.size);
        let outside =
            || Fail::new(face::ERR_ARG, format!("position is {at} in a buffer of {size} bytes"));
        let left = u64::try_from(at).ok().and_then(|at| size.checked_sub(at));
        let left = usize::try_from(left.ok_or_else(outside)?).map_err(|_| outside())?;
        if left > 0 {
            arg::pointer(self.buffer, "the buffer of packed bytes")?;
        }
        let at = usize::try_from(at).map_err(|_| outside())?;
        Ok((self.buffer.cast::<u8>().wrapping_add(at), left))
    }

    /// Whether the processor reaches them.
    fn is_near(&self) -> bool {
        !process::has_devices() || gapless::detect_space(self.buffer).cpu_accessible()
    }

    /// The next bytes, as a message has them.
    fn typed(&self, bytes: u64) -> Done<Typed> {
        let (at, _) = self.rest()?;
        typed(at.cast(), bytes, &arg::datatype(face::PACKED, "MPI_PACKED")?)
    }

    fn advance(&self, bytes: usize) -> Done {
        let bytes = i64::try_from(bytes).ok();
        let after = bytes.and_then(|bytes| self.position.get().checked_add(bytes));
        let too_far = || Fail::new(face::ERR_COUNT, "the position is too large a number");
        self.position.set(after.ok_or_else(too_far)?);
        Ok(())
    }
}

fn of_device() -> Fail {
    let why = "the portable representation of memory of a device";
    Fail::new(face::ERR_UNSUPPORTED_OPERATION, why)
}

fn too_short(needed: u64, left: usize) -> Fail {
    Fail::new(face::ERR_TRUNCATE, format!("{needed} bytes are packed, and there are {left}"))
}

/// The instances, if their packed bytes are no more than are left.
fn instances(elements: &Elements, left: usize) -> Done<Convertor> {
    let convertor = Convertor::new(elements.datatype.committed()?, elements.count)?;
    match convertor.packed_size() <= left as u64 {
        true => Ok(convertor),
        false => Err(too_short(convertor.packed_size(), left)),
    }
}

/// The address of displacement 0, if there is something to touch; `None`: in memory of a device.
fn origin(elements: &Elements, layout: &Layout) -> Done<Option<*mut u8>> {
    let Elements { buf, count, datatype } = elements;
    if *count > 0 {
        datatype.check_buffer(*buf)?;
    }
    let is_near = space_of(*buf, layout, *count)?.cpu_accessible();
    Ok(is_near.then(|| std::ptr::with_exposed_provenance_mut(buf.expose_provenance())))
}

/// Copies in memory of any kind: by a message of this rank to itself.
///
/// # Safety
/// The memory is as MPI says of what is sent, and of what is received into.
pub(super) unsafe fn copy(from: Typed, into: Typed) -> Done {
    let process = arg::process()?;
    // One message at a time.
    let mut copies = arg::lock(&process.copies);
    let comm = match &mut *copies {
        Some(comm) => comm,
        none => none.insert(process.comm_self.comm.dup()?),
    };
    // SAFETY: the caller's promise, until this returns.
    let from = unsafe { raw::view(from) };
    // SAFETY: as above.
    let into = unsafe { raw::view_mut(into) };
    comm.sendrecv(from, (0, 0), into, (0, 0))?;
    Ok(())
}

pub(crate) unsafe fn pack(elements: Elements, packed: Packed, _comm: Comm) -> Done {
    let (out, left) = packed.rest()?;
    let mut convertor = instances(&elements, left)?;
    let size = convertor.packed_size();
    match origin(&elements, elements.datatype.committed()?)? {
        Some(from) if size == 0 || packed.is_near() => {
            // SAFETY: as the first page of the crate says; there is room for so many bytes.
            unsafe { convertor.pack_raw(from, out, size) };
        }
        // SAFETY: as above.
        _ => unsafe { copy(elements.typed()?, packed.typed(size)?) }?,
    }
    packed.advance(usize::try_from(size).unwrap_or(left))
}

pub(crate) unsafe fn unpack(packed: Packed, elements: Elements, _comm: Comm) -> Done {
    let (from, left) = packed.rest()?;
    let mut convertor = instances(&elements, left)?;
    let size = convertor.packed_size();
    match origin(&elements, elements.datatype.committed()?)? {
        Some(into) if size == 0 || packed.is_near() => {
            // SAFETY: as the first page of the crate says; there are so many bytes.
            unsafe { convertor.unpack_raw(from, into, size) };
        }
        // SAFETY: as above.
        _ => unsafe { copy(packed.typed(size)?, elements.typed()?) }?,
    }
    packed.advance(usize::try_from(size).unwrap_or(left))
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

pub(crate) unsafe fn pack_external(datarep: &CStr, elements: Elements, packed: Packed) -> Done {
    external32(datarep)?;
    elements.datatype.committed()?;
    let (out, left) = packed.rest()?;
    // Sizes depend on what a language calls a type.
    let layout = elements.datatype.datatype.commit()?;
    let from = origin(&elements, &layout)?.filter(|_| packed.is_near()).ok_or_else(of_device)?;
    let out = match left {
        0 => &mut [][..],
        // SAFETY: as the first page of the crate says; `rest` found that it is not null.
        left => unsafe { std::slice::from_raw_parts_mut(out, left) },
    };
    // SAFETY: as above.
    let bytes = unsafe { gapless_dtype::pack_external(&layout, elements.count, from, out) };
    packed.advance(bytes.map_err(refused)?)
}

pub(crate) unsafe fn unpack_external(datarep: &CStr, packed: Packed, elements: Elements) -> Done {
    external32(datarep)?;
    elements.datatype.committed()?;
    let (from, left) = packed.rest()?;
    let layout = elements.datatype.datatype.commit()?;
    let into = origin(&elements, &layout)?.filter(|_| packed.is_near()).ok_or_else(of_device)?;
    // SAFETY: as the first page of the crate says.
    let given = unsafe { arg::list(from, left, "inbuf") }?;
    // SAFETY: as above.
    let bytes = unsafe { gapless_dtype::unpack_external(given, &layout, elements.count, into) };
    packed.advance(bytes.map_err(refused)?)
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
