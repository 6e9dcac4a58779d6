//! Events as completions. They come from a pool of the context's and go back to it.
//!
//! An event may be recorded anew while a stream still waits for its former recording: a wait holds
//! on to what it was made for. So an event goes back to the pool as soon as nobody asks about it any
//! more, ended or not.
//!
//! Events for other processes have a pool of their own. The driver leaves it undefined to end one
//! while another process has it open, so they are kept until the device is closed: a process that
//! still looks at one that was reused sees that later work, and waits longer than needed.

use crate::context::{Context, lock};
use crate::driver::{EventUse, Fault, RawEvent};
use crate::{CudaError, key};
use gapless_mem::{Completion, DeviceError, Pending};
use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock};

/// Events of one use that are kept for reuse.
const KEPT: usize = 1024;

/// Events that wait to be used again.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    order: Mutex<Vec<RawEvent>>,
    shared: Mutex<Vec<RawEvent>>,
}

impl EventPool {
    fn take(&self, purpose: EventUse) -> Option<RawEvent> {
        match purpose {
            EventUse::Order => lock(&self.order).pop(),
            EventUse::Shared => lock(&self.shared).pop(),
            EventUse::Time => None,
        }
    }

    /// Everything, for ending it.
    pub(crate) fn take_all(&self) -> Vec<RawEvent> {
        let mut all = std::mem::take(&mut *lock(&self.order));
        all.append(&mut lock(&self.shared));
        all
    }
}

impl Context {
    /// An event for some use. The context is bound.
    pub(crate) fn event(&self, purpose: EventUse) -> Result<RawEvent, Fault> {
        match self.events.take(purpose) {
            Some(event) => Ok(event),
            None => self.driver.event_create(purpose),
        }
    }

    fn give_event(&self, event: RawEvent) {
        let mut kept = lock(&self.events.order);
        if kept.len() < KEPT {
            kept.push(event);
            return;
        }
        drop(kept);
        if let Ok(_bound) = self.bind() {
            self.end_events([event]);
        }
    }
}

/// Work on a CUDA device that has not been seen to end: what its [`Completion`]s hold.
pub struct CudaPending {
    context: Arc<Context>,
    /// `None` only while it is being dropped.
    event: Option<RawEvent>,
    /// Of another process: not ours to reuse.
    foreign: bool,
    /// The stream that it was recorded on.
    stream: Option<u64>,
    end: OnceLock<Result<(), DeviceError>>,
    /// What other processes know it by, once it has been exported.
    shared: OnceLock<RawEvent>,
}

impl CudaPending {
    /// The completion of what `event` was recorded after, on a stream of this number.
    pub(crate) fn completion(
        context: &Arc<Context>,
        event: RawEvent,
        foreign: bool,
        stream: Option<u64>,
    ) -> Completion {
        Completion::Pending(Arc::new(CudaPending {
            context: Arc::clone(context),
            event: Some(event),
            foreign,
            stream,
            end: OnceLock::new(),
            shared: OnceLock::new(),
        }))
    }

    pub(crate) fn event(&self) -> &RawEvent {
        self.event.as_ref().expect("it is taken only when the completion is dropped")
    }

    /// The number of the stream that it was recorded on, if that is one of this process.
    pub(crate) fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// How it ended, if that has been seen.
    pub(crate) fn known_end(&self) -> Option<&Result<(), DeviceError>> {
        self.end.get()
    }

    fn ask(&self) -> Result<bool, CudaError> {
        let _bound = self.context.bind()?;
        self.context.driver.event_query(self.event()).map_err(|fault| self.context.fault(fault))
    }

    fn share(&self) -> Result<Vec<u8>, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        let fault = |fault| context.fault(fault);
        if self.shared.get().is_none() {
            let event = context.event(EventUse::Shared).map_err(fault)?;
            let service = context.service().map_err(fault)?;
            context.driver.stream_wait(service, self.event()).map_err(fault)?;
            context.driver.event_record(&event, service).map_err(fault)?;
            if let Err(spare) = self.shared.set(event) {
                lock(&context.events.shared).push(spare);
            }
        }
        let event = self.shared.get().expect("set by this thread or by another");
        let handle = context.driver.ipc_export_event(event).map_err(fault)?;
        Ok(key::event_key(handle))
    }
}

// SAFETY: the numbers are those of the contract.
// 1. The event was recorded behind the work, on its stream; `poll` takes its word that it has passed, or an
//    error after which the device does nothing any more (`ends_all_work`). Of another process's event the
//    same holds, once it was recorded, which was before its export.
// 2. `cuEventQuery` makes what came before a passed event visible to its caller.
// 3. `end` is set once, and answers from then on; `is_known_over` looks at nothing else.
// 4. `as_any` gives `self`.
// 5. The exported event is recorded on the service stream behind a wait for this one, and is used again
//    only after `drop`.
unsafe impl Pending for CudaPending {
    fn poll(&self) -> Result<bool, DeviceError> {
        if let Some(end) = self.end.get() {
            return end.clone().map(|()| true);
        }
        let end = match self.ask() {
            Ok(false) => return Ok(false),
            Ok(true) => Ok(()),
            Err(error) if error.ends_all_work() => Err(error.into()),
            // The driver could not say: the work goes on, and with it the use of its memory.
            Err(error) => {
                tracing::debug!(%error, "asking for the end of work");
                return Ok(false);
            }
        };
        self.end.get_or_init(|| end).clone().map(|()| true)
    }

