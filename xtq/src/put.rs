//! Puts: what an initiator asks for, and what becomes of it.

mod order;

use crate::buffer::Payload;
use crate::error::XtqError;
use crate::packet::{Command, Flags, Launch, TaskWork};
use crate::signal::Signal;
use gapless_bml::Rank;
pub use order::Order;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::IntoBytes;

/// What happens if the target refuses a put for now: its queue is full, or no receive buffer fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The put ends with the refusal.
    #[default]
    Never,
    /// It is sent again later, whatever has become of others.
    InAnyOrder,
    /// Puts of this kind to one queue of one target form a sequence: they enter the queue in the order in which
    /// they were put. An earlier one that is refused holds the later ones up.
    InOrder,
}

/// A task to be put: the command, its arguments and its payload.
#[derive(Clone, Debug)]
#[must_use = "`Xtq::put` puts it"]
pub struct Put {
    #[doc(hidden)]
    pub order: Box<Order>,
}

impl Put {
    /// It is not needed any more; its box may be.
    #[inline]
    pub(crate) fn lay_aside(self) {
        self.order.lay_aside();
    }

    /// Packet and body (arguments, then payload) as device code puts them: `gapless_put`, which takes at most
    /// [`INLINE_BYTES`](crate::device::INLINE_BYTES) of body. Retries, signals and limits are not in them.
    ///
    /// # Errors
    /// A command that no packet can express.
    pub fn to_bytes(&self) -> Result<(Vec<u8>, Vec<u8>), XtqError> {
        let packet = self.order.packet()?;
        let payload = self.order.payload().to_vec();
        Ok((packet.as_bytes().to_vec(), [self.order.arguments(), &payload].concat()))
    }

    /// A task of function `index`, in queue `queue` of `target`. The two arguments are its third and fourth: the first
    /// two are the target's.
    #[inline]
    pub fn function(target: Rank, index: u8, queue: u8, arguments: [u64; 2]) -> Put {
        let arguments = [0, 0, arguments[0], arguments[1]];
        let mut order = Order::begin(target, &mut Payload::none());
        order.command = Command::of(index, queue, TaskWork::Function { arguments });
        Put { order }
    }

    /// A task of kernel `index`, in queue `queue` of `target`, over this grid. Of `arguments` the target replaces the
    /// first 16 bytes; their length goes before what `launch` says. Of a slice of up to 64 bytes they are copied without
    /// allocating.
    #[inline(always)] // What is launched is mostly known to the caller.
    pub fn kernel(
        target: Rank,
        index: u8,
        queue: u8,
        launch: Launch,
        arguments: impl Into<Payload>,
    ) -> Put {
        let mut order = Order::begin(target, &mut arguments.into());
        // Arguments too long for a packet are refused when it is made.
        let argument_bytes = u16::try_from(order.arguments().len()).unwrap_or(u16::MAX);
        let work = TaskWork::Kernel(Launch { argument_bytes, ..launch });
        order.command = Command::of(index, queue, work);
        Put { order }
    }

    /// Where it goes.
    #[must_use]
    pub fn target(&self) -> Rank {
        self.order.target
    }

    /// The time that it was [given](Put::within).
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.order.limit
    }

    /// What the task gets to read, in a receive buffer of the target's. It may lie in [several pieces](Payload::pieces).
    /// Slices are copied; up to 64 bytes take no allocation.
    #[inline]
    pub fn payload(mut self, payload: impl Into<Payload>) -> Put {
        self.order.set_payload(&mut payload.into());
        self
    }

    /// What happens if it is refused for now.
    #[inline]
    pub fn retry(mut self, retry: Retry) -> Put {
        self.order.retry = retry;
        self
    }

    /// How often it is sent at most, and at least once; without end by default.
    pub fn attempts(mut self, max: u32) -> Put {
        self.order.attempts_max = max.max(1);
        self
    }

    /// The put ends with [`TimedOut`](XtqError::TimedOut), which says what it waited for, unless it has ended within so
    /// long. The time begins when nothing holds the put back any more ([`after`](Put::after)); it is looked at when this
    /// process makes progress. Without a limit a put waits as long as its target lives.
    ///
    /// If it was not given away yet, it is taken back: its task never runs. Otherwise the error says that the task may
    /// still run, once. What the target says later reaches nobody: signals and handle have ended.
    pub fn within(mut self, limit: Duration) -> Put {
        self.order.limit = Some(limit);
        self
    }

    /// The target tells when the task has ended: [`PutHandle::outcome`].
    #[inline]
    pub fn acknowledged(mut self) -> Put {
        self.order.command.flags |= Flags::ACKNOWLEDGE;
        self
    }

    /// The packet's signal: a signal of this process, which is counted down when the task has ended. Implies
    /// [`acknowledged`](Put::acknowledged).
    #[inline]
    pub fn signal(mut self, signal: &Signal) -> Put {
        self.order.set_signal(signal);
        self.acknowledged()
    }

    /// The task begins when all that were put into its queue before have ended.
    pub fn barrier(mut self) -> Put {
        self.order.command.flags |= Flags::BARRIER;
        self
    }

    /// The put is held back until this signal has ended; if it ends with an error, so does the put. So a task here leads
    /// to one elsewhere, without anybody waiting.
    pub fn after(mut self, signal: &Signal) -> Put {
        self.order.after = Some(signal.clone());
        self
    }
}

