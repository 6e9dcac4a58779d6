//! Versions, and what is told of the ABI (MPI 4.1 §9.1, MPI 5.0 chapter 20).

use crate::arg::{self, HandleOut, Out, Text, lock};
use crate::call::{Done, Fail};
use crate::face;
use crate::info::{Info, InfoObject};
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

pub(crate) fn get_version(version: Out<c_int>, subversion: Out<c_int>) -> Done {
    version.set(face::VERSION);
    subversion.set(face::SUBVERSION);
    Ok(())
}

pub(crate) fn get_library_version(version: Text) -> Done {
    version.give(concat!("Gapless ", env!("CARGO_PKG_VERSION"), ", MPI 5.0"))
}

/// Whether the library has the standard ABI.
const STANDARD: bool = cfg!(not(feature = "mpich"));

pub(crate) fn abi_get_version(abi_major: Out<c_int>, abi_minor: Out<c_int>) -> Done {
    let (major, minor) =
        if STANDARD { (face::ABI_VERSION, face::ABI_SUBVERSION) } else { (-1, -1) };
    abi_major.set(major);
    abi_minor.set(minor);
    Ok(())
}

pub(crate) fn abi_get_info(info: HandleOut) -> Done {
    let sizes = ["mpi_aint_size", "mpi_count_size", "mpi_offset_size"].map(|name| (name, "8"));
    InfoObject::of(sizes).give(info)
}

/// What a library of a Fortran compiler has said of it.
struct Fortran {
    booleans: Option<Booleans>,
    info: Option<InfoObject>,
}

/// The size of a logical, its two values.
struct Booleans {
    size: usize,
    yes: Vec<u8>,
    no: Vec<u8>,
}

static FORTRAN: Mutex<Fortran> = Mutex::new(Fortran { booleans: None, info: None });

fn once() -> Fail {
    Fail::new(face::ERR_ABI, "it was set before")
}

pub(crate) fn abi_set_fortran_info(info: Option<Info>) -> Done {
    let mut fortran = lock(&FORTRAN);
    if fortran.info.is_some() {
        return Err(once());
    }
    let null = || Fail::new(face::ERR_INFO, "info is MPI_INFO_NULL");
    // A copy: the program may free its own.
    fortran.info = Some(info.ok_or_else(null)?.copy());
    Ok(())
}

pub(crate) fn abi_get_fortran_info(info: HandleOut) -> Done {
    let fortran = lock(&FORTRAN);
    match &fortran.info {
        Some(its) => its.copy().give(info),
        None => {
            info.set(face::INFO_NULL);
            Ok(())
        }
    }
}

pub(crate) unsafe fn abi_set_fortran_booleans(
    logical_size: c_int,
    logical_true: *mut c_void,
    logical_false: *mut c_void,
) -> Done {
    let size = usize::try_from(logical_size).ok().filter(|size| [1, 2, 4, 8, 16].contains(size));
    let odd = || Fail::new(face::ERR_ARG, format!("a logical of {logical_size} bytes"));
    let size = size.ok_or_else(odd)?;
    let bytes = |at: *mut c_void, name| -> Done<Vec<u8>> {
        // SAFETY: a logical is there, as the first page of the crate says.
        Ok(unsafe { arg::list(at.cast::<u8>(), size, name) }?.to_vec())
    };
    let booleans = Booleans {
        size,
        yes: bytes(logical_true, "logical_true")?,
        no: bytes(logical_false, "logical_false")?,
    };
    let mut fortran = lock(&FORTRAN);
    match fortran.booleans.is_some() {
        true => Err(once()),
        false => {
            fortran.booleans = Some(booleans);
            Ok(())
        }
    }
}

pub(crate) unsafe fn abi_get_fortran_booleans(
    logical_size: c_int,
    logical_true: *mut c_void,
    logical_false: *mut c_void,
    is_set: Out<c_int>,
) -> Done {
    let fortran = lock(&FORTRAN);
    let size = usize::try_from(logical_size).unwrap_or(0);
    let known = fortran.booleans.as_ref().filter(|booleans| booleans.size == size);
    is_set.set(c_int::from(known.is_some()));
    if let Some(Booleans { yes, no, .. }) = known {
        // SAFETY: a logical is there, as the first page of the crate says.
        unsafe { arg::give_all(logical_true.cast(), yes, "logical_true") }?;
        // SAFETY: as above.
        unsafe { arg::give_all(logical_false.cast(), no, "logical_false") }?;
    }
    Ok(())
}
