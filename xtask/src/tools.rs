//! What the tests need from the system, and how it gets there.
//!
//! Root gets what is missing installed with apt, and is told so; others get the line to run. What only
//! some tests need may stay missing: those are skipped, aloud.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};
use crate::{Failure, shell};

/// A thing of the system that tests use.
struct Tool {
    /// How its presence is seen.
    probe: Probe,
    /// The Debian packages that bring it.
    packages: &'static [&'static str],
    /// What for.
    why: &'static str,
    /// Whether everything fails without it, or only what `why` says.
    required: bool,
}

/// How a tool's presence is seen.
enum Probe {
    /// A program on the search path.
    Program(&'static str),
    /// A file at one of these places.
    File(&'static [&'static str]),
}

/// Everything used today. A C linker comes with every Rust installation that can link; it is listed
/// for users who have none and need to know why linking fails.
const TOOLS: &[Tool] = &[
    Tool {
        probe: Probe::Program("cc"),
        packages: &["gcc", "libc6-dev"],
        why: "links every program",
        required: true,
    },
    Tool {
        probe: Probe::Program("valgrind"),
        packages: &["valgrind", "libc6-dbg"],
        why: "counting instructions, and `cargo xtask valgrind`",
        required: false,
    },
    Tool {
        probe: Probe::Program("c++"),
        packages: &["g++"],
        why: "the engine of `cargo xtask fuzz`",
        required: false,
    },
    Tool {
        probe: Probe::Program("git"),
        packages: &["git"],
        why: "naming the commit in reports",
        required: false,
    },
    Tool {
        probe: Probe::Program("ip"),
        packages: &["iproute2"],
        why: "jobs on two hosts, which are network namespaces",
        required: false,
    },
    Tool {
        probe: Probe::Program("mpiexec.hydra"),
        packages: &["mpich"],
        why: "jobs under MPICH's mpiexec",
        required: false,
    },
    // Debian's name, which says whose `mpirun` it is; it brings libpmix.
    Tool {
        probe: Probe::Program("mpirun.openmpi"),
        packages: &["openmpi-bin"],
        why: "jobs under Open MPI's mpirun",
        required: false,
    },
    Tool {
        probe: Probe::Program("slurmctld"),
        packages: &["slurm-wlm", "munge", "libpmi2-0"],
        why: "jobs under Slurm's srun",
        required: false,
    },
    // Slurm's plugin opens it by the name that development has.
    Tool {
        probe: Probe::File(&[
            "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so",
            "/usr/lib/aarch64-linux-gnu/pmix2/lib/libpmix.so",
        ]),
        packages: &["libpmix-dev"],
        why: "jobs under Slurm's srun with PMIx",
        required: false,
    },
    Tool {
        probe: Probe::File(&[
            "/usr/lib/x86_64-linux-gnu/libOpenCL.so.1",
            "/usr/lib/aarch64-linux-gnu/libOpenCL.so.1",
            "/usr/lib64/libOpenCL.so.1",
            "/usr/lib/libOpenCL.so.1",
        ]),
        packages: &["ocl-icd-libopencl1"],
        why: "running the GPU kernels through OpenCL",
        required: false,
    },
    Tool {
        probe: Probe::File(&["/etc/OpenCL/vendors/pocl.icd"]),
        packages: &["pocl-opencl-icd"],
        why: "running the GPU kernels on the host's processor",
        required: false,
    },
];

/// Makes the tools present, or says what to run; logs as skipped what stays missing.
pub(crate) fn set_up(skips: &SkipLog) -> Result<(), Failure> {
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !present(&tool.probe)).collect();
    if missing.is_empty() {
        println!("tools: all {} present, nothing to install", TOOLS.len());
        return Ok(());
    }
    for tool in &missing {
        println!("tools: {} is missing ({})", name(&tool.probe), tool.why);
    }
    let packages: Vec<&str> = missing.iter().flat_map(|t| t.packages).copied().collect();
    if is_root() {
        println!("tools: running as root, installing {}", packages.join(" "));
        if let Err(failure) = install(&packages) {
            println!("tools: {failure}");
        }
    } else {
        println!("tools: to install them, run: sudo apt-get install -y {}", packages.join(" "));
    }
    let still: Vec<&Tool> = missing.into_iter().filter(|tool| !present(&tool.probe)).collect();
    for tool in still.iter().filter(|tool| !tool.required) {
        skips.add(&Skip {
            what: tool.why.to_owned(),
            why: format!("{} is not installed", name(&tool.probe)),
        })?;
    }
    let required: Vec<&str> =
        still.iter().filter(|tool| tool.required).map(|tool| name(&tool.probe)).collect();
    if required.is_empty() {
        return Ok(());
    }
    Err(Failure::Missing(required.join(", ")))
}

