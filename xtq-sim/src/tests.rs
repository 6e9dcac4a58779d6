use super::experiments::{accumulate, is_sum, reduce};
use super::machine::ELEMENT;
use super::nic::Nic;
use super::*;
use gapless_xtq::sample;

fn of(configuration: Configuration) -> Options {
    Options { mpi: false, ..Options::new(configuration) }
}

/// A remote task of so many bytes, all ready (Figure 7).
fn task(configuration: Configuration, bytes: u64) -> SimOutcome {
    let programs = reduce(configuration, bytes, 0, Ready::Ahead);
    run(&programs, &of(configuration)).expect("programs that make sense")
}

/// `count` ranks that each send `bytes` to rank 0, which adds all to its own.
fn fan_in(count: usize, bytes: u64) -> Vec<Program> {
    let mut target = Program { memory: bytes * count as u64, steps: Vec::new() };
    let into = MemoryRange::new(0, bytes);
    for from in 1..count {
        let source = MemoryRange::new(bytes * from as u64, bytes);
        target.steps.push(SimStep::new(SimWork::Receive { from, slot: 0, into: source }, &[]));
        let received = target.steps.len() - 1;
        let mut after = vec![received];
        // Reductions into one place, one after the other.
        after.extend(received.checked_sub(1));
        target.steps.push(SimStep::new(SimWork::Reduce { source, into }, &after));
    }
    let send = SimWork::Send { to: 0, slot: 0, from: into };
    let other = Program { memory: bytes, steps: vec![SimStep::new(send, &[])] };
    std::iter::once(target).chain(std::iter::repeat_n(other, count - 1)).collect()
}

fn has_sums(outcome: &SimOutcome, seed: u64, bytes: u64) -> bool {
    let ranks = outcome.memory.len();
    let sum = |at| (0..ranks).map(|rank| initial(seed, rank, at)).fold(0u32, u32::wrapping_add);
    (0..bytes / ELEMENT).zip(&outcome.memory[0]).all(|(at, it)| *it == sum(at))
}

#[test]
fn both_tasks_of_64_bytes_take_as_long_as_in_the_paper() {
    for (configuration, picoseconds) in
        [(Configuration::Xtq, 1_200_000), (Configuration::Hsa, 1_500_000)]
    {
        let outcome = task(configuration, 64);
        assert!(
            outcome.is_whole() && is_sum(&outcome.memory, 1, 64),
            "{configuration:?}: {outcome:?}"
        );
        let off = outcome.time().0.abs_diff(picoseconds);
        assert!(
            50 * off <= picoseconds,
            "{configuration:?}: {}, asked {}",
            outcome.time(),
            Ps(picoseconds)
        );
    }
}

#[test]
fn a_task_goes_through_all_phases_in_order() {
    for configuration in [Configuration::Hsa, Configuration::Xtq] {
        let phases = task(configuration, 4096).phases;
        assert!(phases.is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1), "{phases:?}");
        assert_eq!(phases.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), Phase::ALL);
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let programs = with_tasks(&fan_in(6, 20_000), Ready::Message);
    let of = |seed| Options {
        seed,
        skew: Ps::ns(5000),
        lines: true,
        ..Options::new(Configuration::Xtq)
    };
    let [one, again, other] =
        [7, 7, 8].map(|seed| run(&programs, &of(seed)).expect("programs that make sense"));
    assert!(has_sums(&one, 7, 20_000) && has_sums(&other, 8, 20_000));
    assert_eq!((one.digest, &one.lines, &one.memory), (again.digest, &again.lines, &again.memory));
    assert_eq!(one.lines.len() as u64, one.events);
    assert_ne!(one.digest, other.digest);
    let quiet =
        run(&programs, &Options { lines: false, ..of(7) }).expect("programs that make sense");
    assert_eq!((quiet.digest, quiet.lines.len()), (one.digest, 0));
}

/// A queue of one, and eight initiators: whoever is refused comes again, and nothing is lost or done twice.
#[test]
fn what_a_full_queue_refuses_comes_again() {
    let programs = with_tasks(&fan_in(9, 4096), Ready::Ahead);
    for queue in [1, 2, 64] {
        let mut options = Options::new(Configuration::Xtq);
        options.machine.queue = queue;
        let outcome = run(&programs, &options).expect("programs that make sense");
        assert!(outcome.is_whole() && has_sums(&outcome, 1, 4096), "queue of {queue}: {outcome:?}");
        assert_eq!(outcome.refused > 0, queue < 64, "queue of {queue}");
    }
}

/// Each packet that goes in comes out once, in any mixture of messages among any ranks.
#[test]
fn packets_are_conserved() {
    let mut random = 0x5EED_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (random >> 33) % bound
    };
    for configuration in Configuration::ALL {
        for ranks in [2, 5] {
            let mut programs = vec![Program { memory: 64 << 10, steps: Vec::new() }; ranks];
            for slot in 0..60 {
                let from = usize::try_from(below(ranks as u64)).unwrap_or(0);
                let to = usize::try_from(below(ranks as u64)).unwrap_or(0);
                if from == to {
                    continue;
                }
                let len = ELEMENT * below(4000);
                let place = MemoryRange::new(ELEMENT * below(4000), len);
                programs[from]
                    .steps
                    .push(SimStep::new(SimWork::Send { to, slot, from: place }, &[]));
                // Some wait for what is before them: their messages may come too early.
                let last = programs[to].steps.len().checked_sub(1);
                let after: Vec<usize> = last.filter(|_| below(2) == 0).into_iter().collect();
                let source = MemoryRange::new(32 << 10, len);
                programs[to]
                    .steps
                    .push(SimStep::new(SimWork::Receive { from, slot, into: source }, &after));
                let received = programs[to].steps.len() - 1;
                programs[to]
                    .steps
                    .push(SimStep::new(SimWork::Reduce { source, into: place }, &[received]));
            }
            if configuration == Configuration::Xtq {
                programs = with_tasks(&programs, Ready::Ahead);
            }
            let outcome =
                run(&programs, &Options::new(configuration)).expect("programs that make sense");
            let traffic = outcome.traffic;
            assert!(
                traffic.is_conserved() && traffic.sent >= traffic.messages && traffic.messages > 20,
                "{traffic:?}"
            );
            assert!(outcome.broken.is_empty(), "{:?}", outcome.broken);
        }
    }
}

