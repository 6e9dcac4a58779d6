//! The client side of PMI-1: a line of `key=value` words for each request, a line for each answer.
//! Spoken by our launcher, by MPICH's and Intel's hydra, and by Slurm's `pmi2`.
//!
//! A process reaches the launcher through an inherited descriptor (`PMI_FD`, with `PMI_RANK` and `PMI_SIZE`), or by
//! connecting to an address (`PMI_PORT`), where it sends its number (`PMI_ID`) and is told the rest.
//!
//! The launcher has one store for all processes, so keys carry their publisher's number. Hydra cuts keys and values
//! silently when they are as long as its stated limits, because those count C's final zero; so all texts stay one
//! byte below.

use super::limits::{ASK_EVERY, Wait};
use super::line_stream::{LineStream, connect};
use super::membership::Membership;
use super::questions::LOOK_EVERY;
use super::{Limits, Questions, Wireup, WireupError, job_name, pieces};
use crate::pmi::{PmiLine, valid_word};
use std::os::fd::OwnedFd;

pub(super) const FD: &str = "PMI_FD";
pub(super) const PORT: &str = "PMI_PORT";
pub(super) const RANK: &str = "PMI_RANK";
pub(super) const SIZE: &str = "PMI_SIZE";
const ID: &str = "PMI_ID";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

/// What ends a barrier.
const BARRIER_OUT: &str = "barrier_out";

/// The version spoken here.
const VERSION: &str = "1";

/// The limits that a launcher may state: below, our keys do not fit; above, they are not believed.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 32..=4096;
const VALUE_BYTES: std::ops::RangeInclusive<usize> = 64..=8192;

/// A job whose launcher speaks PMI-1.
#[derive(Debug)]
pub struct Pmi1 {
    /// `None` once it was left in good order.
    link: Option<LineStream>,
    /// Unless the caller brought the stream.
    membership: Option<Membership>,
    rank: u32,
    size: u32,
    local_size: Option<u32>,
    limits: Limits,
    /// The launcher's name of its store.
    store: String,
    job: String,
    key_bytes_max: usize,
    value_bytes_max: usize,
    /// Whether the launcher wants to know why this process leaves.
    asks_why: bool,
    /// Whether the end of a barrier may come before the answer to something else.
    at_barrier: bool,
    /// What came so.
    released: Option<PmiLine>,
}

fn number(set: &'static str, variable: &'static str) -> Result<u32, WireupError> {
    let wrong = |problem| WireupError::Environment { set, variable, problem };
    let text = std::env::var_os(variable).ok_or_else(|| wrong("missing".to_owned()))?;
    let text = text.to_string_lossy();
    text.parse().map_err(|_| wrong(format!("{text:?}, not a number")))
}

impl Pmi1 {
    /// Talks to the launcher that this process's environment names: once at a time, and again once this
    /// was [finalized](Wireup::finalize) if the launcher takes a process again.
    ///
    /// # Errors
    /// Variables that are missing or make no sense; a launcher that does not answer;
    /// [`WireupError::Joined`], [`WireupError::OnlyOnce`].
    pub fn from_environment(limits: Limits) -> Result<Pmi1, WireupError> {
        let mut membership = Membership::take()?;
        let joined =
            Pmi1::join(&mut membership, limits).map_err(|error| membership.explain(error))?;
        Ok(Pmi1 { membership: Some(membership), ..joined })
    }

    fn join(membership: &mut Membership, limits: Limits) -> Result<Pmi1, WireupError> {
        let local_size = number(FD, LOCAL_SIZE).ok();
        if std::env::var_os(FD).is_none() {
            // hydra does not survive a process that calls again.
            membership.only_once("PMI-1 over a port")?;
            let place = std::env::var_os(PORT).unwrap_or_default();
            let id = number(PORT, ID)?;
            let stream = connect(PORT, &place.to_string_lossy(), limits.answer)?;
            return Pmi1::introduce(stream, id, local_size, limits);
        }
        let descriptor = number(FD, FD)?;
        let (rank, size) = (number(FD, RANK)?, number(FD, SIZE)?);
        if rank >= size {
            let problem = format!("{rank}, but {SIZE} is {size}");
            return Err(WireupError::Environment { set: FD, variable: RANK, problem });
        }
        Pmi1::start(membership.connection(FD, descriptor)?, rank, size, local_size, limits)
    }

