//! The part of the table's text about ranks that share a GPU.

use super::super::TuningError;
use super::super::text::{Source, alike, shown};
use super::super::tree::{Item, Table};
use gapless_coll::hyperq::{Entry, Gpu, HyperQStep, Mode, Settings};
use std::fmt::Write;
use std::path::Path;

/// The table's name.
const NAME: &str = "hyperq";

/// The keys of the table, of a GPU, and of an entry.
const KEYS: [&[&str]; 3] = [
    &["mode", "bytes_min", "gpu"],
    &["model", "mps", "gather", "scatter"],
    &["processes", "bytes", "staged"],
];

/// Reads the settings in the text of a table's file; `path` is what errors call it.
///
/// # Errors
/// What is wrong, and where.
pub fn parse_hyperq(text: &str, path: &Path) -> Result<Settings, TuningError> {
    let source = Source { path, text };
    let root = source.document()?;
    let mut settings = Settings::default();
    let Some(item) = root.get(NAME) else { return Ok(settings) };
    let Some(table) = item.as_table() else {
        let line = source.line(item.at);
        return Err(source.wrong(line, NAME.to_owned(), item, "a table"));
    };
    for (key, item) in table.iter() {
        let line = source.line(item.at);
        let path = format!("{NAME}.{}", shown(key));
        match key {
            "mode" => {
                let names: Vec<_> = Mode::ALL.iter().map(|mode| mode.name()).collect();
                let wanted = format!("one of {}", names.join(", "));
                let known = item.as_str().and_then(Mode::named);
                settings.mode = known.ok_or_else(|| source.wrong(line, path, item, &wanted))?;
            }
            "bytes_min" => {
                settings.bytes_min = source.whole(line, path, item, 0..=1 << 48, "bytes")?;
            }
            "gpu" => {
                let Some(gpus) = item.as_tables() else {
                    return Err(source.wrong(line, path, item, "tables [[hyperq.gpu]]"));
                };
                for gpu in gpus {
                    settings.table.gpus.push(source.gpu(gpu)?);
                }
            }
            _ => return Err(source.no_key(line, NAME, key, KEYS[0])),
        }
    }
    Ok(settings)
}

impl Source<'_> {
    fn no_key(&self, line: usize, table: &str, key: &str, known: &[&str]) -> TuningError {
        let near = known.iter().find(|known| alike(known, key));
        let near = near.map(|near| format!("{table}.{near}")).unwrap_or_default();
        let key = format!("{table}.{}", shown(key));
        TuningError::UnknownKey { path: self.path.to_owned(), line, key, near }
    }

    fn gpu(&self, table: &Table) -> Result<Gpu, TuningError> {
        let mut gpu = Gpu { model: String::new(), mps: false, entries: Vec::new() };
        for (key, item) in table.iter() {
            let line = self.line(item.at);
            let path = format!("hyperq.gpu.{}", shown(key));
            let wrong = |wanted: &str| self.wrong(line, path.clone(), item, wanted);
            match key {
                "model" => gpu.model = item.as_str().ok_or_else(|| wrong("a text"))?.to_owned(),
                "mps" => gpu.mps = item.as_bool().ok_or_else(|| wrong("true or false"))?,
                "gather" | "scatter" => {
                    let step =
                        if key == "gather" { HyperQStep::Gather } else { HyperQStep::Scatter };
                    let list = item.as_array().ok_or_else(|| wrong("a list of entries"))?;
                    for value in list {
                        gpu.entries.push(self.entry(step, &path, value)?);
                    }
                }
                _ => return Err(self.no_key(line, "hyperq.gpu", key, KEYS[1])),
            }
        }
        Ok(gpu)
    }

    fn entry(&self, step: HyperQStep, path: &str, value: &Item) -> Result<Entry, TuningError> {
        let line = self.line(value.at);
        let wanted = "an entry like { processes = 4, bytes = 65536, staged = 1 }";
        let wrong = || self.wrong(line, path.to_owned(), value, wanted);
        let table = value.as_inline_table().ok_or_else(wrong)?;
        let mut numbers = [None; 3];
        for (key, value) in table.iter() {
            let Some(at) = KEYS[2].iter().position(|known| *known == key) else {
                return Err(self.no_key(line, path, key, KEYS[2]));
            };
            let range = [2..=1 << 16, 0..=1 << 48, 0..=1 << 16][at].clone();
            let unit = ["processes", "bytes", "copies"][at];
            numbers[at] = Some(self.whole(line, format!("{path}.{key}"), value, range, unit)?);
        }
        let [Some(processes), Some(bytes), Some(staged)] = numbers else { return Err(wrong()) };
        if staged >= processes {
            return Err(TuningError::OutOfRange {
                path: self.path.to_owned(),
                line,
                key: format!("{path}.staged"),
                value: staged.to_string(),
                least: 0.0,
                #[expect(clippy::cast_precision_loss, reason = "at most 65536")]
                most: (processes - 1) as f64,
                unit: "copies",
            });
        }
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Entry { step, processes: small(processes), bytes, staged: small(staged) })
    }
}

