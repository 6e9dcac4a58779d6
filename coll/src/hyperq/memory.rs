//! What a leader remembers from call to call: how long a step took with so many host-staged copies.
//!
//! This is ours, and not of the paper. The first call of a class goes by the [dynamic](super::Dynamic) algorithm, which
//! tells which kind is slow. The next ones search from the quicker kind alone towards a mix, in steps that are halved.
//! Then the best number of copies is kept, and once in [`CALLS_PER_PROBE`] calls a number beside it is tried again,
//! above and below by turns.

use std::collections::BTreeMap;

use super::{Dynamic, Fixed, HyperQStep, Kind, Policy};

/// So many calls go by what is known, then one tries something else.
pub const CALLS_PER_PROBE: u32 = 64;

/// Classes that are remembered; others are searched anew.
const CLASSES_MAX: usize = 1024;

/// So many calls show how long a number of copies takes.
const SAMPLES: u32 = 3;

/// One call shows enough if it takes so many times as long as the best.
const HOPELESS: f64 = 2.0;

/// The part of a new time in the mean.
const WEIGHT: f64 = 0.25;

/// Something else is better if it takes less than this part of the time.
const BETTER: f64 = 0.98;

/// A step of calls that are alike: which, bytes of a copy (rounded up to a power of two), and how many copies.
type Class = (HyperQStep, u32, usize);

/// What is known of a number of host-staged copies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Known {
    calls: u32,
    /// The least time of the first calls, and then a mean; in nanoseconds.
    ns: f64,
}

impl Known {
    fn learn(&mut self, ns: f64) {
        self.ns = match self.calls {
            0 => ns,
            1..SAMPLES => self.ns.min(ns),
            _ => self.ns + WEIGHT * (ns - self.ns),
        };
        self.calls = self.calls.saturating_add(1);
    }

    fn is_sure(&self) -> bool {
        self.calls >= SAMPLES
    }
}

/// What was learned of collectives of one class: which mixture of copies is best, and which to try next.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// By the number of host-staged copies.
    known: Vec<Known>,
    /// The best number, once there is one.
    best: Option<usize>,
    /// How far away it is searched; 0: it was found.
    stride: usize,
    /// Whether the next number to try is above.
    upwards: bool,
    calls: u32,
}

impl Learned {
    fn new(copies: usize) -> Learned {
        let stride = copies.div_ceil(4).max(1);
        let known = vec![Known::default(); copies + 1];
        Learned { known, best: None, stride, upwards: true, calls: 0 }
    }

    /// The best number of host-staged copies, if a call has ended.
    #[must_use]
    pub fn best(&self) -> Option<usize> {
        self.best
    }

    /// Whether numbers are still searched.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.stride == 0
    }

    fn copies(&self) -> usize {
        self.known.len() - 1
    }

    /// How many host-staged copies the next call has; `None`: it goes by the dynamic algorithm.
    fn next(&mut self) -> Option<usize> {
        self.calls = self.calls.wrapping_add(1);
        let best = self.best?;
        let least = self.known[best];
        if !least.is_sure() {
            return Some(best);
        }
        while self.stride > 0 {
            // Both sides at this distance, those of which too little is known.
            let sides = [best.checked_add(self.stride), best.checked_sub(self.stride)];
            let open = |at: &usize| {
                let hopeless = |it: &Known| it.calls > 0 && it.ns > HOPELESS * least.ns;
                self.known.get(*at).is_some_and(|it| !it.is_sure() && !hopeless(it))
            };
            if let Some(at) = sides.into_iter().flatten().find(open) {
                return Some(at);
            }
            self.stride /= 2;
        }
        if !self.calls.is_multiple_of(CALLS_PER_PROBE) {
            return Some(best);
        }
        self.upwards = !self.upwards;
        let beside = match self.upwards {
            true => Some(best + 1).filter(|at| *at <= self.copies()).or(best.checked_sub(1)),
            false => best.checked_sub(1).or(Some(best + 1)).filter(|at| *at <= self.copies()),
        };
        beside.or(Some(best))
    }

    fn learn(&mut self, policy: &Policy, ns: f64) {
        let staged = policy.count(Kind::Staged);
        let Policy::Fixed(_) = policy else {
            // What was quicker, alone.
            let is_ipc = policy.count(Kind::Ipc) >= staged;
            self.best.get_or_insert(if is_ipc { 0 } else { self.copies() });
            return;
        };
        let Some(tried) = self.known.get_mut(staged) else { return };
        tried.learn(ns);
        let tried = *tried;
        let least = self.best.map(|best| self.known[best]);
        let is_better = |least: Known| least.is_sure() && tried.ns < BETTER * least.ns;
        if self.best != Some(staged) && tried.is_sure() && least.is_none_or(is_better) {
            self.best = Some(staged);
        }
    }
}

/// What was learned of the collectives of a communicator, class by class (step, length and number of copies).
#[derive(Clone, Debug, Default)]
pub struct Memory {
    classes: BTreeMap<Class, Learned>,
}

impl Memory {
    fn class(step: HyperQStep, bytes: u64, copies: usize) -> Class {
        (step, bytes.next_power_of_two().trailing_zeros(), copies)
    }

    /// How the next call goes, with so many copies of so many bytes each.
    pub fn policy(&mut self, step: HyperQStep, bytes: u64, copies: usize) -> Policy {
        let class = Memory::class(step, bytes, copies);
        if self.classes.len() >= CLASSES_MAX && !self.classes.contains_key(&class) {
            self.classes.clear();
        }
        let learned = self.classes.entry(class).or_insert_with(|| Learned::new(copies));
        match learned.next() {
            Some(staged) => Policy::Fixed(Fixed::new(staged, copies - staged)),
            None => Policy::Dynamic(Dynamic::new(copies, step)),
        }
    }

    /// A call that went by this policy has taken so long.
    pub fn learn(&mut self, step: HyperQStep, bytes: u64, copies: usize, went: &Policy, ns: f64) {
        if let Some(learned) = self.classes.get_mut(&Memory::class(step, bytes, copies)) {
            learned.learn(went, ns);
        }
    }

    /// What is known of a class.
    #[must_use]
    pub fn learned(&self, step: HyperQStep, bytes: u64, copies: usize) -> Option<&Learned> {
        self.classes.get(&Memory::class(step, bytes, copies))
    }
}
