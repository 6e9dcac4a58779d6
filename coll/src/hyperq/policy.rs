//! What decides in a step: one of the algorithms.

use super::{Act, Dynamic, Event, Fixed, Kind};

/// A step function that decides who copies by which kind, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The static algorithm.
    Fixed(Fixed),
    /// The dynamic one.
    Dynamic(Dynamic),
}

impl Policy {
    /// Goes on: what is to be done comes behind what is in `acts`.
    pub fn step(&mut self, event: Event, acts: &mut Vec<Act>) {
        match self {
            Policy::Fixed(fixed) => fixed.step(event, acts),
            Policy::Dynamic(dynamic) => dynamic.step(event, acts),
        }
    }

    /// Whether all ranks' bytes are where they belong.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Policy::Fixed(fixed) => fixed.is_over(),
            Policy::Dynamic(dynamic) => dynamic.is_over(),
        }
    }

    /// How many copies of a kind have ended, or will have.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        match self {
            Policy::Fixed(fixed) => fixed.count(kind),
            Policy::Dynamic(dynamic) => dynamic.completed(kind),
        }
    }
}
