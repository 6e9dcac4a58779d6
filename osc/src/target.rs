//! What arriving messages do to a window of this process.
//!
//! Nothing that a message says is believed: places are checked against the window, lengths against the message, layouts by
//! [`Layout::unflatten`]. What cannot be done is a [`Fault`], which the sender gets with the next answer.

use crate::asked::Asked;
use crate::attached::{Attached, Memory};
use crate::core::{Core, Done, Osc};
use crate::device::{Near, fault};
use crate::doubt::{self, Doubt, Mine};
use crate::error::Fault;
use crate::exposure::{Part, place};
use crate::header::Stripes;
use crate::header::{Header, Lock};
use crate::job::Job;
use crate::peer::{LAYOUT_BYTES, LAYOUTS};
use crate::perform::{Outcome, Plan};
use crate::tasks::run::{Place, Users};
use crate::wire::{HEADER, Head, Kind};
use gapless_bml::{Bml, Rank};
use gapless_dtype::Layout;
use gapless_mem::Atomics;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// So often those that wait for a lock try, until whoever has it is doubted.
const TRIES_PER_DOUBT: u32 = 16;

/// The layouts of a process, by its numbers.
#[derive(Default)]
pub(crate) struct Layouts {
    known: HashMap<u32, (u64, Known)>,
    /// Of all of them, flattened.
    bytes: u64,
}

enum Known {
    /// Some of its bytes have come.
    Part(Vec<u8>),
    Whole(Layout),
    Bad,
}

impl Layouts {
    /// Some bytes of a layout.
    fn learn(&mut self, head: &Head, bytes: &[u8]) -> Done {
        if !self.known.contains_key(&head.layout) {
            let all = self.bytes.saturating_add(head.count);
            if self.known.len() >= LAYOUTS || all > LAYOUT_BYTES {
                return Done::Nonsense("too many layouts, or some that are too long");
            }
            self.bytes = all;
            self.known.insert(head.layout, (head.count, Known::Part(Vec::new())));
        }
        let Some((bytes_all, known)) = self.known.get_mut(&head.layout) else { return Done::Yes };
        let Known::Part(flat) = known else {
            return Done::Nonsense("a layout that is told twice");
        };
        if head.count != *bytes_all {
            return Done::Nonsense("a layout of two lengths");
        }
        if head.start != flat.len() as u64 || head.start + bytes.len() as u64 > head.count {
            return Done::Nonsense("a layout in other pieces than it has");
        }
        flat.extend_from_slice(bytes);
        if flat.len() as u64 == head.count {
            *known = match Layout::unflatten(flat) {
                Ok(layout) => Known::Whole(layout),
                Err(error) => {
                    tracing::error!(%error, "a layout that a peer has sent");
                    Known::Bad
                }
            };
        }
        Done::Yes
    }

    fn forget(&mut self, id: u32) {
        if let Some((bytes, _)) = self.known.remove(&id) {
            self.bytes -= bytes;
        }
    }

    fn get(&self, id: u32) -> Result<Option<&Layout>, Fault> {
        match (id, self.known.get(&id)) {
            (0, _) => Ok(None),
            (_, Some((_, Known::Whole(layout)))) => Ok(Some(layout)),
            _ => Err(Fault::Layout),
        }
    }
}

/// Who waits for the lock of this process's window.
#[derive(Debug)]
struct Waiter {
    process: u32,
    question: Head,
    kind: Lock,
    /// What is thought of whoever has the lock.
    doubt: Doubt,
}

/// This process's part of a window.
pub(crate) struct Hosted {
    own: Part,
    pub(crate) header: Header,
    /// In a dynamic window, what is attached.
    pieces: Option<Attached>,
    processes: Arc<[u32]>,
    /// By rank: the window's number there; empty until that is known.
    pub(crate) numbers: Arc<[u32]>,
    rank: u32,
    /// Threads that run tasks on it.
    pub(crate) users: Arc<Users>,
    /// By rank: how often it has posted, and completed, without being heard.
    pub(crate) posts: Box<[u32]>,
    pub(crate) completes: Box<[u32]>,
    /// By rank: what went wrong since its last question.
    faults: Box<[Option<Fault>]>,
    waiting: VecDeque<Waiter>,
    /// How often those that wait have tried.
    tries: u32,
    /// By rank: the lock that it has been given by a message.
    held: Box<[Option<Lock>]>,
    /// The locks of others, and its own, that this rank has.
    pub(crate) mine: Mine,
}

