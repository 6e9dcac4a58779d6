//! Info objects (MPI 4.1 chapter 10): ordered pairs of a key and a value, both text.

use crate::arg::{self, HandleOut, Out, Text, lock};
use crate::call::{Done, Fail};
use crate::face::{self, RawHandle};
use crate::process;
use crate::slots::{Object, Slots};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, OnceLock};

/// An info: pairs in the order of their first set.
#[derive(Debug, Default)]
pub(crate) struct InfoObject {
    pairs: Mutex<Vec<(CString, CString)>>,
}

pub(crate) type Info = Object<InfoObject>;

static INFOS: Slots<InfoObject> = Slots::new("infos");

/// Characters that a key may have, and a value.
const KEY: usize = 255;
const VALUE: usize = face::MAX_INFO_VAL as usize;

/// The info of a handle.
pub(crate) fn find(handle: RawHandle) -> Option<Info> {
    static ENV: OnceLock<InfoObject> = OnceLock::new();
    match handle {
        face::INFO_ENV => Some(Object::Predefined(ENV.get_or_init(environment), handle)),
        handle => INFOS.get(handle).map(Object::Made),
    }
}

impl InfoObject {
    /// An info of these pairs; zeros in them end them.
    pub(crate) fn of<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> InfoObject {
        let text = |text: &str| {
            let until = text.split('\0').next().unwrap_or_default();
            CString::new(until).unwrap_or_default()
        };
        let pair = |(key, value): (K, V)| (text(key.as_ref()), text(value.as_ref()));
        InfoObject { pairs: Mutex::new(pairs.into_iter().map(pair).collect()) }
    }

    /// The value of a key, as text.
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let pairs = lock(&self.pairs);
        let found = pairs.iter().find(|(its, _)| its.as_bytes() == key.as_bytes());
        found.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    /// Sets the value of a key.
    fn put(&self, key: &CStr, value: &CStr) {
        let mut pairs = lock(&self.pairs);
        match pairs.iter_mut().find(|(its, _)| its.as_c_str() == key) {
            Some((_, its)) => value.clone_into(its),
            None => pairs.push((key.to_owned(), value.to_owned())),
        }
    }

    /// Tells a program that gave it what was chosen.
    pub(crate) fn tell(&self, key: &CStr, value: &str) {
        if let Ok(value) = CString::new(value) {
            self.put(key, &value);
        }
    }

    pub(crate) fn copy(&self) -> InfoObject {
        InfoObject { pairs: Mutex::new(lock(&self.pairs).clone()) }
    }

    /// Gives the program a handle of it.
    pub(crate) fn give(self, info: HandleOut) -> Done {
        info.set(INFOS.insert(self)?);
        Ok(())
    }
}

