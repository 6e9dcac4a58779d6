//! The hand-over, in every order of its steps: loom runs the host's code as it is ([`hand_over`]) with its own atomics
//! and locks, and a kernel that does what `kernels/cuda/lives.h` does. Orders with more than two switches between
//! threads that no wait asks for, or one where two threads give, are left out.
//!
//! loom knows the processor's memory model, not a GPU's. Taken for granted is that a fence of the whole system on a GPU
//! orders what that GPU has loaded and stored for the processor as a fence of the same name here does, and that a unit
//! of a command comes over the bus in one piece.
//!
//! What each fence, and each step, is good for is shown by the kernel and the host without it ([`Rules`]). Found as
//! well when `hand_over.rs` was changed, one thing at a time: a state that is read before the command is stored; a
//! `give` that starts no life; a unit whose number is stored first, or without release; a count that is loaded without
//! acquire; a ring that takes one more than it holds.

#![allow(clippy::duplicate_mod, reason = "the same code, made of something else")]

#[path = "hand_over.rs"]
mod hand_over;

use gapless_kernels::persistent::{AWAY, RUNNING, STARTING};
use gapless_mem::{Completion, DeviceError};
use hand_over::{Lives, PersistentKernel, at};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use primitive::{Command, ENDED, LEAVE, SEQUENCES, STATE, UNITS, Words, slot};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// The same as `persistent.rs` has, but loom's, and short: two slots, of commands of two units.
mod primitive {
    use super::RULES;
    pub(super) use loom::sync::atomic::AtomicU64;
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use loom::thread::yield_now;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    pub(super) const ASKS: u32 = 1;
    pub(super) const SLOTS: u64 = 2;
    pub(super) const UNITS: usize = 2;
    pub(super) const SEQUENCES: u64 = 65535;
    pub(super) const STATE: u64 = 0;
    pub(super) const ENDED: u64 = 8;
    const RING: u64 = 16;
    const WORDS: u64 = RING / 8 + SLOTS * 2 * UNITS as u64;

    pub(super) fn slot(number: u64) -> u64 {
        RING + number % SLOTS * (16 * UNITS) as u64
    }

    /// The host's.
    pub(super) fn fence(order: Ordering) {
        if RULES.get().host_fences {
            loom::sync::atomic::fence(order);
        }
    }

    #[derive(Clone)]
    pub(super) struct Words(Arc<[AtomicU64]>);

    impl Words {
        pub(super) fn new() -> Words {
            Words((0..WORDS).map(|_| AtomicU64::new(0)).collect())
        }

        pub(super) fn all(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    /// A number, or [`LEAVE`].
    pub(super) struct Command(pub(super) u64);

    pub(super) const LEAVE: u64 = 255;

    impl Command {
        pub(super) fn leave() -> Command {
            Command(LEAVE)
        }

        pub(super) fn units(&self, number: u64) -> impl Iterator<Item = [u64; 2]> {
            std::iter::repeat_n([1 + number % SEQUENCES, self.0], UNITS)
        }
    }
}

/// How host and kernel go about it. Without any of the fences, steps and turns below it is wrong.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A life's time is over before it has looked for a command: it says `AWAY` at once. Otherwise when it has looked
    /// in vain. Both are right.
    in_a_hurry: bool,
    /// Commands may wait for others: a life is started by who asks, when the one before is over. Both are right.
    waits: bool,
    /// Starts behind the first one that the device refuses: any number is right.
    refused: u64,
    /// The host fences between a command and its look at the state.
    host_fences: bool,
    /// The kernel fences behind `AWAY`.
    kernel_fences: bool,
    /// It looks once more behind that.
    looks_again: bool,
    /// It fences between a command's number and what came before that.
    acquires: bool,
    /// It fences between what it has written and the count.
    releases: bool,
    /// A life begins when the one before is over.
    in_turn: bool,
}

const AS_THEY_ARE: Rules = Rules {
    in_a_hurry: false,
    waits: false,
    refused: 0,
    host_fences: true,
    kernel_fences: true,
    looks_again: true,
    acquires: true,
    releases: true,
    in_turn: true,
};

thread_local! {
    /// Those of the model that this thread runs: loom has no other.
    static RULES: Cell<Rules> = const { Cell::new(AS_THEY_ARE) };
}

/// The most commands of a model.
const COMMANDS: usize = 3;

/// The device, and its memory.
struct Gpu {
    words: Words,
    /// By command: what the host wrote before it was given, and what the kernel made of that.
    data: [[AtomicU64; 2]; COMMANDS + 1],
    /// Commands that were run.
    seen: Mutex<Vec<u64>>,
    /// Lives that were started and are not over.
    lives: AtomicU64,
    starts: Mutex<u64>,
    last: Mutex<Option<JoinHandle<()>>>,
}

/// Lives are threads of the model.
struct Played(Arc<Gpu>);

// SAFETY: a life counts itself out last. It touches the model's own memory alone.
unsafe impl Lives for Played {
    fn start(&self) -> Result<(), DeviceError> {
        let number = *self.0.starts.lock().unwrap();
        *self.0.starts.lock().unwrap() += 1;
        if (1..=RULES.get().refused).contains(&number) {
            return Err(DeviceError::Unsupported { what: "lives" });
        }
        self.0.lives.fetch_add(1, Ordering::AcqRel);
        let (gpu, before) = (Arc::clone(&self.0), self.0.last.lock().unwrap().take());
        let life = thread::spawn(move || {
            if let Some(before) = before.filter(|_| RULES.get().in_turn) {
                before.join().unwrap();
            }
            gpu.live();
            gpu.lives.fetch_sub(1, Ordering::AcqRel);
        });
        *self.0.last.lock().unwrap() = Some(life);
        Ok(())
    }

