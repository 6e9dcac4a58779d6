//! The tests of mpi4py-fft: transforms of distributed arrays, which `MPI_Alltoallw` moves as subarrays. FFTW's library is
//! the distribution's.

use super::mpi4py::Mpi4py;
use super::outcome::Outcomes;
use super::place::Place;
use super::{Judge, TestRun};
use crate::Failure;

const VERSION: &str = "2.0.6";
const FFTW: &[&str] = &["libfftw3-dev", "libfftw3-double3", "libfftw3-single3", "libfftw3-long3"];
/// Others need more libraries, or no communicator.
const TESTS: &[&str] = &["test_darray", "test_mpifft", "test_pencil"];

pub(super) struct Mpi4pyFft<'a>(pub(super) Mpi4py<'a>);

impl Judge for Mpi4pyFft<'_> {
    fn name(&self) -> &'static str {
        "mpi4py-fft"
    }

    fn ready(&self, place: &Place) -> Result<String, Failure> {
        self.0.ready(place)?;
        let files = place.files(FFTW)?;
        let libraries = files.join(format!("lib/{}-linux-gnu", std::env::consts::ARCH));
        let linking = format!("-Wl,-rpath,{}", libraries.display());
        let settings = [
            ("FFTW_ROOT", files.into_os_string()),
            ("FFTW_LIBRARY_DIR", libraries.into_os_string()),
            ("LDFLAGS", linking.into()),
        ];
        place.package(self.name(), VERSION, &settings)?;
        Ok(VERSION.to_owned())
    }

    fn run(&self, run: TestRun<'_>) -> Result<Outcomes, Failure> {
        let mut all = Outcomes::default();
        for test in TESTS {
            let mut job = run.job(run.place.python()?);
            job.arg(run.built.join(format!("tests/{test}.py")));
            let (ended, text) = run.said(&mut job, test)?;
            let last = text.lines().last().unwrap_or_default();
            println!("{test}: {}", if ended { "passed" } else { last });
            all.note(test, ended, last);
        }
        Ok(all)
    }
}