/// Hints that an object has, with their values. Others are ignored.
pub(crate) struct Hints(Mutex<Vec<(&'static str, String)>>);

impl Hints {
    pub(crate) fn new(hints: &[(&'static str, &str)]) -> Hints {
        Hints(Mutex::new(hints.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()))
    }

    /// Takes the values that the program gives. What is true or false stays one of both.
    pub(crate) fn set(&self, info: Option<Info>) {
        let is_truth = |value: &str| ["true", "false"].contains(&value);
        for (key, value) in lock(&self.0).iter_mut() {
            let given = info.as_ref().and_then(|info| info.get(key));
            if let Some(given) = given.filter(|given| is_truth(given) || !is_truth(value)) {
                *value = given;
            }
        }
    }

    pub(crate) fn give(&self, info: HandleOut) -> Done {
        InfoObject::of(lock(&self.0).iter().map(|(key, value)| (*key, value))).give(info)
    }
}

/// `MPI_INFO_ENV`: how this process was started (MPI 4.1 §11.2.1).
fn environment() -> InfoObject {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    started(&arguments)
}

/// The same, by these arguments.
fn started(arguments: &[String]) -> InfoObject {
    let mut pairs = vec![("arch", std::env::consts::ARCH.to_owned()), ("host", crate::env::host())];
    if let Some((command, rest)) = arguments.split_first() {
        pairs.push(("command", command.clone()));
        pairs.push(("argv", rest.join(" ")));
    }
    if let Ok(folder) = std::env::current_dir() {
        pairs.push(("wdir", folder.to_string_lossy().into_owned()));
    }
    if let Some(process) = process::get() {
        pairs.push(("maxprocs", process.comm_world.comm.size().to_string()));
    }
    InfoObject::of(pairs)
}

/// The info, which is one.
fn some(info: Option<Info>) -> Done<Info> {
    info.ok_or_else(|| Fail::new(face::ERR_INFO, "info is MPI_INFO_NULL"))
}

/// The info, which the program has made.
fn made(info: Option<Info>) -> Done<Info> {
    match some(info)? {
        Object::Predefined(..) => {
            Err(Fail::new(face::ERR_INFO, "MPI_INFO_ENV cannot be changed or freed"))
        }
        info @ Object::Made(_) => Ok(info),
    }
}

/// A key that is not too long.
fn key_of(key: &CStr) -> Done<&CStr> {
    match key.count_bytes() {
        1..=KEY => Ok(key),
        len => {
            let why = format!("a key of {len} characters: it should have from 1 to {KEY}");
            Err(Fail::new(face::ERR_INFO_KEY, why))
        }
    }
}

pub(crate) fn info_create(info: HandleOut) -> Done {
    InfoObject::default().give(info)
}

pub(crate) unsafe fn info_create_env(
    argc: c_int,
    argv: *const *mut c_char,
    info: HandleOut,
) -> Done {
    let argc = if argv.is_null() { 0 } else { arg::len(argc.into(), "argc")? };
    let argument = |index| {
        // SAFETY: there are so many, as the first page of the crate says.
        let argument = unsafe { *argv.wrapping_add(index) };
        // SAFETY: each is null, or a string.
        let text = unsafe { arg::text(argument, "argv") }?;
        Ok(text.to_string_lossy().into_owned())
    };
    let arguments: Vec<String> = (0..argc).map(argument).collect::<Done<_>>()?;
    match arguments.is_empty() {
        true => environment().give(info),
        false => started(&arguments).give(info),
    }
}

pub(crate) fn info_dup(info: Option<Info>, newinfo: HandleOut) -> Done {
    some(info)?.copy().give(newinfo)
}

pub(crate) fn info_free(info: HandleOut) -> Done {
    made(arg::info(info.get())?)?;
    INFOS.free(info.get());
    info.set(face::INFO_NULL);
    Ok(())
}

pub(crate) fn info_set(info: Option<Info>, key: &CStr, value: &CStr) -> Done {
    let (info, key) = (made(info)?, key_of(key)?);
    if value.count_bytes() > VALUE {
        let why = format!("the value of {key:?} has more than {VALUE} characters");
        return Err(Fail::new(face::ERR_INFO_VALUE, why));
    }
    info.put(key, value);
    Ok(())
}

pub(crate) fn info_delete(info: Option<Info>, key: &CStr) -> Done {
    let (info, key) = (made(info)?, key_of(key)?);
    let mut pairs = lock(&info.pairs);
    let absent = || Fail::new(face::ERR_INFO_NOKEY, format!("there is no key {key:?}"));
    let index = pairs.iter().position(|(its, _)| its.as_c_str() == key).ok_or_else(absent)?;
    pairs.remove(index);
    Ok(())
}

/// The value of a key.
fn value_of(info: Option<Info>, key: &CStr) -> Done<Option<CString>> {
    let (info, key) = (some(info)?, key_of(key)?);
    let pairs = lock(&info.pairs);
    Ok(pairs.iter().find(|(its, _)| its.as_c_str() == key).map(|(_, value)| value.clone()))
}

pub(crate) unsafe fn info_get(
    info: Option<Info>,
    key: &CStr,
    valuelen: c_int,
    value: *mut c_char,
    flag: Out<c_int>,
) -> Done {
    arg::len(valuelen.into(), "valuelen")?;
    // SAFETY: there is room for `valuelen` characters and a 0 (MPI 3.1 §9).
    let value = unsafe { Text::new(value, valuelen.saturating_add(1), None) };
    let found = value_of(info, key)?;
    flag.set(c_int::from(found.is_some()));
    if let Some(found) = found {
        value.copy(found.to_bytes());
    }
    Ok(())
}

pub(crate) fn info_get_string(
    info: Option<Info>,
    key: &CStr,
    value: Text,
    flag: Out<c_int>,
) -> Done {
    let found = value_of(info, key)?;
    flag.set(c_int::from(found.is_some()));
    if let Some(found) = found {
        value.check("value")?;
        value.give_part(found.to_bytes());
    }
    Ok(())
}

pub(crate) fn info_get_valuelen(
    info: Option<Info>,
    key: &CStr,
    valuelen: Out<c_int>,
    flag: Out<c_int>,
) -> Done {
    let found = value_of(info, key)?;
    flag.set(c_int::from(found.is_some()));
    if let Some(found) = found {
        valuelen.set(arg::int(found.count_bytes()));
    }
    Ok(())
}

pub(crate) fn info_get_nkeys(info: Option<Info>, nkeys: Out<c_int>) -> Done {
    nkeys.set(arg::int(lock(&some(info)?.pairs).len()));
    Ok(())
}

pub(crate) unsafe fn info_get_nthkey(info: Option<Info>, n: c_int, key: *mut c_char) -> Done {
    let info = some(info)?;
    let pairs = lock(&info.pairs);
    let index = usize::try_from(n).ok();
    let absent = || Fail::new(face::ERR_ARG, format!("there is no key {n} of {}", pairs.len()));
    let (its, _) = index.and_then(|index| pairs.get(index)).ok_or_else(absent)?;
    // SAFETY: there is room for the longest key and a 0.
    unsafe { Text::new(key, arg::int(KEY + 1), None) }.give(&its.to_string_lossy())
}
