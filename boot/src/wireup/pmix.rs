//! The client side of PMIx, as Open MPI's `mpirun`, PRRTE's `prun` and Slurm's `pmix` plugin serve it.
//!
//! PMIx is not a protocol but a library, `libpmix`. It is opened at run time (`library.rs`), so that only processes
//! launched by PMIx need it. Its calls may never return. So one thread makes all of them but `abort`, and callers wait
//! for it as long as [`Limits`] says. If a call does not return, that thread is lost, and the launcher counts as gone.
//! Only values can still be got then, as while that thread waits at a fence: by a spare thread, of which there are few.

#[allow(unsafe_code, reason = "calls libpmix, and reads what it hands out")]
mod library;

use super::limits::{ASK_EVERY, Wait};
use super::membership::Membership;
use super::questions::LOOK_EVERY;
use super::{Limits, Questions, Wireup, WireupError, job_name, pieces};
use crate::pmi::valid_word;
use library::{Key, Library, PmixValue, Proc, Status};
use std::cell::RefCell;
use std::ffi::CString;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

pub(super) const NAMESPACE: &str = "PMIX_NAMESPACE";
pub(super) const RANK: &str = "PMIX_RANK";
/// Variables with this prefix tell where the server is; one for each version.
const SERVER: &str = "PMIX_SERVER_URI";
/// The security plugins that the server accepts, separated by commas.
const SECURITY: &str = "PMIX_SECURITY_MODE";
/// Names the library's file, if the loader does not find it.
const LIBRARY: &str = "GAPLESS_PMIX";
const LIBRARY_DEFAULT: &str = "libpmix.so.2";

/// Major versions of the library whose structures are those of `library.rs`.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=6;
const VERSIONS_KNOWN: &str = "2 to 6";

/// Longest piece of a value. PMIx states no limit, but its shared-memory store has one.
const VALUE_BYTES_MAX: usize = 16 << 10;
/// Longest key of ours; the pieces' numbers come behind it.
const KEY_BYTES_MAX: usize = library::KEY_BYTES_MAX - 8;

/// Threads that may wait for calls which do not return.
const SPARES_MAX: u32 = 4;

/// How long the server is waited for when the job is aborted.
const ABORT_LIMIT: Duration = Duration::from_secs(2);

/// A job whose launcher speaks PMIx.
#[derive(Debug)]
pub struct Pmix {
    worker: Worker,
    /// Asks while that one waits at a fence, or for ever.
    spare: Spare,
    me: Proc,
    size: u32,
    local_size: Option<u32>,
    job: String,
    limits: Limits,
    /// Whether a value was put that the server does not have yet.
    uncommitted: bool,
    /// `None` once it was left.
    membership: Option<Membership>,
}

impl Pmix {
    /// Talks to the launcher that this process's environment names, once.
    ///
    /// # Errors
    /// Variables that are missing; no library, or one of another version; a server that is gone,
    /// does not answer, or says what makes no sense; [`WireupError::Joined`], [`WireupError::OnlyOnce`].
    pub fn from_environment(limits: Limits) -> Result<Pmix, WireupError> {
        let membership = Membership::take()?;
        // Open MPI's server lets it join, but then loses what it publishes.
        membership.only_once("PMIx")?;
        let joined = Pmix::join(limits).map_err(|error| membership.explain(error))?;
        Ok(Pmix { membership: Some(membership), ..joined })
    }

    fn join(limits: Limits) -> Result<Pmix, WireupError> {
        let is_server = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(SERVER);
        if !std::env::vars_os().any(|(name, _)| is_server(&name)) {
            let (variable, problem) = (SERVER, "missing".to_owned());
            return Err(WireupError::Environment { set: NAMESPACE, variable, problem });
        }
        let library = std::env::var(LIBRARY).unwrap_or_else(|_| LIBRARY_DEFAULT.to_owned());
        let opened = Library::open(&library);
        let opened = opened.map_err(|reason| WireupError::Library { library, reason })?;
        check_version(&opened.version())?;
        Pmix::start(opened, limits)
    }

