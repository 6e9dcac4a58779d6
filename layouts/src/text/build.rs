//! Types: by name, or by a constructor call.

use super::arguments::Arguments;
use super::{Source, TextError, TextFault, shown};
use gapless_dtype::limits::MAX_DEPTH;
use gapless_dtype::{Darray, Datatype, Primitive, Subarray, TypeError};
use std::collections::HashMap;
use toml_edit::{Item, Key, Table, TableLike, Value};

/// The constructors, and the arguments of each.
const CONSTRUCTORS: &[(&str, &[&str])] = &[
    ("contiguous", &["count", "of"]),
    ("vector", &["count", "blocklength", "stride", "of"]),
    ("hvector", &["count", "blocklength", "stride_bytes", "of"]),
    ("indexed", &["blocklengths", "displacements", "of"]),
    ("hindexed", &["blocklengths", "displacements_bytes", "of"]),
    ("indexed_block", &["blocklength", "displacements", "of"]),
    ("hindexed_block", &["blocklength", "displacements_bytes", "of"]),
    ("structure", &["blocklengths", "displacements_bytes", "types"]),
    ("subarray", &["sizes", "subsizes", "starts", "order", "of"]),
    ("darray", &["gsizes", "psizes", "rank", "distribs", "dargs", "order", "of"]),
    ("resized", &["lb", "extent", "of"]),
    ("dup", &["of"]),
];

/// In place of a constructor: another type, as it is.
const TYPE: &str = "type";

/// Names of Rust's types beside MPI's.
const RUST: &[(&str, Primitive)] = &[
    ("i8", Primitive::Int8),
    ("i16", Primitive::Int16),
    ("i32", Primitive::Int32),
    ("i64", Primitive::Int64),
    ("u8", Primitive::Uint8),
    ("u16", Primitive::Uint16),
    ("u32", Primitive::Uint32),
    ("u64", Primitive::Uint64),
    ("f16", Primitive::Float16),
    ("bf16", Primitive::BFloat16),
    ("f32", Primitive::Float),
    ("f64", Primitive::Double),
    ("bool", Primitive::Bool),
];

/// The types of a file.
pub(super) struct Types<'f> {
    source: &'f Source<'f>,
    named: Vec<(&'f Key, &'f dyn TableLike)>,
    /// Where each name is in that list.
    places: HashMap<&'f str, usize>,
    built: HashMap<&'f str, Datatype>,
    /// The named types that are being built, the outermost first.
    under_way: Vec<&'f str>,
    depth: usize,
}

