//! The initiator's side: puts on their way, sequences of puts, retries. It decides; `flush.rs` sends.
//!
//! ```text
//! held ──signal──► queued ──sent──► asked ──accepted──► running ──ended──► over
//!                    ▲                │ │
//!                    │   refused, may │ └─granted──► streaming ──all sent──► asked
//!                    └──────pass──────┘
//! ```
//!
//! What a worker of the target runs may go into memory that both share, without a message: `rings.rs`, `direct_put.rs`
//! if nothing is in the way, and `far.rs` if the target is on another host. A put may be held back: `held.rs`. It may
//! have to end in time: `limit.rs`. How much there is room for: `room.rs`.

mod answers;
mod direct_put;
#[allow(unsafe_code, reason = "carries a ring by operations on memory of its own")]
pub(super) mod far;
mod held;
mod kept;
mod limit;
#[allow(unsafe_code, reason = "makes lanes of memory that a peer vouches for")]
pub(super) mod offers;
mod rings;
mod room;

use super::names::ByName;
use super::sequence::{PutSequence, SequenceKey, WINDOW_MAX};
use super::{Blamed, lost_error};
use crate::buffer::{Bytes, Payload};
use crate::error::{Refusal, XtqError};
use crate::packet::{ENTRIES, Flags, Packet};
use crate::put::{Order, Put, PutHandle, Retry};
use crate::signal::{Signal, SignalEnd};
use crate::wire::{Head, Verdict};
pub use answers::{ANSWER_MAX, PutAnswer};
pub use direct_put::DirectPut;
use gapless_bml::Rank;
use held::{Pauses, Resumed};
pub(super) use rings::SharedRings;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The first pause before a put that was refused is sent again, in nanoseconds; it doubles so many times.
#[doc(hidden)]
pub const PAUSE_NS: u64 = 10_000;
#[doc(hidden)]
pub const DOUBLINGS: u32 = 7;

/// Puts without a sequence to one peer that are sent, or may be, and not answered.
const OPEN_MAX: usize = 1024;
/// Verdicts to one peer that wait for room, at most. Of a peer that keeps to the windows there are no more.
pub(super) const VERDICTS_MAX: usize = OPEN_MAX + ENTRIES * WINDOW_MAX;

/// What is to be sent to one peer, in order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) items: VecDeque<QueuedMessage>,
    verdicts: usize,
    /// Bytes of answers.
    answer_bytes: usize,
}

impl Outbox {
    fn push(&mut self, item: QueuedMessage) {
        self.verdicts += usize::from(item.is_verdict());
        self.answer_bytes += item.answer_bytes();
        self.items.push_back(item);
    }

    /// The first item was sent.
    pub(super) fn pop(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        self.verdicts -= usize::from(item.is_verdict());
        self.answer_bytes -= item.answer_bytes();
    }
}

/// One message.
#[derive(Debug)]
pub(super) enum QueuedMessage {
    /// The packet of a put, with its number in its sequence.
    Put(u64, Option<u64>),
    /// The next piece of its body.
    Data(u64),
    /// The answer of a task, from this byte on.
    Answer(u64, Vec<u8>, usize),
    /// Anything else, with text.
    Say(Head, Vec<u8>),
}

impl QueuedMessage {
    /// The number of the put whose packet this is.
    #[cfg(test)]
    pub(super) fn put(&self) -> Option<u64> {
        if let QueuedMessage::Put(id, _) = self { Some(*id) } else { None }
    }

    fn is_verdict(&self) -> bool {
        matches!(self, QueuedMessage::Say(Head::Verdict { .. }, _))
    }

    fn answer_bytes(&self) -> usize {
        if let QueuedMessage::Answer(_, answer, _) = self { answer.len() } else { 0 }
    }
}

/// The puts without a sequence to one peer.
#[derive(Debug, Default)]
struct Open {
    /// How many are in the outbox, or sent and not answered.
    count: usize,
    /// Those that wait until there are fewer.
    waiting: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutStage {
    /// It waits for a signal, its turn, or the end of a pause.
    Waiting,
    /// Its packet is the outbox's.
    Listed,
    /// It was sent, whole or its packet alone.
    Asked,
    /// Its body is sent.
    Streaming { transfer: u64, offset: u64 },
    /// The target has it; the end is to come.
    Running,
    /// It lies in the ring of the target's worker.
    InRing,
}

/// Puts by name.
type Puts = HashMap<u64, Outgoing, ByName>;

/// One put.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) target: Rank,
    pub(super) packet: Packet,
    pub(super) arguments: Bytes,
    pub(super) payload: Payload,
    pub(super) stage: PutStage,
    /// Whether its body went with the packet.
    pub(super) whole: bool,
    sequence: Option<SequenceKey>,
    retry: Retry,
    attempts: u32,
    attempts_max: u32,
    acknowledged: bool,
    signal: Option<Signal>,
    handle: PutHandle,
    /// Why it was refused last.
    refusal: Option<Refusal>,
    limit: limit::Limit,
    /// The name by which it asks for an answer, and what has come of that.
    ask: Option<(u64, Vec<u8>)>,
}