    fn start(library: Library, limits: Limits) -> Result<Pmix, WireupError> {
        let wait = Wait::Answer(limits.answer);
        let mut worker = Worker::start(library)?;
        let me = worker.ask("PMIx_Init", wait, Library::init).map_err(explain)?;
        let mut about_job = |key: &'static str| worker.get(me, library::WILDCARD, key, wait);
        let size = about_job("pmix.job.size")?;
        let local_size = about_job("pmix.local.size").ok();
        let number = |found: &PmixValue| match *found {
            PmixValue::Number(number) => u32::try_from(number).ok(),
            PmixValue::Text(_) | PmixValue::Other(_) => None,
        };
        let size = number(&size).filter(|&size| me.rank < size).ok_or_else(|| {
            let asked = format!("pmix.job.size, to rank {}", me.rank);
            WireupError::BadAnswer { asked, answer: format!("{size:?}") }
        })?;
        let local_size = local_size.as_ref().and_then(number);
        let local_size = local_size.filter(|local| (1..=size).contains(local));
        let job = job_name(&me.name());
        let (uncommitted, membership) = (false, None);
        Ok(Pmix {
            worker,
            spare: Spare::default(),
            me,
            size,
            local_size,
            job,
            limits,
            uncommitted,
            membership,
        })
    }

    fn answer(&self) -> Wait<'static> {
        Wait::Answer(self.limits.answer)
    }

    fn fence_within(&mut self, wait: Wait<'_>) -> Result<(), WireupError> {
        if self.uncommitted {
            self.worker.ask("PMIx_Commit", self.answer(), Library::commit)?;
            self.uncommitted = false;
        }
        self.worker.ask("PMIx_Fence", wait, Library::fence)
    }
}

/// A server and a library whose security plugins do not match is a common cause, and the status does not tell it.
fn explain(error: WireupError) -> WireupError {
    let modes = std::env::var(SECURITY).unwrap_or_default();
    match error {
        WireupError::Refused { doing, reason, status } if !modes.is_empty() => {
            let reason = format!(
                "{reason}; the server wants security by {}, of which this host's libpmix must have one",
                modes.replace(',', " or ")
            );
            WireupError::Refused { doing, reason, status }
        }
        error => error,
    }
}

/// Refuses libraries whose structures are not known: `OpenPMIx 4.2.2, …` is what they say.
fn check_version(text: &str) -> Result<(), WireupError> {
    let word = text.split(' ').find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let major = word.and_then(|word| word.split('.').next()?.parse().ok());
    if major.is_some_and(|major| VERSIONS.contains(&major)) {
        return Ok(());
    }
    let theirs = text.chars().take(80).collect();
    Err(WireupError::Version { what: "the PMIx library", theirs, known: VERSIONS_KNOWN })
}

fn key_of(text: &str) -> Result<Key, WireupError> {
    if !valid_word(text) || text.contains('=') {
        return Err(WireupError::BadText { what: text.chars().take(80).collect() });
    }
    let key = Key::new(text).filter(|_| text.len() <= KEY_BYTES_MAX);
    key.ok_or_else(|| WireupError::TooLong {
        what: format!("key {}", text.chars().take(80).collect::<String>()),
        len: text.len(),
        max: KEY_BYTES_MAX,
    })
}

impl Wireup for Pmix {
    fn rank(&self) -> u32 {
        self.me.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        self.local_size
    }

