//! `#[task]`: from a function to a task that others call.
//!
//! What comes of `fn area(shape: Rectangle, scale: f64) -> f64` has its name twice: the function `area` packs its
//! arguments into a `Call`, and the type `area` has the body and the trait by which it is registered.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, GenericArgument, Ident, Path, PathArguments, Result, ReturnType, Token, Type,
    Visibility, parse_quote,
};

/// What a parameter is.
enum Kind {
    /// What the function was registered with, by reference.
    State(Type),
    Value(Type),
    /// Any number of these; the last one.
    Slice(Type),
}

struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    name: Ident,
    /// With `mut`, as in the source.
    parameters: Vec<(Option<Token![mut]>, Ident, Type)>,
    output: ReturnType,
    body: TokenTree,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Function> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if input.peek(Token![async]) {
            return Err(input.error("a task is not `async`: it runs on a thread of its process"));
        }
        if !input.peek(Token![fn]) {
            let problem = "`#[task]` belongs on a function without `const`, `unsafe` and `extern`";
            return Err(input.error(problem));
        }
        input.parse::<Token![fn]>()?;
        let name: Ident = input.parse()?;
        const GENERIC: &str = "a task has no generics: others find it by its name alone";
        if input.peek(Token![<]) {
            return Err(input.error(GENERIC));
        }
        let list;
        syn::parenthesized!(list in input);
        let parameters = list.parse_terminated(parameter, Token![,])?.into_iter().collect();
        let output = input.parse()?;
        if input.peek(Token![where]) {
            return Err(input.error(GENERIC));
        }
        let body: TokenTree = input.parse()?;
        match &body {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {}
            other => return Err(Error::new(other.span(), "a task has a body")),
        }
        Ok(Function { attributes, visibility, name, parameters, output, body })
    }
}

fn parameter(input: ParseStream<'_>) -> Result<(Option<Token![mut]>, Ident, Type)> {
    let problem = "a task is no method: hand what it works on to `register_task_with`";
    let is_method = input.peek(Token![&]);
    let mutable = input.parse()?;
    if is_method || input.peek(Token![self]) {
        return Err(input.error(problem));
    }
    let name = input
        .parse()
        .map_err(|error| Error::new(error.span(), "a parameter of a task is a name and a type"))?;
    input.parse::<Token![:]>()?;
    Ok((mutable, name, input.parse()?))
}

/// What a parameter is, which may be the first or the last one.
fn kind(ty: &Type, is_first: bool, is_last: bool) -> Result<Kind> {
    let Type::Reference(reference) = bare(ty) else { return Ok(Kind::Value(ty.clone())) };
    match (reference.mutability, &*reference.elem) {
        (None, Type::Slice(slice)) if is_last => Ok(Kind::Slice((*slice.elem).clone())),
        (None, state) if is_first && !matches!(state, Type::Slice(_)) => {
            Ok(Kind::State(state.clone()))
        }
        _ => {
            let problem = "references are the first parameter of a task (its state) or the last (a slice), and \
                           not `&mut`";
            Err(Error::new(ty.span(), problem))
        }
    }
}

/// A type without parentheses, or what a macro puts around it.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        ty => ty,
    }
}

