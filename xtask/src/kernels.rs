//! `cargo xtask kernels`: builds the committed images of `kernels/` anew.
//!
//! The compilers come as Python wheels, pinned here, into a virtual environment below the target folder;
//! nothing of NVIDIA's need be installed. Their output is the same, byte for byte, on every machine, so that
//! `--check` can tell whether the images are those of the sources. A machine that has no Python or cannot
//! fetch the wheels skips that check, aloud.
//!
//! CI compares [`stamps`] instead, which takes no compilers; `cargo xtask soak` builds the images.

mod stamps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::ci::files::files_with;
use crate::metadata::Checkout;
use crate::skips::{Skip, SkipLog};
use crate::{Failure, shell};
use stamps::Named;

/// The compilers. Release 13.0 is the newest whose output a driver of series 580 loads.
const WHEELS: &[&str] = &["nvidia-cuda-nvrtc==13.0.88", "nvidia-cuda-nvcc==13.0.88"];
/// What is made of a source.
struct Image {
    /// Below `kernels/cuda`.
    source: &'static str,
    /// Below `kernels/images`: the image, and what is said of it.
    made: [&'static str; 2],
    /// Compute capabilities that get machine code (`90:80`: of the PTX for 80), and last the one whose PTX serves later
    /// ones.
    targets: &'static [&'static str],
}

const IMAGES: [Image; 10] = [
    Image {
        source: "pack.cu",
        made: ["pack.fatbin", "ptxas.txt"],
        targets: &["80", "90", "100", "80"],
    },
    // Nothing in it differs by capability, and one PTX takes a third of the time.
    Image {
        source: "reduce.cu",
        made: ["reduce.fatbin", "reduce.txt"],
        targets: &["80", "90:80", "100:80", "80"],
    },
    Image {
        source: "peers.cu",
        made: ["peers.fatbin", "ptxas-peers.txt"],
        targets: &["80", "90", "100", "80"],
    },
    Image {
        source: "worker.cu",
        made: ["worker.fatbin", "ptxas-worker.txt"],
        // Compiled from PTX for sm_100, the image for it would spill registers; from that for sm_90 it does not.
        targets: &["80", "90", "100:90", "80"],
    },
    Image {
        source: "copy_worker.cu",
        made: ["copy_worker.fatbin", "ptxas-copy-worker.txt"],
        targets: &["80", "90", "100", "80"],
    },
    Image {
        source: "worker_linked.cu",
        made: ["worker_linked.fatbin", "ptxas-linked.txt"],
        targets: &["80", "90", "100", "80"],
    },
    Image {
        source: "lanes.cu",
        made: ["lanes.fatbin", "ptxas-lanes.txt"],
        targets: &["80", "90", "100", "80"],
    },
    // Of PTX alone: users' code comes so, too.
    Image {
        source: "example_tasks.cu",
        made: ["example_tasks.ptx", "ptxas-example-tasks.txt"],
        targets: &["80"],
    },
    Image {
        source: "example_puts_tasks.cu",
        made: ["example_puts.ptx", "ptxas-example-puts.txt"],
        targets: &["80"],
    },
    Image {
        source: "example_partitioned.cu",
        made: ["example_partitioned.ptx", "ptxas-example-partitioned.txt"],
        targets: &["80"],
    },
];

/// The file of stamps, beside the images.
const STAMPS: &str = "built-from.txt";

/// Whether sources, images or what the compilers are told have changed since the images were built.
pub(crate) fn check_stamps(checkout: &Checkout) -> Result<(), Failure> {
    let committed = read(&checkout.root.join("kernels/images").join(STAMPS))?;
    let files = stamped(checkout)?;
    let changed = stamps::differing(&files, &String::from_utf8_lossy(&committed));
    for name in &changed {
        println!("{name} has changed since the images were built: run cargo xtask kernels");
    }
    println!("kernels: {} stamps checked", files.len());
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure::Found {
        what: "changes since the kernel images were built",
        number: changed.len() as u64,
    })
}

