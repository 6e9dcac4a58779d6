//! Memory of windows of numbers that were dropped and not freed: adapters of other ranks may still change it.
//!
//! A rank that drops its window tells the others so, by an empty message, and hears the same from each of them. When all
//! have said so or are lost, nobody uses the key any more, and the memory is given back. What is left of it when the world
//! is left is given back then.
//!
//! A call on numbers waits for its operations, so none is under way when a window is dropped, unless a call has failed or
//! panicked. Such an operation may find the memory taken back; then the link for changes ends, as it would if it failed.

use crate::communicator::Communicator;
use crate::shared::WorldState;
use gapless_bml::{PeerState, Rank, Registered};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The tag of the messages, which are the only ones of the window's communicator.
const GOODBYE: i32 = 0;

/// What stays registered until the world is left.
#[derive(Default)]
pub(crate) struct KeptRegistrations(Vec<Registered>);

impl KeptRegistrations {
    /// The world has been left: gives the memory back.
    pub(crate) fn end(state: &mut WorldState) {
        for registered in std::mem::take(&mut state.kept.0) {
            let memory = registered.end(state.pml.bml_mut());
            state.spent.extend(memory.map(|lease| Box::new(lease) as Box<_>));
        }
    }
}

impl fmt::Debug for KeptRegistrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.0.len())
    }
}

/// A rank's own memory, as long as adapters may change it.
pub(crate) struct Registration {
    comm: Communicator,
    /// `None` if there is none, or once it has ended.
    pub(crate) registered: Option<Registered>,
}

impl Registration {
    /// Of nothing yet.
    pub(crate) fn new(comm: &Communicator) -> Registration {
        Registration { comm: comm.clone(), registered: None }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.registered.is_some()
    }

    /// Ends it: no rank uses the key any more.
    pub(crate) fn end(mut self) {
        let Some(registered) = self.registered.take() else { return };
        if let Err(error) = self.comm.with_bml(|bml| registered.end(bml)) {
            // Of a world that was given up the transport may still be there.
            tracing::debug!(%error, "memory stays registered until the transport goes");
        }
    }
}

impl Drop for Registration {
    /// Other ranks may still use the key, and would lose the link to this process if it were not known any more.
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            say_goodbye(&self.comm, registered);
        }
    }
}

/// Waits for the others: each receive has a clone, and the last one to end gives the memory back.
struct Goodbyes {
    comm: Communicator,
    registered: Option<Registered>,
    /// Ranks that have not said that they dropped the window, and never will.
    silent: Mutex<Vec<u32>>,
}

impl Drop for Goodbyes {
    fn drop(&mut self) {
        let Some(registered) = self.registered.take() else { return };
        let silent = std::mem::take(self.silent.get_mut().unwrap_or_else(PoisonError::into_inner));
        let comm = &self.comm;
        let processes = silent.into_iter().map(|rank| comm.comm.process(rank));
        // A rank of no process may be anybody: the memory is kept until the world is left, and given back then.
        let silent = processes.collect::<Result<Vec<u32>, _>>().ok();
        let ended = comm.shared.with(|state| {
            let has_left = state.has_left();
            let bml = state.pml.bml_mut();
            let is_lost = |process| matches!(bml.state(Rank(process)), PeerState::Lost(_));
            let all_lost = silent.is_some_and(|silent| silent.into_iter().all(is_lost));
            if has_left || all_lost {
                return Ok(registered.end(bml));
            }
            state.kept.0.push(registered);
            Ok(None)
        });
        if let Err(error) = ended {
            tracing::debug!(%error, "memory of a window is never freed");
        }
    }
}

/// This rank has dropped its window.
fn say_goodbye(comm: &Communicator, registered: Registered) {
    let others = (0..comm.size()).filter(|&rank| rank != comm.rank());
    let all = Arc::new(Goodbyes {
        comm: comm.clone(),
        registered: Some(registered),
        silent: Mutex::default(),
    });
    let fail = |all: &Goodbyes, rank| {
        all.silent.lock().unwrap_or_else(PoisonError::into_inner).push(rank);
    };
    for rank in others {
        // Whoever is lost needs no goodbye.
        drop(comm.isend_owned(Vec::<u8>::new(), rank, GOODBYE));
        let Ok(receive) = comm.irecv_owned(Vec::<u8>::new(), rank, GOODBYE) else {
            fail(&all, rank);
            continue;
        };
        let all = Arc::clone(&all);
        receive.on_done(move |_, result| {
            if result.is_err() {
                fail(&all, rank);
            }
        });
    }
}
