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
    jobs: VecDeque<Job>,
    doing: Option<Job>,
    /// How long it was at work.
    pub(crate) busy: Ps,
}

/// Something that a thread has to do, for a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
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
                self.job(node, step, Job::Post { step })
            }
            SimWork::Copy { .. } => self.job(node, step, Job::Compute { step }),
            SimWork::Reduce { .. } if self.options.configuration == Configuration::Cpu => {
                self.job(node, step, Job::Compute { step });
            }
            SimWork::Reduce { .. } => self.job(node, step, Job::Command { step }),
            SimWork::Receive { from, slot, .. } => {
                match self.nodes[node].early.remove(&(from, slot)) {
                    Some(message) => self.job(node, step, Job::Late { step, message }),
                    None => drop(self.nodes[node].posted.insert((from, slot), step)),
                }
            }
            SimWork::Notice { from, slot } => {
                match self.nodes[node].notices.remove(&(from, slot)) {
                    Some(_) => self.job(node, step, Job::Notice { step }),
                    None => drop(self.nodes[node].awaited.insert((from, slot), step)),
                }
            }
            SimWork::Task { task } => match self.nodes[node].over.remove(&task) {
                true => self.job(node, step, Job::See { step }),
                false => drop(self.nodes[node].waiting.insert(task, step)),
            },
        }
    }

    /// Gives the thread of a step something to do.
    pub(crate) fn job(&mut self, node: usize, step: usize, job: Job) {
        self.give(node, self.thread_of(node, step), job);
    }

    /// Gives a thread something to do.
    pub(crate) fn give(&mut self, node: usize, thread: usize, job: Job) {
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

    fn duration(&self, node: usize, job: Job) -> Ps {
        let machine = self.machine();
        let of_mpi = |time: Ps| if self.options.mpi { time } else { Ps::ZERO };
        let event = machine.cpu_read() + machine.event_handling;
        match job {
            Job::Post { step } => match self.work(node, step) {
                SimWork::Notify { .. } => machine.post,
                _ => machine.post + of_mpi(machine.mpi_post),
            },
            Job::Compute { step } => machine.cpu_work(self.computed(node, step).len),
            Job::Command { .. } => machine.command_write,
            Job::Receive { .. } => event + of_mpi(machine.mpi_receive),
            Job::Late { message, .. } => {
                event + of_mpi(machine.mpi_receive) + machine.cpu_work(self.messages[message].bytes)
            }
            Job::Notice { .. } => event,
            Job::See { .. } => machine.cpu_read(),
            Job::Again { .. } => event + machine.post,
            Job::Put { .. } => machine.post + of_mpi(machine.mpi_post),
            Job::Hear { .. } => event,
            Job::Answer { .. } => machine.cpu_read() + machine.post,
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
            Job::Post { step } => self.post(node, step),
            Job::Compute { step } => {
                self.compute(node, step);
                self.ended(node, step);
            }
            Job::Command { step } => self.command(node, step),
            Job::Receive { step } | Job::Notice { step } => self.ended(node, step),
            Job::Late { step, message } => {
                self.store(node, step, message);
                self.ended(node, step);
            }
            Job::See { step } => {
                self.phase(Phase::Completion);
                self.ended(node, step);
            }
            Job::Again { message } => self.ring(message),
            Job::Put { put } => self.post_task(put),
            Job::Hear { message } => self.hear(message),
            Job::Answer { put } => self.post_answer(put),
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
