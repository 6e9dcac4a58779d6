//! The target's side, as the NIC does it (LeBeane et al. 2016, §III.B, Figure 4): the payload goes to a receive buffer,
//! the packet is rewritten and put into its queue, or the initiator learns why not.
//!
//! A body that comes in pieces has its receive buffer from the first word on; everything is looked up again when it is
//! whole. If the queue is full then, the buffer is free again.

use super::initiator::{ANSWER_MAX, Effects, QueuedMessage};
use super::queue::Queue;
use super::rings::Rings;
use super::run::{Code, Ready};
use super::{Inner, Xtq};
use crate::buffer::{Posted, Received};
use crate::error::{Refusal, TaskError, XtqError};
use crate::launcher::Kernel;
use crate::packet::{Command, ENTRIES, PACKET_BYTES, Packet, TaskWork};
use crate::rewrite::{self, Places};
use crate::signal::Signal;
use crate::tables::{QueueEntry, TaskEntry};
use crate::task::Function;
use crate::wire::{BODY_AT, HEAD_BYTES, Head, Verdict};
use gapless_bml::{Fragment, Rank};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

/// Bodies of one initiator on their way at a time, at most: a body without payload needs no receive buffer.
const TRANSFERS_MAX: usize = 64;
/// Refusals that are kept until somebody asks.
#[doc(hidden)]
pub const REFUSALS_MAX: usize = 256;

/// A task that was refused here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedTask {
    /// Who put it.
    pub initiator: Rank,
    /// The function or kernel that it named.
    pub index: u8,
    /// The queue that it named.
    pub queue: u8,
    /// Why it was refused.
    pub refusal: Refusal,
}

/// What is registered at an index, with its name in the table.
pub(super) type Registered<T> = [Option<(u64, Arc<T>)>; ENTRIES];

/// What a put has said, once.
struct Asked {
    from: Rank,
    put: u64,
    /// Its number in its sequence.
    number: Option<u64>,
    command: Command,
}

/// A body on its way.
struct Transfer {
    asked: Asked,
    arguments: Vec<u8>,
    payload: Received,
    /// For a worker: the payload lies in no receive buffer of this process.
    private: bool,
    /// Bytes that have come.
    got: usize,
}

/// The target's state.
pub(super) struct TargetState {
    pub(super) functions: Registered<Function>,
    pub(super) kernels: Registered<Kernel>,
    pub(super) queues: Registered<Queue>,
    /// Queues that were replaced or taken out; their tasks still run.
    pub(super) retired: Vec<Weak<Queue>>,
    pub(super) posted: Posted,
    /// Of this process's worker.
    pub(super) rings: Rings,
    transfers: HashMap<u64, Transfer>,
    next_transfer: u64,
    /// The next number of each sequence.
    expected: HashMap<(u32, u8), u64>,
    /// Refusals, if somebody wants to know.
    refusals: Option<VecDeque<RefusedTask>>,
    /// Refusals that were not kept.
    pub(super) forgotten_refusals: u64,
    /// Signals of kernels whose tasks are refused.
    pub(super) effects: Effects,
    /// Queues to be put into the list, whose next task may be quick.
    pub(super) quick: Vec<Arc<Queue>>,
}

impl Default for TargetState {
    fn default() -> TargetState {
        TargetState {
            functions: std::array::from_fn(|_| None),
            kernels: std::array::from_fn(|_| None),
            queues: std::array::from_fn(|_| None),
            retired: Vec::new(),
            posted: Posted::default(),
            rings: Rings::default(),
            transfers: HashMap::new(),
            next_transfer: 0,
            expected: HashMap::new(),
            refusals: None,
            forgotten_refusals: 0,
            effects: Effects::new(),
            quick: Vec::new(),
        }
    }
}

/// What a command stands for now.
struct ResolvedTask {
    entries: (TaskEntry, QueueEntry),
    code: Code,
    queue: Arc<Queue>,
}

fn known<T>(all: &Registered<T>, index: u8, name: u64) -> Option<Arc<T>> {
    let (registered, value) = all.get(usize::from(index))?.as_ref()?;
    (*registered == name).then(|| Arc::clone(value))
}

fn argument_bytes(command: &Command) -> usize {
    match command.work {
        TaskWork::Function { .. } => 0,
        TaskWork::Kernel(launch) => usize::from(launch.argument_bytes),
    }
}

