//! A world of collectives that is running: ranks that take turns on a virtual clock, each at its own pace.

use super::game::Game;
use super::program::{Group, Item, Program};
use super::survive::Part;
use crate::comms::CommPlan;
use crate::journal::Failure;
use crate::plan::{Fault, Keep};
use crate::rail::{Shared, lock};
use crate::story::Story;
use crate::wire::Wire;
use crate::world::endpoints;
use gapless_bml::{Patience, Waiter};
use gapless_coll::{Executor, Operation, Sequencer};
use gapless_dtype::testkit::Rng;
use gapless_engine::HostEngine;
use gapless_pml::{Comm, CommRequest, Pml, PmlError, Source, TagSel};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// Turns of a world that never comes to rest: so many, and so many more for each step of each rank's schedules.
const TURNS_MAX: u64 = 100_000;
const TURNS_MAX_A_STEP: u64 = 1_000;
/// A rank looks at most so long after something has arrived.
const LATE_NS: u64 = 300;
/// A busy rank that finds nothing to do looks again after this, and then ever later, up to that.
const BUSY_NS: u64 = 100;
const BUSY_NS_MAX: u64 = 20_000;
/// How often a rank with a farewell to send polls by the clock, and how often in vain at most.
const CLOCK_NS: u64 = 1_000_000;
const CLOCK_ROUNDS: u32 = 12;
/// In larger worlds it is not asked of each pair of ranks whether a message was left behind.
const PAIRS_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Turn(usize),
    Fault(usize),
}

/// A process of the simulated job.
pub(super) struct SimProcess {
    /// Gone once it is dead. Dropped before the buffers.
    pub(super) pml: Option<Pml>,
    /// By number of communicator.
    pub(super) comms: Vec<(Comm, Sequencer)>,
    /// What it has not started: queues whose order it keeps.
    queues: Vec<VecDeque<usize>>,
    /// What is in flight: the game, this process's rank there.
    going: Vec<(usize, usize, Executor)>,
    thinks_until: u64,
    pub(super) survival: Part,
    last_turn: Option<u64>,
    /// How long it waits before it looks again, while it is busy.
    patience_ns: u64,
}

/// A world of collectives.
pub(crate) struct CollWorld {
    pub(super) program: Program,
    pub(super) wire: Shared,
    pub(super) procs: Vec<SimProcess>,
    /// Dropped after the endpoints that use their buffers.
    pub(crate) games: Vec<Game>,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    pub(super) rng: Rng,
    waiter: Waiter,
    pub(crate) turns: u64,
    turns_max: u64,
    /// Whether all communicators are made.
    pub(super) made: bool,
    /// Whether survivors agree on flags, and on which they have.
    pub(super) agrees: bool,
    pub(super) agreed: Vec<u32>,
    /// Who revokes the world before anybody agrees.
    pub(super) revoker: Option<u32>,
}

impl CollWorld {
    pub(crate) fn new(seed: u64, keep: &Keep, story: Story) -> CollWorld {
        CollWorld::of(seed, Program::draw(seed, keep), story)
    }

