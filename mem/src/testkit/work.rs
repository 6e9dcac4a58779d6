//! Work that tests end.

use crate::{Completion, DeviceError, Pending};
use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Work that is over when `answer` says so, or that it has failed; then it is not asked any more. By itself it touches no
/// memory: whoever gives it out for work on memory vouches for the answers.
pub fn pretended(
    answer: impl Fn() -> Result<bool, DeviceError> + Send + Sync + 'static,
) -> Completion {
    Completion::Pending(Arc::new(Pretended { answer, over: Mutex::new(None) }))
}

struct Pretended<F> {
    answer: F,
    /// How it ended.
    over: Mutex<Option<Result<(), DeviceError>>>,
}

// SAFETY: it was granted no memory, and what it has answered at the end stays. The lock orders what `answer` has done
// before whoever is told later. `as_any` gives `self`; `export` refuses.
unsafe impl<F: Fn() -> Result<bool, DeviceError> + Send + Sync + 'static> Pending for Pretended<F> {
    fn poll(&self) -> Result<bool, DeviceError> {
        // An answer that panicked says nothing.
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        if over.is_none() {
            match (self.answer)() {
                Ok(false) => return Ok(false),
                ended => *over = Some(ended.map(drop)),
            }
        }
        over.clone().unwrap_or(Ok(())).map(|()| true)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Ends work by hand. Clones end the same work.
#[derive(Clone, Debug, Default)]
pub struct Hand(Arc<AtomicU8>);

impl Hand {
    /// Work that goes on until the hand ends it.
    #[must_use]
    pub fn work(&self) -> Completion {
        let state = Arc::clone(&self.0);
        pretended(move || match state.load(Ordering::Acquire) {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Hand::failure()),
        })
    }

    /// It is over.
    pub fn end(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// It has failed.
    pub fn fail(&self) {
        self.0.store(2, Ordering::Release);
    }

    /// With what it fails.
    #[must_use]
    pub fn failure() -> DeviceError {
        let (device, reason) = ("hand".to_owned(), "on purpose".to_owned());
        DeviceError::Failed { device, operation: "kernel", reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_is_over_stays_so() {
        let (well, ill) = (Hand::default(), Hand::default());
        let works = [well.work(), ill.work()];
        assert!(works.iter().all(|work| work.poll() == Ok(false)));
        well.end();
        ill.fail();
        for _ in 0..2 {
            assert_eq!(works.each_ref().map(Completion::poll), [Ok(true), Err(Hand::failure())]);
            well.fail();
            ill.end();
        }
    }
}