/// The target has taken the task.
const ACCEPTED: u8 = 1;
/// The put has ended well.
const ENDED: u8 = 2;

#[derive(Debug, Default)]
struct Fate {
    refusals: AtomicU64,
    /// [`ACCEPTED`], [`ENDED`], or both. One thread at a time writes it, under the lock of whoever has the put.
    said: AtomicU8,
    /// The number of the end that put it; 0 as long as nobody else has it.
    end: AtomicU32,
    /// How it has ended, if not well; seldom, so an open put is small.
    error: OnceLock<Box<XtqError>>,
}

/// What becomes of a put. Dropping it changes nothing.
#[derive(Clone, Debug, Default)]
pub struct PutHandle(Arc<Fate>);

impl PutHandle {
    /// A handle for another put: this one again if nobody else has it.
    #[inline]
    pub(crate) fn renew(&mut self) -> PutHandle {
        // Nothing makes weak ones of it. So if there is one, which is this, nobody can make a second; and the fence comes
        // after all that the last of the others has read, which it gave up by a store with release.
        let is_alone = Arc::strong_count(&self.0) == 1;
        fence(Ordering::Acquire);
        if is_alone && self.0.error.get().is_none() {
            self.0.refusals.store(0, Ordering::Relaxed);
            self.0.said.store(0, Ordering::Relaxed);
        } else {
            *self = PutHandle::default();
        }
        self.clone()
    }

    fn has(&self, said: u8) -> bool {
        self.0.said.load(Ordering::Acquire) & said != 0
    }

    /// That, or else the error.
    fn result(&self, said: u8) -> Option<Result<(), XtqError>> {
        if self.has(said) {
            return Some(Ok(()));
        }
        self.0.error.get().map(|error| Err(XtqError::clone(error)))
    }

    /// Whether the target has taken the task into its queue; `None` as long as that is open. From then on the payload
    /// is the target's.
    #[must_use]
    pub fn accepted(&self) -> Option<Result<(), XtqError>> {
        self.result(ACCEPTED)
    }

    /// How the put has ended: with the task if it is [acknowledged](Put::acknowledged), otherwise when it is accepted.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), XtqError>> {
        self.result(ENDED)
    }

    /// How often the target has refused it so far because it had no room, and it was sent again or ended.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.0.refusals.load(Ordering::Relaxed)
    }

    /// Whether both are of one put.
    pub(crate) fn is(&self, other: &PutHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn belong_to(&self, end: u32) {
        self.0.end.store(end, Ordering::Relaxed);
    }

    pub(crate) fn belongs_to(&self, end: u32) -> bool {
        self.0.end.load(Ordering::Relaxed) == end
    }

    #[doc(hidden)]
    pub fn refused(&self) {
        self.0.refusals.fetch_add(1, Ordering::Relaxed);
    }

    fn say(&self, said: u8) {
        let before = self.0.said.load(Ordering::Relaxed);
        self.0.said.store(before | said, Ordering::Release);
    }

    #[doc(hidden)]
    pub fn accept(&self, last: bool) {
        self.say(if last { ACCEPTED | ENDED } else { ACCEPTED });
    }

    #[doc(hidden)]
    pub fn end(&self, result: Result<(), XtqError>) {
        match result {
            Ok(()) => self.say(ENDED),
            // It ends once.
            Err(error) => _ = self.0.error.set(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_somebody_has_is_not_used_again() {
        let mut kept = PutHandle::default();
        let first = kept.renew();
        kept.refused();
        kept.accept(true);
        // Somebody has the first.
        let second = kept.renew();
        assert_eq!((first.outcome(), first.refusals()), (Some(Ok(())), 1));
        assert_eq!((second.outcome(), second.refusals()), (None, 0));
        kept.accept(true);
        let address = Arc::as_ptr(&second.0);
        drop(second);
        let third = kept.renew();
        assert_eq!((Arc::as_ptr(&third.0), third.outcome()), (address, None));
        // One that has ended with an error is not used again, either.
        kept.end(Err(XtqError::Closed));
        drop(third);
        let fourth = kept.renew();
        assert_eq!((fourth.accepted(), fourth.outcome()), (None, None));
    }
}
