//! The origin's side of accumulations as tasks: what goes into a packet, how many are under way, and their ends.

use crate::arithmetic::Arithmetic;
use crate::error::WindowError;
use crate::memory::for_each_run;
use crate::place::Access;
use crate::tasks::{
    ARGUMENTS, Accumulations, BODY, Carried, FUNCTION, ITEMS, KernelHandle, QUEUES, RUN, Tasks,
    UNDER_WAY, WORKER_QUEUE, run, unpoisoned,
};
use crate::window::{Driver, Window};
use gapless_bml::Rank;
use gapless_dtype::Primitive;
use gapless_engine::ReduceOp;
use gapless_xtq::device::{Accumulate, Combine, Element};
use gapless_xtq::packet::Launch;
use gapless_xtq::{Put, Refusal, Retry, XtqError};
use std::ops::Range;
use std::sync::Mutex;

/// The word of an [`Accumulate`] that a worker is to do. `None`: it does not know the operation, or the elements.
fn worker_word(op: ReduceOp, primitive: Primitive) -> Option<u64> {
    let combine = match op {
        ReduceOp::Sum => Combine::Sum,
        ReduceOp::Prod => Combine::Prod,
        ReduceOp::Min => Combine::Min,
        ReduceOp::Max => Combine::Max,
        _ => return None,
    };
    let is_integer = ReduceOp::Bor.is_defined_for(primitive) && op.is_defined_for(primitive);
    let is_signed = is_integer && run::is_signed(primitive);
    let element = match (primitive.size_bytes(), is_integer, is_signed) {
        (4, true, true) => Element::I32,
        (4, true, false) => Element::U32,
        (8, true, true) => Element::I64,
        (8, true, false) => Element::U64,
        _ if primitive == Primitive::Float => Element::F32,
        _ if primitive == Primitive::Double => Element::F64,
        _ => return None,
    };
    Some(Accumulate(combine, element).word())
}

/// One piece of an accumulation: runs of the target's window, and where their operands are.
struct PutPiece {
    runs: Vec<(u64, Range<usize>)>,
}

impl Window {
    /// Has accumulations carried out as tasks. All ranks do the same.
    #[must_use]
    pub fn with_tasks(
        mut self,
        tasks: Tasks,
        way: Accumulations,
        kernel: Option<KernelHandle>,
    ) -> Window {
        if way != Accumulations::Ordinary {
            let puts = self.members.iter().map(|_| Mutex::default()).collect();
            self.tasks = Some(Box::new(Carried { tasks, way, kernel, puts }));
        }
        self
    }

    /// How accumulations are carried out.
    #[must_use]
    pub fn accumulations(&self) -> Accumulations {
        self.tasks.as_ref().map_or(Accumulations::Ordinary, |carried| carried.way)
    }

    /// No task of a worker changes this rank's memory from now on. Before the memory is given back.
    ///
    /// # Errors
    /// The worker does not answer, and may still change it.
    pub fn end_kernel(&mut self) -> Result<(), WindowError> {
        let carried = self.tasks.as_mut();
        carried.and_then(|carried| carried.kernel.as_mut()).map_or(Ok(()), KernelHandle::end)
    }

    /// Waits until this rank's tasks at a target have ended, if it has some.
    ///
    /// # Errors
    /// One of them has failed, or the target is lost.
    #[inline]
    pub(crate) fn end_tasks<D: Driver>(&self, driver: &D, rank: u32) -> Result<(), D::Error> {
        match &self.tasks {
            None => Ok(()),
            Some(carried) => self.end_puts(driver, carried, rank),
        }
    }

    /// Before an operation that reads what it changes: the same, if the window has such operations.
    #[inline]
    pub(crate) fn before_fetch<D: Driver>(
        &self,
        driver: &D,
        rank: u32,
        call: &'static str,
    ) -> Result<(), D::Error> {
        match &self.tasks {
            None => Ok(()),
            Some(carried) if carried.way == Accumulations::Worker => {
                Err(WindowError::NotByWorker { call }.into())
            }
            Some(carried) => self.end_puts(driver, carried, rank),
        }
    }

    #[cold]
    fn end_puts<D: Driver>(
        &self,
        driver: &D,
        carried: &Carried,
        rank: u32,
    ) -> Result<(), D::Error> {
        let puts = &carried.puts[rank as usize];
        loop {
            let mut puts = unpoisoned(puts);
            puts.collect();
            let Some(first) = puts.under_way.front().cloned() else {
                let failed = puts.failed.take();
                return failed.map_or(Ok(()), |error| Err(self.task_error(rank, error).into()));
            };
            drop(puts);
            let process = self.members[rank as usize].process;
            driver.until(false, || Some(process), |_| first.outcome().map(drop))?;
        }
    }

    fn task_error(&self, rank: u32, error: XtqError) -> WindowError {
        let process = self.members[rank as usize].process;
        match error {
            XtqError::Lost { .. } if self.osc().departed().is_lost(process) => {
                self.osc().loss(process)
            }
            XtqError::Lost { rank, error } => WindowError::Lost { process: rank.0, error },
            XtqError::Refused { refusal: Refusal::NotRegistered, .. } => {
                WindowError::Freed { rank }
            }
            XtqError::Failed { reason, .. } => match run::fault(&reason) {
                Some(fault) => self.refused(rank, fault),
                None => WindowError::Task { rank, why: reason },
            },
            other => WindowError::Task { rank, why: other.to_string() },
        }
    }

