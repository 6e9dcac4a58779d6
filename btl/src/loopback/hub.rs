//! What the ends of a hub share: a numbered list of ends, each with an inbox for other ends' notes, and the memory
//! that others may reach.

use super::devices::Exports;
use super::direct::Reach;
use crate::memory::HeapMemory;
use crate::{Access, Address, AmTag, Fragment, LinkError};
use gapless_mem::{Lasting, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Locks that only guard data which is consistent between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins [`Loopback`](super::Loopback) endpoints of one process. Clones are the same hub.
#[derive(Clone)]
pub struct Hub {
    number: u64,
    ends: Arc<Mutex<Vec<Arc<HubEnd>>>>,
}

/// Address: magic, process, hub, end; big-endian.
const ADDRESS_MAGIC: [u8; 4] = *b"lo1\0";
const ADDRESS_BYTES: usize = 4 + 4 + 8 + 4;

impl Hub {
    /// A hub with no ends.
    #[must_use]
    pub fn new() -> Hub {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Hub { number: NEXT.fetch_add(1, Ordering::Relaxed), ends: Arc::default() }
    }

    /// How many regions its ends have registered, and their bytes.
    #[must_use]
    pub fn registered(&self) -> (usize, u64) {
        let ends = lock(&self.ends).clone();
        ends.iter().fold((0, 0), |(count, bytes), end| {
            let shared = lock(&end.shared);
            let all = shared.registered.values().map(|(reach, _)| reach.region.len());
            (count + shared.registered.len(), bytes + all.sum::<u64>())
        })
    }

    /// How much of the memory lives that its ends were told of ([`Rdma::remember`](crate::Rdma::remember)): how many
    /// pieces, each end's counted. They do nothing else with it.
    #[must_use]
    pub fn remembered(&self) -> usize {
        let ends = lock(&self.ends).clone();
        let lives = |end: &Arc<HubEnd>| {
            let shared = lock(&end.shared);
            shared.remembered.iter().filter(|memory| memory.strong_count() > 0).count()
        };
        ends.iter().map(lives).sum()
    }

    pub(super) fn join(&self) -> Arc<HubEnd> {
        let mut ends = lock(&self.ends);
        let number = u32::try_from(ends.len()).expect("fewer than 2³² ends");
        let end = Arc::new(HubEnd {
            number,
            inbox: Mutex::default(),
            stirred: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            shared: Mutex::default(),
        });
        ends.push(Arc::clone(&end));
        end
    }

    pub(super) fn address_of(&self, end: &HubEnd) -> Address {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[..4].copy_from_slice(&ADDRESS_MAGIC);
        bytes[4..8].copy_from_slice(&std::process::id().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..].copy_from_slice(&end.number.to_be_bytes());
        Address::new(&bytes).expect("the address is short")
    }

    pub(super) fn find(&self, address: &Address) -> Result<Arc<HubEnd>, LinkError> {
        let bad = |what: &str| LinkError::BadAddress { what: what.to_owned() };
        let bytes: &[u8; ADDRESS_BYTES] =
            address.as_bytes().try_into().map_err(|_| bad("its length"))?;
        let (magic, rest) = bytes.split_at(4);
        let (process, rest) = rest.split_at(4);
        let (hub, end) = rest.split_at(8);
        if magic != ADDRESS_MAGIC {
            return Err(bad("its first bytes"));
        }
        if process != std::process::id().to_be_bytes() || hub != self.number.to_be_bytes() {
            return Err(LinkError::Unreachable {
                reason: "a loopback endpoint of another hub".to_owned(),
            });
        }
        let end = u32::from_be_bytes(end.try_into().map_err(|_| bad("its length"))?);
        let ends = lock(&self.ends);
        ends.get(end as usize).cloned().ok_or_else(|| bad("an endpoint that never was"))
    }

    /// Tells every other end that `end` is gone.
    pub(super) fn announce_death(&self, end: &HubEnd) {
        let ends = lock(&self.ends).clone();
        for other in ends.iter().filter(|other| other.number != end.number) {
            other.give(Note::Gone { from: end.number });
        }
    }
}

impl Default for Hub {
    fn default() -> Hub {
        Hub::new()
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub {}", self.number)
    }
}

/// Something that one end tells another.
pub(super) enum Note {
    /// A message.
    Message { from: u32, tag: AmTag, fragment: Fragment },
    /// No more will come from there.
    Gone { from: u32 },
}

impl Note {
    pub(super) fn from(&self) -> u32 {
        match self {
            Note::Message { from, .. } | Note::Gone { from } => *from,
        }
    }
}

#[derive(Default)]
struct Inbox {
    notes: Vec<Note>,
    closed: bool,
    armed: bool,
    wake: Option<UnixStream>,
}

impl Inbox {
    fn ring(&mut self) {
        if std::mem::take(&mut self.armed)
            && let Some(wake) = &mut self.wake
        {
            // A full one has been written.
            let _ = wake.write(&[1]);
        }
    }
}

/// What a mapping of an allocation holds.
pub(super) struct Granted {
    pub(super) _memory: Arc<HeapMemory>,
}

/// Memory of an end that others may reach.
#[derive(Default)]
pub(super) struct SharedMemory {
    /// The number of the next registration or allocation; never used twice.
    pub(super) next: u64,
    /// Registered regions.
    pub(super) registered: BTreeMap<u64, (Reach, Access)>,
    /// Memory that it was told of.
    pub(super) remembered: Vec<Weak<Lasting>>,
    /// Allocations by address, with their numbers; dead ones are swept at the next allocation.
    pub(super) allocated: BTreeMap<u64, (u64, Weak<HeapMemory>)>,
    /// What others have mapped: who, the whole allocation, and what the mapping keeps alive.
    pub(super) granted: Vec<(u32, Region, Weak<Granted>)>,
    /// Peers and allocations that must not be mapped any more.
    pub(super) revoked: BTreeSet<(u32, u64)>,
    /// Buffers of devices.
    pub(super) exported: Exports,
}

/// One end, as the others see it.
pub(super) struct HubEnd {
    number: u32,
    inbox: Mutex<Inbox>,
    /// Whether the inbox has notes: checked before the lock is taken.
    stirred: AtomicBool,
    gone: AtomicBool,
    pub(super) shared: Mutex<SharedMemory>,
}

impl HubEnd {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Puts a note into the inbox; false if the end is gone.
    pub(super) fn give(&self, note: Note) -> bool {
        let mut inbox = lock(&self.inbox);
        if inbox.closed {
            drop(inbox); // the note's fragment goes home without the lock
            return false;
        }
        inbox.notes.push(note);
        self.stirred.store(true, Ordering::Release);
        inbox.ring();
        true
    }

    /// Exchanges the inbox's notes for `empty`; false if there are none.
    pub(super) fn take_notes(&self, empty: &mut Vec<Note>) -> bool {
        if !self.stirred.load(Ordering::Acquire) {
            return false;
        }
        let mut inbox = lock(&self.inbox);
        self.stirred.store(false, Ordering::Release);
        inbox.armed = false;
        std::mem::swap(&mut inbox.notes, empty);
        true
    }

    /// Gives the end a wake-up socket.
    pub(super) fn hang(&self, wake: UnixStream) {
        lock(&self.inbox).wake = Some(wake);
    }

    /// From now on the next note writes to it; at once if something waits already.
    pub(super) fn arm(&self, waiting: bool) {
        let mut inbox = lock(&self.inbox);
        inbox.armed = true;
        if waiting || !inbox.notes.is_empty() {
            inbox.ring();
        }
    }

    /// No more notes, no more memory for others.
    pub(super) fn close(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.closed = true;
        self.gone.store(true, Ordering::Release);
        let notes = std::mem::take(&mut inbox.notes);
        drop(inbox);
        drop(notes);
        let mut shared = lock(&self.shared);
        shared.registered.clear();
        shared.exported = Exports::default();
    }
}
