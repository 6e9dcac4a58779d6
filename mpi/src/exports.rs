//! The exported functions, made from the table.
#![allow(
    non_snake_case,
    unused_unsafe,
    clippy::useless_conversion,
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "made by a program, named by MPI"
)]

use crate::arg::{self, CountOut, Numbers, Room, StatusOut, StatusesOut, Text};
use crate::call::{Fail, Form, Subject, run, run_any_time, run_tool};
use crate::coll::Blocks;
use crate::datatype::{Elements, Packed};
use crate::face::{self, RawHandle, Status};
use crate::win::Target;
use crate::{
    attr, coll, comm, datatype, env, errhandler, group, info, op, p2p, plain, request, session,
    tool, topology, win,
};
use gapless::raw::Operation;
use gapless::tuning::KEYS;
use gapless::{Datatype, SendMode};
use std::ffi::{c_char, c_int, c_void};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
