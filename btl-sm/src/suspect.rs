//! Descriptors that other processes have sent: of what, nobody knows.
//!
//! A descriptor reaches further than its sender: its close, and most questions to it, may wait for whoever
//! serves its file system (FUSE), and the close of a socket for whoever is at its other end (`SO_LINGER`). A
//! process that hands such a descriptor out would hold us up for as long as it likes. So
//!
//! - nothing is asked of it but what the kernel answers alone: the seals, which only shared memory has, and the
//!   cached type of the file;
//! - only shared memory and, where a device is to import it, character devices and anonymous files are taken;
//! - everything else is closed by a thread of its own. What is in a socket's queue would be closed with the
//!   socket, so that is emptied first ([`Socket`](crate::socket::Socket)).

use gapless_btl::LinkError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, StatxFlags};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors that may wait to be closed, before callers have to wait.
const CLOSING_MAX: usize = 64;

/// What is to be closed, and by whom.
struct Closer {
    queue: VecDeque<OwnedFd>,
    /// Whether a thread is at it, which may be held up.
    at_work: bool,
}

static CLOSER: Mutex<Closer> = Mutex::new(Closer { queue: VecDeque::new(), at_work: false });

fn closer() -> MutexGuard<'static, Closer> {
    CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether so many descriptors wait to be closed that no further ones should be asked for.
pub(crate) fn too_many() -> bool {
    closer().queue.len() >= CLOSING_MAX
}

/// Has a thread close it.
fn close_elsewhere(file: OwnedFd) {
    let mut closer = closer();
    closer.queue.push_back(file);
    if !closer.at_work {
        let thread = std::thread::Builder::new().name("gapless-close".to_owned());
        // Without a thread they stay open until there can be one.
        closer.at_work = thread.spawn(close_all).is_ok();
    }
}

fn close_all() {
    loop {
        let mut closer = closer();
        let Some(file) = closer.queue.pop_front() else {
            closer.at_work = false;
            return;
        };
        drop(closer);
        drop(file);
    }
}

/// A descriptor that somebody sent.
#[derive(Debug)]
pub(crate) struct Suspect {
    /// `None` once it was taken.
    file: Option<OwnedFd>,
}

impl Suspect {
    pub(crate) fn new(file: OwnedFd) -> Suspect {
        Suspect { file: Some(file) }
    }

    fn file(&self) -> &OwnedFd {
        self.file.as_ref().expect("it is there until it is taken")
    }

    /// It is what was hoped for.
    fn take(mut self) -> OwnedFd {
        self.file.take().expect("it is there until it is taken")
    }

    /// The shared memory that it is.
    ///
    /// # Errors
    /// It is anything else.
    pub(crate) fn memory(self) -> Result<OwnedFd, LinkError> {
        match is_memory(self.file()) {
            true => Ok(self.take()),
            false => {
                Err(LinkError::Corrupt { what: "a descriptor of no shared memory".to_owned() })
            }
        }
    }

    /// What a driver may be asked to import: no file system, and nobody at another end, answers for it.
    ///
    /// # Errors
    /// It is anything else.
    pub(crate) fn of_device(self) -> Result<OwnedFd, LinkError> {
        // What a file system knows already: it is not asked.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = || rustix::fs::statx(self.file(), c"", flags, StatxFlags::TYPE);
        let kind = |mode| FileType::from_raw_mode(u32::from(mode));
        let fit = is_memory(self.file())
            || found().is_ok_and(|found| match kind(found.stx_mode) {
                FileType::CharacterDevice => true,
                // Anonymous files have no type.
                FileType::Unknown => true,
                _ => false,
            });
        match fit {
            true => Ok(self.take()),
            false => Err(LinkError::Corrupt { what: "a descriptor of no device".to_owned() }),
        }
    }
}

/// Whether it is memory without a file system that others serve: nothing else has seals.
fn is_memory(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(file.as_fd()).is_ok()
}

impl Drop for Suspect {
    fn drop(&mut self) {
        match self.file.take() {
            Some(file) if is_memory(&file) => drop(file),
            Some(file) => close_elsewhere(file),
            None => {}
        }
    }
}