    /// An accumulation as tasks.
    #[cold]
    pub(crate) fn put_tasks<D: Driver>(
        &self,
        driver: &D,
        carried: &Carried,
        access: &Access,
        (arithmetic, bytes): (&Arithmetic, &[u8]),
    ) -> Result<(), D::Error> {
        let (rank, target) = (access.rank, &access.target);
        if arithmetic.op() == ReduceOp::NoOp {
            return Ok(());
        }
        let word = worker_word(arithmetic.op(), arithmetic.primitive());
        if carried.way == Accumulations::Worker && word.is_none() {
            return Err(WindowError::NotByWorker { call: arithmetic.op().name() }.into());
        }
        // What went by messages comes first.
        self.confirm(driver, rank)?;
        let (width, all) = (arithmetic.width(), access.packed_bytes());
        let each = match target.contiguous_start() {
            Some(_) => (BODY - RUN) / width,
            // A run may have one element, or half a pair.
            None => BODY / (2 * RUN + width),
        };
        let each = (each * width) as u64;
        let mut start = 0;
        while start < all {
            let end = all.min(start + each);
            let mut runs = Vec::new();
            let base = usize::try_from(start).unwrap_or(usize::MAX);
            for_each_run(target, start..end, |offset, at, len| {
                runs.push((offset, base + at..base + at + len));
                Ok(())
            })
            .map_err(|fault| self.refused(rank, fault))?;
            let piece = PutPiece { runs };
            match word.filter(|_| carried.way == Accumulations::Worker) {
                Some(word) => {
                    self.put_kernels(driver, carried, rank, &piece, (word, width, bytes))?
                }
                None => self.put_function(driver, carried, rank, &piece, (arithmetic, bytes))?,
            }
            start = end;
        }
        Ok(())
    }

    fn put_function<D: Driver>(
        &self,
        driver: &D,
        carried: &Carried,
        rank: u32,
        piece: &PutPiece,
        (arithmetic, bytes): (&Arithmetic, &[u8]),
    ) -> Result<(), D::Error> {
        let member = &self.members[rank as usize];
        let mut payload = Vec::new();
        for (offset, operands) in &piece.runs {
            payload.extend_from_slice(&offset.to_le_bytes());
            payload.extend_from_slice(&(operands.len() as u64).to_le_bytes());
        }
        for (_, operands) in &piece.runs {
            payload.extend_from_slice(bytes.get(operands.clone()).unwrap_or_default());
        }
        let what = run::Accumulation {
            window: member.window,
            rank: self.rank,
            op: arithmetic.op(),
            primitive: arithmetic.primitive(),
            runs: u32::try_from(piece.runs.len()).unwrap_or(u32::MAX),
        };
        let queue = self.rank.wrapping_add(member.window) % u32::from(QUEUES);
        let queue = u8::try_from(queue).unwrap_or(0);
        let put = Put::function(Rank(member.process), FUNCTION, queue, what.words());
        // In a line: an earlier one that is refused for now comes first all the same.
        let put = put.payload(payload).retry(Retry::InOrder);
        self.give(driver, carried, (rank, true), put)
    }

    fn put_kernels<D: Driver>(
        &self,
        driver: &D,
        carried: &Carried,
        rank: u32,
        piece: &PutPiece,
        (word, width, bytes): (u64, usize, &[u8]),
    ) -> Result<(), D::Error> {
        let member = &self.members[rank as usize];
        let process = Rank(member.process);
        for (offset, operands) in &piece.runs {
            let payload = bytes.get(operands.clone()).unwrap_or_default();
            let items = (payload.len() / width) as u64;
            let items = u16::try_from(items.clamp(1, ITEMS)).unwrap_or(1);
            let arguments = [0, 0, *offset, word].map(u64::to_le_bytes);
            let launch = Launch::linear(1, items, ARGUMENTS);
            let put =
                Put::kernel(process, member.kernel, WORKER_QUEUE, launch, arguments.as_flattened());
            // A ring keeps the order, and its worker refuses nothing for now. Messages may be refused, and come again
            // behind others: so there is one at a time, and what went the other way has ended before.
            let many = carried.tasks.xtq().has_ring(process);
            let retry = if many { Retry::Never } else { Retry::InAnyOrder };
            self.give(driver, carried, (rank, many), put.payload(payload).retry(retry))?;
        }
        Ok(())
    }

    /// Puts a task, once there is room: `many` may be under way, but those before that must go alone.
    fn give<D: Driver>(
        &self,
        driver: &D,
        carried: &Carried,
        (rank, many): (u32, bool),
        put: Put,
    ) -> Result<(), D::Error> {
        let puts = &carried.puts[rank as usize];
        loop {
            let mut puts = unpoisoned(puts);
            puts.collect();
            let most = if many && puts.many { UNDER_WAY } else { 1 };
            if puts.under_way.len() < most {
                puts.many = many;
                let handle = carried.tasks.xtq().put(put.acknowledged());
                puts.under_way.push_back(handle.map_err(|error| self.task_error(rank, error))?);
                break;
            }
            let first = puts.under_way.front().cloned();
            drop(puts);
            let process = self.members[rank as usize].process;
            let ended = || first.as_ref().map_or(Some(()), |put| put.outcome().map(drop));
            driver.until(false, || Some(process), |_| ended())?;
        }
        // It leaves at once, if there is room.
        driver.progress();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_knows_numbers_of_4_and_8_bytes() {
        let sum = |element| worker_word(ReduceOp::Sum, element);
        assert_eq!(sum(Primitive::Float), Some(Accumulate(Combine::Sum, Element::F32).word()));
        assert_eq!(sum(Primitive::Uint64), Some(Accumulate(Combine::Sum, Element::U64).word()));
        assert_eq!(sum(Primitive::Int), Some(Accumulate(Combine::Sum, Element::I32).word()));
        for other in [Primitive::Short, Primitive::Byte, Primitive::LongDouble] {
            assert_eq!(sum(other), None);
        }
        assert_eq!(worker_word(ReduceOp::Bxor, Primitive::Int), None);
    }
}
