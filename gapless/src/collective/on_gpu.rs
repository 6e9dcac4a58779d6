//! What is known of collectives that went by a GPU, and the end of the memory that they have there.

use crate::communicator::Communicator;
use crate::error::Error;
use gapless_coll::HyperQ;

/// How often peers are asked to let go of memory before it is left to them.
const CLOSING: usize = 2000;

impl crate::World {
    /// From now on threads that wait in this world poll, and do not sleep: for measuring.
    ///
    /// # Errors
    /// A thread has panicked.
    #[doc(hidden)]
    pub fn never_sleep(&self) -> Result<(), Error> {
        self.comm().shared.with(|state| {
            state.polled += 1;
            Ok(())
        })
    }
}

impl Communicator {
    /// Of the last collective that went so with this rank as its leader: nanoseconds of the gather, from when all ranks
    /// were there, and of the scatter. For reports and tests.
    #[doc(hidden)]
    #[must_use]
    pub fn last_on_gpu(&self) -> Option<[u64; 2]> {
        self.at_hyperq(|hyperq| hyperq.took_ns())
    }

    /// As [`last_on_gpu`](Communicator::last_on_gpu): how many copies of the gather were host-staged, and how many went
    /// by IPC.
    #[doc(hidden)]
    #[must_use]
    pub fn copied_on_gpu(&self) -> Option<[usize; 2]> {
        self.at_hyperq(|hyperq| hyperq.copied().map(|[gather, _]| gather))
    }

    /// As [`last_on_gpu`](Communicator::last_on_gpu): how many GPUs were used, if GPU leaders carried it out.
    #[doc(hidden)]
    #[must_use]
    pub fn led_on_gpus(&self) -> Option<usize> {
        self.at_hyperq(HyperQ::gpus)
    }

    /// As [`last_on_gpu`](Communicator::last_on_gpu): who arrived, whose copies began and ended, and when, in
    /// microseconds.
    #[doc(hidden)]
    #[must_use]
    pub fn told_on_gpu(&self) -> Option<String> {
        self.at_hyperq(|hyperq| hyperq.took_ns().map(|_| hyperq.told()))
    }

    fn at_hyperq<T>(&self, ask: impl FnOnce(&HyperQ) -> Option<T>) -> Option<T> {
        let Communicator { shared, common, .. } = self;
        shared.with_anyway(|_| {
            common.queue.with(|queue_state| queue_state.module::<HyperQ>().and_then(ask))
        })
    }

    /// Frees device memory that communicators which were freed have for such collectives, if peers let go of it soon:
    /// they do when they free theirs, or end.
    pub(crate) fn await_closing(&self) {
        for _ in 0..CLOSING {
            let closed = self.shared.with(|state| {
                state.open()?;
                state.progress();
                Ok(state.collectives.has_closed())
            });
            if !matches!(closed, Ok(false)) {
                return;
            }
            std::thread::yield_now();
        }
        tracing::debug!("memory of a device stays: peers have it mapped");
    }
}
