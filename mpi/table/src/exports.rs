//! Exported functions, as Rust: each checks its arguments, calls the function of the crate that has the meaning, and has
//! errors handled.

use crate::{Argument, Export, Form, Function, functions, handle_type};
use std::fmt::Write;

/// The source of all exported functions `PMPI_*`.
#[must_use]
pub fn exports() -> String {
    let mut out = String::new();
    for function in functions() {
        for export in function.exports() {
            one(&mut out, &export);
        }
    }
    out
}

fn one(out: &mut String, export: &Export<'_>) {
    let Export { name, function, .. } = export;
    let mut arguments = export.arguments();
    arguments.retain(|(_, kind)| *kind != "...");
    let listed: Vec<String> = arguments
        .iter()
        .map(|(name, kind)| format!("{}: {}", rust_name(name), rust_type(kind, export.large)))
        .collect();
    let result = function.result.map_or("c_int", rust_result);
    let _ = writeln!(out, "#[unsafe(no_mangle)]");
    let _ =
        writeln!(out, "unsafe extern \"C\" fn PMPI_{name}({}) -> {result} {{", listed.join(", "));
    let names: Vec<String> = arguments.iter().map(|(name, _)| rust_name(name)).collect();
    let called =
        function.module.map(|module| format!("{module}::{}", function.called.0.to_lowercase()));
    if function.result.is_some() {
        let called = called.expect("a function without an error code is there");
        let _ = writeln!(out, "    {called}({})\n}}", names.join(", "));
        return;
    }
    let run = format!("{}(\"MPI_{name}\", {},", runner(function), subject(&arguments));
    match called.filter(|_| !function.absent) {
        None => {
            for name in names {
                let _ = writeln!(out, "    let _ = {name};");
            }
            let fails = function.module.map(|module| format!("{module}::{}", function.called.0));
            let fails = fails.unwrap_or_else(|| "|| Err(Fail::unsupported())".to_owned());
            let _ = writeln!(out, "    {run} {fails})\n}}");
        }
        Some(called) => {
            let _ = writeln!(out, "    {run} || {{");
            if export.form == Some(Form::Persistent) {
                let _ = writeln!(out, "        arg::info(info)?;");
            }
            let _ = writeln!(
                out,
                "        // SAFETY: the caller's promise: addresses are what MPI says of them."
            );
            let given = given(export).join(", ");
            let _ = writeln!(out, "        unsafe {{ {called}({given}) }}\n    }})\n}}");
        }
    }
}

/// What the function is given.
fn given(export: &Export<'_>) -> Vec<String> {
    let function = export.function;
    let mut given: Vec<String> = function.called.1.map(str::to_owned).into_iter().collect();
    let request = decoded("request", "newrequest", false);
    match (export.form, function.forms) {
        (None, []) => {}
        (None, [Form::Requested]) => given.push("None".to_owned()),
        (None, _) => given.push("Form::Blocking".to_owned()),
        (Some(Form::NonBlocking), _) => given.push(format!("Form::NonBlocking({request})")),
        (Some(Form::Requested), _) => given.push(format!("Some({request})")),
        (Some(_), _) => given.push(format!("Form::Persistent({request})")),
    }
    let all = &function.arguments;
    let says_len = |argument: &Argument| all.iter().any(|array| array.len == Some(argument.name));
    let mut rest = &all[..];
    while let [first, others @ ..] = rest {
        rest = others;
        if says_len(first) || first.kind == "..." {
            continue;
        }
        let kind = export.kind(first);
        match grouped(first, others, export.large) {
            Some((one, more)) => {
                given.push(one);
                rest = &others[more..];
            }
            None => given.push(match first.len {
                Some(len) => array(first, kind, (len, all), export.large),
                None => decoded(first.name, kind, export.large),
            }),
        }
    }
    // Functions of two types.
    if all.iter().any(|argument| argument.kind != argument.large) {
        given.push(export.large.to_string());
    }
    given
}

