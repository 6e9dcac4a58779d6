//! A stream as a lane: one of ours, or the caller's for a while.

use super::failed;
use super::functions::Functions;
use crate::accelerator::{CopyRows, Lane};
use gapless_engine::EngineError;
use gapless_kernels::args::{Args, ReduceArgs};
use gapless_kernels::launch::{Launch, ReduceLaunch};
use gapless_mem::{Completion, DeviceError, Region};
use gapless_mem_cuda::{Argument, CudaDevice, Grid, Stream};
use std::sync::Arc;

/// Pointers of a kernel at most: two sides, a plan or list for each, and a report.
const POINTERS: usize = 5;

/// A stream and what work on it needs.
#[derive(Clone, Copy)]
pub(crate) struct StreamLane<'a> {
    pub(crate) device: &'a CudaDevice,
    pub(crate) functions: &'a Functions,
    pub(crate) stream: &'a Stream,
}

/// A stream of ours.
pub(crate) struct OwnLane {
    device: Arc<CudaDevice>,
    functions: Arc<Functions>,
    stream: Stream,
}

impl OwnLane {
    pub(crate) fn new(
        device: Arc<CudaDevice>,
        functions: Arc<Functions>,
        stream: Stream,
    ) -> OwnLane {
        OwnLane { device, functions, stream }
    }

    fn lane(&self) -> StreamLane<'_> {
        StreamLane { device: &self.device, functions: &self.functions, stream: &self.stream }
    }
}

/// The launch's structure, as the driver takes it.
fn structure(args: &Args) -> Argument<'_> {
    match args {
        Args::Copy(args) => Argument::of(args),
        Args::Strided(args) => Argument::of(args),
        Args::Rows(args) => Argument::of(args),
        Args::Affine(args) => Argument::of(args),
        Args::Listed(args) => Argument::of(args),
        Args::Mapped(args) => Argument::of(args),
        Args::Transposed(args) => Argument::of(args),
        Args::Transfer(args) => Argument::of(&**args),
        Args::Pages(args) => Argument::of(&**args),
        Args::Fused(args) => Argument::of(&**args),
    }
}

impl Lane for StreamLane<'_> {
    fn is_ours(&self) -> bool {
        // Those of ours are `OwnLane`s.
        false
    }

    fn wait_for(&self, after: &[Completion]) -> Result<(), EngineError> {
        self.stream.wait_for(after).map_err(failed)
    }

    unsafe fn launch(&self, launch: &Launch, pointers: &[Region]) -> Result<(), EngineError> {
        let function = self.functions.get(launch.kernel).map_err(failed)?;
        let mut addresses = [0u64; POINTERS];
        for (address, pointer) in addresses.iter_mut().zip(pointers) {
            *address = pointer.start();
        }
        let [first, second, third, fourth, fifth] = addresses.each_ref().map(Argument::of);
        let args = structure(&launch.args);
        let all: &[Argument<'_>] = match pointers.len() {
            2 => &[first, second, args],
            3 => &[first, second, third, args],
            4 => &[first, second, third, fourth, args],
            5 => &[first, second, third, fourth, fifth, args],
            _ => {
                let what = "a kernel with that many pointers";
                return Err(EngineError::Device(DeviceError::Unsupported { what }));
            }
        };
        let grid = Grid::line(launch.blocks, launch.threads);
        // SAFETY: every kernel takes its pointers, then its structure, whose layout `kernels` tests
        // against the compiled one; the caller vouches for what they lead to.
        unsafe { function.launch(self.stream, grid, all) }.map_err(failed)
    }

    unsafe fn reduce(&self, launch: &ReduceLaunch, _: &[Region]) -> Result<(), EngineError> {
        let function = self.functions.reduction(self.device, launch.kernel).map_err(failed)?;
        let args = match &launch.args {
            ReduceArgs::Flat(args) => Argument::of(args),
            ReduceArgs::Grid(args) => Argument::of(&**args),
        };
        let grid = Grid::line(launch.blocks, launch.threads);
        // SAFETY: these kernels take their structure alone, in which sides are told by their addresses; its layout is
        // that of the compiled one, which `kernels` tests. The caller vouches for what it leads to.
        unsafe { function.launch(self.stream, grid, &[args]) }.map_err(failed)
    }

    unsafe fn copy(&self, dst: Region, src: Region) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.device.copy_on(self.stream, dst, src) }.map_err(failed)
    }

    unsafe fn copy_rows(&self, rows: &CopyRows) -> Result<(), EngineError> {
        let &CopyRows { dst, dst_pitch, src, src_pitch, width, rows } = rows;
        // SAFETY: the caller's own promise.
        unsafe { self.device.copy_2d_on(self.stream, dst, dst_pitch, src, src_pitch, width, rows) }
            .map_err(failed)
    }

    fn recorded(&self, completion: &Completion) -> bool {
        self.stream.recorded(completion)
    }

    fn record(&self) -> Result<Completion, EngineError> {
        self.stream.record().map_err(failed)
    }

    fn drain(&self) {
        self.stream.drain();
    }
}

impl Lane for OwnLane {
    fn wait_for(&self, after: &[Completion]) -> Result<(), EngineError> {
        self.lane().wait_for(after)
    }

    unsafe fn launch(&self, launch: &Launch, pointers: &[Region]) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.lane().launch(launch, pointers) }
    }

    unsafe fn reduce(&self, launch: &ReduceLaunch, pointers: &[Region]) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.lane().reduce(launch, pointers) }
    }

    unsafe fn copy(&self, dst: Region, src: Region) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.lane().copy(dst, src) }
    }

    unsafe fn copy_rows(&self, rows: &CopyRows) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        unsafe { self.lane().copy_rows(rows) }
    }

    fn recorded(&self, completion: &Completion) -> bool {
        self.lane().recorded(completion)
    }

    fn record(&self) -> Result<Completion, EngineError> {
        self.lane().record()
    }

    fn drain(&self) {
        self.lane().drain();
    }
}