    /// Talks to a launcher over a connected stream socket.
    ///
    /// # Errors
    /// The launcher does not answer as PMI-1 says, or not in time.
    pub fn start(
        stream: OwnedFd,
        rank: u32,
        size: u32,
        local_size: Option<u32>,
        limits: Limits,
    ) -> Result<Pmi1, WireupError> {
        Pmi1::over(LineStream::new(stream), rank, size, local_size, limits)
    }

    /// Talks to a launcher over a connected stream socket, to which only this process's number is
    /// known, `PMI_ID`.
    ///
    /// # Errors
    /// As [`start`](Pmi1::start); the launcher says numbers that make no sense.
    pub fn introduce(
        stream: OwnedFd,
        id: u32,
        local_size: Option<u32>,
        limits: Limits,
    ) -> Result<Pmi1, WireupError> {
        let mut link = LineStream::new(stream);
        let (doing, wait) = ("initack", Wait::Answer(limits.answer));
        let asked = format!("cmd=initack pmiid={id}");
        link.say(&asked, doing, wait)?;
        let mut told = |cmd: &str| {
            let line = link.hear(doing, wait)?;
            let fine = line.get("cmd") == Some(cmd) && succeeded(&line);
            if fine { Ok(line) } else { Err(bad(&asked, &line)) }
        };
        told("initack")?;
        let mut number = |key: &str| {
            let line = told("set")?;
            let number = line.get(key).and_then(|text| text.parse::<u32>().ok());
            number.ok_or_else(|| bad(&asked, &line))
        };
        let (size, rank) = (number("size")?, number("rank")?);
        number("debug")?;
        if rank >= size {
            let answer = format!("size={size} rank={rank}");
            return Err(WireupError::BadAnswer { asked, answer });
        }
        Pmi1::over(link, rank, size, local_size, limits)
    }

    fn over(
        link: LineStream,
        rank: u32,
        size: u32,
        local_size: Option<u32>,
        limits: Limits,
    ) -> Result<Pmi1, WireupError> {
        let (store, job) = (String::new(), String::new());
        // The values of PMI-1's reference implementation, until the launcher states its own.
        let (key_bytes_max, value_bytes_max) = (63, 1023);
        let mut pmi = Pmi1 {
            link: Some(link),
            membership: None,
            rank,
            size,
            local_size: local_size.filter(|&local| (1..=size).contains(&local)),
            limits,
            store,
            job,
            key_bytes_max,
            value_bytes_max,
            asks_why: false,
            at_barrier: false,
            released: None,
        };
        pmi.agree_on_version()?;
        let asked = "cmd=get_maxes";
        let maxes = pmi.ask(asked, "maxes")?;
        pmi.key_bytes_max = limit(asked, &maxes, "keylen_max", &KEY_BYTES)?;
        pmi.value_bytes_max = limit(asked, &maxes, "vallen_max", &VALUE_BYTES)?;
        let asked = "cmd=get_my_kvsname";
        let answer = pmi.ask(asked, "my_kvsname")?;
        let store = answer.get("kvsname").filter(|name| valid_word(name) && name.len() <= 1024);
        pmi.store = store.ok_or_else(|| bad(asked, &answer))?.to_owned();
        pmi.job = job_name(&pmi.store);
        Ok(pmi)
    }

    fn agree_on_version(&mut self) -> Result<(), WireupError> {
        let asked = "cmd=init pmi_version=1 pmi_subversion=1";
        let answer = self.exchange(asked, "init", self.answer())?;
        if answer.get("cmd") != Some("response_to_init") {
            return Err(bad(asked, &answer));
        }
        match answer.get("pmi_version").unwrap_or(VERSION) {
            VERSION if succeeded(&answer) => {
                self.asks_why = answer.get("leave").is_some();
                Ok(())
            }
            VERSION => Err(bad(asked, &answer)),
            other => {
                let (what, theirs) = ("the launcher's PMI", shorten(other));
                Err(WireupError::Version { what, theirs, known: VERSION })
            }
        }
    }

