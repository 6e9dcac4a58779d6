//! The tools' interface (MPI 4.1 chapter 15).
//!
//! Control variables are the numbers of the cost model (`gapless tune`, [`tuning`]); performance variables are what
//! messages of this process have done, by protocol. There are no events.

use crate::arg::{self, Out};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::process;
use crate::slots::Slots;
use gapless::tuning::{self, KEYS, Key, Value};
use gapless::{Counters, Tuning};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

mod events;
mod pvar;

pub(crate) use events::*;
pub(crate) use pvar::*;

/// How often the interface was initialized, and not finalized.
static USERS: AtomicUsize = AtomicUsize::new(0);

/// Control variables that a tool has handles of: their numbers.
static CVARS: Slots<usize> = Slots::new();

fn fail(code: c_int, why: &'static str) -> Fail {
    Fail::new(code, why)
}

/// Whether the interface is initialized.
fn ready() -> Done {
    match USERS.load(Ordering::Relaxed) {
        0 => Err(fail(face::T_ERR_NOT_INITIALIZED, "MPI_T_init_thread was not called")),
        _ => Ok(()),
    }
}

/// The one of a list with this number.
fn at<T>(list: &[T], index: c_int) -> Done<&T> {
    ready()?;
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.ok_or_else(|| fail(face::T_ERR_INVALID_INDEX, "there is no such index"))
}

/// The number of the one with this name.
fn index_of(mut names: impl Iterator<Item = String>, name: &CStr, index: Out<c_int>) -> Done {
    ready()?;
    let found = names.position(|its| its.as_bytes() == name.to_bytes());
    let none = || fail(face::T_ERR_INVALID_NAME, "there is nothing with this name");
    index.set(arg::int(found.ok_or_else(none)?));
    Ok(())
}

/// Stores a value, unless the tool does not want it.
///
/// # Safety
/// If it is not null, there is room.
unsafe fn put<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: the caller's promise.
        unsafe { at.write(value) };
    }
}

/// Stores a text, as much of it as there is room for, and how long it is with the 0 behind it (MPI 4.1 §15.3.3).
///
/// # Safety
/// If the length is not null it is one, and unless it is 0 or the place is null, there is room for so many characters.
unsafe fn put_text(text: &str, at: *mut c_char, len: *mut c_int) -> Done {
    if len.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let out = unsafe { arg::out(len, "a length") }?;
    if !at.is_null() && out.get() > 0 {
        // SAFETY: as above.
        unsafe { crate::env::give_text(text, out.get(), at, out) };
    }
    out.set(arg::int(text.len() + 1));
    Ok(())
}

/// A handle as tools have it.
fn tool_handle(handle: RawHandle) -> *mut c_void {
    std::ptr::without_provenance_mut(face::number(handle) as usize)
}

/// What it was made of.
fn raw(handle: *mut c_void) -> RawHandle {
    face::handle(u32::try_from(handle.addr()).unwrap_or(0))
}

/// A place of a handle.
///
/// # Safety
/// It is null, or one.
unsafe fn place(handle: *mut c_void) -> Done<Out<*mut c_void>> {
    // SAFETY: the caller's promise.
    let place = unsafe { arg::out(handle.cast::<*mut c_void>(), "handle") };
    place.map_err(|_| fail(face::T_ERR_INVALID, "handle is a null pointer"))
}

fn no_handle() -> Fail {
    fail(face::T_ERR_INVALID_HANDLE, "the handle is none, or was freed")
}

pub(crate) fn t_init_thread(required: c_int, provided: Out<c_int>) -> Done {
    if !(face::THREAD_SINGLE..=face::THREAD_MULTIPLE).contains(&required) {
        return Err(fail(face::T_ERR_INVALID, "there is no such thread level"));
    }
    USERS.fetch_add(1, Ordering::Relaxed);
    provided.set(face::THREAD_MULTIPLE);
    Ok(())
}

pub(crate) fn t_finalize() -> Done {
    let less = |users: usize| users.checked_sub(1);
    let done = USERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    done.map(drop).or_else(|_| ready())
}

pub(crate) fn t_cvar_get_num(num_cvar: Out<c_int>) -> Done {
    ready()?;
    num_cvar.set(arg::int(KEYS.len()));
    Ok(())
}

pub(crate) fn t_cvar_get_index(name: &CStr, cvar_index: Out<c_int>) -> Done {
    index_of(KEYS.iter().map(Key::path), name, cvar_index)
}

