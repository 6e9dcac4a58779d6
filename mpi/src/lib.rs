//! The MPI 5.0 standard ABI over Gapless: a library that programs written for MPI run on, unmodified.
//!
//! Nothing here is Rust's to call: [`gapless_mpi_table`](../gapless_mpi_table/index.html) lists all functions, and from it
//! `build.rs` makes the exported ones. Each checks its arguments, calls a function of one of the modules below, and gives
//! an error to the error handler of the communicator, window or session that it was called on. The function has MPI's
//! name, unless the table names another one.
//! `cargo xtask mpi` links the library, and makes `mpicc` and `mpiexec`.
//!
//! - `face`: handles, constants and the status, as the library's ABI has them; with feature `mpich` MPICH's;
//! - `call`: how exported functions run, and errors; `errhandler`: error handlers, classes and codes;
//! - `arg`: arguments; `slots`: objects behind handles;
//! - `process`: what there is from init to finalize; `env`, `session`: init, finalize, sessions, abort, versions;
//! - `p2p`, `request`, `coll`, `win`, `comm`, `group`, `topology`, `datatype`, `op`, `attr`, `info`, `tool`: what
//!   functions mean, by the standard's chapters.
//!
//! # Safety of functions that are exported
//!
//! C gives addresses, and MPI says what lies there: memory that is as long as count and datatype say, and that a program
//! leaves alone while an operation is in flight; arrays that are as long as their counts; strings that end with 0;
//! functions of the type that MPI gives for the argument, which may be called as MPI says. That is believed, as nobody
//! can check it; `unsafe` functions of this crate rest on it, and on nothing else. Everything that can be checked is:
//! null pointers, handles that were freed or are of another kind, numbers out of their range, calls before init and
//! after finalize.
#![allow(clippy::too_many_arguments, reason = "MPI says which arguments its functions have")]
#![allow(unsafe_code, reason = "C gives addresses; the first page says what is believed of them")]

mod arg;
mod attr;
mod call;
mod coll;
mod comm;
mod datatype;
mod env;
mod errhandler;
mod exports;
mod face;
mod group;
mod info;
mod op;
mod p2p;
mod plain;
mod process;
mod request;
mod session;
mod slots;
mod tool;
mod topology;
mod win;
