//! The device's queue as a lane. What must be waited for is given to the next command, and each command
//! waits for the one before: in order they would be anyway, but so a failure becomes the failure of all
//! that comes after it, and the last command's end is the call's.

use super::preparation::Preparation;
use super::programs::Programs;
use crate::accelerator::Lane;
use gapless_engine::EngineError;
use gapless_kernels::launch::{Launch, ReduceLaunch};
use gapless_kernels::reduce::SOURCES_MAX;
use gapless_mem::{Completion, Device, DeviceError, Region};
use gapless_mem_opencl::{Argument, Grid, OpenClDevice, Program};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tables in flight; with more, the oldest is waited for.
const TABLES: usize = 16;

/// What the next command waits for, the call's last command, and tables.
#[derive(Default)]
struct LaneState {
    after: Vec<Completion>,
    last: Completion,
    tables: VecDeque<ArgumentTable>,
}

/// Arguments too large for a parameter: a buffer that holds them, and what it is filled from.
struct ArgumentTable {
    buffer: Region,
    bytes: Box<[u8]>,
    /// The launch that used it last.
    busy: Completion,
}

/// A queue in order.
pub(crate) struct QueueLane {
    device: Arc<OpenClDevice>,
    programs: Arc<Programs>,
    preparation: Arc<Preparation>,
    state: Mutex<LaneState>,
}