/// The text of a file with these settings alone; without its first line, it may stand behind [`write`](super::write)'s.
/// Empty for the settings that hold without it.
#[must_use]
pub fn write_hyperq(settings: &Settings) -> String {
    if *settings == Settings::default() {
        return String::new();
    }
    let mut text = format!(
        "\n[{NAME}]\nmode = \"{}\"\nbytes_min = {}\n",
        settings.mode.name(),
        settings.bytes_min
    );
    for Gpu { model, mps, entries } in &settings.table.gpus {
        let model = quoted(model);
        let _ = write!(text, "\n[[{NAME}.gpu]]\nmodel = {model}\nmps = {mps}\n");
        for (name, step) in [("gather", HyperQStep::Gather), ("scatter", HyperQStep::Scatter)] {
            let own = entries.iter().filter(|entry| entry.step == step);
            let _ = writeln!(text, "{name} = [");
            for Entry { processes, bytes, staged, .. } in own {
                let _ = writeln!(
                    text,
                    "    {{ processes = {processes}, bytes = {bytes}, staged = {staged} }},"
                );
            }
            text += "]\n";
        }
    }
    text
}

/// A text as TOML has it.
fn quoted(text: &str) -> String {
    let plain = text.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ");
    format!("\"{plain}\"")
}

/// As [`write_hyperq`], as a file of its own.
#[cfg(test)]
fn alone(settings: &Settings) -> String {
    format!("version = 1\n{}", write_hyperq(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, TuningError> {
        parse_hyperq(text, Path::new("/somewhere/coll.toml"))
    }

    #[test]
    fn what_is_written_is_read_again() {
        let entry = |step, bytes, staged| Entry { step, processes: 16, bytes, staged };
        let entries = vec![
            entry(HyperQStep::Gather, 4, 15),
            entry(HyperQStep::Gather, 1 << 20, 0),
            entry(HyperQStep::Scatter, 64, 3),
        ];
        let gpu = |model: &str, mps| Gpu { model: model.to_owned(), mps, entries: entries.clone() };
        let mut settings = Settings { mode: Mode::Static, bytes_min: 0, ..Settings::default() };
        settings.table.gpus = vec![gpu("NVIDIA H200", true), gpu("a \"quoted\\ one\"", false)];
        let text = alone(&settings);
        assert_eq!(read(&text).unwrap(), settings, "{text}");
        // Beside rules.
        let both =
            super::super::write(gapless_coll::choose::DEFAULT_RULES) + &write_hyperq(&settings);
        assert_eq!(read(&both).unwrap(), settings);
        assert!(super::super::parse(&both, Path::new("both")).is_ok());
        assert_eq!(read("version = 1\n"), Ok(Settings::default()));
        assert_eq!(write_hyperq(&Settings::default()), "");
        for mode in Mode::ALL {
            let text = format!("version = 1\n[hyperq]\nmode = \"{}\"", mode.name());
            assert_eq!(read(&text).unwrap().mode, mode);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, part) in [
            ("version = 1\nhyperq = 3", 2, "hyperq is of type integer, not a table"),
            ("version = 1\n[hyperq]\nmode = 'both'", 3, "not one of auto, static, dynamic"),
            ("version = 1\n[hyperq]\nmodes = 'off'", 3, "\"hyperq.modes\""),
            ("version = 1\n[hyperq]\nbytesmin = 4", 3, "did you mean \"hyperq.bytes_min\"?"),
            ("version = 1\n[hyperq]\nbytes_min = -4", 3, "hyperq.bytes_min is -4"),
            ("version = 1\n[hyperq]\ngpu = 4", 3, "not tables [[hyperq.gpu]]"),
            ("version = 1\n[[hyperq.gpu]]\nmodel = 4", 3, "hyperq.gpu.model is of type integer"),
            ("version = 1\n[[hyperq.gpu]]\nmps = 4", 3, "not true or false"),
            ("version = 1\n[[hyperq.gpu]]\ngather = 4", 3, "not a list of entries"),
            ("version = 1\n[[hyperq.gpu]]\ngather = [\n4]", 4, "not an entry like"),
            ("version = 1\n[[hyperq.gpu]]\ngather = [\n{ bytes = 4 }]", 4, "not an entry like"),
            (
                "version = 1\n[[hyperq.gpu]]\ngather = [{ processes = 4, bytes = 1, staged = 4 }]",
                3,
                "hyperq.gpu.gather.staged is 4, which is not from 0 to 3",
            ),
            (
                "version = 1\n[[hyperq.gpu]]\ngather = [{ processes = 4, bytes = 1, ipc = 4 }]",
                3,
                "\"hyperq.gpu.gather.ipc\"",
            ),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(&format!("line {line}")), "{text}: {error}");
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
