//! What is started: the programs of a job, and what holds for all of its processes.

use super::output::Stream;
use super::{Job, LaunchError, Outcome, Output};
use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

/// One program of a job, and how many processes run it.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// How many processes.
    pub ranks: u32,
    /// The program; looked up in `PATH` if it has no slash, else from [`folder`](Program::folder).
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables to add to the processes' environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the processes begin; `None`: where the launcher is.
    pub folder: Option<PathBuf>,
}

/// A job of one or several programs (MPMD). Ranks are counted through, program by program.
///
/// ```
/// use gapless_boot::launch::{Launch, Program};
///
/// let ends_well = Program { ranks: 2, program: "true".into(), ..Program::default() };
/// let launch = Launch { programs: vec![ends_well.clone(), ends_well], ..Launch::default() };
/// assert_eq!(launch.ranks(), 4);
/// assert_eq!(launch.run()?.exit_code(), 0);
/// # Ok::<(), gapless_boot::launch::LaunchError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The programs; together 1 to [`RANKS_MAX`](super::RANKS_MAX) processes.
    pub programs: Vec<Program>,
    /// What becomes of the processes' output.
    pub output: Output,
    /// Files that standard output and standard error go to instead. In a name `%r` is the rank, `%%` a percent sign.
    pub files: [Option<String>; 2],
    /// The job is ended, with [`LaunchError::TimedOut`], if it takes longer than this.
    pub time_limit: Option<Duration>,
    /// The processors that each rank may use, by the system's numbers, for example of a
    /// [`Binding`](super::Binding). Ranks beyond the list, and those with no processors, may use what the launcher may.
    pub processors: Vec<Vec<usize>>,
}

impl Launch {
    /// How many processes there are, of all programs together.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.programs.iter().fold(0, |sum, program| sum.saturating_add(program.ranks))
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// As [`run`](super::run()), and [`LaunchError::TimedOut`].
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        super::run_all(self)
    }

    /// The file for a rank's output, or its errors, if there is one. It is new, if it is not for several ranks.
    pub(super) fn file(&self, stream: Stream, rank: u32) -> Result<Option<File>, LaunchError> {
        let Some(pattern) = &self.files[stream as usize] else { return Ok(None) };
        let parts = pattern.split("%%").map(|part| part.replace("%r", &rank.to_string()));
        let path = parts.collect::<Vec<_>>().join("%");
        let opened = match rank == 0 || path != pattern.replace("%%", "%") {
            true => File::create(&path).map(drop),
            false => Ok(()),
        };
        // Ranks that share a file write behind each other.
        let opened = opened.and_then(|()| File::options().append(true).open(&path));
        opened.map(Some).map_err(|error| LaunchError::OutputFile { path, error })
    }

    /// The number of the program that each rank runs (`MPI_APPNUM`, MPI 4.1 §11.10.3).
    pub(super) fn numbers(&self) -> Vec<usize> {
        let programs = self.programs.iter().enumerate();
        programs.flat_map(|(i, program)| (0..program.ranks).map(move |_| i)).collect()
    }
}

impl From<&Job> for Launch {
    fn from(job: &Job) -> Launch {
        let Job { ranks, program, arguments, environment, prefix } = job.clone();
        let program = Program { ranks, program, arguments, environment, folder: None };
        let output = if prefix { Output::Prefixed } else { Output::Direct };
        Launch { programs: vec![program], output, ..Launch::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};

    fn echo(ranks: u32) -> Launch {
        let arguments = ["-c", "echo $PMI_RANK; echo oops >&2"].map(OsString::from).to_vec();
        let program = Program { ranks, program: "sh".into(), arguments, ..Program::default() };
        Launch { programs: vec![program], output: Output::Lines, ..Launch::default() }
    }

    #[test]
    fn each_rank_has_a_file_or_all_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("errors"), "of yesterday").unwrap();
        let files = [Some(path("100%%.%r")), Some(path("errors"))];
        let launch = Launch { files, ..echo(3) };
        assert_eq!(launch.run().unwrap().exit_code(), 0);
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        assert_eq!(["100%.0", "100%.1", "100%.2"].map(read), ["0\n", "1\n", "2\n"]);
        assert_eq!(read("errors"), "oops\noops\noops\n");
        let files = [None, Some(path("nowhere/errors"))];
        let error = Launch { files, ..echo(1) }.run().unwrap_err();
        assert!(
            matches!(&error, LaunchError::OutputFile { path, .. } if path.ends_with("nowhere/errors"))
        );
    }

    #[test]
    fn a_rank_that_cannot_be_bound_is_named() {
        let before = sched_getaffinity(None).unwrap();
        // A machine with as many processors as a set holds would have it.
        let last = CpuSet::MAX_CPU - 1;
        if before.is_set(last) {
            return;
        }
        let error = Launch { processors: vec![vec![last]], ..echo(1) }.run().unwrap_err();
        let said = format!("rank 0 cannot be kept on processors {last}: ");
        assert!(error.to_string().starts_with(&said), "{error}");
        let after = sched_getaffinity(None).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|at| before.is_set(at) == after.is_set(at)));
    }
}
