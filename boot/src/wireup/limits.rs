//! How long to wait for a launcher.

use super::WireupError;
use std::time::{Duration, Instant};

/// Names how many seconds processes wait for each other at start-up.
const START_SECONDS: &str = "GAPLESS_START_SECONDS";

/// How long to wait for a launcher. Fences when a world is left have no limit in time; they end when a peer's death
/// is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For each answer that needs no other process. 30 s, unless `gathering` is less.
    pub answer: Duration,
    /// For all processes of the job to come to a fence. 300 s, or as many seconds as the variable
    /// `GAPLESS_START_SECONDS` says.
    pub gathering: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::of(Duration::from_secs(300))
    }
}

impl Limits {
    fn of(gathering: Duration) -> Limits {
        Limits { answer: gathering.min(Duration::from_secs(30)), gathering }
    }

    /// The limits by this process's environment.
    ///
    /// # Errors
    /// `GAPLESS_START_SECONDS` is set, but is no number above 0 and up to 86,400.
    pub fn from_environment() -> Result<Limits, WireupError> {
        let Some(text) = std::env::var_os(START_SECONDS) else { return Ok(Limits::default()) };
        Limits::parse(&text.to_string_lossy())
    }

    fn parse(text: &str) -> Result<Limits, WireupError> {
        let gathering = seconds(START_SECONDS, text)?;
        if gathering.is_zero() {
            Err(no_seconds(START_SECONDS, text))
        } else {
            Ok(Limits::of(gathering))
        }
    }
}

/// A variable's value, as seconds.
pub fn seconds(variable: &'static str, text: &str) -> Result<Duration, WireupError> {
    let seconds = text.parse::<f64>().ok().filter(|&seconds| seconds <= 86_400.0);
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| no_seconds(variable, text))
}

fn no_seconds(variable: &'static str, text: &str) -> WireupError {
    let problem = format!("{text:?}, not a number of seconds up to a day");
    WireupError::Setting { variable, problem }
}

/// The end of a wait without an answer.
#[derive(Clone, Copy)]
pub(super) enum Wait<'a> {
    /// The launcher alone has to answer: this long at most.
    Answer(Duration),
    /// All of so many processes have to come: this long at most.
    Gathering(Duration, u32),
    /// As long as this returns true; it is called at this interval.
    While(&'a dyn Fn() -> bool, Duration),
}

/// How often a wait at a fence asks whether to go on, if it looks at nothing else.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(50);

impl Wait<'_> {
    /// How long to sleep until the next check, in a wait that started at `started`.
    ///
    /// # Errors
    /// The wait is over.
    pub(super) fn slice(
        &self,
        doing: &'static str,
        started: Instant,
    ) -> Result<Duration, WireupError> {
        let waited = started.elapsed();
        match *self {
            Wait::While(go_on, every) if go_on() => Ok(every),
            Wait::While(..) => Err(WireupError::GivenUp),
            Wait::Answer(limit) if waited < limit => Ok(limit - waited),
            Wait::Answer(_) => Err(WireupError::Late { doing, waited }),
            Wait::Gathering(limit, _) if waited < limit => Ok(limit - waited),
            Wait::Gathering(_, size) => Err(WireupError::NotGathered { size, waited }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_of_seconds() {
        assert_eq!(Limits::parse("0.5").unwrap().gathering, Duration::from_millis(500));
        assert_eq!(Limits::parse("0.5").unwrap().answer, Duration::from_millis(500));
        assert_eq!(Limits::parse("600").unwrap().answer, Duration::from_secs(30));
        for text in ["", "soon", "-1", "0", "NaN", "inf", "1e9"] {
            let error = Limits::parse(text).unwrap_err().to_string();
            assert!(error.contains("GAPLESS_START_SECONDS") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn waits_end_with_what_they_waited_for() {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        let second = Duration::from_secs(1);
        let end = |wait: Wait<'_>| wait.slice("get", long_ago);
        assert!(matches!(end(Wait::Answer(second)), Err(WireupError::Late { doing: "get", .. })));
        assert!(matches!(
            end(Wait::Gathering(second, 7)),
            Err(WireupError::NotGathered { size: 7, .. })
        ));
        assert_eq!(end(Wait::While(&|| false, second)), Err(WireupError::GivenUp));
        assert_eq!(end(Wait::While(&|| true, second)), Ok(second));
        assert!(end(Wait::Answer(Duration::from_secs(3600))).is_ok());
    }
}
