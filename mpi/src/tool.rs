//! The tools' interface (MPI 4.1 chapter 15).
//!
//! Control variables are the numbers of the cost model (`gapless tune`, [`tuning`]); performance variables are what
//! messages of this process have done, by protocol. There are no events.

use crate::arg::{self, Out, Room, Text};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::process;
use crate::slots::Slots;
use gapless::tuning::{self, KEYS, Key, Value};
use gapless::{Counters, Tuning};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

mod pvar;

pub(crate) use pvar::*;

/// How often the interface was initialized, and not finalized.
static USERS: AtomicUsize = AtomicUsize::new(0);

/// Control variables that a tool has handles of: their numbers.
static CVARS: Slots<usize> = Slots::new("handles of variables");

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
fn put<T: Copy>(at: Option<Out<T>>, value: T) {
    at.into_iter().for_each(|at| at.set(value));
}

/// A handle as tools have it.
fn tool_handle(handle: RawHandle) -> usize {
    face::number(handle) as usize
}

/// What it was made of.
fn raw(handle: usize) -> RawHandle {
    face::handle(u32::try_from(handle).unwrap_or(0))
}

/// There are no events, no sources of any, and no enumerations (MPI 4.1 §15.3.5, §15.3.8): their handles are wrong.
pub(crate) fn no_event() -> Done {
    ready()?;
    Err(no_handle())
}

/// So are their indices.
pub(crate) fn no_event_index() -> Done {
    ready()?;
    Err(fail(face::T_ERR_INVALID_INDEX, "there are no events and no sources of any"))
}

/// So are their names.
pub(crate) fn no_event_name() -> Done {
    ready()?;
    Err(fail(face::T_ERR_INVALID_NAME, "there are no events"))
}

/// How many there are of something, or how often that has changed.
pub(crate) fn number_of(number: usize, out: Out<c_int>) -> Done {
    ready()?;
    out.set(arg::int(number));
    Ok(())
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

pub(crate) fn t_cvar_get_info(
    cvar_index: c_int,
    name: Text,
    verbosity: Option<Out<c_int>>,
    datatype: Option<Out<RawHandle>>,
    enumtype: Option<Out<usize>>,
    desc: Text,
    bind: Option<Out<c_int>>,
    scope: Option<Out<c_int>>,
) -> Done {
    let key = at(KEYS, cvar_index)?;
    let unit = key.unit.name();
    let what = if unit.is_empty() { key.what.to_owned() } else { format!("{} ({unit})", key.what) };
    name.give_part(key.path().as_bytes());
    desc.give_part(what.as_bytes());
    put(verbosity, face::T_VERBOSITY_TUNER_DETAIL);
    put(datatype, type_of(key));
    put(enumtype, face::T_ENUM_NULL);
    put(bind, face::T_BIND_NO_OBJECT);
    put(scope, face::T_SCOPE_LOCAL);
    Ok(())
}

pub(crate) fn t_cvar_handle_alloc(
    cvar_index: c_int,
    _obj_handle: *mut c_void,
    handle: Out<usize>,
    count: Out<c_int>,
) -> Done {
    at(KEYS, cvar_index)?;
    handle.set(tool_handle(CVARS.insert(usize::try_from(cvar_index).unwrap_or(0))?));
    count.set(1);
    Ok(())
}

pub(crate) fn t_cvar_handle_free(handle: Out<usize>) -> Done {
    ready()?;
    if !CVARS.free(raw(handle.get())) {
        return Err(no_handle());
    }
    handle.set(face::T_CVAR_HANDLE_NULL);
    Ok(())
}

/// The variable of a handle.
fn key_of(handle: usize) -> Done<&'static Key> {
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

pub(crate) unsafe fn t_cvar_read(handle: usize, buf: *mut c_void) -> Done {
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

pub(crate) unsafe fn t_cvar_write(handle: usize, buf: *const c_void) -> Done {
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
pub(crate) const CATEGORIES: [(&str, &str); 3] = [
    ("host", "the cost of messages in memory of the host"),
    ("device", "the cost of messages in memory of devices"),
    ("protocols", "what messages have done, by protocol"),
];

/// The numbers of the control variables of a category, and of its performance variables.
fn members(cat_index: c_int) -> Done<(Vec<c_int>, Vec<c_int>)> {
    let (name, _) = at(&CATEGORIES, cat_index)?;
    let of_table = (0..).zip(KEYS).filter(|(_, key)| key.table == *name).map(|(index, _)| index);
    let of_messages = if *name == "protocols" { arg::int(pvars()) } else { 0 };
    Ok((of_table.collect(), (0..of_messages).collect()))
}

pub(crate) fn t_category_get_index(name: &CStr, cat_index: Out<c_int>) -> Done {
    index_of(CATEGORIES.iter().map(|(name, _)| (*name).to_owned()), name, cat_index)
}

pub(crate) fn t_category_get_info(
    cat_index: c_int,
    name: Text,
    desc: Text,
    num_cvars: Option<Out<c_int>>,
    num_pvars: Option<Out<c_int>>,
    num_categories: Option<Out<c_int>>,
) -> Done {
    let (its, what) = at(&CATEGORIES, cat_index)?;
    let (cvars, pvars) = members(cat_index)?;
    name.give_part(its.as_bytes());
    desc.give_part(what.as_bytes());
    put(num_cvars, arg::int(cvars.len()));
    put(num_pvars, arg::int(pvars.len()));
    put(num_categories, 0);
    Ok(())
}

pub(crate) fn t_category_get_cvars(cat: c_int, indices: Room<c_int>) -> Done {
    indices.give_first(members(cat)?.0)
}

pub(crate) fn t_category_get_pvars(cat: c_int, indices: Room<c_int>) -> Done {
    indices.give_first(members(cat)?.1)
}

pub(crate) fn t_category_get_categories(cat: c_int, _indices: Room<c_int>) -> Done {
    at(&CATEGORIES, cat).map(drop)
}

pub(crate) fn t_category_get_events(cat: c_int, _indices: Room<c_int>) -> Done {
    at(&CATEGORIES, cat).map(drop)
}

pub(crate) fn t_category_get_num_events(cat: c_int, num_events: Out<c_int>) -> Done {
    at(&CATEGORIES, cat)?;
    num_events.set(0);
    Ok(())
}
