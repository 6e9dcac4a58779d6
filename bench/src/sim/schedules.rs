//! Schedules of `coll` as programs of the simulated machine: the very messages that go elsewhere, in their order.

use gapless_coll::{Action, Algorithm, Buffer, Call, Locality, Reduction, Schedule, build};
use gapless_xtq_sim::{MemoryRange, Program, Ready, SimStep, SimWork, with_tasks};

use crate::error::Failure;

/// What buffers begin at multiples of.
const ALIGN: u64 = 64;

/// An all-reduce in place of `len` bytes by each of `ranks`: two-sided messages, and tasks if the algorithm is `xtq`.
/// Vectors are cut at multiples of `unit`.
///
/// # Errors
/// An algorithm that does not do it, or steps that the simulated machine does not have.
pub fn allreduce(
    ranks: usize,
    len: u64,
    unit: u64,
    algorithm: &Algorithm,
) -> Result<Vec<Program>, Failure> {
    let locality = Locality::flat(ranks);
    let of = Reduction { unit, commutative: true };
    let call = Call::Allreduce { len, of, in_place: true };
    let drawn = |rank| draw(&build(rank, &locality, &call, algorithm)?, unit);
    let mut all = (0..ranks).map(drawn).collect::<Result<Vec<_>, Failure>>()?;
    // Where each task adds, which its target's schedule says.
    let tasks: Vec<Vec<Expected>> = all.iter().map(|drawn| drawn.tasks.clone()).collect();
    for (rank, drawn) in all.iter_mut().enumerate() {
        for it in &mut drawn.works {
            let SimWork::Put { to, task, from, .. } = it.work else { continue };
            let is_it = |known: &Expected| (known.from, known.slot) == (rank, task);
            let found = tasks.get(to).and_then(|all| all.iter().position(is_it));
            let missing = || Failure::Unsimulated {
                step: format!("a task that nobody expects: {:?}", it.work),
            };
            let number = found.ok_or_else(missing)?;
            let task = u32::try_from(number).unwrap_or(u32::MAX);
            it.work = SimWork::Put { to, task, from, at: tasks[to][number].into.start };
        }
    }
    Ok(all.into_iter().map(Drawn::program).collect())
}

/// Two-sided messages with tasks in place of reductions, if `ready` says how initiators know that they may put: for
/// schedules that `coll` builds as messages alone.
#[must_use]
pub fn programs(two_sided: &[Program], ready: Option<Ready>) -> Vec<Program> {
    match ready {
        Some(ready) => with_tasks(two_sided, ready),
        None => two_sided.to_vec(),
    }
}

/// A task that a rank expects.
#[derive(Clone, Debug)]
struct Expected {
    from: usize,
    slot: u32,
    into: MemoryRange,
}

/// A step of a rank, the places that it touches (and whether it writes them), and what it waits for besides those that
/// touch the same.
struct Draft {
    work: SimWork,
    touched: Vec<(MemoryRange, bool)>,
    after: Vec<usize>,
}

/// One rank's schedule as steps. Of puts it is not known yet where they add.
struct Drawn {
    memory: u64,
    works: Vec<Draft>,
    tasks: Vec<Expected>,
}

impl Drawn {
    fn program(self) -> Program {
        Program { memory: self.memory, steps: with_dependencies(self.works) }
    }
}