impl Outgoing {
    /// It needs its body no more. Before anybody learns that it has ended, who then may have the payload to itself.
    pub(super) fn drop_body(&mut self) {
        (self.arguments, self.payload) = (Bytes::none(), Payload::none());
    }

    /// Takes what is needed of a put. `packet` is its packet.
    #[inline]
    fn of(put: &mut Order, packet: Packet, handle: PutHandle) -> Outgoing {
        let (arguments, payload) = put.take_body();
        Outgoing {
            target: put.target,
            packet,
            arguments,
            payload,
            stage: PutStage::Waiting,
            whole: false,
            sequence: (put.retry == Retry::InOrder).then_some((put.target.0, put.command.queue)),
            retry: put.retry,
            attempts: 0,
            attempts_max: put.attempts_max,
            acknowledged: put.command.flags.contains(Flags::ACKNOWLEDGE),
            signal: put.take_signal(),
            handle,
            refusal: None,
            limit: limit::Limit::new(put.limit),
            ask: put.ask.map(|name| (name, Vec::new())),
        }
    }

    /// Bytes of arguments and payload.
    pub(super) fn body_bytes(&self) -> usize {
        self.arguments.bytes().len() + self.payload.len()
    }
}

/// Puts a packet into an outbox.
fn list(
    puts: &mut Puts,
    outbox: &mut BTreeMap<u32, Outbox>,
    to: u32,
    (id, number): (u64, Option<u64>),
) {
    // One that is over does not go: `Put` of it is skipped.
    if let Some(put) = puts.get_mut(&id) {
        put.stage = PutStage::Listed;
    }
    outbox.entry(to).or_default().push(QueuedMessage::Put(id, number));
}

/// Who is to be told of the end of a signal's count, once no lock is held.
pub(super) type Effects = Vec<(Signal, Result<(), XtqError>)>;

/// All puts of this process.
#[derive(Debug, Default)]
pub(super) struct Initiator {
    pub(super) puts: Puts,
    next: u64,
    pub(super) outbox: BTreeMap<u32, Outbox>,
    open: HashMap<u32, Open>,
    sequences: HashMap<SequenceKey, PutSequence>,
    pub(super) rings: Arc<SharedRings>,
    /// Whether there has been one.
    has_rings: bool,
    /// Operations that carry rings on other hosts.
    flights: far::Flights,
    pauses: Pauses,
    held: Vec<(SignalEnd, u64)>,
    limits: limit::Limits,
    room: room::Room,
    pub(super) closed: bool,
    pub(super) effects: Effects,
    /// How puts have ended that asked.
    answers: Vec<PutAnswer>,
}

impl Initiator {
    /// Takes a put over. `packet` is its packet.
    pub(super) fn put(&mut self, mut put: Put, packet: Packet) -> PutHandle {
        let outgoing = Outgoing::of(&mut put.order, packet, PutHandle::default());
        let handle = outgoing.handle.clone();
        let id = self.name(outgoing);
        match &put.order.after {
            Some(signal) => self.hold_back(id, signal),
            None => self.queue(id),
        }
        put.lay_aside();
        handle
    }

    /// Gives a put a name, by which it is known from now on.
    fn name(&mut self, put: Outgoing) -> u64 {
        let id = self.next;
        self.next += 1;
        self.room.take(&put);
        self.puts.insert(id, put);
        id
    }

    /// Whether there is something to send, now or after a pause.
    pub(super) fn is_busy(&self) -> bool {
        self.are_rings_busy()
            || self.has_answers()
            || !self.outbox.is_empty()
            || !self.pauses.is_empty()
    }

    pub(super) fn say(&mut self, to: Rank, head: Head, text: Vec<u8>) {
        self.send(to, QueuedMessage::Say(head, text));
    }

    /// Queues a message.
    pub(super) fn send(&mut self, to: Rank, message: QueuedMessage) {
        self.outbox.entry(to.0).or_default().push(message);
    }

