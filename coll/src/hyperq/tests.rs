//! The policies by transcripts, and by all orders of events; the table.

mod frames;

use super::*;
use std::collections::BTreeSet;

/// Tells a policy of an event; what it does.
fn told(policy: &mut Dynamic, event: Event) -> Vec<Act> {
    let mut acts = Vec::new();
    policy.step(event, &mut acts);
    acts
}

fn issued(acts: &[Act]) -> Vec<(usize, Kind)> {
    let issue = |act: &Act| match act {
        Act::Issue(rank, kind) => Some((*rank, *kind)),
        Act::Drop(_) => None,
    };
    acts.iter().filter_map(issue).collect()
}

/// All ranks but 0 have arrived; the copies that this issues.
fn all_arrived(processes: usize) -> (Dynamic, Vec<(usize, Kind)>) {
    let mut policy = Dynamic::new(processes - 1, HyperQStep::Gather);
    let acts = (1..processes).flat_map(|rank| told(&mut policy, Event::Arrived(rank)));
    let acts: Vec<Act> = acts.collect();
    (policy, issued(&acts))
}

#[test]
fn of_sixteen_processes_a_quick_kind_soon_gets_all() {
    for quick in [Kind::Staged, Kind::Ipc] {
        let (mut policy, first) = all_arrived(16);
        assert_eq!(first, [(1, Kind::Staged), (2, Kind::Ipc)]);
        let mut open: Vec<_> = first.into_iter().filter(|copy| copy.1 == quick).collect();
        let mut batches = vec![2];
        let mut again = Vec::new();
        while !open.is_empty() {
            let (rank, kind) = open.remove(0);
            let acts = told(&mut policy, Event::Completed(rank, kind));
            let more = issued(&acts);
            assert!(more.iter().all(|copy| copy.1 == quick));
            if acts.iter().any(|act| matches!(act, Act::Drop(_)))
                || batches.iter().sum::<usize>() == 15
            {
                again.extend(more.clone());
            } else if !more.is_empty() {
                batches.push(more.len());
            }
            open.extend(more);
        }
        // 1 + 1, then 2, 4, and the 7 that are left of 8.
        assert_eq!(batches, [2, 2, 4, 7]);
        // The only copy of the slow kind is sent again.
        let slow = if quick == Kind::Staged { 2 } else { 1 };
        assert_eq!(again, [(slow, quick)]);
        assert!(policy.is_over());
        assert_eq!((policy.completed(quick), policy.slow()), (15, Some(quick.other())));
    }
}

#[test]
fn kinds_that_end_by_turns_share_the_copies() {
    let (mut policy, first) = all_arrived(16);
    let mut open = first;
    let mut sizes = Vec::new();
    let mut next = Kind::Staged;
    while !policy.is_over() {
        let at = open.iter().position(|copy| copy.1 == next).expect("one of each kind is open");
        let (rank, kind) = open.remove(at);
        let acts = told(&mut policy, Event::Completed(rank, kind));
        sizes.push(issued(&acts).len());
        open.extend(issued(&acts));
        let turned = next.other();
        next = if open.iter().any(|copy| copy.1 == turned) { turned } else { next };
    }
    // The one that ends first is one ahead each time, and gets two; the other one is level, and gets one.
    assert_eq!(sizes[..6], [2, 1, 2, 1, 2, 1]);
    assert_eq!(policy.completed(Kind::Staged) + policy.completed(Kind::Ipc), 15);
    assert!(policy.completed(Kind::Staged).abs_diff(policy.completed(Kind::Ipc)) <= 5);
}

