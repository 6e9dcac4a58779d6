//! The HPC Challenge with a small input: HPL, transposes, random access, transforms, … check what they have computed.

use std::fs;

use super::outcome::Outcomes;
use super::place::{Place, make, version};
use super::{Judge, TestRun};
use crate::{Failure, mpi};

/// For its makefiles. The C form of BLAS is GSL's.
const SETTINGS: &str = "SHELL = /bin/sh
CD = cd
MKDIR = mkdir -p
RM = rm -f
TOPdir = ../../..
HPLlib = $(TOPdir)/lib/judge/libhpl.a
INCdir = $(TOPdir)/include
HPL_DEFS = -DHPL_CALL_CBLAS -I$(INCdir) -I../../../../include
HPL_LIBS = $(HPLlib) $(BLAS) -lm
CC = $(MPICC)
LINKER = $(MPICC)
CCNOOPT = $(HPL_DEFS)
CCFLAGS = $(HPL_DEFS) -O1
ARCHIVER = ar
ARFLAGS = r
RANLIB = ranlib
";
/// The order of HPL's matrix.
const ORDER: &str = "240";
/// Parts that say how they ended: the file of results has a section for each.
const SECTIONS: [&str; 14] = [
    "MPIRandomAccess",
    "StarRandomAccess",
    "SingleRandomAccess",
    "MPIRandomAccess_LCG",
    "StarRandomAccess_LCG",
    "SingleRandomAccess_LCG",
    "PTRANS",
    "StarDGEMM",
    "StarSTREAM",
    "MPIFFT",
    "StarFFT",
    "SingleFFT",
    "LatencyBandwidth",
    "HPL",
];
/// The largest error of the distributed transform.
const FFT_ERROR_MAX: f64 = 1e-12;

pub(super) struct Hpcc;

impl Judge for Hpcc {
    fn name(&self) -> &'static str {
        "hpcc"
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        let triplet = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let blas = place.files(&["libgsl-dev"])?.join(triplet).join("libgslcblas.a");
        let archive = place.source("hpcc")?;
        place.built(self.name(), &archive, |folder| {
            let settings = folder.join("hpl/Make.judge");
            fs::write(&settings, SETTINGS).map_err(|source| mpi::at(&settings, source))?;
            let compiler = format!("MPICC={}", place.compiler().display());
            make(folder, &["arch=judge", &compiler, &format!("BLAS={}", blas.display())])
        })?;
        Ok(version(&archive))
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let model = run.built.join("_hpccinf.txt");
        let [input, output] = ["hpccinf.txt", "hpccoutf.txt"].map(|name| run.folder.join(name));
        let text = fs::read_to_string(&model).map_err(|source| mpi::at(&model, source))?;
        let rows = if run.ranks.is_multiple_of(2) { 2 } else { 1 };
        let line = |line: &str| match line.split_whitespace().last() {
            Some("Ns") => format!("{ORDER} Ns\n"),
            Some("Ps") => format!("{rows} Ps\n"),
            Some("Qs") => format!("{} Qs\n", run.ranks / rows),
            _ => format!("{line}\n"),
        };
        fs::write(&input, text.lines().map(line).collect::<String>())
            .map_err(|source| mpi::at(&input, source))?;
        let _ = fs::remove_file(&output);
        run.said(&mut run.job(run.built.join("hpcc")), "hpcc")?;
        Ok(read(&fs::read_to_string(&output).unwrap_or_default()))
    }
}

fn read(text: &str) -> Outcomes {
    let mut all = Outcomes::default();
    for name in SECTIONS {
        let begin = text.split_once(&format!("Begin of {name} section."));
        let section =
            begin.and_then(|(_, rest)| rest.split_once(&format!("End of {name} section.")));
        let is_bad = |line: &&str| {
            let error = line.strip_prefix("Node(s) with error ");
            line.contains("FAILED") || line.contains("(failed)") || error.is_some_and(|n| n != "0")
        };
        let bad = section.map_or(Some("it did not end"), |(part, _)| part.lines().find(is_bad));
        all.note(name, bad.is_none(), bad.unwrap_or_default());
    }
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse::<f64>().ok())
    };
    let error = value("MPIFFT_maxErr").unwrap_or(f64::INFINITY);
    all.note("MPIFFT", error.abs() < FFT_ERROR_MAX, &format!("MPIFFT_maxErr={error}"));
    all.note("all", value("Success") == Some(1.0), "Success is not 1");
    all
}
