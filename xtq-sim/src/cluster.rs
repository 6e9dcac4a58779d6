//! The simulated machine as a back end of the contract: processes that register kernels and queues, post receive buffers
//! and put, one on each node.
//!
//! Packets, tables, the rewrite, kernels, receive buffers, signals and what becomes of a put are those of all back ends.
//! The way is the simulated one: the initiator's CPU and NIC, the network, the target's NIC with its tables, the GPU with
//! its queues, and back. Kernels run when simulated time has come to their end.
//!
//! The target's NIC takes a task or refuses it, and says so (§III.B). The library of the initiator puts again what was
//! refused for now, after a pause; of a sequence it has one put under way at a time. When a task has ended, the
//! library's thread of the target tells the initiator (§V.C.1).
//!
//! What belongs to the processes and not to the machine is left out: functions, limits of time, puts that wait for
//! signals, and losses.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::cpu::CpuJob;
use crate::event::Event;
use crate::nic::{Nic, NicCommand, NicTable};
use crate::program::Program;
use crate::run::{Configuration, Options, Sim};
use crate::time::Ps;
use gapless_bml::Rank;
use gapless_xtq::backend::{
    DOUBLINGS, Order, PAUSE_NS, Posted, REFUSALS_MAX, Received, Wakeup, check_arguments, cut,
    failing,
};
use gapless_xtq::packet::{Command, Flags, Launch, Packet, PacketError, TaskWork};
use gapless_xtq::rewrite::{Places, Rewritten, apply, look_up};
use gapless_xtq::tables::{NoSuchIndex, QueueEntry};
use gapless_xtq::{
    Kernel, Put, PutHandle, QueueOptions, Refusal, RefusedTask, Retry, Signal, XtqError,
};
use thiserror::Error;

/// The first pause before a put that was refused for now is sent again.
const PAUSE: Ps = Ps::ns(PAUSE_NS);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// As with other back ends.
    #[error(transparent)]
    Xtq(#[from] XtqError),
    /// What the simulated machine has no part in.
    #[error("{what}: not simulated")]
    NotSimulated {
        /// What it is.
        what: &'static str,
    },
    /// More nodes than the switch has ports.
    #[error("{nodes} nodes; the switch has {most} ports")]
    TooMany {
        /// How many.
        nodes: usize,
        /// How many there may be.
        most: usize,
    },
}

impl From<NoSuchIndex> for ClusterError {
    fn from(error: NoSuchIndex) -> ClusterError {
        XtqError::from(error).into()
    }
}

impl From<PacketError> for ClusterError {
    fn from(error: PacketError) -> ClusterError {
        XtqError::from(error).into()
    }
}

/// What processes have registered, posted and put.
#[derive(Default)]
pub(crate) struct ClusterState {
    processes: Vec<Process>,
    puts: Vec<Issued>,
    /// Sequences of puts, by initiator, target and queue; the first of each is under way.
    sequences: BTreeMap<(usize, usize, u8), VecDeque<usize>>,
    /// Names of kernels and queues that were given.
    named: u64,
}

/// The process of a node.
struct Process {
    /// By name: tasks that are in queues keep the kernel that they were accepted with.
    kernels: BTreeMap<u64, Arc<Kernel>>,
    posted: Posted,
    /// Tasks in queues, or under way on the GPU, by the address of their arguments.
    tasks: BTreeMap<u64, TakenTask>,
    refusals: VecDeque<RefusedTask>,
    /// By this its signals are known.
    wakeup: Wakeup,
}

impl Process {
    fn new() -> Process {
        let (kernels, posted, tasks, refusals) = Default::default();
        // Events look for whoever waits.
        Process { kernels, posted, tasks, refusals, wakeup: Arc::new(|_| ()) }
    }
}

/// A put.
struct Issued {
    put: Put,
    packet: Packet,
    from: usize,
    to: usize,
    handle: PutHandle,
    /// How often it was refused for now.
    refusals: u64,
    /// Why its task has failed.
    failed: Option<String>,
}

impl Issued {
    fn sequence(&self) -> Option<(usize, usize, u8)> {
        let in_order = self.put.order.retry == Retry::InOrder;
        in_order.then_some((self.from, self.to, self.put.order.command.queue))
    }
}

