//! Schedules with one thing wrong are refuted: so the proof can fail, and each of its checks matters.
use super::*;
use crate::Exchange;
use crate::schedule::{Action, Buffer, Place};

/// A collective that is mutated: calls, algorithm, and schedules that are right.
struct Subject {
    name: String,
    definition: Definition,
    schedules: Vec<Schedule>,
}

impl Subject {
    fn new(n: usize, call: Call<'_>, algorithm: Algorithm) -> Self {
        Self::on(&Locality::flat(n), call, algorithm)
    }

    fn on(locality: &Locality, call: Call<'_>, algorithm: Algorithm) -> Self {
        let n = locality.ranks();
        let calls = vec![call; n];
        let schedules = schedules(locality, &calls, &algorithm);
        let name = format!("{call:?} of {n} by {algorithm}");
        Self { name, definition: Definition::new(&calls, 1), schedules }
    }

    fn verdict(&self, change: impl FnOnce(&mut [Schedule])) -> Result<(), Refutation> {
        let mut schedules = self.schedules.clone();
        change(&mut schedules);
        prove(&schedules, &mut self.definition.clone())
    }

    #[track_caller]
    fn refuted(&self, what: &str, rank: usize, step: usize, change: impl FnOnce(&mut Action)) {
        let verdict = self.verdict(|all| change(&mut all[rank].actions[step]));
        assert!(
            verdict.is_err(),
            "{}: rank {rank}, step {step}: {what}\n{}",
            self.name,
            self.schedules[rank]
        );
    }

    fn steps(&self) -> Vec<(usize, usize)> {
        let of =
            |schedule: &Schedule| (0..schedule.len()).map(|step| (schedule.rank, step)).collect();
        self.schedules.iter().flat_map::<Vec<_>, _>(of).collect()
    }
}

fn subjects() -> Vec<Subject> {
    let new = |method, segment| Algorithm::new(method).segmented(segment);
    let tree = |tree, segment| new(Method::Tree(tree), segment);
    let exchange = |how| new(Method::Exchange(how), 0);
    let ordered = sum(1, false);
    let any = sum(1, true);
    let allreduce = |of| Call::Allreduce { len: 7, of, in_place: false };
    let allgather = Call::Allgather { len: 2, in_place: true };
    // Two hosts; the first has two NUMA nodes of two ranks.
    let hosts = Locality::new(vec![vec![0, 1, 2, 3], vec![4, 5]]).expect("all ranks");
    let nodes = hosts.with(Level::Numa, vec![vec![0, 1], vec![2, 3], vec![4, 5]]);
    let nodes = nodes.expect("parts of hosts");
    let named = |name: &str| name.parse::<Algorithm>().expect("an algorithm");
    let scatter = |root| Call::Scatter { root, len: 2, in_place: true };
    let reduce = |root, of| Call::Reduce { root, len: 3, of, in_place: false };
    vec![
        Subject::on(
            &nodes,
            Call::Bcast { root: 3, len: 3 },
            named("binomial over binomial over numa flat"),
        ),
        Subject::on(&nodes, reduce(5, ordered), named("binomial over flat over numa flat")),
        Subject::on(&nodes, allreduce(ordered), named("doubling over flat over numa chain")),
        Subject::on(&nodes, allgather, named("ring over binomial over numa binomial")),
        Subject::on(&nodes, Call::Bcast { root: 3, len: 3 }, named("binomial over shared")),
        Subject::on(&nodes, reduce(5, ordered), named("binomial over shared")),
        Subject::on(&nodes, allreduce(ordered), named("doubling over shared")),
        Subject::on(&nodes, allgather, named("ring over shared")),
        Subject::on(&nodes, scatter(3), named("binomial over shared")),
        Subject::on(&nodes, scatter(5), named("binomial over binomial over numa flat")),
        Subject::new(5, Call::Bcast { root: 2, len: 7 }, tree(Tree::Chain, 3)),
        Subject::new(6, Call::Bcast { root: 0, len: 7 }, exchange(Exchange::Ring)),
        Subject::new(6, Call::Gather { root: 1, len: 2, in_place: true }, tree(Tree::Binomial, 0)),
        Subject::new(
            6,
            Call::Scatter { root: 4, len: 2, in_place: false },
            tree(Tree::KNomial(3), 0),
        ),
        Subject::new(5, allgather, exchange(Exchange::Bruck)),
        Subject::new(6, allgather, exchange(Exchange::Doubling)),
        Subject::new(7, allgather, exchange(Exchange::Pat { blocks: 2 })),
        Subject::new(5, Call::Alltoall { len: 2, in_place: true }, exchange(Exchange::Bruck)),
        Subject::new(4, Call::Alltoall { len: 2, in_place: false }, new(Method::Linear, 0)),
        Subject::new(
            5,
            Call::Reduce { root: 3, len: 5, of: ordered, in_place: true },
            tree(Tree::Chain, 2),
        ),
        Subject::new(5, allreduce(ordered), new(Method::Doubling, 0)),
        Subject::new(6, allreduce(ordered), new(Method::Halving, 0)),
        Subject::new(4, allreduce(any), new(Method::Halving, 0)),
        Subject::new(5, allreduce(any), exchange(Exchange::Ring)),
        Subject::new(
            5,
            Call::ReduceScatterBlock { len: 2, of: ordered, in_place: true },
            new(Method::Halving, 0),
        ),
        Subject::new(
            5,
            Call::Scan { len: 3, of: ordered, in_place: true },
            new(Method::Doubling, 0),
        ),
        Subject::new(7, reduce(2, any), new(Method::Xtq, 0)),
        Subject::new(
            6,
            Call::Reduce { root: 0, len: 7, of: any, in_place: true },
            new(Method::Xtq, 3),
        ),
        Subject::new(5, allreduce(any), new(Method::Xtq, 0)),
        Subject::new(4, Call::Allreduce { len: 9, of: any, in_place: true }, new(Method::Xtq, 2)),
        Subject::on(&nodes, allreduce(any), named("xtq over shared")),
        Subject::new(
            5,
            Call::ReduceScatterBlock { len: 2, of: any, in_place: true },
            new(Method::Xtq, 0),
        ),
        Subject::new(
            4,
            Call::Exscan { len: 3, of: ordered, in_place: false },
            tree(Tree::Chain, 2),
        ),
    ]
}

