//! The local launcher: starts the processes of a job on this host, speaks PMI-1 to them, passes
//! signals on, and ends them all when one fails.
//!
//! One thread, one `poll(2)` loop. A pidfd watches every process, so nothing depends on signal timing; where the system
//! gives none, it is asked every 20 ms whether any process has ended, and each of the job only if one has. Each process
//! has its own process group: whatever it starts dies with it. If the launcher itself is killed, the kernel kills its
//! processes (`PR_SET_PDEATHSIG`) and closes their PMI sockets.

mod asker;
mod binding;
mod blame;
mod child;
mod drivers;
mod error;
mod group;
mod other;
mod output;
mod programs;
mod server;

pub use binding::{BindTo, Binding, Core, Cores, MapBy};
pub use drivers::remember_environment;
pub use error::LaunchError;
pub use other::watch;
pub use output::Output;
pub use programs::{Launch, Program};

use crate::descriptors;
use asker::Asker;
use blame::Blame;
use child::Child;
use output::{Outputs, STREAMS, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use server::{Action, Server};
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The most processes that one launcher starts.
pub const RANKS_MAX: u32 = 4096;

/// How long processes have between `SIGTERM` and `SIGKILL` once the job has failed.
const GRACE: Duration = Duration::from_millis(500);

/// How often the system is asked whether processes have ended, if nothing else tells.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// What to start: one program. [`Launch`] says more.
#[derive(Clone, Debug)]
pub struct Job {
    /// How many processes, 1 to [`RANKS_MAX`].
    pub ranks: u32,
    /// The program; looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables to add to the processes' environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether lines of output come whole, with the rank before each ([`Output::Prefixed`]), or as they come
    /// ([`Output::Direct`]).
    pub prefix: bool,
}

/// How one process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It exited with 0, but left a job whose others still waited for it.
    Deserted,
    /// It exited with 0, but the others wait for it at a barrier.
    Missed,
    /// It asked to abort the job with this code.
    Aborted(i32),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Code(code) => write!(f, "exited with {code}"),
            End::Signal(signal) => {
                let name = signal_hook::low_level::signal_name(*signal);
                let name = name.map_or_else(String::new, |name| format!(" ({name})"));
                write!(f, "was killed by signal {signal}{name}")
            }
            End::Deserted => f.write_str("left without finalizing"),
            End::Missed => f.write_str("left before the others, who wait for it"),
            End::Aborted(code) => write!(f, "aborted the job with {code}"),
        }
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first process that failed, and how; `None` if all ended well. A process that was killed by a signal is named
    /// rather than those that failed because they needed it.
    pub failed: Option<(u32, End)>,
    /// Because of whom that process had left the job without finalizing, if it has said so: itself, or another.
    pub because: Option<u32>,
    /// A signal that the launcher was sent and passed on, if any.
    pub signalled: Option<i32>,
}

impl Outcome {
    /// What the launcher should exit with: 0, the first failure's code, or 128 + its signal.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let code = match (self.signalled, self.failed) {
            (_, Some((_, End::Code(code) | End::Aborted(code)))) => code,
            (_, Some((_, End::Signal(signal)))) | (Some(signal), None) => 128 + signal,
            (_, Some((_, End::Deserted | End::Missed))) => 1,
            (None, None) => 0,
        };
        // A code that does not fit a byte must not become success.
        u8::try_from(code & 0xff).ok().filter(|&byte| byte != 0 || code == 0).unwrap_or(1)
    }
}

/// Files that the launcher has open besides: its signals', its input and outputs, and what starting a process takes.
const OWN_FILES: u64 = 32;

fn system(operation: &'static str) -> impl Fn(std::io::Error) -> LaunchError {
    move |error| LaunchError::System { operation, error }
}

/// Runs a job to its end.
///
/// # Errors
/// Nothing to start, a program that cannot be started, or the system's refusal; processes that were
/// started already are killed.
pub fn run(job: &Job) -> Result<Outcome, LaunchError> {
    Launch::from(job).run()
}

fn run_all(job: &Launch) -> Result<Outcome, LaunchError> {
    let ranks = job.ranks();
    if ranks == 0 || ranks > RANKS_MAX {
        return Err(LaunchError::BadRanks { ranks });
    }
    // The link and the process of each, and where its output comes out.
    let needed = OWN_FILES + u64::from(ranks) * if job.output == Output::Direct { 2 } else { 4 };
    descriptors::raise(needed, needed).map_err(|limit| LaunchError::TooFewDescriptors {
        ranks,
        needed,
        limit,
    })?;
    let signals = Signals::register()?;
    let mut running = Running::start(job)?;
    let outcome = running.until_all_ended(&signals, job.time_limit);
    running.kill_all(Signal::KILL);
    outcome
}

