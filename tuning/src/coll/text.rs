//! The text of the table: read with positions, so that errors can name them, and written.

use super::super::text::{Source, alike, shown};
use super::super::tree::Item;
use super::super::{TuningError, VERSION};
use super::Rule;
use gapless_coll::{Algorithm, NameError, Operation};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// What a rule may have.
const KEYS: [&str; 3] = ["ranks_max", "bytes_max", "algorithm"];

/// Numbers of ranks that make sense.
const RANKS: RangeInclusive<u64> = 1..=u32::MAX as u64;

/// Lengths that make sense: buffers of collectives are not longer.
const BYTES: RangeInclusive<u64> = 0..=1 << 48;

/// Reads the text of a table's file; `path` is what errors call it. Rules are in the order of the file.
///
/// # Errors
/// What is wrong, and where.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Rule>, TuningError> {
    let source = Source { path, text };
    let root = source.document()?;
    let mut rules = Vec::new();
    for (name, item) in root.iter().filter(|(name, _)| !["version", "hyperq"].contains(name)) {
        let line = source.line(item.at);
        let operation: Operation = name.parse().map_err(|error| source.name(line, error))?;
        let Some(list) = item.as_array() else {
            return Err(source.wrong(line, name.to_owned(), item, "a list of rules"));
        };
        for value in list {
            rules.push(source.rule(operation, value)?);
        }
    }
    Ok(rules)
}

impl Source<'_> {
    fn name(&self, line: usize, error: NameError) -> TuningError {
        TuningError::Name { path: self.path.to_owned(), line, error }
    }

    fn rule(&self, operation: Operation, value: &Item) -> Result<Rule, TuningError> {
        let line = self.line(value.at);
        let Some(table) = value.as_inline_table() else {
            let wanted = "a rule like { algorithm = \"…\" }";
            return Err(self.wrong(line, operation.to_string(), value, wanted));
        };
        let (mut ranks_max, mut bytes_max, mut algorithm) = (usize::MAX, u64::MAX, None);
        for (key, value) in table.iter() {
            let line = self.line(value.at);
            let path = format!("{operation}.{}", shown(key));
            match key {
                "ranks_max" => {
                    let ranks = self.whole(line, path, value, RANKS, "ranks")?;
                    ranks_max = usize::try_from(ranks).unwrap_or(usize::MAX);
                }
                "bytes_max" => bytes_max = self.whole(line, path, value, BYTES, "bytes")?,
                "algorithm" => {
                    let wrong = || self.wrong(line, path, value, "a text");
                    let text = value.as_str().ok_or_else(wrong)?;
                    let name: Algorithm = text.parse().map_err(|error| self.name(line, error))?;
                    algorithm = Some((name, line));
                }
                _ => {
                    let near = KEYS.into_iter().find(|known| alike(known, key));
                    let near = near.map(|near| format!("{operation}.{near}")).unwrap_or_default();
                    let file = self.path.to_owned();
                    return Err(TuningError::UnknownKey { path: file, line, key: path, near });
                }
            }
        }
        let path = self.path.to_owned();
        let Some((algorithm, line)) = algorithm else {
            return Err(TuningError::NoAlgorithm { path, line, operation });
        };
        match algorithm.misfit(operation, true) {
            None => Ok(Rule { operation, ranks_max, bytes_max, algorithm }),
            Some(why) => {
                let algorithm = Box::new(algorithm);
                Err(TuningError::Misfit { path, line, operation, algorithm, why })
            }
        }
    }

    pub(super) fn whole(
        &self,
        line: usize,
        key: String,
        value: &Item,
        range: RangeInclusive<u64>,
        unit: &'static str,
    ) -> Result<u64, TuningError> {
        let Some(found) = value.as_integer() else {
            return Err(self.wrong(line, key, value, "a whole number"));
        };
        let inside = u64::try_from(found).ok().filter(|found| range.contains(found));
        #[expect(clippy::cast_precision_loss, reason = "bounds are powers of two, or small")]
        let (least, most) = (*range.start() as f64, *range.end() as f64);
        inside.ok_or_else(|| TuningError::OutOfRange {
            path: self.path.to_owned(),
            line,
            key,
            value: found.to_string(),
            least,
            most,
            unit,
        })
    }
}