/// The type of a path's last segment with this name, if it is one.
fn inside<'t>(ty: &'t Type, name: &str) -> Option<&'t Type> {
    let Type::Path(path) = bare(ty) else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(list) = &last.arguments else { return None };
    match list.args.first()? {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// How a result goes back.
fn answer(ty: Option<&Type>, path: &Path) -> TokenStream {
    match ty.map(bare) {
        None => quote!(#path::xtq::typed::Nothing),
        Some(Type::Tuple(tuple)) if tuple.elems.is_empty() => answer(None, path),
        Some(ty) => match inside(ty, "Vec") {
            Some(element) => quote!(#path::xtq::typed::Many<#element>),
            None => quote!(#path::xtq::typed::One<#ty>),
        },
    }
}

/// Where `gapless` is, and whether the function is quick.
fn options(tokens: TokenStream) -> Result<(Path, bool)> {
    let (mut path, mut quick) = (parse_quote!(::gapless), false);
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("crate") {
            path = meta.value()?.parse()?;
        } else if meta.path.is_ident("quick") {
            quick = true;
        } else {
            return Err(meta.error("known are `quick` and `crate = path`"));
        }
        Ok(())
    });
    parser.parse2(tokens)?;
    Ok((path, quick))
}

pub(crate) fn expand(tokens: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let (path, quick) = options(tokens)?;
    let Function { attributes, visibility, name, parameters, output, body } = syn::parse2(item)?;
    let last = parameters.len().saturating_sub(1);
    let returned = match &output {
        ReturnType::Default => None,
        ReturnType::Type(_, ty) => Some(&**ty),
    };
    let fallible = returned.and_then(|ty| inside(ty, "Result"));
    let answer = answer(fallible.or(returned), &path);

    let [call, signature, state, arguments] = ["call", "signature", "state", "arguments"]
        .map(|name| Ident::new(name, Span::mixed_site()));
    let (mut outer, mut packed, mut signed, mut taken, mut handed, mut inner) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    let mut state_type = quote!(());
    for (at, (mutable, name, ty)) in parameters.iter().enumerate() {
        inner.push(quote!(#mutable #name: #ty));
        let (method, ty) = match kind(ty, at == 0, at == last)? {
            Kind::State(ty) => {
                state_type = quote!(#ty);
                handed.push(quote!(#state));
                continue;
            }
            Kind::Value(ty) => ("value", ty),
            Kind::Slice(ty) => ("slice", ty),
        };
        let is_slice = method == "slice";
        let method = format_ident!("{method}");
        outer.push(if is_slice { quote!(#name: &[#ty]) } else { quote!(#name: #ty) });
        let given = if is_slice { quote!(#name) } else { quote!(&#name) };
        handed.push(if is_slice { quote!(&#name) } else { quote!(#name) });
        packed.push(quote_spanned!(ty.span()=> #call.#method::<#ty>(#given);));
        signed.push(quote_spanned!(ty.span()=> #signature.#method::<#ty>();));
        taken.push(quote_spanned!(ty.span()=> let #name = #arguments.#method::<#ty>()?;));
    }
    let run = match fallible {
        Some(_) => quote!(#name::here(#(#handed),*).map_err(#path::xtq::typed::failed)),
        None => quote!(::core::result::Result::Ok(#name::here(#(#handed),*))),
    };
    let is = |attribute: &&Attribute, name: &str| attribute.path().is_ident(name);
    let conditions: Vec<_> = attributes.iter().filter(|one| is(one, "cfg")).collect();
    let of_call = |one: &&Attribute| is(one, "doc") || is(one, "deprecated");
    let docs: Vec<_> = attributes.iter().filter(of_call).collect();
    let lints = attributes.iter().filter(|one| is(one, "allow"));
    let others = attributes.iter().filter(|one| !is(one, "cfg") && !of_call(one));
    let about = format!("The task [`{name}`](fn@{name}), to be registered.");
    Ok(quote! {
        #(#conditions)*
        #(#docs)*
        #(#lints)*
        #[allow(dead_code, clippy::needless_pass_by_value)]
        #visibility fn #name(#(#outer),*) -> #path::xtq::Call<#name> {
            let mut #call = #path::xtq::Call::begin();
            #(#packed)*
            #call
        }

        #(#conditions)*
        #[doc = #about]
        #[allow(non_camel_case_types)]
        #visibility struct #name {}

        #(#conditions)*
        impl #name {
            /// Runs it here and now.
            #(#others)*
            #visibility fn here(#(#inner),*) #output #body
        }

        #(#conditions)*
        #[automatically_derived]
        impl #path::xtq::TaskFunction for #name {
            const NAME: &'static str = ::core::concat!(::core::module_path!(), "::", ::core::stringify!(#name));
            const QUICK: bool = #quick;
            type State = #state_type;
            type Answer = #answer;

            fn signature() -> u64 {
                static SIGNATURE: ::std::sync::OnceLock<u64> = ::std::sync::OnceLock::new();
                *SIGNATURE.get_or_init(|| {
                    let mut #signature = #path::xtq::typed::TaskSignature::default();
                    #(#signed)*
                    #signature.result::<Self::Answer>()
                })
            }

            #[allow(clippy::unit_arg)]
            fn run(
                #state: &Self::State,
                #arguments: &mut #path::xtq::typed::Arguments<'_>,
            ) -> ::core::result::Result<
                <Self::Answer as #path::xtq::typed::Answer>::Value,
                #path::xtq::CallFault,
            > {
                #(#taken)*
                #arguments.end()?;
                let _ = #state;
                #run
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(function: &str) -> Result<String> {
        let tokens = function.parse().expect("tokens");
        expand(TokenStream::new(), tokens).map(|made| made.to_string())
    }

    #[test]
    fn a_function_becomes_a_call_and_a_type() {
        let all = made(
            "/// Of it.\n#[inline] pub fn f(s: &Sum, mut a: u8, b: &[f64]) -> Result<Vec<u8>, E> { a }",
        );
        let all = all.unwrap();
        for part in [
            "# [doc = \" Of it.\"] # [allow (dead_code , clippy :: needless_pass_by_value)] pub fn f (a : u8 , b : & [f64])",
            "call . value :: < u8 > (& a) ; call . slice :: < f64 > (b) ;",
            "# [inline] pub fn here (s : & Sum , mut a : u8 , b : & [f64]) -> Result < Vec < u8 > , E > { a }",
            "type State = Sum ; type Answer = :: gapless :: xtq :: typed :: Many < u8 > ;",
            "f :: here (state , a , & b) . map_err",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        for (output, answer) in [
            ("", "Nothing"),
            ("-> ()", "Nothing"),
            ("-> io::Result<()>", "Nothing"),
            ("-> Result<[f64; 3], String>", "One < [f64 ; 3] >"),
            ("-> Pair<u8>", "One < Pair < u8 > >"),
            ("-> (Vec<Rectangle>)", "Many < Rectangle >"),
        ] {
            let all = made(&format!("fn f() {output} {{}}")).unwrap();
            let answer = format!("type Answer = :: gapless :: xtq :: typed :: {answer} ;");
            assert!(all.contains(&answer), "{output}: {all}");
        }
        let elsewhere = expand(
            quote!(crate = a::b),
            quote!(
                fn f() {}
            ),
        )
        .unwrap()
        .to_string();
        assert!(
            elsewhere.contains("a :: b :: xtq :: Call < f >") && !elsewhere.contains("gapless")
        );
    }

    #[test]
    fn what_cannot_be_a_task_is_named() {
        for (function, problem) in [
            ("fn f<T>(a: T) {}", "no generics"),
            ("fn f(a: u8) where u8: Copy {}", "no generics"),
            ("async fn f() {}", "not `async`"),
            ("unsafe fn f() {}", "without `const`, `unsafe` and `extern`"),
            ("struct F;", "belongs on a function"),
            ("fn f(self) {}", "no method"),
            ("fn f(&self) {}", "no method"),
            ("fn f(mut self, a: u8) {}", "no method"),
            ("fn f((a, b): u8) {}", "a name and a type"),
            ("fn f();", "has a body"),
            ("fn f(a: &mut u8) {}", "and not `&mut`"),
            ("fn f(a: &[u8], b: u8) {}", "or the last"),
            ("fn f(a: u8, b: &u8) {}", "the first parameter"),
        ] {
            let told = made(function).expect_err(function).to_string();
            assert!(told.contains(problem), "{function}: {told}");
        }
        let quick = expand(quote!(quick), "fn f() {}".parse().unwrap()).unwrap().to_string();
        assert!(quick.contains("const QUICK : bool = true ;"), "{quick}");
        let item = "fn f() {}".parse().expect("tokens");
        let told = expand(quote!(name = "a"), item).unwrap_err().to_string();
        assert_eq!(told, "known are `quick` and `crate = path`");
    }
}