/// Signals that are passed on, each with a pipe that becomes readable when it comes.
struct Signals(Vec<(Signal, UnixStream)>);

impl Signals {
    fn register() -> Result<Signals, LaunchError> {
        let passed_on =
            [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let mut list = Vec::new();
        for signal in passed_on {
            let (reader, writer) = UnixStream::pair().map_err(system("socketpair"))?;
            reader.set_nonblocking(true).map_err(system("fcntl"))?;
            writer.set_nonblocking(true).map_err(system("fcntl"))?;
            signal_hook::low_level::pipe::register(signal.as_raw(), writer)
                .map_err(system("sigaction"))?;
            list.push((signal, reader));
        }
        Ok(Signals(list))
    }
}

/// What a descriptor of the poll set belongs to.
enum Source {
    Signal(usize),
    Pmi(usize),
    Output(usize, Stream),
    Process(usize),
    /// The launcher's own output can take something.
    Room(Stream),
    /// A process says what it waits for.
    Asker,
}

struct Running {
    children: Vec<Child>,
    server: Server,
    outputs: Outputs,
    failed: Blame,
    signalled: Option<i32>,
    kill_at: Option<Instant>,
    /// When processes are asked to end, because one failed that has named another, which is given the time to end itself.
    end_at: Option<Instant>,
    /// Whether processes were sent `SIGKILL`.
    kills: bool,
    /// When the system was last asked about the processes without a pidfd.
    asked: Instant,
    /// When the job is ended, whatever it does.
    ends_at: Option<Instant>,
    /// Asks what they wait for before that.
    asker: Option<Asker>,
    /// How many processes had not ended then, and what they said.
    timed_out: Option<(usize, Vec<String>)>,
}

impl Running {
    fn start(job: &Launch) -> Result<Running, LaunchError> {
        let numbers = job.numbers();
        let mut running = Running {
            children: Vec::new(),
            server: Server::new(numbers.clone()),
            outputs: Outputs::new(job.ranks(), job.output),
            failed: Blame::default(),
            signalled: None,
            kill_at: None,
            end_at: None,
            kills: false,
            asked: Instant::now(),
            ends_at: job.time_limit.and_then(|limit| Instant::now().checked_add(limit)),
            asker: Asker::new(job.time_limit, job.ranks() as usize),
            timed_out: None,
        };
        for (rank, number) in (0u32..).zip(numbers) {
            let end = running.asker.as_ref().map(Asker::end).transpose()?.flatten();
            match Child::start(job, &job.programs[number], rank, end) {
                Ok(child) => running.children.push(child),
                Err(error) => {
                    running.kill_all(Signal::KILL);
                    return Err(error);
                }
            }
        }
        if let Some(asker) = &mut running.asker {
            asker.is_complete();
        }
        Ok(running)
    }

    fn kill_all(&mut self, signal: Signal) {
        for child in &mut self.children {
            child.kill(signal);
        }
    }

    /// Processes have failed: names one, and ends the job.
    fn fail(&mut self, mut failed: Vec<(u32, End)>) {
        if failed.is_empty() {
            return;
        }
        // Perhaps these failed because another one did.
        for rank in 0..self.children.len() {
            self.collect(rank, &mut failed);
        }
        let (server, children) = (&self.server, &self.children);
        let cause = |rank: u32| server.cause(rank as usize).map(number);
        let may_tell =
            |rank| cause(rank).is_some_and(|it| it != rank && children[it as usize].runs());
        let waits = failed.iter().all(|(rank, _)| may_tell(*rank));
        if self.signalled.is_none() && self.timed_out.is_none() {
            self.failed.add(&failed, self.kills, cause);
        }
        if waits {
            self.end_at.get_or_insert(Instant::now() + GRACE);
        } else {
            self.terminate();
        }
    }

    /// Asks all processes to end, and sets the time of `SIGKILL`.
    fn terminate(&mut self) {
        if self.kill_at.is_none() {
            self.kill_at = Some(Instant::now() + GRACE);
            self.kill_all(Signal::TERM);
        }
    }

