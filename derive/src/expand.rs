//! From a struct to the implementations.
//!
//! They are `unsafe`, and this is why they keep the traits' contracts: each offset is what `offset_of!` says of the
//! field whose type gives the datatype; both come from one declaration, so the datatype's bytes are those that the
//! fields' datatypes describe, inside the fields, and no padding. What the fields promise of their bytes (they are
//! initialised, in no cell, and take any bits or only valid ones) then holds for the struct.

use crate::attributes::{self, Options};
use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, GenericParam, Generics, Ident, Member, Result, Type};

/// A field as the implementations need it.
struct FieldPart<'d> {
    member: Member,
    ty: &'d Type,
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let options = Options::of(&input.attrs)?;
    let fields = fields(input)?;
    if !attributes::has_fixed_layout(&input.attrs)? {
        let problem = format!(
            "`Datatype` needs a fixed layout: add `#[repr(C)]` to `{}` (without it the compiler places fields as it \
             likes)",
            input.ident
        );
        return Err(Error::new(input.ident.span(), problem));
    }
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let problem = format!(
            "`Datatype` cannot be derived with lifetimes: what `{}` refers to cannot be reached by another process",
            input.ident
        );
        return Err(Error::new(lifetime.span(), problem));
    }
    let parts = fields
        .zip(0u32..)
        .map(|(field, index)| part(field, index, &input.ident))
        .collect::<Result<Vec<_>>>()?;
    let mut all = equivalence(input, &options, &parts);
    if !options.send_only {
        all.extend(any_bits(input, &options, &parts));
        all.extend(checked_bits(input, &options, &parts));
    }
    Ok(all)
}

fn fields(input: &DeriveInput) -> Result<syn::punctuated::Iter<'_, Field>> {
    let name = &input.ident;
    match &input.data {
        Data::Struct(data) => Ok(data.fields.iter()),
        Data::Enum(data) => {
            let problem = format!(
                "`Datatype` cannot be derived for an enum: send its integer, or write `unsafe impl Equivalence for \
                 {name}` with the integer's datatype (the documentation of `Equivalence` has an example)"
            );
            Err(Error::new(data.enum_token.span(), problem))
        }
        Data::Union(data) => {
            let problem = format!(
                "`Datatype` cannot be derived for a union: which bytes of `{name}` are initialised depends on what it \
                 holds; use a `#[repr(C)]` struct, or an array of `u8`"
            );
            Err(Error::new(data.union_token.span(), problem))
        }
    }
}

fn part<'d>(field: &'d Field, index: u32, of: &Ident) -> Result<FieldPart<'d>> {
    attributes::none_on_field(&field.attrs)?;
    let span = field.ty.span();
    let member = match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(syn::Index { index, span }),
    };
    let refused = match bare(&field.ty) {
        Type::Reference(_) | Type::Ptr(_) | Type::FnPtr(_) | Type::TraitObject(_) => {
            "is an address, which means nothing to another process: send what it points to, as a slice"
        }
        Type::Slice(_) => "has no fixed length: use an array",
        Type::Tuple(_) => "is a tuple, which has no fixed layout: use a `#[repr(C)]` struct",
        _ => return Ok(FieldPart { member, ty: &field.ty }),
    };
    let name = member.to_token_stream();
    Err(Error::new(span, format!("field `{name}` of `{of}` {refused}")))
}

/// A type without the brackets and groups around it.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}

