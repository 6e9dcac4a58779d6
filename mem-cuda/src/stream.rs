//! Streams: work in order, beside other streams. Streams of ours never synchronise with the default
//! stream.
//!
//! The user's streams may be captured into graphs. What is captured does not run now, and never has a
//! completion; so nothing here waits for, records or gates such a stream, and says so. Streams of ours are never
//! captured: only waiting for something captured could do that.

use crate::context::Context;
use crate::driver::{EventUse, RawEvent, RawStream};
use crate::event::CudaPending;
use crate::{CudaDevice, CudaError};
use gapless_mem::{Completion, DeviceError, Region, Space};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stream of one device: ours, or the user's.
pub struct Stream {
    context: Arc<Context>,
    /// `None` only while it is being dropped.
    raw: Option<RawStream>,
    ours: bool,
    /// No other stream of this process has had it.
    number: u64,
}

/// Streams that there have been.
static STREAMS: AtomicU64 = AtomicU64::new(0);

fn new_number() -> u64 {
    STREAMS.fetch_add(1, Ordering::Relaxed)
}

impl Stream {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Stream, CudaError> {
        let _bound = context.bind()?;
        let raw = context.driver.stream_create().map_err(|fault| context.fault(fault))?;
        Ok(Stream {
            context: Arc::clone(context),
            raw: Some(raw),
            ours: true,
            number: new_number(),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> &RawStream {
        self.raw.as_ref().expect("it is taken only when the stream is dropped")
    }

    /// Whether this is the end of what was on this stream: what is enqueued here comes after it anyway.
    #[must_use]
    pub fn recorded(&self, completion: &Completion) -> bool {
        let work = completion.ordering::<CudaPending>();
        work.is_some_and(|work| work.stream() == Some(self.number))
    }

    /// The same stream as one of the user's, which may be captured; valid while this lives.
    pub(crate) fn as_users(&self) -> Stream {
        // SAFETY: the stream lives while this value does, which outlives whatever is made of it here (`graph.rs`).
        let raw = unsafe { RawStream::adopt(self.handle()) };
        Stream {
            context: Arc::clone(&self.context),
            raw: Some(raw),
            ours: false,
            number: new_number(),
        }
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

    /// Whether the stream is being captured into a graph: then what is enqueued does not run, but becomes
    /// part of the graph. True also of the default stream while a stream that waits for it is.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn is_captured(&self) -> Result<bool, CudaError> {
        let _bound = self.context.bind()?;
        let captured = self.context.driver.stream_is_captured(self.raw());
        captured.map_err(|fault| self.context.fault(fault))
    }

    /// Refuses a stream that is being captured, before a call that the driver would answer by ending the
    /// capture.
    pub(crate) fn runs(&self) -> Result<(), CudaError> {
        if self.ours || !self.is_captured()? {
            return Ok(());
        }
        let what = "ordering work on a stream that is being captured into a graph";
        Err(DeviceError::Unsupported { what }.into())
    }

    /// What is enqueued later starts after all of `after` have ended.
    ///
    /// Work on CUDA devices is ordered by the devices. Other work (a transport's, another vendor's)
    /// is waited for by this thread, here: its end is that work's own affair.
    ///
    /// # Errors
    /// Some of that work failed, the stream is being captured, or the driver refuses.
    pub fn wait_for(&self, after: &[Completion]) -> Result<(), CudaError> {
        let mut bound = None;
        for completion in after {
            let Some(work) = completion.ordering::<CudaPending>() else {
                completion.wait()?;
                continue;
            };
            match work.known_end() {
                Some(end) => end.clone()?,
                None if self.ours && work.stream() == Some(self.number) => {}
                None => {
                    if bound.is_none() {
                        self.runs()?;
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
    /// The stream is being captured, or the driver refuses; the stream may be another device's.
    pub fn record(&self) -> Result<Completion, CudaError> {
        let event = self.record_event(EventUse::Order)?;
        Ok(CudaPending::completion(&self.context, event, false, Some(self.number)))
    }

    /// A point in the stream's time, for measuring on the device's own clock.
    ///
    /// # Errors
    /// The stream is being captured, or the driver refuses.
    pub fn mark(&self) -> Result<Mark, CudaError> {
        let event = self.record_event(EventUse::Time)?;
        Ok(Mark { context: Arc::clone(&self.context), event: Some(event) })
    }

    fn record_event(&self, purpose: EventUse) -> Result<RawEvent, CudaError> {
        self.runs()?;
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

    /// `len` bytes of the device's pool (`cuMemAllocAsync`), which work enqueued on this stream from now on may
    /// use, and other work that comes after. Such memory cannot be shared with other processes.
    ///
    /// # Errors
    /// Out of memory; the stream is being captured; a device that has no pools.
    pub fn allocate(&self, len: u64) -> Result<Region, CudaError> {
        self.runs()?;
        let context = &self.context;
        let _bound = context.bind()?;
        let address = context
            .driver
            .mem_alloc_async(len.max(1), self.raw())
            .map_err(|fault| context.fault_of(len, fault))?;
        Ok(Region::new(Space::Cuda { device: context.ordinal }, address, 0, len))
    }

    /// Gives it back, once what is on the stream now has ended.
    ///
    /// # Safety
    /// [`allocate`](Stream::allocate) gave it, of any stream of this device; it was not freed before; and whatever
    /// else uses it comes before what is on this stream now.
    ///
    /// # Errors
    /// The stream is being captured, or the driver refuses.
    pub unsafe fn free(&self, region: Region) -> Result<(), CudaError> {
        self.runs()?;
        let context = &self.context;
        let _bound = context.bind()?;
        // SAFETY: the caller's own promise.
        let freed = unsafe { context.driver.mem_free_async(region.start(), self.raw()) };
        freed.map_err(|fault| context.fault(fault))
    }

    /// Waits, yielding, until no work on the stream is in flight: for calls that have enqueued some and
    /// then fail, because whoever is told of an error takes the memory back. It lasts as long as the work.
    pub fn drain(&self) {
        while match self.is_idle() {
            Ok(idle) => !idle,
            Err(error) => !error.ends_all_work(),
        } {
            std::thread::yield_now();
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
        Stream {
            context: Arc::clone(self.context()),
            raw: Some(raw),
            ours: false,
            number: new_number(),
        }
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

/// A point in a stream (a CUDA event), to measure the time between two of them.
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
    use crate::driver::tests::fake::{self, State};
    use gapless_mem::Pending;
    use std::any::Any;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Another vendor's work.
    struct Foreign {
        left: AtomicU32,
        fails: bool,
    }

    // SAFETY: it was granted no memory; it ends once, or has failed from the first.
    unsafe impl Pending for Foreign {
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
        let own = Stream::create(&context).unwrap().record().unwrap();
        // What is on the stream itself comes before anyway.
        stream.wait_for(&[stream.record().unwrap()]).unwrap();
        assert_eq!(fake::with(|state| state.waits), 0);
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

    /// Work whose end tells more than that of the stream does, and is never asked for here.
    struct Told(Completion);

    // SAFETY: it was granted no memory. 7. The end of the stream's work is its own.
    unsafe impl Pending for Told {
        fn poll(&self) -> Result<bool, DeviceError> {
            panic!("the device orders it")
        }

        fn as_any(&self) -> &dyn Any {
            self
        }

        fn ordered_by(&self) -> Option<&dyn Pending> {
            let Completion::Pending(work) = &self.0 else { return None };
            Some(&**work)
        }
    }

    #[test]
    fn work_that_tells_more_is_ordered_by_the_device() {
        fake::set(State { queries: 5, ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::create(&context).unwrap());
        let told = Completion::Pending(Arc::new(Told(other.record().unwrap())));
        stream.wait_for(std::slice::from_ref(&told)).unwrap();
        assert_eq!(fake::with(|state| (state.waits, state.queries)), (1, 5));
        assert!(other.recorded(&told) && !stream.recorded(&told));
    }

    #[test]
    fn a_stream_that_is_captured_is_left_alone() {
        fake::set(State { captured: 1, values: Some(Vec::new()), ..State::default() });
        let context = Context::open(fake::driver(), 0).unwrap();
        let own = Stream::create(&context).unwrap();
        let work = own.record().unwrap();
        fake::with(|state| state.queries = 1);
        // SAFETY: the pretend driver never looks at it.
        let raw = unsafe { RawStream::adopt(std::ptr::null_mut()) };
        let users = Stream {
            context: Arc::clone(&context),
            raw: Some(raw),
            ours: false,
            number: new_number(),
        };
        assert!(users.is_captured().unwrap());
        for error in [
            users.record().unwrap_err(),
            users.mark().unwrap_err(),
            users.gate().unwrap_err(),
            users.wait_for(std::slice::from_ref(&work)).unwrap_err(),
        ] {
            assert!(matches!(error, CudaError::Refused(DeviceError::Unsupported { .. })));
        }
        users.wait_for(&[Completion::Ready]).unwrap();
        assert_eq!(fake::with(|state| (state.waits, state.values.clone())), (0, Some(vec![])));
        fake::with(|state| state.captured = 0);
        users.wait_for(&[work]).unwrap();
        assert!(users.record().is_ok() && users.mark().is_ok());
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
