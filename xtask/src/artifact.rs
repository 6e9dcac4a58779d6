//! What cargo says of something that it has built, in a line of `--message-format=json`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::{Failure, shell};

/// Something that cargo has built, or a build script that it has run.
#[derive(Debug, Deserialize)]
pub(crate) struct Artifact {
    reason: String,
    /// The package, with the path of its folder before a `#`.
    #[serde(default)]
    pub(crate) package_id: String,
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    pub(crate) target: Option<ArtifactTarget>,
    profile: Option<ArtifactProfile>,
    /// All files of it.
    #[serde(default)]
    pub(crate) filenames: Vec<PathBuf>,
    pub(crate) executable: Option<PathBuf>,
    /// Where the build script has written.
    pub(crate) out_dir: Option<PathBuf>,
}

/// Has cargo build, and gives what it says that it has built.
pub(crate) fn built(cargo: &mut Command) -> Result<Vec<Artifact>, Failure> {
    cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    shell::show(cargo);
    Ok(shell::output(cargo)?.lines().filter_map(Artifact::parse).collect())
}

/// The target of a package that it was built from.
#[derive(Debug, Deserialize)]
pub(crate) struct ArtifactTarget {
    pub(crate) name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ArtifactProfile {
    test: bool,
}

impl Artifact {
    /// Out of a line of cargo's; nothing if it is about something else.
    pub(crate) fn parse(line: &str) -> Option<Artifact> {
        let artifact: Artifact = serde_json::from_str(line).ok()?;
        let reasons = ["compiler-artifact", "build-script-executed"];
        reasons.contains(&&*artifact.reason).then_some(artifact)
    }

    /// Whether it was built with its tests.
    pub(crate) fn is_test(&self) -> bool {
        self.profile.as_ref().is_some_and(|profile| profile.test)
    }
}

impl ArtifactTarget {
    /// Whether it is of this kind: `lib`, `proc-macro`, `bin`, `test`, ….
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind.iter().any(|it| it == kind)
    }
}