impl QueueLane {
    pub(super) fn new(
        device: Arc<OpenClDevice>,
        programs: Arc<Programs>,
        preparation: Arc<Preparation>,
    ) -> QueueLane {
        QueueLane { device, programs, preparation, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues by `command` what comes after what has to be waited for.
    fn enqueue(
        &self,
        command: impl FnOnce(&[Completion]) -> Result<Completion, DeviceError>,
    ) -> Result<(), EngineError> {
        let mut state = self.state();
        let mut after = std::mem::take(&mut state.after);
        if matches!(state.last, Completion::Pending(_)) {
            after.push(state.last.clone());
        }
        state.last = command(&after)?;
        self.preparation.begin();
        Ok(())
    }

    /// A table that nothing uses, filled on the queue; it is used until its `busy` is set and has ended.
    fn table(&self, bytes: &[u8]) -> Result<ArgumentTable, EngineError> {
        let mut tables = std::mem::take(&mut self.state().tables);
        let free = tables.iter().position(|table| !matches!(table.busy.poll(), Ok(false)));
        let oldest = (tables.len() >= TABLES).then_some(0);
        let old = free.or(oldest).and_then(|at| tables.remove(at));
        self.state().tables = tables;
        let mut table = match old {
            Some(table) if table.bytes.len() == bytes.len() => table,
            other => {
                if let Some(table) = other {
                    self.free(&table);
                }
                ArgumentTable {
                    buffer: self.device.allocate(bytes.len() as u64)?,
                    bytes: vec![0; bytes.len()].into_boxed_slice(),
                    busy: Completion::Ready,
                }
            }
        };
        // What failed is over as well.
        let _ = table.busy.wait();
        table.bytes.copy_from_slice(bytes);
        let source = Region::of(&table.bytes);
        // SAFETY: the table's memory, on both sides, is not touched before the launch that uses it has
        // ended, which comes after on the queue; it is held until then (`launch`, `drop`).
        match unsafe { self.copy(table.buffer, source) } {
            Ok(()) => Ok(table),
            Err(error) => {
                self.free(&table);
                Err(error)
            }
        }
    }

    /// Enqueues a kernel of so many groups and work-items, whose last argument is a structure, or a buffer of it.
    ///
    /// # Safety
    /// As for [`Lane::launch`]: the arguments are what the kernel takes.
    unsafe fn run<'a>(
        &self,
        (program, name): (&Program, &str),
        (groups, threads): (u32, u32),
        mut arguments: SmallVec<[Argument<'a>; 10]>,
        (structure, tabled): (&'a [u8], bool),
    ) -> Result<(), EngineError> {
        let table = tabled.then(|| self.table(structure)).transpose()?;
        let value = Argument::Value(structure);
        arguments.push(table.as_ref().map_or(value, |table| Argument::Buffer(table.buffer)));
        let launched = self.enqueue(|after| {
            // SAFETY: the caller's own promise; the table is used by nothing else until its `busy` has ended.
            unsafe {
                self.device.launch(program, name, Grid::line(groups, threads), &arguments, after)
            }
        });
        if let Some(mut table) = table {
            let mut state = self.state();
            table.busy = state.last.clone();
            state.tables.push_back(table);
        }
        launched
    }

    fn free(&self, table: &ArgumentTable) {
        let _ = table.busy.wait();
        // SAFETY: the buffer is the table's, and the launch that used it last has ended.
        let _ = unsafe { self.device.free(table.buffer) };
    }
}

impl Drop for QueueLane {
    fn drop(&mut self) {
        self.drain();
        for table in std::mem::take(&mut self.state().tables) {
            self.free(&table);
        }
    }
}

impl Lane for QueueLane {
    fn begin(&self) {
        let mut state = self.state();
        state.after.clear();
        state.last = Completion::Ready;
    }

    fn wait_for(&self, after: &[Completion]) -> Result<(), EngineError> {
        let pending = after.iter().filter(|work| matches!(work, Completion::Pending(_)));
        self.state().after.extend(pending.cloned());
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch, pointers: &[Region]) -> Result<(), EngineError> {
        let (program, name) = self.programs.get(launch.kernel)?;
        let tabled = launch.kernel.family.tabled();
        let shape = (launch.blocks, launch.threads);
        let arguments = pointers.iter().map(|&region| Argument::Buffer(region)).collect();
        // SAFETY: every kernel takes its pointers, then its structure, whose layout `kernels` tests against the
        // compiled one; the caller vouches for what they lead to.
        unsafe { self.run((program, name), shape, arguments, (launch.args.as_bytes(), tabled)) }
    }

    unsafe fn reduce(&self, launch: &ReduceLaunch, pointers: &[Region]) -> Result<(), EngineError> {
        let program = self.programs.reduction(launch.kernel)?;
        let (name, tabled) = (launch.kernel.to_string(), launch.kernel.tabled());
        let shape = (launch.blocks, launch.threads);
        let mut arguments: SmallVec<[Argument<'_>; 10]> =
            pointers.iter().map(|&region| Argument::Buffer(region)).collect();
        // Of sources that there are not, pointers are not used.
        arguments.resize_with(SOURCES_MAX + 1, || Argument::Null);
        // SAFETY: these kernels take a pointer for the target and each of `SOURCES_MAX` sources, then their structure,
        // whose layout `kernels` tests; the caller vouches for what they lead to.
        unsafe { self.run((program, &name), shape, arguments, (launch.args.as_bytes(), tabled)) }
    }

    unsafe fn copy(&self, dst: Region, src: Region) -> Result<(), EngineError> {
        // SAFETY: the caller's own promise.
        self.enqueue(|after| unsafe { self.device.copy(dst, src, after) })
    }

    fn record(&self) -> Result<Completion, EngineError> {
        let state = self.state();
        let (after, last) = (!state.after.is_empty(), state.last.clone());
        drop(state);
        if after {
            // Nothing came after what was to be waited for: an empty copy does.
            let nothing = Region::new(self.device.space(), 0, 0, 0);
            // SAFETY: no byte is touched.
            unsafe { self.copy(nothing, nothing) }?;
            return Ok(self.state().last.clone());
        }
        Ok(last)
    }

    fn drain(&self) {
        let mut state = self.state();
        // What was to come next does not come.
        state.after.clear();
        let last = state.last.clone();
        drop(state);
        while matches!(last.poll(), Ok(false)) {
            std::thread::yield_now();
        }
    }
}
