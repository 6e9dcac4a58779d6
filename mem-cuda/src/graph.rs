//! Graphs: work that is captured once, and launched again and again.

use crate::context::{Context, lock};
use crate::driver::RawGraph;
use crate::{CudaError, Stream};
use std::sync::{Arc, Mutex};

/// A CUDA graph: work that was captured from a [`Stream`], to be launched again.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    /// Launched by one thread at a time; `None` only while it is being dropped.
    raw: Mutex<Option<RawGraph>>,
}

/// A capture under way: it is ended however the call is left.
struct Capture<'s>(Option<&'s Stream>);

impl Capture<'_> {
    fn end(&mut self) -> Result<RawGraph, CudaError> {
        let stream = self.0.take().expect("a capture is ended once");
        let context = stream.context();
        let _bound = context.bind()?;
        context.driver.capture_end(stream.raw()).map_err(|fault| context.fault(fault))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.0.is_some() {
            // Whoever left the call in the middle has no use for the graph.
            let _ = self.end();
        }
    }
}

impl Stream {
    /// Captures into a graph what `enqueue` enqueues on the stream that it is given, which is this one. None of it runs
    /// now.
    ///
    /// # Errors
    /// What `enqueue` says; something was enqueued that cannot be captured; the driver refuses.
    pub fn capture<E: From<CudaError>>(
        &self,
        enqueue: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let context = self.context();
        let captured = self.as_users();
        {
            let _bound = context.bind()?;
            context.driver.capture_begin(self.raw()).map_err(|fault| context.fault(fault))?;
        }
        let mut capture = Capture(Some(self));
        enqueue(&captured)?;
        let raw = capture.end()?;
        Ok(Graph { context: Arc::clone(context), raw: Mutex::new(Some(raw)) })
    }
}

impl Graph {
    /// Enqueues what was captured.
    ///
    /// # Safety
    /// What whoever enqueued it had to promise holds now: the memory that it works on is there, and nothing else
    /// touches it.
    ///
    /// # Errors
    /// A stream of another device; the driver refuses.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let context = &self.context;
        if !Arc::ptr_eq(context, stream.context()) {
            let reason = "graph and stream are of different devices";
            return Err(CudaError::Malformed { object: "launch", reason });
        }
        let raw = lock(&self.raw);
        let raw = raw.as_ref().expect("it is taken only when the graph is dropped");
        let _bound = context.bind()?;
        // SAFETY: the caller's own promise.
        let launched = unsafe { context.driver.graph_launch(raw, stream.raw()) };
        launched.map_err(|fault| context.fault(fault))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Some(raw) = lock(&self.raw).take() else { return };
        if let Ok(_bound) = self.context.bind()
            && let Err(fault) = self.context.driver.graph_destroy(raw)
        {
            self.context.grumble(fault);
        }
    }
}
