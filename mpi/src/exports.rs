//! The exported functions, made from the table.
#![allow(
    non_snake_case,
    unused_unsafe,
    clippy::useless_conversion,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "made by a program, named by MPI"
)]

use crate::arg::{self, CountOut, Numbers, StatusOut, StatusesOut};
use crate::call::{Fail, Form, Subject, run, run_any_time, run_tool};
use crate::face::{RawHandle, Status};
use crate::{
    attr, coll, comm, datatype, env, errhandler, group, info, op, p2p, plain, request, session,
    tool, topology, win,
};
use std::ffi::{c_char, c_int, c_void};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