    fn link(&mut self, doing: &'static str) -> Result<&mut LineStream, WireupError> {
        let left = || WireupError::LauncherGone { doing, reason: "it was left".to_owned() };
        self.link.as_mut().ok_or_else(left)
    }

    fn answer(&self) -> Wait<'static> {
        Wait::Answer(self.limits.answer)
    }

    /// Sends a request and reads its answer.
    fn exchange(
        &mut self,
        request: &str,
        doing: &'static str,
        wait: Wait<'_>,
    ) -> Result<PmiLine, WireupError> {
        let (answer, at_barrier) = (self.answer(), self.at_barrier);
        let link = self.link(doing)?;
        link.say(request, doing, answer)?;
        let line = link.hear(doing, wait)?;
        if !(at_barrier && line.get("cmd") == Some(BARRIER_OUT)) {
            return Ok(line);
        }
        let line = self.released.replace(line);
        if line.is_some() {
            return Err(WireupError::BadAnswer {
                asked: shorten(request),
                answer: BARRIER_OUT.to_owned(),
            });
        }
        self.link(doing)?.hear(doing, wait)
    }

    /// Goes into the barrier, and asks the launcher for what others want to know until it opens.
    fn wait_answering(
        &mut self,
        go_on: &dyn Fn() -> bool,
        questions: &Questions,
    ) -> Result<PmiLine, WireupError> {
        let (doing, answer) = ("barrier_in", self.answer());
        self.link(doing)?.say("cmd=barrier_in", doing, answer)?;
        loop {
            questions.answer_all(|from, key| self.get(from, key));
            if let Some(line) = self.released.take() {
                return Ok(line);
            }
            if !go_on() {
                return Err(WireupError::GivenUp);
            }
            if let Some(line) = self.link(doing)?.hear_soon(doing, LOOK_EVERY)? {
                return Ok(line);
            }
        }
    }

    /// Sends a request and reads its answer, which must be `expected` and report success.
    fn ask(&mut self, request: &str, expected: &'static str) -> Result<PmiLine, WireupError> {
        let line = self.exchange(request, expected, self.answer())?;
        let fine = line.get("cmd") == Some(expected) && succeeded(&line);
        if fine { Ok(line) } else { Err(bad(request, &line)) }
    }

    fn barrier(&mut self, wait: Wait<'_>) -> Result<(), WireupError> {
        let asked = "cmd=barrier_in";
        let line = self.exchange(asked, "barrier", wait)?;
        check_release(asked, &line)
    }

    fn get_piece(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        let asked = format!("cmd=get kvsname={} key={}", self.store, stored_key(from, key));
        let answer = self.exchange(&asked, "get", self.answer())?;
        if answer.get("cmd") != Some("get_result") {
            return Err(bad(&asked, &answer));
        }
        if !succeeded(&answer) {
            return Err(WireupError::NoSuchKey { from, key: key.to_owned() });
        }
        let value = answer.get("value").ok_or_else(|| bad(&asked, &answer))?;
        Ok(value.to_owned())
    }
}

fn check_release(asked: &str, line: &PmiLine) -> Result<(), WireupError> {
    let fine = line.get("cmd") == Some(BARRIER_OUT) && succeeded(line);
    if fine { Ok(()) } else { Err(bad(asked, line)) }
}

/// The launcher has one set of keys for all processes.
fn stored_key(rank: u32, key: &str) -> String {
    format!("{rank}.{key}")
}

fn succeeded(line: &PmiLine) -> bool {
    line.get("rc").is_none_or(|rc| rc == "0")
}