    pub(super) fn of(seed: u64, program: Program, story: Story) -> CollWorld {
        let wire = Arc::new(Mutex::new(Wire::new(&program.plan, story)));
        let games = program.items.iter().flat_map(|item| {
            let groups = program.groups(item.comm).into_iter();
            groups.map(|group| Game::new(item, group))
        });
        let games: Vec<Game> = games.collect();
        let parts = games.iter().flat_map(|game| &game.parts);
        let steps: usize = parts.map(|part| part.schedule.len()).sum();
        let count = program.plan.comms.len();
        let procs = (0u32..).zip(endpoints(&program.plan, &wire)).map(|(process, pml)| {
            let world = pml.world();
            let mut queues = vec![VecDeque::new(); if program.in_order { 1 } else { count }];
            for (at, game) in games.iter().enumerate() {
                if game.members.contains(&process) {
                    queues[if program.in_order { 0 } else { game.comm }].push_back(at);
                }
            }
            SimProcess {
                pml: Some(pml),
                comms: vec![(world.clone(), Sequencer::new(&world).checked(program.is_checked(0)))],
                queues,
                going: Vec::new(),
                thinks_until: 0,
                survival: Part::default(),
                last_turn: None,
                patience_ns: BUSY_NS,
            }
        });
        CollWorld {
            procs: procs.collect(),
            program,
            wire,
            games,
            queue: BinaryHeap::new(),
            serial: 0,
            rng: Rng::new(seed ^ 0x7475_726e),
            waiter: Waiter::with(Patience {
                spin: Duration::ZERO,
                yields: 0,
                block_ms: 0,
                clock_ms: 0,
            }),
            turns: 0,
            turns_max: TURNS_MAX + TURNS_MAX_A_STEP * steps as u64,
            made: false,
            agrees: false,
            agreed: Vec::new(),
            revoker: None,
        }
    }

    /// Its items and faults, by number, and its size.
    pub(crate) fn parts(&self) -> (Vec<u32>, Vec<u32>, u32) {
        let items = self.program.items.iter().map(|item| item.number).collect();
        let plan = &self.program.plan;
        (items, plan.faults.iter().map(|(number, _)| *number).collect(), plan.size)
    }

    pub(crate) fn size(&self) -> u32 {
        self.program.plan.size
    }

    /// How many ranks have died.
    pub(crate) fn deaths(&self) -> u64 {
        lock(&self.wire).dead.len() as u64
    }

    /// The story so far.
    pub(crate) fn story(&self) -> Story {
        lock(&self.wire).story.clone()
    }

    /// Plays the world to its end and holds it against the oracle.
    pub(crate) fn play(&mut self) -> Result<(), Failure> {
        self.make_comms()?;
        self.made = true;
        let now = self.now();
        for at in 0..self.program.plan.faults.len() {
            let (Fault::Kill { at_ns, .. }
            | Fault::LastWords { at_ns, .. }
            | Fault::Cut { at_ns, .. }) = self.program.plan.faults[at].1;
            self.schedule(now + at_ns, Event::Fault(at));
        }
        self.wake_all(2_000);
        self.run()?;
        self.check()?;
        self.check_nothing_is_left()?;
        if self.deaths() > 0 || !self.program.late.is_empty() {
            self.survive(true)?;
        }
        Ok(())
    }

    /// Those who are left use a communicator that they have just made. Some of them may be dead.
    pub(super) fn play_again(&mut self, members: Vec<u32>) -> Result<(), Failure> {
        let comm = self.procs.iter().map(|proc| proc.comms.len()).max().unwrap_or(1) - 1;
        for operation in [Operation::Allreduce, Operation::Alltoall, Operation::Barrier] {
            let number = u32::try_from(self.games.len()).expect("few collectives");
            let item = Item { number, comm, operation, seed: self.rng.next_u64() };
            let group = Group { members: members.clone(), first: None };
            self.games.push(Game::new(&item, group));
            let at = self.games.len() - 1;
            for member in &members {
                // Those in no order have queues of their own, but order does not matter here.
                self.procs[*member as usize].queues[0].push_back(at);
            }
        }
        self.turns = 0;
        self.wake_all(2_000);
        self.run()?;
        self.check()
    }

    fn make_comms(&mut self) -> Result<(), Failure> {
        for comm in 1..self.program.plan.comms.len() {
            let mut making = Vec::new();
            for process in 0..self.procs.len() {
                let request = self.start_comm(comm, process);
                making.push(request.map_err(|error| not_made(number(process), &error))?);
            }
            self.wake_all(2_000);
            self.run()?;
            for ((process, proc), request) in (0u32..).zip(&mut self.procs).zip(making) {
                let pml = proc.pml.as_mut().expect("nobody has died yet");
                let made = pml.collect_comm(request).map_err(|error| not_made(process, &error))?;
                let Some(Some(made)) = made else {
                    let what = format!("communicator {comm} is being made for ever");
                    return Err(Failure::new(what, &[process]));
                };
                let sequencer = Sequencer::new(&made).checked(self.program.is_checked(comm));
                proc.comms.push((made, sequencer));
            }
        }
        Ok(())
    }

