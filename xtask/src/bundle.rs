//! `cargo xtask gpu-bundle`: the tests that need a GPU, as a folder to carry to where one is.
//!
//! A compute node has often neither cargo nor a network. So what touches CUDA (every crate of the
//! workspace that is `gapless-mem-cuda` or names it in its manifest) is built here, in release, and
//! put into `gpu-bundle/`; of `gapless` and `gapless-cli` only the programs: their tests need no GPU
//! (those of the whole stack that do are in `tests/`), and look for the command where cargo put it. Unit tests stay at home
//! too, but for those of `gapless-xtq`, of which some run on a GPU where there is one: the others need none, and some are
//! as long as the programs that they test.
//!
//! ```text
//! gpu-bundle/run.sh       runs every test program and `figures p2p`, bounded in time; a table last
//! gpu-bundle/gpus.sh      measures what is between the GPUs of the host, within ten minutes; a table last
//! gpu-bundle/tests/       test programs: FOLDER.NAME
//! gpu-bundle/programs/    what the same crates have of programs and examples
//! ```
//!
//! The folder is also packed into `gpu-bundle.tar.xz`, which is what to copy. All programs hold the same kernels, so it is
//! packed with a window that is longer than a program, and is a tenth as long. Unpack it there and run `gpu-bundle/run.sh`. The programs need nothing beside them; results go to the
//! folder that `OUT` names, or the current one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::artifact::{self, Artifact, ArtifactTarget};
use crate::metadata::{Checkout, Package};
use crate::{Failure, shell};

/// The crate that opens the CUDA driver.
const CUDA_CRATE: &str = "gapless-mem-cuda";

/// The crates whose tests stay at home.
const AT_HOME: [&str; 2] = ["gapless", "gapless-cli"];

/// The crates whose unit tests travel: `run.sh` says which of these it runs.
const UNITS: [&str; 1] = ["gapless-xtq"];

/// What stays at home although its crate travels: none of it involves a GPU.
const HOST_ONLY: [&str; 1] = ["tests/tests.resilience"];

/// How long a packed bundle may be before `gpu-bundle` warns: many places limit what may be carried to a GPU
/// machine.
pub(crate) const BYTES_MAX: u64 = 60 << 20;

/// The packed bundle, beside the folder.
const PACKED: &str = "gpu-bundle.tar.xz";

/// Packs it: with a window in which what programs share is found again.
const PACKER: &str = "xz --lzma2=preset=2,dict=256MiB";

/// Runs the tests on the machine with the GPU.
const RUN: &str = include_str!("bundle/run.sh");

/// Measures there what is between GPUs.
const GPUS: &str = include_str!("bundle/gpus.sh");

/// Builds the bundle anew; warns if it is longer than `bytes_max` when it is packed.
pub(crate) fn run(checkout: &Checkout, bytes_max: u64) -> Result<(), Failure> {
    let packages: Vec<&Package> =
        checkout.packages.iter().filter(|package| touches_cuda(package)).collect();
    let folder = checkout.root.join("gpu-bundle");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|source| at(&folder, source))?;
    }
    for part in ["tests", "programs"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).map_err(|source| at(&part, source))?;
    }
    let names: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut files = BTreeMap::new();
    let tested: Vec<&str> = names.iter().copied().filter(|name| !AT_HOME.contains(name)).collect();
    let tests = build(checkout, &["test", "--no-run", "--test", "*"], &tested)?;
    files.extend(tests.iter().filter_map(Artifact::as_test));
    let units = build(checkout, &["test", "--no-run", "--lib"], &UNITS)?;
    files.extend(units.iter().filter_map(Artifact::as_units));
    let with_programs: Vec<&str> = packages
        .iter()
        .filter(|package| package.has_programs())
        .map(|package| package.name.as_str())
        .collect();
    if !with_programs.is_empty() {
        let programs = build(checkout, &["build", "--bins", "--examples"], &with_programs)?;
        files.extend(programs.iter().filter_map(Artifact::as_program));
    }
    files.retain(|name, _| !HOST_ONLY.iter().any(|home| name == Path::new(home)));
    let mut sum = 0;
    for (name, executable) in &files {
        let bytes = put(executable, &folder.join(name))?;
        println!("{:>10} bytes  {}", bytes, name.display());
        sum += bytes;
    }
    for (name, text) in [("run.sh", RUN), ("gpus.sh", GPUS)] {
        let script = folder.join(name);
        fs::write(&script, text).map_err(|source| at(&script, source))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(|source| at(&script, source))?;
    }
    let shown = checkout.relative(&folder).display().to_string();
    println!("{shown}: {} programs of {}, {sum} bytes", files.len(), names.join(", "));
    let packed = checkout.root.join(PACKED);
    let bytes = pack(checkout, &folder, &packed)?;
    println!("{PACKED}: {bytes} bytes");
    if let Some(warning) = too_long(bytes, bytes_max, &files) {
        println!("{warning}");
    }
    println!("copy {PACKED} to a machine with a GPU: tar xf {PACKED} && {shown}/run.sh");
    Ok(())
}

