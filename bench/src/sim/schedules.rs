//! Schedules of `coll` as programs of the simulated machine: the very messages that go elsewhere, in their order.

use gapless_coll::{Action, Algorithm, Buffer, Call, Locality, Reduction, Schedule, build};
use gapless_xtq::sim::{Place, Program, Ready, Step, Work, with_tasks};

use crate::error::Failure;

/// What buffers begin at multiples of.
const ALIGN: u64 = 64;

/// An all-reduce in place of `len` bytes by each of `ranks`, as two-sided messages. Vectors are cut at multiples of
/// `unit`.
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
    let program = |rank| program(&build(rank, &locality, &call, algorithm)?, unit);
    (0..ranks).map(program).collect()
}

/// The same with tasks, if `ready` says how initiators know that they may put.
#[must_use]
pub fn programs(two_sided: &[Program], ready: Option<Ready>) -> Vec<Program> {
    match ready {
        Some(ready) => with_tasks(two_sided, ready),
        None => two_sided.to_vec(),
    }
}

/// One rank's schedule as a program. Its memory is the receive buffer, then the send buffer, then scratch.
fn program(schedule: &Schedule, unit: u64) -> Result<Program, Failure> {
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
        Place::new(base + range.start, range.end - range.start)
    };
    let mut moved = Moved { vector, places: Vec::new() };
    let mut works = Vec::new();
    for (action, _) in schedule.steps() {
        match action {
            Action::Send { to, slot, from } => {
                works.push(Work::Send { to: *to, slot: *slot, from: moved.now(place(from)) });
            }
            Action::Receive { from, slot, into } => {
                moved.forget(place(into));
                works.push(Work::Receive { from: *from, slot: *slot, into: place(into) });
            }
            Action::Copy { from, into } => {
                let (from, into) = (moved.now(place(from)), place(into));
                if !moved.leave(from, into) {
                    works.push(Work::Copy { from, into });
                }
            }
            Action::Reduce { sources, into } => {
                let mut sources: Vec<Place> =
                    sources.iter().map(|it| moved.now(place(it))).collect();
                let into = moved.now(place(into));
                // Whole numbers: the order of operands does not matter. The vector's comes first.
                sources.sort_by_key(|source| source.start);
                let own = sources.remove(0);
                let result = if own == into || moved.leave(own, into) { own } else { into };
                if result != own && !sources.contains(&result) {
                    works.push(Work::Copy { from: own, into });
                } else if result != own {
                    sources.retain(|source| *source != result);
                    sources.push(own);
                }
                let reduce = |source| Work::Reduce { source, into: result };
                works.extend(sources.into_iter().map(reduce));
            }
            other => return Err(Failure::Unsimulated { step: format!("{other:?}") }),
        }
    }
    let is_empty = |work: &&Work| touched(work).iter().all(|(place, _)| place.len == 0);
    if let Some(work) = works.iter().find(is_empty) {
        return Err(Failure::Unsimulated { step: format!("a step without bytes: {work:?}") });
    }
    let memory = scratch + align(schedule.scratch());
    Ok(Program { memory, steps: with_dependencies(&works) })
}

/// Results that stay in the vector. Where a schedule combines this rank's own operand with what came and leaves the
/// result in scratch memory, it is left in the operand's place instead, as the kernels of XTQ do and as an operation in
/// place allows: each operand is combined once.
struct Moved {
    /// The vector's end.
    vector: u64,
    /// Where the schedule has something, and where it is.
    places: Vec<(Place, u64)>,
}

impl Moved {
    /// Where the content of a place is.
    fn now(&self, place: Place) -> Place {
        let holds = |(of, _): &&(Place, u64)| of.start <= place.start && place.start < of.end();
        let Some((of, at)) = self.places.iter().find(holds) else { return place };
        let now = Place::new(at + (place.start - of.start), place.len);
        if place.end() <= of.end() {
            return now;
        }
        // The rest must be behind it.
        let rest = Place::new(of.end(), place.end() - of.end());
        let behind = now.start + (of.end() - place.start);
        if self.now(rest).start == behind { now } else { place }
    }

    /// The place has another content.
    fn forget(&mut self, place: Place) {
        self.places.retain(|(of, _)| !overlap(*of, place));
    }

    /// Leaves what is at `from` there, if that is in the vector and it was to go to scratch memory.
    fn leave(&mut self, from: Place, into: Place) -> bool {
        let stays = from.end() <= self.vector && into.start >= self.vector;
        if stays {
            self.forget(into);
            self.places.push((into, from.start));
        }
        stays
    }
}

fn overlap(one: Place, other: Place) -> bool {
    one.start < other.end() && other.start < one.end()
}

/// The places that a step touches, and whether it writes them.
fn touched(work: &Work) -> Vec<(Place, bool)> {
    match *work {
        Work::Send { from, .. } => vec![(from, false)],
        Work::Receive { into, .. } => vec![(into, true)],
        Work::Reduce { source: from, into } | Work::Copy { from, into } => {
            vec![(from, false), (into, true)]
        }
        _ => Vec::new(),
    }
}

/// Whether one of two steps writes what the other touches.
fn collide(one: &Work, other: &Work) -> bool {
    let (one, other) = (touched(one), touched(other));
    let hit = |(a, writes): &(Place, bool)| {
        other.iter().any(|(b, also)| (*writes || *also) && overlap(*a, *b))
    };
    one.iter().any(hit)
}

/// Steps that wait for those before them that touch the same bytes, unless both only read; what follows from others is
/// left out.
fn with_dependencies(works: &[Work]) -> Vec<Step> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    let mut steps = Vec::new();
    for (at, work) in works.iter().enumerate() {
        let mut known = vec![false; at];
        let mut after = Vec::new();
        for on in (0..at).rev() {
            if !known[on] && collide(work, &works[on]) {
                after.push(on);
                known[on] = true;
                before[on].iter().enumerate().for_each(|(it, is)| known[it] |= is);
            }
        }
        after.reverse();
        before.push(known);
        steps.push(Step { work: *work, after, thread: 0 });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_xtq::sim::{Configuration, Options, initial, run};

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

    #[test]
    fn a_ring_puts_all_that_it_reduces() {
        let two_sided = allreduce(4, 1 << 12, 4, &"ring".parse().unwrap()).unwrap();
        let tasks = programs(&two_sided, Some(Ready::Message));
        let count =
            |of: fn(&Work) -> bool| tasks[0].steps.iter().filter(|step| of(&step.work)).count();
        assert_eq!(count(|work| matches!(work, Work::Put { .. })), 3);
        assert_eq!(count(|work| matches!(work, Work::Task { .. })), 3);
        assert_eq!(count(|work| matches!(work, Work::Reduce { .. })), 0);
        // All-gather, and one that says «ready».
        assert_eq!(count(|work| matches!(work, Work::Send { .. })), 4);
    }
}
