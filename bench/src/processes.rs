//! Processes of this program that measure together; rank 0 leaves what they found in a file.
//!
//! They run the command line that the user has typed, and one more option: whose processes they are, what part of the
//! experiment is theirs, and where the file is ([`RankOf`]). So they have all options, and no experiment passes them on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gapless::World;
use gapless::launch::{self, Job};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::namespaces::Namespaces;

/// What a process is one of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankOf {
    /// The experiment.
    pub experiment: String,
    /// Where rank 0 leaves what it found.
    pub file: PathBuf,
    /// What is measured, in the experiment's own words.
    part: serde_json::Value,
}

impl FromStr for RankOf {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<RankOf, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl RankOf {
    /// What is measured, as [`Processes::found`] was told.
    ///
    /// # Errors
    /// It was told something else.
    pub fn part<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        Ok(T::deserialize(&self.part)?)
    }

    /// Leaves what was found so far.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn leave(&self, found: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(found)?;
        std::fs::write(&self.file, text).map_err(Failure::io("write", &self.file))
    }

    /// Leaves the world, and what was found if this is rank 0.
    ///
    /// # Errors
    /// The world's, or as [`leave`](RankOf::leave).
    pub fn finalize(&self, world: World, found: &impl Serialize) -> Result<(), Failure> {
        let here = world.rank() == 0;
        world.finalize()?;
        if here { self.leave(found) } else { Ok(()) }
    }
}

/// A variable of an environment.
pub type Variable = (OsString, OsString);

/// Processes to be started.
pub struct Processes<'a> {
    /// Their experiment's name.
    pub experiment: &'static str,
    /// How many.
    pub ranks: u32,
    /// What their environment has besides this one's.
    pub environment: Vec<Variable>,
    /// The namespaces that they are in, if in two.
    pub(crate) hosts: Option<&'a Namespaces>,
}

impl Processes<'_> {
    /// So many, here.
    #[must_use]
    pub fn new(experiment: &'static str, ranks: u32) -> Processes<'static> {
        Processes { experiment, ranks, environment: Vec::new(), hosts: None }
    }

    /// With these variables in their environment.
    #[must_use]
    pub fn with<'v>(self, variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        let more = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { environment: self.environment.into_iter().chain(more).collect(), ..self }
    }

    /// Has them measure a part of the experiment, called `what`, and gives what rank 0 has left.
    ///
    /// # Errors
    /// They cannot be started or end badly; what was left cannot be read.
    pub fn found<T: DeserializeOwned>(
        &self,
        what: &str,
        part: impl Serialize,
    ) -> Result<T, Failure> {
        let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
        let file = folder.path().join("found");
        self.run(what, part, &file)?;
        left(&file)
    }

    /// The same, if what rank 0 has left by then counts whether they end well or not.
    ///
    /// # Errors
    /// What was left cannot be read.
    pub fn found_so_far<T: DeserializeOwned + Default>(
        &self,
        what: &str,
        part: impl Serialize,
    ) -> Result<(T, Result<(), Failure>), Failure> {
        let folder = tempfile::tempdir().map_err(Failure::io("make", std::env::temp_dir()))?;
        let file = folder.path().join("found");
        let ended = self.run(what, part, &file);
        let found = if file.exists() { left(&file)? } else { T::default() };
        Ok((found, ended))
    }

    /// What each of them runs.
    pub(crate) fn command_line(
        &self,
        part: impl Serialize,
        file: &Path,
    ) -> Result<(OsString, Vec<OsString>), Failure> {
        let program = std::env::current_exe().map_err(Failure::io("find", "this program"))?;
        let (experiment, file) = (self.experiment.to_owned(), file.to_owned());
        let rank = RankOf { experiment, file, part: serde_json::to_value(part)? };
        let own = std::env::args_os().skip(1);
        let own = own.chain(["--as-rank".into(), serde_json::to_string(&rank)?.into()]);
        let (program, arguments) = match self.hosts {
            None => (program.into_os_string(), own.collect()),
            Some(hosts) => {
                let own = std::iter::once(program.into_os_string()).chain(own);
                (Namespaces::PROGRAM.into(), hosts.arguments().into_iter().chain(own).collect())
            }
        };
        Ok((program, arguments))
    }

    /// Has them measure, and leave what they find in a file.
    ///
    /// # Errors
    /// They cannot be started or end badly.
    pub fn run(&self, what: &str, part: impl Serialize, file: &Path) -> Result<(), Failure> {
        let (program, arguments) = self.command_line(part, file)?;
        let (ranks, environment) = (self.ranks, self.environment.clone());
        let outcome = launch::run(&Job { ranks, program, arguments, environment, prefix: false })?;
        match (outcome.failed, outcome.signalled) {
            (Some((rank, end)), _) => Err(Failure::Rank { rank, end, what: what.to_owned() }),
            (None, Some(signal)) => Err(Failure::Signal(signal)),
            (None, None) => Ok(()),
        }
    }
}

/// What was left in a file.
pub(crate) fn left<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    let text = std::fs::read_to_string(file).map_err(Failure::io("read", file))?;
    Ok(serde_json::from_str(&text)?)
}
