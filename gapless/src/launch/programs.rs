//! What is started: the programs of a job, and what holds for all of its processes.

use super::{Job, LaunchError, Outcome, Output};
use std::ffi::OsString;
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
/// use gapless::launch::{Launch, Program};
///
/// let ends_well = Program { ranks: 2, program: "true".into(), ..Program::default() };
/// let launch = Launch { programs: vec![ends_well.clone(), ends_well], ..Launch::default() };
/// assert_eq!(launch.ranks(), 4);
/// assert_eq!(launch.run()?.exit_code(), 0);
/// # Ok::<(), gapless::launch::LaunchError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The programs; together 1 to [`RANKS_MAX`](super::RANKS_MAX) processes.
    pub programs: Vec<Program>,
    /// What becomes of the processes' output.
    pub output: Output,
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
