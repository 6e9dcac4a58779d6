//! What a struct's attributes say: its representation, and `#[datatype(…)]`.

use syn::spanned::Spanned;
use syn::{Attribute, Error, Path, Result, parse_quote, token};

/// `#[datatype(…)]`.
pub(crate) struct Options {
    /// Where the traits are.
    pub(crate) path: Path,
    /// It is not to be received.
    pub(crate) send_only: bool,
}

impl Options {
    pub(crate) fn of(attributes: &[Attribute]) -> Result<Options> {
        let mut options = Options { path: parse_quote!(::gapless), send_only: false };
        for attribute in attributes.iter().filter(|one| one.path().is_ident("datatype")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("crate") {
                    options.path = meta.value()?.parse()?;
                } else if meta.path.is_ident("send_only") {
                    options.send_only = true;
                } else {
                    return Err(meta.error("known are `send_only` and `crate = path`"));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }
}

/// Options belong to the struct.
pub(crate) fn none_on_field(attributes: &[Attribute]) -> Result<()> {
    match attributes.iter().find(|one| one.path().is_ident("datatype")) {
        None => Ok(()),
        Some(one) => {
            let problem = "`#[datatype(…)]` belongs on the struct: a field has no options";
            Err(Error::new(one.span(), problem))
        }
    }
}

/// Whether the compiler lays the type out in the one way that its declaration says.
pub(crate) fn has_fixed_layout(attributes: &[Attribute]) -> Result<bool> {
    let mut fixed = false;
    for attribute in attributes.iter().filter(|one| one.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            fixed |= meta.path.is_ident("C") || meta.path.is_ident("transparent");
            if meta.input.peek(token::Paren) {
                // `align(8)` and its like.
                let argument;
                syn::parenthesized!(argument in meta.input);
                argument.parse::<proc_macro2::TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(fixed)
}
