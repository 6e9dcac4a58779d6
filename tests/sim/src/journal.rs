//! What every rank asked for and what it was told, in the order of a counter that numbers everything
//! in the world: all that the oracle looks at.

use crate::plan::Mode;
use crate::shapes::Shape;
use gapless_pml::{PmlError, RequestOutcome};
use std::rc::Rc;

/// How and when an operation ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) tick: u64,
    pub(crate) outcome: RequestOutcome,
}

impl End {
    /// Why it failed, if it did.
    pub(crate) fn error(&self) -> Option<&PmlError> {
        self.outcome.as_ref().err().map(|failure| &failure.error)
    }
}

/// A send that was started. Ranks are processes of the job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    /// The number of its action, which its bytes follow from.
    pub(crate) number: u32,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) comm: usize,
    pub(crate) tag: i32,
    pub(crate) bytes: u64,
    pub(crate) mode: Mode,
    pub(crate) tick: u64,
    /// Whether it is a persistent request's, and not its first.
    pub(crate) again: bool,
    /// Whether it was cancelled after it had ended.
    pub(crate) cancelled_ended: bool,
    pub(crate) ended: Option<End>,
}

/// A receive that was started, or a matched probe that took a message.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) number: u32,
    pub(crate) rank: u32,
    pub(crate) comm: usize,
    pub(crate) source: Option<u32>,
    pub(crate) tag: Option<i32>,
    pub(crate) shape: Rc<Shape>,
    /// When it was posted.
    pub(crate) tick: u64,
    /// What a matched probe said of the message: source, tag and bytes.
    pub(crate) claimed: Option<(u32, i32, u64)>,
    pub(crate) dropped: bool,
    /// Whether it is a persistent request's, and not its first.
    pub(crate) again: bool,
    /// When it was taken back.
    pub(crate) cancelled: Option<u64>,
    /// Its buffer, among those of its rank.
    pub(crate) memory: usize,
    pub(crate) ended: Option<End>,
    /// What the buffer was when it ended.
    pub(crate) digest: u64,
}

/// What a probe saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) rank: u32,
    pub(crate) comm: usize,
    pub(crate) tag: Option<i32>,
    pub(crate) tick: u64,
    pub(crate) status: (u32, i32, u64),
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) sent: Vec<Sent>,
    /// In the order of posting.
    pub(crate) taken: Vec<Taken>,
    pub(crate) seen: Vec<Seen>,
    /// Ranks and communicators that could not be made there.
    pub(crate) unmade: Vec<(u32, usize)>,
}

/// Why a world failed, and whom to watch.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What promise was broken.
    pub what: String,
    /// The ranks that it concerns; empty for all.
    pub ranks: Vec<u32>,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, ranks: &[u32]) -> Failure {
        Failure { what: what.into(), ranks: ranks.to_vec() }
    }

    /// A panic that said this.
    pub(crate) fn of_panic(said: &str) -> Failure {
        Failure::new(format!("panic: {said}"), &[])
    }

    pub(crate) fn is_panic(&self) -> bool {
        self.what.starts_with("panic")
    }
}

/// A cheap digest of a buffer.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
