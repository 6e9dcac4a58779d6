#![doc = include_str!("../README.md")]
//!
//! ## What is here
//!
//! Data that a program sends is seldom contiguous: a column of a matrix, a face of a cube, every
//! particle that left the box. A [`Datatype`] describes where such data lies; this crate turns the
//! description into code that moves it. It knows bytes and displacements only: no processes, no
//! devices, no clock, no files, no threads.
//!
//! ## From description to bytes
//!
//! ```text
//!  Primitive ── constructors ───────────► Datatype        a tree; Contents takes it apart again
//!                                            │ commit
//!                                            ▼
//!                     Signature ◄───────  Layout  ──────► flatten ── bytes ── unflatten ► Layout
//!                     what may match         │            for the peer
//!                                            │            Shape: closed forms for fast paths
//!                                            ▼
//!                                        Convertor ─────► pack, unpack, iov, transfer
//!                                        a cursor at any byte of the packed stream
//! ```
//!
//! A datatype's meaning is its *typemap*, the sequence of basic types with their displacements (MPI 4.1 §5.1). Its
//! order is the packed order, and this crate never changes it: commit merges neighbouring runs and recognises regular
//! ones, but sorts nothing. Displacements are relative to the buffer's origin and may be negative. Everything is in
//! bytes unless a name says otherwise; counts and displacements have 64 bits everywhere.
//!
//! ## Where things are
//!
//! - [`Datatype`] and its constructors, [`Primitive`]; [`Subarray`] and [`Darray`] for constructors with many
//!   arguments; [`Contents`] and [`Envelope`]: what a type was made of.
//! - [`Layout`]: a committed type; [`Shape`]: its regular form, if it has one; [`Pages`]: one layout, repeated at
//!   indices.
//! - [`Convertor`], [`transfer`], [`pack`], [`unpack`]: what moves bytes; [`pack_external`]: MPI's portable
//!   representation.
//! - [`Equivalence`], [`AnyBits`], [`CheckedBits`]: the datatypes of Rust types, and what may be sent or received.
//!   `#[derive(Datatype)]` for structs is in `gapless-derive`. [`FitError`]: why a layout does not fit a slice.
//! - [`Signature`]: which messages match; [`FlattenError`]: why bytes of a peer are no layout.
//! - [`limits`]: every bound that is enforced, each with a typed error.
//! - `naive` and `testkit` (feature `testkit`): the oracle, and random types to test layouts with.
//!
//! Read first: MPI 4.1 chapter 5.

// What is where, for who reads the code; begin with `program.rs` and `convertor.rs`.
//
// - `primitive`, `datatype`, `build/`, `contents`, `bounds`, `memory_kind`: what a type is.
// - `equivalence`, `buffer`, `fit`: the datatypes of Rust types, what may be sent or received, and whether a layout
//   fits the elements of a slice.
// - `layout`, `program`, `optimize`, `shape`: what commit makes of it.
// - `convertor`, `copy`, `transfer`, `pack`: what moves bytes; besides `equivalence` and `external` the only files with
//   `unsafe`.
// - `items`, `external`: the basic items one by one, and MPI's portable representation of them; `fortran`: types by
//   what they hold.
// - `signature`, `flatten`: what a peer receives of it.

#![deny(unsafe_code)]

mod bounds;
mod buffer;
mod build;
mod contents;
#[allow(unsafe_code, reason = "raw pack and unpack, proved in place")]
mod convertor;
#[allow(unsafe_code, reason = "the copy loops, proved in place")]
mod copy;
mod datatype;
#[allow(unsafe_code, reason = "says which types have a datatype, which unsafe code believes")]
mod equivalence;
mod error;
#[allow(unsafe_code, reason = "reads and writes items where they lie, proved in place")]
mod external;
mod fit;
mod flatten;
mod footprint;
mod fortran;
mod items;
mod layout;
pub mod limits;
mod memory_kind;
mod optimize;
#[allow(unsafe_code, reason = "packs and unpacks slices of elements that have gaps")]
mod pack;
mod pages;
mod primitive;
mod program;
mod run;
mod shape;
mod signature;
#[allow(unsafe_code, reason = "layout to layout copies, proved in place")]
mod transfer;

#[cfg(any(test, feature = "testkit"))]
pub mod naive;
#[cfg(feature = "testkit")]
pub mod testkit;

#[doc(hidden)]
pub use buffer::Spread;
pub use buffer::{Buffer, BufferMut};
pub use build::{Darray, Subarray};
pub use contents::{Combiner, Contents, Distribution, Envelope, Order};
pub use convertor::{Convertor, ConvertorError};
pub use datatype::Datatype;
pub use equivalence::{AnyBits, CheckedBits, Equivalence};
pub use error::{Argument, Problem, Quantity, TypeError};
pub use external::{ExternalError, external_size, pack_external, unpack_external};
pub use fit::{ElementType, FitError};
pub use flatten::{FlattenError, FlattenFault};
pub use footprint::Footprint;
pub use fortran::TypeClass;
pub use layout::{BlockLengths, Layout, LayoutId, WeakLayout};
pub use memory_kind::MemoryKind;
pub use pack::{pack, unpack, unpack_checked};
pub use pages::{PageIndices, Pages, PagesError, PagesHead};
pub use primitive::{PairPart, Primitive, Scalar};
pub use run::Run;
pub use shape::{Dim, Displacements, Period, RunTable, Shape};
pub use signature::{
    Signature, SignatureDecodeError, SignatureDigest, SignatureError, SignatureKind,
};
pub use transfer::{transfer, transfer_raw};