    fn is_known_over(&self) -> bool {
        self.known_end().is_some()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    /// Bytes for [`Device::import_completion`](gapless_mem::Device::import_completion) in another
    /// process on this host. Keep the completion until that process has done with them: afterwards
    /// the driver's event is used for other work, and theirs completes with that.
    fn export(&self) -> Result<Vec<u8>, DeviceError> {
        if self.foreign {
            return Err(DeviceError::Unsupported {
                what: "exporting another process's completion",
            });
        }
        Ok(self.share()?)
    }
}

impl Drop for CudaPending {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            if self.foreign {
                if let Ok(_bound) = self.context.bind() {
                    self.context.end_events([event]);
                }
            } else {
                self.context.give_event(event);
            }
        }
        if let Some(event) = self.shared.take() {
            lock(&self.context.events.shared).push(event);
        }
    }
}

impl std::fmt::Debug for CudaPending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaPending on {}, end {:?}", self.context.name, self.end.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::fake::{self, State};

    fn pending(context: &Arc<Context>) -> Completion {
        let event = context.event(EventUse::Order).unwrap();
        CudaPending::completion(context, event, false, None)
    }

    #[test]
    fn events_are_used_again() {
        fake::set(State::default());
        let context = Context::open(fake::driver(), 0).unwrap();
        for _ in 0..100 {
            let (one, two) = (pending(&context), pending(&context));
            assert!(one.poll().unwrap() && two.poll().unwrap());
        }
        assert_eq!(fake::with(|state| state.events_made), 2);
        drop(context);
        assert_eq!(fake::with(|state| state.events_ended), 2);
    }

    /// Each call costs every message some hundred nanoseconds: more of them need a reason.
    #[test]
    fn the_driver_is_asked_for_no_more_than_it_takes() {
        fake::set(State { queries: 1, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let stream = crate::Stream::create(&context).unwrap();
        drop(stream.record().unwrap());
        let calls = || fake::with(|state| std::mem::take(&mut state.calls));
        // As in a thread whose context is another one, or none.
        calls();
        let work = stream.record().unwrap();
        assert_eq!(calls(), ["get", "set", "record", "set"]);
        assert!(!work.poll().unwrap());
        assert_eq!(calls(), ["get", "set", "query", "set"]);
        // As in one that works on this device.
        context.bind_for_good().unwrap();
        calls();
        assert!(work.poll().unwrap());
        assert_eq!(calls(), ["get", "query"]);
        // What has been seen to end is not asked about, waited for or given back by a call.
        assert!(work.poll().unwrap());
        stream.wait_for(std::slice::from_ref(&work)).unwrap();
        drop(work);
        assert!(calls().is_empty());
    }

    #[test]
    fn no_more_than_some_are_kept() {
        fake::set(State::default());
        let context = Context::open(fake::driver(), 0).unwrap();
        let many: Vec<_> = (0..KEPT + 5).map(|_| pending(&context)).collect();
        drop(many);
        assert_eq!(fake::with(|state| state.events_ended), 5);
    }

    #[test]
    fn a_completion_ends_once_and_is_not_asked_again() {
        fake::set(State { queries: 2, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let work = pending(&context);
        assert!(!work.poll().unwrap());
        assert!(!work.poll().unwrap() && !work.is_known_over());
        assert!(work.poll().unwrap() && work.is_known_over());
        fake::with(|state| state.ended = 1);
        assert!(work.poll().unwrap());
    }

    /// Out of memory, and a stream in capture: neither says that the work has ended.
    #[test]
    fn a_question_that_the_driver_refuses_is_no_end() {
        fake::set(State { ended: 2, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let work = pending(&context);
        assert!(!work.poll().unwrap());
        fake::with(|state| state.ended = 900);
        assert!(!work.poll().unwrap() && !work.is_known_over());
        fake::with(|state| state.ended = 0);
        assert!(work.poll().unwrap());
    }

    #[test]
    fn a_failure_is_given_again_and_loses_the_device_if_it_lasts() {
        fake::set(State { ended: 700, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let (first, second) = (pending(&context), pending(&context));
        let error = first.poll().unwrap_err();
        assert!(error.to_string().contains("lost to this process"), "{error}");
        fake::with(|state| state.ended = 0);
        assert_eq!(first.poll().unwrap_err(), error);
        assert_eq!(second.poll().unwrap_err(), error);
        assert!(context.lost().is_some());
    }
}
