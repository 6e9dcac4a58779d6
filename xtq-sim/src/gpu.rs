//! The GPU: a command processor that reads packets from its queue when its doorbell rings, and compute units that run
//! the kernels (§III.B, §V.A). There is one kernel: it adds floats, here whole numbers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::cpu::CpuJob;
use crate::event::Event;
use crate::machine::ELEMENT;
use crate::program::{MemoryRange, SimWork};
use crate::run::{INDICES, Sim};
use crate::trace::Phase;
use gapless_xtq::packet::{Command, ENTRIES, Flags, Launch, Packet, PacketError, TaskWork as Task};

/// Addresses of a node, all alike: what lies where is the node's own affair, and initiators know none of it.
pub(crate) const MEMORY: u64 = 0x10_0000_0000_0000;
pub(crate) const PAYLOADS: u64 = 0x20_0000_0000_0000;
pub(crate) const ARGUMENTS: u64 = 0x30_0000_0000_0000;
pub(crate) const LOCAL_ARGUMENTS: u64 = 0x38_0000_0000_0000;
pub(crate) const SIGNALS: u64 = 0x40_0000_0000_0000;
pub(crate) const QUEUE: u64 = 0x50_0000_0000_0000;
/// The code of the kernel.
pub(crate) const SUM: u64 = 0x60_0000_0000_0000;

/// Work-items of a group.
const GROUP: u16 = 256;

/// The GPU of a node.
#[derive(Debug, Default)]
pub(crate) struct SimGpu {
    /// The command queues, by their addresses.
    queues: BTreeMap<u64, Queue>,
    /// The queue that was looked at last: all take turns.
    turn: u64,
    /// Whether the command processor is at work.
    busy: bool,
    /// The packet that it has read.
    current: Option<Packet>,
    /// Whether that waits for kernels to end.
    waits: bool,
    kernels: Vec<Kernel>,
}

/// A command queue.
#[derive(Debug)]
struct Queue {
    packets: VecDeque<Packet>,
    /// Kernels of it that run, and that may run at a time.
    running: u32,
    width: u32,
}

/// A kernel that runs or has run.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    into: MemoryRange,
    source: u64,
    signal: u64,
    queue: u64,
    /// Of a task that a process has put: how it is launched, and the address of its arguments.
    task: Option<(Launch, u64)>,
}

impl SimGpu {
    /// With the queue of programs, which has no width.
    pub(crate) fn new() -> SimGpu {
        let mut gpu = SimGpu::default();
        gpu.add_queue(QUEUE, u32::MAX);
        gpu
    }

    /// One more queue. What others have runs beside it; those that nothing is left in go.
    pub(crate) fn add_queue(&mut self, base: u64, width: u32) {
        let turn = self.turn;
        self.queues.retain(|of, queue| {
            [QUEUE, turn].contains(of) || queue.running > 0 || !queue.packets.is_empty()
        });
        self.queues.insert(base, Queue { packets: VecDeque::new(), running: 0, width });
    }

    /// Packets that wait in a queue.
    pub(crate) fn waiting(&self, base: u64) -> usize {
        self.queues.get(&base).map_or(0, |queue| queue.packets.len())
    }

    pub(crate) fn push(&mut self, base: u64, packet: Packet) {
        if let Some(queue) = self.queues.get_mut(&base) {
            queue.packets.push_back(packet);
        }
    }

    /// The next queue, in turn, that has a packet and may run one more.
    fn next_queue(&self) -> Option<u64> {
        let behind = self.queues.range((Bound::Excluded(self.turn), Bound::Unbounded));
        let mut all = behind.chain(self.queues.range(..=self.turn));
        let is_ready = |queue: &Queue| !queue.packets.is_empty() && queue.running < queue.width;
        all.find(|(_, queue)| is_ready(queue)).map(|(base, _)| *base)
    }

    /// The address of a task's arguments, if the kernel is of one that a process has put.
    pub(crate) fn task_of(&self, kernel: usize) -> Option<u64> {
        self.kernels.get(kernel)?.task.map(|(_, arguments)| arguments)
    }
}