/// What to say of a bundle that is longer than `bytes_max`.
fn too_long(bytes: u64, bytes_max: u64, files: &BTreeMap<PathBuf, PathBuf>) -> Option<String> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    let (longest, _) = files.iter().max_by_key(|(_, executable)| length(executable))?;
    (bytes > bytes_max).then(|| {
        format!(
            "warning: {PACKED} is {} bytes longer than {bytes_max} (--max-bytes); the longest program in it is {}",
            bytes - bytes_max,
            longest.display()
        )
    })
}

/// Packs the folder; gives the length of what came out, in bytes.
fn pack(checkout: &Checkout, folder: &Path, packed: &Path) -> Result<u64, Failure> {
    let mut tar = Command::new("tar");
    tar.arg(format!("--use-compress-program={PACKER}")).arg("-cf").arg(packed);
    tar.arg("-C").arg(&checkout.root).arg(checkout.relative(folder));
    shell::run(&mut tar)?;
    Ok(fs::metadata(packed).map_err(|source| at(packed, source))?.len())
}

/// Whether its tests may need a GPU.
fn touches_cuda(package: &Package) -> bool {
    package.name == CUDA_CRATE || package.uses(CUDA_CRATE)
}

impl Artifact {
    fn of(&self, test: bool) -> Option<(&ArtifactTarget, &Path)> {
        if self.is_test() != test {
            return None;
        }
        Some((self.target.as_ref()?, self.executable.as_deref()?))
    }

    /// Its place in the bundle if it is a test program, and where it is now.
    fn as_test(&self) -> Option<(PathBuf, PathBuf)> {
        let (target, executable) = self.of(true)?;
        let is_test = target.is("test");
        is_test.then_some((self.named(&target.name)?, executable.to_owned()))
    }

    /// Its place in the bundle if it is the unit tests of a library, and where it is now.
    fn as_units(&self) -> Option<(PathBuf, PathBuf)> {
        let (target, executable) = self.of(true)?;
        let is_library = target.is("lib");
        is_library.then_some((self.named("lib")?, executable.to_owned()))
    }

    /// The place of a test program.
    fn named(&self, name: &str) -> Option<PathBuf> {
        let folder = self.manifest_path.parent()?.file_name()?.to_string_lossy();
        Some(Path::new("tests").join(format!("{folder}.{name}")))
    }

    /// Its place in the bundle if it is a program, and where it is now.
    fn as_program(&self) -> Option<(PathBuf, PathBuf)> {
        let (target, executable) = self.of(false)?;
        let program = target.is("bin") || target.is("example");
        program.then(|| (Path::new("programs").join(&target.name), executable.to_owned()))
    }
}

/// Builds packages in release and says what came out.
fn build(checkout: &Checkout, verb: &[&str], packages: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let mut command = shell::cargo();
    command.current_dir(&checkout.root).args(verb).arg("--release");
    for package in packages {
        command.args(["-p", package]);
    }
    artifact::built(&mut command)
}

/// Copies a program without its symbols; gives its length in bytes.
fn put(from: &Path, to: &Path) -> Result<u64, Failure> {
    // Without `strip` the program is only longer.
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(from, to).map_err(|source| at(from, source))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(|source| at(to, source))?;
    Ok(fs::metadata(to).map_err(|source| at(to, source))?.len())
}

