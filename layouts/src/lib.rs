#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! Benchmarks of non-contiguous messages are only as good as the layouts they move. This crate
//! holds the ones the literature uses, with the parameters it uses: the twelve micro-applications
//! of DDTBench (Schneider, Gerstenberger, Hoefler, EuroMPI 2012), the matrices and faces of the
//! GPU datatype papers, a 26-neighbour halo, what servers and trainers of language models exchange, and Open MPI's
//! datatype test corpus.
//!
//! A [`Case`] is one message: what is sent, what it is received as, where both are in the application's buffers, and
//! what is known in advance (payload, merged blocks). So its user can check the datatype layer against the literature
//! and not against itself.
//!
//! * [`cases`] looks a layout up by the name a user types; [`cases_with`] with other options.
//! * [`families`] lists what there is; [`default_set`] is a representative selection.
//! * The modules build one layout each from explicit parameters ([`papers`], [`cube`], [`wrf`],
//!   [`milc`], [`nas`], [`lammps`], [`specfem`], [`fft`], [`pages`], [`dispatch`], [`reshard`], [`openmpi`]).
//! * `text` (feature `text`) reads a layout of one's own: constructor calls as TOML.
//!
//! Units: bytes unless a name says otherwise. Arrays are column-major (first dimension fastest)
//! and indices start at 0. No buffer of any case exceeds [`MAX_BUFFER_BYTES`]; larger parameters
//! are refused with a [`LayoutError`]. Building a case allocates index lists, never buffers.

#![forbid(unsafe_code)]

mod case;
mod catalog;
mod error;
mod families;
mod index_list;

pub mod cube;
pub mod dispatch;
pub mod fft;
pub mod lammps;
pub mod milc;
pub mod nas;
pub mod openmpi;
pub mod pages;
pub mod papers;
pub mod reshard;
pub mod specfem;
#[cfg(feature = "text")]
pub mod text;
pub mod wrf;

pub use case::{Axis, Case, MAX_BUFFER_BYTES, Side};
pub use catalog::{
    Options, cases, cases_with, default_set, documented_cases, families, group_members, groups,
    layout_names,
};
pub use error::LayoutError;
pub use families::{Family, FamilyInfo, Group};
pub use index_list::{IndexList, MAX_LIST_ENTRIES};