    fn may_start(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        RULES.get().waits
    }

    fn is_over(&self) -> Result<bool, DeviceError> {
        // A model that was found broken waits for nothing.
        Ok(std::thread::panicking() || self.0.lives.load(Ordering::Acquire) == 0)
    }
}

impl Gpu {
    /// One life, as `kernels/cuda/lives.h` has it.
    fn live(&self) {
        let (rules, words) = (RULES.get(), self.words.all());
        let (state, ended) = (&words[at(STATE)], &words[at(ENDED)]);
        let fence = loom::sync::atomic::fence;
        let mut number = ended.load(Ordering::Relaxed);
        state.store(RUNNING, Ordering::Relaxed);
        let (mut leaving, mut told) = (false, rules.in_a_hurry);
        loop {
            let units = &words[at(slot(number))..][..2 * UNITS];
            let is_there = |unit: &[AtomicU64]| {
                unit[0].load(Ordering::Relaxed) & 0xffff == 1 + number % SEQUENCES
            };
            let whole = !told && units.chunks_exact(2).all(is_there);
            if !whole && leaving {
                return;
            }
            if !whole {
                (leaving, told) = (true, false);
                state.store(AWAY, Ordering::Relaxed);
                if rules.kernel_fences {
                    fence(Ordering::SeqCst);
                }
                if rules.looks_again { continue } else { return }
            }
            if rules.acquires {
                fence(Ordering::Acquire);
            }
            let [one, other] = [1, 3].map(|word| units[word].load(Ordering::Relaxed));
            assert_eq!(one, other, "a command is torn");
            if one == LEAVE {
                told = !leaving;
            } else {
                let [from, to] = &self.data[usize::try_from(one).unwrap()];
                assert_eq!(
                    from.load(Ordering::Relaxed),
                    one,
                    "what was written before is not seen"
                );
                to.store(one, Ordering::Relaxed);
                self.seen.lock().unwrap().push(one);
            }
            number += 1;
            if rules.releases {
                fence(Ordering::AcqRel);
            }
            ended.store(number, Ordering::Relaxed);
        }
    }
}

/// A kernel and its host.
#[derive(Clone)]
struct Host {
    gpu: Arc<Gpu>,
    kernel: Arc<PersistentKernel<Played>>,
}

impl Host {
    /// Whose kernel was started.
    fn new() -> Host {
        let gpu = Arc::new(Gpu {
            words: Words::new(),
            data: std::array::from_fn(|_| [u64::MAX; 2].map(AtomicU64::new)),
            seen: Mutex::default(),
            lives: AtomicU64::new(0),
            starts: Mutex::default(),
            last: Mutex::default(),
        });
        let played = Played(Arc::clone(&gpu));
        let kernel = Arc::new(PersistentKernel::new(gpu.words.clone(), played));
        kernel.wake();
        while gpu.words.all()[at(STATE)].load(Ordering::Relaxed) == STARTING {
            thread::yield_now();
        }
        Host { gpu, kernel }
    }

    /// Gives it a command, if it takes one.
    fn give(&self, command: u64) -> Option<Completion> {
        self.gpu.data[usize::try_from(command).unwrap()][0].store(command, Ordering::Relaxed);
        // SAFETY: a played kernel touches the model's own memory alone.
        unsafe { self.kernel.give(&Command(command)) }
    }

    /// Waits for a command, and finds what it has done.
    fn wait(&self, command: u64, work: &Completion) {
        while !work.poll().unwrap() {
            thread::yield_now();
        }
        let done = &self.gpu.data[usize::try_from(command).unwrap()][1];
        assert_eq!(done.load(Ordering::Relaxed), command, "what it has done is not seen");
    }

