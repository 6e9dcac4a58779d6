//! The MPI part of FFTW: its own checks transform arrays of random sizes and kinds, and compare them with sums that need
//! no transform. The random numbers have a fixed start.

use super::outcome::Outcomes;
use super::place::{Place, limited, make, version};
use super::{Judge, TestRun};
use crate::{Failure, shell};

/// Has its script check with a start of random numbers. The script ends early, and well, when a job is killed.
const CHECK: &str = r#"srand 1; my $script = shift; do $script; die $@ if $@; print "checked\n""#;
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
            let mut configure = limited("./configure");
            configure.args(["--quiet", "--enable-mpi", "--disable-fortran", "--disable-doc"]);
            configure.env("MPICC", place.compiler()).env("CFLAGS", "-O1").current_dir(folder);
            shell::run(&mut configure)?;
            make(folder, &[])
        })?;
        Ok(version(&archive))
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let program = run.built.join("mpi/mpi-bench");
        let launcher = run.library.launcher().join(" ");
        let job = format!("{launcher} {} {}", run.ranks, program.display());
        let mut check = run.library.around("perl");
        check.args(["-e", CHECK]).arg(run.built.join("tests/check.pl"));
        check.args([
            "--verbose",
            "--random",
            "--maxsize=10000",
            COUNT,
            "--keep-going",
            "--mpi",
            &job,
        ]);
        check.current_dir(run.folder);
        let (ended, text) = run.said(&mut check, "check")?;
        Ok(read(ended, &text))
    }
}

/// A line for each job that is started, and for each that fails, with all of the job's transforms; a line for each
/// transform that ends well: its name and errors.
fn read(ended: bool, text: &str) -> Outcomes {
    let (mut all, mut begun) = (Outcomes::default(), Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, problems)) = line.split_once("--verify ") {
            let name = |problem: &str| problem.trim_matches([' ', '\'', '"']).to_owned();
            let names = problems.split("--verify ").map(name);
            if start.starts_with("FAILED") {
                begun.clear();
                names.for_each(|name| all.note(&name, false, "the job failed"));
            } else if start.starts_with("Executing") {
                begun.drain(..).for_each(|name: String| all.note(&name, false, "it did not end"));
                begun.extend(names);
            }
        } else if let [name, errors @ ..] = &words[..]
            && !errors.is_empty()
            && errors.iter().all(|word| word.parse::<f64>().is_ok())
        {
            begun.retain(|begun| begun != name);
            all.note(name, true, "");
        }
    }
    begun.iter().for_each(|name| all.note(name, false, "it did not end"));
    if !ended || text.lines().last() != Some("checked") {
        all.note("check.pl", false, "it ended early");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_has_to_end() {
        let text = "Executing \"job  --verify 'a' --verify 'b'\"\na 1e-16 2e-16\nb 1e-16 2e-16\n\
                    Executing \"job  --verify 'c' --verify 'd'\"\nc 1e-16 2e-16\n\
                    Executing \"job  --verify 'e' --verify 'f'\"\nFAILED job:  --verify 'e' --verify 'f'\n";
        let failed = |ended, text: &str| {
            let all = read(ended, text);
            all.failed().map(|(test, why)| format!("{test}: {why}")).collect::<Vec<_>>()
        };
        let [unended, e, f, early] = [
            "d: it did not end",
            "e: the job failed",
            "f: the job failed",
            "check.pl: it ended early",
        ];
        assert_eq!(failed(true, &format!("{text}checked\n")), [unended, e, f]);
        assert_eq!(failed(true, text), [early, unended, e, f]);
        assert_eq!(failed(false, "a 1e-16\nchecked\n"), [early]);
        assert_eq!(failed(true, "Executing \"job  --verify 'd'\"\nchecked\n"), [unended]);
    }
}
