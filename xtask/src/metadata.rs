//! The checkout, and what cargo says of its packages. Nothing is fetched.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Failure, shell};

/// This checkout of the project.
#[derive(Debug)]
pub(crate) struct Checkout {
    /// The folder of the root manifest.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// The workspace's packages.
    pub(crate) packages: Vec<Package>,
}

/// A package, as far as the chores care.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    #[serde(default)]
    pub(crate) version: String,
    /// Every dependency its manifest names, for any target and feature.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its manifest.
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    /// Its libraries, programs, tests, ….
    #[serde(default)]
    pub(crate) targets: Vec<Target>,
    /// Where it may be published, if not everywhere; an empty list is nowhere.
    #[serde(default)]
    pub(crate) publish: Option<Vec<String>>,
    /// What a registry shows of it.
    #[serde(default, flatten)]
    pub(crate) shown: Shown,
}

/// What a registry shows of a package.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Shown {
    pub(crate) description: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) repository: Option<String>,
    pub(crate) readme: Option<PathBuf>,
    pub(crate) rust_version: Option<String>,
    #[serde(default)]
    pub(crate) keywords: Vec<String>,
    #[serde(default)]
    pub(crate) categories: Vec<String>,
    /// The tables of other programs.
    #[serde(default)]
    pub(crate) metadata: serde_json::Value,
}

/// A dependency as the manifest states it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Dependency {
    /// The package's real name, also where the manifest renames it.
    pub(crate) name: String,
    /// Which versions will do; `*` if the manifest says a path alone.
    #[serde(default)]
    pub(crate) req: String,
    /// `null` for normal ones, `dev` or `build`.
    pub(crate) kind: Option<String>,
    /// Whether only a feature turns it on.
    pub(crate) optional: bool,
    /// For which targets, if not for all: `cfg(…)`.
    #[serde(default)]
    pub(crate) target: Option<String>,
}

/// A target of a package.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Target {
    /// `lib`, `proc-macro`, `bin`, `test`, ….
    pub(crate) kind: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Package {
    /// Whether its manifest names a crate, for any target and purpose.
    pub(crate) fn uses(&self, name: &str) -> bool {
        self.dependencies.iter().any(|dependency| dependency.name == name)
    }

    /// Whether others can have it from a registry.
    pub(crate) fn is_public(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// Whether it has code that is only there under `--cfg loom`.
    pub(crate) fn has_models(&self) -> bool {
        let loom = |dependency: &Dependency| dependency.target.as_deref() == Some("cfg(loom)");
        self.dependencies.iter().any(loom)
    }

    /// Whether the package has programs or examples.
    pub(crate) fn has_programs(&self) -> bool {
        let program = |kind: &String| kind == "bin" || kind == "example";
        self.targets.iter().any(|target| target.kind.iter().any(program))
    }

    /// Whether the package has a library, which others could depend on.
    pub(crate) fn has_library(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind.ends_with("lib")))
    }
}

impl Checkout {
    /// The checkout around this program's sources.
    pub(crate) fn find() -> Result<Self, Failure> {
        // Cargo names the folder of the package it runs; started by hand, the current one must do.
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from("."), PathBuf::from);
        let found = metadata(&here.join("Cargo.toml"))?;
        Ok(Self {
            root: found.workspace_root,
            target: found.target_directory,
            packages: found.packages,
        })
    }

    /// The checkout that the current folder is the root of; no package of it is known.
    pub(crate) fn here() -> Self {
        Self { root: ".".into(), target: "target".into(), packages: Vec::new() }
    }

    /// The folder of the fuzzer's workspace.
    pub(crate) fn fuzz(&self) -> PathBuf {
        self.root.join("fuzz")
    }

    /// The manifests of those of `examples/*` that are workspaces of their own, sorted.
    pub(crate) fn examples(&self) -> Vec<PathBuf> {
        let Ok(folders) = fs::read_dir(self.root.join("examples")) else {
            return Vec::new();
        };
        let mut manifests: Vec<PathBuf> = folders
            .flatten()
            .map(|folder| folder.path().join("Cargo.toml"))
            .filter(|manifest| manifest.is_file())
            .filter(|manifest| {
                self.packages.iter().all(|package| package.manifest_path != *manifest)
            })
            .collect();
        manifests.sort();
        manifests
    }

    /// A path as the reader knows it, from the root.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// The packages of another workspace.
pub(crate) fn packages(manifest: &Path) -> Result<Vec<Package>, Failure> {
    Ok(metadata(manifest)?.packages)
}

fn metadata(manifest: &Path) -> Result<Metadata, Failure> {
    let mut command = shell::cargo();
    command
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .arg("--manifest-path")
        .arg(manifest);
    let text = shell::output(&mut command)?;
    serde_json::from_str(&text)
        .map_err(|source| Failure::Metadata { manifest: manifest.display().to_string(), source })
}
