//! The functions and constants of MPI 5.0 as data, and what is generated from them: exported functions ([`mod@exports`]),
//! the values of constants ([`mod@constants`]), the header, the aliases and the version script that a library is linked with
//! ([`c`]), and the page that says what is not there ([`mod@missing`]).
//!
//! `functions.txt` and `constants.txt` are the data; their first lines say how they are written.
//!
//! # Kinds of arguments
//!
//! | kind | in C; in the form for large counts | what the function is given |
//! |---|---|---|
//! | `buf`, `mem` | `const void *`, `void *` | the address |
//! | `count` | `int`; `MPI_Count` | `u64`, not negative |
//! | `stride` | `int`; `MPI_Count` | `i64` |
//! | `count?`, `type?` | the same as `count`, `type` | the number, the handle: they may be of no significance |
//! | `extent` | `MPI_Aint`; `MPI_Count` | `i64` |
//! | `unit` | `int`; `MPI_Aint` | `i64` |
//! | `counts`, `displs`, `extents` | `const int []`, `const int []`, `const MPI_Aint []`; `MPI_Count`, `MPI_Aint`, `MPI_Count` | `Numbers` |
//! | `aints` | `const MPI_Aint []` | `Numbers` |
//! | `count*`, `extent*`, `unit*` | a pointer to one | `CountOut` |
//! | any kind with a `?` behind it | what that kind is | the same, not looked at: it may be null |
//! | `int`, `aint`, `big`, `offset` | `int`, `MPI_Aint`, `MPI_Count`, `MPI_Offset` | the number |
//! | `int*` … | a pointer to one, not null | `Out` |
//! | `ints`, `ints*`, `aints*`, `bigs*`, `ranges` | an array | the address |
//! | `rank`, `source`, `root`, `tag`, `anytag` | `int` | the number; tags are in their range |
//! | `comm`, `type`, `group`, `op`, `win`, `info`, `errhandler`, `session` | a handle | the object; of an info, if there is one |
//! | `request`, `message`, `file` | a handle | the handle |
//! | `type?` … | a handle | the handle, which may be a null handle |
//! | `comm*` … | a pointer to a handle, not null | `HandleOut` |
//! | `types`, `infos`, `requests`, `requests&`, `types&` | an array of handles | the address |
//! | `status`, `status*`, `statuses` | `const MPI_Status *`, `MPI_Status *`, an array | `&Status`, `StatusOut`, `StatusesOut` |
//! | `str`, `text` | `const char *`, `char *`, not null | `&CStr`, the address |
//! | `strs`, `argv3`, `argv2a` | arrays of strings | the address |
//! | `fn*=TYPE`, `fn=TYPE`, `T=TYPE`, `T=TYPE*` | that type | the address |
#![forbid(unsafe_code)]

pub mod c;
pub mod constants;
pub mod exports;
pub mod missing;

/// The functions, as written.
const FUNCTIONS: &str = include_str!("../functions.txt");
/// The constants, as written.
const CONSTANTS: &str = include_str!("../constants.txt");

/// Which library it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// The standard ABI: `libmpi_abi.so.1`.
    Abi,
    /// MPICH's: `libmpi.so.12`.
    Mpich,
}

/// One argument of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name in the standard.
    pub name: &'static str,
    /// What it is; of the form for ordinary counts.
    pub kind: &'static str,
    /// What it is in the form for large counts.
    pub large: &'static str,
}

/// A function, in all its forms.
#[derive(Clone, Debug)]
pub struct Function {
    /// Without `MPI_`.
    pub name: &'static str,
    /// The module that has it; `None`: nothing has it, and it fails.
    pub module: Option<&'static str>,
    /// Whether it may be called at any time.
    pub any_time: bool,
    /// Whether it is a collective with three forms.
    pub collective: bool,
    /// Whether there is a form for large counts.
    pub large: bool,
    /// The type of its result, if that is no error code.
    pub result: Option<&'static str>,
    /// In their order.
    pub arguments: Vec<Argument>,
}

/// When a form of a function ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The function's only form, or the blocking one.
    Plain,
    /// `I…`.
    NonBlocking,
    /// `…_init`.
    Persistent,
}

