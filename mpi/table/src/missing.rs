//! The page that says what is not there.

use crate::functions;
use std::fmt::Write;

/// As Markdown: the functions that answer `MPI_ERR_UNSUPPORTED_OPERATION`.
#[must_use]
pub fn missing() -> String {
    let mut out = String::from(
        "# Functions of MPI 5.0 that are not there\n\nThey are exported, and fail by the error handler with \
         `MPI_ERR_UNSUPPORTED_OPERATION`.\nMade from `mpi/table/functions.txt` by `cargo xtask mpi`.\n\n",
    );
    for function in functions().iter().filter(|function| function.module.is_none()) {
        let names: Vec<String> =
            function.exports().iter().map(|export| format!("`MPI_{}`", export.name)).collect();
        let _ = writeln!(out, "- {}", names.join(", "));
    }
    out
}