/// Arguments that follow each other and become one, and how many of them follow the first one.
fn grouped(first: &Argument, others: &[Argument], large: bool) -> Option<(String, usize)> {
    let mut kinds = vec![first.kind];
    kinds.extend(others.iter().take(3).map(|other| other.kind));
    let it = |index: usize| {
        let argument = if index == 0 { first } else { &others[index - 1] };
        (rust_name(argument.name), argument.name)
    };
    let one = |index: usize| {
        let argument = if index == 0 { first } else { &others[index - 1] };
        decoded(argument.name, argument.kind, large)
    };
    Some(match kinds[..] {
        ["buf" | "mem", "count", "type", ..] => {
            (format!("Elements::new({}, {}, {})", it(0).0, one(1), one(2)), 2)
        }
        ["buf" | "mem", "count?", "type?", ..] => {
            let ((count, its), (datatype, name)) = (it(1), it(2));
            let elements = format!("i64::from({count}), {datatype}, [\"{its}\", \"{name}\"]");
            (format!("Blocks::even({}, {elements})", it(0).0), 2)
        }
        ["buf" | "mem", "counts", "displs" | "aints", kind @ ("type?" | "types")] => {
            let made = if kind == "types" { "typed" } else { "varied" };
            let lists = format!("({}, {}), {}, \"{}\"", one(1), one(2), it(3).0, it(3).1);
            (format!("Blocks::{made}({}, {lists})", it(0).0), 3)
        }
        ["buf" | "mem", "count" | "extent", "count*" | "extent*", ..] => {
            let size = format!("arg::count(i64::from({}), \"{}\")?", it(1).0, it(1).1);
            (format!("Packed::new({}, {size}, {})", it(0).0, one(2)), 2)
        }
        ["rank", "aint", "count", "type"] => {
            (format!("Target::new({}, {}, {}, {})", it(0).0, it(1).0, one(2), one(3)), 3)
        }
        ["text", "int*", ..] => {
            let (room, at) = (first.len?, format!("arg::pointer({}, \"{}\")?", it(0).0, it(0).1));
            (format!("Text::new({at}, face::{room}, Some({}))", one(1)), 1)
        }
        ["text?", "int*?", ..] => (format!("Text::sized({}, {})", it(0).0, one(1)), 1),
        ["int*", "text?", ..] => (format!("Text::sized({}, Some({}))", it(1).0, one(0)), 1),
        _ => return None,
    })
}

/// An array that is as long as another argument says.
fn array(
    argument: &Argument,
    kind: &str,
    (len, all): (&'static str, &[Argument]),
    large: bool,
) -> String {
    let (it, name) = (rust_name(argument.name), argument.name);
    let long = all.iter().find(|other| other.name == len).expect("the length is an argument");
    let of = if long.kind == "count" { "many" } else { "len" };
    let len = format!("arg::{of}(i64::from({len}), \"{len}\")?");
    let form = if large || kind == "extents" { "large" } else { "small" };
    match kind {
        "ints" | "ranges" | "requests" => format!("arg::list({it}, {len}, \"{name}\")?"),
        "counts" => format!("Numbers::{form}({it}).counts({len}, \"{name}\")?"),
        "strides" | "extents" => format!("Numbers::{form}({it}).read({len}, \"{name}\")?"),
        "types" => format!("arg::datatypes({it}, {len}, \"{name}\")?"),
        "requests&" => format!("arg::places({it}, {len}, \"{name}\")?"),
        _ => format!("Room::new({it}, {len}, \"{name}\")"),
    }
}

/// What calls the function, and handles its error.
fn runner(function: &Function) -> &'static str {
    match (function.name.starts_with("T_"), function.any_time) {
        (true, _) => "run_tool",
        (false, true) => "run_any_time",
        (false, false) => "run",
    }
}

/// Whose error handler is told.
fn subject(arguments: &[(&'static str, &'static str)]) -> String {
    let first = |kind: &str| {
        arguments
            .iter()
            .find(|(_, its)| its.trim_end_matches('?') == kind)
            .map(|(name, _)| rust_name(name))
    };
    let pick = |kind, subject| first(kind).map(|name| format!("Subject::{subject}({name})"));
    pick("win", "Win")
        .or_else(|| pick("comm", "Comm"))
        .or_else(|| pick("session", "Session"))
        .or_else(|| pick("file", "File"))
        .unwrap_or_else(|| "Subject::None".to_owned())
}