/// One exported function.
#[derive(Clone, Debug)]
pub struct Export<'f> {
    /// Without `MPI_`.
    pub name: String,
    /// Of which function it is a form.
    pub function: &'f Function,
    /// Which form it is.
    pub form: Form,
    /// Whether it takes large counts.
    pub large: bool,
}

const REQUEST: Argument = Argument { name: "request", kind: "request*", large: "request*" };
const INFO: Argument = Argument { name: "info", kind: "info", large: "info" };

impl Function {
    /// All its forms.
    pub fn exports(&self) -> Vec<Export<'_>> {
        let forms: &[Form] = match self.collective {
            true => &[Form::Plain, Form::NonBlocking, Form::Persistent],
            false => &[Form::Plain],
        };
        let sizes: &[bool] = if self.large { &[false, true] } else { &[false] };
        let all = forms.iter().flat_map(|form| sizes.iter().map(move |large| (*form, *large)));
        all.map(|(form, large)| Export {
            name: self.form_name(form, large),
            function: self,
            form,
            large,
        })
        .collect()
    }

    fn form_name(&self, form: Form, large: bool) -> String {
        let suffix = if large { "_c" } else { "" };
        match form {
            Form::Plain => format!("{}{suffix}", self.name),
            Form::NonBlocking => {
                let (first, rest) = self.name.split_at(1);
                format!("I{}{rest}{suffix}", first.to_lowercase())
            }
            Form::Persistent => format!("{}_init{suffix}", self.name),
        }
    }
}

impl Export<'_> {
    /// Its arguments, each with its kind in this form.
    pub fn arguments(&self) -> Vec<(&'static str, &'static str)> {
        let extra: &[Argument] = match self.form {
            Form::Plain => &[],
            Form::NonBlocking => &[REQUEST],
            Form::Persistent => &[INFO, REQUEST],
        };
        let kind = |argument: &Argument| if self.large { argument.large } else { argument.kind };
        let all = self.function.arguments.iter().chain(extra);
        all.map(|argument| (argument.name, kind(argument))).collect()
    }
}

/// All functions.
///
/// # Panics
/// The table is not written as its first lines say: then nothing can be built.
#[must_use]
pub fn functions() -> Vec<Function> {
    let mut module = None;
    let mut all = Vec::new();
    for line in FUNCTIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(section) = line.strip_prefix('[') {
            let (name, _) = section.split_once(']').expect("a section ends with `]`");
            module = Some(name);
            continue;
        }
        all.push(function(module, line));
    }
    all
}

fn function(module: Option<&'static str>, line: &'static str) -> Function {
    let (head, arguments) =
        line.split_once(':').expect("a function has a `:` before its arguments");
    let (head, result) = match head.split_once(" -> ") {
        Some((head, result)) => (head, Some(result.trim())),
        None => (head, None),
    };
    let mut parts = head.trim().split('/');
    let name = parts.next().expect("a function has a name");
    let forms: Vec<&str> = parts.collect();
    let there = !name.starts_with('-');
    Function {
        name: name.trim_matches(['-', '!']),
        module: module.filter(|_| there),
        any_time: name.ends_with('!'),
        collective: forms.contains(&"coll"),
        large: forms.contains(&"c"),
        result,
        arguments: arguments.split_whitespace().map(argument).collect(),
    }
}

fn argument(word: &'static str) -> Argument {
    let (name, kinds) = word.split_once(':').unwrap_or((word, word));
    let (kind, large) = kinds.split_once('/').unwrap_or((kinds, kinds));
    Argument { name, kind, large }
}

/// One constant.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Without `MPI_`.
    pub name: &'static str,
    /// What it is; `=NAME`: what another one is.
    pub kind: &'static str,
    values: [&'static str; 2],
}

impl Constant {
    /// Its value, as a number of C and of Rust.
    #[must_use]
    pub fn value(&self, face: Face) -> &'static str {
        self.values[face as usize]
    }

    /// What it is another name of.
    #[must_use]
    pub fn alias(&self) -> Option<&'static str> {
        self.kind.strip_prefix('=')
    }
}