/// A task that its target has taken.
struct TakenTask {
    put: usize,
    kernel: Arc<Kernel>,
    arguments: Vec<u8>,
    payload: Received,
}

/// Nodes with a process each, which all begin without anything registered.
///
/// For tests and short programs: what was registered, and a few words of each put and message, are kept until it is gone.
pub struct Cluster {
    sim: Sim<'static>,
}

fn node(rank: Rank) -> usize {
    usize::try_from(rank.0).unwrap_or(usize::MAX)
}

impl Cluster {
    /// So many nodes, of the machine of `options`. Their tasks go by XTQ, whatever its configuration is.
    ///
    /// # Errors
    /// More than the switch has ports.
    pub fn new(nodes: u32, options: &Options) -> Result<Cluster, ClusterError> {
        let (count, most) = (node(Rank(nodes)), options.machine.ports);
        if count > most {
            return Err(ClusterError::TooMany { nodes: count, most });
        }
        let options = Options { configuration: Configuration::Xtq, ..*options };
        let processes = (0..count).map(|_| Process::new()).collect();
        let cluster = ClusterState { processes, ..ClusterState::default() };
        let programs = vec![Program::default(); count];
        let mut sim = Sim::new(Cow::Owned(programs), &options, cluster);
        sim.nodes.iter_mut().for_each(|node| node.nic = Nic::bare(&options.machine));
        Ok(Cluster { sim })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Ps {
        self.sim.now
    }

    /// A digest of all events and their times until now.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.sim.trace.digest
    }

    /// The next event happens. Answers whether there was one.
    ///
    /// # Panics
    /// The machine itself is wrong.
    pub fn step(&mut self) -> bool {
        let stepped = self.sim.step();
        assert!(self.sim.broken.is_empty(), "{:?}", self.sim.broken);
        stepped
    }

    fn known(&self, rank: Rank) -> Result<usize, XtqError> {
        let size = self.sim.cluster.processes.len();
        let count = u32::try_from(size).unwrap_or(u32::MAX);
        Some(node(rank)).filter(|at| *at < size).ok_or(XtqError::NoSuchRank { rank, size: count })
    }

    /// A signal of this process.
    ///
    /// # Errors
    /// There is no such process.
    pub fn signal(&self, of: Rank, count: u64) -> Result<Signal, ClusterError> {
        let process = &self.sim.cluster.processes[self.known(of)?];
        Ok(Signal::new(count, Vec::new(), Arc::clone(&process.wakeup)))
    }

    /// Registers a kernel that is launched, in the place of what was there.
    ///
    /// # Safety
    /// As [`Xtq::register_kernel`](gapless_xtq::Xtq::register_kernel), until the cluster is gone.
    ///
    /// # Errors
    /// No such process or index; arguments of a length that no packet has; a kernel of a worker.
    pub unsafe fn register_kernel(
        &mut self,
        at: Rank,
        index: u8,
        kernel: Kernel,
    ) -> Result<(), ClusterError> {
        let at = self.known(at)?;
        check_arguments(kernel.argument_bytes)?;
        if kernel.is_of_worker() {
            return Err(XtqError::Worker { has: false }.into());
        }
        let entry = kernel.entry(self.name());
        let tables = self.sim.nodes[at].nic.tables(NicTable::Kernels, index);
        tables.set_kernel(index, Some(entry))?;
        self.sim.cluster.processes[at].kernels.insert(entry.object, Arc::new(kernel));
        Ok(())
    }

    /// Takes a kernel out: from now on it is refused.
    ///
    /// # Errors
    /// No such process or index.
    pub fn unregister_kernel(&mut self, at: Rank, index: u8) -> Result<(), ClusterError> {
        let at = self.known(at)?;
        Ok(self.sim.nodes[at].nic.tables(NicTable::Kernels, index).set_kernel(index, None)?)
    }

