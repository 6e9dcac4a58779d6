//! What is recorded, how it reads, and a place that keeps the last few.

use super::Listener;
use gapless_btl::{AmTag, Event, LinkError, PeerId, Token};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// It worked.
    Ok,
    /// It did not, and this is why.
    Refused(String),
}

impl CallOutcome {
    pub(super) fn of<T, E: fmt::Display>(result: &Result<T, E>) -> CallOutcome {
        match result {
            Ok(_) => CallOutcome::Ok,
            Err(error) => CallOutcome::Refused(error.to_string()),
        }
    }
}

impl fmt::Display for CallOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallOutcome::Ok => f.write_str("ok"),
            CallOutcome::Refused(why) => f.write_str(why),
        }
    }
}

/// One call or one event. Lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// [`Btl::introduce`](gapless_btl::Btl::introduce).
    Introduce {
        /// Its result.
        result: Result<PeerId, LinkError>,
    },
    /// [`Btl::connect`](gapless_btl::Btl::connect).
    Connect {
        /// Its result.
        result: Result<PeerId, LinkError>,
    },
    /// [`Btl::reserve`](gapless_btl::Btl::reserve).
    Reserve {
        /// For whom.
        to: PeerId,
        /// How much.
        len: usize,
        /// Whether there was room.
        outcome: CallOutcome,
    },
    /// [`Btl::send`](gapless_btl::Btl::send).
    Send {
        /// To whom.
        to: PeerId,
        /// How much.
        len: usize,
        /// What for.
        tag: AmTag,
        /// The caller's name for it.
        done: Token,
    },
    /// [`Btl::arm`](gapless_btl::Btl::arm).
    Arm,
    /// [`Btl::attach`](gapless_btl::Btl::attach).
    Attach {
        /// The device's name.
        device: String,
        /// Whether it worked.
        outcome: CallOutcome,
    },
    /// A call of an ability: `register`, `deregister` (always 0 bytes), `get`, `put`, `allocate`,
    /// `key`, `map`, `invalidate`, `revoke_access` or `make_private`. The outcome of `invalidate` and `revoke_access`
    /// is always [`CallOutcome::Ok`], whether a peer still has the memory or not.
    Ability {
        /// Which.
        call: &'static str,
        /// With whom, where it concerns one peer.
        peer: Option<PeerId>,
        /// How much.
        len: u64,
        /// Whether it worked.
        outcome: CallOutcome,
    },
    /// [`Event::Arrived`].
    Arrived {
        /// From whom.
        from: PeerId,
        /// How much.
        len: usize,
        /// What for.
        tag: AmTag,
    },
    /// [`Event::Sent`].
    Sent {
        /// The caller's name for it.
        token: Token,
        /// How it ended.
        outcome: CallOutcome,
    },
    /// [`Event::Completed`].
    Completed {
        /// The caller's name for it.
        token: Token,
        /// How it ended.
        outcome: CallOutcome,
    },
    /// [`Event::Lost`].
    Lost {
        /// Who.
        peer: PeerId,
        /// Why.
        error: LinkError,
    },
}

impl Record {
    pub(super) fn of(event: &Event) -> Record {
        match event {
            Event::Arrived { from, tag, fragment } => {
                Record::Arrived { from: *from, len: fragment.len(), tag: *tag }
            }
            Event::Sent { token, result } => {
                Record::Sent { token: *token, outcome: CallOutcome::of(result) }
            }
            Event::Completed(ended) => {
                Record::Completed { token: ended.token(), outcome: CallOutcome::of(ended.result()) }
            }
            Event::Lost { peer, error } => Record::Lost { peer: *peer, error: error.clone() },
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Introduce { result: Ok(peer) } => write!(f, "introduce -> {peer}"),
            Record::Introduce { result: Err(error) } => write!(f, "introduce -> {error}"),
            Record::Connect { result: Ok(peer) } => write!(f, "connect -> {peer}"),
            Record::Connect { result: Err(error) } => write!(f, "connect -> {error}"),
            Record::Reserve { to, len, outcome } => {
                write!(f, "reserve {len} bytes for {to} -> {outcome}")
            }
            Record::Send { to, len, tag, done } => {
                write!(f, "send {len} bytes to {to}, tag {}", tag.0)?;
                if *done == Token::NONE { Ok(()) } else { write!(f, ", token {}", done.0) }
            }
            Record::Arm => f.write_str("arm"),
            Record::Attach { device, outcome } => write!(f, "attach {device} -> {outcome}"),
            Record::Ability { call, peer, len, outcome } => {
                write!(f, "{call} {len} bytes")?;
                if let Some(peer) = peer {
                    write!(f, ", {peer}")?;
                }
                write!(f, " -> {outcome}")
            }
            Record::Arrived { from, len, tag } => {
                write!(f, "arrived {len} bytes from {from}, tag {}", tag.0)
            }
            Record::Sent { token, outcome } => write!(f, "sent token {} -> {outcome}", token.0),
            Record::Completed { token, outcome } => {
                write!(f, "completed token {} -> {outcome}", token.0)
            }
            Record::Lost { peer, error } => write!(f, "lost {peer}: {error}"),
        }
    }
}

/// Keeps the last records. Clones share them.
#[derive(Clone, Debug)]
pub struct Recorder {
    records: Arc<Mutex<VecDeque<Record>>>,
    capacity: usize,
}

impl Recorder {
    /// Room for `capacity` records (at least 1); older ones make place.
    #[must_use]
    pub fn new(capacity: usize) -> Recorder {
        Recorder { records: Arc::default(), capacity: capacity.max(1) }
    }

    /// A listener that fills it, for [`Trace::new`](super::Trace::new).
    #[must_use]
    pub fn listener(&self) -> Listener {
        let recorder = self.clone();
        Box::new(move |record| {
            let mut records = recorder.lock();
            if records.len() == recorder.capacity {
                records.pop_front();
            }
            records.push_back(record);
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records, oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.lock().iter().cloned().collect()
    }

    /// The records, one a line, oldest first.
    #[must_use]
    pub fn text(&self) -> String {
        self.lock().iter().map(|record| format!("{record}\n")).collect()
    }
}