/// All constants.
///
/// # Panics
/// As [`functions`].
#[must_use]
pub fn constants() -> Vec<Constant> {
    let lines = CONSTANTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let one = |line: &'static str| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or("");
        Constant { name: word(), kind: word(), values: [word(), word()] }
    };
    lines.map(one).collect()
}

/// The C type of an argument, with `@` where its name stands.
///
/// # Panics
/// There is no such kind.
#[must_use]
pub fn c_type(kind: &str, large: bool) -> String {
    if let Some(kind) = kind.strip_suffix('?') {
        // Of an array, compilers would expect that it is one.
        return c_type(kind, large).replace("@[]", "*@");
    }
    let number = |small: &str, big: &str| (if large { big } else { small }).to_owned();
    if let Some(name) = kind.strip_prefix("fn*=") {
        return format!("{name} *@");
    }
    if let Some(name) = kind.strip_prefix("fn=") {
        return format!("{name} @");
    }
    if let Some(name) = kind.strip_prefix("T=") {
        return match name.strip_suffix('*') {
            Some(name) => format!("{name} *@"),
            None => format!("{name} @"),
        };
    }
    if let Some(handle) = handle_type(kind.trim_end_matches(['*', '&', '?'])) {
        return match &kind[kind.trim_end_matches(['*', '&', '?']).len()..] {
            "" | "?" => format!("{handle} @"),
            _ => format!("{handle} *@"),
        };
    }
    if let Some(handle) = kind.trim_end_matches('&').strip_suffix('s').and_then(handle_type) {
        return match kind.ends_with('&') {
            true => format!("{handle} @[]"),
            false => format!("const {handle} @[]"),
        };
    }
    match kind {
        "buf" => "const void *@".into(),
        "mem" => "void *@".into(),
        "count" | "count?" | "stride" => number("int @", "MPI_Count @"),
        "extent" => number("MPI_Aint @", "MPI_Count @"),
        "counts" => number("const int @[]", "const MPI_Count @[]"),
        "displs" => number("const int @[]", "const MPI_Aint @[]"),
        "extents" => number("const MPI_Aint @[]", "const MPI_Count @[]"),
        "unit" => number("int @", "MPI_Aint @"),
        "unit*" => number("int *@", "MPI_Aint *@"),
        "count*" => number("int *@", "MPI_Count *@"),
        "extent*" => number("MPI_Aint *@", "MPI_Count *@"),
        "int" | "rank" | "source" | "root" | "tag" | "anytag" => "int @".into(),
        "int*" => "int *@".into(),
        "ints" => "const int @[]".into(),
        "ints*" => "int @[]".into(),
        "ranges" => "int @[][3]".into(),
        "aint" => "MPI_Aint @".into(),
        "aint*" => "MPI_Aint *@".into(),
        "aints" => "const MPI_Aint @[]".into(),
        "aints*" => "MPI_Aint @[]".into(),
        "big" => "MPI_Count @".into(),
        "big*" => "MPI_Count *@".into(),
        "bigs*" => "MPI_Count @[]".into(),
        "offset" => "MPI_Offset @".into(),
        "offset*" => "MPI_Offset *@".into(),
        "status" => "const MPI_Status *@".into(),
        "status*" => "MPI_Status *@".into(),
        "statuses" => "MPI_Status @[]".into(),
        "str" => "const char *@".into(),
        "text" => "char *@".into(),
        "strs" => "char *@[]".into(),
        "argv3" => "char ***@".into(),
        "argv2a" => "char **@[]".into(),
        "..." => "...".into(),
        other => panic!("functions.txt has a kind that is not known: {other}"),
    }
}

/// The C type of a kind of handle.
#[must_use]
pub fn handle_type(kind: &str) -> Option<&'static str> {
    Some(match kind.trim_end_matches('?') {
        "comm" => "MPI_Comm",
        "type" => "MPI_Datatype",
        "group" => "MPI_Group",
        "op" => "MPI_Op",
        "win" => "MPI_Win",
        "info" => "MPI_Info",
        "errhandler" => "MPI_Errhandler",
        "session" => "MPI_Session",
        "request" => "MPI_Request",
        "message" => "MPI_Message",
        "file" => "MPI_File",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
