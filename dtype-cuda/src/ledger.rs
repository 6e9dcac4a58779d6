//! How many thread blocks of kernels that wait, or that stay, are reserved on each GPU: one ledger a GPU, for all of a
//! user's processes on this machine.
//!
//! Kernels that wait for each other must all be resident at once: one that cannot start because others fill the GPU is
//! waited for in vain. So whoever launches such kernels reserves their blocks first. A [`Reservation`] belongs to a
//! communicator of a stream or to a worker, never to a call, and is given back when it is dropped.
//!
//! **What fits.** Kernels differ in how many of their blocks a GPU holds ([`Ask::room`]). All that are reserved fit if
//! together they are no more blocks than the GPU holds of the largest kind: as long as a block is missing, some
//! multiprocessor has fewer than it holds of these, so there is room for one more. That is the rule here.
//!
//! **Whose count.** Processes that use the GPU at the same time (the Multi-Process Service) share its room, whichever job
//! they belong to. Processes that take turns do not ([`Ask::together`]): each has the whole GPU in its turn.
//!
//! **Where it is.** In a folder of this user's below `/dev/shm` (or else the folder for temporary files), a process has a
//! file for each GPU, which it keeps locked. The system drops the lock when the process has ended, however it ends, and
//! with it what it has forked without `exec`. So reservations of a dead process are not counted; the next one that looks
//! removes the file. What cannot be written down is refused. Without such a folder each process counts alone
//! ([`ledger_folder`] says so).
//!
//! It sees neither other users' processes, nor those with another `/dev/shm` (containers), nor the application's own
//! kernels. If somebody empties `/dev/shm` (a user's last logout does, on some systems), what a process has reserved is
//! seen again when it next changes that.

mod book;
#[cfg(test)]
mod tests;

use book::Book;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// A GPU.
type Uuid = [u8; 16];

/// Which kernels blocks are reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Those of a communicator of a stream, which wait for those of other ranks.
    Stream,
    /// A worker, which waits for tasks.
    Worker,
}

impl Holder {
    const ALL: [Holder; 2] = [Holder::Stream, Holder::Worker];

    fn name(self) -> &'static str {
        match self {
            Holder::Stream => "stream",
            Holder::Worker => "worker",
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Blocks of a GPU that a process wants to reserve for kernels that stay there, or wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// For what.
    pub holder: Holder,
    /// Blocks.
    pub blocks: u32,
    /// How many of these blocks the GPU holds when nothing else runs there.
    pub room: u32,
    /// Whether kernels of other processes run there at the same time. If not, they are not counted.
    pub together: bool,
    /// How many of the blocks are for other processes, which [take them over](Reservation::take_over) at once, before
    /// this process [gives them back](Reservation::shrink): they are counted twice meanwhile, and whoever finds no room
    /// looks again for seconds.
    pub handed: u32,
}

/// Blocks of a GPU that are reserved, as they were asked for.
pub type Claim = Ask;

/// What a process has reserved on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its number, in its own namespace of processes.
    pub process: u32,
    /// What it has reserved.
    pub claims: Vec<Claim>,
}

/// Why blocks were not reserved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The GPU does not hold so many at once.
    #[error(
        "the GPU has room for {room} thread blocks that wait or stay, and {wanted} would be reserved there, {others} of \
         them by other processes (`gapless info` lists them)"
    )]
    NoRoom {
        /// Blocks that would be reserved, these included.
        wanted: u32,
        /// Blocks that it can hold, of the largest kind.
        room: u32,
        /// Those of other processes.
        others: u32,
    },
    /// The ledger cannot be read or written, so others would not see what is reserved.
    #[error("the GPU's ledger in {folder} cannot be read or written: {reason}")]
    Unwritable {
        /// Where the ledger is.
        folder: String,
        /// What the system said.
        reason: String,
    },
    /// Another process has kept the ledger for longer than any does that goes on.
    #[error("another process, which does not go on, keeps the GPU's ledger locked (in {folder})")]
    Busy {
        /// Where the ledger is.
        folder: String,
    },
}

/// This process's ledger.
fn book() -> &'static Arc<Book> {
    static BOOK: OnceLock<Arc<Book>> = OnceLock::new();
    BOOK.get_or_init(|| Arc::new(Book::of_this_user()))
}

/// Where the ledger is; `None`: there is no folder for it, and each process counts alone.
#[must_use]
pub fn ledger_folder() -> Option<&'static Path> {
    book().folder()
}

/// What is reserved on a GPU, by whom; this process comes first, if it has reserved something.
///
/// # Errors
/// The ledger cannot be read, or another process keeps it.
pub fn reserved(uuid: [u8; 16]) -> Result<Vec<Holding>, LedgerError> {
    book().census(uuid)
}

/// Blocks that this process has reserved on a GPU.
#[must_use]
pub fn reserved_here(uuid: [u8; 16]) -> u32 {
    book().own_blocks(uuid)
}

/// Blocks of kernels that wait or stay, reserved on a GPU until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    book: Arc<Book>,
    uuid: Uuid,
    id: u64,
    blocks: u32,
}

impl Reservation {
    /// Reserves blocks, if there is room. If there is none because of others, it looks again for a tenth of a second:
    /// what they hand over or give back may be counted for a moment longer.
    ///
    /// # Errors
    /// There is no room; the ledger cannot be written, or another process keeps it.
    pub fn new(uuid: [u8; 16], ask: Ask) -> Result<Reservation, LedgerError> {
        Reservation::among(Arc::clone(book()), uuid, ask)
    }

    /// Writes down blocks for which another process has reserved room, and which it gives back after this.
    ///
    /// # Errors
    /// The ledger cannot be written, or another process keeps it.
    pub fn take_over(uuid: [u8; 16], claim: Claim) -> Result<Reservation, LedgerError> {
        Reservation::handed(Arc::clone(book()), uuid, claim)
    }

    fn among(book: Arc<Book>, uuid: Uuid, ask: Ask) -> Result<Reservation, LedgerError> {
        let id = book.reserve(uuid, ask)?;
        Ok(Reservation { book, uuid, id, blocks: ask.blocks })
    }

    fn handed(book: Arc<Book>, uuid: Uuid, claim: Claim) -> Result<Reservation, LedgerError> {
        let id = book.write_down(uuid, claim)?;
        Ok(Reservation { book, uuid, id, blocks: claim.blocks })
    }

    /// Gives back what is more than this; nothing is handed over any more.
    pub fn shrink(&mut self, blocks: u32) {
        self.blocks = self.blocks.min(blocks);
        self.book.change(self.uuid, self.id, Some(self.blocks));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.book.change(self.uuid, self.id, None);
    }
}
