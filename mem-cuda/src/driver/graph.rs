//! Capturing streams into graphs, and launching those.

use super::order::Relaxed;
use super::{Driver, Fault, RawStream, check};
use cudarc::driver::sys::{CUgraph_st, CUgraphExec_st, CUstreamCaptureMode_enum as CaptureMode};

/// A graph that can be launched. Ends with [`Driver::graph_destroy`].
#[derive(Debug)]
pub(crate) struct RawGraph(*mut CUgraphExec_st);

// SAFETY: the driver's graphs may be used from any thread, by one at a time.
unsafe impl Send for RawGraph {}

impl Driver {
    /// From now on, what this thread enqueues on the stream becomes part of a graph.
    pub(crate) fn capture_begin(&self, stream: &RawStream) -> Result<(), Fault> {
        let mode = CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as u32;
        // SAFETY: the stream lives while it is borrowed.
        let answer = unsafe { (self.api.capture_begin)(stream.pointer(), mode) };
        check("cuStreamBeginCapture", answer)
    }

    /// Ends the capture, and makes the graph.
    pub(crate) fn capture_end(&self, stream: &RawStream) -> Result<RawGraph, Fault> {
        let mut graph: *mut CUgraph_st = std::ptr::null_mut();
        // SAFETY: `graph` is writable for the call; the stream lives while it is borrowed.
        let answer = unsafe { (self.api.capture_end)(stream.pointer(), &raw mut graph) };
        check("cuStreamEndCapture", answer)?;
        let _whatever_others_capture = Relaxed::new(self);
        let mut runs: *mut CUgraphExec_st = std::ptr::null_mut();
        // SAFETY: `runs` is writable for the call; the graph was made above.
        let made = unsafe { (self.api.graph_instantiate)(&raw mut runs, graph, 0) };
        // SAFETY: the graph was made above, and is not used again: what was made of it is a copy.
        let destroyed = unsafe { (self.api.graph_destroy)(graph) };
        check("cuGraphInstantiateWithFlags", made)?;
        check("cuGraphDestroy", destroyed)?;
        Ok(RawGraph(runs))
    }

    /// Enqueues the graph.
    ///
    /// # Safety
    /// Its work may be done now, with the arguments that it was captured with.
    pub(crate) unsafe fn graph_launch(
        &self,
        graph: &RawGraph,
        stream: &RawStream,
    ) -> Result<(), Fault> {
        // SAFETY: graph and stream live while they are borrowed; the caller vouches for the work.
        let answer = unsafe { (self.api.graph_launch)(graph.0, stream.pointer()) };
        check("cuGraphLaunch", answer)
    }

    /// Ends a graph; work of it that was enqueued goes on.
    pub(crate) fn graph_destroy(&self, graph: RawGraph) -> Result<(), Fault> {
        let _whatever_others_capture = Relaxed::new(self);
        // SAFETY: a graph of ours, consumed here: it ends once.
        let answer = unsafe { (self.api.graph_exec_destroy)(graph.0) };
        check("cuGraphExecDestroy", answer)
    }
}
