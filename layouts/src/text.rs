//! Layouts of one's own, as text: the constructor calls of datatypes, in TOML.
//!
//! ```toml
//! [types.row]                              # a type that has a name, for others to use
//! contiguous = { count = 4, of = "double" }
//!
//! [layout]                                 # a message
//! name = "columns"
//! vector = { count = 512, blocklength = 1, stride = 128, of = "row" }
//! count = 2                                # instances of it; 1, if nothing is said
//! receive = { contiguous = { count = 4096, of = "double" } }   # as it was sent, if nothing is said
//! ```
//!
//! A type is the name of a primitive type (`double`, `MPI_DOUBLE`, `f64`), the name of an entry of `types`, or a table
//! with one constructor, whose arguments are those of [`Datatype`]'s function of that name; `of` is the type it is built
//! on, and `structure` has a list `types`. `docs/layouts.md` has all of them. `[[layout]]` describes several messages.
//!
//! Read first: `build.rs` (types), `error.rs` (what can be wrong). Nothing here reads files: the text is an argument.

mod arguments;
mod build;
mod error;
mod nesting;

use crate::{Case, Family, MAX_BUFFER_BYTES, Side};
use build::Types;
pub use build::primitive;
pub use error::{TextError, TextFault};
use gapless_dtype::Datatype;
use std::ops::Range;
use std::path::Path;
use toml_edit::{Document, Item, TableLike, Value};

/// How deep values may nest; `toml_edit`'s own bound.
const DEPTH_MAX: u32 = 80;

/// The messages that a text describes; `path` is what errors call it.
///
/// ```
/// let text = "[layout]\nvector = { count = 3, blocklength = 2, stride = 5, of = 'double' }";
/// let cases = gapless_layouts::text::parse(text, "mine.toml".as_ref())?;
/// assert_eq!((cases[0].name.as_str(), cases[0].payload_bytes), ("mine", 3 * 2 * 8));
/// let wrong = text.replace("stride", "strid");
/// let error = gapless_layouts::text::parse(&wrong, "mine.toml".as_ref()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "layout file \"mine.toml\", line 2: vector has no \"strid\"; it takes count, blocklength, stride, of"
/// );
/// # Ok::<(), gapless_layouts::text::TextError>(())
/// ```
///
/// # Errors
/// What is wrong, and in which line.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Case>, TextError> {
    let source = Source { path, text };
    let tokens = toml_parser::Source::new(text);
    if let Some(error) = nesting::first_error(tokens, &tokens.lex().into_vec(), DEPTH_MAX) {
        let place = error.unexpected().or(error.context()).map(|span| span.start()..span.end());
        return Err(source.wrong(place, TextFault::Syntax(error.description().to_owned())));
    }
    let document = Document::parse(text).map_err(|error| {
        let what = shown(&error.message().replace('\n', ", "));
        source.wrong(error.span(), TextFault::Syntax(what))
    })?;
    let root = document.as_table();
    source.only(root, "a layout file", &["layout", "types"])?;
    let mut types = Types::new(&source, root)?;
    let (layouts, several): (Vec<&dyn TableLike>, bool) = match root.get("layout") {
        Some(Item::ArrayOfTables(all)) => {
            (all.iter().map(|table| table as &dyn TableLike).collect(), true)
        }
        Some(one) => (vec![source.table("layout", one)?], false),
        None => return Err(source.wrong(None, TextFault::NoLayout)),
    };
    let mut cases: Vec<Case> = Vec::with_capacity(layouts.len());
    for (at, layout) in (1..).zip(layouts) {
        let stem = path.file_stem().map_or("layout".into(), |stem| stem.to_string_lossy());
        let stem = shown(&stem);
        let unnamed = if several { format!("{stem} {at}") } else { stem };
        cases.push(case(&source, &mut types, layout, unnamed)?);
    }
    // Types that no layout uses are to be right as well.
    types.all()?;
    Ok(cases)
}

/// Characters of a name at most: tables have room for these.
const NAME_MAX: usize = 64;

