//! What the worker has said: why it left, what has run, what it refused. What the API of all back ends asks it.

use super::super::layout::{
    CONTROL_COUNTED, CONTROL_ORDERS, CONTROL_REFUSALS, CONTROL_REFUSED, CONTROL_TASKS, CONTROL_WHY,
    GONE, ORDER_LEAVE, REFUSED_MAX, RUNNING, SIGNALS_MAX, STARTING, STATUS_FAILED, WHY_ABORTED,
    WHY_IDLE, WHY_OLD, WHY_TOLD,
};
use super::super::{Failure, PutOutcome, RefusedPut, TargetError};
use super::WorkerTarget;
use crate::error::Refusal;
use gapless_mem::Words;
use std::sync::atomic::Ordering;

/// How often tasks of a kernel have ended on a worker ([`Xtq::count_of`](crate::Xtq::count_of)). Clones are the same.
#[derive(Clone, Debug)]
pub struct WorkerCount {
    words: Words,
    /// Which of them.
    at: usize,
}

impl WorkerCount {
    /// The count now. What those tasks wrote can be seen then.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.words.all().get(self.at).map_or(0, |word| word.load(Ordering::Acquire))
    }
}

/// Where a signal is counted in the control block.
fn counter_at(signal: u8) -> usize {
    CONTROL_COUNTED + 8 * usize::from(signal).min(SIGNALS_MAX - 1)
}

impl WorkerTarget {
    /// Work-items of a group, at most.
    pub(crate) fn items_max(&self) -> u32 {
        self.worker.limits().items_max
    }

    /// Tells the worker to leave for a change, as [`send_away`](WorkerTarget::send_away), and does not wait. Whether
    /// none runs.
    pub(crate) fn is_away(&mut self) -> Result<bool, TargetError> {
        self.look()?;
        if self.state() == GONE {
            return Ok(self.worker.is_over()?);
        }
        self.sent_away = true;
        self.word(CONTROL_ORDERS).fetch_or(ORDER_LEAVE, Ordering::AcqRel);
        Ok(false)
    }

    /// Somebody who cannot say so in a ring wants a worker: [`advance`](WorkerTarget::advance) starts one, if none is
    /// there.
    pub(crate) fn want(&mut self) {
        self.wished |= !matches!(self.state(), STARTING | RUNNING);
    }

    /// Whether a worker that was wanted is there, or is not to be.
    pub(crate) fn is_served(&self) -> bool {
        self.paused || matches!(self.state(), STARTING | RUNNING)
    }

    /// Why the last worker has left; `None` as long as none has.
    #[must_use]
    pub fn why_gone(&self) -> Option<&'static str> {
        match self.word(CONTROL_WHY).load(Ordering::Acquire) {
            WHY_IDLE => Some("it had nothing to do"),
            WHY_TOLD => Some("it was asked to"),
            WHY_ABORTED => Some("it was aborted"),
            WHY_OLD => Some("its life was over"),
            _ => None,
        }
    }

    /// How many workers were started.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Tasks that have ended here. The count comes behind their statuses.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.word(CONTROL_TASKS).load(Ordering::Acquire)
    }

    /// How often tasks have counted a signal, as far as the worker has said. What they wrote can be seen then.
    #[must_use]
    pub fn counted(&self, signal: u8) -> u64 {
        self.word(counter_at(signal)).load(Ordering::Acquire)
    }

    /// The same, to be read without this value.
    pub(crate) fn count(&self, signal: u8) -> WorkerCount {
        WorkerCount { words: self.words.clone(), at: counter_at(signal) / 8 }
    }

    /// Puts that were refused here, or failed, since the last call: the last of them, and how many were forgotten.
    #[must_use]
    pub fn take_refusals(&mut self) -> (Vec<RefusedPut>, u64) {
        let now = self.word(CONTROL_REFUSALS).load(Ordering::Acquire);
        let new = now.wrapping_sub(self.refusals_taken);
        let kept = new.min(REFUSED_MAX as u64);
        let of = |number: u64| {
            let at = usize::try_from(number % REFUSED_MAX as u64).unwrap_or(0);
            let word = self.word(CONTROL_REFUSED + 8 * at).load(Ordering::Relaxed);
            let [ring, index, queue, code, value @ ..] = word.to_le_bytes();
            let value = u32::from_le_bytes(value);
            let outcome = match Refusal::decode(code, value) {
                Some(refusal) => PutOutcome::Refused(refusal),
                None if code == STATUS_FAILED => PutOutcome::Failed(Failure::of(value)),
                None => PutOutcome::Malformed,
            };
            RefusedPut { ring, index, queue, outcome }
        };
        let list = (now - kept..now).map(of).collect();
        self.refusals_taken = now;
        (list, new - kept)
    }
}