fn at(path: &Path, source: std::io::Error) -> Failure {
    Failure::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn artifact(kind: &str, test: bool, executable: &str) -> Artifact {
        Artifact::parse(&format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/mem-cuda/Cargo.toml",
                "target":{{"name":"gpu_things","kind":["{kind}"]}},
                "profile":{{"test":{test}}},"executable":{executable}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn programs_have_their_places() {
        let place = |artifact: Artifact| artifact.as_test().map(|(place, _)| place);
        assert_eq!(place(artifact("lib", true, "\"/t/a\"")), None);
        let named = place(artifact("test", true, "\"/t/a\"")).unwrap();
        assert_eq!(named, Path::new("tests/mem-cuda.gpu_things"));
        let units = |kind, test| artifact(kind, test, "\"/t/a\"").as_units();
        assert_eq!(units("lib", true).unwrap().0, Path::new("tests/mem-cuda.lib"));
        assert!(units("test", true).is_none() && units("lib", false).is_none());
        assert_eq!(place(artifact("lib", false, "null")), None);
        assert_eq!(place(artifact("bin", false, "\"/t/a\"")), None);
        for kind in ["bin", "example"] {
            let program = artifact(kind, false, "\"/t/a\"").as_program().unwrap();
            assert_eq!(program, ("programs/gpu_things".into(), "/t/a".into()));
        }
        assert!(artifact("bin", true, "\"/t/a\"").as_program().is_none());
        assert!(Artifact::parse(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(Artifact::parse("warning: not JSON").is_none());
    }

    #[test]
    fn a_long_bundle_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: usize| {
            let path = folder.path().join(name);
            fs::write(&path, vec![0; bytes]).unwrap();
            (PathBuf::from(name), path)
        };
        let files = BTreeMap::from([file("short", 10), file("long", 20), file("other", 15)]);
        assert_eq!(too_long(45, 45, &files), None);
        let warning = too_long(46, 45, &files).unwrap();
        assert!(warning.contains("1 bytes longer than 45"), "{warning}");
        assert!(warning.ends_with("is long"), "{warning}");
    }

    /// A folder with a script in a test program's place, and what `run.sh` makes of it.
    fn run_script(program: &str) -> (bool, String, tempfile::TempDir) {
        run_script_with("a.lib", program, None, 60)
    }

    /// The same for a program of this name, beside a script in the place of the program that measures, each with so many
    /// seconds.
    fn run_script_with(
        name: &str,
        program: &str,
        figures: Option<&str>,
        seconds: u32,
    ) -> (bool, String, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            gapless_testkit::write_script(&path, text);
            path
        };
        place(&format!("tests/{name}"), program);
        figures.map(|text| place("programs/figures", text));
        let script = place("run.sh", RUN);
        let output = Command::new("sh")
            .arg(script)
            .env("OUT", folder.path().join("out"))
            .env("LIMIT", seconds.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text, folder)
    }

    #[derive(Deserialize)]
    struct Report {
        tests: Vec<Line>,
        skipped: Vec<String>,
    }

    #[derive(Deserialize)]
    struct Line {
        name: String,
        outcome: String,
        passed: u64,
        failed: u64,
    }

    fn report(folder: &Path) -> Report {
        let text = fs::read_to_string(folder.join("out/gpu-bundle.json")).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn the_script_counts_and_lists() {
        let (success, text, folder) = run_script(
            "#!/bin/sh\necho 'SKIPPED: \"x\": no\\t' >>\"$GAPLESS_SKIP_LOG\"\n\
             echo 'test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'\n\
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out'\n",
        );
        assert!(success, "{text}");
        let report = report(folder.path());
        let [line] = &report.tests[..] else { panic!("{text}") };
        assert_eq!((line.name.as_str(), line.outcome.as_str()), ("a.lib", "ok"));
        assert_eq!((line.passed, line.failed), (5, 0));
        assert_eq!(report.skipped.len(), 1);
        assert!(text.trim_end().ends_with("5 passed, 0 failed, 1 skipped"), "{text}");
    }

    /// What takes long on OpenCL is a part of its own.
    #[test]
    fn the_script_runs_the_oracle_in_two_parts() {
        let (success, text, folder) = run_script_with(
            "dtype-cuda.oracle",
            "#!/bin/sh\ncase \"$*\" in\n\
             '--skip opencl::') echo 'test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out'\n\
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out';;\n\
             'opencl::') echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out'\n\
             exit 101;;\n*) exit 1;;\nesac\n",
            None,
            60,
        );
        assert!(!success, "{text}");
        let lines: Vec<_> = report(folder.path())
            .tests
            .into_iter()
            .map(|line| (line.name, line.outcome, line.passed, line.failed))
            .collect();
        let [whole, part] = ["dtype-cuda.oracle", "dtype-cuda.oracle opencl::"].map(str::to_owned);
        assert_eq!(lines, [(whole, "ok".to_owned(), 5, 0), (part, "failed".to_owned(), 1, 2)]);
    }

    /// Of the unit tests of `xtq`, those that may run on a GPU.
    #[test]
    fn the_script_chooses_unit_tests() {
        let (success, text, folder) = run_script_with(
            "xtq.lib",
            "#!/bin/sh\n[ \"$*\" = 'suite gathered' ] || exit 1\n\
             echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 90 filtered out'\n",
            None,
            60,
        );
        assert!(success, "{text}");
        let report = report(folder.path());
        let [line] = &report.tests[..] else { panic!("{text}") };
        assert_eq!((line.name.as_str(), line.passed, line.failed), ("xtq.lib", 3, 0));
    }

    #[test]
    fn the_script_measures_last() {
        let passes = "#!/bin/sh\necho 'test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; \
                      0 filtered out'\n";
        for (ends, outcome, well) in
            [("0", "ok", true), ("2", "skipped", true), ("1", "failed", false)]
        {
            let figures = format!("#!/bin/sh\necho \"measures $1, $2\"\nexit {ends}\n");
            let (success, text, folder) = run_script_with("a.lib", passes, Some(&figures), 60);
            assert_eq!(success, well, "{text}");
            let report = report(folder.path());
            assert_eq!(report.tests.len(), 2, "{text}");
            assert_eq!(report.tests[1].name, "figures p2p");
            assert_eq!(report.tests[1].outcome, outcome);
            assert_eq!(report.skipped.len(), usize::from(outcome == "skipped"));
            assert_eq!(text.contains("== figures p2p"), outcome != "skipped");
        }
    }

    #[test]
    fn the_script_notices_failures_and_hangs() {
        let (success, text, folder) = run_script(
            "#!/bin/sh\necho 'what went wrong'\n\
             echo 'test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out'\n\
             exit 101\n",
        );
        assert!(!success && text.contains("what went wrong"), "{text}");
        assert_eq!(report(folder.path()).tests[0].outcome, "failed");
        let (success, text, folder) = run_script_with("a.lib", "#!/bin/sh\nsleep 60\n", None, 2);
        assert!(!success, "{text}");
        let report = report(folder.path());
        assert_eq!((report.tests[0].outcome.as_str(), report.tests[0].failed), ("too long", 1));
    }
    #[test]
    fn what_is_between_gpus_is_measured_row_by_row() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            gapless_testkit::write_script(&path, text);
            path
        };
        place(
            "programs/figures",
            "#!/bin/sh\nfor out do :; done\ncase $1 in deaths) exit 1;; pages) exit 2;; reshard) sleep 60;; esac\n\
             echo '\"met\": true' >\"$out/$1.json\"\necho '\"met\": false' >>\"$out/$1.json\"\n",
        );
        let script = place("gpus.sh", GPUS);
        let run = |rows: &str, seconds: &str| {
            let mut command = Command::new("sh");
            command.arg(&script).arg("4").env("OUT", folder.path()).env("ROWS", rows);
            let output =
                command.env("SECONDS_ALL", seconds).env_remove("PROGRAM").output().unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let (success, text) = run("coll-gpu pages faraji2", "100");
        assert!(success, "{text}");
        assert!(text.contains("figures coll-gpu --ranks 4 --start-mps"), "{text}");
        let line = |text: &str, name: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with(name));
            lines
                .next()
                .unwrap_or_else(|| panic!("{text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(line(&text, "coll-gpu").starts_with("coll-gpu ok"), "{text}");
        assert!(line(&text, "faraji2").ends_with("1 of 2 marks met"), "{text}");
        assert!(line(&text, "pages").starts_with("pages skipped"), "{text}");
        let (success, text) = run("deaths reshard acc8", "15");
        assert!(!success, "{text}");
        assert!(line(&text, "deaths").starts_with("deaths failed"), "{text}");
        assert!(line(&text, "reshard").starts_with("reshard too long"), "{text}");
        assert!(line(&text, "acc8").starts_with("acc8 no time"), "{text}");
    }
}
