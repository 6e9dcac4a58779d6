//! Steps of a schedule that ranks of a host do together, by their segment: what an executor has begun, and on which
//! segment.
//!
//! A segment works on memory that the executor was granted. So the step ends only when that segment has ended it, or is
//! gone: an executor that is advanced with another segment, or with none, waits.

use std::sync::{Arc, Weak};

use gapless_engine::{Engine, Reducer};
use gapless_pml::Pml;
use gapless_sync::mailboxes::Readers;

use super::{Going, SharedSegment, SmCall};
use crate::Call;
use crate::execute::error::CollError;
use std::task::Poll;

/// Which segment this is, for as long as it is there, and how often something has begun on it.
#[derive(Debug, Default)]
pub(super) struct Identity {
    segment: Arc<()>,
    started: u64,
}

impl Identity {
    /// Something begins.
    pub(super) fn start(&mut self) {
        self.started += 1;
    }
}

/// A step that a segment has begun.
#[derive(Debug)]
pub(in crate::execute) struct StepHandle {
    segment: Weak<()>,
    start: u64,
}

impl StepHandle {
    /// How it went, if the segment is not there any more: it works on nothing.
    pub(in crate::execute) fn without_segment(&self) -> Option<Result<(), CollError>> {
        (self.segment.strong_count() == 0).then_some(Err(CollError::Abandoned))
    }
}

impl Drop for SharedSegment {
    /// Peers that read this rank's memory find out that it may not be as it was.
    fn drop(&mut self) {
        self.give_up();
    }
}

impl SharedSegment {
    /// As [`begin_call`](SharedSegment::begin_call).
    ///
    /// # Safety
    /// As for `begin_call`.
    ///
    /// # Errors
    /// The errors of `begin_call`.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub(in crate::execute) unsafe fn begin_step(
        &mut self,
        number: u64,
        call: SmCall,
    ) -> Result<StepHandle, CollError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin_call(number, call) }?;
        Ok(self.begun())
    }

    /// Begins a step in which this rank cannot do its part any more: ranks that need something of it are told why. No
    /// memory of the caller's is touched.
    ///
    /// # Errors
    /// The step has ended: the others find that this rank [went on](CollError::WentOn), unless something else is under
    /// way.
    pub(in crate::execute) fn fail_step(
        &mut self,
        number: u64,
        (call, of): (&Call<'_>, (usize, usize)),
        failure: CollError,
        pml: &mut Pml,
    ) -> Result<StepHandle, CollError> {
        let begun = SmCall::without_memory(call, of).and_then(|call| self.start(number, call));
        match (begun, &mut self.going) {
            (Ok(()), Some(Going::Short(short))) => short.doom(failure),
            (Ok(()), Some(Going::Long(long))) => long.doom(failure),
            // No step of a schedule is one.
            (Ok(()), Some(Going::Exchange(_)) | None) => {}
            (Err(_), _) => {
                self.pass(number.saturating_add(1), pml);
                return Err(failure);
            }
        }
        Ok(self.begun())
    }

    fn begun(&self) -> StepHandle {
        let Identity { segment, started } = &self.identity;
        StepHandle { segment: Arc::downgrade(segment), start: *started }
    }

    /// Goes on with what was begun here; how it went, if it has ended.
    pub(in crate::execute) fn advance_step(
        &mut self,
        begun: &StepHandle,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
    ) -> Option<Result<(), CollError>> {
        let Identity { segment, started } = &self.identity;
        if !std::ptr::eq(begun.segment.as_ptr(), Arc::as_ptr(segment)) {
            return begun.without_segment();
        }
        if begun.start != *started || self.going.is_none() {
            // Somebody else has advanced the segment.
            return Some(Err(CollError::Abandoned));
        }
        match self.advance(pml, engine, reducer) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// This rank has no part in anything before the one with this number: ranks that need something of it learn that
    /// ([`CollError::WentOn`]).
    pub(super) fn pass(&mut self, number: u64, pml: &mut Pml) {
        if self.going.is_some() || self.is_revoked() {
            return;
        }
        // It may have begun, and stopped halfway.
        (self.halfway, self.paused) = (None, None);
        self.mailbox.begin(number);
        let (_, mut cx) = self.parts();
        // It writes no entry that would say why: if the others do this collective by messages, nobody would ever have
        // read it, and its place would not become free.
        cx.mailbox.finish(&cx.mailboxes);
        cx.wake(pml, Readers::All);
    }
}