/// One rank's schedule. Its memory is the receive buffer, then the send buffer, then scratch.
fn draw(schedule: &Schedule, unit: u64) -> Result<Drawn, Failure> {
    let align = |end: u64| end.next_multiple_of(unit.max(ALIGN));
    let vector = align(schedule.row(Buffer::Recv).len());
    let scratch = vector + align(schedule.row(Buffer::Send).len());
    let place = |place: &gapless_coll::Place| {
        let range = schedule.range(place);
        let base = match place.buffer {
            Buffer::Recv => 0,
            Buffer::Send => vector,
            Buffer::Scratch => scratch,
        };
        MemoryRange::new(base + range.start, range.end - range.start)
    };
    let mut moved = Moved { vector, places: Vec::new() };
    let (mut works, mut all, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    // The steps without bytes by their numbers in the schedule: what they say, others wait for.
    let mut said: Vec<(u32, usize)> = Vec::new();
    for ((action, after), number) in schedule.steps().zip(0u32..) {
        let heard = |said: &[(u32, usize)]| -> Vec<usize> {
            said.iter().filter(|(step, _)| after.contains(step)).map(|(_, work)| *work).collect()
        };
        match action {
            Action::Send { to, slot, from } if from.len == 0 => {
                said.push((number, all.len()));
                let work = SimWork::Send { to: *to, slot: *slot, from: MemoryRange::NOTHING };
                all.push(Draft { work, touched: Vec::new(), after: Vec::new() });
            }
            Action::Receive { from, slot, into } if into.len == 0 => {
                said.push((number, all.len()));
                let work =
                    SimWork::Receive { from: *from, slot: *slot, into: MemoryRange::NOTHING };
                all.push(Draft { work, touched: Vec::new(), after: Vec::new() });
            }
            Action::Put { to, slot, from } => {
                let from = moved.now(place(from));
                let work = SimWork::Put { to: *to, task: *slot, from, at: 0 };
                all.push(Draft { work, touched: vec![(from, false)], after: heard(&said) });
            }
            Action::Task { from, slot, into } => {
                let into = moved.now(place(into));
                let task = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
                tasks.push(Expected { from: *from, slot: *slot, into });
                let work = SimWork::Task { task };
                all.push(Draft { work, touched: vec![(into, true)], after: Vec::new() });
            }
            Action::Send { to, slot, from } => {
                works.push(SimWork::Send { to: *to, slot: *slot, from: moved.now(place(from)) });
            }
            Action::Receive { from, slot, into } => {
                moved.forget(place(into));
                works.push(SimWork::Receive { from: *from, slot: *slot, into: place(into) });
            }
            Action::Copy { from, into } => {
                let (from, into) = (moved.now(place(from)), place(into));
                if !moved.leave(from, into) {
                    works.push(SimWork::Copy { from, into });
                }
            }
            Action::Reduce { sources, into } => {
                let mut sources: Vec<MemoryRange> =
                    sources.iter().map(|it| moved.now(place(it))).collect();
                let into = moved.now(place(into));
                // Whole numbers: the order of operands does not matter. The vector's comes first.
                sources.sort_by_key(|source| source.start);
                let own = sources.remove(0);
                let result = if own == into || moved.leave(own, into) { own } else { into };
                if result != own && !sources.contains(&result) {
                    works.push(SimWork::Copy { from: own, into });
                } else if result != own {
                    sources.retain(|source| *source != result);
                    sources.push(own);
                }
                let reduce = |source| SimWork::Reduce { source, into: result };
                works.extend(sources.into_iter().map(reduce));
            }
            other => return Err(Failure::Unsimulated { step: format!("{other:?}") }),
        }
        for work in works.drain(..) {
            let touched = touched(&work);
            if touched.iter().all(|(place, _)| place.len == 0) {
                return Err(Failure::Unsimulated {
                    step: format!("a step without bytes: {work:?}"),
                });
            }
            all.push(Draft { work, touched, after: Vec::new() });
        }
    }
    let memory = scratch + align(schedule.scratch());
    Ok(Drawn { memory, works: all, tasks })
}

/// Results that stay in the vector. Where a schedule combines this rank's own operand with what came and leaves the
/// result in scratch memory, it is left in the operand's place instead, as the kernels of XTQ do and as an operation in
/// place allows: each operand is combined once.
struct Moved {
    /// The vector's end.
    vector: u64,
    /// Where the schedule has something, and where it is.
    places: Vec<(MemoryRange, u64)>,
}

impl Moved {
    /// Where the content of a place is.
    fn now(&self, place: MemoryRange) -> MemoryRange {
        let holds =
            |(of, _): &&(MemoryRange, u64)| of.start <= place.start && place.start < of.end();
        let Some((of, at)) = self.places.iter().find(holds) else { return place };
        let now = MemoryRange::new(at + (place.start - of.start), place.len);
        if place.end() <= of.end() {
            return now;
        }
        // The rest must be behind it.
        let rest = MemoryRange::new(of.end(), place.end() - of.end());
        let behind = now.start + (of.end() - place.start);
        if self.now(rest).start == behind { now } else { place }
    }

    /// The place has another content.
    fn forget(&mut self, place: MemoryRange) {
        self.places.retain(|(of, _)| !overlap(*of, place));
    }

    /// Leaves what is at `from` there, if that is in the vector and it was to go to scratch memory.
    fn leave(&mut self, from: MemoryRange, into: MemoryRange) -> bool {
        let stays = from.end() <= self.vector && into.start >= self.vector;
        if stays {
            self.forget(into);
            self.places.push((into, from.start));
        }
        stays
    }
}

fn overlap(one: MemoryRange, other: MemoryRange) -> bool {
    one.start < other.end() && other.start < one.end()
}

/// The places that a step touches, and whether it writes them.
fn touched(work: &SimWork) -> Vec<(MemoryRange, bool)> {
    match *work {
        SimWork::Send { from, .. } => vec![(from, false)],
        SimWork::Receive { into, .. } => vec![(into, true)],
        SimWork::Reduce { source: from, into } | SimWork::Copy { from, into } => {
            vec![(from, false), (into, true)]
        }
        _ => Vec::new(),
    }
}

/// Whether one of two steps writes what the other touches.
fn collide(one: &Draft, other: &Draft) -> bool {
    let hit = |(a, writes): &(MemoryRange, bool)| {
        other.touched.iter().any(|(b, also)| (*writes || *also) && overlap(*a, *b))
    };
    one.touched.iter().any(hit)
}

/// Steps that wait for those before them that touch the same bytes, unless both only read; what follows from others is
/// left out. What they wait for besides comes behind.
fn with_dependencies(works: Vec<Draft>) -> Vec<SimStep> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    let mut steps = Vec::new();
    for (at, it) in works.iter().enumerate() {
        let mut known = vec![false; at];
        let mut after = Vec::new();
        for on in (0..at).rev() {
            if !known[on] && collide(it, &works[on]) {
                after.push(on);
                known[on] = true;
                before[on].iter().enumerate().for_each(|(it, is)| known[it] |= is);
            }
        }
        after.reverse();
        after.extend(&it.after);
        before.push(known);
        steps.push(SimStep { work: it.work, after, thread: 0 });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_xtq_sim::{Configuration, Options, initial, run};

    /// Any algorithm that exchanges messages gives the sum, two-sided or by tasks, in all configurations.
    #[test]
    fn all_ranks_have_the_sum() {
        for (algorithm, ranks) in
            [("ring", 2), ("ring", 5), ("halving", 8), ("doubling", 4), ("binomial", 6)]
        {
            let algorithm: Algorithm = algorithm.parse().unwrap();
            let two_sided = allreduce(ranks, 1 << 10, 4, &algorithm).unwrap();
            for configuration in Configuration::ALL {
                for ready in [None, Some(Ready::Message), Some(Ready::Ahead)] {
                    let options = Options::new(configuration);
                    let programs = programs(&two_sided, ready);
                    let outcome = run(&programs, &options).unwrap();
                    let what = format!("{algorithm} {ranks} {configuration:?} {ready:?}");
                    assert!(outcome.is_whole(), "{what}: {:?} {:?}", outcome.stuck, outcome.broken);
                    let sum = |element| {
                        let terms = (0..ranks).map(|rank| initial(options.seed, rank, element));
                        terms.fold(0u32, u32::wrapping_add)
                    };
                    for memory in &outcome.memory {
                        assert!((0..256).zip(memory).all(|(at, it)| *it == sum(at)), "{what}");
                    }
                }
            }
        }
    }

    /// The tasks of `coll` are those that the messages of its ring become, so simulated times are the same.
    #[test]
    fn the_ring_of_tasks_is_the_ring_with_tasks() {
        for (ranks, len) in [(2, 64), (3, 96), (5, 1 << 10), (8, 1 << 13)] {
            let by = |name: &str| allreduce(ranks, len, 4, &name.parse().unwrap()).unwrap();
            let (ours, theirs) = (by("xtq"), programs(&by("ring"), Some(Ready::Message)));
            // Numbers of messages apart: these only tell them from each other.
            let plain = |program: &Program| -> Vec<(String, Vec<usize>)> {
                let work = |work: &SimWork| match *work {
                    SimWork::Send { to, from, .. } => format!("send {to} {from:?}"),
                    SimWork::Receive { from, into, .. } => format!("receive {from} {into:?}"),
                    other => format!("{other:?}"),
                };
                program.steps.iter().map(|it| (work(&it.work), it.after.clone())).collect()
            };
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(plain(ours), plain(theirs), "{ranks} ranks, {len} B");
            }
            for configuration in Configuration::ALL {
                let options = Options::new(configuration);
                let times = [&ours, &theirs].map(|all| run(all, &options).unwrap().time());
                assert_eq!(times[0], times[1], "{configuration:?}");
            }
        }
    }

    #[test]
    fn a_ring_puts_all_that_it_reduces() {
        let tasks = allreduce(4, 1 << 12, 4, &"xtq".parse().unwrap()).unwrap();
        let count =
            |of: fn(&SimWork) -> bool| tasks[0].steps.iter().filter(|step| of(&step.work)).count();
        assert_eq!(count(|work| matches!(work, SimWork::Put { .. })), 3);
        assert_eq!(count(|work| matches!(work, SimWork::Task { .. })), 3);
        assert_eq!(count(|work| matches!(work, SimWork::Reduce { .. })), 0);
        // All-gather, and one that says «ready».
        assert_eq!(count(|work| matches!(work, SimWork::Send { .. })), 4);
    }
}
