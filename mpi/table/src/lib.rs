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
//! | `count`, `large` | `int`, `MPI_Count`; `MPI_Count` | `u64`, not negative |
//! | `stride` | `int`; `MPI_Count` | `i64` |
//! | `count?`, `type?` | the same as `count`, `type` | the number, the handle: they may be of no significance |
//! | `extent` | `MPI_Aint`; `MPI_Count` | `i64` |
//! | `unit` | `int`; `MPI_Aint` | `i64` |
//! | `counts`, `displs` | `const int []`; `MPI_Count`, `MPI_Aint` | `Numbers` |
//! | `aints` | `const MPI_Aint []` | `Numbers` |
//! | `count*`, `extent*`, `unit*`, `large*` | a pointer to one | `CountOut` |
//! | `int`, `aint`, `big`, `offset` | `int`, `MPI_Aint`, `MPI_Count`, `MPI_Offset` | the number |
//! | `int*` … | a pointer to one, not null | `Out` |
//! | `address*` | `void *`, where an address is stored, not null | `Out` |
//! | `int*?` … | a pointer to one, or null | `Option<Out>` |
//! | `ints` | an array | the address |
//! | `rank`, `source`, `root`, `tag`, `anytag` | `int` | the number; tags are in their range |
//! | `comm`, `type`, `group`, `op`, `win`, `info`, `errhandler`, `session`, `file` | a handle | the object; of an info, if there is one |
//! | `request`, `message` | a handle | the handle |
//! | `comm?` … | a handle | the handle, which may be a null handle |
//! | `comm*` … | a pointer to a handle, not null | `HandleOut` |
//! | `newrequest` | a pointer to a request, not null | `Place`: a request that is to be made |
//! | `made` | a pointer to a datatype, not null | `NewType`: a datatype that a constructor makes |
//! | `status`, `status*`, `statuses` | `const MPI_Status *`, `MPI_Status *`, an array | `&Status`, `StatusOut`, `StatusesOut` |
//! | `str`, `text` | `const char *`, `char *`, not null | `&CStr`, the address |
//! | `strs`, `argv3`, `argv2a` | arrays of strings | the address |
//! | `fn*=TYPE`, `fn=TYPE` | that type | the address |
//! | `T=TYPE`, `T=TYPE*` | that type, which is a handle | the number, `Out` |
//!
//! # Arguments that become one
//!
//! An array `kind[other]` has as many entries as the argument `other` says, which the function is not given:
//!
//! | kind | what the function is given |
//! |---|---|
//! | `ints`, `ranges`, `requests` | a slice |
//! | `counts`, `strides`, `extents` | `Vec<u64>`, not negative; `Vec<i64>` |
//! | `types`, `requests&` | `Vec<Type>`, `Vec<HandleOut>` |
//! | `ints*`, `aints*`, `bigs*`, `types&` | `Room` |
//!
//! Arguments that follow each other:
//!
//! | kinds | what the function is given |
//! |---|---|
//! | `buf` or `mem`, `count`, `type` | `Elements` |
//! | `buf` or `mem`, `count?` or `counts` and displacements, `type?` or `types` | `Blocks` |
//! | `buf` or `mem`, `count` or `extent`, `count*` or `extent*` | `Packed` |
//! | `rank`, `aint`, `count`, `type` | `Target` |
//! | `text[CONSTANT]`, `int*`; a text with room for so many | `Text` |
//! | `text?`, `int*?`; `int*`, `text?` | `Text`, with as much room as the number says |
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
    /// Of an array: which argument says how long it is. Of a text: the constant that does.
    pub len: Option<&'static str>,
}

/// A function, in all its forms.
#[derive(Clone, Debug)]
pub struct Function {
    /// Without `MPI_`.
    pub name: &'static str,
    /// The module that has it; `None`: nothing has it, and it fails.
    pub module: Option<&'static str>,
    /// The function of the module, and what it is given first.
    pub called: (&'static str, Option<&'static str>),
    /// Whether it fails always.
    pub absent: bool,
    /// Whether it may be called at any time.
    pub any_time: bool,
    /// The forms that it has beside the plain one.
    pub forms: &'static [Form],
    /// Whether there is a form for large counts.
    pub large: bool,
    /// The type of its result, if that is no error code.
    pub result: Option<&'static str>,
    /// In their order.
    pub arguments: Vec<Argument>,
}

/// A form of a function, beside the one that has ended when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `I…`.
    NonBlocking,
    /// `…_init`, with an info.
    Persistent,
    /// `…_init`, without.
    PersistentSend,
    /// `R…`.
    Requested,
}

