//! An engine that pretends to work.

use super::{Work, Wrapper};
use crate::EngineError;
use gapless_mem::testkit::pretended;
use gapless_mem::{Completion, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An engine for memory of one space, which it never touches. A piece of its work is over when `answer` says so, which has a
/// counter of its own for each piece.
pub struct Pretender<F> {
    space: Space,
    under_way: Arc<AtomicU32>,
    answer: F,
}

impl<F: Fn(&AtomicU32) -> bool + Clone + Send + Sync + 'static> Pretender<F> {
    /// An engine for this space.
    pub fn new(space: Space, answer: F) -> Pretender<F> {
        Pretender { space, under_way: Arc::default(), answer }
    }

    /// How many pieces of work have not ended.
    #[must_use]
    pub fn under_way(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.under_way)
    }

    /// A piece of work.
    #[must_use]
    pub fn begin(&self) -> Completion {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let (under_way, answer) = (self.under_way(), self.answer.clone());
        let asked = AtomicU32::new(0);
        pretended(move || {
            let over = answer(&asked);
            if over {
                under_way.fetch_sub(1, Ordering::Relaxed);
            }
            Ok(over)
        })
    }
}

// SAFETY: it touches no memory.
unsafe impl<F: Fn(&AtomicU32) -> bool + Clone + Send + Sync + 'static> Wrapper for Pretender<F> {
    fn name(&self) -> &'static str {
        "pretender"
    }

    fn serves(&self, space: Space) -> bool {
        space == self.space
    }

    unsafe fn work(&self, _: Work, _: &[Completion]) -> Result<Completion, EngineError> {
        Ok(self.begin())
    }
}