    /// Registers a queue. It begins empty; what is in the one that was there runs beside it.
    ///
    /// # Errors
    /// No such process or index; a queue that holds or runs nothing.
    pub fn register_queue(
        &mut self,
        at: Rank,
        index: u8,
        options: QueueOptions,
    ) -> Result<(), ClusterError> {
        let at = self.known(at)?;
        options.check()?;
        let QueueOptions { capacity, width } = options;
        let entry = QueueEntry { base: self.name(), capacity };
        let of = &mut self.sim.nodes[at];
        of.nic.tables(NicTable::Queues, index).set_queue(index, Some(entry))?;
        of.gpu.add_queue(entry.base, width);
        Ok(())
    }

    /// Takes a queue out. What is in it runs.
    ///
    /// # Errors
    /// No such process or index.
    pub fn unregister_queue(&mut self, at: Rank, index: u8) -> Result<(), ClusterError> {
        let at = self.known(at)?;
        Ok(self.sim.nodes[at].nic.tables(NicTable::Queues, index).set_queue(index, None)?)
    }

    fn name(&mut self) -> u64 {
        self.sim.cluster.named += 1;
        self.sim.cluster.named
    }

    /// Posts a receive buffer.
    ///
    /// # Errors
    /// There is no such process.
    pub fn post(&mut self, at: Rank, buffer: Vec<u8>) -> Result<(), ClusterError> {
        let at = self.known(at)?;
        self.sim.cluster.processes[at].posted.post(buffer);
        Ok(())
    }

    /// Takes all receive buffers back that no task has.
    ///
    /// # Errors
    /// There is no such process.
    pub fn take_posted(&mut self, at: Rank) -> Result<Vec<Vec<u8>>, ClusterError> {
        let at = self.known(at)?;
        Ok(self.sim.cluster.processes[at].posted.take_all())
    }

    /// What the process has refused since it was last asked, the last 256.
    ///
    /// # Errors
    /// There is no such process.
    pub fn take_refusals(&mut self, at: Rank) -> Result<Vec<RefusedTask>, ClusterError> {
        let at = self.known(at)?;
        Ok(std::mem::take(&mut self.sim.cluster.processes[at].refusals).into())
    }

    /// Puts a task.
    ///
    /// # Errors
    /// No such process; what no packet can express; another process's signal; a put with what is not simulated.
    pub fn put(&mut self, from: Rank, put: Put) -> Result<PutHandle, ClusterError> {
        let (from, to) = (self.known(from)?, self.known(put.order.target)?);
        if put.order.limit.is_some() || put.order.after.is_some() {
            return Err(ClusterError::NotSimulated {
                what: "limits, and puts that wait for signals",
            });
        }
        let wakeup = &self.sim.cluster.processes[from].wakeup;
        if put.order.signal().is_some_and(|signal| !signal.rings(wakeup)) {
            return Err(XtqError::ForeignSignal.into());
        }
        let packet = put.order.packet()?;
        let (handle, cluster) = (PutHandle::default(), &mut self.sim.cluster);
        let issued =
            Issued { put, packet, from, to, handle: handle.clone(), refusals: 0, failed: None };
        let (sequence, number) = (issued.sequence(), cluster.puts.len());
        cluster.puts.push(issued);
        let waits = sequence.is_some_and(|sequence| {
            let sequence = cluster.sequences.entry(sequence).or_default();
            sequence.push_back(number);
            sequence.len() > 1
        });
        if !waits {
            self.sim.give(from, 0, CpuJob::Put { put: number });
        }
        Ok(handle)
    }
}

