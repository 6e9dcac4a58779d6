//! `#[derive(Datatype)]`: structs that are sent and received without `unsafe`.
//!
//! The macro gives a `#[repr(C)]` struct the traits by which `gapless` and `gapless-dtype` know what may be sent
//! (`Equivalence`), received (`AnyBits`), and received with a look at the bits (`CheckedBits`). The struct's datatype
//! has its fields at the offsets that the compiler gave them; padding is in none of them, so it is never read or written.
//! Nobody needs this crate by itself: `gapless` has the macro beside the type of the same name.
//!
//! ```
//! use gapless_derive::Datatype;
//! use gapless_dtype::{AnyBits, Equivalence};
//!
//! #[derive(Datatype)]
//! #[datatype(crate = gapless_dtype)] // not where `gapless` is a dependency
//! #[repr(C)]
//! struct Particle {
//!     kind: u8, // followed by 7 bytes of padding
//!     position: [f64; 3],
//!     mass: f32, // followed by 4 bytes
//! }
//!
//! assert_eq!((Particle::datatype().size(), Particle::datatype().extent()), (29, 40));
//! fn may_be_received<T: AnyBits>() {}
//! may_be_received::<Particle>();
//! ```
//!
//! # What it takes
//!
//! - Structs with `#[repr(C)]`, also `packed` and `align`, and with `#[repr(transparent)]`. All fields must be
//!   `Equivalence`: numbers, `bool`, `char`, arrays, other structs that derive it, `PhantomData`.
//! - Type parameters and constant parameters; not lifetimes.
//! - Enums and unions have it by hand; the documentation of `Equivalence` has an example.
//!
//! `AnyBits` and `CheckedBits` are there if all fields have them: a struct with a `bool` can be sent, and received by
//! `recv_checked` alone.
//!
//! # Attributes
//!
//! - `#[datatype(send_only)]`: neither `AnyBits` nor `CheckedBits`. For a struct whose fields must fit together for
//!   `unsafe` code of yours: whoever receives into it can give each any value.
//! - `#[datatype(crate = path)]`: where the traits are, if not in `::gapless`.
//!
//! # What is refused
//!
//! A struct that the compiler may lay out as it likes, or whose padding it may use:
//!
//! ```compile_fail
//! #[derive(gapless_derive::Datatype)]
//! #[datatype(crate = gapless_dtype)]
//! struct Particle { // error: add `#[repr(C)]`
//!     mass: f64,
//! }
//! ```
//!
//! Addresses, which mean nothing to another process:
//!
//! ```compile_fail
//! #[derive(gapless_derive::Datatype)]
//! #[datatype(crate = gapless_dtype)]
//! #[repr(C)]
//! struct Particle {
//!     name: String, // error: a `String` cannot be sent
//! }
//! ```
//!
//! Receiving what not every pattern of bits is:
//!
//! ```compile_fail,E0277
//! #[derive(gapless_derive::Datatype)]
//! #[datatype(crate = gapless_dtype)]
//! #[repr(C)]
//! struct Particle {
//!     alive: bool,
//! }
//! fn may_be_received<T: gapless_dtype::AnyBits>() {}
//! may_be_received::<Particle>(); // error: a `bool` cannot be received
//! ```
#![forbid(unsafe_code)]

mod attributes;
mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `Equivalence` for a `#[repr(C)]` struct, and `AnyBits` and `CheckedBits` if all its fields have them; see
/// the [crate](self).
#[proc_macro_derive(Datatype, attributes(datatype))]
pub fn derive_datatype(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}