impl Hosted {
    pub(crate) fn new(own: Part, processes: Arc<[u32]>, rank: u32) -> Hosted {
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
    pub(crate) fn place(&self) -> Option<Place> {
        let of = (self.rank, &self.processes);
        match &self.own {
            Part::Host(exposure) if self.pieces.is_none() => {
                Some(Place::new(exposure.clone(), of, &self.users))
            }
            _ => None,
        }
    }

    /// A process is lost: it needs no lock any more. One that it has stays its own.
    pub(crate) fn forget(&mut self, process: u32, asked: &mut HashMap<u64, Asked>) {
        self.waiting.retain_mut(|waiter| {
            let goes = waiter.process == process;
            if goes {
                waiter.doubt.forget(asked);
                self.header.cancel(waiter.question.rank);
            }
            !goes
        });
    }

    /// The window is freed: who waits for its lock, and the questions. Ranks that map the memory still lock it: nobody of
    /// those that do not may be in their way any more, but for the dead.
    pub(crate) fn turned_away(
        &mut self,
        osc: &Osc,
        asked: &mut HashMap<u64, Asked>,
    ) -> Vec<(u32, u64)> {
        for (rank, (held, process)) in (0..).zip(self.held.iter_mut().zip(&*self.processes)) {
            if !osc.is_lost(*process)
                && let Some(kind) = held.take()
            {
                self.header.unlock(rank, kind);
            }
        }
        let away = self.waiting.drain(..).map(|mut waiter| {
            waiter.doubt.forget(asked);
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

impl Core {
    /// Does what a message says.
    pub(crate) fn execute(&mut self, osc: &Osc, bml: &mut Bml, from: Rank, message: &[u8]) -> Done {
        let Some(head) = Head::read(message) else { return Done::Nonsense("no message") };
        let bytes = &message[HEADER..];
        match head.kind {
            Kind::Answer | Kind::Credit => {
                if !self.peer(from.0).credit(head.count) {
                    return Done::Nonsense("credit for more than was sent");
                }
                return match head.kind {
                    Kind::Answer => self.answer(from, &head, bytes),
                    _ => Done::Yes,
                };
            }
            Kind::Layout => return self.peer(from.0).layouts.learn(&head, bytes),
            Kind::Forget => {
                self.peer(from.0).layouts.forget(head.layout);
                return Done::Yes;
            }
            // It is not kept: whoever has so many answers to come gets no more, and asks again.
            Kind::Holds if self.peer(from.0).has_enough() => return Done::Yes,
            Kind::Holds => {}
            // Its answers are to leave first, unless it was begun.
            _ if head.token != 0 && self.peer(from.0).is_full() => return Done::Blocked,
            _ => {}
        }
        let Some(hosted) = self.windows.get_mut(&head.window) else {
            if head.token != 0 {
                self.reply(bml, from, &head, Err(Fault::NoWindow));
            }
            return Done::Yes;
        };
        let rank = head.rank as usize;
        if hosted.processes.get(rank) != Some(&from.0) {
            return Done::Nonsense("a message of a rank that another process is");
        }
        match head.kind {
            Kind::Put | Kind::Get | Kind::Accumulate | Kind::Compare => {
                self.access(osc, bml, from, (&head, bytes))
            }
            Kind::Lock => {
                let kind = if head.flag == 0 { Lock::Shared } else { Lock::Exclusive };
                let waits = |waiter: &Waiter| waiter.question.rank == head.rank;
                if hosted.held[rank].is_some() || hosted.waiting.iter().any(waits) {
                    return Done::Nonsense("a lock that it has, or waits for");
                }
                let doubt = Doubt::new(hosted.rank);
                let waiter = Waiter { process: from.0, question: head, kind, doubt };
                hosted.waiting.push_back(waiter);
                self.grant_locks(osc, bml);
                Done::Yes
            }
            Kind::Unlock => {
                let kind = if head.flag == 0 { Lock::Shared } else { Lock::Exclusive };
                if hosted.held[rank].take_if(|held| *held == kind).is_none() {
                    return Done::Nonsense("the end of a lock that it does not have");
                }
                hosted.header.unlock(head.rank, kind);
                self.conclude(bml, from, &head);
                self.grant_locks(osc, bml);
                Done::Yes
            }
            Kind::Flush => {
                self.conclude(bml, from, &head);
                Done::Yes
            }
            Kind::Post => {
                hosted.posts[rank] = hosted.posts[rank].saturating_add(1);
                Done::Yes
            }
            Kind::Complete => {
                hosted.completes[rank] = hosted.completes[rank].saturating_add(1);
                if head.token != 0 {
                    self.conclude(bml, from, &head);
                }
                Done::Yes
            }
            Kind::Holds => {
                let said = [doubt::answer(&hosted.mine, head.origin)];
                self.reply(bml, from, &head, Ok((0, &said)));
                Done::Yes
            }
            Kind::Answer | Kind::Credit | Kind::Layout | Kind::Forget => {
                Done::Nonsense("no message of a window")
            }
        }
    }

    /// Answers that all has been done that came before, if that was asked.
    fn conclude(&mut self, bml: &mut Bml, from: Rank, head: &Head) {
        let hosted = self.windows.get_mut(&head.window);
        let fault = hosted.and_then(|hosted| hosted.faults[head.rank as usize].take());
        if head.token == 0 {
            return;
        }
        self.reply(bml, from, head, fault.map_or(Ok((0, &[])), Err));
    }

    /// Gives locks to those who wait for them. Each of them waits in the lock's own words, as ranks do that map them: so all
    /// have their turns. Gives how many.
    pub(crate) fn grant_locks(&mut self, osc: &Osc, bml: &mut Bml) -> usize {
        let mut answers = Vec::new();
        let mut doubtful = Vec::new();
        for (id, hosted) in &mut self.windows {
            let mut at = 0;
            while let Some(waiter) = hosted.waiting.get(at) {
                let rank = waiter.question.rank;
                let processes = &hosted.processes;
                let is_lost =
                    |rank: u32| processes.get(rank as usize).is_some_and(|it| osc.is_lost(*it));
                let result = if hosted.header.try_lock(rank, waiter.kind, true, is_lost) {
                    hosted.held[rank as usize] = Some(waiter.kind);
                    Ok(())
                } else {
                    let Some(holder) = hosted.header.lost_holder(is_lost) else {
                        at += 1;
                        continue;
                    };
                    hosted.header.cancel(rank);
                    Err(Fault::Holder(hosted.processes[holder as usize]))
                };
                if let Some(mut waiter) = hosted.waiting.remove(at) {
                    waiter.doubt.forget(&mut self.asked);
                    answers.push((waiter, result));
                }
            }
            hosted.tries = hosted.tries.wrapping_add(1);
            if at > 0 && hosted.tries.is_multiple_of(TRIES_PER_DOUBT) {
                doubtful.push(*id);
            }
        }
        for id in doubtful {
            self.doubt_holders(osc, bml, id, &mut answers);
        }
        let count = answers.len();
        for (waiter, result) in answers {
            let result = result.map(|()| (0, &[][..]));
            self.reply(bml, Rank(waiter.process), &waiter.question, result);
        }
        count
    }

    /// Asks who is said to have the lock of a window, for those that wait for it.
    fn doubt_holders(
        &mut self,
        osc: &Osc,
        bml: &mut Bml,
        window: u32,
        answers: &mut Vec<(Waiter, Result<(), Fault>)>,
    ) {
        let Some(hosted) = self.windows.get_mut(&window) else { return };
        let (header, asks) = (hosted.header.clone(), hosted.rank);
        let (processes, numbers) = (Arc::clone(&hosted.processes), Arc::clone(&hosted.numbers));
        let mut waiting = std::mem::take(&mut hosted.waiting);
        let members =
            |rank: u32| Some((*processes.get(rank as usize)?, *numbers.get(rank as usize)?));
        let lost = || processes.iter().copied().find(|process| osc.is_lost(*process));
        let mut left = VecDeque::with_capacity(waiting.len());
        for mut waiter in waiting.drain(..) {
            let rank = waiter.question.rank;
            match waiter.doubt.look(self, bml, (&header, rank, asks), members, lost) {
                None => left.push_back(waiter),
                Some(process) => {
                    header.cancel(rank);
                    answers.push((waiter, Err(Fault::Holder(process))));
                }
            }
        }
        if let Some(hosted) = self.windows.get_mut(&window) {
            hosted.waiting = left;
        }
    }

    /// An operation on memory.
    fn access(&mut self, osc: &Osc, bml: &mut Bml, from: Rank, message: (&Head, &[u8])) -> Done {
        let head = message.0;
        let result = match self.peer(from.0).job.take() {
            // It was begun before: nothing of this process comes between.
            Some(job) => Ok(Outcome::Goes(job)),
            None => self.begin(osc, from, message),
        };
        let result = match result {
            Ok(Outcome::Goes(mut job)) => match job.step() {
                Some(result) => result.map_err(|error| fault(&error)),
                None => {
                    self.peer(from.0).job = Some(job);
                    return Done::Blocked;
                }
            },
            result => result,
        };
        match result {
            Ok(Outcome::Busy | Outcome::Goes(_)) => return Done::Blocked,
            Ok(Outcome::Nothing) => {}
            Ok(Outcome::Bytes(bytes)) => {
                self.reply(bml, from, head, Ok((head.start, &bytes)));
            }
            Err(fault) if head.token != 0 => self.reply(bml, from, head, Err(fault)),
            Err(fault) => {
                tracing::debug!(peer = %from, %fault, "an operation on a window is refused");
                if let Some(hosted) = self.windows.get_mut(&head.window) {
                    hosted.faults[head.rank as usize].get_or_insert(fault);
                }
            }
        }
        Done::Yes
    }

    /// Does an operation, or begins to, if it is on memory of a device.
    fn begin(&mut self, osc: &Osc, from: Rank, message: (&Head, &[u8])) -> Result<Outcome, Fault> {
        let layouts = &self.peer(from.0).layouts;
        let layout = layouts.get(message.0.layout)?.cloned();
        let Some(hosted) = self.windows.get(&message.0.window) else { return Ok(Outcome::Nothing) };
        let holders = |rank: u32| Holder::of(osc, hosted.processes.get(rank as usize));
        hosted.perform(layout.as_ref(), message, &holders)
    }
}

/// What is known of a rank that has a mutex.
#[derive(Clone, Copy, PartialEq)]
enum Holder {
    Lives,
    /// It may live.
    Lost,
    Dead,
}

impl Holder {
    fn of(osc: &Osc, process: Option<&u32>) -> Holder {
        match process {
            Some(process) if osc.is_dead(*process) => Holder::Dead,
            Some(process) if osc.is_lost(*process) => Holder::Lost,
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

    fn perform(
        &self,
        layout: Option<&Layout>,
        (head, bytes): (&Head, &[u8]),
        holders: &dyn Fn(u32) -> Holder,
    ) -> Result<Outcome, Fault> {
        let all = if self.pieces.is_some() { u64::MAX } else { self.own.bytes() };
        let target = place(all, head.origin, layout, head.count).map_err(|_| Fault::Outside)?;
        let plan = Plan::read(target, (head, bytes))?;
        if let Some(attached) = &self.pieces {
            attached.check(&plan)?;
            return self.run(attached, &plan, bytes, holders);
        }
        match self.own.memory() {
            Near::Host(memory) => self.run(memory, &plan, bytes, holders),
            Near::Device(memory) => {
                let stripes = plan.stripes(0)?;
                if !self.take(stripes, holders)? {
                    return Ok(Outcome::Busy);
                }
                let mutexes = (self.header.clone(), self.rank, stripes);
                let job = Job::new(head.window, memory, mutexes, (plan, bytes));
                Ok(Outcome::Goes(Box::new(job)))
            }
        }
    }

    fn run(
        &self,
        memory: &impl Memory,
        plan: &Plan,
        bytes: &[u8],
        holders: &dyn Fn(u32) -> Holder,
    ) -> Result<Outcome, Fault> {
        let stripes = plan.stripes(memory.misalignment(0, 8))?;
        if !self.take(stripes, holders)? {
            return Ok(Outcome::Busy);
        }
        let done = plan.run(memory, bytes);
        self.header.release_stripes(self.rank, stripes);
        done
    }
}