fn equivalence(input: &DeriveInput, options: &Options, parts: &[FieldPart<'_>]) -> TokenStream {
    let (name, path) = (&input.ident, &options.path);
    let mut generics = input.generics.clone();
    // A field that is the same for all parameters is checked where its datatype is asked for.
    let dependent: Vec<_> = parts.iter().filter(|part| depends(part.ty, &generics)).collect();
    for FieldPart { ty, .. } in dependent {
        let bound = quote_spanned!(ty.span()=> #ty: #path::Equivalence);
        generics.make_where_clause().predicates.push(syn::parse_quote!(#bound));
    }
    let described = parts.iter().map(|FieldPart { member, ty }| {
        let datatype = quote_spanned!(ty.span()=> <#ty as #path::Equivalence>::datatype());
        quote!((::core::mem::offset_of!(Self, #member), #datatype))
    });
    // A generic type has no static of its own.
    let is_one =
        generics.type_params().next().is_none() && generics.const_params().next().is_none();
    let layout = is_one.then(|| {
        quote! {
            fn layout() -> &'static #path::Layout {
                static LAYOUT: ::std::sync::OnceLock<#path::Layout> = ::std::sync::OnceLock::new();
                <Self as #path::Equivalence>::derived_layout(&LAYOUT)
            }
        }
    });
    let exactly = exactly(input, parts);
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        unsafe impl #impl_generics #path::Equivalence for #name #ty_generics #where_clause {
            fn datatype() -> #path::Datatype {
                #exactly
                <Self as #path::Equivalence>::derived_datatype(&[#(#described),*])
            }

            #layout
        }
    }
}

/// A function that compiles if the struct has these fields, of these types, and no others: an attribute that comes after
/// the derive could have changed it.
fn exactly(input: &DeriveInput, parts: &[FieldPart<'_>]) -> TokenStream {
    let name = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    let members = parts.iter().map(|FieldPart { member, .. }| member);
    let typed = parts
        .iter()
        .map(|FieldPart { member, ty }| quote!(let _: *const #ty = &raw const value.#member;));
    quote! {
        #[allow(dead_code, clippy::all)]
        fn exactly #impl_generics (value: &#name #ty_generics) #where_clause {
            let #name { #(#members: _),* } = value;
            #(#typed)*
        }
    }
}

fn any_bits(input: &DeriveInput, options: &Options, parts: &[FieldPart<'_>]) -> TokenStream {
    let (name, path) = (&input.ident, &options.path);
    let generics = with_bounds(input, options, parts, "AnyBits");
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        unsafe impl #impl_generics #path::AnyBits for #name #ty_generics #where_clause {}
    }
}

fn checked_bits(input: &DeriveInput, options: &Options, parts: &[FieldPart<'_>]) -> TokenStream {
    let (name, path) = (&input.ident, &options.path);
    let generics = with_bounds(input, options, parts, "CheckedBits");
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let valid = parts.iter().map(|FieldPart { member, ty }| {
        quote! {
            && <#ty as #path::CheckedBits>::derived_is_valid(
                bytes,
                ::core::mem::offset_of!(Self, #member),
            )
        }
    });
    quote! {
        #[automatically_derived]
        unsafe impl #impl_generics #path::CheckedBits for #name #ty_generics #where_clause {
            fn is_valid(bytes: &[u8]) -> bool {
                bytes.len() == ::core::mem::size_of::<Self>() #(#valid)*
            }
        }
    }
}

/// The struct's parameters, and a bound for each field: without it there is no implementation, and that is no error.
fn with_bounds(
    input: &DeriveInput,
    options: &Options,
    parts: &[FieldPart<'_>],
    bound: &str,
) -> Generics {
    let (mut generics, path, bound) =
        (input.generics.clone(), &options.path, format_ident!("{bound}"));
    let predicates = &mut generics.make_where_clause().predicates;
    for FieldPart { ty, .. } in parts {
        // A bound without parameters would have to hold; `for` makes it one that may or may not.
        let bound = quote_spanned!(ty.span()=> for<'gapless> #ty: #path::#bound);
        predicates.push(syn::parse_quote!(#bound));
    }
    generics
}

/// Whether a type names one of the type parameters.
fn depends(ty: &Type, generics: &Generics) -> bool {
    let names: Vec<_> = generics
        .params
        .iter()
        .filter_map(|param| match param {
            GenericParam::Type(param) => Some(&param.ident),
            _ => None,
        })
        .collect();
    !names.is_empty() && mentions(ty.to_token_stream(), &names)
}

fn mentions(tokens: TokenStream, names: &[&Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => names.contains(&&ident),
        TokenTree::Group(group) => mentions(group.stream(), names),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