/// The type of a control variable.
fn type_of(key: &Key) -> RawHandle {
    match (key.value)(&mut Tuning::default()) {
        Value::Real(_) => face::DOUBLE,
        Value::Whole(_) => face::UNSIGNED_LONG_LONG,
        Value::Short(_) => face::UNSIGNED,
    }
}

pub(crate) unsafe fn t_cvar_get_info(
    cvar_index: c_int,
    name: *mut c_char,
    name_len: *mut c_int,
    verbosity: *mut c_int,
    datatype: *mut RawHandle,
    enumtype: *mut c_void,
    desc: *mut c_char,
    desc_len: *mut c_int,
    bind: *mut c_int,
    scope: *mut c_int,
) -> Done {
    let key = at(KEYS, cvar_index)?;
    let unit = key.unit.name();
    let what = if unit.is_empty() { key.what.to_owned() } else { format!("{} ({unit})", key.what) };
    // SAFETY: this and what follows: as the first page of the crate says.
    unsafe { put_text(&key.path(), name, name_len) }?;
    // SAFETY: as above.
    unsafe { put_text(&what, desc, desc_len) }?;
    // SAFETY: as above.
    unsafe { put(verbosity, face::T_VERBOSITY_TUNER_DETAIL) };
    // SAFETY: as above.
    unsafe { put(datatype, type_of(key)) };
    // SAFETY: as above.
    unsafe { put(enumtype.cast(), face::T_ENUM_NULL) };
    // SAFETY: as above.
    unsafe { put(bind, face::T_BIND_NO_OBJECT) };
    // SAFETY: as above.
    unsafe { put(scope, face::T_SCOPE_LOCAL) };
    Ok(())
}

pub(crate) unsafe fn t_cvar_handle_alloc(
    cvar_index: c_int,
    _obj_handle: *mut c_void,
    handle: *mut c_void,
    count: Out<c_int>,
) -> Done {
    at(KEYS, cvar_index)?;
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(handle) }?;
    let full = || fail(face::T_ERR_OUT_OF_HANDLES, "there are a million handles");
    let made = CVARS.insert(usize::try_from(cvar_index).unwrap_or(0)).ok_or_else(full)?;
    place.set(tool_handle(made));
    count.set(1);
    Ok(())
}

pub(crate) unsafe fn t_cvar_handle_free(handle: *mut c_void) -> Done {
    ready()?;
    // SAFETY: as the first page of the crate says.
    let place = unsafe { place(handle) }?;
    if !CVARS.free(raw(place.get())) {
        return Err(no_handle());
    }
    place.set(std::ptr::without_provenance_mut(face::T_CVAR_HANDLE_NULL));
    Ok(())
}

/// The variable of a handle.
fn key_of(handle: *mut c_void) -> Done<&'static Key> {
    ready()?;
    let index = CVARS.get(raw(handle)).ok_or_else(no_handle)?;
    KEYS.get(*index).ok_or_else(no_handle)
}

/// The numbers that are in use, or will be.
fn tuning_now() -> Done<Tuning> {
    let config = process::get().and_then(|process| process.with_world(gapless::World::config));
    match config {
        Some(config) => Ok(config?.tuning),
        None => tuning::load().map_err(|error| Fail::new(face::T_ERR_INVALID, error.to_string())),
    }
}

pub(crate) unsafe fn t_cvar_read(handle: *mut c_void, buf: *mut c_void) -> Done {
    let (key, buf) = (key_of(handle)?, arg::pointer(buf, "buf")?);
    match (key.value)(&mut tuning_now()?) {
        // SAFETY: this and what follows: there is room for a variable of its type.
        Value::Real(value) => unsafe { buf.cast::<f64>().write_unaligned(*value) },
        // SAFETY: as above.
        Value::Whole(value) => unsafe { buf.cast::<u64>().write_unaligned(*value) },
        // SAFETY: as above.
        Value::Short(value) => unsafe { buf.cast::<u32>().write_unaligned(*value) },
    }
    Ok(())
}

pub(crate) unsafe fn t_cvar_write(handle: *mut c_void, buf: *const c_void) -> Done {
    let (key, buf) = (key_of(handle)?, arg::pointer(buf.cast_mut(), "buf")?);
    let now = process::get().and_then(|process| process.with_world(gapless::World::config));
    let later = || fail(face::T_ERR_CVAR_SET_NOT_NOW, "MPI is not initialized");
    let mut config = now.ok_or_else(later)??;
    let given = match (key.value)(&mut config.tuning) {
        Value::Real(value) => {
            // SAFETY: this and what follows: there is a variable of its type.
            *value = unsafe { buf.cast::<f64>().read_unaligned() };
            *value
        }
        Value::Whole(value) => {
            // SAFETY: as above.
            *value = unsafe { buf.cast::<u64>().read_unaligned() };
            *value as f64
        }
        Value::Short(value) => {
            // SAFETY: as above.
            *value = unsafe { buf.cast::<u32>().read_unaligned() };
            f64::from(*value)
        }
    };
    if !(key.least..=key.most).contains(&given) {
        return Err(fail(face::T_ERR_INVALID, "the variable cannot have this value"));
    }
    let set =
        process::get().and_then(|process| process.with_world(|world| world.set_config(config)));
    Ok(set.ok_or_else(later)??)
}

