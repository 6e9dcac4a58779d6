//! What is refused, and what is said about it. That the rest is right shows where it is compiled: `tests/tests/derived`.

use super::*;
use syn::parse_str;

/// What the macro makes of a declaration, or its complaint.
fn derived(declaration: &str) -> Result<String> {
    expand(&parse_str::<DeriveInput>(declaration)?).map(|made| made.to_string())
}

fn complaint(declaration: &str) -> String {
    derived(declaration).expect_err(declaration).to_string()
}

#[test]
fn the_layout_must_be_fixed() {
    for repr in ["", "#[repr(align(8))]", "#[repr(packed)]", "#[repr(Rust)]", "/// #[repr(C)]\n"] {
        let problem = complaint(&format!("{repr} struct Particle {{ mass: f64 }}"));
        assert!(problem.contains("add `#[repr(C)]` to `Particle`"), "{repr}: {problem}");
    }
    for repr in ["C", "C, packed", "C, packed(2)", "C, align(16)", "align(16), C", "transparent"] {
        let made = derived(&format!("#[repr({repr})] struct Particle {{ mass: f64 }}"));
        assert!(made.is_ok(), "{repr}: {made:?}");
    }
    assert!(derived("#[repr(align(16))] #[repr(C)] struct Two(f64);").is_ok());
}

/// An attribute behind the derive may change the struct: then it does not compile.
#[test]
fn fields_are_counted_and_typed_where_it_is_compiled() {
    let made = derived("#[repr(C)] struct Particle { mass: f64, kind: u8 }").unwrap();
    for part in [
        "let Particle { mass : _ , kind : _ } = value ;",
        "let _ : * const f64 = & raw const value . mass ;",
        "let _ : * const u8 = & raw const value . kind ;",
    ] {
        assert!(made.contains(part), "{part}: {made}");
    }
}

#[test]
fn only_structs_have_one_way_to_be_initialised() {
    let problem = complaint("#[repr(u8)] enum Phase { Gas, Liquid }");
    assert!(problem.contains("unsafe impl Equivalence for Phase"), "{problem}");
    let problem = complaint("#[repr(C)] union Either { a: u32, b: f32 }");
    assert!(problem.contains("which bytes of `Either` are initialised"), "{problem}");
    let problem = complaint("#[repr(C)] struct Cell<'a> { mass: &'a f64 }");
    assert!(problem.contains("lifetimes: what `Cell` refers to"), "{problem}");
}

#[test]
fn fields_are_named() {
    for (ty, reason) in [
        ("&'static f64", "is an address"),
        ("*const f64", "is an address"),
        ("(*mut f64)", "is an address"),
        ("fn(f64) -> f64", "is an address"),
        ("dyn Send", "is an address"),
        ("[f64]", "has no fixed length: use an array"),
        ("(f64, u8)", "is a tuple"),
    ] {
        let problem = complaint(&format!("#[repr(C)] struct Particle {{ a: u8, mass: {ty} }}"));
        assert!(problem.starts_with("field `mass` of `Particle` "), "{ty}: {problem}");
        assert!(problem.contains(reason), "{ty}: {problem}");
        let problem = complaint(&format!("#[repr(C)] struct Particle(u8, {ty});"));
        assert!(problem.starts_with("field `1` of `Particle` "), "{ty}: {problem}");
    }
}

#[test]
fn options_are_known() {
    let with = |options: &str| format!("#[repr(C)] #[datatype({options})] struct A {{ a: u8 }}");
    assert_eq!(complaint(&with("recv_only")), "known are `send_only` and `crate = path`");
    assert!(derived(&with("crate")).is_err());
    let problem = complaint("#[repr(C)] struct A { #[datatype(send_only)] a: u8 }");
    assert!(problem.contains("belongs on the struct"), "{problem}");

    let all = derived(&with("crate = some::place")).unwrap();
    assert!(all.contains("some :: place :: Equivalence for A") && !all.contains(":: gapless ::"));
    for name in ["AnyBits", "CheckedBits"] {
        assert!(all.contains(&format!("some :: place :: {name} for A")));
    }
    let one = derived(&with("send_only")).unwrap();
    assert!(one.contains(":: gapless :: Equivalence for A"));
    assert!(!one.contains("AnyBits") && !one.contains("CheckedBits"));
}

#[test]
fn bounds_are_those_of_fields_that_depend_on_parameters() {
    let made = derived("#[repr(C)] struct Pair<T, const N: usize> { a: [T; N], b: [f64; N] }");
    let made = made.unwrap();
    let equivalence = made.split("unsafe impl").nth(1).unwrap();
    assert!(equivalence.contains("where [T ; N] : :: gapless :: Equivalence"), "{equivalence}");
    assert!(!equivalence.contains("[f64 ; N] : "), "{equivalence}");
    assert!(!equivalence.contains("static LAYOUT"), "it would be that of all parameters");
    assert!(derived("#[repr(C)] struct One(f64);").unwrap().contains("static LAYOUT"));
}
