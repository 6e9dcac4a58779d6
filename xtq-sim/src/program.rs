//! What the ranks do: programs as data, a list of steps with dependencies for each, and the change that makes
//! two-sided reductions into tasks.
//!
//! Places are ranges of one rank's memory, in bytes. The elements that are summed have 4 bytes.

use thiserror::Error;

/// A range of a rank's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryRange {
    /// Where it begins.
    pub start: u64,
    /// How long it is.
    pub len: u64,
}

impl MemoryRange {
    /// No bytes: of messages that only say that something has happened.
    pub const NOTHING: MemoryRange = MemoryRange { start: 0, len: 0 };

    /// Bytes from `start` on.
    #[must_use]
    pub const fn new(start: u64, len: u64) -> MemoryRange {
        MemoryRange { start, len }
    }

    /// Where it ends.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.len
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimWork {
    /// Sends a message. It has ended when the NIC has read the bytes.
    Send {
        /// To whom.
        to: usize,
        /// Which message between the two, in this direction.
        slot: u32,
        /// The bytes.
        from: MemoryRange,
    },
    /// Receives a message. It has ended when the thread has seen that the bytes are there.
    Receive {
        /// From whom.
        from: usize,
        /// Which message between the two, in this direction.
        slot: u32,
        /// Where to.
        into: MemoryRange,
    },
    /// `into += source`, element by element: on the CPU or, as the configuration says, by a kernel that the CPU launches.
    Reduce {
        /// What is added.
        source: MemoryRange,
        /// To what.
        into: MemoryRange,
    },
    /// Copies within this rank.
    Copy {
        /// Where from.
        from: MemoryRange,
        /// Where to.
        into: MemoryRange,
    },
    /// `XtqPut`: the bytes go along with a task that adds them to the target's buffer.
    Put {
        /// To whom.
        to: usize,
        /// The target's number of the task.
        task: u32,
        /// The payload.
        from: MemoryRange,
        /// Where in the target's buffer they are added.
        at: u64,
    },
    /// Waits until a task that others put here has ended.
    Task {
        /// Its number at this rank.
        task: u32,
    },
    /// A message of the NIC's own interface without bytes and without matching: the acknowledgement of a task.
    Notify {
        /// To whom.
        to: usize,
        /// Which of those between the two.
        slot: u32,
    },
    /// Waits for such a message.
    Notice {
        /// From whom.
        from: usize,
        /// Which of those between the two.
        slot: u32,
    },
}

/// The slot of the zero-length messages that say: a target has posted its buffers (§V.C.2). Others are below it.
pub const READY: u32 = u32::MAX;

/// A step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimStep {
    /// What it does.
    pub work: SimWork,
    /// The steps that must have ended before: all earlier in the list.
    pub after: Vec<usize>,
    /// Which thread does it: 0 is the application's, 1 the library's own (§V.C.1).
    pub thread: usize,
}

impl SimStep {
    /// A step of the application's thread.
    #[must_use]
    pub fn new(work: SimWork, after: &[usize]) -> SimStep {
        SimStep { work, after: after.to_vec(), thread: 0 }
    }

    /// A step of the library's own thread.
    #[must_use]
    pub fn apart(work: SimWork, after: &[usize]) -> SimStep {
        SimStep { thread: 1, ..SimStep::new(work, after) }
    }
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Length of its memory, in bytes.
    pub memory: u64,
    /// Its steps.
    pub steps: Vec<SimStep>,
}

/// Why programs cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// A step depends on one that is not before it.
    #[error("step {step} of rank {rank} waits for step {on}, which is not before it")]
    Order {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
        /// What it waits for.
        on: usize,
    },
    /// A rank that does not exist.
    #[error("step {step} of rank {rank} names rank {peer}, of {ranks}")]
    NoSuchRank {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
        /// Whom it names.
        peer: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A place outside the memory.
    #[error("step {step} of rank {rank} names bytes {start}..{end} of {memory}")]
    Outside {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
        /// Where the place begins.
        start: u64,
        /// Where it ends.
        end: u64,
        /// Length of the memory.
        memory: u64,
    },
    /// A place that does not lie on grains.
    #[error("step {step} of rank {rank} names {place:?}, which is no multiple of {grain} bytes")]
    Grain {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
        /// The place.
        place: MemoryRange,
        /// The grain.
        grain: u64,
    },
    /// A thread that does not exist.
    #[error("step {step} of rank {rank} is thread {thread}'s: there are 0 and 1")]
    NoSuchThread {
        /// Whose step.
        rank: usize,
        /// Which step.
        step: usize,
        /// The thread.
        thread: usize,
    },
    /// More nodes than a switch of the model has ports.
    #[error("{ranks} nodes; the switch has {most} ports")]
    TooMany {
        /// How many.
        ranks: usize,
        /// How many there may be.
        most: usize,
    },
}