    fn start_comm(&mut self, comm: usize, process: usize) -> Result<CommRequest, PmlError> {
        let plan = &self.program.plan;
        let proc = &mut self.procs[process];
        let pml = proc.pml.as_mut().expect("nobody has died yet");
        let (world, process) = (pml.world(), number(process));
        match plan.comms[comm] {
            CommPlan::Split { colors, reversed } => {
                let key = i32::try_from(process).expect("a small job");
                let key = if reversed { -key } else { 0 };
                pml.start_split(&world, Some(process % colors), key)
            }
            CommPlan::Inter { halves } => {
                let leader = plan.members(comm, process)[0];
                pml.start_intercomm(&proc.comms[halves].0, 0, (&world, leader), 0)
            }
            _ => pml.start_dup(&world),
        }
    }

    pub(super) fn now(&self) -> u64 {
        lock(&self.wire).now
    }

    fn tell(&self, rank: usize, text: impl FnOnce() -> String) {
        let mut wire = lock(&self.wire);
        let now = wire.now;
        wire.story.tell(now, number(rank), None, text);
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((at_ns, self.serial, event)));
    }

    pub(super) fn schedule_turn(&mut self, at_ns: u64, rank: usize) {
        self.schedule(at_ns, Event::Turn(rank));
    }

    fn wake_all(&mut self, within_ns: u64) {
        let now = self.now();
        for rank in 0..self.procs.len() {
            let at_ns = now + 1 + self.rng.below(within_ns);
            self.schedule(at_ns, Event::Turn(rank));
        }
    }

    /// Gives turns until nothing moves, not even by the clock: ranks that have a farewell to say poll by it.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        let mut quiet = 0;
        while quiet < CLOCK_ROUNDS {
            let parcels = lock(&self.wire).tally.parcels;
            self.run_events()?;
            let wire = lock(&self.wire);
            let harmed: Vec<u32> = wire.harmed.iter().map(|(one, _)| *one).collect();
            quiet = if wire.tally.parcels == parcels { quiet + 1 } else { 0 };
            let next = wire.now + CLOCK_NS;
            drop(wire);
            if harmed.is_empty() {
                break;
            }
            for rank in harmed {
                self.schedule(next, Event::Turn(rank as usize));
            }
        }
        self.run_events()
    }

    fn run_events(&mut self) -> Result<(), Failure> {
        while let Some(Reverse((at_ns, _, event))) = self.queue.pop() {
            lock(&self.wire).now = at_ns;
            match event {
                Event::Turn(rank) => {
                    // Woken twice for one moment, it looks once.
                    let proc = &mut self.procs[rank];
                    let before = proc.last_turn.replace(at_ns);
                    if proc.pml.is_some() && before != Some(at_ns) {
                        self.turn(rank)?;
                    }
                }
                Event::Fault(at) => self.strike(at),
            }
            self.pass_wakes();
        }
        Ok(())
    }

    fn pass_wakes(&mut self) {
        let mut wire = lock(&self.wire);
        wire.settle();
        wire.room.clear();
        let wakes = std::mem::take(&mut wire.wakes);
        let now = wire.now;
        drop(wire);
        for (at_ns, rank) in wakes {
            let late = 1 + self.rng.below(LATE_NS);
            self.schedule(at_ns.max(now) + late, Event::Turn(rank as usize));
        }
    }

    fn strike(&mut self, at: usize) {
        match self.program.plan.faults[at].1 {
            Fault::Kill { rank, .. } => self.end_process(rank),
            Fault::LastWords { rank, parcels, .. } => {
                lock(&self.wire).last_words.entry(rank).or_insert(parcels);
            }
            Fault::Cut { .. } => {}
        }
    }

    fn end_process(&mut self, rank: u32) {
        let proc = &mut self.procs[rank as usize];
        if proc.pml.take().is_some() {
            // Their buffers stay, and so does what peers may still read.
            proc.going.clear();
            lock(&self.wire).kill(rank);
        }
    }

    /// A rank makes progress, starts collectives, advances those in flight, and says when it wants to go on.
    fn turn(&mut self, rank: usize) -> Result<(), Failure> {
        self.turns += 1;
        if self.turns > self.turns_max {
            return Err(Failure::new("the world does not come to rest", &[]));
        }
        let pml = self.procs[rank].pml.as_mut();
        let mut done = pml.expect("only the living are given their turn").progress();
        // After any progress, however little: as a caller that waits does.
        self.begin_to_agree(rank)?;
        let mut moved = self.start(rank);
        moved |= self.advance(rank);
        let mut wire = lock(&self.wire);
        if let Some(what) = wire.broken.pop() {
            return Err(Failure::new(what, &[number(rank)]));
        }
        let over = wire.last_words.get(&number(rank)) == Some(&0);
        let now = wire.now;
        drop(wire);
        if over {
            self.end_process(number(rank));
            return Ok(());
        }
        let proc = &mut self.procs[rank];
        let pml = proc.pml.as_mut().expect("it is alive");
        let busy = pml.is_busy() || proc.going.iter().any(|(_, _, it)| it.is_busy());
        if done == 0 && !moved && (!busy || proc.patience_ns > BUSY_NS) {
            done += pml.arm(&mut self.waiter);
        }
        let thinks_until = proc.thinks_until;
        let may_go_on = self.made && self.next(rank).is_some();
        let proc = &mut self.procs[rank];
        if done > 0 || moved {
            proc.patience_ns = BUSY_NS;
            let soon = now + 20 + self.rng.below(400);
            self.schedule(soon, Event::Turn(rank));
        } else if busy {
            let later = now + proc.patience_ns + self.rng.below(400);
            proc.patience_ns = (2 * proc.patience_ns).min(BUSY_NS_MAX);
            self.schedule(later, Event::Turn(rank));
        }
        if thinks_until > now && may_go_on {
            self.schedule(thinks_until, Event::Turn(rank));
        }
        Ok(())
    }

    /// The queue from which a rank starts next, if it may.
    fn next(&mut self, rank: usize) -> Option<usize> {
        let proc = &self.procs[rank];
        let pace = self.program.paces[rank];
        if self.program.in_order {
            let waits = proc.going.len() >= pace.in_flight || proc.queues[0].is_empty();
            return (!waits).then_some(0);
        }
        let open: Vec<usize> =
            (0..proc.queues.len()).filter(|at| !proc.queues[*at].is_empty()).collect();
        if open.is_empty() { None } else { Some(*self.rng.pick(&open)) }
    }

    /// Starts collectives; whether there were any.
    fn start(&mut self, rank: usize) -> bool {
        let now = self.now();
        let mut moved = false;
        while self.made && self.procs[rank].thinks_until <= now {
            let Some(queue) = self.next(rank) else { break };
            let think_ns = self.program.paces[rank].think_ns;
            let proc = &mut self.procs[rank];
            let Some(at) = proc.queues[queue].pop_front() else { break };
            let game = &mut self.games[at];
            let Some(place) = game.members.iter().position(|it| *it == number(rank)) else { break };
            let ticket = proc.comms[game.comm].1.next();
            {
                let mut wire = lock(&self.wire);
                for region in game.regions(place).iter().filter(|region| !region.is_empty()) {
                    wire.buffers.insert(region.address(), region.len());
                }
                let what = &game.what;
                wire.story.tell(now, number(rank), None, || format!("starts {what}"));
            }
            let (schedule, buffers) = (game.parts[place].schedule.clone(), game.buffers(place));
            let combine = Some(game.combine.clone());
            // SAFETY: the game keeps the buffers until the endpoints are gone, and looks at them, or at the fields
            // beside them, when all has come to rest.
            let executor = unsafe { Executor::new(schedule, buffers, combine, ticket) };
            match executor {
                Ok(executor) => proc.going.push((at, place, executor)),
                Err(error) => game.parts[place].result = Some(Err(error)),
            }
            proc.thinks_until = now + self.rng.below(think_ns + 1);
            moved = true;
        }
        moved
    }

    /// Advances what a rank has in flight; whether something has ended.
    fn advance(&mut self, rank: usize) -> bool {
        let proc = &mut self.procs[rank];
        let Some(pml) = &mut proc.pml else { return false };
        let mut ended = Vec::new();
        proc.going.retain_mut(|(at, place, executor)| {
            match executor.advance(pml, &HostEngine, &HostEngine) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    ended.push((*at, *place, result));
                    false
                }
            }
        });
        let moved = !ended.is_empty();
        for (at, place, result) in ended {
            let what = self.games[at].what.split(',').next().unwrap_or_default();
            self.tell(rank, || format!("ends {what}: {result:?}"));
            self.games[at].parts[place].result = Some(result);
        }
        moved
    }

    /// Whether every survivor's collectives have ended, each with the right result or with an error that blames a dead
    /// rank.
    fn check(&self) -> Result<(), Failure> {
        let dead = &lock(&self.wire).dead;
        for game in &self.games {
            for (place, (part, process)) in game.parts.iter().zip(&game.members).enumerate() {
                let wrong = |what: String| {
                    Err(Failure::new(format!("{}: rank {place}: {what}", game.what), &[*process]))
                };
                match &part.result {
                    None if dead.contains(process) => {}
                    None => {
                        let each = game.parts.iter().zip(&game.members);
                        let open =
                            each.filter(|(part, it)| part.result.is_none() && !dead.contains(it));
                        let open: Vec<u32> = open.map(|(_, process)| *process).collect();
                        return wrong(format!("it never ends; nor do processes {open:?}"));
                    }
                    Some(Ok(())) => {}
                    Some(Err(error)) => {
                        let culprit = error.culprit().and_then(|rank| game.culprit(rank));
                        if !culprit.is_some_and(|process| dead.contains(&process)) {
                            return wrong(format!("an error that no death explains: {error}"));
                        }
                    }
                }
                if let Err(what) = game.check(place) {
                    return wrong(what);
                }
            }
        }
        Ok(())
    }

    /// Whether a message of a living rank is left that no collective has received.
    fn check_nothing_is_left(&mut self) -> Result<(), Failure> {
        let dead = lock(&self.wire).dead.clone();
        for (process, proc) in (0u32..).zip(&mut self.procs) {
            let Some(pml) = &mut proc.pml else { continue };
            let sides = proc.comms.iter().map(|(comm, _)| comm.side());
            for comm in proc.comms.iter().map(|(comm, _)| comm).chain(sides) {
                let context = comm.collective();
                let peers: Vec<u32> = comm.peers().processes().collect();
                let living = (0u32..).zip(&peers).filter(|(_, peer)| !dead.contains(peer));
                let sources: Vec<Source> = match peers.len() <= PAIRS_MAX {
                    true => living.map(|(rank, _)| Source::Rank(rank)).collect(),
                    false if dead.is_empty() => vec![Source::Any],
                    false => Vec::new(),
                };
                for source in sources {
                    if let Ok(Some(left)) = pml.find(&context, source, TagSel::Any) {
                        let what = format!("a message is left behind: {left:?}");
                        return Err(Failure::new(what, &[process]));
                    }
                }
            }
        }
        Ok(())
    }
}

pub(super) fn number(rank: usize) -> u32 {
    u32::try_from(rank).expect("a job has 32-bit ranks")
}

fn not_made(process: u32, error: &PmlError) -> Failure {
    Failure::new(format!("a communicator is not made: {error}"), &[process])
}
