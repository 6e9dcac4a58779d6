//! Tests of hypre's solvers: its script starts jobs of 1 to 4 ranks and compares what they print with what is saved beside
//! them.

use std::fs;

use super::outcome::Outcomes;
use super::place::{Place, limited, make, version};
use super::{Judge, TestRun};
use crate::{Failure, mpi, shell};

/// Programs of the tests.
const PROGRAMS: [&str; 3] = ["ij", "struct", "sstruct"];
/// The tests.
const TESTS: &[&str] = &[
    "TEST_struct/hybrid",
    "TEST_struct/pfmgbase2d",
    "TEST_struct/pfmgtest1d",
    "TEST_struct/smgbase2d",
    "TEST_struct/smgbase3d",
    "TEST_struct/smgtest1d",
    "TEST_struct/solvers",
    "TEST_ij/air",
    "TEST_ij/default",
    "TEST_ij/matrix",
    "TEST_ij/vector",
    "TEST_sstruct/addtovalues",
    "TEST_sstruct/cube",
    "TEST_sstruct/default2d",
    "TEST_sstruct/default3d",
    "TEST_sstruct/miller",
    "TEST_sstruct/solvers",
    "TEST_sstruct/wide",
];
/// How far numbers may be from those that are saved.
const TOLERANCE: &str = "1e-6";

pub(super) struct Hypre;

impl Judge for Hypre {
    fn name(&self) -> &'static str {
        "hypre"
    }

    fn ranks(&self) -> &'static [u32] {
        &[0]
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        let archive = place.source("hypre")?;
        place.built(self.name(), &archive, |folder| {
            let source = folder.join("src");
            let mut configure = limited("./configure");
            configure.args(["--quiet", "--disable-fortran", "CFLAGS=-O1"]).current_dir(&source);
            let compiler = place.compiler().display().to_string();
            shell::run(configure.arg(format!("CC={compiler}")).env("MPICC", &compiler))?;
            make(&source, &[])?;
            make(&source.join("test"), &PROGRAMS)
        })?;
        Ok(version(&archive))
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let tests = run.built.join("src/test");
        let mut all = Outcomes::default();
        for test in TESTS {
            let mut script = run.library.around("bash");
            script.args(["./runtest.sh", "-mpi", &run.library.launcher().join(" ")]);
            script.args(["-rtol", TOLERANCE, "-atol", TOLERANCE, &format!("{test}.sh")]);
            script.current_dir(&tests);
            let (ended, _) = run.said(&mut script, &test.replace('/', "-"))?;
            // A test that passes leaves an empty file.
            let errors = tests.join(format!("{test}.err"));
            let text = fs::read_to_string(&errors).map_err(|source| mpi::at(&errors, source))?;
            let passed = ended && text.is_empty();
            let first = text.lines().next().unwrap_or("the script failed");
            println!("{test}: {}", if passed { "passed" } else { first });
            all.note(test, passed, first);
            fs::remove_file(&errors).map_err(|source| mpi::at(&errors, source))?;
        }
        Ok(all)
    }
}