#[test]
fn two_processes_make_one_copy_and_three_may_send_the_slow_one_again() {
    let (mut policy, first) = all_arrived(2);
    assert_eq!(first, [(1, Kind::Staged)]);
    assert_eq!(told(&mut policy, Event::Completed(1, Kind::Staged)), []);
    assert!(policy.is_over());
    let (policy, first) = all_arrived(3);
    assert_eq!(first, [(1, Kind::Staged), (2, Kind::Ipc)]);
    let mut ipc_late = policy.clone();
    let again = told(&mut ipc_late, Event::Completed(1, Kind::Staged));
    assert_eq!(again, [Act::Issue(2, Kind::Staged)], "an IPC copy goes on");
    // Whichever ends first counts.
    let mut both = ipc_late.clone();
    assert_eq!(told(&mut both, Event::Completed(2, Kind::Ipc)), []);
    assert!(both.is_over());
    assert_eq!(told(&mut both, Event::Completed(2, Kind::Staged)), []);
    assert_eq!(both.completed(Kind::Staged), 1);
    let mut staged_late = policy;
    let again = told(&mut staged_late, Event::Completed(2, Kind::Ipc));
    assert_eq!(again, [Act::Drop(1), Act::Issue(1, Kind::Ipc)]);
    assert!(!staged_late.is_over());
    told(&mut staged_late, Event::Completed(1, Kind::Ipc));
    assert!(staged_late.is_over());
}

/// Section 4 by its words, as an oracle: 16 processes arrive and copies end in random orders. The first two that arrive
/// get one copy of each kind; the end of a copy is worth one more of its kind, or two to the power of how far its kind
/// is ahead; whoever arrives is served in order.
#[test]
fn sixteen_processes_are_served_as_the_paper_says_in_random_orders() {
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        let mut policy = Dynamic::new(15, HyperQStep::Gather);
        let mut away: Vec<usize> = (1..16).collect();
        let (mut arrived, mut open) = (Vec::new(), Vec::new());
        let (mut may, mut ended, mut begun) = ([1usize; 2], [0i32; 2], [0usize; 2]);
        let (mut dropped, mut again) = (Vec::new(), None);
        while !policy.is_over() {
            let at = random(away.len() + open.len());
            let event = match at.checked_sub(away.len()) {
                None => {
                    arrived.push(away.swap_remove(at));
                    Event::Arrived(arrived[arrived.len() - 1])
                }
                Some(at) => {
                    let (rank, kind): (usize, Kind) = open.swap_remove(at);
                    ended[kind.index()] += 1;
                    let ahead = ended[kind.index()] - ended[kind.other().index()];
                    may[kind.index()] += if ahead > 0 { 1 << ahead } else { 1 };
                    Event::Completed(rank, kind)
                }
            };
            for act in told(&mut policy, event) {
                match act {
                    Act::Issue(rank, kind) if arrived.get(begun[0] + begun[1]) == Some(&rank) => {
                        let first = begun == [0, 0];
                        let second = begun[0] + begun[1] == 1;
                        assert!(!first || kind == Kind::Staged, "seed {seed}");
                        assert!(!second || kind == Kind::Ipc, "seed {seed}");
                        begun[kind.index()] += 1;
                        open.push((rank, kind));
                    }
                    Act::Issue(rank, kind) => {
                        assert_eq!(again.replace(rank), None, "seed {seed}: once");
                        assert_eq!(ended[kind.other().index()], 0, "seed {seed}: its kind is slow");
                        assert_eq!(ended[kind.index()], 14, "seed {seed}: it is the last");
                        open.push((rank, kind));
                    }
                    Act::Drop(rank) => dropped.push(rank),
                }
            }
            open.retain(|copy| !(copy.1 == Kind::Staged && dropped.contains(&copy.0)));
            let served = begun[0] + begun[1];
            assert!(served <= arrived.len() && begun[0] <= may[0] && begun[1] <= may[1]);
            // Who waits does so because nothing more may begin.
            assert!(served == arrived.len() || begun == may, "seed {seed}: {begun:?} of {may:?}");
        }
    }
}

