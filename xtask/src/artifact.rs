//! What cargo says of something that it has built, in a line of `--message-format=json`.

use std::path::PathBuf;

use serde::Deserialize;

/// Something that cargo has built.
#[derive(Debug, Deserialize)]
pub(crate) struct Artifact {
    reason: String,
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    pub(crate) target: Option<ArtifactTarget>,
    profile: Option<ArtifactProfile>,
    pub(crate) executable: Option<PathBuf>,
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
        (artifact.reason == "compiler-artifact").then_some(artifact)
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