    fn job(&self) -> &str {
        &self.job
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WireupError> {
        key_of(key)?;
        let bad = || WireupError::BadText { what: value.chars().take(80).collect() };
        if !valid_word(value) {
            return Err(bad());
        }
        for (key, piece) in pieces::cut(key, value, VALUE_BYTES_MAX)? {
            let key = Key::new(&key).ok_or_else(bad)?;
            let text = CString::new(piece).map_err(|_| bad())?;
            let put = move |library: &Library| library.put(&key, &text);
            self.worker.ask("PMIx_Put", self.answer(), put)?;
            self.uncommitted = true;
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.fence_within(Wait::Gathering(self.limits.gathering, self.size))
    }

    fn fence_while(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), WireupError> {
        self.fence_within(Wait::While(go_on, ASK_EVERY))
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let (me, wait) = (self.me, self.answer());
        let worker = match self.worker.stuck {
            None => &mut self.worker,
            Some(_) => self.spare.worker(self.worker.library)?,
        };
        worker.get_text(me, (from, key), wait)
    }

    /// Another thread asks the library meanwhile, which takes calls of several.
    fn fence_answering(
        &mut self,
        go_on: &dyn Fn() -> bool,
        questions: &Questions,
    ) -> Result<(), WireupError> {
        let (me, wait, library) = (self.me, self.answer(), self.worker.library);
        questions.forget_answers();
        let spare = RefCell::new(std::mem::take(&mut self.spare));
        let look = || {
            questions.answer_all(|from, key| {
                spare.borrow_mut().worker(library)?.get_text(me, (from, key), wait)
            });
            go_on()
        };
        let fenced = self.fence_within(Wait::While(&look, LOOK_EVERY));
        self.spare = spare.into_inner();
        fenced
    }

    fn answers_at_fences(&self) -> bool {
        true
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        if let Some(membership) = self.membership.take() {
            self.worker.ask("PMIx_Finalize", self.answer(), Library::finalize)?;
            membership.leave(None);
        }
        Ok(())
    }

    fn abort(&mut self, code: i32) {
        // In a thread of its own, because the other one may be waiting at a fence.
        let (library, (done, wait)) = (self.worker.library, mpsc::channel());
        let thread = std::thread::Builder::new().name("gapless-abort".to_owned());
        let _ = thread.spawn(move || {
            let status = library.abort(code, c"aborted by the application");
            let _ = done.send(status);
        });
        match wait.recv_timeout(ABORT_LIMIT) {
            Ok(Ok(())) => {}
            other => tracing::warn!(?other, "the launcher could not be told to abort the job"),
        }
    }
}

/// A worker in the place of one whose call does not return.
#[derive(Debug, Default)]
struct Spare {
    worker: Option<Worker>,
    /// How many there were.
    started: u32,
}

impl Spare {
    /// The worker. If its call does not return either, a fresh one, of which there are [`SPARES_MAX`] at most.
    fn worker(&mut self, library: Library) -> Result<&mut Worker, WireupError> {
        let is_stuck = |it: &Worker| it.stuck.is_some() && self.started < SPARES_MAX;
        if self.worker.as_ref().is_none_or(is_stuck) {
            self.started += 1;
            self.worker = Some(Worker::start(library)?);
        }
        self.worker
            .as_mut()
            .ok_or_else(|| gone("PMIx_Get", "no thread is left to call it".to_owned()))
    }
}

/// Something for the library's thread to do.
type Task = Box<dyn FnOnce(&Library) + Send>;

/// The thread that calls the library, seen from outside.
#[derive(Debug)]
struct Worker {
    library: Library,
    tasks: Sender<Task>,
    /// The call that has not returned.
    stuck: Option<&'static str>,
}

impl Worker {
    /// Starts the thread; it ends with this value, unless a call does not return.
    fn start(library: Library) -> Result<Worker, WireupError> {
        let (tasks, waiting) = mpsc::channel::<Task>();
        let thread = std::thread::Builder::new().name("gapless-pmix".to_owned());
        let work = move || waiting.into_iter().for_each(|task| task(&library));
        match thread.spawn(work) {
            Ok(_) => Ok(Worker { library, tasks, stuck: None }),
            Err(error) => Err(gone("starting a thread", error.to_string())),
        }
    }

    /// Calls the library; failures carry its own words.
    fn ask<T: Send + 'static>(
        &mut self,
        doing: &'static str,
        wait: Wait<'_>,
        call: impl FnOnce(&Library) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, WireupError> {
        let result = self.call(doing, wait, call)?;
        result.map_err(|status| self.failure(doing, status))
    }

    /// A text that a process has published.
    fn get_text(
        &mut self,
        me: Proc,
        (from, key): (u32, &str),
        wait: Wait<'_>,
    ) -> Result<String, WireupError> {
        key_of(key)?;
        pieces::join(from, key, |piece| match self.get(me, from, piece, wait)? {
            PmixValue::Text(text) => Ok(text),
            other => {
                let asked = format!("{piece} of process {from}");
                Err(WireupError::BadAnswer { asked, answer: format!("{other:?}") })
            }
        })
    }

    /// A value by its key; [`WireupError::NoSuchKey`] if there is none.
    fn get(
        &mut self,
        me: Proc,
        from: u32,
        key: &str,
        wait: Wait<'_>,
    ) -> Result<PmixValue, WireupError> {
        let doing = "PMIx_Get";
        let bytes = key_of(key)?;
        match self.call(doing, wait, move |library| library.get(&me, from, &bytes))? {
            Ok(found) => Ok(found),
            // Servers that know of no such key wait a while for it to come.
            Err(library::NOT_FOUND | library::TIMEOUT) => {
                Err(WireupError::NoSuchKey { from, key: key.to_owned() })
            }
            Err(status) => Err(self.failure(doing, status)),
        }
    }

    fn failure(&self, doing: &'static str, status: Status) -> WireupError {
        let reason = self.library.name_of(status);
        match status {
            library::UNREACHABLE | library::COMM_FAILURE | library::LOST_CONNECTION => {
                gone(doing, format!("{reason} ({status})"))
            }
            _ => WireupError::Refused { doing, reason, status },
        }
    }

    fn call<T: Send + 'static>(
        &mut self,
        doing: &'static str,
        wait: Wait<'_>,
        call: impl FnOnce(&Library) -> T + Send + 'static,
    ) -> Result<T, WireupError> {
        if let Some(stuck) = self.stuck {
            return Err(gone(doing, format!("{stuck} has not come back")));
        }
        let started = Instant::now();
        let (done, result) = mpsc::channel();
        let task: Task = Box::new(move |library| {
            // Nobody waits for the result any more.
            let _ = done.send(call(library));
        });
        let ended = || gone(doing, "the thread that calls PMIx has ended".to_owned());
        self.tasks.send(task).map_err(|_| ended())?;
        loop {
            let slice = wait.slice(doing, started).inspect_err(|_| self.stuck = Some(doing))?;
            match result.recv_timeout(slice) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
    }
}

fn gone(doing: &'static str, reason: String) -> WireupError {
    WireupError::LauncherGone { doing, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_library_says() {
        for text in [
            "OpenPMIx 4.2.2rc2, repo rev: v4.2.2",
            "OpenPMIx 3.2.3 (PMIx Standard: 3.1)",
            "PMIx 2.0",
        ] {
            assert!(check_version(text).is_ok(), "{text}");
        }
        for text in ["", "OpenPMIx", "OpenPMIx 1.2.5", "OpenPMIx 9.0.0", "OpenPMIx x.4"] {
            let error = check_version(text).unwrap_err().to_string();
            assert!(error.contains("2 to 6"), "{error}");
        }
    }

    #[test]
    fn keys_are_words() {
        assert!(key_of("gapless-card").is_ok());
        for bad in ["", "a b", "a=b", "é"] {
            assert!(matches!(key_of(bad), Err(WireupError::BadText { .. })), "{bad:?}");
        }
        assert!(matches!(key_of(&"k".repeat(504)), Err(WireupError::TooLong { max: 503, .. })));
    }
}
