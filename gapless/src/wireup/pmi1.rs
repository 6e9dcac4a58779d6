//! The client side of PMI-1 over an inherited descriptor: a line of `key=value` words for each
//! request, a line for each answer. Spoken by our launcher and by MPICH's and Intel's hydra.

use super::{Wireup, WireupError};
use crate::pmi::{Line, valid_word};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

pub(super) const FD: &str = "PMI_FD";
const RANK: &str = "PMI_RANK";
const SIZE: &str = "PMI_SIZE";
const LOCAL_SIZE: &str = "MPI_LOCALNRANKS";

/// Longest answer that is accepted, in bytes: PMI-1's own limits are far below.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// A job whose launcher speaks PMI-1.
#[derive(Debug)]
pub struct Pmi1 {
    socket: BufReader<UnixStream>,
    rank: u32,
    size: u32,
    local_size: Option<u32>,
    job: String,
    value_bytes_max: usize,
    finalized: bool,
}

fn number(variable: &'static str) -> Result<u32, WireupError> {
    let wrong = |problem| WireupError::Environment { set: FD, variable, problem };
    let text = std::env::var(variable).map_err(|_| wrong("missing".to_owned()))?;
    text.parse().map_err(|_| wrong(format!("{text:?}, not a number")))
}

impl Pmi1 {
    /// Talks to the launcher that this process's environment names. To be called once: the
    /// descriptor becomes this value's.
    ///
    /// # Errors
    /// Variables that are missing or make no sense; a launcher that does not answer.
    pub fn from_environment() -> Result<Pmi1, WireupError> {
        let descriptor = number(FD)?;
        let (rank, size) = (number(RANK)?, number(SIZE)?);
        let local_size = number(LOCAL_SIZE).ok();
        if rank >= size {
            let problem = format!("{rank}, but {SIZE} is {size}");
            return Err(WireupError::Environment { set: FD, variable: RANK, problem });
        }
        let socket = adopt(descriptor)?;
        Pmi1::start(socket, rank, size, local_size)
    }

    /// Talks to a launcher over a connected socket.
    ///
    /// # Errors
    /// The launcher does not answer as PMI-1 says.
    pub fn start(
        socket: UnixStream,
        rank: u32,
        size: u32,
        local_size: Option<u32>,
    ) -> Result<Pmi1, WireupError> {
        let socket = BufReader::new(socket);
        let (job, value_bytes_max) = (String::new(), 1024);
        let mut pmi =
            Pmi1 { socket, rank, size, local_size, job, value_bytes_max, finalized: false };
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = pmi.ask("cmd=get_maxes", "maxes")?;
        if let Some(max) = maxes.get("vallen_max").and_then(|max| max.parse().ok()) {
            pmi.value_bytes_max = max;
        }
        let asked = "cmd=get_my_kvsname";
        let answer = pmi.ask(asked, "my_kvsname")?;
        pmi.job = answer.get("kvsname").ok_or_else(|| bad(asked, &answer))?.to_owned();
        Ok(pmi)
    }

    /// Sends a request and reads its answer, which must be `expected` and report success.
    fn ask(&mut self, request: &str, expected: &'static str) -> Result<Line, WireupError> {
        let gone = |reason: String| WireupError::LauncherGone { doing: expected, reason };
        let mut stream = self.socket.get_ref();
        stream
            .write_all(format!("{request}\n").as_bytes())
            .map_err(|error| gone(error.to_string()))?;
        let mut text = String::new();
        let read = (&mut self.socket)
            .take(LINE_BYTES_MAX)
            .read_line(&mut text)
            .map_err(|error| gone(error.to_string()))?;
        if read == 0 {
            return Err(gone("it closed the connection".to_owned()));
        }
        let line = Line::parse(&text);
        let fine = line.get("cmd").is_some_and(|cmd| cmd == expected)
            && line.get("rc").is_none_or(|rc| rc == "0");
        if fine { Ok(line) } else { Err(bad(request, &line)) }
    }
}

fn bad(asked: &str, answer: &Line) -> WireupError {
    let shorten = |text: &str| text.chars().take(120).collect();
    WireupError::BadAnswer { asked: shorten(asked), answer: shorten(answer.text()) }
}

/// Takes over the launcher's descriptor, once it is known to be an open socket.
fn adopt(descriptor: u32) -> Result<UnixStream, WireupError> {
    let wrong = |problem: String| WireupError::Environment { set: FD, variable: FD, problem };
    let raw = RawFd::try_from(descriptor).ok().filter(|&raw| raw > 2);
    let raw = raw.ok_or_else(|| wrong(format!("{descriptor}, not a descriptor of a launcher")))?;
    let kind = std::fs::read_link(format!("/proc/self/fd/{raw}"))
        .map_err(|_| wrong(format!("{raw}, which is not open")))?;
    if !kind.to_string_lossy().starts_with("socket:") {
        return Err(wrong(format!("{raw}, which is no socket but {}", kind.display())));
    }
    // SAFETY: `raw` is open (looked up just now) and was handed to this process by its launcher for
    // this one use; `from_environment` documents that it is taken over once.
    let owned = unsafe { OwnedFd::from_raw_fd(raw) };
    // Not for our own children: they would keep the launcher from noticing our end.
    let flags = rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(&owned, flags).map_err(|error| wrong(error.to_string()))?;
    Ok(UnixStream::from(owned))
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
        for what in [key, value] {
            if !valid_word(what) {
                return Err(WireupError::BadText { what: what.to_owned() });
            }
        }
        if value.len() > self.value_bytes_max {
            let (len, max) = (value.len(), self.value_bytes_max);
            return Err(WireupError::TooLong { key: key.to_owned(), len, max });
        }
        let request = format!("cmd=put kvsname={} key={key} value={value}", self.job);
        self.ask(&request, "put_result").map(drop)
    }

    fn fence(&mut self) -> Result<(), WireupError> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    fn get(&mut self, key: &str) -> Result<String, WireupError> {
        if !valid_word(key) {
            return Err(WireupError::BadText { what: key.to_owned() });
        }
        let request = format!("cmd=get kvsname={} key={key}", self.job);
        let answer = match self.ask(&request, "get_result") {
            // The launcher answered, but has no such key.
            Err(WireupError::BadAnswer { answer, .. }) if answer.contains("cmd=get_result") => {
                return Err(WireupError::NoSuchKey { key: key.to_owned() });
            }
            other => other?,
        };
        let value = answer.get("value").ok_or_else(|| bad(&request, &answer))?;
        Ok(value.to_owned())
    }

    fn finalize(&mut self) -> Result<(), WireupError> {
        if !self.finalized {
            self.finalized = true;
            self.ask("cmd=finalize", "finalize_ack")?;
        }
        Ok(())
    }
}