impl<'f> Types<'f> {
    /// Reads the names that the file gives.
    pub(super) fn new(source: &'f Source<'f>, root: &'f Table) -> Result<Types<'f>, TextError> {
        let mut named = Vec::new();
        if let Some(item) = root.get("types") {
            let table = source.table("types", item)?;
            for (name, item) in table.iter() {
                let key = table.key(name);
                if primitive(name).is_some() {
                    let fault = TextFault::Taken { name: shown(name) };
                    return Err(source.wrong(key.and_then(Key::span), fault));
                }
                let table = source.table(&format!("types.{}", shown(name)), item)?;
                named.extend(key.map(|key| (key, table)));
            }
        }
        let (built, under_way) = (HashMap::new(), Vec::new());
        let places = named.iter().enumerate().map(|(at, (key, _))| (key.get(), at)).collect();
        Ok(Types { source, named, places, built, under_way, depth: 0 })
    }

    /// Builds those that are not yet built.
    pub(super) fn all(&mut self) -> Result<(), TextError> {
        for (key, _) in self.named.clone() {
            self.by_name(key.get(), None)?;
        }
        Ok(())
    }

    /// The type that a table describes by one constructor, beside keys of its own.
    pub(super) fn described(
        &mut self,
        table: &dyn TableLike,
        place: &str,
        beside: &[&str],
    ) -> Result<Datatype, TextError> {
        let names = || CONSTRUCTORS.iter().map(|(name, _)| *name).chain([TYPE]);
        let allowed: Vec<&str> = names().chain(beside.iter().copied()).collect();
        self.source.only(table, place, &allowed)?;
        let mut calls = table.iter().filter(|(key, _)| names().any(|name| name == *key));
        let (Some((name, item)), second) = (calls.next(), calls.next()) else {
            let span = table.iter().find_map(|(key, _)| table.key(key)?.span());
            let allowed = names().collect::<Vec<_>>().join(", ");
            let fault = TextFault::NoConstructor { place: place.to_owned(), allowed };
            return Err(self.source.wrong(span, fault));
        };
        if let Some((second, _)) = second {
            let (place, first, second) = (place.to_owned(), name.to_owned(), second.to_owned());
            let span = table.key(&second).and_then(Key::span);
            return Err(self
                .source
                .wrong(span, TextFault::TwoConstructors { place, first, second }));
        }
        match CONSTRUCTORS.iter().find(|(constructor, _)| *constructor == name) {
            Some((constructor, allowed)) => {
                let table = self.source.table(name, item)?;
                self.source.only(table, constructor, allowed)?;
                self.call(constructor, table, item)
            }
            None => self.of_item(TYPE, item),
        }
    }

    /// One constructor call.
    fn call(
        &mut self,
        constructor: &'static str,
        table: &dyn TableLike,
        item: &Item,
    ) -> Result<Datatype, TextError> {
        // What nests deeper would be refused in any case, and must not exhaust the stack before.
        if self.depth == MAX_DEPTH {
            return Err(self.source.wrong(item.span(), TextFault::TooDeep { limit: MAX_DEPTH }));
        }
        self.depth += 1;
        let it = Arguments { source: self.source, constructor, table };
        let made = self.called(&it)?;
        self.depth -= 1;
        // The line of the constructor's name: a table's own position is that of its first key.
        made.map_err(|error| self.source.wrong(item.span(), TextFault::Type(error)))
    }

    fn called(&mut self, it: &Arguments<'_>) -> Result<Result<Datatype, TypeError>, TextError> {
        if it.constructor == "structure" {
            let (path, item) = (it.path("types"), it.item("types")?);
            let list = item.as_array();
            let list = list.ok_or_else(|| self.source.mistyped(&path, item, "a list of types"))?;
            let types = list.iter().enumerate();
            let types: Vec<Datatype> = types
                .map(|(at, value)| self.of_value(&format!("{path}[{at}]"), value))
                .collect::<Result<_, _>>()?;
            let lengths = it.all_unsigned("blocklengths")?;
            let displacements = it.all_signed("displacements_bytes")?;
            return Ok(Datatype::structure(&lengths, &displacements, &types));
        }
        let old = &self.of_item(&it.path("of"), it.item("of")?)?;
        Ok(match it.constructor {
            "contiguous" => Datatype::contiguous(it.unsigned("count")?, old),
            "vector" => {
                let (count, length) = (it.unsigned("count")?, it.unsigned("blocklength")?);
                Datatype::vector(count, length, it.signed("stride")?, old)
            }
            "hvector" => {
                let (count, length) = (it.unsigned("count")?, it.unsigned("blocklength")?);
                Datatype::hvector(count, length, it.signed("stride_bytes")?, old)
            }
            "indexed" => Datatype::indexed(
                &it.all_unsigned("blocklengths")?,
                &it.all_signed("displacements")?,
                old,
            ),
            "hindexed" => Datatype::hindexed(
                &it.all_unsigned("blocklengths")?,
                &it.all_signed("displacements_bytes")?,
                old,
            ),
            "indexed_block" => Datatype::indexed_block(
                it.unsigned("blocklength")?,
                &it.all_signed("displacements")?,
                old,
            ),
            "hindexed_block" => Datatype::hindexed_block(
                it.unsigned("blocklength")?,
                &it.all_signed("displacements_bytes")?,
                old,
            ),
            "subarray" => {
                let mut made =
                    Subarray::of(old).sizes(it.all_unsigned("sizes")?).order(it.order()?);
                if let Some(subsizes) = it.some_unsigned("subsizes")? {
                    made = made.subsizes(subsizes);
                }
                if let Some(starts) = it.some_unsigned("starts")? {
                    made = made.starts(starts);
                }
                made.build()
            }
            "darray" => {
                let mut made = Darray::of(old).gsizes(it.all_unsigned("gsizes")?);
                made = made.psizes(it.all_unsigned("psizes")?).rank(it.unsigned("rank")?);
                if let Some(distribs) = it.distribs()? {
                    made = made.distribs(distribs);
                }
                if let Some(dargs) = it.dargs()? {
                    made = made.dargs(dargs);
                }
                made.order(it.order()?).build()
            }
            "resized" => Datatype::resized(it.signed("lb")?, it.signed("extent")?, old),
            _ => old.dup(),
        })
    }

    fn of_item(&mut self, path: &str, item: &Item) -> Result<Datatype, TextError> {
        match item {
            Item::Value(value) => self.of_value(path, value),
            Item::Table(table) => self.described(table, path, &[]),
            other => Err(self.source.mistyped(path, other, WANTED)),
        }
    }

    fn of_value(&mut self, path: &str, value: &Value) -> Result<Datatype, TextError> {
        match value {
            Value::String(name) => self.by_name(name.value(), Some(value)),
            Value::InlineTable(table) => self.described(table, path, &[]),
            other => Err(self.source.mistyped_value(path, other, WANTED)),
        }
    }

    /// The type of a name; `asked` is where it stands.
    fn by_name(&mut self, name: &str, asked: Option<&Value>) -> Result<Datatype, TextError> {
        if let Some(primitive) = primitive(name) {
            return Ok(primitive.into());
        }
        if let Some(known) = self.built.get(name) {
            return Ok(known.clone());
        }
        let Some((key, table)) = self.places.get(name).map(|at| self.named[*at]) else {
            let named: Vec<&str> = self.named.iter().map(|(key, _)| key.get()).collect();
            let known: Vec<String> =
                Primitive::ALL.iter().map(|primitive| short(primitive.name())).collect();
            let (named, known) = (shown(&named.join(", ")), known.join(", "));
            let fault = TextFault::NoType { name: shown(name), named, known };
            return Err(self.source.wrong(asked.and_then(Value::span), fault));
        };
        if self.under_way.contains(&key.get()) {
            let fault = TextFault::Circular { name: shown(name) };
            return Err(self.source.wrong(key.span(), fault));
        }
        self.under_way.push(key.get());
        let made = self.described(table, &format!("types.{}", shown(name)), &[])?;
        self.under_way.pop();
        self.built.insert(key.get(), made.clone());
        Ok(made)
    }
}

const WANTED: &str = "a type: a name, or a table with a constructor";

/// MPI's name without what all of them begin with, in lower case.
fn short(name: &str) -> String {
    let plain = name.strip_prefix("MPI_").or_else(|| name.strip_prefix("GAPLESS_"));
    plain.unwrap_or(name).to_ascii_lowercase()
}

/// The primitive type of a name: MPI's (`MPI_DOUBLE`), the same without its beginning (`double`), or Rust's (`f64`).
#[must_use]
pub fn primitive(name: &str) -> Option<Primitive> {
    let rust = RUST.iter().find(|(known, _)| *known == name).map(|(_, primitive)| *primitive);
    let wanted = short(&name.to_ascii_uppercase());
    rust.or_else(|| Primitive::ALL.into_iter().find(|known| short(known.name()) == wanted))
}
