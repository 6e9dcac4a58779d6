//! Blocking collectives of ranks whose buffers lie on one GPU: there, by two kinds of copies (`gapless_coll::hyperq`).
//!
//! Whether all buffers lie there is found out in the call itself: each rank knows its own. If they do not, the collective
//! goes through memory of the host, as any other.

use super::desk::Desk;
use super::prepare::Terms;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::{Look, Shared};
use gapless_coll::page::Task;
use gapless_coll::{HyperQ, Operation, Outcome};
use gapless_engine::Engine;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

/// How often peers are asked to let go of memory before it is left to them.
const CLOSING: usize = 2000;

/// How long a call that is left otherwise than by its end waits until the process that works on its buffers has stopped.
/// After that nobody could say who writes them.
const LENT_MAX: Duration = Duration::from_secs(20);

/// What is taken from a desk to work on memory of a caller's, which ranks copy from and to. However the call is left, this
/// rank does so no more, and it is back.
struct Taken<'c> {
    shared: &'c Shared,
    desk: &'c Desk,
    /// `None` only while this is dropped.
    hyperq: Option<Box<HyperQ>>,
}

impl Taken<'_> {
    fn hyperq(&mut self) -> &mut HyperQ {
        match &mut self.hyperq {
            Some(hyperq) => hyperq,
            None => unreachable!("only one that is dropped has none"),
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Some(mut hyperq) = self.hyperq.take() else { return };
        // Nothing, if the collective has ended.
        let start = Instant::now();
        while !hyperq.give_up() {
            if start.elapsed() > LENT_MAX {
                gapless_mem::abort(
                    "another process's GPU kernels may write memory of a call that was left",
                );
            }
            std::thread::yield_now();
        }
        self.shared.with_anyway(|_| self.desk.with(|at| at.hyperq = Some(hyperq)));
    }
}

/// While this is there, threads that wait poll, and do not sleep.
struct Polling<'s>(&'s Shared);

impl<'s> Polling<'s> {
    fn new(shared: &'s Shared) -> Result<Polling<'s>, Error> {
        shared.with(|state| {
            state.polled += 1;
            Ok(())
        })?;
        Ok(Polling(shared))
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.with_anyway(|state| state.polled -= 1);
    }
}

/// Nanoseconds of a clock that goes on.
fn now_ns() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let since = BEGIN.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

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
    /// Does a collective on the GPU that all ranks' buffers lie on, and waits until this rank's part is over; whether it
    /// was done. If not, some rank's buffers lie elsewhere, and nothing has happened. This thread has the desk's page; `asked`:
    /// the call, unless this rank's buffers are known to lie elsewhere.
    ///
    /// # Safety
    /// As for [`HyperQ::begin`], with the task's buffers, until this returns or unwinds.
    pub(super) unsafe fn on_one_gpu(
        &self,
        (operation, number): (Operation, u64),
        asked: Option<Terms>,
        task: &Task,
    ) -> Result<bool, Error> {
        let Communicator { shared, common, .. } = self;
        let desk = &**common.desk();
        let hyperq = shared.with(|_| Ok(desk.with(|at| at.hyperq.take())))?;
        if hyperq.is_none() {
            return Ok(false);
        }
        let mut taken = Taken { shared, desk, hyperq };
        let buffers = task.clone().into_parts();
        let (Some(terms), Some(space)) = (asked, HyperQ::space(&buffers.0)) else {
            taken.hyperq().decline(number);
            return Ok(false);
        };
        let call = self.call(&terms)?;
        let mut begun = Ok(false);
        shared.with(|state| {
            // Asked whether it serves the memory, the engine opens its device, which `open` attaches.
            let _ = Engine::serves(&*shared.tools, space);
            let pml = state.open()?;
            // SAFETY: the caller's promise: `Taken` ends what has begun before this returns.
            begun = unsafe { taken.hyperq().begin(number, &call, buffers, pml) };
            Ok(())
        })?;
        match begun {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                taken.hyperq().decline(number);
                return Err(self.failed(operation, error));
            }
        }
        let _polling = Polling::new(shared)?;
        let call = self.in_call(operation, number);
        let ended = shared.wait_looking(
            (&|| call, taken.hyperq()),
            |hyperq| hyperq.look(),
            |hyperq, state, _| {
                let tools = &*shared.tools;
                match hyperq.advance(&mut state.pml, tools, tools, now_ns()) {
                    Poll::Ready(result) => Look::Found(result),
                    Poll::Pending => Look::NotYet,
                }
            },
        );
        let outcome = ended?.map_err(|error| self.failed(operation, error))?;
        Ok(outcome == Outcome::Done)
    }

    /// Of the last collective that went so with this rank as its leader: nanoseconds of the gather, from when all ranks were
    /// there, and of the scatter. For reports and tests.
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

    /// As [`last_on_gpu`](Communicator::last_on_gpu): how many GPUs were used, if heads carried it out.
    #[doc(hidden)]
    #[must_use]
    pub fn led_on_gpus(&self) -> Option<usize> {
        self.at_hyperq(HyperQ::gpus)
    }

    /// As [`last_on_gpu`](Communicator::last_on_gpu): who arrived, whose copies began and ended, and when, in microseconds.
    #[doc(hidden)]
    #[must_use]
    pub fn told_on_gpu(&self) -> Option<String> {
        self.at_hyperq(|hyperq| hyperq.took_ns().map(|_| hyperq.told()))
    }

    fn at_hyperq<T>(&self, ask: impl FnOnce(&HyperQ) -> Option<T>) -> Option<T> {
        let Communicator { shared, common, .. } = self;
        shared.with_anyway(|_| common.desk().with(|at| at.hyperq.as_deref().and_then(ask)))
    }

    /// Frees device memory that the communicator has for such collectives, if peers let go of it soon: they do when they
    /// free theirs, or end.
    pub(crate) fn close_hyperq(&self) {
        for _ in 0..CLOSING {
            let closed = self.shared.with(|state| {
                let pml = state.open()?;
                let closed = self.common.desk().with(|at| match &mut at.hyperq {
                    Some(hyperq) => hyperq.close(pml),
                    None => true,
                });
                state.progress();
                Ok(closed)
            });
            if !matches!(closed, Ok(false)) {
                return;
            }
            std::thread::yield_now();
        }
        tracing::debug!("memory of a device stays: peers have it mapped");
    }
}
