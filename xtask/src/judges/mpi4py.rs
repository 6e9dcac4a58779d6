//! The tests of mpi4py, of a fixed version, which pip fetches; mpi4py is built with our `mpicc`.
//!
//! Each module is a job of its own, so that what hangs or crashes takes nothing else with it. A rank writes how each test
//! ended (`drive.py`).

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::outcome::Outcomes;
use super::place::Place;
use super::{Judge, TestRun};
use crate::metadata::Checkout;
use crate::{Failure, mpi};

/// The version whose tests are run.
const VERSION: &str = "4.1.2";
/// Modules that are not run: Gapless starts no jobs from jobs, and has no files.
const LEFT_OUT: &[&str] = &["test_dynproc", "test_file", "test_io", "test_spawn"];
/// Not on one rank, where its pool starts others and waits for them.
const NOT_ALONE: &str = "test_util_pool";
/// The modules of a sample.
const SAMPLE: &[&str] = &[
    "test_comm",
    "test_cco_nb_vec",
    "test_cco_obj",
    "test_errhandler",
    "test_p2p_buf",
    "test_request",
    "test_rma",
];
const UNNAMED_PAIRS: &str = "Gapless has pairs without a name (MPI 4.1 §6.9.4), and MPICH none; mpi4py calls them \
                             predefined, and its test wants them not to be";
const KNOWN: &[(&str, &str)] = &[
    ("test_datatype.TestDatatypeCreate.testValueIndex", UNNAMED_PAIRS),
    ("test_datatype.TestDatatypePickle.testValueIndex", UNNAMED_PAIRS),
    ("test_util_dtlib.TestUtilDTLib.testPair", UNNAMED_PAIRS),
    ("test_objmodel.TestObjModel.testSafeFreeCreated", "Gapless has no files"),
    (
        "test_util_dtlib.TestUtilDTLib.testHVector",
        "an extent follows from the type map (MPI 4.1 §5.1.6): 256 bytes; MPICH gives 258, with the old type's padding",
    ),
    (
        "test_ulfm.TestULFMWorld.testIAgree",
        "two collectives are started in different orders on different ranks, which MPI forbids",
    ),
];

/// Its tests, or some of them.
pub(super) struct Mpi4py<'a> {
    pub(super) checkout: &'a Checkout,
    /// Parts of the names of modules; all modules if there are none.
    pub(super) only: Vec<String>,
    pub(super) sample: bool,
}

impl Judge for Mpi4py<'_> {
    fn name(&self) -> &'static str {
        "mpi4py"
    }

    fn ranks(&self) -> &'static [u32] {
        if self.sample { &[2] } else { &[1, 2, 3, 4, 5] }
    }

    fn known(&self) -> &'static [(&'static str, &'static str)] {
        KNOWN
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        place.package(self.name(), VERSION, &[])?;
        Ok(VERSION.to_owned())
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let (tests, folder) = (run.built.join("test"), run.folder);
        let mut all = Outcomes::default();
        for module in modules(&tests)?.iter().filter(|module| self.wants(module, run.ranks)) {
            let begun = Instant::now();
            for old in 0..64 {
                let _ = fs::remove_file(folder.join(format!("{module}.{old}")));
            }
            let mut job = run.job(run.place.python()?);
            job.arg(self.checkout.root.join("xtask/src/judges/drive.py"));
            job.arg(folder.join(module)).arg(&tests);
            job.args(["--no-builddir", "-v", "-i", &format!("^{module}\\.py$")]);
            let (ended, _) = run.said(&mut job, module)?;
            let mut outcomes = Outcomes::read(folder, module)?;
            if !ended && outcomes.failed().next().is_none() {
                // Nobody wrote that a test failed: the job did.
                outcomes.note(module, false, &format!("the job failed: {module}.log"));
            }
            let [passed, failed, skipped] = outcomes.sums();
            println!(
                "{module:<24} {:>6.1} s {passed:>6} passed {failed:>4} failed {skipped:>4} skipped",
                begun.elapsed().as_secs_f64()
            );
            all.add(outcomes);
        }
        Ok(all)
    }
}

impl Mpi4py<'_> {
    /// Whether a module is to run.
    fn wants(&self, module: &str, ranks: u32) -> bool {
        match self.sample {
            true => SAMPLE.contains(&module),
            false if self.only.is_empty() => {
                !LEFT_OUT.contains(&module) && (ranks > 1 || module != NOT_ALONE)
            }
            false => self.only.iter().any(|only| module.contains(only.as_str())),
        }
    }
}

/// The modules of tests, sorted.
fn modules(tests: &Path) -> Result<Vec<String>, Failure> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(tests).map_err(|source| mpi::at(tests, source))?.flatten() {
        let name = entry.file_name();
        let module = name.to_str().and_then(|name| name.strip_suffix(".py"));
        modules.extend(module.filter(|name| name.starts_with("test_")).map(str::to_owned));
    }
    modules.sort();
    Ok(modules)
}
