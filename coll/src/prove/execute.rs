//! Executes the schedules of all ranks on symbols. A send ends with its receive, when both have begun; so does a put
//! with its task, whose place nobody else touches since the put may have begun (`tasks.rs`).
//!
//! Schedules in which ranks of a subgroup do something together are executed twice: such a step ends when those have
//! begun it that it waits for ([`Together::part`]), so that what it takes is there in an executor that waits for no
//! more; and when all have, so that nothing waits for ever in one that waits for all. The second time only the order of
//! steps matters: what they take was put before they began.
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::rc::Rc;

use super::algebra::{Mix, UNDEFINED, Value};
use super::{Access, Definition, Memory, Refutation, together};
use crate::schedule::{Action, Buffer, Schedule};
use crate::together::Together;

/// Steps of all ranks are numbered through.
struct Run<'a> {
    schedules: &'a [Schedule],
    accesses: &'a [Vec<Access>],
    definition: &'a mut Definition,
    memory: Vec<Memory>,
    /// Where each rank's steps begin in the numbering.
    starts: Vec<usize>,
    /// The other end of a message, or of a task.
    partner: Vec<usize>,
    /// What ranks of a subgroup do together: those steps, in the order of the ranks.
    together: HashMap<usize, Rc<[usize]>>,
    begun: Vec<bool>,
    ended: Vec<bool>,
    /// Whether what is done together waits for all, and nothing is computed.
    is_patient: bool,
    /// What steps of a subgroup have put where others take it.
    put: HashMap<usize, Vec<Value>>,
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
        ended: vec![false; steps],
        is_patient: false,
        put: HashMap::new(),
        starts,
    };
    run.match_messages()?;
    run.go()?;
    if !run.together.is_empty() {
        run.is_patient = true;
        run.begun.fill(false);
        run.ended.fill(false);
        run.go()?;
    }
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
        let mut open: HashMap<(usize, usize, u32, bool), usize, BuildHasherDefault<Mix>> =
            HashMap::default();
        for (rank, schedule) in self.schedules.iter().enumerate() {
            for (step, (action, _)) in schedule.steps().enumerate() {
                let (to, slot, is_task) = match action {
                    Action::Send { to, slot, .. } => (*to, *slot, false),
                    Action::Put { to, slot, .. } => (*to, *slot, true),
                    _ => continue,
                };
                let key = (rank, to, slot, is_task);
                let twice = open.insert(key, self.starts[rank] + step).is_some();
                if twice || to == rank || to >= self.schedules.len() {
                    return Err(Refutation::Unmatched { from: rank, to, slot });
                }
            }
        }
        for (rank, schedule) in self.schedules.iter().enumerate() {
            for (step, (action, _)) in schedule.steps().enumerate() {
                let (from, slot, is_task) = match action {
                    Action::Receive { from, slot, .. } => (from, slot, false),
                    Action::Task { from, slot, .. } => (from, slot, true),
                    _ => continue,
                };
                let here = self.starts[rank] + step;
                let there = open.remove(&(*from, rank, *slot, is_task));
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
        left.map_or(Ok(()), |(from, to, slot, _)| Err(Refutation::Unmatched { from, to, slot }))
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
        let mut ready: Vec<usize> = (0..steps).filter(|step| missing[*step] == 0).collect();
        while let Some(number) = ready.pop() {
            self.begun[number] = true;
            let over = match (self.partner[number], self.together.get(&number).cloned()) {
                (_, Some(all)) => self.share(number, &all)?,
                (usize::MAX, None) => {
                    if !self.is_patient {
                        self.compute(number)?;
                    }
                    vec![number]
                }
                (other, None) if self.begun[other] => {
                    if !self.is_patient {
                        self.transfer(number, other)?;
                    }
                    vec![number, other]
                }
                _ => continue,
            };
            for number in over {
                self.ended[number] = true;
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
        match self.ended.iter().position(|ended| !ended) {
            None => Ok(()),
            Some(number) => {
                let rank = self.rank_of(number);
                Err(Refutation::Stuck { rank, step: number - self.starts[rank] })
            }
        }
    }

    fn transfer(&mut self, one: usize, other: usize) -> Result<(), Refutation> {
        let writes = |step: usize| self.accesses[step].iter().any(|access| access.writes);
        let (send, receive) = if writes(one) { (other, one) } else { (one, other) };
        let (from, into) = (self.accesses[send][0].clone(), self.accesses[receive][0].clone());
        let (sender, receiver) = (self.rank_of(send), self.rank_of(receive));
        let mut values = self.read(sender, &from)?;
        if self.accesses[receive].len() > 1 {
            // A task: what came is combined with what is there.
            let own = self.read(receiver, &into)?;
            self.whole_elements(receiver, &into, &own)?;
            let wrong = Refutation::Element { rank: receiver, step: into.step };
            for (came, own) in values.iter_mut().zip(own) {
                *came = self.definition.algebra.combine(own, *came).ok_or_else(|| wrong.clone())?;
            }
        }
        self.buffer(receiver, into.buffer)[into.cells].copy_from_slice(&values);
        Ok(())
    }

    /// A rank begins what those of a subgroup do together: which of them end now.
    fn share(&mut self, number: usize, all: &[usize]) -> Result<Vec<usize>, Refutation> {
        if self.is_patient {
            let all_have = all.iter().all(|step| self.begun[*step]);
            return Ok(if all_have { all.to_vec() } else { Vec::new() });
        }
        let ranks: Vec<_> = all.iter().map(|step| self.rank_of(*step)).collect();
        let step = all[0] - self.starts[ranks[0]];
        let Action::Share { what, lead, .. } = *self.schedules[ranks[0]].action(step) else {
            return Ok(vec![number]);
        };
        let Some(leader) = ranks.iter().position(|rank| *rank == lead) else {
            return Ok(vec![number]);
        };
        self.fits(what, all, leader)?;
        let read = self.accesses[number][0].clone();
        let values = self.read(self.rank_of(number), &read)?;
        self.put.insert(number, values);
        let has_begun = |at: usize| self.begun[all[at]];
        let hears_all = |at: usize| {
            let waits = what.part(at == leader).waits;
            let mut awaited = waits.of(&ranks, lead, ranks[at]);
            awaited.all(|rank| ranks.iter().position(|other| *other == rank).is_some_and(has_begun))
        };
        let may_end = |at: &usize| has_begun(*at) && !self.ended[all[*at]] && hears_all(*at);
        let over: Vec<usize> = (0..all.len()).filter(may_end).collect();
        for at in &over {
            self.take(what, all, (*at, leader))?;
        }
        Ok(over.into_iter().map(|at| all[at]).collect())
    }

    /// Whether what the ranks of a subgroup read and write has the lengths that it must have.
    fn fits(&self, what: Together, all: &[usize], leader: usize) -> Result<(), Refutation> {
        let places = |at: usize| &self.accesses[all[at]];
        let apart =
            |at: usize| Refutation::Apart { rank: self.rank_of(all[at]), step: places(at)[0].step };
        let lens = |at: usize| (places(at)[0].cells.len(), places(at)[1].cells.len());
        let (read, written) = lens(leader);
        let fits = match what {
            Together::Meet => (read, written) == (0, 0),
            Together::Bcast => written == 0,
            Together::Reduce => read == written,
            Together::Gather => {
                let (own, whole) = (&places(leader)[0], &places(leader)[1]);
                let at = whole.cells.start + leader * read;
                own.buffer == whole.buffer && own.cells.start == at && written == read * all.len()
            }
            Together::Scatter => written == 0 && read.is_multiple_of(all.len()),
        };
        if !fits {
            return Err(apart(leader));
        }
        let expected = match what {
            Together::Bcast => (0, read),
            Together::Scatter => (0, read / all.len()),
            _ => (read, 0),
        };
        let odd = (0..all.len()).find(|at| *at != leader && lens(*at) != expected);
        odd.map_or(Ok(()), |at| Err(apart(at)))
    }

    /// A rank takes what others have put, by the definition of what they do together.
    fn take(
        &mut self,
        what: Together,
        all: &[usize],
        (at, leader): (usize, usize),
    ) -> Result<(), Refutation> {
        let put = |run: &Self, step: usize| run.put.get(&step).cloned().unwrap_or_default();
        let into = self.accesses[all[at]][1].clone();
        let values = match (what, at == leader) {
            (Together::Bcast, false) => put(self, all[leader]),
            (Together::Scatter, false) => {
                let first = at * into.cells.len();
                put(self, all[leader])[first..first + into.cells.len()].to_vec()
            }
            (Together::Gather, true) => all.iter().flat_map(|step| put(self, *step)).collect(),
            (Together::Reduce, true) => {
                let mut sum = put(self, all[0]);
                self.whole_elements(self.rank_of(all[leader]), &into, &sum)?;
                for number in &all[1..] {
                    let rank = self.rank_of(*number);
                    let wrong = Refutation::Element { rank, step: self.accesses[*number][0].step };
                    for (sum, value) in sum.iter_mut().zip(put(self, *number)) {
                        let combined = self.definition.algebra.combine(*sum, value);
                        *sum = combined.ok_or_else(|| wrong.clone())?;
                    }
                }
                sum
            }
            _ => return Ok(()),
        };
        let rank = self.rank_of(all[at]);
        self.buffer(rank, into.buffer)[into.cells].copy_from_slice(&values);
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

/// A message tells of all that its sender had heard of when it began. A rank waits for all its receives in the end.
/// What is done together tells all of all if they meet, the others of the leader, or the leader of the others.
pub(super) fn heard_of(schedules: &[Schedule]) -> Vec<BTreeSet<usize>> {
    let mut at: Vec<usize> = vec![0; schedules.len()];
    let mut told: HashMap<(usize, usize, u32, bool), BTreeSet<usize>> = HashMap::new();
    // By subgroup, the number of the step among those, and rank.
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
                        told.insert((rank, *to, *slot, false), known.clone());
                    }
                    Action::Put { to, slot, .. } => {
                        told.insert((rank, *to, *slot, true), known.clone());
                    }
                    Action::Receive { from, slot, .. } | Action::Task { from, slot, .. } => {
                        let is_task = matches!(schedule.action(at[rank]), Action::Task { .. });
                        match told.get(&(*from, rank, *slot, is_task)) {
                            Some(news) => known.extend(news),
                            None => break,
                        }
                    }
                    Action::Share { what, lead, .. } => {
                        let subgroup = schedule.subgroup().unwrap_or_default();
                        let key = |rank: usize| (subgroup[0], count[rank], rank);
                        moved |= shared.insert(key(rank), known.clone()).is_none();
                        let number = count[rank];
                        let news = |other: usize| shared.get(&(subgroup[0], number, other));
                        let waits = what.part(rank == *lead).waits;
                        let of: Vec<_> = waits.of(subgroup, *lead, rank).map(news).collect();
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
