//! Streams: work in order, beside other streams. Streams of ours never synchronise with the default
//! stream.

use crate::context::Context;
use crate::driver::{EventUse, RawEvent, RawStream};
use crate::event::CudaPending;
use crate::{CudaDevice, CudaError};
use gapless_mem::Completion;
use std::ffi::c_void;
use std::sync::Arc;

/// A stream of one device: ours, or the user's.
pub struct Stream {
    context: Arc<Context>,
    /// `None` only while it is being dropped.
    raw: Option<RawStream>,
    ours: bool,
}

impl Stream {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, CudaError> {
        let _bound = context.bind()?;
        let raw = context.driver.stream_create().map_err(|fault| context.fault(fault))?;
        Ok(Stream { context: Arc::clone(context), raw: Some(raw), ours: true })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> &RawStream {
        self.raw.as_ref().expect("it is taken only when the stream is dropped")
    }

    /// The ordinal of its device.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.context.ordinal
    }

    /// The driver's handle (`CUstream`), for calling other libraries; valid while this lives.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.raw().pointer().cast()
    }

    /// What is enqueued later starts after all of `after` have ended.
    ///
    /// Work on CUDA devices is ordered by the devices. Other work (a transport's, another vendor's)
    /// is waited for by this thread, here: its end is that work's own affair.
    ///
    /// # Errors
    /// Some of that work failed, or the driver refuses.
    pub fn wait_for(&self, after: &[Completion]) -> Result<(), CudaError> {
        let mut bound = None;
        for completion in after {
            let Completion::Pending(work) = completion else { continue };
            let Some(work) = work.as_any().downcast_ref::<CudaPending>() else {
                completion.wait()?;
                continue;
            };
            match work.known_end() {
                Some(end) => end.clone()?,
                None => {
                    if bound.is_none() {
                        bound = Some(self.context.bind()?);
                    }
                    let waits = self.context.driver.stream_wait(self.raw(), work.event());
                    waits.map_err(|fault| self.context.fault(fault))?;
                }
            }
        }
        Ok(())
    }

    /// The completion of everything that is on the stream now.
    ///
    /// # Errors
    /// The driver refuses; the stream may be another device's.
    pub fn record(&self) -> Result<Completion, CudaError> {
        let event = self.record_event(EventUse::Order)?;
        Ok(CudaPending::completion(&self.context, event, false))
    }

    /// A point in the stream's time, for measuring on the device's own clock.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn mark(&self) -> Result<Mark, CudaError> {
        let event = self.record_event(EventUse::Time)?;
        Ok(Mark { context: Arc::clone(&self.context), event: Some(event) })
    }

    fn record_event(&self, purpose: EventUse) -> Result<RawEvent, CudaError> {
        let context = &self.context;
        let _bound = context.bind()?;
        let event = context.event(purpose).map_err(|fault| context.fault(fault))?;
        match context.driver.event_record(&event, self.raw()) {
            Ok(()) => Ok(event),
            Err(fault) => {
                context.end_events([event]);
                Err(context.fault(fault))
            }
        }
    }

    /// Whether all work on the stream has ended. Never blocks.
    ///
    /// # Errors
    /// Some of it failed.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        let _bound = self.context.bind()?;
        self.context.driver.stream_query(self.raw()).map_err(|fault| self.context.fault(fault))
    }
}

impl CudaDevice {
    /// A new stream that never synchronises with the default stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        Stream::create(self.context())
    }

    /// The user's own stream, to order against and to enqueue on. It stays the user's.
    ///
    /// # Safety
    /// `handle` is a `CUstream` of this device's primary context (a `cudaStream_t` of the runtime
    /// is), and lives as long as the value.
    #[must_use]
    pub unsafe fn adopt_stream(&self, handle: *mut c_void) -> Stream {
        // SAFETY: the caller's own promise.
        let raw = unsafe { RawStream::adopt(handle) };
        Stream { context: Arc::clone(self.context()), raw: Some(raw), ours: false }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        if !self.ours {
            return;
        }
        if let Ok(_bound) = self.context.bind() {
            // SAFETY: `ours`: `create` made it, with this context's driver.
            if let Err(fault) = unsafe { self.context.driver.stream_destroy(raw) } {
                self.context.grumble(fault);
            }
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream {:?} of {}", self.raw, self.context.name)
    }
}

/// A point in a stream's time.
pub struct Mark {
    context: Arc<Context>,
    /// `None` only while it is being dropped.
    event: Option<RawEvent>,
}

impl Mark {
    fn event(&self) -> &RawEvent {
        self.event.as_ref().expect("it is taken only when the mark is dropped")
    }

    /// Milliseconds of the device's time from this mark to a later one of the same device; `None`
    /// while the stream has not passed both. The resolution is about half a microsecond.
    ///
    /// # Errors
    /// The work before a mark failed, or the marks are of different devices.
    pub fn until(&self, later: &Mark) -> Result<Option<f64>, CudaError> {
        let _bound = self.context.bind()?;
        let time = self.context.driver.event_elapsed(self.event(), later.event());
        Ok(time.map_err(|fault| self.context.fault(fault))?.map(f64::from))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            self.context.end_events(self.event.take());
        }
    }
}

impl std::fmt::Debug for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mark on {}", self.context.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake::{self, State};
    use gapless_mem::{DeviceError, Pending};
    use std::any::Any;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Another vendor's work.
    struct Foreign {
        left: AtomicU32,
        fails: bool,
    }

    impl Pending for Foreign {
        fn poll(&self) -> Result<bool, DeviceError> {
            if self.fails {
                return Err(DeviceError::Unsupported { what: "this work" });
            }
            Ok(self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                == Err(0))
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn the_device_waits_for_its_own_and_the_host_for_others() {
        fake::set(State { queries: 5, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let stream = Stream::create(&context).unwrap();
        let own = stream.record().unwrap();
        let foreign = Arc::new(Foreign { left: AtomicU32::new(3), fails: false });
        let other = Completion::Pending(Arc::clone(&foreign) as Arc<dyn Pending>);
        stream.wait_for(&[Completion::Ready, own.clone(), other]).unwrap();
        assert_eq!(fake::with(|state| (state.waits, state.queries)), (1, 5));
        assert_eq!(foreign.left.load(Ordering::Relaxed), 0);
        // Once seen to end, it costs nothing.
        own.wait().unwrap();
        stream.wait_for(&[own]).unwrap();
        assert_eq!(fake::with(|state| state.waits), 1);
    }

    #[test]
    fn failed_work_is_not_waited_for() {
        fake::set(State::default());
        let context = Context::open(fake::driver(), 0).unwrap();
        let stream = Stream::create(&context).unwrap();
        let failed = Foreign { left: AtomicU32::new(0), fails: true };
        let error = stream.wait_for(&[Completion::Pending(Arc::new(failed))]).unwrap_err();
        assert_eq!(error, CudaError::Refused(DeviceError::Unsupported { what: "this work" }));
    }
}
