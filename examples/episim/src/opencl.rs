//! The kernels on an OpenCL device, built from their source at run time.

use crate::Failure;
use crate::compute::{Argument, Compute, Kernel, source};
use gapless::{Completion, Device, OpenClDevice};
use gapless_mem_opencl::{Argument as Given, Grid, Program, detect};
use std::cell::RefCell;
use std::sync::Arc;

/// Work-items of a group, and groups at most.
const ITEMS: u32 = 64;
const GROUPS: u32 = 2048;

/// A device, its program, and the last kernel that was started.
pub(crate) struct OpenCl {
    device: Arc<OpenClDevice>,
    copies: Arc<dyn Device>,
    program: Arc<Program>,
    last: RefCell<Completion>,
}

impl OpenCl {
    pub(crate) fn open(rank: u32) -> Result<OpenCl, Failure> {
        // The host's own processor is the last of the list, and serves only where there is nothing else.
        let found = detect()?;
        let others = found.iter().filter(|device| !device.cpu).count();
        let count = if others == 0 { found.len().max(1) } else { others };
        let device = Arc::new(OpenClDevice::open(rank as usize % count)?);
        let program = device.program(&source(), "")?;
        let copies: Arc<dyn Device> = Arc::clone(&device) as _;
        Ok(OpenCl { device, copies, program, last: RefCell::new(Completion::Ready) })
    }
}

impl Compute for OpenCl {
    fn device(&self) -> &Arc<dyn Device> {
        &self.copies
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        items: u32,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        let words = arguments.iter().map(|argument| match argument {
            Argument::Word(word) => word.to_ne_bytes(),
            Argument::Memory(_) => [0; 4],
        });
        let words: Vec<[u8; 4]> = words.collect();
        let given = arguments.iter().zip(&words).map(|(argument, word)| match argument {
            Argument::Memory(region) => Given::Buffer(*region),
            Argument::Word(_) => Given::Value(word),
        });
        let given: Vec<Given<'_>> = given.collect();
        let grid = Grid::line(items.div_ceil(ITEMS).clamp(1, GROUPS), ITEMS);
        // SAFETY: the caller's promise; regions are whole buffers, and the queue is in order.
        let started =
            unsafe { self.device.launch(&self.program, kernel.name(), grid, &given, &[]) }?;
        self.last.replace(started);
        Ok(())
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(self.last.replace(Completion::Ready).wait()?)
    }
}
