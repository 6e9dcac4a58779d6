//! The NIC: it reads messages of its node and sends them, finds the receives of those that arrive, and gives tasks to
//! the GPU (§III).
//!
//! The tables and the rewrite are those of all back ends. The NIC holds entries of the tables in a cache of its own;
//! registering writes them there, too. An entry that was displaced is read from memory (§III.C.1).

use std::collections::VecDeque;

use crate::cpu::CpuJob;
use crate::event::Event;
use crate::gpu::{ARGUMENTS, MEMORY, PAYLOADS, QUEUE, SIGNALS, SUM, launch};
use crate::machine::Machine;
use crate::program::{MemoryRange, SimWork};
use crate::run::{COMMAND, INDICES, Sim};
use crate::time::Ps;
use crate::trace::Phase;
use gapless_xtq::Refusal;
use gapless_xtq::packet::{Command, Flags, Packet, PacketError, TaskWork as Task};
use gapless_xtq::rewrite::{Places, RewriteError, Rewritten, rewrite};
use gapless_xtq::tables::{NoSuchIndex, QueueEntry, Tables, TaskEntry};

/// A message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Length of its payload.
    pub(crate) bytes: u64,
    pub(crate) kind: NicCommand,
    /// The initiator's step that it is of; without a meaning if it is no step's.
    step: usize,
    content: Vec<u32>,
    /// Packets that have not arrived.
    open: u64,
    /// The receive that it belongs to.
    matched: Option<usize>,
}

