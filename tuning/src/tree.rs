//! The TOML of a tuning file as a tree: tables, keys and values that know where they stand.
//!
//! Which tokens there are, and in which order they may come, `toml_parser` decides. Which tables they add to, and that
//! nothing is said twice, is decided here.

use super::nesting;
use std::slice;
use toml_parser::decoder::ScalarKind;
use toml_parser::parser::{Event, EventKind, parse_document};
use toml_parser::{ParseError, Source};

/// How deep values may nest, and of how many parts a key may be.
const DEPTH_MAX: u32 = 16;

/// Why a text is no TOML, and where, in bytes.
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) what: String,
}

fn fault<T>(at: usize, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at, what: what.into() })
}

/// A value.
pub(crate) enum Value {
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Datetime,
    String(String),
    Array(Vec<Item>),
    Inline(Table),
    /// Of a header, or of a key with dots.
    Table(Table),
    /// Of headers with two brackets.
    Tables(Vec<Table>),
}

/// A value, and where its key is; in a list, where it is itself.
pub(crate) struct Item {
    pub(crate) at: usize,
    pub(crate) value: Value,
}

/// Keys and values, in the order of the text.
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<(String, Item)>,
    /// It has had its header, or is made of keys with dots: no header may open it.
    closed: bool,
}

impl Item {
    /// What errors call its kind.
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Integer(_) => "integer",
            Value::Float(_) => "float",
            Value::Boolean(_) => "boolean",
            Value::Datetime => "datetime",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Inline(_) => "inline table",
            Value::Table(_) => "table",
            Value::Tables(_) => "array of tables",
        }
    }

    pub(crate) fn as_integer(&self) -> Option<i64> {
        if let Value::Integer(number) = self.value { Some(number) } else { None }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        if let Value::Float(number) = self.value { Some(number) } else { None }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        if let Value::Boolean(yes) = self.value { Some(yes) } else { None }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = &self.value { Some(text) } else { None }
    }

    pub(crate) fn as_array(&self) -> Option<&[Item]> {
        if let Value::Array(list) = &self.value { Some(list) } else { None }
    }

    pub(crate) fn as_inline_table(&self) -> Option<&Table> {
        if let Value::Inline(table) = &self.value { Some(table) } else { None }
    }

    pub(crate) fn as_table(&self) -> Option<&Table> {
        if let Value::Table(table) = &self.value { Some(table) } else { None }
    }

    pub(crate) fn as_tables(&self) -> Option<&[Table]> {
        if let Value::Tables(tables) = &self.value { Some(tables) } else { None }
    }
}

/// A part of a key, and where it is.
type Part = (String, usize);

fn twice<T>((name, at): &Part) -> Result<T, Fault> {
    fault(*at, format!("duplicate key {name:?}"))
}

impl Table {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Item)> {
        self.entries.iter().map(|(key, item)| (key.as_str(), item))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Item> {
        self.iter().find(|(known, _)| *known == key).map(|(_, item)| item)
    }

    /// The value of a key, which is made if there is none.
    fn slot(&mut self, (name, at): &Part, make: fn() -> Value) -> &mut Value {
        let known = self.entries.iter().position(|(key, _)| key == name);
        let place = known.unwrap_or_else(|| {
            self.entries.push((name.clone(), Item { at: *at, value: make() }));
            self.entries.len() - 1
        });
        &mut self.entries[place].1.value
    }

    /// The table that a header opens below this one.
    fn header(&mut self, path: &[Part], several: bool) -> Result<&mut Table, Fault> {
        let Some((last, before)) = path.split_last() else { return fault(0, "an empty header") };
        let mut table = self;
        for part in before {
            table = match table.slot(part, || Value::Table(Table::default())) {
                Value::Table(inner) => inner,
                Value::Tables(list) => match list.last_mut() {
                    Some(inner) => inner,
                    None => return twice(part),
                },
                _ => return twice(part),
            };
        }
        if several {
            let Value::Tables(list) = table.slot(last, || Value::Tables(Vec::new())) else {
                return twice(last);
            };
            list.push(Table::default());
            let last = list.len() - 1;
            return Ok(&mut list[last]);
        }
        match table.slot(last, || Value::Table(Table::default())) {
            Value::Table(inner) if !inner.closed => {
                inner.closed = true;
                Ok(inner)
            }
            _ => twice(last),
        }
    }

