//! This process's part of a window, and operations that messages ask for, on its memory.

use crate::attached::Attached;
use crate::departed::Departed;
use crate::device_job::DeviceJob;
use crate::doubt::{self, Doubt, Mine};
use crate::error::Fault;
use crate::exposure::{Near, WindowPart};
use crate::header::{Header, Lock, Stripes};
use crate::memory::{WindowBytes, place};
use crate::perform::Plan;
use crate::questions::Questions;
use crate::users::{InUse, Users};
use crate::wire::Head;
use gapless_dtype::Layout;
use gapless_mem::Atomics;
use std::collections::VecDeque;
use std::sync::Arc;

/// Who waits for the lock of this process's window.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) process: u32,
    pub(crate) question: Head,
    pub(crate) kind: Lock,
    /// What is thought of whoever has the lock.
    pub(crate) doubt: Doubt,
}

/// This process's part of a window.
pub(crate) struct Hosted {
    pub(crate) own: WindowPart,
    pub(crate) header: Header,
    /// In a dynamic window, what is attached.
    pub(crate) pieces: Option<Attached>,
    pub(crate) processes: Arc<[u32]>,
    /// By rank: the window's number there; empty until that is known.
    pub(crate) numbers: Arc<[u32]>,
    pub(crate) rank: u32,
    /// Threads that run tasks on it.
    pub(crate) users: Arc<Users>,
    /// By rank: how often it has posted, and completed, without being heard.
    pub(crate) posts: Box<[u32]>,
    pub(crate) completes: Box<[u32]>,
    /// By rank: what went wrong since its last question.
    pub(crate) faults: Box<[Option<Fault>]>,
    pub(crate) waiting: VecDeque<Waiter>,
    /// How often those that wait have tried.
    pub(crate) tries: u32,
    /// By rank: the lock that it has been given by a message.
    pub(crate) held: Box<[Option<Lock>]>,
    /// The locks of others, and its own, that this rank has.
    pub(crate) mine: Mine,
}

