//! How the ranks of a communicator come to share a segment, in its first collective; and the ranks of a
//! persistent collective a segment of its own, in its second start: its starts have no order among other collectives,
//! so it needs rounds of its own.
//!
//! ```text
//! rank 0                                             all others
//!   gather: can its sleepers do without fences?   <---
//!   allocate                                      ---> scatter: a key, or that there is no segment
//!                                                      map
//!   gather: has everybody mapped it?              <---
//!   write into the segment whether it is used     ---> bcast: look there
//! ```
//!
//! Where the ranks of a communicator are on several hosts, the ranks of each host do the same among themselves
//! afterwards, if all together have no segment ([`Opening::of_host`]).
//!
//! The last word is written into the segment and not sent, so that all ranks come to the same end even if rank 0 dies:
//! who has mapped the segment finds the word there or not, and who has not makes rank 0 write that it is not used.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use gapless_bml::{Bml, Rank, RemoteKey};
use gapless_engine::{Engine, Reducer, Typed};
use gapless_mem::{Lease, Words};
use gapless_pml::Pml;
use gapless_sync::mailboxes::Mailbox;
use gapless_sync::{Fences, membarrier};

use super::short_plan::{MAKER, RANKS_MAX};
use super::subgroup::Subgroup;
use super::{PrivateMemory, SegmentMemory, SharedSegment};
use crate::execute::call_buffers::{BufferBlocks, CallBuffers};
use crate::execute::memory::Memory;
use crate::execute::tickets::{Sequencer, Ticket, WAKE_TAG};
use crate::execute::{CollError, Executor};
use crate::{Algorithm, BuildError, Call, Locality, Method, Tree, build};

/// Bytes of a rank's key in the scatter: how long the key is, and the key.
const KEY_BYTES: usize = 1 + RemoteKey::MAX_BYTES;

/// How often the ranks exchange something.
const EXCHANGES: usize = 4;

/// The last word: the segment is used, or not, and how sleepers and others are kept in order.
const USED_SYMMETRIC: u64 = 1;
const USED_ASYMMETRIC: u64 = 2;
const UNUSED: u64 = 3;

/// The making of a communicator's segment.
#[derive(Debug)]
pub struct Opening {
    me: usize,
    ranks: usize,
    /// `None`: it has no segment.
    subgroup: Option<Subgroup>,
    /// The tag of messages that wake sleepers.
    wake_tag: i32,
    /// Of the exchanges, the next one last.
    tickets: Vec<Arc<Ticket>>,
    /// Whether this rank is for it.
    willing: bool,
    stage: OpeningStage,
    /// What is under way.
    exchange: Option<Exchange>,
    /// Whether all ranks are registered for asymmetric fences.
    asymmetric: bool,
    /// The segment's memory, and this rank's own beside it.
    shared: Option<(SegmentMemory, PrivateMemory)>,
    /// The opening that follows if this one makes no segment.
    next: Option<Box<Opening>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningStage {
    Asking,
    Giving,
    Answering,
    Telling,
    Verdict,
    Over,
}

/// A collective among the ranks, with memory of its own.
#[derive(Debug)]
struct Exchange {
    executor: Executor,
    send: Option<Memory>,
    recv: Option<Memory>,
}

impl Opening {
    /// For a communicator with this sequencer. All ranks call this at the same place among their collectives. If the
    /// communicator has two groups, or its ranks [compare their calls](Sequencer::checked), it has no segment.
    #[must_use]
    pub fn new(sequencer: &Sequencer) -> Opening {
        let subgroup = sequencer.plain().cloned().map(Subgroup::all);
        Opening::of((subgroup, WAKE_TAG), Opening::tickets(sequencer), true)
    }

    /// For the ranks of this rank's host, which ascend. All ranks of the communicator call this, each with the ranks of
    /// its host. What comes of it is for the host alone to know.
    #[must_use]
    pub fn of_host(sequencer: &Sequencer, ranks: &[usize]) -> Opening {
        let subgroup = sequencer.plain().and_then(|comm| Subgroup::of(comm.clone(), ranks));
        Opening::of((subgroup, WAKE_TAG), Opening::tickets(sequencer), true)
    }

    /// This opening, and `next` if no segment comes of it.
    #[must_use]
    pub fn or(mut self, next: Opening) -> Opening {
        self.next = Some(Box::new(next));
        self
    }

    fn tickets(sequencer: &Sequencer) -> Vec<Arc<Ticket>> {
        let mut tickets: Vec<_> = (0..EXCHANGES).map(|_| Arc::new(sequencer.next())).collect();
        tickets.reverse();
        tickets
    }