impl Sim<'_> {
    /// The initiator's CPU has described a put.
    pub(crate) fn post_task(&mut self, put: usize) {
        let Issued { from, to, put: what, .. } = &self.cluster.puts[put];
        let (ends, bytes) = ((*from, *to), what.order.payload_bytes() as u64);
        self.post_kind(ends, bytes, NicCommand::Task { put });
    }

    /// Bytes of the command of a put, and its packet.
    pub(crate) fn task_command(&self, put: usize) -> (u64, Option<Packet>) {
        let Issued { put, packet, .. } = &self.cluster.puts[put];
        let bytes = size_of::<Packet>() + put.order.arguments().len();
        (bytes as u64, Some(*packet))
    }

    /// All of a put is at its target's NIC, which takes it or refuses it, and says so.
    pub(crate) fn take_in(&mut self, put: usize) {
        let Issued { from, to, .. } = self.cluster.puts[put];
        let refused = self.try_to_take(put).err();
        if let Some(refusal) = refused {
            self.refused += 1;
            self.note_refusal(put, refusal);
        }
        self.answer((to, from), NicCommand::Verdict { put, refused });
    }

    fn try_to_take(&mut self, put: usize) -> Result<(), Refusal> {
        let Issued { put: what, packet, to, .. } = &self.cluster.puts[put];
        let (to, sent) = (*to, packet.sent());
        // The packet was made here, and is sound.
        let command = sent.map_err(|_| Refusal::NotRegistered)?;
        let nic = &self.nodes[to].nic;
        let found = look_up(&command, nic.registered());
        let (entry, queue) =
            found.map_err(|error| Refusal::of(&error).unwrap_or(Refusal::NotRegistered))?;
        let kernel = self.cluster.processes[to].kernels.get(&entry.object).map(Arc::clone);
        let (Some(kernel), TaskWork::Kernel(launch)) = (kernel, command.work) else {
            return Err(Refusal::NotRegistered);
        };
        kernel.limits.allow(&launch)?;
        if self.nodes[to].gpu.waiting(queue.base) >= queue.capacity as usize {
            return Err(Refusal::QueueFull);
        }
        let (mut arguments, bytes) = (what.order.arguments().to_vec(), what.order.payload_bytes());
        let mut payload = self.cluster.processes[to].posted.claim(bytes)?;
        if let Some(memory) = payload.memory.get_mut(..bytes) {
            what.order.write_payload(memory);
        }
        let address = arguments.as_ptr().addr() as u64;
        let places = Places { arguments: address, payload: payload.memory.as_ptr().addr() as u64 };
        let Ok(Rewritten { packet, first, queue }) = apply(&command, (entry, queue), places) else {
            self.cluster.processes[to].posted.post(payload.memory);
            return Err(Refusal::NotRegistered);
        };
        for (place, word) in arguments.chunks_exact_mut(8).zip(first) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let taken = TakenTask { put, kernel, arguments, payload };
        self.cluster.processes[to].tasks.insert(address, taken);
        self.nodes[to].gpu.push(queue.base, packet);
        let crossing = self.machine().crossing;
        self.after(crossing, Event::Kick { node: to });
        Ok(())
    }

    /// A refusal: whoever wants to know of it, and the signal that will not be counted down.
    fn note_refusal(&mut self, put: usize, refusal: Refusal) {
        let Issued { put: what, from, to, .. } = &self.cluster.puts[put];
        let Command { index, queue, .. } = what.order.command;
        let (target, to) = (what.order.target, *to);
        let initiator = Rank(u32::try_from(*from).unwrap_or(u32::MAX));
        let entry = self.nodes[to].nic.registered().kernel(index);
        let process = &mut self.cluster.processes[to];
        if process.refusals.len() == REFUSALS_MAX {
            process.refusals.pop_front();
        }
        process.refusals.push_back(RefusedTask { initiator, index, queue, refusal });
        let kernel = entry.and_then(|entry| process.kernels.get(&entry.object));
        let signal = kernel.and_then(|kernel| kernel.signal.as_ref());
        if let Some(signal) = signal.filter(|_| !refusal.may_pass()) {
            signal.fail(XtqError::Refused { target, refusal });
        }
    }

    /// The initiator's CPU has seen a message about a put of its own.
    pub(crate) fn hear(&mut self, message: usize) {
        match self.messages[message].kind {
            NicCommand::Verdict { put, refused: None } => {
                let issued = &self.cluster.puts[put];
                let asks = issued.put.order.command.flags.contains(Flags::ACKNOWLEDGE);
                issued.handle.accept(!asks);
                self.next_of_sequence(put);
            }
            NicCommand::Verdict { put, refused: Some(refusal) } => self.was_refused(put, refusal),
            NicCommand::Answer { put } => {
                let issued = &mut self.cluster.puts[put];
                let (target, failed) = (issued.put.order.target, issued.failed.take());
                let failed = failed.map(|reason| XtqError::Failed { target, reason });
                self.ends(put, failed.map_or(Ok(()), Err));
            }
            _ => {}
        }
    }

    /// A put has ended.
    fn ends(&mut self, put: usize, result: Result<(), XtqError>) {
        let issued = &mut self.cluster.puts[put];
        // Nothing is sent again.
        issued.put.order.clear_body();
        issued.handle.end(result.clone());
        if let Some(signal) = issued.put.order.take_signal() {
            signal.end(result);
        }
    }

    fn was_refused(&mut self, put: usize, refusal: Refusal) {
        let issued = &mut self.cluster.puts[put];
        if refusal.may_pass() {
            issued.handle.refused();
            issued.refusals += 1;
        }
        let Order { retry, attempts_max, target, .. } = *issued.put.order;
        let is_over = retry == Retry::Never || issued.refusals >= u64::from(attempts_max);
        if is_over || !refusal.may_pass() {
            self.ends(put, Err(XtqError::Refused { target, refusal }));
            return self.next_of_sequence(put);
        }
        let pause = PAUSE * (1 << (issued.refusals - 1).min(u64::from(DOUBLINGS)));
        self.after(pause, Event::Again { put });
    }

    pub(crate) fn put_again(&mut self, put: usize) {
        let from = self.cluster.puts[put].from;
        self.give(from, 0, CpuJob::Put { put });
    }

    /// A put of a sequence is in its queue, or left out: the next one has its turn.
    fn next_of_sequence(&mut self, put: usize) {
        let issued = &self.cluster.puts[put];
        let (from, sequence) = (issued.from, issued.sequence());
        let Some(sequence) =
            sequence.and_then(|sequence| self.cluster.sequences.get_mut(&sequence))
        else {
            return;
        };
        sequence.pop_front();
        if let Some(&next) = sequence.front() {
            self.give(from, 0, CpuJob::Put { put: next });
        }
    }

    /// Bytes of a task's payload, by the address of its arguments.
    pub(crate) fn task_bytes(&self, node: usize, arguments: u64) -> Option<u64> {
        let taken = self.cluster.processes.get(node)?.tasks.get(&arguments)?;
        Some(taken.payload.len as u64)
    }

    /// A task runs to its end.
    pub(crate) fn run_task(&mut self, node: usize, launch: Launch, task: u64) {
        let Some(taken) = self.cluster.processes[node].tasks.get(&task) else { return };
        let TakenTask { put, kernel, arguments, payload } = taken;
        // SAFETY: `Cluster::register_kernel` is where kernels come from, an unsafe function with this promise. The limits
        // were checked when the packet was taken.
        let run = || unsafe { kernel.run(launch, arguments, payload.bytes()) };
        let ended = failing(run);
        self.cluster.puts[*put].failed = ended.err().map(|error| cut(&error.0));
    }

    /// The end of a task is in memory: its signal, its receive buffer, and who is told.
    pub(crate) fn is_over(&mut self, node: usize, kernel: usize) {
        let Some(task) = self.nodes[node].gpu.task_of(kernel) else { return };
        let Some(taken) = self.cluster.processes[node].tasks.remove(&task) else { return };
        let TakenTask { put, kernel, payload, .. } = taken;
        self.cluster.processes[node].posted.post(payload.memory);
        let issued = &self.cluster.puts[put];
        let (target, failed) = (issued.put.order.target, issued.failed.clone());
        if let Some(signal) = &kernel.signal {
            let failed = failed.map(|reason| XtqError::Failed { target, reason });
            signal.end(failed.map_or(Ok(()), Err));
        }
        if issued.put.order.command.flags.contains(Flags::ACKNOWLEDGE) {
            self.give(node, 1, CpuJob::Answer { put });
        }
    }

    /// The library's thread of the target tells the initiator that a task has ended.
    pub(crate) fn post_answer(&mut self, put: usize) {
        let Issued { from, to, failed, .. } = &self.cluster.puts[put];
        let bytes = failed.as_ref().map_or(0, String::len) as u64;
        self.post_kind((*to, *from), bytes, NicCommand::Answer { put });
    }
}
