//! The text of a tuning file: read with positions, so that errors can name them; written with the meaning of each
//! number beside it.

use super::keys::{KEYS, Key, Value};
use super::tree::{self, Item, Table};
use super::{TuningError, VERSION};
use gapless_pml::Tuning;
use std::fmt::Write;
use std::path::Path;

/// Names shown in errors are cut to this many characters.
const SHOWN_MAX: usize = 60;

/// A file being read.
pub(super) struct Source<'f> {
    pub(super) path: &'f Path,
    pub(super) text: &'f str,
}

impl Source<'_> {
    /// The line of a position, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }

    fn unknown(&self, line: usize, key: &str) -> TuningError {
        let names = KEYS.iter().map(|key| (key.path(), key));
        let near = names.filter(|(path, known)| alike(path, key) || known.name == key);
        let near = near.map(|(path, _)| path).next().unwrap_or_default();
        TuningError::UnknownKey { path: self.path.to_owned(), line, key: shown(key), near }
    }

    pub(super) fn wrong(
        &self,
        line: usize,
        key: String,
        found: &Item,
        wanted: &str,
    ) -> TuningError {
        let found = match found.as_str() {
            Some(text) => format!("{:?}", shown(text)),
            None => format!("of type {}", found.type_name()),
        };
        TuningError::WrongType {
            path: self.path.to_owned(),
            line,
            key,
            found,
            wanted: wanted.to_owned(),
        }
    }

    /// The text as TOML, of our version.
    pub(super) fn document(&self) -> Result<Table, TuningError> {
        let root = tree::parse(self.text).map_err(|fault| TuningError::Syntax {
            path: self.path.to_owned(),
            line: self.line(fault.at),
            what: shown(&fault.what),
        })?;
        // In another version anything may be different, so it is checked first.
        self.version(&root)?;
        Ok(root)
    }

    fn version(&self, table: &Table) -> Result<(), TuningError> {
        let missing = || TuningError::NoVersion { path: self.path.to_owned() };
        let item = table.get("version").ok_or_else(missing)?;
        match item.as_integer() {
            Some(VERSION) => Ok(()),
            Some(found) => Err(TuningError::Version {
                path: self.path.to_owned(),
                line: self.line(item.at),
                found: found.to_string(),
            }),
            None => {
                Err(self.wrong(self.line(item.at), "version".to_owned(), item, "a whole number"))
            }
        }
    }

    fn number(
        &self,
        key: &Key,
        item: &Item,
        line: usize,
        tuning: &mut Tuning,
    ) -> Result<(), TuningError> {
        let unit = key.unit.name();
        let range = |value: String| TuningError::OutOfRange {
            path: self.path.to_owned(),
            line,
            key: key.path(),
            value,
            least: key.least,
            most: key.most,
            unit,
        };
        let slot = (key.value)(tuning);
        match (slot, item.as_integer(), item.as_float()) {
            (Value::Real(slot), whole, float) if whole.is_some() || float.is_some() => {
                #[expect(clippy::cast_precision_loss, reason = "what it loses is far out of range")]
                let value = whole.map(|whole| whole as f64).or(float).unwrap_or(f64::NAN);
                // Written so that NaN is out of range.
                if !(value >= key.least && value <= key.most) {
                    return Err(range(value.to_string()));
                }
                // There is one zero.
                *slot = value + 0.0;
            }
            (Value::Whole(slot), Some(value), _) => {
                *slot = within(key, value).ok_or_else(|| range(value.to_string()))?;
            }
            (Value::Short(slot), Some(value), _) => {
                let value_u64 = within(key, value).ok_or_else(|| range(value.to_string()))?;
                *slot = u32::try_from(value_u64).map_err(|_| range(value.to_string()))?;
            }
            (Value::Real(_), _, _) => {
                return Err(self.wrong(line, key.path(), item, "a number"));
            }
            _ => return Err(self.wrong(line, key.path(), item, "a whole number")),
        }
        Ok(())
    }
}

fn within(key: &Key, value: i64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "bounds are far below where it loses")]
    let inside = value as f64 >= key.least && value as f64 <= key.most;
    u64::try_from(value).ok().filter(|_| inside)
}

/// Whether two names differ by no more than the underscores and case that people mistake.
pub(super) fn alike(a: &str, b: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    plain(a) == plain(b)
}

/// A foreign text, short enough for an error.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Reads the text of a tuning file; `path` is what errors call it.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str, path: &Path) -> Result<Tuning, TuningError> {
    let source = Source { path, text };
    let root = source.document()?;
    let mut tuning = Tuning::default();
    for (table_name, item) in root.iter().filter(|(name, _)| *name != "version") {
        let line = source.line(item.at);
        if KEYS.iter().all(|key| key.table != table_name) {
            return Err(source.unknown(line, table_name));
        }
        let Some(table) = item.as_table() else {
            return Err(source.wrong(line, shown(table_name), item, "a table"));
        };
        for (name, item) in table.iter() {
            let line = source.line(item.at);
            let Some(key) = Key::find(table_name, name) else {
                return Err(source.unknown(line, &format!("{table_name}.{name}")));
            };
            source.number(key, item, line, &mut tuning)?;
        }
    }
    Ok(tuning)
}

/// The text of a tuning file with all of these numbers, and what they mean.
#[must_use]
pub fn write(tuning: &Tuning) -> String {
    write_with(tuning, |_| None)
}

/// As [`write()`], but numbers for which `without` gives a reason are comments, each with its reason behind it.
#[must_use]
pub fn write_with(tuning: &Tuning, without: impl Fn(&Key) -> Option<String>) -> String {
    let mut tuning = tuning.clone();
    let mut text = format!("version = {VERSION}\n");
    let mut table = "";
    for key in KEYS {
        if key.table != table {
            table = key.table;
            let _ = write!(text, "\n[{table}]\n");
        }
        let value = match (key.value)(&mut tuning) {
            Value::Real(value) => format!("{value:?}"),
            Value::Whole(value) => value.to_string(),
            Value::Short(value) => value.to_string(),
        };
        let Key { name, what, unit, .. } = key;
        let unit = unit.name();
        let unit = if unit.is_empty() { String::new() } else { format!("{unit}: ") };
        let _ = match without(key) {
            None => writeln!(text, "{:<36} # {unit}{what}", format!("{name} = {value}")),
            Some(why) => {
                let why = why.replace(char::is_control, " ");
                writeln!(text, "{:<36} # {unit}{what} ({why})", format!("# {name} = {value}"))
            }
        };
    }
    text
}

#[cfg(test)]
mod tests;
