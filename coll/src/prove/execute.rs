//! Executes the schedules of all ranks on symbols. A send ends with its receive, when both have begun.
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::rc::Rc;

use super::algebra::{Mix, UNDEFINED, Value};
use super::{Access, Definition, Memory, Refutation, together};
use crate::schedule::{Action, Buffer, Schedule, Together};

/// Steps of all ranks are numbered through.
struct Run<'a> {
    schedules: &'a [Schedule],
    accesses: &'a [Vec<Access>],
    definition: &'a mut Definition,
    memory: Vec<Memory>,
    /// Where each rank's steps begin in the numbering.
    starts: Vec<usize>,
    /// The other end of a message.
    partner: Vec<usize>,
    /// What ranks of a circle do together: those steps, in the order of the ranks.
    together: HashMap<usize, Rc<[usize]>>,
    begun: Vec<bool>,
}

pub(super) fn run(
    schedules: &[Schedule],
    accesses: &[Vec<Vec<Access>>],
    definition: &mut Definition,
) -> Result<(), Refutation> {
    let flat: Vec<Vec<Access>> = accesses.iter().flatten().cloned().collect();
    let mut starts = vec![0];
    for schedule in schedules {
        starts.push(starts[starts.len() - 1] + schedule.len());
    }
    let steps = flat.len();
    let mut memory = definition.ranks.clone();
    for (memory, schedule) in memory.iter_mut().zip(schedules) {
        memory.scratch = vec![UNDEFINED; definition.scratch_cells(schedule)];
    }
    let mut run = Run {
        schedules,
        accesses: &flat,
        definition,
        memory,
        partner: vec![usize::MAX; steps],
        together: together::groups(schedules, &starts)?,
        begun: vec![false; steps],
        starts,
    };
    run.match_messages()?;
    run.go()?;
    if !run.definition.algebra.rounds() {
        return run.compare();
    }
    for rank in 1..schedules.len() {
        let pair = (&run.memory[0].recv, &run.memory[rank].recv);
        if let Some(cell) = (0..pair.0.len()).find(|cell| pair.0[*cell] != pair.1[*cell]) {
            return Err(Refutation::Rounding { rank, at: run.definition.bytes(cell) });
        }
    }
    Ok(())
}

