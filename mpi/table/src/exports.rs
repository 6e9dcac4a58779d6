//! Exported functions, as Rust: each checks its arguments, calls the function of the crate that has the meaning, and has
//! errors handled.

use crate::{Export, Form, Function, functions, handle_type};
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
    let arguments = export.arguments();
    let listed: Vec<String> = arguments
        .iter()
        .filter(|(_, kind)| *kind != "...")
        .map(|(name, kind)| format!("{}: {}", rust_name(name), rust_type(kind, export.large)))
        .collect();
    let result = function.result.map_or("c_int", rust_result);
    let _ = writeln!(out, "#[unsafe(no_mangle)]");
    let _ =
        writeln!(out, "unsafe extern \"C\" fn PMPI_{name}({}) -> {result} {{", listed.join(", "));
    let module = function.module;
    if function.result.is_some() {
        let given: Vec<String> = arguments.iter().map(|(name, _)| rust_name(name)).collect();
        let module = module.expect("a function without an error code is there");
        let _ = writeln!(
            out,
            "    {module}::{}({})\n}}",
            function.name.to_lowercase(),
            given.join(", ")
        );
        return;
    }
    let Some(module) = module else {
        let unused: Vec<String> = arguments
            .iter()
            .filter(|(_, kind)| *kind != "...")
            .map(|(name, _)| rust_name(name))
            .collect();
        for name in unused {
            let _ = writeln!(out, "    let _ = {name};");
        }
        let run = runner(function);
        let _ = writeln!(
            out,
            "    {run}(\"MPI_{name}\", {}, || Err(Fail::unsupported()))\n}}",
            subject(&arguments)
        );
        return;
    };
    let _ =
        writeln!(out, "    {}(\"MPI_{name}\", {}, || {{", runner(function), subject(&arguments));
    let mut given = Vec::new();
    match (function.collective, export.form) {
        (true, Form::Plain) => given.push("Form::Blocking".to_owned()),
        (true, Form::NonBlocking) => {
            given.push("Form::NonBlocking(arg::out(request, \"request\")?)".to_owned());
        }
        (true, Form::Persistent) => {
            let _ = writeln!(out, "        arg::info(info)?;");
            given.push("Form::Persistent(arg::out(request, \"request\")?)".to_owned());
        }
        (false, _) => {}
    }
    given.extend(
        function
            .arguments
            .iter()
            .map(|argument| {
                (argument.name, if export.large { argument.large } else { argument.kind })
            })
            .filter(|(_, kind)| *kind != "...")
            .map(|(name, kind)| decoded(name, kind, export.large)),
    );
    let asks = |argument: &crate::Argument| {
        // Functions of two types; constructors of datatypes, whose contents are given back as they came.
        argument.kind.starts_with("fn") && argument.kind != argument.large
            || function.large && argument.name == "newtype"
    };
    if function.arguments.iter().any(asks) {
        given.push(export.large.to_string());
    }
    let _ = writeln!(
        out,
        "        // SAFETY: the caller's promise: addresses are what MPI says of them."
    );
    let _ = writeln!(
        out,
        "        unsafe {{ {module}::{}({}) }}\n    }})\n}}",
        function.name.to_lowercase(),
        given.join(", ")
    );
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
        "mem" | "argv3" => "*mut c_void",
        "count" | "count?" | "stride" | "unit" => number("c_int", "i64"),
        "counts" | "displs" => number("*const c_int", "*const i64"),
        "extents" | "aints" => "*const i64",
        "count*" | "unit*" => number("*mut c_int", "*mut i64"),
        "extent*" | "aint*" | "big*" | "offset*" | "aints*" | "bigs*" => "*mut i64",
        "extent" | "aint" | "big" | "offset" => "i64",
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
    let pointer =
        |kind: &str| kind.strip_suffix('*').is_some_and(|kind| handle_type(kind).is_some());
    match kind {
        "count" => format!("arg::count(i64::from({it}), \"{name}\")?"),
        "count?" | "stride" | "unit" => format!("i64::from({it})"),
        "counts" | "displs" => format!("Numbers::{form}({it})"),
        "extents" | "aints" => format!("Numbers::large({it})"),
        "count*" | "unit*" => format!("CountOut::{form}(arg::out({it}, \"{name}\")?)"),
        "extent*" => format!("CountOut::large(arg::out({it}, \"{name}\")?)"),
        "int*" | "aint*" | "big*" | "offset*" => of("out"),
        "tag" | "anytag" | "comm" | "group" | "op" | "win" | "errhandler" | "session" => of(kind),
        "type" => of("datatype"),
        "info" => format!("arg::info({it})?"),
        "status" => of("status"),
        "status*" => format!("StatusOut::new({it})"),
        "statuses" => format!("StatusesOut::new({it})"),
        "str" => of("text"),
        "text" => of("pointer"),
        kind if pointer(kind) => of("out"),
        _ => it,
    }
}