#[test]
fn the_scatter_avoids_what_was_slow() {
    let (mut gather, _) = all_arrived(3);
    told(&mut gather, Event::Completed(1, Kind::Staged));
    told(&mut gather, Event::Completed(2, Kind::Staged));
    let mut scatter = Dynamic::after(&gather, 2);
    let acts: Vec<Act> = (1..3).flat_map(|rank| told(&mut scatter, Event::Arrived(rank))).collect();
    assert_eq!(acts, [Act::Issue(1, Kind::Staged), Act::Issue(2, Kind::Staged)]);
    assert_eq!(told(&mut scatter, Event::Completed(1, Kind::Staged)), []);
    assert_eq!(told(&mut scatter, Event::Completed(2, Kind::Staged)), []);
    assert!(scatter.is_over());
    // With both kinds, the last copy is waited for.
    let mut fresh = Dynamic::new(2, HyperQStep::Scatter);
    told(&mut fresh, Event::Arrived(1));
    told(&mut fresh, Event::Arrived(2));
    assert_eq!(told(&mut fresh, Event::Completed(1, Kind::Staged)), []);
}

/// Gathers in which copies of both kinds have ended: one each, and one host-staged and three by IPC.
fn gathers_of_both() -> [Dynamic; 2] {
    let (mut level, _) = all_arrived(3);
    told(&mut level, Event::Completed(1, Kind::Staged));
    told(&mut level, Event::Completed(2, Kind::Ipc));
    let (mut ahead, _) = all_arrived(5);
    for copy in [(2, Kind::Ipc), (1, Kind::Staged), (3, Kind::Ipc), (4, Kind::Ipc)] {
        told(&mut ahead, Event::Completed(copy.0, copy.1));
    }
    assert!(level.is_over() && ahead.is_over());
    [level, ahead]
}

#[test]
fn the_scatter_goes_on_from_the_numbers_of_the_gather() {
    let all = |mut scatter: Dynamic| {
        let acts = (1..=7).flat_map(|rank| told(&mut scatter, Event::Arrived(rank)));
        let acts: Vec<Act> = acts.collect();
        (issued(&acts), scatter)
    };
    let [level, ahead] = gathers_of_both();
    let (begun, _) = all(Dynamic::after(&level, 7));
    let kinds = |begun: &[(usize, Kind)]| begun.iter().map(|copy| copy.1).collect::<Vec<_>>();
    assert_eq!(kinds(&begun), [Kind::Staged, Kind::Staged, Kind::Ipc, Kind::Ipc]);
    // One to three.
    let (begun, mut scatter) = all(Dynamic::after(&ahead, 7));
    assert_eq!(kinds(&begun), [Kind::Ipc, Kind::Ipc, Kind::Ipc, Kind::Staged]);
    // Each is followed by one of its kind.
    let more = issued(&told(&mut scatter, Event::Completed(1, Kind::Ipc)));
    assert_eq!(more, [(5, Kind::Ipc)]);
    let more = issued(&told(&mut scatter, Event::Completed(4, Kind::Staged)));
    assert_eq!(more, [(6, Kind::Staged)]);
    assert_eq!((scatter.completed(Kind::Ipc), scatter.completed(Kind::Staged)), (1, 1));
}

/// What a test knows of the copies of a step.
#[derive(Clone)]
struct World {
    policy: Policy,
    arrived: BTreeSet<usize>,
    open: BTreeSet<(usize, Kind)>,
    issued: Vec<(usize, Kind)>,
    moved: BTreeSet<usize>,
}

impl World {
    fn new(policy: Policy) -> World {
        let (arrived, open, moved) = Default::default();
        World { policy, arrived, open, issued: Vec::new(), moved }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Arrived(rank) => drop(self.arrived.insert(rank)),
            Event::Completed(rank, kind) => {
                assert!(self.open.remove(&(rank, kind)));
                self.moved.insert(rank);
            }
        }
        let mut acts = Vec::new();
        self.policy.step(event, &mut acts);
        for act in acts {
            match act {
                Act::Issue(rank, kind) => {
                    assert!(self.arrived.contains(&rank), "nothing is issued before its arrival");
                    assert!(!self.moved.contains(&rank), "what was moved is not sent again");
                    assert!(!self.issued.contains(&(rank, kind)), "once by each kind");
                    self.issued.push((rank, kind));
                    self.open.insert((rank, kind));
                }
                Act::Drop(rank) => assert!(self.open.remove(&(rank, Kind::Staged))),
            }
        }
    }

    /// Goes through all orders of what may happen next; how many ends there are.
    fn all_orders(self, ranks: usize) -> u64 {
        let arrive = (1..=ranks).filter(|rank| !self.arrived.contains(rank)).map(Event::Arrived);
        let complete = self.open.iter().map(|(rank, kind)| Event::Completed(*rank, *kind));
        let next: Vec<Event> = arrive.chain(complete).collect();
        let is_over = self.moved.len() == ranks;
        assert_eq!(self.policy.is_over(), is_over);
        if next.is_empty() {
            assert!(is_over, "it ends whatever the order: {:?}", self.issued);
            let again = self.issued.len() - ranks;
            assert!(again <= 1, "one copy at most is sent again");
            return 1;
        }
        let go = |event| {
            let mut world = self.clone();
            world.tell(event);
            world.all_orders(ranks)
        };
        next.into_iter().map(go).sum()
    }
}