    /// Verdicts that wait for room to this peer.
    pub(super) fn verdicts(&self, to: Rank) -> usize {
        self.outbox.get(&to.0).map_or(0, |outbox| outbox.verdicts)
    }

    /// Bytes of answers that wait for room to this peer.
    pub(super) fn answer_bytes(&self, to: Rank) -> usize {
        self.outbox.get(&to.0).map_or(0, |outbox| outbox.answer_bytes)
    }

    /// Sends a put as soon as that is its turn.
    fn queue(&mut self, id: u64) {
        let Some(put) = self.puts.get_mut(&id) else { return };
        put.stage = PutStage::Waiting;
        self.limits.begin(id, &mut put.limit);
        match put.sequence {
            None => {
                let to = put.target.0;
                if self.puts.get(&id).is_none_or(|put| self.join_ring(id, put)) {
                    return;
                }
                self.open.entry(to).or_default().waiting.push_back(id);
                self.fill(to);
            }
            Some(key) => {
                self.sequences.entry(key).or_default().join(id);
                self.pump(key);
            }
        }
    }

    /// Sends as many puts without a sequence to this peer as may be on their way.
    fn fill(&mut self, to: u32) {
        let Some(open) = self.open.get_mut(&to) else { return };
        while open.count < OPEN_MAX {
            let Some(id) = open.waiting.pop_front() else { return };
            open.count += 1;
            list(&mut self.puts, &mut self.outbox, to, (id, None));
        }
    }

    /// Sends as many puts of a sequence as may be on their way.
    fn pump(&mut self, key: SequenceKey) {
        let Some(sequence) = self.sequences.get_mut(&key) else { return };
        while let Some((id, number)) = sequence.next_to_send() {
            list(&mut self.puts, &mut self.outbox, key.0, (id, Some(number)));
        }
    }

    fn remove(&mut self, id: u64) -> Option<Outgoing> {
        let put = self.puts.remove(&id)?;
        self.limits.forget(id, &put.limit);
        self.room.give_back(&put);
        Some(put)
    }

    /// A put is over.
    pub(super) fn end(&mut self, id: u64, result: Result<(), XtqError>) {
        let Some(mut put) = self.remove(id) else { return };
        // Whoever learns of the end may have the payload to itself.
        put.drop_body();
        let answer = |(name, answer)| (name, result.clone().map(|()| answer));
        self.answers.extend(put.ask.map(answer));
        put.handle.end(result.clone());
        self.effects.extend(put.signal.map(|signal| (signal, result)));
    }

    /// The target has answered. An error says what is wrong with that.
    pub(super) fn verdict(&mut self, from: Rank, id: u64, verdict: Verdict) -> Result<(), String> {
        let nonsense = || Err(format!("{verdict:?} to put {id}, which was not asked for"));
        let out_of_turn = verdict == Verdict::Refused(Refusal::OutOfTurn);
        let Some(put) = self.puts.get_mut(&id) else { return nonsense() };
        if put.target != from
            || put.stage != PutStage::Asked
            || (out_of_turn && put.sequence.is_none())
        {
            return nonsense();
        }
        match verdict {
            Verdict::Granted { .. } if put.whole => nonsense(),
            Verdict::Granted { transfer } => {
                put.stage = PutStage::Streaming { transfer, offset: 0 };
                self.outbox.entry(from.0).or_default().push(QueuedMessage::Data(id));
                Ok(())
            }
            Verdict::Accepted => {
                put.stage = PutStage::Running;
                self.room.give_back_body(put);
                put.drop_body();
                put.handle.accept(!put.acknowledged);
                let (sequence, acknowledged) = (put.sequence, put.acknowledged);
                if !acknowledged {
                    self.remove(id);
                }
                self.answered(from, sequence, id, None)
            }
            Verdict::Refused(refusal) => self.refused(id, refusal),
        }
    }

