//! The table by which collectives choose their algorithms: rules in a file, before those that are built in.
//!
//! A world reads it when it starts, unless the program gives a table
//! (`Builder::coll_table`):
//!
//! - the file that the variable `GAPLESS_COLL` names, which must exist; an empty value means none;
//! - else `gapless/coll.toml` in `$XDG_CONFIG_HOME`, or in `~/.config` if that is not set; if there is no such file,
//!   the built-in rules are used.
//!
//! All ranks of a world must have the same table: what one sends another waits for. So they compare their tables when
//! the world starts, and it does not start if they differ (`BootError::TablesDiffer`).
//!
//! The file is TOML of one version. Each operation has a list of rules; the first holds that fits the call, and whose
//! algorithm can do it. A rule fits calls among up to `ranks_max` ranks and of up to `bytes_max` bytes, as
//! [`Call::bytes`](gapless_coll::Call::bytes) counts them; without them, among any number, and of any length.
//! [`Algorithm`](gapless_coll::Algorithm) says how algorithms are written. What no rule of the file fits goes by the
//! built-in ones.
//!
//! A table `hyperq` says how ranks that share a GPU go about collectives whose buffers lie there
//! ([`gapless_coll::hyperq`]); without it, or without one of its keys, as [`Settings`] says:
//!
//! ```toml
//! [hyperq]
//! mode = "static"       # auto, static, dynamic, remembering, leader-driven, off
//! bytes_min = 1025      # of a rank's copy; what is shorter goes through the host's memory
//!
//! [[hyperq.gpu]]
//! model = "NVIDIA H100"
//! mps = true
//! gather = [{ processes = 4, bytes = 65536, staged = 1 }]    # so many copies of 3 are host-staged
//! scatter = [{ processes = 4, bytes = 65536, staged = 0 }]
//! ```
//!
//! ```
//! let text = r#"
//! version = 1
//! allreduce = [
//!     { ranks_max = 4, bytes_max = 2048, algorithm = "linear" },
//!     { bytes_max = 65536, algorithm = "doubling over binomial" },
//!     { algorithm = "ring" },
//! ]
//! "#;
//! let rules = gapless_tuning::coll::parse(text, "example".as_ref())?;
//! assert_eq!(rules.len(), 3);
//! let again = gapless_tuning::coll::write(&rules);
//! assert_eq!(gapless_tuning::coll::parse(&again, "again".as_ref())?, rules);
//! # Ok::<(), gapless_tuning::TuningError>(())
//! ```

mod hyperq;
mod text;

pub use gapless_coll::choose::{Rule, Table};
pub use gapless_coll::hyperq::{Entry, Gpu, HyperQStep, Mode, Settings};
pub use hyperq::{parse_hyperq, write_hyperq};
pub use text::{parse, write, write_rule};

use super::{Location, TuningError, read_text};
use std::path::Path;

/// The environment variable that names a table's file in the place of the user's own.
pub const VARIABLE: &str = "GAPLESS_COLL";

/// The name of the user's own file.
const FILE: &str = "coll.toml";

/// Where the environment of this process says the file is.
#[must_use]
pub fn location() -> Location {
    Location::of(VARIABLE, FILE, |name| std::env::var_os(name))
}

/// Reads the rules of a table's file.
///
/// # Errors
/// It is missing, no ordinary file, too long, or wrong.
pub fn read(path: &Path) -> Result<Vec<Rule>, TuningError> {
    parse(&read_text(path)?, path)
}

/// Reads the rules of a file, and how ranks that share a GPU go about collectives.
///
/// # Errors
/// As [`read`].
pub fn read_table(path: &Path) -> Result<(Vec<Rule>, Settings), TuningError> {
    let text = read_text(path)?;
    Ok((parse(&text, path)?, parse_hyperq(&text, path)?))
}

/// The rules of the file that the environment of this process names; none without a file.
///
/// # Errors
/// A named file that is missing; a file that cannot be read or is wrong.
pub fn load() -> Result<Vec<Rule>, TuningError> {
    let location = location();
    let rules = location.read_as(read)?;
    if let (Some(rules), Some(path)) = (&rules, location.path()) {
        tracing::debug!(path = %path.display(), rules = rules.len(), "rules of collectives");
    }
    Ok(rules.unwrap_or_default())
}

/// The whole table by the file that the environment of this process names: its rules before those that are built in.
///
/// # Errors
/// As [`load`].
pub fn load_table() -> Result<Table, TuningError> {
    let (rules, hyperq) = location().read_as(read_table)?.unwrap_or_default();
    Ok(Table { hyperq, ..Table::with(rules) })
}

/// A word that differs for tables that differ: for mistakes and not for attacks.
#[must_use]
pub fn digest(table: &Table) -> String {
    let text = write(&table.rules) + &write_hyperq(&table.hyperq);
    format!("{:016x}", gapless_bml::digest_bytes(text.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_coll::choose::DEFAULT_RULES;

    #[test]
    fn other_tables_have_other_digests() {
        // What ranks that share a GPU do must be the same everywhere, too: some would ask, and wait for the others.
        let entry = Entry { step: HyperQStep::Gather, processes: 4, bytes: 64, staged: 2 };
        let gpu = |mps| Gpu { model: "one".to_owned(), mps, entries: vec![entry] };
        let known = |mps| gapless_coll::hyperq::Table { gpus: vec![gpu(mps)] };
        let settings = [
            Settings { mode: Mode::Off, ..Settings::default() },
            Settings { bytes_min: 1026, ..Settings::default() },
            Settings { table: known(true), ..Settings::default() },
            Settings { table: known(false), ..Settings::default() },
        ];
        let digests: Vec<_> = (0..DEFAULT_RULES.len())
            .map(|less| {
                let mut rules = DEFAULT_RULES.to_vec();
                rules.remove(less);
                digest(&Table { rules, ..Table::default() })
            })
            .chain([
                digest(&Table::default()),
                digest(&Table { rules: Vec::new(), ..Table::default() }),
            ])
            .chain(settings.map(|hyperq| digest(&Table { hyperq, ..Table::default() })))
            .collect();
        for (at, one) in digests.iter().enumerate() {
            assert!(!digests[at + 1..].contains(one), "{at}");
        }
        assert_eq!(digest(&Table::default()), digest(&Table::with(Vec::new())));
    }

    #[test]
    fn the_own_file_may_be_missing_a_named_one_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coll.toml");
        assert_eq!(Location::Default(path.clone()).read_as(read), Ok(None));
        let missing = Location::Named(path.clone()).read_as(read);
        assert_eq!(missing, Err(TuningError::Missing { path: path.clone() }));
        std::fs::write(&path, "version = 1\nbcast = [{ algorithm = \"chain\" }]\n").unwrap();
        assert_eq!(Location::Default(path).read_as(read).unwrap().unwrap().len(), 1);
    }
}