    /// Lets go of the kernel. What it has run.
    fn end(self) -> Vec<u64> {
        let Host { gpu, kernel } = self;
        drop(kernel);
        assert_eq!(gpu.lives.load(Ordering::Relaxed), 0, "a life goes on");
        gpu.seen.lock().unwrap().clone()
    }
}

/// What is wrong if the commands that were run are not those that were taken.
const OTHERS: &str = "others were run than were taken";

/// What is tried. How many commands were taken.
type Model = fn() -> usize;

/// Tries every order of `model`, with so many switches between threads that no wait asks for, or as many as
/// `LOOM_MAX_PREEMPTIONS` says. How many commands were taken, in some order each; or what was found.
fn explore(rules: Rules, switches: usize, model: Model) -> Result<BTreeSet<usize>, String> {
    RULES.set(rules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(switches);
    builder.max_branches = 20_000;
    let taken = Arc::new(Mutex::new(BTreeSet::new()));
    let all = Arc::clone(&taken);
    let run = move || {
        let count = model();
        all.lock().unwrap().insert(count);
    };
    let explored = catch_unwind(AssertUnwindSafe(|| builder.check(run)));
    explored.map(|()| taken.lock().unwrap().clone()).map_err(|found| {
        match found.downcast::<String>() {
            Ok(text) => *text,
            Err(found) => (*found.downcast::<&str>().unwrap()).to_owned(),
        }
    })
}

/// Nobody asks for the ends of commands, and all lives leave by themselves.
fn nobody_asks() -> usize {
    let host = Host::new();
    let given: Vec<_> = (1..=2).filter(|command| host.give(*command).is_some()).collect();
    while host.gpu.lives.load(Ordering::Acquire) != 0 {
        thread::yield_now();
    }
    assert_eq!(host.end(), given, "{OTHERS}");
    given.len()
}

/// The host lets go of the kernel at once.
fn nobody_waits() -> usize {
    let host = Host::new();
    let given: Vec<_> = (1..=2).filter(|command| host.give(*command).is_some()).collect();
    assert_eq!(host.end(), given, "{OTHERS}");
    given.len()
}

/// One thread gives commands, and waits for all.
fn one_gives() -> usize {
    let host = Host::new();
    let works = (1..=3).filter_map(|command| Some((command, host.give(command)?)));
    let works: Vec<_> = works.collect();
    works.iter().for_each(|(command, work)| host.wait(*command, work));
    let given: Vec<_> = works.into_iter().map(|(command, _)| command).collect();
    assert_eq!(host.end(), given, "{OTHERS}");
    given.len()
}

/// One thread gives a command, and waits; another gives one meanwhile.
fn two_give() -> usize {
    let host = Host::new();
    let other = host.clone();
    let other = thread::spawn(move || other.give(2));
    let one = host.give(1).inspect(|work| host.wait(1, work));
    let other = other.join().unwrap().inspect(|work| host.wait(2, work));
    let given: Vec<u64> = one.map(|_| 1).into_iter().chain(other.map(|_| 2)).collect();
    let mut seen = host.end();
    seen.sort_unstable();
    assert_eq!(seen, given, "{OTHERS}");
    given.len()
}

/// Nothing is wrong, whatever the order, and any number of commands of `most` is taken in some.
fn right(rules: Rules, switches: usize, most: usize, model: Model) {
    for in_a_hurry in [false, true] {
        let taken = explore(Rules { in_a_hurry, ..rules }, switches, model);
        assert_eq!(taken, Ok((0..=most).collect()), "in a hurry: {in_a_hurry}");
    }
}

#[test]
fn what_was_given_is_run_though_nobody_asks() {
    right(AS_THEY_ARE, 2, 2, nobody_asks);
    right(AS_THEY_ARE, 2, 2, nobody_waits);
}

#[test]
fn every_command_is_run_once_in_order_and_told() {
    right(AS_THEY_ARE, 2, 3, one_gives);
    right(Rules { refused: 1, ..AS_THEY_ARE }, 2, 3, one_gives);
    right(Rules { waits: true, ..AS_THEY_ARE }, 2, 3, one_gives);
}

#[test]
fn two_threads_may_give() {
    right(AS_THEY_ARE, 1, 2, two_give);
    right(Rules { refused: 1, ..AS_THEY_ARE }, 1, 2, two_give);
    right(Rules { waits: true, ..AS_THEY_ARE }, 1, 2, two_give);
}

#[test]
fn without_any_of_its_rules_it_is_wrong() {
    let all: [(Rules, Model, &str); 6] = [
        (Rules { host_fences: false, ..AS_THEY_ARE }, nobody_asks, OTHERS),
        (Rules { kernel_fences: false, ..AS_THEY_ARE }, nobody_asks, OTHERS),
        (Rules { looks_again: false, ..AS_THEY_ARE }, nobody_asks, OTHERS),
        (Rules { acquires: false, ..AS_THEY_ARE }, one_gives, "what was written before"),
        (Rules { releases: false, ..AS_THEY_ARE }, one_gives, "what it has done"),
        (Rules { in_turn: false, ..AS_THEY_ARE }, one_gives, OTHERS),
    ];
    for (rules, model, what) in all {
        let found = explore(rules, 2, model).unwrap_err();
        assert!(found.contains(what), "{rules:?}: {found}");
    }
}