/// What performance variables count.
fn counters() -> Done<Counters> {
    let now = process::get().and_then(|process| process.with_world(gapless::World::counters));
    Ok(now.unwrap_or_else(|| Ok(Counters::default()))?)
}

/// Categories: the tables of control variables, and the performance variables.
const CATEGORIES: [(&str, &str); 3] = [
    ("host", "the cost of messages in memory of the host"),
    ("device", "the cost of messages in memory of devices"),
    ("protocols", "what messages have done, by protocol"),
];

/// The numbers of the control variables of a category, and of its performance variables.
fn members(cat_index: c_int) -> Done<(Vec<c_int>, Vec<c_int>)> {
    let (name, _) = at(&CATEGORIES, cat_index)?;
    let of_table = (0..).zip(KEYS).filter(|(_, key)| key.table == *name).map(|(index, _)| index);
    let pvars = if *name == "protocols" { arg::int(pvar::len()) } else { 0 };
    Ok((of_table.collect(), (0..pvars).collect()))
}

pub(crate) fn t_category_get_num(num_cat: Out<c_int>) -> Done {
    ready()?;
    num_cat.set(arg::int(CATEGORIES.len()));
    Ok(())
}

pub(crate) fn t_category_get_index(name: &CStr, cat_index: Out<c_int>) -> Done {
    index_of(CATEGORIES.iter().map(|(name, _)| (*name).to_owned()), name, cat_index)
}

pub(crate) unsafe fn t_category_get_info(
    cat_index: c_int,
    name: *mut c_char,
    name_len: *mut c_int,
    desc: *mut c_char,
    desc_len: *mut c_int,
    num_cvars: *mut c_int,
    num_pvars: *mut c_int,
    num_categories: *mut c_int,
) -> Done {
    let (its, what) = at(&CATEGORIES, cat_index)?;
    let (cvars, pvars) = members(cat_index)?;
    // SAFETY: this and what follows: as the first page of the crate says.
    unsafe { put_text(its, name, name_len) }?;
    // SAFETY: as above.
    unsafe { put_text(what, desc, desc_len) }?;
    // SAFETY: as above.
    unsafe { put(num_cvars, arg::int(cvars.len())) };
    // SAFETY: as above.
    unsafe { put(num_pvars, arg::int(pvars.len())) };
    // SAFETY: as above.
    unsafe { put(num_categories, 0) };
    Ok(())
}

/// Stores the first of these numbers.
///
/// # Safety
/// There is room for `len`.
unsafe fn give(numbers: &[c_int], len: c_int, indices: *mut c_int) -> Done {
    let room = usize::try_from(len).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { arg::give_all(indices, numbers.get(..room).unwrap_or(numbers), "indices") }
}

pub(crate) unsafe fn t_category_get_cvars(cat: c_int, len: c_int, indices: *mut c_int) -> Done {
    // SAFETY: as the first page of the crate says.
    unsafe { give(&members(cat)?.0, len, indices) }
}

pub(crate) unsafe fn t_category_get_pvars(cat: c_int, len: c_int, indices: *mut c_int) -> Done {
    // SAFETY: as the first page of the crate says.
    unsafe { give(&members(cat)?.1, len, indices) }
}

pub(crate) fn t_category_get_categories(cat: c_int, _len: c_int, _indices: *mut c_int) -> Done {
    at(&CATEGORIES, cat).map(drop)
}

pub(crate) fn t_category_get_events(cat: c_int, _len: c_int, _indices: *mut c_int) -> Done {
    at(&CATEGORIES, cat).map(drop)
}

pub(crate) fn t_category_get_num_events(cat: c_int, num_events: Out<c_int>) -> Done {
    at(&CATEGORIES, cat)?;
    num_events.set(0);
    Ok(())
}

pub(crate) fn t_category_changed(update_number: Out<c_int>) -> Done {
    ready()?;
    update_number.set(0);
    Ok(())
}