fn fragment_error(error: &gapless_mem::DeviceError) -> String {
    format!("a message that cannot be read: {error}")
}

impl TargetState {
    /// Whether a body is on its way.
    #[cfg(test)]
    pub(super) fn awaits_data(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// All queues that have tasks, or may get some.
    pub(super) fn all_queues(&self) -> Vec<Arc<Queue>> {
        let registered = self.queues.iter().flatten().map(|(_, queue)| Arc::clone(queue));
        registered.chain(self.retired.iter().filter_map(Weak::upgrade)).collect()
    }

    /// The queue at this index is about to be replaced, or taken out.
    pub(super) fn retire_queue(&mut self, index: u8) {
        self.retired.retain(|queue| queue.strong_count() > 0);
        let queue = self.queues.get(usize::from(index)).and_then(Option::as_ref);
        self.retired.extend(queue.map(|(_, queue)| Arc::downgrade(queue)));
    }

    pub(super) fn watch_refusals(&mut self, yes: bool) {
        self.refusals = yes.then(VecDeque::new);
        self.forgotten_refusals = 0;
    }

    pub(super) fn take_refusals(&mut self) -> Vec<RefusedTask> {
        self.refusals.as_mut().map(std::mem::take).unwrap_or_default().into()
    }

    fn find(&self, inner: &Inner, command: &Command) -> Result<ResolvedTask, Refusal> {
        let entries = rewrite::look_up(command, &inner.tables)
            .map_err(|error| Refusal::of(&error).unwrap_or(Refusal::NotRegistered))?;
        let (index, name) = (command.index, entries.0.object);
        // Tables and these change under one lock, so what a table names is there.
        let code = match command.work {
            TaskWork::Function { .. } => known(&self.functions, index, name).map(Code::Function),
            TaskWork::Kernel(_) => known(&self.kernels, index, name).map(Code::Kernel),
        };
        let code = code.ok_or(Refusal::NotRegistered)?;
        let queue = known(&self.queues, command.queue, entries.1.base).ok_or(Refusal::NoQueue)?;
        if let (Code::Kernel(kernel), TaskWork::Kernel(launch)) = (&code, command.work) {
            kernel.limits.allow(&launch)?;
        }
        if queue.is_full() {
            return Err(Refusal::QueueFull);
        }
        if !inner.pool.start(inner.config.threads) {
            return Err(Refusal::NoWorkers);
        }
        Ok(ResolvedTask { entries, code, queue })
    }

    /// A put has come; `is_behind`: too much waits to be sent to its initiator. Gives what is to be said to it. An
    /// error says how its initiator breaks the rules.
    pub(super) fn put(
        &mut self,
        xtq: &Xtq,
        (from, put, number): (Rank, u64, Option<u64>),
        is_behind: bool,
        fragment: &Fragment,
    ) -> Result<Verdict, String> {
        let mut bytes = [0; PACKET_BYTES];
        fragment.read(HEAD_BYTES, &mut bytes).map_err(|error| fragment_error(&error))?;
        let packet = Packet::read(&bytes).map_err(|error| error.to_string())?;
        let command = packet.sent().map_err(|error| error.to_string())?;
        let arguments = argument_bytes(&command);
        let payload = usize::try_from(command.payload_bytes).map_err(|e| e.to_string())?;
        let body = arguments.checked_add(payload).ok_or("a body longer than memory")?;
        let rest = fragment.len() - BODY_AT;
        if rest != 0 && rest != body {
            return Err(format!("a put with {rest} bytes of a body of {body}"));
        }
        let asked = Asked { from, put, number, command };
        if !self.is_in_turn(&asked) {
            return Ok(self.refuse(xtq.me(), &asked, Refusal::OutOfTurn));
        }
        let found = match self.find(&xtq.inner, &command) {
            Ok(found) if !is_behind => found,
            found => {
                let refusal = found.err().unwrap_or(Refusal::QueueFull);
                return Ok(self.refuse(xtq.me(), &asked, refusal));
            }
        };
        let private = found.code.is_of_worker();
        if private && number.is_none() && xtq.inner.config.rings {
            self.rings.ask(from);
        }
        let claimed = if private { self.rings.claim(payload) } else { self.posted.claim(payload) };
        let payload = match claimed {
            Ok(payload) => payload,
            Err(refusal) => return Ok(self.refuse(xtq.me(), &asked, refusal)),
        };
        let arguments = vec![0; arguments];
        let mut transfer = Transfer { asked, arguments, payload, private, got: 0 };
        if rest == body {
            let filled = transfer.fill(fragment, BODY_AT);
            if filled.is_err() {
                self.give_back(transfer);
                return filled.map(|()| Verdict::Accepted);
            }
            return self.enqueue(xtq, transfer, found).map(|()| Verdict::Accepted);
        }
        let bodies = self.transfers.values().filter(|one| one.asked.from == from).count();
        if bodies >= TRANSFERS_MAX {
            let asked = self.give_back(transfer);
            return Ok(self.refuse(xtq.me(), &asked, Refusal::QueueFull));
        }
        let name = self.next_transfer;
        self.next_transfer += 1;
        self.transfers.insert(name, transfer);
        Ok(Verdict::Granted { transfer: name })
    }

    /// A piece of a body has come. When it is whole, gives the put and what is to be said to it.
    pub(super) fn data(
        &mut self,
        xtq: &Xtq,
        (from, name, offset): (Rank, u64, u64),
        fragment: &Fragment,
    ) -> Result<Option<(u64, Verdict)>, String> {
        let stray = || format!("data for transfer {name} at {offset}, which is not awaited");
        let transfer = self.transfers.get_mut(&name).ok_or_else(stray)?;
        let len = fragment.len() - HEAD_BYTES;
        let left = transfer.body_bytes() - transfer.got;
        if transfer.asked.from != from || offset != transfer.got as u64 || len == 0 || len > left {
            return Err(stray());
        }
        transfer.fill(fragment, HEAD_BYTES)?;
        if transfer.got < transfer.body_bytes() {
            return Ok(None);
        }
        let Some(transfer) = self.transfers.remove(&name) else { return Ok(None) };
        let put = transfer.asked.put;
        // What was registered, and what the queue held, may have changed meanwhile; and who breaks the rules may have
        // put another of this number.
        let turn = if self.is_in_turn(&transfer.asked) { Ok(()) } else { Err(Refusal::OutOfTurn) };
        match turn.and_then(|()| self.find(&xtq.inner, &transfer.asked.command)) {
            Ok(found) => {
                self.enqueue(xtq, transfer, found)?;
                Ok(Some((put, Verdict::Accepted)))
            }
            Err(refusal) => {
                let asked = self.give_back(transfer);
                Ok(Some((put, self.refuse(xtq.me(), &asked, refusal))))
            }
        }
    }

    /// A receive buffer is free again.
    fn give_back(&mut self, transfer: Transfer) -> Asked {
        self.take_back(transfer.payload, transfer.private);
        transfer.asked
    }

    /// The same, of a payload; or it was `private`.
    pub(super) fn take_back(&mut self, payload: Received, private: bool) {
        match private {
            true => self.rings.give_back(payload.len),
            false => self.posted.post(payload.memory),
        }
    }

    /// Those whose puts may go into their rings from now on.
    pub(super) fn let_go(&mut self) -> Vec<Rank> {
        let transfers = &self.transfers;
        self.rings.let_go(|rank| {
            let comes = |one: &Transfer| one.asked.from == rank && one.asked.number.is_none();
            transfers.values().any(|one| one.private && comes(one))
        })
    }

    /// The task goes into its queue.
    fn enqueue(
        &mut self,
        xtq: &Xtq,
        transfer: Transfer,
        found: ResolvedTask,
    ) -> Result<(), String> {
        let Transfer { asked, mut arguments, payload, private, .. } = transfer;
        let places = Places {
            arguments: arguments.as_ptr().addr() as u64,
            payload: payload.memory.as_ptr().addr() as u64,
        };
        let rewritten = rewrite::apply(&asked.command, found.entries, places)
            .map_err(|error| error.to_string())?;
        for (place, word) in arguments.chunks_exact_mut(8).zip(rewritten.first) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let command = rewritten.packet.command().map_err(|error| error.to_string())?;
        // This back end finds code and signal by other ways; those that trust the packet rely on these.
        let entry = found.entries.0;
        let signal = if entry.signal == 0 { asked.command.signal } else { entry.signal };
        debug_assert_eq!((command.object, command.signal), (entry.object, signal));
        self.count(&asked);
        let Asked { from, put, .. } = asked;
        let xtq_of_task = xtq.clone();
        xtq.inner.begin_task();
        let counts = found.code.is_of_worker() && asked.number.is_none();
        if counts {
            self.rings.begin(from);
        }
        let is_quick = matches!(&found.code, Code::Function(function) if function.quick.is_some());
        let listed = found.queue.push(Ready {
            xtq: xtq_of_task,
            command,
            code: found.code,
            arguments,
            payload,
            answer: Vec::new(),
            from,
            put,
            private,
            counts,
        });
        if listed && is_quick {
            // Whoever holds the lock looks at it next.
            self.quick.push(found.queue);
        } else {
            xtq.inner.pool.list(&found.queue, listed);
        }
        Ok(())
    }

    fn is_in_turn(&self, asked: &Asked) -> bool {
        let sequence = (asked.from.0, asked.command.queue);
        let expected = self.expected.get(&sequence).copied().unwrap_or(0);
        asked.number.is_none_or(|number| number == expected)
    }

    /// Its number is used up.
    fn count(&mut self, asked: &Asked) {
        if asked.number.is_some() {
            let expected = self.expected.entry((asked.from.0, asked.command.queue)).or_default();
            *expected = expected.wrapping_add(1);
        }
    }

    /// The signal that tasks of the command's kernel count down.
    fn signal(&self, command: &Command) -> Option<Signal> {
        let TaskWork::Kernel(_) = command.work else { return None };
        let (_, kernel) = self.kernels.get(usize::from(command.index))?.as_ref()?;
        kernel.signal.clone()
    }

    /// Of a task for `me`, this process.
    fn refuse(&mut self, me: Rank, asked: &Asked, refusal: Refusal) -> Verdict {
        let Command { index, queue, .. } = asked.command;
        if !refusal.may_pass() {
            self.count(asked);
            let refused = XtqError::Refused { target: me, refusal };
            self.effects.extend(self.signal(&asked.command).map(|signal| (signal, Err(refused))));
        }
        if refusal != Refusal::OutOfTurn {
            self.note(RefusedTask { initiator: asked.from, index, queue, refusal });
        }
        Verdict::Refused(refusal)
    }

    /// Somebody may want to know of this.
    pub(super) fn note(&mut self, task: RefusedTask) {
        let Some(refusals) = &mut self.refusals else { return };
        if refusals.len() == REFUSALS_MAX {
            refusals.pop_front();
            self.forgotten_refusals += 1;
        }
        refusals.push_back(task);
    }

    /// A peer is gone: nothing more of its bodies comes. What it has put into queues runs.
    pub(super) fn lose(&mut self, rank: Rank) {
        self.expected.retain(|(from, _), _| *from != rank.0);
        self.rings.lose(rank);
        let lost = self.transfers.extract_if(|_, transfer| transfer.asked.from == rank);
        let lost: Vec<_> = lost.map(|(_, transfer)| transfer).collect();
        lost.into_iter().for_each(|transfer| _ = self.give_back(transfer));
    }

    /// What is to be said of an end.
    pub(super) fn end(task: &mut Ready, result: &Result<(), TaskError>) -> QueuedMessage {
        let answer = std::mem::take(&mut task.answer);
        let (put, bytes) = (task.put, answer.len());
        let long = || format!("its answer has {bytes} bytes, and may have {ANSWER_MAX}");
        let reason = match result {
            Ok(()) if bytes > ANSWER_MAX => long(),
            Ok(()) => return QueuedMessage::Answer(put, answer, 0),
            Err(TaskError(reason)) => super::cut(reason),
        };
        QueuedMessage::Say(Head::Ended { put, failed: true }, reason.into_bytes())
    }
}

impl Transfer {
    fn body_bytes(&self) -> usize {
        self.arguments.len() + self.payload.len
    }

    /// Takes the next bytes of the body out of a message, from `at` on; there are no more than are left.
    fn fill(&mut self, fragment: &Fragment, at: usize) -> Result<(), String> {
        let read = |at: usize, into: &mut [u8]| {
            fragment.read(at, into).map_err(|error| fragment_error(&error))
        };
        let len = fragment.len() - at;
        let arguments = self.arguments.len();
        let first = len.min(arguments.saturating_sub(self.got));
        if first > 0 {
            read(at, &mut self.arguments[self.got..self.got + first])?;
        }
        if first < len {
            let from = (self.got + first).saturating_sub(arguments);
            read(at + first, &mut self.payload.memory[from..from + len - first])?;
        }
        self.got += len;
        Ok(())
    }
}
