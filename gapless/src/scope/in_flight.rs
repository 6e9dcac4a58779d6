//! The operations of scopes in flight. The lists are kept with the message layer, behind its lock, which every caller
//! that starts or waits for a request holds anyway.
//!
//! A list may also name requests whose results have been collected: removing those one by one would cost more than a
//! sweep now and then. A name is valid for one request only.

use gapless_pml::{Failure, Pml, PmlError, RequestId};
use std::sync::atomic::{AtomicU32, Ordering};

/// The shortest list that is swept for collected requests.
const TIDY_MIN: usize = 64;

/// Which list a scope has; none before it starts anything. Only the holder of the lock touches it.
#[derive(Debug, Default)]
pub(super) struct List(AtomicU32);

impl List {
    /// Its number.
    #[inline]
    pub(super) fn number(&self) -> Option<u32> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The lists of all scopes.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    lists: Vec<InFlight>,
    /// Numbers of unused lists.
    free: Vec<u32>,
}

/// The requests of one scope.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    ids: Vec<RequestId>,
    /// At this length the list is swept.
    tidy_at: usize,
}

impl InFlight {
    /// Appends a request; there is room.
    #[inline]
    pub(super) fn push(&mut self, id: RequestId) {
        self.ids.push(id);
    }

    #[cold]
    fn grow(&mut self, pml: &Pml) {
        self.ids.retain(|&id| pml.is_done(id).is_ok());
        self.tidy_at = (2 * self.ids.len()).max(TIDY_MIN);
        self.ids.reserve(self.tidy_at - self.ids.len());
    }
}

impl Scopes {
    /// The list of a scope, with room for one more request.
    #[inline]
    pub(super) fn room(&mut self, list: &List, pml: &Pml) -> &mut InFlight {
        let number = match list.number() {
            Some(number) => number,
            None => self.take(list),
        };
        let in_flight = &mut self.lists[number as usize];
        if in_flight.ids.len() >= in_flight.tidy_at {
            in_flight.grow(pml);
        }
        in_flight
    }

    #[cold]
    fn take(&mut self, list: &List) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.lists.push(InFlight::default());
            u32::try_from(self.lists.len() - 1).expect("fewer than 2^32 scopes at a time")
        });
        list.0.store(number + 1, Ordering::Relaxed);
        number
    }

    /// A request of a list, in the order in which they were started.
    #[inline]
    pub(super) fn get(&self, number: u32, at: usize) -> Option<RequestId> {
        self.lists[number as usize].ids.get(at).copied()
    }

    /// All requests of a list.
    pub(super) fn all(&self, number: u32) -> Vec<RequestId> {
        self.lists[number as usize].ids.clone()
    }

    /// The scope has ended.
    pub(super) fn give_back(&mut self, number: u32) {
        self.lists[number as usize].ids.clear();
        self.free.push(number);
    }
}

/// Whether a result says that there is no such request: it was collected before.
pub(super) fn is_gone<T>(result: &Result<T, Failure>) -> bool {
    matches!(result, Err(Failure { error: PmlError::NoSuchRequest, .. }))
}
