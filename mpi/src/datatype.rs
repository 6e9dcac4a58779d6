//! Datatypes (MPI 4.1 chapter 5).
//!
//! Messages match by their bytes, or by kind and size if the user wants that: `long` and `int64_t` are one, as soon as a
//! datatype is committed. What a program asks of a datatype is answered with the types that it was made of.

use crate::arg::{self, CountOut, HandleOut, Out, StatusOut, Text, lock};
use crate::attr::Attributes;
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle, Status};
use crate::process;
use crate::slots::{Object, Slots};
use gapless::raw::Typed;
use gapless::{Datatype, Layout, Space};
use gapless_dtype::{ConvertorError, TypeError};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

mod contents;
mod make;
mod named;
mod pack;

use contents::Call;
pub(crate) use contents::*;
pub(crate) use make::*;
pub(crate) use named::*;
pub(crate) use pack::*;

/// How many places the table of predefined datatypes has, in any ABI.
pub(crate) const PREDEFINED: usize = 0x110;

/// A datatype, and what programs hang on it.
#[derive(Debug)]
pub(crate) struct TypeObject {
    /// As it was described: of the types that languages have. Messages have the layout.
    pub(crate) datatype: Datatype,
    /// Once it is committed, with the signature that messages match by.
    pub(crate) layout: OnceLock<Layout>,
    /// What made it.
    call: Arc<Call>,
    name: Mutex<String>,
    pub(crate) attributes: Attributes,
}

pub(crate) type Type = Object<TypeObject>;

static TYPES: Slots<TypeObject> = Slots::new("datatypes");

/// Whether messages match by kind and size.
static BY_KIND: AtomicBool = AtomicBool::new(false);

/// Reads by what messages match, before there is a datatype.
///
/// # Errors
/// `GAPLESS_MPI_TYPES` is neither.
pub(crate) fn choose_matching() -> Done {
    let chosen = std::env::var_os("GAPLESS_MPI_TYPES");
    let by_kind = match chosen.as_ref().map(|chosen| chosen.to_string_lossy()).as_deref() {
        None | Some("sizes") => false,
        Some("kinds") => true,
        Some(other) => {
            let why = format!("GAPLESS_MPI_TYPES is {other}, and may be sizes or kinds");
            return Err(Fail::new(face::ERR_OTHER, why));
        }
    };
    BY_KIND.store(by_kind, Ordering::Relaxed);
    Ok(())
}

impl TypeObject {
    fn new(datatype: Datatype, call: Arc<Call>) -> TypeObject {
        let (layout, name, attributes) = Default::default();
        TypeObject { datatype, layout, call, name, attributes }
    }

    /// What messages have.
    ///
    /// # Errors
    /// It was not committed.
    #[inline]
    pub(crate) fn committed(&self) -> Done<&Layout> {
        let uncommitted = || Fail::new(face::ERR_TYPE, "the datatype was not committed");
        self.layout.get().ok_or_else(uncommitted)
    }

    /// An error if there is something to touch at a null pointer. A datatype may have absolute addresses, from `MPI_BOTTOM`
    /// on.
    pub(crate) fn check_buffer(&self, buf: *const c_void) -> Done {
        match buf.is_null() && self.datatype.size() > 0 && self.datatype.true_lb() == 0 {
            true => Err(Fail::new(face::ERR_BUFFER, "the buffer is a null pointer")),
            false => Ok(()),
        }
    }

    fn commit(&self) -> Done {
        if self.layout.get().is_none() {
            let layout = match BY_KIND.load(Ordering::Relaxed) {
                true => self.datatype.commit_by_kind(),
                false => self.datatype.commit_by_size(),
            };
            let _ = self.layout.set(layout?);
        }
        Ok(())
    }
}

/// The datatype of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Type> {
    match face::type_index(handle) {
        Some(index) => Some(Object::Predefined(named::predefined(index)?, handle)),
        None => TYPES.get(handle).map(Object::Made),
    }
}

/// A handle of a new datatype.
fn insert(object: TypeObject) -> Done<RawHandle> {
    TYPES.insert(object)
}