impl SimStep {
    /// The places that it touches.
    fn places(&self) -> [MemoryRange; 2] {
        match self.work {
            SimWork::Send { from, .. } | SimWork::Put { from, .. } => [from, MemoryRange::NOTHING],
            SimWork::Receive { into, .. } => [into, MemoryRange::NOTHING],
            SimWork::Reduce { source: from, into } | SimWork::Copy { from, into } => [from, into],
            SimWork::Task { .. } | SimWork::Notify { .. } | SimWork::Notice { .. } => {
                [MemoryRange::NOTHING; 2]
            }
        }
    }

    fn peer(&self) -> Option<usize> {
        match self.work {
            SimWork::Send { to, .. } | SimWork::Put { to, .. } | SimWork::Notify { to, .. } => {
                Some(to)
            }
            SimWork::Receive { from, .. } | SimWork::Notice { from, .. } => Some(from),
            SimWork::Reduce { .. } | SimWork::Copy { .. } | SimWork::Task { .. } => None,
        }
    }
}

/// Checks that programs make sense by themselves; whether they end is what the simulation shows.
///
/// # Errors
/// The first thing that makes none.
pub fn check(programs: &[Program]) -> Result<(), ProgramError> {
    let ranks = programs.len();
    for (rank, program) in programs.iter().enumerate() {
        for (step, it) in program.steps.iter().enumerate() {
            if let Some(&on) = it.after.iter().find(|&&on| on >= step) {
                return Err(ProgramError::Order { rank, step, on });
            }
            if let Some(peer) = it.peer().filter(|&peer| peer >= ranks) {
                return Err(ProgramError::NoSuchRank { rank, step, peer, ranks });
            }
            let memory = program.memory;
            let outside = |place: &MemoryRange| {
                place.start.checked_add(place.len).is_none_or(|end| end > memory)
            };
            if let Some(place) = it.places().iter().find(|place| outside(place)) {
                let (start, end) = (place.start, place.start.saturating_add(place.len));
                return Err(ProgramError::Outside { rank, step, start, end, memory });
            }
            if it.thread > 1 {
                return Err(ProgramError::NoSuchThread { rank, step, thread: it.thread });
            }
        }
    }
    Ok(())
}

/// Checks that all places lie on grains: between them nothing is kept.
///
/// # Errors
/// The first place that does not.
pub(crate) fn check_grain(programs: &[Program], grain: u64) -> Result<(), ProgramError> {
    let off = |place: &MemoryRange| {
        !place.start.is_multiple_of(grain) || !place.len.is_multiple_of(grain)
    };
    for (rank, program) in programs.iter().enumerate() {
        for (step, it) in program.steps.iter().enumerate() {
            if let Some(&place) = it.places().iter().find(|place| off(place)) {
                return Err(ProgramError::Grain { rank, step, place, grain });
            }
        }
    }
    Ok(())
}

/// How the targets' readiness becomes known to initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// By a zero-length message at the beginning, which an initiator waits for before its first put (§V.C.2).
    Message,
    /// It is known: the message came while something else went on.
    Ahead,
}

/// The same programs with tasks: each message that is only received to be added somewhere becomes an `XtqPut` whose
/// task adds it (§V.C.2). Other messages stay as they are.
///
/// A reduction becomes a task if nothing but messages that become tasks as well keeps it from being done at once: a
/// task runs whenever it arrives. What it waits for of this rank's own, the message that says «ready» waits for.
#[must_use]
pub fn with_tasks(programs: &[Program], ready: Ready) -> Vec<Program> {
    let tasks: Vec<Vec<(usize, usize)>> = programs.iter().map(reductions).collect();
    let rewritten = |(rank, program): (usize, &Program)| {
        let mut fresh = Program { memory: program.memory, steps: Vec::new() };
        // Where a step has gone.
        let mut now: Vec<usize> = Vec::new();
        // Whom this rank puts to, and the step that waits for its being ready.
        let mut waits: Vec<(usize, usize)> = Vec::new();
        let mut sources: Vec<usize> =
            tasks[rank].iter().filter_map(|&(receive, _)| program.steps[receive].peer()).collect();
        sources.sort_unstable();
        sources.dedup();
        if ready == Ready::Message {
            for (to, of) in tasks.iter().enumerate() {
                let is_mine = |&(receive, _): &(usize, usize)| {
                    programs[to].steps[receive].peer() == Some(rank)
                };
                if of.iter().any(is_mine) {
                    let work =
                        SimWork::Receive { from: to, slot: READY, into: MemoryRange::NOTHING };
                    waits.push((to, fresh.steps.len()));
                    fresh.steps.push(SimStep::new(work, &[]));
                }
            }
        }
        let own = own_dependencies(program, &tasks[rank]);
        let mut told = ready == Ready::Ahead || sources.is_empty();
        for (at, step) in program.steps.iter().enumerate() {
            if !told && own.iter().all(|on| *on < at) {
                tell(&mut fresh, &sources, &own, &now);
                told = true;
            }
            if tasks[rank].iter().any(|&(receive, _)| receive == at) {
                // Nothing but the reduction waits for it.
                now.push(usize::MAX);
                continue;
            }
            let mut after: Vec<usize> =
                step.after.iter().map(|on| now[*on]).filter(|on| *on != usize::MAX).collect();
            let work = match step.work {
                SimWork::Reduce { .. } => {
                    match tasks[rank].iter().position(|&(_, reduce)| reduce == at) {
                        Some(task) => SimWork::Task { task: number(task) },
                        None => step.work,
                    }
                }
                SimWork::Send { to, slot, from } => {
                    match task_of(&programs[to], &tasks[to], rank, slot) {
                        Some((task, into)) => {
                            after.extend(
                                waits.iter().filter(|(peer, _)| *peer == to).map(|(_, step)| *step),
                            );
                            SimWork::Put { to, task, from, at: into.start }
                        }
                        None => step.work,
                    }
                }
                other => other,
            };
            now.push(fresh.steps.len());
            fresh.steps.push(SimStep { work, after, thread: step.thread });
        }
        if !told {
            tell(&mut fresh, &sources, &own, &now);
        }
        fresh
    };
    programs.iter().enumerate().map(rewritten).collect()
}