/// Whether a step waits for an earlier one, through others perhaps.
fn waits(schedule: &Schedule, step: usize, earlier: usize) -> bool {
    let after = schedule.after(step).iter().map(|before| *before as usize);
    after
        .into_iter()
        .any(|before| before == earlier || (before > earlier && waits(schedule, before, earlier)))
}

fn drop_dependency(schedule: &mut Schedule, step: usize, index: usize) {
    let start = step.checked_sub(1).map_or(0, |before| schedule.bounds[before]);
    schedule.after.remove(start + index);
    schedule.bounds[step..].iter_mut().for_each(|bound| *bound -= 1);
}

fn places(action: &mut Action) -> Vec<&mut Place> {
    match action {
        // Of nothing, nothing can be shorter.
        Action::Send { from: place, .. } | Action::Receive { into: place, .. } => {
            Some(place).into_iter().filter(|place| place.len > 0).collect()
        }
        Action::Put { from: place, .. } | Action::Task { into: place, .. } => vec![place],
        Action::Copy { from, into } => vec![from, into],
        // Where there is nothing, nothing can be shorter.
        Action::Share { from, into, .. } => {
            [from, into].into_iter().filter(|place| place.len > 0).collect()
        }
        Action::Reduce { sources, into } => sources.iter_mut().chain([into]).collect(),
    }
}

#[test]
fn subjects_are_right_to_begin_with() {
    for subject in subjects() {
        assert_eq!(subject.verdict(|_| {}), Ok(()), "{}", subject.name);
    }
}

#[test]
fn a_missing_dependency_is_a_race() {
    let mut dropped = 0;
    for subject in subjects() {
        for (rank, step) in subject.steps() {
            for (index, before) in subject.schedules[rank].after(step).iter().enumerate() {
                let mut without = subject.schedules[rank].clone();
                drop_dependency(&mut without, step, index);
                let follows = waits(&without, step, *before as usize);
                let verdict = subject.verdict(|all| all[rank] = without);
                let race =
                    matches!(verdict, Err(Refutation::Race { rank: there, .. }) if there == rank);
                // A put that does not wait may come before its target is ready.
                let is_put = matches!(subject.schedules[rank].action(step), Action::Put { .. });
                let unready = is_put && matches!(verdict, Err(Refutation::Unready { .. }));
                assert_eq!(
                    race || unready,
                    !follows,
                    "{}: rank {rank}, step {step} without {before}",
                    subject.name
                );
                dropped += usize::from(!follows);
            }
        }
    }
    assert!(dropped > 300, "{dropped} dependencies were tried");
}

#[test]
fn another_peer_or_slot_is_refuted() {
    for subject in subjects() {
        let n = subject.schedules.len();
        for (rank, step) in subject.steps() {
            for other in 1..n {
                subject.refuted("another peer", rank, step, |action| match action {
                    Action::Send { to, .. } | Action::Put { to, .. } => *to = (*to + other) % n,
                    Action::Receive { from, .. } | Action::Task { from, .. } => {
                        *from = (*from + other) % n;
                    }
                    other => *other = Action::Copy { from: Place::NOTHING, into: bad_place() },
                });
            }
            subject.refuted("another slot", rank, step, |action| match action {
                Action::Send { slot, .. }
                | Action::Receive { slot, .. }
                | Action::Put { slot, .. }
                | Action::Task { slot, .. } => *slot += 1,
                other => *other = Action::Copy { from: Place::NOTHING, into: bad_place() },
            });
        }
    }
}