#[test]
fn whatever_the_order_every_ranks_bytes_are_moved_and_it_ends() {
    for ranks in 1..=4 {
        let mut ends = 0;
        for step in [HyperQStep::Gather, HyperQStep::Scatter] {
            ends += World::new(Policy::Dynamic(Dynamic::new(ranks, step))).all_orders(ranks);
        }
        for gather in gathers_of_both() {
            let scatter = Dynamic::after(&gather, ranks);
            ends += World::new(Policy::Dynamic(scatter)).all_orders(ranks);
        }
        for staged in 0..=ranks {
            let fixed = Fixed::new(staged, ranks - staged);
            ends += World::new(Policy::Fixed(fixed)).all_orders(ranks);
        }
        assert!(ends > [0, 2, 20, 400, 9000][ranks], "{ranks}: {ends}");
    }
}

#[test]
fn the_static_algorithm_begins_both_kinds_early() {
    let mut fixed = Fixed::new(2, 6);
    let mut acts = Vec::new();
    (1..=8).for_each(|rank| fixed.step(Event::Arrived(rank), &mut acts));
    let kinds: Vec<_> = issued(&acts).into_iter().map(|copy| copy.1).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Staged).count(), 2);
    assert!(kinds[..4].contains(&Kind::Staged) && kinds[..4].contains(&Kind::Ipc));
    // Nobody copies who was not counted.
    fixed.step(Event::Arrived(9), &mut acts);
    assert_eq!(acts.len(), 8);
}

/// Calls one after the other, each as long as `time` says for its number of host-staged copies.
fn calls(
    memory: &mut Memory,
    count: usize,
    copies: usize,
    time: impl Fn(usize) -> f64,
) -> Vec<f64> {
    let call = |_| {
        let policy = memory.policy(HyperQStep::Gather, 70_000, copies);
        let ended = match &policy {
            Policy::Fixed(_) => policy,
            Policy::Dynamic(_) => {
                let mut dynamic = Dynamic::new(copies, HyperQStep::Gather);
                let mut acts = Vec::new();
                (0..copies).for_each(|rank| dynamic.step(Event::Arrived(rank), &mut acts));
                let quick = if time(0) < time(copies) { Kind::Ipc } else { Kind::Staged };
                while let Some(at) =
                    acts.iter().position(|act| matches!(act, Act::Issue(_, kind) if *kind == quick))
                {
                    let Act::Issue(rank, kind) = acts.remove(at) else { unreachable!() };
                    dynamic.step(Event::Completed(rank, kind), &mut acts);
                }
                Policy::Dynamic(dynamic)
            }
        };
        let ns = time(ended.count(Kind::Staged).min(copies));
        memory.learn(HyperQStep::Gather, 70_000, copies, &ended, ns);
        ns
    };
    (0..count).map(call).collect()
}