/// How a kernel that adds so many bytes is launched.
pub(crate) fn launch(bytes: u64) -> Launch {
    let groups = bytes.div_ceil(ELEMENT * u64::from(GROUP)).max(1);
    Launch::linear(u32::try_from(groups).unwrap_or(u32::MAX / u32::from(GROUP)), GROUP, 32)
}

/// The packet by which a node's CPU has its own GPU add, and the kernel's arguments.
pub(crate) fn local_command(
    step: usize,
    source: MemoryRange,
    into: MemoryRange,
) -> (Result<Packet, PacketError>, [u64; 4]) {
    let arguments = LOCAL_ARGUMENTS + 64 * step as u64;
    let command = Command {
        index: 0,
        queue: 0,
        flags: Flags::empty(),
        object: SUM,
        signal: SIGNALS + 8 * (ENTRIES + step) as u64,
        payload_bytes: 0,
        work: Task::Kernel(Launch { arguments, ..launch(into.len) }),
    };
    (Packet::new(&command), [MEMORY, MEMORY + source.start, into.start, into.len])
}

impl Sim<'_> {
    /// The doorbell rings.
    pub(crate) fn kick(&mut self, node: usize) {
        let gpu = &mut self.nodes[node].gpu;
        let Some(next) = gpu.next_queue().filter(|_| !gpu.busy) else { return };
        (gpu.busy, gpu.turn) = (true, next);
        let read = self.machine().command_read();
        self.after(read, Event::Read { node });
    }

    pub(crate) fn packet_read(&mut self, node: usize) {
        let gpu = &mut self.nodes[node].gpu;
        let queue = gpu.queues.get_mut(&gpu.turn);
        gpu.current = queue.and_then(|queue| queue.packets.pop_front());
        self.schedule(node);
    }

    fn schedule(&mut self, node: usize) {
        let gpu = &mut self.nodes[node].gpu;
        let Some(packet) = gpu.current else { return };
        let barrier = packet.command().is_ok_and(|command| command.flags.contains(Flags::BARRIER));
        let running = gpu.queues.get(&gpu.turn).map_or(0, |queue| queue.running);
        gpu.waits = barrier && running > 0;
        if !gpu.waits {
            let start = self.machine().kernel_start;
            self.after(start, Event::Scheduled { node });
        }
    }

    pub(crate) fn scheduled(&mut self, node: usize) {
        let gpu = &mut self.nodes[node].gpu;
        let packet = gpu.current.take();
        gpu.busy = false;
        if let Some(packet) = packet {
            self.phase(Phase::Launch);
            self.run_kernel(node, &packet);
        }
        self.kick(node);
    }

    /// Runs what a rewritten packet says, and nothing else is known of it.
    fn run_kernel(&mut self, node: usize, packet: &Packet) {
        let command = match packet.command() {
            Ok(command) => command,
            Err(error) => return self.broken.push(format!("node {node}: {error}")),
        };
        let Task::Kernel(launch) = command.work else {
            return self.broken.push(format!("node {node}: a function in the GPU's queue"));
        };
        if command.object != SUM {
            let Some(bytes) = self.task_bytes(node, launch.arguments) else {
                return self.broken.push(format!("node {node}: no arguments: {command:?}"));
            };
            let task = Some((launch, launch.arguments));
            let (into, source, signal) = (MemoryRange::NOTHING, 0, command.signal);
            return self.begin_kernel(node, &launch, bytes, (into, source, signal, task));
        }
        let arguments = self.nodes[node].arguments.remove(&launch.arguments);
        let (SUM, Some([buffer, source, at, bytes])) = (command.object, arguments) else {
            return self.broken.push(format!("node {node}: no kernel with arguments: {command:?}"));
        };
        let items = launch.groups().iter().map(|groups| u64::from(*groups)).product::<u64>()
            * launch.group_items();
        let (start, memory) =
            (buffer.wrapping_sub(MEMORY).wrapping_add(at), self.memory_bytes(node));
        let is_inside = start.checked_add(bytes).is_some_and(|end| end <= memory);
        if items * ELEMENT < bytes || !is_inside {
            let what =
                format!("node {node}: {items} work-items for bytes {start}..+{bytes} of {memory}");
            return self.broken.push(what);
        }
        let into = MemoryRange::new(start, bytes);
        self.begin_kernel(node, &launch, bytes, (into, source, command.signal, None));
    }

    /// A kernel over so many bytes begins.
    fn begin_kernel(
        &mut self,
        node: usize,
        launch: &Launch,
        bytes: u64,
        (into, source, signal, task): (MemoryRange, u64, u64, Option<(Launch, u64)>),
    ) {
        let groups = launch.groups().iter().map(|groups| u64::from(*groups)).product();
        let time = self.machine().kernel(bytes, groups);
        let gpu = &mut self.nodes[node].gpu;
        let queue = gpu.turn;
        if let Some(of) = gpu.queues.get_mut(&queue) {
            of.running += 1;
        }
        let kernel = gpu.kernels.len();
        gpu.kernels.push(Kernel { into, source, signal, queue, task });
        self.after(time, Event::Ended { node, kernel });
    }

    fn memory_bytes(&self, node: usize) -> u64 {
        self.nodes[node].memory.len() as u64 * self.options.grain
    }

    pub(crate) fn kernel_ended(&mut self, node: usize, kernel: usize) {
        self.phase(Phase::Kernel);
        let gpu = &mut self.nodes[node].gpu;
        let Kernel { into, source, signal, queue, task } = gpu.kernels[kernel];
        let mut was_full = false;
        if let Some(of) = gpu.queues.get_mut(&queue) {
            was_full = of.running == of.width;
            of.running -= 1;
        }
        if let Some((launch, task)) = task {
            self.run_task(node, launch, task);
            let write = self.machine().command_read();
            self.after(write, Event::Over { node, kernel });
            return self.go_on(node, was_full);
        }
        let operand = match self.nodes[node].landed.remove(&source) {
            Some(payload) => Some(payload),
            None => self.local(node, source, into.len),
        };
        match operand {
            Some(operand) => self.add(node, into, &operand),
            None => self.broken.push(format!("node {node}: no payload at {source:#x}")),
        }
        let number = usize::try_from(signal.wrapping_sub(SIGNALS) / 8).unwrap_or(usize::MAX);
        let write = self.machine().command_read();
        self.after(write, Event::Signalled { node, signal: number });
        self.go_on(node, was_full);
    }

    /// A kernel has ended: what waited for it goes on, also in a queue that could run no more of them.
    fn go_on(&mut self, node: usize, was_full: bool) {
        if self.nodes[node].gpu.waits {
            self.schedule(node);
        }
        if was_full {
            self.kick(node);
        }
    }

    /// What lies at an address of the node's own memory.
    fn local(&self, node: usize, source: u64, bytes: u64) -> Option<Vec<u32>> {
        let start = source.checked_sub(MEMORY)?;
        let end = start.checked_add(bytes).filter(|end| *end <= self.memory_bytes(node))?;
        Some(self.nodes[node].memory[self.grains(MemoryRange::new(start, end - start))].to_vec())
    }

    /// A signal was counted down: whoever waits looks at it.
    pub(crate) fn signalled(&mut self, node: usize, signal: usize) {
        if signal >= ENTRIES {
            // A kernel of this node's own: its step waits.
            let step = signal - ENTRIES;
            if matches!(self.programs_step(node, step), Some(SimWork::Reduce { .. })) {
                self.job(node, step, CpuJob::See { step });
            } else {
                self.broken.push(format!("node {node}: signal {signal}"));
            }
            return;
        }
        let of = &mut self.nodes[node];
        let uses = of.counts[signal];
        of.counts[signal] += 1;
        let task = u32::try_from(signal).unwrap_or(u32::MAX) + uses * u32::from(INDICES);
        match of.waiting.remove(&task) {
            Some(step) => self.job(node, step, CpuJob::See { step }),
            None => drop(of.over.insert(task)),
        }
    }
}
