//! Constants, as Rust.

use crate::{Constant, Face, constants as all, handle_type};
use std::fmt::Write;

/// The source of all constants of a face. Handles are `RawHandle`, addresses `usize`, the others `c_int`, but for
/// offsets, which are `i64`.
#[must_use]
pub fn constants(face: Face) -> String {
    let mut out = String::new();
    for constant in all() {
        let Constant { name, kind, .. } = constant;
        let value = constant.value(face);
        // No word of Rust begins with a digit.
        let name = match name.strip_prefix('2') {
            Some(rest) => format!("TWO_{rest}"),
            None => name.to_owned(),
        };
        let _ = match constant.alias() {
            Some(_) => continue,
            None if handle_type(kind).is_some() => {
                writeln!(out, "pub(crate) const {name}: RawHandle = {value}_u32 as RawHandle;")
            }
            None if kind == "int" => writeln!(out, "pub(crate) const {name}: c_int = {value};"),
            None if kind == "offset" => writeln!(out, "pub(crate) const {name}: i64 = {value};"),
            None => {
                writeln!(out, "pub(crate) const {name}: usize = ({value}_isize).cast_unsigned();")
            }
        };
    }
    out
}