/// The NIC of the model rewrites as every back end does.
#[test]
fn the_sample_gives_the_known_digest() {
    let nic = Nic::with_tables(sample::tables());
    let (mut digest, mut tasks) = (sample::Digest::new(), 0);
    for (packet, places) in sample::packets(sample::PACKETS) {
        let rewritten = nic.task(&packet, places);
        tasks += usize::from(rewritten.is_ok());
        digest.add(&rewritten);
    }
    assert_eq!((tasks, digest.value()), sample::KNOWN);
}

#[test]
fn entries_that_the_nic_does_not_hold_cost_a_read() {
    let programs = reduce(Configuration::Xtq, 64, 0, Ready::Ahead);
    let time = |entries| {
        let mut options = of(Configuration::Xtq);
        options.machine.table_cache = entries;
        run(&programs, &options).expect("programs that make sense").time()
    };
    let crossing = Machine::PAPER.crossing;
    // The kernel's entry was displaced; then the queue's as well.
    assert_eq!(time(2).since(time(192)), crossing);
    assert_eq!(time(0).since(time(192)), crossing * 2);
}

#[test]
fn accumulates_give_the_sum_however_they_are_cut() {
    for configuration in Configuration::ALL {
        for (bytes, piece) in [(4, 0), (4100, 1024), (70_000, 0), (70_000, 16_384)] {
            let programs = accumulate(configuration, bytes, piece);
            let outcome =
                run(&programs, &Options::new(configuration)).expect("programs that make sense");
            let right = outcome.is_whole() && is_sum(&outcome.memory, 1, bytes);
            assert!(
                right,
                "{configuration:?} {bytes} in {piece}: {:?} {:?}",
                outcome.stuck, outcome.broken
            );
            // The target's application has nothing to do.
            assert_eq!(outcome.busy[1] == Ps::ZERO, configuration == Configuration::Xtq);
        }
    }
}

#[test]
fn a_target_says_ready_before_anybody_puts() {
    let programs = with_tasks(&fan_in(3, 64), Ready::Message);
    let ready = |step: &&SimStep| matches!(step.work, SimWork::Send { slot: READY, .. });
    assert_eq!(programs[0].steps.iter().filter(ready).count(), 2);
    let put = programs[1]
        .steps
        .iter()
        .find(|step| matches!(step.work, SimWork::Put { .. }))
        .expect("a put");
    let SimWork::Receive { from: 0, slot: READY, .. } = programs[1].steps[put.after[0]].work else {
        panic!("{put:?} waits for something else");
    };
    // A reduction of what this rank itself has still to compute cannot be put: it stays two-sided.
    let mut other = fan_in(3, 64);
    other[0].steps.insert(
        0,
        SimStep::new(SimWork::Receive { from: 2, slot: 9, into: MemoryRange::new(0, 64) }, &[]),
    );
    for step in &mut other[0].steps[1..] {
        step.after.iter_mut().for_each(|on| *on += 1);
    }
    other[0].steps[2].after.push(0);
    other[2]
        .steps
        .push(SimStep::new(SimWork::Send { to: 0, slot: 9, from: MemoryRange::new(0, 64) }, &[]));
    let programs = with_tasks(&other, Ready::Message);
    assert!(
        programs
            .iter()
            .flat_map(|program| &program.steps)
            .all(|step| !matches!(step.work, SimWork::Put { .. }))
    );
    let outcome =
        run(&programs, &Options::new(Configuration::Xtq)).expect("programs that make sense");
    assert!(outcome.is_whole(), "{outcome:?}");
}

#[test]
fn programs_without_sense_are_refused() {
    let one = |step: SimStep| vec![Program { memory: 64, steps: vec![step] }];
    let refused = |programs: Vec<Program>, grain| {
        let options = Options { grain, ..Options::new(Configuration::Cpu) };
        run(&programs, &options).expect_err("no program")
    };
    let send = |to, from| SimStep::new(SimWork::Send { to, slot: 0, from }, &[]);
    assert!(matches!(
        refused(one(send(1, MemoryRange::NOTHING)), 4),
        ProgramError::NoSuchRank { peer: 1, .. }
    ));
    assert!(matches!(
        refused(one(send(0, MemoryRange::new(1, 64))), 4),
        ProgramError::Outside { end: 65, .. }
    ));
    assert!(matches!(
        refused(one(send(0, MemoryRange::new(u64::MAX, 2))), 4),
        ProgramError::Outside { .. }
    ));
    assert!(matches!(refused(one(send(0, MemoryRange::new(4, 8))), 8), ProgramError::Grain { .. }));
    let own = SimStep { after: vec![0], ..send(0, MemoryRange::NOTHING) };
    assert!(matches!(refused(one(own), 4), ProgramError::Order { step: 0, on: 0, .. }));
    let third = SimStep { thread: 2, ..send(0, MemoryRange::NOTHING) };
    assert!(matches!(refused(one(third), 4), ProgramError::NoSuchThread { thread: 2, .. }));
    let many = vec![Program::default(); Machine::PAPER.ports + 1];
    assert!(matches!(refused(many, 4), ProgramError::TooMany { .. }));
}
