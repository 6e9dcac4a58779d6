// The guide's examples need `gapless-dtype`, which would be compiled once more for it, as what runs in the compiler: they
// run in `gapless-tests`.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
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
