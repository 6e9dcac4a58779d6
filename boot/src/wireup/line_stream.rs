//! Lines to and from a launcher, over any stream: inherited or connected.
//!
//! The stream is not trusted to end a line, or to answer at all: lines are bounded, and so is every wait. After a
//! wait without an answer nothing more is sent, because the next answer would belong to the question before.

use super::WireupError;
use super::limits::Wait;
use crate::pmi::PmiLine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::mem::ManuallyDrop;
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Longest line that is accepted, in bytes: PMI-1's own limits are far below.
const LINE_BYTES_MAX: usize = 16 << 10;

/// A stream of lines. It stays open until this process ends, unless [`into_stream`](LineStream::into_stream) is called:
/// hydra kills a process that hangs up without having finalized, at once, and so before an error could be reported.
#[derive(Debug)]
pub(super) struct LineStream {
    stream: ManuallyDrop<OwnedFd>,
    pending: Vec<u8>,
    /// What was in progress when the connection became useless.
    broken: Option<&'static str>,
}

impl LineStream {
    pub(super) fn new(stream: OwnedFd) -> LineStream {
        LineStream { stream: ManuallyDrop::new(stream), pending: Vec::new(), broken: None }
    }

    /// The stream, which was left in good order: dropping it hangs up.
    pub(super) fn into_stream(self) -> OwnedFd {
        ManuallyDrop::into_inner(self.stream)
    }

    /// Sends a line.
    ///
    /// # Errors
    /// The other end is gone, or does not read.
    pub(super) fn say(
        &mut self,
        line: &str,
        doing: &'static str,
        wait: Wait<'_>,
    ) -> Result<(), WireupError> {
        self.usable(doing)?;
        let result = self.write(format!("{line}\n").as_bytes(), doing, wait);
        self.note(doing, result)
    }

    /// Reads a line.
    ///
    /// # Errors
    /// The other end is gone or says nothing; a line without an end.
    pub(super) fn hear(
        &mut self,
        doing: &'static str,
        wait: Wait<'_>,
    ) -> Result<PmiLine, WireupError> {
        self.usable(doing)?;
        let result = self.read(doing, wait);
        self.note(doing, result)
    }

    /// Reads a line if one comes within about this time.
    ///
    /// # Errors
    /// The other end is gone; a line without an end.
    pub(super) fn hear_soon(
        &mut self,
        doing: &'static str,
        within: Duration,
    ) -> Result<Option<PmiLine>, WireupError> {
        self.usable(doing)?;
        match self.read(doing, Wait::Answer(within)) {
            Ok(line) => Ok(Some(line)),
            // What has come of it stays.
            Err(WireupError::Late { .. }) => Ok(None),
            Err(error) => self.note(doing, Err(error)),
        }
    }

    fn usable(&self, doing: &'static str) -> Result<(), WireupError> {
        let Some(before) = self.broken else { return Ok(()) };
        let reason = format!("the connection was given up at {before:?}");
        Err(WireupError::LauncherGone { doing, reason })
    }

    fn note<T>(
        &mut self,
        doing: &'static str,
        result: Result<T, WireupError>,
    ) -> Result<T, WireupError> {
        if result.is_err() {
            self.broken = Some(doing);
        }
        result
    }

    fn write(&self, bytes: &[u8], doing: &'static str, wait: Wait<'_>) -> Result<(), WireupError> {
        let started = Instant::now();
        let mut left = bytes;
        while !left.is_empty() {
            match send(&*self.stream, left, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(Errno::AGAIN) => self.ready(PollFlags::OUT, doing, started, wait)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(gone(doing, &error.to_string())),
            }
        }
        Ok(())
    }