/// One message.
fn case(
    source: &Source<'_>,
    types: &mut Types<'_>,
    table: &dyn TableLike,
    unnamed: String,
) -> Result<Case, TextError> {
    let name = match table.get("name") {
        Some(item) => {
            let name = source.string("layout.name", item)?;
            let fits = (1..=NAME_MAX).contains(&name.chars().count());
            if !fits || name.chars().any(char::is_control) {
                let (key, found) = ("layout.name".to_owned(), shown(name));
                let wanted = "a name of 1 to 64 characters, none of which is a control character";
                let fault = TextFault::Mistyped { key, found, wanted };
                return Err(source.wrong(item.span(), fault));
            }
            name.to_owned()
        }
        None => unnamed,
    };
    let send = side(source, types, table, "layout", &["name", "count", "receive"])?;
    let recv = match table.get("receive") {
        Some(item) => {
            let table = source.table("layout.receive", item)?;
            side(source, types, table, "layout.receive", &["count"])?
        }
        None => send.clone(),
    };
    let (sent, received) = (send.payload_bytes(), recv.payload_bytes());
    if sent != received {
        let fault = TextFault::Differ { sent, received };
        return Err(source.wrong(table.get("receive").and_then(Item::span), fault));
    }
    Ok(Case {
        name,
        family: Family::Own,
        send,
        recv,
        payload_bytes: sent,
        expected_send_blocks: None,
        expected_recv_blocks: None,
    })
}

/// What is sent, or received: a type, how often, and how large a buffer it takes.
fn side(
    source: &Source<'_>,
    types: &mut Types<'_>,
    table: &dyn TableLike,
    place: &str,
    beside: &[&str],
) -> Result<Side, TextError> {
    let datatype: Datatype = types.described(table, place, beside)?;
    let span = table.iter().find_map(|(key, _)| table.key(key)?.span());
    let count = match table.get("count") {
        Some(item) => source.unsigned(&format!("{place}.count"), item)?,
        None => 1,
    };
    let mut side = Side { datatype, count, origin: 0, buffer_bytes: 0 };
    if side.payload_bytes() == 0 {
        return Err(source.wrong(span, TextFault::Empty { place: place.to_owned() }));
    }
    let too_large = || source.wrong(span.clone(), TextFault::TooLarge { place: place.to_owned() });
    let (low, high) = side.touched().ok_or_else(too_large)?;
    // Displacement 0 is in the buffer, whether or not anything lies there.
    let (low, high) = (low.min(0), high.max(0));
    let most = i64::try_from(MAX_BUFFER_BYTES).unwrap_or(i64::MAX);
    high.checked_sub(low).filter(|len| *len <= most).ok_or_else(too_large)?;
    side.origin = low.unsigned_abs();
    side.buffer_bytes = high.abs_diff(low);
    Ok(side)
}

/// A text being read.
struct Source<'f> {
    path: &'f Path,
    text: &'f str,
}

impl Source<'_> {
    fn wrong(&self, span: Option<Range<usize>>, fault: TextFault) -> TextError {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        let lines = self.text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
        TextError { path: self.path.to_owned(), line: 1 + lines, fault: Box::new(fault) }
    }

    /// No keys but these.
    fn only(&self, table: &dyn TableLike, place: &str, allowed: &[&str]) -> Result<(), TextError> {
        let Some((key, _)) = table.iter().find(|(key, _)| !allowed.contains(key)) else {
            return Ok(());
        };
        let span = table.key(key).and_then(toml_edit::Key::span);
        let (place, key) = (place.to_owned(), shown(key));
        Err(self.wrong(span, TextFault::Unknown { place, key, allowed: allowed.join(", ") }))
    }

    fn table<'i>(&self, key: &str, item: &'i Item) -> Result<&'i dyn TableLike, TextError> {
        item.as_table_like().ok_or_else(|| self.mistyped(key, item, "a table"))
    }

    fn string<'i>(&self, key: &str, item: &'i Item) -> Result<&'i str, TextError> {
        item.as_str().ok_or_else(|| self.mistyped(key, item, "a string"))
    }

    fn unsigned(&self, key: &str, item: &Item) -> Result<u64, TextError> {
        let number = item.as_integer().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| self.mistyped(key, item, "a whole number from 0 on"))
    }

    fn mistyped(&self, key: &str, item: &Item, wanted: &'static str) -> TextError {
        if let Item::Value(value) = item {
            return self.mistyped_value(key, value, wanted);
        }
        let (key, found) = (key.to_owned(), format!("of type {}", item.type_name()));
        self.wrong(item.span(), TextFault::Mistyped { key, found, wanted })
    }

    fn mistyped_value(&self, key: &str, value: &Value, wanted: &'static str) -> TextError {
        let found = match value {
            Value::String(text) => format!("{:?}", shown(text.value())),
            Value::Integer(number) => number.value().to_string(),
            other => format!("of type {}", other.type_name()),
        };
        self.wrong(value.span(), TextFault::Mistyped { key: key.to_owned(), found, wanted })
    }
}

/// A foreign text, short enough for an error, in one line.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let text = text.replace(char::is_control, " ");
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests;