fn bad_place() -> Place {
    Place { buffer: Buffer::Recv, block: 1000, start: 0, len: 1 }
}

/// The peers of two sends, or of two receives, of one rank are exchanged. Sends of the same bytes may be; PAT packs the
/// same blocks twice.
#[test]
fn swapped_peers_are_refuted() {
    let mut swapped = 0;
    for subject in subjects().into_iter().filter(|subject| !subject.name.contains("pat-")) {
        for (rank, schedule) in subject.schedules.iter().enumerate() {
            for (one, other) in
                (0..schedule.len()).flat_map(|other| (0..other).map(move |one| (one, other)))
            {
                let mut mutant = schedule.clone();
                let (head, tail) = mutant.actions.split_at_mut(other);
                match (&mut head[one], &mut tail[0]) {
                    (
                        Action::Send { to: a, slot: s, from: same },
                        Action::Send { to: b, slot: t, from },
                    ) if same != from => (*a, *s, *b, *t) = (*b, *t, *a, *s),
                    (
                        Action::Receive { from: a, slot: s, .. },
                        Action::Receive { from: b, slot: t, .. },
                    ) => {
                        (*a, *s, *b, *t) = (*b, *t, *a, *s);
                    }
                    _ => continue,
                }
                swapped += 1;
                let verdict = subject.verdict(|all| all[rank] = mutant);
                assert!(verdict.is_err(), "{}: rank {rank}, steps {one} and {other}", subject.name);
            }
        }
    }
    assert!(swapped > 200, "{swapped} pairs were tried");
}

#[test]
fn shifted_and_longer_and_shorter_places_are_refuted() {
    for subject in subjects() {
        for (rank, step) in subject.steps() {
            let count = places(&mut subject.schedules[rank].actions[step].clone()).len();
            for index in 0..count {
                subject
                    .refuted("a byte later", rank, step, |action| places(action)[index].start += 1);
                subject
                    .refuted("a byte longer", rank, step, |action| places(action)[index].len += 1);
                subject
                    .refuted("a byte shorter", rank, step, |action| places(action)[index].len -= 1);
                subject.refuted("a byte earlier", rank, step, |action| {
                    let place = &mut *places(action).swap_remove(index);
                    place.start = place.start.wrapping_sub(1).min(1 << 40);
                });
            }
        }
    }
}

#[test]
fn operands_in_another_order_are_refuted() {
    let mut tried = 0;
    for subject in
        subjects().into_iter().filter(|subject| subject.name.contains("commutative: false"))
    {
        for (rank, step) in subject.steps() {
            if let Action::Reduce { .. } = subject.schedules[rank].action(step) {
                tried += 1;
                subject.refuted("swapped operands", rank, step, |action| {
                    if let Action::Reduce { sources, .. } = action {
                        sources.swap(0, 1);
                    }
                });
            }
        }
    }
    assert!(tried > 20, "{tried} reductions were tried");
}

#[test]
fn a_missing_step_is_refuted() {
    for subject in subjects() {
        for rank in 0..subject.schedules.len() {
            let verdict = subject.verdict(|all| {
                let schedule = &mut all[rank];
                schedule.actions.pop();
                schedule.bounds.pop();
                schedule.after.truncate(schedule.bounds.last().copied().unwrap_or(0));
            });
            let had = !subject.schedules[rank].is_empty();
            assert_eq!(
                verdict.is_err(),
                had,
                "{}: rank {rank} without its last step",
                subject.name
            );
        }
    }
}

/// Both ranks of an exchange send only after they have received.
#[test]
fn waiting_for_each_other_is_refuted() {
    let algorithm = Algorithm::new(Method::Doubling);
    let call = Call::Allreduce { len: 4, of: sum(1, true), in_place: false };
    let subject = Subject::new(2, call, algorithm);
    let late = |schedule: &mut Schedule| {
        assert!(matches!(schedule.actions[..2], [Action::Send { .. }, Action::Receive { .. }]));
        schedule.actions.swap(0, 1);
        schedule.after.insert(0, 0);
        schedule.bounds[1..].iter_mut().for_each(|bound| *bound += 1);
    };
    assert_eq!(subject.verdict(|all| late(&mut all[0])), Ok(()));
    let both = subject.verdict(|all| all.iter_mut().for_each(late));
    assert_eq!(both, Err(Refutation::Stuck { rank: 0, step: 0 }));
}

