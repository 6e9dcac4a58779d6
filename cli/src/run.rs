//! `gapless run`: the local launcher.

use super::complain;
use super::failure::Failure;
use gapless::launch::{self, Job, LaunchError};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

/// What a shell reports of a program that a closed pipe has ended: 128 + SIGPIPE.
const SIGPIPE_EXIT: u8 = 128 + 13;

/// What to start, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// How many processes
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: u32,
    /// Put the rank before each line of output
    #[arg(short = 'p', long)]
    prefix: bool,
    /// Set a variable in the processes' environment (repeatable)
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Run {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let environment =
            self.environment.iter().map(|text| variable(text)).collect::<Result<_, _>>()?;
        let mut words = self.program.into_iter();
        let program = words.next().unwrap_or_default();
        let job = Job {
            ranks: self.ranks,
            program,
            arguments: words.collect(),
            environment,
            prefix: self.prefix,
        };
        start(&job)
    }
}

/// Runs a job, and says which process failed first, if one did.
pub(super) fn start(job: &Job) -> Result<ExitCode, Failure> {
    let outcome = match launch::run(job) {
        Ok(outcome) => outcome,
        // Whoever read the job's output has seen enough (`| head`): the job was ended, quietly.
        Err(LaunchError::System { operation: "write", error })
            if error.kind() == ErrorKind::BrokenPipe =>
        {
            return Ok(ExitCode::from(SIGPIPE_EXIT));
        }
        Err(error) => return Err(error.into()),
    };
    let code = outcome.exit_code();
    match outcome.failed {
        Some((rank, end)) => Err(Failure::Job { rank, end, code }),
        None => Ok(ExitCode::from(code)),
    }
}

/// Runs this command again, as so many ranks (`--as-rank`). A rank that failed has said why.
pub(super) fn start_again(ranks: u32) -> Result<ExitCode, Failure> {
    let job = Job {
        ranks,
        program: std::env::current_exe().map_err(Failure::NoProgram)?.into(),
        arguments: std::env::args_os().skip(1).chain(["--as-rank".into()]).collect(),
        environment: Vec::new(),
        prefix: false,
    };
    match start(&job) {
        Err(Failure::Job { end: launch::End::Code(_), code, .. }) => Ok(ExitCode::from(code)),
        Ok(code) => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            if processors < 2 {
                complain("only one processor: the processes take turns on it, times mean little");
            } else if usize::try_from(ranks).is_ok_and(|ranks| ranks > processors) {
                complain(&format!(
                    "{ranks} processes on {processors} processors take turns: times mean little"
                ));
            }
            Ok(code)
        }
        other => other,
    }
}

fn variable(text: &str) -> Result<(OsString, OsString), Failure> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !text.contains('\0') => {
            Ok((name.into(), value.into()))
        }
        _ => Err(Failure::BadOption {
            option: "--env",
            value: text.to_owned(),
            why: "a variable is given as NAME=VALUE".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn variables_have_a_name() {
        assert_eq!(variable("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(variable("A=").unwrap(), ("A".into(), "".into()));
        for text in ["", "A", "=b"] {
            assert!(variable(text).is_err(), "{text}");
        }
    }
}