    /// Adds what a key, perhaps with dots, is set to.
    fn insert(&mut self, path: &[Part], value: Value) -> Result<(), Fault> {
        let Some((last, before)) = path.split_last() else { return fault(0, "an empty key") };
        let mut table = self;
        for part in before {
            let Value::Table(inner) = table.slot(part, || Value::Table(Table::default())) else {
                return twice(part);
            };
            inner.closed = true;
            table = inner;
        }
        if table.get(&last.0).is_some() {
            return twice(last);
        }
        table.entries.push((last.0.clone(), Item { at: last.1, value }));
        Ok(())
    }
}

/// The tree of a text.
pub(crate) fn parse(text: &str) -> Result<Table, Fault> {
    let source = Source::new(text);
    let tokens = source.lex().into_vec();
    if let Some(error) = nesting::first_error(source, &tokens, DEPTH_MAX) {
        return Err(said(&error));
    }
    // Nothing is wrong with the text, so it nests as deep as was seen.
    let mut events = Vec::<Event>::new();
    parse_document(&tokens, &mut events, &mut ());
    let mut reader = Reader { source, events: events.iter() };
    let mut root = Table::default();
    let mut table = &mut root;
    while let Some(event) = reader.next() {
        match event.kind() {
            kind @ (EventKind::StdTableOpen | EventKind::ArrayTableOpen) => {
                let (path, _) = reader.path(None)?;
                table = root.header(&path, kind == EventKind::ArrayTableOpen)?;
            }
            _ => reader.entry(event, table)?,
        }
    }
    Ok(root)
}

fn said(error: &ParseError) -> Fault {
    let span = error.unexpected().or(error.context());
    Fault { at: span.map_or(0, |span| span.start()), what: error.description().to_owned() }
}

/// What the parser has found, one after the other.
struct Reader<'t, 'e> {
    source: Source<'t>,
    events: slice::Iter<'e, Event>,
}