/// An element of three bytes is cut.
#[test]
fn a_cut_element_is_refuted() {
    let algorithm = Algorithm::new(Method::Linear);
    let call = Call::Allreduce { len: 6, of: sum(3, true), in_place: false };
    let subject = Subject::new(2, call, algorithm);
    let mut schedules = subject.schedules.clone();
    for schedule in &mut schedules {
        let whole = schedule.actions.pop().expect("a reduction");
        for (start, len) in [(0, 2), (2, 4)] {
            let mut part = whole.clone();
            for place in places(&mut part) {
                (place.start, place.len) = (place.start + start, len);
            }
            schedule.actions.push(part);
        }
        let after = schedule.after(2).to_vec();
        schedule.after.extend(after);
        schedule.bounds.push(schedule.after.len());
    }
    let verdict = prove(&schedules, &mut subject.definition.clone());
    assert!(matches!(verdict, Err(Refutation::Element { .. })), "{verdict:?}");
}

/// Written where only reading is allowed, or beyond what the operation defines.
#[test]
fn writing_what_is_not_ones_own_is_refuted() {
    let gather = Call::Gather { root: 0, len: 2, in_place: false };
    let subject = Subject::new(2, gather, Algorithm::new(Method::Tree(Tree::Flat)));
    let push = |schedule: &mut Schedule, from: Place, into: Place| {
        let all: Vec<_> = (0..u32::try_from(schedule.len()).expect("few steps")).collect();
        schedule.actions.push(Action::Copy { from, into });
        schedule.after.extend(all);
        schedule.bounds.push(schedule.after.len());
    };
    let place = |buffer, block| Place { buffer, block, start: 0, len: 1 };
    let (send, recv) = (place(Buffer::Send, 0), place(Buffer::Recv, 1));
    let verdict = subject.verdict(|all| push(&mut all[0], recv, send));
    assert_eq!(verdict, Err(Refutation::WritesInput { rank: 0, step: 2 }));
    let bcast = Call::Bcast { root: 0, len: 2 };
    let subject = Subject::new(2, bcast, Algorithm::new(Method::Exchange(Exchange::Ring)));
    let steps = subject.schedules[0].len();
    let (from, into) = (place(Buffer::Recv, 0), Place { start: 1, ..place(Buffer::Recv, 0) });
    let verdict = subject.verdict(|all| push(&mut all[0], from, into));
    assert_eq!(verdict, Err(Refutation::WritesInput { rank: 0, step: steps }));
    // In place, what is behind the result of a reduce-scatter stays as it was.
    let call = Call::ReduceScatterBlock { len: 1, of: sum(1, true), in_place: true };
    let subject = Subject::new(2, call, Algorithm::new(Method::Exchange(Exchange::Direct)));
    let verdict = subject.verdict(|all| push(&mut all[0], place(Buffer::Recv, 0), recv));
    assert!(matches!(verdict, Err(Refutation::Result { rank: 0, at: 1, .. })), "{verdict:?}");
}

/// A target that says too early that it is ready, in each way: the task could come before the place is, or before
/// another task of it has ended.
#[test]
fn a_task_that_may_come_too_early_is_refuted() {
    let call = Call::Reduce { root: 0, len: 4, of: sum(1, true), in_place: false };
    let subject = Subject::new(4, call, Algorithm::new(Method::Xtq));
    let is_ready = |action: &Action| matches!(action, Action::Send { from, .. } if from.len == 0);
    let schedule = &subject.schedules[0];
    let ready: Vec<usize> =
        (0..schedule.len()).filter(|step| is_ready(schedule.action(*step))).collect();
    assert_eq!(ready.len(), 2, "{schedule}");
    for step in ready {
        // Its task still waits for what comes before, so that no step of this rank meets another.
        let verdict = subject.verdict(|all| {
            let before = all[0].after(step).to_vec();
            drop_dependency(&mut all[0], step, 0);
            let start = all[0].bounds[step];
            all[0].after.splice(start..start, before);
            all[0].bounds[step + 1..].iter_mut().for_each(|bound| *bound += 1);
        });
        assert!(matches!(verdict, Err(Refutation::Race { rank: 0, .. })), "{step}: {verdict:?}");
    }
    // A put that does not wait for the message at all.
    let verdict = subject.verdict(|all| {
        let last = all[1].len() - 1;
        assert!(matches!(all[1].action(last), Action::Put { .. }));
        drop_dependency(&mut all[1], last, 0);
    });
    assert!(matches!(verdict, Err(Refutation::Unready { rank: 0, .. })), "{verdict:?}");
}
