//! The CPU: two threads of each node, which do one thing at a time, in the order in which it became possible.
//!
//! Nothing progresses but in a thread: what the NIC or the GPU has written is seen when the thread has time to look
//! (§V.A). Posting a receive costs nothing here, in none of the configurations: receives are posted before they matter.

use std::collections::VecDeque;

use crate::event::Event;
use crate::gpu;
use crate::program::{MemoryRange, SimWork};
use crate::run::{Configuration, Sim};
use crate::time::Ps;
use crate::trace::Phase;

/// A thread of the CPU.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    jobs: VecDeque<CpuJob>,
    doing: Option<CpuJob>,
    /// How long it was at work.
    pub(crate) busy: Ps,
}

/// Something that a thread has to do, for a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CpuJob {
    /// Hands a message to the NIC.
    Post { step: usize },
    /// Adds or copies.
    Compute { step: usize },
    /// Writes a command for the GPU.
    Command { step: usize },
    /// Sees that a message has come.
    Receive { step: usize },
    /// The same of a message that came before its receive was posted: it must be copied.
    Late { step: usize, message: usize },
    /// Sees a message of the NIC's own interface.
    Notice { step: usize },
    /// Sees that a signal has been counted down.
    See { step: usize },
    /// Sees that a task was refused, and puts it again.
    Again { message: usize },
    /// Puts a task that is no step's.
    Put { put: usize },
    /// Sees what became of one.
    Hear { message: usize },
    /// Sees that a task has ended, and tells its initiator.
    Answer { put: usize },
}

