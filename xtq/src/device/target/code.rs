//! What rows of kernels name: functions of users that the worker runs; and layouts that its tasks pack by. Both change
//! between two lives alone.

use super::super::TargetError;
use super::super::layout::{CONTROL_LAYOUT_LIST, LAYOUTS_MAX, ROW_WORDS, SIGNALS_MAX, USERS};
use super::super::terms::{DeviceKernel, Runs};
use super::WorkerTarget;
use crate::packet::{ARGUMENTS_MAX, ARGUMENTS_MIN, ENTRIES};
use gapless_mem::{Lease, WorkerFunction};
use std::sync::atomic::Ordering;

/// The words of a row, and the function of a user's that it names.
type Row = ([u64; ROW_WORDS - 1], Option<WorkerFunction>);

/// What is linked.
#[derive(Debug)]
pub(super) struct Code {
    /// By kernel: the function of a user's that its row names.
    named: Vec<Option<WorkerFunction>>,
    /// What the worker has, named or not.
    linked: Vec<WorkerFunction>,
    next: u64,
}

impl Default for Code {
    fn default() -> Code {
        Code { named: vec![None; ENTRIES], linked: Vec::new(), next: USERS }
    }
}

impl Code {
    pub(super) fn set(&mut self, at: usize, function: Option<WorkerFunction>) {
        self.named[at] = function;
    }

    /// Those that other rows name than this one, once each.
    fn others(&self, at: usize) -> Vec<WorkerFunction> {
        let mut functions: Vec<WorkerFunction> = Vec::new();
        let others = self.named.iter().enumerate().filter(|(index, _)| *index != at);
        for function in others.filter_map(|(_, function)| function.as_ref()) {
            if functions.iter().all(|one| one.number != function.number) {
                functions.push(function.clone());
            }
        }
        functions
    }
}

impl WorkerTarget {
    /// The row of a kernel, and the function of a user's that it names.
    pub(super) fn row(&mut self, at: usize, kernel: &DeviceKernel) -> Result<Row, TargetError> {
        let (bytes, min) = (kernel.argument_bytes, kernel.runs.argument_bytes());
        let most = usize::from(bytes) <= ARGUMENTS_MAX && usize::from(bytes) >= ARGUMENTS_MIN;
        if !most || bytes < min || !bytes.is_multiple_of(8) {
            return Err(TargetError::Arguments { bytes, min });
        }
        let signal = match kernel.signal {
            None => 0,
            Some(signal) if usize::from(signal) < SIGNALS_MAX => u64::from(signal) + 1,
            Some(_) => return Err(TargetError::TooMany { what: "signals", max: SIGNALS_MAX }),
        };
        let (buffer, len) = match &kernel.buffer {
            None => (0, 0),
            Some(lease) => (self.reach(lease)?, lease.region().len()),
        };
        // The last that can fail: what is linked for it replaces what was.
        let (object, function) = match self.object(at, &kernel.runs) {
            Ok(found) => found,
            Err(error) => {
                self.spare.extend(kernel.buffer.clone());
                return Err(error);
            }
        };
        let [x, y, z] = kernel.grid_max.map(u64::from);
        let limits = u64::from(kernel.payload_max) | u64::from(bytes) << 32;
        let items = u64::from(self.worker.limits().items_max);
        let words = [object, buffer, len, signal, limits, x | y << 32, z | items << 32];
        Ok((words, function))
    }

    /// What the row of this index is to name. A function of a user's that the worker does not have is linked to it: the
    /// worker leaves for that, and what the row has named until now goes, as the new one may have its name.
    fn object(
        &mut self,
        at: usize,
        runs: &Runs,
    ) -> Result<(u64, Option<WorkerFunction>), TargetError> {
        let (code, name) = match runs {
            Runs::Own(function) => return Ok((*function as u64, None)),
            Runs::Users { code, name } => (code, name),
        };
        let same = |one: &&WorkerFunction| one.code.is(code) && one.name == *name;
        if let Some(known) = self.code.linked.iter().find(same) {
            return Ok((known.number, Some(known.clone())));
        }
        self.send_away()?;
        let number = self.code.next;
        let new = WorkerFunction { number, code: code.clone(), name: name.clone() };
        let mut functions = self.code.others(at);
        functions.push(new.clone());
        self.worker.link(&functions)?;
        self.code.linked = functions;
        // A number stands for one function for ever: rows of an earlier life never name a later one's.
        self.code.next += 1;
        Ok((number, Some(new)))
    }

    /// Lets tasks pack and unpack by a layout, by its number; `None`: they fail. The worker leaves for a moment.
    ///
    /// # Errors
    /// There is no such number; the worker does not leave, or cannot reach the memory.
    ///
    /// # Safety
    /// The memory is the form of a layout, as the worker's code has it (of CUDA's, `gapless_dtype_cuda::WorkerLayout`).
    /// Nobody writes it.
    pub unsafe fn register_layout(
        &mut self,
        number: u8,
        form: Option<Lease>,
    ) -> Result<(), TargetError> {
        let at = usize::from(number);
        if at >= LAYOUTS_MAX {
            return Err(TargetError::TooMany { what: "layouts", max: LAYOUTS_MAX });
        }
        self.send_away()?;
        let address = form.as_ref().map(|form| self.worker.reach(form)).transpose()?;
        let old = std::mem::replace(&mut self.layouts[at], form);
        let word = self.word(CONTROL_LAYOUT_LIST + 8 * at);
        word.store(address.unwrap_or(0), Ordering::Release);
        // No worker runs.
        old.iter().for_each(|old| self.forget(old));
        Ok(())
    }
}