/// A name that is no word of Rust.
fn rust_name(name: &str) -> String {
    match name {
        "type" | "in" | "move" | "use" => format!("r#{name}"),
        name => name.to_owned(),
    }
}

fn rust_result(c: &str) -> &'static str {
    match c {
        "double" => "f64",
        "MPI_Aint" => "i64",
        "int" => "c_int",
        _ => "RawHandle",
    }
}

/// The type of an argument as C passes it.
fn rust_type(kind: &str, large: bool) -> &'static str {
    let kind = kind.trim_end_matches('?');
    let number = |small, big| if large { big } else { small };
    if kind.starts_with("fn") {
        return "*const c_void";
    }
    if kind.starts_with("T=MPI_T_cb_safety") {
        return "c_int";
    }
    if kind.starts_with("T=") {
        return "*mut c_void";
    }
    if handle_type(kind.trim_end_matches('?')).is_some() {
        return "RawHandle";
    }
    match kind {
        "buf" => "*const c_void",
        "mem" | "argv3" | "address*" => "*mut c_void",
        "count" | "stride" | "unit" => number("c_int", "i64"),
        "counts" | "displs" | "strides" => number("*const c_int", "*const i64"),
        "extents" | "aints" => "*const i64",
        "count*" | "unit*" => number("*mut c_int", "*mut i64"),
        "extent*" | "aint*" | "big*" | "large*" | "offset*" | "aints*" | "bigs*" => "*mut i64",
        "extent" | "aint" | "big" | "large" | "offset" => "i64",
        "int" | "rank" | "source" | "root" | "tag" | "anytag" => "c_int",
        "int*" | "ints*" => "*mut c_int",
        "ints" => "*const c_int",
        "ranges" => "*const [c_int; 3]",
        "status" => "*const Status",
        "status*" | "statuses" => "*mut Status",
        "str" => "*const c_char",
        "text" => "*mut c_char",
        "strs" => "*const *mut c_char",
        "argv2a" => "*const *mut *mut c_char",
        "types" | "infos" | "requests" => "*const RawHandle",
        // Pointers to handles, and arrays of handles that change.
        _ => "*mut RawHandle",
    }
}

/// What the function is given for an argument.
fn decoded(name: &'static str, kind: &'static str, large: bool) -> String {
    let (it, form) = (rust_name(name), if large { "large" } else { "small" });
    let of = |what: &str| format!("arg::{what}({it}, \"{name}\")?");
    let out = |it: &str| format!("arg::out({it}, \"{name}\")?");
    let is_pointer = kind.trim_end_matches('?').ends_with('*');
    match kind {
        "count" | "large" => format!("arg::count(i64::from({it}), \"{name}\")?"),
        "count?" | "stride" | "unit" => format!("i64::from({it})"),
        "counts" | "displs" => format!("Numbers::{form}({it})"),
        "extents" | "aints" => format!("Numbers::large({it})"),
        "count*" | "unit*" => format!("CountOut::{form}({})", of("out")),
        "extent*" | "large*" => format!("CountOut::large({})", of("out")),
        "address*" => out(&format!("{it}.cast::<usize>()")),
        "newrequest" => format!("request::Place::new({})?", of("out")),
        "made" => format!("datatype::NewType::new({}, {large})", of("out")),
        "tag" | "anytag" | "comm" | "group" | "op" | "win" | "errhandler" | "session" | "file" => {
            of(kind)
        }
        "type" => of("datatype"),
        "info" => format!("arg::info({it})?"),
        "status" => of("status"),
        "status*" => format!("StatusOut::new({it})"),
        "statuses" => format!("StatusesOut::new({it})"),
        "str" => of("text"),
        "text" => of("pointer"),
        kind if kind.starts_with("fn") => it,
        kind if kind.starts_with("T=") => match (is_pointer, kind.ends_with('?')) {
            (true, false) => out(&format!("{it}.cast::<usize>()")),
            (true, true) => format!("arg::maybe({it}.cast::<usize>())"),
            (false, _) => format!("{it}.addr()"),
        },
        _ if !is_pointer => it,
        kind if kind.ends_with('?') => format!("arg::maybe({it})"),
        _ => of("out"),
    }
}