impl Sim<'_> {
    /// A step may begin.
    pub(crate) fn ready(&mut self, node: usize, step: usize) {
        match self.work(node, step) {
            SimWork::Send { .. } | SimWork::Put { .. } | SimWork::Notify { .. } => {
                self.job(node, step, CpuJob::Post { step })
            }
            SimWork::Copy { .. } => self.job(node, step, CpuJob::Compute { step }),
            SimWork::Reduce { .. } if self.options.configuration == Configuration::Cpu => {
                self.job(node, step, CpuJob::Compute { step });
            }
            SimWork::Reduce { .. } => self.job(node, step, CpuJob::Command { step }),
            SimWork::Receive { from, slot, .. } => {
                match self.nodes[node].early.remove(&(from, slot)) {
                    Some(message) => self.job(node, step, CpuJob::Late { step, message }),
                    None => drop(self.nodes[node].posted.insert((from, slot), step)),
                }
            }
            SimWork::Notice { from, slot } => {
                match self.nodes[node].notices.remove(&(from, slot)) {
                    Some(_) => self.job(node, step, CpuJob::Notice { step }),
                    None => drop(self.nodes[node].awaited.insert((from, slot), step)),
                }
            }
            SimWork::Task { task } => match self.nodes[node].over.remove(&task) {
                true => self.job(node, step, CpuJob::See { step }),
                false => drop(self.nodes[node].waiting.insert(task, step)),
            },
        }
    }

    /// Gives the thread of a step something to do.
    pub(crate) fn job(&mut self, node: usize, step: usize, job: CpuJob) {
        self.give(node, self.thread_of(node, step), job);
    }

    /// Gives a thread something to do.
    pub(crate) fn give(&mut self, node: usize, thread: usize, job: CpuJob) {
        self.nodes[node].threads[thread].jobs.push_back(job);
        if self.nodes[node].threads[thread].doing.is_none() {
            self.next_job(node, thread);
        }
    }

    fn next_job(&mut self, node: usize, thread: usize) {
        let Some(job) = self.nodes[node].threads[thread].jobs.pop_front() else { return };
        let time = self.duration(node, job);
        let of = &mut self.nodes[node].threads[thread];
        of.doing = Some(job);
        of.busy += time;
        self.after(time, Event::Job { node, thread });
    }

    fn duration(&self, node: usize, job: CpuJob) -> Ps {
        let machine = self.machine();
        let of_mpi = |time: Ps| if self.options.mpi { time } else { Ps::ZERO };
        let event = machine.cpu_read() + machine.event_handling;
        match job {
            CpuJob::Post { step } => match self.work(node, step) {
                SimWork::Notify { .. } => machine.post,
                _ => machine.post + of_mpi(machine.mpi_post),
            },
            CpuJob::Compute { step } => machine.cpu_work(self.computed(node, step).len),
            CpuJob::Command { .. } => machine.command_write,
            CpuJob::Receive { .. } => event + of_mpi(machine.mpi_receive),
            CpuJob::Late { message, .. } => {
                event + of_mpi(machine.mpi_receive) + machine.cpu_work(self.messages[message].bytes)
            }
            CpuJob::Notice { .. } => event,
            CpuJob::See { .. } => machine.cpu_read(),
            CpuJob::Again { .. } => event + machine.post,
            CpuJob::Put { .. } => machine.post + of_mpi(machine.mpi_post),
            CpuJob::Hear { .. } => event,
            CpuJob::Answer { .. } => machine.cpu_read() + machine.post,
        }
    }

    /// Where a step that computes leaves its result.
    fn computed(&self, node: usize, step: usize) -> MemoryRange {
        match self.work(node, step) {
            SimWork::Reduce { into, .. } | SimWork::Copy { into, .. } => into,
            _ => MemoryRange::NOTHING,
        }
    }

    /// A thread has ended what it did.
    pub(crate) fn job_ended(&mut self, node: usize, thread: usize) {
        let Some(job) = self.nodes[node].threads[thread].doing.take() else { return };
        match job {
            CpuJob::Post { step } => self.post(node, step),
            CpuJob::Compute { step } => {
                self.compute(node, step);
                self.ended(node, step);
            }
            CpuJob::Command { step } => self.command(node, step),
            CpuJob::Receive { step } | CpuJob::Notice { step } => self.ended(node, step),
            CpuJob::Late { step, message } => {
                self.store(node, step, message);
                self.ended(node, step);
            }
            CpuJob::See { step } => {
                self.phase(Phase::Completion);
                self.ended(node, step);
            }
            CpuJob::Again { message } => self.ring(message),
            CpuJob::Put { put } => self.post_task(put),
            CpuJob::Hear { message } => self.hear(message),
            CpuJob::Answer { put } => self.post_answer(put),
        }
        // What it did may have made more possible, and have begun that.
        if self.nodes[node].threads[thread].doing.is_none() {
            self.next_job(node, thread);
        }
    }

    fn compute(&mut self, node: usize, step: usize) {
        match self.work(node, step) {
            SimWork::Reduce { source, into } => {
                let operand = self.nodes[node].memory[self.grains(source)].to_vec();
                self.add(node, into, &operand);
            }
            SimWork::Copy { from, into } => {
                let (from, into) = (self.grains(from), self.grains(into));
                self.nodes[node].memory.copy_within(from, into.start);
            }
            _ => {}
        }
    }

    /// Adds to a place of a node's memory.
    pub(crate) fn add(&mut self, node: usize, into: MemoryRange, operand: &[u32]) {
        let into = self.grains(into);
        for (sum, term) in self.nodes[node].memory[into].iter_mut().zip(operand) {
            *sum = sum.wrapping_add(*term);
        }
    }

    /// Writes a command for this node's GPU, as the target of a put would rewrite it.
    fn command(&mut self, node: usize, step: usize) {
        if let SimWork::Reduce { source, into } = self.work(node, step) {
            let (packet, arguments) = gpu::local_command(step, source, into);
            if let Some(packet) = self.sound(packet) {
                let place = gpu::LOCAL_ARGUMENTS + 64 * step as u64;
                self.nodes[node].arguments.insert(place, arguments);
                self.nodes[node].gpu.push(gpu::QUEUE, packet);
                let crossing = self.machine().crossing;
                self.after(crossing, Event::Kick { node });
            }
        }
    }
}