/// Says «ready» to all that put to this rank.
fn tell(fresh: &mut Program, sources: &[usize], own: &[usize], now: &[usize]) {
    let after: Vec<usize> = own.iter().map(|on| now[*on]).filter(|on| *on != usize::MAX).collect();
    for &to in sources {
        fresh.steps.push(SimStep::new(
            SimWork::Send { to, slot: READY, from: MemoryRange::NOTHING },
            &after,
        ));
    }
}

fn number(task: usize) -> u32 {
    u32::try_from(task).unwrap_or(u32::MAX)
}

/// The messages of a program that can become tasks: the receive and the reduction of each.
fn reductions(program: &Program) -> Vec<(usize, usize)> {
    let steps = &program.steps;
    let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    // Whether it, or something that it waits for, waits for a message.
    let mut remote = vec![false; steps.len()];
    for (at, step) in steps.iter().enumerate() {
        let waits = matches!(
            step.work,
            SimWork::Receive { .. } | SimWork::Notice { .. } | SimWork::Task { .. }
        );
        remote[at] = waits || step.after.iter().any(|on| remote[*on]);
        step.after.iter().for_each(|on| dependents[*on].push(at));
    }
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (reduce, step) in steps.iter().enumerate() {
        let SimWork::Reduce { source, .. } = step.work else { continue };
        let receives = |on: &&usize| matches!(steps[**on].work, SimWork::Receive { into, .. } if into == source);
        let Some(&receive) = step.after.iter().find(receives) else { continue };
        let others = step.after.iter().chain(&steps[receive].after).filter(|on| **on != receive);
        // A send that reads what the task writes may itself wait for somebody who waits for this rank.
        let is_send = |on: usize| matches!(steps[on].work, SimWork::Send { .. });
        let mut ready = others
            .filter(|on| remote[**on] || is_send(**on))
            .map(|on| found.iter().any(|task| task.1 == *on));
        let scratch_only = dependents[receive].as_slice() == [reduce];
        if scratch_only && ready.all(|is_task| is_task) {
            found.push((receive, reduce));
        }
    }
    found
}

/// What the tasks of a rank wait for of its own.
fn own_dependencies(program: &Program, tasks: &[(usize, usize)]) -> Vec<usize> {
    let mut own: Vec<usize> = Vec::new();
    for &(receive, reduce) in tasks {
        let all = program.steps[reduce].after.iter().chain(&program.steps[receive].after);
        own.extend(all.filter(|on| **on != receive && !tasks.iter().any(|task| task.1 == **on)));
    }
    own.sort_unstable();
    own.dedup();
    own
}

/// The task that a message becomes at its target, and where it adds.
fn task_of(
    target: &Program,
    tasks: &[(usize, usize)],
    from: usize,
    slot: u32,
) -> Option<(u32, MemoryRange)> {
    let is_it = |&(receive, _): &(usize, usize)| {
        matches!(
            target.steps[receive].work,
            SimWork::Receive { from: it, slot: its, .. } if (it, its) == (from, slot)
        )
    };
    let task = tasks.iter().position(is_it)?;
    match target.steps[tasks[task].1].work {
        SimWork::Reduce { into, .. } => Some((number(task), into)),
        _ => None,
    }
}
