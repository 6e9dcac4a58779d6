//! Attributes (MPI 4.1 §7.7): values that programs hang on communicators, datatypes and windows, each by a key.
//!
//! An object has its [`Attributes`], and says so by [`Attributed`]. Whoever duplicates it calls [`Attributes::copy`], and
//! whoever frees it [`Attributes::delete_all`], which call the program's functions: never while anything is locked, as
//! they may call MPI.

use crate::arg::{Out, lock};
use crate::call::{Done, Fail};
use crate::comm::CommObject;
use crate::datatype::TypeObject;
use crate::errhandler::LAST_USED;
use crate::face::{self, RawHandle};
use crate::process;
use crate::slots::{Object, Slots};
use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// What objects a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Comm,
    Type,
    Win,
}

type CopyFunction = unsafe extern "C" fn(
    RawHandle,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_int,
) -> c_int;
type DeleteFunction = unsafe extern "C" fn(RawHandle, c_int, *mut c_void, *mut c_void) -> c_int;

/// What becomes of a value when its object is duplicated.
#[derive(Clone, Copy, Debug)]
enum OnCopy {
    Drop,
    Keep,
    Call(CopyFunction),
}

/// A key, with the program's functions. Addresses are those that the program gave.
#[derive(Debug)]
struct Keyval {
    kind: Kind,
    copy: OnCopy,
    delete: Option<DeleteFunction>,
    extra: usize,
}

/// Keys are numbers, made as handles are.
static KEYVALS: Slots<Arc<Keyval>> = Slots::new("attribute keys");

#[derive(Clone, Debug)]
struct Attribute {
    key: c_int,
    keyval: Arc<Keyval>,
    value: usize,
}

/// The attributes of an object, in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Mutex<Vec<Attribute>>);

/// Something that has attributes.
pub(crate) trait Attributed {
    const KIND: Kind;

    fn attributes(&self) -> &Attributes;

    /// The value of an attribute that MPI sets: an address, for most.
    fn predefined(&self, key: c_int) -> Option<usize>;
}

/// What a function of the program gave: its code is the call's.
fn told(code: c_int, name: &str, key: c_int) -> Done {
    match code {
        face::SUCCESS => Ok(()),
        code => {
            let why = format!("the {name} function of attribute key {key} gave error code {code}");
            Err(Fail::new(code, why))
        }
    }
}

impl Attribute {
    fn delete(&self, handle: RawHandle) -> Done {
        let Some(delete) = self.keyval.delete else { return Ok(()) };
        let (value, extra) = (
            with_exposed_provenance_mut(self.value),
            with_exposed_provenance_mut(self.keyval.extra),
        );
        // SAFETY: the program gave this function for attributes with this key.
        told(unsafe { delete(handle, self.key, value, extra) }, "delete", self.key)
    }

    /// What a duplicate of the object has.
    fn copy(&self, handle: RawHandle) -> Done<Option<Attribute>> {
        let copy = match self.keyval.copy {
            OnCopy::Drop => return Ok(None),
            OnCopy::Keep => return Ok(Some(self.clone())),
            OnCopy::Call(copy) => copy,
        };
        let (value, extra) = (
            with_exposed_provenance_mut(self.value),
            with_exposed_provenance_mut(self.keyval.extra),
        );
        let (mut new, mut flag) = (std::ptr::null_mut::<c_void>(), 0);
        let into = (&raw mut new).cast();
        // SAFETY: the program gave this function for attributes with this key; `new` and `flag` are places of this call.
        let code = unsafe { copy(handle, self.key, extra, value, into, &raw mut flag) };
        told(code, "copy", self.key)?;
        let value = new.expose_provenance();
        Ok((flag != 0).then(|| Attribute { value, ..self.clone() }))
    }
}

impl Attributes {
    /// Those of a duplicate of the object with this handle.
    pub(crate) fn copy(&self, handle: RawHandle) -> Done<Attributes> {
        let all = lock(&self.0).clone();
        let copied = all.iter().filter_map(|attribute| attribute.copy(handle).transpose());
        Ok(Attributes(Mutex::new(copied.collect::<Done<_>>()?)))
    }

    /// Deletes all, the last one first, before the object with this handle is freed: if a function of the program fails,
    /// the object stays.
    pub(crate) fn delete_all(&self, handle: RawHandle) -> Done {
        loop {
            let Some(last) = lock(&self.0).last().cloned() else { return Ok(()) };
            last.delete(handle)?;
            lock(&self.0).retain(|attribute| attribute.key != last.key);
        }
    }

    fn find(&self, key: c_int) -> Option<Attribute> {
        lock(&self.0).iter().find(|attribute| attribute.key == key).cloned()
    }
}

