//! An operation on memory of a device. If a message asks for it, the progress engine begins it, and asks again until the
//! device is done: so the target serves others meanwhile. Operations of one process keep their order, as those behind it
//! are held (`core.rs`). Who has mapped the memory waits for its end (`near_device.rs`).
//!
//! ```text
//! put, replace   write
//! get            read
//! change         read, combine, write
//! compare        read, and if it is the same, write
//! ```
//!
//! Accumulations and comparisons have the mutexes of their stripes before the job begins; it gives them back when it is
//! dropped.

use crate::arithmetic::{read, write};
use crate::device::{DeviceMemory, DeviceWork};
use crate::header::{Header, Stripes};
use crate::perform::{Does, Plan};
use gapless_engine::{EngineError, ReduceOp};
use std::ops::ControlFlow::{self, Break, Continue};

/// How often the device is asked before others have their turn: short copies end meanwhile.
const POLLS: usize = 64;

/// What the device does next, or the bytes that were wanted.
type Next = Result<ControlFlow<Option<Vec<u8>>, DeviceCopy>, EngineError>;

/// An operation whose device is at work. Dropping it waits for that.
pub(crate) struct DeviceJob {
    pub(crate) window: u32,
    /// Where it is; `None`: it has not begun, or is over.
    step: Option<DeviceCopy>,
    plan: Plan,
    operand: Vec<u8>,
    /// What was there.
    found: Vec<u8>,
    memory: DeviceMemory,
    header: Header,
    rank: u32,
    held: Stripes,
}

enum DeviceCopy {
    Read(DeviceWork),
    Write(DeviceWork),
}

impl DeviceJob {
    /// An operation of which this rank has the mutexes: the job gives them back.
    pub(crate) fn new(
        window: u32,
        memory: &DeviceMemory,
        (header, rank, held): (Header, u32, Stripes),
        (plan, operand): (Plan, &[u8]),
    ) -> DeviceJob {
        let (memory, operand) = (memory.clone(), operand.to_vec());
        DeviceJob {
            window,
            step: None,
            plan,
            operand,
            found: Vec::new(),
            memory,
            header,
            rank,
            held,
        }
    }

    /// Goes on as far as the device is. Gives what it comes to, if that is known; it is over then.
    pub(crate) fn step(&mut self) -> Option<Result<Option<Vec<u8>>, EngineError>> {
        for _ in 0..POLLS {
            let next = match self.step.take() {
                None => self.begin(),
                Some(DeviceCopy::Read(mut work)) => match work.poll() {
                    Some(read) => read.and_then(|read| self.has_read(read)),
                    None => Ok(Continue(DeviceCopy::Read(work))),
                },
                Some(DeviceCopy::Write(mut work)) => match work.poll() {
                    Some(written) => written.map(|_| Break(self.end())),
                    None => Ok(Continue(DeviceCopy::Write(work))),
                },
            };
            match next {
                Ok(Continue(step)) => self.step = Some(step),
                Ok(Break(outcome)) => return Some(Ok(outcome)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Result<Option<Vec<u8>>, EngineError> {
        loop {
            if let Some(outcome) = self.step() {
                return outcome;
            }
            std::thread::yield_now();
        }
    }

    fn read(&self) -> Next {
        let work = self.memory.begin_load(&self.plan.target, self.plan.range.clone())?;
        Ok(Continue(DeviceCopy::Read(work)))
    }

    fn write(&self, bytes: Vec<u8>) -> Next {
        let (target, range) = (&self.plan.target, self.plan.range.clone());
        Ok(Continue(DeviceCopy::Write(self.memory.begin_store(target, range, bytes)?)))
    }

    fn begin(&mut self) -> Next {
        let writes = match &self.plan.does {
            Does::Nothing => return Ok(Break(None)),
            Does::Put => true,
            Does::Change { arithmetic, fetches: false } => arithmetic.op() == ReduceOp::Replace,
            Does::Get | Does::Compare { .. } | Does::Change { .. } => false,
        };
        if !writes {
            return self.read();
        }
        let operand = std::mem::take(&mut self.operand);
        self.write(operand)
    }

    fn has_read(&mut self, mut old: Vec<u8>) -> Next {
        match &self.plan.does {
            Does::Compare { compare, swap, width } if read(&old) == *compare => {
                let mut new = vec![0; *width];
                write(*swap, &mut new);
                self.found = old;
                self.write(new)
            }
            Does::Change { arithmetic, fetches } if arithmetic.op() != ReduceOp::NoOp => {
                if *fetches {
                    self.found.clone_from(&old);
                }
                arithmetic.combine(&mut old, &self.operand);
                self.write(old)
            }
            _ => Ok(Break(Some(old))),
        }
    }

    fn end(&mut self) -> Option<Vec<u8>> {
        match &self.plan.does {
            Does::Compare { .. } | Does::Change { fetches: true, .. } => {
                Some(std::mem::take(&mut self.found))
            }
            _ => None,
        }
    }
}

impl Drop for DeviceJob {
    fn drop(&mut self) {
        // The device is done before others have the mutexes.
        self.step = None;
        self.header.release_stripes(self.rank, self.held);
    }
}