/// One exported function.
#[derive(Clone, Debug)]
pub struct Export<'f> {
    /// Without `MPI_`.
    pub name: String,
    /// Of which function it is a form.
    pub function: &'f Function,
    /// Which form it is; `None`: the plain one.
    pub form: Option<Form>,
    /// Whether it takes large counts.
    pub large: bool,
}

const REQUEST: Argument =
    Argument { name: "request", kind: "newrequest", large: "newrequest", len: None };
const INFO: Argument = Argument { name: "info", kind: "info", large: "info", len: None };

impl Function {
    /// All its forms.
    pub fn exports(&self) -> Vec<Export<'_>> {
        let forms = [None].into_iter().chain(self.forms.iter().copied().map(Some));
        let sizes: &[bool] = if self.large { &[false, true] } else { &[false] };
        let all = forms.flat_map(|form| sizes.iter().map(move |large| (form, *large)));
        let export = |(form, large)| {
            let name = self.form_name(form, large);
            Export { name, function: self, form, large }
        };
        all.map(export).collect()
    }

    fn form_name(&self, form: Option<Form>, large: bool) -> String {
        let suffix = if large { "_c" } else { "" };
        let (first, rest) = self.name.split_at(1);
        let first = first.to_lowercase();
        match form {
            None => format!("{}{suffix}", self.name),
            Some(Form::NonBlocking) => format!("I{first}{rest}{suffix}"),
            Some(Form::Requested) => format!("R{first}{rest}{suffix}"),
            Some(Form::Persistent | Form::PersistentSend) => format!("{}_init{suffix}", self.name),
        }
    }
}

impl Export<'_> {
    /// Its arguments, each with its kind in this form.
    pub fn arguments(&self) -> Vec<(&'static str, &'static str)> {
        let extra: &[Argument] = match self.form {
            None => &[],
            Some(Form::Persistent) => &[INFO, REQUEST],
            Some(_) => &[REQUEST],
        };
        let all = self.function.arguments.iter().chain(extra);
        all.map(|argument| (argument.name, self.kind(argument))).collect()
    }

    /// What an argument is in this form.
    pub(crate) fn kind(&self, argument: &Argument) -> &'static str {
        if self.large { argument.large } else { argument.kind }
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
        line.split_once(" :").expect("a function has a `:` before its arguments");
    let (head, result) = match head.split_once(" -> ") {
        Some((head, result)) => (head, Some(result)),
        None => (head, None),
    };
    let (head, called) = match head.split_once('=') {
        Some((head, called)) => (head, Some(called)),
        None => (head, None),
    };
    let mut parts = head.split('/');
    let full_name = parts.next().expect("a function has a name");
    let name = full_name.trim_matches(['-', '!']);
    let flags: Vec<&str> = parts.collect();
    let forms = [
        ("coll", &[Form::NonBlocking, Form::Persistent][..]),
        ("send", &[Form::NonBlocking, Form::PersistentSend]),
        ("rma", &[Form::Requested]),
    ];
    let forms = forms.into_iter().find(|(flag, _)| flags.contains(flag));
    let absent = full_name.starts_with('-');
    Function {
        name,
        module: module.filter(|_| !absent || called.is_some()),
        called: match called.map(|called| called.strip_suffix(')').unwrap_or(called)) {
            Some(called) => match called.split_once('(') {
                Some((called, given)) => (called, Some(given)),
                None => (called, None),
            },
            None => (name, None),
        },
        absent,
        any_time: full_name.ends_with('!'),
        forms: forms.map_or(&[], |(_, forms)| forms),
        large: flags.contains(&"c"),
        result,
        arguments: arguments.split_whitespace().map(argument).collect(),
    }
}

fn argument(word: &'static str) -> Argument {
    let (word, len) = match word.strip_suffix(']').and_then(|word| word.split_once('[')) {
        Some((word, len)) => (word, Some(len)),
        None => (word, None),
    };
    let (name, kinds) = word.split_once(':').unwrap_or((word, word));
    let (kind, large) = kinds.split_once('/').unwrap_or((kinds, kinds));
    Argument { name, kind, large, len }
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
        "mem" | "address*" => "void *@".into(),
        "count" | "stride" => number("int @", "MPI_Count @"),
        "extent" => number("MPI_Aint @", "MPI_Count @"),
        "counts" | "strides" => number("const int @[]", "const MPI_Count @[]"),
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
        "big" | "large" => "MPI_Count @".into(),
        "big*" | "large*" => "MPI_Count *@".into(),
        "bigs*" => "MPI_Count @[]".into(),
        "newrequest" => "MPI_Request *@".into(),
        "made" => "MPI_Datatype *@".into(),
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