    /// For a persistent collective, with its tags: no start of it is under way until this has ended. All ranks call
    /// this at the same one of its starts, which is not the first. There is no segment if its ranks do not all know
    /// that their arguments fit together, or if its communicator has two groups.
    #[must_use]
    pub fn of_persistent(executor: &Executor) -> Opening {
        let ticket = &executor.plan.ticket;
        let tickets = (0..EXCHANGES).map(|_| Arc::clone(ticket)).collect();
        let subgroup = ticket.members().only_group().cloned().map(Subgroup::all);
        Opening::of((subgroup, ticket.wake_tag()), tickets, executor.is_agreed())
    }

    /// As [`of_host`](Opening::of_host), for a persistent collective.
    #[must_use]
    pub fn of_host_persistent(executor: &Executor, ranks: &[usize]) -> Opening {
        let ticket = &executor.plan.ticket;
        let tickets = (0..EXCHANGES).map(|_| Arc::clone(ticket)).collect();
        let comm = ticket.members().only_group();
        let subgroup = comm.and_then(|comm| Subgroup::of(comm.clone(), ranks));
        Opening::of((subgroup, ticket.wake_tag()), tickets, executor.is_agreed())
    }

    fn of(
        (subgroup, wake_tag): (Option<Subgroup>, i32),
        tickets: Vec<Arc<Ticket>>,
        willing: bool,
    ) -> Opening {
        let size = |subgroup: &Subgroup| (subgroup.local_rank(), subgroup.size());
        let (me, ranks) = subgroup.as_ref().map_or((0, 0), size);
        let fits = (2..=RANKS_MAX).contains(&ranks);
        Opening {
            me,
            ranks,
            subgroup,
            wake_tag,
            tickets,
            willing,
            stage: if fits { OpeningStage::Asking } else { OpeningStage::Over },
            exchange: None,
            asymmetric: false,
            shared: None,
            next: None,
        }
    }

