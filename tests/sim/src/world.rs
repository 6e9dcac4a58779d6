//! A world: ranks that take turns on a virtual clock. A rank gets a turn when its script continues
//! or when its rails have something for it. It sleeps as a real process does, after arming. So an
//! endpoint that forgets to say that it is busy is found: its rank never wakes.

use crate::journal::{Failure, Journal};
use crate::oracle::Case;
use crate::plan::{Ending, Fault, Keep, Plan};
use crate::rail::{Rail, Shared, lock};
use crate::rank::{Mood, Rank};
use crate::shapes::Shapes;
use crate::story::Story;
use crate::tap::Tap;
use crate::wire::{Tally, Wire};
use gapless_bml::{Bml, Patience, PeerState, Rank as Process, Waiter};
use gapless_dtype::testkit::Rng;
use gapless_engine::HostEngine;
use gapless_pml::{Bounds, Config, Pml, Protocol, Tuning};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Within this time after the rails must report a death, a survivor knows of it and has ended every operation that
/// needed the dead rank.
const DEATH_GRACE_NS: u64 = 20_000_000;
/// A rank looks at most so long after something has arrived.
const LATE_NS: u64 = 300;
/// Turns without effect after which a busy rank waits for its rails.
const IDLE_TURNS: u32 = 6;
/// How often a rank with a farewell to send polls by the clock, and how often in vain at most.
const CLOCK_NS: u64 = 1_000_000;
const CLOCK_ROUNDS: u32 = 12;
/// Numbers of receives that end a world start here.
pub(crate) const DRAIN_NUMBERS: u32 = 1 << 24;
/// Turns of a world that never comes to rest.
const TURNS_MAX: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Turn(u32),
    /// There may be room again that this rank waits for.
    Room(u32),
    Fault(usize),
    /// By now everything that needed this rank, which is dead, has ended.
    Departed(u32),
}

/// A world that is running.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) wire: Shared,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) journal: Journal,
    shapes: Shapes,
    queue: BinaryHeap<Reverse<(u64, u64, SimEvent)>>,
    serial: u64,
    /// When each rank had its last turn.
    last_turn: Vec<Option<u64>>,
    idle: Vec<u32>,
    /// When each rank will look for room.
    looks: Vec<BTreeSet<u64>>,
    rng: Rng,
    waiter: Waiter,
    turns: u64,
    drained: u32,
    /// Pairs of ranks that lost a link and kept each other.
    pub(crate) kept: u64,
}

fn config(plan: &Plan) -> Config {
    let knobs = &plan.knobs;
    let tuning = Tuning {
        eager_bytes_sure: knobs.eager_sure,
        single_copy_batch_bytes: knobs.batch_bytes,
        ..Tuning::default().in_fragments(knobs.fragment_bytes)
    };
    let bounds = Bounds {
        parked_messages: knobs.parked_messages,
        fragments_per_progress: knobs.fragments_per_progress,
        ..Bounds::default()
    };
    let force = knobs.force.map(|at| Protocol::ALL[at]);
    // A seed must not depend on the clock.
    let meeting = if plan.links_when_needed { Duration::ZERO } else { Duration::MAX };
    Config { tuning, bounds, force, meeting, ..Config::default() }
}

/// The endpoints of all ranks of a world.
pub(crate) fn endpoints(plan: &Plan, wire: &Shared) -> Vec<Pml> {
    let mut bmls: Vec<Bml> = Vec::new();
    for rank in 0..plan.size {
        let mut bml = Bml::new(Process(rank), plan.size);
        for (number, rail) in plan.rails.iter().enumerate() {
            bml.add(Box::new(Rail::new(Arc::clone(wire), rail, number, rank, plan.size)));
        }
        bmls.push(bml);
    }
    let addresses: Vec<_> = bmls.iter().map(Bml::addresses).collect();
    let mut all = Vec::new();
    for mut bml in bmls {
        for (peer, addresses) in (0..plan.size).zip(&addresses) {
            let known = match plan.links_when_needed {
                true => bml.introduce(Process(peer), addresses),
                false => bml.connect(Process(peer), addresses),
            };
            known.expect("every rail reaches everybody");
        }
        // A seed must not depend on the clock.
        bml.set_explanation_time(std::time::Duration::ZERO);
        bml.watch();
        all.push(Pml::new(bml, vec![Arc::new(HostEngine)], config(plan)));
    }
    all
}