    fn read(&mut self, doing: &'static str, wait: Wait<'_>) -> Result<PmiLine, WireupError> {
        let started = Instant::now();
        loop {
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(PmiLine::parse(&String::from_utf8_lossy(&line)));
            }
            if self.pending.len() >= LINE_BYTES_MAX {
                let start = String::from_utf8_lossy(&self.pending[..60]).into_owned();
                let (asked, answer) = (doing.to_owned(), format!("{start}…, which has no end"));
                return Err(WireupError::BadAnswer { asked, answer });
            }
            let mut bytes = [0; 4096];
            match recv(&*self.stream, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(gone(doing, "it closed the connection")),
                Ok((len, _)) => self.pending.extend_from_slice(&bytes[..len]),
                Err(Errno::AGAIN) => self.ready(PollFlags::IN, doing, started, wait)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(gone(doing, &error.to_string())),
            }
        }
    }

    /// Sleeps until the stream is ready, or until the next check whether to go on.
    fn ready(
        &self,
        flags: PollFlags,
        doing: &'static str,
        started: Instant,
        wait: Wait<'_>,
    ) -> Result<(), WireupError> {
        let slice = wait.slice(doing, started)?;
        // Rounded up, so that nothing spins at the end of a wait.
        let slice = Timespec::try_from(slice + Duration::from_millis(1)).ok();
        match poll(&mut [PollFd::new(&*self.stream, flags)], slice.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(gone(doing, &error.to_string())),
        }
    }
}

fn gone(doing: &'static str, reason: &str) -> WireupError {
    WireupError::LauncherGone { doing, reason: reason.to_owned() }
}

/// Whether this is the number of an open socket.
pub(super) fn is_socket(raw: RawFd) -> bool {
    socket(raw).is_some()
}

/// Which of the system's open sockets has this number; `None`: it is no socket's.
pub(super) fn socket(raw: RawFd) -> Option<u64> {
    let stat = stat(raw)?;
    (kind(&stat) == "a socket").then_some(stat.st_ino)
}

/// What the kernel knows of an open descriptor; `None` if the number is not open. `/proc`, which containers may not
/// have, is not needed.
fn stat(raw: RawFd) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` takes any number and refuses those that are not open; it writes nothing but a `stat`, for
    // which there is room at the pointer.
    let found = unsafe { libc::fstat(raw, stat.as_mut_ptr()) };
    if found != 0 {
        return None;
    }
    // SAFETY: `fstat` has succeeded, so it has written all of it.
    Some(unsafe { stat.assume_init() })
}

fn kind(stat: &libc::stat) -> &'static str {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFSOCK => "a socket",
        libc::S_IFIFO => "a pipe",
        libc::S_IFREG => "a file",
        libc::S_IFDIR => "a directory",
        libc::S_IFCHR => "a terminal or device",
        _ => "something else",
    }
}

/// Takes over the descriptor that a launcher named in `variable`, after a check that it is an open socket.
///
/// # Safety
/// Nobody in this process owns a descriptor of this number: it is called once for each.
///
/// # Errors
/// It is none.
pub(super) unsafe fn adopt(
    variable: &'static str,
    descriptor: u32,
) -> Result<OwnedFd, WireupError> {
    let wrong = |problem| WireupError::Environment { set: variable, variable, problem };
    let raw = RawFd::try_from(descriptor).ok().filter(|&raw| raw > 2);
    let raw = raw.ok_or_else(|| wrong(format!("{descriptor}, not a descriptor of a launcher")))?;
    match stat(raw).as_ref().map(kind) {
        Some("a socket") => {}
        Some(kind) => return Err(wrong(format!("{raw}, which is {kind}, not a socket"))),
        None => return Err(wrong(format!("{raw}, which is not open"))),
    }
    // SAFETY: `raw` is open (the kernel has just said so), and nobody owns it, as the caller says.
    let owned = unsafe { OwnedFd::from_raw_fd(raw) };
    // Not for our own children: they would hide our end from the launcher.
    let flags = rustix::io::FdFlags::CLOEXEC;
    rustix::io::fcntl_setfd(&owned, flags).map_err(|error| wrong(error.to_string()))?;
    Ok(owned)
}

/// Connects to `host:port`, of which `variable` tells; each address of the host is tried for `limit`
/// at most.
///
/// # Errors
/// There is no such place, or nobody listens there.
pub(super) fn connect(
    variable: &'static str,
    place: &str,
    limit: Duration,
) -> Result<OwnedFd, WireupError> {
    let wrong = |problem| WireupError::Environment { set: variable, variable, problem };
    let addresses = place
        .to_socket_addrs()
        .map_err(|error| wrong(format!("{place:?}, which is no host and port: {error}")))?;
    let mut reason = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => {
                // An answer a line: waiting to fill packets only costs time.
                let _ = stream.set_nodelay(true);
                return Ok(stream.into());
            }
            Err(error) => reason = format!("{address}: {error}"),
        }
    }
    Err(gone("connecting", &reason))
}