    fn refused(&mut self, id: u64, refusal: Refusal) -> Result<(), String> {
        let Some(put) = self.puts.get_mut(&id) else { return Ok(()) };
        let was_in_ring = put.stage == PutStage::InRing;
        put.stage = PutStage::Waiting;
        let (sequence, target) = (put.sequence, put.target);
        put.refusal = Some(refusal);
        if refusal != Refusal::OutOfTurn && refusal.may_pass() {
            put.handle.refused();
            put.attempts = put.attempts.saturating_add(1);
        }
        let goes_on = refusal.may_pass() && put.retry != Retry::Never && !self.closed;
        let tired = put.attempts >= put.attempts_max || put.limit.is_over();
        if goes_on && !tired {
            let wait_ns = PAUSE_NS << put.attempts.saturating_sub(1).min(DOUBLINGS);
            if sequence.is_none() {
                self.pauses.begin(Resumed::Put(id), wait_ns);
            }
            if was_in_ring {
                return Ok(());
            }
            return self.answered(target, sequence, id, Some(wait_ns));
        }
        self.end(id, Err(XtqError::Refused { target, refusal }));
        match sequence {
            // The target still expects its number, which goes to the next.
            Some(key) if refusal.may_pass() => {
                if let Some(sequence) = self.sequences.get_mut(&key) {
                    sequence.leave(id);
                }
                self.settle(key)
            }
            None if was_in_ring => Ok(()),
            _ => self.answered(target, sequence, id, None),
        }
    }

    /// A put has been answered: finally, or it is to be sent again after a pause.
    fn answered(
        &mut self,
        target: Rank,
        sequence: Option<SequenceKey>,
        id: u64,
        again_ns: Option<u64>,
    ) -> Result<(), String> {
        let Some(key) = sequence else {
            if let Some(open) = self.open.get_mut(&target.0) {
                open.count = open.count.saturating_sub(1);
            }
            self.fill(target.0);
            return Ok(());
        };
        let Some(sequence) = self.sequences.get_mut(&key) else { return Ok(()) };
        sequence.answer(id, again_ns)?;
        self.settle(key)
    }

    fn settle(&mut self, key: SequenceKey) -> Result<(), String> {
        let Some(sequence) = self.sequences.get_mut(&key) else { return Ok(()) };
        if let Some(wait_ns) = sequence.settle()? {
            self.pauses.begin(Resumed::Sequence(key), wait_ns);
        }
        self.pump(key);
        Ok(())
    }

    /// A task has ended at its target. An error says what is wrong with that.
    pub(super) fn ended(
        &mut self,
        from: Rank,
        id: u64,
        result: Result<(), String>,
    ) -> Result<(), String> {
        self.running(from, id)?;
        let failed = |reason| XtqError::Failed { target: from, reason };
        self.end(id, result.map_err(failed));
        Ok(())
    }

    /// The target of this open put, or that of all of them if it is one.
    pub(super) fn target_of(&self, put: Option<&PutHandle>) -> Option<u32> {
        let is_it = |open: &&Outgoing| put.is_none_or(|put| open.handle.is(put));
        let mut targets = self.puts.values().filter(is_it).map(|open| open.target.0);
        let first = targets.next()?;
        targets.all(|target| target == first).then_some(first)
    }

    /// A peer is gone: so are all puts to it.
    pub(super) fn lose(&mut self, rank: Rank, blamed: &Blamed) {
        self.outbox.remove(&rank.0);
        self.open.remove(&rank.0);
        let lost_error = lost_error(blamed);
        self.drop_rings(Some(rank), &lost_error);
        self.sequences.retain(|key, _| key.0 != rank.0);
        let puts = &self.puts;
        let is_lost = |id: &u64| puts.get(id).is_some_and(|put| put.target == rank);
        self.held.retain(|(_, id)| !is_lost(id));
        self.pauses.retain(|what| match what {
            Resumed::Put(id) => !is_lost(&id),
            Resumed::Sequence(key) => key.0 != rank.0,
        });
        let lost: Vec<u64> = puts.keys().copied().filter(is_lost).collect();
        lost.into_iter().for_each(|id| self.end(id, Err(lost_error.clone())));
    }

    /// The process has left: whatever is on its way ends.
    pub(super) fn abandon(&mut self) {
        self.outbox.clear();
        self.open.clear();
        self.drop_rings(None, &XtqError::Closed);
        self.sequences.clear();
        self.limits = limit::Limits::default();
        let left: Vec<u64> = self.puts.keys().copied().collect();
        left.into_iter().for_each(|id| self.end(id, Err(XtqError::Closed)));
    }

    /// The process leaves: what was refused is not sent again, what is held back never goes.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.rings.lock().closed = true;
        for (_, id) in std::mem::take(&mut self.held) {
            self.end(id, Err(XtqError::Closed));
        }
        for what in self.pauses.take() {
            match what {
                Resumed::Put(id) => self.end(id, Err(XtqError::Closed)),
                Resumed::Sequence(key) => {
                    let sequence = self.sequences.remove(&key);
                    for id in sequence.into_iter().flat_map(PutSequence::into_puts) {
                        self.end(id, Err(XtqError::Closed));
                    }
                }
            }
        }
    }
}