    /// Goes on as far as it can without waiting. Gives the segment, or `None` if the ranks have none: then all have
    /// none. Ranks that are lost meanwhile are no error here.
    ///
    /// A rank that has no memory for the segment sees to it that there is none.
    ///
    /// # Errors
    /// [`CollError::Abandoned`].
    pub fn advance(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<Option<SharedSegment>, CollError>> {
        loop {
            let Poll::Ready(made) = self.advance_one(pml, engine, reducer) else {
                return Poll::Pending;
            };
            match (made, self.next.take()) {
                (Ok(None), Some(next)) => *self = *next,
                (made, _) => return Poll::Ready(made),
            }
        }
    }

    fn advance_one(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Poll<Result<Option<SharedSegment>, CollError>> {
        loop {
            if let Some(exchange) = &mut self.exchange {
                let Poll::Ready(result) = exchange.executor.advance(pml, engine, reducer) else {
                    return Poll::Pending;
                };
                let exchange = self.exchange.take();
                if let Err(error @ CollError::Abandoned) = result {
                    self.stage = OpeningStage::Over;
                    return Poll::Ready(Err(error));
                }
                let received = exchange.filter(|_| result.is_ok()).and_then(|it| it.recv);
                self.exchanged(pml, received);
            }
            let begun = match self.stage {
                OpeningStage::Asking => self.gather(u8::from(membarrier::register())),
                OpeningStage::Giving => self.give(pml),
                OpeningStage::Answering => {
                    self.gather(u8::from(self.willing && self.shared.is_some()))
                }
                OpeningStage::Telling => self.tell(),
                OpeningStage::Verdict => match self.verdict(pml) {
                    None => return Poll::Pending,
                    Some(segment) => {
                        self.stage = OpeningStage::Over;
                        return Poll::Ready(Ok(segment));
                    }
                },
                OpeningStage::Over => return Poll::Ready(Ok(None)),
            };
            match begun {
                Ok(exchange) => self.exchange = Some(exchange),
                Err(error) => {
                    self.stage = OpeningStage::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// An exchange has ended; `received` is nothing if it has failed.
    fn exchanged(&mut self, pml: &mut Pml, received: Option<Memory>) {
        let all_say_yes = |ranks: usize| {
            received.as_ref().is_some_and(|bytes| (0..ranks).all(|rank| bytes.byte(rank) == 1))
        };
        match self.stage {
            OpeningStage::Asking => {
                self.asymmetric = self.me == MAKER && all_say_yes(self.ranks);
                self.stage = OpeningStage::Giving;
            }
            OpeningStage::Giving => {
                if self.me != MAKER {
                    let key: Option<[u8; KEY_BYTES]> = received.as_ref().map(Memory::head);
                    self.shared = key.and_then(|key| self.map(pml, key));
                }
                self.stage = OpeningStage::Answering;
            }
            OpeningStage::Answering => {
                if self.me == MAKER
                    && let Some((shared, _)) = &self.shared
                {
                    let word = match (all_say_yes(self.ranks), self.asymmetric) {
                        (true, true) => USED_ASYMMETRIC,
                        (true, false) => USED_SYMMETRIC,
                        (false, _) => UNUSED,
                    };
                    shared.mailboxes().head().store(word, Ordering::Release);
                }
                self.stage = OpeningStage::Telling;
            }
            OpeningStage::Telling => self.stage = OpeningStage::Verdict,
            OpeningStage::Verdict | OpeningStage::Over => {}
        }
    }

    /// Begins to gather a byte of each rank.
    fn gather(&mut self, byte: u8) -> Result<Exchange, CollError> {
        let call = Call::Gather { root: MAKER, len: 1, in_place: false };
        self.begin(&call, Some(&[byte]), (self.me == MAKER).then_some(self.ranks))
    }

    /// Begins to tell all that the last word is there: ranks that sleep wake up.
    fn tell(&mut self) -> Result<Exchange, CollError> {
        self.begin(&Call::Bcast { root: MAKER, len: 1 }, None, Some(1))
    }

    /// Begins to give each rank its key.
    fn give(&mut self, pml: &mut Pml) -> Result<Exchange, CollError> {
        let keys = (self.me == MAKER).then(|| self.keys(pml));
        let call = Call::Scatter { root: MAKER, len: KEY_BYTES as u64, in_place: false };
        self.begin(&call, keys.as_deref(), Some(KEY_BYTES))
    }

    /// Allocates, and makes the keys of all ranks: keys of no bytes if one of the ranks cannot have one.
    fn keys(&mut self, pml: &mut Pml) -> Vec<u8> {
        let mut keys = vec![0; self.ranks * KEY_BYTES];
        let Some((shared, lease)) = self.allocate(pml.bml_mut()) else { return keys };
        for rank in (0..self.ranks).filter(|rank| *rank != MAKER) {
            let key = self.process(rank).and_then(|process| {
                let (peer, mapped) = pml.bml_mut().mapped(process)?;
                mapped.key(peer, &lease)
            });
            let Some(key) = key else {
                keys.fill(0);
                return keys;
            };
            let place = &mut keys[rank * KEY_BYTES..(rank + 1) * KEY_BYTES];
            let bytes = key.as_bytes();
            place[0] = u8::try_from(bytes.len()).unwrap_or(0);
            place[1..=bytes.len()].copy_from_slice(bytes);
        }
        self.shared = Some(shared);
        keys
    }

    fn process(&self, rank: usize) -> Option<Rank> {
        self.subgroup.as_ref()?.process(rank).map(Rank)
    }

    /// The segment's memory, and its lease.
    fn allocate(&self, bml: &mut Bml) -> Option<((SegmentMemory, PrivateMemory), Lease)> {
        let allocation = bml.allocate(SegmentMemory::bytes(self.ranks)?)?.ok()?;
        let lease = allocation.lease().clone();
        // SAFETY: the memory was just allocated, and is zeroed; its owner is in the lease. The allocation ends here, so
        // this process reaches the memory through what is made of it here alone, or through mappings of its keys, which
        // only ever become the same (`map`).
        let made = unsafe { self.make(&lease) };
        Some((made?, lease))
    }

    /// The segment's memory as words, and slots behind them.
    ///
    /// # Safety
    /// While a clone of the lease lives, its region describes initialised memory that is valid for reads and writes,
    /// that no reference of this process covers, and that this process reaches through what this makes of it only.
    unsafe fn make(&self, lease: &Lease) -> Option<(SegmentMemory, PrivateMemory)> {
        let words = SegmentMemory::first_slot(self.ranks)?;
        let slots = lease.sub(words, lease.region().len().checked_sub(words)?).ok()?;
        // SAFETY: the caller's promise; slots are other bytes than words.
        let words = unsafe { Words::new(lease.sub(0, words).ok()?) }.ok()?;
        Some((SegmentMemory::new(words, slots, self.ranks)?, PrivateMemory::new(self.ranks)?))
    }

    /// Maps the segment.
    fn map(&self, pml: &mut Pml, key: [u8; KEY_BYTES]) -> Option<(SegmentMemory, PrivateMemory)> {
        let [len, key @ ..] = &key;
        let key = RemoteKey::new(key.get(..usize::from(*len)).filter(|key| !key.is_empty())?)?;
        let (peer, mapped) = pml.bml_mut().mapped(self.process(MAKER)?)?;
        let mapping = mapped.map(peer, &key).ok()?;
        // SAFETY: a mapping is memory that is valid for reads and writes while its lease lives, and that no reference
        // of this process covers (`Mapping::new`); rank 0 allocated it for words and slots alone. Should it name memory
        // that it sends messages from as well, then engines find any bytes there, as whenever a peer writes to what it
        // has lent.
        unsafe { self.make(mapping.lease()) }
    }

    /// Begins an exchange of bytes; `room`: bytes that this rank receives. If there is no memory for them, this rank
    /// takes part without, and ranks that need something of it learn that: all exchanges take place, and the ranks
    /// agree on what comes of them.
    fn begin(
        &mut self,
        call: &Call<'_>,
        data: Option<&[u8]>,
        room: Option<usize>,
    ) -> Result<Exchange, CollError> {
        let Some(ticket) = self.tickets.pop() else { return Err(CollError::Abandoned) };
        let algorithm = Algorithm::new(Method::Tree(Tree::Flat));
        let schedule = build(self.me, &Locality::flat(self.ranks), call, &algorithm);
        let mut schedule = schedule.map_err(|error: BuildError| CollError::Call { error })?;
        if let Some(subgroup) = &self.subgroup {
            let rank = |local_rank: usize| subgroup.rank(local_rank) as usize;
            schedule = schedule.renumbered(rank, subgroup.comm().size() as usize);
        }
        let memory = self.memory(data).and_then(|send| {
            let recv = room.map(|bytes| self.room(bytes)).transpose()?;
            Ok((send, recv))
        });
        let (send, recv) = match memory {
            Ok(memory) => memory,
            Err(error) => {
                let executor = Executor::part_without(schedule, ticket, error);
                return Ok(Exchange { executor, send: None, recv: None });
            }
        };
        let blocks = |memory: &Option<Memory>| match memory {
            Some(memory) => BufferBlocks::Whole(Typed::contiguous(memory.region())),
            None => BufferBlocks::None,
        };
        let buffers = CallBuffers { send: blocks(&send), recv: blocks(&recv) };
        // SAFETY: both are memory of the exchange's own, which keeps it until the executor has ended, and leaks it if
        // the executor is dropped before.
        let executor = unsafe { Executor::part(schedule, buffers, ticket) }?;
        Ok(Exchange { executor, send, recv })
    }

    /// Memory with these bytes, if there are some.
    fn memory(&self, data: Option<&[u8]>) -> Result<Option<Memory>, CollError> {
        let Some(data) = data else { return Ok(None) };
        let mut memory = self.room(data.len())?;
        // SAFETY: it was just made, and nothing else knows of it.
        unsafe { memory.slice(0, data.len()) }.copy_from_slice(data);
        Ok(Some(memory))
    }

    fn room(&self, bytes: usize) -> Result<Memory, CollError> {
        let rank = self.subgroup.as_ref().map_or(u32::MAX, Subgroup::own);
        let bytes = bytes as u64;
        Memory::new(bytes).ok_or(CollError::NoMemory { rank, bytes })
    }

    /// Whether the segment is used, if that is decided.
    fn verdict(&mut self, pml: &mut Pml) -> Option<Option<SharedSegment>> {
        let Some((shared, _)) = &self.shared else { return Some(None) };
        let read = || shared.mailboxes().head().load(Ordering::Acquire);
        let mut word = read();
        if word == 0 {
            if self.subgroup.as_ref().is_some_and(|subgroup| subgroup.comm().is_revoked()) {
                return Some(None);
            }
            let maker = self.process(MAKER)?;
            let bml = pml.bml_mut();
            bml.reach(maker);
            bml.blame(maker)?;
            // It is lost, but may have written it before.
            word = read();
        }
        let fences = match word {
            USED_ASYMMETRIC => Fences::Asymmetric,
            USED_SYMMETRIC => Fences::Symmetric,
            _ => return Some(None),
        };
        let mailbox = Mailbox::new(self.me, self.ranks, fences);
        let made = self.shared.take().zip(self.subgroup.clone());
        Some(made.map(|(memory, subgroup)| {
            SharedSegment::new(memory, mailbox, (subgroup, self.wake_tag))
        }))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(Exchange { executor, send, recv }) = self.exchange.take() {
            // Peers may still use what is in flight.
            drop(executor);
            std::mem::forget((send, recv));
        }
    }
}