/// A limit as the launcher states it, less C's final zero.
fn limit(
    asked: &str,
    maxes: &PmiLine,
    name: &str,
    believed: &std::ops::RangeInclusive<usize>,
) -> Result<usize, WireupError> {
    let stated: Option<usize> = maxes.get(name).and_then(|max| max.parse().ok());
    let stated = stated.filter(|stated| stated >= believed.start());
    stated.map(|stated| stated.min(*believed.end()) - 1).ok_or_else(|| bad(asked, maxes))
}

fn bad(asked: &str, answer: &PmiLine) -> WireupError {
    WireupError::BadAnswer { asked: shorten(asked), answer: shorten(answer.text()) }
}

/// Values are not shown: one is the job's secret.
fn shorten(text: &str) -> String {
    const VALUE: &str = "value=";
    let shown = text.find(VALUE).map_or(text, |at| &text[..at + VALUE.len()]);
    shown.chars().take(120).collect()
}

impl Wireup for Pmi1 {
    fn rank(&self) -> u32 {
        self.rank
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
        if !valid_word(key) || key.contains('=') {
            return Err(WireupError::BadText { what: shorten(key) });
        }
        if !valid_word(value) {
            return Err(WireupError::BadText { what: shorten(value) });
        }
        for (key, piece) in pieces::cut(key, value, self.value_bytes_max)? {
            let key = stored_key(self.rank, &key);
            if key.len() > self.key_bytes_max {
                let (what, len) = (format!("key {}", shorten(&key)), key.len());
                return Err(WireupError::TooLong { what, len, max: self.key_bytes_max });
            }
            let request = format!("cmd=put kvsname={} key={key} value={piece}", self.store);
            self.ask(&request, "put_result")?;
        }
        Ok(())
    }

    fn worlds_before(&self) -> u32 {
        self.membership.as_ref().map_or(0, Membership::worlds_before)
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.barrier(Wait::Gathering(self.limits.gathering, self.size))
    }

    fn fence_while(&mut self, go_on: &dyn Fn() -> bool) -> Result<(), WireupError> {
        self.barrier(Wait::While(go_on, ASK_EVERY))
    }

    /// The servers of PMI-1 answer a process that waits at a barrier as any other.
    fn fence_answering(
        &mut self,
        go_on: &dyn Fn() -> bool,
        questions: &Questions,
    ) -> Result<(), WireupError> {
        if self.at_barrier {
            let reason = "a fence was given up".to_owned();
            return Err(WireupError::LauncherGone { doing: "barrier_in", reason });
        }
        questions.forget_answers();
        self.at_barrier = true;
        let line = self.wait_answering(go_on, questions);
        // Given up, it is still asked for values; its end may come at any time.
        self.at_barrier = line == Err(WireupError::GivenUp);
        check_release("cmd=barrier_in", &line?)
    }

    fn answers_at_fences(&self) -> bool {
        true
    }

    fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
        if !valid_word(key) || key.contains('=') {
            return Err(WireupError::BadText { what: shorten(key) });
        }
        pieces::join(from, key, |piece| self.get_piece(from, piece))
    }

    fn leave_because(&mut self, culprit: u32) {
        let (doing, wait) = ("leave", Wait::Answer(self.limits.answer));
        if self.asks_why
            && let Ok(link) = self.link(doing)
            && let Err(error) = link.say(&format!("cmd=leave because={culprit}"), doing, wait)
        {
            tracing::debug!(%error, "the launcher could not be told why this process leaves");
        }
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        if self.link.is_none() {
            return Ok(());
        }
        self.ask("cmd=finalize", "finalize_ack")?;
        let stream = self.link.take().map(LineStream::into_stream);
        if let Some(membership) = self.membership.take() {
            // Kept open: the launcher may take this process again.
            membership.leave(stream);
        }
        Ok(())
    }

    fn abort(&mut self, code: i32) {
        // There is no answer: the launcher ends this process too.
        let (doing, wait) = ("abort", self.answer());
        let request = format!("cmd=abort exitcode={code}");
        let said = self.link(doing).and_then(|link| link.say(&request, doing, wait));
        if let Err(error) = said {
            tracing::warn!(%error, "the launcher could not be told to abort the job");
        }
    }
}