impl Run<'_> {
    fn match_messages(&mut self) -> Result<(), Refutation> {
        let mut open: HashMap<(usize, usize, u32), usize, BuildHasherDefault<Mix>> =
            HashMap::default();
        for (rank, schedule) in self.schedules.iter().enumerate() {
            for (step, (action, _)) in schedule.steps().enumerate() {
                let Action::Send { to, slot, .. } = action else { continue };
                let twice = open.insert((rank, *to, *slot), self.starts[rank] + step).is_some();
                if twice || *to == rank || *to >= self.schedules.len() {
                    return Err(Refutation::Unmatched { from: rank, to: *to, slot: *slot });
                }
            }
        }
        for (rank, schedule) in self.schedules.iter().enumerate() {
            for (step, (action, _)) in schedule.steps().enumerate() {
                let Action::Receive { from, slot, .. } = action else { continue };
                let here = self.starts[rank] + step;
                let there = open.remove(&(*from, rank, *slot));
                let fits = |there: &usize| {
                    self.accesses[*there][0].cells.len() == self.accesses[here][0].cells.len()
                };
                let Some(there) = there.filter(fits) else {
                    return Err(Refutation::Unmatched { from: *from, to: rank, slot: *slot });
                };
                (self.partner[here], self.partner[there]) = (there, here);
            }
        }
        let left = open.into_keys().min();
        left.map_or(Ok(()), |(from, to, slot)| Err(Refutation::Unmatched { from, to, slot }))
    }

    fn rank_of(&self, number: usize) -> usize {
        self.starts.partition_point(|start| *start <= number) - 1
    }

    /// Begins steps whose dependencies have ended until none is left.
    fn go(&mut self) -> Result<(), Refutation> {
        let steps = self.accesses.len();
        let mut missing = vec![0usize; steps];
        let mut followers: Vec<Vec<u32>> = vec![Vec::new(); steps];
        for (rank, schedule) in self.schedules.iter().enumerate() {
            for (step, (_, after)) in schedule.steps().enumerate() {
                missing[self.starts[rank] + step] = after.len();
                for before in after {
                    let follower = u32::try_from(step).expect("steps are numbered with 32 bits");
                    followers[self.starts[rank] + *before as usize].push(follower);
                }
            }
        }
        let mut ended = vec![false; steps];
        let mut ready: Vec<usize> = (0..steps).filter(|step| missing[*step] == 0).collect();
        while let Some(number) = ready.pop() {
            self.begun[number] = true;
            let over = match (self.partner[number], self.together.get(&number).cloned()) {
                (_, Some(all)) if all.iter().all(|step| self.begun[*step]) => {
                    self.share(&all)?;
                    all.to_vec()
                }
                (_, Some(_)) => continue,
                (usize::MAX, None) => {
                    self.compute(number)?;
                    vec![number]
                }
                (other, None) if self.begun[other] => {
                    self.transfer(number, other)?;
                    vec![number, other]
                }
                _ => continue,
            };
            for number in over {
                ended[number] = true;
                let start = self.starts[self.rank_of(number)];
                for follower in &followers[number] {
                    let follower = start + *follower as usize;
                    missing[follower] -= 1;
                    if missing[follower] == 0 {
                        ready.push(follower);
                    }
                }
            }
        }
        match ended.iter().position(|ended| !ended) {
            None => Ok(()),
            Some(number) => {
                let rank = self.rank_of(number);
                Err(Refutation::Stuck { rank, step: number - self.starts[rank] })
            }
        }
    }

    fn transfer(&mut self, one: usize, other: usize) -> Result<(), Refutation> {
        let (send, receive) =
            if self.accesses[one][0].writes { (other, one) } else { (one, other) };
        let (from, into) = (self.accesses[send][0].clone(), self.accesses[receive][0].clone());
        let (sender, receiver) = (self.rank_of(send), self.rank_of(receive));
        let values = self.read(sender, &from)?;
        self.buffer(receiver, into.buffer)[into.cells].copy_from_slice(&values);
        Ok(())
    }

    /// What ranks of a circle do together, by its definition.
    fn share(&mut self, all: &[usize]) -> Result<(), Refutation> {
        let places: Vec<_> = all.iter().map(|number| self.accesses[*number].clone()).collect();
        let ranks: Vec<_> = all.iter().map(|number| self.rank_of(*number)).collect();
        let first = all[0] - self.starts[ranks[0]];
        let Action::Share { what, lead, .. } = *self.schedules[ranks[0]].action(first) else {
            return Ok(());
        };
        let Some(leader) = ranks.iter().position(|rank| *rank == lead) else { return Ok(()) };
        let apart = |at: usize| Refutation::Apart { rank: ranks[at], step: places[at][0].step };
        let lens = |at: usize| (places[at][0].cells.len(), places[at][1].cells.len());
        let (read, written) = lens(leader);
        let other = |at: usize, expected| match at == leader || lens(at) == expected {
            true => Ok(()),
            false => Err(apart(at)),
        };
        let fits = match what {
            Together::Meet => (read, written) == (0, 0),
            Together::Bcast => written == 0,
            Together::Reduce => read == written,
            Together::Gather => {
                let (own, whole) = (&places[leader][0], &places[leader][1]);
                let at = whole.cells.start + leader * read;
                own.buffer == whole.buffer && own.cells.start == at && written == read * all.len()
            }
        };
        if !fits {
            return Err(apart(leader));
        }
        let expected = if what == Together::Bcast { (0, read) } else { (read, 0) };
        (0..all.len()).try_for_each(|at| other(at, expected))?;
        let reads = |run: &mut Self, at: usize| run.read(ranks[at], &places[at][0]);
        match what {
            Together::Meet => {}
            Together::Bcast => {
                let values = reads(self, leader)?;
                for at in (0..all.len()).filter(|at| *at != leader) {
                    let into = &places[at][1];
                    self.buffer(ranks[at], into.buffer)[into.cells.clone()]
                        .copy_from_slice(&values);
                }
            }
            Together::Reduce => {
                let mut sum = reads(self, 0)?;
                let into = places[leader][1].clone();
                self.whole_elements(lead, &into, &sum)?;
                for at in 1..all.len() {
                    let wrong = Refutation::Element { rank: ranks[at], step: places[at][0].step };
                    for (sum, value) in sum.iter_mut().zip(reads(self, at)?) {
                        let combined = self.definition.algebra.combine(*sum, value);
                        *sum = combined.ok_or_else(|| wrong.clone())?;
                    }
                }
                self.buffer(lead, into.buffer)[into.cells].copy_from_slice(&sum);
            }
            Together::Gather => {
                let mut joined = Vec::new();
                for at in 0..all.len() {
                    joined.extend(reads(self, at)?);
                }
                let into = places[leader][1].clone();
                self.buffer(lead, into.buffer)[into.cells].copy_from_slice(&joined);
            }
        }
        Ok(())
    }

    /// A copy or a reduction.
    fn compute(&mut self, number: usize) -> Result<(), Refutation> {
        let rank = self.rank_of(number);
        let accesses = &self.accesses[number];
        let Some((into, sources)) = accesses.split_last() else { return Ok(()) };
        let mut sum = self.read(rank, &sources[0])?;
        if sources.len() > 1 {
            self.whole_elements(rank, into, &sum)?;
        }
        for source in &sources[1..] {
            let values = self.read(rank, source)?;
            for (sum, value) in sum.iter_mut().zip(values) {
                let wrong = Refutation::Element { rank, step: into.step };
                *sum = self.definition.algebra.combine(*sum, value).ok_or(wrong)?;
            }
        }
        self.buffer(rank, into.buffer)[into.cells.clone()].copy_from_slice(&sum);
        Ok(())
    }

    fn whole_elements(&self, rank: usize, at: &Access, values: &[Value]) -> Result<(), Refutation> {
        let unit = self.definition.unit_cells(&self.schedules[rank]);
        let first = values.first().map_or(0, |value| self.definition.algebra.position(*value));
        if values.len().is_multiple_of(unit) && (first as usize).is_multiple_of(unit) {
            return Ok(());
        }
        Err(Refutation::Element { rank, step: at.step })
    }

    fn read(&mut self, rank: usize, access: &Access) -> Result<Vec<Value>, Refutation> {
        let values = self.buffer(rank, access.buffer)[access.cells.clone()].to_vec();
        if values.contains(&UNDEFINED) {
            return Err(Refutation::Undefined { rank, step: access.step });
        }
        Ok(values)
    }

    fn buffer(&mut self, rank: usize, buffer: Buffer) -> &mut [Value] {
        let memory = &mut self.memory[rank];
        match buffer {
            Buffer::Send => &mut memory.send,
            Buffer::Recv => &mut memory.recv,
            Buffer::Scratch => &mut memory.scratch,
        }
    }

    fn compare(&self) -> Result<(), Refutation> {
        for (rank, memory) in self.memory.iter().enumerate() {
            let before = &self.definition.ranks[rank].recv;
            for (cell, found) in memory.recv.iter().enumerate() {
                let expected = match memory.expected[cell] {
                    UNDEFINED => before[cell],
                    expected => expected,
                };
                if *found != expected {
                    let describe = |value| self.definition.algebra.describe(value);
                    return Err(Refutation::Result {
                        rank,
                        at: self.definition.bytes(cell),
                        found: describe(*found),
                        expected: describe(expected),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The cells of a range of bytes; none if it does not consist of whole cells.
pub(super) fn cells(range: &Range<u64>, grain: u64) -> Option<Range<usize>> {
    let whole = range.start.is_multiple_of(grain) && range.end.is_multiple_of(grain);
    let cell = |at: u64| usize::try_from(at / grain).ok();
    whole.then_some(cell(range.start)?..cell(range.end)?)
}

/// A message tells of all that its sender had heard of when it began. A rank waits for all its receives in the end. What is
/// done together tells all of all if they meet, the others of the leader, or the leader of the others.
pub(super) fn heard_of(schedules: &[Schedule]) -> Vec<BTreeSet<usize>> {
    let mut at: Vec<usize> = vec![0; schedules.len()];
    let mut told: HashMap<(usize, usize, u32), BTreeSet<usize>> = HashMap::new();
    // By circle, the number of the step among those, and rank.
    let mut shared: HashMap<(usize, usize, usize), BTreeSet<usize>> = HashMap::new();
    let mut count: Vec<usize> = vec![0; schedules.len()];
    let mut heard: Vec<Vec<BTreeSet<usize>>> = vec![Vec::new(); schedules.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (rank, schedule) in schedules.iter().enumerate() {
            while at[rank] < schedule.len() {
                let mut known = BTreeSet::from([rank]);
                for before in schedule.after(at[rank]) {
                    known.extend(&heard[rank][*before as usize]);
                }
                match schedule.action(at[rank]) {
                    Action::Send { to, slot, .. } => {
                        told.insert((rank, *to, *slot), known.clone());
                    }
                    Action::Receive { from, slot, .. } => match told.get(&(*from, rank, *slot)) {
                        Some(news) => known.extend(news),
                        None => break,
                    },
                    Action::Share { what, lead, .. } => {
                        let circle = schedule.circle().unwrap_or_default();
                        let key = |rank: usize| (circle[0], count[rank], rank);
                        moved |= shared.insert(key(rank), known.clone()).is_none();
                        let number = count[rank];
                        let news = |other: &usize| shared.get(&(circle[0], number, *other));
                        let hears = |other: &&usize| match what {
                            Together::Meet => true,
                            Together::Bcast => **other == *lead,
                            Together::Reduce | Together::Gather => rank == *lead,
                        };
                        let of: Vec<_> = circle.iter().filter(hears).map(news).collect();
                        if of.iter().any(Option::is_none) {
                            break;
                        }
                        known.extend(of.into_iter().flatten().flatten());
                        count[rank] += 1;
                    }
                    _ => {}
                }
                heard[rank].push(known);
                (at[rank], moved) = (at[rank] + 1, true);
            }
        }
    }
    let all = |(rank, heard): (usize, Vec<BTreeSet<usize>>)| {
        let mut all: BTreeSet<_> = heard.into_iter().flatten().collect();
        all.insert(rank);
        all
    };
    heard.into_iter().enumerate().map(all).collect()
}