impl Hosted {
    pub(crate) fn new(own: WindowPart, processes: Arc<[u32]>, rank: u32) -> Hosted {
        let ranks = processes.len();
        Hosted {
            header: own.header().clone(),
            own,
            pieces: None,
            processes,
            numbers: Arc::default(),
            rank,
            users: Arc::default(),
            posts: vec![0; ranks].into(),
            completes: vec![0; ranks].into(),
            faults: vec![None; ranks].into(),
            waiting: VecDeque::new(),
            tries: 0,
            held: vec![None; ranks].into(),
            mine: doubt::nobodys(ranks),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What a task needs of it, whose memory this keeps; `None`: it is dynamic, or a device's.
    pub(crate) fn in_use(&self) -> Option<InUse> {
        let of = (self.rank, &self.processes);
        match &self.own {
            WindowPart::Host(exposure) if self.pieces.is_none() => {
                Some(InUse::new(exposure.clone(), of, &self.users))
            }
            _ => None,
        }
    }

    /// A process is lost: it needs no lock any more. One that it has stays its own.
    pub(crate) fn forget(&mut self, process: u32, questions: &mut Questions) {
        self.waiting.retain_mut(|waiter| {
            let goes = waiter.process == process;
            if goes {
                waiter.doubt.forget(questions);
                self.header.cancel(waiter.question.rank);
            }
            !goes
        });
    }

    /// The window is freed: who waits for its lock, and the questions. Ranks that map the memory still lock it: nobody of
    /// those that do not may be in their way any more, but for the dead.
    pub(crate) fn turned_away(
        &mut self,
        departed: &Departed,
        questions: &mut Questions,
    ) -> Vec<(u32, u64)> {
        for (rank, (held, process)) in (0..).zip(self.held.iter_mut().zip(&*self.processes)) {
            if !departed.is_lost(*process)
                && let Some(kind) = held.take()
            {
                self.header.unlock(rank, kind);
            }
        }
        let away = self.waiting.drain(..).map(|mut waiter| {
            waiter.doubt.forget(questions);
            self.header.cancel(waiter.question.rank);
            (waiter.process, waiter.question.token)
        });
        away.collect()
    }

    /// From now on there is no memory but what is attached.
    pub(crate) fn make_dynamic(&mut self) {
        self.pieces.get_or_insert_default();
    }

    /// Attaches memory; gives its address. `None`: the window is not dynamic.
    pub(crate) fn attach(&mut self, memory: Atomics) -> Option<u64> {
        Some(self.pieces.as_mut()?.add(memory))
    }

    /// Detaches the memory at an address; whether it was there.
    pub(crate) fn detach(&mut self, address: u64) -> Option<Atomics> {
        self.pieces.as_mut()?.take(address)
    }
}

/// What an operation comes to.
pub(crate) enum Performed {
    /// It is done; the bytes that were wanted.
    Done(Option<Vec<u8>>),
    /// A mutex is taken.
    Busy,
    /// A device is at work.
    Goes(Box<DeviceJob>),
}

/// What is known of a rank that has a mutex.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Holder {
    Lives,
    /// It may live.
    Lost,
    Dead,
}

impl Holder {
    pub(crate) fn of(departed: &Departed, process: Option<&u32>) -> Holder {
        match process {
            Some(process) if departed.is_dead(*process) => Holder::Dead,
            Some(process) if departed.is_lost(*process) => Holder::Lost,
            _ => Holder::Lives,
        }
    }
}

impl Hosted {
    /// Takes the mutexes of stripes, if they are free.
    fn take(&self, stripes: Stripes, holders: &dyn Fn(u32) -> Holder) -> Result<bool, Fault> {
        if self.header.try_stripes(self.rank, stripes, |rank| holders(rank) == Holder::Dead) {
            return Ok(true);
        }
        let lost = self.header.lost_in_stripes(stripes, |rank| holders(rank) == Holder::Lost);
        match lost.and_then(|rank| self.processes.get(rank as usize)) {
            Some(process) => Err(Fault::Holder(*process)),
            None => Ok(false),
        }
    }

    /// Does an operation, or begins to, if it is on memory of a device.
    pub(crate) fn perform(
        &self,
        layout: Option<&Layout>,
        (head, bytes): (&Head, &[u8]),
        holders: &dyn Fn(u32) -> Holder,
    ) -> Result<Performed, Fault> {
        let all = if self.pieces.is_some() { u64::MAX } else { self.own.bytes() };
        let target = place(all, head.origin, layout, head.count).map_err(|_| Fault::Outside)?;
        let plan = Plan::read(target, (head, bytes))?;
        if let Some(attached) = &self.pieces {
            attached.check(&plan.target, plan.range.clone())?;
            return self.run(attached, &plan, bytes, holders);
        }
        match self.own.memory() {
            Near::Host(memory) => self.run(memory, &plan, bytes, holders),
            Near::Device(memory) => {
                let stripes = plan.stripes(0)?;
                if !self.take(stripes, holders)? {
                    return Ok(Performed::Busy);
                }
                let mutexes = (self.header.clone(), self.rank, stripes);
                let job = DeviceJob::new(head.window, memory, mutexes, (plan, bytes));
                Ok(Performed::Goes(Box::new(job)))
            }
        }
    }

    fn run(
        &self,
        memory: &impl WindowBytes,
        plan: &Plan,
        bytes: &[u8],
        holders: &dyn Fn(u32) -> Holder,
    ) -> Result<Performed, Fault> {
        let stripes = plan.stripes(memory.misalignment(0, 8))?;
        if !self.take(stripes, holders)? {
            return Ok(Performed::Busy);
        }
        let done = plan.run(memory, bytes);
        self.header.release_stripes(self.rank, stripes);
        done.map(Performed::Done)
    }
}
