//! NetPIPE sends messages of all lengths up to 100 kB and compares every byte; so does Debian's, which was built with MPICH.

use std::fs;

use super::library::MPICH_NAME;
use super::outcome::Outcomes;
use super::place::{Place, make, version};
use super::{Judge, TestRun};
use crate::{Failure, mpi};

/// The package that was built with MPICH, and its program.
const BINARY: (&str, &str) = ("netpipe-mpich2", "bin/NPmpich2");
/// Programs and their options. `-z` takes -1 for any source, which it is not with MPICH's numbers.
const TESTS: &[(&str, &[&str])] = &[
    ("NPmpi", &[]),
    ("NPmpi", &["-a"]),
    ("NPmpi", &["-S"]),
    ("NPmpi", &["-z"]),
    ("NPmpi2", &[]),
    (BINARY.1, &[]),
    (BINARY.1, &["-a"]),
    (BINARY.1, &["-S"]),
];
/// What says that a length was right, and how many lengths there are.
const PASSED: (&str, usize) = ("Integrity check passed", 30);

pub(super) struct NetPipe;

impl Judge for NetPipe {
    fn name(&self) -> &'static str {
        "netpipe"
    }

    fn ranks(&self) -> &'static [u32] {
        &[2]
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        place.files(&[BINARY.0])?;
        let archive = place.source("netpipe")?;
        place.built(self.name(), &archive, |folder| {
            // It gives a null pointer for an info, which the standard's ABI does not take.
            let windows = folder.join("src/mpi2.c");
            let text = fs::read_to_string(&windows).map_err(|source| mpi::at(&windows, source))?;
            fs::write(&windows, text.replace("NULL, MPI_COMM", "MPI_INFO_NULL, MPI_COMM"))
                .map_err(|source| mpi::at(&windows, source))?;
            let compiler = place.compiler().display().to_string();
            let [one, two] = ["MPICC", "MPI2CC"].map(|name| format!("{name}={compiler}"));
            make(folder, &["mpi", &one, "CFLAGS=-O -w"])?;
            make(folder, &["mpi2", &two, "MPI2_INC=src", "MPI2_LIB=", "CFLAGS=-O -w"])
        })?;
        Ok(version(&archive))
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let mut all = Outcomes::default();
        let system = run.place.files(&[BINARY.0])?;
        for &(program, options) in TESTS {
            let name = [&[program], options].concat().join(" ").replace("bin/", "");
            if program == BINARY.1 && run.library.name == MPICH_NAME {
                // Its wheel lacks the library's name of then.
                continue;
            }
            let folder = if program == BINARY.1 { &system } else { &run.built };
            let mut job = run.job(folder.join(program));
            job.args(["-i", "-u", "100000"]).args(options);
            let (ended, text) = run.said(&mut job, &name.replace(' ', ""))?;
            let lengths = text.matches(PASSED.0).count();
            let passed = ended && lengths == PASSED.1;
            all.note(&name, passed, &format!("{lengths} of {} lengths", PASSED.1));
        }
        Ok(all)
    }
}
