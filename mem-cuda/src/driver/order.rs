//! Streams and events.

use super::{Driver, Fault, check};
use crate::error::code;
use cudarc::driver::sys::{
    CUevent_flags_enum as EventFlags, CUevent_st, CUstream_st,
    CUstreamCaptureMode_enum as CaptureMode,
};
use std::ffi::{c_uint, c_void};

/// A stream. One that [`Driver::stream_create`] made ends with [`Driver::stream_destroy`]; one of
/// the user's is the user's.
#[derive(Debug)]
pub(crate) struct RawStream(*mut CUstream_st);

// SAFETY: the driver's streams may be used from any thread; the driver locks.
unsafe impl Send for RawStream {}
// SAFETY: as above.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A stream that somebody else made.
    ///
    /// # Safety
    /// It is a `CUstream` and lives as long as the value.
    pub(crate) unsafe fn adopt(pointer: *mut c_void) -> RawStream {
        RawStream(pointer.cast())
    }

    /// The driver's handle.
    pub(crate) fn pointer(&self) -> *mut CUstream_st {
        self.0
    }
}

/// While this lives, this thread may make calls that could wait for a device (asking for the state of work,
/// allocating, loading, …) although some thread of the application captures a stream into a graph: by default
/// the driver refuses them to all threads then, and ends the capture. What is asked about and worked
/// on here is never part of a capture ([`Stream`](crate::Stream) sees to it).
pub(super) struct Relaxed<'a> {
    driver: &'a Driver,
    /// The thread's mode before, if it could be changed.
    before: Option<c_uint>,
}

impl<'a> Relaxed<'a> {
    pub(super) fn new(driver: &'a Driver) -> Relaxed<'a> {
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        // SAFETY: `mode` is readable and writable for the call.
        let answer = unsafe { (driver.api.thread_capture_mode)(&raw mut mode) };
        Relaxed { driver, before: (answer == 0).then_some(mode) }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let Some(mut mode) = self.before else { return };
        // SAFETY: as in `new`. There is nothing to be done about a refusal.
        let _ = unsafe { (self.driver.api.thread_capture_mode)(&raw mut mode) };
    }
}

/// An event. Ends with [`Driver::event_destroy`].
#[derive(Debug)]
pub(crate) struct RawEvent(pub(super) *mut CUevent_st);

// SAFETY: the driver's events may be used from any thread; the driver locks.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

/// What an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventUse {
    /// Order only: the cheapest.
    Order,
    /// Order, and exportable to other processes.
    Shared,
    /// Order and time.
    Time,
}

impl Driver {
    /// Makes a stream that never synchronises with the default stream.
    pub(crate) fn stream_create(&self) -> Result<RawStream, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut pointer: *mut CUstream_st = std::ptr::null_mut();
        let non_blocking = cudarc::driver::sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `pointer` is writable for the call.
        let answer = unsafe { (self.api.stream_create)(&raw mut pointer, non_blocking) };
        check("cuStreamCreate", answer)?;
        Ok(RawStream(pointer))
    }

    /// Ends a stream; work that is on it goes on.
    ///
    /// # Safety
    /// [`stream_create`](Driver::stream_create) made it.
    pub(crate) unsafe fn stream_destroy(&self, stream: RawStream) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: it is ours, says the caller, and consumed here: it ends once.
        let answer = unsafe { (self.api.stream_destroy)(stream.0) };
        check("cuStreamDestroy", answer)
    }

    /// Whether all work on the stream has ended.
    pub(crate) fn stream_query(&self, stream: &RawStream) -> Result<bool, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the stream lives while `stream` does.
        let answer = unsafe { (self.api.stream_query)(stream.0) };
        ended("cuStreamQuery", answer)
    }

    /// Whether the stream is being captured into a graph, or a capture keeps it from work (the default
    /// stream, while another is captured).
    pub(crate) fn stream_is_captured(&self, stream: &RawStream) -> Result<bool, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut status: c_uint = 0;
        // SAFETY: `status` is writable for the call; the stream lives while it is borrowed.
        let answer = unsafe { (self.api.stream_is_capturing)(stream.0, &raw mut status) };
        if answer == code::CAPTURE_IMPLICIT {
            return Ok(true);
        }
        check("cuStreamIsCapturing", answer)?;
        Ok(status != 0)
    }

    /// Later work on the stream waits for what the event was last recorded after.
    pub(crate) fn stream_wait(&self, stream: &RawStream, event: &RawEvent) -> Result<(), Fault> {
        // SAFETY: stream and event live while they are borrowed.
        let answer = unsafe { (self.api.stream_wait_event)(stream.0, event.0, 0) };
        check("cuStreamWaitEvent", answer)
    }

    /// Makes an event.
    pub(crate) fn event_create(&self, purpose: EventUse) -> Result<RawEvent, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let no_time = EventFlags::CU_EVENT_DISABLE_TIMING as u32;
        let flags = match purpose {
            EventUse::Order => no_time,
            EventUse::Shared => no_time | EventFlags::CU_EVENT_INTERPROCESS as u32,
            EventUse::Time => EventFlags::CU_EVENT_DEFAULT as u32,
        };
        let mut pointer: *mut CUevent_st = std::ptr::null_mut();
        // SAFETY: `pointer` is writable for the call.
        let answer = unsafe { (self.api.event_create)(&raw mut pointer, flags) };
        check("cuEventCreate", answer)?;
        Ok(RawEvent(pointer))
    }

    /// Ends an event; streams that wait for it go on waiting for what it stood for.
    pub(crate) fn event_destroy(&self, event: RawEvent) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: an event of ours, consumed here: it ends once.
        let answer = unsafe { (self.api.event_destroy)(event.0) };
        check("cuEventDestroy", answer)
    }

    /// From now on the event marks the end of all work that is on the stream.
    pub(crate) fn event_record(&self, event: &RawEvent, stream: &RawStream) -> Result<(), Fault> {
        // SAFETY: stream and event live while they are borrowed.
        let answer = unsafe { (self.api.event_record)(event.0, stream.0) };
        check("cuEventRecord", answer)
    }

    /// Whether the work before the event has ended.
    pub(crate) fn event_query(&self, event: &RawEvent) -> Result<bool, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: the event lives while it is borrowed.
        let answer = unsafe { (self.api.event_query)(event.0) };
        ended("cuEventQuery", answer)
    }

    /// Milliseconds between two timed events; `None` while either is outstanding.
    pub(crate) fn event_elapsed(
        &self,
        from: &RawEvent,
        to: &RawEvent,
    ) -> Result<Option<f32>, Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        let mut time = 0f32;
        // SAFETY: `time` is writable for the call, the events live while they are borrowed.
        let answer = unsafe { (self.api.event_elapsed)(&raw mut time, from.0, to.0) };
        Ok(ended("cuEventElapsedTime", answer)?.then_some(time))
    }
}

/// Success means ended, `NOT_READY` means not yet.
fn ended(call: &'static str, answer: u32) -> Result<bool, Fault> {
    if answer == code::NOT_READY {
        return Ok(false);
    }
    check(call, answer).map(|()| true)
}
