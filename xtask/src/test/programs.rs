//! The workspace's test programs, to be run without cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifact::Artifact;
use crate::metadata::Checkout;
use crate::{Failure, shell};

/// A test program that is built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// The package's name.
    pub(super) package: String,
    /// The test target's name, or the library's or program's whose unit tests these are.
    pub(super) target: String,
    executable: PathBuf,
    folder: PathBuf,
}

/// Builds what `cargo test --workspace` runs, but for the tests of documentation.
pub(super) fn build(checkout: &Checkout, release: bool) -> Result<Vec<Program>, Failure> {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).args(["test", "--workspace", "--lib", "--bins", "--tests"]);
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    command.args(release.then_some("--release"));
    shell::show(&command);
    let said = shell::output(&mut command)?;
    Ok(said.lines().filter_map(|line| Program::parse(line, checkout)).collect())
}

impl Program {
    /// Out of a line of cargo's; nothing if it is about something else.
    fn parse(line: &str, checkout: &Checkout) -> Option<Program> {
        let built = Artifact::parse(line)?;
        let is_test = built.is_test();
        let (manifest, target, executable) =
            (built.manifest_path, built.target?, built.executable?);
        // The compiler loads macros, and its own libraries with them.
        if !is_test || target.is("proc-macro") {
            return None;
        }
        let package = checkout.packages.iter().find(|package| package.manifest_path == manifest)?;
        Some(Program {
            package: package.name.clone(),
            target: target.name,
            executable,
            folder: manifest.parent().map(Path::to_owned)?,
        })
    }

    /// Runs all its tests, from where cargo would.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let package = Package {
            name: "gapless-x".to_owned(),
            manifest_path: "/w/x/Cargo.toml".into(),
            ..Package::default()
        };
        let checkout = Checkout { packages: vec![package], ..Checkout::here() };
        let of = |kind: &str, test: bool, executable: &str| {
            let line = format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/x/Cargo.toml",
                    "target":{{"name":"death","kind":["{kind}"]}},
                    "profile":{{"test":{test}}},"executable":{executable}}}"#
            );
            Program::parse(&line, &checkout)
        };
        let found = of("test", true, "\"/t/death\"").unwrap();
        assert_eq!((&*found.package, &*found.target), ("gapless-x", "death"));
        let command = found.command();
        assert_eq!(shell::line(&command), "CARGO_MANIFEST_DIR=/w/x death");
        assert_eq!(command.get_current_dir(), Some(Path::new("/w/x")));
        assert_eq!(of("proc-macro", true, "\"/t/death\""), None);
        assert_eq!(of("bin", false, "\"/t/death\""), None);
        assert_eq!(of("lib", true, "null"), None);
        assert_eq!(Program::parse("warning: not JSON", &checkout), None);
    }
}