    /// Ends the job if its time is over.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if let Some(asker) = &mut self.asker {
            asker.keep_time(now);
        }
        if self.end_at.take_if(|at| now >= *at).is_some() {
            self.terminate();
        }
        let over = self.ends_at.is_some_and(|at| now >= at);
        if self.kill_at.is_none() && over && self.children.iter().any(Child::is_open) {
            let runs: Vec<bool> = self.children.iter().map(Child::runs).collect();
            let waits = self.asker.take().map(|asker| asker.lines(&runs)).unwrap_or_default();
            self.timed_out = Some((runs.into_iter().filter(|runs| *runs).count(), waits));
            self.terminate();
        }
    }

    fn until_all_ended(
        &mut self,
        signals: &Signals,
        limit: Option<Duration>,
    ) -> Result<Outcome, LaunchError> {
        while self.children.iter().any(Child::is_open) || self.has_output() {
            let mut sources = self.wait(signals)?;
            sources.extend(self.unwatched());
            let mut failed = Vec::new();
            for source in sources {
                self.attend(&source, signals, &mut failed)?;
            }
            self.fail(failed);
            self.keep_time();
            self.outputs.keep_time(Instant::now());
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.kills = true;
                self.kill_all(Signal::KILL);
                self.close_outputs();
            }
            if !self.children.iter().any(Child::runs) {
                // What is left open, if anything, is held by processes outside our reach.
                self.kill_at.get_or_insert(Instant::now() + GRACE);
            }
        }
        if let (Some((running, waits)), Some(limit)) = (self.timed_out.take(), limit) {
            let ranks = u32::try_from(self.children.len()).unwrap_or(u32::MAX);
            return Err(LaunchError::TimedOut { limit, running, ranks, waits });
        }
        let failed = self.failed.named();
        let because = failed.and_then(|(rank, _)| self.server.cause(rank as usize)).map(number);
        Ok(Outcome { failed, because, signalled: self.signalled })
    }

    /// A process outside our reach may hold a pipe open: does not wait for its output. What a slow reader keeps waiting is
    /// still read, unless nobody waits for the reader.
    fn close_outputs(&mut self) {
        let all = self.is_late();
        for stream in STREAMS {
            for (rank, child) in self.children.iter_mut().enumerate() {
                if child.close_output_if_ended(stream, all) {
                    self.outputs.end(rank, stream);
                }
            }
        }
    }

    /// Whether the launcher was asked to end, or its time is over, and the processes have had theirs.
    fn is_late(&self) -> bool {
        self.kills && (self.signalled.is_some() || self.timed_out.is_some())
    }

    /// Whether output must still be written. Once the launcher was asked to end, or its time is over, it waits no longer
    /// for a reader than for the processes.
    fn has_output(&self) -> bool {
        !self.is_late() && STREAMS.into_iter().any(|stream| self.outputs.waits(stream))
    }

    /// The processes that must be asked whether they have ended, if it is time for that and one may have.
    fn unwatched(&mut self) -> Vec<Source> {
        if self.asked.elapsed() < ASK_EVERY || !self.children.iter().any(Child::must_be_asked) {
            return Vec::new();
        }
        self.asked = Instant::now();
        if !child::any_ended() {
            return Vec::new();
        }
        let children = self.children.iter().enumerate();
        let asked = children.filter(|(_, child)| child.must_be_asked());
        asked.map(|(rank, _)| Source::Process(rank)).collect()
    }

    /// Waits for something to happen; bounded while the job is being ended, has a limit, or processes must be asked.
    fn wait(&self, signals: &Signals) -> Result<Vec<Source>, LaunchError> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> = Vec::new();
        let targets = STREAMS.map(|stream| (stream, output::target(stream)));
        for (index, (_, pipe)) in signals.0.iter().enumerate() {
            watched.push((Source::Signal(index), pipe.as_fd()));
        }
        for (rank, child) in self.children.iter().enumerate() {
            watched.extend(child.pmi().map(|pmi| (Source::Pmi(rank), pmi)));
            let outputs = child.outputs().filter(|(stream, _)| !self.outputs.is_full(*stream));
            watched.extend(outputs.map(|(stream, output)| (Source::Output(rank, stream), output)));
            watched.extend(child.process().map(|process| (Source::Process(rank), process)));
        }
        watched
            .extend(self.asker.as_ref().and_then(Asker::descriptor).map(|it| (Source::Asker, it)));
        for (stream, target) in targets.iter().filter(|(stream, _)| self.outputs.waits(*stream)) {
            watched.push((Source::Room(*stream), target.as_fd()));
        }
        let flags = |source: &Source| match source {
            Source::Room(_) => PollFlags::OUT,
            _ => PollFlags::IN,
        };
        let mut descriptors: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(source, descriptor)| PollFd::from_borrowed_fd(*descriptor, flags(source)))
            .collect();
        let asks_at = self.asker.as_ref().and_then(Asker::due);
        let earliest =
            [self.kill_at, self.end_at, asks_at, self.ends_at].into_iter().flatten().min();
        let until_killed = earliest
            .map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_millis(20)));
        let until_asked = self.children.iter().any(Child::must_be_asked).then_some(ASK_EVERY);
        let due = self.outputs.due().map(|at| at.saturating_duration_since(Instant::now()));
        let limit = until_killed.into_iter().chain(until_asked).chain(due).min();
        let timeout = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(system("poll")(error.into())),
        }
        let ready: Vec<bool> = descriptors.iter().map(|d| !d.revents().is_empty()).collect();
        let sources = watched.into_iter().map(|(source, _)| source);
        Ok(sources.zip(ready).filter_map(|(source, ready)| ready.then_some(source)).collect())
    }

    /// Does what there is to do; adds what failed.
    fn attend(
        &mut self,
        source: &Source,
        signals: &Signals,
        failed: &mut Vec<(u32, End)>,
    ) -> Result<(), LaunchError> {
        match *source {
            Source::Signal(index) => {
                let (signal, pipe) = &signals.0[index];
                let mut drain = [0; 64];
                let _ = (&mut &*pipe).read(&mut drain);
                self.kill_all(*signal);
                let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
                if ends.contains(signal) {
                    self.signalled.get_or_insert(signal.as_raw());
                    self.kill_at.get_or_insert(Instant::now() + GRACE);
                }
            }
            Source::Output(rank, stream) => match self.children[rank].read_output(stream) {
                Some(bytes) => self.outputs.take(rank, stream, &bytes, Instant::now()),
                None => self.outputs.end(rank, stream),
            },
            Source::Room(stream) => {
                let target = output::target(stream);
                self.outputs.write(stream, target.as_fd()).map_err(system("write"))?;
            }
            Source::Asker => self.asker.iter_mut().for_each(Asker::hear),
            Source::Pmi(rank) => self.serve(rank, failed),
            Source::Process(rank) => self.collect(rank, failed),
        }
        if let Some(rank) = self.server.missed() {
            failed.push((number(rank), End::Missed));
        }
        Ok(())
    }

    /// Looks whether a process has ended.
    fn collect(&mut self, rank: usize, failed: &mut Vec<(u32, End)>) {
        if !self.children[rank].runs() {
            return;
        }
        // Its last requests still count.
        self.serve(rank, failed);
        let Some(end) = self.children[rank].reap() else { return };
        self.server.ended(rank);
        match end {
            End::Code(0) if !self.server.counts_on(rank) => {}
            End::Code(0) => failed.push((number(rank), End::Deserted)),
            other => failed.push((number(rank), other)),
        }
    }

    /// Answers what a process asks through PMI.
    fn serve(&mut self, rank: usize, failed: &mut Vec<(u32, End)>) {
        while let Some(request) = self.children[rank].read_request() {
            match self.server.answer(rank, &request) {
                Action::Reply(answer) => self.children[rank].send(&answer),
                Action::Wait => {}
                Action::Release(answer) => {
                    for child in &mut self.children {
                        child.send(&answer);
                    }
                }
                Action::Abort(code) => failed.push((number(rank), End::Aborted(code))),
            }
        }
    }
}

