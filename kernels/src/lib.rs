#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! One source, `strips.cl-cu` and `pack.cl-cu`, serves CUDA C++ and OpenCL C through a short prelude each. A kernel
//! moves a range of the packed stream between a *typed* side, where the bytes lie as a datatype says, and a *packed*
//! side, where they are contiguous. Each kernel is compiled for words of 1, 2, 4, 8 and 16 bytes, for both
//! directions, and for as many blocks as tiles or for fewer; [`Width`] says which width a piece of work allows.
//!
//! | family | typed side | found by |
//! |---|---|---|
//! | `copy` | no gaps | – |
//! | `rows` | long blocks on a grid | one search a strip (what 32 threads move) |
//! | `strided1`, `strided` | short blocks on a grid | a division by multiplication for each dimension |
//! | `transposed` | words whose stream runs across the memory's order | squares of 32 × 32 in shared memory |
//! | `affine`, `affine_short` | runs that lengthen or shorten by a constant (a triangle) | a square root |
//! | `listed` | equal blocks at listed displacements | one list entry a word |
//! | `mapped` | anything | a plan: 8 bytes for each 32 words, 4 or 8 for each block ([`plan`]) |
//! | `transfer` | two sides with gaps, no packed one | the methods of both sides |
//! | `pages` | pages at listed indices, on one side or both | one index a strip |
//! | `same_…` | two sides with the same gaps, no packed one | once for both, as the family of that name |
//! | `fused` | many requests, each with a typed side of its own | a search for the tile's request, then that request's method |
//!
//! Reductions ([`reduce`]) are kernels of their own, of a second image: `combine.h` and `reduce.cl-cu`. They combine the
//! elements of up to eight sources into a target, each side without gaps or with blocks on a grid.
//!
//! Besides, [`peers`] has collectives between GPUs: kernels that wait for each other. They are for CUDA alone, because
//! OpenCL has no release that other devices see.
//!
//! [`partitioned`] has what kernels of users exchange parts of messages with, for CUDA alone.
//!
//! [`persistent`] has kernels that stay, and run what their own host asks for without a launch: short copies
//! ([`copy_worker`]), and short collectives ([`peers::calls`]). They are for CUDA alone.
//!
//! [`worker`] has the kernel that runs tasks of other processes (XTQ) without a launch. It is for CUDA alone, too.
//!
//! The functions in [`launch`] turn shape, range and places into launches; they are pure. This crate knows no driver.
//! The caller passes `Launch::args` to the kernel after its pointers, in the order typed, packed, plan (of `listed`,
//! `mapped` and `fused`; both sides' of `transfer` and `pages`, and there what bad indices are reported to); of two
//! sides with gaps the source is the typed one. Arguments are one parameter by value; only in OpenCL those of
//! [`Family::tabled`] are in a buffer, which is the parameter.
//!
//! Units are bytes unless a name says words; words are of the launch's width.
#![forbid(unsafe_code)]

pub mod args;
pub mod copy_worker;
mod divide;
mod kernel;
pub mod launch;
pub mod lookup;
pub mod partitioned;
pub mod peers;
pub mod persistent;
pub mod plan;
pub mod reduce;
mod source;
pub mod worker;

pub use divide::divide;
pub use kernel::{Direction, Family, Kernel, Width};
pub use source::{
    IMAGE, REDUCE_IMAGE, REDUCE_REGISTERS, REGISTERS, opencl_layout_source, opencl_reduce_source,
    opencl_source,
};
