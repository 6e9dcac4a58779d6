//! RndvEnd that asked to be polled ([`RndvStep::Again`](super::RndvStep::Again)): each once, in turns.
//!
//! Most of them wait for room in the transport, which comes for one at a time. So a step of progress polls a bounded
//! number of them, whoever comes next in line, and those that go on waiting go to the end of it: what a message costs
//! does not depend on how many others wait.

use crate::hash::FastMap;
use crate::status::RequestId;
use std::collections::VecDeque;

/// How many are polled in one step of progress.
pub(crate) const POLLED_MAX: usize = 64;

/// The line.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    line: VecDeque<RequestId>,
    /// Who is in it.
    all: FastMap<RequestId, ()>,
}

impl Turns {
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    /// Goes to the end of the line, unless it is in it.
    pub(crate) fn push(&mut self, id: RequestId) {
        if self.all.insert(id, ()).is_none() {
            self.line.push_back(id);
        }
    }

    /// Takes the first out of the line.
    pub(crate) fn pop(&mut self) -> Option<RequestId> {
        let id = self.line.pop_front()?;
        self.all.remove(&id);
        Some(id)
    }

    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.all.contains_key(&id)
    }

    pub(crate) fn clear(&mut self) {
        self.line.clear();
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_the_line_once() {
        let mut turns = Turns::default();
        let ids = [0, 1, 2].map(|index| RequestId::new(index, 7));
        ids.iter().chain(&ids).for_each(|id| turns.push(*id));
        assert_eq!(turns.len(), 3);
        let popped: Vec<RequestId> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!((popped.as_slice(), turns.len()), (&ids[..], 0));
    }

    #[test]
    fn whoever_left_the_line_is_not_in_it() {
        let mut turns = Turns::default();
        let [first, second] = [0, 1].map(|index| RequestId::new(index, 7));
        turns.push(first);
        assert!(turns.contains(first) && !turns.contains(second));
        turns.clear();
        assert!(turns.is_empty() && !turns.contains(first));
        turns.push(first);
        assert_eq!(turns.pop(), Some(first), "it may come again");
    }
}