impl World {
    pub(crate) fn new(seed: u64, keep: &Keep, story: Story) -> World {
        let shapes = Shapes::new(seed);
        let plan = Plan::draw(seed, shapes.bytes, keep);
        let wire = Arc::new(Mutex::new(Wire::new(&plan, story)));
        let ranks = endpoints(&plan, &wire).into_iter().zip(0..).map(|(mut pml, rank)| {
            pml.attach_buffer(plan.knobs.buffer_bytes).expect("the first buffer");
            Rank::new(rank, pml, &plan, Arc::clone(&wire))
        });
        let ranks = ranks.collect();
        let size = plan.size as usize;
        World {
            wire,
            ranks,
            journal: Journal::default(),
            shapes,
            queue: BinaryHeap::new(),
            serial: 0,
            last_turn: vec![None; size],
            idle: vec![0; size],
            looks: vec![BTreeSet::new(); size],
            rng: Rng::new(seed ^ 0x7074),
            waiter: Waiter::with(Patience {
                spin: Duration::ZERO,
                yields: 0,
                block_ms: 0,
                clock_ms: 0,
            }),
            turns: 0,
            drained: DRAIN_NUMBERS,
            kept: 0,
            plan,
        }
    }

    fn schedule(&mut self, at_ns: u64, event: SimEvent) {
        self.serial += 1;
        self.queue.push(Reverse((at_ns, self.serial, event)));
    }

    fn wake(&mut self, rank: u32, at_ns: u64) {
        self.schedule(at_ns, SimEvent::Turn(rank));
    }

    fn now(&self) -> u64 {
        lock(&self.wire).now
    }

    /// Plays the world to its end and holds it against the oracle; gives how many messages were
    /// received.
    pub(crate) fn play(&mut self) -> Result<u64, Failure> {
        for at in 0..self.plan.faults.len() {
            let (Fault::Kill { at_ns, .. }
            | Fault::LastWords { at_ns, .. }
            | Fault::Cut { at_ns, .. }) = self.plan.faults[at].1;
            self.schedule(at_ns, SimEvent::Fault(at));
        }
        for rank in 0..self.plan.size {
            let start = self.rng.below(2_000);
            self.wake(rank, start);
        }
        self.run()?;
        // What waits for what never comes goes on.
        while self.ranks.iter().any(Rank::has_script) {
            // All scripts begin with these, so that nobody keeps the others waiting.
            if self.ranks.iter().any(|rank| rank.is_alive() && rank.is_making()) {
                return Err(Failure::new("a communicator is being made for ever", &[]));
            }
            for rank in 0..self.plan.size {
                self.ranks[rank as usize].give_up_waiting();
                self.wake_later(rank);
            }
            self.run()?;
        }
        let rest_tick = lock(&self.wire).tick;
        self.wind_up()?;
        let wire = lock(&self.wire);
        let memory = self.ranks.iter().map(|rank| &rank.memory[..]).collect();
        let case =
            Case { plan: &self.plan, journal: &self.journal, wire: &wire, memory, rest_tick };
        case.check()
    }

    fn wake_later(&mut self, rank: u32) {
        if self.ranks[rank as usize].is_alive() {
            let at_ns = self.now() + 1 + self.rng.below(1_000);
            self.idle[rank as usize] = 0;
            self.wake(rank, at_ns);
        }
    }

