//! The MPI part of FFTW: its own checks transform arrays of random sizes and kinds, and compare them with sums that need
//! no transform. The random numbers have a fixed start.

use std::path::Path;

use super::Judge;
use super::library::{Library, said};
use super::outcome::Outcomes;
use super::place::{Place, make, version};
use crate::{Failure, shell};

/// Has its script check with a start of random numbers.
const CHECK: &str = "srand 1; my $script = shift; do $script; die $@ if $@";
/// Geometries; each gives several transforms.
const COUNT: &str = "-c=10";

pub(super) struct Fftw3;

impl Judge for Fftw3 {
    fn name(&self) -> &'static str {
        "fftw3"
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        let archive = place.source("fftw3")?;
        place.built(self.name(), &archive, |folder| {
            let mut configure = std::process::Command::new("./configure");
            configure.args(["--quiet", "--enable-mpi", "--disable-fortran", "--disable-doc"]);
            configure.env("MPICC", place.compiler()).env("CFLAGS", "-O1").current_dir(folder);
            shell::run(&mut configure)?;
            make(folder, &[])
        })?;
        Ok(version(&archive))
    }

    fn run(
        &self,
        place: &Place,
        library: &Library,
        ranks: u32,
        folder: &Path,
    ) -> Result<Outcomes, Failure> {
        let fftw = place.folder.join(self.name());
        let program = fftw.join("mpi/mpi-bench");
        let job = format!("{} {ranks} {}", library.launcher().join(" "), program.display());
        let mut check = library.around("perl");
        check.args(["-e", CHECK]).arg(fftw.join("tests/check.pl"));
        check.args([
            "--verbose",
            "--random",
            "--maxsize=10000",
            COUNT,
            "--keep-going",
            "--mpi",
            &job,
        ]);
        let (_, text) = said(check.current_dir(folder), &folder.join("check.log"))?;
        Ok(read(&text))
    }
}

/// A line for each transform: its name and errors; or a line for a job that failed, with all of the job's transforms.
fn read(text: &str) -> Outcomes {
    let mut all = Outcomes::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((_, problems)) =
            line.split_once("--verify ").filter(|_| line.starts_with("FAILED"))
        {
            for problem in problems.split("--verify ") {
                all.note(problem.trim().trim_matches('\''), false, "the job failed");
            }
        } else if let [name, errors @ ..] = &words[..]
            && !errors.is_empty()
            && errors.iter().all(|word| word.parse::<f64>().is_ok())
        {
            all.note(name, true, "");
        }
    }
    all
}
