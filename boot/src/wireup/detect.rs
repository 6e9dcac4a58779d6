//! Who started this process, by its environment.

use super::{Limits, Pmi1, Pmix, Single, Wireup, WireupError, line_stream, pmi1, pmix};
use std::ffi::OsString;
use std::io::Write;

/// What a launcher speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Pmi1,
    Pmix,
}

/// Finds the launcher of this process from its environment, and connects to it. A process is in its launcher's job
/// once at a time; the launcher decides whether it may join again after it has left (`gapless run` allows it).
///
/// # Errors
/// [`WireupError::Joined`], [`WireupError::OnlyOnce`];
/// A launcher that is half there: its variables are set but make no sense, or it does not answer.
pub fn detect() -> Result<Box<dyn Wireup>, WireupError> {
    let limits = Limits::from_environment()?;
    let variable = |name: &str| std::env::var_os(name);
    Ok(match find(&variable, &is_open)? {
        Some(Language::Pmi1) => Box::new(Pmi1::from_environment(limits)?),
        Some(Language::Pmix) => Box::new(Pmix::from_environment(limits)?),
        None => {
            if let Some(warning) = left_alone(&variable) {
                // Nothing else shows that the job is not what was asked for, and few programs have a log.
                let _ = std::io::stderr().write_all(format!("gapless: {warning}\n").as_bytes());
            }
            Box::new(Single::default())
        }
    })
}

/// Whether a launcher started this process, or part of one seems to be present.
#[must_use]
pub fn is_launched() -> bool {
    !matches!(find(&|name| std::env::var_os(name), &is_open), Ok(None))
}

fn is_open(descriptor: &OsString) -> bool {
    descriptor.to_str().and_then(|text| text.parse().ok()).is_some_and(line_stream::is_socket)
}

/// Decides by the environment alone.
fn find(
    variable: &dyn Fn(&str) -> Option<OsString>,
    is_open: &dyn Fn(&OsString) -> bool,
) -> Result<Option<Language>, WireupError> {
    let is_set = |name: &str| variable(name).is_some();
    if let Some(descriptor) = variable(pmi1::FD) {
        // A launcher that closed its parent's descriptor, but left the variable: mpirun in hydra.
        let stale = is_set(pmix::NAMESPACE) && !is_open(&descriptor);
        return Ok(Some(if stale { Language::Pmix } else { Language::Pmi1 }));
    }
    if is_set(pmi1::PORT) {
        return Ok(Some(Language::Pmi1));
    }
    if is_set(pmix::NAMESPACE) {
        return Ok(Some(Language::Pmix));
    }
    let half = |set, variable, instead: &str| {
        let problem = format!("missing, and so is {instead}");
        Err(WireupError::Environment { set, variable, problem })
    };
    for name in [pmi1::RANK, pmi1::SIZE] {
        if is_set(name) {
            return half(name, pmi1::FD, pmi1::PORT);
        }
    }
    for name in [pmix::RANK, "OMPI_COMM_WORLD_RANK"] {
        if is_set(name) {
            return half(name, pmix::NAMESPACE, pmi1::FD);
        }
    }
    Ok(None)
}

/// What to say about a process that was started as one of several, but without any protocol, so that it can find no
/// other. Slurm does so unless told otherwise. Only the first process says it.
fn left_alone(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<String> {
    let number = |name: &str| variable(name)?.into_string().ok()?.parse::<u32>().ok();
    // Those of the step that `srun` has started: a batch script has the variables of its job, and is one process.
    let tasks = number("SLURM_STEP_NUM_TASKS").filter(|&tasks| tasks > 1)?;
    let first = number("SLURM_PROCID").is_none_or(|rank| rank == 0);
    first.then(|| {
        format!(
            "Slurm started {tasks} processes without PMI: each of them is a job of one (srun --mpi=pmi2 or \
             --mpi=pmix makes one job of them)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], open: bool) -> Result<Option<Language>, WireupError> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        find(&lookup, &|_| open)
    }

    #[test]
    fn launchers_in_their_order() {
        let (fd, port, name) = (("PMI_FD", "7"), ("PMI_PORT", "h:1"), ("PMIX_NAMESPACE", "n"));
        assert_eq!(found(&[], true), Ok(None));
        assert_eq!(found(&[fd], true), Ok(Some(Language::Pmi1)));
        assert_eq!(found(&[fd], false), Ok(Some(Language::Pmi1)), "an error later");
        assert_eq!(found(&[fd, port, name], true), Ok(Some(Language::Pmi1)));
        assert_eq!(found(&[port, name], true), Ok(Some(Language::Pmi1)));
        assert_eq!(found(&[name], true), Ok(Some(Language::Pmix)));
        assert_eq!(found(&[fd, name], false), Ok(Some(Language::Pmix)));
        assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], true), Ok(None));
    }

    #[test]
    fn only_the_first_process_that_slurm_left_alone_says_so() {
        let said = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
            left_alone(&|name| found(name).map(|(_, value)| OsString::from(value)))
        };
        let (four, first) = (("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0"));
        let text = said(&[four, first]).unwrap();
        assert!(text.contains("4 processes") && text.contains("--mpi=pmi2"), "{text}");
        assert!(said(&[four]).is_some());
        assert_eq!(said(&[four, ("SLURM_PROCID", "3")]), None);
        assert_eq!(said(&[("SLURM_STEP_NUM_TASKS", "1"), first]), None);
        assert_eq!(said(&[("SLURM_NTASKS", "4"), first]), None, "a batch script");
    }

    #[test]
    fn half_a_launcher_is_none() {
        for (variable, missing) in [
            ("PMI_RANK", "PMI_FD"),
            ("PMI_SIZE", "PMI_PORT"),
            ("PMIX_RANK", "PMIX_NAMESPACE"),
            ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"),
        ] {
            let error = found(&[(variable, "1")], true).unwrap_err().to_string();
            assert!(error.contains(variable) && error.contains(missing), "{error}");
        }
    }
}