/// Does something with a handle of a datatype. Its program may have freed its own while an operation has the datatype
/// (MPI 4.1 §5.1.9): then there is another one for as long.
pub(crate) fn with_handle(datatype: &Type, act: impl FnOnce(RawHandle)) {
    let own = datatype.handle();
    if find(own).is_some() {
        return act(own);
    }
    let again = TypeObject::new(datatype.datatype.clone(), Arc::clone(&datatype.call));
    let made = insert(TypeObject { layout: datatype.layout.clone(), ..again });
    act(*made.as_ref().unwrap_or(&own));
    if let Ok(handle) = made {
        TYPES.free(handle);
    }
}

impl From<TypeError> for Fail {
    fn from(error: TypeError) -> Fail {
        let class = match error {
            TypeError::TooDeep { .. } | TypeError::TooManyOps { .. } => face::ERR_NO_MEM,
            _ => face::ERR_ARG,
        };
        Fail::new(class, error.to_string())
    }
}

impl From<ConvertorError> for Fail {
    fn from(error: ConvertorError) -> Fail {
        Fail::new(face::ERR_COUNT, error.to_string())
    }
}

/// Instances of a datatype at an address, whose memory is as MPI says of such arguments.
#[derive(Clone)]
pub(crate) struct Elements {
    pub(crate) buf: *const c_void,
    pub(crate) count: u64,
    pub(crate) datatype: Type,
}

impl Elements {
    #[inline]
    pub(crate) fn new(buf: *const c_void, count: u64, datatype: Type) -> Elements {
        Elements { buf, count, datatype }
    }

    /// So many times as many.
    pub(crate) fn times(self, factor: u32) -> Done<Elements> {
        let count = self.count.checked_mul(factor.into()).ok_or_else(too_long)?;
        Ok(Elements { count, ..self })
    }

    #[inline]
    pub(crate) fn typed(&self) -> Done<Typed> {
        typed(self.buf, self.count, &self.datatype)
    }
}

#[cold]
fn too_long() -> Fail {
    Fail::new(face::ERR_COUNT, "the buffer is too long for the address space")
}

/// What a count of instances of a datatype at an address is.
///
/// # Errors
/// The datatype was not committed; the address is null, or `MPI_IN_PLACE`; there are too many.
#[inline]
pub(crate) fn typed(buf: *const c_void, count: u64, datatype: &Type) -> Done<Typed> {
    let address = buf.expose_provenance() as u64;
    let layout = datatype.committed()?;
    if address == 0 && count > 0 {
        datatype.check_buffer(buf)?;
    }
    if buf.addr() == face::IN_PLACE && count > 0 {
        return Err(Fail::new(face::ERR_BUFFER, "the buffer cannot be MPI_IN_PLACE"));
    }
    let space = space_of(buf, layout, count)?;
    if let Object::Predefined(it, _) = datatype
        && let Some(typed) =
            it.layout.get().and_then(|it| Typed::elements_at(space, address, it, count))
    {
        return Ok(typed);
    }
    let typed = Typed::at(space, address, layout, count);
    typed.map_err(|error| Fail::new(face::ERR_BUFFER, error.to_string()))
}

/// Where the memory lies: asked of drivers, on machines that have devices.
#[inline]
fn space_of(buf: *const c_void, layout: &Layout, count: u64) -> Done<Space> {
    if !process::has_devices() || count == 0 || layout.size() == 0 {
        return Ok(Space::Host);
    }
    let lowest = Typed::lowest_byte(layout, count)
        .map_err(|error| Fail::new(face::ERR_BUFFER, error.to_string()))?;
    let first = buf.wrapping_byte_offset(isize::try_from(lowest).unwrap_or(0));
    Ok(gapless::detect_space(first))
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
    let into = self::typed(
        copy.as_mut_ptr().cast(),
        bytes as u64,
        &arg::datatype(face::PACKED, "MPI_PACKED")?,
    )?;
    // SAFETY: the caller's promise; the copy is as long as the packed bytes.
    unsafe { pack::copy(typed.clone(), into) }?;
    Ok(copy)
}