/// All that goes into the images, and the images, by name.
fn stamped(checkout: &Checkout) -> Result<Vec<Named>, Failure> {
    let told = |image: &Image| {
        format!("{} {} {}", image.source, image.made.join(" "), image.targets.join(" "))
    };
    let told = WHEELS.iter().map(|&wheel| wheel.to_owned()).chain(IMAGES.iter().map(told));
    let mut files = vec![(
        "what the compilers are told".to_owned(),
        told.collect::<Vec<_>>().join("\n").into_bytes(),
    )];
    let mut paths = vec![PathBuf::from("compile.py")];
    for folder in ["cuda", "src"] {
        for extension in ["cu", "h", "cl-cu"] {
            let found = files_with(&checkout.root.join("kernels").join(folder), extension)?;
            let kernels = checkout.root.join("kernels");
            paths.extend(
                found
                    .iter()
                    .filter_map(|path| path.strip_prefix(&kernels).ok())
                    .map(Path::to_owned),
            );
        }
    }
    paths.extend(
        IMAGES.iter().flat_map(|image| image.made).map(|name| Path::new("images").join(name)),
    );
    paths.sort();
    for path in paths {
        files.push((path.display().to_string(), read(&checkout.root.join("kernels").join(&path))?));
    }
    Ok(files)
}

/// Builds the images in place, or with `check` beside them, and compares.
pub(crate) fn run(checkout: &Checkout, check: bool) -> Result<(), Failure> {
    let wheels = match wheels(checkout) {
        Ok(wheels) => wheels,
        Err(failure) if check => return skip(checkout, &failure),
        Err(failure) => return Err(failure),
    };
    let committed = checkout.root.join("kernels/images");
    if !check {
        build(checkout, &wheels, &committed)?;
        let text = stamps::text(&stamped(checkout)?);
        let path = committed.join(STAMPS);
        return fs::write(&path, text).map_err(|source| Failure::File { path, source });
    }
    let fresh = checkout.target.join("kernels/images");
    build(checkout, &wheels, &fresh)?;
    let mut stale = 0u64;
    for name in IMAGES.iter().flat_map(|image| image.made) {
        if read(&fresh.join(name))? != read(&committed.join(name))? {
            println!("kernels/images/{name} is not what its sources give: run cargo xtask kernels");
            stale += 1;
        }
    }
    if stale == 0 {
        println!("kernels: the images are those of the sources");
        return Ok(());
    }
    Err(Failure::Found { what: "stale images", number: stale })
}

fn build(checkout: &Checkout, wheels: &Wheels, into: &Path) -> Result<(), Failure> {
    fs::create_dir_all(into).map_err(|source| Failure::File { path: into.to_owned(), source })?;
    let kernels = checkout.root.join("kernels");
    let one = |Image { source, made, targets }: &Image| {
        shell::run(
            Command::new(&wheels.python)
                .arg(kernels.join("compile.py"))
                .arg(&wheels.folder)
                .arg(kernels.join("cuda").join(source))
                .arg(kernels.join("src"))
                .args(made.map(|name| into.join(name)))
                .args(*targets),
        )
    };
    // Each is the work of one processor.
    thread::scope(|scope| {
        let builds = IMAGES.each_ref().map(|image| scope.spawn(|| one(image)));
        builds.into_iter().try_for_each(|build| {
            build.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// A virtual environment with the compilers.
struct Wheels {
    python: PathBuf,
    folder: PathBuf,
}

/// Makes the environment, unless one with the same wheels is there.
fn wheels(checkout: &Checkout) -> Result<Wheels, Failure> {
    let home = checkout.target.join("kernels/venv");
    let python = home.join("bin/python");
    let stamp = home.join("wheels.txt");
    let wanted = WHEELS.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(Wheels { folder: folder(&python)?, python });
    }
    println!("kernels: installing the compilers into {}", checkout.relative(&home).display());
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    shell::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(WHEELS),
    )?;
    fs::write(&stamp, wanted).map_err(|source| Failure::File { path: stamp, source })?;
    Ok(Wheels { folder: folder(&python)?, python })
}

/// Where the wheels put their files.
fn folder(python: &Path) -> Result<PathBuf, Failure> {
    let script = "import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], 'cu13'))";
    let said = shell::output(Command::new(python).args(["-c", script]))?;
    Ok(PathBuf::from(said.trim()))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

fn skip(checkout: &Checkout, failure: &Failure) -> Result<(), Failure> {
    let skip = Skip {
        what: "comparing the kernel images with their sources".to_owned(),
        why: format!("no compilers: {failure}"),
    };
    println!("SKIPPED: {}: {}", skip.what, skip.why);
    SkipLog::open(&checkout.target.join("xtask"))?.add(&skip)
}