/// The key of a number, which is for such objects.
fn keyval(key: c_int, kind: Kind) -> Done<Arc<Keyval>> {
    let found = KEYVALS.get(face::handle(key.cast_unsigned()));
    let found = found.filter(|keyval| keyval.kind == kind);
    let none =
        || Fail::new(face::ERR_KEYVAL, format!("{key} is no key of a {kind:?}'s attributes"));
    found.map(|keyval| Arc::clone(&keyval)).ok_or_else(none)
}

/// The attribute with a key, which may be freed already: attributes stay until they are deleted (MPI 4.1 §7.7.2).
fn find<T: Attributed>(object: &Object<T>, key: c_int) -> Done<Option<Attribute>> {
    match object.attributes().find(key) {
        Some(attribute) => Ok(Some(attribute)),
        None => keyval(key, T::KIND).map(|_| None),
    }
}

/// Sets an attribute. One with this key is deleted before.
pub(crate) fn set<T: Attributed>(object: Object<T>, key: c_int, value: *mut c_void) -> Done {
    let keyval = keyval(key, T::KIND)?;
    if let Some(before) = object.attributes().find(key) {
        before.delete(object.handle())?;
    }
    let value = value.expose_provenance();
    let mut list = lock(&object.attributes().0);
    match list.iter_mut().find(|attribute| attribute.key == key) {
        Some(attribute) => attribute.value = value,
        None => list.push(Attribute { key, keyval, value }),
    }
    Ok(())
}

/// Gives the value of an attribute, if it has one.
pub(crate) fn get<T: Attributed>(
    object: Object<T>,
    key: c_int,
    value: Out<usize>,
    flag: Out<c_int>,
) -> Done {
    let found = match object.predefined(key) {
        Some(found) => Some(found),
        None => find(&object, key)?.map(|attribute| attribute.value),
    };
    flag.set(c_int::from(found.is_some()));
    found.into_iter().for_each(|found| value.set(found));
    Ok(())
}

/// Deletes an attribute.
pub(crate) fn delete<T: Attributed>(object: Object<T>, key: c_int) -> Done {
    let none = || Fail::new(face::ERR_KEYVAL, format!("there is no attribute with key {key}"));
    let attribute = find(&object, key)?.ok_or_else(none)?;
    attribute.delete(object.handle())?;
    lock(&object.attributes().0).retain(|attribute| attribute.key != key);
    Ok(())
}

/// Makes a key.
///
/// # Safety
/// The functions are of their types, or predefined ones.
pub(crate) unsafe fn create(
    kind: Kind,
    copy: *const c_void,
    delete: *const c_void,
    keyval: Out<c_int>,
    extra: *mut c_void,
) -> Done {
    let copy = match copy.addr() {
        face::COMM_NULL_COPY_FN => OnCopy::Drop,
        face::COMM_DUP_FN => OnCopy::Keep,
        _ => {
            // SAFETY: the caller's promise; it is not null.
            let copy = unsafe { std::mem::transmute::<*const c_void, CopyFunction>(copy) };
            OnCopy::Call(copy)
        }
    };
    let delete = (delete.addr() != face::COMM_NULL_DELETE_FN).then(|| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*const c_void, DeleteFunction>(delete) }
    });
    let made = Arc::new(Keyval { kind, copy, delete, extra: extra.expose_provenance() });
    keyval.set(face::number(KEYVALS.insert(made)?).cast_signed());
    Ok(())
}

/// Frees a key. Attributes that have it keep it.
pub(crate) fn free(kind: Kind, key: Out<c_int>) -> Done {
    keyval(key.get(), kind)?;
    KEYVALS.free(face::handle(key.get().cast_unsigned()));
    key.set(face::KEYVAL_INVALID);
    Ok(())
}

impl Attributed for CommObject {
    const KIND: Kind = Kind::Comm;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// MPI 4.1 §9.1.2: addresses of numbers, which stay.
    fn predefined(&self, key: c_int) -> Option<usize> {
        static TAG_UB: c_int = crate::arg::TAG_UB;
        static HOST: c_int = face::PROC_NULL;
        static IO: c_int = face::ANY_SOURCE;
        static NUMBER_0: c_int = 0;
        static UNIVERSE: OnceLock<c_int> = OnceLock::new();
        let number: *const c_int = match key {
            face::TAG_UB => &raw const TAG_UB,
            face::HOST => &raw const HOST,
            face::IO => &raw const IO,
            face::WTIME_IS_GLOBAL | face::APPNUM => &raw const NUMBER_0,
            face::LASTUSEDCODE => LAST_USED.as_ptr(),
            face::UNIVERSE_SIZE => {
                let size = process::get()?.comm_world.comm.size();
                UNIVERSE.get_or_init(|| size.cast_signed())
            }
            _ => return None,
        };
        Some(number.expose_provenance())
    }
}

impl Attributed for TypeObject {
    const KIND: Kind = Kind::Type;

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn predefined(&self, _: c_int) -> Option<usize> {
        None
    }
}
