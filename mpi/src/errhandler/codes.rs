//! Error classes and codes that a program adds (MPI 4.1 §9.5), and what is said of all of them.

use super::class::class_text;
use crate::arg::{Out, lock};
use crate::call::{Done, Fail};
use crate::face;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// A code that was added. A class is a code of its own class.
struct Code {
    class: c_int,
    text: String,
}

static ADDED: Mutex<BTreeMap<c_int, Code>> = Mutex::new(BTreeMap::new());

/// The attribute `MPI_LASTUSEDCODE`: its place, as programs have a pointer to it.
pub(crate) static LAST_USED: AtomicI32 = AtomicI32::new(face::ERR_LASTCODE);

/// Whether it is a class of MPI's.
pub(crate) fn is_predefined(code: c_int) -> bool {
    class_text(code).is_some()
}

/// What is said of a code; `None`: there is no such code.
pub(crate) fn text_of(code: c_int) -> Option<String> {
    let of_program = || lock(&ADDED).get(&code).map(|it| it.text.clone());
    class_text(code).map(str::to_owned).or_else(of_program)
}

pub(crate) fn no_code(code: c_int) -> Fail {
    Fail::new(face::ERR_ARG, format!("there is no error code {code}"))
}

/// Adds a code; without a class it is one.
fn add(class: Option<c_int>, code: Out<c_int>) -> Done {
    let mut added = lock(&ADDED);
    let last = added.last_key_value().map_or(face::ERR_LASTCODE, |(last, _)| *last);
    let full = || Fail::new(face::ERR_NO_MEM, "there is no number left for an error code");
    let new = last.checked_add(1).ok_or_else(full)?;
    added.insert(new, Code { class: class.unwrap_or(new), text: String::new() });
    LAST_USED.store(new, Ordering::Relaxed);
    code.set(new);
    Ok(())
}

pub(crate) fn add_error_class(errorclass: Out<c_int>) -> Done {
    add(None, errorclass)
}

pub(crate) fn add_error_code(errorclass: c_int, errorcode: Out<c_int>) -> Done {
    if class_of_code(errorclass) != Some(errorclass) {
        let why = format!("there is no error class {errorclass}");
        return Err(Fail::new(face::ERR_ARG, why));
    }
    add(Some(errorclass), errorcode)
}

/// Changes the text of a code that was added.
fn set_text(code: c_int, text: String) -> Done {
    let mut added = lock(&ADDED);
    let it = added.get_mut(&code).ok_or_else(|| no_code_added(code))?;
    it.text = text;
    Ok(())
}

fn no_code_added(code: c_int) -> Fail {
    Fail::new(face::ERR_ARG, format!("error code {code} was not added by the program"))
}

pub(crate) fn add_error_string(errorcode: c_int, string: &CStr) -> Done {
    set_text(errorcode, string.to_string_lossy().into_owned())
}

pub(crate) fn remove_error_string(errorcode: c_int) -> Done {
    set_text(errorcode, String::new())
}

fn remove(code: c_int, is_class: bool) -> Done {
    let mut added = lock(&ADDED);
    match added.get(&code) {
        Some(it) if (it.class == code) != is_class => return Err(no_code_added(code)),
        None => return Err(no_code_added(code)),
        Some(it) if !it.text.is_empty() => {
            let why = format!("error code {code} still has a string");
            return Err(Fail::new(face::ERR_OTHER, why));
        }
        Some(_) => {}
    }
    if is_class && added.iter().any(|(other, it)| *other != code && it.class == code) {
        let why = format!("error class {code} still has codes");
        return Err(Fail::new(face::ERR_OTHER, why));
    }
    added.remove(&code);
    let last = added.last_key_value().map_or(face::ERR_LASTCODE, |(last, _)| *last);
    LAST_USED.store(last, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn remove_error_class(errorclass: c_int) -> Done {
    remove(errorclass, true)
}

pub(crate) fn remove_error_code(errorcode: c_int) -> Done {
    remove(errorcode, false)
}

fn class_of_code(code: c_int) -> Option<c_int> {
    match is_predefined(code) {
        true => Some(code),
        false => lock(&ADDED).get(&code).map(|it| it.class),
    }
}

pub(crate) fn error_class(errorcode: c_int, errorclass: Out<c_int>) -> Done {
    errorclass.set(class_of_code(errorcode).ok_or_else(|| no_code(errorcode))?);
    Ok(())
}