/// Makes one program of the table present: a chore cannot do without it.
pub(crate) fn need(program: &str) -> Result<(), Failure> {
    if on_search_path(program) {
        return Ok(());
    }
    let is_it = |tool: &&Tool| matches!(tool.probe, Probe::Program(name) if name == program);
    let packages = TOOLS.iter().find(is_it).map_or(&[][..], |tool| tool.packages);
    if is_root() {
        println!("tools: {program} is missing; running as root, installing {}", packages.join(" "));
        install(packages)?;
    } else {
        println!("tools: to install it, run: sudo apt-get install -y {}", packages.join(" "));
    }
    if on_search_path(program) { Ok(()) } else { Err(Failure::Missing(program.to_owned())) }
}

/// Brings packages that only one chore needs, or says how.
pub(crate) fn bring(what: &str, packages: &[&str]) -> Result<(), Failure> {
    if is_root() {
        println!("tools: {what} is missing; running as root, installing {}", packages.join(" "));
        return install(packages);
    }
    println!("tools: to install {what}, run: sudo apt-get install -y {}", packages.join(" "));
    Err(Failure::Missing(what.to_owned()))
}

fn install(packages: &[&str]) -> Result<(), Failure> {
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    shell::run(apt().arg("update"))?;
    shell::run(apt().args(["install", "-y", "--no-install-recommends"]).args(packages))
}

/// The effective user, as the owner of this process's own folder.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0)
}

fn name(probe: &Probe) -> &'static str {
    match probe {
        Probe::Program(program) => program,
        Probe::File(places) => places.first().copied().unwrap_or("a file"),
    }
}

fn present(probe: &Probe) -> bool {
    match probe {
        Probe::Program(program) => on_search_path(program),
        Probe::File(places) => places.iter().any(|place| Path::new(place).exists()),
    }
}

/// A program that cargo installs, at one release: the user's own if it is that one, else one in the target folder, built
/// when it is not there yet.
pub(crate) fn pinned(checkout: &Checkout, name: &str, release: &str) -> Result<PathBuf, Failure> {
    let folder = checkout.target.join("tools");
    let local = folder.join("bin").join(name);
    if on_search_path(name) && is_release(Path::new(name), release) {
        return Ok(name.into());
    }
    if !is_release(&local, release) {
        println!("{name} {release} is missing: building it, once, into the target folder");
        shell::run(
            shell::cargo()
                .current_dir(&checkout.root)
                .args(["install", name, "--locked", "--version", release])
                // It runs for a second, or waits for others: building it fast matters more.
                .args(["--profile", "dev", "--force", "--root"])
                .arg(&folder)
                .env("CARGO_PROFILE_DEV_DEBUG", "false"),
        )?;
    }
    Ok(local)
}

/// Whether a subcommand of cargo's is there, and of this release.
fn is_release(program: &Path, release: &str) -> bool {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let verb = name.trim_start_matches("cargo-");
    // Some take the verb first, as cargo gives it to them.
    [&["--version"][..], &[verb, "--version"]].iter().any(|words| {
        Command::new(program).args(*words).output().is_ok_and(|output| {
            let said = String::from_utf8_lossy(&output.stdout);
            // `mdbook v0.5.4`, but `cargo-mutants 27.1.0`.
            said.split_ascii_whitespace().any(|word| word.trim_start_matches('v') == release)
        })
    })
}

/// Whether a program of this name is on the search path.
pub(crate) fn on_search_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence() {
        assert!(present(&Probe::Program("sh")));
        assert!(!present(&Probe::Program("gapless-no-such-program")));
        assert!(present(&Probe::File(&["/no/such/file", "/proc/self/exe"])));
        assert!(!present(&Probe::File(&["/no/such/file"])));
    }

    #[test]
    fn every_tool_says_where_it_comes_from() {
        for tool in TOOLS {
            assert!(!tool.packages.is_empty() && !tool.why.is_empty());
        }
    }
}