pub(crate) fn get_address(location: *const c_void, address: Out<i64>) -> Done {
    address.set(location.expose_provenance().cast_signed() as i64);
    Ok(())
}

pub(crate) fn type_commit(datatype: HandleOut) -> Done {
    arg::datatype(datatype.get(), "datatype")?.commit()
}

pub(crate) fn type_dup(oldtype: Type, newtype: HandleOut) -> Done {
    let call = Call::new(face::COMBINER_DUP, false).of(&oldtype);
    let mut dup = TypeObject::new(oldtype.datatype.dup()?, Arc::new(call));
    dup.layout = oldtype.layout.clone();
    dup.attributes = oldtype.attributes.copy(oldtype.handle())?;
    newtype.set(insert(dup)?);
    Ok(())
}

pub(crate) fn type_free(datatype: HandleOut) -> Done {
    let handle = datatype.get();
    let freed = arg::datatype(handle, "datatype")?;
    if freed.call.is_predefined() {
        return Err(Fail::new(face::ERR_TYPE, "the datatype is predefined, and cannot be freed"));
    }
    freed.attributes.delete_all(handle)?;
    TYPES.free(handle);
    datatype.set(face::DATATYPE_NULL);
    Ok(())
}

/// A size as MPI's numbers have it.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::from(face::UNDEFINED))
}

pub(crate) fn type_size(datatype: Type, size: CountOut) -> Done {
    size.set(signed(datatype.datatype.size()));
    Ok(())
}

pub(crate) fn type_get_extent(datatype: Type, lb: CountOut, extent: CountOut) -> Done {
    lb.set(datatype.datatype.lb());
    extent.set(datatype.datatype.extent());
    Ok(())
}

pub(crate) fn type_get_true_extent(datatype: Type, lb: CountOut, extent: CountOut) -> Done {
    lb.set(datatype.datatype.true_lb());
    extent.set(datatype.datatype.true_extent());
    Ok(())
}

/// `MPI_Type_extent`, `MPI_Type_lb`, `MPI_Type_ub`.
pub(crate) fn type_bound(bound: fn(&Datatype) -> i64, datatype: Type, out: Out<i64>) -> Done {
    out.set(bound(&datatype.datatype));
    Ok(())
}

pub(crate) fn type_get_name(datatype: RawHandle, type_name: Text) -> Done {
    match datatype {
        face::DATATYPE_NULL => type_name.give("MPI_DATATYPE_NULL"),
        datatype => type_name.give(&lock(&arg::datatype(datatype, "datatype")?.name)),
    }
}

pub(crate) fn type_set_name(datatype: Type, type_name: &CStr) -> Done {
    *lock(&datatype.name) = type_name.to_string_lossy().into_owned();
    Ok(())
}

/// How many whole instances a message had: `MPI_UNDEFINED`, if its bytes are no multiple of one's (MPI 4.1 §3.2.5).
pub(crate) fn get_count(status: &Status, datatype: Type, count: CountOut) -> Done {
    let (bytes, one) = (status.bytes(), datatype.datatype.size());
    count.set(match (bytes, one) {
        (0, _) => 0,
        (_, 1..) if bytes.is_multiple_of(one) => signed(bytes / one),
        _ => i64::from(face::UNDEFINED),
    });
    Ok(())
}

/// How many basic elements a message had (MPI 4.1 §5.1.11).
pub(crate) fn get_elements(status: &Status, datatype: Type, count: CountOut) -> Done {
    let elements = datatype.datatype.signature().elements_in(status.bytes());
    count.set(elements.map_or(i64::from(face::UNDEFINED), signed));
    Ok(())
}

pub(crate) fn status_set_elements(status: StatusOut, datatype: Type, count: u64) -> Done {
    let too_many = || Fail::new(face::ERR_COUNT, "the datatype has no such number of elements");
    let bytes = datatype.datatype.signature().bytes_of(count).ok_or_else(too_many)?;
    if let Some(mut it) = status.get() {
        it.set_bytes(bytes);
        status.set_all(it);
    }
    Ok(())
}