    fn living(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|&rank| self.ranks[rank].is_alive()).collect()
    }

    /// Receives what is left, or has everybody leave.
    fn wind_up(&mut self) -> Result<(), Failure> {
        for rank in self.living() {
            if self.ranks[rank].is_making() {
                return Err(Failure::new("a communicator is being made for ever", &[]));
            }
            if let Some(what) = self.ranks[rank].hopeless(&self.plan, &self.journal) {
                let rank = u32::try_from(rank).unwrap_or(0);
                return Err(Failure::new(format!("{what} waits, and nobody is left"), &[rank]));
            }
        }
        match self.plan.ending {
            Ending::Drain => {
                for rank in self.living() {
                    self.ranks[rank].cancel_all(&mut self.journal)?;
                }
                let mut posted = 1;
                while posted > 0 {
                    posted = 0;
                    for rank in self.living() {
                        let World { plan, shapes, journal, drained, .. } = self;
                        posted += self.ranks[rank].drain(plan, shapes, journal, drained)?;
                    }
                    self.run_all()?;
                }
            }
            Ending::Leave => {
                // Whoever is met meanwhile is told, too.
                for _ in 0..2 {
                    for rank in self.living() {
                        self.ranks[rank].pml.as_mut().expect("alive").say_farewell();
                    }
                    self.run_all()?;
                }
                for rank in self.living() {
                    let pml = self.ranks[rank].pml.as_mut().expect("alive");
                    if !pml.all_farewells() {
                        return Err(Failure::new(
                            "a farewell did not come",
                            &[u32::try_from(rank).unwrap_or(0)],
                        ));
                    }
                    self.ranks[rank].cancel_all(&mut self.journal)?;
                    self.ranks[rank].pml.as_mut().expect("alive").refuse_unreceived();
                }
                self.run_all()?;
            }
        }
        for rank in self.living() {
            self.ranks[rank].collect(&mut self.journal)?;
            if self.ranks[rank].has_pending() {
                let number = u32::try_from(rank).unwrap_or(0);
                let waits = self.ranks[rank].oldest(&self.journal);
                return Err(Failure::new(format!("{waits} never ends"), &[number]));
            }
        }
        for rank in self.living() {
            self.ranks[rank].free_all()?;
        }
        self.both_or_neither()
    }

    /// If one of two survivors has lost the other, so has the other.
    fn both_or_neither(&mut self) -> Result<(), Failure> {
        let harmed: Vec<(u32, u32)> = lock(&self.wire).harmed.iter().copied().collect();
        for (a, b) in harmed {
            let mut lost = |one: u32, other: u32| {
                let pml = self.ranks[one as usize].pml.as_mut()?;
                Some(matches!(pml.bml_mut().state(Process(other)), PeerState::Lost(_)))
            };
            match (lost(a, b), lost(b, a)) {
                (Some(one), Some(other)) if one != other => {
                    let what = "one of two ranks has lost the other, and that one has not";
                    return Err(Failure::new(what, &[a, b]));
                }
                (Some(false), Some(false)) => self.kept += u64::from(a < b),
                _ => {}
            }
        }
        Ok(())
    }

    fn run_all(&mut self) -> Result<(), Failure> {
        for rank in 0..self.plan.size {
            self.wake_later(rank);
        }
        self.run()
    }

    /// Gives turns until nothing moves, not even by the clock: bml has who has a farewell to say
    /// polled by it, and only those who lost a link can have one.
    fn run(&mut self) -> Result<(), Failure> {
        let mut quiet = 0;
        while quiet < CLOCK_ROUNDS {
            let parcels = self.tally().parcels;
            self.run_events()?;
            let harmed: Vec<u32> = lock(&self.wire).harmed.iter().map(|(one, _)| *one).collect();
            if harmed.is_empty() {
                break;
            }
            quiet = if self.tally().parcels == parcels { quiet + 1 } else { 0 };
            let next = self.now() + CLOCK_NS;
            for rank in harmed {
                self.wake(rank, next);
            }
        }
        self.run_events()?;
        for rank in self.living() {
            if self.is_busy(rank) {
                let rank = u32::try_from(rank).unwrap_or(0);
                return Err(Failure::new(format!("rank {rank} is busy for ever"), &[rank]));
            }
        }
        Ok(())
    }

    fn run_events(&mut self) -> Result<(), Failure> {
        while let Some(Reverse((at_ns, _, event))) = self.queue.pop() {
            lock(&self.wire).now = at_ns;
            if let SimEvent::Room(rank) = event {
                self.looks[rank as usize].remove(&at_ns);
            }
            match event {
                SimEvent::Room(rank) if !self.is_busy(rank as usize) => {}
                SimEvent::Turn(rank) | SimEvent::Room(rank) => {
                    // Woken twice for one moment, it looks once.
                    let before = self.last_turn[rank as usize].replace(at_ns);
                    if self.ranks[rank as usize].is_alive() && before != Some(at_ns) {
                        self.turn(rank)?;
                    }
                }
                SimEvent::Fault(at) => self.strike(at),
                SimEvent::Departed(gone) => self.departed(gone)?,
            }
            self.pass_wakes();
        }
        Ok(())
    }

    fn is_busy(&self, rank: usize) -> bool {
        self.ranks[rank].pml.as_ref().is_some_and(Pml::is_busy)
    }

    fn pass_wakes(&mut self) {
        let mut wire = lock(&self.wire);
        wire.settle();
        let (wakes, room) = (std::mem::take(&mut wire.wakes), std::mem::take(&mut wire.room));
        let now = wire.now;
        drop(wire);
        for (at_ns, rank) in room {
            let at_ns = at_ns.max(now);
            let looks = &mut self.looks[rank as usize];
            // One look soon after is enough, however many wait for it.
            if looks.range(at_ns + 1..=at_ns + LATE_NS).next().is_none() {
                let due = at_ns + 1 + self.rng.below(LATE_NS);
                looks.insert(due);
                self.schedule(due, SimEvent::Room(rank));
            }
        }
        for (at_ns, rank) in wakes {
            // A rank looks a little after something has come.
            let late = 1 + self.rng.below(LATE_NS);
            self.wake(rank, at_ns.max(now) + late);
        }
    }

    /// A rank acts, makes progress, and says when it wants to go on.
    fn turn(&mut self, number: u32) -> Result<(), Failure> {
        self.turns += 1;
        if self.turns > TURNS_MAX {
            return Err(Failure::new("the world does not come to rest", &[]));
        }
        let World { plan, shapes, journal, ranks, rng, .. } = self;
        let rank = &mut ranks[number as usize];
        let mut moved = false;
        for _ in 0..1 + rng.below(4) {
            if rank.mood(plan) != Mood::Eager {
                break;
            }
            rank.act(plan, shapes, journal)?;
            moved = true;
        }
        let mut done = rank.pml.as_mut().map_or(0, Pml::progress);
        moved |= rank.look(journal)?;
        if rng.chance(10) {
            rank.collect(journal)?;
        }
        let broken = lock(&self.wire).broken.pop();
        if let Some(what) = broken {
            return Err(Failure::new(what, &[number]));
        }
        if lock(&self.wire).last_words.get(&number) == Some(&0) {
            self.end_process(number);
            return Ok(());
        }
        let mood = rank.mood(plan);
        if done == 0 && !moved && mood != Mood::Eager {
            let pml = rank.pml.as_mut().expect("alive");
            // One that is busy goes on polling, and bml looks at a quiet rail now and then; here it
            // looks at all of them before the rank waits to be woken.
            if !pml.is_busy() || self.idle[number as usize] >= IDLE_TURNS {
                done += pml.arm(&mut self.waiter);
            }
        }
        let now = self.now();
        let soon = now + 20 + self.rng.below(400);
        let busy = self.is_busy(number as usize);
        if done > 0 || moved || mood == Mood::Eager {
            self.idle[number as usize] = 0;
            self.wake(number, soon);
        } else if busy && self.idle[number as usize] < IDLE_TURNS {
            self.idle[number as usize] += 1;
            self.wake(number, soon);
        }
        if let Mood::Thinking(until) = mood {
            self.wake(number, until);
        }
        Ok(())
    }

    /// Something goes wrong.
    fn strike(&mut self, at: usize) {
        match self.plan.faults[at].1 {
            Fault::Kill { rank, .. } => self.end_process(rank),
            Fault::LastWords { rank, parcels, .. } => {
                lock(&self.wire).last_words.entry(rank).or_insert(parcels);
                // With nothing left to say it dies at once.
                self.wake_later(rank);
            }
            Fault::Cut { rail, a, b, .. } => {
                let mut wire = lock(&self.wire);
                let now = wire.now;
                wire.story.tell(now, a, Some(b), || format!("loses its link on rail {rail}"));
                wire.cut(rail, a, b);
            }
        }
    }

    fn end_process(&mut self, rank: u32) {
        if self.ranks[rank as usize].is_alive() {
            self.ranks[rank as usize].die();
            lock(&self.wire).kill(rank);
            // A few hear of it from others, and call then.
            let hops = if self.plan.links_when_needed { 6 } else { 1 };
            let due = self.now() + hops * (self.plan.knobs.notice_ns_max + DEATH_GRACE_NS);
            self.schedule(due, SimEvent::Departed(rank));
        }
    }

    /// Survivors have heard of a death by now, and ended what needed the dead.
    fn departed(&mut self, gone: u32) -> Result<(), Failure> {
        for rank in self.living() {
            let number = u32::try_from(rank).unwrap_or(0);
            let pml = self.ranks[rank].pml.as_mut().expect("alive");
            if !matches!(pml.bml_mut().state(Process(gone)), PeerState::Lost(_)) {
                return Err(Failure::new(
                    format!("rank {number} has not heard of a death in time"),
                    &[number, gone],
                ));
            }
            if let Some(what) = self.ranks[rank].needs(gone, &self.journal) {
                return Err(Failure::new(
                    format!("{what} outlives the peer it needs"),
                    &[number, gone],
                ));
            }
        }
        Ok(())
    }

    /// Its actions and faults, by number, and its size.
    pub(crate) fn parts(&self) -> (Vec<u32>, Vec<u32>, u32) {
        let actions = self.plan.scripts.iter().flatten().map(|step| step.number).collect();
        let faults = self.plan.faults.iter().map(|(number, _)| *number).collect();
        (actions, faults, self.plan.size)
    }

    /// What the wire has counted.
    pub(crate) fn tally(&self) -> Tally {
        lock(&self.wire).tally
    }

    /// How many ranks have died.
    pub(crate) fn deaths(&self) -> u64 {
        lock(&self.wire).dead.len() as u64
    }

    /// Has `tap` hear what happens from now on.
    pub(crate) fn listen(&mut self, tap: Option<Tap>) {
        lock(&self.wire).tap = tap;
    }

    /// What whoever listens has heard so far.
    pub(crate) fn tap(&self) -> Option<Tap> {
        lock(&self.wire).tap.clone()
    }

    /// The story so far.
    pub(crate) fn story(&self) -> Story {
        lock(&self.wire).story.clone()
    }
}