#[test]
fn what_was_slow_is_remembered_and_tried_seldom() {
    // A mix is best; IPC alone; host-staged alone.
    for (best, copies) in [(5, 15), (0, 15), (15, 15), (1, 1), (0, 1), (2, 3)] {
        let mut memory = Memory::default();
        let time = |staged: usize| 100.0 + 60.0 * staged.abs_diff(best) as f64;
        let took = calls(&mut memory, 1000, copies, time);
        let learned = memory.learned(HyperQStep::Gather, 70_000, copies).unwrap();
        assert!(learned.is_settled());
        assert_eq!(learned.best(), Some(best));
        let slow = |took: &[f64]| took.iter().filter(|ns| **ns > 100.0).count();
        assert!(slow(&took[..30]) > 0 || copies == 1);
        let tried = slow(&took[100..]);
        assert!((9..=20).contains(&tried), "once in 100 calls or fewer: {tried} of 900");
        let sum: f64 = took[100..].iter().sum();
        assert!(sum < 1.05 * 900.0 * 100.0, "{sum}");
        // The machine changes.
        let other = copies - best;
        let moved = |staged: usize| 100.0 + 60.0 * staged.abs_diff(other) as f64;
        calls(&mut memory, 64 * 40 * copies, copies, moved);
        let learned = memory.learned(HyperQStep::Gather, 70_000, copies).unwrap();
        assert_eq!(learned.best(), Some(other), "from {best} of {copies}");
    }
    // Another class is another.
    let mut memory = Memory::default();
    calls(&mut memory, 10, 3, |_| 1.0);
    assert_eq!(memory.learned(HyperQStep::Scatter, 70_000, 3), None);
    assert_eq!(memory.learned(HyperQStep::Gather, 70_000, 4), None);
    assert!(
        memory.learned(HyperQStep::Gather, 131_072, 3).is_some()
            && memory.learned(HyperQStep::Gather, 131_073, 3).is_none()
    );
}

fn entry(step: HyperQStep, processes: usize, bytes: u64, staged: usize) -> Entry {
    Entry { step, processes, bytes, staged }
}

#[test]
fn the_table_is_read_between_its_entries() {
    let entries = vec![
        entry(HyperQStep::Gather, 16, 1 << 10, 15),
        entry(HyperQStep::Gather, 16, 1 << 20, 5),
        entry(HyperQStep::Gather, 4, 1 << 10, 3),
        entry(HyperQStep::Gather, 4, 1 << 20, 0),
        entry(HyperQStep::Scatter, 16, 1 << 20, 1),
    ];
    let known = Gpu { model: "this".to_owned(), mps: false, entries };
    let table = Table { gpus: vec![known] };
    let staged = |step, processes: usize, bytes| {
        let fixed = table.counts(("this", false), step, (processes, processes - 1), bytes);
        assert_eq!(fixed.count(Kind::Staged) + fixed.count(Kind::Ipc), processes - 1);
        fixed.count(Kind::Staged)
    };
    let gather = |processes, bytes| staged(HyperQStep::Gather, processes, bytes);
    assert_eq!([gather(16, 1 << 10), gather(16, 1 << 20)], [15, 5]);
    assert_eq!([gather(16, 1), gather(16, 1 << 30)], [15, 5], "beyond the ends");
    assert_eq!(gather(16, 1 << 15), 10, "half way");
    assert_eq!([gather(4, 1 << 20), gather(5, 1 << 20), gather(12, 1 << 20)], [0, 0, 4]);
    assert_eq!(staged(HyperQStep::Scatter, 4, 64), 0, "of 3, a fifteenth");
    // Another model is taken for this one under the same service, and not under another.
    let other = |mps, bytes| table.counts(("that", mps), HyperQStep::Gather, (16, 15), bytes);
    assert_eq!(other(false, 1 << 10).count(Kind::Staged), 15);
    assert_eq!(other(true, 1 << 10).count(Kind::Staged), 0);
    assert!(
        table.knows("this", false) && !table.knows("this", true) && !table.knows("that", false)
    );
    // Without anything, by what is known of turns.
    let none = |mps, bytes| Table::default().counts(("", mps), HyperQStep::Gather, (5, 4), bytes);
    assert_eq!(none(false, 4096).count(Kind::Staged), 4);
    assert_eq!(none(false, 8 << 20).count(Kind::Staged), 2);
    assert_eq!(none(true, 4096).count(Kind::Staged), 0);
}

#[test]
fn modes_have_names() {
    assert!(Mode::ALL.iter().all(|mode| Mode::named(mode.name()) == Some(*mode)));
    assert_eq!(Mode::named("both"), None);
}