/// The text of a table's file with these rules: by operation, and in their order.
#[must_use]
pub fn write(rules: &[Rule]) -> String {
    let mut text = format!("version = {VERSION}\n");
    for operation in Operation::ALL {
        let mut own = rules.iter().filter(|rule| rule.operation == operation).peekable();
        if own.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "\n{operation} = [");
        for rule in own {
            let _ = writeln!(text, "    {},", write_rule(rule));
        }
        text += "]\n";
    }
    text
}

/// One rule as it stands in the file.
#[must_use]
pub fn write_rule(rule: &Rule) -> String {
    let mut text = String::from("{ ");
    if rule.ranks_max < usize::MAX {
        let _ = write!(text, "ranks_max = {}, ", rule.ranks_max);
    }
    if rule.bytes_max < u64::MAX {
        let _ = write!(text, "bytes_max = {}, ", rule.bytes_max);
    }
    let _ = write!(text, "algorithm = \"{}\" }}", rule.algorithm);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_coll::choose::DEFAULT_RULES;

    fn read(text: &str) -> Result<Vec<Rule>, TuningError> {
        parse(text, Path::new("/somewhere/coll.toml"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut rules = DEFAULT_RULES.to_vec();
        rules.sort_by_key(|rule| rule.operation);
        let text = write(&rules);
        assert_eq!(read(&text).unwrap(), rules, "{text}");
        assert!(text.len() < crate::BYTES_MAX / 8, "{} bytes", text.len());
        assert_eq!(read("version = 1\n").unwrap(), []);
        assert_eq!(write(&[]), "version = 1\n");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, parts) in [
            ("allreduce = []", 0, &["does not begin with a version"][..]),
            ("version = 2\n", 1, &["version 2"]),
            (
                "version = 1\nall_reduce = []",
                2,
                &["no operation \"all_reduce\"", "mean allreduce?"],
            ),
            ("version = 1\n\nbcast = 3", 3, &["bcast is of type integer, not a list of rules"]),
            ("version = 1\n[[bcast]]\nalgorithm = 'ring'", 2, &["not a list of rules"]),
            ("version = 1\nbcast = [\n 'ring' ]", 3, &["bcast is \"ring\", not a rule like"]),
            ("version = 1\nbcast = [\n{ },\n]", 3, &["a rule of bcast names no algorithm"]),
            (
                "version = 1\nbcast = [\n{ algorithm = 'ring' },\n{ algorithm = 'rong' }]",
                4,
                &["no method \"rong\"; did you mean ring?"],
            ),
            (
                "version = 1\nbcast = [{ algorithm = 7 }]",
                2,
                &["bcast.algorithm is of type integer"],
            ),
            (
                "version = 1\nscan = [{ algorithm = 'ring' }]",
                2,
                &["ring does not do scan: it is for other operations"],
            ),
            ("version = 1\nscan = [{ algorithm = 'doubling over flat' }]", 2, &["go on levels"]),
            (
                "version = 1\nbcast = [{ ranksmax = 3, algorithm = 'ring' }]",
                2,
                &["\"bcast.ranksmax\"; did you mean \"bcast.ranks_max\"?"],
            ),
            (
                "version = 1\nbcast = [{ ranks_max = 0, algorithm = 'ring' }]",
                2,
                &["bcast.ranks_max is 0, which is not from 1 to"],
            ),
            (
                "version = 1\nbcast = [{ bytes_max = '4K', algorithm = 'ring' }]",
                2,
                &["bcast.bytes_max is \"4K\", not a whole number"],
            ),
            ("version = 1\nbcast = [{ bytes_max = -1, algorithm = 'ring' }]", 2, &["is -1, which"]),
            ("version = 1\nbcast = [\n{ algorithm = }]", 3, &["line 3"]),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("/somewhere/coll.toml"), "{error}");
            assert!(line == 0 || error.contains(&format!("line {line}")), "{text}: {error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