/// A rank as others know it.
fn number(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

/// The launcher's side of PMI-1 for three processes that do not exist.
#[cfg(fuzzing)]
pub struct Requests(Server);

#[cfg(fuzzing)]
impl Requests {
    /// Processes, numbered from 0.
    pub const RANKS: usize = 3;

    /// Nobody has asked anything.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "only fuzzing makes one")]
    pub fn new() -> Requests {
        Requests(Server::new(vec![0; 3]))
    }

    /// The process `rank` ends.
    pub fn end(&mut self, rank: usize) {
        self.0.ended(rank);
    }

    /// The process `rank` asks this.
    pub fn ask(&mut self, rank: usize, line: &str) {
        let _ = self.0.answer(rank, &crate::pmi::PmiLine::parse(line));
        let _ = (self.0.missed(), self.0.counts_on(rank));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(failed: Option<(u32, End)>, signalled: Option<i32>) -> u8 {
        Outcome { failed, because: None, signalled }.exit_code()
    }

    #[test]
    fn exit_codes_follow_the_shell() {
        assert_eq!(outcome(None, None), 0);
        assert_eq!(outcome(Some((1, End::Code(7))), None), 7);
        assert_eq!(outcome(Some((1, End::Signal(9))), None), 137);
        assert_eq!(outcome(Some((0, End::Deserted)), None), 1);
        assert_eq!(outcome(None, Some(15)), 143);
        assert_eq!(outcome(Some((0, End::Aborted(256))), None), 1);
    }

    #[test]
    fn nothing_to_start_is_an_error() {
        let job = Job {
            ranks: 0,
            program: "true".into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            prefix: false,
        };
        assert!(matches!(run(&job), Err(LaunchError::BadRanks { ranks: 0 })));
        let job = Job { ranks: RANKS_MAX + 1, ..job };
        assert!(matches!(run(&job), Err(LaunchError::BadRanks { .. })));
        let job = Job { ranks: 2, program: "/nonexistent/program".into(), ..job };
        assert!(matches!(run(&job), Err(LaunchError::Start { .. })));
    }
}