impl Message {
    fn new(from: usize, to: usize, bytes: u64, kind: NicCommand) -> Message {
        Message { from, to, bytes, kind, step: 0, content: Vec::new(), open: 0, matched: None }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NicCommand {
    /// Two-sided.
    Send { slot: u32 },
    /// With a task.
    Put { packet: Packet, arguments: [u64; 4] },
    /// Of the NIC's own interface.
    Notify { slot: u32 },
    /// Says that the queue was full.
    Refusal { of: usize },
    /// With a task that a process has put.
    Task { put: usize },
    /// Says whether its target has taken it.
    Verdict { put: usize, refused: Option<Refusal> },
    /// Says that it has ended.
    Answer { put: usize },
}

impl NicCommand {
    /// Whether it has a packet and arguments.
    fn has_command(self) -> bool {
        matches!(self, NicCommand::Put { .. } | NicCommand::Task { .. })
    }

    /// Whether a step of a program has ended when it is sent.
    fn is_of_step(self) -> bool {
        matches!(self, NicCommand::Send { .. } | NicCommand::Put { .. } | NicCommand::Notify { .. })
    }
}

/// The NIC of a node.
#[derive(Debug)]
pub(crate) struct Nic {
    tables: Tables,
    cache: Cache,
    /// When it can take the next message, and the next packet.
    sends: Ps,
    receives: Ps,
    /// How many payloads have come.
    landings: u64,
}

/// The entries that the NIC holds; those that were used last.
#[derive(Debug)]
struct Cache {
    lines: VecDeque<(NicTable, u8)>,
    most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NicTable {
    Kernels,
    Queues,
}

impl Cache {
    /// Whether it is there; afterwards it is.
    fn holds(&mut self, table: NicTable, index: u8) -> bool {
        let found = self.lines.iter().position(|line| *line == (table, index));
        if let Some(at) = found {
            self.lines.remove(at);
        }
        self.lines.push_back((table, index));
        if self.lines.len() > self.most {
            self.lines.pop_front();
        }
        found.is_some()
    }
}

impl Nic {
    pub(crate) fn new(memory: u64, machine: &Machine) -> Nic {
        let mut cache = Cache { lines: VecDeque::new(), most: machine.table_cache };
        let tables = Tables::new();
        let registered = register(&tables, memory, machine.queue);
        debug_assert_eq!(registered, Ok(()));
        for index in 0..INDICES {
            cache.holds(NicTable::Kernels, index);
        }
        cache.holds(NicTable::Queues, 0);
        Nic { tables, cache, sends: Ps::ZERO, receives: Ps::ZERO, landings: 0 }
    }

    /// The task that a packet becomes here.
    pub(crate) fn task(&self, packet: &Packet, places: Places) -> Result<Rewritten, RewriteError> {
        rewrite(packet, &self.tables, places)
    }

    /// A NIC where nothing is registered yet.
    pub(crate) fn bare(machine: &Machine) -> Nic {
        let cache = Cache { lines: VecDeque::new(), most: machine.table_cache };
        Nic { tables: Tables::new(), cache, sends: Ps::ZERO, receives: Ps::ZERO, landings: 0 }
    }

    /// What is registered.
    pub(crate) fn registered(&self) -> &Tables {
        &self.tables
    }

    /// Its tables. Whoever registers in them writes the entry to the NIC, too.
    pub(crate) fn tables(&mut self, table: NicTable, index: u8) -> &Tables {
        self.cache.holds(table, index);
        &self.tables
    }

    /// The same NIC with other tables.
    #[cfg(test)]
    pub(crate) fn with_tables(tables: Tables) -> Nic {
        Nic { tables, ..Nic::new(0, &Machine::PAPER) }
    }
}

/// The kernel that adds, under every index with a signal of its own, and one queue.
fn register(tables: &Tables, memory: u64, queue: usize) -> Result<(), NoSuchIndex> {
    for index in 0..INDICES {
        let entry = TaskEntry {
            object: SUM,
            buffer: MEMORY,
            buffer_bytes: memory,
            signal: SIGNALS + 8 * u64::from(index),
            payload_max: u32::MAX,
            argument_bytes: 32,
        };
        tables.set_kernel(index, Some(entry))?;
    }
    tables.set_queue(
        0,
        Some(QueueEntry { base: QUEUE, capacity: u32::try_from(queue).unwrap_or(u32::MAX) }),
    )
}

/// The packet of a put, and its kernel's arguments: the first two are the target's.
fn command(task: u32, bytes: u64, at: u64) -> (Result<Packet, PacketError>, [u64; 4]) {
    let command = Command {
        index: u8::try_from(task % u32::from(INDICES)).unwrap_or_default(),
        queue: 0,
        flags: Flags::BARRIER,
        object: 0,
        signal: 0,
        payload_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        work: Task::Kernel(launch(bytes)),
    };
    (Packet::new(&command), [0, 0, at, bytes])
}

impl Sim<'_> {
    /// A packet, or a note that there is none.
    pub(crate) fn sound(&mut self, packet: Result<Packet, PacketError>) -> Option<Packet> {
        packet.map_err(|error| self.broken.push(error.to_string())).ok()
    }

    /// The CPU has described a message.
    pub(crate) fn post(&mut self, node: usize, step: usize) {
        let (to, kind, from) = match self.work(node, step) {
            SimWork::Send { to, slot, from } => (to, NicCommand::Send { slot }, from),
            SimWork::Notify { to, slot } => (to, NicCommand::Notify { slot }, MemoryRange::NOTHING),
            SimWork::Put { to, task, from, at } => {
                let (packet, arguments) = command(task, from.len, at);
                let Some(packet) = self.sound(packet) else { return };
                (to, NicCommand::Put { packet, arguments }, from)
            }
            _ => return,
        };
        self.phase(Phase::Post);
        let content = self.nodes[node].memory[self.grains(from)].to_vec();
        let message = Message { step, content, ..Message::new(node, to, from.len, kind) };
        self.messages.push(message);
        self.ring(self.messages.len() - 1);
    }

    /// A message of a process, and not of a step.
    pub(crate) fn post_kind(&mut self, (from, to): (usize, usize), bytes: u64, kind: NicCommand) {
        self.phase(Phase::Post);
        self.messages.push(Message::new(from, to, bytes, kind));
        self.ring(self.messages.len() - 1);
    }

    /// A message that the NIC sends of itself.
    pub(crate) fn answer(&mut self, (from, to): (usize, usize), kind: NicCommand) {
        self.messages.push(Message::new(from, to, 0, kind));
        let gap = self.machine().nic_gap;
        self.after(gap, Event::Gathered { message: self.messages.len() - 1 });
    }

    /// Bytes of a command, if there is one, and the packet that the target's NIC looks at.
    fn command_of(&self, kind: NicCommand) -> (u64, Option<Packet>) {
        match kind {
            NicCommand::Put { packet, .. } => (COMMAND, Some(packet)),
            NicCommand::Task { put } => self.task_command(put),
            _ => (0, None),
        }
    }

    /// Rings the NIC's doorbell.
    pub(crate) fn ring(&mut self, message: usize) {
        let crossing = self.machine().crossing;
        self.after(crossing, Event::Doorbell { message });
    }

    /// The NIC reads the description of a message, then its first bytes: command and payload lie apart (§III.A).
    pub(crate) fn send(&mut self, message: usize) {
        let machine = *self.machine();
        let Message { from, bytes, kind, .. } = self.messages[message];
        let begins = self.nodes[from].nic.sends.max(self.now);
        self.nodes[from].nic.sends = begins + machine.nic_gap;
        let parts = u64::from(bytes > 0) + u64::from(kind.has_command());
        let gather = match parts {
            0 => Ps::ZERO,
            parts => machine.crossing + machine.nic_gap * (parts - 1),
        };
        self.agenda.plan(begins + machine.crossing + gather, Event::Gathered { message });
    }

    /// The NIC sends.
    pub(crate) fn gathered(&mut self, message: usize) {
        self.phase(Phase::InitiatorNic);
        let Message { from, bytes, kind, .. } = self.messages[message];
        let (command, _) = self.command_of(kind);
        let (packets, ends) = self.transmit(message, from, bytes + command);
        self.messages[message].open = packets;
        self.agenda.plan(ends, Event::Released { message });
    }

    /// Nothing of a message is needed any more at its initiator, unless a task is refused.
    pub(crate) fn released(&mut self, message: usize) {
        let Message { from, step, kind, .. } = self.messages[message];
        if kind.is_of_step() && !self.has_ended(from, step) {
            self.ended(from, step);
        }
    }

    /// A packet is at its target's NIC.
    pub(crate) fn arrived(&mut self, packet: usize) {
        let machine = *self.machine();
        let flight = self.received(packet);
        let Message { to, kind, .. } = self.messages[flight.message];
        let mut handling = if flight.first { machine.matching } else { machine.lookup };
        let mut write = machine.crossing;
        if let (true, Some(packet)) = (flight.first, self.command_of(kind).1) {
            let nic = &mut self.nodes[to].nic;
            let command = packet.command();
            let (index, queue) = command.map_or((0, 0), |command| (command.index, command.queue));
            for held in [
                nic.cache.holds(NicTable::Kernels, index),
                nic.cache.holds(NicTable::Queues, queue),
            ] {
                handling += if held { machine.lookup } else { machine.lookup + machine.crossing };
            }
        }
        let nic = &mut self.nodes[to].nic;
        nic.receives = nic.receives.max(self.now) + handling;
        if kind.has_command() {
            // The payload, and the packet with its arguments.
            write += machine.nic_gap;
        }
        let written = nic.receives + write;
        let message = &mut self.messages[flight.message];
        message.open -= 1;
        if message.open == 0 {
            self.phase(Phase::Network);
            self.agenda.plan(written, Event::Landed { message: flight.message });
        }
    }

    /// All of a message is in its target's memory.
    pub(crate) fn landed(&mut self, message: usize) {
        self.network.traffic.landed += 1;
        let Message { from, to, kind, .. } = self.messages[message];
        let crossing = self.machine().crossing;
        match kind {
            NicCommand::Put { packet, arguments } => {
                return self.enqueue(message, &packet, arguments);
            }
            NicCommand::Task { put } => return self.take_in(put),
            NicCommand::Send { slot } => {
                self.phase(Phase::TargetNic);
                if let Some(step) = self.nodes[to].posted.remove(&(from, slot)) {
                    self.messages[message].matched = Some(step);
                    self.store(to, step, message);
                }
            }
            NicCommand::Notify { .. }
            | NicCommand::Refusal { .. }
            | NicCommand::Verdict { .. }
            | NicCommand::Answer { .. } => {}
        }
        // An event behind it.
        self.after(crossing, Event::Noted { message });
    }

    /// Puts the payload of a message where its receive says.
    pub(crate) fn store(&mut self, node: usize, step: usize, message: usize) {
        let SimWork::Receive { into, .. } = self.work(node, step) else { return };
        let content = std::mem::take(&mut self.messages[message].content);
        let grains = self.grains(into);
        if grains.len() == content.len() {
            self.nodes[node].memory[grains].copy_from_slice(&content);
        } else {
            self.broken
                .push(format!("node {node}, step {step}: a message of {} elements", content.len()));
        }
    }

    /// The CPU can know of a message.
    pub(crate) fn noted(&mut self, message: usize) {
        let Message { from, to, kind, matched, .. } = self.messages[message];
        match kind {
            NicCommand::Send { slot } => {
                match (matched, self.nodes[to].posted.remove(&(from, slot))) {
                    (Some(step), _) => self.job(to, step, CpuJob::Receive { step }),
                    // It was posted when the payload had already gone elsewhere.
                    (None, Some(step)) => self.job(to, step, CpuJob::Late { step, message }),
                    (None, None) => drop(self.nodes[to].early.insert((from, slot), message)),
                }
            }
            NicCommand::Notify { slot } => match self.nodes[to].awaited.remove(&(from, slot)) {
                Some(step) => self.job(to, step, CpuJob::Notice { step }),
                None => drop(self.nodes[to].notices.insert((from, slot), message)),
            },
            NicCommand::Refusal { of } => {
                let step = self.messages[of].step;
                self.job(to, step, CpuJob::Again { message: of });
            }
            NicCommand::Verdict { .. } | NicCommand::Answer { .. } => {
                self.give(to, 0, CpuJob::Hear { message })
            }
            NicCommand::Put { .. } | NicCommand::Task { .. } => {}
        }
    }

    /// The task of a put goes into its queue, rewritten; a full queue refuses it (§III.B).
    fn enqueue(&mut self, message: usize, packet: &Packet, arguments: [u64; 4]) {
        let Message { from, to, .. } = self.messages[message];
        let number = self.nodes[to].nic.landings;
        // A cache line each for arguments; a receive buffer is never longer than 4 GiB.
        let places =
            Places { arguments: ARGUMENTS + 64 * number, payload: PAYLOADS + (number << 32) };
        let task = match self.nodes[to].nic.task(packet, places) {
            Ok(task) => task,
            Err(error) => return self.broken.push(format!("node {to}: {error}")),
        };
        if self.nodes[to].gpu.waiting(task.queue.base) >= task.queue.capacity as usize {
            self.refused += 1;
            return self.answer((to, from), NicCommand::Refusal { of: message });
        }
        self.phase(Phase::TargetNic);
        let content = std::mem::take(&mut self.messages[message].content);
        let node = &mut self.nodes[to];
        node.nic.landings += 1;
        node.landed.insert(places.payload, content);
        let [first, second] = task.first;
        node.arguments.insert(places.arguments, [first, second, arguments[2], arguments[3]]);
        node.gpu.push(task.queue.base, task.packet);
        let crossing = self.machine().crossing;
        self.after(crossing, Event::Kick { node: to });
    }
}
