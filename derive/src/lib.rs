// The README's examples need `gapless-dtype`, which would be compiled once more for the compiler's sake: they run in
// `gapless-tests`.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

mod attributes;
mod expand;
mod task;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `Equivalence` for a `#[repr(C)]` struct, and `AnyBits` and `CheckedBits` if all its fields have them; see
/// the [crate](self).
#[proc_macro_derive(Datatype, attributes(datatype))]
pub fn derive_datatype(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}

/// Makes a task of a function, which others call by `Tasks::call` of `gapless`; its guide `docs/xtq.md` opens with one.
///
/// `#[task(quick)]`: it takes some microseconds and waits for nothing, so it may run where the process makes progress,
/// without a thread; calls of `gapless` panic there. `#[task(crate = path)]`: where `gapless` is, if not at
/// `::gapless`.
///
/// Parameters: values of types that have `CheckedBits`; last, if need be, a slice of them. If the first one is a
/// reference to anything else, it is the state that the task is registered with. Result: nothing, a value, a `Vec` of
/// values, or a `Result` of these, whose error is told as text. All types are as visible as the function.
///
/// The function's name becomes that of a type, too, and the function makes a call of its arguments. `name::here` runs
/// the body at once, also in a body that calls itself.
#[proc_macro_attribute]
pub fn task(options: TokenStream, item: TokenStream) -> TokenStream {
    task::expand(options.into(), item.into())
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}