impl<'e> Reader<'_, 'e> {
    /// The next event that says anything.
    fn next(&mut self) -> Option<&'e Event> {
        let trivia = [EventKind::Whitespace, EventKind::Comment, EventKind::Newline];
        self.events.find(|event| !trivia.contains(&event.kind()))
    }

    /// The parts of a key, of which `first` may be known, and the event behind it.
    fn path(&mut self, first: Option<&'e Event>) -> Result<(Vec<Part>, EventKind), Fault> {
        let mut path = Vec::new();
        let mut next = first.or_else(|| self.next());
        while let Some(event) = next {
            match event.kind() {
                EventKind::KeySep => {}
                EventKind::SimpleKey => {
                    let (mut name, mut wrong) = (String::new(), None::<ParseError>);
                    if let Some(raw) = self.source.get(event) {
                        raw.decode_key(&mut name, &mut wrong);
                    }
                    let at = event.span().start();
                    match wrong {
                        Some(error) => return Err(said(&error)),
                        None if path.len() == DEPTH_MAX as usize => {
                            return fault(at, "too many dots");
                        }
                        None => path.push((name, at)),
                    }
                }
                other => return Ok((path, other)),
            }
            next = self.next();
        }
        fault(self.source.input().len(), "the text ends in a key")
    }

    /// A key and its value.
    fn entry(&mut self, first: &'e Event, table: &mut Table) -> Result<(), Fault> {
        let (path, end) = self.path(Some(first))?;
        let Some(event) = self.next().filter(|_| end == EventKind::KeyValSep) else {
            return fault(first.span().start(), "a key without a value");
        };
        let value = self.value(event)?;
        table.insert(&path, value)
    }

    /// The value that begins with this event.
    fn value(&mut self, first: &'e Event) -> Result<Value, Fault> {
        let at = first.span().start();
        match first.kind() {
            EventKind::Scalar => self.scalar(first),
            EventKind::ArrayOpen => {
                let mut list = Vec::new();
                while let Some(event) = self.next() {
                    match event.kind() {
                        EventKind::ArrayClose => return Ok(Value::Array(list)),
                        EventKind::ValueSep => {}
                        _ => {
                            let at = event.span().start();
                            list.push(Item { at, value: self.value(event)? });
                        }
                    }
                }
                fault(at, "a list without an end")
            }
            EventKind::InlineTableOpen => {
                let mut table = Table::default();
                while let Some(event) = self.next() {
                    match event.kind() {
                        EventKind::InlineTableClose => return Ok(Value::Inline(table)),
                        EventKind::ValueSep => {}
                        _ => self.entry(event, &mut table)?,
                    }
                }
                fault(at, "a table without an end")
            }
            _ => fault(at, "no value"),
        }
    }

    fn scalar(&self, event: &Event) -> Result<Value, Fault> {
        let at = event.span().start();
        let Some(raw) = self.source.get(event) else { return fault(at, "no value") };
        let (mut text, mut wrong) = (String::new(), None::<ParseError>);
        let kind = raw.decode_scalar(&mut text, &mut wrong);
        if let Some(error) = wrong {
            return Err(said(&error));
        }
        let value = match kind {
            ScalarKind::String => Some(Value::String(text)),
            ScalarKind::Boolean(yes) => Some(Value::Boolean(yes)),
            ScalarKind::DateTime => Some(Value::Datetime),
            ScalarKind::Float => text.parse().ok().map(Value::Float),
            ScalarKind::Integer(radix) => {
                i64::from_str_radix(&text, radix.value()).ok().map(Value::Integer)
            }
        };
        value.map_or_else(|| fault(at, "a number of more than 64 bits"), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> usize {
        parse(text).err().unwrap_or_else(|| panic!("accepted: {text}")).at
    }

    #[test]
    fn headers_and_dots_add_to_tables() {
        let text = "a.b = 1\n[c.d]\ne = 'x'\n[c]\nf = { g.h = 2.5 }\n[[l]]\n[l.m]\ni = [1, [2],]\n\
                    [[l]]\n'1 2' = 0x10 # end";
        let root = parse(text).ok().unwrap();
        let get = |path: &str| {
            let mut parts = path.split('.');
            let first = root.get(parts.next().unwrap()).unwrap();
            parts.fold(first, |item, part| {
                item.as_table().or_else(|| item.as_inline_table()).unwrap().get(part).unwrap()
            })
        };
        assert_eq!(get("a.b").as_integer(), Some(1));
        assert_eq!(get("c.d.e").as_str(), Some("x"));
        assert_eq!(get("c.f.g.h").as_float(), Some(2.5));
        let [first, second] = root.get("l").unwrap().as_tables().unwrap() else { panic!("two") };
        let list = first.get("m").unwrap().as_table().unwrap().get("i").unwrap();
        assert_eq!(list.as_array().unwrap().len(), 2);
        assert_eq!(second.get("1 2").unwrap().as_integer(), Some(16));
        assert_eq!(get("c.f").at, text.find("f =").unwrap());
    }

    #[test]
    fn nothing_is_said_twice() {
        for (text, at) in [
            ("a = 1\na = 2", 6),
            ("[a]\n[a]", 5),
            ("a.b = 1\n[a]", 9),
            ("a = 1\n[a.b]", 7),
            ("a = {}\na.b = 1", 7),
            ("[[a]]\n[a]", 7),
            ("[a]\n[[a]]", 6),
            ("a = []\n[[a]]", 9),
            ("a = { b = 1, b = 2 }", 13),
        ] {
            assert_eq!(refused(text), at, "{text}");
        }
    }

    /// A thread of tests has 2 MiB of stack.
    #[test]
    fn what_nests_deep_is_refused_also_behind_an_error() {
        let deep = DEPTH_MAX as usize;
        assert!(parse(&format!("a = {}{}", "[".repeat(deep), "]".repeat(deep))).is_ok());
        let close = |n: usize| ["]", "}"].map(|end| end.repeat(n)).concat();
        for n in [deep + 1, 3000] {
            for (before, open) in
                [("", "["), ("", "{a="), ("{{}", "["), ("[{}", "{a="), ("{]", "[")]
            {
                refused(&format!("a = {}{}", open.repeat(n), close(n)));
                let lost = before.repeat(n);
                refused(&format!("a = {{{lost}a={}", open.repeat(n)));
                refused(&format!("a = {{{}a={}", "{}".repeat(n), open.repeat(n)));
            }
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_where_it_is() {
        let many = format!("a{} = 1", ".a".repeat(DEPTH_MAX as usize));
        for (text, at) in [
            ("a = 9223372036854775808", 4),
            ("a = [1, 2", 9),
            ("a = \"\\q\"", 6),
            ("\na = tru", 5),
            (many.as_str(), 2 * DEPTH_MAX as usize),
        ] {
            assert_eq!(refused(text), at, "{text}");
        }
    }
}
