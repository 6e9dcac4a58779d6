//! What is wrong with the text of a layout: which file, which line, and what is allowed.

use crate::MAX_BUFFER_BYTES;
use gapless_dtype::TypeError;
use std::path::PathBuf;

/// Why a text describes no layout.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("layout file {path:?}, line {line}: {fault}")]
pub struct TextError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: Box<TextFault>,
}

/// What is wrong in a line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TextFault {
    /// It is not TOML.
    #[error("{0}")]
    Syntax(String),
    /// It describes no message.
    #[error("there is no [layout]")]
    NoLayout,
    /// A key that is not known there.
    #[error("{place} has no {key:?}; it takes {allowed}")]
    Unknown {
        /// The table.
        place: String,
        /// The key.
        key: String,
        /// The keys that it may have.
        allowed: String,
    },
    /// A value of another kind, or a number out of range.
    #[error("{key} is {found}, not {wanted}")]
    Mistyped {
        /// The key, with its table.
        key: String,
        /// The value in the file.
        found: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// An argument that is not given and has no default.
    #[error("{place} needs {key:?}")]
    Missing {
        /// The constructor.
        place: String,
        /// Its argument.
        key: &'static str,
    },
    /// A type without a constructor.
    #[error("{place} needs a constructor: {allowed}")]
    NoConstructor {
        /// The table.
        place: String,
        /// All constructors.
        allowed: String,
    },
    /// A type with several.
    #[error("{place} has two constructors, {first} and {second}; a type has one")]
    TwoConstructors {
        /// The table.
        place: String,
        /// One.
        first: String,
        /// Another.
        second: String,
    },
    /// A name that is no type's.
    #[error("there is no type {name:?}; {}types are {known}", own(.named))]
    NoType {
        /// The name.
        name: String,
        /// The names that the file gives.
        named: String,
        /// The names of the primitive types.
        known: String,
    },
    /// A named type that has a primitive type's name.
    #[error("types.{name}: that is the name of a primitive type; choose another")]
    Taken {
        /// The name.
        name: String,
    },
    /// A named type that is made of itself.
    #[error("types.{name} is made of itself")]
    Circular {
        /// The name.
        name: String,
    },
    /// Types nest deeper than any datatype may.
    #[error("types nest more than {limit} deep")]
    TooDeep {
        /// The deepest.
        limit: usize,
    },
    /// The constructor refuses its arguments.
    #[error(transparent)]
    Type(TypeError),
    /// A message of no bytes.
    #[error("{place} has no bytes")]
    Empty {
        /// The table.
        place: String,
    },
    /// What is sent cannot be received.
    #[error("layout.receive takes {received} bytes, and {sent} are sent")]
    Differ {
        /// Bytes that are sent.
        sent: u64,
        /// Bytes that are received.
        received: u64,
    },
    /// It would take a larger buffer than any layout may.
    #[error("{place} reaches over more than {MAX_BUFFER_BYTES} bytes")]
    TooLarge {
        /// The table.
        place: String,
    },
}

fn own(named: &str) -> String {
    if named.is_empty() { String::new() } else { format!("this file has {named}, and primitive ") }
}
